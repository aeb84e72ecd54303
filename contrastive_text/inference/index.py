"""Index of documents that grows: adds and removes documents without encoding the others, and searches them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.libraries import require
from contrastive_text.inference.approximate import GraphKind
from contrastive_text.inference.encoding import Vectors
from contrastive_text.inference.index_documents import (
    WHOLE,
    Document,
    Window,
    check_documents,
    parse_id,
    parse_metadata,
    split_documents,
)
from contrastive_text.inference.index_files import IndexFacts, IndexFolder, IndexState
from contrastive_text.inference.index_writer import check_new_folder, create_folder, remove_documents, writing
from contrastive_text.inference.late_chunks import Span
from contrastive_text.inference.search import Hit, SimilarityName, as_tensor, nearest
from contrastive_text.inference.sentence_encoder import SentenceEncoder

Model: TypeAlias = SentenceEncoder | str | Path
_WIDER = 4
"""Factor of the number of candidates if some belong to removed documents, or to passages of one document."""


@dataclass(frozen=True, slots=True)
class IndexHit:
    """Document that a search of an index returns for a query.

    Args:
        id: Id of the document.
        score: Similarity of the document, or of its best passage, to the query.
        text: Text of the document.
        metadata: Metadata of the document; empty if it has none.
        span: First character and end of the best passage; None in an index without passages.

    Example:
        >>> IndexHit("b1", 0.83, "the dog runs, a bird sings", {"year": 2020}, span=(14, 26)).passage
        'a bird sings'
    """

    id: str
    score: float
    text: str
    metadata: Mapping[str, object]
    span: Span | None = None

    @property
    def passage(self) -> str:
        """Text of the best passage; the whole text in an index without passages."""
        return self.text if self.span is None else self.text[slice(*self.span)]


class Index:
    """Index of documents in a folder, with the model that encodes documents and queries.

    The folder stores vectors, ids, texts and metadata. ``create`` makes an index, and ``open`` opens an existing
    one. Any number of threads and processes may search while one process adds or removes. A search sees the
    documents before or after a change. A killed process loses no earlier change.

    Search is exact, unless the index was created with ``approximate``.

    Args:
        files: Folder of the index.
        model: Model of the index.

    Attributes:
        facts: Facts of the index that never change.

    Example:
        >>> index = Index.create("corpus.index", "encoder/")  # doctest: +SKIP
        >>> index.add(["a bird sings", "the dog runs"], ids=["b1", "d1"])  # doctest: +SKIP
        ['b1', 'd1']
        >>> index.remove(["d1"])  # doctest: +SKIP
        >>> index.search("who sings?", top_k=1)  # doctest: +SKIP
        [[IndexHit(id='b1', score=0.83, text='a bird sings', metadata={}, span=None)]]
    """

    def __init__(self, files: IndexFolder, model: SentenceEncoder) -> None:
        self.model = model
        self.folder = files.path
        self.facts = files.facts
        self._files = files
        self._window = None if files.facts.passages is None else Window.parse(files.facts.passages)
        if files.facts.identity != model.identity:
            raise InvalidValueError(
                f"{files.path}: expected the model of this index ({files.facts.model or 'from Python'}), got "
                "another model: weights, tokenizer, pooler, prompts or limits differ; give it, or build the "
                "index again"
            )

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: Model,
        passages: str | Window | None = None,
        approximate: GraphKind | None = None,
        device: str | None = None,
    ) -> Self:
        """Creates an empty index in a new folder.

        Args:
            folder: The folder, which must be missing or empty.
            model: Model that encodes documents and queries, or its folder.
            passages: Window in tokens, such as ``128/32``, that splits documents into passages of at most 128
                tokens that overlap by 32. A search then finds documents by their best passage. With
                ``128/32/late`` the passages are pooled from one pass over the document. None for one vector per
                document.
            approximate: Approximate search of large indexes by faiss: ``hnsw`` or ``ivf``. None for exact search.
            device: Device of a model that is loaded from its folder.

        Raises:
            FileExistsError: The folder has an index or other files.
            ImportError: ``approximate`` without faiss.
            OSError: The folder can't be written to.
            ValueError: The window exceeds the model's length limit, or the model's similarity has no approximate
                search.
        """
        check_new_folder(Path(folder))
        loaded, name = _load_model(model, device)
        facts = facts_of(loaded, name, passages, approximate)
        create_folder(Path(folder), facts)
        return cls(IndexFolder(Path(folder)), loaded)

    @classmethod
    def open(cls, folder: str | Path, model: Model | None = None, device: str | None = None) -> Self:
        """Opens an index.

        Args:
            folder: Folder of the index.
            model: Model of the index, or its folder; None for the folder that the index names.
            device: Device of a model that is loaded from its folder.

        Raises:
            FileNotFoundError: The folder has no index.
            ValueError: The index is damaged, has another model, or names no model.
        """
        files = IndexFolder(Path(folder))
        model = files.facts.model if model is None else model
        if model is None:
            raise InvalidValueError(
                f"{folder}: expected the model of this index, got None, and the index names no folder; give "
                "its model"
            )
        return cls(files, _load_model(model, device)[0])

    def __len__(self) -> int:
        """Number of documents."""
        return self._files.state().documents

    def __contains__(self, document: object) -> bool:
        """Returns whether the index has a document of an id."""
        return bool(self._files.known([parse_id(document)]))

    @property
    def ids(self) -> list[str]:
        """Ids of all documents, in the order in which they were added."""
        return self._files.ids()

    def add(
        self,
        texts: Sequence[str],
        ids: Sequence[str | int] | None = None,
        metadata: Sequence[Mapping[str, object] | None] | None = None,
        show_progress_bar: bool = False,
        batch_size: int = 64,
    ) -> list[str]:
        """Encodes documents and adds them to the index. All are added, or none.

        Args:
            texts: Texts of the documents, at least one.
            ids: Id of each document, which the index doesn't have yet; whole numbers become texts. None for
                numbers that the index has never used.
            metadata: Metadata of each document, of JSON types, or None.
            show_progress_bar: Whether to draw a progress bar.
            batch_size: Number of texts of a batch.

        Returns:
            Ids of the documents.

        Raises:
            OSError: The disk is full, or the folder can't be written to.
            TypeError: A text is not a string, or an id is neither a string nor a whole number.
            ValueError: There is no text; a text is blank; an id occurs twice or is in the index; metadata isn't
                JSON; a vector is not finite; or another process is writing the index.
        """
        documents = check_documents(texts, ids, metadata)
        with writing(self._files) as writer:
            if ids is None:
                new_ids = writer.free_ids(len(documents))
                documents = [document._replace(id=own) for document, own in zip(documents, new_ids, strict=True)]
            elif known := list(self._files.known(document.id for document in documents)):
                raise InvalidValueError(
                    f"ids: expected ids that the index does not have, got {known[0]!r}; remove the older "
                    "document first, or give another id"
                )
            documents = list(split_documents(documents, self._window, self.model.tokenizer))
            if self._window is not None and self._window.late:
                spans = [document.spans for document in documents]
                late = self.model.encode_spans([document.text for document in documents], spans, batch_size)
                vectors = np.concatenate(late)[:, : self.facts.features]
            else:
                vectors = self.model.encode_document(
                    [passage for document in documents for passage in document.passages],
                    batch_size=batch_size,
                    show_progress_bar=show_progress_bar,
                    truncate_dim=self.facts.features,
                )
            writer.add(documents, [np.asarray(vectors)])
            writer.merge(self._files.state())
        return [document.id for document in documents]

    def remove(self, ids: Iterable[str | int]) -> None:
        """Removes documents. No later search finds them. All are removed, or none.

        Args:
            ids: Ids of the documents, each once.

        Raises:
            OSError: The folder can't be written to.
            TypeError: An id is neither a string nor a whole number.
            ValueError: There is no id, an id occurs twice or is not in the index, or another process is writing
                the index.
        """
        remove_documents(self._files, ids)

    def search(self, queries: str | Sequence[str], top_k: int = 5, batch_size: int = 64) -> list[list[IndexHit]]:
        """Finds the documents that are most similar to each query.

        Args:
            queries: One query or a list of queries, encoded by ``encode_query``.
            top_k: Number of hits per query; all documents if the index has fewer.
            batch_size: Number of queries of a batch.

        Returns:
            Hits of each query, best first. Of equal hits the earlier document comes first.

        Raises:
            TypeError: A query is not a string.
            ValueError: ``top_k`` is below 1.
        """
        at_least("top_k", top_k, 1)
        vectors = self.model.encode_query(
            [queries] if isinstance(queries, str) else list(queries),
            batch_size=batch_size,
            convert_to_tensor=True,
            truncate_dim=self.facts.features,
        )
        return self.search_vectors(vectors, top_k)

    def search_vectors(self, queries: Vectors, top_k: int = 5) -> list[list[IndexHit]]:
        """Finds the documents that are most similar to each query vector; see ``search``.

        Args:
            queries: Vectors of the queries, (Q, D).
            top_k: Number of hits per query.

        Raises:
            ValueError: The vectors have another number of features, a value is not finite, or ``top_k`` is below
                1.
        """
        at_least("top_k", top_k, 1)
        queries = torch.as_tensor(queries)
        features = self.facts.features
        if queries.ndim != 2 or queries.shape[1] != features:
            raise InvalidValueError(
                f"queries: expected vectors of {features} features, (Q, {features}), got the shape "
                f"{tuple(queries.shape)}; encode them with the model of the index"
            )
        while True:
            state = self._files.state()
            found = _nearest(state, self.facts.similarity, queries, top_k)
            documents = self._files.documents(number for rows in found for number in rows)
            if all(number in documents for rows in found for number in rows):
                return [
                    [_hit(documents[number], score, span) for number, (score, span) in rows.items()]
                    for rows in found
                ]
            if self._files.state().version == state.version:  # otherwise a document was removed meanwhile
                raise InvalidValueError(
                    f"{self.folder}: expected a document for each vector, got a vector without one; restore the "
                    "index from a copy, or build it again"
                )

    def info(self) -> dict[str, object]:
        """Returns facts of the index: numbers of documents, vectors and segments, model, and recall."""
        return self._files.info()

    def close(self) -> None:
        """Closes the database of the index."""
        self._files.close()


def _hit(document: Document, score: float, span: Span) -> IndexHit:
    metadata = parse_metadata(document)
    return IndexHit(document.id, score, document.text, metadata, None if span == WHOLE else span)


def _nearest(
    state: IndexState, similarity: SimilarityName, queries: Tensor, k: int
) -> list[dict[int, tuple[float, Span]]]:
    """Returns the k most similar documents of each query: number -> score and span of the best passage."""
    rows, pending = state.rows, list(range(len(queries)))
    results = [dict[int, tuple[float, Span]]() for _ in queries]
    width = k if len(rows) == state.documents else _WIDER * k
    while pending and len(rows):
        candidates = _candidates(state, similarity, queries[pending], width)
        for place, hits in zip(pending, candidates, strict=True):
            best: dict[int, tuple[float, Span]] = {}
            for row, score in hits:
                document, start, end = rows[row].tolist()
                if document >= 0 and document not in best and len(best) < k:
                    best[document] = score, (start, end)
            results[place] = best
        # Removed documents, and passages of one document, may be all that was found.
        pending = [place for place in pending if len(results[place]) < min(k, state.documents)]
        pending = pending if width < len(rows) else []
        width *= _WIDER
    return results


def _candidates(state: IndexState, similarity: SimilarityName, queries: Tensor, k: int) -> list[list[Hit]]:
    """Returns the k nearest vectors of each segment, best first, for each query, by places in ``state.rows``."""
    found, offset = [list[Hit]() for _ in queries], 0
    for segment in state.segments:
        if segment.graph is None:
            results = nearest(similarity, queries, as_tensor(segment.vectors), k)
        else:
            results = segment.graph.search(similarity, queries, segment.vectors, k)
        for hits, new_hits in zip(found, results, strict=True):
            hits += [Hit(hit.corpus_id + offset, hit.score) for hit in new_hits]
        offset += len(segment.vectors)
    return [sorted(hits, key=lambda hit: (-hit.score, hit.corpus_id)) for hits in found]


def _load_model(model: Model, device: str | None) -> tuple[SentenceEncoder, str | None]:
    """Returns the model, and its folder or hub name; None for a model from Python."""
    if isinstance(model, SentenceEncoder):
        return model, None
    return SentenceEncoder.from_pretrained(model, device=device), model_name(model)


def model_name(model: str | Path) -> str:
    """Returns the name by which an index finds its model again: an absolute folder, or a name on the hub."""
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def facts_of(
    model: SentenceEncoder,
    name: str | None,
    passages: str | Window | None = None,
    approximate: GraphKind | None = None,
    features: int | None = None,
) -> IndexFacts:
    """Checks the options of a new index, and returns its facts.

    Args:
        model: Model of the index.
        name: Folder or hub name of the model; None if it is unknown.
        passages: As for ``Index.create``.
        approximate: As for ``Index.create``.
        features: Number of features of the vectors; None for the model's own number.

    Raises:
        ImportError: ``approximate`` without faiss.
        ValueError: See ``Index.create``.
    """
    window = Window.parse(passages) if isinstance(passages, str) else passages
    if window is not None:
        window.check(model)
    if one_of("approximate", approximate, get_args(GraphKind)) is not None:
        require("faiss", "approximate search")
        if model.similarity_fn_name == "manhattan":
            raise InvalidValueError(
                "approximate: expected a model with the similarity cosine, dot or euclidean, got manhattan; "
                "remove approximate"
            )
    return IndexFacts(
        identity=model.identity,
        model=name,
        features=features or model.truncate_dim or model.features,
        similarity=model.similarity_fn_name,
        passages=None if window is None else str(window),
        approximate=approximate,
    )
