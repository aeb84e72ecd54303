"""Pairings that are refused by their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import parts
import pytest

from contrastive_text.pairings import Given, Neighbours, NLITriples, Pairing, Spans

OTHER = "sideways"


@pytest.mark.parametrize(
    ("pairing", "arguments", "words"),
    [
        (Given, {"views_per_text": 0}, ["Given.views_per_text", "1 or more", "got 0"]),
        (Given, {"negatives": -1}, ["Given.negatives", "0 or more", "got -1"]),
        (Neighbours, {"reach": 0}, ["Neighbours.reach", "1 or more", "got 0"]),
        (NLITriples, {"per_premise": 0}, ["NLITriples.per_premise", "1 or more", "got 0"]),
        (NLITriples, {"positive": "random"}, ["NLITriples.positive", "entailment", "'random'"]),
        (NLITriples, {"negatives": ("none",)}, ["NLITriples.negatives[0]", "random", "'none'"]),
        (NLITriples, {"negatives": ("entailment",)}, ["NLITriples.negatives", "once", "['entailment']"]),
        (NLITriples, {"negatives": ("neutral", "neutral")}, ["NLITriples.negatives", "each label once"]),
        (Spans, {"anchors": 0}, ["Spans.anchors", "1 or more", "got 0"]),
        (Spans, {"positives": -1}, ["Spans.positives", "0 or more", "got -1"]),
        (Spans, {"min_length": 0}, ["Spans.min_length", "1 or more", "got 0"]),
        (Spans, {"max_length": 31}, ["Spans.max_length", "32 or more", "got 31"]),
        (Spans, {"min_document_tokens": 2047}, ["Spans.min_document_tokens", "2,048 or more", "got 2,047"]),
        *((Spans, {"anchor_beta": beta}, ["Spans.anchor_beta", "two positive numbers", f"{beta}"])
          for beta in ((0, 2), (2,), (2, math.nan), (math.inf, 2))),
        (Spans, {"positive_beta": (2,)}, ["Spans.positive_beta", "two positive numbers"]),
        *((Spans, {name: OTHER}, [f"Spans.{name}", "'sideways'"])
          for name in ("strategy", "start", "too_short", "too_long")),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(
    pairing: Callable[..., Pairing], arguments: dict[str, Any], words: list[str]
) -> None:
    parts.check_refused(lambda: pairing(**arguments), ValueError, words)


def test_a_text_without_tokens_is_refused() -> None:
    words = ["Spans: expected Tokens, got str"]
    parts.check_refused(lambda: Spans()({"text": "a document"}, np.random.default_rng(0)), TypeError, words)
