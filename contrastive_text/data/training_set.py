"""Training data of a run: its data sets, the steps of an epoch, and facts for the run's summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter

import numpy as np

from contrastive_text.core.batch import StepKind
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_keys, generator
from contrastive_text.core.types import MASK_PLACEHOLDER, TEXT_PLACEHOLDER, Row
from contrastive_text.data.collator import PAIRING, row_keys
from contrastive_text.data.files.mapped import sample_if_large
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import Rows
from contrastive_text.data.mixture import Mixture, Steps, TaskSize
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.tasks import DataNeeds
from contrastive_text.data.tokenizing import TextTokenizer, learn_vocabulary
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan
from contrastive_text.views.base import TokenView, Words
from contrastive_text.views.text import split_words


@dataclass(frozen=True)
class TrainingSet:
    """Training data of a run: the data sets, and the steps of an epoch over them.

    Args:
        tasks: Name -> data that is ready for training; ``train`` for a single task without a name.
        sizes: Name -> number of rows of a task, and in a step.
        steps: Steps of every epoch. Steps beyond the rows of a task take its rows again.
        named: Whether the tasks have names.
    """

    tasks: Mapping[str, TrainingData]
    sizes: Mapping[str, TaskSize]
    steps: Steps
    named: bool

    @classmethod
    def build(
        cls, tasks: Mapping[str, TrainingData], mixture: Mixture, batch_size: int, drop_last: bool, named: bool
    ) -> TrainingSet:
        """Builds a training set from tasks, with the steps of a mixture.

        Args:
            tasks: Name -> task.
            mixture: Mixture that determines the steps.
            batch_size: Number of rows of a step for tasks without a batch size.
            drop_last: Whether last, smaller batches are dropped.
            named: Whether the tasks have names.
        """
        sizes, epoch_sizes = {}, {}
        for name, data in tasks.items():
            task, rows = data.task, len(data.rows)
            size = epoch_sizes[name] = sizes[name] = TaskSize(rows, task.batch_size or batch_size)
            if task.repeat is not None:
                epoch_sizes[name] = replace(size, rows=task.repeat * size.batch_size)
            elif task.fraction is not None:
                epoch_sizes[name] = replace(size, rows=max(1, round(task.fraction * rows)))
        return cls(tasks, sizes, Steps.of(mixture.steps(epoch_sizes, drop_last)), named)

    def of(self, task: str | None = None) -> TrainingData:
        """Returns the training data of a task by its name, or of the only task if the name is None.

        Raises:
            ValueError: There is no such task.
        """
        if task is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        if task is None or task not in self.tasks:
            raise InvalidValueError(f"task: expected one of {', '.join(self.tasks)}, got {task}")
        return self.tasks[task]

    def step_kinds(self) -> list[StepKind]:
        """Returns the distinct kinds of steps of an epoch."""
        kinds = [
            StepKind(tuple(step.parts) if self.named else (None,), step.objectives) for step in self.steps.kinds
        ]
        return list(dict.fromkeys(kinds))

    def rows_per_step(self, task: str) -> int:
        """Returns the largest number of rows of a task in a step, over all ranks."""
        return self.steps.largest_step(task)

    def facts(self, needs: DataNeeds, seed: int, tasks: Iterable[str] = ()) -> dict[str, str]:
        """Returns facts for the run's summary: each task's, tasks that are only scored, and truncation.

        Args:
            needs: Needs of the module.
            seed: Seed of the sample of texts.
            tasks: Names of all tasks, including tasks that are only scored.
        """
        scored_names = [name for name in tasks if name not in self.tasks]
        facts = {"scored, not trained": ", ".join(scored_names)} if scored_names else {}
        facts |= {
            f"{fact}, {name}" if self.named else fact: text
            for name, data in self.tasks.items()
            for fact, text in (data.facts() | self._repeats(name)).items()
        }
        tokenizer = needs.tokenizer
        if tokenizer is None:
            return facts
        span_tasks = {name: data for name, data in self.tasks.items() if data.pairing.token_roles}
        text_tasks = {name: data for name, data in self.tasks.items() if name not in span_tasks}
        samples = sample_rows([len(data.texts) for data in text_tasks.values()], seed)
        texts = [
            (needs.prompts.template(prompt, tokenizer), text)
            for data, numbers in zip(text_tasks.values(), samples, strict=True)
            for prompt, text in data.strings(numbers, needs.prompts)
        ]
        plans = [needs.tasks[name].plan for name in self.tasks]
        strings = [text for _, text in texts if isinstance(text, str)]
        if words := words_without_blanks(plans, strings, tokenizer):
            facts["words"] = words
        if tokenizer.room is None:
            return facts
        notes = []
        if texts:
            cut = sum(tokenizer.is_truncated(text, template) for template, text in texts)
            notes.append(f"{cut / len(texts):.1%} of {len(texts):,} sampled texts are longer and will be cut")
        notes += [
            cut_spans(data.rows, data.pairing, tokenizer.room - needs.prompt_tokens(name), name, seed)
            for name, data in span_tasks.items()
        ]
        return facts | {"length limit": f"{tokenizer.max_length} tokens with special ones; {'; '.join(notes)}"}

    def _repeats(self, task: str) -> dict[str, str]:
        """Describes how often the rows of a task are repeated in an epoch; empty without repeats."""
        rows, step = len(self.tasks[task].rows), self.rows_per_step(task)
        count = self.steps.rows_taken(task)
        if count <= rows:
            return {}
        note = f"{count:,} an epoch: each of the {rows:,} comes some {count / rows:,.1f} times, altered each time"
        if step > rows:
            note += f"; a step of {step:,} has each some {step / rows:,.1f} times, and copies of a text are "
            note += "negatives of each other only without Duplicates"
        return {"repeated rows": note + ("; without it the loss is 0" if rows == 1 else "")}


def learned_tokenizer(tables: Mapping[str, Table], needs: DataNeeds, seed: int) -> str:
    """Trains a tokenizer on all texts of the tables, or on a sample, and returns its JSON."""
    rows = chain.from_iterable(sample_if_large(table.rows, seed) for table in tables.values())
    prompts = (
        text.replace(TEXT_PLACEHOLDER, " ").replace(MASK_PLACEHOLDER, " ")
        for text in needs.prompts.named.values()
    )
    texts = (text for row in rows for text in row.values() if isinstance(text, str))
    tokenizer = learn_vocabulary(chain(prompts, texts), needs.vocabulary_size, new_tokens=needs.new_tokens)
    return tokenizer.backend_tokenizer.to_str()


def check_examples(training: TrainingSet, needs: DataNeeds) -> None:
    """Checks that the examples of a step give every objective something to compare.

    Raises:
        ValueError: An objective needs more examples in a step, or hard negatives, than there are.
    """
    for name, data in training.tasks.items():
        if (check := needs.tasks[name].check_examples) is not None:
            examples = training.rows_per_step(name) * data.examples_per_row
            check(examples, sum(slot.role == "negative" for slot in data.slots))


def check_objective_groups(training: TrainingSet, needs: DataNeeds) -> None:
    """Checks that a mixture with groups of objectives names every trained objective, and no others.

    Raises:
        ValueError: An unknown objective, or an objective in no group.
    """
    objectives = dict.fromkeys(name for task in training.tasks for name in needs.tasks[task].objectives)
    turn_names = dict.fromkeys(name for step in training.steps.kinds for name in step.objectives or ())
    where, expected = "data.mixture.turns", ", ".join(objectives)
    if unknown := [name for name in turn_names if name not in objectives]:
        raise InvalidValueError(f"{where}: expected objectives ({expected}), got {unknown[0]}; name one of them")
    if turn_names and (missing := [name for name in objectives if name not in turn_names]):
        raise InvalidValueError(
            f"{where}: expected every objective in a turn, got no turn with {missing[0]}; add it"
        )


_SAMPLE_SIZE = 1000
"""Largest number of rows or documents that are sampled for statistics of the training data."""


def sample_rows(sizes: Sequence[int], seed: int) -> list[list[int]]:
    """Samples rows of several tasks, at most a thousand in total. Returns their numbers per task, in file order.

    Args:
        sizes: Number of rows of each task.
        seed: Seed of the sample.

    Example:
        >>> sample_rows([3, 2], seed=0)
        [[0, 1, 2], [0, 1]]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    numbers = (
        generator(seed).choice(total, _SAMPLE_SIZE, replace=False) if total > _SAMPLE_SIZE else np.arange(total)
    )
    parts = np.split(np.sort(numbers), np.searchsorted(np.sort(numbers), ends))
    return [(part - end + size).tolist() for part, end, size in zip(parts[:-1], ends, sizes, strict=True)]


