"""The cells of a sweep: the product of what varies, each as options of ``fit``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.runs.sweeps.stages import opening_of, words_of
from contrastive_text.runs.sweeps.values import Axis

_FIRST = "recipe"
"""Key that lies under the options of the user, and not over them."""
_THEN = "then"
"""Key whose values are the further stages of a cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A place of the grid.

    Args:
        labels: Value on each axis, as it was typed.
        first: Options of ``fit`` that stand before those of the user: the recipe.
        last: Options that stand after them.
        then: Recipe or file of each further stage, which begins with the weights of the one before.
    """

    labels: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    then: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The labels in one line."""
        return " | ".join(self.labels)

    @property
    def stages(self) -> range:
        """The numbers of its stages, from 1."""
        return range(1, len(self.then) + 2)

    def words(self, options: Sequence[str], stage: int = 1) -> list[str]:
        """Returns the options of ``fit`` for a stage of this cell, given those of all cells.

        Example:
            >>> cell = Cell(("3e-5",), last=("--stage2.model.optimizer.lr=3e-5",), then=("consert",))
            >>> cell.words(["--recipe", "consert_sup"], stage=1)
            ['--recipe', 'consert_sup']
            >>> cell.words(["--recipe", "consert_sup"], stage=2)
            ['--recipe=consert', '--model.optimizer.lr=3e-5']
        """
        opening = self.first if stage == 1 else [opening_of(self.then[stage - 2])]
        return [*opening, *words_of(options, stage), *words_of(self.last, stage)]


def plan(axes: Sequence[Axis], then: Sequence[str] = ()) -> list[Cell]:
    """Returns the cells of a grid, the last axis fastest.

    Args:
        axes: What varies. The values of ``then`` are chains of stages: ``none``, ``second``, ``second+third``.
        then: Recipe or file of each further stage of all cells, where they don't vary.

    Raises:
        ValueError: No axis, a key on two of them, or stages that are given and vary.

    Example:
        >>> from contrastive_text.runs.sweeps import parse_vary
        >>> cells = plan([parse_vary("model.pooler=CLSPooler,MeanPooler"), parse_vary("data.batch_size=32,64")])
        >>> [cell.name for cell in cells]
        ['CLSPooler | 32', 'CLSPooler | 64', 'MeanPooler | 32', 'MeanPooler | 64']
        >>> cells[0].last
        ('--model.pooler=CLSPooler', '--data.batch_size=32')
        >>> [cell.then for cell in plan([parse_vary("then=none,consert,consert_sup+consert")])]
        [(), ('consert',), ('consert_sup', 'consert')]
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
    if _THEN in keys and (then or not any(axis.name == _THEN for axis in axes)):
        got = "--then" if then else next(axis.name for axis in axes if _THEN in axis.name.split(","))
        raise InvalidValueError(
            f"--vary then: expected it alone, got {got} beside it; write all stages into its values, as in "
            "then=none,second,second+third"
        )
    cells = []
    for labels in itertools.product(*(axis.values for axis in axes)):
        first: list[str] = []
        last: list[str] = []
        stages = tuple(then)
        for axis, label in zip(axes, labels, strict=True):
            if axis.name == _THEN:
                stages = () if axis.values[label] == "null" else tuple(label.split("+"))
            else:
                (first if axis.name == _FIRST else last).extend(axis.options(label))
        cells.append(Cell(labels, tuple(first), tuple(last), stages))
    return cells
