"""From tables to what is trained on: the rows that pairings serve, a vocabulary, and what is said of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Subset

from contrastive_text.core.batch import StepKind
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import generator
from contrastive_text.core.specs import describe
from contrastive_text.core.types import MASK, SLOT, Role, Row, Slot, TextPair
from contrastive_text.data.cuts import cut_spans, cut_texts, sample_rows
from contrastive_text.data.files import mapped
from contrastive_text.data.files.readers import Table
from contrastive_text.data.joining import joined
from contrastive_text.data.mixture import Mixture
from contrastive_text.data.needs import DataNeeds
from contrastive_text.data.orders import PERMUTATION_ROWS
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.run_tables import RunTables
from contrastive_text.data.sampler import Rows
from contrastive_text.data.samples import repeats, sampled
from contrastive_text.data.selection import check_roles, drawn, served
from contrastive_text.data.steps import Steps, TaskSize
from contrastive_text.data.tasks import TextTask, option_place
from contrastive_text.data.token_cache import TokenTable, tokenize_documents
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.data.vocabulary import learn_vocabulary
from contrastive_text.data.words import words_without_blanks
from contrastive_text.pairings import Pairing, SameText

_COUNTED = 100_000
"""Rows whose hard negatives are counted."""
_LOOKED_AT = 1_000
"""Rows among which one has two texts, where a pairing gives any."""


class TrainingData(NamedTuple):
    """A task that is ready to be trained on.

    Args:
        name: Its name.
        task: What was asked for.
        table: What was read.
        pairing: Which texts of a row belong together.
        rows: The rows that are trained on: those that the pairing can serve, or some of them.
        texts: The same rows, none of them tokenised.
        chosen: How they were chosen; empty where they are all there are.
        slots: The slots of its examples.
        examples_per_row: How many examples a row gives.
    """

    name: str
    task: TextTask
    table: Table
    pairing: Pairing
    rows: Rows
    texts: Sequence[Row]
    chosen: str
    slots: tuple[Slot, ...]
    examples_per_row: int

    def strings(self, numbers: Iterable[int], prompts: Prompts) -> Iterator[tuple[str, str | TextPair]]:
        """Yields the texts of some rows' examples with the prompts of their roles; two of one sequence at once.

        One that stands twice in an example comes once, unless its prompts differ. A pairing of token spans has no
        texts in its examples: its documents are yielded, without a prompt.
        """
        if self.pairing.reads_tokens:
            yield from (("", str(self.texts[number]["text"])) for number in numbers)
            return
        rng = generator(0)
        for example in (example for number in numbers for example in self.pairing(self.texts[number], rng)):
            roles: tuple[tuple[Role, Sequence[object]], ...] = (
                ("anchor", [example.anchor]),
                ("positive", example.positives),
                ("negative", example.negatives),
            )
            each = [(prompts.of_role(role, self.name), text) for role, texts in roles for text in texts]
            yield from dict.fromkeys((prompt, text) for prompt, text in each if isinstance(text, str | TextPair))

    @property
    def hard_negatives(self) -> tuple[int, int, float] | None:
        """Fewest, most and mean number of hard negatives of the first 100,000 rows; None if all have as many."""
        rng, slots = generator(0), sum(slot.role == "negative" for slot in self.slots)
        if not slots or self.pairing.reads_tokens:
            return None
        rows = islice(self.texts, _COUNTED)
        counts = [
            sum(text != "" for text in example.negatives) for row in rows for example in self.pairing(row, rng)
        ]
        fewest, most = min(counts), max(counts)
        return None if fewest == most else (fewest, most, sum(counts) / len(counts))

    def facts(self) -> dict[str, str]:
        """Returns what a reader of the results should know of the data set."""
        first = self.pairing.reads[0]
        repeated = repeats(self.texts, first)
        facts = {
            "training data": self.table.understood,
            "pairing": describe(self.pairing),
            "duplicates": f"{repeated:,} of {len(self.texts):,} rows repeat the {first} of another",
        }
        return facts | ({"rows": self.chosen} if self.chosen else {})


@dataclass(frozen=True)
class TrainingSet:
    """What a run is trained on: its tasks, and the steps of an epoch over them.

    Args:
        tasks: Name -> what is ready to be trained on; ``train`` where there is one without a name.
        sizes: Name -> the rows of a task, and of a step.
        steps: Those of every epoch; one of more rows than there are takes some of them again.
        named: Whether the tasks have names.
    """

    tasks: Mapping[str, TrainingData]
    sizes: Mapping[str, TaskSize]
    steps: Steps
    named: bool

    @classmethod
    def arranged(
        cls, tasks: Mapping[str, TrainingData], mixture: Mixture, batch_size: int, drop_last: bool, named: bool
    ) -> TrainingSet:
        """Returns tasks with the steps in which a mixture arranges what an epoch takes of them.

        Args:
            tasks: By name.
            mixture: In which order their batches arrive.
            batch_size: Rows of a step of a task that has no number of its own.
            drop_last: Whether last, smaller batches are left out.
            named: Whether the tasks have names.
        """
        sizes = {
            name: TaskSize(len(data.rows), data.task.batch_size or batch_size) for name, data in tasks.items()
        }
        taken = {
            name: replace(size, rows=tasks[name].task.rows_an_epoch(size.rows, size.batch_size))
            for name, size in sizes.items()
        }
        return cls(tasks, sizes, Steps.of(mixture.steps(taken, drop_last)), named)

    def of(self, task: str | None = None) -> TrainingData:
        """Returns what a task is trained on; None for the only one.

        Raises:
            ValueError: No such task.
        """
        if task is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        if task is None or task not in self.tasks:
            raise InvalidValueError(f"task: expected one of {', '.join(self.tasks)}, got {task}")
        return self.tasks[task]

    def step_kinds(self) -> list[StepKind]:
        """Returns the kinds of steps of an epoch."""
        each = [
            StepKind(tuple(step.parts) if self.named else (None,), step.objectives) for step in self.steps.kinds
        ]
        return list(dict.fromkeys(each))

    def rows_per_step(self, task: str) -> int:
        """Returns how many rows of a task a step has at the most, over all ranks together."""
        return self.steps.largest(task)

    def facts(self, needs: DataNeeds, seed: int, tasks: Iterable[str] = ()) -> dict[str, str]:
        """Returns the facts of all tasks, which of some more are scored alone, and what the length limit cuts."""
        alone = [name for name in tasks if name not in self.tasks]
        facts = {"scored, not trained": ", ".join(alone)} if alone else {}
        facts |= {
            f"{fact}, {name}" if self.named else fact: said
            for name, data in self.tasks.items()
            for fact, said in (data.facts() | self._repeats(name)).items()
        }
        tokenizer = needs.tokenizer
        if tokenizer is None:
            return facts
        reading = {name: data for name, data in self.tasks.items() if data.pairing.reads_tokens}
        others = {name: data for name, data in self.tasks.items() if name not in reading}
        sampled = sample_rows([len(data.texts) for data in others.values()], seed)
        texts = [
            (needs.prompts.frame(prompt, tokenizer), text)
            for data, numbers in zip(others.values(), sampled, strict=True)
            for prompt, text in data.strings(numbers, needs.prompts)
        ]
        plans = [needs.tasks[name].plan for name in self.tasks]
        strings = [text for _, text in texts if isinstance(text, str)]
        if words := words_without_blanks(plans, strings, tokenizer):
            facts["words"] = words
        if tokenizer.room is None:
            return facts
        said = [cut_texts(texts, tokenizer)] if texts else []
        said += [
            cut_spans(data.rows, data.pairing, tokenizer.room - needs.taken(name), name, seed)
            for name, data in reading.items()
        ]
        return facts | {"length limit": f"{tokenizer.max_length} tokens with special ones; {'; '.join(said)}"}

    def _repeats(self, task: str) -> dict[str, str]:
        """Says how often the rows of a task come in an epoch, where they do so more than once."""
        rows, step = len(self.tasks[task].rows), self.rows_per_step(task)
        taken = self.steps.taken(task)
        if taken <= rows:
            return {}
        said = f"{taken:,} an epoch: each of the {rows:,} comes some {taken / rows:,.1f} times, altered anew"
        if step > rows:
            said += f"; a step of {step:,} has each some {step / rows:,.1f} times, and copies of a text are "
            said += "negatives of each other only with mask_duplicates: false"
        return {"repeated rows": said + ("; without it the loss is 0" if rows == 1 else "")}


def prepare_each(
    tables: RunTables,
    part: str,
    needs: DataNeeds,
    seed: int,
    cache_dir: str | None,
    permutation_rows: int = PERMUTATION_ROWS,
) -> dict[str, TrainingData]:
    """Returns the data sets of a part of a run by name; the bound on rows is that of training.

    Args:
        tables: What was read.
        part: ``train`` or ``held_out``.
        needs: As for ``prepare``, as are the others.
        seed: As there.
        cache_dir: As there.
        permutation_rows: As there.

    Raises:
        ValueError: As ``prepare`` raises it.
    """
    tasks = {name: task if part == "train" else replace(task, limit=None) for name, task in tables.tasks.items()}
    return {
        name: prepare(table, tasks[name], name, needs, seed, cache_dir, permutation_rows)
        for name, table in tables.of(part).items()
    }


def prepare(
    table: Table,
    task: TextTask,
    name: str,
    needs: DataNeeds,
    seed: int,
    cache_dir: str | None,
    permutation_rows: int = PERMUTATION_ROWS,
) -> TrainingData:
    """Chooses the rows of a task, and settles the slots of their examples.

    Args:
        table: What was read.
        task: Says which texts of a row belong together.
        name: The task's.
        needs: What the module needs.
        seed: Of the first row's examples, and of the rows that are drawn.
        cache_dir: Where the tokens of documents are kept, for pairings that read tokens and for texts to join.
        permutation_rows: Most rows of which some are drawn by a permutation; of more by a ``Bijection``.

    Raises:
        ValueError: Rows that the pairing can't serve or that can't be joined, fewer than the limit, or roles that
            the pairing doesn't give.
    """
    pairing = task.pairing or SameText()
    folder = None if cache_dir is None else Path(cache_dir)
    if task.join is not None:
        assert needs.tokenizer is not None
        where = f"{option_place(name)}.join"
        taken = 0 if pairing.reads_tokens else needs.taken(name)
        table = joined(table, task.join, needs.tokenizer, folder, where, not pairing.reads_tokens, taken)
    texts, said = pairing.arrange(table.documents)
    rows: Rows = texts
    numbers: Sequence[int] = range(len(texts))
    if pairing.reads_tokens:
        assert needs.tokenizer is not None
        if needs.tokenizer.room is not None:
            pairing.check_room(needs.tokenizer.room - needs.taken(name))
        rows = tokens = _tokenised(texts, needs.tokenizer, folder)
        numbers, said = served(tokens, pairing)
    chosen = [said] if said else []
    if pairing.joins and needs.tokenizer is not None:
        chosen.append(f"two texts in a sequence: {needs.tokenizer.pairs.describe()}")
    if task.limit is not None:
        numbers, said = drawn(numbers, task.limit, seed, name, permutation_rows)
        chosen.append(said)
    if len(numbers) < len(texts):
        subset: Any = partial(Subset, indices=numbers)  # Any: torch wants data sets, and reads what has places
        rows = subset(rows)
        texts = subset(texts) if len(numbers) > mapped.MAPPED_ROWS else [texts[number] for number in numbers]
    examples = pairing(rows[0], generator(seed))
    its, few = needs.tasks[name], range(1, min(len(rows), _LOOKED_AT))
    further = (each for number in few for each in pairing(rows[number], generator(seed)))
    slots = check_roles(pairing, examples, its.plan, its.roles, its.two_texts, further)
    return TrainingData(
        name, task, table, pairing, rows, texts, "; ".join(chosen), slots, examples_per_row=len(examples)
    )


def _tokenised(rows: Sequence[Row], tokenizer: TextTokenizer, folder: Path | None) -> TokenTable:
    tokens = tokenize_documents([str(row["text"]) for row in rows], tokenizer, cache_dir=folder)
    targets = [target for row in rows if isinstance(target := row.get("target"), float)]
    return TokenTable(tokens.folder, tokens.source, targets or None)


def learned_tokenizer(tables: Mapping[str, Table], needs: DataNeeds, seed: int) -> str:
    """Returns a tokenizer that is learned from all texts of the tables, or of a sample, as JSON."""
    rows = chain.from_iterable(sampled(table.rows, seed) for table in tables.values())
    prompts = (text.replace(SLOT, " ").replace(MASK, " ") for text in needs.prompts.named.values())
    texts = chain(prompts, _texts(rows))
    learned = learn_vocabulary(texts, needs.vocabulary_size, new_tokens=needs.new_tokens)
    return learned.backend_tokenizer.to_str()


def check_examples(training: TrainingSet, needs: DataNeeds) -> None:
    """Checks that the examples of a step give every objective something to compare.

    Raises:
        ValueError: A step of one example, or examples without a negative, for an objective that needs them.
    """
    for name, data in training.tasks.items():
        if (check := needs.tasks[name].check_examples) is not None:
            examples = training.rows_per_step(name) * data.examples_per_row
            check(examples, sum(slot.role == "negative" for slot in data.slots))


def check_turns(training: TrainingSet, needs: DataNeeds) -> None:
    """Checks that the steps of a mixture that names objectives name all that are trained, and no others.

    Raises:
        ValueError: An unknown objective, or one without a turn.
    """
    objectives = dict.fromkeys(name for task in training.tasks for name in needs.tasks[task].objectives)
    named = dict.fromkeys(name for step in training.steps.kinds for name in step.objectives or ())
    place, there = "data.mixture.turns", ", ".join(objectives)
    if unknown := [name for name in named if name not in objectives]:
        raise InvalidValueError(f"{place}: expected objectives ({there}), got {unknown[0]}; name one of them")
    if named and (idle := [name for name in objectives if name not in named]):
        raise InvalidValueError(f"{place}: expected every objective in a turn, got none for {idle[0]}; add it")


def _texts(rows: Iterable[Row]) -> Iterator[str]:
    return (text for row in rows for text in row.values() if isinstance(text, str))
