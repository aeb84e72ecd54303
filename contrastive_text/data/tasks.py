"""Data set of a run: its files and options, the module's needs of its rows, and the reader of its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, overload, runtime_checkable

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import ROLES, Role, Row
from contrastive_text.data.files.formats import FileForm, PairRows, options_of
from contrastive_text.data.files.given import GIVEN, Source, source
from contrastive_text.data.files.mapped import ArrowRows, sampled
from contrastive_text.data.files.readers import Table, read_rows
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.views import ViewPlan


@dataclass(frozen=True)
class Clean:
    """How the texts of training rows are cleaned, once, when they are read.

    DeCLUTR's authors collapse white space (``sanitize`` in declutr/common/data_utils.py) and mean to put a blank
    before each text. Texts that are scored or embedded stay as they are.

    Args:
        collapse: Whether each run of white space becomes one blank, and none is left at the ends. A byte-level
            tokenizer such as RoBERTa's has tokens for line breaks and runs of blanks, BERT's has none.
        leading_blank: Whether a text begins with a blank, so that a byte-level tokenizer writes its first word as
            it does any other.
        lower: Whether all is made lower case.

    Example:
        >>> Clean(collapse=True, leading_blank=True)("It  rains.\\n\\nWe stay.")
        ' It rains. We stay.'
    """

    collapse: bool = False
    leading_blank: bool = False
    lower: bool = False

    def __call__(self, text: str) -> str:
        """Returns the text, cleaned."""
        text = " ".join(text.split()) if self.collapse else text
        text = text.lower() if self.lower else text
        return f" {text}" if self.leading_blank and not text.startswith(" ") else text

    def table(self, table: Table) -> Table:
        """Returns a table with the texts of its rows cleaned, which it says."""
        mapped = isinstance(table.rows, ArrowRows)
        rows: Sequence[Row] = _Cleaned(table.rows, self) if mapped else tuple(map(self.row, table.rows))
        looked = sampled(rows, seed=0)
        changed = sum(row != before for row, before in zip(looked, sampled(table.rows, seed=0), strict=True))
        done = {
            "white space collapsed": self.collapse,
            "lower case": self.lower,
            "a leading blank": self.leading_blank,
        }
        of = f"a sample of {len(looked):,}" if len(looked) < len(rows) else f"{len(rows):,}"
        said = f"cleaned: {', '.join(what for what, is_done in done.items() if is_done) or 'nothing'}; "
        said += f"{changed:,} of {of} rows changed, and no text that is scored or embedded"
        digest = f"{table.digest} {self}" if mapped else ""
        return replace(table, rows=rows, understood=f"{table.understood}\n{said}", digest=digest)

    def row(self, row: Row) -> Row:
        """Returns a row with its texts cleaned."""
        return {
            name: self(value) if isinstance(value, str) and value and name != "subset" else value
            for name, value in row.items()
        }


class _Cleaned(Sequence[Row]):
    """Mapped rows, cleaned when they are asked for."""

    def __init__(self, rows: Sequence[Row], clean: Clean) -> None:
        self._rows = rows
        self._clean = clean

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> _Cleaned: ...

    def __getitem__(self, index: int | slice) -> Row | _Cleaned:
        if isinstance(index, slice):
            return _Cleaned(self._rows[index], self._clean)
        return self._clean.row(self._rows[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._clean.row, self._rows)


@dataclass(frozen=True)
class TaskNeeds:
    """What is needed of the rows of one task.

    Args:
        objectives: The names of those that read it.
        plan: Its views.
        roles: Those whose vectors or tokens its objectives read.
        target: What they read of its labels; None for nothing.
        predicts: Whether one of them predicts the labels.
        two_texts: What of them makes no sense where anchor and positive are one text twice; None if nothing.
        unaltered: The names of those that have a loss without views.
        texts: Whether its batches hold the texts themselves.
        check_examples: Checks that its objectives have something to compare in a step of some examples, each with
            some hard negatives (``Objective.check_examples``); None for nothing to check.
    """

    objectives: tuple[str, ...]
    plan: ViewPlan
    roles: tuple[Role, ...]
    target: Target | None
    predicts: bool
    two_texts: str | None
    unaltered: tuple[str, ...] = ()
    texts: bool = False
    check_examples: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class DataNeeds:
    """What is needed of the data of a run.

    Args:
        tasks: Task -> what is needed of its rows; ``train`` where there is one without a name.
        tokenizer: The encoder's, with the length limit of training; None before one is learned from the texts.
        inference_tokenizer: The same with the limit of use.
        vocabulary_size: Entries of the encoder's token table.
        new_tokens: The tokens that views need in the vocabulary.
        prompts: What stands before texts.
    """

    tasks: Mapping[str, TaskNeeds]
    tokenizer: TextTokenizer | None
    inference_tokenizer: TextTokenizer | None
    vocabulary_size: int
    new_tokens: tuple[str, ...]
    prompts: Prompts = NO_PROMPTS

    def taken(self, task: str) -> int:
        """Returns how many tokens of a row the longest prompt of a task takes, beside the special ones."""
        if self.tokenizer is None:
            return 0
        prompts = dict.fromkeys(self.prompts.of_role(role, task) for role in ROLES)
        return max(self.tokenizer.taken(self.prompts.frame(prompt, self.tokenizer)) for prompt in prompts)

    def known_tokenizer(self, training: bool) -> TextTokenizer:
        """Returns the tokenizer of training or of use.

        Raises:
            ValueError: There is none yet.
        """
        tokenizer = self.tokenizer if training else self.inference_tokenizer
        if tokenizer is None:
            raise InvalidValueError(
                "encoder.tokenizer_name_or_path: expected a tokenizer, got none; an encoder made from a config "
                "learns one when it is trained, so load a checkpoint with --ckpt_path"
            )
        return tokenizer


@runtime_checkable
class BatchConsumer(Protocol):
    """A module that data can feed."""

    def data_needs(self, tasks: Sequence[str]) -> DataNeeds:
        """Returns what it needs of the data of tasks with these names; of one without a name where there is none.

        Raises:
            ValueError: Views and objectives of other tasks than there are.
        """

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Lets the contrastive objectives of tasks take pairs labelled 0 as hard negatives.

        Raises:
            ValueError: A task without an objective that can.
        """

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer that was learned from the texts, as JSON."""


def as_consumer(module: object) -> BatchConsumer:
    """Returns a module that data can feed.

    Raises:
        TypeError: Another one, or none.
    """
    if not isinstance(module, BatchConsumer):
        raise InvalidTypeError(
            "TextDataModule: expected a trainer that runs a ContrastiveModule, which holds the views and the "
            f"tokenizer, got {type(module).__name__}"
        )
    return module


ONLY = "train"
"""Name of the data set of a run that has one."""
ALONE = (
    *(
        "train",
        "held_out",
        "columns",
        "labels",
        "header",
        "separator",
        "pair_labels",
        "pairing",
        "limit",
        "repeat",
    ),
    *("clean", "join"),
)
"""What a run of one data set is told of it, beside what it is told in any case."""
_TAKEN = (ONLY, "overall", "spearman", "pearson", *ROLES)
"""Names that mean something else among scores, tables and views."""
SPLITS = {"train": "train", "held_out": "dev", "validation": "dev", "test": "test", "predict": "all"}
"""Part of a run -> what is read of a file that holds several splits."""


@dataclass(frozen=True)
class TextTask:
    """One of several data sets: what ``TextDataModule`` is told of it.

    Args:
        train: File or files to train on, or rows, as for ``TextDataModule``; none in a list, ``[]``, of a task
            that is scored and not trained.
        validation: File or files with labels or scores; they give the task's score on held-out data.
        test: The same, for the end.
        predict: File or files without labels, to be predicted.
        held_out: File or files that are read as those to train on, and give the loss of each objective in
            validation (``val/OBJECTIVE/loss``).
        columns: Library column -> column of the files, where its name isn't a usual one.
        labels: Label of the files -> class of the objective, where they differ.
        header: Names of the columns of files whose first line is a row: a list, or one text with commas.
        separator: Character between fields, where the suffix and the header leave it open; ``tab`` is a tab.
        pair_labels: What to do with labelled pairs if no objective reads the label: train on those that belong
            together (``positives``), take the others as hard negatives (``hard``), or train on all pairs as if
            they belonged together (``all``). None refuses pairs that do not belong together.
        pairing: Which texts of a row belong together; None for ``SameText``.
        batch_size: Rows of a step, over all ranks together; None for the run's.
        limit: How many rows are trained on, or what share of them, such as ``10%``, drawn by the seed; None for
            all.
        repeat: Steps of an epoch, for which the rows come again as often as needed; None for one pass over them.
        fraction: Share of the rows that an epoch takes, others each time; None for all.
        clean: What becomes of white space and case of the texts that are trained on; None for nothing.
        join: Tokens of a row, special ones included, up to which consecutive texts are joined; None for no join.
    """

    train: Source | None = None
    validation: Source | None = None
    test: Source | None = None
    predict: Source | None = None
    held_out: Source | None = None
    columns: dict[str, Any] | None = None  # Any: a name or a list of names; jsonargparse wants one type
    labels: dict[str, str] | None = None
    header: str | list[str] | None = None
    separator: str | None = None
    pair_labels: PairRows | None = None
    pairing: Pairing | None = None
    batch_size: int | None = None
    limit: int | str | None = None
    repeat: int | None = None
    fraction: float | None = None
    clean: Clean | None = None
    join: int | None = None

    def __post_init__(self) -> None:
        for part in SPLITS:
            object.__setattr__(self, part, source(f"data.tasks.{part}", vars(self)[part]))

    def files(self, part: str) -> list[str]:
        """Returns the files of ``train``, ``held_out``, ``validation``, ``test`` or ``predict``."""
        return files_of(vars(self)[part])

    def rows_an_epoch(self, rows: int, batch_size: int) -> int:
        """Returns how many rows an epoch takes of so many: more than there are where they come again.

        Example:
            >>> TextTask(repeat=10).rows_an_epoch(1, batch_size=96)
            960
        """
        if self.repeat is not None:
            return self.repeat * batch_size
        return rows if self.fraction is None else max(1, round(self.fraction * rows))


def option_place(task: str) -> str:
    """Returns where the options of a data set stand, for messages.

    Example:
        >>> option_place("train"), option_place("reviews")
        ('data', 'data.tasks.reviews')
    """
    return "data" if task == ONLY else f"data.tasks.{task}"


def files_of(paths: Source | None) -> list[str]:
    """Returns one path or several as a list; rows given from Python go by their record.

    Example:
        >>> files_of("a.tsv"), files_of(None)
        (['a.tsv'], [])
    """
    return [paths] if isinstance(paths, str) else list(cast("list[str]", paths or []))


def file_name(path: str) -> str:
    """Returns a data file's name without folders and suffixes of format; of rows from Python their type.

    Example:
        >>> file_name("sts/stsb.dev.tsv.gz")
        'stsb.dev'
    """
    if path.startswith(GIVEN):
        return path.removeprefix(GIVEN).partition(":")[0]
    return re.sub(r"\.(txt|tsv|csv|jsonl|json|parquet|arrow)(\.gz)?$", "", Path(path).name).replace(":", "-")


def check_tasks(tasks: Mapping[str, TextTask], alone: TextTask) -> None:
    """Checks the names and numbers of tasks, and that nothing is given that belongs to a run of one.

    Args:
        tasks: By name.
        alone: What a run of one task is told of it.

    Raises:
        ValueError: The first of these.
    """
    for name, task in tasks.items():
        if name in _TAKEN or not re.fullmatch(r"[\w-]+", name):
            raise InvalidValueError(
                f"data.tasks.{name}: expected a name of letters, digits and dashes, other than "
                f"{', '.join(_TAKEN)}, got {name!r}; call it something else"
            )
        _check_rows(f"tasks.{name}.", task)
    for name, given in vars(alone).items():
        if tasks and given is not None:
            raise InvalidValueError(
                f"data.{name}: expected none beside tasks, got one; give each task its own under data.tasks"
            )
    _check_rows("", alone)


def _check_rows(where: str, task: TextTask) -> None:
    """Checks how many rows are asked for: in all, of a step and of an epoch."""
    for name in ("batch_size", "limit", "repeat", "join"):
        if isinstance(number := vars(task)[name], int):
            _check_least(f"{where}{name}", number, least=1)
    if isinstance(task.limit, str):
        share = re.fullmatch(r"(\d+(?:\.\d+)?)%", task.limit)
        if share is None or not 0 < float(share[1]) <= 100:
            raise InvalidValueError(
                f"data.{where}limit: expected a number of rows, or a share above 0% and at most 100%, got "
                f"{task.limit!r}; such as 1000 or 10%"
            )
    if task.fraction is not None and not 0 < task.fraction <= 1:
        raise InvalidValueError(
            f"data.{where}fraction: expected a share of the rows, above 0 and at most 1, got {task.fraction}; "
            "such as 0.06"
        )
    if task.fraction is not None and task.repeat is not None:
        raise InvalidValueError(
            f"data.{where}repeat: expected none beside fraction, got {task.repeat}; an epoch takes a part of the "
            "rows, or takes them again"
        )


def check_numbers(options: Mapping[str, Any]) -> None:  # Any: of all kinds
    """Checks that the numbers among a run's options, which are for all of its tasks, are large enough.

    Raises:
        ValueError: The first that isn't.
    """
    leasts = {"batch_size": 1, "originals": 1, "eval_batch_size": 1, "num_workers": 0, "permutation_rows": 0}
    for name, least in leasts.items():
        _check_least(name, options[name], least)


def _check_least(name: str, number: int, least: int) -> None:
    if number < least:
        raise InvalidValueError(f"data.{name}: expected {least} or more, got {number}")


def read_task(
    name: str,
    task: TextTask,
    part: str,
    needs: TaskNeeds,
    bounds: Bounds = USUAL,
    cache_dir: Path | None = None,
) -> Table:
    """Reads the files of a part of a task.

    Args:
        name: The task's, for messages.
        task: Its files and columns.
        part: ``train``, ``held_out``, ``validation``, ``test`` or ``predict``.
        needs: What its objectives read and predict.
        bounds: How large what is in a file may be.
        cache_dir: Where mapped rows are kept, as for ``read_rows``.

    Raises:
        ValueError: A file that can't be read as asked, labels that nothing reads, or held-out rows of a task
            that nothing predicts.
    """
    where = f"{option_place(name)}.{part}"
    pairing = task.pairing or SameText()
    target = pairing.target or needs.target
    texts = tuple(column for column in pairing.reads if column != "target")
    place = option_place(name)
    form = FileForm.of_run(place, task.header, task.separator, task.pair_labels)
    if part == "predict":
        options = options_of("columns", "separator", prefix=f"--{place}.")
        return read_rows(
            task.files(part),
            reads=texts,
            columns=_without_target(task.columns),
            split=SPLITS[part],
            bounds=bounds,
            cache_dir=cache_dir,
            form=FileForm(separator=task.separator, pair_labels="all", options=options),
        )
    scored = part in ("validation", "test")
    chosen = not scored and task.pair_labels in ("positives", "hard")
    if chosen:
        reader = "objective" if pairing.target is None else "pairing"
        _check_unread(f"--{place}.pair_labels", task, target, reader)
        target = None
    if (target is None and task.labels and not chosen) or (scored and not needs.predicts):
        lacking, dropped = (name, "files") if scored else ("the labels", "labels")
        raise InvalidValueError(
            f"{where}: expected an objective that predicts {lacking}, got none; add one under model.objectives "
            f"or drop the {dropped}"
        )
    table = read_rows(
        task.files(part),
        reads=(*texts, *(("target",) if target is not None else ())),
        columns=task.columns,
        target=target,
        labels=task.labels,
        split=SPLITS[part],
        every_label=part == "train",
        bounds=bounds,
        cache_dir=cache_dir,
        form=form,
    )
    return table if task.clean is None or scored else task.clean.table(table)


def _check_unread(option: str, task: TextTask, target: Target | None, reader: str) -> None:
    """Checks that nothing else reads the labels by which rows are chosen.

    Raises:
        ValueError: Another objective, or the pairing, reads them.
    """
    if target is not None and (task.pair_labels == "positives" or target != Classes(("0", "1"))):
        raise InvalidValueError(
            f"{option}: expected labels that no {reader} reads, got {task.pair_labels} and {target}; leave "
            f"{option} out, or set pair_labels of the Contrastive objective"
        )


def _without_target(columns: Mapping[str, Any] | None) -> dict[str, Any] | None:  # Any: as TextTask.columns
    return None if columns is None else {name: column for name, column in columns.items() if name != "target"}
