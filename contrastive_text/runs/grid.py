"""Grids of runs: the keys that vary with their values, from a YAML file or the shell, and the cells they make."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.config.specs import describe_spec, typed_part, typed_value
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes.layers import read_yaml

_CALL = re.compile(r"[\w.]+\(.*\)", flags=re.DOTALL)
_KEYS = re.compile(r"[\w.-]+(,[\w.-]+)*")
_FIRST = "recipe"
"""Key whose options come before those of the user, which override the recipe."""
_LONGEST = 60
"""Letters of a cell's folder name."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A key that varies, with its values.

    Args:
        name: The key; of several keys that share a value, the keys joined by commas.
        values: Label of a value -> the value as ``fit`` takes it after ``--KEY``.
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A combination of values.

    Args:
        labels: Label of the value on each axis.
        first: Options of ``fit`` that come before those of the user: the recipe.
        last: Options that come after them.
    """

    labels: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The labels in one line."""
        return " | ".join(self.labels) or "the run"

    @property
    def folder(self) -> str:
        """Name of the cell's folder: the labels, with a checksum if they aren't a name of a file.

        Example:
            >>> Cell(("CLSPooler", "32")).folder, Cell(("CropTokens(rate=0.1)",)).folder
            ('CLSPooler_32', 'CropTokens_rate=0.1-519c350c')
        """
        label = "_".join(self.labels)
        words = re.sub(r"[^\w.=-]+", "_", label)[:_LONGEST].strip("_.")
        return words if words == label else f"{words}-{zlib.crc32(label.encode()):08x}"

    def words(self, options: Sequence[str]) -> list[str]:
        """Returns the options of ``fit`` for this cell, given those of all cells."""
        return [*self.first, *options, *self.last]


def parse_vary(typed: str) -> Axis:
    """Reads ``KEY=VALUE,VALUE,...``; commas inside brackets don't separate values.

    Args:
        typed: What follows ``--vary``.

    Raises:
        ValueError: No key, a value that is empty or given twice, a bracket that isn't closed, or a part with an
            argument that has no name.

    Example:
        >>> axis = parse_vary("model.views.positive=none,CropTokens,FeatureCutoff(rate=0.3)")
        >>> for label, value in axis.values.items():
        ...     print(label, "->", value)
        none -> []
        CropTokens -> CropTokens
        FeatureCutoff(rate=0.3) -> [{"class_path": "FeatureCutoff", "init_args": {"rate": 0.3}}]
    """
    name, _, values = typed.partition("=")
    if not values or not _KEYS.fullmatch(name):
        raise InvalidValueError(
            f"--vary: expected KEY=VALUE,VALUE,..., got {typed!r}; such as model.optimizer.lr=1e-5,3e-5"
        )
    parts = [""]
    depth = 0
    for letter in values:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise InvalidValueError(
            f"--vary {name}: expected a closing bracket for every opening one, got {values!r}"
        )
    return _axis(name, [part.strip() for part in parts], "--vary")


def read_grid(path: Path) -> list[Axis]:
    """Reads a YAML file with a list of values for each key that varies.

    Raises:
        ValueError: Something else than lists of different values under names.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "grid.yaml").write_text("data.batch_size: [32, 64]")
        ...     read_grid(Path(folder, "grid.yaml"))
        [Axis(name='data.batch_size', values={'32': '32', '64': '64'})]
    """
    content = read_yaml(path, "--grid")
    if not isinstance(content, dict) or not all(isinstance(values, list) for values in content.values()):
        raise InvalidValueError(
            f"--grid {path}: expected a list of values under each key, as in model.optimizer.lr: [1e-5, 3e-5], "
            "got something else; write a list"
        )
    return [_axis(str(name), values, f"--grid {path}:") for name, values in content.items()]


def _axis(name: str, values: Sequence[object], where: str) -> Axis:
    if not values or not _KEYS.fullmatch(name):
        raise InvalidValueError(f"{where} {name}: expected a key with one value or more, got {values}; add one")
    chains = {"views" in key.split(".")[:-1] for key in name.split(",")}
    if len(chains) > 1:
        raise InvalidValueError(
            f"{where} {name}: expected keys of one kind, got views and others; vary them one by one"
        )
    labels: dict[str, str] = {}
    for value in values:
        label = value if isinstance(value, str) else "none" if value is None else describe_spec(value)
        if not label or label in labels:
            said = f"{label} twice" if label else "an empty one"
            raise InvalidValueError(f"{where} {name}: expected different values, got {said}; drop it")
        plain = _typed(value, f"{where} {name}", is_chain=chains == {True}) if isinstance(value, str) else value
        labels[label] = plain if isinstance(plain, str) else json.dumps(plain)
    return Axis(name, labels)


def _typed(label: str, where: str, is_chain: bool) -> object:
    """Returns the value of ``none``, of a call such as ``Class(rate=0.3)``, or of a list of calls."""
    if label in ("none", "null"):
        return [] if is_chain else None
    if _CALL.fullmatch(label):
        part = typed_part(label, where)
        return [part] if is_chain else part
    if label.startswith("[") and "(" in label:
        return typed_value(label, where)
    return label


def plan(axes: Sequence[Axis]) -> list[Cell]:
    """Returns the cells of a grid, the last axis fastest; one cell without an axis.

    Raises:
        ValueError: A key on two axes.

    Example:
        >>> cells = plan([parse_vary("model.pooler=CLSPooler,MeanPooler"), parse_vary("data.batch_size=32,64")])
        >>> [cell.name for cell in cells]
        ['CLSPooler | 32', 'CLSPooler | 64', 'MeanPooler | 32', 'MeanPooler | 64']
        >>> cells[0].last
        ('--model.pooler=CLSPooler', '--data.batch_size=32')
    """
    keys = [key for axis in axes for key in axis.name.split(",")]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidValueError(
                f"--vary {key}: expected a key once, got it twice; list all its values in one place"
            )
    cells = []
    for labels in itertools.product(*(axis.values for axis in axes)):
        named = [(axis.name == _FIRST, axis.options(label)) for axis, label in zip(axes, labels, strict=True)]
        first, last = (
            tuple(option for is_first, each in named if is_first == wanted for option in each)
            for wanted in (True, False)
        )
        cells.append(Cell(labels, first, last))
    return cells
