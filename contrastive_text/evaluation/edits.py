"""What views really do to real texts: the changed places marked, and a measured edit rate for each view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from contrastive_text.data import Collator, KeyedRow
from contrastive_text.encoders import Encoder
from contrastive_text.random import RowRandom
from contrastive_text.types import Alter, Batch
from contrastive_text.views import EmbeddingView, TextView, TokenView, View, ViewPlan

_BLOCK = 16
"""Rows that are encoded at a time: memory stays flat however many are measured."""


class Edit(NamedTuple):
    """How much one view changes.

    Args:
        place: Where it stands, such as ``views.anchor[0]``.
        view: The view.
        rate: Share of the tokens, positions or entries of the embedding output that it changes; None where
            only training can tell.
        unit: What the rate counts.
    """

    place: str
    view: View
    rate: float | None
    unit: str


def marked(before: Sequence[int], after: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Gives the altered row as text, with ``[-gone-]`` and ``{+new+}`` where it differs (as wdiff does).

    Args:
        before: Token ids without the views.
        after: Token ids with them.
        tokenizer: What made them.
    """

    def said(ids: Sequence[int], left: str = "", right: str = "") -> str:
        return f"{left}{tokenizer.decode(list(ids))}{right}" if ids else ""

    parts = []
    for same, old, new in _differences(before, after):
        parts += [said(new)] if same else [said(old, "[-", "-]"), said(new, "{+", "+}")]
    return " ".join(part for part in parts if part)


def edit_rates(collator: Collator, encoder: Encoder, rows: Sequence[KeyedRow]) -> list[Edit]:
    """Measures every view of a plan on real rows, each against what enters it in its chain.

    Args:
        collator: The training data's.
        encoder: Whose embedding output the embedding views alter.
        rows: What to measure on; some hundred give two digits.
    """
    edits = []
    for name, chain in collator.plan.chains.items():
        batches = _prefixes(collator, name, rows)
        altered = collator.plan.rows(batches[0], name)
        for number, view in enumerate(chain):
            place = f"views.{name}[{number}]"
            if isinstance(view, TextView | TokenView):
                before, after = batches[number], batches[number + 1]
                edits.append(Edit(place, view, *_token_rate(before.split(altered), after.split(altered))))
            elif isinstance(view, EmbeddingView):
                edits.append(
                    Edit(place, view, _entry_rate(encoder, batches[-1], altered, chain, number), "entries")
                )
            else:
                edits.append(Edit(place, view, None, "known in training only"))
    return edits


def unaltered(collator: Collator) -> Collator:
    """Gives the collator of the same slots without any view."""
    return _with_plan(collator, ViewPlan(dict.fromkeys(collator.plan.chains, ())))


def _with_plan(collator: Collator, plan: ViewPlan) -> Collator:
    return Collator(
        collator.tokenizer,
        collator.pairing,
        plan,
        seed=collator.seed,
        task=collator.task,
        originals=collator.originals,
    )


def _prefixes(collator: Collator, name: str, rows: Sequence[KeyedRow]) -> list[Batch]:
    """Gives the batch after each prefix of a chain's text and token views; the others stay unaltered."""
    chain = [view for view in collator.plan.chains[name] if isinstance(view, TextView | TokenView)]
    plans = [
        ViewPlan({other: chain[:length] if other == name else () for other in collator.plan.chains})
        for length in range(len(chain) + 1)
    ]
    return [_with_plan(collator, plan)(rows) for plan in plans]


def _differences(
    before: Sequence[int], after: Sequence[int]
) -> Iterator[tuple[bool, Sequence[int], Sequence[int]]]:
    for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        yield tag == "equal", before[i:j], after[k:m]


def _token_rate(old: Batch, new: Batch) -> tuple[float, str]:
    if torch.equal(old.ids, new.ids) and new.positions is not None:
        natural = torch.cat([torch.arange(length) for length in new.lengths.tolist()])
        earlier = natural if old.positions is None else old.positions
        return float((new.positions != earlier).float().mean()), "positions"
    rows = zip(*(torch.split(part.ids, part.lengths.tolist()) for part in (old, new)), strict=True)
    changed = sum(
        max(len(gone), len(come))
        for pair in rows
        for same, gone, come in _differences(*(row.tolist() for row in pair))
        if not same
    )
    return changed / max(len(old.ids), 1), "tokens"


@torch.no_grad()
def _entry_rate(encoder: Encoder, batch: Batch, rows: Tensor, chain: Sequence[View], number: int) -> float:
    """Gives the share of entries of real tokens that an embedding view changes."""
    changed = entries = 0

    def watch(part: Batch) -> Alter:
        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            nonlocal changed, entries
            for place, view in enumerate(chain[: number + 1]):
                if isinstance(view, EmbeddingView):
                    before = embeddings
                    embeddings = view(before, mask, RowRandom(part.draw_keys, view=place))
            differs = (embeddings != before)[mask]
            changed, entries = changed + int(differs.sum()), entries + differs.numel()
            return embeddings

        return alter

    training = encoder.training
    encoder.eval()  # what dropout has erased a view can't change
    for block in torch.split(rows, _BLOCK):
        part = batch.split(block)
        encoder(part, alter=watch(part))
    encoder.train(training)
    return changed / max(entries, 1)
