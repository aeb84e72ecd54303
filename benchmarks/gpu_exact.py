"""The parts of ``gpu.py`` that hold results against each other: gradients, resumed runs, NCCL."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from gpu_work import Pieces, Row, Setting, batches_of, data_of, loss_and_gradient, module_of
from inputs import TINY, made_up_texts, tiny_encoder
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor

from contrastive_text.training import AtomicCheckpointIO

PROMISED = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Greatest difference of gradients, as a share of the greatest entry: sums in another order round elsewhere."""
WAYS: dict[str, dict[str, Any]] = {  # Any: options differ
    "padded": {"layout": "padded"},
    "bucketed": {"layout": "bucketed"},
    "packed": {"layout": "packed"},
    "padded, in chunks": {"layout": "padded", "chunk_tokens": 64},
    "packed, in chunks": {"layout": "packed", "chunk_tokens": 64},
    "padded, streamed": {"layout": "padded", "streamed": True},
}
SMALL = TINY | {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "initializer_range": 0.1,
}
"""Weights so far apart that texts have different vectors."""
STEPS, KILLED_AT, EVERY = 8, 5, 2
"""Of a run, the step in which it is killed, and how often it keeps a checkpoint."""

Weights = dict[str, Tensor]


def small_encoder(setting: Setting) -> str:
    """Returns the folder of an encoder small enough for float64."""
    folder = setting.folder / "small"
    if not folder.exists():
        folder.mkdir(parents=True)
        tiny_encoder(folder, made_up_texts(200), SMALL)
    return str(folder / "model")


def gradients(setting: Setting) -> Pieces:
    """One gradient in every layout, in chunks and streamed: in float64 held against the CPU's, plain and padded.

    In float32 it is held against the device's own, for a processor's products are others. TF32 is off.
    """
    encoder, texts = small_encoder(setting), made_up_texts(24, (3, 24))

    def gradient(device: str, dtype: torch.dtype, **options: Any) -> Tensor:  # Any: options differ
        module = module_of(encoder, dropout=0.0, **{"streamed": False, **options}).to(device, dtype)
        (batch,) = batches_of(module, setting.folder, texts, len(texts))
        loss_and_gradient(module, batch.to(device), "float32")
        found = [each.grad for each in module.parameters() if each.grad is not None]
        return torch.cat([each.flatten().cpu().double() for each in found])

    @cache
    def plain_gradient(dtype: torch.dtype) -> Tensor:
        return gradient("cpu" if dtype == torch.float64 else setting.device, dtype, layout="padded")

    def held(dtype: torch.dtype, way: dict[str, Any]) -> Row:  # Any: as above
        plain, own = plain_gradient(dtype), gradient(setting.device, dtype, **way)
        apart = float((own - plain).abs().max() / plain.abs().max())
        kept = apart <= PROMISED[dtype]
        said = (
            f"{apart:.1e} of the greatest entry, promised {PROMISED[dtype]:g}: {'kept' if kept else 'NOT kept'}"
        )
        return {"said": said, "apart": apart, "kept": kept}

    return {
        f"{name}, {str(dtype).removeprefix('torch.')}": partial(held, dtype, way)
        for dtype in PROMISED
        for name, way in WAYS.items()
    }


