"""Callback of ``fit --chunk auto``, which measures how many tokens fit into memory."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from contrastive_text.core.batch import Batch
from contrastive_text.core.distributed import min_over_ranks
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_out_of_memory
from contrastive_text.core.terminal import log_message
from contrastive_text.core.types import Slot
from contrastive_text.encoders.packing import store_last_layer
from contrastive_text.training.module import ContrastiveModule

RESERVE = 0.4
"""Share of the free memory that is reserved for intermediate gradients, buffers and other programs."""


_SYSTEM = Path("/")
_NO_LIMIT = 2**60
"""Smallest memory limit of a control group, in bytes, that means no limit (version 1: a page less than 2**63)."""


class ChunkSize(Callback):
    """Callback that sets a module's ``chunk_tokens`` to the number of tokens that fit into memory.

    The cost of a token is measured: the bytes that autograd saves for one row of ``max_length`` tokens, where
    attention costs most. Each objective with its own network adds the same cost. Gradients and the optimizer's
    moments, which are allocated in the first step, are subtracted from the free memory. A share of it
    (``RESERVE``) stays free. On a GPU the chunk is tried, and halved until it fits. All processes use the
    smallest number among them. A resumed run uses the number of its checkpoint.

    Raises:
        ValueError: The free memory can't be measured, or is too small for a single row.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measures how many tokens fit into memory; sets and prints ``chunk_tokens``."""
        assert isinstance(pl_module, ContrastiveModule)
        if trainer.ckpt_path is not None and pl_module.chunk_tokens is not None:
            log_message(f"Chunks: {pl_module.chunk_tokens:,} tokens, as in the checkpoint")
            return
        if pl_module.is_split:
            raise InvalidValueError(
                "chunk: expected a number of tokens with fsdp2, got auto; give --chunk N, and a smaller N if "
                "memory runs out. The option auto measures whole weights, and fsdp2 splits them."
            )
        longest = pl_module.encoder.max_length or pl_module.encoder.limit or 512
        # A chunk of the encoder and a chunk of each objective's own network are in memory at the same time.
        networks = 1 + sum(bool(part.token_roles) for part in pl_module.objective_parts().values())
        saved = networks * saved_bytes(pl_module, longest)
        weights = [weight for weight in pl_module.parameters() if weight.requires_grad]
        # The gradient and the two moments of each weight.
        state = 3 * sum(weight.numel() * weight.element_size() for weight in weights)
        free = free_bytes(pl_module.device) // _processes_here(trainer, pl_module.device)
        rows = int(((1 - RESERVE) * (free - state)) // saved)
        while rows >= 1 and pl_module.device.type == "cuda" and not _fits(pl_module, networks * rows, longest):
            rows //= 2
        rows = min_over_ranks(rows, pl_module.device)
        if rows < 1:
            raise InvalidValueError(
                f"chunk: expected memory for a row of {longest} tokens, {(saved + state) / 2**30:.2f} GiB, got "
                f"{free / 2**30:.2f} GiB free; lower --model.encoder.max_length, or take a smaller encoder"
            )
        pl_module.set_chunk_tokens(rows * longest)
        log_message(
            f"Chunks: {pl_module.chunk_tokens:,} tokens ({saved / longest / 1024:.0f} KiB a token, "
            f"{free / 2**30:.1f} GiB free)"
        )


def saved_bytes(module: ContrastiveModule, tokens: int) -> int:
    """Measures the bytes that autograd saves to encode and pool one row of ``tokens`` tokens.

    With activation checkpointing these are the inputs of all layers, and all activations of one layer: the
    backward pass recomputes one layer at a time.
    """
    storages: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}

    def count(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return saved

    outputs: list[Tensor] = []  # keeps the storages alive, so no address is used twice
    with store_last_layer(module.encoder), saved_tensors_hooks(count, lambda saved: saved):
        outputs.append(_encode_rows(module, rows=1, tokens=tokens))
    return sum(storages.values())


def free_bytes(device: torch.device) -> int:
    """Returns the free memory of a device in bytes.

    Raises:
        ValueError: The system doesn't report its free memory.
    """
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    table = _SYSTEM / "proc/meminfo"
    if device.type != "cpu" or not table.is_file():
        raise InvalidValueError(
            f"chunk: expected a GPU or Linux, which report free memory, got {device}; give a number"
        )
    fields = dict(line.split(":") for line in table.read_text().splitlines())
    return min([int(fields["MemAvailable"].split()[0]) * 1024, *_free_in_groups()])


def _free_in_groups() -> list[int]:
    """Returns the free bytes of each control group of this process that has a memory limit.

    A container, or a cluster job, has less memory than the machine. In both versions of control groups each
    group up to the root may have a limit. Cached pages of files are released on demand, so they count as free.
    """
    membership = _SYSTEM / "proc/self/cgroup"
    free = []
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _SYSTEM / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit, used, files = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        group = root / name.strip("/")
        # In a container the name may be the group's name on the machine, and the root is the group itself.
        for place in [group, *group.parents]:
            if place == root.parent:
                break
            try:
                most, now = ((place / file).read_text().strip() for file in (limit, used))
                counts = dict(line_text.split() for line_text in (place / "memory.stat").read_text().splitlines())
            except OSError:
                continue
            if most != "max" and int(most) < _NO_LIMIT:
                free.append(max(0, int(most) - int(now) + int(counts.get(files, 0))))
    return free


def _processes_here(trainer: pl.Trainer, device: torch.device) -> int:
    return trainer.num_devices if device.type == "cpu" else 1


def _encode_rows(module: ContrastiveModule, rows: int, tokens: int) -> Tensor:
    device = module.device
    batch = Batch(
        ids=torch.arange(rows * tokens, device=device) % module.encoder.vocabulary_size,
        lengths=torch.full((rows,), tokens),
        slots=(Slot(module.encoder.plain_role, 0),),
        row_slots=torch.zeros(rows, dtype=torch.long),
        draw_keys=torch.arange(rows, device=device),
        text_ids=torch.arange(rows, device=device),
    )
    with module.trainer.precision_plugin.forward_context():
        return module.embedder._replace(chunk_tokens=None).pool(batch)


def _fits(module: ContrastiveModule, rows: int, tokens: int) -> bool:
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    try:
        torch.autograd.grad(_encode_rows(module, rows, tokens).sum(), weights, allow_unused=True)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        torch.cuda.empty_cache()
    return True
