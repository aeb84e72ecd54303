"""Columns of data files: usual names, tables without a header, and the column that names a split."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from contrastive_text.core.targets import NLI, UNLABELLED, number_of
from contrastive_text.data.files.formats import SEPARATORS, Content, FileForm, listed, reading_error, short

ALIASES: Mapping[str, tuple[str, ...]] = {
    name: tuple(aliases.split())
    for name, aliases in {
        "text": "text texts sentence sentences content document body",
        "anchor": "anchor sentence1 sentence_a sent0 text1 text_a query query_text question question1 premise",
        "positive": "positive positives pos sentence2 sentence_b sent1 text2 text_b question2 hypothesis "
        "answer passage positive_passages positive_ctxs",
        "negative": "negative negatives neg hard_neg hard_negative negative_passages hard_negative_ctxs",
        "target": "target score scores label labels gold_label similarity is_duplicate",
        "subset": "subset genre",
    }.items()
}
"""Library column -> its names in files.

Case, spaces, ``_`` and ``-`` do not count, and the name of a negative may end in a number.
"""

_DIGITS = 18
"""Of the number after a negative's name: Python makes no number of a text of thousands."""
_SHOWN = 20
"""Columns that an error lists; a file may have any number."""

PAIR = ("anchor", "positive", "negative")


def negative_names(count: int) -> list[str]:
    """Returns the library's names of so many negatives.

    Example:
        >>> negative_names(3)
        ['negative', 'negative_2', 'negative_3']
    """
    return ["negative", *(f"negative_{number}" for number in range(2, count + 1))][:count]


def plain(name: str) -> str:
    """Returns a column's name without case, spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_-]", "", name.lower())


_LIBRARY_NAMES = {plain(alias): name for name, aliases in ALIASES.items() for alias in aliases}


def _unnumbered(name: str) -> str:
    """Returns the alias of a negative without its number."""
    return plain(name).rstrip("0123456789")


def _stands_for(column: str, name: str) -> bool:
    numbered = name == "negative" and _LIBRARY_NAMES.get(_unnumbered(column)) == name
    return numbered or _LIBRARY_NAMES.get(plain(column)) == name


def is_known(column: str) -> bool:
    """Returns whether a name is a usual one of a column."""
    return any(_stands_for(column, name) for name in ALIASES)


def label_columns(header: Sequence[str], used: Iterable[str], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the columns that may hold labels of pairs, out of those that aren't read."""
    given = columns.get("target") or [column for column in header if _stands_for(column, "target")]
    return [column for column in given if column in header and column not in used]


def _advice(names: Sequence[str], column: str, form: FileForm) -> str:
    """Returns how to say which column is meant, by the options that the caller has."""
    alone = [("column", column)] if "text" in names else []
    several = ("columns", " ".join(f"{name}={column}" for name in names))
    return form.advice([several, *alone], f"rename the column to {listed(names)}")


def _lacking_advice(header: Sequence[str], lacking: Sequence[str], is_row: bool, form: FileForm) -> str:
    if is_row and len(header) > 1:
        roles = ",".join([*PAIR[:2], *(f"field{number}" for number in range(3, len(header) + 1))])
        named = roles if "anchor" in lacking or "positive" in lacking else "text,..."
        otherwise = "write the names of the columns into the first line"
        return f"the first line is a row: {form.advice([('header', named)], otherwise)}"
    todo = _advice(lacking, "NAME", form)
    if len(header) == 1:
        todo += "; if the first line is a text, call the file .txt"
        if other := next((each for each in SEPARATORS if each in header[0]), None):
            written = "tab" if other == "\t" else f"'{other}'"
            separated = form.advice([("separator", written)], "separate them by tabs in a .tsv")
            todo += f"; if its fields are separated by {SEPARATORS[other]}, {separated}"
    return todo


