"""Preparation of a data set for training: rows that its pairing can use, joined texts, slots of its examples."""

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
from contrastive_text.core.random import fold_key, generator, text_id
from contrastive_text.core.types import Example, Role, Row, Slot, TextPair
from contrastive_text.data.collator import example_slots
from contrastive_text.data.files import mapped
from contrastive_text.data.files.labels import collate_scores
from contrastive_text.data.files.mapped import TokenTable, count_repeats, tokenize_documents
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import Rows, draw_order
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.tasks import DataNeeds, TextTask, option_place
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.views import ViewPlan

_COUNTED_ROWS = 100_000
"""Largest number of rows whose hard negatives are counted."""
_CHECKED_ROWS = 1_000
"""Number of rows in which a pairing must give two different texts at least once, if an objective needs them."""


class TrainingData(NamedTuple):
    """Task that is ready for training: its rows, pairing and slots.

    Args:
        name: Name of the task.
        task: Options of the task.
        table: Table that was read.
        pairing: Part that turns a row into examples.
        rows: Rows for training: all rows that the pairing can use, or a sample of them.
        texts: The same rows, untokenized.
        selection_note: Description of how the rows were selected; empty if all rows are used.
        slots: Slots of its examples.
        examples_per_row: Number of examples that a row gives.
    """

    name: str
    task: TextTask
    table: Table
    pairing: Pairing
    rows: Rows
    texts: Sequence[Row]
    selection_note: str
    slots: tuple[Slot, ...]
    examples_per_row: int

    def strings(self, numbers: Iterable[int], prompts: Prompts) -> Iterator[tuple[str, str | TextPair]]:
        """Yields (prompt, text) of the examples of some rows; two texts in one sequence are one text.

        A text that occurs twice in an example is yielded once, unless its prompts differ. A pairing of token
        spans has no texts in its examples: its documents are yielded, without a prompt.
        """
        if self.pairing.token_roles:
            yield from (("", str(self.texts[number]["text"])) for number in numbers)
            return
        rng = generator(0)
        for example in (example for number in numbers for example in self.pairing(self.texts[number], rng)):
            roles: tuple[tuple[Role, Sequence[object]], ...] = (
                ("anchor", [example.anchor]),
                ("positive", example.positives),
                ("negative", example.negatives),
            )
            pairs = [(prompts.of_role(role, self.name), text) for role, texts in roles for text in texts]
            yield from dict.fromkeys((prompt, text) for prompt, text in pairs if isinstance(text, str | TextPair))

    @property
    def hard_negatives(self) -> tuple[int, int, float] | None:
        """Fewest, most and mean number of hard negatives in the first 100,000 rows; None if they are equal."""
        rng, slots = generator(0), sum(slot.role == "negative" for slot in self.slots)
        if not slots or self.pairing.token_roles:
            return None
        examples = chain.from_iterable(self.pairing(row, rng) for row in islice(self.texts, _COUNTED_ROWS))
        counts = [sum(text != "" for text in example.negatives) for example in examples]
        return None if len({*counts}) == 1 else (min(counts), max(counts), sum(counts) / len(counts))

    def facts(self) -> dict[str, str]:
        """Returns facts about the data set for the run's summary."""
        first = self.pairing.reads[0]
        duplicates = count_repeats(self.texts, first)
        facts = {
            "training data": self.table.description,
            "pairing": describe(self.pairing),
            "duplicates": f"{duplicates:,} of {len(self.texts):,} rows repeat the {first} of another",
        }
        return facts | ({"rows": self.selection_note} if self.selection_note else {})


