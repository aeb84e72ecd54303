"""Held-out rows as training reads them, but for views: what losses on unseen data are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.loader import ResumableLoader, epoch_loader
from contrastive_text.data.needs import DataNeeds
from contrastive_text.data.preparation import TrainingData, prepare_each
from contrastive_text.data.run_tables import RunTables
from contrastive_text.data.steps import TaskSize, consecutive_steps
from contrastive_text.data.tasks import option_place
from contrastive_text.views import ViewPlan


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
