"""``evaluate --suite glue``: a sweep of fine-tuning runs for each task, and the table of their best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from contrastive_text.cli.commands import Evaluate, Sweep
from contrastive_text.cli.sweep import read_seeds, sweep
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.evaluation.results import ScoreTable
from contrastive_text.runs.glue import GLUE, Finetuned, GlueTask, TaskFiles, find_tasks, glue_table, write_task
from contrastive_text.runs.sweeps import SweepFolder, parse_vary, plan

RATES: Sequence[float] = (1e-5, 2e-5, 3e-5)
BATCH_SIZES: Sequence[int] = (16, 32)
SEEDS: Sequence[int] = (5,)
"""Those of RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 5.1 and table 10)."""


def finetune(options: Evaluate) -> ScoreTable:
    """Fine-tunes a model on each task of GLUE that is there, as ordinary runs of the recipe ``glue``.

    What is finished in ``--runs`` isn't run again.

    Raises:
        ValueError: No task of GLUE, a file that isn't GLUE's, or a configuration that ``fit`` would refuse.
        RuntimeError: Runs failed; the others of their task were done.
    """
    data, folder = options.data or "", options.runs or Path("runs/glue")
    lacking = find_tasks(data, list(options.tasks) or None)
    for value in (*options.learning_rates, *options.batch_sizes):
        if not 0 < value < math.inf:
            raise InvalidValueError(f"--suite glue: expected rates and batch sizes above 0, got {value}")
    files = {
        name: write_task(GLUE[name], data, folder / "data" / name) for name, lacks in lacking.items() if not lacks
    }
    for each in files.values():
        say(each.understood)
    found: dict[str, Finetuned | str] = {}
    for name, lacks in lacking.items():
        found[name] = lacks or _finetuned(GLUE[name], files[name], folder / name, options)
    for runs in found.values():
        if isinstance(runs, Finetuned):
            say(runs.describe())
    return glue_table(options.model, found)


def _finetuned(task: GlueTask, files: TaskFiles, folder: Path, options: Evaluate) -> Finetuned:
    """Runs the grid of a task, and reads what came of it."""
    say(f"{task.name}: fine-tuned in {folder}")
    rates = ",".join(f"{rate:g}" for rate in options.learning_rates or RATES)
    sizes = ",".join(map(str, options.batch_sizes or BATCH_SIZES))
    words = ["--recipe", "glue", *(word for file in options.config for word in ("--config", str(file)))]
    words += [f"--model.encoder.model_name_or_path={options.model}", "--model.encoder.config=null"]
    words += [] if options.epochs is None else [f"--trainer.max_epochs={options.epochs}"]
    words += [] if options.steps is None else [f"--trainer.max_steps={options.steps}"]
    grid = Sweep(
        vary=(f"model.optimizer.lr={rates}", f"data.batch_size={sizes}"),
        seeds=options.seeds or SEEDS,
        output=folder,
        select=task.select,
        fit=[*words, *task.options(files.paths)],
    )
    sweep(grid)
    cells, known = plan([parse_vary(typed) for typed in grid.vary]), SweepFolder(grid.output)
    runs = [known.read(cell, seed) for cell in cells for seed in read_seeds(grid.seeds)]
    rows = sum(files.rows[name] for name in task.dev)
    return Finetuned(task, rows, cells, [run for run in runs if run is not None])
