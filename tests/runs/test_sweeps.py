"""Sweeps without a run: the notation of values, the grid, the folder, noise, tables and figures."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from scipy import stats

from contrastive_text.metrics.bootstrap import paired_difference, t_bound
from contrastive_text.runs.grid import Axis, Cell, parse_vary, plan, read_grid
from contrastive_text.runs.sweep_figures import heat_map, picture, points
from contrastive_text.runs.sweep_table import Report, Spread, SweepRun, SweepTable, read_validations

NAN = math.nan


def part(class_path: str, **init_args: object) -> dict[str, object]:
    return {"class_path": class_path, **({"init_args": init_args} if init_args else {})}


# The notation


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model.views.anchor=none", []),
        ("model.views.sst.anchor=CropTokens", "CropTokens"),
        ("model.views.anchor=my_views.Mine(a=-1)", [part("my_views.Mine", a=-1)]),
        ("model.views.anchor=[A, B(rate=0.3), C]", ["A", part("B", rate=0.3), "C"]),
        ("model.views.anchor=D(mark='[DEL]', n=[1, 2])", [part("D", mark="[DEL]", n=[1, 2])]),
        ("model.views.anchor=S(source=W(a=None, b=verb))", [part("S", source=part("W", a=None, b="verb"))]),
        ("model.views.anchor=[{class_path: A}]", [part("A")]),
        ("model.head=none", None),
        ("model.optimizer=AdamW(lr=1e-3, betas=(0.9, 0.98))", part("AdamW", lr=1e-3, betas=[0.9, 0.98])),
        ("model.optimizer.lr=3e-5", "3e-5"),
        ("data.train=[a.txt, b.txt]", ["a.txt", "b.txt"]),
        ("data.train=a+b (1).txt", "a+b (1).txt"),
    ],
)  # fmt: skip
def test_a_value_becomes_what_fit_takes(typed: str, expected: object) -> None:
    (value,) = parse_vary(typed).values.values()
    assert yaml.safe_load(value) == expected


def test_a_file_has_a_list_for_each_key(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(
        "lr: [1e-5, 3e-05]\n"
        "model.views.anchor:\n"
        "  - none\n"
        "  - FeatureCutoff(rate=0.3)\n"
        "  - [{class_path: CropTokens, init_args: {rate: 0.2}}]\n"
        "model.head: [null, TanhHead]\n"
    )
    rates, views, heads = read_grid(tmp_path / "grid.yaml")
    assert rates == Axis("lr", {"1e-05": "1e-05", "3e-05": "3e-05"})
    assert [*views.values] == ["none", "FeatureCutoff(rate=0.3)", "[CropTokens(rate=0.2)]"]
    assert [yaml.safe_load(value) for value in views.values.values()] == [
        [], [part("FeatureCutoff", rate=0.3)], [part("CropTokens", rate=0.2)],
    ]  # fmt: skip
    assert heads == Axis("model.head", {"none": "null", "TanhHead": "TanhHead"})


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("model.pooler", "expected KEY=VALUE,VALUE,..., got 'model.pooler'"),
        ("a b=1", "expected KEY=VALUE,VALUE,..., got 'a b=1'"),
        ("lr=1,,2", "--vary lr: expected different values, got an empty value"),
        ("lr=1,2,1", "--vary lr: expected different values, got 1 twice"),
        ("o=A(lr=1,B", r"--vary o: expected a closing bracket for every opening one, got 'A\(lr=1,B'"),
        ("model.views.a=A(0.3)", r"--vary model.views.a: expected arguments with their names, got 'A\(0.3\)'"),
        ("model.views.a=[A(b=1), B+]", r"expected a value, a part such as Class\(rate=0.3\), or a list"),
        ("model.views.a=A(b=c.d)", "expected a plain value or a part, got 'c.d'; .* stands in quotes"),
        ("model.views.a,data.batch_size=A", "expected keys of views, or keys of other parts, got both"),
        ("lr,other=3,4", "--vary lr: expected a key once, got it twice"),
    ],
)
def test_a_wrong_value_is_named(typed: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan([parse_vary("lr=3"), parse_vary(typed)])


# The grid


def test_a_recipe_lies_under_the_options_and_everything_else_over_them() -> None:
    axes = [parse_vary("recipe=simcse,consert"), parse_vary("config=a.yaml,b.yaml")]
    cells = plan(axes)
    assert [cell.name for cell in cells] == [
        f"{a} | {b}" for a in ("simcse", "consert") for b in ("a.yaml", "b.yaml")
    ]
    assert cells[3].words(["--x", "1"]) == ["--recipe=consert", "--x", "1", "--config=b.yaml"]
    axis = parse_vary("model.views.anchor,model.views.positive=none,CropTokens")
    assert axis.options("none") == ["--model.views.anchor=[]", "--model.views.positive=[]"]
    assert plan([]) == [Cell(())]


# The folder


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    cell = Cell(("a",))
    (tmp_path / "metrics.csv").write_text("step,val/loss,val/a\n1,inf,nan\n")
    assert SweepRun.read(cell, 1, tmp_path) is None
    run = SweepRun(cell.labels, 1, 2.5, [{"step": 1, "val/loss": math.inf, "val/a": NAN}], scores={"sts:A": NAN})
    run.write(tmp_path)
    assert repr(SweepRun.read(cell, 1, tmp_path)) == repr(run)
    for content, said in (("{}", "scores.json: scores: expected a mapping"), ("[", "scores.json: expected JSON")):
        (tmp_path / "scores.json").write_text(content)
        with pytest.raises(ValueError, match=f"{said}.*; delete it to measure the run again"):
            SweepRun.read(cell, 1, tmp_path)


def test_labels_that_look_alike_have_folders_of_their_own() -> None:
    labels = [("A+B", "c"), ("A_B", "c"), ("A", "B | c"), ("A" * 80,), ("A" * 81,), ("3e-5",)]
    folders = [Cell(label).folder for label in labels]
    assert len(set(folders)) == len(labels)
    assert (folders[1], folders[-1]) == ("A_B_c", "3e-5")
    assert Cell(()).folder == ""


def test_validations_are_read_step_by_step(tmp_path: Path) -> None:
    rows = "step,train/loss,val/a,val/b\n0,2.0,,\n1,,70.5,\n1,,,3\n3,1.0,,\n3,,nan,4\n"
    (tmp_path / "metrics.csv").write_text(rows)
    first, second = read_validations(tmp_path)
    assert first == {"step": 1, "val/a": 70.5, "val/b": 3.0}
    assert (second["step"], second["val/b"]) == (3, 4.0)
    assert math.isnan(second["val/a"])
    with pytest.raises(ValueError, match=r"expected metrics.csv"):
        read_validations(tmp_path / "nowhere")


# Noise


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 101])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.999])
def test_t_bound_is_the_quantile_of_students_distribution(share: float, degrees: int) -> None:
    # rel: the angle is bisected to a float's last bits, which the tangent near a right angle magnifies
    assert t_bound(share, degrees) == pytest.approx(stats.t.ppf((1 + share) / 2, degrees), rel=1e-9)


def test_a_difference_has_the_interval_of_the_paired_t_test() -> None:
    scores, baseline = {1: 80.1, 2: 79.0, 3: 81.2, 9: 0.0}, {3: 79.9, 2: 78.8, 1: 79.0, 4: 99.0}
    found = paired_difference(scores, baseline)
    assert found is not None
    interval = stats.ttest_rel([80.1, 79.0, 81.2], [79.0, 78.8, 79.9]).confidence_interval(0.95)
    assert found.mean - found.margin == pytest.approx(interval.low)
    assert found.mean + found.margin == pytest.approx(interval.high)
    assert found.exceeds_noise == (interval.low > 0)
    assert found.p_value == pytest.approx(stats.ttest_rel([80.1, 79.0, 81.2], [79.0, 78.8, 79.9]).pvalue)
    alike = paired_difference({1: 80.0, 2: 81.0}, {1: 80.0, 2: 81.0})
    assert alike is not None
    assert alike.p_value == 1


def test_one_seed_or_none_shows_no_noise() -> None:
    alone = paired_difference({1: 80.0}, {1: 70.0})
    assert alone is not None
    assert (alone.mean, alone.exceeds_noise) == (10.0, False)
    assert math.isnan(alone.margin)
    assert paired_difference({1: 80.0}, {2: 70.0}) is None


# Tables


def runs(scores: dict[str, list[float]]) -> list[SweepRun]:
    """Returns a run for each seed from 1, validated twice: half of the score at first."""
    return [
        SweepRun(
            (label,), seed, 1.5, [{"step": 1, "val/a": score / 2}, {"step": 2, "val/a": score, "val/b": 1.0}]
        )
        for label, each in scores.items()
        for seed, score in enumerate(each, start=1)
    ]


def table(scores: dict[str, list[float]], more: list[SweepRun] | None = None, **options: object) -> SweepTable:
    cells = [Cell((label,)) for label in scores]
    given = {"seeds": [1, 2, 3], "select": "val/a", **options}
    return SweepTable(["x"], cells, [*runs(scores), *(more or [])], **given)  # type: ignore[arg-type]  # as the test gives it


def test_best_and_last_and_both_directions() -> None:
    scores = {"a": [10.0, 20.0, 30.0], "b": [-10.0, -20.0, -30.0]}
    for take, mode, means in (
        ("best", "max", [20.0, -10.0]),
        ("last", "max", [20.0, -20.0]),
        ("best", "min", [10.0, -20.0]),
    ):
        (column,) = table(scores, take=take, mode=mode).columns()
        assert [column.spread(cell).mean for cell in column.scores] == means
        best = column.best()
        assert best is not None
        assert best.name == ("a" if mode == "max" else "b")


def test_a_table_shows_spread_differences_and_failures() -> None:
    failed = SweepRun(("c",), 3, error="CUDA out of memory | twice")
    scores = {"a": [70.0, 71.0, 72.0], "b": [73.0, 74.1, 74.9], "c": [70.0, 72.0], "d": [], "e": []}
    others = [*runs({"other": [99.0]}), SweepRun(("a",), 4, validations=[{"step": 1, "val/a": 99.0}])]
    made = table(scores, [failed, SweepRun(("e",), 1, error="no"), *others])
    lines = made.markdown().splitlines()
    assert "| a | 71.00 ± 1.00 | 3 | | | |" in lines
    assert "| b | **74.00 ± 0.95** | 3 | +3.00 ± 0.25 | 0.0015 | yes |" in lines
    assert "| c | 71.00 ± 1.41 | 2 | +0.50 ± 6.35 | 1.0000 | no |" in lines
    assert "| d | | 0 | | | |" in lines and "| e | failed | 0 | | | |" in lines
    assert "other" not in made.csv() + made.json()
    assert r"- failed: c, seed 3: CUDA out of memory \| twice" in lines


def test_one_seed_says_nothing_of_noise() -> None:
    said = table({"a": [1.0], "b": [3.0]}, seeds=[1]).markdown()
    assert "| b | **3.00** | 1 | +2.00 | | unknown |" in said
    assert "One seed doesn't show the noise" in said
    assert "±" not in said


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    made = table({"a": [NAN, NAN, NAN], "b": [1.0, 2.0, 3.0]})
    assert "| a | n/a | 3 | | | |" in made.markdown().splitlines()
    best = made.columns()[0].best()
    assert best is not None
    assert best.name == "b"
    assert json.loads(made.json())["cells"][0]["reports"]["val/a"]["mean"] is None
    one = SweepRun(("a",), 1, validations=[{"step": 1, "val/a": NAN}, {"step": 2, "val/a": 3.0}])
    assert made.figures(one)["step"] == 2


def test_many_comparisons_are_adjusted_together() -> None:
    scores = {"a": [70.0, 71.0, 72.0], "b": [71.0, 71.9, 73.1], "c": [71.0, 72.9, 72.5], "d": [70.1, 71.0, 72.0]}
    made = table(scores)
    (column,) = made.columns()
    p_values = [stats.ttest_rel(scores[name], scores["a"]).pvalue for name in "bcd"]
    assert [*column.adjusted().values()] == pytest.approx([3 * p_values[0], 2 * p_values[1], p_values[2]])
    # Unfinished runs: the comparisons that have no p value yet count too.
    cells = [*column.scores]
    begun = {cell: {1: scores[1]} if cell in cells[2:] else scores for cell, scores in column.scores.items()}
    partial = replace(column, scores=begun).adjusted()
    assert partial == pytest.approx({cells[1]: min(1.0, 3 * p_values[0])})
    assert "| b | 72.00 ± 1.05 | 3 | +1.00 ± 0.25 | 0.0100 | yes |" in made.markdown()
    assert json.loads(made.json())["cells"][1]["reports"]["val/a"]["minus_first"]["holm_p"] < 0.05


def test_a_metric_that_one_cell_lacks_is_no_error() -> None:
    more = [SweepRun(("c",), 1, validations=[{"step": 1, "val/a": 2.0}])]
    made = table({"a": [1.0], "c": []}, more, seeds=[1], reports=[Report("val/b")])
    assert "| c | n/a | 0 | | | |" in made.markdown()
    assert made.reported(more[0]) == {}


def test_latex_escapes_names_and_shows_the_best() -> None:
    lines = table({"a_b": [70.0, 71.0], "50 %": [60.0, 60.5]}, seeds=[1, 2]).latex().splitlines()
    assert lines[1] == r"\begin{tabular}{lrrrrr}"
    assert r"a\_b & $\mathbf{70.50 \pm 0.71}$ & $2$ &  &  &  \\" in lines
    assert any(line.startswith(r"50 \% & $60.25 \pm 0.35$ & $2$ & $-10.25 \pm ") for line in lines)
    assert lines[-1].startswith("% The number after ± of a difference")


def test_an_unknown_score_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"--select: expected one of val/a, val/b, got val/c"):
        table({"a": [1.0]}, select="val/c").markdown()
    with pytest.raises(ValueError, match=r"--report: expected one of val/a, val/b, got val/c"):
        table({"a": [1.0]}, reports=[Report("val/c")]).markdown()


def test_one_figure_chooses_and_others_are_reported() -> None:
    mean = Report("sts:mean", parts=("sts:A", "sts:B"), over="A, B")
    uniformity = Report("diagnose:uniformity", "min", parts=("diagnose:uniformity",))
    measured = [
        dataclasses.replace(
            run, scores={"sts:A": 10.0, "sts:B": 10.0 + run.seed, "diagnose:uniformity": -run.seed}
        )
        for run in runs({"a": [70.0], "b": [60.0, 61.0]})
    ]
    cells = [Cell(("a",)), Cell(("b",))]
    made = SweepTable(["x"], cells, measured, [1, 2], "val/a", reports=[mean, uniformity, Report("val/a")])
    said = made.markdown()
    assert "# sts:mean of A, B: best of a run by val/a, mean ± sd over seeds 1, 2" in said
    assert "| b | **10.75 ± 0.35** | 2 | +0.00 | | unknown |" in said
    assert "| b | **-1.50 ± 0.71** | 2 | +0.00 | | unknown |" in said  # low is good
    assert "# val/a: best of a run, mean ± sd over seeds 1, 2" in said
    kept = json.loads(made.json())
    assert kept["cells"][1]["runs"][1]["figures"]["sts:mean"] == 11.0
    assert kept["reports"][0] == {"name": "sts:mean", "mode": "max", "mean_of": ["sts:A", "sts:B"]}
    unmeasured = dataclasses.replace(measured[0], scores={"sts:A": 1.0})
    assert made.reported(unmeasured) == {Report("val/a"): 70.0}


def test_two_axes_have_a_grid() -> None:
    cells = plan([parse_vary("x=1,2"), parse_vary("y=u,v")])
    made = SweepTable(
        ["x", "y"], cells, [SweepRun(cell.labels, 1, 0.0, [{"val/a": 5.0}]) for cell in cells], [1], "val/a"
    )
    lines = made.markdown().splitlines()
    assert lines[2:6] == [
        r"| x \ y | u | v |", "| --- | ---: | ---: |", "| 1 | **5.00** | 5.00 |", "| 2 | 5.00 | 5.00 |",
    ]  # fmt: skip


def test_csv_and_json_have_every_run_in_full() -> None:
    made = table({"a": [1 / 3, 2.0, 3.0], "b": [4.0]}, [SweepRun(("b",), 2, error="no, never")])
    rows = list(csv.DictReader(made.csv().splitlines()))
    assert [(row["x"], row["seed"], row["val/a"]) for row in rows[:1]] == [("a", "1", str(1 / 3))]
    assert (rows[-1]["val/a"], rows[-1]["error"]) == ("", "no, never")
    kept = json.loads(made.json())
    assert kept["cells"][0]["runs"][0]["figures"] == {"step": 2, "val/a": 1 / 3, "val/b": 1.0}
    assert kept["cells"][1]["runs"][1]["error"] == "no, never"
    assert kept["cells"][1]["labels"] == {"x": "b"}


# Figures


@pytest.mark.slow
def test_a_figure_has_the_same_bytes_each_time() -> None:
    def drawn() -> bytes:
        none = heat_map({("a", "b"): Spread(NAN, NAN)}, ("x", "y"), "t")
        means = {
            ("a", "c"): (70.0, 0.5),
            ("a", "d+e"): (75.0, NAN),
            ("b", "c"): (NAN, NAN),
            ("b", "d+e"): (80.0, 1),
        }
        figure = heat_map({labels: Spread(*mean) for labels, mean in means.items()}, ("x", "y"), "t")
        each = points({"a": Spread(1.0, 0.1), "b": Spread(NAN, NAN)}, "x", "t")
        return picture(figure, "png") + picture(each, "svg") + picture(none, "svg")

    assert drawn() == drawn()


def test_a_heat_map_is_readable_on_dark_and_light() -> None:
    means = {("a", "b"): Spread(70.0, 0.5), ("a", "c"): Spread(80.0, 1.0), ("a", "d"): Spread(NAN, NAN)}
    figure = heat_map(means, ("x", "y"), "t")
    texts = [(text.get_text(), text.get_color()) for text in figure.axes[0].texts]
    assert texts == [
        ("70.00", "white"),
        ("± 0.50", "white"),
        ("80.00", "black"),
        ("± 1.00", "black"),
        ("n/a", "black"),
    ]


def test_a_long_label_is_broken_and_leaves_room_for_the_points() -> None:
    label = "ContextualSubstitute(model_name_or_path='models/bert-base-uncased', rate=0.15)+CropTokens"
    figure = points({label: Spread(1.0, NAN)}, "view", "t")
    picture(figure, "png")  # matplotlib warns where the axes have no room, which is an error here
    (text,) = figure.axes[0].get_yticklabels()
    assert text.get_text().replace(",\n", ", ").replace("\n", "") == label
    assert max(map(len, text.get_text().split("\n"))) <= 44
