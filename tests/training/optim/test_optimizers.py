"""Parameter groups, refusals and the first steps of AdamW."""

import copy
import math
from collections.abc import Sequence

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from contrastive_text.training import AdamW
from contrastive_text.training.optim.optimizers import UncorrectedAdamW


def uncorrected_adamw(
    weight: float,
    gradients: Sequence[float],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> float:
    """The weight after AdamW's steps without bias correction, each with its decay after it."""
    mean, square = 0.0, 0.0
    for gradient in gradients:
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient * gradient
        weight = weight - lr * mean / (math.sqrt(square) + eps)
        weight = weight - lr * weight_decay * weight
    return weight


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def names_of(optimizer, module):
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [(g["weight_decay"], [names[id(p)] for p in g["params"]]) for g in optimizer.param_groups]


@pytest.mark.parametrize("correction", [True, False])
def test_biases_and_normalization_weights_are_spared_from_decay(correction):
    module = Toy()
    settings = AdamW(lr=1e-4, weight_decay=0.1, bias_correction=correction)
    optimizer = settings.build(module.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW if correction else UncorrectedAdamW)
    assert names_of(optimizer, module) == [
        (0.1, ["embedding.weight", "linear.weight"]),
        (0.0, ["norm.weight", "norm.bias", "linear.bias"]),
    ]
    assert {group["lr"] for group in optimizer.param_groups} == {1e-4}
    (group,) = settings.build(nn.LayerNorm(3).named_parameters()).param_groups  # none without parameters
    assert group["weight_decay"] == 0.0


def test_it_steps_as_torch_does_with_the_same_groups():
    torch.manual_seed(0)
    mine = nn.Linear(3, 2)
    other = copy.deepcopy(mine)
    settings = {"lr": 0.1, "betas": (0.8, 0.98), "eps": 1e-3}
    ours = AdamW(weight_decay=0.5, **settings).build(mine.named_parameters())
    theirs = torch.optim.AdamW(
        [{"params": [other.weight], "weight_decay": 0.5}, {"params": [other.bias], "weight_decay": 0.0}],
        fused=True,
        **settings,
    )
    for _ in range(3):
        for module, optimizer in ((mine, ours), (other, theirs)):
            optimizer.zero_grad()
            module(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
    assert torch.equal(mine.weight, other.weight)
    assert torch.equal(mine.bias, other.bias)


def uncorrected(weight, **settings):
    return AdamW(bias_correction=False, **settings).build([("weight", weight)])


@pytest.mark.parametrize("correction", ["with", "without"])
def test_spec_0_2_steps_under_a_constant_gradient_have_the_lengths_of_the_vectors(vectors, correction):
    case = vectors["adamw_bias_correction"]
    weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    settings = {"lr": 1.0, "betas": tuple(case["betas"]), "eps": 1e-12}  # the vectors leave eps out
    optimizer = AdamW(bias_correction=correction == "with", **settings).build([("weight", weight)])
    lengths = {}
    for step in range(1, max(map(int, case[correction])) + 1):
        before = weight.item()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        lengths[str(step)] = before - weight.item()
    assert {step: lengths[step] for step in case[correction]} == pytest.approx(case[correction], abs=1e-6)


@given(
    gradients=st.lists(st.floats(-10, 10), min_size=1, max_size=8),
    start=st.floats(-2, 2),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    eps=st.floats(1e-8, 1e-2),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_uncorrected_steps_equal_the_formula(gradients, start, betas, eps, weight_decay):
    weight = nn.Parameter(torch.tensor([[start, -start]], dtype=torch.float64))
    settings = {"lr": 0.01, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    optimizer = uncorrected(weight, **settings)
    for gradient in gradients:
        weight.grad = torch.tensor([[gradient, -gradient]], dtype=torch.float64)
        optimizer.step()
    expected = uncorrected_adamw(start, gradients, **settings)
    assert weight.tolist() == [pytest.approx([expected, -expected], rel=1e-12, abs=1e-15)]


def test_an_uncorrected_weight_without_a_gradient_stays_and_keeps_no_state_and_a_sparse_one_is_refused():
    module = Toy()
    optimizer = AdamW(weight_decay=0.1, bias_correction=False).build(module.named_parameters())
    before = copy.deepcopy(module.state_dict())
    module.linear.weight.grad = torch.ones_like(module.linear.weight)
    optimizer.step()
    moved = [name for name, value in module.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == ["linear.weight"]
    assert list(optimizer.state) == [module.linear.weight]
    module.embedding.weight.grad = torch.zeros(5, 4).to_sparse()
    with pytest.raises(TypeError, match=r"AdamW\.bias_correction: expected dense gradients"):
        optimizer.step()


def test_an_uncorrected_step_takes_a_closure_with_gradients_on():
    weight = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = uncorrected(weight, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert weight.item() < 2.0
    assert optimizer.step() is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_uncorrected_run_resumes_bit_for_bit_in_any_precision(dtype, tmp_path):
    gradients = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0)).to(dtype)

    def steps(weight, optimizer, rows):
        for row in rows:
            weight.grad = row.clone()
            optimizer.step()

    whole = nn.Parameter(torch.ones(2, 3, dtype=dtype))
    steps(whole, uncorrected(whole, lr=0.01), gradients)

    first = nn.Parameter(torch.ones(2, 3, dtype=dtype))
    before = uncorrected(first, lr=0.01)
    steps(first, before, gradients[:3])
    torch.save(before.state_dict(), tmp_path / "state.pt")
    second = nn.Parameter(first.detach().clone())
    after = uncorrected(second, lr=0.5)
    after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    steps(second, after, gradients[3:])
    assert torch.equal(whole, second)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {moment.dtype for moment in after.state[second].values()} == {wide}


def test_small_gradients_move_weights_in_half_precision():
    # The square of 1e-5 and eps 1e-8 are both 0 in float16, where the step would be infinite.
    weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float16))
    weight.grad = torch.full_like(weight, 1e-5)
    uncorrected(weight, lr=0.01).step()
    assert weight.item() == pytest.approx(-0.0316, rel=0.05)  # eps takes 3% off, float16 0.1%


def test_weights_of_different_precision_train_together():
    pairs = [(nn.Parameter(torch.ones(2, 2, dtype=dtype)), dtype) for dtype in (torch.float32, torch.bfloat16)]
    optimizer = AdamW(lr=0.1, weight_decay=0.1, bias_correction=False).build([("w", w) for w, _ in pairs])
    for weight, _ in pairs:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    expected = uncorrected_adamw(1.0, [1.0], lr=0.1, weight_decay=0.1)
    for weight, dtype in pairs:
        assert weight.dtype == dtype
        assert weight.flatten().tolist() == pytest.approx([expected] * 4, rel=2 * torch.finfo(dtype).eps)


def test_the_fused_kernel_can_be_clipped_in_mixed_precision(bert, texts, tmp_path):
    module = tiny.module(bert)
    tiny.trainer(tmp_path, precision="bf16-mixed", gradient_clip_val=1.0).fit(module, tiny.data(texts))
    assert all(group["fused"] for group in module.optimizers().optimizer.param_groups)
