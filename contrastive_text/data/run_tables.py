"""Tables of a run: tasks, scored pairs, texts to embed; and the loaders of validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

from torch.utils.data import DataLoader

from contrastive_text.core.batch import Batch
from contrastive_text.core.distributed import world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.given import GIVEN, Source
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.loader import KeyedRows, ResumableLoader, epoch_loader, loader_in_order
from contrastive_text.data.mixture import TaskSize, consecutive_steps
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.retrieval import NO_RETRIEVAL, Retrieval, RetrievalSet
from contrastive_text.data.tasks import (
    SPLITS,
    DataNeeds,
    TaskNeeds,
    TextTask,
    file_name,
    files_of,
    option_place,
    read_task,
)
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Given, Pairing, SameText
from contrastive_text.views import ViewPlan

PARTS = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",), "predict": ("predict",)}
"""Stage of a trainer -> what is read for it."""


@dataclass
class RunTables:
    """Reads each part of a run once: ``train``, ``held_out``, ``validation``, ``test`` and ``predict``.

    Args:
        tasks: Name -> data set.
        named: Whether the configuration has named the tasks, which then all say what they are trained on.
        files: Part -> files beside the tasks': scored pairs, each a table of its own, and texts to embed.
        eval_columns: Library column -> column of the files of scored pairs.
        bounds: How large what is in a file may be.
        retrieval: Retrieval sets that are ranked in validation.
        cache_dir: Where mapped rows are kept, as for ``read_rows``.

    Attributes:
        ranked: Name of a retrieval set -> the set, as far as they have been read.
    """

    tasks: Mapping[str, TextTask]
    named: bool
    files: Mapping[str, Source | None]
    eval_columns: Mapping[str, str | list[str]] | None
    bounds: Bounds = USUAL
    retrieval: Retrieval = NO_RETRIEVAL
    cache_dir: Path | None = None
    ranked: dict[str, RetrievalSet] = field(default_factory=dict, init=False)
    _tables: dict[tuple[str, str], Table] = field(default_factory=dict, init=False)

    def of(self, part: str) -> dict[str, Table]:
        """Returns the tables of a part by name, as far as they have been read."""
        return {name: table for (read, name), table in self._tables.items() if read == part}

    @property
    def validated(self) -> dict[str, int]:
        """Task, file or retrieval set -> a number for what it is validated on, as far as it has been read."""
        held_out = {f"{name}, held out": digest for name, digest in self.contents("held_out").items()}
        read = {name: text_id(digest) for name, digest in (self.contents("validation") | held_out).items()}
        return read | {name: data.identity for name, data in self.ranked.items()}

    def contents(self, part: str) -> dict[str, str]:
        """Returns a digest of the rows of each table of a part, the same for the same rows in any file."""
        return {name: table.content for name, table in self.of(part).items()}

    def expect(self, part: str, before: Mapping[str, str], inside_epoch: bool) -> None:
        """Compares the rows of a part with their digests in a checkpoint.

        Files may change between two epochs. Rows from Python and mapped rows are the same in all epochs.

        Args:
            part: Its name.
            before: Digest of the rows of each table, from ``contents``.
            inside_epoch: Whether the checkpoint was written inside an epoch, whose rows have to be those of files
                too.

        Raises:
            ValueError: Other rows.
        """
        for name, table in self.of(part).items():
            fixed = inside_epoch or table.digest or any(each.startswith(GIVEN) for each in table.source)
            if fixed and before.get(name, table.content) != table.content:
                source = ", ".join(map(file_name, table.source))
                raise InvalidValueError(
                    f"ckpt_path: expected the rows of {name} of the checkpoint, got other rows of {source}; "
                    "give the same rows, or start from the weights alone with --init_from"
                )

    def understood(self, part: str) -> list[str]:
        """Returns how the files of a part were understood, as far as they have been read."""
        ranked = self.ranked.values() if part == "validation" else ()
        return [*(table.understood for table in self.of(part).values()), *(data.understood for data in ranked)]

    def by_file(self, part: str) -> Iterator[tuple[str, str, Sequence[Row]]]:
        """Yields the table's name, the name and the rows of each file of a part; one alone has no name."""
        for name, table in self.of(part).items():
            if len(table.source) == 1:
                yield name, "", table.rows
                continue
            names = [file_name(path) for path in table.source]
            alike = len(set(names)) < len(names)
            ends = list(accumulate(table.files))
            for number, (file, end, size) in enumerate(zip(names, ends, table.files, strict=True), start=1):
                yield name, f"{number}-{file}" if alike else file, table.rows[end - size : end]

    def read(self, part: str, needs: Mapping[str, TaskNeeds], optional: bool = False) -> None:
        """Reads what of a part has not been read.

        Args:
            part: Its name; ``held_out`` is read with ``validation``.
            needs: What the module needs of each task.
            optional: Whether there may be no file.

        Raises:
            ValueError: A file that can't be read as asked, none at all, two of one name, or one to score with
                fewer rows than processes.
            FileNotFoundError: A file that isn't there.
        """
        if part == "validation":
            self.read("held_out", needs, optional=True)
        for name, task in self.tasks.items():
            if part == "train" and self.named and task.train is None:
                raise InvalidValueError(
                    f"data.tasks.{name}.train: expected a file, got none; give one, [] for a task that is scored "
                    "and not trained, or drop the task"
                )
            if task.files(part) and (part, name) not in self._tables:
                self._tables[part, name] = read_task(name, task, part, needs[name], self.bounds, self.cache_dir)
        files = files_of(self.files.get(part))
        if part == "predict" and files and (part, part) not in self._tables:
            form = FileForm(options={})
            self._tables[part, part] = read_rows(
                files, reads=("text",), split="all", bounds=self.bounds, cache_dir=self.cache_dir, form=form
            )
        names = [file_name(path) for path in files] if part != "predict" else []
        taken = set(self.tasks) if self.named else set()
        if twice := [name for i, name in enumerate(names) if name in {*names[:i], *taken}]:
            raise InvalidValueError(
                f"data.{part}: expected files of different names, got {', '.join(names)}; no task's name either: "
                f"rename {twice[0]}"
            )
        form = FileForm(options={"columns": "--data.task.eval_columns"})
        for name, path in zip(names, files, strict=False):
            if (part, name) not in self._tables:
                self._tables[part, name] = read_pairs(path, self.eval_columns, SPLITS[part], self.bounds, form)
        tables = self.of(part)
        if part == "validation" and self.retrieval.files and not self.ranked:
            self.ranked = self.retrieval.read(taken=tables, bounds=self.bounds)
        if part == "validation":
            optional |= bool(self.ranked or self.of("held_out"))
        if not tables and not optional:
            raise InvalidValueError(f"data.{part}: expected a file, got none; give --data.{part} FILE")
        rows = {name: min(table.files, default=len(table)) for name, table in tables.items()}
        rows |= {name: min(len(data.queries), len(data.documents)) for name, data in self.ranked.items()}
        for name, count in rows.items() if part in ("held_out", "validation", "test") else ():
            if count < world_size():
                raise InvalidValueError(
                    f"data.{part}: expected a row for each of {world_size()} processes in {name}, got {count}; "
                    "use fewer devices, or another file"
                )


