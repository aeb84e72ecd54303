"""Documents from files: the build of an index from a file of texts, and the documents that are added to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.index_documents import WHOLE, Document, Rows, format_metadata, parse_id, rows_of
from contrastive_text.inference.index_files import IndexFacts
from contrastive_text.inference.index_writer import create_folder
from contrastive_text.inference.passages import Window
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array

_BLOCK = 256
"""Number of documents that are split into passages together."""


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """File of texts whose columns give the documents of an index.

    Args:
        texts: Stream of the texts. Its further columns are the id, if ``has_ids``, and metadata.
        has_ids: Whether the first further column is the id. Otherwise ids are numbers from 0.
    """

    texts: TextStream
    has_ids: bool = False

    def __iter__(self) -> Iterator[Document]:
        """Yields the documents in the order of the file.

        Raises:
            TypeError: An id is neither a string nor a whole number.
            ValueError: An id is blank, or metadata isn't JSON.
        """
        names = self.texts.columns[self.has_ids :]
        for number, (line, text, cells) in enumerate(self.texts.records()):
            where = f"{self.texts.path}:{line}"
            metadata = dict(zip(names, cells[self.has_ids :], strict=True))
            yield Document(
                id=parse_id(cells[0], where) if self.has_ids else str(number),
                text=text,
                metadata=format_metadata(metadata, where) if metadata else None,
            )

    def check(self) -> None:
        """Reads all documents once, to find errors before texts are encoded.

        Raises:
            TypeError: An id is neither a string nor a whole number.
            ValueError: An id is blank or occurs twice, or metadata isn't JSON.
        """
        seen: set[str] = set()
        for document in self:
            if document.id in seen:
                raise InvalidValueError(
                    f"{self.texts.path}: expected each id once, got {document.id!r} twice; name another id column"
                )
            seen.add(document.id)


def write_index(
    folder: Path, facts: IndexFacts, documents: DocumentFile, model: SentenceEncoder, parts: Sequence[Array]
) -> int:
    """Writes an index from a file of documents and their vectors. Returns the number of documents.

    Args:
        folder: New folder, apart from the files of an unfinished build.
        facts: Facts of the index.
        documents: The documents.
        model: Model that encoded the documents.
        parts: Vectors of the documents, or of their passages, (n, D) each.

    Raises:
        FileExistsError: The folder has an index or other files.
        OSError: The disk is full, or the folder can't be written to.
        ValueError: An id occurs twice, or the file has changed since it was encoded.
    """
    window = None if facts.passages is None else Window.parse(facts.passages)
    rows: list[Rows] = []
    digest = documents.texts.summary
    done = 0

    def stored() -> Iterator[Document]:
        nonlocal done
        rest = iter(documents)
        while block := list(islice(rest, _BLOCK)):
            spans = [[WHOLE]] * len(block)
            if window is not None:
                spans = window.spans(model.tokenizer, [document.text for document in block])
            rows.append(rows_of(spans, first=done))
            done += len(block)
            yield from block
        if documents.texts.summary != digest or sum(map(len, rows)) != count:
            raise InvalidValueError(
                f"{documents.texts.path}: expected the texts that were encoded, got a changed file; run the "
                "command again"
            )

    count = sum(map(len, parts))
    blocks = (part[start : start + 16_384] for part in parts for start in range(0, len(part), 16_384))
    create_folder(folder, facts, stored(), rows, map(np.asarray, blocks), count)
    return done
