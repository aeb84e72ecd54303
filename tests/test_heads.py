"""Heads: SimCSE's layer, its initialisation, and who may see it."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel

from contrastive_text.heads import Head, MLPHead, TanhHead
from contrastive_text.objectives import Contrastive
from contrastive_text.poolers import CLSPooler
from contrastive_text.types import Encoded, Hidden, Slot

SLOTS = (Slot("anchor", 0), Slot("positive", 0))


def built(head: Head, features: int) -> Head:
    head.build(features)
    return head


def linear(head: Head) -> torch.nn.Linear:
    assert head.network is not None
    layer = head.network[0]
    assert isinstance(layer, torch.nn.Linear)
    return layer


def test_s8_the_tanh_head_gives_the_published_example() -> None:
    # vectors.json, "tanh_mlp_head".
    head = built(TanhHead(), 2).double()
    with torch.no_grad():
        linear(head).weight.copy_(torch.tensor([[0.5, -0.25], [1.0, 0.0]]))
        linear(head).bias.copy_(torch.tensor([0.1, -0.2]))
    out = head(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    # The bias passed through float32: 1e-8. The sheet's tolerance is 1e-6.
    assert out.tolist()[0] == pytest.approx([0.0996679946, 0.6640367703], abs=1e-6)


def test_s8_a_train_only_head_changes_the_loss_and_not_the_vector_of_the_cls_token() -> None:
    hidden = Hidden({-1: torch.randn(4, 3, 6)}, torch.ones(4, 3, dtype=torch.bool))
    inference = CLSPooler()(hidden)
    assert torch.equal(inference, hidden.layers[-1][:, 0])
    encoded = Encoded(inference, SLOTS, text_ids=torch.arange(4))
    with_head = Contrastive(head=TanhHead(train_only=True))
    with_head.build(6)
    assert with_head.head is not None
    through = Encoded(with_head.head(inference), SLOTS, text_ids=torch.arange(4))
    assert torch.equal(with_head(encoded).total, Contrastive()(through).total)
    assert not torch.equal(with_head(encoded).total, Contrastive()(encoded).total)
    assert torch.equal(encoded.embeddings, hidden.layers[-1][:, 0])


def test_s10_the_tanh_head_starts_from_its_own_draws_and_not_from_a_checkpoints_pooler() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    pooler = BertModel(config).pooler.dense
    weights = linear(built(TanhHead(), 64)).weight.detach()
    assert weights.shape == pooler.weight.shape
    assert not torch.isclose(weights, pooler.weight).all(dim=1).any()


def test_s10_the_tanh_head_starts_normal_with_deviation_a_fiftieth_and_without_bias() -> None:
    torch.manual_seed(0)
    head = built(TanhHead(), 128)
    weights = linear(head).weight.detach().double()
    n = weights.numel()
    # Five standard deviations of the mean and of the standard deviation of n normal draws.
    assert abs(float(weights.mean())) < 5 * 0.02 / n**0.5
    assert abs(float(weights.std()) - 0.02) < 5 * 0.02 / (2 * n) ** 0.5
    assert not linear(head).bias.any()


def test_the_tanh_head_keeps_the_width() -> None:
    assert built(TanhHead(), 6)(torch.zeros(2, 6)).shape == (2, 6)


@pytest.mark.parametrize(
    ("hidden", "out", "shapes"),
    [
        (None, None, ((6, 6), (6, 6))),
        (8, None, ((8, 6), (6, 8))),
        (8, 2, ((8, 6), (2, 8))),
        (None, 2, ((6, 6), (2, 6))),
    ],
)
def test_the_mlp_head_has_the_widths_it_is_given(
    hidden: int | None, out: int | None, shapes: tuple[tuple[int, int], ...]
) -> None:
    head = built(MLPHead(hidden_features=hidden, out_features=out), 6)
    weights = [p for name, p in head.named_parameters() if name.endswith("weight")]
    assert tuple(tuple(w.shape) for w in weights) == shapes
    x = torch.randn(3, 6)
    first, second = ((head.network[i].weight, head.network[i].bias) for i in (0, 2))  # type: ignore[index]
    by_hand = (x @ first[0].T + first[1]).clamp(min=0) @ second[0].T + second[1]
    # float32 products of width 6, in another order.
    torch.testing.assert_close(head(x), by_hand, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["hidden_features", "out_features"])
@pytest.mark.parametrize("width", [0, -3])
def test_a_width_below_one_is_refused(name: str, width: int) -> None:
    with pytest.raises(ValueError, match=rf"MLPHead.{name}: expected a width of 1 or more, got {width}"):
        MLPHead(**{name: width})


@pytest.mark.parametrize("make", [TanhHead, MLPHead])
def test_a_head_without_its_layers_says_what_it_wants(make: type[TanhHead | MLPHead]) -> None:
    with pytest.raises(RuntimeError, match=rf"{make.__name__}: expected build\(features\) before the first call"):
        make()(torch.zeros(1, 4))


def test_making_a_head_draws_nothing_until_it_is_built() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    TanhHead(), MLPHead()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("make", [TanhHead, MLPHead])
def test_an_objective_refuses_a_head_that_inference_keeps(make: type[TanhHead | MLPHead]) -> None:
    message = (
        f"Contrastive.head: expected a head with train_only: true, got {make.__name__} with false; .*--model.head"
    )
    with pytest.raises(ValueError, match=message):
        Contrastive(head=make(train_only=False))
