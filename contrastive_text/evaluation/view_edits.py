"""Effects of views and guides on real texts: changed words, edit rates, and the order of a guide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.random import RowRandom
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.data import Collator, KeyedRow
from contrastive_text.data.loader import Rows
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.losses.rules import GuideMask
from contrastive_text.objectives import FalseNegatives
from contrastive_text.objectives.columns import BetweenTexts, read_vectors
from contrastive_text.objectives.distillation import Candidates
from contrastive_text.objectives.terms import count_view_duplicates
from contrastive_text.views import EmbeddingView, TextView, TokenView, View, ViewPlan

_MEASURED = 200
"""Number of rows on which the edit rate of a view is measured; enough for two digits."""

_BLOCK = 16
"""Number of rows that are encoded at a time, so that memory doesn't grow with ``_MEASURED``."""


class Edit(NamedTuple):
    """Edit rate of a view: the share of a text that the view changes.

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
    def text(self) -> str:
        """Edit rate of the view as text.

        Example:
            >>> Edit("views.anchor[0]", View(), 0.15, "tokens").text
            '15.0% of tokens'
            >>> Edit("views.anchor[0]", View(), 0.0, "tokens").text
            '0.0% of tokens: the network sees no difference'
        """
        if self.rate is None:
            return self.unit
        return f"{self.rate:.1%} of {self.unit}" + ("" if self.rate else ": the network sees no difference")


Kind: TypeAlias = Literal["kept", "gone", "new"]
"""Kind of a piece of an altered text: kept, removed or new; see ``Piece``."""


class Piece(NamedTuple):
    """Piece of a text that a view has altered, with its kind.

    Args:
        kind: ``kept``, ``gone`` (only in the original text) or ``new`` (only in the altered text).
        text: Words of the piece.
    """

    kind: Kind
    text: str


def pieces(before: Sequence[int], after: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[Piece]:
    """Splits an altered row into kept, removed and new pieces, in the order of the text.

    Args:
        before: Token ids of the row without views.
        after: Token ids of the row with views.
        tokenizer: Tokenizer of the ids.
    """
    spans: list[tuple[Kind, Sequence[int]]] = []
    for is_equal, old, new in _differences(before, after):
        spans += [("kept", new)] if is_equal else [("gone", old), ("new", new)]
    return [Piece(kind, f"{tokenizer.decode(list(ids))}") for kind, ids in spans if ids]


class AlteredRows(NamedTuple):
    """First rows of a data set with and without its views.

    Args:
        rates: Place, description and edit rate of each view as text, then the rows of ``both_views``.
        measured: Number of rows on which the rates were measured.
        slots: Name of each slot of an example.
        examples: Pieces of each text of each example.
        batch: Batch of the first rows, as in training.
    """

    rates: Sequence[tuple[str, str, str]]
    measured: int
    slots: Sequence[str]
    examples: Sequence[Sequence[Sequence[Piece]]]
    batch: Batch


def altered_rows(collator: Collator, encoder: Encoder, rows: Rows, count: int) -> AlteredRows:
    """Applies the views of the first epoch to the first rows of a data set, and measures all edit rates.

    Args:
        collator: Collator of the training data.
        encoder: Encoder whose embedding output the embedding views alter.
        rows: Rows of the data set. At most 200 rows are measured.
        count: Number of rows in ``examples`` and ``batch``.
    """
    numbers = range(min(_MEASURED, len(rows)))
    keyed = [KeyedRow(epoch=0, number=i, row=rows[i], task=collator.task) for i in numbers]
    first_rows = keyed[:count]
    plain, altered = unaltered(collator)(first_rows), collator(first_rows)
    tokenizer = collator.tokenizer.tokenizer
    pairs = zip(_ids_of(plain), _ids_of(altered), strict=True)
    texts = [pieces(before, after, tokenizer) for before, after in pairs]
    examples = len(texts) // len(altered.slots)
    rates = [(edit.place, describe(edit.view), edit.text) for edit in edit_rates(collator, encoder, keyed)]
    return AlteredRows(
        rates=[*rates, *both_views(collator, keyed)],
        measured=len(keyed),
        slots=[f"{slot.role} {slot.number}" for slot in altered.slots],
        examples=[texts[example::examples] for example in range(examples)],
        batch=altered,
    )


def edit_rates(collator: Collator, encoder: Encoder, rows: Sequence[KeyedRow]) -> list[Edit]:
    """Measures the edit rate of every view of a plan, relative to the view's own input in its chain.

    Args:
        collator: Collator of the training data.
        encoder: Encoder whose embedding output the embedding views alter.
        rows: Rows to measure on; some hundred rows give two digits.
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
    """Measures how much the views of two slots with the same texts have in common.

    For each pair of slots: the share of the changed positions of either view that the other view changes too. For
    all slots together: the number of texts that the views made equal to another text.

    Returns:
        Names of the slots, ``both`` or ``all``, and the figure as text.
    """
    plain, altered = unaltered(collator)(rows), collator(rows)
    texts = plain.text_ids.reshape(len(plain.slots), -1)
    changes = [set(_changed(*pair)) for pair in zip(_ids_of(plain), _ids_of(altered), strict=True)]
    by_slot = [changes[i * texts.shape[1] :][: texts.shape[1]] for i in range(len(plain.slots))]
    lines = []
    for i, k in combinations(range(len(plain.slots)), 2):
        first, second = plain.slots[i], plain.slots[k]
        total = sum(map(len, by_slot[i] + by_slot[k]))
        if "original" in (first.role, second.role) or not torch.equal(texts[i], texts[k]) or not total:
            continue
        shared = 2 * sum(len(a & b) for a, b in zip(by_slot[i], by_slot[k], strict=True)) / total
        names = f"{first.role} {first.number} and {second.role} {second.number}"
        lines.append((names, "both", f"{shared:.1%} of the changed places are the same"))
    if altered.text_ids.ndim == 2:
        compared = torch.tensor([slot.role != "original" for slot in plain.slots])[altered.row_slots]
        duplicates = int(count_view_duplicates(altered.text_ids[compared]))
        lines.append(("all", "all", f"{duplicates} of {int(compared.sum())} texts made equal to another one"))
    return lines


