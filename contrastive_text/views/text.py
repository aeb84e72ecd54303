"""Views that alter the string of a text, by themselves, from a file or with nlpaug, and functions for words."""

from __future__ import annotations

import inspect
import json
import os
import random
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from contrastive_text.core.config.class_paths import import_class, trusting
from contrastive_text.core.errors import (
    DiskError,
    InvalidTypeError,
    InvalidValueError,
    MissingLibraryError,
    first_line,
    fraction,
    one_of,
)
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.records import describe_value
from contrastive_text.core.storage.text_files import decoded_lines, is_blank, open_regular_file
from contrastive_text.core.types import TEXT_PLACEHOLDER, Template, Vocabulary
from contrastive_text.views.base import TextView, Words

_WORD = re.compile(r"(\w+(?:['\u2019-]\w+)*)")
_LETTERS = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def split_words(text: str) -> list[str]:
    """Splits a text into pieces: words at odd indices, and the text between words at even indices.

    A word is a sequence of letters and digits, which may have apostrophes and hyphens inside.

    Example:
        >>> split_words("Well-known, isn't it?")
        ['', 'Well-known', ', ', "isn't", ' ', 'it', '?']
    """
    return _WORD.split(text)


def tab_fields(line: str) -> list[str]:
    """Splits a line of a tab-separated file into its fields, without the newline."""
    return re.sub(r"\r?\n\Z", "", line).split("\t")


def is_word(text: str) -> bool:
    """Returns True if a text is a single word of letters."""
    return _LETTERS.fullmatch(text) is not None


def match_case(word: str, model: str) -> str:
    """Returns a lower-case word with the capitalization of another word: all letters, the first letter or none.

    Args:
        word: Word in lower case.
        model: Word whose capitalization is copied.

    Example:
        >>> match_case("large", "Big"), match_case("large", "BIG"), match_case("one", "I")
        ('Large', 'LARGE', 'One')
    """
    if model.islower():  # first, because most words are
        return word
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


class Prompt(TextView):
    """Puts each text into a template. Two templates give two views of the same text (PromptBERT).

    Source: contrastive learning with two templates of Jiang et al. 2022, PromptBERT
    (https://arxiv.org/abs/2201.04337), section 4. ``MaskTokenPooler`` reads the vector of the template's mask
    token. No view of the chain alters the template. If a row is too long, the text is truncated, not the
    template.

    Args:
        template: Text with ``{text}`` once, and ``{mask}`` for the mask token; other braces are literal. The
            template is put inside the model's prompt. If both have text after ``{text}``, the whole prompt is
            dropped for these texts.
        apart: Whether the two parts of the template and the text are tokenized separately, as in PromptBERT's
            code. If false, they are tokenized as one string, in which a byte-level vocabulary joins a blank to
            the next word.
        counted: Whether the length limit includes the template, as in SNCSE. If false, the limit applies to the
            text only, as in PromptBERT, up to the limit of the network.

    Raises:
        ValueError: The template doesn't have ``{text}`` exactly once.

    Example:
        >>> Prompt("This sentence: {text} means")("It rains.", np.random.default_rng(0))
        'This sentence: It rains. means'
    """

    def __init__(self, template: str = TEXT_PLACEHOLDER, apart: bool = False, counted: bool = True) -> None:
        if TEXT_PLACEHOLDER not in template:
            raise InvalidValueError(
                f"Prompt.template: expected {TEXT_PLACEHOLDER} exactly once, got {template!r}"
            )
        self.template = template
        self.apart, self.counted = apart, counted
        self.text_template = Template.parse(template, "Prompt.template", apart, counted)

    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the base's signature
        """Returns the template with the text inserted."""
        return self.template.replace(TEXT_PLACEHOLDER, text)


