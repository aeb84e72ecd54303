"""Groups of parameters, schedules and accumulated gradients in a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import tiny
import torch
from steps import Watch, batches, check_gradients, weights_of
from torch import nn

from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive
from contrastive_text.training import AdamW, ConstantSchedule, Optimizer
from contrastive_text.training.module import ContrastiveModule


class HeadOnly(Optimizer):
    """Trains the parameters of the head alone."""

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for name, p in parameters if name.startswith("head")], lr=1.0)


def test_every_parameter_is_in_one_group_and_only_matrices_decay(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(
        bert,
        head=TanhHead(train_only=False),
        objectives={"c": Contrastive(head=MLPHead())},
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
    )
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(texts))
    groups = trainer.optimizers[0].param_groups
    placed = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(module.parameters()))
    for name, parameter in module.named_parameters():
        spared = name.endswith("bias") or "LayerNorm" in name
        assert placed[id(parameter)] == (0.0 if spared else 0.1), name


def test_the_schedule_moves_with_every_step(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert, optimizer=AdamW(lr=8e-3))
    tiny.trainer(tmp_path, max_steps=4, callbacks=[watch]).fit(module, datamodule=tiny.data(texts))
    assert watch.rates == pytest.approx([8e-3, 6e-3, 4e-3, 2e-3], rel=1e-12)


def test_the_schedule_counts_optimiser_steps_over_epochs_and_accumulation(
    bert: str, texts: str, tmp_path: Path
) -> None:
    watch = Watch()
    module = tiny.module(bert, optimizer=AdamW(lr=6e-3))
    options = {"max_steps": -1, "max_epochs": 2, "accumulate_grad_batches": 2, "callbacks": [watch]}
    tiny.trainer(tmp_path, **options).fit(module, datamodule=tiny.data(texts))
    # 5 batches an epoch: steps after batches 2, 4 and 5
    steps = [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
    assert watch.rates == pytest.approx([6e-3 * (1 - step / 6) for step in steps], rel=1e-12)


def test_s11_the_recipe_s_schedule_over_15625_steps(bert: str, texts: str, tmp_path: Path) -> None:
    class Stop(pl.Callback):
        rates: tuple[float, ...] = ()

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # the base's signature
            scheduler = trainer.lr_scheduler_configs[0].scheduler
            self.rates = tuple(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](n) for n in (0, 125, 15_624))
            trainer.should_stop = True

    stop = Stop()
    module = ContrastiveModule.from_recipe("simcse", bert)
    tiny.trainer(tmp_path, max_steps=15_625, callbacks=[stop]).fit(module, datamodule=tiny.data(texts))
    # the sheet prints three and four digits
    assert stop.rates == pytest.approx((3e-5, 2.976e-5, 1.92e-9), rel=1e-3)


def test_a_run_of_unknown_length_is_refused_before_the_first_step(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    trainer = tiny.trainer(tmp_path, max_steps=-1, max_epochs=-1, callbacks=[watch])
    with pytest.raises(ValueError, match=r"LinearSchedule: .* got inf; set trainer\.max_steps"):
        trainer.fit(tiny.module(bert), datamodule=tiny.data(texts))
    assert not watch.losses


def test_accumulated_batches_give_the_mean_of_their_gradients(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(bert, dropout=0.0, optimizer=tiny.SGD(), schedule=ConstantSchedule()).double()
    start = weights_of(module)
    expected = {name: torch.zeros_like(value) for name, value in start.items()}
    for batch in batches(module, texts)[:2]:
        z = module.encode(batch).embeddings
        for name, g in zip(
            start, torch.autograd.grad(InfoNCE()(z[:8], z[8:]), list(module.parameters())), strict=True
        ):
            expected[name] += g / 2
    options = {"max_steps": 1, "accumulate_grad_batches": 2, "precision": "64-true"}
    tiny.trainer(tmp_path, **options).fit(module, datamodule=tiny.data(texts))
    check_gradients(start, weights_of(module), expected)


def test_a_module_of_another_optimizer_class_is_built_from_the_parameters(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(bert, head=TanhHead(train_only=False), optimizer=HeadOnly())
    start = weights_of(module)
    tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(texts))
    moved = {name for name, value in module.named_parameters() if not torch.equal(start[name], value)}
    assert moved == {"head.network.0.weight", "head.network.0.bias"}
