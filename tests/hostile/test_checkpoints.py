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
    over_files,
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
FIRST = torch.tensor([0])
BEST, ENCODER = "callbacks.BestCheckpoint", "hyper_parameters.encoder.init_args"
CALL = {"class_path": "subprocess.Popen", "init_args": {"args": f"touch {RAN}", "shell": True}}
"""Class path that runs a command if a parser builds every class that is named."""
NLPAUG = {
    "class_path": "contrastive_text.views.NlpaugView",
    "init_args": {"augmenter": "nlpaug.augmenter.char.RandomCharAug", "arguments": {"a": CALL}},
}


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


FILES: dict[str, Any] = {  # Any: a text, bytes, or a Make
    "a checkpoint of no bytes": b"",
    "a checkpoint of words": "these are no weights\n",
    "a checkpoint of zeros": bytes(4096),
    "a pickle that runs a command": PICKLE,
    "an old torch pickle that runs a command": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + PICKLE,
    "a checkpoint cut short": copied("checkpoint", {"": halved}),
    "a checkpoint with one bit changed": copied("checkpoint", {"": flipped}),
    "a checkpoint half of zeros": copied("checkpoint", {"": half_zeroed}),
    "a checkpoint without its last byte": copied("checkpoint", {"": lambda content: content[:-1]}),
    "an archive whose pickle runs a command": copied("checkpoint", {"": unpickled(PICKLE)}),
    "an archive without a pickle": copied("checkpoint", {"": unpickled(None)}),
    "an archive of nothing": b"PK\x05\x06" + bytes(18),
    "an archive of a text": copied(
        "checkpoint", {"": zipped(lambda parts: (parts.clear(), parts.update(a=b"b")))}
    ),
    "a checkpoint that is a folder": folder,
    "a checkpoint that is a named pipe": fifo,
    "a checkpoint that is a link to itself": link("c.ckpt"),
    "a checkpoint that is /dev/zero": link("/dev/zero"),
    "a checkpoint of a list": saved([1, 2, 3]),
    "a checkpoint of one tensor": saved(torch.zeros(3)),
    "a checkpoint of nothing inside": saved({}),
    "a checkpoint of weights alone": saved({"state_dict": {"weight": torch.zeros(3)}}),
    "a checkpoint of another object": copied("texts"),
}
DAMAGED = tuple(refused(name, content) for name, content in FILES.items())

