"""Command ``search``: finds the texts of an index or a corpus that are nearest to each query."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from contrastive_text.cli.commands import Search
from contrastive_text.cli.files import further_texts, table_row, text_stream
from contrastive_text.cli.index import open_index
from contrastive_text.cli.models import document_vectors, encoder_of, say_truncated
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import is_blank
from contrastive_text.core.terminal import print_json, print_message
from contrastive_text.inference.index_files import is_index
from contrastive_text.inference.search import as_tensor, nearest
from contrastive_text.inference.sparse import SparseVectors


def search(options: Search) -> None:
    """Prints the texts of an index or a corpus that are nearest to each query. Notes go to standard error.

    Raises:
        ValueError: There is no query, or options contradict each other.
    """
    if not options.query and options.queries is None:
        raise InvalidValueError("expected a query after the corpus, or --queries FILE")
    if any(map(is_blank, options.query)):
        raise InvalidValueError("query: expected words to search for, got an empty text; leave it out")
    if options.query_column is not None and options.queries is None:
        raise InvalidValueError("--query_column: expected it with --queries FILE, got it alone; add --queries")
    if options.top_k < 1:
        raise InvalidValueError(f"--top_k: expected 1 or more, got {options.top_k}")
    with redirect_stdout(sys.stderr):
        queries = [_as_utf8(query) for query in options.query]
        if options.queries is not None:
            query_texts = further_texts(options, options.queries, "query_column")
            print_message(query_texts.scan().description)
            queries += query_texts
        is_folder = is_index(Path(options.corpus))
        results = (_in_index if is_folder else _in_corpus)(options, queries)
    show = print_json if options.format == "json" else print_message
    for output_line in _FORMATS[options.format](queries, results, "id" if is_folder else "line"):
        show(output_line)


class _Found(NamedTuple):
    """Hit of a search as it is printed.

    Args:
        score: Similarity to the query.
        place: Id of a document of an index, or line of a text of a corpus.
        text: The text, or the passage of an index.
        further: Further fields of the JSON output.
    """

    score: float
    place: str | int
    text: str
    further: Mapping[str, object]


def _in_index(options: Search, queries: Sequence[str]) -> list[list[_Found]]:
    """Searches an index. Returns the hits of each query."""
    index = open_index(Path(options.corpus), options.model, options.device, options.backend, options.dtype)
    with closing(index):
        results = index.search(queries, top_k=options.top_k, batch_size=options.batch_size)
        say_truncated(index.model.truncated, len(queries), index.model)
    return [
        [
            _Found(
                hit.score,
                hit.id,
                hit.passage,
                {"metadata": hit.metadata, **({} if hit.span is None else {"span": hit.span})},
            )
            for hit in hits
        ]
        for hits in results
    ]


def _in_corpus(options: Search, queries: Sequence[str]) -> list[list[_Found]]:
    """Encodes a corpus and searches it. Returns the hits of each query."""
    if not options.model:
        raise InvalidValueError("--model: expected a model to encode the corpus, got nothing; add --model MODEL")
    corpus = text_stream(options, options.corpus)
    print_message(corpus.scan().description)
    # Cleanup errors: the vectors may still be mapped when their folder is deleted.
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        model, devices = encoder_of(options)
        if model.is_sparse:
            parts: SparseVectors = model.encode_document(
                corpus, batch_size=options.batch_size, show_progress_bar=True
            )
            say_truncated(model.truncated, parts.shape[0], model)
        else:
            arrays = document_vectors(options, model, devices, corpus, Path(temporary, "corpus.npy"), stays=False)
            parts = list(map(as_tensor, arrays))
        rows = model.encode_query(queries, batch_size=options.batch_size, convert_to_tensor=not model.is_sparse)
        say_truncated(model.truncated, len(queries), model)
        results = nearest(model.similarity_fn_name, rows, parts, options.top_k)
    hit_ids = {hit.corpus_id for hits in results for hit in hits}
    texts = {number: line for number, line in enumerate(corpus.numbered()) if number in hit_ids}
    return [[_Found(hit.score, *texts[hit.corpus_id], {}) for hit in hits] for hits in results]


def _as_utf8(query: str) -> str:
    """Decodes a query of the command line as UTF-8, whatever the locale is.

    Raises:
        ValueError: The bytes of the query are not UTF-8.
    """
    try:
        return query.encode(sys.getfilesystemencoding(), "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise InvalidValueError(
            f"query: expected a text in UTF-8, got {query!r}; put it into a file of UTF-8 and give --queries FILE"
        ) from error


def _as_text(queries: Sequence[str], results: Sequence[Sequence[_Found]], place: str) -> Iterator[str]:
    for query, hits in zip(queries, results, strict=True):
        yield query
        for hit in hits:
            yield f"  {hit.score:.4f}  {place} {hit.place}  {hit.text}"


def _as_tsv(queries: Sequence[str], results: Sequence[Sequence[_Found]], place: str) -> Iterator[str]:
    yield table_row(["query", "rank", "score", place, "text"])
    for query, hits in zip(queries, results, strict=True):
        for rank, hit in enumerate(hits, start=1):
            yield table_row([query, rank, f"{hit.score:.6f}", hit.place, hit.text])


def _as_json(queries: Sequence[str], results: Sequence[Sequence[_Found]], place: str) -> Iterator[str]:
    for query, hits in zip(queries, results, strict=True):
        entries = [
            {"score": round(hit.score, 6), place: hit.place, "text": hit.text, **hit.further} for hit in hits
        ]
        yield json.dumps({"query": query, "hits": entries}, ensure_ascii=False)


_FORMATS = {"text": _as_text, "tsv": _as_tsv, "json": _as_json}
