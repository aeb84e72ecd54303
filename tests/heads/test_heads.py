"""Heads: SimCSE's layer, its initialization, shared layers, projectors, and which rows are a batch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import parts
import pytest
import tiny
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.data import learn_vocabulary
from contrastive_text.heads import (
    FineTuningHead,
    Head,
    MLPHead,
    ProjectorHead,
    TanhHead,
    WholeBatchNorm,
    apply_in_full_precision,
    build_head,
    linear_in_full_precision,
    project_roles,
    share_layers,
)
from contrastive_text.objectives import Contrastive, Objective, PairRegression, TextClassification
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


@pytest.mark.parametrize("hidden", [None, 8])
@pytest.mark.parametrize("out", [None, 2])
def test_the_mlp_head_has_the_widths_it_is_given(hidden: int | None, out: int | None) -> None:
    head = built(MLPHead(hidden_features=hidden, out_features=out), 6)
    first, second = ((head.network[i].weight, head.network[i].bias) for i in (0, 2))  # type: ignore[index]  # a head of linear layers
    assert (first[0].shape, second[0].shape) == ((hidden or 6, 6), (out or 6, hidden or 6))
    x = torch.randn(3, 6)
    by_hand = (x @ first[0].T + first[1]).clamp(min=0) @ second[0].T + second[1]
    # float32 products of width 6, in another order.
    torch.testing.assert_close(head(x), by_hand, rtol=0, atol=1e-6)


def test_dropout_stands_before_each_linear_layer_and_changes_nothing_else() -> None:
    torch.manual_seed(0)
    plain = built(MLPHead(hidden_features=8, out_features=2), 4)
    torch.manual_seed(0)
    head = built(MLPHead(hidden_features=8, out_features=2, dropout=0.3), 4)
    assert head.network is not None
    assert [type(layer).__name__ for layer in head.network] == ["Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert [layer.p for layer in head.network if isinstance(layer, torch.nn.Dropout)] == [0.3, 0.3]
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), plain.parameters(), strict=True))
    x = torch.randn(3, 4)
    assert torch.equal(head.eval()(x), plain(x))
    assert not torch.equal(head.train()(x), plain(x))


class Deep(Head):
    """A user's head of so many linear layers, which it shares."""

    share = "pairs"

    def __init__(self, depth: int, shared_layers: int | None = None) -> None:
        super().__init__()
        self.depth = depth
        self.shared_layers = shared_layers

    def layers(self, features: int) -> torch.nn.Sequential:
        return torch.nn.Sequential(*(torch.nn.Linear(features, features) for _ in range(self.depth)))


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


def shared(hidden: int, out: int = 3, **options: Any) -> MLPHead:  # Any: of the head
    return MLPHead(hidden, out, share="pairs", **options)


def test_heads_of_one_name_may_differ_in_dropout_and_behind_the_shared_layers() -> None:
    plain, dropping = built(shared(8, shared_layers=1), 6), built(shared(8, 2, shared_layers=1, dropout=0.5), 6)
    share_layers([plain, dropping])
    assert plain.network is not None and dropping.network is not None
    assert dropping.network[1] is plain.network[0]
    assert dropping(torch.zeros(1, 6)).shape == (1, 2)
    one, other = built(Deep(3), 4), built(Deep(3), 4)
    share_layers([one, other])
    assert all(a is b for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_shared_layers_stay_shared_when_weights_are_loaded_and_get_both_gradients() -> None:
    def module(seed: int) -> torch.nn.ModuleList:
        torch.manual_seed(seed)
        heads = [built(shared(5, shared_layers=1), 4) for _ in range(2)]
        share_layers(heads)
        return torch.nn.ModuleList(heads).double()

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


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            shared(9),
            shared(8),
            ["2 linear layers of equal widths", "[(6, 9), (9, 3)] and [(6, 8), (8, 3)] (inputs, outputs)"],
        ),
        (shared(8, 2), shared(8, 3), ["2 linear layers of equal widths"]),
        (
            shared(8, shared_layers=1),
            shared(8),
            ["heads of the same class", "MLPHead with shared_layers: 1 and MLPHead with shared_layers: None"],
        ),
        (shared(8), Deep(3), ["heads of the same class", "MLPHead", "Deep"]),
        (Deep(0), Deep(0), ["0 linear layers", "[] and []"]),
        (Deep(3, 4), Deep(3, 4), ["4 linear layers of equal widths"]),
    ],
)
def test_heads_of_one_name_that_do_not_match_are_refused(one: Head, other: Head, words: list[str]) -> None:
    for call, error, said in (
        (lambda: share_layers([one, deepcopy(one)]), RuntimeError, ["share_layers: expected heads whose build"]),
        (lambda: share_layers([built(one, 6), built(other, 6)]), ValueError, ["share: pairs", *words]),
    ):
        parts.check_refused(call, error, said)


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
        (lambda: MLPHead(train_only=False, share="a"), ["MLPHead.share", "train_only: false", "got 'a'"]),
        (lambda: TanhHead(train_only=False, share="a"), ["TanhHead.share", "train_only: false", "got 'a'"]),
        (lambda: FineTuningHead(2, dropout=1.0), ["FineTuningHead.dropout", "got 1.0"]),
        (lambda: FineTuningHead(0), ["FineTuningHead.out_features", "1 or more", "got 0"]),
        (lambda: ProjectorHead([]), ["ProjectorHead.widths", "a width for each linear layer", "got []"]),
        (lambda: ProjectorHead([4, 0]), ["ProjectorHead.widths", "1 or more", "got 0"]),
    ],
)
def test_values_that_a_head_can_not_use_are_refused(refused: Callable[[], object], words: list[str]) -> None:
    parts.check_refused(refused, ValueError, words)


