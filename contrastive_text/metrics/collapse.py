"""Bounds of metrics that indicate collapsed vectors, with messages that explain the problem."""

from __future__ import annotations

from typing import Literal

Mode = Literal["max", "min"]
"""Direction of a metric: whether its best value is the largest (``max``) or the smallest (``min``)."""
_LOW_IS_GOOD = ("loss", "alignment", "uniformity", "mean_cosine", "off_diagonal", "hubness", "orphans")
"""Endings of the names of metrics for which lower values are better."""

COLLAPSED = 0.99
"""Smallest mean cosine at which vectors count as collapsed: texts differ by less than 8 degrees on average."""

FEW_DIRECTIONS = 0.05
"""Largest effective rank of a partial collapse, as a share of the largest possible rank.

Encoders without training of sentence vectors have a share of about 0.5."""


def describe_collapse(mean_cosine: float, effective_rank: float, most: int) -> str | None:
    """Returns a message if vectors have collapsed, completely or partially; None if they have not.

    Args:
        mean_cosine: Mean cosine of two different texts.
        effective_rank: Effective rank of all vectors.
        most: Largest possible effective rank: the smaller of the number of texts and the number of features.

    Example:
        >>> describe_collapse(mean_cosine=0.999, effective_rank=1.2, most=384)
        'the space has collapsed: two texts have cosine 0.999 on average, so similarities say nothing'
        >>> describe_collapse(mean_cosine=0.2, effective_rank=180.0, most=384)
    """
    if mean_cosine >= COLLAPSED:
        return (
            f"the space has collapsed: two texts have cosine {mean_cosine:.3f} on average, so similarities say "
            "nothing"
        )
    if effective_rank < FEW_DIRECTIONS * most:
        return (
            f"the vectors fill {effective_rank:.1f} of {most} directions: a partial collapse, in which different "
            "texts have similar vectors"
        )
    return None


def usual_mode(figure: str) -> Mode:
    """Returns ``max`` or ``min``: whether larger or smaller values of a metric are better, by the metric's name.

    Example:
        >>> usual_mode("val/spearman"), usual_mode("val/uniformity"), usual_mode("diagnose:effective_rank")
        ('max', 'min', 'max')
    """
    return "min" if figure.replace(":", "/").rpartition("/")[2] in _LOW_IS_GOOD else "max"
