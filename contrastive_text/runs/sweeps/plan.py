"""The cells of a sweep: the product of what varies, each as options of ``fit``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.runs.sweeps.values import Axis

_FIRST = ("recipe",)
"""Keys that lie under the options of the user, and not over them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A place of the grid.

    Args:
        labels: Value on each axis, as it was typed.
        first: Options of ``fit`` that stand before those of the user: the recipe.
        last: Options that stand after them.
    """

    labels: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The labels in one line."""
        return " | ".join(self.labels)

    def words(self, options: Sequence[str]) -> list[str]:
        """Returns the options of ``fit`` for this cell, given those of all cells."""
        return [*self.first, *options, *self.last]


def plan(axes: Sequence[Axis]) -> list[Cell]:
    """Returns the cells of a grid, the last axis fastest.

    Raises:
        ValueError: No axis, or a key on two of them.

    Example:
        >>> from contrastive_text.runs.sweeps import parse_vary
        >>> cells = plan([parse_vary("model.pooler=CLSPooler,MeanPooler"), parse_vary("data.batch_size=32,64")])
        >>> [cell.name for cell in cells]
        ['CLSPooler | 32', 'CLSPooler | 64', 'MeanPooler | 32', 'MeanPooler | 64']
        >>> cells[0].last
        ('--model.pooler=CLSPooler', '--data.batch_size=32')
    """
    if not axes:
        raise InvalidValueError(
            "--vary: expected KEY=VALUE,VALUE,... once or more, got none; fit runs one setting"
        )
    keys = [key for axis in axes for key in axis.name.split(",")]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidValueError(
                f"--vary {key}: expected a key once, got it twice; list all its values in one place"
            )
    cells = []
    for labels in itertools.product(*(axis.values for axis in axes)):
        options: dict[bool, list[str]] = {True: [], False: []}
        for axis, label in zip(axes, labels, strict=True):
            options[axis.name in _FIRST] += axis.options(label)
        cells.append(Cell(labels, tuple(options[True]), tuple(options[False])))
    return cells
