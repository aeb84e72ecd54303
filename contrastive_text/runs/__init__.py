"""What is made of finished runs: pages, grids, ensembles, every byte checked."""

from typing import TYPE_CHECKING

from contrastive_text.core.lazy_imports import importing

if TYPE_CHECKING:
    from contrastive_text.runs.ensemble import Choice, TaskEnsemble, build_ensemble
    from contrastive_text.runs.report.page import write_report
    from contrastive_text.runs.sweeps import (
        Axis,
        Cell,
        Report,
        SeedDifference,
        SweepRun,
        SweepTable,
        paired_difference,
        parse_vary,
        plan,
        read_grid,
    )
    from contrastive_text.runs.verification import Found, verify

__all__ = [
    "Axis",
    "Cell",
    "Choice",
    "Found",
    "Report",
    "SeedDifference",
    "SweepRun",
    "SweepTable",
    "TaskEnsemble",
    "build_ensemble",
    "paired_difference",
    "parse_vary",
    "plan",
    "read_grid",
    "verify",
    "write_report",
]

# On demand: a sweep's table needs no model, and a check of bytes needs neither.
__getattr__ = importing(__name__)