class SwapWords(TextView):
    """Swaps neighboring words of a text at random.

    From left to right, each word is swapped with the next word with probability ``rate``. A swapped word may be
    swapped again and move on. In a text with swaps, white space between words becomes one blank; a text without
    swaps is unchanged. Source: random swap of Wei and Zou 2019, EDA (https://arxiv.org/abs/1901.11196), section
    2.

    Differs: only neighbors are swapped, so that the text stays readable.

    Args:
        rate: Probability of each swap.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> SwapWords(rate=1.0)("a b c", np.random.default_rng(0))
        'b c a'
    """

    words: Words | None = "blanks"

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = fraction("SwapWords.rate", rate)

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some neighboring words swapped."""
        words = text.split()
        swaps = rng.random(max(len(words) - 1, 0)) < self.rate
        for i in np.flatnonzero(swaps):
            words[i], words[i + 1] = words[i + 1], words[i]
        return " ".join(words) if swaps.any() else text


Missing = Literal["error", "keep"]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextsFromFile(TextView):
    """Replaces each text by an alternative from a file: a back-translation, a negation or a paraphrase.

    Each line of the file has a text and an alternative. If a text has several alternatives, on several lines or
    in a list, one is drawn; all are equally likely. Make this view the first of its chain, because the file
    doesn't have texts that another view has altered. Memory takes 16 bytes for each line, the text's 64-bit id
    and the offset of the line. Lines are read from the file when they are needed.

    Args:
        path: ``.tsv`` file with column names in its first line, or ``.jsonl`` file; not compressed, because lines
            are read by offset.
        text: Column of the texts, in the form that the training data have after ``clean``.
        alternative: Column of the alternatives; in ``.jsonl`` a text or a list of texts.
        missing: Treatment of a text that isn't in the file: ``error``, or ``keep`` for no change.

    Raises:
        ValueError: The file has another format. Raised before the first batch: a column is missing, a line can't
            be read, or a text has no alternative and ``missing`` is ``error``.
        OSError: Raised before the first batch: the file doesn't exist. Raised in training: the file has changed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "back.tsv")
        ...     _ = path.write_text("text\\talternative\\na big dog\\ta large dog\\n")
        ...     TextsFromFile(str(path))("a big dog", np.random.default_rng(0))
        'a large dog'
    """

    def __init__(
        self, path: str, text: str = "text", alternative: str = "alternative", missing: Missing = "error"
    ) -> None:
        if Path(path).suffix not in (".tsv", ".jsonl"):
            raise InvalidValueError(
                f"TextsFromFile.path: expected an uncompressed .tsv or .jsonl file, got {path!r}; convert it"
            )
        self.path = path
        self.text = text
        self.alternative = alternative
        self.missing: Missing = one_of("TextsFromFile.missing", missing, Missing)
        self.checks_texts = missing == "error"
        self._header: list[str] = []
        self._lines: npt.NDArray[np.int64] | None = None  # sorted ids, and the offset of each line, (2, N)
        self._file_state: tuple[int, int] | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the base's signature
        """Finds the offset of each text in the file, before worker processes copy the view."""
        self._offsets("")

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns one of the alternatives of a text, drawn at random."""
        texts = self.alternatives(text)
        if texts:
            return texts[int(rng.integers(len(texts)))]
        if self.missing == "keep":
            return text
        raise self._missing_error(text)

    def check(self, text: str) -> None:
        """Checks that the file of alternatives contains a text (ValueError)."""
        if not self._offsets(text):
            raise self._missing_error(text)

    def _missing_error(self, text: str) -> InvalidValueError:
        return InvalidValueError(
            f"{self.path}: expected an alternative of every text, got no alternative of {describe_value(text)}; "
            "add one to the file, make TextsFromFile the first view of its chain, or set missing: keep"
        )

    def alternatives(self, text: str) -> list[str]:
        """Returns the alternatives of a text, in the file's order; an empty list if the text isn't in the file.

        Raises:
            OSError: The file has changed since ``build``.
        """
        offsets = self._offsets(text)
        if not offsets:
            return []
        texts: list[str] = []
        with open_regular_file(Path(self.path)) as file:
            if _state(file) != self._file_state:
                raise DiskError(
                    f"{self.path}: expected the file of the start of the run, got a changed file; start the run "
                    "again"
                )
            for offset in offsets:
                file.seek(offset)
                line = file.readline().decode()
                line_text, alternatives = self._parse(line, f"{self.path}, at byte {offset:,}")
                texts += alternatives if line_text == text else []
        return texts

    def _offsets(self, text: str) -> list[int]:
        """Returns the offsets of the lines of a text in bytes, in the file's order."""
        if self._lines is None:
            with open_regular_file(Path(self.path)) as file:
                self._file_state = _state(file)
            pairs = array("q", chain.from_iterable((text_id(key), offset) for key, offset in self._texts()))
            lines = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            self._lines = lines[np.argsort(lines[:, 0], kind="stable")].T
        ids, offsets = self._lines
        begin, end = (np.searchsorted(ids, text_id(text), side=side) for side in ("left", "right"))
        return [int(offset) for offset in offsets[begin:end]]

    def _texts(self) -> Iterator[tuple[str, int]]:
        """Yields the text of each line and the offset of the line in bytes."""
        with open_regular_file(Path(self.path)) as file:
            offset = len(_BYTE_ORDER_MARK) if file.read(3) == _BYTE_ORDER_MARK else 0
        lines, begin = decoded_lines(Path(self.path)), 1
        if self._is_table:
            first = next(lines, "")
            self._header, begin = tab_fields(first), 2
            offset += len(first.encode())
            for name in (self.text, self.alternative):
                if self._header.count(name) != 1:
                    raise InvalidValueError(
                        f"{self.path}:1: expected one column {name}, got "
                        f"{', '.join(self._header) or 'no columns'}; name the columns under text and alternative"
                    )
        for number, line in enumerate(lines, start=begin):
            if line.strip():
                yield self._parse(line, f"{self.path}:{number}")[0], offset
            offset += len(line.encode())

    @property
    def _is_table(self) -> bool:
        return self.path.endswith(".tsv")

    def _parse(self, line: str, where: str) -> tuple[str, list[str]]:
        """Returns the text of a line of the file and its alternatives."""
        if self._is_table:
            fields = tab_fields(line)
            if len(fields) != len(self._header):
                raise InvalidValueError(
                    f"{where}: expected {len(self._header)} fields ({', '.join(self._header)}), got "
                    f"{len(fields)}; look for an extra or a missing tab"
                )
            cells: dict[str, object] = dict(zip(self._header, fields, strict=True))
        else:
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidValueError(
                    f"{where}: expected a JSON object, got invalid JSON ({first_line(error)}); write one object "
                    "per line"
                ) from None
        text = cells.get(self.text) if isinstance(cells, dict) else None
        value = cells.get(self.alternative) if isinstance(cells, dict) else None
        alternatives = value if isinstance(value, list) else [value]
        for name, cell in ((self.text, text), *((self.alternative, item) for item in alternatives)):
            if not isinstance(cell, str) or is_blank(cell):
                raise InvalidValueError(
                    f"{where}: expected a text under {name}, got {cell!r}; add a text, or remove the line"
                )
        return str(text), [str(item) for item in alternatives]


