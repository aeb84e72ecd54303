"""Other positives of a row's query that it meets: hidden from it, targets too, or negatives."""

from __future__ import annotations

from typing import Literal, get_args

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses import Loss
from contrastive_text.losses.comparison import Joined
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.pair_labels import PairLabels

Siblings = Literal["hide", "attract", "keep"]


def check_siblings(siblings: str, attract: str) -> None:
    """Checks the words of both options.

    Raises:
        ValueError: An unknown one, or a way to attract where nothing attracts.
    """
    for name, given, known in (("siblings", siblings, Siblings), ("attract", attract, Joined)):
        if given not in get_args(known):
            raise InvalidValueError(
                f"Contrastive.{name}: expected one of {', '.join(get_args(known))}, got {given!r}"
            )
    if siblings != "attract" and attract != "mean":
        raise InvalidValueError(
            f"Contrastive.attract: expected siblings: attract for {attract}, got siblings: {siblings}; set "
            "siblings: attract, or leave attract out"
        )


def check_attracting(loss: Loss, between: Between, pair_labels: PairLabels | None, mask_duplicates: bool) -> None:
    """Checks that rows may have several targets.

    Raises:
        ValueError: Classes say what attracts, the loss has one target a row, views of a text are compared,
            negative pairs are rows, or equal texts aren't known.
    """
    if loss.reads_labels:
        found = f"{type(loss).__name__}, whose classes say what attracts; take InfoNCE or NTXent"
    elif not loss.several_targets:
        found = f"{type(loss).__name__}, which has one target a row; take NTXent, or InfoNCE as it is by default"
    elif not between.is_pairs:
        found = f"{type(between).__name__}, where a text has none; set between: texts"
    elif pair_labels is not None and not pair_labels.takes_targets:
        found = f"{type(pair_labels).__name__}, where negative pairs are rows; take NegativesAsHard"
    elif not mask_duplicates:
        found = "mask_duplicates: false, where rows don't know equal texts; leave that out"
    else:
        return
    raise InvalidValueError(
        f"Contrastive.siblings: attract expects rows that may have several targets, got {found}, or set "
        "siblings: hide"
    )
