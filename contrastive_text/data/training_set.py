"""Training data of a run: its data sets, the steps of an epoch, and the facts that the run's summary states."""

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
from contrastive_text.core.random import fold_each, generator
from contrastive_text.core.types import MASK, SLOT, Row
from contrastive_text.data.collator import PAIRING, row_keys
from contrastive_text.data.files.mapped import sampled
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
        sizes, taken = {}, {}
        for name, data in tasks.items():
            task, rows = data.task, len(data.rows)
            size = taken[name] = sizes[name] = TaskSize(rows, task.batch_size or batch_size)
            if task.repeat is not None:
                taken[name] = replace(size, rows=task.repeat * size.batch_size)
            elif task.fraction is not None:
                taken[name] = replace(size, rows=max(1, round(task.fraction * rows)))
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
        said = []
        if texts:
            cut = sum(tokenizer.cuts(text, frame) for frame, text in texts)
            said.append(f"{cut / len(texts):.1%} of {len(texts):,} sampled texts are longer and will be cut")
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
            said += "negatives of each other only without Duplicates"
        return {"repeated rows": said + ("; without it the loss is 0" if rows == 1 else "")}


def learned_tokenizer(tables: Mapping[str, Table], needs: DataNeeds, seed: int) -> str:
    """Returns a tokenizer that is learned from all texts of the tables, or of a sample, as JSON."""
    rows = chain.from_iterable(sampled(table.rows, seed) for table in tables.values())
    prompts = (text.replace(SLOT, " ").replace(MASK, " ") for text in needs.prompts.named.values())
    texts = (text for row in rows for text in row.values() if isinstance(text, str))
    learned = learn_vocabulary(chain(prompts, texts), needs.vocabulary_size, new_tokens=needs.new_tokens)
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


_SAMPLE = 1000
"""Rows or documents that are counted, where there are more."""


def sample_rows(sizes: Sequence[int], seed: int) -> list[list[int]]:
    """Returns which rows of each task are looked at, in the file's order: a thousand of all together at most.

    Args:
        sizes: Rows of each task.
        seed: Of the draw.

    Example:
        >>> sample_rows([3, 2], seed=0)
        [[0, 1, 2], [0, 1]]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn = generator(seed).choice(total, _SAMPLE, replace=False) if total > _SAMPLE else np.arange(total)
    parts = np.split(np.sort(drawn), np.searchsorted(np.sort(drawn), ends))
    return [(part - end + size).tolist() for part, end, size in zip(parts[:-1], ends, sizes, strict=True)]


def cut_spans(rows: Rows, pairing: Pairing, room: int, task: str, seed: int) -> str:
    """Returns how many spans have more tokens than there is room for.

    Counted are the spans that the first pass over the documents draws: all of them where there are a thousand
    documents or fewer, else those of a sample.

    Args:
        rows: The documents, as tokens.
        pairing: What draws the spans.
        room: Tokens of a row beside the special ones, at most.
        task: Name of the data set, part of every draw's key.
        seed: Seed of every draw.
    """
    (sampled,) = sample_rows([len(rows)], seed)
    numbers = np.array(sampled, dtype=np.int64)
    keys = fold_each(row_keys(seed, task, np.zeros_like(numbers), numbers), PAIRING).tolist()
    lengths = [
        len(span)
        for number, key in zip(numbers.tolist(), keys, strict=True)
        for example in pairing(rows[number], generator(key))
        for span in (example.anchor, *example.positives, *example.negatives)
    ]
    cut = sum(length > room for length in lengths)
    which = f"of a sample of {len(numbers):,} documents" if len(numbers) < len(rows) else "of a first pass"
    said = f"{cut:,} of the {len(lengths):,} spans {which} are longer"
    if not cut:
        return said
    return f"{said} ({cut / len(lengths):.1%}) and will be cut at their end, the longest has {max(lengths):,}"


_WITHOUT_BLANKS = re.compile(
    # Thai and Lao, Tibetan, Burmese, Khmer, kana, and Chinese characters with their extensions and signs.
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
_SHOWN = 12
"""Letters of the example."""


def words_without_blanks(plans: Iterable[ViewPlan], texts: Sequence[str], tokenizer: TextTokenizer) -> str | None:
    """Returns what the views of some plans take for words in texts of languages that are written without blanks.

    Args:
        plans: Of the run.
        texts: A sample of its texts.
        tokenizer: The encoder's.

    Returns:
        An example of it for each kind of words; None where no view knows words, or no text is of such a language.
    """
    kinds: dict[Words, dict[str, None]] = {}
    for view in (view for plan in plans for _, view in plan.views_with_places()):
        if kind := "tokenizer" if isinstance(view, TokenView) and view.unit == "word" else view.words:
            kinds.setdefault(kind, {})[describe(view)] = None
    found = [run[0] for text in texts if (run := _WITHOUT_BLANKS.search(text))]
    if not kinds or not found:
        return None
    example = max(found, key=len)[:_SHOWN]
    said = [f"{len(found) / len(texts):.1%} of {len(texts):,} sampled texts are of languages without blanks"]
    for kind, names in sorted(kinds.items()):
        words = [example]
        if kind == "tokenizer":
            (tokens,) = tokenizer([example])
            pieces = groupby(zip(tokens.words, tokens.ids, strict=True), key=itemgetter(0))
            words = [str(tokenizer.tokenizer.decode([token for _, token in each])).strip() for _, each in pieces]
        elif kind == "letters":
            words = split_words(example)[1::2]
        one = "one word" if len(words) == 1 else f"{len(words)} words: {' | '.join(words)}"
        said.append(f"{example} is to {', '.join(names)} {one}")
    return "; ".join(said)


_LOOKED_AT = 100_000
"""Rows that are looked at: enough for an estimate, and a tenth of a second."""


def sibling_rows(rows: Sequence[Row], batch_size: int, labeled: bool = False) -> tuple[int, float, int]:
    """Returns how many rows' anchors have another positive in other rows, and the share that meets one in a step.

    Batches are taken for random draws: of n rows, b in a step, one with g siblings meets some with a probability
    of nearly ``1 - ((n - b) / (n - 1))^g``.

    Args:
        rows: Those with an anchor and a positive count; the first 100,000 are looked at.
        batch_size: Examples of a step.
        labeled: Whether the target 0 says that a row's texts don't belong together; such rows are no siblings.

    Returns:
        Rows with siblings, the expected share of rows that meet one, and the rows that were looked at.

    Example:
        >>> rows = [{"anchor": "a", "positive": text} for text in "bcd"] + [{"anchor": "e", "positive": "f"}]
        >>> sibling_rows(rows, batch_size=4)
        (3, 0.75, 4)
    """
    pairs = [
        (row["anchor"], row["positive"])
        for row in islice(rows, _LOOKED_AT)
        if "anchor" in row and "positive" in row and not (labeled and row.get("target") == 0)
    ]
    of_anchor = Counter(anchor for anchor, _ in pairs)
    copies = Counter(pairs)
    counts = [of_anchor[pair[0]] - copies[pair] for pair in pairs]
    apart = max(len(rows) - batch_size, 0) / max(len(rows) - 1, 1)
    met = sum(1 - apart**count for count in counts)
    return sum(map(bool, counts)), met / max(len(pairs), 1), len(pairs)
