"""The command that shows what views do, where a run has guides and networks that follow."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import tiny
import torch
from shells import Shell
from torch import Tensor

from contrastive_text.cli.views import show_task
from contrastive_text.core.batch import Batch
from contrastive_text.core.terminal import make_console
from contrastive_text.objectives import Contrastive, Duplicates, FalseNegatives, Momentum, Siblings
from contrastive_text.pairings import Given
from contrastive_text.training import Guide

PAIRS = [("a bird", "a dog"), ("a cat", "a bird"), ("the cat", "an old cat")]


class Lengths(Guide):
    """Knows of a text how long it is."""

    identity, features, needs_texts = "lengths", 2, True

    def __call__(self, batch: Batch) -> Tensor:
        assert batch.texts is not None
        return torch.tensor([[1.0, len(text)] for text in batch.texts])


@pytest.mark.usefixtures("here")  # prints wide
def test_a_guides_order_of_the_shown_rows_and_keys_are_said(files: dict[str, str]) -> None:
    removing = FalseNegatives("teacher", absolute_margin=3.0)  # all candidates are too near
    objectives = {
        "gist": Contrastive(columns=[Duplicates(), Siblings(), removing]),
        "moco": Contrastive(columns=[Duplicates(), Siblings(), Momentum()]),
    }
    module = tiny.module(files["bert"], objectives=objectives, guides={"teacher": Lengths()})
    data = tiny.data(PAIRS, pairing=Given(), batch_size=2, num_workers=0)  # type: ignore[arg-type]  # rows
    data.set_module(module)
    data.setup("fit")
    shown = io.StringIO()
    show_task(make_console(file=shown), module, data.training.of(), data.collator(), count=3)
    said = shown.getvalue()
    assert "momentum columns of moco: Momentum(decay=0.999, of='positive'" in said
    assert "by teacher" in said
    assert "positive of 2," in said
    assert said.count("masked by") == 3 * 2 - 1  # the positive of row 1 is row 0's anchor


SHORT = "--encoder BERT --model.encoder.max_length 32"


def test_spans_of_documents_are_shown(shell: Shell, here: Path) -> None:
    (here / "documents.txt").write_text(3 * f"{' '.join(tiny.TEXTS)}\n")
    spans = " ".join(f"--data.task.pairing.{each}" for each in ("min_length=4", "max_length=16", "anchors=1"))
    said = shell(f"views --recipe declutr --data.train documents.txt {SHORT} {spans} --n 2").out
    assert "views.anchor[0]" in said


@pytest.mark.slow
def test_as_many_rows_as_are_shown_are_enough_whatever_a_step_takes(shell: Shell, here: Path) -> None:
    tiny.write_texts(here / "three.txt", tiny.TEXTS[:3])
    said = shell(f"views --recipe consert --data.train three.txt {SHORT} --data.batch_size 8192").out
    assert "changed, on 3 rows" in said
