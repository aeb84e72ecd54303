"""One gradient however a step is executed: any layout, chunks, streamed losses, ranks, and views of each level.

The default run has every seventh case in one process and on two ranks with uneven parts, and siblings and losses
over the whole batch on three: every two choices of different axes meet, but each case with its ranks and parts
alone. ``slow`` takes half of a set of everything in which all meet, by turns, and a part at random. ``make
exhaustive`` takes all.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from covering import Pair, choices, covering, pairs, rest_slow, share_of, turn_of
from executions import (
    EVERY,
    EXAMPLES,
    PROMISE,
    RANKS,
    VIEWS,
    Execution,
    Outcome,
    Seen,
    batch_of,
    compare,
    distance,
    execute,
    module_of,
    part_of,
    plainly,
)
from objective_cases import CASES, PAIR, STEPS
from processes import free_ports, meeting, start_all
from reference import own_gradient_gather
from torch import Tensor

from contrastive_text import losses, objectives, poolers, training
from contrastive_text.core.distributed import sum_over_ranks
from contrastive_text.core.types import NO_LABEL
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.packing import fill_count
from contrastive_text.losses import BatchLoss, Loss, RankLoss, ScoreLoss, SoftmaxLoss
from contrastive_text.objectives import ColumnPart, Contrastive, MaskedLM, Objective, Scorer
from contrastive_text.objectives.terms import Terms
from contrastive_text.training import Combine
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, MaskTokens

COVERING = covering(EVERY)
# Other cases on three ranks: test_distributed.
OF_THREE = ("queue, hard", "SIGReg", "Barlow Twins")
THREE = [
    each for each in EVERY if each.ranks == "three uneven ranks" and any(name in each.case for name in OF_THREE)
]


def cost(execution: Execution) -> float:
    """Returns about how long an execution takes: a rank makes all calls, chunks are more, padding is computed."""
    chunked, padded = execution.parts == "chunked", execution.layout != "packed"
    return len(RANKS[execution.ranks]) * (1.6 if chunked else 1.0) * (1.1 if padded else 1.0)


def few_pairs(execution: tuple[str, ...]) -> set[Pair]:
    """Returns every two choices of an execution, of those with its case only its parts and its ranks."""
    case, views, layout, *_ = enumerate(execution)
    return pairs(execution) - {(case, views), (case, layout), (case, (4, execution[4]))}


PLAIN = ("no views", "padded", "whole", "dense", "one process")
SOME = [*CASES][::7]
OF_TWO = [each for each in EVERY if each.case in SOME and each.ranks in ("one process", "two uneven ranks")]
QUICK = covering(OF_TWO, few_pairs, cost) + covering(THREE, choices)

# Processes

Results = dict[Execution, list[Outcome]]
Weights = dict[str, dict[str, float]]
"""Way -> objective -> share of its gradient in that of the whole batch; ``off`` is what isn't along that."""


def work(number: int, ports: dict[int, int], folder: str, executions: list[tuple[str, ...]]) -> None:
    """One of four processes: a rank among four, three and two; the last two take executions of one process."""
    plain = torch.load(Path(folder) / "plain.pt", weights_only=False)
    results: dict[Any, Any] = {}  # Any: by execution its outcome, and the weights of D19

    def execute_all(ranks: int, part: slice = slice(None)) -> None:
        wanted = [each for each in itertools.starmap(Execution, executions) if len(RANKS[each.ranks]) == ranks]
        for execution in wanted[part]:
            try:
                found = execute(execution)
            except Exception as error:
                raise RuntimeError(f"{execution}, rank {number} of {ranks}") from error
            results[tuple(execution)] = tuple(compare(found, plain[execution.case, execution.views]))

    for world in (4, 3, 2):
        if number < world:
            with meeting(number, world=world, port=ports[world]):
                if world == 4:
                    results["weights"] = effective_weights(number)
                execute_all(world)
    if number >= 2:
        execute_all(1, slice(number - 2, None, 2))
    torch.save(results, Path(folder) / f"{number}.pt")


