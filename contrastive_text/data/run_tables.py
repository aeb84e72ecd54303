"""The files of a run as tables: of its tasks, of scored pairs, and of texts to embed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from contrastive_text.core.distributed import world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.core.types import Row
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.given import GIVEN, Source
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.retrieval import NO_RETRIEVAL, Retrieval, RetrievalSet
from contrastive_text.data.tasks import SPLITS, TaskNeeds, TextTask, file_name, files_of, read_task

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
    def validated(self) -> dict[str, str]:
        """Task, file or retrieval set -> a digest of what it is validated on, as far as it has been read."""
        held_out = {f"{name}, held out": digest for name, digest in self.contents("held_out").items()}
        ranked = {name: str(data.identity) for name, data in self.ranked.items()}
        return self.contents("validation") | held_out | ranked

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
        if part == "validation" and not self.ranked:
            self.ranked = self.retrieval.read(taken=tables, bounds=self.bounds)
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
