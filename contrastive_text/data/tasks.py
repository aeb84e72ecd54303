"""One data set of a run: its files, how its rows are paired, and what is ready to be trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.specs import describe
from contrastive_text.core.targets import Target
from contrastive_text.core.text_files import USUAL, Bounds
from contrastive_text.core.types import Role, Slot, StepKind
from contrastive_text.data.files.hub import PREFIX
from contrastive_text.data.files.readers import Table, read_rows
from contrastive_text.data.sampler import Rows
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing
from contrastive_text.views import ViewPlan

Paths: TypeAlias = str | list[str]
ONLY = "train"
"""Name of the data set of a run that has one."""
SPLITS = {"train": "train", "validation": "dev", "test": "test", "predict": "all"}
"""Part of a run -> what is read of a file that holds several splits."""


@dataclass(frozen=True)
class TextTask:
    """One of several data sets: what ``TextDataModule`` is told of it.

    Args:
        train: File or files to train on.
        validation: File or files with labels or scores; they give the task's score on held-out data.
        test: The same, for the end.
        predict: File or files without labels, to be predicted.
        columns: Library column -> column of the files, where its name isn't a usual one.
        labels: Label of the files -> class of the objective, where they differ.
        pairing: Which texts of a row belong together; None for ``SameText``.
        batch_size: Rows of a step, over all ranks together; None for the run's.
    """

    train: Paths | None = None
    validation: Paths | None = None
    test: Paths | None = None
    predict: Paths | None = None
    columns: dict[str, Any] | None = None  # Any: a name or a list of names; jsonargparse wants one type
    labels: dict[str, str] | None = None
    pairing: Pairing | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for part in SPLITS:
            check_paths(f"data.tasks.{part}", vars(self)[part])

    def files(self, part: str) -> list[str]:
        """Returns the files of ``train``, ``validation``, ``test`` or ``predict``."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test, "predict": self.predict}
        return files_of(parts[part])


def files_of(paths: Paths | None) -> list[str]:
    """Returns one path or several as a list.

    Example:
        >>> files_of("a.tsv"), files_of(None)
        (['a.tsv'], [])
    """
    return [paths] if isinstance(paths, str) else list(paths or ())


def check_paths(where: str, given: object) -> None:
    """Refuses what is no path, and texts in the place of paths.

    Raises:
        TypeError: Rows, a table or a data set from memory.
        ValueError: Texts.
    """
    todo = 'write them to a file, a text a line or {"text": ...} as .jsonl, and name that'
    if given is None or isinstance(given, str):
        return
    if isinstance(given, Path):
        raise InvalidTypeError(f"{where}: expected a name, got a Path; give str(path)")
    if not isinstance(given, list | tuple):
        kind = f"{type(given).__module__.partition('.')[0]}.{type(given).__name__}"
        raise InvalidTypeError(f"{where}: expected names of files, got a {kind}; texts come from files: {todo}")
    for path in given:
        if not isinstance(path, str):
            raise InvalidTypeError(
                f"{where}: expected names of files, got a list with a {type(path).__name__}; texts come from "
                f"files: {todo}"
            )
        if not path.startswith(PREFIX) and (" " in path or "\n" in path) and not Path(path).suffix:
            raise InvalidValueError(
                f"{where}: expected names of files, got {path[:60]!r}; if this is a text: texts come from files, "
                f"so {todo}"
            )


def read_task(
    name: str,
    task: TextTask,
    pairing: Pairing,
    part: str,
    target: Target | None,
    predicted: bool,
    bounds: Bounds = USUAL,
) -> Table:
    """Reads the files of a part of a task.

    Args:
        name: The task's, for messages.
        task: Its files and columns.
        pairing: Which columns it reads.
        part: ``train``, ``validation``, ``test`` or ``predict``.
        target: What is read of the labels, by the pairing or by an objective; None for no labels.
        predicted: Whether an objective predicts them.
        bounds: How large what is in a file may be.

    Raises:
        ValueError: A file that can't be read as asked, labels that nothing reads, or held-out rows of a task
            that nothing predicts.
    """
    where = f"data.{part}" if name == ONLY else f"data.tasks.{name}.{part}"
    texts = tuple(column for column in pairing.reads if column != "target")
    if part == "predict":
        columns = _without_target(task.columns)
        return read_rows(task.files(part), reads=texts, columns=columns, split=SPLITS[part], bounds=bounds)
    if (target is None and task.labels) or (part != "train" and not predicted):
        lacking, dropped = ("the labels", "labels") if part == "train" else (name, "files")
        raise InvalidValueError(
            f"{where}: expected an objective that predicts {lacking}, got none; add one under model.objectives "
            f"or drop the {dropped}"
        )
    return read_rows(
        task.files(part),
        reads=(*texts, *(("target",) if target is not None else ())),
        columns=task.columns,
        target=target,
        labels=task.labels,
        split=SPLITS[part],
        every_label=part == "train",
        bounds=bounds,
    )


def _without_target(columns: Mapping[str, Any] | None) -> dict[str, Any] | None:  # Any: as TextTask.columns
    return None if columns is None else {name: column for name, column in columns.items() if name != "target"}


class TrainingData(NamedTuple):
    """A task that is ready to be trained on.

    Args:
        table: What was read.
        pairing: Which texts of a row belong together.
        rows: The rows that the pairing can serve.
        chosen: How they were chosen; empty where they are all there are.
        slots: The slots of its examples.
        examples_per_row: How many examples a row gives.
    """

    table: Table
    pairing: Pairing
    rows: Rows
    chosen: str
    slots: tuple[Slot, ...]
    examples_per_row: int

    def facts(self) -> dict[str, str]:
        """Returns what a reader of the results should know of the data set."""
        # Tokenised rows are read from disk one by one: their texts are in the table.
        rows = self.table.rows if self.pairing.reads_tokens else [self.rows[i] for i in range(len(self.rows))]
        first = self.pairing.reads[0]
        repeated = len(rows) - len({row[first] for row in rows})
        facts = {
            "training data": self.table.understood,
            "pairing": describe(self.pairing),
            "duplicates": f"{repeated:,} of {len(rows):,} rows repeat the {first} of another",
        }
        return facts | ({"rows": self.chosen} if self.chosen else {})


class TaskNeeds(Protocol):
    """What the parts of a module need of each task's data; a task is a name, or None for the only one."""

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """The tokens that views need in the vocabulary."""

    def plan(self, task: str | None) -> ViewPlan:
        """Returns the views of a task."""

    def reads(self, task: str | None) -> tuple[Role, ...]:
        """Returns the roles that the objectives of a task read."""

    def target(self, task: str | None) -> Target | None:
        """Returns what the objectives of a task read of its labels."""

    def predicts(self, task: str | None) -> bool:
        """Whether an objective of a task predicts its labels."""

    def predicts_pairs(self, task: str | None) -> bool:
        """Whether an objective of a task predicts something of two texts."""

    def check(self, tasks: Sequence[str], kinds: Sequence[StepKind] = ()) -> None:
        """Refuses objectives, views and turns of other tasks and objectives than there are."""


@runtime_checkable
class BatchConsumer(Protocol):
    """What the data ask of the module that they feed."""

    @property
    def vocabulary_size(self) -> int:
        """Entries of the encoder's token table."""

    @property
    def by_task(self) -> TaskNeeds:
        """What it needs of each task."""

    def text_tokenizer(self, training: bool = True) -> TextTokenizer | None:
        """Returns the encoder's tokenizer, or None if it has to be learned from the corpus."""

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer that was learned from the corpus, as JSON."""
