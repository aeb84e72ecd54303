"""Damaged, foreign and malicious model folders, read by the commands over a saved model."""

from __future__ import annotations

import json
import pickle
import subprocess
from typing import Any

import torch
from hostile.case import Case, answer, right
from hostile.makers import (
    Change,
    array,
    copied,
    edited,
    fifo,
    flipped,
    folder,
    half_zeroed,
    halved,
    link,
    vectors,
)
from safetensors.torch import load, save

EMBED = "embed $texts v.npy --model m --device cpu"
DEEP = '{"a": ' * 5000 + "1" + "}" * 5000
RAN = "ran.txt"
"""What malicious code of a case would write into the working directory: an answer leaves nothing."""
EVIL = f"open({RAN!r}, 'w').close()\n\n\nclass Evil:\n    pass\n"


class _Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        return subprocess.call, (["touch", RAN],)


PICKLE = pickle.dumps(_Runs())


def weights(change: Any) -> Change:  # Any: a function of the weights by name
    """Returns a change of the tensors of a safetensors file."""

    def changed(content: bytes) -> bytes:
        tensors = load(content)
        return save(change(tensors) or tensors, {"format": "pt"})

    return changed


def damaged(name: str, file: str, change: Any, *says: str, of: str = "foreign") -> Case:  # Any: what copied takes
    """Returns a case of a model folder with one file changed, which must be answered with the file's name."""
    return answer(name, EMBED, {"m": copied(of, {file: change})}, *(says or (file.rpartition("/")[2],)))


def _zeroed(tensors: dict[str, torch.Tensor]) -> None:
    for name, weight in tensors.items():
        if "layer.0.output.dense.weight" in name:
            weight.zero_()


def _spoilt(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embeddings.word_embeddings.weight"][5] = torch.nan


def _transposed(tensors: dict[str, torch.Tensor]) -> None:
    name = "encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name].T.contiguous()


def _without_layer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in tensors.items() if "layer.0.output.dense" not in name}


def _renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"other.{name}": weight for name, weight in tensors.items()}


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

