"""What a pairing can serve: rows and roles, settled once, before sampling, so that ranks never disagree."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import Subset

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import describe
from contrastive_text.core.types import Example, Role, Slot
from contrastive_text.data.collator import example_slots
from contrastive_text.data.sampler import Rows
from contrastive_text.data.token_cache import TokenTable
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan


def served(table: TokenTable, pairing: Pairing) -> tuple[Rows, str]:
    """Leaves out the documents that a pairing can't serve, by their number of tokens, and says how many.

    Raises:
        ValueError: It can serve none of them.
    """
    lengths = table.lengths.tolist()
    kept = [number for number, length in enumerate(lengths) if pairing.serves(length)]
    if not kept:
        raise InvalidValueError(
            f"data.train: expected a document long enough for {describe(pairing)}, got {len(table):,} of at most "
            f"{int(table.lengths.max(initial=0)):,} tokens; lower max_length or anchors, or set too_short: shrink"
        )
    said = f"{len(kept):,} of {len(table):,} documents are long enough for the pairing"
    if len(kept) < len(table):
        said += f", {len(table) - len(kept):,} left out"
    if shrunk := sum(pairing.shrinks(lengths[number]) for number in kept):
        said += f", {shrunk:,} of them only with shorter spans"
    return Subset(table, kept), f"{said}; {table.source}"  # type: ignore[arg-type]  # indexed alone


def check_roles(
    pairing: Pairing,
    examples: Sequence[Example],
    plan: ViewPlan,
    reads: Sequence[Role],
    predicts_pairs: bool = False,
) -> tuple[Slot, ...]:
    """Returns the slots of a pairing's examples, and refuses views and objectives of roles that it lacks.

    Args:
        pairing: The pairing.
        examples: What it gave of the first row.
        plan: The views.
        reads: The roles that the objectives read.
        predicts_pairs: Whether an objective predicts something of anchor and positive.

    Raises:
        ValueError: No example, a role that isn't given, ``FixedDropout`` on texts other than the anchor, or
            pairs to predict that are one text twice.
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
    repeating = [
        (text, each.anchor, plan.chain_name(slot)) for each in examples for slot, text in example_slots(each)
    ]
    if any(text != anchor for text, anchor, chain in repeating if chain in plan.fixed_dropout):
        raise InvalidValueError(
            f"FixedDropout: expected a pairing that repeats the anchor, got {name}; masks are laid over places, "
            "so take SameText"
        )
    if predicts_pairs and all(set(each.positives) == {each.anchor} for each in examples):
        raise InvalidValueError(
            f"pairing {name}: expected two texts for an objective that predicts their label or score, got one "
            "text twice; set pairing: Given"
        )
    for role in reads:
        if role not in given:
            raise InvalidValueError(
                f"objectives: expected a pairing that gives {role}, got {describe(pairing)}; take another "
                f"pairing, or leave out the objective that compares {role}"
            )
    return slots
