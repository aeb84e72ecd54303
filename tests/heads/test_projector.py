"""Projectors: batch normalisation of a batch, and which rows are one; over ranks it is in test_one_gradient."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.heads import Head, ProjectorHead, TanhHead, WholeBatchNorm, build_head, project_parts
from contrastive_text.objectives import Contrastive, Objective, PairRegression

ROUNDING = 1e-12
"""Float64, vectors of length 1 to 10 and some ten rows."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(*shape, generator=noise, dtype=torch.float64)


@pytest.mark.parametrize("affine", [True, False])
def test_one_process_normalises_as_torch_does_in_training_and_after_it(affine: bool) -> None:
    ours, theirs = WholeBatchNorm(5, affine).double(), nn.BatchNorm1d(5, affine=affine).double()
    for step in range(3):
        rows = [drawn(7, 5, seed=step).requires_grad_() for _ in range(2)]
        found, expected = ours(rows[0]), theirs(rows[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)
        for each in (found, expected):
            (each * drawn(7, 5, seed=9)).sum().backward()
        torch.testing.assert_close(rows[0].grad, rows[1].grad, rtol=0, atol=ROUNDING)
    for module in (ours, theirs):
        module.eval()
    torch.testing.assert_close(ours(drawn(2, 5)), theirs(drawn(2, 5)), rtol=0, atol=ROUNDING)
    weights = [list(module.parameters()) for module in (ours, theirs)]
    assert [len(each) for each in weights] == [2 * affine] * 2
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-11)  # sums of 21 terms of order 10


def test_the_gradient_is_that_of_finite_differences() -> None:
    norm = WholeBatchNorm(3).double()
    assert torch.autograd.gradcheck(norm, drawn(5, 3).requires_grad_())


def test_a_large_mean_leaves_the_digits_of_the_spread() -> None:
    rows = drawn(16, 2).float()
    found, shifted = WholeBatchNorm(2)(rows), WholeBatchNorm(2)(rows + 4096)
    # Rounding of the shifted rows themselves: 4096 has a last place of 2.4e-4 in float32, their spread is 2.
    torch.testing.assert_close(shifted, found, rtol=0, atol=1e-3)


def test_the_default_is_diffcses_projector() -> None:
    head = ProjectorHead(last_norm=True)
    head.build(3)
    assert head.network is not None
    first, norm, rectifier, last, end = head.network
    assert [(layer.in_features, layer.out_features, layer.bias) for layer in (first, last)] == [
        (3, 6, None),
        (6, 3, None),
    ]
    assert norm.weight is not None and end.weight is None
    assert isinstance(rectifier, nn.ReLU)


def test_barlow_twins_projector_ends_with_a_linear_layer_and_gives_its_width() -> None:
    head = ProjectorHead([8, 8, 2], together=False)
    assert build_head(head, 5) == 2
    assert head.network is not None
    kinds = [type(layer).__name__ for layer in head.network]
    assert kinds == ["Linear", "WholeBatchNorm", "ReLU"] * 2 + ["Linear"]


# Which rows are a batch


class Noted(Head):
    """Notes the shapes that it is given."""

    def __init__(self, together: bool | None) -> None:
        super().__init__()
        self.together = together
        self.given: list[tuple[int, ...]] = []

    def layers(self, features: int) -> nn.Sequential:  # noqa: ARG002  # the base's signature
        return nn.Sequential()

    def forward(self, embeddings: Tensor) -> Tensor:
        self.given.append(tuple(embeddings.shape))
        return embeddings


SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1), Slot("negative", 0), Slot("original", 0))
SCORED = torch.tensor([0.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("together", "contrastive", "pairs"),
    [
        (None, [(3, 1, 2), (3, 2, 2), (3, 1, 2)], [(3, 2), (3, 2)]),
        (True, [(12, 2)], [(6, 2)]),
        (False, [(3, 2)] * 4, [(3, 2)] * 2),
    ],
)
def test_a_head_gets_each_role_all_rows_that_are_read_or_each_slot(
    together: bool | None, contrastive: list[tuple[int, ...]], pairs: list[tuple[int, ...]]
) -> None:
    encoded = Encoded(drawn(15, 2), SLOTS, torch.arange(15), target=SCORED)
    makes: list[tuple[Callable[[Head], Objective], list[tuple[int, ...]]]] = [
        (lambda head: Contrastive(head=head), contrastive),
        (lambda head: PairRegression(head=head), pairs),
    ]
    for make, expected in makes:
        head = Noted(together)
        plain, value = make(TanhHead()), make(head)(encoded).total
        assert head.given == expected
        plain.head = None  # as it is, rows were put back where they belong
        torch.testing.assert_close(value, plain(encoded).total, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("together", [True, False])
def test_parts_of_several_slots_are_normalised_in_one_batch_or_slot_by_slot(together: bool) -> None:
    parts = [drawn(4, 1, 3), drawn(4, 2, 3, seed=1)]
    head = ProjectorHead([2], last_norm=True, together=together)
    head.build(3)
    head.double()
    found = torch.cat(project_parts(head, parts, head), dim=1)
    linear = head.network[0](torch.cat(parts, dim=1))  # type: ignore[index]  # it is built
    batches = (0, 1) if together else (0,)
    mean, variance = (of(linear, dim=batches, keepdim=True) for of in (torch.mean, _biased))
    torch.testing.assert_close(found, (linear - mean) / (variance + 1e-5).sqrt(), rtol=0, atol=ROUNDING)


def test_weights_of_bfloat16_take_each_other_s_outputs() -> None:
    head = ProjectorHead([5, 4, 3], last_norm=True)
    head.build(6)
    rows = drawn(7, 6).bfloat16()
    expected = deepcopy(head).float()(rows.float())
    found = head.bfloat16()(rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)


def _biased(rows: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    return rows.var(dim=dim, keepdim=keepdim, correction=0)
