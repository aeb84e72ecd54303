"""Vectors on disk: written block by block, taken up again after a kill, known by model and texts, searched."""

from contrastive_text.inference.vector_files.embedding import CALIBRATION, EmbeddingRun
from contrastive_text.inference.vector_files.formats import Array, check_suffix, record_of, write_vectors
from contrastive_text.inference.vector_files.index import VectorIndex, as_tensor, index_path, of_documents
from contrastive_text.inference.vector_files.records import VectorRecord
from contrastive_text.inference.vector_files.shards import Shard, is_begun
from contrastive_text.inference.vector_files.text_ids import TextVectors
from contrastive_text.inference.vector_files.unfinished import UnfinishedVectors

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
    "index_path",
    "is_begun",
    "of_documents",
    "record_of",
    "write_vectors",
]
