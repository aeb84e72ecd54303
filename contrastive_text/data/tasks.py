"""Data set of a run: its files and options, the module's needs of its rows, and the reader of its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from contrastive_text.core.checks import at_least, share
from contrastive_text.core.errors import InvalidValueError
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
    """Cleans the texts of training rows, once, when they are read.

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

    def __getitem__(self, index: Any) -> Any:  # Any: a number or a slice; a row or rows
        rows = self._rows[index]
        return _Cleaned(rows, self._clean) if isinstance(index, slice) else self._clean.row(rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self._clean.row, self._rows)


@dataclass(frozen=True)
class TaskNeeds:
    """Needs of the module from the rows of one task.

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
    """Needs of the module from the data of a run.

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
        """Lets the contrastive objectives of tasks take pairs labeled 0 as hard negatives.

        Raises:
            ValueError: A task without an objective that can.
        """

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer that was learned from the texts, as JSON."""


ONLY = "train"
"""Name of the data set of a run that has one."""
_TAKEN = (ONLY, "overall", "spearman", "pearson", *ROLES)
"""Names that mean something else among scores, tables and views."""
SPLITS = {"train": "train", "held_out": "dev", "validation": "dev", "test": "test", "predict": "all"}
"""Part of a run -> what is read of a file that holds several splits."""


@dataclass(frozen=True)
class TextTask:
    """One data set of a run: its files, the reading of its rows, and their pairing.

    A run of one data set has its options in ``TextDataModule(train, task=TextTask(...))``, a run of several data
    sets a task for each in ``tasks``.

    Args:
        train: Files to train on, or rows, as for ``TextDataModule``. An empty list, ``[]``, is for a task that is
            scored and not trained. A run of one data set names these files in ``TextDataModule(train)``.
        validation: Files with labels or scores. They give the score of a named task on held-out data.
        test: The same, for the test at the end.
        predict: Files without labels, to be predicted.
        held_out: Files that are read as those to train on, but without views. They give the loss of each
            objective in validation (``val/OBJECTIVE/loss``).
        columns: Library column -> column of the files, if the name of a column isn't a usual one.
        eval_columns: The same for the files of ``validation`` and ``test``; None for ``columns`` in a named task,
            and for the usual names in a run of one data set.
        labels: Label of the files -> class of the objective, if they differ.
        header: Names of the columns of files whose first line is a row: a list, or one text with commas, such as
            ``anchor,positive,score``.
        separator: Character between fields, if the suffix and the header leave it open; ``tab`` is a tab.
        pair_labels: What to do with labeled pairs if no objective reads the label: train on those that belong
            together (``positives``), take the others as hard negatives (``hard``), or train on all pairs as if
            they belonged together (``all``). None refuses pairs that do not belong together.
        pairing: Which texts of a row belong together; None for ``SameText``.
        batch_size: Rows of a step, over all ranks together; None for the run's.
        limit: Number of rows to train on, or a share of them such as ``10%``, drawn by the seed alone; None for
            all.
        repeat: Steps of an epoch, for which the rows come again as often as needed, each time altered again and
            in another order; None for one pass over them.
        fraction: Share of the rows that an epoch takes, others each time; None for all.
        clean: Changes of white space and case of the texts to train on; None for no change.
        join: Tokens of a row, special tokens included, up to which consecutive texts of a document are joined; a
            blank line ends a document. None for a row for each text.
        originals: Copies of the anchor in the role ``original``, if that role has views or is read. Two masked
            copies of each text are CLEAR's "double MLM".

    Raises:
        ValueError: A number or a share out of range, or both ``fraction`` and ``repeat``.

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
            object.__setattr__(self, part, source(f"data.tasks.{part}", vars(self)[part]))

    def files(self, part: str) -> list[str]:
        """Returns the files of ``train``, ``held_out``, ``validation``, ``test`` or ``predict``."""
        return files_of(vars(self)[part])


def option_place(task: str, part: str = "") -> str:
    """Returns the place of the options of a data set, or of one of its parts, for messages.

    Example:
        >>> option_place("train"), option_place("train", "train"), option_place("reviews", "train")
        ('data.task', 'data.train', 'data.tasks.reviews.train')
    """
    if task == ONLY and part == "train":
        return "data.train"
    return ".".join(filter(None, ("data.task" if task == ONLY else f"data.tasks.{task}", part)))


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


def check_tasks(tasks: Mapping[str, TextTask], only: TextTask) -> None:
    """Checks the names and numbers of data sets.

    Args:
        tasks: Data sets by name.
        only: Options of a run of one data set.

    Raises:
        ValueError: A name with another meaning, a number out of range, files in the wrong place, or options of
            one data set in a run of several.
    """
    for name, task in tasks.items():
        if name in _TAKEN or not re.fullmatch(r"[\w-]+", name):
            raise InvalidValueError(
                f"data.tasks.{name}: expected a name of letters, digits and dashes, other than "
                f"{', '.join(_TAKEN)}, got {name!r}; call it something else"
            )
        _check_rows(option_place(name), task)
    _check_rows(option_place(ONLY), only)
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
"""Default of a run of one data set."""


def _check_rows(place: str, task: TextTask) -> None:
    """Checks the numbers of rows of a data set: in all, of a step and of an epoch."""
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
    share(f"{place}.fraction", task.fraction, "such as 0.06", with_zero=False)
    if task.fraction is not None and task.repeat is not None:
        raise InvalidValueError(
            f"{place}.repeat: expected no repeat next to fraction, got {task.repeat}; an epoch takes a part of "
            "the rows, or takes them again"
        )


RUN_OPTIONS = ("columns", "separator", "labels", "header", "pair_labels")
"""Options of a data set that messages about its files name; the first two also hold for texts to predict."""


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
    place, where = option_place(name), option_place(name, part)
    pairing = task.pairing or SameText()
    predicted, scored = part == "predict", part in ("validation", "test")
    target = None if predicted else pairing.target or needs.target
    labels = None if predicted else task.labels
    columns = (task.eval_columns if scored else None) or task.columns
    chosen = task.pair_labels in ("positives", "hard") and not scored and not predicted
    if chosen:
        if target is not None and (task.pair_labels == "positives" or target != Classes(("0", "1"))):
            reader = "objective" if pairing.target is None else "pairing"
            raise InvalidValueError(
                f"--{place}.pair_labels: expected labels that no {reader} reads, got {task.pair_labels} and "
                f"{target}; leave --{place}.pair_labels out, or set pair_labels of the Contrastive objective"
            )
        target = None
    if (target is None and labels and not chosen) or (scored and not needs.predicts):
        lacking, dropped = (name, "files") if scored else ("the labels", "labels")
        raise InvalidValueError(
            f"{where}: expected an objective that predicts {lacking}, got none; add one under model.objectives "
            f"or drop the {dropped}"
        )
    options = RUN_OPTIONS[:2] if predicted else RUN_OPTIONS
    table = read_rows(
        task.files(part),
        reads=[column for column in pairing.reads if column != "target"] + ["target"] * (target is not None),
        columns={name: of for name, of in (columns or {}).items() if not predicted or name != "target"},
        target=target,
        labels=labels,
        split=SPLITS[part],
        every_label=part == "train",
        bounds=bounds,
        cache_dir=cache_dir,
        form=FileForm(
            header=None if predicted else task.header,
            separator=task.separator,
            pair_labels="all" if predicted else task.pair_labels,
            options=options_of(*options, prefix=f"--{place}."),
        ),
    )
    return table if task.clean is None or scored or predicted else task.clean.table(table)
