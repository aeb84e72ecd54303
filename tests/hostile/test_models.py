"""Damaged, foreign and malicious model folders, read by the commands over a saved model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

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
    Content,
    Make,
    answer,
    copied,
    edited,
    fifo,
    flipped,
    folder,
    half_zeroed,
    halved,
    link,
    replaced,
    right,
    vectors,
    weights,
)
from hostile.judging import judge
from hostile.sound import Sound
from safetensors.torch import save
from torch import Tensor

Damage: TypeAlias = tuple[str, Any, *tuple[str, ...]]  # Any: what copied takes
CONFIG, TOKENIZER, MODULES = "config.json", "tokenizer.json", "modules.json"
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
LENGTHS, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
WEIGHTS, DENSE_WEIGHTS = "model.safetensors", "2_Dense/model.safetensors"
LAYER = "layer.0.output.dense.weight"


def damaged(rows: Mapping[str, Damage], of: str = "foreign") -> list[Case]:
    """Returns a case for each row: name -> a file of the folder, its change, and words in place of its name."""
    return [
        answer(name, EMBED, {"m": copied(of, {file: change})}, *(says or [file.rpartition("/")[2]]))
        for name, (file, change, *says) in rows.items()
    ]


def of_weight(end: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Returns a change of the weights whose names have an end."""
    return weights(lambda tensors: {k: change(v) if k.endswith(end) else v for k, v in tensors.items()})


def pickled(file: str) -> Make:
    """Returns what copies the foreign model with a pickle that runs a command in place of a file of weights."""
    binary = file.replace("model.safetensors", "pytorch_model.bin")
    return copied("foreign", {file: None, binary: lambda path, _: path.write_bytes(PICKLE)})


# The JSON files

JSON_FILES = (CONFIG, TOKENIZER, "tokenizer_config.json", MODULES, POOLING, DENSE, LENGTHS, SETTINGS)
NO_JSON = {"cut short": halved, "null": "null", "5,000 levels deep": DEEP}
"""Of the last two each reader has a check of its own."""
BROKEN: dict[str, Damage] = {
    f"{file}: {how}": (file, content, *(["m"] if file == "tokenizer_config.json" else []))
    for file in JSON_FILES
    for how, content in NO_JSON.items()
} | {
    f"{file}: {how}": (file, content)
    for file in (CONFIG, POOLING)
    for how, content in {"empty": "", "a number": "5", "no UTF-8": b'{"a": "\xff\xfe"}'}.items()
}

