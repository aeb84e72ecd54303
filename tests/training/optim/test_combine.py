"""One gradient out of many: conformance values, and a slow reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from contrastive_text.training import AdamW, Combine, PCGrad, Uncertainty, WeightedSum
from contrastive_text.training.optim import gradient_figures
from contrastive_text.training.optim.combine import Gradients, objective_gradients, project_conflicts

# The sheet's tolerance for float64; its values are printed with ten digits.
EXACT = 1e-6

SCOPES = ("shared", "all")
REDUCTIONS = ("sum", "mean", "mixed")


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_parameter(rows: Sequence[Sequence[float]]) -> Gradients:
    """Gradients of one parameter that every objective uses."""
    used = torch.ones(len(rows), 1, dtype=torch.bool)
    return Gradients([double(row) for row in rows], used, torch.tensor([len(rows[0])]))


def linear(parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Sequence[float]]) -> Tensor:
    """A loss with the given gradients."""
    return torch.stack([(parameters[name] * double(g)).sum() for name, g in gradients.items()]).sum()


def gradient_of(combine: Combine, losses: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Returns the gradients after ``backward`` of parameters that are 1, for losses given by their gradients."""
    sizes = {name: len(g) for loss in losses.values() for name, g in loss.items()}
    parameters = {name: nn.Parameter(torch.ones(size, dtype=torch.float64)) for name, size in sizes.items()}
    values = {name: linear(parameters, loss) for name, loss in losses.items()}
    combine(values, list(parameters.values()), key=0).backward()
    return {name: p.grad.tolist() for name, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize(("reduction", "key"), [("sum", "sum_paper"), ("mean", "mean_reference_code")])
def test_m1_two_conflicting_gradients(vectors: dict[str, Any], reduction: Any, key: str) -> None:
    case = vectors["pcgrad"]["two_tasks"]
    g1, g2 = double(case["g1"]), double(case["g2"])
    assert project_conflicts(g1, [g2]).tolist() == pytest.approx(case["g1_projected"], abs=EXACT)
    assert project_conflicts(g2, [g1]).tolist() == pytest.approx(case["g2_projected"], abs=EXACT)
    reached = gradient_of(PCGrad(reduction=reduction), {"a": {"w": case["g1"]}, "b": {"w": case["g2"]}})
    assert reached["w"] == pytest.approx(case[key], abs=EXACT)


def test_m2_gradients_without_conflict_stay_as_they_are(vectors: dict[str, Any]) -> None:
    agree, right = vectors["pcgrad"]["no_conflict"], vectors["pcgrad"]["zero_dot_is_not_conflict"]
    assert gradient_of(PCGrad(), {"a": {"w": agree["g1"]}, "b": {"w": agree["g2"]}})["w"] == agree["sum"]
    pair = double(right["g1"]), double(right["g2"])
    found = [project_conflicts(one, [other]).tolist() for one, other in (pair, pair[::-1])]
    assert found == right["projected"]


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_m3_three_tasks_in_a_given_order(vectors: dict[str, Any], direction: str) -> None:
    case = vectors["pcgrad"]["three_tasks"]
    gradients = one_parameter(case["g"])
    orders = [sorted({0, 1, 2} - {i}, reverse=direction == "descending") for i in range(3)]
    for i, expected in enumerate(case[f"order_{direction}"]):
        reached = project_conflicts(gradients.rows[i], [gradients.rows[j] for j in orders[i]])
        assert reached.tolist() == pytest.approx(expected, abs=EXACT)
    total = PCGrad().merge(gradients, orders)
    assert total.tolist() == pytest.approx(case[f"sum_{direction}"], abs=EXACT)


@pytest.mark.parametrize(
    ("scope", "reduction", "key"),
    [
        ("shared", "mean", "merged_shared_only_mean_on_shared"),
        ("shared", "mixed", "merged_shared_only_mean_on_shared"),
        ("shared", "sum", "merged_shared_only_sum_paper"),
        ("all", "mixed", "merged_reference_code_mean_on_shared_sum_on_heads"),
    ],
)
def test_m4_heads_change_only_in_the_scope_of_all(
    vectors: dict[str, Any], scope: Any, reduction: Any, key: str
) -> None:
    case = vectors["pcgrad"]["head_leak"]
    (a0, a1, a_head, _), (b0, b1, _, b_head) = case["g1"], case["g2"]
    losses = {"a": {"shared": [a0, a1], "one": [a_head]}, "b": {"shared": [b0, b1], "two": [b_head]}}
    reached = gradient_of(PCGrad(scope, reduction), losses)
    assert [*reached["shared"], *reached["one"], *reached["two"]] == pytest.approx(case[key], abs=EXACT)


@pytest.mark.parametrize(
    ("reduction", "key"),
    [("mean", "consistent_result_mean_over_tasks_that_use_it"), ("mixed", "reference_code_result_partial")],
)
def test_m5_a_layer_of_two_among_three_tasks(vectors: dict[str, Any], reduction: Any, key: str) -> None:
    case = vectors["pcgrad"]["partially_shared_layer"]
    whole = case["gradient_per_task_on_layer_shared_by_all"]
    part = case["gradient_per_task_on_layer_shared_by_tasks_2_and_3_only"]
    losses = {
        str(i): {"whole": [g]} | ({} if h is None else {"part": [h]})
        for i, (g, h) in enumerate(zip(whole, part, strict=True))
    }
    reached = gradient_of(PCGrad(reduction=reduction), losses)
    assert reached["whole"] == pytest.approx([case["reference_code_result"]], abs=EXACT)
    assert reached["part"] == pytest.approx([case[key]], abs=EXACT)


def test_m10_the_mean_of_three_tasks() -> None:
    values = {"a": double(1.0), "b": double(2.5), "c": double(4.0)}
    assert float(WeightedSum(reduction="mean")(values, [], key=0)) == pytest.approx(7.5 / 3, rel=1e-15)
    assert float(WeightedSum()(values, [], key=0)) == 7.5


def slow_pcgrad(
    losses: Sequence[Sequence[Sequence[float] | None]],
    orders: Sequence[Sequence[int]],
    scope: str,
    reduction: str,
) -> list[list[float]]:
    """Algorithm 1 number by number; ``losses[i][k]`` is the gradient of objective i in parameter k, or None."""
    sizes = [next(len(loss[k]) for loss in losses if loss[k] is not None) for k in range(len(losses[0]))]
    total = [[0.0] * size for size in sizes]
    for i, order in enumerate(orders):
        running = [list(g) if g is not None else [0.0] * size for g, size in zip(losses[i], sizes, strict=True)]
        for j in order:
            both = [
                k
                for k in range(len(sizes))
                if losses[j][k] is not None and (scope == "all" or losses[i][k] is not None)
            ]
            dot = sum(x * y for k in both for x, y in zip(running[k], losses[j][k], strict=True))
            square = sum(y * y for k in both for y in losses[j][k])
            if dot < 0:
                for k in both:
                    running[k] = [x - dot / square * y for x, y in zip(running[k], losses[j][k], strict=True)]
        total = [[x + y for x, y in zip(t, r, strict=True)] for t, r in zip(total, running, strict=True)]
    for k in range(len(sizes)):
        users = sum(loss[k] is not None for loss in losses)
        divisor = {"sum": 1, "mean": users, "mixed": users if users == len(losses) else 1}[reduction]
        total[k] = [x / divisor for x in total[k]]
    return total


@given(st.integers(0, 2**32), st.integers(2, 4))
@pytest.mark.parametrize(("scope", "reduction"), [*product(SCOPES, REDUCTIONS)])
def test_pcgrad_equals_the_slow_reference(scope: Any, reduction: Any, number: int, objectives: int) -> None:
    noise = torch.Generator().manual_seed(number)
    sizes = {"a": 3, "b": 2, "c": 4, "d": 1}
    uses = torch.rand(objectives, len(sizes), generator=noise) < 0.6
    uses[0] |= ~uses.any(dim=0)
    # Integers: exact zeros and exactly opposite gradients occur.
    losses = {
        str(i): {
            name: torch.randint(-2, 3, (size,), generator=noise).double().tolist()
            for k, (name, size) in enumerate(sizes.items())
            if uses[i, k]
        }
        for i in range(objectives)
    }
    combine = PCGrad(scope, reduction, seed=number)
    parameters = {name: nn.Parameter(torch.ones(size, dtype=torch.float64)) for name, size in sizes.items()}
    values = {name: linear(parameters, loss) for name, loss in losses.items() if loss}
    losses = {name: losses[name] for name in values}
    loss = combine(values, list(parameters.values()), key=7)
    assert all(parameter.grad is None for parameter in parameters.values())
    loss.backward()
    if len(values) == 1:
        return
    divisor = 1 if reduction == "sum" else len(values)
    assert loss.item() == pytest.approx(sum(value.item() for value in values.values()) / divisor, rel=1e-15)
    expected = slow_pcgrad(
        [[loss.get(name) for name in sizes] for loss in losses.values()],
        orders=combine.orders(len(values), key=7),
        scope=scope,
        reduction=reduction,
    )
    for parameter, gradient in zip(parameters.values(), expected, strict=True):
        assert parameter.grad.tolist() == pytest.approx(gradient, rel=1e-12, abs=1e-12)  # another order of sums


def test_bfloat16_autocast_rounds_nothing_that_an_ordinary_backward_keeps() -> None:
    def loss(module: nn.Module, x: Tensor) -> Tensor:
        y = module(x)
        with torch.autocast("cpu", enabled=False):  # as the similarity does
            return (y.float() @ y.float().T).square().sum()

    def flat_grad(module: nn.Module) -> Tensor:
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    torch.manual_seed(0)
    plain, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    module = deepcopy(plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = loss(plain, x)
        value = loss(module, x)
        # Two objectives of one mind: twice the plain gradient.
        combined = PCGrad()({"a": value, "b": value}, list(module.parameters()), key=0)
    expected.backward()
    combined.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
    assert flat_grad(module).isfinite().all()
    assert torch.equal(flat_grad(module), 2 * flat_grad(plain))


def test_half_precision_weights_are_projected_in_float32() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    gradients = objective_gradients({"a": parameter.sum()}, [parameter])
    assert gradients.rows[0].dtype == torch.float32
    PCGrad()({"a": parameter.sum(), "b": -2 * parameter[0]}, [parameter], key=0).backward()
    assert parameter.grad is not None
    assert parameter.grad.dtype == torch.bfloat16
    # (1, 1, 1) loses its first entry; (-2, 0, 0) keeps -2 + 2/3.
    assert parameter.grad.tolist() == pytest.approx([-4 / 3, 5 / 3, 5 / 3], rel=2**-8)


def test_the_graph_is_freed_with_the_last_objective_and_without_one_the_value_has_none() -> None:
    weight = nn.Parameter(torch.ones(2))
    values = {"a": weight.square().sum(), "b": -weight.exp().sum()}
    PCGrad()(values, [weight], key=0)
    with pytest.raises(RuntimeError, match="second time"):
        values["b"].backward()
    loss = PCGrad()({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, [nn.Parameter(torch.ones(2))], key=0)
    assert loss.item() == 3.0 and not loss.requires_grad


def test_gradients_that_are_zero_or_tiny_stay_finite() -> None:
    one, zero, tiny = torch.tensor([1.0, -1.0]), torch.zeros(2), torch.tensor([-1e-30, 0.0])
    assert torch.equal(project_conflicts(one, [zero]), one)
    assert project_conflicts(one, [tiny]).isfinite().all()
    assert torch.equal(project_conflicts(zero, [one]), zero)


@pytest.mark.parametrize("combine", [PCGrad(), PCGrad("all", "mixed"), WeightedSum(), Uncertainty()])
def test_a_parameter_of_no_objective_keeps_no_gradient(combine: Combine) -> None:
    combine.build(["a", "b"])
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    combine({"a": used[0], "b": used[1] - used[0]}, [used, idle], key=0).backward()
    assert used.grad is not None
    assert idle.grad is None


def test_a_step_with_one_objective_gives_its_loss_itself() -> None:
    weight = nn.Parameter(torch.ones(2))
    value = weight.sum()
    for reduction in REDUCTIONS:
        assert PCGrad(reduction=reduction)({"a": value}, [weight], key=0) is value
    assert WeightedSum(reduction="mean")({"a": value}, [weight], key=0).item() == value.item()


def test_the_order_comes_from_seed_and_key() -> None:
    combine = PCGrad()
    orders = [combine.orders(4, key) for key in range(20)]
    for order in orders:
        assert [sorted([i, *others]) for i, others in enumerate(order)] == [[0, 1, 2, 3]] * 4
    assert orders == [PCGrad().orders(4, key) for key in range(20)]
    assert len({str(order) for order in orders}) > 15  # of 6^4 orders
    assert {tuple(order[0]) for order in orders} > {(1, 2, 3), (3, 2, 1)}
    assert orders != [PCGrad(seed=43).orders(4, key) for key in range(20)]


def test_uncertainty_equals_its_formula_with_gradients() -> None:
    combine = Uncertainty()
    combine.build(["a", "b", "absent"])
    combine.double()
    with torch.no_grad():
        for name, s in {"a": 0.3, "b": -1.2, "absent": 5.0}.items():
            combine.log_variances[name].fill_(s)
    a, b = double(2.0).requires_grad_(), double(0.7).requires_grad_()
    loss = combine({"a": a, "b": b}, [], key=0)
    loss.backward()
    assert loss.item() == pytest.approx(math.exp(-0.3) * 2 + 0.15 + math.exp(1.2) * 0.7 - 0.6, rel=1e-14)
    assert float(a.grad) == pytest.approx(math.exp(-0.3), rel=1e-14)
    assert float(combine.log_variances["a"].grad) == pytest.approx(-2 * math.exp(-0.3) + 0.5, rel=1e-14)
    assert float(combine.log_variances["b"].grad) == pytest.approx(-0.7 * math.exp(1.2) + 0.5, rel=1e-14)
    assert combine.log_variances["absent"].grad is None
    assert {name: float(w) for name, w in combine.logs().items()} == pytest.approx(
        {"weight/a": math.exp(-0.3), "weight/b": math.exp(1.2), "weight/absent": math.exp(-5.0)}
    )


def test_learned_weights_are_spared_from_decay_and_are_part_of_the_state() -> None:
    combine = Uncertainty()
    combine.build(["a", "b"])
    groups = AdamW(weight_decay=0.1).build(combine.named_parameters()).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.0, 2)]
    assert list(combine.state_dict()) == ["log_variances.a", "log_variances.b"]


def test_an_objective_that_was_not_built_is_refused() -> None:
    with pytest.raises(ValueError, match=r"named in build, got 'a' with none built"):
        Uncertainty()({"a": torch.tensor(1.0)}, [], key=0)


def test_figures_are_norms_and_cosines_over_what_both_use() -> None:
    shared, one, other = (nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in (2, 1, 1))
    values = {
        "a": (shared * double([3.0, 4.0])).sum() + 12 * one.sum(),
        "b": (shared * double([-4.0, -3.0])).sum() + other.sum(),
        "c": 2 * other.sum(),
        "zero": 0 * shared.sum(),
    }
    figures = gradient_figures(values, [shared, one, other])
    sum(values.values()).backward()  # the graph is still there
    assert {name: float(figure) for name, figure in figures.items()} == pytest.approx(
        {
            "norm/a": 13.0,
            "norm/b": math.sqrt(26),
            "norm/c": 2.0,
            "norm/zero": 0.0,
            "cosine/a/b": -24 / 25,
            "cosine/a/zero": 0.0,
            "cosine/b/c": 1.0,
            "cosine/b/zero": 0.0,
        }
    )
    assert not any(figure.requires_grad for figure in figures.values())
