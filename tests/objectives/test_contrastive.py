"""The contrastive objective on one process: roles, averaging, duplicates, figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE, Loss, NTXent, reduce
from contrastive_text.objectives import Contrastive, Terms
from contrastive_text.types import Encoded, Slot

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
    return reduce(terms.total, terms.count, terms.reduction).item()


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


def test_info_nce_is_the_loss_that_needs_no_naming() -> None:
    rows = encoded(4)
    assert value(Contrastive()(rows)) == value(Contrastive(loss=InfoNCE(temperature=0.05))(rows))


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


@st.composite
def few_ids(draw: st.DrawFn) -> tuple[Encoded, list[list[int]]]:
    """A batch in which some texts occur again, with its ids by example: anchor, positive, negative."""
    rows = encoded(4, negatives=1, seed=draw(st.integers(0, 2**31)))
    ids = draw(st.lists(st.integers(0, 5), min_size=12, max_size=12))
    return replace(rows, text_ids=torch.tensor(ids)), [ids[i::4] for i in range(4)]


@given(case=few_ids())
def test_duplicates_are_left_out_as_in_the_double_loop(case: tuple[Encoded, list[list[int]]]) -> None:
    rows, ids = case
    lists = [rows.role(role).squeeze(1).tolist() for role in ("anchor", "positive")]
    lists.append(rows.role("negative").tolist())
    anchor_ids, positive_ids, negative_ids = zip(*ids, strict=True)
    given_ids = {
        "anchor_ids": anchor_ids,
        "positive_ids": positive_ids,
        "negative_ids": [[i] for i in negative_ids],
    }
    info_nce = reference.info_nce(*lists, temperature=0.2, **given_ids)
    assert value(Contrastive(loss=InfoNCE(0.2))(rows)) == pytest.approx(info_nce, abs=ROUNDING)
    nt_xent = reference.nt_xent(*lists, temperature=0.2, **given_ids)
    assert value(Contrastive(loss=NTXent(0.2))(rows)) == pytest.approx(nt_xent, abs=ROUNDING)


@given(case=few_ids())
def test_duplicates_stay_negatives_when_they_are_not_to_be_masked(case: tuple[Encoded, list[list[int]]]) -> None:
    rows = case[0]
    for loss in (InfoNCE(0.2), NTXent(0.2)):
        expected = float(loss(*(rows.role(role).squeeze(1) for role in ("anchor", "positive", "negative"))))
        reached = value(Contrastive(loss=loss, mask_duplicates=False)(rows))
        assert reached == pytest.approx(expected, abs=ROUNDING)


def test_the_order_of_an_examples_positives_does_not_matter() -> None:
    # Both examples have the positives 2 and 3; the second example gives them in another order.
    rows = replace(encoded(2, positives=2), text_ids=torch.tensor([0, 1, 2, 2, 3, 3]))
    order = torch.tensor([0, 1, 2, 5, 4, 3])
    swapped = replace(rows, embeddings=rows.embeddings[order], text_ids=rows.text_ids[order])
    # The mean of two positives in another order: float64 rounding.
    assert value(Contrastive()(swapped)) == pytest.approx(value(Contrastive()(rows)), abs=ROUNDING)


def test_half_precision_embeddings_are_compared_in_float32() -> None:
    rows = encoded(4, positives=2, negatives=1)
    half = replace(rows, embeddings=rows.embeddings.bfloat16())
    single = replace(half, embeddings=half.embeddings.float())
    total = Contrastive()(half).total
    assert total.dtype == torch.float32
    assert torch.equal(total, Contrastive()(single).total)


def test_the_head_stands_before_the_averaging_of_positives() -> None:
    rows = encoded(3, positives=2)
    objective = Contrastive(head=TanhHead())
    objective.build(4)
    objective.double()
    assert objective.head is not None
    projected = replace(rows, embeddings=objective.head(rows.embeddings))
    expected = value(Contrastive()(projected))
    assert value(objective(rows)) == pytest.approx(expected, abs=ROUNDING)


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


def test_logged_figures_carry_no_gradient() -> None:
    rows = encoded(3)
    rows.embeddings.requires_grad_()
    terms = Contrastive()(rows)
    assert terms.total.requires_grad
    assert not any(figure.requires_grad for figure in terms.logs.values())


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


def test_l13_no_rank_talks_to_another_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(*args: Tensor, **options: object) -> None:  # noqa: ARG001  # the base's signature
        raise AssertionError("a collective was called")

    rows = encoded(3, negatives=1)
    alone = float(Contrastive()(rows).total)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 1)
    for name in (
        "all_gather",
        "all_reduce",
        "all_gather_into_tensor",
        "all_gather_object",
        "broadcast",
        "barrier",
    ):
        monkeypatch.setattr(dist, name, talk)
    objective = Contrastive()
    with pytest.raises(AssertionError, match="a collective was called"):
        objective(rows)
    assert float(objective.eval()(rows).total) == alone
