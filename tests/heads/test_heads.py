"""Heads: SimCSE's layer, its initialisation, and who may see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import parts
import pytest
import tiny
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from contrastive_text.data import learn_vocabulary
from contrastive_text.heads import (
    FineTuningHead,
    Head,
    MLPHead,
    ProjectorHead,
    TanhHead,
    apply_exactly,
    linear_exactly,
    share_layers,
)
from contrastive_text.objectives import TextClassification
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.callbacks.run_summary import model_facts


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


def test_s10_the_tanh_head_starts_normal_with_deviation_a_fiftieth_and_without_bias() -> None:
    torch.manual_seed(0)
    head = built(TanhHead(), 128)
    weights = linear(head).weight.detach().double()
    n = weights.numel()
    # Five standard deviations of the mean and of the standard deviation of n normal draws.
    assert abs(float(weights.mean())) < 5 * 0.02 / n**0.5
    assert abs(float(weights.std()) - 0.02) < 5 * 0.02 / (2 * n) ** 0.5
    assert not linear(head).bias.any()


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
    first, second = ((head.network[i].weight, head.network[i].bias) for i in (0, 2))  # type: ignore[index]  # a head of linear layers
    by_hand = (x @ first[0].T + first[1]).clamp(min=0) @ second[0].T + second[1]
    # float32 products of width 6, in another order.
    torch.testing.assert_close(head(x), by_hand, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_dropout_stands_before_each_linear_layer_and_changes_nothing_else(dropout: float) -> None:
    torch.manual_seed(0)
    plain = built(MLPHead(hidden_features=8, out_features=2), 4)
    torch.manual_seed(0)
    head = built(MLPHead(hidden_features=8, out_features=2, dropout=dropout), 4)
    assert head.network is not None
    kinds = [type(layer).__name__ for layer in head.network]
    assert kinds == (
        ["Dropout", "Linear", "ReLU", "Dropout", "Linear"] if dropout else ["Linear", "ReLU", "Linear"]
    )
    assert all(layer.p == dropout for layer in head.network if isinstance(layer, torch.nn.Dropout))
    names = list(head.state_dict())
    assert (names == list(plain.state_dict())) == (not dropout)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), plain.parameters(), strict=True))
    x = torch.randn(3, 4)
    assert torch.equal(head.eval()(x), plain(x))
    assert torch.equal(head.train()(x), plain(x)) == (not dropout)


def parameters(*heads: Head) -> list[list[torch.nn.Parameter]]:
    return [list(head.parameters()) for head in heads]


@pytest.mark.parametrize(("layers", "equal"), [(None, 4), (2, 4), (1, 2)])
def test_m8_heads_of_one_name_hold_the_very_same_first_layers(layers: int | None, equal: int) -> None:
    heads = [built(MLPHead(8, 3, share="pairs", shared_layers=layers), 6) for _ in range(3)]
    alone = [built(MLPHead(8, 3), 6), built(MLPHead(8, 3, share="others"), 6), built(TanhHead(), 6)]
    before = parameters(*heads, *alone)
    share_layers([heads[0], *alone, *heads[1:]])
    after = parameters(*heads, *alone)
    for number in (1, 2):
        shared = [mine is first for mine, first in zip(after[number], after[0], strict=True)]
        assert shared == [True] * equal + [False] * (4 - equal)
    for number in (0, 3, 4, 5):  # the first of a name and heads without one keep what they had
        assert all(new is old for new, old in zip(after[number], before[number], strict=True))
    assert len({id(weight) for each in after[:3] for weight in each}) == 4 + 2 * (4 - equal)


def test_heads_of_one_name_may_differ_in_dropout_and_behind_the_shared_layers() -> None:
    plain = built(MLPHead(8, 3, share="pairs", shared_layers=1), 6)
    dropping = built(MLPHead(8, 2, share="pairs", shared_layers=1, dropout=0.5), 6)
    share_layers([plain, dropping])
    assert plain.network is not None and dropping.network is not None
    assert dropping.network[1] is plain.network[0]
    assert dropping(torch.zeros(1, 6)).shape == (1, 2)


def test_shared_layers_stay_shared_when_weights_are_loaded_and_get_both_gradients() -> None:
    def module(seed: int) -> torch.nn.ModuleList:
        torch.manual_seed(seed)
        heads = torch.nn.ModuleList(MLPHead(5, 3, share="pairs", shared_layers=1) for _ in range(2))
        for head in heads:
            assert isinstance(head, Head)
            head.build(4)
        share_layers([head for head in heads if isinstance(head, Head)])
        return heads.double()

    first, second = module(0), module(1)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 4, dtype=torch.float64)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one(x), other(x))
    weight = second[0].network[0].weight
    assert weight is second[1].network[0].weight
    apart = [torch.autograd.grad(head(x).sum(), weight)[0] for head in second]
    (together,) = torch.autograd.grad(second[0](x).sum() + second[1](x).sum(), weight)
    # A sum of two in float64.
    torch.testing.assert_close(together, apart[0] + apart[1], rtol=0, atol=1e-14)


class ThreeLayers(Head):
    """A user's head that shares its layers."""

    share = "pairs"

    def layers(self, features: int) -> torch.nn.Sequential:
        return torch.nn.Sequential(*(torch.nn.Linear(features, features) for _ in range(3)))


