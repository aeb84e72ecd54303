"""Links, tokenizers and tensors of model folders and checkpoints that are hostile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hostile.cases import EMBED, FIT, Case, Make, answer, copied, edited, link, right, vectors
from hostile.judging import judge
from hostile.sound import Sound

TEXTS = {"t.txt": f"a dog\n{'a' * 40}!\n{'a ' * 3000}\n"}
COMMAND = "embed t.txt v.npy --model m --device cpu"
SLOW = r"^(([a-z ])+.)+[A-Z]([a-z])+$"


def _replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(expression: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _sequence(*parts: dict[str, object]) -> dict[str, object]:
    return {"type": "Sequence", "normalizers": [*parts]}


_TENFOLD = _replace({"String": "a"}, "a" * 10)
REFUSED: dict[str, dict[str, Any]] = {  # Any: JSON
    "replacements that make a text 10^9 times as long": {"normalizer": _sequence(*[_TENFOLD] * 9)},
    "a replacement by a million letters": {"normalizer": _replace({"String": "a"}, "a" * (1 << 20))},
    "a replacement of nothing by 100 letters": {"normalizer": _replace({"Regex": ""}, "a" * 100)},
    "100,000 letters before a text": {"normalizer": {"type": "Prepend", "prepend": "x" * 100_000}},
    "100,000 normalizers": {"normalizer": _sequence(*[{"type": "NFD"}] * 100_000)},
    "a table that claims 4 GB": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a table of no bytes": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a split that backtracks for ever": {"pre_tokenizer": _split("(a+)+$")},
    "a replacement that backtracks for ever": {"normalizer": _replace({"Regex": SLOW}, "x")},
    "a split into pieces of no letters": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a regular expression that is none": {"normalizer": _replace({"Regex": "((("}, "x")},
}
IN_USE = (
    {"type": "Prepend", "prepend": "\u2581"},
    _replace({"String": " "}, "\u2581"),
    _replace({"Regex": " {2,}"}, " "),
    {"type": "Lowercase"},
)
TOKENIZERS = (
    *(
        answer(
            f"a tokenizer with {name}",
            COMMAND,
            {**TEXTS, "m": copied("foreign", {"tokenizer.json": edited(**parts)})},
            "tokenizer",
        )
        for name, parts in REFUSED.items()
    ),
    answer(
        "a tokenizer that panics in training",
        "fit --recipe simcse --model.encoder.model_name_or_path m --data.train t.txt --data.batch_size 2 "
        "--trainer.accelerator cpu --trainer.max_steps 1",
        {**TEXTS, "m": copied("bert", {"tokenizer.json": edited(pre_tokenizer=_split("(a+)+$"))})},
        "tokenizer",
        "panic",
        may_change=("runs/version_0/config.yaml",),
    ),
    right(
        "a tokenizer with replacements that are in use",
        COMMAND,
        {**TEXTS, "m": copied("foreign", {"tokenizer.json": edited(normalizer=_sequence(*IN_USE))})},
        check=vectors(3),
    ),
)

SECRET = "the user's secret"
READ = (
    "config.json", "tokenizer.json", "modules.json", "model.safetensors", "sentence_bert_config.json",
    "1_Pooling", "2_Dense/model.safetensors", "chat_template.jinja", "vocab.txt", "additional_chat_templates",
)  # fmt: skip
SHARE = "share m --to me/mine --dry_run"


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


def _secret_card(of: str) -> Make:
    def make(path: Path, sound: Mapping[str, str]) -> None:
        copied(of)(path, sound)
        (path / "README.md").unlink(missing_ok=True)
        (path / "README.md").symlink_to("../secret")

    return make


def _no_secret(place: Path, _: str) -> bool:
    texts = [path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()]
    return bool(texts) and not any(SECRET.encode() in text for text in texts)


_WRITERS = (
    "postprocess m $texts out --whiten --features 4",
    "merge out m m",
    "onnx m out",
    FIT.replace("$bert", "m"),
)
_CARD: dict[str, str | bytes | Make] = {"m": _secret_card("model"), "secret": SECRET}
_OWN_FILES = ("config", "hparams", "metrics")


def _untouched(place: Path, _: str) -> bool:
    return all((place / name).read_text(encoding="utf-8") == "{}" for name in _OWN_FILES)


def config(path: Path, sound: Mapping[str, str]) -> None:
    """Makes the configuration of the foreign model."""
    shutil.copy(Path(sound["foreign"], "config.json"), path)


LINKS = (
    *(answer(f"a model whose {name} is a link out", EMBED, {"m": linked(name)}, f"m/{name}") for name in READ),
    *(
        answer(
            f"a link out of a model for {command.partition(' ')[0]}",
            command,
            {"m": linked("chat_template.jinja")},
            "m/chat_template.jinja",
        )
        for command in _WRITERS
    ),
    answer(
        "a model whose configuration is a link to a link out of it",
        EMBED,
        {
            "m": copied("foreign", {"config.json": None}),
            "m/config.json": link("first"),
            "m/first": link("../c"),
            "c": "{}",
        },
        "m/config.json",
    ),
    right(
        "a model with a link inside of it",
        EMBED,
        {"m": copied("foreign", {"config.json": None}), "m/own.json": config, "m/config.json": link("own.json")},
        check=vectors(40),
    ),
    right(
        "a model whose card is a link, postprocessed",
        "postprocess m $texts out --remove_components 1",
        {"m": _secret_card("foreign"), "secret": SECRET},
        check=_no_secret,
    ),
    right("a model whose card is a link, merged", "merge out m m", _CARD, check=_no_secret),
    *(
        answer(f"a model to share whose {name} is a link", SHARE, {"m": linked(name, of="model")}, f"m/{name}")
        for name in ("tokenizer.json", "1_Pooling")
    ),
    answer("a model to share whose card is a link", SHARE, _CARD, "m/README.md", "link"),
    answer(
        "a model to share whose card is a link inside of it",
        SHARE,
        {"m": copied("model", {"README.md": None}), "m/notes": SECRET, "m/README.md": link("notes")},
        "m/README.md",
    ),
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
        _untouched,
        may_change=("run/",),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*TOKENIZERS, *LINKS], ids=attrgetter("name"))
def test_hostile_links_and_tokenizers_are_refused_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
