"""Hard negatives: the texts nearest to a query that nothing marks as belonging to it."""

from contrastive_text.inference.mining.nearest import REMOVALS, Mined, Mining, PairTexts, Removed, Space, mine
from contrastive_text.inference.mining.run import (
    Form,
    MiningReport,
    MiningRun,
    RowWriter,
    histogram,
    working_files,
)

__all__ = [
    "REMOVALS",
    "Form",
    "Mined",
    "Mining",
    "MiningReport",
    "MiningRun",
    "PairTexts",
    "Removed",
    "RowWriter",
    "Space",
    "histogram",
    "mine",
    "working_files",
]