PLACES = {
    "the encoder": "hyper_parameters.encoder",
    "the encoder's config": "hyper_parameters.encoder.init_args.config",
    "the encoder's path": "hyper_parameters.encoder.init_args.model_name_or_path",
    "the encoder's layout": "hyper_parameters.encoder.init_args.layout",
    "the pooler": "hyper_parameters.pooler",
    "the head": "hyper_parameters.head",
    "the optimiser": "hyper_parameters.optimizer",
    "the optimiser's rate": "hyper_parameters.optimizer.init_args.lr",
    "the schedule": "hyper_parameters.schedule",
    "the views": "hyper_parameters.views",
    "the objectives": "hyper_parameters.objectives",
    "an objective's classes": "hyper_parameters.objectives.contrastive.init_args.classes",
    "the data's columns": "datamodule_hyper_parameters.task.columns",
    "the data's labels": "datamodule_hyper_parameters.task.labels",
    "the data's files": "datamodule_hyper_parameters.test",
    "the data's tasks": "datamodule_hyper_parameters.tasks",
    "the pairing": "datamodule_hyper_parameters.task.pairing",
    "the mixture": "datamodule_hyper_parameters.mixture",
}
MALICIOUS = (
    *(
        refused(f"a checkpoint that calls subprocess.Popen at {name}", put(place, CALL))
        for name, place in PLACES.items()
    ),
    *(
        answer(
            f"a checkpoint that names evil.py at {name}",
            VALIDATE,
            {"c.ckpt": put(place, {"class_path": "evil.Evil", "init_args": {}}), "evil.py": EVIL},
            "evil.Evil",
        )
        for name, place in PLACES.items()
        if name in ("the pooler", "the head", "the schedule", "the pairing")
    ),
    *(
        refused(
            f"a checkpoint that calls subprocess.Popen in {name}",
            put("hyper_parameters.pooler", CALL),
            command=command,
        )
        for name, command in COMMANDS.items()
        if name not in ("validate", "ensemble", "fit from its weights")
    ),
    *(
        refused(
            f"a checkpoint whose columns call subprocess.Popen in {name}",
            put("datamodule_hyper_parameters.columns", {"text": CALL}),
            command=command,
        )
        for name, command in COMMANDS.items()
        if name not in ("ensemble", "fit from its weights", "export")  # these take nothing of the data
    ),
    right(
        "a checkpoint whose columns call subprocess.Popen, whose model alone is exported",
        COMMANDS["export"],
        {"c.ckpt": put("datamodule_hyper_parameters.columns", {"text": CALL})},
        "saved to out",
    ),
    refused(
        "a view in a checkpoint that calls subprocess.Popen",
        put("hyper_parameters.views", {"positive": [NLPAUG]}),
    ),
)
WRONG = (
    *(
        refused(name, words(change), "c.ckpt", says, may_change=("runs/version_0/config.yaml",))
        for name, change, says in (
            ("a checkpoint with weights of another shape", lambda w: w[:, :8].clone(), "word_embeddings"),
            ("a checkpoint that lacks weights", lambda _: None, "word_embeddings"),
            ("a checkpoint with NaN among its weights", lambda w: w.index_fill(0, FIRST, torch.nan), "NaN"),
        )
    ),
    *(refused(f"a checkpoint without {key}", put(key, ...), "c.ckpt", key) for key in ("epoch", "global_step")),
    *(
        refused(f"a checkpoint whose {key} is {said}", put(key, value), "c.ckpt", key)
        for key in ("state_dict", "callbacks", "loops", "global_step", "epoch")
        for said, value in (("a list", [1, 2]), ("a word", "word"), ("below 0", -1))
    ),
    *(
        refused(name, put(place, value), *says)
        for name, place, value, *says in (
            ("a checkpoint with a weight that is no tensor", "state_dict.more", "word", "c.ckpt", "more"),
            ("a checkpoint whose best score is a word", BEST, {"best_model_score": "high"}, "best_model_score"),
            (
                "a checkpoint with an unknown argument of a part",
                "hyper_parameters.pooler.init_args.rat",
                1,
                "rat",
            ),
            ("a checkpoint with an argument of another type", f"{ENCODER}.max_length", "many", "max_length"),
            ("a checkpoint of an encoder that is gone", f"{ENCODER}.model_name_or_path", "./gone", "gone"),
        )
    ),
    *(refused(f"a checkpoint without {key}", put(key, ...)) for key in ("state_dict", "hyper_parameters")),
    *(
        refused(f"a checkpoint whose {key} is a word", put(key, "word"))
        for key in ("hyper_parameters", "datamodule_hyper_parameters")
    ),
    *(
        refused(
            f"a checkpoint with a misspelt part at {name}",
            put(place, {"class_path": "contrastive_text.poolers.CLSPoolr", "init_args": {}}),
        )
        for name, place in PLACES.items()
        if name in ("the pooler", "the head")
    ),
    refused(
        "a checkpoint of data that is gone",
        put("datamodule_hyper_parameters.train", "gone.txt"),
        "gone.txt",
        command="fit --ckpt_path c.ckpt --trainer.max_steps 4",
    ),
    *(
        refused(f"{what} in {name}", content, command=command)
        for what, content in {
            "weights cut short": copied("checkpoint", {"": halved}),
            "a pickle that runs a command": PICKLE,
        }.items()
        for name, command in COMMANDS.items()
        if name != "validate"
    ),
    *(
        refused(
            f"a run that goes on from {key} of {said}",
            put(key, value),
            f"c.ckpt: expected a checkpoint that a run can go on from, got one with weights and without {key}",
            command=COMMANDS["fit"],
        )
        for key, values in (
            ("optimizer_states", {"nothing": ..., "an empty list": []}),
            ("lr_schedulers", {"nothing": ...}),
            ("loops", {"nothing": ..., "an empty mapping": {}}),
        )
        for said, value in values.items()
    ),
    *over_files(
        "right",
        VALIDATE,
        {
            "a checkpoint with a byte after it, which torch reads bit-equal": (
                "c.ckpt",
                copied("checkpoint", {"": lambda content: content + b"x"}),
                "val/spearman",
            ),
            "weights alone that are scored": ("c.ckpt", put("optimizer_states", ...), "val/spearman"),
            "a sound checkpoint under another name": ("c.ckpt", copied("checkpoint"), "val/spearman"),
            "a sound checkpoint after a link": ("c.ckpt", link("$checkpoint"), "val/spearman"),
        },
    ),
)


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


def _in_optimizer(content: dict[str, Any]) -> None:
    content["optimizer_states"][0]["state"][0]["exp_avg"] = torch.zeros(1).expand(1 << 40)


def _folder(file: str, name: str, make: Callable[[Tensor], Tensor]) -> Make:
    """Returns what copies the foreign model with the weights of a file saved by torch, one of them changed."""

    def write(path: Path, sound: Mapping[str, str]) -> None:
        read = load(Path(sound["foreign"], file).read_bytes())
        torch.save({**read, name: make(read[name])}, path)

    return copied("foreign", {file: None, file.replace("model.safetensors", "pytorch_model.bin"): write})


_FILES = {"model.safetensors": WORDS, "2_Dense/model.safetensors": "linear.weight"}
TENSORS = (
    *(refused(f"a checkpoint with a weight {kind}", words(make), "c.ckpt", WORDS) for kind, make in ODD.items()),
    *(
        refused(
            f"a checkpoint with a nested weight in {name}",
            words(ODD["nested"]),
            "c.ckpt",
            "a nested one",
            command=COMMANDS[name],
        )
        for name in ("fit", "fit from its weights", "export", "predict")
    ),
    refused(
        "a checkpoint with a moment of 4 TB",
        checkpoint(_in_optimizer),
        "c.ckpt: optimizer_states.0.state.0.exp_avg",
        command=COMMANDS["fit"],
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
            {
                "m": copied(
                    "foreign",
                    {
                        file: weights(
                            lambda tensors, name=name, kind=kind: tensors.update({name: ODD[kind](tensors[name])})
                        )
                    },
                )
            },
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


CASES = (*DAMAGED, *MALICIOUS, *WRONG, *TENSORS)
OFTEN = {
    "a checkpoint that calls subprocess.Popen at the data's columns",
    "a checkpoint that names evil.py at the pooler",
}
"""Cases that run by default: no command makes what a checkpoint names."""


@pytest.mark.parametrize(
    "case",
    rest_slow(sorted(CASES, key=lambda case: case.name not in OFTEN), quick=len(OFTEN)),
    ids=attrgetter("name"),
)
def test_a_hostile_checkpoint_is_refused_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
