"""Trains SimCSE with LoRA beside full training, each at some learning rates and under three seeds, on stsb.dev.

    python benchmarks/adapters.py --encoder FOLDER --sentences SENTENCES.tsv.gz --sts FOLDER_OF_STSB

A grid of ``sweep``: 75 steps of the set-up of ``benchmarks/protocol/common.yaml``. Runs that are there are not
repeated; ``--dry_run`` checks them all and starts none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from runs import RESULTS, ROOT, do, machine, publish

WAYS = ("none", "LoRA", "LoRA(rank=32, alpha=32)")
RATES = ("3e-5", "1e-4", "3e-4", "1e-3")


def main() -> None:
    """Runs the grid and files its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("encoder", "sentences", "sts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dry_run", action="store_true", help="check every run and start none")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "adapters")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    words = ["sweep", "--recipe", "simcse", "--config", str(ROOT / "benchmarks" / "protocol" / "common.yaml")]
    words += ["--model.encoder.model_name_or_path", str(options.encoder)]
    words += ["--data.train", str(options.sentences), "--data.validation", str(options.sts / "stsb.dev.tsv")]
    words += [
        "--vary",
        f"model.encoder.adapters={','.join(WAYS)}",
        "--vary",
        f"model.optimizer.lr={','.join(RATES)}",
    ]
    words += ["--seeds", str(options.seeds), "--output", str(options.out)]
    do([*words, *(["--dry_run"] if options.dry_run else [])])
    if options.dry_run:
        return
    lines = [
        "# SimCSE with LoRA beside full training",
        "",
        f"{machine()}. Filed by `benchmarks/adapters.py`.",
        "",
    ]
    lines += [(options.out / "table.md").read_text().replace("# ", "## ", 1).strip()]
    rows = [json.loads((options.out / "table.json").read_text())]
    cells = json.loads((options.out / "plan.json").read_text())["cells"]
    print(publish("adapters", lines, rows, cells, folder=options.results).read_text())


if __name__ == "__main__":
    main()
