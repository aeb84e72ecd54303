"""Scores an untrained encoder on STS: by pooler, by setting, and without its most frequent tokens.

    python benchmarks/untrained.py --encoder FOLDER --sts FOLDER

ConSERT's Table 1 and Figure 4, and SimCSE's Tables B.1, B.2 and C.1, with the STS sets of a folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from runs import do, machine, markdown, publish

POOLERS = ["CLSPooler", "MeanPooler", "LastTwoPooler"]
POOLERS += ["FirstLastPooler(first=embeddings)", "FirstLastPooler(first=block_1)"]
METRICS = {"sts": "Spearman", "sts-pearson": "Pearson"}
NOTE = """
Start: `{}`, without training. Correlations x 100; the mean is over the sets of the table. "Without k": the mean
over tokens excludes the k most frequent tokens of STS-B's test set, [CLS] and [SEP] included. ConSERT's training
texts in the folder: {:,}."""


def evaluate(encoder: Path, label: str, options: list[str], folder: Path) -> list[dict[str, Any]]:
    """Runs ``evaluate`` once and returns a row for each suite and pooler."""
    do(["evaluate", str(encoder), *options, "--format", "json", "--output", str(folder / "scores.json")])
    rows = []
    for suite, table in json.loads((folder / "scores.json").read_text()).items():
        for name, model in table["models"].items():
            pooler = name.removeprefix(f"{encoder} (").replace(") without", " without").removesuffix(")")
            figures = {task["task"]: task["score"] for task in model["tasks"] if task["score"] is not None}
            row = {"row": f"{pooler}, {label}{METRICS[suite]}", "seed": None}
            rows.append({**row, **figures, "mean": statistics.fmean(figures.values())})
    return rows


def main() -> None:
    """Evaluates the encoder in every way and writes the dated table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("encoder", "sts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    data = ["--data", str(options.sts)]
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        poolers = ["--suite", *METRICS, *data, "--pooler", *POOLERS, "--cache", f"{name}/cache", "--setting"]
        for setting in ("all", "mean", "wmean"):
            rows += evaluate(options.encoder, f"{setting}, ", [*poolers, setting], folder)
        counts = ["--without_frequent", "0", "2", "4", "8", "16", "34"]
        frequent = ["--frequencies", str(options.sts / "stsb.test.tsv"), *counts]
        for pooler in ("MeanPooler", "LastTwoPooler"):
            rows += evaluate(
                options.encoder, "", ["--suite", "sts", *data, "--pooler", pooler, *frequent], folder
            )
        do(["corpus", "consert", *data, "--output", f"{name}/texts.txt"])
        texts = (folder / "texts.txt").read_text(encoding="utf-8").count("\n")
    sets = [key for key in rows[0] if key not in ("row", "seed")]
    lines = ["# An untrained encoder on STS", "", f"{machine()}. Written by `benchmarks/untrained.py`.", ""]
    lines += markdown(("row", *sets), [(row["row"], *(f"{row[key]:.2f}" for key in sets)) for row in rows])
    rows.append({"row": "training texts of ConSERT", "seed": None, "texts": texts})
    publish("untrained", [*lines, NOTE.format(options.encoder.name, texts)], rows, vars(options))


if __name__ == "__main__":
    main()
