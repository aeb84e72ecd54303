"""Column parts of a user's own, and options of a chain that exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parts
import pytest
import torch
from chains import batch, value
from torch import Tensor

from contrastive_text.losses import (
    DCL,
    DCLW,
    NO_ID,
    Comparison,
    DebiasedNTXent,
    Group,
    InfoNCE,
    Loss,
    NTXent,
    SigLIP,
    SupCon,
    Texts,
)
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    FalseNegatives,
    MaskBatch,
    Momentum,
    NegativesAsHard,
    Pairs,
    PositivesOnly,
    Queue,
    SameClass,
    Siblings,
    SignedPairs,
)


class Bank(ColumnPart):
    """Fixed vectors as negatives of every row."""

    stage = "columns"

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def __call__(self, pairs: Pairs) -> Pairs:
        ids = torch.full((len(self.vectors),), NO_ID)
        return pairs.add_columns(Texts(self.vectors.to(pairs.every.anchor), ids))


class SameParity(ColumnPart):
    """Makes columns of examples of the same parity positives."""

    def __call__(self, pairs: Pairs) -> Pairs:
        parity = torch.arange(len(pairs.every.anchor)) % 2
        return pairs.add_rule("parity", Group.of(parity, effect="mean"))


class OneTarget(Loss):
    """A loss of one target."""

    def terms(self, block: Comparison) -> Tensor:
        return block.rows.sum(dim=1)


def test_a_part_of_a_users_own_adds_columns_and_is_named_in_the_summary() -> None:
    rows, bank = batch(3, 0).encoded, torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    anchors, positives = (rows.role(role).squeeze(1) for role in ("anchor", "positive"))
    columns = torch.cat([positives, bank.to(positives)])
    logits = torch.cosine_similarity(anchors.unsqueeze(1), columns.unsqueeze(0), dim=2) / 0.2
    expected = float(torch.nn.functional.cross_entropy(logits, torch.arange(3)))
    objective = Contrastive(InfoNCE(0.2), columns=[Duplicates(), Bank(bank)])
    assert value(objective(rows)) == pytest.approx(expected, abs=1e-12)
    assert "Bank changes them" in objective.describe_negatives(batch_size=3, positives=1, negatives=0)


def test_a_part_of_a_users_own_makes_columns_positives() -> None:
    rows = batch(4, 0, classes=True)
    own = Contrastive(NTXent(0.2), columns=[Duplicates(), SameParity()])
    by_class = Contrastive(SupCon(0.2), columns=[Duplicates(), SameClass(2)])
    assert value(own(rows.encoded)) == value(by_class(rows.encoded))


ATTRACT, TWO = Siblings("positive"), InfoNCE(directions=["query_to_doc", "doc_to_doc"])
EXAMPLES = batch(3, 0, classes=True).encoded
REFUSED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "another width": (
        lambda: Contrastive(columns=[Bank(torch.randn(2, 7))])(EXAMPLES),
        ["columns", "4 features", "got 7"],
    ),
    "two rules of positives": (
        lambda: Contrastive(NTXent(), columns=[Duplicates(), ATTRACT, SameParity()])(EXAMPLES),
        ["expected one rule of positives", "siblings and parity"],
    ),
    "one positive per row": (
        lambda: Contrastive(OneTarget(), columns=[SameParity()])(EXAMPLES),
        ["several positives", "parity", "OneTarget"],
    ),
    "no target": (
        lambda: Contrastive(SupCon(), columns=[SameClass(2)])(batch(3, 0).encoded),
        ["expected a batch with a target", "got one without"],
    ),
    "queue of no size": (lambda: Queue(0), ["Queue.size", "1 or more", "got 0"]),
    "unknown effect": (
        lambda: Siblings("hide"),  # type: ignore[arg-type]  # it is wrong
        ["Siblings.effect", "mask or positive", "'hide'"],
    ),
    "unknown joined": (
        lambda: Siblings("positive", "max"),  # type: ignore[arg-type]  # it is wrong
        ["Siblings.joined", "mean or sum", "'max'"],
    ),
    "joined without positives": (lambda: Siblings(joined="sum"), ["effect: positive", "sum", "effect: mask"]),
    "negative margin": (
        lambda: FalseNegatives("teacher", relative_margin=-0.1),
        ["FalseNegatives.relative_margin", "-0.1"],
    ),
    **{
        f"weight {weight}": (lambda weight=weight: SignedPairs(weight), ["SignedPairs.weight", f"{weight}"])
        for weight in (-1.0, float("inf"), float("nan"))
    },
    **{
        f"bound {bound}": (lambda bound=bound: SignedPairs(bound=bound), ["SignedPairs.bound", f"{bound}"])
        for bound in (0.0, -1.0, float("nan"))
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_part_can_not_be_or_get_is_refused(name: str) -> None:
    refused, words = REFUSED[name]
    parts.check_refused(refused, ValueError, words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"between": "roles"}, ["Contrastive.between", "texts or views", "'roles'"]),
        ({"columns": [Duplicates(), Duplicates()]}, ["each part once", "Duplicates twice"]),
        ({"columns": [PositivesOnly()], "between": "views"}, ["PositivesOnly", "between: texts", "BetweenViews"]),
        ({"columns": [PositivesOnly()], "loss": SupCon()}, ["PositivesOnly", "by classes", "SupCon"]),
        ({"columns": [PositivesOnly(), SameClass(2)]}, ["reads labels", "PositivesOnly and SameClass"]),
        ({"loss": SupCon()}, ["expected SameClass", "SupCon", "Duplicates"]),
        ({"columns": [SameClass(3)]}, ["SameClass", "by classes", "InfoNCE"]),
        *(
            ({"columns": [SignedPairs()], "loss": loss}, ["SignedPairs", "maximized", type(loss).__name__])
            for loss in (TWO, DCLW(), SigLIP())
        ),
        ({"loss": SupCon(), "columns": [Duplicates(), SameClass(2), Siblings()]}, ["Siblings", "SupCon"]),
        ({"loss": OneTarget(), "columns": [Duplicates(), ATTRACT]}, ["Siblings.effect", "OneTarget"]),
        ({"between": "views", "columns": [Duplicates(), ATTRACT]}, ["Siblings", "BetweenViews"]),
        ({"columns": [Duplicates(), ATTRACT, SignedPairs()]}, ["Siblings", "SignedPairs"]),
        ({"columns": [ATTRACT]}, ["Siblings", "without Duplicates"]),
        *(
            ({"loss": loss, "columns": [Duplicates(), ATTRACT]}, ["Siblings.effect", type(loss).__name__])
            for loss in (DCL(), DCLW(), DebiasedNTXent(), SigLIP(), TWO, InfoNCE(in_batch_hardness=9.0))
        ),
        ({"columns": [SignedPairs(), FalseNegatives("teacher")]}, ["FalseNegatives", "SignedPairs"]),
        (
            {"between": "views", "columns": [FalseNegatives("teacher")]},
            ["absolute_margin", "BetweenViews", "got 0"],
        ),
        ({"between": "views", "columns": [Momentum()]}, ["Momentum", "BetweenViews"]),
        (
            {"columns": [Momentum(of="original"), Queue(9)]},
            ["Momentum.of", "anchor, positive, negative", "original"],
        ),
        ({"columns": [Momentum(of="anchor")]}, ["Momentum.of", "Queue", "anchor"]),
        ({"columns": [Queue(9), MaskBatch()], "loss": NTXent()}, ["MaskBatch", "NTXent"]),
        ({"columns": [Queue(9), MaskBatch()], "loss": InfoNCE(0.2, "two_sided")}, ["MaskBatch", "InfoNCE"]),
        ({"columns": [Queue(9), MaskBatch(), NegativesAsHard()]}, ["MaskBatch", "NegativesAsHard"]),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], words: list[str]) -> None:
    parts.check_refused(lambda: Contrastive(**options), ValueError, words)
