"""Vectors on disk: written in blocks, resumed after a kill, identified by model and texts, searched."""

from contrastive_text.inference.vector_files.embedding import CALIBRATION, EmbeddingRun, UnfinishedVectors
from contrastive_text.inference.vector_files.files import (
    Array,
    Shard,
    VectorRecord,
    check_suffix,
    ids_of,
    is_begun,
    record_of,
    write_vectors,
)
from contrastive_text.inference.vector_files.index import (
    TextVectors,
    VectorIndex,
    as_tensor,
    index_path,
    of_documents,
)

__all__ = [
    "CALIBRATION",
    "Array",
    "EmbeddingRun",
    "Shard",
    "TextVectors",
    "UnfinishedVectors",
    "VectorIndex",
    "VectorRecord",
    "as_tensor",
    "check_suffix",
    "ids_of",
    "index_path",
    "is_begun",
    "of_documents",
    "record_of",
    "write_vectors",
]
