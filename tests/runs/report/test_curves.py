import dataclasses
from pathlib import Path

import pytest

from contrastive_text.runs.report.charts import Chart, Note
from contrastive_text.runs.report.curves import smoothed, training
from contrastive_text.runs.report.runs import RunRecord, Series, read_runs

STEPS = tuple(range(1, 5))


@pytest.fixture
def run(trained: dict[str, Path]) -> RunRecord:
    return read_runs([trained["plain"]])[0]


def named(run: RunRecord, **metrics: Series) -> dict[str, str]:
    """Returns name and note of each chart of a run with these figures."""
    logged = {name.replace("__", "/"): points for name, points in metrics.items()}
    parts = training([dataclasses.replace(run, metrics=logged)])
    return {part.name: part.note for part in parts if isinstance(part, Chart)}


def test_smoothing_is_a_weighted_mean_of_what_came_before() -> None:
    values, span = [3.0, 1.0, 4.0, 1.0, 5.0], 4.0
    share = 2 / (span + 1)
    for last, mean in enumerate(smoothed(values, span)):
        weights = [(1 - share) ** (last - place) for place in range(last + 1)]
        expected = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
        assert mean == pytest.approx(expected)


@pytest.mark.slow
def test_one_objective_has_one_loss_and_several_have_each_its_own(run: RunRecord) -> None:
    one = Series(STEPS, (4.0, 3.0, 2.0, 1.0))
    other = Series(STEPS, (8.0, 6.0, 4.0, 2.0))
    assert [*named(run, train__contrastive=one, train__loss=one)] == ["train-contrastive"]
    several = named(run, train__contrastive=one, train__mlm=other, train__loss=other)
    assert several == {
        "train-contrastive": "From 4 to 1 in 4 steps.",
        "train-mlm": "From 8 to 2 in 4 steps.",
        "train-loss": "From 8 to 2 in 4 steps.",
    }


def test_a_caption_has_the_ends_of_the_curve_as_it_is_drawn(run: RunRecord) -> None:
    values = (0.3, *(0.05 + 0.01 * (i % 3) for i in range(99)))
    points = Series(tuple(range(1, 101)), values)
    drawn = smoothed(values, 4.0)
    note = named(run, train__loss=points)["train-loss"]
    assert note.startswith(f"From 0.3 to {drawn[-1]:.4g} in 100 steps, smoothed.") and drawn[0] == 0.3
    assert note.endswith("The first steps, up to 0.3, are above the chart.")
    level = Series(points.steps, (0.06, *values[1:]))
    assert "above the chart" not in named(run, train__loss=level)["train-loss"]


@pytest.mark.slow
def test_learning_rates_probes_and_chosen_metrics_of_objectives_are_drawn_and_others_are_not(
    run: RunRecord,
) -> None:
    drawn = ("train/loss", "lr-AdamW", "train/ranks/guide_agreement", "train/vectors/guide_cosine")
    drawn += ("train/c/momentum_distance", "probe/accuracy@10")
    points = Series(STEPS, (0.1, 0.2, 0.4, 0.5))
    charts = named(run, **dict.fromkeys((*drawn, "train/ranks/accuracy", "train/truncated"), points))
    assert charts == dict.fromkeys((name.replace("/", "-") for name in drawn), "From 0.1 to 0.5 in 4 steps.")


def test_scores_say_what_the_kept_weights_have(run: RunRecord) -> None:
    assert run.best is not None
    step = run.best[2]
    points = Series((step - 1, step), (50.0, 61.25))
    note = named(run, val__spearman=points)["val-spearman"]
    assert note == f"61.25 at step {step}, which was kept, of {step}."


@pytest.mark.slow
def test_the_path_is_that_of_validation_where_that_is_logged(run: RunRecord) -> None:
    line = Series(STEPS, (0.4, 0.3, 0.3, 0.2))
    below = Series(STEPS, (-1.0, -2.0, -2.5, -3.0))
    batches = {"train__c__alignment": line, "train__c__uniformity": below}
    assert [*named(run, **batches)] == ["plane-train-c"]
    charts = named(run, **batches, val__alignment=line, val__uniformity=below)
    assert [*charts] == ["plane-val"]
    assert "from (\u22121, 0.4) to (\u22123, 0.2)".capitalize() in charts["plane-val"]


def test_what_is_not_logged_is_named_with_what_would_bring_it(run: RunRecord) -> None:
    notes = training([dataclasses.replace(run, metrics={})])
    missing = ["Losses", "Learning rate", "Validation scores", "Alignment and uniformity"]
    assert [note.what for note in notes if isinstance(note, Note)] == missing and len(notes) == len(missing)
