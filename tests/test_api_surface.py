"""The public names: what a user may build on. A change here is a change for the changelog."""

import importlib

import pytest

SURFACE = {
    "": [
        "Combine", "Contrastive", "ContrastiveModule", "EmbeddingView", "Encoder", "ExportModel", "Given",
        "GradientView", "Head", "InfoNCE", "Loss", "Mixture", "NTXent", "Objective", "Pairing", "Pooler", "Run",
        "RunSummary", "SameText", "SentenceEncoder", "Spans", "TextDataModule", "TextView", "TokenView",
        "TransformerEncoder",
    ],
    ".core": [
        "NO_LABEL", "NO_WORD", "Alter", "Batch", "Classes", "ContrastiveTextError", "Encoded", "Example",
        "Hidden", "Row", "RowRandom", "Scores", "Slot", "StepBatch", "StepKind", "Target", "Text", "Tokens",
        "Vocabulary", "at_least_float32", "fold", "fold_each", "gather_rows", "gather_sizes", "generator",
        "is_distributed", "least_over_ranks", "rank", "seed_torch", "sum_over_ranks", "text_id", "world_size",
    ],
    ".data": [
        "AllTasks", "BatchRoundRobin", "Bounds", "Collator", "EpochRoundRobin", "Fusion", "KeyedRow", "Mixture",
        "Step", "Table", "TaskSize", "TextDataModule", "TextTask", "TextTokenizer", "collate_texts",
        "consecutive_steps", "learn_vocabulary", "read_pairs", "read_rows",
    ],
    ".encoders": ["Encoder", "TransformerEncoder"],
    ".evaluation": [
        "CachedEncoder", "PairScore", "ScoreTable", "TaskScore", "evaluate_pairs", "sts_scores",
        "trained_sts_scores",
    ],
    ".inference": [
        "Device", "EmbeddingRun", "Encoding", "Exported", "Hit", "SentenceEncoder", "VectorIndex", "VectorRecord",
        "connected_groups", "export_onnx", "fit_component_removal", "fit_whitening", "map_on_devices",
        "near_duplicates", "quantize", "top_k", "unnormalised", "value_ranges", "with_layer", "write_vectors",
    ],
    ".losses": [
        "Alike", "CoSENT", "Comparison", "CosineMSE", "Forbid", "InfoNCE", "Loss", "NTXent", "Reduction",
        "ScoreLoss", "SoftmaxLoss", "SupCon", "cosent_loss", "cosine_similarity_matrix", "info_nce_terms",
        "reduce_terms", "sup_con_terms",
    ],
    ".metrics": [
        "Alignment", "EffectiveRank", "Hubs", "IsoScore", "MeanCosine", "PairedBootstrap", "PositiveAlignment",
        "RetrievalScores", "SpearmanSimilarity", "Uniformity", "alignment", "answer_ranks", "average_ranks",
        "effective_rank", "holm", "hubness", "in_batch_accuracy", "iso_score", "k_occurrences", "linear_cka",
        "mean_cosine", "nearest_similarity", "neighbour_overlap", "pair_similarity", "paired_bootstrap_mean",
        "paired_bootstrap_spearman", "paired_retrieval", "positive_pairs", "spearman", "spectrum", "uniformity",
    ],
    ".objectives": [
        "Between", "BetweenTexts", "BetweenViews", "BilinearScorer", "ConcatenationScorer", "Contrastive",
        "MaskedLM", "NegativesAsHard", "Objective", "PairClassification", "PairLabels", "PairRegression",
        "PositivesOnly", "Scorer", "SignedPairs", "Terms", "TextClassification",
    ],
    ".pairings": ["Given", "NLITriples", "Neighbours", "Pairing", "SameText", "Spans"],
    ".runs": [
        "Axis", "Cell", "Choice", "Found", "SeedDifference", "SweepFolder", "SweepRun", "SweepTable",
        "TaskEnsemble", "build_ensemble", "paired_difference", "parse_vary", "plan", "verify", "write_report",
    ],
    ".training": [
        "AdamW", "AtomicCheckpointIO", "BestCheckpoint", "CollapseDoctor", "Combine", "ConstantSchedule",
        "ContrastiveModule", "CosineSchedule", "EndWhenDiverged", "ExportModel", "KeepGradients",
        "LinearSchedule", "Optimizer", "PCGrad", "Run", "RunSummary", "SaveWhenStopped", "Schedule",
        "ScheduledRates", "SlantedTriangularSchedule", "Uncertainty", "WarmupSchedule", "WeightedSum",
    ],
    ".views": [
        "Adversarial", "ContextualSubstitute", "CropTokens", "DeleteOneWord", "DeleteSpans", "DeleteTokens",
        "EmbeddingDropout", "EmbeddingView", "FeatureCutoff", "FixedDropout", "GaussianNoise", "GradientView",
        "MaskTokens", "NlpaugView", "Prompt", "ReorderSpans", "ShufflePositions", "SpanCutoff",
        "SubstituteSynonyms", "SwapWords", "SynonymFile", "SynonymSource", "TextView", "TokenCutoff", "TokenView",
        "View", "ViewPlan", "WordNetSynonyms",
    ],
}  # fmt: skip


@pytest.mark.parametrize("room", SURFACE)
def test_a_room_exports_exactly_its_public_names(room: str) -> None:
    module = importlib.import_module(f"contrastive_text{room}")
    assert module.__all__ == SURFACE[room]


@pytest.mark.parametrize("room", SURFACE)
def test_every_public_name_is_there_and_documented(room: str) -> None:
    module = importlib.import_module(f"contrastive_text{room}")
    for name in module.__all__:
        value = getattr(module, name)
        assert value is not None
        if callable(value) and isinstance(value, type):
            assert value.__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchPart"):
        importlib.import_module("contrastive_text").NoSuchPart  # noqa: B018  # asking is the test