def run_all(executions: list[Execution], folder: Path) -> tuple[Results, list[Weights]]:
    """Runs executions in four processes; returns the outcomes of all ranks, and the weights of D19 of each."""
    names = dict.fromkeys((each.case, each.views) for each in executions)
    torch.save({each: plainly(*each) for each in names}, folder / "plain.pt")
    ports = dict(zip((4, 3, 2), free_ports(3), strict=True))
    start_all(work, 4, ports, str(folder), [tuple(each) for each in executions])
    found = [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(4)]
    outcomes = {each: [Outcome(*f[tuple(each)]) for f in found if tuple(each) in f] for each in executions}
    return outcomes, [f["weights"] for f in found]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[Weights]]:
    """The outcomes of the quick set on every rank, and what two objectives weigh on four."""
    return run_all(QUICK, tmp_path_factory.mktemp("ranks"))


def check(execution: Execution, outcomes: list[Outcome]) -> None:
    """Compares an execution with the promise on every rank, and with its name."""
    assert len(outcomes) == len(RANKS[execution.ranks])
    for outcome in outcomes:
        assert not outcome.wrong, execution
        check_seen(execution, Seen(**outcome.seen))


def sides_of(execution: Execution, seen: Seen) -> list[int]:
    """Returns the number of rows that each encoder of an execution gets."""
    case = CASES[execution.case]
    queries = seen.rows // len(case.slots) if case.asymmetric else 0  # one anchor in each example
    return [rows for rows in (queries, seen.rows - queries) if rows]