def prepare_training_data(
    table: Table,
    task: TextTask,
    name: str,
    needs: DataNeeds,
    seed: int,
    cache_dir: str | None,
) -> TrainingData:
    """Selects the rows of a task for training, and determines the slots of their examples.

    Args:
        table: Table that was read.
        task: Options of the task, with its pairing.
        name: Name of the task.
        needs: Needs of the module.
        seed: Seed of the first row's examples, and of the sample of rows.
        cache_dir: Folder of cached tokens, for pairings that read tokens and for texts to join.

    Raises:
        ValueError: Rows that the pairing can't use or that can't be joined, fewer rows than the limit, or roles
            or teacher scores that the pairing doesn't give.
    """
    pairing = task.pairing or SameText()
    folder = None if cache_dir is None else Path(cache_dir)
    if task.join is not None:
        assert needs.tokenizer is not None
        where = f"{option_place(name)}.join"
        reserved = 0 if pairing.token_roles else needs.prompt_tokens(name)
        table = join_texts(table, task.join, needs.tokenizer, folder, where, not pairing.token_roles, reserved)
    texts, note = pairing.arrange(table.documents)
    rows: Rows = texts
    numbers: Sequence[int] = range(len(texts))
    if pairing.token_roles:
        assert needs.tokenizer is not None
        if needs.tokenizer.room is not None:
            pairing.check_length_limit(needs.tokenizer.room - needs.prompt_tokens(name))
        cached = tokenize_documents([str(row["text"]) for row in texts], needs.tokenizer, cache_dir=folder)
        targets = [target for row in texts if isinstance(target := row.get("target"), float)]
        rows = tokens = TokenTable(cached.folder, cached.source, targets or None)
        numbers, note = select_documents(tokens, pairing)
    chosen = [note] if note else []
    if pairing.joins_texts and needs.tokenizer is not None:
        chosen.append(f"two texts in a sequence: {needs.tokenizer.pair_template}")
    if task.limit is not None:
        numbers, note = sample_rows_by_seed(numbers, task.limit, seed, name)
        chosen.append(note)
    if len(numbers) < len(texts):
        subset: Any = partial(Subset, indices=numbers)  # Any: torch declares data sets, and reads any sequence
        rows = subset(rows)
        texts = subset(texts) if len(numbers) > mapped.MAPPED_ROWS else [texts[number] for number in numbers]
    examples = pairing(rows[0], generator(seed))
    task_needs, further_numbers = needs.tasks[name], range(1, min(len(rows), _CHECKED_ROWS))
    if task_needs.scores and collate_scores(examples, type(pairing).__name__) is None:
        raise InvalidValueError(
            f"pairing {type(pairing).__name__}: expected teacher scores for an objective that reads them, got "
            "examples without scores; set pairing: Given, or name guides of the objective"
        )
    further = (example for number in further_numbers for example in pairing(rows[number], generator(seed)))
    slots = check_roles(pairing, examples, task_needs.plan, task_needs.roles, task_needs.needs_two_texts, further)
    return TrainingData(
        name, task, table, pairing, rows, texts, "; ".join(chosen), slots, examples_per_row=len(examples)
    )


def join_texts(
    table: Table,
    limit: int,
    tokenizer: TextTokenizer,
    cache_dir: Path | None,
    where: str,
    cut: bool = True,
    taken: int = 0,
) -> Table:
    """Joins consecutive texts of a document with blanks, up to a number of tokens, and describes the result.

    As in RoBERTa's pretraining within documents (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section
    4.2, DOC-SENTENCES). No row crosses the end of a file, or a blank line in it. A row takes as many texts as
    fit, in their order. A longer text is a row alone, and is truncated later. The counted tokens are cached as in
    ``tokenize_documents``: 73,000 sentences take 7 s on one core, and 0.5 s from the cache.

    Args:
        table: Single texts without labels.
        limit: Largest number of tokens of a row, including special tokens.
        tokenizer: Tokenizer of the encoder, which splits texts at blanks first.
        cache_dir: Folder of the cache; None for the user's cache folder.
        where: Name of the option, for errors.
        taken: Number of tokens of a row that a prompt takes.
        cut: Whether rows are truncated at the encoder's limit. Documents from which spans are taken are not.

    Raises:
        ValueError: Other columns than ``text``, no room for text after the special tokens, or rows that would be
            truncated.
    """
    if set(table[0]) != {"text"}:
        raise InvalidValueError(
            f"{where}: expected single texts without labels, got rows of {', '.join(table[0])}; remove join, or "
            f"use a pairing and objectives that read text alone"
        )
    room = limit - tokenizer.specials - taken
    max_length = tokenizer.max_length if cut else None
    if room < 1 or (max_length is not None and limit > max_length):
        raise InvalidValueError(
            f"{where}: expected more than the {tokenizer.specials} special tokens"
            f"{'' if max_length is None else f' and at most the max_length of the encoder, {max_length}'}, got "
            f"{limit}; longer rows are cut"
        )
    texts = [str(row["text"]) for row in table]
    tokens = tokenize_documents([f" {text.strip()}" for text in texts], tokenizer, cache_dir)
    token_counts = tokens.lengths.tolist()
    documents = [
        list(_document_rows(texts[end - size : end], token_counts[end - size : end], room, tokenizer))
        for end, size in zip(accumulate(table.sizes), table.sizes, strict=True)
    ]
    rows = tuple({"text": text} for document in documents for text in document)
    long_count = sum(length > room for length in token_counts)
    note = f"joined: {len(rows):,} rows of up to {limit} tokens, from {len(texts):,} texts in {len(documents):,} "
    note += f"documents, {long_count:,} of them longer and alone"
    sizes, description = tuple(map(len, documents)), f"{table.description}\n{note}"
    return replace(table, rows=rows, sizes=sizes, files=(), description=description, digest="")


