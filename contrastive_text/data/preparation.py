"""Preparation of a data set for training: the rows that its pairing can use, and the slots of their examples."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset

from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator, text_id
from contrastive_text.core.types import Example, Role, Row, Slot, TextPair
from contrastive_text.data.cache import TokenTable, tokenize_documents
from contrastive_text.data.collator import example_slots
from contrastive_text.data.files import mapped
from contrastive_text.data.files.mapped import repeats
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import Rows, keyed_order
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.tasks import DataNeeds, TextTask, option_place
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.views import ViewPlan

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
        examples = chain.from_iterable(self.pairing(row, rng) for row in islice(self.texts, _COUNTED))
        counts = [sum(text != "" for text in example.negatives) for example in examples]
        return None if len({*counts}) == 1 else (min(counts), max(counts), sum(counts) / len(counts))

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


def prepare(
    table: Table,
    task: TextTask,
    name: str,
    needs: DataNeeds,
    seed: int,
    cache_dir: str | None,
) -> TrainingData:
    """Chooses the rows of a task, and settles the slots of their examples.

    Args:
        table: What was read.
        task: Says which texts of a row belong together.
        name: The task's.
        needs: What the module needs.
        seed: Of the first row's examples, and of the rows that are drawn.
        cache_dir: Where the tokens of documents are kept, for pairings that read tokens and for texts to join.

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
        found = tokenize_documents([str(row["text"]) for row in texts], needs.tokenizer, cache_dir=folder)
        targets = [target for row in texts if isinstance(target := row.get("target"), float)]
        rows = tokens = TokenTable(found.folder, found.source, targets or None)
        numbers, said = served(tokens, pairing)
    chosen = [said] if said else []
    if pairing.joins and needs.tokenizer is not None:
        chosen.append(f"two texts in a sequence: {needs.tokenizer.pair_template}")
    if task.limit is not None:
        numbers, said = drawn(numbers, task.limit, seed, name)
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


def joined(
    table: Table,
    limit: int,
    tokenizer: TextTokenizer,
    cache_dir: Path | None,
    where: str,
    cut: bool = True,
    taken: int = 0,
) -> Table:
    """Returns a table whose rows are consecutive texts of a document, joined by blanks, and says how many.

    As RoBERTa's pretraining does within documents (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section
    4.2, DOC-SENTENCES): no row goes over the end of a file, or of what a blank line of it ends. A row takes as
    many texts as fit, in their order; a longer text stands alone, to be cut. The tokens that are counted are
    cached as those of documents are: 73,000 sentences take 7 s of one core, and 0.5 s when they are found there.

    Args:
        table: Single texts without labels.
        limit: Tokens of a row, special ones included.
        tokenizer: The encoder's, which splits texts at blanks before all else.
        cache_dir: Folder of the cache; None for the usual one.
        where: The option, for errors.
        taken: Tokens of a row that a prompt takes.
        cut: Whether rows are cut at the encoder's limit; documents that spans are taken of are not.

    Raises:
        ValueError: Other columns than ``text``, no room beside the special tokens, or rows that would be cut.
    """
    if set(table[0]) != {"text"}:
        raise InvalidValueError(
            f"{where}: expected single texts without labels, got rows of {', '.join(table[0])}; leave join "
            "out, or take a pairing and objectives that read text alone"
        )
    room = limit - tokenizer.specials - taken
    most = tokenizer.max_length if cut else None
    if room < 1 or (most is not None and limit > most):
        raise InvalidValueError(
            f"{where}: expected more than the {tokenizer.specials} special tokens"
            f"{'' if most is None else f' and at most the max_length of the encoder, {most}'}, got {limit}; "
            "longer rows are cut"
        )
    texts = [str(row["text"]) for row in table]
    inside = tokenize_documents([f" {text.strip()}" for text in texts], tokenizer, cache_dir).lengths.tolist()
    documents = [
        list(_document_rows(texts[end - size : end], inside[end - size : end], room, tokenizer))
        for end, size in zip(accumulate(table.sizes), table.sizes, strict=True)
    ]
    rows = tuple({"text": text} for document in documents for text in document)
    long = sum(length > room for length in inside)
    said = f"joined: {len(rows):,} rows of up to {limit} tokens, from {len(texts):,} texts in {len(documents):,} "
    said += f"documents, {long:,} of them longer and alone"
    sizes, understood = tuple(map(len, documents)), f"{table.understood}\n{said}"
    return replace(table, rows=rows, sizes=sizes, files=(), understood=understood, digest="")


def _document_rows(
    texts: Sequence[str], inside: Sequence[int], room: int, tokenizer: TextTokenizer
) -> Iterator[str]:
    """Yields the rows of one document, from the tokens that each text has after a blank."""
    row: list[str] = []
    taken = 0
    for text, length in zip(texts, inside, strict=True):
        if row and taken + length <= room:
            row.append(text.strip())
            taken += length
            continue
        if row:
            yield " ".join(row)
        row = [text.rstrip()]
        # Without the blank a byte-level tokenizer may need another number of tokens.
        taken = len(tokenizer.ids(row)[0])
    yield " ".join(row)


_LIMIT = -1
"""Takes the place of the epoch in the key of the rows that are drawn for a whole run."""