def test_exact_results_are_float32_under_autocast_and_with_half_precision_weights() -> None:
    head, layer = built(MLPHead(16, 16), 16), torch.nn.Linear(16, 16)
    x = torch.randn(4, 16)
    head_outside, layer_outside = head(x), layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(apply_in_full_precision(head, x), head_outside)
        assert torch.equal(linear_in_full_precision(layer, x), layer_outside)
    halves = linear_in_full_precision(layer.bfloat16(), x.bfloat16())
    assert halves.dtype == apply_in_full_precision(None, x.bfloat16()).dtype == torch.float32
    expected = x.bfloat16().float() @ layer.weight.float().T + layer.bias.float()
    torch.testing.assert_close(halves, expected, rtol=0, atol=1e-5)  # float32 sums of 16
    assert linear_in_full_precision(torch.nn.Linear(16, 2, bias=False), x).shape == (4, 2)


def test_the_fine_tuning_head_begins_with_the_checkpoint_s_pooler_where_there_is_one(tmp_path: Path) -> None:
    config = BertConfig(**tiny.CONFIG)
    torch.manual_seed(1)
    pooled = BertModel(config)
    pooled.save_pretrained(tmp_path / "pooler")
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "none")
    for name in ("pooler", "none"):
        learn_vocabulary(tiny.TEXTS, vocabulary_size=300).save_pretrained(tmp_path / name)
        head = FineTuningHead(out_features=2)
        module = tiny.module(
            str(tmp_path / name), objectives={"pairs": TextClassification(2, head=head)}, pooler=CLSPooler()
        )
        assert head.pretrained == (name == "pooler")
        assert torch.equal(linear(head).weight, pooled.pooler.dense.weight) == (name == "pooler")
        said = model_facts(module)["first layer of FineTuningHead"]
        assert said == ("the checkpoint's pooler" if name == "pooler" else "starts at random")


def test_the_fine_tuning_head_and_the_first_token_are_bert_s_classifier() -> None:
    torch.manual_seed(1)
    plain = BertForSequenceClassification(BertConfig(**tiny.CONFIG, num_labels=3)).eval()
    head = built(FineTuningHead(out_features=3), 16).eval()
    head.set_pooler(plain.bert.pooler.dense)
    assert head.network is not None
    head.network[-1].load_state_dict(plain.classifier.state_dict())
    ids = torch.arange(5, 11)[None]
    with torch.no_grad():
        first = plain.bert(ids).last_hidden_state[:, 0]
        assert torch.equal(head(first), plain(ids).logits)


ROUNDING = 1e-12
"""Float64, vectors of length 1 to 10 and some ten rows."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(*shape, generator=noise, dtype=torch.float64)


@pytest.mark.parametrize("affine", [True, False])
def test_one_process_normalizes_as_torch_does_in_training_and_after_it(affine: bool) -> None:
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


def test_a_large_mean_leaves_the_digits_of_the_spread() -> None:
    rows = drawn(16, 2).float()
    found, shifted = WholeBatchNorm(2)(rows), WholeBatchNorm(2)(rows + 4096)
    # Rounding of the shifted rows themselves: 4096 has a last place of 2.4e-4 in float32, their spread is 2.
    torch.testing.assert_close(shifted, found, rtol=0, atol=1e-3)


def test_the_default_is_diffcses_projector_and_barlow_twins_ends_with_a_linear_layer() -> None:
    head, other = ProjectorHead(last_norm=True), ProjectorHead([8, 8, 2], together=False)
    assert (build_head(head, 3), build_head(other, 5)) == (3, 2)
    assert head.network is not None and other.network is not None
    first, norm, rectifier, last, end = head.network
    assert [(layer.in_features, layer.out_features, layer.bias) for layer in (first, last)] == [
        (3, 6, None),
        (6, 3, None),
    ]
    assert norm.weight is not None and end.weight is None
    assert isinstance(rectifier, nn.ReLU)
    kinds = [type(layer).__name__ for layer in other.network]
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
def test_parts_of_several_slots_are_normalized_in_one_batch_or_slot_by_slot(together: bool) -> None:
    slots = [drawn(4, 1, 3), drawn(4, 2, 3, seed=1)]
    head = ProjectorHead([2], last_norm=True, together=together)
    head.build(3)
    head.double()
    found = torch.cat(project_roles(head, slots, head), dim=1)
    linear = head.network[0](torch.cat(slots, dim=1))  # type: ignore[index]  # it is built
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
