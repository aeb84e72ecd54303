"""Contrastive sentence embeddings: choose texts that belong together, alter, encode, compare.

The names below are what a user starts from; each is imported when it is first asked for.
"""

# Nothing is imported here: python -m has the working directory first on its path, until __main__ takes it away.
TYPE_CHECKING = False  # as of typing; to type checkers it is True

if TYPE_CHECKING:
    from contrastive_text.data import Mixture
    from contrastive_text.data.datamodule import TextDataModule
    from contrastive_text.encoders import Encoder, StaticEncoder, TransformerEncoder
    from contrastive_text.heads import Head
    from contrastive_text.inference.head_models import Classifier, Regressor, Reranker
    from contrastive_text.inference.sentence_encoder import SentenceEncoder
    from contrastive_text.losses import InfoNCE, Loss, NTXent
    from contrastive_text.objectives import Contrastive, Objective
    from contrastive_text.pairings import Given, Pairing, SameText, Spans
    from contrastive_text.poolers import Pooler
    from contrastive_text.training.callbacks import ExportModel, RunSummary
    from contrastive_text.training.module import ContrastiveModule
    from contrastive_text.training.optim import Combine
    from contrastive_text.training.run import Run
    from contrastive_text.views import EmbeddingView, GradientView, TextView, TokenView

__version__ = "0.1.0"

__all__ = [
    "Classifier",
    "Combine",
    "Contrastive",
    "ContrastiveModule",
    "EmbeddingView",
    "Encoder",
    "ExportModel",
    "Given",
    "GradientView",
    "Head",
    "InfoNCE",
    "Loss",
    "Mixture",
    "NTXent",
    "Objective",
    "Pairing",
    "Pooler",
    "Regressor",
    "Reranker",
    "Run",
    "RunSummary",
    "SameText",
    "SentenceEncoder",
    "Spans",
    "StaticEncoder",
    "TextDataModule",
    "TextView",
    "TokenView",
    "TransformerEncoder",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from contrastive_text.core.libraries import lazy_getattr

    return lazy_getattr(__name__)(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
