"""Data set of a run: its files and options, the module's needs of its rows, and the reader of its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from contrastive_text.core.errors import InvalidValueError, at_least, fraction
from contrastive_text.core.storage.text_files import USUAL, SizeLimits
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import ROLES, Role, Row
from contrastive_text.data.files.formats import FileForm, PairRows, options_of
from contrastive_text.data.files.in_memory import GIVEN, Source, wrap_rows
from contrastive_text.data.files.mapped import ArrowRows, sample_if_large
from contrastive_text.data.files.readers import Table, read_rows
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.views import ViewPlan


@dataclass(frozen=True)
class Clean:
    """Normalizes white space and case of training texts, once, when they are read.

    DeCLUTR's authors collapse white space (``sanitize`` in declutr/common/data_utils.py) and intend to put a
    blank before each text. Texts that are scored or embedded are unchanged.

    Args:
        collapse: Whether each run of white space becomes one blank, and blanks at the ends are removed. A
            byte-level tokenizer such as RoBERTa's has tokens for line breaks and runs of blanks; BERT's has none.
        leading_blank: Whether a text begins with a blank, so that a byte-level tokenizer encodes its first word
            like any other word.
        lower: Whether texts are lower-cased.

    Example:
        >>> Clean(collapse=True, leading_blank=True)("It  rains.\\n\\nWe stay.")
        ' It rains. We stay.'
    """

    collapse: bool = False
    leading_blank: bool = False
    lower: bool = False

    def __call__(self, text: str) -> str:
        """Returns a text with normalized white space and case."""
        text = " ".join(text.split()) if self.collapse else text
        text = text.lower() if self.lower else text
        return f" {text}" if self.leading_blank and not text.startswith(" ") else text

    def table(self, table: Table) -> Table:
        """Returns a table with normalized texts, and a note on the number of changed rows in its description."""
        is_mapped = isinstance(table.rows, ArrowRows)
        rows: Sequence[Row] = _CleanedRows(table.rows, self) if is_mapped else tuple(map(self.row, table.rows))
        samples = sample_if_large(rows, seed=0)
        changed_count = sum(
            row != before for row, before in zip(samples, sample_if_large(table.rows, seed=0), strict=True)
        )
        steps = {
            "white space collapsed": self.collapse,
            "lower case": self.lower,
            "a leading blank": self.leading_blank,
        }
        extent = f"a sample of {len(samples):,}" if len(samples) < len(rows) else f"{len(rows):,}"
        note = f"cleaned: {', '.join(step for step, is_applied in steps.items() if is_applied) or 'nothing'}; "
        note += f"{changed_count:,} of {extent} rows changed, and no text that is scored or embedded"
        digest = f"{table.digest} {self}" if is_mapped else ""
        return replace(table, rows=rows, description=f"{table.description}\n{note}", digest=digest)

    def row(self, row: Row) -> Row:
        """Returns a row with normalized texts."""
        return {
            name: self(value) if isinstance(value, str) and value and name != "subset" else value
            for name, value in row.items()
        }


class _CleanedRows(Sequence[Row]):
    """Mapped rows that are normalized on access."""

    def __init__(self, rows: Sequence[Row], clean: Clean) -> None:
        self._rows = rows
        self._clean = clean

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:  # Any: a number or a slice; a row or rows
        rows = self._rows[index]
        return _CleanedRows(rows, self._clean) if isinstance(index, slice) else self._clean.row(rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self._clean.row, self._rows)


@dataclass(frozen=True)
class TaskNeeds:
    """Requirements of the module on the rows of one task.

    Args:
        objectives: Names of the objectives that read the task.
        plan: Views of the task.
        roles: Roles whose vectors or tokens its objectives read.
        target: How its objectives read the labels; None if they read no labels.
        predicts: Whether an objective predicts the labels.
        needs_two_texts: Name of a part that needs an anchor and a positive that differ; None if there is none.
        held_out_objectives: Names of the objectives that have a loss without views.
        texts: Whether its batches keep the texts.
        check_examples: Function of the number of examples in a step and of hard negatives per example. It checks
            that the objectives have something to compare (``Objective.check_examples``). None for no check.
        scores: Whether an objective reads the teacher scores of rows.
    """

    objectives: tuple[str, ...]
    plan: ViewPlan
    roles: tuple[Role, ...]
    target: Target | None
    predicts: bool
    needs_two_texts: str | None
    held_out_objectives: tuple[str, ...] = ()
    texts: bool = False
    check_examples: Callable[[int, int], None] | None = None
    scores: bool = False


@dataclass(frozen=True)
class DataNeeds:
    """Requirements of the module on the data of a run.

    Args:
        tasks: Task -> needs from its rows; ``train`` for a single task without a name.
        tokenizer: Tokenizer of the encoder with the length limit of training; None before it is trained on the
            texts.
        inference_tokenizer: Tokenizer of the encoder with the length limit of inference.
        vocabulary_size: Number of entries of the encoder's token table.
        new_tokens: Tokens that views add to the vocabulary.
        prompts: Prompts of the texts.
    """

    tasks: Mapping[str, TaskNeeds]
    tokenizer: TextTokenizer | None
    inference_tokenizer: TextTokenizer | None
    vocabulary_size: int
    new_tokens: tuple[str, ...]
    prompts: Prompts = NO_PROMPTS

    def prompt_tokens(self, task: str) -> int:
        """Returns the number of tokens of the longest prompt of a task, without special tokens."""
        if self.tokenizer is None:
            return 0
        prompts = dict.fromkeys(self.prompts.of_role(role, task) for role in ROLES)
        return max(
            self.tokenizer.template_length(self.prompts.template(prompt, self.tokenizer)) for prompt in prompts
        )

    def known_tokenizer(self, training: bool) -> TextTokenizer:
        """Returns the tokenizer of training or of inference.

        Raises:
            ValueError: The encoder has no tokenizer yet.
        """
        tokenizer = self.tokenizer if training else self.inference_tokenizer
        if tokenizer is None:
            raise InvalidValueError(
                "encoder.tokenizer_name_or_path: expected a tokenizer, got null; an encoder with a config "
                "learns its tokenizer in training, so load a checkpoint with --ckpt_path"
            )
        return tokenizer


@runtime_checkable
class BatchConsumer(Protocol):
    """Protocol of a LightningModule that ``TextDataModule`` can provide with batches."""

    def data_needs(self, tasks: Sequence[str]) -> DataNeeds:
        """Returns the module's requirements on tasks with these names; empty for one task without a name.

        Raises:
            ValueError: Views or objectives of tasks that don't exist.
        """

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Makes the contrastive objectives of tasks use pairs labeled 0 as hard negatives.

        Raises:
            ValueError: A task has no objective that can.
        """

    def set_tokenizer(self, description: str) -> None:
        """Sets a tokenizer that was trained on the texts, given as JSON."""