def plan_columns(
    where: str,
    header: list[str],
    reads: Sequence[str],
    columns: Mapping[str, list[str]],
    form: FileForm,
    is_row: bool = False,
) -> dict[str, list[str]]:
    """Returns for each library column that is read the columns of the file that hold it.

    Args:
        where: The file, for messages.
        header: Names of its columns.
        reads: Library columns.
        columns: Library column -> columns of the file, as the user gives them.
        form: Spells the caller's options.
        is_row: Whether the first line looks like a row.

    Raises:
        ValueError: A column is not there, or two could be meant.
    """
    there = listed(map(short, header[:_SHOWN]))
    there += f" and {len(header) - _SHOWN:,} more" if len(header) > _SHOWN else ""
    named = {column: name for name, sources in columns.items() for column in sources}
    for column, name in named.items():
        if column not in header:
            near = difflib.get_close_matches(column, header, n=1, cutoff=0.4)
            todo = f"did you mean {near[0]}?" if near else "name one of those"
            raise reading_error(where, f"the column {column} for columns.{name}", there, todo)
    found = {
        name: columns.get(name)
        or [column for column in header if column not in named and _stands_for(column, name)]
        for name in ALIASES
    }
    if "negative" not in columns:
        found["negative"].sort(key=lambda column: int(re.sub(r"\D", "", column)[:_DIGITS] or 1))
    taken = [name for name in ALIASES if name in reads or ("anchor" in reads and name in ("negative", "subset"))]
    for name in taken:
        # negative_1 and negative_2 are two texts under one alias; neg and hard_neg are two aliases.
        rivals = list({_unnumbered(c) if name == "negative" else c: c for c in found[name]}.values())
        if len(rivals) > 1 and name not in columns:
            todo = _advice([name], rivals[0], form)
            raise reading_error(where, f"one column for {name}", f"{rivals[0]} and {rivals[1]}", todo)
    if "text" in reads and not found["text"]:
        if "target" in reads and (pair := [name for name in ("anchor", "positive") if found[name]]):
            both = " ".join(f"text={column}" for name in pair for column in found[name])
            todo = (
                f"set `pairing: Given` for pairs, or {form.advice([('columns', both)], 'name one column text')}"
            )
            raise reading_error(where, "a column for text beside the target", there, todo)
        found["text"] = [column for column in header if any(column in found[name] for name in PAIR)]
    if lacking := [name for name in taken if name in reads and not found[name]]:
        todo = _lacking_advice(header, lacking, is_row, form)
        usual = " and ".join(f"a column for {name} ({listed(ALIASES[name])})" for name in lacking)
        raise reading_error(where, usual, there, todo)
    return {name: found[name] for name in taken if found[name]}


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


_LOOKED_AT = 1000
"""Rows whose cells say what a column holds."""


def named_content(content: Content, reads: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Content:
    """Returns a table whose first line is a row under names, or unchanged where these aren't clear.

    Clear are one column of texts; and two columns of texts, hard negatives after them, and a label or score last.

    Args:
        content: Of a file.
        reads: Library columns.
        columns: Library column -> columns of the file, as the user gives them: then the first line has names.
    """
    if content.bare is None or not content.is_row or columns:
        return content
    sample = [record[1] for record in islice(content.bare(content.header).records(), _LOOKED_AT) if record]
    width = len(content.header)
    is_label = [all(_is_label(cells[place]) for cells in sample) for place in range(width)]
    names = _unnamed_columns(is_label, reads)
    return content if names is None else content.bare(names)


def _unnamed_columns(is_label: Sequence[bool], reads: Sequence[str]) -> list[str] | None:
    ends = ["target"] if len(is_label) > 1 and is_label[-1] else []
    texts = len(is_label) - len(ends)
    if any(is_label[:texts]) or ("target" in reads and not ends):
        return None
    if "text" in reads:
        return ["text", *ends] if texts == 1 and bool(ends) == ("target" in reads) else None
    return ["anchor", "positive", *negative_names(texts - 2), *ends] if texts >= 2 else None


def _is_label(cell: object) -> bool:
    word = str(cell).strip()
    return not math.isnan(number_of(word)) or word in UNLABELLED or word in NLI