class NoLayers(ThreeLayers):
    """A user's head without a linear layer."""

    def layers(self, features: int) -> torch.nn.Sequential:  # noqa: ARG002  # the base's signature
        return torch.nn.Sequential(torch.nn.Tanh())


def test_a_users_head_shares_by_its_attributes() -> None:
    one, other = built(ThreeLayers(), 4), built(ThreeLayers(), 4)
    share_layers([one, other])
    assert all(a is b for a, b in zip(one.parameters(), other.parameters(), strict=True))


class FourShared(ThreeLayers):
    shared_layers = 4


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            MLPHead(8, 3, share="pairs"),
            MLPHead(9, 3, share="pairs"),
            ["2 linear layers of equal widths", "[(6, 8), (8, 3)] and [(6, 9), (9, 3)]"],
        ),
        (MLPHead(8, 3, share="pairs"), MLPHead(8, 2, share="pairs"), ["2 linear layers of equal widths"]),
        (
            MLPHead(8, 3, share="pairs", shared_layers=1),
            MLPHead(8, 3, share="pairs"),
            ["heads of one class", "MLPHead with shared_layers: 1 and MLPHead with shared_layers: None"],
        ),
        (MLPHead(8, 3, share="pairs"), ThreeLayers(), ["heads of one class", "MLPHead", "ThreeLayers"]),
        (NoLayers(), NoLayers(), ["0 linear layers", "[] and []"]),
        (FourShared(), FourShared(), ["4 linear layers of equal widths"]),
    ],
)
def test_heads_of_one_name_that_do_not_match_are_refused(one: Head, other: Head, words: list[str]) -> None:
    heads = [built(one, 6), built(other, 6)]
    parts.check_refused(lambda: share_layers(heads), ValueError, ["share: pairs", *words])