def check_seen(execution: Execution, seen: Seen) -> None:
    """Checks that a step was executed as it should be: equal gradients of equal ways would show nothing."""
    passes = 2 if execution.views == "every level" else 1
    if execution.parts == "whole":
        sides = sides_of(execution, seen)
        parts = sum(-(-rows // 16) for rows in sides) if execution.layout == "bucketed" else len(sides)
        assert seen.checkpoints == 0, execution
        assert len(seen.shapes) == passes * parts, execution
    else:
        parts = seen.checkpoints // passes + 1  # the last one is kept: the backward pass begins with it
        assert parts >= 3, execution
        # Each of the others goes through the network twice or, where objectives are taken singly, more often.
        assert len(seen.shapes) >= 2 * seen.checkpoints + passes, execution
    alone = "template" in execution.case  # templates alone are more rows
    first = seen.shapes[:parts]
    if execution.layout == "packed":
        assert all(block == 1 for block, _ in seen.shapes), execution
        assert not any(seen.masks), execution
        read, expected = sum(length for _, length in first), seen.tokens
        assert not any(fill_count(length) for _, length in seen.shapes), execution
        if expected < read < expected * 17 / 16:  # fill
            read = expected
    else:
        assert all(seen.masks), execution
        read, expected = sum(block for block, _ in first), seen.rows
        most = 16 if execution.layout == "bucketed" else max(sides_of(execution, seen))
        assert max(block for block, _ in seen.shapes) <= most * (1 + alone), execution
    assert read > expected if alone else read == expected, execution
    one_block = execution.layout == "padded" and execution.parts == "whole"
    if one_block and not alone and len(sides_of(execution, seen)) == 1:
        longest = max(length for _, length in seen.shapes)
        assert seen.padding == passes * (seen.rows * longest - seen.tokens), execution
    assert (seen.streamed > 0) == (execution.form == "streamed"), execution
    assert (seen.layers > 0) == CASES[execution.case].layers_anew, execution
    assert (seen.queued > 0) == ("queue" in execution.case), execution


@pytest.mark.parametrize("execution", QUICK, ids=str)
def test_a_step_gives_the_plain_steps_loss_gradient_and_weights(
    execution: Execution, ran: tuple[Results, list[Weights]]
) -> None:
    check(execution, ran[0][execution])


@pytest.mark.slow
def test_more_steps_give_the_plain_steps_loss_gradient_and_weights(tmp_path: Path) -> None:
    # One test, for it takes minutes: of several each worker would run them all.
    executions = [*dict.fromkeys([*turn_of(COVERING, 2), *share_of(EVERY)])]
    for execution, outcomes in run_all(executions, tmp_path)[0].items():
        check(execution, outcomes)


@pytest.mark.parametrize("case", [case for case in CASES if "learned temperature" in case])
def test_a_learned_temperature_has_a_gradient_to_compare(case: str) -> None:
    # Where it had none, all executions would agree on nothing.
    module = module_of(Execution(case, *PLAIN))
    module.training_step(batch_of(CASES[case], "no views", step=0), 0).backward()
    found = {name: weight.grad for name, weight in module.named_parameters() if name.endswith("log_scale")}
    assert found
    assert all(gradient is not None and bool(gradient.abs() > 1e-3) for gradient in found.values())


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_every_rank_meets_siblings_of_others_and_of_the_steps_before(step: int) -> None:
    before, now = (batch_of(CASES["InfoNCE"], "no views", step).text_ids.reshape(2, -1) for step in (0, step))
    for ranks in RANKS.values():
        for start, size in zip(itertools.accumulate((0, *ranks)), ranks, strict=False):
            other = torch.ones(EXAMPLES, dtype=torch.bool)
            other[start : start + size] = bool(step) or len(ranks) == 1
            mine = now[:, start : start + size, None]
            assert ((before[0, other] == mine[0]) & (before[1, other] != mine[1])).any()


# D19: what two objectives weigh on four ranks


def effective_weights(number: int) -> Weights:
    """Returns how much of the whole batch's gradient each of two objectives has on four ranks.

    ``own`` gathers with this rank's gradient alone and takes means of ranks' means, as the authors' codes do.
    """
    case = replace(CASES["NTXent and masked tokens"], hidden=None)
    batch = batch_of(case, "no views", step=0)
    labels = torch.full_like(batch.ids, NO_LABEL)
    firsts = (batch.lengths.cumsum(0) - batch.lengths)[batch.by_role("original")]
    labels[firsts] = batch.ids[firsts]  # one for each example: all ranks have as many
    batch = batch.replace(labels=labels)
    module = module_of(Execution("NTXent and masked tokens", *PLAIN)._replace(layout="packed"))
    weights = list(module.encoder.parameters())
    parts = module.objective_parts()

    def gradient(loss: Tensor) -> Tensor:
        each = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in each])

    def mean(terms: Terms) -> Tensor:
        return terms.total / terms.count

    # In evaluation mode nothing is gathered: that is the whole batch's gradient.
    module.eval()
    encoded = module.encode(batch)
    whole = {name: gradient(mean(objective(encoded))) for name, objective in parts.items()}
    module.train()
    share = EXAMPLES // 4
    encoded = module.encode(part_of(batch, slice(share * number, share * (number + 1))))
    gathered = [own_gradient_gather(encoded.role(role)[:, 0]) for role in ("anchor", "positive")]
    ids = torch.cat([batch.text_ids[batch.by_role(role)] for role in ("anchor", "positive")])
    own = replace(encoded, embeddings=torch.cat(gathered), slots=PAIR, text_ids=ids)
    losses = {
        "own": {"c": mean(parts["c"].eval()(own)), "mlm": mean(parts["mlm"](encoded))},
        "ours": {name: module.objective_value(encoded, name)[0] for name in parts if parts[name].train()},
    }
    found: Weights = {way: {} for way in losses}
    for way, name in itertools.product(losses, parts):
        average = sum_over_ranks(gradient(losses[way][name])) / 4
        factor = float(average @ whole[name] / (whole[name] @ whole[name]))
        off = float((average - factor * whole[name]).abs().max() / whole[name].abs().max())
        found[way] |= {name: factor, f"{name} off": off}
    return found


def test_d19_on_four_ranks_own_gradients_weigh_a_quarter_and_ours_the_whole(
    ran: tuple[Results, list[Weights]], vectors: dict[str, Any]
) -> None:
    expected = vectors["ddp_effective_weights"]
    for weights in ran[1]:
        for way, key in (("own", "declutr_4_gpus_scale_fix_false"), ("ours", "declutr_4_gpus_scale_fix_true")):
            for name, of in (("c", "contrastive"), ("mlm", "mlm")):
                # Float64: the whole gradient times a number, and nothing beside it.
                assert weights[way][name] == pytest.approx(expected[key][of], rel=PROMISE)
                assert weights[way][f"{name} off"] <= PROMISE
        ratio = 0.1 * weights["own"]["mlm"] / weights["own"]["c"]
        assert ratio == pytest.approx(expected["simcse_4_gpus_mlm_weight_0.1_effective_ratio_mlm_to_contrastive"])


