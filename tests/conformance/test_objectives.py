"""Properties that every public objective and every public column part has.

Objectives are those of ``objective_cases``, each with the vectors that its training step gives it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import chains
import parts
import pytest
import torch
import torch.distributed as dist
import yaml
from executions import EXAMPLES, Execution, batch_of, module_of
from jsonargparse import ArgumentParser
from objective_cases import CASES
from torch import Tensor

from contrastive_text import objectives
from contrastive_text.core.batch import Encoded
from contrastive_text.core.config.specs import part_spec
from contrastive_text.losses import InfoNCE, Loss, NTXent, SupCon
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    FalseNegatives,
    MaskAbovePositive,
    MaskBatch,
    Momentum,
    NegativesAsHard,
    Objective,
    PositivesOnly,
    Queue,
    Reranking,
    SameClass,
    Siblings,
    SignedPairs,
    Terms,
)

EXACT = 1e-10
"""The promise of every way to compute a step, in float64."""


# Column parts: class -> parts with other options.
COLUMNS: dict[type[ColumnPart], list[Callable[[], ColumnPart]]] = {
    Duplicates: [Duplicates],
    Siblings: [Siblings, lambda: Siblings("positive"), lambda: Siblings("positive", joined="sum")],
    SameClass: [lambda: SameClass(2), lambda: SameClass(["bad", "good"])],
    FalseNegatives: [lambda: FalseNegatives("teacher"), lambda: FalseNegatives("teacher", 0.3, 0.1)],
    MaskAbovePositive: [MaskAbovePositive, lambda: MaskAbovePositive(0.0)],
    MaskBatch: [MaskBatch, lambda: MaskBatch(hard_negatives=True)],
    Queue: [lambda: Queue(5)],
    Momentum: [lambda: Momentum(0.5, of=["positive", "negative"]), lambda: Momentum(of="anchor", views=False)],
    PositivesOnly: [PositivesOnly],
    NegativesAsHard: [NegativesAsHard],
    SignedPairs: [SignedPairs, lambda: SignedPairs(0.5, bound=3.0)],
}
PARTS = [make for each in COLUMNS.values() for make in each]
LOSSES: dict[str, Callable[[], Loss]] = {
    "InfoNCE": lambda: InfoNCE(0.2),
    "NTXent": lambda: NTXent(0.2),
    "SupCon": lambda: SupCon(0.2),
}


def described(each: object) -> str:
    """A part as its class and options, for the name of a test."""
    made = each() if callable(each) else each
    if not isinstance(made, ColumnPart):
        return str(each)
    return f"{type(made).__name__}{[*part_spec(made, 'part').get('init_args', {}).values()] or ''}"


def inner(objective: Objective) -> Objective:
    """The objective that is computed at each width."""
    return objective.inner


def names() -> Iterator[Any]:  # Any: what parametrize takes
    """Yields each objective; slow is one whose classes of losses, heads and columns earlier ones have."""
    seen: set[type] = set()
    for case, each in CASES.items():
        for name, objective in each.objectives({}).items():
            found = {type(part) for part in objective.modules()}
            found |= {type(part) for part in getattr(inner(objective), "columns", ())}
            yield pytest.param(case, name, marks=pytest.mark.slow if found <= seen else [])
            seen |= found


every_objective = pytest.mark.parametrize(("case", "name"), [*names()])


def every_case() -> list[Objective]:
    return [each for case in CASES.values() for each in case.objectives({}).values()]


def test_every_public_objective_has_an_entry() -> None:
    found = {type(each) for objective in every_case() for each in (objective, inner(objective))}
    assert parts.public_parts(objectives, Objective) == found


def test_every_public_column_part_has_an_entry() -> None:
    chains = [each.columns for objective in every_case() if isinstance(each := inner(objective), Contrastive)]
    public = parts.public_parts(objectives, ColumnPart)
    assert public == {*COLUMNS}
    assert public == {type(part) for chain in chains for part in chain}
    assert all(type(make()) is cls for cls, makes in COLUMNS.items() for make in makes)


COLLECTIVES = (
    "all_gather", "all_reduce", "all_gather_single", "reduce_scatter_single", "all_gather_object", "broadcast",
    "barrier",
)  # fmt: skip

# Plain data


@every_objective
def test_an_objective_is_made_again_from_its_arguments_and_from_yaml(case: str, name: str) -> None:
    objective = CASES[case].objectives({})[name]
    parts.check_part(objective)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Objective, "objective")
    spec = part_spec(objective, "objective")
    text = yaml.safe_dump({"objective": spec})
    built = parser.instantiate_classes(parser.parse_object(yaml.safe_load(text))).objective
    assert part_spec(built, "objective") == spec


@pytest.mark.parametrize("make", PARTS, ids=described)
def test_a_column_part_is_made_again_from_its_arguments_and_its_short_name(
    make: Callable[[], ColumnPart],
) -> None:
    part = make()
    parts.check_part(part)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--columns", type=list[ColumnPart])
    short = {
        "class_path": type(part).__name__,
        **{k: v for k, v in part_spec(part, "").items() if k == "init_args"},
    }
    [built] = parser.instantiate_classes(parser.parse_object({"columns": [short]})).columns
    assert part_spec(built, "part") == part_spec(part, "part")


# Values


@dataclass(frozen=True)
class Taken:
    """An objective of a module, and the vectors that it has got in each step."""

    objective: Objective
    steps: list[Encoded]


@cache
def steps_of(case: str) -> dict[str, list[Taken]]:
    """The objectives of a case after each of two steps; their weights stay."""
    module = module_of(Execution(case, "no views", "padded", "whole", "dense", "one process"))
    found = {name: Taken(objective, []) for name, objective in module.objective_parts().items()}

    def note(name: str, rows: Encoded) -> None:
        hidden = None if rows.masked_hidden is None else rows.masked_hidden.detach()
        found[name].steps.append(replace(rows, embeddings=rows.embeddings.detach(), masked_hidden=hidden))

    after: dict[str, list[Taken]] = {name: [] for name in found}
    for step in range(2):
        handles = [
            each.objective.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs[0]))
            for name, each in found.items()
        ]
        module.training_step(batch_of(CASES[case], "no views", step), step)
        for handle in handles:
            handle.remove()
        for name, each in found.items():
            after[name].append(deepcopy(each))
    return after


def taken(case: str, name: str, steps: int = 2) -> Taken:
    """A copy of one of these objectives, and of its vectors."""
    return deepcopy(steps_of(case)[name][steps - 1])


def same(one: Any, other: Any) -> bool:  # Any: of a state dict
    """Returns whether two state dicts are equal, number by number."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
    return bool(one == other)


