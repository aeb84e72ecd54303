"""Options of the Trainer and of the seed that can't be: answered in one line, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Answer = Callable[[Sequence[str]], str]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trainer.devices", "0"),
        ("trainer.accelerator", "tpuu"),
        ("trainer.max_steps", "-2"),
        ("trainer.val_check_interval", "-1"),
        ("trainer.accumulate_grad_batches", "0"),
        ("trainer.gradient_clip_val", "-1"),
        ("trainer.gradient_clip_val", ".nan"),
        ("seed_everything", "-1"),
        ("seed_everything", "4294967296"),
    ],
)
def test_what_no_trainer_can_do_is_answered(
    answer: Answer, here: Path, tiny_words: list[str], option: str, value: str
) -> None:
    said = answer(["fit", "--recipe", "simcse", *tiny_words, f"--{option}={value}"])
    assert option.rpartition(".")[2] in said
    assert not [path for path in here.rglob("*") if path.is_file()]
