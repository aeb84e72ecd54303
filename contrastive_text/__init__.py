"""Contrastive sentence embeddings: choose texts that belong together, alter, encode, compare.

The names below are what a user starts from; each is imported when it is first asked for.
"""

# Nothing is imported here: python -m has the working directory first on its path, until __main__ takes it away.
TYPE_CHECKING = False  # as of typing; to type checkers it is True

if TYPE_CHECKING:
    from contrastive_text.data.datamodule import TextDataModule
    from contrastive_text.encoders import TransformerEncoder
    from contrastive_text.inference.sentence_encoder import SentenceEncoder
    from contrastive_text.losses import InfoNCE, NTXent
    from contrastive_text.objectives import Contrastive
    from contrastive_text.pairings import Given, SameText, Spans
    from contrastive_text.training.module import ContrastiveModule
    from contrastive_text.views import EmbeddingView, GradientView, TextView, TokenView

__version__ = "0.1.0"

_PLACES = {
    "Contrastive": "objectives",
    "ContrastiveModule": "training.module",
    "EmbeddingView": "views",
    "Given": "pairings",
    "GradientView": "views",
    "InfoNCE": "losses",
    "NTXent": "losses",
    "SameText": "pairings",
    "SentenceEncoder": "inference.sentence_encoder",
    "Spans": "pairings",
    "TextDataModule": "data.datamodule",
    "TextView": "views",
    "TokenView": "views",
    "TransformerEncoder": "encoders",
}

__all__ = [
    "Contrastive",
    "ContrastiveModule",
    "EmbeddingView",
    "Given",
    "GradientView",
    "InfoNCE",
    "NTXent",
    "SameText",
    "SentenceEncoder",
    "Spans",
    "TextDataModule",
    "TextView",
    "TokenView",
    "TransformerEncoder",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return vars(importlib.import_module(f"{__name__}.{_PLACES[name]}"))[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
