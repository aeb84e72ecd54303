"""Collators, which build the batches of a step from keyed rows: pairing, views, tokenization and truncation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_keys, generator, text_id
from contrastive_text.core.types import (
    ROLES,
    Example,
    Role,
    Row,
    Slot,
    Template,
    Text,
)
from contrastive_text.data.batching import build_altered_batch, collate_context
from contrastive_text.data.files.labels import collate_scores
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan
from contrastive_text.views.plan import role_of

PAIRING = -1
"""Number in place of an example's number in the key of a pairing's random draws."""


def row_keys(
    seed: int, task: str, epochs: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the keys of rows of a task, from which all their random draws derive."""
    return fold_keys(seed, text_id(task), epochs, numbers)


_NO_ROW: Row = {}


class KeyedRow(NamedTuple):
    """A row of a task, or only its key, with everything that its random draws depend on.

    Args:
        epoch: Number of the epoch.
        number: Number of the row in its task.
        row: The row's cells; empty for a key.
        task: Name of the data set.
        objectives: Names of the objectives that read it; None for all objectives.
        shares: Number of rows of the task that each rank has in the step; empty if unknown.
    """

    epoch: int
    number: int
    row: Row = _NO_ROW
    task: str = "train"
    objectives: tuple[str, ...] | None = None
    shares: tuple[int, ...] = ()


def example_texts(example: Example, originals: int = 0) -> list[Text]:
    """Returns the texts of an example in row order, as in ``example_slots``."""
    texts = [example.anchor, *example.positives, *example.negatives]
    if example.views_per_text > 1:
        texts = [text for text in texts for _ in range(example.views_per_text)]
    return texts + [example.anchor] * originals


def example_slots(example: Example, originals: int = 0) -> list[tuple[Slot, Text]]:
    """Returns the texts of an example with their slots, in row order.

    Args:
        example: Example from a pairing.
        originals: Number of unaltered copies of the anchor.
    """
    counts: tuple[tuple[Role, int], ...] = (
        ("anchor", example.views_per_text),
        ("positive", example.views_per_text * len(example.positives)),
        ("negative", example.views_per_text * len(example.negatives)),
        ("original", originals),
    )
    slots = [Slot(role, number) for role, count in counts for number in range(count)]
    return list(zip(slots, example_texts(example, originals), strict=True))