Side = Literal["anchor", "positive"]
"""The role of the queries, and of the documents."""


class Ranked(NamedTuple):
    """The queries or the documents of a retrieval set.

    Args:
        name: Of the set.
        data: The set.
        side: Which of the two.
    """

    name: str
    data: RetrievalSet
    side: Side

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by number."""
        return self.data.queries if self.side == "anchor" else self.data.documents

    @property
    def rows(self) -> list[Row]:
        """The texts with their numbers, long ones first, so that those of a batch are of like length."""
        texts = self.texts
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]), reverse=True)
        return [{"text": texts[number], "target": float(number)} for number in order]


@dataclass(frozen=True)
class RankedCollator:
    """Makes batches of the texts of one side, in its role; their targets are the numbers of the texts.

    Args:
        collator: Whose pairing gives each text as anchor and as positive.
        ranked: Whose texts these are.
    """

    collator: Collator
    ranked: Ranked

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows, without the copies in the other role."""
        batch = self.collator(items)
        return batch.split(batch.by_role(self.ranked.side))


@dataclass(frozen=True)
class PlainLoaders:
    """Makes the loaders of validation, test and prediction: no spans, no neighbors, no view.

    Args:
        tables: The files of the run, read.
        tasks: Name -> data set, where there are several.
        tokenizer: With the length limit of use.
        batch_size: Rows of a batch, per rank.
        seed: Of the run.
        prompts: What stands before texts; before those that are neither queries nor documents the default.
    """

    tables: RunTables
    tasks: Mapping[str, TextTask]
    tokenizer: TextTokenizer
    batch_size: int
    seed: int
    prompts: Prompts = NO_PROMPTS

    def scored(self, part: str) -> list[ResumableLoader]:
        """Returns one loader per file of a part, then in validation the queries and documents of each set."""
        loaders = [
            loader_in_order(name, rows, self.batch_size, self._collator(name, rows, file))
            for name, file, rows in self.tables.by_file(part)
        ]
        for name, data in self.tables.ranked.items() if part == "validation" else ():
            for side in (Ranked(name, data, "anchor"), Ranked(name, data, "positive")):
                collate = RankedCollator(self._plain(name, SameText(), self.prompts), side)
                loaders.append(loader_in_order(name, side.rows, self.batch_size, collate))
        return loaders

    def predicted(self) -> list[DataLoader[KeyedRow]]:
        """Returns the texts to embed and those to predict, a loader for each table, in file order."""
        return [
            # Torch's own samplers over numbers: Lightning makes loaders of a prediction again.
            DataLoader(
                KeyedRows({name: table.rows}),
                batch_size=self.batch_size,
                collate_fn=self._collator(name, table.rows),
            )
            for name, table in self.tables.of("predict").items()
        ]

    def _collator(self, name: str, rows: Sequence[Row], file: str = "") -> Collator | StepCollator:
        task = self.tasks.get(name)
        own = None if task is None else task.pairing
        as_read: Pairing = Given() if "anchor" in rows[0] else SameText()
        prompts = self.prompts.alike if task is None and "anchor" not in rows[0] else self.prompts
        collator = self._plain(name, own if own is not None and own.joins else as_read, prompts)
        return collator if task is None else StepCollator({name: collator}, file)

    def _plain(self, name: str, pairing: Pairing, prompts: Prompts) -> Collator:
        return Collator(self.tokenizer, pairing, ViewPlan(), seed=self.seed, task=name, prompts=prompts)


