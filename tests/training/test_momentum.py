"""A network that follows the trained one: against a slow loop, in the authors' orders, and where it isn't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    MaskBatch,
    Momentum,
    Queue,
    Siblings,
)
from contrastive_text.training.checks import check_strategy
from contrastive_text.training.forward_pass import read_slots
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.momentum import UpdateMomentum
from contrastive_text.views import Adversarial, DeleteTokens, FeatureCutoff, RepeatTokens

DECAY = 0.7
# Float64, a hundred steps of averaging at most.
ROUNDING = 1e-12


def module_of(
    keys: Momentum, dropout: float = 0.0, masked: Sequence[ColumnPart] = (), **parts: Any
) -> ContrastiveModule:  # Any: of the module
    """A module in float64 with a queue of keys, behind a head."""
    torch.manual_seed(0)
    objective = Contrastive(
        InfoNCE(0.2), head=TanhHead(), columns=[Duplicates(), Siblings(), Queue(9), keys, *masked]
    )
    encoder = TransformerEncoder(config={**tiny.CONFIG, "initializer_range": 0.3}, dropout=dropout)
    return ContrastiveModule(encoder, objectives={"c": objective}, **parts).double()


def rows(step: int = 0, n: int = 4) -> Batch:
    """Anchors and positives of different lengths."""
    noise = torch.Generator().manual_seed(step)
    lengths = torch.randint(4, 8, (2 * n,), generator=noise)
    return Batch(
        ids=torch.randint(5, 300, (int(lengths.sum()),), generator=noise),
        lengths=lengths,
        slots=(Slot("anchor", 0), Slot("positive", 0)),
        row_slots=torch.arange(2).repeat_interleave(n),
        draw_keys=torch.arange(2 * n) + 100 * step,
        text_ids=torch.arange(2 * n) + 100 * step,
        seed=step,
    )


def keys_of(module: ContrastiveModule, batch: Batch) -> Tensor:
    (keys,) = module.encode(batch).keys.values()
    return keys.embeddings


@pytest.mark.parametrize("method", ["ESimCSE", "MoCo"])
def test_the_keys_are_those_of_the_authors_order_of_a_step(method: str) -> None:
    esimcse = method == "ESimCSE"
    options: dict[str, Any] = {"of": "anchor", "head": "trained"} if esimcse else {}
    module = module_of(Momentum(DECAY, **options), masked=[] if esimcse else [MaskBatch()])
    objective = module.objective_parts()["c"]
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5)
    copy = deepcopy(module)  # the authors'
    theirs = copy.objective_parts()["c"]

    def average(one: torch.nn.Module, other: torch.nn.Module) -> None:
        for mine, trained in zip(one.parameters(), other.parameters(), strict=True):
            mine.data = DECAY * mine.data + (1 - DECAY) * trained.data

    for number in range(4):
        batch = rows(number)
        encoded = module.encode(batch)
        (found,) = encoded.keys.values()
        # MoCo: at the start of a step; ESimCSE: after the forward pass, before the keys. No optimizer in between.
        average(copy.encoder, module.encoder)
        if not esimcse:
            assert theirs.head is not None and objective.head is not None
            average(theirs.head, objective.head)
        head = objective.head if esimcse else theirs.head
        role = batch.keep([Slot("anchor" if esimcse else "positive", 0)])
        with torch.no_grad():
            expected = head(copy.embedder.pool(role))
        torch.testing.assert_close(found.embeddings, expected, rtol=0, atol=ROUNDING)
        optimizer.zero_grad()
        module.objective_value(encoded, "c")[0].backward()
        objective.finish_step()
        optimizer.step()
        module.momentum.update_all()


class Watch(Callback):
    """Follows by a slow loop, once for every step of the optimizer."""

    def __init__(self) -> None:
        self.slow: dict[str, Tensor] = {}
        self.steps = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        now = {name: weight.detach().clone() for name, weight in pl_module.encoder.named_parameters()}
        if not self.slow:
            self.slow = now
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            self.slow = {name: DECAY * old + (1 - DECAY) * now[name] for name, old in self.slow.items()}
        for name, weight in pl_module.momentum["c"].encoder.named_parameters():
            torch.testing.assert_close(weight, self.slow[name], rtol=0, atol=ROUNDING)


def test_a_run_follows_once_for_every_step_of_the_optimizer_from_the_weights_that_it_starts_with(
    tmp_path: Path, bert: str
) -> None:
    keys = Momentum(DECAY, of="anchor", views=False, dropout=False, head="trained")
    objectives = {"c": Contrastive(columns=[Duplicates(), Siblings(), Queue(12), keys])}
    module = tiny.module(bert, dropout=0.1, objectives=objectives, optimizer=tiny.SGD())
    with torch.no_grad():  # weights that come once it is built, as those of --init_from do
        module.encoder.model.embeddings.word_embeddings.weight.mul_(2)
    watch = Watch()
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    options = {"accumulate_grad_batches": 2, "max_steps": 3, "precision": "64-true", "log_every_n_steps": 3}
    trainer = tiny.trainer(tmp_path, callbacks=[watch], **options)
    trainer.fit(module, data)
    assert watch.steps == 2  # the last one is followed by no batch
    assert trainer.callback_metrics["train/c/momentum_distance"] > 0
    assert not [
        name for name, weight in module.named_parameters() if "momentum" in name and weight.grad is not None
    ]


def test_a_step_that_mixed_precision_skips_is_none() -> None:
    module = module_of(Momentum(DECAY))
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer, follows = torch.optim.SGD(weights, lr=0.1), UpdateMomentum(module.momentum)
    with torch.no_grad():
        module.encoder.model.embeddings.word_embeddings.weight.add_(1)
    trainer: Any = SimpleNamespace(global_step=5, optimizers=[optimizer])
    follows.on_train_start(trainer, module)
    apart = module.momentum["c"].distance()
    assert apart > 0.1
    scaler = torch.amp.GradScaler("cpu")
    for overflow in (True, False):
        for weight in weights:
            weight.grad = torch.full_like(weight, torch.inf if overflow else 0.0)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
        expected = apart if overflow else DECAY * apart
        torch.testing.assert_close(module.momentum["c"].distance(), expected, rtol=1e-9, atol=0)
    follows.teardown(trainer, module, "fit")
    optimizer.step()
    torch.testing.assert_close(module.momentum["c"].distance(), DECAY * apart, rtol=1e-9, atol=0)


# What it sees


def test_dropout_and_views_are_as_asked_for() -> None:
    views = {"positive": [FeatureCutoff(rate=0.5)], "anchor": [DeleteTokens(0.3)]}
    found = {}
    for dropout in (True, False):
        for alters in (True, False):
            module = module_of(Momentum(dropout=dropout, views=alters), dropout=0.2, views=dict(views))
            found[dropout, alters] = keys_of(module, rows())
            assert torch.equal(keys_of(module, rows()), found[dropout, alters])
            assert module.momentum["c"].encoder.training  # as before
    plain = module_of(Momentum(), masked=[MaskBatch()])
    plain.momentum.eval()
    head = plain.momentum["c"].own_head
    expected = head(plain.embedder.pool(rows().keep([Slot("positive", 0)])))
    torch.testing.assert_close(found[False, False], expected, rtol=0, atol=ROUNDING)
    each = list(found.values())
    assert all(not torch.equal(one, other) for i, one in enumerate(each) for other in each[:i])


def test_the_trained_network_leaves_positives_out_that_are_keys() -> None:
    module = module_of(Momentum())
    objectives = list(module.objective_parts().values())
    assert [slot.role for slot in read_slots(rows(), module.plan, objectives).slots] == ["anchor"]
    module.eval()
    assert len(read_slots(rows(), module.plan, objectives).slots) == 2
    assert not module.encode(rows()).keys


def test_a_head_that_makes_keys_is_trained_under_autocast_too() -> None:
    module = module_of(Momentum(of="anchor", head="trained")).float()
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = module.objective_value(module.encode(rows()), "c")
    value.backward()
    own = module.objective_parts()["c"].head
    assert own is not None
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in own.parameters())


# Where it is not


def test_the_copy_is_in_checkpoints_and_in_nothing_else() -> None:
    module = module_of(Momentum(head="copied"))
    copies = {name: weight for name, weight in module.named_parameters() if name.startswith("momentum.c.")}
    assert {name.split(".")[2] for name in copies} == {"encoder", "own_head"}
    assert copies.keys() <= module.state_dict().keys()
    assert not any(weight.requires_grad for weight in copies.values())
    optimizer = module.optimizer.build(module.named_parameters())
    trained = sum(len(group["params"]) for group in optimizer.param_groups)
    assert trained == len(list(module.parameters())) - len(copies)
    assert not [name for name in module_of(Momentum(head="trained")).state_dict() if "own_head" in name]
    assert module.momentum["c"].encoder.tokenizer is module.encoder.tokenizer


SHARED = Momentum()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: module_of(Momentum(of="anchor", views=False), views={"anchor": [RepeatTokens()]}),
            r"columns: expected Momentum\.views: true, got false; .*RepeatTokens at model\.views\.anchor\[0\]",
        ),
        (
            lambda: module_of(Momentum(), views={"positive": [FeatureCutoff(), Adversarial()]}),
            r"model\.views\.positive\[1\]: expected a role that c reads of the trained network for Adversarial",
        ),
        (
            lambda: ContrastiveModule(
                TransformerEncoder(config=tiny.CONFIG),
                objectives={name: Contrastive(columns=[Duplicates(), Siblings(), SHARED]) for name in "ab"},
            ),
            r"objectives\.a\.columns: expected a different Momentum for each objective, got the Momentum of b",
        ),
    ],
)
def test_views_without_sense_and_a_momentum_of_two_objectives_are_refused(
    build: Callable[[], ContrastiveModule], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_weights_in_half_precision_are_refused() -> None:
    module = module_of(Momentum())
    trainer: Any = SimpleNamespace(precision="bf16-true", strategy=None)
    with pytest.raises(ValueError, match=r"trainer\.precision: expected 32-true .* for Momentum, got bf16-true"):
        check_strategy(trainer, module.combine, module.by_task)
