"""The queue of past columns in training, and in checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from chains import T, fill, held
from pytorch_lightning.callbacks import ModelCheckpoint
from safetensors import safe_open
from torch import Tensor

from contrastive_text.core.batch import Batch as RaggedBatch
from contrastive_text.core.batch import Encoded, StepBatch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.objectives import Contrastive, Duplicates, Momentum, Queue, Siblings, Terms
from contrastive_text.training import LogGradients, PCGrad
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial


def fit(module: ContrastiveModule, texts: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Trains, eight texts a step, keeping every step; gives the last weights and queues."""
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    resume = options.pop("resume", None)
    callbacks = [keep, *options.pop("callbacks", [])]
    trainer = tiny.trainer(folder, enable_checkpointing=True, callbacks=callbacks, **options)
    trainer.fit(module, tiny.data(texts), ckpt_path=resume, weights_only=True)
    return module.state_dict()


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, part in one.items():
        if isinstance(part, Tensor):
            assert torch.equal(part, other[name]), name
        else:
            check_equal(part, other[name])


def module(bert: str, **parts: Any) -> ContrastiveModule:
    """Queues of unlike kinds, one of keys, dropout, and rates that let the weights move."""
    keys = Momentum(0.9, of="anchor", head="trained")
    one, other = (
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(12), keys]),
        Contrastive(NTXent(T), columns=[Duplicates(), Siblings(), Queue(40)]),
    )
    objectives = {"one": one, "other": other}
    return tiny.module(bert, dropout=0.1, optimizer=tiny.SGD(), **{"objectives": objectives, **parts})


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own
def test_a_resumed_run_ends_with_the_same_weights_and_the_same_queue(
    bert: str, texts: str, tmp_path: Path
) -> None:
    whole = fit(module(bert), texts, tmp_path / "whole", max_steps=6)
    resume = str(tmp_path / "whole" / "step=1.ckpt")  # before the queues are full; tests/resume has other steps
    check_equal(whole, fit(module(bert), texts, tmp_path / "again", max_steps=6, resume=resume))
    emptied = torch.load(tmp_path / "whole" / "step=3.ckpt", weights_only=True)
    emptied["state_dict"] |= {name: {} for name in emptied["state_dict"] if name.endswith("_extra_state")}
    torch.save(emptied, tmp_path / "emptied.ckpt")
    other = fit(module(bert), texts, tmp_path / "lost", max_steps=6, resume=str(tmp_path / "emptied.ckpt"))
    name = next(name for name in whole if name.endswith("word_embeddings.weight"))
    assert not torch.equal(whole[name], other[name])


def test_every_micro_batch_enters_under_any_combination_of_gradients(
    bert: str, texts: str, tmp_path: Path
) -> None:
    built = module(bert, combine=PCGrad())
    built.objectives["one"], built.objectives["other"] = (
        Contrastive(columns=[Duplicates(), Siblings(), Queue(99)]),
        Contrastive(NTXent(), columns=[Duplicates(), Siblings(), Queue(99)]),
    )
    fit(built, texts, tmp_path, max_steps=2, accumulate_grad_batches=2, callbacks=[LogGradients(every=1)])
    assert [fill(part) for part in built.objective_parts().values()] == [[32], [64]]


class Watched(Contrastive):
    """Keeps what each pass compares."""

    def __init__(self, queue: int, task: str | None = None) -> None:
        super().__init__(columns=[Duplicates(), Siblings(), Queue(queue)], task=task)
        self.queue = queue
        self.seen: list[Tensor] = []

    def forward(self, encoded: Encoded) -> Terms:
        self.seen.append(encoded.role("positive")[:, 0].detach())
        return super().forward(encoded)


def test_the_pass_that_finds_a_gradient_view_does_not_enter(bert: str, texts: str, tmp_path: Path) -> None:
    watched = Watched(queue=99)
    views = {"positive": [Adversarial()]}
    fit(tiny.module(bert, views=views, objectives={"watched": watched}), texts, tmp_path, max_steps=2)
    assert len(watched.seen) == 4
    assert torch.equal(held(watched)["vectors"], torch.cat(watched.seen[1::2]))


def test_what_is_only_followed_in_a_step_does_not_enter() -> None:
    watched = Watched(queue=99, task="texts")
    built = ContrastiveModule(
        TransformerEncoder(config=tiny.CONFIG),
        views={"positive": [Adversarial(objective="watched")]},
        objectives={"watched": watched, "other": Contrastive(task="texts")},
    )
    rows = RaggedBatch(
        ids=torch.arange(5, 29),
        lengths=torch.full((6,), 4),
        slots=(Slot("anchor", 0), Slot("positive", 0)),
        row_slots=torch.arange(2).repeat_interleave(3),
        draw_keys=torch.arange(6),
        text_ids=torch.arange(6),
    )
    built.training_step(StepBatch({"texts": rows}, objectives=("other",)), 0)
    assert (len(watched.seen), fill(watched)) == (1, [0])
    built.training_step(StepBatch({"texts": rows}, objectives=("watched", "other")), 1)
    assert (len(watched.seen), fill(watched)) == (3, [3])
    assert torch.equal(held(watched)["vectors"], watched.seen[-1])


@pytest.mark.slow
def test_checkpoints_hold_the_queue_and_saved_models_and_second_stages_do_not(
    bert: str, texts: str, tmp_path: Path
) -> None:
    fit(module(bert), texts, tmp_path, max_steps=2)
    path = tmp_path / "step=2.ckpt"
    loaded = ContrastiveModule.load_from_checkpoint(path)
    assert [fill(part) for part in loaded.objective_parts().values()] == [[12], [32]]
    loaded.sentence_encoder().save_pretrained(tmp_path / "model")
    with safe_open(next((tmp_path / "model").rglob("model.safetensors")), framework="pt") as saved:
        found = [*saved.keys()]
    assert len(found) == len([*loaded.encoder.model.state_dict()])
    assert not [name for name in found if re.search("queue|extra|momentum", name)]
    second = module(bert)
    said = load_initial_weights(second, path)
    assert (
        "\nstarts as a copy: momentum network\nleft out of it: objective one, objective other, momentum" in said
    )
    assert [fill(part) for part in second.objective_parts().values()] == [[0], [0]]
