"""Command ``rank``: orders documents for each query by the scores of a reranker."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.options import FILES, Split, Texts, TextsCommand
from contrastive_text.cli.paths import ReadPath, WrittenFile
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Rank(TextsCommand):
    """Order the documents of a file for each query by the scores of a reranker."""

    queries: Annotated[Texts, f"Queries. {FILES}"]
    documents: Annotated[Texts, "File of documents, in the same formats. Each query is scored with all of them."]
    output: Annotated[Path, WrittenFile(), "Table to write (.tsv): query, rank, score, line and text."]
    _: KW_ONLY
    model: Annotated[str, ReadPath(model=True), "Folder of a reranker or a CrossEncoder, or a name on the hub."]
    top_k: Annotated[int, "Number of documents per query."] = 10
    column: Annotated[str | None, "Column of the documents. Default: found by its usual name."] = None
    query_column: Annotated[str | None, "Column of the queries. Default: found by its usual name."] = None
    split: Split = None


def rank(options: Rank) -> None:
    """Writes the documents with the highest scores for each query, the best first.

    Raises:
        ValueError: The model isn't a reranker, or ``--top_k`` is below 1.
    """
    from contrastive_text.cli.files import further_texts, table_row
    from contrastive_text.cli.models import load_reranker
    from contrastive_text.core.errors import at_least
    from contrastive_text.core.storage.disk import atomic_file

    at_least("--top_k", options.top_k, 1)
    queries = further_texts(options, options.queries, "query_column")
    documents = further_texts(options, options.documents, "column")
    print_message(queries.scan().description)
    print_message(documents.scan().description)
    reranker = load_reranker(options.model, options.device)
    lines, texts = zip(*documents.numbered(), strict=True)
    truncated, count = 0, 0
    with atomic_file(options.output) as file:
        file.write(f"{table_row(['query', 'rank', 'score', 'line', 'text'])}\n".encode())
        for query in queries:
            hits = reranker.rank(query, texts, options.top_k, batch_size=options.batch_size)
            truncated, count = truncated + reranker.truncated, count + 1
            for place, hit in enumerate(hits, start=1):
                number = hit["corpus_id"]
                row = table_row([query, place, f"{hit['score']:.6f}", lines[number], texts[number]])
                file.write(f"{row}\n".encode())
    if truncated:
        limit = reranker.tokenizer.max_length
        print_message(f"{truncated:,} of {count * len(texts):,} pairs exceed {limit} tokens and were truncated")
    print_message(
        f"{count:,} queries with up to {options.top_k} of {len(texts):,} documents written to {options.output}"
    )