def copied(objective: Objective) -> dict[str, Any]:  # Any: of a state dict
    """The state dict as a checkpoint holds it."""
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.slow
@every_objective
def test_evaluation_has_one_value_and_touches_no_state(case: str, name: str) -> None:
    found = taken(case, name)
    objective, rows = found.objective.eval(), found.steps[-1]
    before, values = copied(objective), [objective(rows) for _ in range(2)]
    assert torch.equal(values[0].total, values[1].total)
    assert same(dict(values[0].logs), dict(values[1].logs))
    assert not any(each.requires_grad for each in values[0].logs.values())
    assert same(copied(objective), before)


@every_objective
def test_l13_no_rank_talks_to_another_in_evaluation(
    case: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taken(case, name)
    objective, rows = found.objective.eval(), found.steps[-1]
    if objective.head_of is not None:
        pytest.skip("reads the projector of another objective, which is in training mode here")
    alone = objective(rows).total

    def talk(*_: object, **__: object) -> None:
        raise AssertionError("a collective was called")

    for function, answer in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(dist, function, lambda *_, value=answer: value)
    for function in COLLECTIVES:
        monkeypatch.setattr(dist, function, talk)
    assert torch.equal(objective(rows).total, alone)


def gradients(objective: Objective, rows: Encoded) -> tuple[Terms, list[Tensor]]:
    """The terms of some rows, and the gradients of vectors and weights that have any."""
    vectors = rows.embeddings.clone().requires_grad_()
    hidden = None if rows.masked_hidden is None else rows.masked_hidden.clone().requires_grad_()
    terms = objective(replace(rows, embeddings=vectors, masked_hidden=hidden))
    objective.zero_grad()
    if terms.total.requires_grad:
        terms.total.backward()
    leaves = [vectors, *objective.parameters(), *([] if hidden is None else [hidden])]
    return terms, [each.grad for each in leaves if each.grad is not None]


@every_objective
def test_gradients_are_finite_also_of_a_zero_vector_and_of_equal_vectors(case: str, name: str) -> None:
    found = taken(case, name)
    rows = found.steps[-1]
    zero, equal = rows.embeddings.clone(), rows.embeddings[:1].expand_as(rows.embeddings)
    zero[0] = 0.0
    for vectors in (rows.embeddings, zero, equal):
        terms, reached = gradients(found.objective, replace(rows, embeddings=vectors))
        assert reached
        assert all(each.isfinite().all() for each in (terms.total, *terms.logs.values(), *reached))


@every_objective
def test_an_objective_goes_on_from_its_state_dict(case: str, name: str) -> None:
    first, other = taken(case, name), taken(case, name, steps=1)
    with torch.no_grad():
        for weight in other.objective.parameters():
            weight.add_(1.0)
    state = copied(first.objective)
    other.objective.load_state_dict(state)
    assert same(copied(other.objective), state)
    rows = first.steps[-1]
    # Each momentum encoder finds its vectors by itself.
    own: dict[object, Encoded] = {}
    if first.objective.momentum is not None:
        own[other.objective.momentum] = rows.keys[first.objective.momentum]
    terms, reached = gradients(first.objective, rows)
    again, reached_again = gradients(other.objective, replace(rows, keys=own))
    assert torch.equal(terms.total, again.total)
    torch.testing.assert_close(reached_again, reached, rtol=0, atol=0)


@every_objective
def test_the_order_of_examples_does_not_matter(case: str, name: str) -> None:
    found = taken(case, name)
    objective, order = found.objective, torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(0))
    if objective.token_roles:
        pytest.skip("reads tokens, which stay in their order")

    def moved(rows: Encoded) -> Encoded:
        places = (torch.arange(len(rows.slots)).unsqueeze(1) * EXAMPLES + order).flatten()
        return replace(
            rows,
            embeddings=rows.embeddings[places],
            text_ids=rows.text_ids[places],
            target=None if rows.target is None else rows.target[order],
            scores=None if rows.scores is None else rows.scores[order],
            guides={guide: each[places] for guide, each in rows.guides.items()},
            keys={settings: moved(each) for settings, each in rows.keys.items()},
        )

    one, other = (objective(rows).total for rows in (found.steps[-1], moved(found.steps[-1])))
    torch.testing.assert_close(other, one, rtol=EXACT, atol=EXACT)


