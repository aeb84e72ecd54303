"""Pairs and triples from natural language inference, as supervised SimCSE trains on them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np

from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator, text_id
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.core.types import Example, Row
from contrastive_text.pairings.base import Given, Pairing

Label = Literal["entailment", "neutral", "contradiction"]

Negative = Literal["entailment", "neutral", "contradiction", "random"]
"""Source of a hard negative: hypotheses of one label of the same premise, or hypotheses of other premises."""

_KINDS = {"entailment": "an entailed", "neutral": "a neutral", "contradiction": "a contradicting"}

Hypotheses = dict[str, Counter[str]]
"""Hypothesis -> its rows of each label."""


class NLITriples(Pairing):
    """A premise, a hypothesis that it entails, and as hard negative one that contradicts it.

    Gao, Yao and Chen 2021, SimCSE, section 4. A premise is one text over all files. Its first entailed
    hypothesis goes with its first contradicting one, the second with the second, and so on; what is left over on
    one side is left out, so that no hypothesis is repeated. Left out are also repeated hypotheses, those equal to
    their premise, and those that are both entailed and contradicting.

    The paper's other sets are those of another ``positive`` and other ``negatives``: ``[]`` for entailed pairs
    alone, ``[neutral]``, ``[contradiction, neutral]`` for two hard negatives, and ``[random]`` for a hypothesis
    of another premise, which is the same in every epoch and for every seed.

    Differs: the authors' file of SNLI and MultiNLI has 275,601 triples and takes one hard negative of several;
    how it was chosen is not published. ``per_premise: 1`` comes nearest to it.

    Args:
        per_premise: The most triples that a premise gives; None for as many as it has.
        positive: Label of the hypotheses that belong to their premise.
        negatives: Where each hard negative comes from; one for every word.

    Raises:
        ValueError: Less than one triple, an unknown word, or one label twice.

    Example:
        >>> row = {"anchor": "A man plays.", "positive": "A man is asleep.", "target": 2.0}
        >>> rows, said = NLITriples().arrange([[{**row, "positive": "It is a man.", "target": 0.0}, row]])
        >>> rows
        [{'anchor': 'A man plays.', 'positive': 'It is a man.', 'negative': 'A man is asleep.'}]
    """

    reads = ("anchor", "positive", "target")
    target = Classes(NLI)

    def __init__(
        self,
        per_premise: int | None = None,
        positive: Label = "entailment",
        negatives: tuple[Negative, ...] = ("contradiction",),
    ) -> None:
        self.per_premise = at_least("NLITriples.per_premise", per_premise, 1, "leave it out for all")
        self.positive: Label = one_of("NLITriples.positive", positive, Label)
        self.negatives = negatives
        for number, negative in enumerate(negatives):
            one_of(f"NLITriples.negatives[{number}]", negative, Negative)
        if len({positive, *negatives}) <= len(negatives):
            raise InvalidValueError(
                f"NLITriples.negatives: expected each label once, and not the positive's, got {list(negatives)} "
                f"beside {positive}; leave one out"
            )

    @property
    def _labels(self) -> list[str]:
        """The labels whose hypotheses are taken, the positive's first."""
        return [self.positive, *(label for label in self.negatives if label != "random")]

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[list[Row], str]:
        """Returns the triples in the order in which their premises first stand in the files."""
        premises: dict[str, Hypotheses] = {}
        for row in itertools.chain.from_iterable(documents):
            hypotheses = premises.setdefault(str(row["anchor"]), {})
            label = NLI[int(cast("float", row["target"]))]
            hypotheses.setdefault(str(row["positive"]), Counter())[label] += 1
        every = list(dict.fromkeys(itertools.chain.from_iterable(premises.values())))
        left_out = self._reasons()
        triples: list[Row] = []
        served = 0
        for premise, hypotheses in premises.items():
            sides = self._sides(premise, hypotheses, left_out)
            if lacking := [label for label, side in sides.items() if not side]:
                left_out[_lacking(lacking)] += 1
                continue
            found = list(zip(*sides.values(), strict=False))[: self.per_premise]
            served += 1
            left_out["hypotheses without a partner"] += sum(map(len, sides.values())) - len(sides) * len(found)
            triples += [
                self._row(premise, dict(zip(sides, one, strict=True)), every, hypotheses) for one in found
            ]
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in left_out.items() if number)
        needed = " and ".join(_KINDS[label] for label in self._labels)
        if not triples:
            raise InvalidValueError(
                f"data.train: expected a premise with {needed} hypothesis, got none ({reasons}); NLITriples "
                "needs them among the rows of one premise"
            )
        said = f"{len(triples):,} {'triples' if self.negatives else 'pairs'} of {served:,} premises"
        return triples, f"{said}; left out: {reasons}" if reasons else said

    def _reasons(self) -> Counter[str]:
        """Returns why something may be in no triple, in the order of the summary, each no times yet."""
        some = range(1, len(self._labels) + 1)
        lacks = [_lacking(few) for count in some for few in itertools.combinations(self._labels, count)]
        unused = [f"{label} rows" for label in NLI if label not in self._labels]
        rest = ["repeated rows", "rows whose hypothesis is the premise", "rows of a hypothesis with two labels"]
        return Counter(dict.fromkeys([*lacks, "hypotheses without a partner", *unused, *rest], 0))

    def _sides(self, premise: str, hypotheses: Hypotheses, left_out: Counter[str]) -> dict[str, list[str]]:
        """Returns a premise's hypotheses of each label taken, each once, and counts what is left out."""
        sides: dict[str, list[str]] = {label: [] for label in self._labels}
        for hypothesis, rows in hypotheses.items():
            taken = {label: rows[label] for label in sides if rows[label]}
            for label in NLI:
                if label not in sides:
                    left_out[f"{label} rows"] += rows[label]
            if len(taken) > 1:
                left_out["rows of a hypothesis with two labels"] += sum(taken.values())
            elif hypothesis == premise:
                left_out["rows whose hypothesis is the premise"] += sum(taken.values())
            else:
                for label, number in taken.items():
                    left_out["repeated rows"] += number - 1
                    sides[label].append(hypothesis)
        return sides

    def _row(self, premise: str, one: Mapping[str, str], every: Sequence[str], own: Hypotheses) -> Row:
        positive = one[self.positive]
        row = {"anchor": premise, "positive": positive}
        for number, label in enumerate(self.negatives, start=1):
            name = "negative" if number == 1 else f"negative_{number}"
            row[name] = one[label] if label in one else _of_another(premise, positive, every, own)
        return {**row}

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: a triple that ``arrange`` made."""
        return Given()(row, rng)


def _lacking(labels: Sequence[str]) -> str:
    return f"premises without {' and '.join(_KINDS[label] for label in labels)} hypothesis"


def _of_another(premise: str, positive: str, every: Sequence[str], own: Hypotheses) -> str:
    """Draws a hypothesis that is none of a premise's own, by the texts themselves."""
    if len(every) <= len(own) + 1:
        raise InvalidValueError(
            "data.train: expected hypotheses of several premises for a random negative, got those of one; give "
            "more rows, or leave random out"
        )
    rng = generator(fold(text_id(premise), text_id(positive)))
    draws = (every[int(rng.integers(len(every)))] for _ in itertools.count())
    return next(text for text in draws if text not in own and text != premise)
