"""Sweeps: grids of runs, their scores, and the tables of them. ``contrastive-text sweep`` runs them."""

from contrastive_text.runs.sweeps.grid import Axis, Cell, parse_vary, plan, read_grid
from contrastive_text.runs.sweeps.noise import SeedDifference, paired_difference, t_bound
from contrastive_text.runs.sweeps.table import Column, Report, Spread, SweepRun, SweepTable, read_validations

__all__ = [
    "Axis",
    "Cell",
    "Column",
    "Report",
    "SeedDifference",
    "Spread",
    "SweepRun",
    "SweepTable",
    "paired_difference",
    "parse_vary",
    "plan",
    "read_grid",
    "read_validations",
    "t_bound",
]