@every_objective
def test_half_precision_gives_float32(case: str, name: str) -> None:
    found = taken(case, name)
    rows, keys = found.steps[-1], found.steps[-1].keys
    if not rows.slots or found.objective.token_roles or found.objective.needs_token_logits:
        pytest.skip("reads vectors of a network, which stay in float64")
    halves = {each: replace(key, embeddings=key.embeddings.bfloat16()) for each, key in keys.items()}
    target, scores = (None if each is None else each.float() for each in (rows.target, rows.scores))
    rows = replace(rows, embeddings=rows.embeddings.bfloat16(), target=target, scores=scores, keys=halves)
    terms = found.objective.bfloat16().eval()(rows)
    assert terms.total.dtype == torch.float32
    assert terms.total.isfinite()


@every_objective
def test_the_summary_says_the_number_of_negatives_if_there_are_any(case: str, name: str) -> None:
    objective = CASES[case].objectives({})[name]
    said = objective.describe_negatives(batch_size=64, positives=1, negatives=1)
    if isinstance(inner(objective), Contrastive | Reranking):
        assert said is not None
        number, counts = re.match(r"(?:at most )?([\d,]+) per anchor[^:]*: ([^;]+)", said).groups()  # type: ignore[union-attr]  # it matches
        kinds = re.findall(r"(?:^|, )([\d,]+) ", counts)
        assert int(number.replace(",", "")) == sum(int(kind.replace(",", "")) for kind in kinds) > 0
    else:
        assert said is None or "none" in said


# Chains of column parts


def chain_of(loss: str, makes: list[Callable[[], ColumnPart]]) -> Contrastive | None:
    """An objective of a chain; None if its parts exclude each other."""
    try:
        return Contrastive(LOSSES[loss](), columns=[make() for make in makes])
    except ValueError:
        return None


def trained(objective: Contrastive) -> list[float]:
    """The losses of three steps, of which texts recur."""
    steps = []
    for seed in range(3):
        ids = [(seed + 3 * i * i) % 11 for i in range(15)]
        rows = chains.batch(5, seed, ids=ids, hard=True, classes=True).encoded
        other = chains.batch(5, seed + 9, ids=ids, hard=True).encoded
        rows = replace(rows, guides={"teacher": other.embeddings.roll(1, dims=0)})
        if isinstance(momentum := objective.part(Momentum), Momentum):
            kept = [i for i, slot in enumerate(other.slots) if slot.role in momentum.roles]
            keys = Encoded(
                other.embeddings.reshape(3, 5, -1)[kept].flatten(0, 1),
                tuple(other.slots[i] for i in kept),
                other.text_ids.reshape(3, 5)[kept].flatten(),
            )
            rows = replace(rows, keys={momentum: keys})
        steps.append(rows)
    losses = []
    for rows in steps:
        losses.append(chains.value(objective(rows)))
        objective.finish_step()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_order_of_column_parts_changes_neither_the_loss_nor_what_is_kept(loss: str) -> None:
    compared = 0
    for further in combinations([make for make in PARTS if type(make()) is not Duplicates], 2):
        chain = [Duplicates, *further, *([lambda: SameClass(2)] if loss == "SupCon" else [])]
        one, other = chain_of(loss, chain), chain_of(loss, chain[::-1])
        assert (one is None) == (other is None), [described(make) for make in chain]
        if one is None or other is None:
            continue
        compared += 1
        assert trained(one) == pytest.approx(trained(other), rel=EXACT, abs=EXACT), [
            described(make) for make in chain
        ]
    assert compared >= 8