@dataclass(frozen=True)
class HeldOutCollator:
    """Makes batches of held-out rows without a view; what a pairing draws is the same in every validation.

    Args:
        collator: Of the data set, without views.
        objectives: Names of those whose loss is taken.
    """

    collator: Collator
    objectives: tuple[str, ...]

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows; see ``Collator``."""
        return self.collator([item._replace(epoch=0) for item in items])


class HeldOutRows:
    """The held-out rows of a data set, in batches of as many rows as a step of training has.

    Batches have the order of the file, so that a row is held against the same others each time. What is left over
    after the last whole batch is left out; fewer rows than a batch are one.

    Args:
        data: The rows, ready to be paired as in training.
        needs: What the module needs.
        batch_size: Rows of a step, where the data set has no number of its own.
        seed: Of what the pairing draws.

    Raises:
        ValueError: No objective has a loss without views.
    """

    def __init__(self, data: TrainingData, needs: DataNeeds, batch_size: int, seed: int) -> None:
        self.data = data
        self.seed = seed
        self.size = TaskSize(len(data.rows), min(data.task.batch_size or batch_size, len(data.rows)))
        every = needs.tasks[data.name].objectives
        self.objectives = needs.tasks[data.name].unaltered
        self._without = [name for name in every if name not in self.objectives]
        if not self.objectives:
            raise InvalidValueError(
                f"{option_place(data.name)}.held_out: expected an objective that reads unaltered texts, got "
                f"{', '.join(every)}, which read what views hide or leave; leave the file out"
            )

    def loader(self, needs: DataNeeds) -> ResumableLoader:
        """Returns the batches, with the length limit and the prompts of training."""
        name = self.data.name
        collator = Collator(
            needs.known_tokenizer(training=True),
            self.data.pairing,
            ViewPlan(),
            self.seed,
            name,
            prompts=needs.prompts,
            keep_texts=needs.tasks[name].texts,
        )
        steps = consecutive_steps({name: self.size}, drop_last=True)
        collate = HeldOutCollator(collator, self.objectives)
        return epoch_loader({name: self.data.rows}, steps, collate, seed=self.seed, shuffle=False)

    def __str__(self) -> str:
        """Returns what losses are taken of, in words."""
        batches, rest = divmod(self.size.rows, self.size.batch_size)
        said = f"{self.data.table.understood}; the loss of {', '.join(self.objectives)} is taken of {batches:,} "
        said += f"batches of {self.size.batch_size:,} rows"
        said += f", {rest:,} rows after them left out" if rest else ""
        return said + (f"; {', '.join(self._without)} has none without views" if self._without else "")