def cut_spans(rows: Rows, pairing: Pairing, room: int, task: str, seed: int) -> str:
    """Describes how many spans are longer than the room in a row.

    The spans of the first pass over the documents are counted: of all documents if there are at most a thousand,
    else of a sample.

    Args:
        rows: Documents as tokens.
        pairing: Pairing that draws the spans.
        room: Largest number of tokens of a row, without special tokens.
        task: Name of the data set, which is part of the key of every draw.
        seed: Seed of every draw.
    """
    (samples,) = sample_rows([len(rows)], seed)
    numbers = np.array(samples, dtype=np.int64)
    keys = fold_keys(row_keys(seed, task, np.zeros_like(numbers), numbers), PAIRING).tolist()
    lengths = [
        len(span)
        for number, key in zip(numbers.tolist(), keys, strict=True)
        for example in pairing(rows[number], generator(key))
        for span in (example.anchor, *example.positives, *example.negatives)
    ]
    cut = sum(length > room for length in lengths)
    extent = f"of a sample of {len(numbers):,} documents" if len(numbers) < len(rows) else "of a first pass"
    note = f"{cut:,} of the {len(lengths):,} spans {extent} are longer"
    if not cut:
        return note
    return f"{note} ({cut / len(lengths):.1%}) and will be cut at their end, the longest has {max(lengths):,}"


