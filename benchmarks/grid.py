"""Compares views by short trainings, cell by cell: ConSERT's 5 x 5, CLEAR's edits, DeCLUTR's plan, MLM beside it.

    python benchmarks/grid.py consert --encoder FOLDER --train SENTENCES.tsv.gz --sts FOLDER_OF_STSB

Each cell is the shell command ``fit`` with a recipe and a file of its own, scored after its last step on the
development set of STS-B (Spearman x 100). All cells have one seed; the baseline and the best three get two
more. A finished cell is kept in ``--out`` and not repeated, so that the command can be stopped and given again.
The table is written after every cell. Options that this script doesn't know go to every ``fit``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from runs import ROOT, do, drop_weights, in_folder, keep, logged, part, publish

SEEDS = (1, 2, 3)


class Cell(NamedTuple):
    """One place of a table: its row, its column, and what it changes."""

    row: str
    column: str
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Both labels."""
        return f"{self.row} | {self.column}"


def consert() -> list[Cell]:
    """Five alterations on either side (Yan et al. 2021, figure of section 5.2), rates as in the paper."""
    views = {
        "none": [],
        "shuffle": [part("ShufflePositions")],
        "token cutoff": [part("TokenCutoff", rate=0.15)],
        "feature cutoff": [part("FeatureCutoff", rate=0.2)],
        "dropout": [part("EmbeddingDropout", rate=0.2)],
    }
    return [
        Cell(a, b, {"model": {"views": {"anchor": first, "positive": second}}})
        for a, first in views.items()
        for b, second in views.items()
    ]


def clear(wordnet: str | None) -> list[Cell]:
    """CLEAR's edits, alone and one after the other, the same on both sides; tokens of an original predicted."""
    mark = {"mark": "[DEL]"}
    synonyms = part("SubstituteSynonyms", rate=0.3, source=part("WordNetSynonyms", folder=wordnet))
    spans, order = part("DeleteSpans", spans=5, rate=0.05, **mark), part("ReorderSpans", pairs=5, rate=0.05)
    edits = {
        "none": [],
        "del-word 0.3": [part("DeleteTokens", rate=0.3, **mark)],
        "del-word 0.7": [part("DeleteTokens", rate=0.7, **mark)],
        "del-span": [spans],
        "reorder": [order],
        "subs": [synonyms],
        "subs + del-word 0.7": [synonyms, part("DeleteTokens", rate=0.7, **mark)],
        "subs + del-span": [synonyms, spans],
        "del-word 0.7 + reorder": [part("DeleteTokens", rate=0.7, **mark), order],
        "del-span + reorder": [spans, order],
    }
    masked = {"original": [part("MaskTokens")]}
    return [
        Cell(name, "MLM on the original", {"model": {"views": {"anchor": chain, "positive": chain, **masked}}})
        for name, chain in edits.items()
    ]


def declutr() -> list[Cell]:
    """DeCLUTR's numbers of anchors and positives and its strategies; A = 1 gets twice the documents."""
    plans = [(2, 2, "any"), (1, 2, "any"), (2, 1, "any"), (2, 4, "any"), (2, 2, "subsuming"), (2, 2, "adjacent")]
    return [
        Cell(
            f"A = {anchors}, P = {positives}",
            strategy,
            {
                "data": {
                    "pairing": part("Spans", anchors=anchors, positives=positives, strategy=strategy, **SHORT),
                    "batch_size": 32 // anchors,
                }
            },
        )
        for anchors, positives, strategy in plans
    ]


SHORT = {"min_length": 16, "max_length": 64}
"""Spans of 16 to 63 tokens instead of 32 to 511, so that a step takes a second or two on two cores."""


def mlm(recipe: str) -> list[Cell]:
    """Masked language modelling beside the contrastive objective, without it, and the other way round."""
    loss = part("NTXent", temperature=0.05 if recipe == "declutr" else 0.1)
    head = None if recipe == "declutr" else part("MLPHead", train_only=True)
    contrastive = part("Contrastive", loss=loss, head=head)
    hidden = {"anchor": [part("MaskTokens")]} if recipe == "declutr" else {"original": [part("MaskTokens")]}
    deletion = [part("DeleteTokens", rate=0.3, mark="[DEL]")]
    edits = {} if recipe == "declutr" else {"anchor": deletion, "positive": deletion}
    choices = {
        "MLM + contrastive": ({**edits, **hidden}, {"contrastive": contrastive, "mlm": part("MaskedLM")}),
        "contrastive alone": (edits, {"contrastive": contrastive}),
        "MLM alone": (hidden, {"mlm": part("MaskedLM")}),
    }
    return [
        Cell(name, recipe, {"model": {"views": views, "objectives": objectives}})
        for name, (views, objectives) in choices.items()
    ]


