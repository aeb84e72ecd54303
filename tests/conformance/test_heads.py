"""Properties that every public head has: layers drawn when they are built, vectors of float32 at least."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import parts
import pytest
import torch

from contrastive_text import heads

# Name -> a head and the width of its output for vectors of width 6.
HEADS: dict[str, tuple[Callable[[], heads.Head], int]] = {
    "TanhHead": (heads.TanhHead, 6),
    "TanhHead of inference": (lambda: heads.TanhHead(train_only=False), 6),
    "MLPHead": (lambda: heads.MLPHead(8, 3, dropout=0.5, share="pairs", shared_layers=1), 3),
    "FineTuningHead": (lambda: heads.FineTuningHead(out_features=2), 2),
    "ProjectorHead": (lambda: heads.ProjectorHead([5, 4], last_norm=True, together=False), 4),
    "StackHead": (lambda: heads.StackHead([{"name": "Linear", "out_features": 5}, {"name": "Tanh"}]), 5),
}
every_head = pytest.mark.parametrize("name", HEADS)


def built(name: str) -> heads.Head:
    torch.manual_seed(0)
    head = HEADS[name][0]()
    head.build(6)
    return head


def test_every_public_head_has_an_entry() -> None:
    assert {cls.__name__ for cls in parts.public_parts(heads, heads.Head)} == {name.split()[0] for name in HEADS}


@every_head
def test_a_head_draws_nothing_until_it_is_built_and_is_made_again_from_its_arguments(name: str) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    head = HEADS[name][0]()
    parts.check_part(head)
    assert torch.equal(torch.rand(1), expected)
    assert not [*head.parameters()]


@every_head
def test_a_head_that_is_not_built_says_so(name: str) -> None:
    head = HEADS[name][0]()
    words = [f"{type(head).__name__}: expected build(features) before the first call"]
    parts.check_refused(lambda: head(torch.zeros(1, 6)), RuntimeError, words)


@every_head
def test_building_a_head_returns_the_width_of_its_output_and_keeps_its_mode(name: str) -> None:
    make, width = HEADS[name]
    for training in (True, False):
        head = make().train(training)
        assert heads.build_head(head, 6) == width
        assert head.training == training
    assert head(torch.zeros(3, 6)).shape == (3, width)


@every_head
def test_a_head_in_use_gives_each_row_its_own_vector_from_its_state_alone(name: str) -> None:
    head, rows = built(name), torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    head(rows)  # a projector's running statistics
    other = HEADS[name][0]()
    other.build(6)
    other.load_state_dict(head.state_dict())
    expected = head.eval()(rows)
    copies: list[Any] = [head, other.eval(), pickle.loads(pickle.dumps(head)), deepcopy(head)]
    for copy in copies:
        assert torch.equal(copy(rows), expected)
    # A product of one row may be summed in another order: float32 of width 8.
    torch.testing.assert_close(torch.cat([head(row.unsqueeze(0)) for row in rows]), expected, rtol=0, atol=1e-6)


@every_head
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_vectors_of_a_head_are_of_float32_at_least(name: str, dtype: torch.dtype) -> None:
    head, rows = built(name).eval(), torch.ones(3, 6)
    assert head(rows.to(dtype)).dtype == torch.float32
    assert head.double()(rows).dtype == torch.float64
    assert head.to(dtype)(rows.to(dtype)).dtype == torch.float32


@every_head
def test_an_objective_takes_a_head_of_training_alone(name: str) -> None:
    head = HEADS[name][0]()
    if head.train_only:
        heads.check_train_only(head, "Contrastive.head")
    else:
        words = [
            f"Contrastive.head: expected a head with train_only: true, got {type(head).__name__}",
            "--model.head",
        ]
        parts.check_refused(lambda: heads.check_train_only(head, "Contrastive.head"), ValueError, words)
