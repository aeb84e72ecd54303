"""Odd tensors in checkpoints and model folders: nested, sparse, of any size without values, of 8 bits, ..."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile.case import Make, answer, right
from hostile.checkpoints import COMMANDS, VALIDATE
from hostile.makers import checkpoint, copied, vectors
from hostile.models import EMBED, weights
from safetensors.torch import load
from torch import Tensor

WORDS = "embeddings.word_embeddings.weight"
ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "nested": lambda weight: torch.nested.nested_tensor([weight, weight], layout=torch.jagged),
    "without values": lambda weight: torch.empty_like(weight, device="meta"),
    "expanded": lambda weight: weight[:1, :1].clone().expand(weight.shape),
    "of 4 TB over 4 bytes": lambda weight: torch.zeros(1).expand(1 << 40),  # noqa: ARG005  # one form for all
    "of 4 TB by strides": lambda weight: torch.as_strided(weight.clone(), (1 << 20, 1 << 20), (0, 0)),
    "complex": lambda weight: weight.to(torch.complex64),
    "of 8-bit floats": lambda weight: weight.to(torch.float8_e4m3fn),
    "sparse": lambda weight: weight.to_sparse(),
    "of whole numbers": lambda weight: weight.to(torch.int8),
}
IN_SAFETENSORS = ("complex", "of 8-bit floats", "of whole numbers")


def _with_words(make: Callable[[Tensor], Tensor]) -> Make:
    def change(content: dict[str, Any]) -> None:
        name = next(name for name in content["state_dict"] if name.endswith(WORDS))
        content["state_dict"][name] = make(content["state_dict"][name])

    return checkpoint(change)


def _in_optimizer(content: dict[str, Any]) -> None:
    content["optimizer_states"][0]["state"][0]["exp_avg"] = torch.zeros(1).expand(1 << 40)


def _as_binary(make: Callable[[Tensor], Tensor], file: str, name: str) -> Make:
    """Returns what saves the weights of a file of the sound foreign model by torch, one of them changed."""

    def write(path: Path, sound: Any) -> None:
        read = load(Path(sound["foreign"], file).read_bytes())
        torch.save({**read, name: make(read[name])}, path)

    return write


def _folder(file: str, name: str, make: Callable[[Tensor], Tensor]) -> Make:
    binary = file.replace("model.safetensors", "pytorch_model.bin")
    return copied("foreign", {file: None, binary: _as_binary(make, file, name)})


def _changed(name: str, make: Callable[[Tensor], Tensor]) -> Any:  # Any: what copied takes
    return weights(lambda tensors: tensors.update({name: make(tensors[name])}))


_FILES = {"model.safetensors": WORDS, "2_Dense/model.safetensors": "linear.weight"}
CASES = (
    *(
        answer(f"a checkpoint with a weight {kind}", VALIDATE, {"c.ckpt": _with_words(make)}, "c.ckpt", WORDS)
        for kind, make in ODD.items()
    ),
    *(
        answer(
            f"a checkpoint with a nested weight in {name}",
            COMMANDS[name],
            {"c.ckpt": _with_words(ODD["nested"])},
            "c.ckpt",
            "a nested one",
        )
        for name in ("fit", "fit from its weights", "export", "predict")
    ),
    answer(
        "a checkpoint with a moment of 4 TB",
        COMMANDS["fit"],
        {"c.ckpt": checkpoint(_in_optimizer)},
        "c.ckpt: optimizer_states.0.state.0.exp_avg",
    ),
    *(
        answer(f"{file} as a binary with a weight {kind}", EMBED, {"m": _folder(file, name, make)}, "m", name)
        for file, name in _FILES.items()
        for kind, make in ODD.items()
        if kind not in ("nested", "sparse") or file.startswith("2")  # torch can't map these: Transformers answers
    ),
    *(
        answer(
            f"{file} with a weight {kind}",
            EMBED,
            {"m": copied("foreign", {file: _changed(name, ODD[kind])})},
            f"m/{file}",
            name,
        )
        for file, name in _FILES.items()
        for kind in IN_SAFETENSORS
    ),
    right(
        "weights of bfloat16 as a binary",
        EMBED,
        {"m": _folder("model.safetensors", WORDS, lambda weight: weight.bfloat16())},
        check=vectors(40),
    ),
)