def test_layers_of_other_input_widths_are_not_shared() -> None:
    heads = [built(MLPHead(8, 3, share="p", shared_layers=1), width) for width in (6, 7)]
    parts.check_refused(lambda: share_layers(heads), ValueError, ["[(6, 8)] and [(7, 8)] (inputs, outputs)"])


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: MLPHead(hidden_features=0), ["MLPHead.hidden_features", "1 or more", "got 0"]),
        (lambda: MLPHead(out_features=-3), ["MLPHead.out_features", "1 or more", "got -3"]),
        (lambda: MLPHead(dropout=-0.1), ["MLPHead.dropout", "a share from 0 to below 1", "got -0.1"]),
        (lambda: MLPHead(dropout=1.0), ["MLPHead.dropout", "a share from 0 to below 1", "got 1.0"]),
        (lambda: MLPHead(dropout=float("nan")), ["MLPHead.dropout", "got nan"]),
        (lambda: MLPHead(shared_layers=1), ["MLPHead.shared_layers", "share: None"]),
        (lambda: MLPHead(share="a", shared_layers=0), ["MLPHead.shared_layers", "1 or 2", "got 0"]),
        (lambda: MLPHead(train_only=False, share="a"), ["MLPHead.share", "train_only: true", "'a' with false"]),
        (lambda: TanhHead(train_only=False, share="a"), ["TanhHead.share", "train_only: true", "'a' with false"]),
        (lambda: FineTuningHead(2, dropout=1.0), ["FineTuningHead.dropout", "got 1.0"]),
        (lambda: FineTuningHead(0), ["FineTuningHead.out_features", "1 or more", "got 0"]),
        (lambda: ProjectorHead([]), ["ProjectorHead.widths", "a width for each linear layer", "got none"]),
        (lambda: ProjectorHead([4, 0]), ["ProjectorHead.widths", "1 or more", "got 0"]),
    ],
)
def test_values_that_a_head_can_not_use_are_refused(refused: Callable[[], object], words: list[str]) -> None:
    parts.check_refused(refused, ValueError, words)


def test_heads_that_are_not_built_share_nothing() -> None:
    with pytest.raises(RuntimeError, match="share_layers: expected heads whose build"):
        share_layers([MLPHead(share="pairs"), MLPHead(share="pairs")])


def test_exact_results_are_float32_under_autocast_and_with_half_precision_weights() -> None:
    head, layer = built(MLPHead(16, 16), 16), torch.nn.Linear(16, 16)
    x = torch.randn(4, 16)
    head_outside, layer_outside = head(x), layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(apply_exactly(head, x), head_outside)
        assert torch.equal(linear_exactly(layer, x), layer_outside)
    halves = linear_exactly(layer.bfloat16(), x.bfloat16())
    assert halves.dtype == apply_exactly(None, x.bfloat16()).dtype == torch.float32
    expected = x.bfloat16().float() @ layer.weight.float().T + layer.bias.float()
    torch.testing.assert_close(halves, expected, rtol=0, atol=1e-5)  # float32 sums of 16
    assert linear_exactly(torch.nn.Linear(16, 2, bias=False), x).shape == (4, 2)


def test_the_fine_tuning_head_begins_with_the_checkpoint_s_pooler_where_there_is_one(tmp_path: Path) -> None:
    config = BertConfig(**tiny.CONFIG)
    torch.manual_seed(1)
    with_pooler = BertModel(config)
    with_pooler.save_pretrained(tmp_path / "pooler")
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "none")
    for name in ("pooler", "none"):
        learn_vocabulary(tiny.TEXTS, vocabulary_size=300).save_pretrained(tmp_path / name)
        head = FineTuningHead(out_features=2)
        module = tiny.module(
            str(tmp_path / name), objectives={"pairs": TextClassification(2, head=head)}, pooler=CLSPooler()
        )
        assert head.pretrained == (name == "pooler")
        assert torch.equal(linear(head).weight, with_pooler.pooler.dense.weight) == (name == "pooler")
        said = model_facts(module)["first layer of FineTuningHead"]
        assert said == ("the checkpoint's pooler" if name == "pooler" else "starts at random")


def test_the_fine_tuning_head_and_the_first_token_are_bert_s_classifier() -> None:
    torch.manual_seed(1)
    plain = BertForSequenceClassification(BertConfig(**tiny.CONFIG, num_labels=3)).eval()
    head = built(FineTuningHead(out_features=3), 16).eval()
    head.take_pooler(plain.bert.pooler.dense)
    assert head.network is not None
    head.network[-1].load_state_dict(plain.classifier.state_dict())
    ids = torch.arange(5, 11)[None]
    with torch.no_grad():
        first = plain.bert(ids).last_hidden_state[:, 0]
        assert torch.equal(head(first), plain(ids).logits)