def _state(file: BinaryIO) -> tuple[int, int]:
    """Returns the size and the modification time of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


class _Augmenter(Protocol):
    def augment(self, data: str) -> object: ...


class NlpaugView(TextView):
    """Alters texts with an augmenter of nlpaug (Ma 2019, https://github.com/makcedward/nlpaug).

    Augmenters draw from the global random generators of Python, numpy and torch. The generators are seeded from
    ``rng`` for each text and restored afterwards. If the augmenter returns no text, or fails because the text is
    too short, the text is unchanged. Each process that uses the view builds the augmenter, which loads its own
    data and models; some augmenters download missing files.

    Args:
        augmenter: Class path of the augmenter, such as ``nlpaug.augmenter.word.SynonymAug``. It must be in
            nlpaug, in an imported module, or in a module that ``--trust`` allows.
        arguments: Arguments of the augmenter, as plain data; None for its defaults.

    Raises:
        ImportError: nlpaug is not installed.
        ValueError: The class doesn't exist, or is not an augmenter.
        TypeError: The augmenter doesn't accept the arguments.
    """

    def __init__(
        self,
        augmenter: str,
        arguments: Mapping[str, Any] | None = None,  # Any: whatever the augmenter takes
    ) -> None:
        self.augmenter = augmenter
        self.arguments = arguments
        signature = inspect.signature(_resolve_class(augmenter))
        try:
            signature.bind(**(arguments or {}))
        except TypeError as error:
            raise InvalidTypeError(
                f"NlpaugView.arguments: expected arguments out of {', '.join(signature.parameters)}, got "
                f"{', '.join(arguments or {}) or 'no arguments'}: {error}"
            ) from error
        self._augmenter: _Augmenter | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the view's state for pickling without the augmenter, which may hold a model."""
        return {**self.__dict__, "_augmenter": None}

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns nlpaug's alteration of a text, or the text itself if there is none."""
        if not text.strip():
            return text
        if self._augmenter is None:
            self._augmenter = _resolve_class(self.augmenter)(**(self.arguments or {}))
        with _seeded(int(rng.integers(2**32))):
            try:
                output = self._augmenter.augment(text)
            except ValueError as error:
                # nlpaug 1.1.11 draws more words or sentences than a short text has: crop, RandomSentAug.
                if "than population" not in str(error):
                    raise
                return text
        first = output[0] if isinstance(output, list) and output else output
        return first if isinstance(first, str) and first.strip() else text


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global random generators of the CPU inside a block, and restores them afterwards."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that would seed the GPU too
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(pytorch)


def _resolve_class(path: str) -> type[_Augmenter]:
    try:
        from nlpaug import Augmenter  # type: ignore[import-untyped]  # theirs
    except ImportError as error:
        raise MissingLibraryError(
            f"NlpaugView: expected the package nlpaug, got {error}; pip install 'contrastive-text[augment]'"
        ) from error
    with trusting(["nlpaug"]):
        return import_class(path, Augmenter, "NlpaugView.augmenter")
