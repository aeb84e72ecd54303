"""Inputs of the parts of ``gpu.py``: encoders with random weights, texts of a length, modules, batches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from inputs import TINY, made_up_texts, tiny_encoder
from machines import memory, peak, reset_peak, synchronize

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.core.batch import Batch
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive
from contrastive_text.views import FeatureCutoff

_BERT = {"model_type": "bert", "vocab_size": 30_522, "max_position_embeddings": 512}
SHAPES: dict[str, dict[str, Any]] = {  # Any: of a config.json
    "MiniLM-L6": _BERT
    | {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": _BERT
    | {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
KEPT = {"bfloat16": 64, "float32": 80}
"""Bytes that a layer keeps of a token for each of its features, on the high side: 34 where all is in 16 bits
(Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, without scores of attention, which aren't kept)."""

Row = dict[str, Any]  # Any: what was found, in words under "said", and its figures
Pieces = Mapping[str, Callable[[], Row]]


class Setting(NamedTuple):
    """Setting in which the parts of the benchmark run: device, sizes, folder, threads and rounds.

    Args:
        device: ``cuda``, or ``cpu`` to try the parts.
        quick: Whether everything is tiny.
        folder: Where they may write.
        threads: Of torch.
        rounds: In which contenders take turns.
    """

    device: str
    quick: bool
    folder: Path
    threads: int = 1
    rounds: int = 3

    def encoder(self, shape: str) -> str:
        """Returns the folder of an encoder with random weights; a tiny one in a smoke run."""
        folder = self.folder / shape
        if not folder.exists():
            folder.mkdir(parents=True)
            tiny_encoder(folder, made_up_texts(400), TINY if self.quick else SHAPES[shape])
        return str(folder / "model")


def rows_that_fit(config: Mapping[str, Any], tokens: int, precision: str, free: int) -> int:  # Any: as above
    """Returns the texts of a step, each twice, that take a third of the memory: a power of 2 up to 1,024.

    Example:
        >>> rows_that_fit(SHAPES["BERT-base"], 512, "bfloat16", free=80 * 2**30)
        32
    """
    per_token = KEPT[precision] * config["num_hidden_layers"] * config["hidden_size"]
    fit = free // 3 // (2 * tokens * per_token)
    return min(1 << max(int(fit).bit_length() - 1, 0), 1024)


def module_of(
    encoder: str, **options: Any
) -> ContrastiveModule:  # Any: of the encoder; but for those of the module
    """Returns a module whose views differ: ``layout``, ``dropout``, ``compiled`` are the encoder's."""
    loss = NTXent(streamed=options.pop("streamed", None))
    return ContrastiveModule(
        chunk_tokens=options.pop("chunk_tokens", None),
        encoder=TransformerEncoder(encoder, **options),
        objectives={"contrastive": Contrastive(loss)},
        views={"positive": [FeatureCutoff(0.2)]},
    ).train()


def data_of(folder: Path, texts: list[str], rows: int) -> TextDataModule:
    """Returns the texts as training data."""
    file = folder / f"{len(texts)}-{rows}.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return TextDataModule(train=str(file), batch_size=rows, num_workers=0)


def batches_of(module: ContrastiveModule, folder: Path, texts: list[str], rows: int) -> list[Batch]:
    """Returns the batches of one pass over the texts."""
    data = data_of(folder, texts, rows)
    data.set_module(module)
    data.setup("fit")
    return list(data.train_dataloader())


def loss_and_gradient(module: ContrastiveModule, batch: Batch, precision: str) -> None:
    """Computes the gradient of a batch, in bfloat16 by autocast."""
    module.zero_grad(set_to_none=True)
    device = batch.ids.device.type
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
        loss = torch.stack([*module.step_losses(batch).values()]).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Returns what a call takes, with all that it leaves to a GPU."""
    synchronize(device)
    begun = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - begun


def peak_of(work: Callable[[], object], device: str) -> int:
    """Returns the highest memory of a call above what is in use before it, in bytes."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    reset_peak(device)
    before = memory(device)
    work()
    synchronize(device)
    return peak(device) - before
