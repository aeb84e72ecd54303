"""What varies in a sweep: keys of the configuration, and their values in the notation of the shell."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.notation import expression, part_of, typed_part
from contrastive_text.recipes.yaml_files import read_yaml

_CALL = re.compile(r"[\w.]+\(.*\)", flags=re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_NONE = ("none", "null")


@dataclass(frozen=True, slots=True)
class Axis:
    """A key that varies, or several that have the same value, and its values.

    Args:
        name: The keys as they were typed, joined by commas.
        values: Value as it was typed -> what ``fit`` gets after ``--KEY``.
    """

    name: str
    values: Mapping[str, str]

    def options(self, label: str) -> list[str]:
        """Returns the options of ``fit`` that set a value.

        Example:
            >>> Axis("data.batch_size", {"32": "32"}).options("32")
            ['--data.batch_size=32']
        """
        return [f"--{key}={self.values[label]}" for key in self.name.split(",")]


def parse_vary(typed: str) -> Axis:
    """Reads ``KEY=VALUE,VALUE,...``.

    A key is one of the configuration, ``config`` (values are files) or ``recipe`` (values are names); of several
    keys, ``KEY,KEY=...``, all get the same value. A value is

    - a number or a word, as ``fit`` takes it;
    - ``none``: no part, and of views an empty chain;
    - ``Class`` or ``Class(rate=0.3, mark=word)``: a part; of views a chain of one;
    - ``Class+Class(rate=0.3)``: a chain of views, from left to right;
    - ``@FILE``: what a YAML file holds.

    Args:
        typed: What follows ``--vary``.

    Raises:
        ValueError: No key, an empty value or the same one twice, a bracket that isn't closed, a part with
            arguments that have no name, or a file that isn't there.

    Example:
        >>> axis = parse_vary("model.views.positive=none,CropTokens,FeatureCutoff(rate=0.3)")
        >>> for label, value in axis.values.items():
        ...     print(label, "->", value)
        none -> []
        CropTokens -> [{"class_path": "CropTokens"}]
        FeatureCutoff(rate=0.3) -> [{"class_path": "FeatureCutoff", "init_args": {"rate": 0.3}}]
    """
    name, _, rest = typed.partition("=")
    keys = name.split(",")
    if not rest or not all(re.fullmatch(r"[\w.-]+", key) for key in keys):
        raise InvalidValueError(
            f"--vary: expected KEY=VALUE,VALUE,..., got {typed!r}; such as model.optimizer.lr=1e-5,3e-5"
        )
    chains = {_is_chain(key) for key in keys}
    if len(chains) > 1:
        raise InvalidValueError(
            f"--vary: expected keys of one kind, got views and others in {name}; vary them apart"
        )
    values: dict[str, str] = {}
    for label in split_values(rest, name):
        if not label or label in values:
            said = f"{label} twice" if label else "an empty one"
            raise InvalidValueError(f"--vary {name}: expected different values, got {said}")
        values[label] = _value(label, name, chain=chains == {True})
    return Axis(name, values)


def split_values(typed: str, where: str) -> list[str]:
    """Splits at commas that stand outside of brackets and quotes.

    Args:
        typed: The values.
        where: Their key, for the error.

    Raises:
        ValueError: A bracket or a quote that isn't closed, or was never opened.

    Example:
        >>> split_values("none,A(rate=0.1,mark='a,b'),[1, 2]", "key")
        ['none', "A(rate=0.1,mark='a,b')", '[1, 2]']
    """
    found, open_ends = [""], [""]
    for letter in typed:
        quoted = open_ends[-1] in ("'", '"')
        if letter == open_ends[-1]:
            open_ends.pop()
        elif not quoted and (letter in _PAIRS or letter in "'\""):
            open_ends.append(_PAIRS.get(letter, letter))
        elif not quoted and letter in _PAIRS.values():
            raise InvalidValueError(
                f"--vary {where}: expected {letter!r} after its opening bracket, got {typed!r}"
            )
        if letter == "," and len(open_ends) == 1:
            found.append("")
        else:
            found[-1] += letter
    if len(open_ends) > 1:
        raise InvalidValueError(f"--vary {where}: expected a closing {open_ends[-1]!r}, got {typed!r}")
    return [value.strip() for value in found]


def _is_chain(key: str) -> bool:
    """Whether a key holds a chain of views: ``model.views.ROLE`` or ``model.views.TASK.ROLE``."""
    return "views" in key.split(".")[:-1]


def _value(label: str, where: str, chain: bool) -> str:
    """Returns a value as ``fit`` takes it: YAML on one line."""
    if label in _NONE:
        return "[]" if chain else "null"
    if label.startswith("@"):
        return json.dumps(_read(label[1:], where))
    if chain and label[0] not in "[{":
        place = f"--vary {where}"
        return json.dumps(_chain(expression(label, place, _EXPECTED), place))
    if not chain and _CALL.fullmatch(label):
        return json.dumps(typed_part(label, f"--vary {where}"))
    return label


def _read(path: str, where: str) -> Any:  # Any: what YAML can hold
    if not Path(path).exists():
        raise InvalidValueError(f"--vary {where}: expected a YAML file after @, got {path}, which isn't there")
    return read_yaml(Path(path), f"--vary {where}")


_EXPECTED = "expected a part such as Class or Class(rate=0.3), or a chain of views such as Class+Class"


def _chain(node: ast.expr, where: str) -> list[dict[str, Any]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _chain(node.left, where) + _chain(node.right, where)
    return [part_of(node, where)]
