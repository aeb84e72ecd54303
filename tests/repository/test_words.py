"""Retired names and phrases: none is left in the package, its recipes, its pages and its examples."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RENAMED = ROOT / "docs" / "renamed.md"
LISTS = {RENAMED, ROOT / "CHANGELOG.md", ROOT / "docs" / "readers.py"}
"""Files that list retired words."""
PLACES = ("contrastive_text/**/*.*", "docs/**/*.md", "docs/**/*.py", "examples/*", "*.md")
OTHER_SENSES = {
    "files_of": "data.tasks: the files of a source",
    "in_use": "the pooler, the length or the head that inference uses",
    "is_plain": "a prompt without a template, a matrix that a fast product takes",
    "left_out": "weights, or folders, that are skipped",
    "records_of": "data.files: the rows that a file holds",
    "usual_score": "the score of a sweep's configuration",
}
"""Retired name -> what another function or variable of that name is, which keeps it."""
PHRASES = {
    r"\bgot (none|another|others)\b": "print the value",
    r"\bbeside\b": "next to, in addition to",
    r"\banew\b": "again, from scratch",
    r"\b(lay|lays|laid) over\b": "override, merge",
    r"\bso many\b": "that many",
    r"\bas ever\b": "unchanged",
    r"\bbut for\b": "except",
    r"\b(goes|go|going) on with\b": "resumes, continues",
    r"\btak(e|es|en) up again\b": "resumes",
    r"\b(hears|heeds|heed)\b": "is notified; uses",
    r"\b(take|takes|taken) away\b": "remove",
    r"\bmade of what\b": "built from",
    r"\bwhich is none\b": "is not a",
    r"\basked for once\b": "is called once",
    r"\bsub-sets?\b": "subset",
    r'^\s*r?"""(What|How|Where|Whether)\b': "begin with the noun or the verb",
    r"(tokenis|normalis|optimis|initialis|serialis|recognis)(e|ing|ation)": "American spelling",
    r"neighbour|(?<!aria-)labelled|colour|behaviour|modelling": "American spelling",
}
"""Retired phrase -> what to write."""


def retired_names() -> dict[str, str]:
    """Returns the retired identifiers that can't be ordinary words, with their new names."""
    table = re.sub(r"\s+", " ", RENAMED.read_text(encoding="utf-8").partition("## Python names")[2])
    renames = {old.rpartition(".")[2]: new for old, new in re.findall(r"`([\w.]+)` -> `(\w+)`", table)}
    return {old: new for old, new in renames.items() if re.search(r"[a-z]_[a-z]|[a-z][A-Z]|[A-Z]_", old)}


@cache
def lines() -> list[tuple[str, str]]:
    """Returns the place and the text of each line that is read, without the lists of retired words."""
    paths = sorted({path for pattern in PLACES for path in ROOT.glob(pattern)} - LISTS)
    texts = [path for path in paths if path.suffix in (".py", ".md", ".yaml", ".txt", ".css", ".html")]
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    ]


def test_no_retired_name_is_left() -> None:
    names = retired_names()
    assert len(names) > 150 and {*OTHER_SENSES} <= {*names}
    pattern = re.compile(rf"\b({'|'.join(names.keys() - OTHER_SENSES.keys())})\b")
    left = [(place, match[1]) for place, line in lines() for match in pattern.finditer(line)]
    assert not left, "\n".join(f"{place}: {name} is now {names[name]}" for place, name in left)


@pytest.mark.parametrize(("phrase", "instead"), PHRASES.items())
def test_no_retired_phrase_is_left(phrase: str, instead: str) -> None:
    pattern = re.compile(phrase)
    left = [f"{place}: {line.strip()}" for place, line in lines() if pattern.search(line)]
    assert not left, f"write: {instead}\n" + "\n".join(left)
