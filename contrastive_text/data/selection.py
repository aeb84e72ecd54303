"""What a pairing can serve: rows and roles, settled once, before sampling, so that ranks never disagree."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, text_id
from contrastive_text.core.specs import describe
from contrastive_text.core.types import Example, Role, Slot
from contrastive_text.data.collator import example_slots
from contrastive_text.data.orders import PERMUTATION_ROWS, keyed_order
from contrastive_text.data.tasks import option_place
from contrastive_text.data.token_cache import TokenTable
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan

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


def drawn(
    numbers: Sequence[int], limit: int | str, seed: int, task: str, permutation_rows: int = PERMUTATION_ROWS
) -> tuple[array[int], str]:
    """Draws some of the rows, whatever the batches and the processes, and says how many.

    With the same seed a smaller limit draws some of those that a larger one draws.

    Args:
        numbers: Those of the rows to draw from.
        limit: How many, or what share of them: ``10%``.
        seed: The run's.
        task: Name of the data set, which is part of the key.
        permutation_rows: Most rows for a permutation; of more a ``Bijection`` draws, in the memory of the limit.

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
    order = keyed_order(len(numbers), fold(seed, text_id(task), _LIMIT), permutation_rows)
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
    given = {slot.role for slot in slots}
    altered = {plan.chain_name(slot) for slot in slots}
    for chain in plan.chains:
        if chain not in altered and not chain.startswith("original"):
            raise InvalidValueError(
                f"views.{chain}: expected a slot that the pairing {name} gives "
                f"({', '.join(sorted({*given, 'original'}))}), got {chain}; give the data such texts or drop "
                "the views"
            )
    if pairing.joins and (editing := [*plan.text_chains, *plan.token_chains]):
        raise InvalidValueError(
            f"views.{editing[0]}: expected no views of words or tokens on two texts in one sequence, got some "
            f"under pairing {name}; leave them out (views of embeddings may stay), or set pairing: Given"
        )
    repeating = [
        (text, each.anchor, plan.chain_name(slot)) for each in examples for slot, text in example_slots(each)
    ]
    if any(text != anchor for text, anchor, chain in repeating if chain in plan.fixed_dropout):
        raise InvalidValueError(
            f"FixedDropout: expected a pairing that repeats the anchor, got {name}; masks are laid over places, "
            "so take SameText"
        )
    if two_texts and all(map(_repeats, examples)) and all(map(_repeats, further)):
        raise InvalidValueError(
            f"pairing {name}: expected two texts for {two_texts}, got one text twice; set pairing: Given"
        )
    for role in reads:
        if role not in {*given, "original"}:
            raise InvalidValueError(
                f"objectives: expected a pairing that gives {role}, got {describe(pairing)}; take another "
                f"pairing, or leave out the objective that compares {role}"
            )
    return slots


def _repeats(example: Example) -> bool:
    """Whether anchor and positives are one text."""
    return set(example.positives) == {example.anchor}
