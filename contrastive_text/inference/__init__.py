"""Use of a trained model: encoding, search, vector files, hard negative mining, model folders and export."""

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr

if TYPE_CHECKING:
    from contrastive_text.inference.batches import BatchEncoder
    from contrastive_text.inference.device_pool import map_on_devices
    from contrastive_text.inference.duplicates import connected_groups, near_duplicates
    from contrastive_text.inference.embedding_run import EmbeddingRun
    from contrastive_text.inference.encoding import Device, Encoding
    from contrastive_text.inference.head_models import Classifier, Regressor, Reranker, folder_kind
    from contrastive_text.inference.index import Index, IndexHit
    from contrastive_text.inference.mining import Mined, Mining, PairTexts, Space, mine
    from contrastive_text.inference.mining_run import MiningReport, MiningRun
    from contrastive_text.inference.onnx_export import Exported, export_onnx
    from contrastive_text.inference.postprocessing import (
        fit_component_removal,
        fit_whitening,
        merge,
        with_layer,
        without_normalization,
    )
    from contrastive_text.inference.quantization import quantize, value_ranges
    from contrastive_text.inference.search import Hit, UnitVectors, rank_documents, retrieval_scores, top_k
    from contrastive_text.inference.sentence_encoder import SentenceEncoder
    from contrastive_text.inference.several_poolers import vectors_by_pooler
    from contrastive_text.inference.vector_files import Shard, VectorRecord, write_vectors

__all__ = [
    "BatchEncoder",
    "Classifier",
    "Device",
    "EmbeddingRun",
    "Encoding",
    "Exported",
    "Hit",
    "Index",
    "IndexHit",
    "Mined",
    "Mining",
    "MiningReport",
    "MiningRun",
    "PairTexts",
    "Regressor",
    "Reranker",
    "SentenceEncoder",
    "Shard",
    "Space",
    "UnitVectors",
    "VectorRecord",
    "connected_groups",
    "export_onnx",
    "fit_component_removal",
    "fit_whitening",
    "folder_kind",
    "map_on_devices",
    "merge",
    "mine",
    "near_duplicates",
    "quantize",
    "rank_documents",
    "retrieval_scores",
    "top_k",
    "value_ranges",
    "vectors_by_pooler",
    "with_layer",
    "without_normalization",
    "write_vectors",
]

# Loads modules on demand: reading vectors from disk needs no model.
__getattr__ = lazy_getattr(__name__)
