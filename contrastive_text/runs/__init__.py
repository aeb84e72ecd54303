"""Work with finished runs: report pages, grids and tables of sweeps, ensembles, verification of files."""

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr

if TYPE_CHECKING:
    from contrastive_text.metrics.bootstrap import SeedDifference, paired_difference
    from contrastive_text.runs.ensemble import Choice, TaskEnsemble, build_ensemble
    from contrastive_text.runs.grid import Axis, Cell, parse_vary, plan, read_grid
    from contrastive_text.runs.report.page import write_report
    from contrastive_text.runs.sweep_table import Report, SweepRun, SweepTable
    from contrastive_text.runs.verification import FileCheck, verify

__all__ = [
    "Axis",
    "Cell",
    "Choice",
    "FileCheck",
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

# Imported on demand: a check of bytes needs no model.
__getattr__ = lazy_getattr(__name__)
