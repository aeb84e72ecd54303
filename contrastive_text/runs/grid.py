"""Grids of a sweep: parses the varied keys and their values, and enumerates the cells of the grid."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.config.specs import describe_spec, parse_part, parse_value
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes.layers import names_file, read_yaml

_CALL = re.compile(r"[\w.]+\(.*\)", flags=re.DOTALL)
_KEYS = re.compile(r"[\w.-]+(,[\w.-]+)*")
RECIPE = "recipe"
"""Key of a grid that varies the recipe. Its option comes before the user's options, which override the recipe."""
_LONGEST = 60
"""Largest number of letters in the name of a cell's folder, without the checksum."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a grid: a configuration key and the values that a sweep tries.

    Args:
        name: The key. Several keys that get the same value are joined by commas.
        values: Label of a value -> text of the value after ``--KEY`` in a command of ``fit``.
    """

    name: str
    values: Mapping[str, str]

    def options(self, label: str) -> list[str]:
        """Returns the options of ``fit`` that set the axis to a value.

        Example:
            >>> Axis("data.batch_size", {"32": "32"}).options("32")
            ['--data.batch_size=32']
            >>> axis = parse_vary("recipe=simcse,mine.yaml")
            >>> axis.options("simcse"), axis.options("mine.yaml")
            (['--recipe=simcse'], ['--config=mine.yaml'])
        """
        if self.name == RECIPE and names_file(self.values[label]):
            return [f"--config={self.values[label]}"]
        return [f"--{key}={self.values[label]}" for key in self.name.split(",")]


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a grid: one value of each axis.

    Args:
        labels: Label of the value on each axis.
        first: Options of ``fit`` that come before the user's options: the recipe.
        last: Options of ``fit`` that come after the user's options.
    """

    labels: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Labels of the cell in one line."""
        return " | ".join(self.labels) or "the run"

    @property
    def folder(self) -> str:
        """Name of the cell's folder: the labels, with a checksum if they aren't a valid file name.

        Example:
            >>> Cell(("CLSPooler", "32")).folder, Cell(("CropTokens(rate=0.1)",)).folder
            ('CLSPooler_32', 'CropTokens_rate=0.1-519c350c')
        """
        label = "_".join(self.labels)
        words = re.sub(r"[^\w.=-]+", "_", label)[:_LONGEST].strip("_.")
        return words if words == label else f"{words}-{zlib.crc32(label.encode()):08x}"

    def words(self, options: Sequence[str]) -> list[str]:
        """Returns the options of ``fit`` for this cell, from the options that all cells share."""
        return [*self.first, *options, *self.last]


def parse_vary(typed: str) -> Axis:
    """Parses ``KEY=VALUE,VALUE,...`` to an axis. Commas inside brackets don't separate values.

    Args:
        typed: Text after ``--vary``.

    Raises:
        ValueError: There is no key, a value is empty or repeated, a bracket isn't closed, or an argument of a
            part has no name.

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
            f"--vary: expected KEY=VALUE,VALUE,..., got {typed!r}; write for example model.optimizer.lr=1e-5,3e-5"
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
    """Reads the axes of a grid from a YAML file with a list of values under each key.

    Raises:
        ValueError: The file isn't a mapping of keys to lists of different values.

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
        raise InvalidValueError(
            f"{where} {name}: expected a key with one value or more, got {name}: {values}; add a value"
        )
    chains = {"views" in key.split(".")[:-1] for key in name.split(",")}
    if len(chains) > 1:
        raise InvalidValueError(
            f"{where} {name}: expected keys of views, or keys of other parts, got both; vary them one by one"
        )
    labels: dict[str, str] = {}
    for value in values:
        label = value if isinstance(value, str) else "none" if value is None else describe_spec(value)
        if not label or label in labels:
            got = f"{label} twice" if label else "an empty value"
            raise InvalidValueError(f"{where} {name}: expected different values, got {got}; remove that value")
        plain = _typed(value, f"{where} {name}", is_chain=chains == {True}) if isinstance(value, str) else value
        labels[label] = plain if isinstance(plain, str) else json.dumps(plain)
    return Axis(name, labels)


def _typed(label: str, where: str, is_chain: bool) -> object:
    """Parses a label: ``none``, a call such as ``Class(rate=0.3)``, a list of calls, or a plain value."""
    if label in ("none", "null"):
        return [] if is_chain else None
    if _CALL.fullmatch(label):
        part = parse_part(label, where)
        return [part] if is_chain else part
    if label.startswith("[") and "(" in label:
        return parse_value(label, where)
    return label


def plan(axes: Sequence[Axis]) -> list[Cell]:
    """Returns the cells of a grid, the last axis varying fastest; without an axis a single cell.

    Raises:
        ValueError: Two axes have the same key.

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
        named = [(axis.name == RECIPE, axis.options(label)) for axis, label in zip(axes, labels, strict=True)]
        first, last = (
            tuple(option for is_first, options in named if is_first == before for option in options)
            for before in (True, False)
        )
        cells.append(Cell(labels, first, last))
    return cells
