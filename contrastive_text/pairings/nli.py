"""Pairing for natural language inference: pairs and triples of premises and hypotheses (supervised SimCSE)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np

from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.random import fold_key, generator, text_id
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.core.types import Example, Row
from contrastive_text.pairings.base import Given, Pairing

Label = Literal["entailment", "neutral", "contradiction"]

Negative = Literal["entailment", "neutral", "contradiction", "random"]
"""Names of the sources of a hard negative: a label of the same premise, or ``random`` for other premises."""

_KINDS = {"entailment": "an entailed", "neutral": "a neutral", "contradiction": "a contradicting"}

Hypotheses = dict[str, Counter[str]]
"""Counts of a premise's rows: hypothesis -> number of rows with each label."""


class NLITriples(Pairing):
    """Forms triples of a premise, an entailed hypothesis and a contradicting hypothesis as hard negative.

    Source: Gao, Yao and Chen 2021, SimCSE, section 4. Rows with equal premises, in all files, are one premise.
    The first entailed hypothesis of a premise is combined with its first contradicting hypothesis, the second
    with the second, and so on. Hypotheses without a partner are skipped, so that no hypothesis is repeated.
    Repeated hypotheses, hypotheses equal to their premise, and hypotheses with both labels are skipped too.

    Other ``negatives`` give the other data sets of the paper. ``[]`` gives entailed pairs only, ``[neutral]``
    neutral hard negatives, and ``[contradiction, neutral]`` two hard negatives. ``[random]`` gives a hypothesis
    of another premise, which is the same in every epoch and for every seed. ``positive`` sets the label of
    positives.

    Differs: the authors' file of SNLI and MultiNLI has 275,601 triples, with one hard negative of several. How it
    was selected is not published. ``per_premise: 1`` gives the most similar data.

    Args:
        per_premise: Largest number of triples of a premise; None for no limit.
        positive: Label of the hypotheses that are positives.
        negatives: Source of each hard negative: a label, or ``random``. Each source gives one hard negative.

    Raises:
        ValueError: ``per_premise`` is below 1, or a label is unknown or repeated.

    Example:
        >>> row = {"anchor": "A man plays.", "positive": "A man is asleep.", "target": 2.0}
        >>> rows, summary = NLITriples().arrange([[{**row, "positive": "It is a man.", "target": 0.0}, row]])
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
        self.per_premise = at_least("NLITriples.per_premise", per_premise, 1, "remove it for no limit")
        self.positive: Label = one_of("NLITriples.positive", positive, Label)
        self.negatives = negatives
        for number, negative in enumerate(negatives):
            one_of(f"NLITriples.negatives[{number}]", negative, Negative)
        if len({positive, *negatives}) <= len(negatives):
            raise InvalidValueError(
                f"NLITriples.negatives: expected different labels, and not the label of positive, got "
                f"{list(negatives)} with positive: {positive}; remove one"
            )

    @property
    def _labels(self) -> list[str]:
        """Labels of the hypotheses in a triple, the label of the positive first."""
        return [self.positive, *(label for label in self.negatives if label != "random")]

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[list[Row], str]:
        """Builds the triples of all premises, in the order of their first occurrence.

        Raises:
            ValueError: No premise has hypotheses of all labels.
        """
        premises: dict[str, Hypotheses] = {}
        for row in itertools.chain.from_iterable(documents):
            hypotheses = premises.setdefault(str(row["anchor"]), {})
            label = NLI[int(cast("float", row["target"]))]
            hypotheses.setdefault(str(row["positive"]), Counter())[label] += 1
        all_hypotheses = list(dict.fromkeys(itertools.chain.from_iterable(premises.values())))
        skips = self._skip_reasons()
        triples: list[Row] = []
        premise_count = 0
        for premise, hypotheses in premises.items():
            sides = self._hypotheses_by_label(premise, hypotheses, skips)
            if missing := [label for label, side in sides.items() if not side]:
                skips[_missing_reason(missing)] += 1
                continue
            groups = list(zip(*sides.values(), strict=False))[: self.per_premise]
            premise_count += 1
            skips["hypotheses without a partner"] += sum(map(len, sides.values())) - len(sides) * len(groups)
            triples += [
                self._row(premise, dict(zip(sides, group, strict=True)), all_hypotheses, hypotheses)
                for group in groups
            ]
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in skips.items() if number)
        kinds = " and ".join(_KINDS[label] for label in self._labels)
        if not triples:
            raise InvalidValueError(
                f"data.train: expected a premise with {kinds} hypothesis, got no such premise ({reasons}); give "
                "rows with the same premise for each label"
            )
        summary = f"{len(triples):,} {'triples' if self.negatives else 'pairs'} of {premise_count:,} premises"
        return triples, f"{summary}; left out: {reasons}" if reasons else summary

    def _skip_reasons(self) -> Counter[str]:
        """Returns reason to skip a row -> 0, in the order of the run's summary."""
        counts = range(1, len(self._labels) + 1)
        missing = [_missing_reason(labels) for n in counts for labels in itertools.combinations(self._labels, n)]
        unused = [f"{label} rows" for label in NLI if label not in self._labels]
        rest = ["repeated rows", "rows whose hypothesis is the premise", "rows of a hypothesis with two labels"]
        return Counter(dict.fromkeys([*missing, "hypotheses without a partner", *unused, *rest], 0))

    def _hypotheses_by_label(
        self, premise: str, hypotheses: Hypotheses, skips: Counter[str]
    ) -> dict[str, list[str]]:
        """Returns the distinct hypotheses of a premise for each label in use, and counts skipped rows."""
        sides: dict[str, list[str]] = {label: [] for label in self._labels}
        for hypothesis, rows in hypotheses.items():
            counts = {label: rows[label] for label in sides if rows[label]}
            for label in NLI:
                if label not in sides:
                    skips[f"{label} rows"] += rows[label]
            if len(counts) > 1:
                skips["rows of a hypothesis with two labels"] += sum(counts.values())
            elif hypothesis == premise:
                skips["rows whose hypothesis is the premise"] += sum(counts.values())
            else:
                for label, number in counts.items():
                    skips["repeated rows"] += number - 1
                    sides[label].append(hypothesis)
        return sides

    def _row(
        self, premise: str, group: Mapping[str, str], all_hypotheses: Sequence[str], excluded: Hypotheses
    ) -> Row:
        positive = group[self.positive]
        row = {"anchor": premise, "positive": positive}
        for number, label in enumerate(self.negatives, start=1):
            name = "negative" if number == 1 else f"negative_{number}"
            row[name] = (
                group[label] if label in group else _draw_random(premise, positive, all_hypotheses, excluded)
            )
        return {**row}

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: the triple of a row that ``arrange`` has built."""
        return Given()(row, rng)


def _missing_reason(labels: Sequence[str]) -> str:
    return f"premises without {' and '.join(_KINDS[label] for label in labels)} hypothesis"


def _draw_random(premise: str, positive: str, all_hypotheses: Sequence[str], excluded: Hypotheses) -> str:
    """Draws a hypothesis of another premise; the draw depends only on the premise and the positive."""
    if len(all_hypotheses) <= len(excluded) + 1:
        raise InvalidValueError(
            "data.train: expected hypotheses of several premises for a random negative, got hypotheses of one "
            "premise; give more rows, or remove random from negatives"
        )
    rng = generator(fold_key(text_id(premise), text_id(positive)))
    draws = (all_hypotheses[int(rng.integers(len(all_hypotheses)))] for _ in itertools.count())
    return next(text for text in draws if text not in excluded and text != premise)