@dataclass(eq=False)
class Collator:
    """Builds a batch from keyed rows. The same rows with the same keys give the same batch on every machine.

    Args:
        tokenizer: Tokenizer, which sets special tokens and lengths.
        pairing: Part that turns a row into examples.
        plan: Views of each role.
        seed: Seed of every random draw.
        task: Name of the data set, which is part of the key of every draw.
        originals: Number of unaltered copies of the anchor in the role ``original``, if a chain or an objective
            uses that role.
        prompts: Prompts of each role. Prompts named after the task take precedence.
        keep_texts: Whether batches keep the texts, for parts with their own tokenizer.
        reads: Roles that objectives read.

    Raises:
        ValueError: A prompt or template that leaves no room for a text, or a prompt for two texts in one
            sequence.
    """

    tokenizer: TextTokenizer
    pairing: Pairing
    plan: ViewPlan
    seed: int
    task: str = "train"
    originals: int = 1
    prompts: Prompts = NO_PROMPTS
    keep_texts: bool = False
    reads: Sequence[Role] = ()

    def __post_init__(self) -> None:
        if "original" not in (*self.plan.roles, *self.reads):
            self.originals = 0
        for role in ROLES:
            prompt = self._prompt(role)
            if prompt and self.pairing.joins_texts:
                raise InvalidValueError(
                    f"model.prompts: expected none before two texts in one sequence, got {prompt.before!r} for "
                    f"{type(self.pairing).__name__}; set empty prompts: "
                    """--model.prompts.named '{query: "", document: ""}'"""
                )
            self.tokenizer.check_template(prompt, f"model.prompts, {role}")
            for name in self.plan.chains:
                if role_of(name) == role and self.plan.combined_template(name):
                    self.tokenizer.check_template(self._template(role, name), f"views.{name}")

    def _prompt(self, role: Role) -> Template:
        return self.prompts.template(self.prompts.of_role(role, self.task), self.tokenizer)

    def _template(self, role: Role, chain_name: str | None) -> Template:
        """Returns the template of the texts of a role that a chain alters, from its views and the prompt."""
        prompt, views = self._prompt(role), self.plan.combined_template(chain_name)
        # Only one template may have a part after the text: a view's template then replaces the prompt.
        return views if prompt.after and views.after else prompt.wrap(views)

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Builds a batch from keyed rows: pairing, views, tokenization and truncation.

        Raises:
            ValueError: Rows that give no example, or different numbers of examples, positives or negatives.
        """
        epochs, numbers = np.array([(item.epoch, item.number) for item in items], dtype=np.int64).T
        keys_of_rows = row_keys(self.seed, self.task, epochs, numbers)
        row_draws = zip(items, fold_keys(keys_of_rows, PAIRING).tolist(), strict=True)
        rows = [self.pairing(item.row, generator(key)) for item, key in row_draws]
        examples = [example for row in rows for example in row]
        texts = [example_texts(example, self.originals) for example in examples]
        shapes = {
            (len(example.positives), len(example.negatives), example.views_per_text) for example in examples
        }
        if len(shapes) != 1 or len({len(row) for row in rows}) != 1:
            counts = sorted({(len(row), len(example_texts(example))) for row in rows for example in row})
            got = ", ".join(f"{number} of {size} texts" for number, size in counts) or "none at all"
            raise InvalidValueError(
                f"pairing {type(self.pairing).__name__}: expected the same number of examples, positives and "
                f"negatives from every row, got {got}; remove rows with fewer"
            )
        slots = tuple(slot for slot, _ in example_slots(examples[0], self.originals))
        slot_numbers = np.arange(len(slots))[:, np.newaxis, np.newaxis]
        keys = fold_keys(keys_of_rows[:, np.newaxis], np.arange(len(rows[0])), slot_numbers)
        row_targets = [
            cell if isinstance(cell := item.row.get("target"), int | float) else None for item in items
        ]
        targets = [
            target if example.target is None else example.target
            for target, row in zip(row_targets, rows, strict=True)
            for example in row
        ]
        ordered_texts = [text for slot in zip(*texts, strict=True) for text in slot]
        batch = build_altered_batch(
            ordered_texts,
            slots=slots,
            keys=keys.ravel(),
            tokenizer=self.tokenizer,
            plan=self.plan,
            targets=targets,
            templates=[self._template(slot.role, self.plan.chain_name(slot)) for slot in slots],
        )
        kept_texts = tuple(map(self.tokenizer.text, ordered_texts)) if self.keep_texts else None
        # Every row gives the same number of examples.
        shares = tuple(share * len(rows[0]) for share in items[0].shares)
        scores = collate_scores(examples, type(self.pairing).__name__)
        context = collate_context(examples, self.tokenizer, batch) if self.pairing.in_context else None
        return batch.replace(texts=kept_texts, rank_sizes=shares or None, scores=scores, context=context)


@dataclass(frozen=True)
class StepCollator:
    """Builds the batches of a training step from rows of several tasks.

    Args:
        collators: Task -> its collator.
        file: Name of the file of all rows, if a task has several files with separate scores.
    """

    collators: Mapping[str, Collator]
    file: str = ""

    def __call__(self, items: Sequence[KeyedRow]) -> StepBatch:
        """Builds a batch for each task among the rows; see ``Collator``."""
        tasks = dict.fromkeys(item.task for item in items)
        return StepBatch(
            {task: self.collators[task]([item for item in items if item.task == task]) for task in tasks},
            objectives=items[0].objectives,
        )
