"""The files of a run as tables: of its tasks, of scored pairs, and of texts to embed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Target
from contrastive_text.core.text_files import USUAL, Bounds
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.tasks import SPLITS, Paths, TextTask, files_of, read_task
from contrastive_text.pairings import Pairing, SameText


class RunTables:
    """Reads each part of a run once: ``train``, ``validation``, ``test`` and ``predict``.

    Args:
        tasks: Name -> data set.
        named: Whether the configuration has named the tasks, which then all need training files.
        files: Part -> files beside the tasks': scored pairs, each a table of its own, and texts to embed.
        eval_columns: Library column -> column of the files of scored pairs.
        bounds: How large what is in a file may be.
    """

    def __init__(
        self,
        tasks: Mapping[str, TextTask],
        named: bool,
        files: Mapping[str, Paths | None],
        eval_columns: Mapping[str, str] | None,
        bounds: Bounds = USUAL,
    ) -> None:
        self.tasks = tasks
        self.named = named
        self.files = {part: files_of(paths) for part, paths in files.items()}
        self.eval_columns = eval_columns
        self.bounds = bounds
        self._tables: dict[tuple[str, str], Table] = {}

    def of(self, part: str) -> dict[str, Table]:
        """Returns the tables of a part by name, as far as they have been read."""
        return {name: table for (read, name), table in self._tables.items() if read == part}

    def read(
        self, part: str, target_of: Callable[[str, Pairing], Target | None], predicts: Callable[[str], bool]
    ) -> None:
        """Reads what of a part has not been read.

        Args:
            part: Its name.
            target_of: Gives what is read of the labels of a task with a pairing.
            predicts: Tells whether an objective predicts the labels of a task.

        Raises:
            ValueError: A file that can't be read as asked, none at all, or two of one name.
            FileNotFoundError: A file that isn't there.
        """
        for name, task in self.tasks.items():
            if part == "train" and self.named and not task.train:
                raise InvalidValueError(
                    f"data.tasks.{name}.train: expected a file, got none; give one, or drop the task"
                )
            if task.files(part) and (part, name) not in self._tables:
                pairing = task.pairing or SameText()
                target = target_of(name, pairing) if part != "predict" else None
                self._tables[part, name] = read_task(
                    name, task, pairing, part, target, predicts(name), self.bounds
                )
        files = self.files.get(part, [])
        if part == "predict" and files and (part, part) not in self._tables:
            self._tables[part, part] = read_rows(files, reads=("text",), split="all", bounds=self.bounds)
        elif part != "predict":
            self._read_pairs(part, files)

    def _read_pairs(self, part: str, files: list[str]) -> None:
        names = [file_name(path) for path in files]
        taken = set(self.tasks) if self.named else set()
        if twice := [name for i, name in enumerate(names) if name in {*names[:i], *taken}]:
            raise InvalidValueError(
                f"data.{part}: expected files of different names, got {', '.join(names)}; no task's name either: "
                f"rename {twice[0]}"
            )
        for name, path in zip(names, files, strict=True):
            if (part, name) not in self._tables:
                self._tables[part, name] = read_pairs(
                    path, columns=self.eval_columns, split=SPLITS[part], bounds=self.bounds
                )


def file_name(path: str) -> str:
    """Returns a data file's name without folders and suffixes of format.

    Example:
        >>> file_name("sts/stsb.dev.tsv.gz")
        'stsb.dev'
    """
    return re.sub(r"\.(txt|tsv|csv|jsonl)(\.gz)?$", "", Path(path).name).replace(":", "-")
