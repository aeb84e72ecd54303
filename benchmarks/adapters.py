"""Trains SimCSE with LoRA beside full training on stsb.dev, each at the learning rate that suits it.

    python benchmarks/adapters.py --encoder FOLDER --sentences SENTENCES.tsv.gz --sts FOLDER_OF_STSB

Each way is trained for 75 steps in the set-up of ``benchmarks/protocol/common.yaml``: at every rate under one
seed, and then at its best one under all. Runs that are there are not repeated; ``--dry_run`` checks all and
starts none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from runs import RESULTS, ROOT, configurations, do, machine, markdown, mean_and_spread, publish

LORA = ("--model.encoder.adapters", "LoRA")
WIDER = ("--model.encoder.adapters.rank", "32", "--model.encoder.adapters.alpha", "32")
WAYS = {"all weights": (), "LoRA, rank 8": LORA, "LoRA, rank 32": (*LORA, *WIDER)}
RATES = ("3e-5", "1e-4", "3e-4", "1e-3")
SCORE = "val/spearman"


def sweep(way: str, rate: str, seeds: int, options: argparse.Namespace) -> list[float]:
    """Returns the scores of a way at a rate, under the first seeds; runs that are missing are made."""
    place = options.out / way.replace(", ", "-").replace(" ", "-") / rate
    words = ["sweep", "--recipe", "simcse", "--config", str(ROOT / "benchmarks" / "protocol" / "common.yaml")]
    words += ["--model.encoder.model_name_or_path", str(options.encoder)]
    words += [*WAYS[way], "--trainer.precision", options.precision]
    words += ["--data.train", str(options.sentences), "--data.validation", str(options.sts / "stsb.dev.tsv")]
    words += ["--vary", f"model.optimizer.lr={rate}", "--seeds", *map(str, range(1, seeds + 1))]
    words += ["--select", SCORE, "--output", str(place)]
    do([*words, *(["--dry_run"] if options.dry_run else [])])
    if options.dry_run:
        return []
    [cell] = json.loads((place / "table.json").read_text())["cells"]
    return [run["figures"][SCORE] for run in cell["runs"]]


def main() -> None:
    """Runs every way and files the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("encoder", "sentences", "sts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="32-true", help="trainer.precision")
    parser.add_argument("--dry_run", action="store_true", help="check every run and start none")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "adapters")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows, cells = [], []
    for way in WAYS:
        tried = {rate: sweep(way, rate, 1, options) for rate in RATES}
        if options.dry_run:
            continue
        best = max(RATES, key=lambda rate: tried[rate][0])
        scores = sweep(way, best, options.seeds, options)
        rows.append({"way": way, "rates": tried, "rate": best, "scores": scores})
        cells.append([way, *(f"{score:.2f}" for [score] in tried.values()), best, mean_and_spread(scores)])
    if options.dry_run:
        return
    lines = ["# SimCSE with LoRA beside full training", ""]
    lines += [f"Start {options.encoder.name}; sentences {options.sentences.name}; 75 steps of 64 texts,"]
    lines += [f"{options.precision}. {machine()}. Spearman x 100 on stsb.dev.", ""]
    seeds = f"best, seeds 1 to {options.seeds}"
    lines += markdown(["trained", *(f"{rate}, seed 1" for rate in RATES), "best rate", seeds], cells)
    print(publish("adapters", lines, rows, configurations(options.out), folder=options.results).read_text())


if __name__ == "__main__":
    main()