SINGLE_TASK = "train"
"""Name of the data set of a run with a single data set."""
_RESERVED = (SINGLE_TASK, "overall", "spearman", "pearson", *ROLES)
"""Names of tasks that are refused, because they are names of scores, tables or roles."""
SPLITS = {"train": "train", "held_out": "dev", "validation": "dev", "test": "test", "predict": "all"}
"""Part of a run -> split that is read from a file with several splits."""


@dataclass(frozen=True)
class TextTask:
    """A data set of a run: its files, and options for reading and pairing its rows.

    A run of one data set has its options in ``TextDataModule(train, task=TextTask(...))``. A run of several data
    sets has a ``TextTask`` for each in ``tasks``.

    Args:
        train: Files to train on, or rows, as for ``TextDataModule``. An empty list, ``[]``, is for a task that is
            scored and not trained. A run of one data set names these files in ``TextDataModule(train)``.
        validation: Files with labels or scores. They give the score of a named task on held-out data.
        test: Files with labels or scores, for the test after training.
        predict: Files without labels, to be predicted.
        held_out: Files that are read like those to train on, but without views. They give the loss of each
            objective in validation (``val/OBJECTIVE/loss``).
        columns: Library column -> column of the files, if the name of a column isn't a usual one.
        eval_columns: Library column -> column of the files of ``validation`` and ``test``. None for ``columns``
            in a named task, and for the usual names in a run of one data set.
        labels: Label of the files -> class of the objective, if they differ.
        header: Names of the columns of files without a header line: a list, or one text with commas, such as
            ``anchor,positive,score``.
        separator: Character between fields, if suffix and header don't determine it; ``tab`` is a tab.
        pair_labels: Use of labeled pairs if no objective reads the label: train on the pairs that belong together
            (``positives``), use the other pairs as hard negatives (``hard``), or train on all pairs as if they
            belonged together (``all``). None refuses pairs that don't belong together.
        pairing: Part that turns a row into examples; None for ``SameText``.
        batch_size: Number of rows of a step, over all ranks; None for the run's batch size.
        limit: Number of rows to train on, or a share such as ``10%``, sampled by the seed. None for all rows.
        repeat: Number of steps of an epoch. Rows are repeated as often as needed, with other views and in another
            order each time. None for one pass over the rows.
        fraction: Share of the rows that an epoch takes, other rows each time; None for all rows.
        clean: Normalization of white space and case of the texts to train on; None for no change.
        join: Largest number of tokens of a row, including special tokens, up to which consecutive texts of a
            document are joined. A blank line ends a document. None for a row for each text.
        originals: Number of copies of the anchor in the role ``original``, if that role has views or is read. Two
            masked copies of each text are CLEAR's "double MLM".

    Raises:
        ValueError: A number or a share out of range, or both ``share`` and ``repeat``.

    Example:
        >>> TextTask("reviews.tsv", columns={"text": "body"}, limit="10%").files("train")
        ['reviews.tsv']
    """

    train: Source | None = None
    validation: Source | None = None
    test: Source | None = None
    predict: Source | None = None
    held_out: Source | None = None
    columns: dict[str, str | list[str]] | None = None
    eval_columns: dict[str, str | list[str]] | None = None
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
    originals: int = 1

    def __post_init__(self) -> None:
        for part in SPLITS:
            object.__setattr__(self, part, wrap_rows(f"data.tasks.{part}", vars(self)[part]))

    def files(self, part: str) -> list[str]:
        """Returns the files of ``train``, ``held_out``, ``validation``, ``test`` or ``predict``."""
        return files_of(vars(self)[part])


