"""Loaders of validation, test and prediction: scored rows, retrieval sets, and held-out rows without views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch.utils.data import DataLoader

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.loader import KeyedRows, ResumableLoader, epoch_loader, loader_in_order
from contrastive_text.data.mixture import TaskSize, consecutive_steps
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.data.run_tables import RunTables
from contrastive_text.data.tasks import DataNeeds, TextTask, option_place
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Given, Pairing, SameText
from contrastive_text.views import ViewPlan

Side = Literal["anchor", "positive"]
"""The role of the queries, and of the documents."""


class Ranked(NamedTuple):
    """The queries or the documents of a retrieval set.

    Args:
        name: Of the set.
        data: The set.
        side: Which of the two.
    """

    name: str
    data: RetrievalSet
    side: Side

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by number."""
        return self.data.queries if self.side == "anchor" else self.data.documents

    @property
    def rows(self) -> list[Row]:
        """The texts with their numbers, long ones first, so that those of a batch are of like length."""
        texts = self.texts
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]), reverse=True)
        return [{"text": texts[number], "target": float(number)} for number in order]


@dataclass(frozen=True)
class RankedCollator:
    """Makes batches of the texts of one side, in its role; their targets are the numbers of the texts.

    Args:
        collator: Whose pairing gives each text as anchor and as positive.
        ranked: Whose texts these are.
    """

    collator: Collator
    ranked: Ranked

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows, without the copies in the other role."""
        batch = self.collator(items)
        return batch.split(batch.by_role(self.ranked.side))


@dataclass(frozen=True)
class PlainLoaders:
    """Makes the loaders of validation, test and prediction: no spans, no neighbours, no view.

    Args:
        tables: The files of the run, read.
        tasks: Name -> data set, where there are several.
        tokenizer: With the length limit of use.
        batch_size: Rows of a batch, per rank.
        seed: Of the run.
        prompts: What stands before texts; before those that are neither queries nor documents the default.
    """

    tables: RunTables
    tasks: Mapping[str, TextTask]
    tokenizer: TextTokenizer
    batch_size: int
    seed: int
    prompts: Prompts = NO_PROMPTS

    def scored(self, part: str) -> list[ResumableLoader]:
        """Returns one loader per file of a part, then in validation the queries and documents of each set."""
        loaders = [
            loader_in_order(name, rows, self.batch_size, self._collator(name, rows, file))
            for name, file, rows in self.tables.by_file(part)
        ]
        for name, data in self.tables.ranked.items() if part == "validation" else ():
            for side in (Ranked(name, data, "anchor"), Ranked(name, data, "positive")):
                collate = RankedCollator(self._plain(name, SameText(), self.prompts), side)
                loaders.append(loader_in_order(name, side.rows, self.batch_size, collate))
        return loaders

    def predicted(self) -> list[DataLoader[KeyedRow]]:
        """Returns the texts to embed and those to predict, a loader for each table, in file order."""
        return [
            # Torch's own samplers over numbers: Lightning makes loaders of a prediction again.
            DataLoader(
                KeyedRows({name: table.rows}), self.batch_size, collate_fn=self._collator(name, table.rows)
            )
            for name, table in self.tables.of("predict").items()
        ]

    def _collator(self, name: str, rows: Sequence[Row], file: str = "") -> Collator | StepCollator:
        task = self.tasks.get(name)
        own = None if task is None else task.pairing
        as_read: Pairing = Given() if "anchor" in rows[0] else SameText()
        prompts = self.prompts.alike if task is None and "anchor" not in rows[0] else self.prompts
        collator = self._plain(name, own if own is not None and own.joins else as_read, prompts)
        return collator if task is None else StepCollator({name: collator}, file)

    def _plain(self, name: str, pairing: Pairing, prompts: Prompts) -> Collator:
        return Collator(self.tokenizer, pairing, ViewPlan(), seed=self.seed, task=name, prompts=prompts)


@dataclass(frozen=True)
class HeldOutCollator:
    """Makes batches of held-out rows without a view; what a pairing draws is the same in every validation.

    Args:
        collator: Of the data set, without views.
        objectives: Names of those whose loss is taken.
    """

    collator: Collator
    objectives: tuple[str, ...]

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows; see ``Collator``."""
        return self.collator([item._replace(epoch=0) for item in items])


class HeldOutRows:
    """The held-out rows of a data set, in batches of as many rows as a step of training has.

    Batches have the order of the file, so that a row is held against the same others each time. What is left over
    after the last whole batch is left out; fewer rows than a batch are one.

    Args:
        data: The rows, ready to be paired as in training.
        needs: What the module needs.
        batch_size: Rows of a step, where the data set has no number of its own.
        seed: Of what the pairing draws.

    Raises:
        ValueError: No objective has a loss without views.
    """

    def __init__(self, data: TrainingData, needs: DataNeeds, batch_size: int, seed: int) -> None:
        self.data = data
        self.seed = seed
        self.size = TaskSize(len(data.rows), min(data.task.batch_size or batch_size, len(data.rows)))
        every = needs.tasks[data.name].objectives
        self.objectives = needs.tasks[data.name].unaltered
        self._without = [name for name in every if name not in self.objectives]
        if not self.objectives:
            raise InvalidValueError(
                f"{option_place(data.name)}.held_out: expected an objective that reads unaltered texts, got "
                f"{', '.join(every)}, which read what views hide or leave; leave the file out"
            )

    def loader(self, needs: DataNeeds) -> ResumableLoader:
        """Returns the batches, with the length limit and the prompts of training."""
        name = self.data.name
        collator = Collator(
            needs.known_tokenizer(training=True),
            self.data.pairing,
            ViewPlan(),
            self.seed,
            name,
            prompts=needs.prompts,
            keep_texts=needs.tasks[name].texts,
        )
        steps = consecutive_steps({name: self.size}, drop_last=True)
        collate = HeldOutCollator(collator, self.objectives)
        return epoch_loader({name: self.data.rows}, steps, collate, seed=self.seed, shuffle=False)

    def __str__(self) -> str:
        """Returns what losses are taken of, in words."""
        batches, rest = divmod(self.size.rows, self.size.batch_size)
        said = f"{self.data.table.understood}; the loss of {', '.join(self.objectives)} is taken of {batches:,} "
        said += f"batches of {self.size.batch_size:,} rows"
        said += f", {rest:,} rows after them left out" if rest else ""
        return said + (f"; {', '.join(self._without)} has none without views" if self._without else "")
