"""DeCLUTR's aggregate: what each task adds on test and dev, and the means over them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny

from contrastive_text import SentenceEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import FAST
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.senteval import (
    DOWNSTREAM_TASKS,
    MEANS,
    WITHOUT_SNLI,
    aggregate,
    contributions,
    declutr_scores,
    image_retrieval,
)
from contrastive_text.evaluation.senteval_data import PROBING_TASKS
from contrastive_text.poolers import MeanPooler

THEIRS = {
    "CR", "MR", "MPQA", "SUBJ", "SST2", "SST5", "TREC", "MRPC", "SNLI", "SICK-E", "SICK-R (trained)",
    "STS-B (trained)", "COCO", "STS12", "STS13", "STS14", "STS15", "STS16",
}  # fmt: skip
"""The downstream tasks of the authors' script; SICK-R and STS-B train a regressor there."""


def every_score() -> list[TaskScore]:
    """A score for each task as the suites give it; no two figures are equal."""
    scores = []
    for place, task in enumerate((*DOWNSTREAM_TASKS, *PROBING_TASKS)):
        test, dev = 50.0 + place, 60.0 + 1.5 * place
        if task == "MRPC":
            scores.append(TaskScore(task, "accuracy", test, parts={"dev": dev, "F1": test + 10}))
        elif "trained" in task:
            parts = {"dev pearson": dev, "test pearson": test + 1}
            scores.append(TaskScore(task, "spearman", test, parts=parts))
        elif task.startswith("STS"):
            scores.append(TaskScore(task, "spearman", test, parts={"headlines": 1.0}))
        elif task == "COCO":
            scores.append(image_retrieval((test - 3, test, test + 3), (test - 9, test, test + 9), 6 * dev))
        else:
            scores.append(TaskScore(task, "accuracy", test, parts={"dev": dev}))
    return scores


def test_e5_mrpc_adds_the_mean_of_accuracy_and_f1(vectors: dict[str, Any]) -> None:
    figures = vectors["senteval_mrpc_score"]
    mrpc = TaskScore("MRPC", "accuracy", figures["acc"], size=1725, parts={"dev": 74.0, "F1": figures["f1"]})
    (added,) = contributions([mrpc])
    assert added.score == figures["declutr_average"] == 79.0
    assert mrpc.score == figures["simcse_reports"] == 75.0
    assert added.parts == {"dev": 74.0, "F1": 83.0, "accuracy": 75.0}
    assert (added.metric, added.size) == ("mean of accuracy and F1", 1725)


def test_the_means_are_those_of_the_rules_written_out() -> None:
    scores = every_score()
    test: dict[str, float] = {}
    dev: dict[str, float] = {}
    for score in scores:
        task, figures = score.task, score.parts
        if task in ("SICK-R (trained)", "STS-B (trained)"):
            test[task], dev[task] = score.score, figures["dev pearson"]
        elif task.startswith("STS"):
            test[task] = dev[task] = score.score
        elif task == "MRPC":
            test[task], dev[task] = (score.score + figures["F1"]) / 2, figures["dev"]
        else:
            test[task], dev[task] = score.score, figures["dev"]
    means = {mean.task: mean for mean in aggregate(contributions(scores))}
    for name, tasks in (
        ("Downstream", THEIRS),
        ("Downstream (-SNLI)", THEIRS - {"SNLI"}),
        ("Downstream without COCO", THEIRS - {"COCO"}),
        ("Downstream (-SNLI) without COCO", THEIRS - {"SNLI", "COCO"}),
        ("Probing", PROBING_TASKS),
        ("All 28", THEIRS | {*PROBING_TASKS}),
        ("All 27 without COCO", (THEIRS | {*PROBING_TASKS}) - {"COCO"}),
    ):
        assert means[name].score == pytest.approx(sum(test[task] for task in tasks) / len(tasks))
        assert means[name].parts["dev"] == pytest.approx(sum(dev[task] for task in tasks) / len(tasks))
    assert means["Downstream"].score != means["Downstream (-SNLI)"].score


def test_another_number_of_recalls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text_to_image: expected R@1, R@5 and R@10, got 4"):
        image_retrieval((30.0, 60.0, 75.0), (24.0, 54.0, 69.0, 5.0), dev_sum=330.0)


@pytest.mark.parametrize("gone", ["STS13", "COCO", "SNLI", "Tense"])
def test_a_missing_task_leaves_no_mean_and_is_named(gone: str) -> None:
    scores = [
        TaskScore.absent(gone, score.metric, "no file") if score.task == gone else score
        for score in every_score()
    ]
    means = {mean.task: mean for mean in aggregate(contributions(scores))}
    expected = {
        "Downstream": gone in DOWNSTREAM_TASKS,
        "Downstream (-SNLI)": gone in WITHOUT_SNLI,
        "Downstream without COCO": gone in DOWNSTREAM_TASKS and gone != "COCO",
        "Downstream (-SNLI) without COCO": gone in WITHOUT_SNLI and gone != "COCO",
        "Probing": gone in PROBING_TASKS,
        "All 28": True,
        "All 27 without COCO": gone != "COCO",
    }
    assert list(expected) == list(means)
    for name, missing in expected.items():
        assert math.isnan(means[name].score) == missing
        assert (f"got no score of {gone};" in means[name].missing) == missing


def test_scores_of_a_folder_are_gathered_and_coco_is_given_or_missing(tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    embed = CachedEncoder(SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu"))
    lines = [f"{part}\t{n % 2}\t{tiny.TEXTS[n]}" for n in range(12) for part in ("tr", "va", "te")]
    (tmp_path / "past_present.txt").write_text("".join(f"{line}\n" for line in lines))
    pairs = [f"{n % 6}\t{'ab'[n % 2]}\t{tiny.TEXTS[n]}\t{tiny.TEXTS[n + 9]}" for n in range(12)]
    (tmp_path / "sts12.test.tsv").write_text("\n".join(["score\tsubset\tsentence1\tsentence2", *pairs, ""]))
    scores = declutr_scores(embed, tmp_path, FAST)
    assert [score.task for score in scores] == [
        *DOWNSTREAM_TASKS, *PROBING_TASKS, *MEANS
    ]  # fmt: skip
    found = {score.task: score for score in scores}
    assert {task for task, score in found.items() if not score.missing} == {"STS12", "Tense"}
    years = found["STS12"]
    assert years.score == years.parts["dev"] == pytest.approx((years.parts["a"] + years.parts["b"]) / 2)  # mean
    assert found["COCO"].missing.startswith(
        "its files of image features, which are pickles and could run code, are not"
    )
    assert "COCO" in found["Downstream"].missing
    coco = image_retrieval((30.0, 60.0, 75.0), (24.0, 54.0, 69.0), dev_sum=330.0)
    given = {score.task: score for score in declutr_scores(embed, tmp_path, FAST, extra_scores=[coco])}
    assert given["COCO"] == coco and "COCO" not in given["Downstream"].missing
    assert math.isnan(given["Downstream"].score)
