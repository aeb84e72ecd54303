"""Damaged, foreign and malicious model folders, read by the commands over a saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import rest_slow
from hostile.cases import (
    DEEP,
    EMBED,
    EVIL,
    FIT,
    PICKLE,
    RAN,
    Case,
    Change,
    Make,
    answer,
    array,
    copied,
    edited,
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
from safetensors.torch import save
from torch import Tensor


def damaged(name: str, file: str, change: Any, *says: str, of: str = "foreign") -> Case:  # Any: what copied takes
    """Returns a case of a model folder with one file changed, which must be answered with the file's name."""
    return answer(name, EMBED, {"m": copied(of, {file: change})}, *(says or (file.rpartition("/")[2],)))


def of_weight(end: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Returns a change of the weights whose names have an end."""
    return weights(lambda tensors: {k: change(v) if k.endswith(end) else v for k, v in tensors.items()})


def pickled(file: str) -> Make:
    """Returns what copies the foreign model with a pickle that runs a command in place of a file of weights."""
    binary = file.replace("model.safetensors", "pytorch_model.bin")
    return copied("foreign", {file: None, binary: lambda path, _: path.write_bytes(PICKLE)})


JSON_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
BROKEN = tuple(
    damaged(f"{file} that {how}", file, content, *(["m"] if file == "tokenizer_config.json" else []))
    for file in JSON_FILES
    for how, content in {
        "is empty": "",
        "is cut short": halved,
        "is a number": "5",
        "is null": "null",
        "is 5,000 levels deep": DEEP,
        "is no UTF-8": b'{"a": "\xff\xfe"}',
    }.items()
)

# File, key and printed word -> values that no model has.
VALUES: dict[tuple[str, str, str], tuple[Any, ...]] = {
    ("config.json", "hidden_size", "config.json"): (0, -16, "16", 10**12),
    ("config.json", "num_hidden_layers", "config.json"): ("one",),
    ("config.json", "num_attention_heads", "config.json"): (3, 0),
    ("config.json", "vocab_size", "config.json"): (-1, 10**15),
    ("config.json", "model_type", "config.json"): ("evil", ["bert"], ...),
    ("config.json", "hidden_act", "config.json"): ("evil",),
    ("config.json", "intermediate_size", "config.json"): (None,),
    ("config.json", "max_position_embeddings", "config.json"): ("many",),
    ("config.json", "layer_norm_eps", "config.json"): ("nan",),
    ("2_Dense/config.json", "in_features", "2_Dense"): (17, ..., "16", -1),
    ("2_Dense/config.json", "out_features", "2_Dense"): (10**12, 0, 7.5),
    ("2_Dense/config.json", "bias", "2_Dense"): ("x",),
    ("2_Dense/config.json", "activation_function", "2_Dense"): ("os.system", "evil.Evil", 5),
    ("2_Dense/config.json", "use_residual", "2_Dense"): (True,),
    ("sentence_bert_config.json", "max_seq_length", "sentence_bert_config.json"): (0, -1, "32", 1.5, True, [32]),
    ("sentence_bert_config.json", "do_lower_case", "sentence_bert_config.json"): ("no",),
    ("config_sentence_transformers.json", "truncate_dim", "truncate_dim"): (0, -1, 17, "8", True),
}
CONFIG = (
    *(
        damaged(f"{file} with {key} of {value!r}", file, edited(**{key: value}), says)
        for (file, key, says), values in VALUES.items()
        for value in values
    ),
    damaged("config.json with layers that have no weights", "config.json", edited(num_hidden_layers=3), "m"),
    damaged("weights of layers that config.json doesn't have", "config.json", edited(num_hidden_layers=0), "m"),
    damaged(
        "config.json that names code of its own",
        "config.json",
        edited(model_type="mine", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}),
        "m",
    ),
    damaged("config.json of a vision model", "config.json", '{"model_type": "vit"}', "m"),
    damaged("config.json with a hidden_size of 32", "config.json", edited(hidden_size=32), "m"),
    damaged("config.json with no positions", "config.json", edited(max_position_embeddings=0), "m"),
    damaged("no config.json", "config.json", None),
)

WEIGHTS = (
    damaged("no weights", "model.safetensors", None, "m"),
    damaged("empty weights", "model.safetensors", b"", "m"),
    damaged("weights cut short", "model.safetensors", halved),
    damaged("weights whose second half is zero", "model.safetensors", half_zeroed, "m"),
    damaged("weights with a header of 10^18 bytes", "model.safetensors", b"\xff" * 7 + b"\x0d" + b"{}" * 50, "m"),
    damaged(
        "weights with a header that is no JSON",
        "model.safetensors",
        b"\x10" + bytes(7) + b"no JSON at all..",
        "m",
    ),
    damaged("weights that are a pickle", "model.safetensors", PICKLE, "m"),
    damaged(
        "a layer of zeros", "model.safetensors", of_weight("layer.0.output.dense.weight", torch.zeros_like), "m"
    ),
    damaged(
        "NaN among the weights",
        "model.safetensors",
        of_weight("word_embeddings.weight", lambda weight: weight.index_fill(0, torch.tensor([5]), torch.nan)),
        "m",
    ),
    damaged(
        "weights of another shape",
        "model.safetensors",
        of_weight("layer.0.output.dense.weight", lambda weight: weight.T.contiguous()),
        "m",
    ),
    damaged(
        "weights of a layer that are missing",
        "model.safetensors",
        weights(lambda tensors: {k: v for k, v in tensors.items() if "layer.0.output.dense" not in k}),
        "m",
    ),
    damaged(
        "weights of other names",
        "model.safetensors",
        weights(lambda tensors: {f"other.{k}": v for k, v in tensors.items()}),
        "m",
    ),
    damaged("weights of no tensor", "model.safetensors", save({}, {"format": "pt"}), "m"),
    damaged("Dense weights cut short", "2_Dense/model.safetensors", halved),
    damaged("no Dense weights", "2_Dense/model.safetensors", None),
    damaged("Dense weights that are a pickle", "2_Dense/model.safetensors", PICKLE),
    damaged(
        "Dense weights with NaN",
        "2_Dense/model.safetensors",
        weights(lambda tensors: {name: weight * torch.nan for name, weight in tensors.items()}),
        "m",
    ),
    *over_files(
        "answer",
        EMBED,
        {
            "a pickle that runs a command in place of weights": ("m", pickled("model.safetensors")),
            "a pickle that runs a command beside Dense weights": (
                "m",
                pickled("2_Dense/model.safetensors"),
                "pytorch_model.bin",
            ),
            "a model folder that is a link to itself": ("m", link("m")),
            "a model folder that is empty": ("m", folder),
            "a model folder that is a named pipe": ("m", fifo),
        },
    ),
    *(
        answer(
            f"weights that are {what}",
            EMBED,
            {"m": copied("foreign", {"model.safetensors": None}), "m/model.safetensors": make},
            says,
        )
        for what, make, says in (
            ("a named pipe", fifo, "model.safetensors"),
            ("a folder", folder, "model.safetensors"),
            ("a link to nothing", link("no"), "m"),
        )
    ),
    answer("a model folder of vectors", EMBED, {"m/v.npy": array([[1.0]])}, "m"),
)


def listed(*modules: dict[str, object]) -> str:
    """Returns a ``modules.json`` of the encoder and modules after it."""
    first = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    return json.dumps([first, *modules])


def module(kind: object, path: object = "1_Pooling") -> dict[str, object]:
    """Returns an entry of ``modules.json``."""
    return {"idx": 1, "name": "1", "path": path, "type": kind}


POOLING = "sentence_transformers.models.Pooling"


def _many(content: bytes) -> bytes:
    return b"[" + b",".join([content.strip()[1:-1]] * 33_334) + b"]"  # three each


OTHER = {"other/config.json": '{"pooling_mode": "mean"}'}
"""A pooler outside of the model's folder."""
MODULES = (
    *(
        answer(
            f"modules.json that names {kind!r}",
            EMBED,
            {"m": copied("foreign", {"modules.json": listed(module(kind))}), "evil.py": EVIL, "m/evil.py": EVIL},
            "modules.json",
        )
        for kind in (
            "evil.Evil",
            "os.system",
            "subprocess.Popen",
            "builtins.exec",
            "m.evil.Evil",
            "..evil.Evil",
            "contrastive_text.losses.InfoNCE",
            "contrastive_text.cli.run",
            "contrastive_text.no_such.Pooler",
            "sentence_transformers.models.CNN",
            "",
            "Pooling.",
            5,
            None,
        )
    ),
    *(
        answer(
            f"modules.json with the path {path!r}",
            EMBED,
            {"m": copied("foreign", {"modules.json": listed(module(POOLING, path))}), **OTHER, **more},
            says,
        )
        for paths, says, more in (
            (("1_Pooling\\..\\other", 5, None, "no", "a\0b"), "m/", {}),
            (("../other", "/etc", "..", "1_Pooling/../../other"), "modules.json", {}),
            (("out",), "m/", {"m/out": link("../other")}),
        )
        for path in paths
    ),
    damaged("modules.json without types", "modules.json", json.dumps([{"path": ""}])),
    damaged("modules.json of words", "modules.json", json.dumps(["Transformer", "Pooling"])),
    damaged("modules.json that is an object", "modules.json", "{}"),
    damaged("modules.json with two poolers", "modules.json", listed(module(POOLING), module(POOLING))),
    damaged(
        "modules.json with the encoder last", "modules.json", json.dumps([module(POOLING), *json.loads(listed())])
    ),
    damaged("modules.json with two encoders", "modules.json", json.dumps(json.loads(listed()) * 2)),
    damaged("modules.json without an encoder", "modules.json", json.dumps([module(POOLING)])),
    damaged("modules.json of 100,000 modules", "modules.json", _many, "modules.json", "at most 100 modules"),
    damaged("no modules.json beside parts", "modules.json", None),
)

PARTS = (
    *(
        damaged(f"a pooler's config.json of {content}", "1_Pooling/config.json", content, "1_Pooling/config.json")
        for content in (
            '{"pooling_mode": 5}',
            '{"pooling_mode": [["mean"]]}',
            '{"pooling_mode": "mean", "include_prompt": "no"}',
            '{"pooling_mode_mean_tokens": "yes"}',
        )
    ),
    damaged("no config.json of a pooler", "1_Pooling/config.json", None, "1_Pooling/config.json"),
    *(
        damaged(name, "config_sentence_transformers.json", edited(prompts=prompts, default_prompt_name=default))
        for name, prompts, default in (
            ("a prompt that isn't there", {"a": "b"}, "c"),
            ("prompts that are a list", ["a"], "a"),
            ("a prompt that is a number", {"a": 5}, "a"),
        )
    ),
    damaged("no tokenizer", "tokenizer.json", None, "tokenizer"),
    damaged("a tokenizer with more words than the model", "config.json", edited(vocab_size=100), "m"),
    damaged("a tokenizer of no kind", "tokenizer.json", edited(model={"type": "Evil"}), "tokenizer.json"),
)

OURS = (
    damaged("our model with one bit of its weights changed", "model.safetensors", flipped, of="model"),
    damaged(
        "our model with one bit of its vocabulary changed",
        "tokenizer.json",
        lambda content: content.replace(b'"bird"', b'"birt"'),
        of="model",
    ),
    damaged(
        "our model with another pooler",
        "1_Pooling/config.json",
        lambda content: content.replace(
            b'"pooling_mode_cls_token": true', b'"pooling_mode_cls_token": false'
        ).replace(b'"pooling_mode_max_tokens": false', b'"pooling_mode_max_tokens": true'),
        "1_Pooling/config.json",
        of="model",
    ),
    damaged("our model with another length", "sentence_bert_config.json", edited(max_seq_length=8), of="model"),
    damaged("our model without its list of modules", "modules.json", None, of="model"),
)

_READERS = (
    "evaluate m $pairs",
    "diagnose m $texts",
    "compare $bert m --data $pairs",
    "search $texts q --model m",
    "duplicates $texts d.tsv --model m",
    "postprocess m $texts out --whiten",
    "onnx m out",
)
COMMANDS = tuple(
    answer(f"{name} for {command.partition(' ')[0]}", command, files, says)
    for name, files, says in (
        (
            "a damaged model",
            {"m": copied("foreign", {"modules.json": listed(module("evil.Evil"))}), "evil.py": EVIL},
            "modules.json",
        ),
        ("weights cut short", {"m": copied("foreign", {"model.safetensors": halved})}, "model.safetensors"),
    )
    for command in (*_READERS, FIT.replace("$bert", "m"))
    if says == "model.safetensors" or command in _READERS  # training takes no other part of a model
)
START = answer(
    "a damaged model to start from",
    f"{FIT} --init_from m",
    {"m": copied("foreign", {"modules.json": listed(module("evil.Evil"))}), "evil.py": EVIL},
    "modules.json",
)
OWN_TOKENIZER = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}


