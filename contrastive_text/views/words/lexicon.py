"""Where synonyms come from: the base class of sources, and files of synonyms."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.storage.text_files import decoded_lines
from contrastive_text.views.text import is_word

SynonymTable: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Part of speech -> word -> its synonyms; the part of speech "" holds what needs no agreement.

A word is looked up as it is written, then in lower case; an entry without synonyms ends the search.
"""


class SynonymSource(ABC):
    """Base class of sources of synonyms.

    Example:
        >>> class Animals(SynonymSource):
        ...     def table(self):
        ...         return {"": {"dog": ("hound",)}}  # of every part of speech
        >>> Animals().table()[""]["dog"]
        ('hound',)
    """

    @abstractmethod
    def table(self) -> SynonymTable:
        """Returns all synonyms; called once, before the first text."""

    def parts_of_speech(self, words: Sequence[str]) -> Sequence[str] | None:  # noqa: ARG002  # the contract
        """Returns the part of speech of each word of a text; None where "" holds for all."""
        return None


class SynonymFile(SynonymSource):
    """Synonyms from a file, tab-separated or ``.json``, plain or ``.gz``.

    The first line of a tab-separated one names the columns: ``word`` and ``synonyms``, these joined by ``|``, or
    ``word1`` and ``word2``, one pair a line and read in that direction. Rows of one word are put together; other
    columns, such as ``pos``, are left out. A ``.json`` is one object, from words to lists of synonyms: the form
    of the counter-fitted lists of Jia et al. 2019 (https://arxiv.org/abs/1909.00986), which CLEAR takes. Words
    stand in the file as in a text: nothing is inflected, and synonyms that are not single words are left out, so
    that a text keeps its number of words.

    Args:
        path: The file.

    Raises:
        ValueError: No such file, other columns, a row of another length, or JSON of another form.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "words.tsv")
        ...     _ = path.write_text("word\\tsynonyms\\nbig\\tlarge|grown up\\n")
        ...     SynonymFile(str(path)).table()
        {'': {'big': ('large',)}}
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not Path(path).is_file():
            raise InvalidValueError(
                f"SynonymFile.path: expected a tab-separated file or a .json, got {path!r}, which is no file"
            )

    def table(self) -> SynonymTable:
        """Returns the synonyms of the file, in its order."""
        read = self._json() if Path(self.path.removesuffix(".gz")).suffix == ".json" else self._rows()
        return {"": {word: kept for word, each in read.items() if (kept := _usable(word, each))}}

    def _json(self) -> Mapping[str, Iterable[str]]:
        wanted = "SynonymFile.path: expected a JSON object from words to lists of words"
        try:
            content = json.loads("".join(decoded_lines(Path(self.path))))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidValueError(f"{wanted} in {self.path}, got no JSON: {first_line(error)}") from error
        if not isinstance(content, dict):
            raise InvalidValueError(f"{wanted} in {self.path}, got a {type(content).__name__}")
        for word, synonyms in content.items():
            if not (isinstance(synonyms, list) and all(isinstance(each, str) for each in synonyms)):
                raise InvalidValueError(f"{wanted} in {self.path}, got {synonyms!r:.60} for {word!r}")
        return content

    def _rows(self) -> Mapping[str, Iterable[str]]:
        found: dict[str, dict[str, None]] = {}
        rows = (re.sub(r"\r?\n\Z", "", line).split("\t") for line in decoded_lines(Path(self.path)))
        header = next(rows, [])
        columns = next((pair for pair in _COLUMNS if set(pair) <= set(header)), None)
        if columns is None:
            raise InvalidValueError(
                f"SynonymFile.path: expected columns word and synonyms, or word1 and word2, in {self.path}, "
                f"got {', '.join(header) or 'nothing'}"
            )
        if twice := [name for name in columns if header.count(name) > 1]:
            raise InvalidValueError(
                f"SynonymFile.path: expected one column {twice[0]} in {self.path}, got two; rename one"
            )
        word, synonyms = (header.index(name) for name in columns)
        for number, row in enumerate(rows, start=2):
            if row == [""]:
                continue
            if len(row) != len(header):
                raise InvalidValueError(
                    f"SynonymFile.path: expected {len(header)} columns in line {number} of "
                    f"{self.path}, got {len(row)}"
                )
            found.setdefault(row[word], {}).update(dict.fromkeys(row[synonyms].split("|")))
        return found


_COLUMNS = (("word", "synonyms"), ("word1", "word2"))


def _usable(word: str, synonyms: Iterable[str]) -> tuple[str, ...]:
    """Returns the synonyms that are one word of letters, and another one than the word itself.

    Example:
        >>> _usable("big", ["large", "Big", "grown up", "h2o", "large"])
        ('large',)
    """
    return tuple(s for s in dict.fromkeys(synonyms) if is_word(s) and s.lower() != word.lower())