def option_place(task: str, part: str = "") -> str:
    """Returns the name of the option of a data set, or of one of its parts, for messages.

    Example:
        >>> option_place("train"), option_place("train", "train"), option_place("reviews", "train")
        ('data.task', 'data.train', 'data.tasks.reviews.train')
    """
    if task == SINGLE_TASK and part == "train":
        return "data.train"
    return ".".join(filter(None, ("data.task" if task == SINGLE_TASK else f"data.tasks.{task}", part)))


def files_of(paths: Source | None) -> list[str]:
    """Converts one path or several paths of data files to a list.

    Rows from Python are represented by their record.

    Example:
        >>> files_of("a.tsv"), files_of(None)
        (['a.tsv'], [])
    """
    return [paths] if isinstance(paths, str) else list(cast("list[str]", paths or []))


def file_name(path: str) -> str:
    """Returns the name of a data file without folders and suffixes; for rows from Python their type.

    Example:
        >>> file_name("sts/stsb.dev.tsv.gz")
        'stsb.dev'
    """
    if path.startswith(GIVEN):
        return path.removeprefix(GIVEN).partition(":")[0]
    return re.sub(r"\.(txt|tsv|csv|jsonl|json|parquet|arrow)(\.gz)?$", "", Path(path).name).replace(":", "-")


def check_tasks(tasks: Mapping[str, TextTask], only: TextTask) -> None:
    """Checks the names and numbers in the options of data sets.

    Args:
        tasks: Data sets by name.
        only: Options of a run of one data set.

    Raises:
        ValueError: A reserved name, a number out of range, files in the wrong option, or options of one data set
            in a run of several.
    """
    for name, task in tasks.items():
        if name in _RESERVED or not re.fullmatch(r"[\w-]+", name):
            raise InvalidValueError(
                f"data.tasks.{name}: expected a name of letters, digits and dashes, other than "
                f"{', '.join(_RESERVED)}, got {name!r}; choose another name"
            )
        _check_rows(option_place(name), task)
    _check_rows(option_place(SINGLE_TASK), only)
    for name, value in vars(only).items():
        if name in SPLITS and name != "held_out" and value is not None:
            raise InvalidValueError(
                f"data.task.{name}: expected no files here, got {value}; name them under data.{name}, or name "
                "the data set under data.tasks"
            )
        if tasks and name != "eval_columns" and value != vars(PLAIN_TASK)[name]:
            raise InvalidValueError(
                f"data.task.{name}: expected no option of one data set next to data.tasks, got {value!r}; set it "
                "for each task under data.tasks"
            )


