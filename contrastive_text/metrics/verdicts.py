"""What the figures of a space mean, in words: the bounds beyond which something is off, and why there."""

from __future__ import annotations

from typing import Literal

Mode = Literal["max", "min"]
"""Whether the best is the highest or the lowest."""
_LOW_IS_GOOD = ("loss", "alignment", "uniformity", "mean_cosine", "off_diagonal", "hubness", "orphans")
"""Last words of the names of figures that are good where they are low."""

COLLAPSED = 0.99
"""Mean cosine from which on texts can't be told apart: two of them are less than 8 degrees from each other."""

FEW_DIRECTIONS = 0.05
"""Share of the directions that can be filled, below which the effective rank is that of a partial collapse. Plain
encoders fill about half of them."""


def collapse(mean_cosine: float, effective_rank: float, most: int) -> str | None:
    """Returns in words how vectors have collapsed; None if they haven't.

    Args:
        mean_cosine: Of two different texts.
        effective_rank: Of all vectors.
        most: Largest effective rank that there could be, the smaller of the numbers of texts and of features.

    Example:
        >>> collapse(mean_cosine=0.999, effective_rank=1.2, most=384)
        'the space has collapsed: two texts have cosine 0.999 on average, so similarities tell nothing'
        >>> collapse(mean_cosine=0.2, effective_rank=180.0, most=384)
    """
    if mean_cosine >= COLLAPSED:
        return (
            f"the space has collapsed: two texts have cosine {mean_cosine:.3f} on average, so similarities tell "
            "nothing"
        )
    if effective_rank < FEW_DIRECTIONS * most:
        return (
            f"the vectors fill {effective_rank:.1f} of {most} directions: a partial collapse, in which texts "
            "that differ come to lie together"
        )
    return None


def usual_mode(figure: str) -> Mode:
    """Returns whether a figure is good where it is high, by its name.

    Example:
        >>> usual_mode("val/spearman"), usual_mode("val/uniformity"), usual_mode("diagnose:effective_rank")
        ('max', 'min', 'max')
    """
    return "min" if figure.replace(":", "/").rpartition("/")[2] in _LOW_IS_GOOD else "max"
