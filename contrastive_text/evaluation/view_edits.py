"""Effects of views and guides on real texts: changed places, edit rates, and the order of a guide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.random import RowRandom
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.core.types import Alter
from contrastive_text.data import Collator, KeyedRow
from contrastive_text.data.loader import Rows
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.losses.comparison import TooNear
from contrastive_text.objectives import FalseNegatives
from contrastive_text.objectives.between import BetweenTexts, read_vectors
from contrastive_text.objectives.distillation import Candidates
from contrastive_text.objectives.health import count_alike
from contrastive_text.views import EmbeddingView, TextView, TokenView, View, ViewPlan

_MEASURED = 200
"""Rows that the edit rates are measured on, for two digits."""

_BLOCK = 16
"""Rows that are encoded at a time: memory stays flat however many are measured."""


class Edit(NamedTuple):
    """Edit rate of a view.

    Args:
        place: Place of the view in the configuration, such as ``views.anchor[0]``.
        view: The view.
        rate: Share of the tokens, positions or entries of the embedding output that it changes; None if it is
            known in training only.
        unit: Unit of the rate: tokens, positions or entries.
    """

    place: str
    view: View
    rate: float | None
    unit: str

    @property
    def said(self) -> str:
        """The rate as text.

        Example:
            >>> Edit("views.anchor[0]", View(), 0.15, "tokens").said
            '15.0% of tokens'
            >>> Edit("views.anchor[0]", View(), 0.0, "tokens").said
            '0.0% of tokens: the network sees no difference'
        """
        if self.rate is None:
            return self.unit
        return f"{self.rate:.1%} of {self.unit}" + ("" if self.rate else ": the network sees no difference")


Kind: TypeAlias = Literal["kept", "gone", "new"]


class Piece(NamedTuple):
    """A piece of an altered text.

    Args:
        kind: ``kept``, ``gone`` (only in the original text) or ``new`` (only in the altered text).
        text: Words of the piece.
    """

    kind: Kind
    text: str


def pieces(before: Sequence[int], after: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[Piece]:
    """Returns the altered row piece by piece, what is gone where it was.

    Args:
        before: Token ids without the views.
        after: Token ids with them.
        tokenizer: What made them.
    """
    spans: list[tuple[Kind, Sequence[int]]] = []
    for same, old, new in _differences(before, after):
        spans += [("kept", new)] if same else [("gone", old), ("new", new)]
    return [Piece(kind, f"{tokenizer.decode(list(ids))}") for kind, ids in spans if ids]


class AlteredRows(NamedTuple):
    """First rows of a data set with and without its views.

    Args:
        rates: Place of a view, the view, and how much it changes, in words; then what two views of a text have in
            common.
        measured: On how many rows that was measured.
        slots: Name of each text of an example.
        examples: For each example its texts, in pieces.
        batch: The rows that are shown, as training would get them.
    """

    rates: Sequence[tuple[str, str, str]]
    measured: int
    slots: Sequence[str]
    examples: Sequence[Sequence[Sequence[Piece]]]
    batch: Batch


def altered_rows(collator: Collator, encoder: Encoder, rows: Rows, count: int) -> AlteredRows:
    """Returns the first rows of a data set as the first epoch has them, and how much each view changes.

    Args:
        collator: The training data's.
        encoder: Whose embedding output the embedding views alter.
        rows: The data set's; at most 200 are measured.
        count: Rows to show.
    """
    known = range(min(_MEASURED, len(rows)))
    keyed = [KeyedRow(epoch=0, number=i, row=rows[i], task=collator.task) for i in known]
    shown = keyed[:count]
    plain, altered = unaltered(collator)(shown), collator(shown)
    tokenizer = collator.tokenizer.tokenizer
    pairs = zip(_ids_of(plain), _ids_of(altered), strict=True)
    texts = [pieces(before, after, tokenizer) for before, after in pairs]
    examples = len(texts) // len(altered.slots)
    rates = [(edit.place, describe(edit.view), edit.said) for edit in edit_rates(collator, encoder, keyed)]
    return AlteredRows(
        rates=[*rates, *both_views(collator, keyed)],
        measured=len(keyed),
        slots=[f"{slot.role} {slot.number}" for slot in altered.slots],
        examples=[texts[example::examples] for example in range(examples)],
        batch=altered,
    )


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
                share = _entry_rate(encoder, batches[-1].split(altered), collator.plan, chain[: number + 1])
                edits.append(Edit(place, view, share, "entries"))
            else:
                edits.append(Edit(place, view, None, "known in training only"))
    return edits


def both_views(collator: Collator, rows: Sequence[KeyedRow]) -> list[tuple[str, str, str]]:
    """Returns what the views of two slots with the same texts have in common, in words.

    That is the share of the changed places of a text, of those of either view, that the other one changes too;
    and, after all slots, how many texts views made equal to another one.
    """
    plain, altered = unaltered(collator)(rows), collator(rows)
    texts = plain.text_ids.reshape(len(plain.slots), -1)
    changed = [set(_changed(*each)) for each in zip(_ids_of(plain), _ids_of(altered), strict=True)]
    by_slot = [changed[i * texts.shape[1] :][: texts.shape[1]] for i in range(len(plain.slots))]
    found = []
    for i, k in combinations(range(len(plain.slots)), 2):
        one, other = plain.slots[i], plain.slots[k]
        places = sum(map(len, by_slot[i] + by_slot[k]))
        if "original" in (one.role, other.role) or not torch.equal(texts[i], texts[k]) or not places:
            continue
        shared = 2 * sum(len(a & b) for a, b in zip(by_slot[i], by_slot[k], strict=True)) / places
        names = f"{one.role} {one.number} and {other.role} {other.number}"
        found.append((names, "both", f"{shared:.1%} of the changed places are the same"))
    if altered.text_ids.ndim == 2:
        compared = torch.tensor([slot.role != "original" for slot in plain.slots])[altered.row_slots]
        alike = int(count_alike(altered.text_ids[compared]))
        found.append(("all", "all", f"{alike} of {int(compared.sum())} texts made equal to another one"))
    return found


def unaltered(collator: Collator) -> Collator:
    """Returns the collator of the same slots without any view."""
    return _with_plan(collator, ViewPlan(dict.fromkeys(collator.plan.chains, ())))


def _with_plan(collator: Collator, plan: ViewPlan) -> Collator:
    return Collator(
        collator.tokenizer,
        collator.pairing,
        plan,
        seed=collator.seed,
        task=collator.task,
        originals=collator.originals,
        prompts=collator.prompts,
        reads=("original",) if collator.originals else (),
    )


def _prefixes(collator: Collator, name: str, rows: Sequence[KeyedRow]) -> list[Batch]:
    """Returns the batch after each prefix of a chain's text and token views; the others stay unaltered."""
    chain = [view for view in collator.plan.chains[name] if isinstance(view, TextView | TokenView)]
    plans = [
        ViewPlan({other: chain[:length] if other == name else () for other in collator.plan.chains})
        for length in range(len(chain) + 1)
    ]
    return [_with_plan(collator, plan)(rows) for plan in plans]