def not_run(place: Path, _: str) -> bool:
    """Returns whether no code of a case has run."""
    return not (place / RAN).exists()


SOUND = (
    *over_files(
        "right",
        EMBED,
        {
            "a model of other people": ("m", copied("foreign"), 40),
            "a model after a link": ("m", link("$foreign"), 40),
            "a tokenizer of another class, whose file is read all the same": (
                "m",
                copied("foreign", {"tokenizer_config.json": edited(tokenizer_class="EvilTokenizer")}),
                40,
            ),
            "a model of float16": ("m", copied("foreign", {"model.safetensors": of_weight("", Tensor.half)}), 40),
        },
    ),
    right(
        "a model with files of other people beside it",
        EMBED,
        {"m": copied("foreign", {"README.md": "---\ntags: []\n---\n"}), "m/openvino": folder},
        check=vectors(40),
    ),
    right(
        "a csv.py and a torch.py in the working directory",
        EMBED.replace(" m ", " $foreign "),
        dict.fromkeys(("csv.py", "torch.py", "json.py", "transformers.py"), EVIL),
        check=not_run,
    ),
    right(
        "a tokenizer that names code of its own, which isn't run",
        EMBED,
        {"m": copied("foreign", {"tokenizer_config.json": edited(**OWN_TOKENIZER)}), "m/evil.py": EVIL},
        check=not_run,
    ),
)


CASES = (*BROKEN, *CONFIG, *WEIGHTS, *MODULES, *PARTS, *OURS, *COMMANDS, START, *SOUND)
OFTEN = {
    "modules.json that names 'evil.Evil'",
    "modules.json with the path '../other'",
    "config.json that names code of its own",
}
"""Cases that run by default: nothing that a folder names or brings along is imported, or read outside of it."""


@pytest.mark.parametrize(
    "case",
    rest_slow(sorted(CASES, key=lambda case: case.name not in OFTEN), quick=len(OFTEN)),
    ids=attrgetter("name"),
)
def test_a_hostile_model_folder_is_refused_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
