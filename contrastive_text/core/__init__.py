"""Foundation of all packages: types, keyed randomness, ranks, errors, configurations and file storage.

Shape letters used in every docstring of the package:

=  ==========================================================
N  examples in a batch
S  rows (texts) of a batch: slots x N
T  tokens of all rows together
L  tokens of the longest row
D  features of a vector
P  positives of an example
K  negatives of an example
n  rows of any block (a chunk, a batch)
R  rows of a comparison
C  columns of a comparison
M  masked tokens of a batch
V  entries of the vocabulary
=  ==========================================================
"""

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr

if TYPE_CHECKING:
    from contrastive_text.core.batch import Batch, Encoded, Hidden, StepBatch, StepKind
    from contrastive_text.core.distributed import (
        gather_all,
        gather_rows,
        gather_sizes,
        is_distributed,
        min_over_ranks,
        rank,
        sum_over_ranks,
        world_size,
    )
    from contrastive_text.core.errors import ContrastiveTextError
    from contrastive_text.core.random import RowRandom, fold_key, fold_keys, generator, seed_torch, text_id
    from contrastive_text.core.similarity import at_least_float32
    from contrastive_text.core.targets import Classes, Scores, Target
    from contrastive_text.core.types import (
        NO_LABEL,
        NO_WORD,
        EmbeddingChange,
        Example,
        Row,
        Slot,
        Text,
        TextPair,
        Tokens,
        Vocabulary,
    )

__all__ = [
    "NO_LABEL",
    "NO_WORD",
    "Batch",
    "Classes",
    "ContrastiveTextError",
    "EmbeddingChange",
    "Encoded",
    "Example",
    "Hidden",
    "Row",
    "RowRandom",
    "Scores",
    "Slot",
    "StepBatch",
    "StepKind",
    "Target",
    "Text",
    "TextPair",
    "Tokens",
    "Vocabulary",
    "at_least_float32",
    "fold_key",
    "fold_keys",
    "gather_all",
    "gather_rows",
    "gather_sizes",
    "generator",
    "is_distributed",
    "min_over_ranks",
    "rank",
    "seed_torch",
    "sum_over_ranks",
    "text_id",
    "world_size",
]

# Imported on demand: the command line reads errors from here before it needs torch.
__getattr__ = lazy_getattr(__name__)