def fit(
    setting: Setting,
    folder: Path,
    steps: int = STEPS,
    resume: Path | None = None,
    killed: bool = False,
    **options: Any,
) -> Weights:  # Any: of Lightning's trainer
    """Trains with dropout and views, keeps checkpoints in the folder, and gives the last weights."""
    torch.manual_seed(0)
    module = module_of(small_encoder(setting), dropout=0.1)
    folder.mkdir(parents=True)
    keep = ModelCheckpoint(folder / "kept", filename="{step}", save_top_k=-1, every_n_train_steps=EVERY)
    usual = {
        "accelerator": "gpu" if setting.device == "cuda" else "cpu",
        "devices": 1,
        "precision": "bf16-mixed",
        "max_steps": steps,
        "gradient_clip_val": 1.0,
        "default_root_dir": folder,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "callbacks": [keep, *([KillItself()] if killed else [])],
        "plugins": [AtomicCheckpointIO()],
    }
    data = data_of(folder, made_up_texts(8 * (STEPS + 2)), 8)
    pl.Trainer(**{**usual, **options}).fit(module, data, ckpt_path=resume, weights_only=True)
    return {name: value.cpu().clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


class KillItself(pl.Callback):
    """Ends its process by SIGKILL, amid a run."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:  # Any: Lightning's
        """Kills where the step has come."""
        if trainer.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def be_killed(setting: Setting, folder: Path, exact: bool) -> None:
    """Is the process that ends amid its run."""
    torch.set_num_threads(setting.threads)
    fit(setting, folder, killed=True, deterministic=exact)


def resumed(setting: Setting) -> Pieces:
    """A run that SIGKILL ends, taken up from its last checkpoint, beside one that nobody stops."""
    small_encoder(setting)  # before two processes would make it

    def held(exact: bool) -> Row:
        folder = setting.folder / f"resume-{exact}"
        last = folder / "killed" / "kept" / f"step={KILLED_AT // EVERY * EVERY}.ckpt"
        process = multiprocessing.get_context("spawn").Process(
            target=be_killed, args=(setting, folder / "killed", exact)
        )
        process.start()
        whole = fit(setting, folder / "whole", deterministic=exact)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"the run that kills itself ended with status {process.exitcode}")
        again = fit(setting, folder / "resumed", resume=last, deterministic=exact)
        torch.use_deterministic_algorithms(False)
        return compared(again, whole)

    # In this order: Lightning sets cuBLAS's workspace for the first before there is one.
    return {"deterministic algorithms": partial(held, True), "the usual algorithms": partial(held, False)}


def compared(one: Weights, other: Weights) -> Row:
    """Says whether two runs end with the same bits, and if not, how far apart.

    Example:
        >>> compared({"a": torch.tensor([1.0])}, {"a": torch.tensor([1.0])})["said"]
        'bit-equal: all 1 tensors'
        >>> compared({"a": torch.tensor([1.0])}, {"a": torch.tensor([1.5])})["said"]
        'NOT bit-equal: 1 of 1 tensors differ, by 0.5 at the most'
    """
    assert one.keys() == other.keys()
    apart = {
        name: float((value.double() - other[name].double()).abs().max())
        for name, value in one.items()
        if not torch.equal(value, other[name])
    }
    said = f"bit-equal: all {len(one)} tensors"
    if apart:
        said = (
            f"NOT bit-equal: {len(apart)} of {len(one)} tensors differ, by {max(apart.values()):.2g} at the most"
        )
    return {"said": said, "equal": not apart, "apart": apart}


@contextmanager
def alone(setting: Setting) -> Iterator[str]:
    """Meets nobody: a group of one process, over NCCL, or gloo on a CPU."""
    backend = "nccl" if setting.device == "cuda" else "gloo"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield backend
    finally:
        dist.destroy_process_group()


def collectives(setting: Setting) -> Pieces:
    """NCCL with one process: each collective, and a run under DDP beside one without."""

    def each() -> Row:
        values = torch.arange(12.0, device=setting.device).reshape(4, 3)
        works: dict[str, Callable[[Tensor], object]] = {
            "all_reduce": lambda into: dist.all_reduce(into.copy_(values)),
            "all_gather": lambda into: dist.all_gather([into], values),
            "reduce_scatter": lambda into: dist.reduce_scatter(into, [values.clone()]),
            "broadcast": lambda into: dist.broadcast(into.copy_(values), src=0),
        }
        found = {}
        with alone(setting) as backend:
            for name, work in works.items():
                into = torch.zeros_like(values)
                work(into)
                found[name] = torch.equal(into, values)
        said = ", ".join(f"{name} {'right' if right else 'WRONG'}" for name, right in found.items())
        return {"said": f"{backend}: {said}", "right": found}

    def trained() -> Row:
        backend = "nccl" if setting.device == "cuda" else "gloo"
        one, other = (
            fit(setting, setting.folder / name, steps=3, deterministic=True, strategy=strategy)
            for name, strategy in (("alone", "auto"), ("ddp", DDPStrategy(process_group_backend=backend)))
        )
        if dist.is_initialized():
            dist.destroy_process_group()
        torch.use_deterministic_algorithms(False)
        row = compared(other, one)
        return row | {"said": f"{backend}: weights after 3 steps under DDP and without are {row['said']}"}

    return {"a run under DDP": trained, "collectives": each}
