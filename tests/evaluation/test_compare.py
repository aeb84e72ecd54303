"""Models against a baseline: the figures are those of the metrics, and nothing wrong goes unsaid."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from parts import check_refused

from contrastive_text import SentenceEncoder
from contrastive_text.evaluation import compare as module
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.compare import ModelComparison, compare
from contrastive_text.evaluation.sts import aggregate, pair_cosines
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.metrics.bootstrap import holm
from contrastive_text.metrics.neighbors import linear_cka, neighbor_overlap
from contrastive_text.poolers import MeanPooler

MISSING = "expected sts13.test.tsv, found none"


def encoder(folder: Path, seed: int) -> CachedEncoder:
    path = tiny.save_bert(folder / str(seed), seed=seed)
    return CachedEncoder(SentenceEncoder.from_pretrained(path, pooler=MeanPooler(), device="cpu"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CachedEncoder]:
    folder = tmp_path_factory.mktemp("models")
    return {name: encoder(folder, seed) for seed, name in enumerate(("old", "new", "other"))}


def scored(count: int, step: int, subsets: tuple[str, ...] = ("news", "forum")) -> STSPairs:
    return STSPairs(
        first=[tiny.TEXTS[i % 40] for i in range(count)],
        second=[tiny.TEXTS[(i + step * (1 + i % 3)) % 40] for i in range(count)],
        gold=torch.randint(6, (count,), generator=torch.Generator().manual_seed(step)).double(),
        subsets=[subsets[i % len(subsets)] for i in range(count)],
    )


TASKS = {"STS12": scored(40, 7), "STS14": scored(30, 3)}


@pytest.mark.parametrize("setting", ["all", "mean", "wmean"])
def test_differences_are_those_of_the_scores_in_the_table(models: dict[str, CachedEncoder], setting: str) -> None:
    found = compare(models, TASKS, setting=setting, resamples=40)
    (table,) = found.tables
    assert (table.title, list(table.rows)) == (f"Spearman x 100, setting {setting}", ["old", "new", "other"])
    scores = {(name, score.task): score.score for name, row in table.rows.items() for score in row}
    assert (
        scores["new", "STS14"]
        == aggregate(pair_cosines(models["new"], TASKS["STS14"]), TASKS["STS14"], setting)[0]
    )
    assert [(one.model, one.task) for one in found.differences] == [
        (name, task) for name in ("new", "other") for task in ("STS12", "STS14", "Avg.")
    ]
    for one in found.differences:
        new, old = (
            table.average(name) if one.task == "Avg." else scores[name, one.task] for name in (one.model, "old")
        )
        assert one.difference == pytest.approx(new - old, abs=1e-9)  # float64, times 100
        assert one.low <= one.high and one.excludes_zero == (one.low > 0 or one.high < 0)
        assert math.isnan(one.holm) == (one.task == "Avg.")
    questions = [one for one in found.differences if one.task != "Avg."]
    assert [one.holm for one in questions] == holm([one.p_value for one in questions])


def test_a_comparison_repeats_and_a_further_model_changes_no_interval(models: dict[str, CachedEncoder]) -> None:
    whole = compare(models, TASKS, resamples=40)
    pair = compare({name: models[name] for name in ("old", "other")}, TASKS, resamples=40)
    ends = [(one.task, one.low, one.high) for one in pair.differences]
    assert ends == [(one.task, one.low, one.high) for one in whole.differences if one.model == "other"]
    reseeded = compare(models, TASKS, resamples=40, seed=1)
    assert [one.low for one in reseeded.differences] != [one.low for one in whole.differences]


def test_a_model_equals_itself(models: dict[str, CachedEncoder]) -> None:
    found = compare({"old": models["old"], "again": models["old"]}, TASKS, resamples=40)
    for one in found.differences:
        assert (one.difference, one.low, one.high, one.p_value, one.excludes_zero) == (0, 0, 0, 1, False)
    (agreement,) = found.agreements
    assert (agreement.neighbors, agreement.cka) == (pytest.approx(1, abs=1e-6), pytest.approx(1, abs=1e-9))


def test_agreement_is_measured_on_the_texts_of_the_pairs_or_on_those_given(
    models: dict[str, CachedEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list(tiny.TEXTS[:15])
    old, new = models["old"](texts), models["new"](texts)
    found = compare(models, TASKS, texts=[*texts, texts[3]], resamples=10)
    assert found.texts == 15
    assert found.agreements[0].neighbors == float(neighbor_overlap(old, new, k=10))
    assert found.agreements[0].cka == float(linear_cka(old, new, debiased=True))
    assert compare(models, TASKS, resamples=10).texts == 40
    with monkeypatch.context() as patched:
        patched.setattr(module, "MOST_TEXTS", 20)
        assert "20 of 40 different texts drawn" in compare(models, TASKS, resamples=10).text()
    few = compare(models, TASKS, texts=texts[:10], resamples=10)
    assert few.agreements == ()
    assert "vectors not compared: expected 11 different texts or more, got 10" in few.text()


def test_answers_right_or_wrong_are_compared_too(models: dict[str, CachedEncoder]) -> None:
    right = {
        name: {"MR": torch.rand(50, generator=torch.Generator().manual_seed(seed)) < 0.7}
        for seed, name in enumerate(models)
    }
    found = compare(models, TASKS, correct=right, resamples=40)
    assert [table.title for table in found.tables] == ["Spearman x 100, setting all", "accuracy x 100"]
    (one,) = [one for one in found.differences if (one.model, one.task) == ("new", "MR")]
    accuracies = [100 * float(right[name]["MR"].float().mean()) for name in ("new", "old")]
    assert one.difference == pytest.approx(accuracies[0] - accuracies[1], abs=1e-5)  # float32 accuracies here
    assert found.tables[1].rows["new"][0].score == pytest.approx(accuracies[0], abs=1e-5)


def test_the_mean_of_accuracies_is_over_the_tasks_that_are_averaged(models: dict[str, CachedEncoder]) -> None:
    random = torch.Generator().manual_seed(0)
    right = {
        name: {task: torch.rand(50, generator=random) < 0.7 for task in ("MR", "CR", "SNLI")} for name in models
    }
    partly = {name: {**answers, "SNLI": "expected snli.tsv, found none"} for name, answers in right.items()}
    for answers in (right, partly):
        found = compare(
            models, correct=answers, resamples=40, title="transfer x 100, fast", averaged=("MR", "CR")
        )
        (table,) = found.tables
        assert table.title == "transfer x 100, fast"
        means = [
            100 * sum(float(right[name][task].double().mean()) for task in ("MR", "CR")) / 2 for name in models
        ]
        assert [table.average(name) for name in models] == pytest.approx(means, abs=1e-9)
        one, other = (one for one in found.differences if one.task == "Avg.")
        differences = [means[1] - means[0], means[2] - means[0]]
        assert [one.difference, other.difference] == pytest.approx(differences, abs=1e-9)
    gone = {name: {**answers, "CR": "expected cr.tsv, found none"} for name, answers in right.items()}
    found = compare(models, correct=gone, texts=tiny.TEXTS, resamples=40, averaged=("MR", "CR"))
    assert "CR: expected cr.tsv, found none" in found.text() and found.texts == 40
    assert {one.task for one in found.differences} == {"MR", "SNLI"}


def test_a_task_without_data_stays_in_the_table_and_leaves_no_mean(models: dict[str, CachedEncoder]) -> None:
    found = compare(models, {**TASKS, "STS13": MISSING}, resamples=10)
    assert found.tables[0].tasks == ["STS12", "STS14", "STS13"]
    assert {one.task for one in found.differences} == {"STS12", "STS14"}
    assert f"STS13: {MISSING}" in found.text()


# Formats


def test_the_formats_say_the_same(models: dict[str, CachedEncoder]) -> None:
    found = compare({"a|b": models["old"], "new": models["new"]}, TASKS, resamples=40)
    one = found.differences[0]
    text, markdown, loaded = found.text(), found.markdown(), json.loads(found.json())
    interval = f"{one.low:+.2f} to {one.high:+.2f}"
    for said in (text, markdown):
        assert f"{one.difference:+.2f}" in said and interval in said and f"{one.p_value:.4f}" in said
        assert f"{found.agreements[0].neighbors:.1%}" in said
    assert r"a\|b" in markdown
    assert loaded["baseline"] == "a|b"
    assert loaded["differences"][0]["difference"] == one.difference
    assert loaded["differences"][2]["holm"] is None
    assert loaded["scores"][0]["models"]["new"]["tasks"][0]["task"] == "STS12"
    assert loaded["agreements"][0]["cka"] == found.agreements[0].cka


def test_remarks_say_when_no_adjusted_p_can_be_small(models: dict[str, CachedEncoder]) -> None:
    few: ModelComparison = compare(models, TASKS, resamples=40)
    assert "no Holm p can be 0.05 or below with 40 resamples; 160 are needed" in few.text()
    assert "adjusted for the 4 comparisons made at once" in few.text()
    assert "no Holm p" not in compare(models, TASKS, resamples=160).text()


# Errors


@pytest.mark.parametrize(
    ("names", "data", "words"),
    [
        (["old"], {"sts": TASKS}, ["two or more", "got 1"]),
        (["old", "new"], {"sts": {"STS13": MISSING}}, ["compare.sts", f"STS13: {MISSING}"]),
        (["old", "new"], {"correct": {name: {"MR": MISSING} for name in ("old", "new")}}, [f"MR: {MISSING}"]),
        (["old", "new"], {"texts": tiny.TEXTS}, ["tasks in sts, correct or retrieval", "got no tasks"]),
    ],
)
def test_one_model_and_no_data_are_refused(
    models: dict[str, CachedEncoder], names: list[str], data: dict[str, Any], words: list[str]
) -> None:
    check_refused(lambda: compare({name: models[name] for name in names}, **data), ValueError, words)


@pytest.mark.parametrize(
    ("pairs", "setting", "resamples", "expected"),
    [
        (scored(4, 7), "median", 10, "setting: expected one of all, mean or wmean, got 'median'"),
        (scored(4, 7), "all", 0, "resamples: expected 1 or more, got 0"),
        (scored(1, 7), "all", 10, "STS12: expected two pairs or more, got 1"),
        (scored(3, 7), "mean", 10, "STS12, forum: expected two pairs or more, got 1"),
        (scored(4, 7, ("",)), "mean", 10, "expected pairs whose subsets are named for mean"),
    ],
)
def test_options_are_checked_before_a_text_is_encoded(
    models: dict[str, CachedEncoder], pairs: STSPairs, setting: str, resamples: int, expected: str
) -> None:
    fresh = {name: CachedEncoder(embed.model) for name, embed in models.items()}
    with pytest.raises(ValueError, match=expected):
        compare(fresh, {"STS13": scored(4, 7), "STS12": pairs}, setting=setting, resamples=resamples)
    assert [embed.encoded for embed in fresh.values()] == [0, 0, 0]


def test_a_damaged_model_is_named(models: dict[str, CachedEncoder], tmp_path: Path) -> None:
    broken = encoder(tmp_path, seed=5)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"^broken: .*finite vectors"):
        compare({"old": models["old"], "broken": broken}, TASKS)
