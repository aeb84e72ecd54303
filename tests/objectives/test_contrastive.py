"""The contrastive objective on one process: roles, averaging, duplicates, figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.types import Slot
from contrastive_text.losses import (
    AlignmentUniformity,
    InfoNCE,
    ListNet,
    Loss,
    NTXent,
    SupCon,
    reduce_terms,
)
from contrastive_text.objectives import (
    BetweenViews,
    Consistency,
    Contrastive,
    Duplicates,
    MaskBatch,
    MaskedLM,
    Matryoshka,
    Objective,
    PositivesOnly,
    Queue,
    RankDistillation,
    SameClass,
    Siblings,
    Terms,
    WholeBatch,
)

# Logits up to 20 in float64, sums of some ten.
ROUNDING = 1e-12


def encoded(n: int, positives: int = 1, negatives: int = 0, seed: int = 0, original: bool = False) -> Encoded:
    """Random vectors in float64, every text another one."""
    slots = (
        Slot("anchor", 0),
        *(Slot("positive", i) for i in range(positives)),
        *(Slot("negative", i) for i in range(negatives)),
        *((Slot("original", 0),) if original else ()),
    )
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n * len(slots), 4, generator=noise, dtype=torch.float64)
    return Encoded(vectors, slots, text_ids=torch.arange(len(vectors)))


def value(terms: Terms) -> float:
    return reduce_terms(terms.total, terms.count, terms.reduction).item()


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


def test_d12_positives_are_averaged_before_they_are_normalised(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_mean_positive"]
    rows = torch.tensor([case["anchor"], *case["positives"]], dtype=torch.float64)
    slots = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))
    logs = Contrastive()(Encoded(rows, slots, text_ids=torch.arange(3))).logs
    assert float(logs["positive_similarity"]) == pytest.approx(case["mean_then_normalise_cos"], abs=1e-6)


def test_d13_and_s7_positives_of_an_example_are_grouped_whatever_slot_they_stand_in(
    vectors: dict[str, Any],
) -> None:
    case = vectors["declutr_positive_layout"]
    groups, count = case["mean_groups"], len(case["flat_positive_ids"])
    # The authors' order is example by example, ours slot by slot: the same groups.
    ours = [group[slot] for slot in range(case["P"]) for group in groups]
    slots = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))
    flat = torch.eye(count, dtype=torch.float64)
    anchors = torch.stack([flat[group].mean(dim=0) for group in groups])
    rows = Encoded(torch.cat([anchors, flat[ours]]), slots, text_ids=torch.arange(len(anchors) + count))
    logs = Contrastive()(rows).logs
    # Every anchor is the mean of its own group and orthogonal to the others.
    assert float(logs["positive_similarity"]) == pytest.approx(1.0, abs=ROUNDING)
    assert float(logs["negative_similarity"]) == pytest.approx(0.0, abs=ROUNDING)


def test_the_original_takes_part_in_no_comparison() -> None:
    rows = encoded(3, original=True)
    rows.embeddings.requires_grad_()
    terms = Contrastive(loss=NTXent())(rows)
    terms.total.backward()
    gradient = rows.embeddings.grad
    assert gradient is not None
    assert not gradient[6:].any()
    assert gradient[:6].any(dim=1).all()


@pytest.mark.parametrize("loss", [InfoNCE(0.2), NTXent(0.2)])
def test_texts_that_views_made_equal_are_not_pushed_apart(loss: Loss) -> None:
    # Two texts that differ; what is left of the second's positive is the first's anchor.
    rows = replace(encoded(2), text_ids=torch.tensor([[1, 5], [2, 6], [1, 7], [2, 5]]))
    terms = Contrastive(loss=loss)(rows)
    plain = replace(rows, text_ids=rows.text_ids[:, 0])
    assert terms.logs["edited_alike"] == 1
    assert "edited_alike" not in Contrastive(loss=loss)(plain).logs
    if not loss.same_side:  # the first anchor sees its own positive alone, the second both
        second = Contrastive(loss=loss)(plain).total - terms.total
        anchor, positive, other = (rows.embeddings[i] for i in (0, 2, 3))
        cosines = torch.stack([torch.cosine_similarity(anchor, each, dim=0) / 0.2 for each in (positive, other)])
        assert float(second) == pytest.approx(float(cosines.logsumexp(0) - cosines[0]), abs=ROUNDING)
    everywhere = replace(rows, text_ids=torch.tensor([[1, 5], [2, 5], [1, 5], [2, 5]]))
    assert float(Contrastive(loss=loss)(everywhere).total) == 0.0
    kept = Contrastive(loss=loss, columns=[])(everywhere)
    assert float(kept.total) == pytest.approx(float(Contrastive(loss=loss)(plain).total), abs=ROUNDING)


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


def test_a_batch_of_one_example_has_no_loss_and_finite_figures() -> None:
    terms = Contrastive()(encoded(1))
    assert float(terms.total) == 0.0
    assert all(torch.isfinite(figure) for figure in terms.logs.values())


@pytest.mark.parametrize(
    ("loss", "negatives", "start"),
    [
        (InfoNCE(), 0, "63 per anchor: 63 other positives;"),
        (InfoNCE(), 2, "191 per anchor: 63 other positives, 128 hard negatives;"),
        (NTXent(), 0, "126 per anchor: 63 other positives, 63 texts of its own side;"),
    ],
)
def test_the_summary_counts_the_columns_of_the_loss(loss: Loss, negatives: int, start: str) -> None:
    said = Contrastive(loss=loss).describe_negatives(batch_size=64, positives=1, negatives=negatives)
    assert said.startswith(start)
    rows = encoded(64, negatives=negatives)
    same = replace(rows, embeddings=torch.ones_like(rows.embeddings))
    terms = Contrastive(loss=loss)(same)
    # Collapsed vectors: a term is the logarithm of the columns, the target among them (float64).
    columns = torch.tensor(float(said.split()[0]) + 1, dtype=torch.float64)
    assert float(terms.total) / terms.count == pytest.approx(float(columns.log()), abs=1e-9)


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
    assert views.reads == ("anchor",)
    assert torch.equal(views(alone).total, Contrastive(loss=NTXent())(rows).total)


def test_between_texts_two_views_are_the_first_of_the_anchor_and_the_mean_of_the_positives() -> None:
    rows = two_views(4)
    objective = Contrastive(loss=NTXent(0.2))
    assert objective.reads == ("anchor", "positive")
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


@pytest.mark.parametrize("positives", [1, 3])
def test_a_role_without_its_two_views_is_refused(positives: int) -> None:
    rows = encoded(2, positives=positives + 1)
    slots = (Slot("anchor", 0), Slot("anchor", 1), *(Slot("positive", i) for i in range(positives)))
    with pytest.raises(
        ValueError, match=f"two views of one text as positive, got {positives} slots; .*views_per_text"
    ):
        Contrastive(between="views")(replace(rows, slots=slots))
    with pytest.raises(ValueError, match="two views of one text as anchor, got 1 slots"):
        Contrastive(between="views")(encoded(2))


def test_the_summary_between_views_counts_the_texts_of_one_role() -> None:
    views = Contrastive(loss=NTXent(), between="views")
    said = views.describe_negatives(batch_size=96, positives=2, negatives=2)
    assert said.startswith("190 per anchor: 95 other texts of its role, 95 texts of its own side; accumulate")


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
    rows = replace(two_views(4), target=classes.double())
    loss = SupCon(0.2)
    expected = sum(
        float(loss(*rows.role(role).unbind(dim=1), classes=classes)) for role in ("anchor", "positive")
    )
    reached = value(Contrastive(loss=loss, between="views", columns=[Duplicates(), SameClass(2)])(rows))
    assert reached == pytest.approx(expected, abs=ROUNDING)


def test_the_target_is_what_the_arguments_say() -> None:
    assert Contrastive().target is None
    named = Contrastive(loss=SupCon(), columns=[Duplicates(), SameClass(["news", "sport"])]).target
    assert named is not None
    assert named.read("sport") == 1.0
    paired = Contrastive(columns=[Duplicates(), Siblings(), PositivesOnly()]).target
    assert paired is not None
    assert (paired.read("0"), paired.read("1.0")) == (0.0, 1.0)


def test_a_name_and_a_class_say_the_same_of_what_is_compared() -> None:
    loss, rows = NTXent(0.2), replace(encoded(4), slots=(Slot("anchor", 0), Slot("anchor", 1)))
    by_name, by_class = Contrastive(loss, between="views"), Contrastive(loss, between=BetweenViews())
    assert value(by_name(rows)) == value(by_class(rows))
    assert (by_name.reads, by_name.takes) == (by_class.reads, by_class.takes) == (("anchor",), ("positive",))
    assert describe(by_class) == describe(by_name).replace("'views'", "BetweenViews()")


def test_hard_negatives_can_be_the_only_negatives() -> None:
    rows = encoded(3, negatives=1)
    anchors, positives, negatives = rows.embeddings.reshape(3, 3, 4).tolist()
    total = 0.0
    for anchor, positive in zip(anchors, positives, strict=True):
        own = math.exp(reference.cosine(anchor, positive) / 0.5)
        hard = sum(math.exp(reference.cosine(anchor, negative) / 0.5) for negative in negatives)
        total += math.log(1 + hard / own)
    terms = Contrastive(InfoNCE(0.5), columns=[Duplicates(), Siblings(), MaskBatch()])(rows)
    assert float(terms.total) == pytest.approx(total, abs=ROUNDING)


@pytest.mark.parametrize(
    ("objective", "negatives"),
    [
        (Contrastive(), 0),
        (Contrastive(columns=[Duplicates(), Siblings(), MaskBatch()]), 0),
        (WholeBatch(AlignmentUniformity()), 1),
        (Consistency(), 1),
        (RankDistillation(ListNet(), guides=["teacher"]), 0),
        (Matryoshka(Contrastive(), [2]), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_of_one_example_is_refused_by_objectives_that_compare_examples(
    objective: Objective, negatives: int
) -> None:
    with pytest.raises(ValueError, match=r"got 1; raise data\.batch_size|got rows without a negative"):
        objective.check_examples(1, negatives)


@pytest.mark.parametrize(
    ("objective", "negatives"),
    [
        (Contrastive(), 1),
        (Contrastive(columns=[Duplicates(), Siblings(), Queue(9)]), 0),
        (MaskedLM(), 0),
        (Contrastive(columns=[Duplicates(), Siblings(), MaskBatch()]), 2),
    ],
)
def test_a_step_of_one_example_is_enough_where_negatives_come_from_elsewhere(
    objective: Objective, negatives: int
) -> None:
    objective.check_examples(1, negatives)