# Through the trainer


def fitted(folder: Path, bert: str, **options: Any) -> dict[str, Tensor]:  # Any: the trainer's and the module's
    """Returns the weights after two steps of a run in float64."""
    chunk_tokens = options.pop("chunk_tokens", None)
    encoder = TransformerEncoder(bert, dropout=0.0)
    mask: dict[str, Any] = {"original": [MaskTokens(rate=0.5)], "positive": [FeatureCutoff()]}
    parts = {"c": Contrastive(), "mlm": MaskedLM()}
    torch.manual_seed(0)
    module = ContrastiveModule(
        encoder, views=mask, objectives=dict(parts), chunk_tokens=chunk_tokens, optimizer=tiny.SGD()
    )
    trainer = tiny.trainer(folder, precision="64-true", max_steps=2, **options)
    trainer.fit(module, datamodule=tiny.data(tiny.write_texts(folder / "texts.txt")))
    assert trainer.global_step == 2
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.fixture(scope="module")
def plain(bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The weights after a run of whole batches without options."""
    return fitted(tmp_path_factory.mktemp("plain"), bert)


BOTH = {"gradient_clip_val": 0.05, "accumulate_grad_batches": 2}


@pytest.mark.parametrize(
    "options",
    rest_slow([BOTH, {}, *({name: value} for name, value in BOTH.items())]),
    ids=["clipped and accumulated", "plain", "clipped", "accumulated"],
)
def test_clipping_and_accumulation_in_chunks_are_those_of_whole_batches(
    options: dict[str, Any], plain: dict[str, Tensor], bert: str, tmp_path: Path
) -> None:
    whole = fitted(tmp_path, bert, **options) if options else plain
    chunked = fitted(tmp_path, bert, chunk_tokens=50, **options)
    for name, value in whole.items():
        torch.testing.assert_close(chunked[name], value, rtol=0, atol=PROMISE, msg=name)
    if options:  # and the option matters
        assert distance(plain, whole) > 1e-3


# What the product has


def parts_of(package: Any, *bases: type) -> set[type]:  # Any: a module
    """Returns the classes of those kinds that a package exports."""
    exported = (
        [getattr(package, name) for name in package.__all__]
        if "__all__" in vars(package)
        else vars(package).values()
    )
    return {
        each
        for each in exported
        if isinstance(each, type) and issubclass(each, bases) and not each.__abstractmethods__
    }


def test_every_objective_loss_scorer_pooler_and_combiner_of_the_library_has_a_case() -> None:
    wanted = parts_of(objectives, Objective, ColumnPart, Scorer) - {objectives.PairLabels}
    wanted |= parts_of(losses, Loss, BatchLoss, ScoreLoss, RankLoss)
    wanted |= parts_of(poolers, poolers.Pooler) | parts_of(training, Combine)
    used: set[type] = set()
    for name in CASES:
        module = module_of(Execution(name, *PLAIN))
        used |= {type(part) for part in module.modules()}
        used |= {type(each) for part in module.modules() for each in vars(part).get("columns", ())}
    assert wanted <= used, {each.__name__ for each in wanted - used}


def test_every_loss_that_can_be_streamed_or_learn_its_temperature_does() -> None:
    found: set[tuple[type, bool, bool]] = set()
    for case in CASES.values():
        for form in (False, True):
            for objective in case.objectives({"streamed": form}).values():
                loss = vars(objective)["_modules"].get("loss")
                if isinstance(loss, SoftmaxLoss):
                    found.add((type(loss), loss.streamed is True, loss.learn_temperature))
    for loss in parts_of(losses, SoftmaxLoss):
        for learn in (False, True):
            assert {(loss, False, learn), (loss, True, learn)} <= found, loss.__name__


@pytest.mark.parametrize("case", rest_slow(name for name, case in CASES.items() if not case.in_context))
def test_views_of_each_level_give_other_losses(case: str) -> None:
    first = [float(plainly(case, views).loss["loss"]) for views in VIEWS]
    assert all(abs(one - other) > 1e-4 for i, one in enumerate(first) for other in first[:i])
