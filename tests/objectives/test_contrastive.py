"""The contrastive objective on one process: roles, averaging, figures, a user's own parts; and heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import parts
import pytest
import reference
import torch
from chains import batch, value
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.types import Slot
from contrastive_text.heads import Head, TanhHead
from contrastive_text.losses import (
    NO_ID,
    AlignmentUniformity,
    ComparedTexts,
    Comparison,
    Group,
    InfoNCE,
    ListNet,
    Loss,
    NTXent,
    SupCon,
)
from contrastive_text.objectives import (
    BetweenViews,
    ColumnPart,
    Consistency,
    Contrastive,
    CosineScorer,
    Duplicates,
    MaskBatch,
    MaskedLM,
    Matryoshka,
    Objective,
    PairClassification,
    PairRegression,
    PositivesOnly,
    Queue,
    RankDistillation,
    RowsAndColumns,
    SameClass,
    Siblings,
    Terms,
    WholeBatch,
)

# Logits up to 20 in float64, sums of some ten.
ROUNDING = 1e-12


def encoded(n: int, positives: int = 1, negatives: int = 0, seed: int = 0) -> Encoded:
    """Random vectors in float64, every text another one."""
    slots = (
        Slot("anchor", 0),
        *(Slot("positive", i) for i in range(positives)),
        *(Slot("negative", i) for i in range(negatives)),
    )
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n * len(slots), 4, generator=noise, dtype=torch.float64)
    return Encoded(vectors, slots, text_ids=torch.arange(len(vectors)))


@pytest.mark.parametrize(
    "loss",
    [InfoNCE(), InfoNCE(reduction="two_sided"), NTXent(), NTXent(reduction="sum"), NTXent(reduction="two_sided")],
)
@given(n=st.integers(1, 5), negatives=st.integers(0, 2), seed=st.integers(0, 2**31))
def test_terms_make_the_loss_of_the_roles(loss: Loss, n: int, negatives: int, seed: int) -> None:
    rows = encoded(n, negatives=negatives, seed=seed)
    negative = rows.role("negative") if negatives else None
    expected = float(loss(rows.role("anchor")[:, 0], rows.role("positive")[:, 0], negative))
    terms = Contrastive(loss=loss)(rows)
    assert value(terms) == pytest.approx(expected, abs=ROUNDING)
    sides = 2 if loss.same_side or loss.reduction == "two_sided" else 1
    assert (terms.count, terms.reduction) == (sides * n, loss.reduction)


def test_d12_positives_are_averaged_before_they_are_normalized(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_mean_positive"]
    rows = torch.tensor([case["anchor"], *case["positives"]], dtype=torch.float64)
    slots = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))
    logs = Contrastive()(Encoded(rows, slots, text_ids=torch.arange(3))).logs
    assert float(logs["positive_similarity"]) == pytest.approx(case["mean_then_normalise_cos"], abs=1e-6)


@pytest.mark.parametrize("loss", [InfoNCE(0.2), NTXent(0.2)])
def test_texts_that_views_made_equal_are_not_pushed_apart(loss: Loss) -> None:
    # Two texts that differ; what is left of the second's positive is the first's anchor.
    rows = replace(encoded(2), text_ids=torch.tensor([[1, 5], [2, 6], [1, 7], [2, 5]]))
    plain = replace(rows, text_ids=rows.text_ids[:, 0])
    edited, same = (Contrastive(loss=loss)(each) for each in (rows, plain))
    assert edited.logs["edited_alike"] == 1
    assert "edited_alike" not in same.logs
    assert float(edited.total) < float(same.total)
    everywhere = replace(rows, text_ids=torch.tensor([[1, 5], [2, 5], [1, 5], [2, 5]]))
    assert float(Contrastive(loss=loss)(everywhere).total) == 0.0
    kept = Contrastive(loss=loss, columns=[])(everywhere)
    assert float(kept.total) == pytest.approx(float(same.total), abs=ROUNDING)


def test_the_order_of_an_examples_positives_does_not_matter() -> None:
    # Both examples have the positives 2 and 3; the second example gives them in another order.
    rows = replace(encoded(2, positives=2), text_ids=torch.tensor([0, 1, 2, 2, 3, 3]))
    order = torch.tensor([0, 1, 2, 5, 4, 3])
    swapped = replace(rows, embeddings=rows.embeddings[order], text_ids=rows.text_ids[order])
    # The mean of two positives in another order: float64 rounding.
    assert value(Contrastive()(swapped)) == pytest.approx(value(Contrastive()(rows)), abs=ROUNDING)


def test_logged_figures_are_those_of_the_vectors() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    positives = torch.tensor([[0.8, 0.6], [1.0, 0.0]])
    rows = Encoded(
        torch.cat([anchors, positives]), (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(4)
    )
    logs = {name: float(figure) for name, figure in Contrastive()(rows).logs.items()}
    # Cosines: own 0.8 and 0; others 1 and 0.6. Neither anchor finds its own positive first.
    assert logs["accuracy"] == 0.0
    assert logs["positive_similarity"] == pytest.approx(0.4, abs=1e-6)
    assert logs["negative_similarity"] == pytest.approx(0.8, abs=1e-6)
    # Squared distances 2 - 2 cos: 0.4 and 2. float32 throughout.
    assert logs["alignment"] == pytest.approx(1.2, abs=1e-6)
    assert logs["uniformity"] < 0


def test_a_batch_of_one_example_or_of_none_has_no_loss_and_finite_figures() -> None:
    assert float(Terms(torch.tensor(0.0), 0).loss()) == 0.0
    terms = Contrastive()(encoded(1))
    assert float(terms.total) == 0.0
    assert all(torch.isfinite(figure) for figure in terms.logs.values())


# Two views of each text


def two_views(n: int, seed: int = 0, negatives: int = 0) -> Encoded:
    """Two views of each of two texts: a view has the id of its text."""
    rows = encoded(n, positives=3, negatives=2 * negatives, seed=seed)
    roles = ("anchor", "anchor", "positive", "positive")
    slots = (*(Slot(role, i % 2) for i, role in enumerate(roles)), *rows.slots[4:])
    texts = torch.arange(len(rows.embeddings)) // (2 * n) * n + torch.arange(len(rows.embeddings)) % n
    return replace(rows, slots=slots, text_ids=texts)


def test_k11_two_views_of_two_collapsed_texts_make_conserts_joint_value(vectors: dict[str, Any]) -> None:
    rows = two_views(96)
    same = replace(rows, embeddings=torch.ones_like(rows.embeddings))
    joint = Contrastive(loss=NTXent(temperature=0.1, reduction="two_sided"), between="views")
    expected = vectors["consert_joint_weight"]["all_collapsed_N96_contrastive_part"]
    assert 0.15 * value(joint(same)) == pytest.approx(expected, abs=1e-6)
    assert expected == pytest.approx(3.1513641, abs=1e-6)


@pytest.mark.parametrize("loss", [InfoNCE(0.2), NTXent(0.2, "sum"), NTXent(0.2, "two_sided")])
@given(n=st.integers(1, 5), negatives=st.integers(0, 1), seed=st.integers(0, 2**31))
def test_between_views_adds_the_values_of_the_roles(loss: Loss, n: int, negatives: int, seed: int) -> None:
    rows = two_views(n, seed=seed, negatives=negatives)
    expected = sum(float(loss(*rows.role(role).unbind(dim=1))) for role in ("anchor", "positive"))
    terms = Contrastive(loss=loss, between="views")(rows)
    assert value(terms) == pytest.approx(expected, abs=ROUNDING)
    assert terms.count == (2 * n if loss.same_side else n)


def test_between_views_masks_duplicates_within_each_role() -> None:
    rows = replace(two_views(3), text_ids=torch.tensor([0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 1, 2]))
    expected = 0.0
    for role in ("anchor", "positive"):
        views, ids = rows.role(role), rows.role_ids(role)
        first, second = views.unbind(dim=1)
        given_ids = {"anchor_ids": ids[:, 0].tolist(), "positive_ids": ids[:, 1].tolist()}
        expected += reference.nt_xent(first.tolist(), second.tolist(), temperature=0.2, **given_ids)
    reached = value(Contrastive(loss=NTXent(0.2), between="views")(rows))
    assert reached == pytest.approx(expected, abs=ROUNDING)
    kept = value(Contrastive(loss=NTXent(0.2), between="views", columns=[])(rows))
    assert abs(kept - reached) > 1e-3


def test_between_views_one_text_alone_is_compared_as_an_anchor_with_its_positive() -> None:
    rows = encoded(4)
    alone = replace(rows, slots=(Slot("anchor", 0), Slot("anchor", 1)))
    views = Contrastive(loss=NTXent(), between="views")
    assert views.required_roles == ("anchor",)
    assert torch.equal(views(alone).total, Contrastive(loss=NTXent())(rows).total)


def test_between_texts_two_views_are_the_first_of_the_anchor_and_the_mean_of_the_positives() -> None:
    rows = two_views(4)
    objective = Contrastive(loss=NTXent(0.2))
    assert objective.required_roles == ("anchor", "positive")
    expected = float(NTXent(0.2)(rows.role("anchor")[:, 0], rows.role("positive").mean(dim=1)))
    assert value(objective(rows)) == pytest.approx(expected, abs=ROUNDING)


def test_between_texts_two_views_of_a_positive_have_its_texts_id() -> None:
    # The second example's positive is the first one's anchor: no negative of it on its own side.
    ids = torch.tensor([0, 1, 0, 1, 2, 0, 2, 0])
    rows = replace(two_views(2), text_ids=ids)
    positives = rows.role("positive").mean(dim=1).tolist()
    expected = reference.nt_xent(
        rows.role("anchor")[:, 0].tolist(), positives, temperature=0.2, anchor_ids=[0, 1], positive_ids=[2, 0]
    )
    assert value(Contrastive(loss=NTXent(0.2), columns=[Duplicates()])(rows)) == pytest.approx(
        expected, abs=ROUNDING
    )


def test_figures_between_views_are_means_over_the_roles() -> None:
    rows = two_views(4)
    logs = Contrastive(loss=NTXent(), between="views")(rows).logs
    own = [torch.cosine_similarity(*rows.role(role).unbind(dim=1)) for role in ("anchor", "positive")]
    assert float(logs["positive_similarity"]) == pytest.approx(float(torch.cat(own).mean()), abs=ROUNDING)
    assert logs.keys() == Contrastive()(rows).logs.keys()


# Classes


@given(seed=st.integers(0, 2**31), n=st.integers(1, 6))
def test_a_loss_that_reads_labels_gets_the_classes_of_the_target(seed: int, n: int) -> None:
    classes = torch.arange(n) % 3
    rows = replace(encoded(n, negatives=1, seed=seed), target=classes.double())
    roles = [rows.role(role).squeeze(1) for role in ("anchor", "positive", "negative")]
    expected = float(SupCon(0.2)(*roles, classes=classes))
    for duplicates in ([Duplicates()], []):
        objective = Contrastive(loss=SupCon(0.2), columns=[*duplicates, SameClass(["a", "b", "c"])])
        assert value(objective(rows)) == pytest.approx(expected, abs=ROUNDING)


def test_classes_go_with_both_roles_between_views() -> None:
    classes = torch.tensor([0, 1, 0, 1])
    rows, loss = replace(two_views(4), target=classes.double()), SupCon(0.2)
    reached = value(Contrastive(loss=loss, between="views", columns=[Duplicates(), SameClass(2)])(rows))
    roles = (rows.role(role).unbind(dim=1) for role in ("anchor", "positive"))
    assert reached == pytest.approx(sum(float(loss(*views, classes=classes)) for views in roles), abs=ROUNDING)


def test_the_target_is_what_the_arguments_say() -> None:
    assert Contrastive().target is None
    named = Contrastive(loss=SupCon(), columns=[Duplicates(), SameClass(["news", "sport"])]).target
    assert named is not None
    assert named.parse("sport") == 1.0
    paired = Contrastive(columns=[Duplicates(), Siblings(), PositivesOnly()]).target
    assert paired is not None
    assert (paired.parse("0"), paired.parse("1.0")) == (0.0, 1.0)


def test_a_name_and_a_class_say_the_same_of_what_is_compared() -> None:
    by_name, by_class = (Contrastive(between=between) for between in ("views", BetweenViews()))
    assert (
        (by_name.required_roles, by_name.optional_roles)
        == (by_class.required_roles, by_class.optional_roles)
        == (("anchor",), ("positive",))
    )
    assert describe(by_class) == describe(by_name).replace("'views'", "BetweenViews()")


QUEUE, MASKED = [Duplicates(), Siblings(), Queue(9)], [Duplicates(), Siblings(), MaskBatch()]


@pytest.mark.parametrize(
    ("objective", "negatives", "enough"),
    [
        (Contrastive(), 0, False),
        (Contrastive(), 1, True),
        (Contrastive(columns=QUEUE), 0, True),
        (Contrastive(columns=MASKED), 0, False),
        (Contrastive(columns=MASKED), 2, True),
        (WholeBatch(AlignmentUniformity()), 1, False),
        (Consistency(), 1, False),
        (RankDistillation(ListNet(), guides=["teacher"]), 0, False),
        (Matryoshka(Contrastive(), [2]), 0, False),
        (MaskedLM(), 0, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_of_one_example_is_refused_unless_negatives_come_from_elsewhere(
    objective: Objective, negatives: int, enough: bool
) -> None:
    if enough:
        objective.check_examples(1, negatives)
    else:
        with pytest.raises(ValueError, match=r"got 1; raise data\.batch_size|got neither"):
            objective.check_examples(1, negatives)


class Bank(ColumnPart):
    """Fixed vectors as negatives of every row."""

    stage = "columns"

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        ids = torch.full((len(self.vectors),), NO_ID)
        return pairs.add_columns(ComparedTexts(self.vectors.to(pairs.all_examples.anchor), ids))


class SameParity(ColumnPart):
    """Makes columns of examples of the same parity positives."""

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        parity = torch.arange(len(pairs.all_examples.anchor)) % 2
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
    assert "Bank changes their number" in objective.describe_negatives(batch_size=3, positives=1, negatives=0)


def test_a_part_of_a_users_own_makes_columns_positives() -> None:
    rows = batch(4, 0, classes=True)
    own = Contrastive(NTXent(0.2), columns=[Duplicates(), SameParity()])
    by_class = Contrastive(SupCon(0.2), columns=[Duplicates(), SameClass(2)])
    assert value(own(rows.encoded)) == value(by_class(rows.encoded))


def test_what_parts_and_losses_of_a_users_own_can_not_do_is_refused() -> None:
    rows, attract = batch(3, 0).encoded, Siblings("positive")
    refused: list[parts.Refused] = [
        (lambda: Contrastive(columns=[Bank(torch.randn(2, 7))])(rows), ValueError, ["4 features", "got 7"]),
        (lambda: Contrastive(NTXent(), columns=[Duplicates(), attract, SameParity()])(rows), ValueError,
         ["expected one rule of positives", "siblings and parity"]),
        (lambda: Contrastive(OneTarget(), columns=[SameParity()])(rows), ValueError,
         ["several positives", "parity", "OneTarget"]),
        (lambda: Contrastive(OneTarget(), columns=[Duplicates(), attract]), ValueError,
         ["Siblings.effect", "OneTarget"]),
    ]  # fmt: skip
    for call, error, words in refused:
        parts.check_refused(call, error, words)


TWICE = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))
# Objectives with a train-only head.
HEADED: dict[str, Callable[[Head | None], Objective]] = {
    "Contrastive": lambda head: Contrastive(head=head),
    "WholeBatch": lambda head: WholeBatch(AlignmentUniformity(), head=head),
    "Consistency": lambda head: Consistency(head=head),
    "RankDistillation": lambda head: RankDistillation(ListNet(), ["teacher"], head=head),
    "PairRegression": lambda head: PairRegression(head=head),
    "PairClassification": lambda head: PairClassification(2, CosineScorer(), head=head),
}


@pytest.mark.parametrize("name", HEADED)
def test_the_head_comes_before_the_average_of_positives_and_the_comparison(name: str) -> None:
    noise = torch.Generator().manual_seed(0)
    vectors, guide = torch.randn(2, 9, 4, generator=noise, dtype=torch.float64)
    rows = Encoded(vectors, TWICE, torch.arange(9), target=torch.tensor([1.0, 0, 1]), guides={"teacher": guide})
    torch.manual_seed(0)
    head = TanhHead()
    objective, headless = HEADED[name](head), HEADED[name](None)
    objective.build(4)
    objective.double()
    projected = replace(rows, embeddings=head(rows.embeddings))
    # In float64, of which a product of all rows at once is rounded otherwise than of a role's.
    torch.testing.assert_close(objective(rows).total, headless(projected).total, rtol=1e-12, atol=1e-12)
    assert not torch.isclose(objective(rows).total, headless(rows).total)
    words = [f"{name}.head", "train_only: true", "TanhHead with false"]
    parts.check_refused(lambda: HEADED[name](TanhHead(train_only=False)), ValueError, words)