CONFIG = (
    *(
        damaged(f"config.json with {name} of {value!r}", "config.json", edited(**{name: value}))
        for name, value in (
            ("hidden_size", 0),
            ("hidden_size", -16),
            ("hidden_size", "16"),
            ("hidden_size", 10**12),
            ("num_hidden_layers", "one"),
            ("num_attention_heads", 3),
            ("num_attention_heads", 0),
            ("vocab_size", -1),
            ("vocab_size", 10**15),
            ("model_type", "evil"),
            ("model_type", ["bert"]),
            ("model_type", ...),
            ("hidden_act", "evil"),
            ("intermediate_size", None),
            ("max_position_embeddings", "many"),
            ("layer_norm_eps", "nan"),
        )
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
    damaged("a layer of zeros", "model.safetensors", weights(_zeroed), "m"),
    damaged("NaN among the weights", "model.safetensors", weights(_spoilt), "m"),
    damaged("weights of another shape", "model.safetensors", weights(_transposed), "m"),
    damaged("weights of a layer that are missing", "model.safetensors", weights(_without_layer), "m"),
    damaged("weights of other names", "model.safetensors", weights(_renamed), "m"),
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
    answer(
        "a pickle that runs a command in place of weights",
        EMBED,
        {
            "m": copied(
                "foreign",
                {"model.safetensors": None, "pytorch_model.bin": lambda path, _: path.write_bytes(PICKLE)},
            )
        },
        "m",
    ),
    answer(
        "a pickle that runs a command beside Dense weights",
        EMBED,
        {
            "m": copied(
                "foreign",
                {
                    "2_Dense/model.safetensors": None,
                    "2_Dense/pytorch_model.bin": lambda path, _: path.write_bytes(PICKLE),
                },
            )
        },
        "pytorch_model.bin",
    ),
    answer(
        "weights that are a named pipe",
        EMBED,
        {"m": copied("foreign", {"model.safetensors": None}), "m/model.safetensors": fifo},
        "model.safetensors",
    ),
    answer(
        "weights that are a folder",
        EMBED,
        {"m": copied("foreign", {"model.safetensors": None}), "m/model.safetensors": folder},
        "model.safetensors",
    ),
    answer(
        "weights that are a link to nothing",
        EMBED,
        {"m": copied("foreign", {"model.safetensors": None}), "m/model.safetensors": link("no")},
        "m",
    ),
    answer("a model folder that is a link to itself", EMBED, {"m": link("m")}, "m"),
    answer("a model folder that is empty", EMBED, {"m": folder}, "m"),
    answer("a model folder of vectors", EMBED, {"m/v.npy": array([[1.0]])}, "m"),
    answer("a model folder that is a named pipe", EMBED, {"m": fifo}, "m"),
)


def listed(*modules: dict[str, object]) -> str:
    """Returns a ``modules.json`` of the encoder and modules after it."""
    first = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    return json.dumps([first, *modules])


def module(kind: object, path: object = "1_Pooling") -> dict[str, object]:
    """Returns an entry of ``modules.json``."""
    return {"idx": 1, "name": "1", "path": path, "type": kind}


POOLING = "sentence_transformers.models.Pooling"
DENSE = "sentence_transformers.models.Dense"


def _outside(path: str) -> Case:
    return answer(
        f"modules.json with the path {path}",
        EMBED,
        {
            "m": copied("foreign", {"modules.json": listed(module(POOLING, path))}),
            "other/config.json": '{"pooling_mode": "mean"}',
        },
        "modules.json",
    )


def _many(content: bytes) -> bytes:
    return b"[" + b",".join([content.strip()[1:-1]] * 33_334) + b"]"  # three each


OUTSIDE = tuple(map(_outside, ("../other", "/etc", "..", "1_Pooling/../../other")))
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
            {
                "m": copied("foreign", {"modules.json": listed(module(POOLING, path))}),
                "other/config.json": '{"pooling_mode": "mean"}',
            },
            "m/",
        )
        for path in ("1_Pooling\\..\\other", 5, None, "no", "a\0b")
    ),
    *OUTSIDE,
    answer(
        "modules.json with a link out of the folder",
        EMBED,
        {
            "m": copied("foreign", {"modules.json": listed(module(POOLING, "out"))}),
            "other/config.json": '{"pooling_mode": "mean"}',
            "m/out": link("../other"),
        },
        "m/",
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
        damaged(f"Dense with {name} of {value!r}", "2_Dense/config.json", edited(**{name: value}), "2_Dense")
        for name, value in (
            ("in_features", 17),
            ("in_features", ...),
            ("in_features", "16"),
            ("in_features", -1),
            ("out_features", 10**12),
            ("out_features", 0),
            ("out_features", 7.5),
            ("bias", "x"),
            ("activation_function", "os.system"),
            ("activation_function", "evil.Evil"),
            ("activation_function", 5),
            ("use_residual", True),
        )
    ),
    *(
        damaged(
            f"sentence_bert_config.json with max_seq_length of {value!r}",
            "sentence_bert_config.json",
            edited(max_seq_length=value),
        )
        for value in (0, -1, "32", 1.5, True, [32])
    ),
    damaged(
        "sentence_bert_config.json with do_lower_case of a word",
        "sentence_bert_config.json",
        edited(do_lower_case="no"),
    ),
    *(
        damaged(
            f"config_sentence_transformers.json with truncate_dim of {value!r}",
            "config_sentence_transformers.json",
            edited(truncate_dim=value),
            "truncate_dim",
        )
        for value in (0, -1, 17, "8", True)
    ),
    damaged(
        "a prompt that isn't there",
        "config_sentence_transformers.json",
        edited(prompts={"a": "b"}, default_prompt_name="c"),
    ),
    damaged(
        "prompts that are a list",
        "config_sentence_transformers.json",
        edited(prompts=["a"], default_prompt_name="a"),
    ),
    damaged(
        "a prompt that is a number",
        "config_sentence_transformers.json",
        edited(prompts={"a": 5}, default_prompt_name="a"),
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

_BIN = {"m": copied("foreign", {"tokenizer.json": None}), "evil.py": EVIL}
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
    answer(
        f"a damaged model for {command.partition(' ')[0]}",
        command,
        {"m": copied("foreign", {"modules.json": listed(module("evil.Evil"))}), "evil.py": EVIL},
        "modules.json",
    )
    for command in _READERS
) + tuple(
    answer(
        f"weights cut short for {command.partition(' ')[0]}",
        command,
        {"m": copied("foreign", {"model.safetensors": halved})},
        "model.safetensors",
    )
    for command in (
        *_READERS,
        "fit --recipe simcse --model.encoder.model_name_or_path m --data.train $texts --data.batch_size 8 "
        "--trainer.accelerator cpu --trainer.max_steps 1",
    )
)

SOUND = (
    right("a model of other people", EMBED.replace(" m ", " $foreign "), {}, check=vectors(40)),
    right(
        "a model with files of other people beside it",
        EMBED,
        {"m": copied("foreign", {"README.md": "---\ntags: []\n---\n"}), "m/openvino": folder},
        check=vectors(40),
    ),
    right("a model after a link", EMBED, {"m": link("$foreign")}, check=vectors(40)),
    right(
        "a csv.py and a torch.py in the working directory",
        EMBED.replace(" m ", " $foreign "),
        {"csv.py": EVIL, "torch.py": EVIL, "json.py": EVIL, "transformers.py": EVIL},
        check=lambda place, _: not (place / RAN).exists(),
    ),
    right(
        "a tokenizer of another class, whose file is read all the same",
        EMBED,
        {"m": copied("foreign", {"tokenizer_config.json": edited(tokenizer_class="EvilTokenizer")})},
        check=vectors(40),
    ),
    right(
        "a tokenizer that names code of its own, which isn't run",
        EMBED,
        {
            "m": copied(
                "foreign",
                {
                    "tokenizer_config.json": edited(
                        tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]}
                    )
                },
            ),
            "m/evil.py": EVIL,
        },
        check=lambda place, _: not (place / RAN).exists(),
    ),
    right(
        "a model of float16",
        EMBED,
        {
            "m": copied(
                "foreign",
                {
                    "model.safetensors": weights(
                        lambda tensors: {name: weight.half() for name, weight in tensors.items()}
                    )
                },
            )
        },
        check=vectors(40),
    ),
)

CASES = (*BROKEN, *CONFIG, *WEIGHTS, *MODULES, *PARTS, *OURS, *COMMANDS, *SOUND)