PLAIN_TASK = TextTask()
"""Default options of the data set of a run with a single data set."""


def _check_rows(place: str, task: TextTask) -> None:
    """Checks the numbers in the options of a data set: rows in total, in a step and in an epoch."""
    for name in ("batch_size", "repeat", "join", "originals"):
        at_least(f"{place}.{name}", vars(task)[name], 1)
    if isinstance(task.limit, str):
        percent = re.fullmatch(r"(\d+(?:\.\d+)?)%", task.limit)
        if percent is None or not 0 < float(percent[1]) <= 100:
            raise InvalidValueError(
                f"{place}.limit: expected a number of rows, or a share above 0% and at most 100%, got "
                f"{task.limit!r}; such as 1000 or 10%"
            )
    else:
        at_least(f"{place}.limit", task.limit, 1)
    fraction(f"{place}.fraction", task.fraction, "such as 0.06", with_zero=False)
    if task.fraction is not None and task.repeat is not None:
        raise InvalidValueError(
            f"{place}.repeat: expected no repeat next to fraction, got {task.repeat}; remove repeat or fraction"
        )


RUN_OPTIONS = ("columns", "separator", "labels", "header", "pair_labels", "pairing")
"""Options of a data set that messages about its files may name. Only the first two apply to texts to predict."""


def read_task(
    name: str,
    task: TextTask,
    part: str,
    needs: TaskNeeds,
    bounds: SizeLimits = USUAL,
    cache_dir: Path | None = None,
) -> Table:
    """Reads the files of a part of a task, such as ``train``.

    Args:
        name: Name of the task, for messages.
        task: Options of the task.
        part: ``train``, ``held_out``, ``validation``, ``test`` or ``predict``.
        needs: Needs of the module from the task.
        bounds: Size limits of the files.
        cache_dir: Folder of mapped rows, as for ``read_rows``.

    Raises:
        ValueError: A file that can't be read as requested, labels that no objective reads, or rows to score for a
            task that no objective predicts.
    """
    place, where = option_place(name), option_place(name, part)
    pairing = task.pairing or SameText()
    is_predicted, is_scored = part == "predict", part in ("validation", "test")
    target = None if is_predicted else pairing.target or needs.target
    labels = None if is_predicted else task.labels
    columns = (task.eval_columns if is_scored else None) or task.columns
    has_selection = task.pair_labels in ("positives", "hard") and not is_scored and not is_predicted
    if has_selection:
        if target is not None and (task.pair_labels == "positives" or target != Classes(("0", "1"))):
            reader = "objective" if pairing.target is None else "pairing"
            raise InvalidValueError(
                f"--{place}.pair_labels: expected labels that no {reader} reads, got {task.pair_labels} and "
                f"{target}; leave --{place}.pair_labels out, or set pair_labels of the Contrastive objective"
            )
        target = None
    if (target is None and labels and not has_selection) or (is_scored and not needs.predicts):
        missing, option = (name, "files") if is_scored else ("the labels", "labels")
        raise InvalidValueError(
            f"{where}: expected an objective that predicts {missing}, got no such objective; add one under "
            f"model.objectives, or remove the {option}"
        )
    options = RUN_OPTIONS[:2] if is_predicted else RUN_OPTIONS
    has_scores = needs.scores and "positive" in pairing.reads and not is_scored and not is_predicted
    table = read_rows(
        task.files(part),
        reads=[
            *(column for column in pairing.reads if column not in ("target", "scores")),
            *["target"] * (target is not None),
            *["scores"] * has_scores,
        ],
        columns={
            name: column for name, column in (columns or {}).items() if not is_predicted or name != "target"
        },
        target=target,
        labels=labels,
        split=SPLITS[part],
        every_label=part == "train",
        bounds=bounds,
        cache_dir=cache_dir,
        form=FileForm(
            header=None if is_predicted else task.header,
            separator=task.separator,
            pair_labels="all" if is_predicted else task.pair_labels,
            options=options_of(*options, prefix=f"--{place}."),
        ),
    )
    return table if task.clean is None or is_scored or is_predicted else task.clean.table(table)
