"""Candidates that a guide finds too near to a row to be negatives of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.losses.comparison import GuideVectors, Triples
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.pair_labels import PairLabels


@dataclass(frozen=True)
class FalseNegatives:
    """Leaves out of a row's candidates those whose cosine by a guide is above that of the row's own pair.

    GISTEmbed: Solatorio 2024 (https://arxiv.org/abs/2402.16829), section 3.2; the margins are those of
    sentence-transformers' ``GISTEmbedLoss``. With g the guide's cosine of a pair, what is above ``g -
    absolute_margin - relative_margin * |g|`` is no negative of the pair: neither of its anchor nor, where that
    looks too, of its positive. Hard negatives are candidates as others are, and past columns of a queue. A row's
    positive always stays, and so do other texts that it is pulled to.

    Logged are ``removed``, how many positives of others the guide takes from a row, and ``guide_agreement``
    (``metrics.guide_agreement``), the share of rows whose nearest positive of another is the guide's nearest too.

    Differs: a text is never its own negative here, nor is an equal one, for rows know them by id. The authors'
    function leaves a text among its own candidates where the guide finds anchor and positive equal, as in
    SimCSE's pairs: its cosine is not above g = 1.

    Args:
        guide: Name of the module's guide, of ``model.guides``.
        absolute_margin: How far below the pair's cosine a candidate is too near already.
        relative_margin: The same as a share of that cosine.

    Raises:
        ValueError: A margin below 0.

    Example:
        >>> FalseNegatives("teacher", relative_margin=0.05)
        FalseNegatives(guide='teacher', absolute_margin=0.0, relative_margin=0.05)
    """

    guide: str
    absolute_margin: float = 0.0
    relative_margin: float = 0.0

    def __post_init__(self) -> None:
        for name in ("absolute_margin", "relative_margin"):
            if not asdict(self)[name] >= 0:
                raise InvalidValueError(
                    f"FalseNegatives.{name}: expected 0 or more, got {asdict(self)[name]}; 0 is GISTEmbed's"
                )

    @property
    def has_margin(self) -> bool:
        """Whether candidates less near than the pair itself are left out too."""
        return self.absolute_margin > 0 or self.relative_margin > 0

    def of(self, texts: Triples) -> GuideVectors:
        """Returns what a guide knows of texts from its own vectors of them."""
        anchor, positive = unit_vectors(texts.anchor), unit_vectors(texts.positive)
        cosine = (anchor * positive).sum(dim=1)
        bound = cosine - self.absolute_margin - self.relative_margin * cosine.abs()
        negative = None if texts.negative is None else unit_vectors(texts.negative)
        return GuideVectors(anchor, positive, negative, bound)


def check_bound(false_negatives: FalseNegatives, between: Between, pair_labels: PairLabels | None) -> None:
    """Checks that a guide's cosine of a pair is a bound for others.

    Raises:
        ValueError: Negative pairs are rows, or pairs are two views of a text, with a cosine of 1, and no margin.
    """
    if pair_labels is not None and not pair_labels.takes_targets:
        raise InvalidValueError(
            f"Contrastive.false_negatives: expected rows that belong to positive pairs, got "
            f"{type(pair_labels).__name__}, whose negative pairs are rows too: a guide's cosine of one is no "
            "bound; take NegativesAsHard or PositivesOnly"
        )
    if not between.is_pairs and not false_negatives.has_margin:
        raise InvalidValueError(
            f"Contrastive.false_negatives: expected a margin for {type(between).__name__}, got none: a guide's "
            "cosine of two views of a text is 1, which nothing is above; set absolute_margin or relative_margin"
        )
