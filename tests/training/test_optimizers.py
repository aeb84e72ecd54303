"""Parameter groups, refusals and the first steps of AdamW."""

import copy
import math

import pytest
import torch
from torch import nn

from contrastive_text.training import AdamW, Optimizer


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


def test_biases_and_normalisation_weights_are_spared_from_decay():
    module = Toy()
    optimizer = AdamW(weight_decay=0.1).build(module.named_parameters())
    assert names_of(optimizer, module) == [
        (0.1, ["embedding.weight", "linear.weight"]),
        (0.0, ["norm.weight", "norm.bias", "linear.bias"]),
    ]


def test_frozen_parameters_are_left_out():
    module = Toy()
    optimizer = AdamW().build(module.named_parameters())
    built = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert built == {id(p) for p in module.parameters() if p.requires_grad}


def test_a_group_without_parameters_is_left_out():
    optimizer = AdamW(weight_decay=0.1).build(nn.LayerNorm(3).named_parameters())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0]


def test_an_iterator_is_read_once():
    assert len(AdamW().build(iter(list(Toy().named_parameters()))).param_groups) == 2


def test_settings_reach_torch():
    optimizer = AdamW(lr=6e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01).build(Toy().named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (6e-4, (0.9, 0.98), 1e-6)


def test_it_steps_as_torch_does_with_the_same_groups():
    torch.manual_seed(0)
    mine = nn.Linear(3, 2)
    other = copy.deepcopy(mine)
    ours = AdamW(lr=0.1, weight_decay=0.5).build(mine.named_parameters())
    theirs = torch.optim.AdamW(
        [{"params": [other.weight], "weight_decay": 0.5}, {"params": [other.bias], "weight_decay": 0.0}], lr=0.1
    )
    for _ in range(3):
        for module, optimizer in ((mine, ours), (other, theirs)):
            optimizer.zero_grad()
            module(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
    assert torch.equal(mine.weight, other.weight)
    assert torch.equal(mine.bias, other.bias)


def test_every_step_is_bias_corrected():
    # Constant gradient 1, no decay: each step is lr long. Without the correction: 3.16 lr, then 4.25 lr.
    weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    optimizer = AdamW(lr=0.5).build([("weight", weight)])
    for step in range(1, 11):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert weight.item() == pytest.approx(-0.5 * step, rel=1e-6)  # eps 1e-8 beside a gradient of 1


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="requires a gradient, got none"):
        AdamW().build(nn.Linear(2, 2).requires_grad_(False).named_parameters())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": -1e-5}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"eps": 0.0}, "eps"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (-0.1, 0.9)}, "betas"),
        ({"betas": (0.9,)}, "betas"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_a_setting_out_of_range_is_refused(arguments, name):
    with pytest.raises(ValueError, match=rf"AdamW\.{name}: expected"):
        AdamW(**arguments)


def test_an_optimiser_of_ones_own_needs_only_build():
    class Plain(Optimizer):
        def build(self, parameters):
            return torch.optim.SGD([p for _, p in parameters], lr=1.0)

    assert isinstance(Plain().build(Toy().named_parameters()), torch.optim.SGD)
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()
