"""Contents of ``tokenizer.json`` that would fill the memory, take for ever, or panic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hostile.case import answer, right
from hostile.makers import copied, edited, vectors

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
_PANIC = answer(
    "a tokenizer that panics in training",
    "fit --recipe simcse --model.encoder.model_name_or_path m --data.train t.txt --data.batch_size 2 "
    "--trainer.accelerator cpu --trainer.max_steps 1",
    {**TEXTS, "m": copied("bert", {"tokenizer.json": edited(pre_tokenizer=_split("(a+)+$"))})},
    "tokenizer",
    "panic",
)
CASES = (
    *(
        answer(
            f"a tokenizer with {name}",
            COMMAND,
            {**TEXTS, "m": copied("foreign", {"tokenizer.json": edited(**parts)})},
            "tokenizer",
        )
        for name, parts in REFUSED.items()
    ),
    replace(_PANIC, may_change=("runs/version_0/config.yaml",)),
    right(
        "a tokenizer with replacements that are in use",
        COMMAND,
        {
            **TEXTS,
            "m": copied(
                "foreign",
                {
                    "tokenizer.json": edited(
                        normalizer=_sequence(
                            {"type": "Prepend", "prepend": "\u2581"},
                            _replace({"String": " "}, "\u2581"),
                            _replace({"Regex": " {2,}"}, " "),
                            {"type": "Lowercase"},
                        )
                    )
                },
            ),
        },
        check=vectors(3),
    ),
)
