"""Loaders of rows that stand as they are: what is scored, what is ranked, and what is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.utils.data import DataLoader

from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.loader import ResumableLoader, loader_in_order, prediction_loader
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.retrieval.collator import Ranked, RankedCollator
from contrastive_text.data.run_tables import RunTables
from contrastive_text.data.tasks import TextTask
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Given, Pairing, SameText
from contrastive_text.views import ViewPlan


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
