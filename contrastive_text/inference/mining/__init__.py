"""Hard negatives: the texts nearest to a query that nothing says belong to it."""

from contrastive_text.inference.mining.nearest import REMOVALS, Mined, Removed, Space, mine
from contrastive_text.inference.mining.options import Mining
from contrastive_text.inference.mining.rows import Form, RowWriter
from contrastive_text.inference.mining.run import MiningReport, MiningRun, working_files
from contrastive_text.inference.mining.score_counts import ScoreCounts, histogram
from contrastive_text.inference.mining.texts import PairTexts

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
    "ScoreCounts",
    "Space",
    "histogram",
    "mine",
    "working_files",
]
