"""Trains SimCSE on unlabeled sentences over several seeds and scores it on STS-B.

    python benchmarks/simcse_sts.py --encoder FOLDER --sentences SENTENCES.tsv.gz --sts FOLDER_OF_STSB

Three set-ups, each a run of the shell command per seed: ``minilm`` (examples/minilm.yaml), ``plain``
(the recipe simcse as it is, cut to the same 75 steps) and ``from_scratch`` (examples/from_scratch.yaml on the
sentences of stsb.train, sts12.train and sick.train, scores unread). A finished run is kept and not repeated.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from runs import configurations, publish

from contrastive_text import SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.poolers import CLSPooler, MeanPooler

ROOT = Path(__file__).parents[1]
NO_TRAINING = ["--trainer.max_steps", "1", "--trainer.val_check_interval", "1", "--model.optimizer.lr", "1e-30"]


def fit(folder: Path, seed: int, options: list[str]) -> dict[str, object]:
    """Runs ``fit`` once and gives the seconds and the validation curve; a finished run is read back."""
    done = folder / "run.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not done.exists():
        command = [sys.executable, "-m", "contrastive_text", "fit", "--recipe", "simcse", *options]
        command += ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
        command += ["--export.dirpath", str(folder / "model"), "--trainer.enable_progress_bar", "false"]
        begun = time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT)
        seconds = time.perf_counter() - begun
        metrics = sorted(folder.glob("version_*/metrics.csv"), key=lambda path: path.stat().st_mtime)[-1]
        with metrics.open() as lines:
            curve = {r["step"]: float(r["val/spearman"]) for r in csv.DictReader(lines) if r.get("val/spearman")}
        done.write_text(json.dumps({"seconds": round(seconds), "curve": curve}))
    run: dict[str, object] = json.loads(done.read_text())
    return run


def score(model: SentenceEncoder, path: Path) -> float:
    """Returns the Spearman correlation over all pairs of a file, times 100."""
    return evaluate_pairs(model, read_pairs(path), batch_size=64)[0].spearman


def main() -> None:
    """Runs what is missing and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--setups", nargs="+", default=["minilm", "plain", "from_scratch"])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "simcse_sts")
    options = parser.parse_args()
    dev = options.sts / "stsb.dev.tsv"
    pretrained = ["--model.encoder.model_name_or_path", options.encoder, "--data.train", options.sentences]
    setups = {
        "minilm": ["--config", "examples/minilm.yaml", *pretrained],
        "plain": [*pretrained, "--trainer.max_steps", "75", "--trainer.val_check_interval", "25"],
        "from_scratch": [
            "--config", "examples/from_scratch.yaml", "--data.train",
            json.dumps([str(options.sts / f"{name}.train.tsv") for name in ("stsb", "sts12", "sick")]),
        ],
    }  # fmt: skip
    warnings.simplefilter("ignore")
    rows = []
    for name in options.setups:
        for seed in options.seeds:
            kept = options.out / name / str(seed) / "row.json"
            if not kept.exists():
                row = measure(name, seed, [*setups[name], "--data.validation", str(dev)], options)
                kept.write_text(json.dumps(row))
            rows.append(json.loads(kept.read_text()))
            print(rows[-1], flush=True)
    write(rows, options.encoder, options.out)


def measure(name: str, seed: int, words: list[str], options: argparse.Namespace) -> dict[str, object]:
    """Trains with one seed and scores the start and the best checkpoint."""
    dev, test = options.sts / "stsb.dev.tsv", options.sts / "stsb.test.tsv"
    folder = options.out / name / str(seed)
    run = fit(folder, seed, words)
    if name == "from_scratch":
        untrained = options.out / name / f"{seed}-untrained"
        fit(untrained, seed, [*words, *NO_TRAINING])
        start = SentenceEncoder.from_pretrained(untrained / "model")
    else:
        pooler = MeanPooler() if name == "minilm" else CLSPooler()
        start = SentenceEncoder.from_pretrained(options.encoder, pooler=pooler)
    best = SentenceEncoder.from_pretrained(folder / "model")
    scores = {"start dev": score(start, dev), "start test": score(start, test)}
    scores |= {"best dev": score(best, dev), "test of the best": score(best, test)}
    return {"set-up": name, "seed": seed, **scores, **run}


def write(rows: list[dict[str, object]], encoder: str, out: Path) -> None:
    """Writes the dated table and its JSON."""
    today = datetime.date.today().isoformat()
    columns = ("start dev", "start test", "best dev", "test of the best")
    lines = ["# SimCSE on STS-B (Spearman x 100)", ""]
    lines += [
        f"{today}, torch {torch.__version__}, {platform.machine()}, CPU, {torch.get_num_threads()} threads."
    ]
    lines += [f"Start: `{Path(encoder).name}`. Written by `benchmarks/simcse_sts.py`.", ""]
    lines += ["| set-up | seed | start dev | start test | best dev | test of the best | dev by step | s |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        curve = ", ".join(f"{int(step) + 1}: {value:.2f}" for step, value in dict(row["curve"]).items())  # type: ignore[call-overload]  # a mapping of steps
        values = " | ".join(f"{row[column]:.2f}" for column in columns)
        lines.append(f"| {row['set-up']} | {row['seed']} | {values} | {curve} | {row['seconds']} |")
    for name in dict.fromkeys(row["set-up"] for row in rows):
        values = [[float(str(row[column])) for row in rows if row["set-up"] == name] for column in columns]
        said = " | ".join(
            f"**{statistics.mean(v):.2f}** ± {statistics.stdev(v):.2f}" for v in values if len(v) > 1
        )
        lines.append(f"| {name} | mean ± sd | {said} | | |")
    print(publish("simcse-sts", lines, rows, configurations(out)).read_text())


if __name__ == "__main__":
    main()
