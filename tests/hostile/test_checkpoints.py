"""Damaged, foreign and malicious checkpoints, read by every command that takes one."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import rest_slow
from hostile.cases import (
    EMBED,
    EVIL,
    PICKLE,
    RAN,
    Case,
    Change,
    Content,
    Make,
    answer,
    checkpoint,
    copied,
    fifo,
    flipped,
    folder,
    half_zeroed,
    halved,
    link,
    right,
    vectors,
    weights,
)
from hostile.judging import judge
from hostile.sound import Sound
from safetensors.torch import load
from torch import Tensor

WORDS = "embeddings.word_embeddings.weight"
VALIDATE = "validate --ckpt_path c.ckpt --data.validation $pairs --trainer.accelerator cpu"
COMMANDS = {
    "validate": VALIDATE,
    "test": "test --ckpt_path c.ckpt --data.test $pairs --trainer.accelerator cpu",
    "predict": "predict --ckpt_path c.ckpt --data.predict $texts --trainer.accelerator cpu",
    "fit": "fit --ckpt_path c.ckpt --trainer.max_steps 4 --trainer.accelerator cpu",
    "fit from its weights": "fit --recipe simcse --model.encoder.model_name_or_path $bert --data.train $texts "
    "--data.batch_size 8 --trainer.accelerator cpu --trainer.max_steps 1 --init_from c.ckpt",
    "ensemble": "ensemble out --runs c.ckpt",
    "export": "export c.ckpt out",
}
ENCODER = "hyper_parameters.encoder.init_args"
CALL = {"class_path": "subprocess.Popen", "init_args": {"args": f"touch {RAN}", "shell": True}}
"""Class path that runs a command if a parser builds every class that is named."""
NLPAUG = {"augmenter": "nlpaug.augmenter.char.RandomCharAug", "arguments": {"a": CALL}}


def refused(
    name: str, content: Content, *says: str, command: str = VALIDATE, may_change: tuple[str, ...] = ()
) -> Case:
    """Returns a case of a checkpoint that is refused by its name, or with other words."""
    return answer(name, command, {"c.ckpt": content}, *(says or ("c.ckpt",)), may_change=may_change)


def saved(content: Any) -> Make:  # Any: what torch.save takes
    """Returns what saves something else as a checkpoint."""

    def make(path: Path, _: object) -> None:
        torch.save(content, path)

    return make


def put(place: str, value: Any) -> Make:  # Any: what a checkpoint can hold
    """Returns what saves the sound checkpoint with another value at a place, such as ``callbacks.Best``.

    Args:
        place: Keys, one inside the other.
        value: The value; ``...`` removes the key.
    """
    *above, last = place.split(".")

    def change(content: dict[str, Any]) -> None:
        for key in above:
            content = content[key]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return checkpoint(change)


def zipped(change: Callable[[dict[str, bytes]], object]) -> Callable[[bytes], bytes]:
    """Returns a change of the parts of the archive that a checkpoint is."""

    def changed(content: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        change(parts)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
        return out.getvalue()

    return changed


def unpickled(pickled: bytes | None) -> Change:
    """Returns a change of the pickle in the archive of a checkpoint; None removes it."""

    def change(parts: dict[str, bytes]) -> None:
        name = next(name for name in parts if name.endswith("data.pkl"))
        del parts[name]
        if pickled is not None:
            parts[name] = pickled

    return zipped(change)


def words(change: Callable[[Tensor], Tensor | None]) -> Make:
    """Returns what saves the sound checkpoint with other embeddings of words; None removes them."""

    def changed(content: dict[str, Any]) -> None:
        name = next(name for name in content["state_dict"] if name.endswith(WORDS))
        weight = change(content["state_dict"].pop(name))
        if weight is not None:
            content["state_dict"][name] = weight

    return checkpoint(changed)


# A checkpoint's file

EMPTY = zipped(lambda parts: (parts.clear(), parts.update(a=b"b")))
FILES: dict[str, Any] = {  # Any: a text, bytes, or a Make
    "no bytes": b"",
    "words": "these are no weights\n",
    "zeros": bytes(4096),
    "a pickle that runs a command": PICKLE,
    "an old torch pickle that runs a command": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + PICKLE,
    "one cut short": copied("checkpoint", {"": halved}),
    "one with one bit changed": copied("checkpoint", {"": flipped}),
    "one half of zeros": copied("checkpoint", {"": half_zeroed}),
    "one without its last byte": copied("checkpoint", {"": lambda content: content[:-1]}),
    "an archive whose pickle runs a command": copied("checkpoint", {"": unpickled(PICKLE)}),
    "an archive without a pickle": copied("checkpoint", {"": unpickled(None)}),
    "an archive of nothing": b"PK\x05\x06" + bytes(18),
    "an archive of a text": copied("checkpoint", {"": EMPTY}),
    "a folder": folder,
    "a named pipe": fifo,
    "a link to itself": link("c.ckpt"),
    "/dev/zero": link("/dev/zero"),
    "a list": saved([1, 2, 3]),
    "one tensor": saved(torch.zeros(3)),
    "nothing inside": saved({}),
    "weights alone": saved({"state_dict": {"weight": torch.zeros(3)}}),
}
BY_OTHERS = ("one cut short", "a pickle that runs a command")
DAMAGED = (
    *(refused(f"a checkpoint: {name}", content) for name, content in FILES.items()),
    *(
        refused(f"{what} in {name}", FILES[what], command=command)
        for what in BY_OTHERS
        for name, command in COMMANDS.items()
        if name != "validate"
    ),
)
READ = tuple(
    right(name, VALIDATE, {"c.ckpt": content}, "val/spearman")
    for name, content in {
        "a byte after it, which torch reads bit-equal": copied(
            "checkpoint", {"": lambda content: content + b"x"}
        ),
        "weights alone that are scored": put("optimizer_states", ...),
        "a sound checkpoint after a link": link("$checkpoint"),
    }.items()
)

# What it names

MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"
PLACES = (
    f"{MODEL}.encoder", f"{ENCODER}.config", f"{ENCODER}.model_name_or_path", f"{MODEL}.pooler",
    f"{MODEL}.optimizer.init_args.lr", f"{MODEL}.schedule", f"{MODEL}.objectives", f"{DATA}.task.columns",
    f"{DATA}.test", f"{DATA}.tasks", f"{DATA}.task.pairing", f"{DATA}.mixture",
)  # fmt: skip
EVIL_POOLER = put(f"{MODEL}.pooler", {"class_path": "evil.Evil", "init_args": {}})
OF_POPEN = put(f"{DATA}.columns", {"text": CALL})
VIEW = {"class_path": "contrastive_text.views.NlpaugView", "init_args": NLPAUG}
MISSPELT = {"class_path": "contrastive_text.poolers.CLSPoolr", "init_args": {}}
MALICIOUS = (
    *(refused(f"a checkpoint that calls subprocess.Popen at {place}", put(place, CALL)) for place in PLACES),
    refused("a view in a checkpoint that calls subprocess.Popen", put(f"{MODEL}.views", {"positive": [VIEW]})),
    answer("a checkpoint that names evil.py", VALIDATE, {"c.ckpt": EVIL_POOLER, "evil.py": EVIL}, "evil.Evil"),
    *(
        refused(f"subprocess.Popen at the pooler in {name}", put(f"{MODEL}.pooler", CALL), command=COMMANDS[name])
        for name in ("test", "predict", "fit", "export")
    ),
    *(
        refused(f"subprocess.Popen at the columns in {name}", OF_POPEN, command=COMMANDS[name])
        for name in ("validate", "test", "predict", "fit")
    ),
    right("subprocess.Popen at the columns in export", COMMANDS["export"], {"c.ckpt": OF_POPEN}, "saved to out"),
)

# What it lacks, or has in another form

GOES_ON = "c.ckpt: expected a checkpoint with the state of a run, got one without"
# Key -> values of another form.
VALUES: dict[str, tuple[Any, ...]] = {
    "state_dict": ("word",),
    "callbacks": ([1, 2],),
    "loops": ("word",),
    "global_step": (..., "word", -1),
    "epoch": (..., [1, 2], -1),
}
# Place -> another value, and printed words.
OTHERS: dict[str, tuple[Any, str]] = {
    "state_dict.more": ("word", "more"),
    "callbacks.BestCheckpoint": ({"best_model_score": "high"}, "best_model_score"),
    f"{MODEL}.pooler.init_args.rat": (1, "rat"),
    f"{ENCODER}.max_length": ("many", "max_length"),
    f"{ENCODER}.model_name_or_path": ("./gone", "gone"),
    f"{MODEL}.head": (MISSPELT, "c.ckpt"),
    MODEL: ("word", "c.ckpt"),
    DATA: ("word", "c.ckpt"),
}
FIRST = torch.tensor([0])
TABLES: dict[str, tuple[Callable[[Tensor], Tensor | None], str]] = {
    "of another shape": (lambda weight: weight[:, :8].clone(), "word_embeddings"),
    "that is gone": (lambda _: None, "word_embeddings"),
    "with one NaN": (lambda weight: weight.index_fill(0, FIRST, torch.nan), "NaN"),
}
CONFIG_WRITTEN = ("runs/version_0/config.yaml",)
WRONG = (
    *(
        refused(f"{key} {value!r:.9}", put(key, value), "c.ckpt", key)
        for key, values in VALUES.items()
        for value in values
    ),
    *(refused(f"{place} {value!r:.9}", put(place, value), says) for place, (value, says) in OTHERS.items()),
    *(
        refused(f"a checkpoint with a weight {how}", words(change), "c.ckpt", says, may_change=CONFIG_WRITTEN)
        for how, (change, says) in TABLES.items()
    ),
    *(refused(f"a checkpoint without {key}", put(key, ...)) for key in ("state_dict", MODEL)),
    *(
        refused(f"a run that goes on without {key}", put(key, value), f"{GOES_ON} {key}", command=COMMANDS["fit"])
        for key, value in (("optimizer_states", []), ("lr_schedulers", ...), ("loops", {}))
    ),
    refused("a run whose texts are gone", put(f"{DATA}.train", "gone.txt"), "gone.txt", command=COMMANDS["fit"]),
)

# Tensors that are other than they seem

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
WEIGHTS = {"model.safetensors": WORDS, "2_Dense/model.safetensors": "linear.weight"}


def _in_optimizer(content: dict[str, Any]) -> None:
    content["optimizer_states"][0]["state"][0]["exp_avg"] = torch.zeros(1).expand(1 << 40)


def in_binary(file: str, make: Callable[[Tensor], Tensor]) -> Make:
    """Returns what copies the foreign model with the weights of a file saved by torch, one of them changed."""

    def write(path: Path, sound: Mapping[str, str]) -> None:
        read = load(Path(sound["foreign"], file).read_bytes())
        torch.save({**read, WEIGHTS[file]: make(read[WEIGHTS[file]])}, path)

    return copied("foreign", {file: None, file.replace("model.safetensors", "pytorch_model.bin"): write})


def in_safetensors(file: str, make: Callable[[Tensor], Tensor]) -> Make:
    """Returns what copies the foreign model with one weight changed."""
    name = WEIGHTS[file]
    return copied("foreign", {file: weights(lambda tensors: tensors.update({name: make(tensors[name])}))})


TENSORS = (
    *(refused(f"a checkpoint with a weight {kind}", words(make), "c.ckpt", WORDS) for kind, make in ODD.items()),
    *(
        refused(f"a nested weight in {name}", words(ODD["nested"]), "c.ckpt", "a nested", command=COMMANDS[name])
        for name in ("fit", "fit from its weights", "export", "predict")
    ),
    refused(
        "a checkpoint with a moment of 4 TB",
        checkpoint(_in_optimizer),
        "c.ckpt: optimizer_states.0.state.0.exp_avg",
        command=COMMANDS["fit"],
    ),
    *(
        answer(f"{file} as a binary, a weight {kind}", EMBED, {"m": in_binary(file, make)}, "m", WEIGHTS[file])
        for file in WEIGHTS
        for kind, make in ODD.items()
        if kind not in ("nested", "sparse") or file.startswith("2")  # torch can't map these: Transformers answers
    ),
    *(
        answer(f"{file}, a weight {kind}", EMBED, {"m": in_safetensors(file, ODD[kind])}, f"m/{file}", name)
        for file, name in WEIGHTS.items()
        for kind in IN_SAFETENSORS
    ),
    right(
        "weights of bfloat16 as a binary",
        EMBED,
        {"m": in_binary("model.safetensors", lambda weight: weight.bfloat16())},
        check=vectors(40),
    ),
)


CASES = (*DAMAGED, *READ, *MALICIOUS, *WRONG, *TENSORS)
OFTEN = {f"a checkpoint that calls subprocess.Popen at {DATA}.task.columns", "a checkpoint that names evil.py"}
"""Cases that run by default: no command makes what a checkpoint names."""


@pytest.mark.parametrize(
    "case",
    rest_slow(sorted(CASES, key=lambda case: case.name not in OFTEN), quick=len(OFTEN)),
    ids=attrgetter("name"),
)
def test_a_hostile_checkpoint_is_refused_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