def _ids_of(batch: Batch) -> list[list[int]]:
    return [row.tolist() for row in torch.split(batch.ids, batch.lengths.tolist())]


def _changed(before: Sequence[int], after: Sequence[int]) -> Iterator[int]:
    """Yields the places of a row that are gone or replaced."""
    place = 0
    for same, old, _ in _differences(before, after):
        if not same:
            yield from range(place, place + len(old))
        place += len(old)


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
    changed = sum(
        max(len(gone), len(come))
        for before, after in zip(_ids_of(old), _ids_of(new), strict=True)
        for same, gone, come in _differences(before, after)
        if not same
    )
    return changed / max(len(old.ids), 1), "tokens"


@torch.no_grad()
def _entry_rate(encoder: Encoder, batch: Batch, plan: ViewPlan, chain: Sequence[View]) -> float:
    """Returns the share of entries of real tokens that the last view of a chain changes."""
    changed = entries = 0

    def watch(part: Batch) -> Alter:
        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            nonlocal changed, entries
            for place, view in enumerate(chain):
                if isinstance(view, EmbeddingView):
                    before = embeddings
                    rng = RowRandom(part.draw_keys, view=place)
                    embeddings = view(before, plan.alterable(view, mask), rng)
            differs = (embeddings != before)[mask]
            changed, entries = changed + int(differs.sum()), entries + differs.numel()
            return embeddings

        return alter

    with evaluating(encoder):  # what dropout has erased a view can't change
        for block in torch.split(torch.arange(len(batch)), _BLOCK):
            part = batch.split(block)
            encoder(part, alter=watch(part))
    return changed / max(entries, 1)


class Ordered(NamedTuple):
    """A text among those that a row is held against.

    Args:
        cosine: The guide's, with the row's anchor.
        role: ``positive``, or ``negative`` with its number.
        row: Whose text it is.
        left_out: Names of the objectives that leave it out.
    """

    cosine: float
    role: str
    row: int
    left_out: tuple[str, ...]


def guide_order(known: Encoded, false_negatives: Mapping[str, FalseNegatives]) -> list[list[Ordered]] | None:
    """Returns for each row of a batch its candidates in a guide's order, nearest first.

    Candidates are all rows' positives and hard negatives, but for texts equal to the row's own anchor; its own
    positive always is one.

    Args:
        known: A batch with the guide's vectors for its embeddings.
        false_negatives: What leaves some of them out, by the names of objectives.

    Returns:
        None where rows have no positive.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.96, 0.28]])
        >>> known = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(4))
        >>> first, second = guide_order(known, {"gist": FalseNegatives("teacher")})
        >>> [(each.role, each.row, each.left_out) for each in first]
        [('positive', 1, ('gist',)), ('positive', 0, ())]
    """
    read = read_vectors(known, ("anchor", "positive", "negative"), head=None)
    if not {"anchor", "positive"} <= {*read}:
        return None
    every = slice(None)
    (found,) = Candidates.of_batch([(known, read)], over_ranks=False)
    cosines, hidden = found.cosines(every), found.hidden(every)
    rows, (texts,) = len(cosines), BetweenTexts().triples(known, read).values()
    positives = unit_vectors(texts.positive)
    near = {
        name: TooNear(found.rows, found.columns, each.bound(unit_vectors(texts.anchor), positives)).mask()
        for name, each in false_negatives.items()
    }
    negatives = read["negative"].shape[1] if "negative" in read else 0
    names = [("positive", row) for row in range(rows)]
    names += [(f"negative {number}", row) for row in range(rows) for number in range(negatives)]
    return [
        [
            Ordered(
                cosine=float(cosines[row, place]),
                role=names[place][0],
                row=names[place][1],
                left_out=tuple(name for name, mask in near.items() if place != row and mask[row, place]),
            )
            for place in cosines[row].argsort(descending=True, stable=True).tolist()
            if place == row or not hidden[row, place]
        ]
        for row in range(rows)
    ]
