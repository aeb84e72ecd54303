"""Files that hold several splits of a data set, told by a column: AllNLI and others of sentence-transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from contrastive_text.data.files.columns import plain
from contrastive_text.data.files.formats import listed, reading_error
from contrastive_text.data.files.forms import FileForm

_SPLITS = ({"train", "training"}, {"dev", "development", "val", "valid", "validation"}, {"test"})
"""The usual names of the parts of a data set; those of one part mean the same."""


def split_place(header: Sequence[str], used: Collection[str]) -> int | None:
    """Returns the place of a column ``split`` that isn't read as something else."""
    return next((i for i, name in enumerate(header) if plain(name) == "split" and name not in used), None)


def choose_split(
    where: str, held: Mapping[str, int], split: str | None, form: FileForm
) -> tuple[list[str] | None, list[str]]:
    """Returns the values of the column whose rows are read, None for all rows, and what to say of it.

    Args:
        where: The file, for messages.
        held: Rows of each value of the column.
        split: ``train``, ``dev``, ``test`` or another value of the column; ``all`` for all rows.
        form: Spells the caller's options.

    Raises:
        ValueError: Several splits, and none or another one chosen.
    """
    if len(held) < 2 or not set().union(*_SPLITS) & {name.lower() for name in held}:
        return None, []
    told = {name: f"{name} ({number:,})" for name, number in held.items()}
    if split == "all":
        return None, [f"split: all of {listed(told.values())}"]
    wanted = (split or "").lower()
    same = next((names for names in _SPLITS if wanted in names), {wanted})
    read = [name for name in held if name.lower() in same]
    if not read:
        expected = f"rows of the split {split}" if split else "rows of one split"
        todo = form.advice([("split", next(iter(held)))], "write each split to a file of its own")
        raise reading_error(where, expected, listed(told.values()), todo)
    rest = listed(told[name] for name in held if name not in read)
    return read, [f"split: {listed(told[name] for name in read)}; {rest} left out"]
