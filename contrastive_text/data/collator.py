"""From rows to one ragged batch: choose, alter, tokenise; runs in the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.random import fold, generator, text_id
from contrastive_text.types import NO_LABEL, Batch, Example, Role, Row, Slot, StepBatch, Text, Tokens
from contrastive_text.views import Pairing, ViewPlan

_PAIRING = -1
"""Takes the place of the example's number in the key of a pairing's draws."""


class KeyedRow(NamedTuple):
    """A row with what its random draws depend on, its task, and the objectives that it is for (None: all)."""

    epoch: int
    number: int
    row: Row
    task: str = "train"
    objectives: tuple[str, ...] | None = None


class Piece(NamedTuple):
    """One text on its way into a batch."""

    text: Text
    slot: Slot
    key: int


def example_slots(example: Example, originals: int = 0) -> list[tuple[Slot, Text]]:
    """Gives the texts of an example with their slots, in row order.

    Args:
        example: What a pairing returned.
        originals: Number of unaltered copies of the anchor.
    """
    roles: tuple[tuple[Role, tuple[Text, ...]], ...] = (
        ("anchor", (example.anchor,)),
        ("positive", example.positives),
        ("negative", example.negatives),
    )
    slots = [
        (Slot(role, i * example.views_per_text + view), text)
        for role, texts in roles
        for i, text in enumerate(texts)
        for view in range(example.views_per_text)
    ]
    return slots + [(Slot("original", i), example.anchor) for i in range(originals)]


class Collator:
    """Makes a batch from keyed rows; the same rows with the same keys give the same batch anywhere.

    Args:
        tokenizer: Owner of special tokens and lengths.
        pairing: Which texts of a row belong together.
        plan: Which views run on which role.
        seed: Seed of every draw.
        task: Name of the data set, part of every draw's key.
        originals: Copies of the anchor in the role ``original``, where that has a chain.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        pairing: Pairing,
        plan: ViewPlan,
        seed: int,
        task: str = "train",
        originals: int = 1,
    ) -> None:
        self.tokenizer = tokenizer
        self.pairing = pairing
        self.plan = plan
        self.seed = seed
        self.task = task
        self.originals = originals if "original" in plan.roles else 0

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Gives the batch of the rows.

        Raises:
            ValueError: Rows that give different numbers of examples, positives or negatives, or none.
        """
        rows = [self._examples(item) for item in items]
        examples = [example for row in rows for example in row]
        slots = {tuple(piece.slot for piece in pieces) for pieces, _ in examples}
        if len(slots) != 1 or len({len(row) for row in rows}) != 1:
            counts = sorted({(len(row), len(pieces)) for row in rows for pieces, _ in row})
            got = ", ".join(f"{number} of {texts} texts" for number, texts in counts) or "none at all"
            raise ValueError(
                f"pairing {type(self.pairing).__name__}: expected every row to give as many examples with "
                f"the same number of positives and negatives, got {got}; leave out rows that can't give them"
            )
        pieces = [piece for slot in zip(*(pieces for pieces, _ in examples), strict=True) for piece in slot]
        return assemble(pieces, self.tokenizer, self.plan, targets=[target for _, target in examples])

    def _examples(self, item: KeyedRow) -> list[tuple[list[Piece], float | None]]:
        row_key = fold(self.seed, text_id(self.task), item.epoch, item.number)
        examples = self.pairing(item.row, generator(fold(row_key, _PAIRING)))
        slots = [example_slots(example, self.originals) for example in examples]
        return [
            (
                [Piece(text, slot, fold(row_key, number, i)) for i, (slot, text) in enumerate(each)],
                _target(item.row) if example.target is None else example.target,
            )
            for number, (each, example) in enumerate(zip(slots, examples, strict=True))
        ]


def _target(row: Row) -> float | None:
    """Gives a row's own label or score, which its examples have unless the pairing gives them another."""
    target = row.get("target")
    return float(target) if isinstance(target, int | float) else None


