"""What is made of finished runs: pages, grids, ensembles, every byte checked."""

from typing import TYPE_CHECKING

from contrastive_text.core.lazily import importing

if TYPE_CHECKING:
    from contrastive_text.runs.ensemble import Choice, TaskEnsemble, build_ensemble
    from contrastive_text.runs.report.page import write_report
    from contrastive_text.runs.sweeps import (
        Axis,
        Cell,
        Difference,
        Run,
        SweepFolder,
        SweepTable,
        paired_difference,
        parse_vary,
        plan,
    )
    from contrastive_text.runs.verification import Found, verify

__all__ = [
    "Axis",
    "Cell",
    "Choice",
    "Difference",
    "Found",
    "Run",
    "SweepFolder",
    "SweepTable",
    "TaskEnsemble",
    "build_ensemble",
    "paired_difference",
    "parse_vary",
    "plan",
    "verify",
    "write_report",
]

# On demand: a sweep's table needs no model, and a check of bytes needs neither.
__getattr__ = importing(
    __name__,
    {
        "Axis": "sweeps",
        "Cell": "sweeps",
        "Choice": "ensemble",
        "Difference": "sweeps",
        "Found": "verification",
        "Run": "sweeps",
        "SweepFolder": "sweeps",
        "SweepTable": "sweeps",
        "TaskEnsemble": "ensemble",
        "build_ensemble": "ensemble",
        "paired_difference": "sweeps",
        "parse_vary": "sweeps",
        "plan": "sweeps",
        "verify": "verification",
        "write_report": "report.page",
    },
)