# File, key and printed word -> values that no model has.
VALUES: dict[tuple[str, str, str], tuple[Any, ...]] = {
    (CONFIG, "hidden_size", CONFIG): (0, -16, "16", 10**12, 32),
    (CONFIG, "num_hidden_layers", CONFIG): ("one",),
    (CONFIG, "num_hidden_layers", "m"): (3, 0),  # more and fewer than have weights
    (CONFIG, "num_attention_heads", CONFIG): (3, 0),
    (CONFIG, "vocab_size", CONFIG): (-1, 10**15),
    (CONFIG, "vocab_size", "m"): (100,),  # fewer than the tokenizer has
    (CONFIG, "model_type", CONFIG): ("evil", ["bert"], ...),
    (CONFIG, "hidden_act", CONFIG): ("evil",),
    (CONFIG, "intermediate_size", CONFIG): (None,),
    (CONFIG, "max_position_embeddings", CONFIG): ("many",),
    (CONFIG, "max_position_embeddings", "m"): (0,),
    (CONFIG, "layer_norm_eps", CONFIG): ("nan",),
    (DENSE, "in_features", "2_Dense"): (17, ..., "16", -1),
    (DENSE, "out_features", "2_Dense"): (10**12, 0, 7.5),
    (DENSE, "bias", "2_Dense"): ("x",),
    (DENSE, "activation_function", "2_Dense"): ("os.system", "evil.Evil", 5),
    (DENSE, "use_residual", "2_Dense"): (True,),
    (LENGTHS, "max_seq_length", LENGTHS): (0, "32", 1.5, True, [32]),
    (LENGTHS, "do_lower_case", LENGTHS): ("no",),
    (SETTINGS, "truncate_dim", "truncate_dim"): (0, 17, "8", True),
    (TOKENIZER, "model", TOKENIZER): ({"type": "Evil"},),
}
EDITED: dict[str, Damage] = {
    f"{file}: {key} {value!r}": (file, edited(**{key: value}), says)
    for (file, key, says), values in VALUES.items()
    for value in values
}
OWN_CODE = edited(model_type="mine", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
PARTS: dict[str, Damage] = {
    "config.json that names code of its own": (CONFIG, OWN_CODE, "m"),
    "config.json of a vision model": (CONFIG, '{"model_type": "vit"}', "m"),
    "no config.json": (CONFIG, None),
    "no tokenizer": (TOKENIZER, None, "tokenizer"),
    "no config.json of a pooler": (POOLING, None, POOLING),
    "a pooling mode that is a number": (POOLING, '{"pooling_mode": 5}', POOLING),
    "a pooling mode in two lists": (POOLING, '{"pooling_mode": [["mean"]]}', POOLING),
    "a prompt pooled or not by a word": (POOLING, '{"pooling_mode": "mean", "include_prompt": "no"}', POOLING),
    "a flag that is a word": (POOLING, '{"pooling_mode_mean_tokens": "yes"}', POOLING),
    "a prompt that isn't there": (SETTINGS, edited(prompts={"a": "b"}, default_prompt_name="c")),
    "prompts that are a list": (SETTINGS, edited(prompts=["a"], default_prompt_name="a")),
    "a prompt that is a number": (SETTINGS, edited(prompts={"a": 5}, default_prompt_name="a")),
}

# Weights

HEADER = b"\xff" * 7 + b"\x0d" + b"{}" * 50
OF_WEIGHTS: dict[str, Damage] = {
    "no weights": (WEIGHTS, None, "m"),
    "empty weights": (WEIGHTS, b"", "m"),
    "weights cut short": (WEIGHTS, halved),
    "weights whose second half is zero": (WEIGHTS, half_zeroed, "m"),
    "weights with a header of 10^18 bytes": (WEIGHTS, HEADER, "m"),
    "weights with a header that is no JSON": (WEIGHTS, b"\x10" + bytes(7) + b"no JSON at all..", "m"),
    "weights that are a pickle": (WEIGHTS, PICKLE, "m"),
    "a layer of zeros": (WEIGHTS, of_weight(LAYER, torch.zeros_like), "m"),
    "one NaN among the weights": (
        WEIGHTS,
        of_weight("word_embeddings.weight", lambda weight: weight.index_fill(0, torch.tensor([5]), torch.nan)),
        "m",
    ),
    "weights of another shape": (WEIGHTS, of_weight(LAYER, lambda weight: weight.T.contiguous()), "m"),
    "a layer without weights": (
        WEIGHTS,
        weights(lambda tensors: {k: v for k, v in tensors.items() if not k.endswith(LAYER)}),
        "m",
    ),
    "weights of other names": (WEIGHTS, weights(lambda them: {f"other.{k}": v for k, v in them.items()}), "m"),
    "weights of no tensor": (WEIGHTS, save({}, {"format": "pt"}), "m"),
    "Dense weights cut short": (DENSE_WEIGHTS, halved),
    "no Dense weights": (DENSE_WEIGHTS, None),
    "Dense weights that are a pickle": (DENSE_WEIGHTS, PICKLE),
    "Dense weights with NaN": (DENSE_WEIGHTS, of_weight("", lambda weight: weight * torch.nan), "m"),
}
UNWEIGHTED = copied("foreign", {WEIGHTS: None})
FOLDERS: dict[str, tuple[Mapping[str, Content], str]] = {
    "a pickle that runs a command in place of weights": ({"m": pickled(WEIGHTS)}, "m"),
    "a pickle that runs a command beside Dense weights": ({"m": pickled(DENSE_WEIGHTS)}, "pytorch_model.bin"),
    "a model folder that is a link to itself": ({"m": link("m")}, "m"),
    "a model folder that is empty": ({"m": folder}, "m"),
    "a model folder that is a named pipe": ({"m": fifo}, "m"),
    "weights that are a named pipe": ({"m": UNWEIGHTED, f"m/{WEIGHTS}": fifo}, WEIGHTS),
    "weights that are a folder": ({"m": UNWEIGHTED, f"m/{WEIGHTS}": folder}, WEIGHTS),
    "weights that are a link to nothing": ({"m": UNWEIGHTED, f"m/{WEIGHTS}": link("no")}, "m"),
}

# The list of modules

FIRST = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


def listed(*modules: dict[str, object]) -> str:
    """Returns a ``modules.json`` of the encoder and modules after it."""
    return json.dumps([FIRST, *modules])


def module(
    kind: object = "sentence_transformers.models.Pooling", path: object = "1_Pooling"
) -> dict[str, object]:
    """Returns an entry of ``modules.json``."""
    return {"idx": 1, "name": "1", "path": path, "type": kind}


def _many(content: bytes) -> bytes:
    return b"[" + b",".join([content.strip()[1:-1]] * 33_334) + b"]"  # three each


LISTS: dict[str, Damage] = {
    "modules.json without types": (MODULES, json.dumps([{"path": ""}])),
    "modules.json of words": (MODULES, json.dumps(["Transformer", "Pooling"])),
    "modules.json that is an object": (MODULES, "{}"),
    "modules.json with two poolers": (MODULES, listed(module(), module())),
    "modules.json with the encoder last": (MODULES, json.dumps([module(), FIRST])),
    "modules.json with two encoders": (MODULES, listed(FIRST)),
    "modules.json without an encoder": (MODULES, json.dumps([module()])),
    "modules.json of 100,000 modules": (MODULES, _many, MODULES, "at most 100 modules"),
    "no modules.json beside parts": (MODULES, None),
}
KINDS = (
    "evil.Evil", "os.system", "builtins.exec", "m.evil.Evil", "..evil.Evil", "contrastive_text.losses.InfoNCE",
    "contrastive_text.cli.run", "contrastive_text.no_such.Pooler", "sentence_transformers.models.CNN", "",
    "Pooling.", 5, None,
)  # fmt: skip
PATHS = {
    "m/": ("1_Pooling\\..\\other", 5, None, "no", "a\0b", "out"),
    MODULES: ("../other", "/etc", "..", "1_Pooling/../../other"),
}
OUTSIDE = {"other/config.json": '{"pooling_mode": "mean"}', "m/out": link("../other")}
"""A pooler outside of the model's folder, and a way to it."""
EVIL_MODULE = {"m": copied("foreign", {MODULES: listed(module("evil.Evil"))}), "evil.py": EVIL}
MALICIOUS = (
    *(
        answer(
            f"modules.json that names {kind!r}",
            EMBED,
            {"m": copied("foreign", {MODULES: listed(module(kind))}), "evil.py": EVIL, "m/evil.py": EVIL},
            MODULES,
        )
        for kind in KINDS
    ),
    *(
        answer(
            f"modules.json with the path {path!r}",
            EMBED,
            {"m": copied("foreign", {MODULES: listed(module(path=path))}), **OUTSIDE},
            says,
        )
        for says, paths in PATHS.items()
        for path in paths
    ),
)

# Models with a manifest, and every reader of a model

OURS: dict[str, Damage] = {
    "our model with one bit of its weights changed": (WEIGHTS, flipped),
    "our model with one letter of its vocabulary changed": (TOKENIZER, replaced('"bird"', '"birt"')),
    "our model with another pooler": (POOLING, edited(pooling_mode="max"), POOLING),
    "our model with another length": (LENGTHS, edited(max_seq_length=8)),
    "our model without its list of modules": (MODULES, None),
}
READERS = (
    "evaluate m $pairs",
    "diagnose m $texts",
    "compare $bert m --data $pairs",
    "search $texts q --model m",
    "duplicates $texts d.tsv --model m",
    "postprocess m $texts out --whiten",
    "onnx m out",
    f"{FIT} --init_from m",
)
CUT = {"m": copied("foreign", {WEIGHTS: halved})}
COMMANDS = (
    *(answer(f"a malicious model: {command}", command, EVIL_MODULE, MODULES) for command in READERS),
    answer("weights cut short: compare", READERS[2], CUT, WEIGHTS),
    answer("weights cut short: fit", FIT.replace("$bert", "m"), CUT, WEIGHTS),
)


def not_run(place: Path, _: str) -> bool:
    """Returns whether no code of a case has run."""
    return not (place / RAN).exists()


OWN_TOKENIZER = edited(tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]})
SOUND = (
    *(
        right(name, EMBED, {"m": content, "evil.py": EVIL}, check=vectors(40))
        for name, content in {
            "a model of other people": copied("foreign", {"README.md": "---\ntags: []\n---\n"}),
            "a model after a link": link("$foreign"),
            "a model of float16": copied("foreign", {WEIGHTS: of_weight("", Tensor.half)}),
        }.items()
    ),
    right(
        "a csv.py and a torch.py in the working directory",
        EMBED.replace(" m ", " $foreign "),
        dict.fromkeys(("csv.py", "torch.py", "json.py", "transformers.py"), EVIL),
        check=not_run,
    ),
    right(
        "a tokenizer that names code of its own, whose file is read and whose code isn't",
        EMBED,
        {"m": copied("foreign", {"tokenizer_config.json": OWN_TOKENIZER}), "m/evil.py": EVIL},
        check=lambda place, said: not_run(place, said) and vectors(40)(place, said),
    ),
)

