from pathlib import Path

import pytest
from parts import check_refused

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.runs.report.runs import read_metrics, read_runs, run_folder


def test_a_run_is_read_whole(trained: dict[str, Path]) -> None:
    (run,) = read_runs([trained["plain"]])
    assert (run.number, run.alone, run.name) == (0, True, "plain")
    assert run.config["data"]["batch_size"] == 8
    assert run.facts["pairing"] == "SameText()"
    assert run.metrics["train/loss"].steps == (1, 2, 3, 4)
    assert run.metrics["val/spearman"].steps == (0, 2, 4)  # with the score before the first step
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


@pytest.mark.parametrize(
    ("paths", "error", "words"),
    [
        (["nowhere"], FileNotFoundError, ["a run's folder", "nowhere"]),
        (["empty"], ValueError, ["a run's folder", "empty without these files"]),
        (["two"], ValueError, ["2 runs", "version_0, version_1"]),
        (["one", "one/version_0"], ValueError, ["name each once"]),
        (["one"] * 7, ValueError, ["1 to 6 runs", "7"]),
    ],
)
def test_folders_that_are_not_runs_are_refused(
    tmp_path: Path, paths: list[str], error: type[Exception], words: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for run in ("two/version_0", "two/version_1", "one/version_0"):
        (tmp_path / run / "checkpoints").mkdir(parents=True)
    assert run_folder(tmp_path / "one") == run_folder(tmp_path / "one/version_0") == tmp_path / "one/version_0"
    check_refused(lambda: read_runs([tmp_path / path for path in paths]), error, words)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "config.yaml",
            "model: 3\n",
            "model: expected a mapping of names to values, got the number 3",
        ),
        (
            "config.yaml",
            "export: {dirpath: 217}\n",
            "export: dirpath: expected a text, got the number 217",
        ),
        (
            "config.yaml",
            "checkpoint: [a]\n",
            "checkpoint: expected a mapping of names to values, got a list",
        ),
        ("config.yaml", "a: [1\n", "line 2, column 1: expected YAML"),
        *(
            ("metrics.csv", table, ":[23]: expected")
            for table in ("step,a\n0\n1,2,3\n", "a,b\n1,2\n", 'step,a\n0,"1\n', "step,a\n0,x\n", "step,a\n0,\0\n")
        ),
    ],
)
def test_a_damaged_configuration_or_table_is_refused_with_its_place(
    tmp_path: Path, file: str, content: str, said: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InvalidValueError, match=rf"{file}.*{said}"):
        read_runs([tmp_path])
