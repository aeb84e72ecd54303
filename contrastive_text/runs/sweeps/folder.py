"""The folder that keeps the runs of a sweep: what is finished isn't run again."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import held, remove_abandoned
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.recipes.layers import Config
from contrastive_text.runs.sweeps.plan import Cell
from contrastive_text.runs.sweeps.stages import StageFolder
from contrastive_text.runs.sweeps.validations import as_json, numbers, read_record


@dataclass(frozen=True, slots=True)
class SweepRun:
    """What came of a cell under one seed.

    Args:
        labels: The cell's.
        seed: Its ``seed_everything``.
        seconds: How long it took.
        validations: Figures of every validation by their names, times 100, in order, each with its ``step``; of
            the last stage.
        error: Empty, or why the run failed.
        scores: Further figures of the best weights, by the names that reports have for them.
        keeps_weights: Whether its weights were to stay.
    """

    labels: tuple[str, ...]
    seed: int
    seconds: float = 0.0
    validations: list[dict[str, float]] = field(default_factory=list)
    error: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    keeps_weights: bool = False


class SweepFolder:
    """The runs of a sweep on disk, shared by any number of processes.

    A run is finished once its ``cell.json`` is there; it is written in one go, after everything else, with its
    own digest: a figure of a table is one that a run has logged. While a process works on a run it holds a lock,
    which ends with the process however that ends.

    Args:
        path: The folder.

    Example:
        >>> import tempfile
        >>> folder = SweepFolder(tempfile.mkdtemp())
        >>> run = SweepRun(("none",), seed=1, seconds=2.5, validations=[{"step": 1, "val/spearman": 71.5}])
        >>> with folder.held(Cell(("none",)), seed=1) as place:
        ...     folder.keep(place, run)
        >>> folder.read(Cell(("none",)), seed=1) == run
        True
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def check_plan(self, axes: Sequence[str], configs: Mapping[str, Config]) -> None:
        """Notes what the cells are; further values and further seeds may join a sweep that has begun.

        Args:
            axes: Names of what varies.
            configs: Name of a cell -> all that makes its run but the seed.

        Raises:
            OSError: The folder can't be written to.
            ValueError: The folder holds a sweep over other keys, or a cell of another configuration, or its plan
                was changed.
        """
        file = self.path / "plan.json"
        configs = {name: as_json(config) for name, config in configs.items()}
        with held(file, wait=True):
            remove_abandoned(self.path)
            known_axes, known = self._read_plan() if file.exists() else ([*axes], {})
            if known_axes != [*axes]:
                raise InvalidValueError(
                    f"--output {self.path}: expected the sweep that it holds, over "
                    f"{' and '.join(known_axes)}, got one over {' and '.join(axes)}; name another folder"
                )
            for name, config in configs.items():
                if changes := _changes(known.get(name, config), config):
                    said = "; ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
                    raise InvalidValueError(
                        f"--output {self.path}: expected the configuration that it holds for the cell {name}, "
                        f"got another: {said}; name another folder, or give the options of then"
                    )
            write_json(file, {"axes": [*axes], "cells": {**known, **configs}})

    def _read_plan(self) -> tuple[list[str], Mapping[str, object]]:
        file = self.path / "plan.json"
        todo = "name another folder, or delete it to have the plan noted as it is given now"
        kept = Record.read(file, todo)
        return kept.texts("axes"), kept.record("cells").values

    def read(self, cell: Cell, seed: int) -> SweepRun | None:
        """Returns what came of a run; None while it is neither finished nor failed.

        Raises:
            ValueError: Its record was changed.
        """
        file = self.place(cell, seed) / "cell.json"
        return _read_run(file) if file.exists() else None

    def finished(self, cell: Cell, seed: int, scores: Collection[str] = ()) -> bool:
        """Whether a run needn't be done: it didn't fail, and has these scores."""
        run = self.read(cell, seed)
        return run is not None and not run.error and not set(scores) - run.scores.keys()

    def stages(self, cell: Cell, seed: int) -> list[StageFolder]:
        """Returns the folders of a run's stages."""
        return [StageFolder(self.place(cell, seed) / f"stage-{number}") for number in cell.stages]

    @contextmanager
    def held(self, cell: Cell, seed: int) -> Iterator[Path | None]:
        """Yields a run's folder to this process; None while another one is at work in it."""
        place = self.place(cell, seed)
        with held(place) as mine:
            yield place if mine else None

    def keep(self, place: Path, run: SweepRun, **notes: Any) -> None:
        """Writes what came of a run, and notes beside it.

        Args:
            place: The folder that ``held`` gave.
            run: What came of it.
            notes: What else a reader may want, as JSON.
        """
        kept = {**notes, **asdict(run)}
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "cell.json", as_json(kept))

    def place(self, cell: Cell, seed: int) -> Path:
        """Returns the folder of a run."""
        words = re.sub(r"[^\w.=-]+", "_", cell.name)[:60].strip("_.")
        return self.path / "cells" / f"{words}-{zlib.crc32(cell.name.encode()):08x}" / f"seed-{seed}"


def _read_run(file: Path) -> SweepRun:
    todo = "delete it to have this run done anew"
    kept = Record.read(file, todo)
    return SweepRun(
        labels=tuple(kept.texts("labels")),
        seed=kept.integer("seed"),
        seconds=kept.number("seconds"),
        validations=read_record(kept),
        error=kept.text("error"),
        scores=numbers(kept.record("scores", {})),
        keeps_weights=kept.flag("keeps_weights", False),
    )


def _changes(then: object, now: object, where: str = "") -> list[str]:
    """Returns a line for each place where two configurations differ."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        lines = []
        for name in dict.fromkeys((*then, *now)):
            lines += _changes(then.get(name), now.get(name), f"{where}.{name}".strip("."))
        return lines
    return [] if then == now else [f"{where} was {json.dumps(then)} and is {json.dumps(now)}"]