def unaltered(collator: Collator) -> Collator:
    """Returns a collator with the same slots as another one, and no views."""
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
    """Returns the batch after each prefix of a chain's text and token views. All other chains are empty."""
    chain = [view for view in collator.plan.chains[name] if isinstance(view, TextView | TokenView)]
    plans = [
        ViewPlan({key: chain[:length] if key == name else () for key in collator.plan.chains})
        for length in range(len(chain) + 1)
    ]
    return [_with_plan(collator, plan)(rows) for plan in plans]


def _ids_of(batch: Batch) -> list[list[int]]:
    return [row.tolist() for row in torch.split(batch.ids, batch.lengths.tolist())]


def _changed(before: Sequence[int], after: Sequence[int]) -> Iterator[int]:
    """Yields the positions of a row whose tokens a view has removed or replaced."""
    position = 0
    for is_equal, old, _ in _differences(before, after):
        if not is_equal:
            yield from range(position, position + len(old))
        position += len(old)


def _differences(
    before: Sequence[int], after: Sequence[int]
) -> Iterator[tuple[bool, Sequence[int], Sequence[int]]]:
    """Compares two rows: yields spans in order, whether they are equal, the old tokens and the new tokens.

    As many tokens as possible are equal (longest common subsequence), so a view that deletes adds no token.
    """
    old, new = np.array(before, dtype=np.int64), np.array(after, dtype=np.int64)
    common = np.zeros((len(old) + 1, len(new) + 1), dtype=np.int32)  # of before[i:] and after[j:]
    for i in reversed(range(len(old))):
        best = np.maximum(common[i + 1, :-1], common[i + 1, 1:] + (old[i] == new))
        common[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
    i = j = 0
    while i < len(old) or j < len(new):
        start, begin = i, j
        while i < len(old) and j < len(new) and old[i] == new[j]:
            i, j = i + 1, j + 1
        if i > start:
            yield True, before[start:i], after[begin:j]
            continue
        while (i < len(old) or j < len(new)) and not (i < len(old) and j < len(new) and old[i] == new[j]):
            is_removed = j == len(new) or (i < len(old) and common[i + 1, j] >= common[i, j + 1])
            i, j = (i + 1, j) if is_removed else (i, j + 1)
        yield False, before[start:i], after[begin:j]


def _token_rate(old: Batch, new: Batch) -> tuple[float, str]:
    """Returns the share of tokens, or else of position ids, that a view changes, with its unit."""
    if torch.equal(old.ids, new.ids) and new.positions is not None:
        natural = torch.cat([torch.arange(length) for length in new.lengths.tolist()])
        old_positions = natural if old.positions is None else old.positions
        return float((new.positions != old_positions).float().mean()), "positions"
    changed = sum(
        max(len(removed), len(added))
        for before, after in zip(_ids_of(old), _ids_of(new), strict=True)
        for is_equal, removed, added in _differences(before, after)
        if not is_equal
    )
    return changed / max(len(old.ids), 1), "tokens"


@torch.no_grad()
def _entry_rate(encoder: Encoder, batch: Batch, plan: ViewPlan, chain: Sequence[View]) -> float:
    """Returns the share of the embedding output's entries that the last view of a chain changes.

    Padding does not count.
    """
    changed = entries = 0

    def watch(part: Batch) -> EmbeddingChange:
        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            nonlocal changed, entries
            for number, view in enumerate(chain):
                if isinstance(view, EmbeddingView):
                    before = embeddings
                    rng = RowRandom(part.draw_keys, view=number)
                    embeddings = view(before, plan.alterable_mask(view, mask), rng)
            differs = (embeddings != before)[mask]
            changed, entries = changed + int(differs.sum()), entries + differs.numel()
            return embeddings

        return alter

    with evaluating(encoder):  # without dropout, which hides changes of entries that it sets to zero
        for block in torch.split(torch.arange(len(batch)), _BLOCK):
            part = batch.split(block)
            encoder(part, alter=watch(part))
    return changed / max(entries, 1)


class RankedColumn(NamedTuple):
    """Column of a row's similarities, with the cosine that a guide gives it.

    Args:
        cosine: Cosine of the column and the row's anchor by the guide.
        role: ``positive``, or ``negative`` with its number.
        row: Number of the row whose text the column is.
        masked_by: Names of the objectives that mask the column.
    """

    cosine: float
    role: str
    row: int
    masked_by: tuple[str, ...]


def guide_order(batch: Encoded, false_negatives: Mapping[str, FalseNegatives]) -> list[list[RankedColumn]] | None:
    """Returns the columns of each row of a batch in a guide's order, nearest first.

    The columns are the positives and hard negatives of all rows, except texts that are equal to the row's anchor.
    The row's own positive is always a column.

    Args:
        batch: Batch whose embeddings are the guide's vectors.
        false_negatives: Parts that mask false negatives, by the name of their objective.

    Returns:
        Columns of each row, or None if rows have no positive.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.96, 0.28]])
        >>> batch = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(4))
        >>> first, second = guide_order(batch, {"gist": FalseNegatives("teacher")})
        >>> [(column.role, column.row, column.masked_by) for column in first]
        [('positive', 1, ('gist',)), ('positive', 0, ())]
    """
    vectors = read_vectors(batch, ("anchor", "positive", "negative"), head=None)
    if not {"anchor", "positive"} <= {*vectors}:
        return None
    all_rows = slice(None)
    (candidates,) = Candidates.from_batch([(batch, vectors)], ["cosine"], over_ranks=False)
    cosines, masked = candidates.similarities(all_rows), candidates.mask(all_rows)
    rows, (texts,) = len(cosines), BetweenTexts().arrange(batch, vectors).values()
    positives = unit_vectors(texts.positive)
    near = {
        name: GuideMask(
            candidates.rows, candidates.columns, part.cosine_bound(unit_vectors(texts.anchor), positives)
        ).mask()
        for name, part in false_negatives.items()
    }
    negatives = vectors["negative"].shape[1] if "negative" in vectors else 0
    names = [("positive", row) for row in range(rows)]
    names += [(f"negative {number}", row) for row in range(rows) for number in range(negatives)]
    return [
        [
            RankedColumn(
                cosine=float(cosines[row, column]),
                role=names[column][0],
                row=names[column][1],
                masked_by=tuple(name for name, mask in near.items() if column != row and mask[row, column]),
            )
            for column in cosines[row].argsort(descending=True, stable=True).tolist()
            if column == row or not masked[row, column]
        ]
        for row in range(rows)
    ]
