"""Sweeps: grids of runs, what came of them, and the tables they make. ``contrastive-text sweep`` runs them."""

from contrastive_text.runs.sweeps.folder import SweepFolder, SweepRun, read_validations
from contrastive_text.runs.sweeps.noise import SeedDifference, paired_difference, t_bound
from contrastive_text.runs.sweeps.plan import Cell, plan
from contrastive_text.runs.sweeps.table import SweepTable
from contrastive_text.runs.sweeps.values import Axis, parse_vary

__all__ = [
    "Axis",
    "Cell",
    "SeedDifference",
    "SweepFolder",
    "SweepRun",
    "SweepTable",
    "paired_difference",
    "parse_vary",
    "plan",
    "read_validations",
    "t_bound",
]