# Tokenizers

TEXTS = {"t.txt": f"a dog\n{'a' * 40}!\n{'a ' * 3000}\n"}
EMBED_T = "embed t.txt v.npy --model m --device cpu"
SLOW = r"^(([a-z ])+.)+[A-Z]([a-z])+$"


def _replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(expression: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _sequence(*parts: dict[str, object]) -> dict[str, object]:
    return {"type": "Sequence", "normalizers": [*parts]}


_TENFOLD = _replace({"String": "a"}, "a" * 10)
NORMALIZERS: dict[str, dict[str, Any]] = {  # Any: JSON
    "replacements that make a text 10^9 times as long": _sequence(*[_TENFOLD] * 9),
    "a replacement by a million letters": _replace({"String": "a"}, "a" * (1 << 20)),
    "a replacement of nothing by 100 letters": _replace({"Regex": ""}, "a" * 100),
    "100,000 letters before a text": {"type": "Prepend", "prepend": "x" * 100_000},
    "100,000 normalizers": _sequence(*[{"type": "NFD"}] * 100_000),
    "a table that claims 4 GB": {"type": "Precompiled", "precompiled_charsmap": "/////w=="},
    "a table of no bytes": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    "a replacement that backtracks for ever": _replace({"Regex": SLOW}, "x"),
    "a regular expression that is none": _replace({"Regex": "((("}, "x"),
}
PRE_TOKENIZERS = {
    "a split that backtracks for ever": _split("(a+)+$"),
    "a split into pieces of no letters": {"type": "FixedLength", "length": 0},
}
IN_USE = _sequence(
    {"type": "Prepend", "prepend": "\u2581"},
    _replace({"String": " "}, "\u2581"),
    _replace({"Regex": " {2,}"}, " "),
    {"type": "Lowercase"},
)


def tokenizing(of: str = "foreign", **parts: object) -> dict[str, Content]:
    """Returns texts and a model whose tokenizer has another part."""
    return {**TEXTS, "m": copied(of, {TOKENIZER: edited(**parts)})}


TOKENIZERS = (
    *(answer(name, EMBED_T, tokenizing(normalizer=part), "tokenizer") for name, part in NORMALIZERS.items()),
    *(
        answer(name, EMBED_T, tokenizing(pre_tokenizer=part), "tokenizer")
        for name, part in PRE_TOKENIZERS.items()
    ),
    answer(
        "a tokenizer that panics in training",
        FIT.replace("$bert", "m").replace("$texts", "t.txt").replace("batch_size 8", "batch_size 2"),
        tokenizing("bert", pre_tokenizer=_split("(a+)+$")),
        "tokenizer",
        "panic",
        may_change=("runs/version_0/config.yaml",),
    ),
    right("replacements that are in use", EMBED_T, tokenizing(normalizer=IN_USE), check=vectors(3)),
)

# Links

SECRET = "the user's secret"
LINKED = (
    CONFIG, TOKENIZER, MODULES, WEIGHTS, LENGTHS, "1_Pooling", DENSE_WEIGHTS, "chat_template.jinja", "vocab.txt",
    "additional_chat_templates",
)  # fmt: skip
SHARE = "share m --to me/mine --dry_run"
WRITERS = (
    "postprocess m $texts out --whiten --features 4",
    "merge out m m",
    "onnx m out",
    FIT.replace("$bert", "m"),
)


def linked(name: str, of: str = "foreign") -> Make:
    """Returns what copies a model folder and puts a link out of it in the place of one file or folder."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        copied(of)(path, sound)
        place, outside = path / name, path.parent / "outside"
        outside.mkdir()
        if place.exists():
            shutil.move(place, outside / place.name)
        else:
            (outside / place.name).write_text(SECRET, encoding="utf-8")
        place.symlink_to(outside / place.name)

    return make


def no_secret(place: Path, _: str) -> bool:
    """Returns whether a command has written a model, and no file has the secret."""
    texts = [path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()]
    return bool(texts) and not any(SECRET.encode() in text for text in texts)


def with_card(of: str, to: str = "../secret") -> dict[str, Content]:
    """Returns a model whose card is a link."""
    changes: dict[str, None] = {} if of == "foreign" else {"README.md": None}
    return {"m": copied(of, changes), "secret": SECRET, "m/notes": SECRET, "m/README.md": link(to)}


def own_configuration(path: Path, sound: Mapping[str, str]) -> None:
    """Makes the configuration of the foreign model."""
    shutil.copy(Path(sound["foreign"], CONFIG), path)


UNCONFIGURED = copied("foreign", {CONFIG: None})
_OWN_FILES = ("config", "hparams", "metrics")
LINKS = (
    *(answer(f"a model whose {name} is a link out", EMBED, {"m": linked(name)}, f"m/{name}") for name in LINKED),
    *(
        answer(f"a link out of a model: {command}", command, {"m": linked("vocab.txt")}, "m/vocab.txt")
        for command in WRITERS
    ),
    answer(
        "a configuration that is a link to a link out",
        EMBED,
        {"m": UNCONFIGURED, f"m/{CONFIG}": link("first"), "m/first": link("../c"), "c": "{}"},
        f"m/{CONFIG}",
    ),
    right(
        "a model with a link inside of it",
        EMBED,
        {"m": UNCONFIGURED, "m/own.json": own_configuration, f"m/{CONFIG}": link("own.json")},
        check=vectors(40),
    ),
    *(
        right(f"a model whose card is a link: {command}", command, with_card(of), check=no_secret)
        for command, of in {
            "postprocess m $texts out --remove_components 1": "foreign",
            "merge out m m": "model",
        }.items()
    ),
    *(
        answer(f"a model to share whose {name} is a link", SHARE, {"m": linked(name, of="model")}, f"m/{name}")
        for name in (TOKENIZER, "1_Pooling")
    ),
    answer("a model to share whose card is a link", SHARE, with_card("model"), "m/README.md", "link"),
    answer("its card is a link inside of it", SHARE, with_card("model", "notes"), "m/README.md"),
    Case(
        "a run folder of links to files of the user's",
        f"{FIT} --folder run",
        {
            **dict.fromkeys(_OWN_FILES, "{}"),
            "run/config.yaml": link("../config"),
            "run/hparams.yaml": link("../hparams"),
            "run/metrics.csv": link("../metrics"),
        },
        "right",
        (),
        lambda place, _: all((place / name).read_text(encoding="utf-8") == "{}" for name in _OWN_FILES),
        may_change=("run/",),
    ),
)


CASES = (
    *damaged(BROKEN | EDITED | PARTS | OF_WEIGHTS | LISTS), *damaged(OURS, of="model"),
    *(answer(name, EMBED, files, says) for name, (files, says) in FOLDERS.items()),
    *MALICIOUS, *COMMANDS, *SOUND, *TOKENIZERS, *LINKS,
)  # fmt: skip
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
