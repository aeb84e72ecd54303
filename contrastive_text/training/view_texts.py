"""What views ask of the texts of a run, before its first step."""

from __future__ import annotations

import pytorch_lightning as pl

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import generator
from contrastive_text.data.collator import example_slots
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.preparation import TrainingData, line_of
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import TextView, ViewPlan


def check_view_texts(by_task: TaskParts, trainer: pl.Trainer) -> None:
    """Checks that views which ask something of each text, such as to be in a file, can alter all of them.

    Of a pairing that draws, the examples of one draw are looked at. Each text takes some 10 us.

    Raises:
        ValueError: A text that a view can't alter, with its line.
    """
    data = vars(trainer).get("datamodule")
    if not isinstance(data, TextDataModule):
        return
    for part in data.training.tasks.values():
        plan = by_task.plan(part.name)
        first = {name: view for name in plan.chains if (view := _first(plan, name)) and view.checks_texts}
        if first and not part.pairing.reads_tokens:
            _check(part, plan, first)


def _first(plan: ViewPlan, name: str) -> TextView | None:
    """Returns the first view of a chain that alters texts: those after it get other texts than are written."""
    return next((view for view in plan.chains[name] if isinstance(view, TextView) and view.around is None), None)


def _check(part: TrainingData, plan: ViewPlan, first: dict[str, TextView]) -> None:
    for number in range(len(part.texts)):
        for example in part.pairing(part.texts[number], generator(number)):
            for slot, text in example_slots(example):
                view = first.get(plan.chain_name(slot) or "")
                if view is None or not isinstance(text, str):
                    continue
                try:
                    view.check(text)
                except InvalidValueError as error:
                    raise InvalidValueError(f"{line_of(text, part)}: {error}") from None
