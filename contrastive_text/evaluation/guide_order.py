"""In which order a guide puts the texts that rows are held against, and which of them it takes away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrastive_text.core.types import Encoded
from contrastive_text.losses.relations import TooNear
from contrastive_text.objectives import FalseNegatives
from contrastive_text.objectives.between import BetweenTexts, read_vectors
from contrastive_text.objectives.candidates import Candidates


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
    near = {
        name: TooNear(found.rows, found.columns, each.of(texts).bound).tile(every, every)
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