def served(table: TokenTable, pairing: Pairing) -> tuple[array[int], str]:
    """Returns the numbers of the documents that a pairing can serve, by their tokens, and says how many.

    Raises:
        ValueError: It can serve none of them.
    """
    lengths, which = np.unique(table.lengths, return_inverse=True)
    serves = np.array([pairing.serves(length) for length in lengths.tolist()], dtype=bool)
    kept = np.flatnonzero(serves[which])
    if not len(kept):
        raise InvalidValueError(
            f"data.train: expected a document long enough for {describe(pairing)}, got {len(table):,} of at most "
            f"{int(table.lengths.max(initial=0)):,} tokens; lower max_length or anchors, or set too_short: shrink"
        )
    said = f"{len(kept):,} of {len(table):,} documents are long enough for the pairing"
    if len(kept) < len(table):
        said += f", {len(table) - len(kept):,} left out"
    shrinks = np.array([pairing.shrinks(length) for length in lengths.tolist()], dtype=bool)
    if shrunk := int((serves & shrinks)[which].sum()):
        said += f", {shrunk:,} of them only with shorter spans"
    return array("q", kept.astype(np.int64).tobytes()), f"{said}; {table.source}"


def drawn(numbers: Sequence[int], limit: int | str, seed: int, task: str) -> tuple[array[int], str]:
    """Draws some of the rows, whatever the batches and the processes, and says how many.

    With the same seed a smaller limit draws some of those that a larger one draws.

    Args:
        numbers: Those of the rows to draw from.
        limit: How many, or what share of them: ``10%``.
        seed: The run's.
        task: Name of the data set, which is part of the key.

    Returns:
        The numbers of the rows that were drawn, in the order of the file, and a line for the run's summary.

    Raises:
        ValueError: Fewer rows than that.

    Example:
        >>> [drawn(range(100), limit, seed=1, task="train")[0].tolist() for limit in (2, "4%")]
        [[30, 73], [30, 54, 73, 80]]
    """
    if isinstance(limit, str):
        limit = max(1, round(float(limit.removesuffix("%")) / 100 * len(numbers)))
    if limit > len(numbers):
        raise InvalidValueError(
            f"{option_place(task)}.limit: expected at most the {len(numbers):,} rows that there are, got "
            f"{limit:,}; give more text, or leave it out for all"
        )
    order = keyed_order(len(numbers), fold(seed, text_id(task), _LIMIT))
    chosen = array("q", (numbers[i] for i in np.sort(order[:limit])))
    return chosen, f"{limit:,} of {len(numbers):,} rows, drawn by seed {seed}"


def check_roles(
    pairing: Pairing,
    examples: Sequence[Example],
    plan: ViewPlan,
    reads: Sequence[Role],
    two_texts: str | None = None,
    further: Iterable[Example] = (),
) -> tuple[Slot, ...]:
    """Returns the slots of a pairing's examples, and refuses views and objectives of roles that it lacks.

    Args:
        pairing: The pairing.
        examples: What it gave of the first row.
        plan: The views.
        reads: The roles that the objectives read; that of the original, any pairing gives.
        two_texts: What makes no sense where anchor and positive are one text twice; None if nothing.
        further: Examples of other rows, read until one has two texts.

    Raises:
        ValueError: No example, a role that isn't given, ``FixedDropout`` on texts other than the anchor, or
            one text twice where two are needed.
    """
    name = type(pairing).__name__
    if not examples:
        raise InvalidValueError(
            f"pairing {name}: expected an example or more of every row, got none of the first; leave out rows "
            "that can't give one"
        )
    slots = tuple(slot for slot, _ in example_slots(examples[0]))
    given = dict.fromkeys(["original", *(slot.role for slot in slots)])
    altered = {plan.chain_name(slot) for slot in slots}
    for place in plan.chains:
        if place not in altered and not place.startswith("original"):
            raise InvalidValueError(
                f"views.{place}: expected a slot that the pairing {name} gives ({', '.join(sorted(given))}), got "
                f"{place}; give the data such texts or drop the views"
            )
    if pairing.joins and (editing := [*plan.text_chains, *plan.token_chains]):
        raise InvalidValueError(
            f"views.{editing[0]}: expected no views of words or tokens on two texts in one sequence, got some "
            f"under pairing {name}; leave them out (views of embeddings may stay), or set pairing: Given"
        )
    for each in examples:
        for slot, text in example_slots(each):
            if text != each.anchor and plan.chain_name(slot) in plan.fixed_dropout:
                raise InvalidValueError(
                    f"FixedDropout: expected a pairing that repeats the anchor, got {name}; the masks belong to "
                    "places of tokens, so take SameText"
                )
    if two_texts and all(set(each.positives) == {each.anchor} for each in chain(examples, further)):
        raise InvalidValueError(
            f"pairing {name}: expected two texts for {two_texts}, got one text twice; set pairing: Given"
        )
    if lacking := [role for role in reads if role not in given]:
        raise InvalidValueError(
            f"objectives: expected a pairing that gives {lacking[0]}, got {describe(pairing)}; take another "
            f"pairing, or leave out the objective that compares {lacking[0]}"
        )
    return slots


_BLOCK = 8192


def text_blocks(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yields all texts of rows, those of some thousand rows at a time, mapped or not.

    Example:
        >>> list(text_blocks([{"anchor": "a", "positive": "b", "subset": "news", "target": 1.0}]))
        [['a', 'b']]
    """
    left = iter(rows)
    while block := list(islice(left, _BLOCK)):
        yield [cell for row in block for name, cell in row.items() if isinstance(cell, str) and name != "subset"]