class StepCollator:
    """Makes what one step is trained on from rows of several tasks.

    Args:
        collators: Task -> its collator.
    """

    def __init__(self, collators: Mapping[str, Collator]) -> None:
        self.collators = dict(collators)

    def __call__(self, items: Sequence[KeyedRow]) -> StepBatch:
        """Gives a batch for each task among the rows; see ``Collator``."""
        tasks = dict.fromkeys(item.task for item in items)
        return StepBatch(
            {task: self.collators[task]([item for item in items if item.task == task]) for task in tasks},
            objectives=items[0].objectives,
        )


def assemble(
    pieces: Sequence[Piece],
    tokenizer: TextTokenizer,
    plan: ViewPlan,
    targets: Sequence[float | None] = (),
) -> Batch:
    """Alters, tokenises and concatenates texts that stand slot by slot."""
    slots = tuple(dict.fromkeys(piece.slot for piece in pieces))
    chains = {slot: plan.chain_name(slot) for slot in slots}
    names = [chains[piece.slot] for piece in pieces]
    rngs = [None if name is None else generator(piece.key) for name, piece in zip(names, pieces, strict=True)]
    strings = {
        i: tokenizer.text(piece.text)  # a span that text views alter becomes text again
        for i, piece in enumerate(pieces)
        if isinstance(piece.text, str) or names[i] in plan.text_chains
    }
    for altering in plan.text_chains:
        own = {i: rng for i, rng in enumerate(rngs) if rng and names[i] == altering}
        altered = plan.alter_texts(altering, [strings[i] for i in own], list(own.values()))
        strings |= dict(zip(own, altered, strict=True))
    tokenised = dict(zip(strings, tokenizer(list(strings.values())), strict=True))
    rows, truncated = [], 0
    for i, (piece, name, rng) in enumerate(zip(pieces, names, rngs, strict=True)):
        whole = piece.text if isinstance(piece.text, Tokens) and i not in tokenised else tokenised[i]
        tokens = tokenizer.cut(whole)
        truncated += len(tokens) < len(whole)
        if name is None or rng is None:
            rows.append(tokenizer.with_specials(tokens))
            continue
        row = tokenizer.with_specials(tokenizer.cut(plan.alter_tokens(name, tokens, rng)))
        rows.append(plan.alter_tokens(name, row, rng, after_specials=True))
    return Batch(
        ids=_flat([row.ids for row in rows]),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.long),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(len(rows) // len(slots)),
        draw_keys=torch.tensor([piece.key for piece in pieces], dtype=torch.long),
        text_ids=torch.tensor([_id_of(piece.text) for piece in pieces], dtype=torch.long),
        seed=fold(*(piece.key for piece in pieces[: len(rows) // len(slots)])),
        positions=_flat([row.positions or tuple(range(len(row))) for row in rows])
        if any(row.positions is not None for row in rows)
        else None,
        labels=_flat([row.labels or (NO_LABEL,) * len(row) for row in rows])
        if any(row.labels is not None for row in rows)
        else None,
        target=torch.tensor(targets) if targets and None not in targets else None,
        truncated=truncated,
    )


def _flat(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.long)


def _id_of(text: Text) -> int:
    return text_id(text) if isinstance(text, str) else text_id(np.array(text.ids).tobytes())


def collate_texts(tokenizer: TextTokenizer, texts: Sequence[str]) -> Batch:
    """Gives plain texts as a batch of anchors, unaltered: the way into the encoder outside training.

    Raises:
        ValueError: A text without a token, for a tokenizer that adds no special tokens.
    """
    batch = assemble([Piece(text, Slot("anchor", 0), 0) for text in texts], tokenizer=tokenizer, plan=ViewPlan())
    if int(batch.lengths.min()) == 0:
        where = int(batch.lengths.argmin())
        raise ValueError(
            f"texts[{where}]: expected at least one token, got {texts[where]!r}; this tokenizer adds no special "
            "tokens, so leave empty texts out"
        )
    return batch
