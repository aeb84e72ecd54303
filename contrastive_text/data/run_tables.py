"""Tables of a run (tasks, scored pairs, texts to embed), and loaders for validation, test and prediction."""

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
from contrastive_text.core.storage.text_files import USUAL, SizeLimits
from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.in_memory import GIVEN, Source
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.loader import KeyedRows, ResumableLoader, epoch_loader, sequential_loader
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
"""Stage of a trainer -> parts of the run's data that the stage reads, such as ``train``."""


@dataclass
class RunTables:
    """Reads each part of a run once: ``train``, ``held_out``, ``validation``, ``test`` and ``predict``.

    Args:
        tasks: Name -> data set.
        named: Whether the configuration names the tasks. Then each task must have training files.
        files: Part -> files in addition to those of tasks: scored pairs, a table for each file, and texts to
            embed.
        eval_columns: Library column -> column of the files of scored pairs.
        bounds: Size limits of the files.
        retrieval: Retrieval sets that are ranked in validation.
        cache_dir: Folder of mapped rows, as for ``read_rows``.

    Attributes:
        retrieval_sets: Name -> retrieval set, as far as they have been read.
    """

    tasks: Mapping[str, TextTask]
    named: bool
    files: Mapping[str, Source | None]
    eval_columns: Mapping[str, str | list[str]] | None
    bounds: SizeLimits = USUAL
    retrieval: Retrieval = NO_RETRIEVAL
    cache_dir: Path | None = None
    retrieval_sets: dict[str, RetrievalSet] = field(default_factory=dict, init=False)
    _tables: dict[tuple[str, str], Table] = field(default_factory=dict, init=False)

    def of(self, part: str) -> dict[str, Table]:
        """Returns name -> table of a part of the run's data, for the tables that have been read."""
        return {name: table for (table_part, name), table in self._tables.items() if table_part == part}

    @property
    def validated(self) -> dict[str, int]:
        """Name of a task, file or retrieval set -> hash of its validation rows, after they have been read."""
        held_out = {f"{name}, held out": digest for name, digest in self.contents("held_out").items()}
        identities = {name: text_id(digest) for name, digest in (self.contents("validation") | held_out).items()}
        return identities | {name: data.identity for name, data in self.retrieval_sets.items()}

    def contents(self, part: str) -> dict[str, str]:
        """Returns table name -> digest of its rows. Equal rows have equal digests in any file."""
        return {name: table.content for name, table in self.of(part).items()}

    def expect(self, part: str, before: Mapping[str, str], inside_epoch: bool) -> None:
        """Compares the rows of a part with their digests in a checkpoint.

        Files may change between two epochs. Rows from Python and mapped rows are the same in all epochs.

        Args:
            part: Name of the part.
            before: Table name -> digest of its rows, from ``contents``.
            inside_epoch: Whether the checkpoint was written inside an epoch. Then rows of files must be equal,
                too.

        Raises:
            ValueError: The rows differ.
        """
        for name, table in self.of(part).items():
            must_match = inside_epoch or table.digest or any(path.startswith(GIVEN) for path in table.source)
            if must_match and before.get(name, table.content) != table.content:
                source = ", ".join(map(file_name, table.source))
                raise InvalidValueError(
                    f"ckpt_path: expected the rows of {name} of the checkpoint, got other rows of {source}; "
                    "give the same rows, or start from the weights alone with --init_from"
                )

    def describe(self, part: str) -> list[str]:
        """Describes how the files of a part, such as ``train``, were read."""
        retrieval_sets = self.retrieval_sets.values() if part == "validation" else ()
        return [
            *(table.description for table in self.of(part).values()),
            *(data.description for data in retrieval_sets),
        ]

    def by_file(self, part: str) -> Iterator[tuple[str, str, Sequence[Row]]]:
        """Yields table name, file name and rows of each file of a part; a single file has no name."""
        for name, table in self.of(part).items():
            if len(table.source) == 1:
                yield name, "", table.rows
                continue
            names = [file_name(path) for path in table.source]
            has_repeats = len(set(names)) < len(names)
            ends = list(accumulate(table.files))
            for number, (file, end, size) in enumerate(zip(names, ends, table.files, strict=True), start=1):
                yield name, f"{number}-{file}" if has_repeats else file, table.rows[end - size : end]

    def read(self, part: str, needs: Mapping[str, TaskNeeds], optional: bool = False) -> None:
        """Reads the tables of a part, such as ``train``, that haven't been read yet.

        Args:
            part: Name of the part; ``held_out`` is read with ``validation``.
            needs: Task -> needs of the module.
            optional: Whether the part may have no file.

        Raises:
            ValueError: A file that can't be read as requested, no file, two files of one name, or a file to score
                that has fewer rows than there are processes.
            FileNotFoundError: A file doesn't exist.
        """
        if part == "validation":
            self.read("held_out", needs, optional=True)
        for name, task in self.tasks.items():
            if part == "train" and self.named and task.train is None:
                raise InvalidValueError(
                    f"data.tasks.{name}.train: expected a file, got null; give a file, [] to only score the "
                    "task, or remove the task"
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
        task_names = set(self.tasks) if self.named else set()
        if repeated := [name for i, name in enumerate(names) if name in {*names[:i], *task_names}]:
            raise InvalidValueError(
                f"data.{part}: expected files of different names, got {', '.join(names)}; no task's name either: "
                f"rename {repeated[0]}"
            )
        form = FileForm(options={"columns": "--data.task.eval_columns"})
        for name, path in zip(names, files, strict=False):
            if (part, name) not in self._tables:
                self._tables[part, name] = read_pairs(path, self.eval_columns, SPLITS[part], self.bounds, form)
        tables = self.of(part)
        if part == "validation" and self.retrieval.files and not self.retrieval_sets:
            self.retrieval_sets = self.retrieval.read(taken=tables, bounds=self.bounds)
        if part == "validation":
            optional |= bool(self.retrieval_sets or self.of("held_out"))
        if not tables and not optional:
            raise InvalidValueError(f"data.{part}: expected a file, got no file; give --data.{part} FILE")
        rows = {name: min(table.files, default=len(table)) for name, table in tables.items()}
        rows |= {name: min(len(data.queries), len(data.documents)) for name, data in self.retrieval_sets.items()}
        for name, count in rows.items() if part in ("held_out", "validation", "test") else ():
            if count < world_size():
                raise InvalidValueError(
                    f"data.{part}: expected a row for each of {world_size()} processes in {name}, got {count}; "
                    "use fewer devices, or another file"
                )


Side = Literal["anchor", "positive"]
"""Role of the queries (anchor) or of the documents (positive) of a retrieval set."""


class RetrievalSide(NamedTuple):
    """The queries or the documents of a retrieval set, as rows to encode.

    Args:
        name: Name of the set.
        data: The retrieval set.
        side: ``anchor`` for its queries, ``positive`` for its documents.
    """

    name: str
    data: RetrievalSet
    side: Side

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the queries or of the documents, by number."""
        return self.data.queries if self.side == "anchor" else self.data.documents

    @property
    def rows(self) -> list[Row]:
        """Texts of a retrieval set with their numbers, long texts first, so batches have similar lengths."""
        texts = self.texts
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]), reverse=True)
        return [{"text": texts[number], "target": float(number)} for number in order]


@dataclass(frozen=True)
class RankedCollator:
    """Builds batches of the queries or the documents of a retrieval set. Targets are the numbers of the texts.

    Args:
        collator: Collator whose pairing gives each text as anchor and as positive.
        ranked: The queries or documents.
    """

    collator: Collator
    ranked: RetrievalSide

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Builds a batch of queries or documents, without the copies of its rows in the other role."""
        batch = self.collator(items)
        return batch.split(batch.by_role(self.ranked.side))


@dataclass(frozen=True)
class PlainLoaders:
    """Builds the loaders of validation, test and prediction, which use no views and no pairing of a task's spans.

    Args:
        tables: Tables of the run, already read.
        tasks: Name -> data set; empty for a single data set without a name.
        tokenizer: Tokenizer with the length limit of inference.
        batch_size: Number of rows of a batch, per rank.
        seed: Seed of the run.
        prompts: Prompts of the texts. Texts that are neither queries nor documents get the default prompt.
    """

    tables: RunTables
    tasks: Mapping[str, TextTask]
    tokenizer: TextTokenizer
    batch_size: int
    seed: int
    prompts: Prompts = NO_PROMPTS

    def scored(self, part: str) -> list[ResumableLoader]:
        """Returns a loader per file of a part and, for validation, two for each retrieval set."""
        loaders = [
            sequential_loader(name, rows, self.batch_size, self._collator(name, rows, file))
            for name, file, rows in self.tables.by_file(part)
        ]
        for name, data in self.tables.retrieval_sets.items() if part == "validation" else ():
            for side in (RetrievalSide(name, data, "anchor"), RetrievalSide(name, data, "positive")):
                collate = RankedCollator(self._make_collator(name, SameText(), self.prompts), side)
                loaders.append(sequential_loader(name, side.rows, self.batch_size, collate))
        return loaders

    def predicted(self) -> list[DataLoader[KeyedRow]]:
        """Returns a loader for each table of texts to embed or to predict, in the order of the files."""
        return [
            # With torch's own samplers over numbers, because Lightning rebuilds loaders of a prediction.
            DataLoader(
                KeyedRows({name: table.rows}),
                batch_size=self.batch_size,
                collate_fn=self._collator(name, table.rows),
            )
            for name, table in self.tables.of("predict").items()
        ]

    def _collator(self, name: str, rows: Sequence[Row], file: str = "") -> Collator | StepCollator:
        task = self.tasks.get(name)
        pairing = None if task is None else task.pairing
        plain_pairing: Pairing = Given() if "anchor" in rows[0] else SameText()
        prompts = self.prompts.same_for_all if task is None and "anchor" not in rows[0] else self.prompts
        collator = self._make_collator(
            name, pairing if pairing is not None and pairing.joins_texts else plain_pairing, prompts
        )
        return collator if task is None else StepCollator({name: collator}, file)

    def _make_collator(self, name: str, pairing: Pairing, prompts: Prompts) -> Collator:
        return Collator(self.tokenizer, pairing, ViewPlan(), seed=self.seed, task=name, prompts=prompts)


@dataclass(frozen=True)
class HeldOutCollator:
    """Builds batches of held-out rows without views. Random draws of a pairing are the same in every validation.

    Args:
        collator: Collator of the data set, without views.
        objectives: Names of the objectives whose loss is computed.
    """

    collator: Collator
    objectives: tuple[str, ...]

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Builds a batch from held-out rows, without views; see ``Collator``."""
        return self.collator([item._replace(epoch=0) for item in items])


class HeldOutRows:
    """Held-out rows of a data set, in batches of the size of a training step.

    Batches are in the order of the file, so that a row is compared with the same rows each time. Rows after the
    last whole batch are skipped. If there are fewer rows than a batch, they are a batch.

    Args:
        data: The rows, prepared for pairing as in training.
        needs: Needs of the module.
        batch_size: Number of rows of a step, if the data set has none of its own.
        seed: Seed of the pairing's random draws.

    Raises:
        ValueError: No objective has a loss without views.
    """

    def __init__(self, data: TrainingData, needs: DataNeeds, batch_size: int, seed: int) -> None:
        self.data = data
        self.seed = seed
        self.size = TaskSize(len(data.rows), min(data.task.batch_size or batch_size, len(data.rows)))
        objectives = needs.tasks[data.name].objectives
        self.objectives = needs.tasks[data.name].held_out_objectives
        self._skipped = [name for name in objectives if name not in self.objectives]
        if not self.objectives:
            raise InvalidValueError(
                f"{option_place(data.name)}.held_out: expected an objective that reads unaltered texts, got "
                f"{', '.join(objectives)}, which need views; remove the file"
            )

    def loader(self, needs: DataNeeds) -> ResumableLoader:
        """Returns the loader of the batches, with the length limit and the prompts of training."""
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
        """Describes the held-out loss: its rows, objectives and batches."""
        batches, remainder = divmod(self.size.rows, self.size.batch_size)
        text = f"{self.data.table.description}; the loss of {', '.join(self.objectives)} is taken of {batches:,} "
        text += f"batches of {self.size.batch_size:,} rows"
        text += f", {remainder:,} rows after them left out" if remainder else ""
        return text + (f"; {', '.join(self._skipped)} has none without views" if self._skipped else "")