_WITHOUT_BLANKS = re.compile(
    # Thai and Lao, Tibetan, Burmese, Khmer, kana, and Chinese characters with their extensions and signs.
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
_MAX_LETTERS = 12
"""Largest number of letters of an example text in the run's summary."""


def words_without_blanks(plans: Iterable[ViewPlan], texts: Sequence[str], tokenizer: TextTokenizer) -> str | None:
    """Describes how views split texts of languages without blanks into words.

    Args:
        plans: View plans of the run.
        texts: Sample of the run's texts.
        tokenizer: Tokenizer of the encoder.

    Returns:
        An example for each kind of words. None if no view uses words, or no text is of such a language.
    """
    kinds: dict[Words, dict[str, None]] = {}
    for view in (view for plan in plans for _, view in plan.named_views()):
        if kind := "tokenizer" if isinstance(view, TokenView) and view.unit == "word" else view.words:
            kinds.setdefault(kind, {})[describe(view)] = None
    runs = [match[0] for text in texts if (match := _WITHOUT_BLANKS.search(text))]
    if not kinds or not runs:
        return None
    example = max(runs, key=len)[:_MAX_LETTERS]
    notes = [f"{len(runs) / len(texts):.1%} of {len(texts):,} sampled texts are of languages without blanks"]
    for kind, names in sorted(kinds.items()):
        words = [example]
        if kind == "tokenizer":
            (tokens,) = tokenizer([example])
            pieces = groupby(zip(tokens.words, tokens.ids, strict=True), key=itemgetter(0))
            words = [
                str(tokenizer.tokenizer.decode([token for _, token in piece])).strip() for _, piece in pieces
            ]
        elif kind == "letters":
            words = split_words(example)[1::2]
        words_text = "one word" if len(words) == 1 else f"{len(words)} words: {' | '.join(words)}"
        notes.append(f"for {', '.join(names)}, {example} is {words_text}")
    return "; ".join(notes)


_CHECKED_ROWS = 100_000
"""Largest number of rows that are counted: enough for an estimate, and it takes a tenth of a second."""


def sibling_rows(rows: Sequence[Row], batch_size: int, labeled: bool = False) -> tuple[int, float, int]:
    """Counts rows whose anchor has another positive in other rows, and estimates the share with one in its batch.

    Batches are assumed to be random draws. Of n rows with b in a step, a row with g siblings has one in its batch
    with a probability of nearly ``1 - ((n - b) / (n - 1))^g``.

    Args:
        rows: Rows, of which those with an anchor and a positive count; the first 100,000 are read.
        batch_size: Number of examples of a step.
        labeled: Whether the target 0 means that a row's texts don't belong together. Such rows are no siblings.

    Returns:
        Number of rows with siblings, expected share of rows with a sibling in their batch, and number of rows
        read.

    Example:
        >>> rows = [{"anchor": "a", "positive": text} for text in "bcd"] + [{"anchor": "e", "positive": "f"}]
        >>> sibling_rows(rows, batch_size=4)
        (3, 0.75, 4)
    """
    pairs = [
        (row["anchor"], row["positive"])
        for row in islice(rows, _CHECKED_ROWS)
        if "anchor" in row and "positive" in row and not (labeled and row.get("target") == 0)
    ]
    anchor_counts = Counter(anchor for anchor, _ in pairs)
    copies = Counter(pairs)
    counts = [anchor_counts[pair[0]] - copies[pair] for pair in pairs]
    miss_probability = max(len(rows) - batch_size, 0) / max(len(rows) - 1, 1)
    expected = sum(1 - miss_probability**count for count in counts)
    return sum(map(bool, counts)), expected / max(len(pairs), 1), len(pairs)