def fit(cell: Cell, seed: int, folder: Path, words: list[str]) -> dict[str, Any]:
    """Trains a cell once and gives its row; a finished one is read back."""

    def train() -> dict[str, Any]:
        (folder / "cell.yaml").write_text(yaml.safe_dump(cell.config))
        seconds = do(in_folder("fit", [*words, "--config", str(folder / "cell.yaml")], folder, seed))
        row = {"row": cell.row, "column": cell.column, "seed": seed, "dev": logged(folder, "val/spearman")[-1]}
        row |= {"last loss": logged(folder, "train/loss")[-1], "seconds": seconds}
        drop_weights(folder)
        return row

    return keep(folder, train)


def more_seeds(rows: list[dict[str, Any]], cells: list[Cell]) -> Iterable[tuple[Cell, int]]:
    """Gives the runs still to do once every cell has its first seed: the first cell and the best three."""
    first = {(row["row"], row["column"]): row["dev"] for row in rows if row["seed"] == SEEDS[0]}
    best = sorted(range(len(cells)), key=lambda i: -first[cells[i].row, cells[i].column])[:3]
    return [(cells[i], seed) for i in dict.fromkeys([0, *best]) for seed in SEEDS[1:]]


def main() -> None:
    """Runs what is missing and writes the tables as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", choices=("consert", "clear", "declutr", "mlm-clear", "mlm-declutr"))
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--sts", type=Path, required=True, help="folder with stsb.dev.tsv")
    parser.add_argument("--encoder", help="folder of the pretrained encoder; the mlm grids start from nothing")
    parser.add_argument("--wordnet", help="NLTK's data folder, for clear")
    parser.add_argument("--corpus", default="texts", help="what the table calls the training data")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "grid")
    options, more = parser.parse_known_args()
    recipe = options.grid.removeprefix("mlm-")
    cells = {"consert": consert, "clear": lambda: clear(options.wordnet), "declutr": declutr}.get(
        options.grid, lambda: mlm(recipe)
    )()
    words = ["--recipe", recipe, "--config", str(ROOT / "benchmarks" / "small.yaml")]
    if options.grid.startswith("mlm-"):
        words += ["--config", str(ROOT / "benchmarks" / "from_nothing.yaml")]
    else:
        words += ["--model.encoder", "TransformerEncoder", "--model.encoder.model_name_or_path", options.encoder]
        words += ["--model.encoder.config", "null"]
    words += ["--data.train", json.dumps(options.train), "--data.validation", str(options.sts / "stsb.dev.tsv")]
    words += ["--trainer.max_steps", str(options.steps), "--trainer.val_check_interval", str(options.steps)]
    folder = options.out / f"{options.grid}-{options.corpus}"
    rows: list[dict[str, Any]] = []

    def add(cell: Cell, seed: int) -> None:
        place = folder / "".join(c if c.isalnum() else "_" for c in f"{cell.name} {seed}")
        rows.append(fit(cell, seed, place, [*words, *more]))
        write(rows, cells, options)
        print(rows[-1], flush=True)

    for cell in cells:
        add(cell, SEEDS[0])
    for cell, seed in more_seeds(rows, cells):
        add(cell, seed)


def write(rows: list[dict[str, Any]], cells: list[Cell], options: argparse.Namespace) -> None:
    """Writes the dated table and its JSON."""
    today = datetime.date.today().isoformat()
    start = Path(options.encoder).name if options.encoder else "random weights"
    lines = [f"# {options.grid} on {options.corpus}: STS-B dev (Spearman x 100)", ""]
    lines += [f"{today}, torch {torch.__version__}, CPU, {torch.get_num_threads()} threads. Start: `{start}`; "]
    lines += [f"{options.steps} steps; seed {SEEDS[0]} in every cell. Written by `benchmarks/grid.py`.", ""]
    rows_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        rows_of.setdefault((row["row"], row["column"]), []).append(row)
    across = list(dict.fromkeys(cell.column for cell in cells))
    lines += [f"| | {' | '.join(across)} |", f"| --- |{' --- |' * len(across)}"]
    for label in dict.fromkeys(cell.row for cell in cells):
        found = [rows_of.get((label, column)) for column in across]
        scores = " | ".join(f"{own[0]['dev']:.2f}" if own else "" for own in found)
        lines.append(f"| {label} | {scores} |")
    lines += ["", "| cell | seeds | mean | sd | by seed |", "| --- | --- | --- | --- | --- |"]
    for (label, column), own in rows_of.items():
        scores = [row["dev"] for row in own]
        if len(scores) > 1:
            each = ", ".join(f"{score:.2f}" for score in scores)
            figures = f"{statistics.mean(scores):.2f} | {statistics.stdev(scores):.2f} | {each}"
            lines.append(f"| {label}, {column} | {len(scores)} | {figures} |")
    publish(f"grid-{options.grid}-{options.corpus}", lines, rows)


if __name__ == "__main__":
    main()
