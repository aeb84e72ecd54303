"""Labelled texts of a task in its parts, and what the readers of SentEval's files share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.storage.text_files import decoded_lines, is_blank
from contrastive_text.data.files.formats import listed, reading_error, short

ALL, TRAIN, DEV, TEST = "all", "train", "dev", "test"
FULL_STOP = "."
"""Stands in for an empty text, as in SentEval's and DeCLUTR's code."""
WHERE_TO_GET = (
    "fetch SentEval's data with its get_transfer_data.bash (https://github.com/facebookresearch/SentEval)"
)

Row = tuple[str, ...]
"""A label, and one text or two."""


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """The rows of a task, all parts of it in one sequence.

    Args:
        task: Its name.
        source: Its files.
        labels: The label of each row, N of them.
        sides: The texts of the rows, N of them; of pairs the first texts and the second ones.
        sizes: Part -> number of its rows, in the order of the rows: ``all``, or ``train``, ``dev`` and ``test``.
        empty: How many empty texts have become a full stop.
    """

    task: str
    source: str
    labels: list[str]
    sides: list[list[str]]
    sizes: Mapping[str, int]
    empty: int

    @classmethod
    def of(cls, task: str, source: str, parts: Mapping[str, Sequence[Row]]) -> LabelledTexts:
        """Returns the rows of the parts.

        Raises:
            ValueError: A part without rows, a single class, or a label that no training row has.
        """
        names = listed(parts)
        for part, rows in parts.items():
            if not rows:
                raise reading_error(source, f"rows in {names}", f"none in {part}", "fetch it again")
        known = {row[0] for row in next(iter(parts.values()))}
        if len(known) < 2:
            got = f"{short(next(iter(known)))} alone"
            raise reading_error(source, "two classes or more", got, "check the labels")
        rows = [row for part in parts.values() for row in part]
        if strange := sorted({row[0] for row in rows} - known):
            got = short(strange[0])
            raise reading_error(source, f"a label of the training rows, {listed(sorted(known))}", got, "check it")
        columns = [list(texts) for texts in zip(*(row[1:] for row in rows), strict=True)]
        sides = [[FULL_STOP if is_blank(text) else text for text in texts] for texts in columns]
        empty = sum(is_blank(text) for texts in columns for text in texts)
        sizes = {part: len(rows) for part, rows in parts.items()}
        return cls(task, source, [row[0] for row in rows], sides, sizes, empty)


@contextmanager
def naming(task: str) -> Iterator[None]:
    """Puts the name of a task before an error."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"{task}: {error}") from error


def only(paths: Sequence[Path]) -> Path | None:
    """Returns the one path, None of none.

    Raises:
        ValueError: Several.
    """
    if len(paths) > 1:
        todo = "name the folder of one of them"
        raise reading_error(str(paths[0]), "one copy of the data", f"{paths[1]} too", todo)
    return paths[0] if paths else None


def find(folder: str | Path, name: str) -> list[Path]:
    """Returns the files of a name in a folder, in the folders in it, and in those of its ``data``.

    Raises:
        FileNotFoundError: No such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise MissingFileError(f"{root}: expected a folder of data sets, found none; check its name")
    inside = [path for place in (root, root / "data") if place.is_dir() for path in sorted(place.iterdir())]
    places = dict.fromkeys([root, *(path for path in inside if path.is_dir())])
    return [path for place in places if (path := place / name).is_file()]


def lines_of(path: Path, encoding: str = "utf-8") -> list[tuple[str, str]]:
    """Returns the lines of a file, each with its place.

    Raises:
        ValueError: Bytes that are not of the encoding.
    """
    # A carriage return alone ends a line too, as in SentEval's code.
    text = "".join(decoded_lines(path, encoding=encoding)).replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def row_of(where: str, cells: Iterable[str]) -> Row:
    """Returns a row of a label and texts whose tokens are joined by blanks, as SentEval reads them."""
    label, *texts = cells
    if not label.strip():
        raise reading_error(where, "a label", "none", "fetch the file again")
    return (label.strip(), *(" ".join(text.split()) for text in texts))
