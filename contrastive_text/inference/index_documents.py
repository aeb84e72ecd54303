"""Documents of an index: checks of ids, texts and metadata, and the rows of their passages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.storage.text_files import is_blank, lone_surrogate
from contrastive_text.inference.passages import Span

Rows: TypeAlias = npt.NDArray[np.int64]
"""Number of the document of each vector, first character and end of its passage, (N, 3)."""
WHOLE: Span = (-1, -1)
"""Span in a row of a vector of a whole text."""


class Document(NamedTuple):
    """Document of an index.

    Args:
        id: Its id.
        text: Its text.
        metadata: JSON of its metadata; None if it has none.
    """

    id: str
    text: str
    metadata: str | None = None


def check_documents(
    texts: Sequence[str],
    ids: Sequence[str | int] | None,
    metadata: Sequence[Mapping[str, object] | None] | None,
) -> list[Document]:
    """Checks new documents before they are encoded. Without ids, each id is empty.

    Raises:
        TypeError: A text is not a string, or an id is neither a string nor a whole number.
        ValueError: There is no text; a text is blank; the numbers of texts, ids and metadata differ; an id occurs
            twice; or metadata isn't JSON.

    Example:
        >>> check_documents(["a bird"], [7], [{"year": 2020}])
        [Document(id='7', text='a bird', metadata='{"year": 2020}')]
    """
    if isinstance(texts, str):
        raise InvalidTypeError("texts: expected a list of texts, got one string; put it into a list")
    texts = list(texts)
    if not texts:
        raise InvalidValueError("texts: expected at least one text, got an empty list; give texts")
    for name, values in (("ids", ids), ("metadata", metadata)):
        if values is not None and len(values) != len(texts):
            raise InvalidValueError(
                f"{name}: expected {len(texts):,}, one for each text, got {len(values):,}; give as many"
            )
    for place, text in enumerate(texts):
        check_text(text, f"texts: text {place}")
    names = [""] * len(texts) if ids is None else [parse_id(value) for value in ids]
    if ids is not None:
        check_distinct(names)
    contents = [None] * len(texts) if metadata is None else metadata
    return [
        Document(name, text, None if content is None else format_metadata(content, f"metadata: document {place}"))
        for place, (name, text, content) in enumerate(zip(names, texts, contents, strict=True))
    ]


def check_text(text: object, where: str) -> None:
    """Checks that a text is a string with a visible character, which UTF-8 can represent.

    Raises:
        TypeError: It is not a string.
        ValueError: It is blank, or UTF-8 can't represent it.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{where}: expected a string, got {type(text).__name__}; give texts")
    if is_blank(text):
        raise InvalidValueError(f"{where}: expected a visible character, got {text[:60]!r}; remove the text")
    if (surrogate := lone_surrogate(text)) is not None:
        raise InvalidValueError(f"{where}: expected a text that UTF-8 can hold, got {surrogate}; correct it")


def parse_id(value: object, where: str = "ids") -> str:
    """Returns the id of a document as a string. ``where`` is the first word of errors.

    Raises:
        TypeError: It is neither a string nor a whole number.
        ValueError: It is blank, or UTF-8 can't represent it.

    Example:
        >>> parse_id(7), parse_id("b1")
        ('7', 'b1')
    """
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise InvalidTypeError(
            f"{where}: expected ids that are strings or whole numbers, got {str(value)[:60]!r} of "
            f"{type(value).__name__}; convert it"
        )
    name = str(value)
    check_text(name, f"{where}: id")
    return name


def check_distinct(ids: Sequence[str]) -> None:
    """Checks that there is an id, and that no id occurs twice.

    Raises:
        ValueError: There is none, or one occurs twice.
    """
    if not ids:
        raise InvalidValueError("ids: expected at least one id, got an empty list; give ids")
    name, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise InvalidValueError(f"ids: expected each id once, got {name!r} {count} times; give each id once")


def format_metadata(content: object, where: str) -> str:
    """Returns metadata as JSON.

    Raises:
        ValueError: It is not a mapping, or JSON changes it or can't store it.

    Example:
        >>> format_metadata({"year": 2020, "tags": ["new"]}, "metadata")
        '{"year": 2020, "tags": ["new"]}'
    """
    got = ""
    if not isinstance(content, Mapping):
        got = type(content).__name__
    else:
        try:
            text = json.dumps(dict(content), ensure_ascii=False, allow_nan=False)
            text.encode()
            got = "" if json.loads(text) == dict(content) else "values that JSON would change, such as a tuple"
        except (TypeError, ValueError, RecursionError) as error:
            got = str(error)[:200]
    if got:
        raise InvalidValueError(
            f"{where}: expected a mapping of names to values of JSON, got {got}; use texts, finite numbers, "
            "true, false, None, lists and mappings"
        )
    return text


def parse_metadata(document: Document) -> Mapping[str, object]:
    """Returns the metadata of a stored document; empty if it has none.

    Raises:
        ValueError: It is not a JSON mapping, because the database was changed.
    """
    if document.metadata is None:
        return {}
    try:
        content = json.loads(document.metadata)
    except (ValueError, RecursionError) as error:
        content = error
    if not isinstance(content, dict):
        raise InvalidValueError(
            f"document {document.id!r}: expected metadata as a JSON mapping, got {str(content)[:60]!r}; build "
            "the index again"
        )
    return content


def rows_of(spans: Iterable[Sequence[Span]], first: int = 0) -> Rows:
    """Returns the rows of consecutive documents from the spans of their passages.

    Example:
        >>> rows_of([[(0, 6), (2, 12)], [(0, 5)]]).tolist()
        [[0, 0, 6], [0, 2, 12], [1, 0, 5]]
    """
    rows = [(number, *span) for number, document in enumerate(spans, first) for span in document]
    return np.array(rows, np.int64).reshape(-1, 3)


def passages_of(documents: Sequence[Document], spans: Sequence[Sequence[Span]]) -> list[str]:
    """Returns the text of each passage of documents."""
    return [
        document.text if span == WHOLE else document.text[slice(*span)]
        for document, document_spans in zip(documents, spans, strict=True)
        for span in document_spans
    ]