def _document_rows(
    texts: Sequence[str], token_counts: Sequence[int], room: int, tokenizer: TextTokenizer
) -> Iterator[str]:
    """Yields the rows of one document, from the number of tokens of each text after a blank."""
    row: list[str] = []
    length = 0
    for text, token_count in zip(texts, token_counts, strict=True):
        if row and length + token_count <= room:
            row.append(text.strip())
            length += token_count
            continue
        if row:
            yield " ".join(row)
        row = [text.rstrip()]
        # A byte-level tokenizer may give the text another number of tokens without the blank.
        length = len(tokenizer.ids(row)[0])
    yield " ".join(row)


_LIMIT = -1
"""Number in place of the epoch in the key of rows that are drawn once for the whole run."""


def select_documents(table: TokenTable, pairing: Pairing) -> tuple[array[int], str]:
    """Returns the numbers of the documents that are long enough for a pairing, and a note for the run's summary.

    Raises:
        ValueError: All documents are too short.
    """
    lengths, inverse = np.unique(table.lengths, return_inverse=True)
    is_usable = np.array([pairing.accepts_length(length) for length in lengths.tolist()], dtype=bool)
    indices = np.flatnonzero(is_usable[inverse])
    if not len(indices):
        raise InvalidValueError(
            f"data.train: expected a document long enough for {describe(pairing)}, got {len(table):,} of at most "
            f"{int(table.lengths.max(initial=0)):,} tokens; lower max_length or anchors, or set too_short: shrink"
        )
    note = f"{len(indices):,} of {len(table):,} documents are long enough for the pairing"
    if len(indices) < len(table):
        note += f", {len(table) - len(indices):,} left out"
    is_shrunk = np.array([pairing.shortens_spans(length) for length in lengths.tolist()], dtype=bool)
    if shrunk_count := int((is_usable & is_shrunk)[inverse].sum()):
        note += f", {shrunk_count:,} of them only with shorter spans"
    return array("q", indices.astype(np.int64).tobytes()), f"{note}; {table.source}"


