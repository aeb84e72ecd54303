"""Triples from natural language inference, as supervised SimCSE trains on them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.core.types import Example, Row
from contrastive_text.pairings.base import Given, Pairing

_REASONS = (
    "premises without an entailed hypothesis",
    "premises without a contradicting hypothesis",
    "premises without either hypothesis",
    "hypotheses without a partner",
    "neutral rows",
    "repeated rows",
    "rows whose hypothesis is the premise",
    "rows of a hypothesis both entailed and contradicting",
)
"""Why something is in no triple, in the order of the summary."""


class NLITriples(Pairing):
    """A premise, a hypothesis that it entails, and as hard negative one that contradicts it.

    Gao, Yao and Chen 2021, SimCSE, section 4. A premise is one text over all files. Its first entailed
    hypothesis goes with its first contradicting one, the second with the second, and so on; what is left over on
    one side is left out, so that no hypothesis is repeated. Left out are also repeated hypotheses, those equal to
    their premise, and those that are both entailed and contradicting.

    Differs: the authors' file of SNLI and MultiNLI has 275,601 triples and takes one hard negative of several;
    how it was chosen is not published. ``per_premise: 1`` comes nearest to it.

    Args:
        per_premise: The most triples that a premise gives; None for as many as it has.

    Raises:
        ValueError: Less than one triple.

    Example:
        >>> row = {"anchor": "A man plays.", "positive": "A man is asleep.", "target": 2.0}
        >>> rows, said = NLITriples().arrange([[{**row, "positive": "It is a man.", "target": 0.0}, row]])
        >>> rows
        [{'anchor': 'A man plays.', 'positive': 'It is a man.', 'negative': 'A man is asleep.'}]
    """

    reads = ("anchor", "positive", "target")
    target = Classes(NLI)

    def __init__(self, per_premise: int | None = None) -> None:
        if per_premise is not None and per_premise < 1:
            raise InvalidValueError(
                f"NLITriples.per_premise: expected 1 or more, got {per_premise}; None for all"
            )
        self.per_premise = per_premise

    def arrange(self, files: Sequence[Sequence[Row]]) -> tuple[list[Row], str]:
        """Returns the triples in the order in which their premises first stand in the files."""
        premises: dict[str, dict[str, Counter[str]]] = {}  # premise -> hypothesis -> rows of each label
        for row in itertools.chain.from_iterable(files):
            hypotheses = premises.setdefault(str(row["anchor"]), {})
            label = NLI[int(cast("float", row["target"]))]
            hypotheses.setdefault(str(row["positive"]), Counter())[label] += 1
        left_out = Counter(dict.fromkeys(_REASONS, 0))
        triples: list[Row] = []
        served = 0
        for premise, hypotheses in premises.items():
            entailed, contradicting = _sides(premise, hypotheses, left_out)
            if not (entailed and contradicting):
                lacks = "a contradicting" if entailed else "an entailed" if contradicting else "either"
                left_out[f"premises without {lacks} hypothesis"] += 1
                continue
            found = list(zip(entailed, contradicting, strict=False))[: self.per_premise]
            served += 1
            left_out["hypotheses without a partner"] += len(entailed) + len(contradicting) - 2 * len(found)
            triples += [{"anchor": premise, "positive": yes, "negative": no} for yes, no in found]
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in left_out.items() if number)
        if not triples:
            raise InvalidValueError(
                "data.train: expected a premise with an entailed and a contradicting hypothesis, got none "
                f"({reasons}); NLITriples needs both among the rows of one premise"
            )
        said = f"{len(triples):,} triples of {served:,} premises"
        return triples, f"{said}; left out: {reasons}" if reasons else said

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: a triple that ``arrange`` made."""
        return Given()(row, rng)


def _sides(
    premise: str, hypotheses: Mapping[str, Counter[str]], left_out: Counter[str]
) -> tuple[list[str], list[str]]:
    """Returns a premise's entailed and contradicting hypotheses, each once, and counts what is left out."""
    entailed: list[str] = []
    contradicting: list[str] = []
    for hypothesis, rows in hypotheses.items():
        yes, no = rows["entailment"], rows["contradiction"]
        left_out["neutral rows"] += rows["neutral"]
        if yes and no:
            left_out["rows of a hypothesis both entailed and contradicting"] += yes + no
        elif hypothesis == premise:
            left_out["rows whose hypothesis is the premise"] += yes + no
        elif yes or no:
            left_out["repeated rows"] += yes + no - 1
            (entailed if yes else contradicting).append(hypothesis)
    return entailed, contradicting
