"""``evaluate --suite glue``: a sweep of fine-tuning runs for each task, and the table of their best."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrastive_text.cli.commands import Evaluate, Sweep
from contrastive_text.cli.sweep import sweep
from contrastive_text.core.terminal import say
from contrastive_text.evaluation.results import ScoreTable
from contrastive_text.recipes import GLUE_GRID
from contrastive_text.runs.glue import GLUE, Finetuned, find_tasks, glue_table, write_task

SEEDS: Sequence[int] = (5,)
"""Those of RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 5.1)."""


def finetune(options: Evaluate) -> ScoreTable:
    """Fine-tunes a model on each task of GLUE whose files are there: a sweep of the recipe ``glue`` over a grid.

    Runs that are finished in ``--runs`` aren't repeated.

    Raises:
        ValueError: No task of GLUE, a file that isn't GLUE's, or a configuration that ``fit`` would refuse.
        RuntimeError: Runs failed; the others of their task were done.
    """
    data, folder = options.data or "", options.runs or Path("runs/glue")
    lacking = find_tasks(data, list(options.tasks) or None)
    files = {
        name: write_task(GLUE[name], data, folder / "data" / name) for name, lacks in lacking.items() if not lacks
    }
    for each in files.values():
        say(each.understood)
    words = ["--recipe", "glue", *(word for file in options.config for word in ("--config", str(file)))]
    words += [f"--model.encoder.model_name_or_path={options.model}", "--model.encoder.config=null"]
    found: dict[str, Finetuned | str] = dict(lacking)
    for name, written in files.items():
        task, place = GLUE[name], folder / name
        say(f"{name}: fine-tuned in {place}")
        grid = Sweep(
            grid=options.grid or GLUE_GRID,
            seeds=options.seeds or SEEDS,
            output=place,
            select=task.select,
            fit=[*words, *task.options(written.paths)],
        )
        table = sweep(grid)
        assert table is not None
        found[name] = runs = Finetuned(task, sum(written.rows[part] for part in task.dev), table)
        say(runs.describe())
    return glue_table(options.model, found)
