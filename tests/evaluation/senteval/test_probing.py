"""The probing tasks in SentEval's file format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from senteval_files import PROBING_FILES as FILES
from senteval_files import probing_line as line
from senteval_files import write_probing as write
from torch import Tensor

from contrastive_text.evaluation.senteval.classifiers import FAST, SklearnClassifier
from contrastive_text.evaluation.senteval.labelled_texts import LabelledTexts
from contrastive_text.evaluation.senteval.probing import PROBING_TASKS, probing_data
from contrastive_text.evaluation.senteval.transfer import transfer_scores


class Reader:
    """Gives vectors from which the tense can be read, and notes the texts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Tensor:
        self.seen += texts
        return torch.tensor([[10.0 * ("saw" in text), len(text) / 20, 1.0] for text in texts])


def test_the_ten_files_are_found_and_what_is_missing_is_said(tmp_path: Path) -> None:
    assert tuple(FILES) == PROBING_TASKS
    for task, name in FILES.items():
        missing = probing_data(task, tmp_path)
        assert isinstance(missing, str) and missing.startswith(f"expected {name} in {tmp_path}")
        assert "https://github.com/facebookresearch/SentEval" in missing
    for name in FILES.values():
        write(tmp_path / "data" / "probing" / name)
    for folder in ("", "data", "data/probing"):
        assert all(isinstance(probing_data(task, tmp_path / folder), LabelledTexts) for task in PROBING_TASKS)


def test_parts_are_told_apart_by_their_marks(tmp_path: Path) -> None:
    write(tmp_path / "past_present.txt", test=3)
    found = probing_data("Tense", tmp_path)
    assert isinstance(found, LabelledTexts)
    assert dict(found.sizes) == {"train": 6, "dev": 3, "test": 3}
    assert found.sides[0][6:] == ["no. 0 I saw it .", "no. 1 I see it .", "no. 2 I saw it ."] * 2
    assert found.labels == ["PAST", "PAST", "PRES", "PRES", "PAST", "PAST", *["PAST", "PRES", "PAST"] * 2]


@pytest.mark.parametrize("classifier", [None, SklearnClassifier()], ids=["torch", "sklearn"])
def test_a_property_that_can_be_read_is_found(classifier: SklearnClassifier | None, tmp_path: Path) -> None:
    write(tmp_path / "past_present.txt", test=20)
    scores = transfer_scores(Reader(), tmp_path, FAST, classifier, PROBING_TASKS)  # type: ignore[arg-type]  # a stand-in
    assert [score.task for score in scores] == list(PROBING_TASKS)
    for score in scores:
        if score.task == "Tense":
            assert (score.metric, score.score, score.size, score.parts) == ("accuracy", 100.0, 20, {"dev": 100.0})
        else:
            assert np.isnan(score.score) and score.missing


def test_the_dev_part_and_never_the_test_part_is_learned_from(tmp_path: Path) -> None:
    write(tmp_path / "past_present.txt", test=20)
    lines = (tmp_path / "past_present.txt").read_text().splitlines()
    swapped = {"PAST": "PRES", "PRES": "PAST"}
    cells = [each.split("\t") for each in lines]
    turned = ["\t".join((part, swapped[own] if part == "te" else own, text)) for part, own, text in cells]
    (tmp_path / "past_present.txt").write_text("".join(f"{each}\n" for each in turned))
    (score,) = transfer_scores(Reader(), tmp_path, FAST, tasks=("Tense",))  # type: ignore[arg-type]  # a stand-in
    assert (score.score, score.parts["dev"]) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("xx\tPAST\ta text", r"past_present\.txt:5: expected tr, va or te, a label and a text, got xx"),
        ("tr\ta text", r"past_present\.txt:5: expected tr, va or te, a label and a text, got tr"),
        (
            "te\tFUTURE\ta text",
            r"past_present\.txt: expected a label of the training rows, PAST, PRES, got FUTURE",
        ),
        ("tr\t \ta text", r"past_present\.txt:5: expected a label, got none"),
    ],
)
def test_a_broken_line_is_named_with_its_task(added: str, expected: str, tmp_path: Path) -> None:
    lines = [line("tr", 0), line("tr", 1), line("va", 2), line("te", 3), added]
    (tmp_path / "past_present.txt").write_text("".join(f"{each}\n" for each in lines))
    with pytest.raises(ValueError, match=f"Tense: .*{expected}"):
        probing_data("Tense", tmp_path)


def test_a_missing_part_two_copies_and_unknown_tasks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "past_present.txt"
    path.write_text("".join(f"{line('tr', n)}\n{line('te', n)}\n" for n in range(4)))
    with pytest.raises(ValueError, match=r"Tense: .*txt: expected rows in train, dev, test, got none in dev"):
        probing_data("Tense", tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"Tense: .*txt: expected rows in train, dev, test, got none in train"):
        probing_data("Tense", tmp_path)
    write(tmp_path / "probing" / "past_present.txt")
    with pytest.raises(ValueError, match=r"Tense: .*expected one copy of the data"):
        probing_data("Tense", tmp_path)
    with pytest.raises(ValueError, match=r"tasks: expected MR, .*, Length, .*, got Mood; name one of these"):
        transfer_scores(Reader(), tmp_path, tasks=("Mood",))  # type: ignore[arg-type]  # a stand-in


def test_empty_texts_become_a_full_stop(tmp_path: Path) -> None:
    write(tmp_path / "past_present.txt")
    with (tmp_path / "past_present.txt").open("a") as file:
        file.write("tr\tPAST\t\n")
    reader = Reader()
    with pytest.warns(UserWarning, match="a full stop stands for each empty text, as in SentEval: 1 in Tense"):
        transfer_scores(reader, tmp_path, FAST, tasks=("Tense",))  # type: ignore[arg-type]  # a stand-in
    assert "." in reader.seen and "" not in reader.seen