def sample_rows_by_seed(numbers: Sequence[int], limit: int | str, seed: int, task: str) -> tuple[array[int], str]:
    """Draws a sample of rows that doesn't depend on batches or processes, and describes it.

    With the same seed a smaller sample is a subset of a larger one.

    Args:
        numbers: Numbers of the rows to draw from.
        limit: Number of rows, or their share of all rows, such as ``10%``.
        seed: Seed of the run.
        task: Name of the data set, which is part of the key.

    Returns:
        Numbers of the rows in the sample, in the order of the file, and a line for the run's summary.

    Raises:
        ValueError: The limit is larger than the number of rows.

    Example:
        >>> [sample_rows_by_seed(range(100), limit, seed=1, task="train")[0].tolist() for limit in (2, "4%")]
        [[30, 73], [30, 54, 73, 80]]
    """
    if isinstance(limit, str):
        limit = max(1, round(float(limit.removesuffix("%")) / 100 * len(numbers)))
    if limit > len(numbers):
        raise InvalidValueError(
            f"{option_place(task)}.limit: expected at most the {len(numbers):,} rows of the data, got "
            f"{limit:,}; give more text, or remove limit to use all"
        )
    order = draw_order(len(numbers), fold_key(seed, text_id(task), _LIMIT))
    drawn_numbers = array("q", (numbers[i] for i in np.sort(order[:limit])))
    return drawn_numbers, f"{limit:,} of {len(numbers):,} rows, drawn by seed {seed}"


def check_roles(
    pairing: Pairing,
    examples: Sequence[Example],
    plan: ViewPlan,
    reads: Sequence[Role],
    needs_two_texts: str | None = None,
    further: Iterable[Example] = (),
) -> tuple[Slot, ...]:
    """Returns the slots of a pairing's examples. Checks that views and objectives use only roles that it gives.

    Args:
        pairing: The pairing.
        examples: Examples of the first row.
        plan: The views.
        reads: Roles that the objectives read. The role ``original`` is given by any pairing.
        needs_two_texts: Name of a part that needs an anchor and a positive that differ; None if there is none.
        further: Examples of further rows, read until an example has two texts.

    Raises:
        ValueError: No example, a role that isn't given, ``FixedDropout`` on texts other than the anchor, or
            equal anchors and positives if ``needs_two_texts`` needs two.
    """
    name = type(pairing).__name__
    if not examples:
        raise InvalidValueError(
            f"pairing {name}: expected at least one example from every row, got no example from the first; "
            "remove rows that can't give one"
        )
    slots = tuple(slot for slot, _ in example_slots(examples[0]))
    given_roles = dict.fromkeys(["original", *(slot.role for slot in slots)])
    chain_names = {plan.chain_name(slot) for slot in slots}
    for chain_name in plan.chains:
        if chain_name not in chain_names and not chain_name.startswith("original"):
            raise InvalidValueError(
                f"views.{chain_name}: expected a slot that the pairing {name} gives "
                f"({', '.join(sorted(given_roles))}), got {chain_name}; give the data such texts or drop the "
                "views"
            )
    if pairing.joins_texts and (token_views := [*plan.text_chains, *plan.token_chains]):
        raise InvalidValueError(
            f"views.{token_views[0]}: expected no views of words or tokens on two texts in one sequence, got "
            f"views with pairing {name}; remove them (views of embeddings may stay), or set pairing: Given"
        )
    for example in examples:
        for slot, text in example_slots(example):
            if text != example.anchor and plan.chain_name(slot) in plan.fixed_dropout:
                raise InvalidValueError(
                    f"FixedDropout: expected a pairing that repeats the anchor, got {name}; take SameText, "
                    "because each mask belongs to the position of a token"
                )
    if needs_two_texts and all(
        set(example.positives) == {example.anchor} for example in chain(examples, further)
    ):
        raise InvalidValueError(
            f"pairing {name}: expected two texts for {needs_two_texts}, got one text twice; set pairing: Given"
        )
    if missing_roles := [role for role in reads if role not in given_roles]:
        raise InvalidValueError(
            f"objectives: expected a pairing that gives {missing_roles[0]}, got {describe(pairing)}; take "
            f"another pairing, or remove the objective that compares {missing_roles[0]}"
        )
    return slots


_BLOCK = 8192


def text_blocks(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yields lists of all texts in rows, for blocks of some thousand rows, mapped or in memory.

    Example:
        >>> list(text_blocks([{"anchor": "a", "positive": "b", "subset": "news", "target": 1.0}]))
        [['a', 'b']]
    """
    iterator = iter(rows)
    while block := list(islice(iterator, _BLOCK)):
        yield [cell for row in block for name, cell in row.items() if isinstance(cell, str) and name != "subset"]
