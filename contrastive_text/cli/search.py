"""Command ``search``: finds the texts of a corpus that are nearest to each query."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from contrastive_text.cli.commands import Search
from contrastive_text.cli.embed import index_of
from contrastive_text.cli.files import form_of, plain_form, table_row
from contrastive_text.cli.models import say_truncated
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import SizeLimits, is_blank
from contrastive_text.core.terminal import print_json, print_message
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.search import Hit
from contrastive_text.inference.vector_index import index_path


def search(options: Search) -> None:
    """Prints the texts of a corpus that are nearest to each query. Notes go to standard error.

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
    if options.index is not None:
        index_path(options.index)
    bounds = SizeLimits.of(options.bounds)
    # Cleanup errors: the index may still be mapped when its folder is deleted.
    with redirect_stdout(sys.stderr), TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        form = form_of(options)
        corpus = TextStream(options.corpus, options.column, split=options.split, bounds=bounds, form=form)
        print_message(corpus.scan().description)
        queries = [_as_utf8(query) for query in options.query]
        if options.queries is not None:
            form = plain_form(column="--query_column", split="--split")
            query_texts = TextStream(
                options.queries, options.query_column, split=options.split, bounds=bounds, form=form
            )
            print_message(query_texts.scan().description)
            queries += query_texts
        path = options.index or Path(temporary, "corpus.npy")
        index = index_of(options, corpus, path, stays=options.index is not None)
        results = index.search(queries, top_k=options.top_k, batch_size=options.batch_size)
        say_truncated(index.model.truncated, len(queries), index.model)
        hit_ids = {hit.corpus_id for hits in results for hit in hits}
        texts = {i: line for i, line in enumerate(corpus.numbered()) if i in hit_ids}
    show = print_json if options.format == "json" else print_message
    for output_line in _FORMATS[options.format](queries, results, texts):
        show(output_line)


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


Places: TypeAlias = dict[int, tuple[int, str]]
"""Line number and text of each hit, by its position in the corpus."""


def _as_text(queries: Sequence[str], results: Sequence[Sequence[Hit]], texts: Places) -> Iterator[str]:
    for query, hits in zip(queries, results, strict=True):
        yield query
        for hit in hits:
            line, text = texts[hit.corpus_id]
            yield f"  {hit.score:.4f}  line {line}  {text}"


def _as_tsv(queries: Sequence[str], results: Sequence[Sequence[Hit]], texts: Places) -> Iterator[str]:
    yield table_row(["query", "rank", "score", "line", "text"])
    for query, hits in zip(queries, results, strict=True):
        for rank, hit in enumerate(hits, start=1):
            yield table_row([query, rank, f"{hit.score:.6f}", *texts[hit.corpus_id]])


def _as_json(queries: Sequence[str], results: Sequence[Sequence[Hit]], texts: Places) -> Iterator[str]:
    for query, hits in zip(queries, results, strict=True):
        entries = [
            {"score": round(hit.score, 6), "line": texts[hit.corpus_id][0], "text": texts[hit.corpus_id][1]}
            for hit in hits
        ]
        yield json.dumps({"query": query, "hits": entries}, ensure_ascii=False)


_FORMATS = {"text": _as_text, "tsv": _as_tsv, "json": _as_json}
