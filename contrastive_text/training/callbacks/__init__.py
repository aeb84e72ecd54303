"""Lightning callbacks: summary of a run, best checkpoint, export of the model, probes and collapse checks."""

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr

if TYPE_CHECKING:
    from contrastive_text.training.callbacks.best_checkpoint import (
        PAIR_SCORE,
        RANKING_SCORE,
        TASK_SCORE,
        BestCheckpoint,
    )
    from contrastive_text.training.callbacks.collapse_doctor import CollapseDoctor, StopWhenSpread
    from contrastive_text.training.callbacks.export_model import ExportModel
    from contrastive_text.training.callbacks.probes import NeighborProbe, RetrievalProbe
    from contrastive_text.training.callbacks.run_summary import RunSummary
    from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped

__all__ = [
    "PAIR_SCORE",
    "RANKING_SCORE",
    "TASK_SCORE",
    "BestCheckpoint",
    "CollapseDoctor",
    "ExportModel",
    "NeighborProbe",
    "RetrievalProbe",
    "RunSummary",
    "SaveWhenStopped",
    "StopWhenSpread",
]

# Imported on demand, because the module imports some callbacks, and most callbacks import the module.
__getattr__ = lazy_getattr(__name__)
