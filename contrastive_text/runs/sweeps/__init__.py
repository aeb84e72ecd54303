"""Sweeps: grids of runs, what came of them, and the tables they make. ``contrastive-text sweep`` runs them."""

from contrastive_text.runs.sweeps.column import Column, Spread
from contrastive_text.runs.sweeps.folder import SweepFolder, SweepRun
from contrastive_text.runs.sweeps.noise import SeedDifference, paired_difference, t_bound
from contrastive_text.runs.sweeps.plan import Cell, plan
from contrastive_text.runs.sweeps.reports import Report
from contrastive_text.runs.sweeps.table import SweepTable
from contrastive_text.runs.sweeps.validations import read_validations
from contrastive_text.runs.sweeps.values import Axis, parse_vary

__all__ = [
    "Axis",
    "Cell",
    "Column",
    "Report",
    "SeedDifference",
    "Spread",
    "SweepFolder",
    "SweepRun",
    "SweepTable",
    "paired_difference",
    "parse_vary",
    "plan",
    "read_validations",
    "t_bound",
]
