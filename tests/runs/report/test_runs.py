from pathlib import Path

import pytest

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.runs.report.runs import read_metrics, read_runs, run_folder


@pytest.mark.slow
def test_a_run_is_found_by_its_folder_and_by_the_one_around_it(trained: dict[str, Path]) -> None:
    inner = trained["plain"] / "version_0"
    assert run_folder(trained["plain"]) == run_folder(inner) == inner


def test_a_run_is_read_whole(trained: dict[str, Path]) -> None:
    (run,) = read_runs([trained["plain"]])
    assert (run.number, run.alone, run.name) == (0, True, "plain")
    assert run.config["data"]["batch_size"] == 8
    assert run.facts["pairing"] == "SameText()"
    assert run.metrics["train/loss"].steps == (1, 2, 3, 4)
    assert run.metrics["val/spearman"].steps == (2, 4)
    assert run.best is not None and run.best[0] == "val/spearman"
    assert run.best[1] == pytest.approx(max(run.metrics["val/spearman"].values))
    assert run.model == trained["plain"] / "version_0" / "model"


def test_names_say_what_tells_runs_apart(tmp_path: Path) -> None:
    def names(*folders: str) -> list[str]:
        for folder in folders:
            (tmp_path / folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        return [run.name for run in read_runs([tmp_path / folder for folder in folders])]

    assert names("a/version_0", "b/version_0") == ["a", "b"]
    assert names("a/version_0", "a/version_1") == ["version_0", "version_1"]
    assert names("one/x", "two/x") == ["one/x", "two/x"]


def test_a_figure_has_the_steps_at_which_it_has_a_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/loss,val/spearman\n0,0,2.5,\n0,1,nan,\n0,1,,70.0\n")
    metrics, diverged = read_metrics(path)
    assert metrics == {"train/loss": ((1,), (2.5,)), "val/spearman": ((2,), (70.0,))}
    assert diverged == 2
    path.write_text("epoch,step,train/loss,train/mlm\n0,0,2.5,nan\n0,1,2.4,1.0\n")
    assert read_metrics(path)[1] is None  # an objective that this step skips


def test_what_is_no_run_is_refused_by_name(trained: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a run's folder"):
        run_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="got none of them"):
        run_folder(tmp_path)
    for name in ("version_0", "version_1"):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"a folder of 2 runs .*version_0, version_1"):
        run_folder(tmp_path / "runs")
    with pytest.raises(ValueError, match="name each once"):
        read_runs([trained["plain"], trained["plain"] / "version_0"])
    with pytest.raises(ValueError, match="expected 1 to 6 runs on a page, got 7"):
        read_runs([tmp_path] * 7)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("model: 3\n", "config.yaml: model: expected a mapping of names to values, got the number 3"),
        ("export: {dirpath: 217}\n", "config.yaml: export: dirpath: expected a text, got the number 217"),
        ("checkpoint: [a]\n", "config.yaml: checkpoint: expected a mapping of names to values, got a list"),
        ("a: [1\n", "line 2, column 1: expected YAML"),
    ],
)
def test_a_configuration_of_another_form_is_refused_with_its_field(
    tmp_path: Path, config: str, said: str
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(InvalidValueError) as error:
        read_runs([tmp_path])
    assert said in str(error.value)


@pytest.mark.parametrize(
    "table", ["step,a\n0\n1,2,3\n", "a,b\n1,2\n", 'step,a\n0,"1\n', "step,a\n0,x\n", "step,a\n0,\0\n"]
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path: Path, table: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(table)
    with pytest.raises(InvalidValueError, match=r"metrics\.csv:[23]: expected"):
        read_metrics(path)
