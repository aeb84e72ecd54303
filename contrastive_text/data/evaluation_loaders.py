"""Loaders of validation, test and prediction: scored rows, retrieval sets, and held-out rows without views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

from torch.utils.data import DataLoader

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.loader import ResumableLoader, epoch_loader, loader_in_order, prediction_loader
from contrastive_text.data.mixture import TaskSize, consecutive_steps
from contrastive_text.data.preparation import TrainingData, prepare_each
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


class RankedCollator:
    """Makes batches of the texts of one side, in its role; their targets are the numbers of the texts.

    Args:
        collator: Whose pairing gives each text as anchor and as positive.
        ranked: Whose texts these are.
    """

    def __init__(self, collator: Collator, ranked: Ranked) -> None:
        self.collator = collator
        self.ranked = ranked

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows, without the copies in the other role."""
        batch = self.collator(items)
        return batch.split(batch.by_role(self.ranked.side))


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

    def __init__(
        self,
        tables: RunTables,
        tasks: Mapping[str, TextTask],
        tokenizer: TextTokenizer,
        batch_size: int,
        seed: int,
        prompts: Prompts = NO_PROMPTS,
    ) -> None:
        self.tables = tables
        self.tasks = tasks
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.seed = seed
        self.prompts = prompts

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
            prediction_loader(name, table.rows, self.batch_size, self._collator(name, table.rows))
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
        plan = ViewPlan()
        plan.build(self.tokenizer.vocabulary(plan.new_tokens))
        return Collator(self.tokenizer, pairing, plan, seed=self.seed, task=name, prompts=prompts)


class HeldOutCollator:
    """Makes batches of held-out rows without a view; what a pairing draws is the same in every validation.

    Args:
        collator: Of the data set, without views.
        objectives: Names of those whose loss is taken.
    """

    def __init__(self, collator: Collator, objectives: tuple[str, ...]) -> None:
        self.collator = collator
        self.objectives = objectives

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

    @classmethod
    def each(
        cls,
        tables: RunTables,
        needs: DataNeeds,
        batch_size: int,
        seed: int,
        cache_dir: str | None,
    ) -> list[Self]:
        """Returns those of several data sets.

        Args:
            tables: What was read of a run, and how its rows are paired.
            needs: As for each of them, as are the next two.
            batch_size: As for each of them.
            seed: As for each of them.
            cache_dir: Where the tokens of documents are kept.

        Raises:
            ValueError: Rows that the pairing can't serve, or without an objective.
        """
        ready = prepare_each(tables, "held_out", needs, seed, cache_dir)
        return [cls(data, needs, batch_size, seed) for data in ready.values()]

    def loader(self, needs: DataNeeds) -> ResumableLoader:
        """Returns the batches, with the length limit and the prompts of training."""
        tokenizer, plan, name = needs.known_tokenizer(training=True), ViewPlan(), self.data.name
        plan.build(tokenizer.vocabulary(plan.new_tokens))
        collator = Collator(
            tokenizer,
            self.data.pairing,
            plan,
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
