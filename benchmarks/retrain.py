"""Continues a retrieval model with pairs of a second month: rates, with and without replay of the first month.

    python benchmarks/retrain.py --encoder FOLDER --pairs FOLDER_OF_QUORA

Quora's duplicate questions stand in for pairs. Questions that are duplicates of each other form a group. The
groups are split into two months of equal size: at random, or with ``--by topic`` by the first principal component
of the start's vectors, so that the months are about different things. A tenth of the groups is held out.

The first month's model continues on the second month alone, or on a mixture with as many pairs of the first
month. The alternative is a model that trains on all pairs from the start, for as many steps. The score is nDCG@10
over all documents, with 95 % intervals of the difference from the first month's model, over queries.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runs import RESULTS, ROOT, configurations, do, drop_weights, machine, markdown, publish

from contrastive_text import SentenceEncoder
from contrastive_text.poolers import MeanPooler

Pair = tuple[str, str]
FIRST_STEPS, MORE_STEPS = 60, 30
FIRST_RATE = "1e-4"
RATES = ("2e-5", "1e-4")
CONFIG = """
model:
  pooler: MeanPooler
  objectives:
    contrastive:
      class_path: Contrastive
      init_args: {head: null, loss: NTXent}
data:
  task: {pairing: Given}
  batch_size: 32
  num_workers: 0
"""


def read_groups(quora: Path, most: int) -> list[list[Pair]]:
    """Returns the pairs of duplicate questions, group by group."""
    with (quora / "quora.train.tsv").open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        pairs = [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == "1"][:most]
    above: dict[str, str] = {}

    def top(text: str) -> str:
        while above.setdefault(text, text) != text:
            text = above[text]
        return text

    for one, other in pairs:
        above[top(one)] = top(other)
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(top(pair[0]), []).append(pair)
    return [*groups.values()]


def split(groups: Sequence[list[Pair]], by: str, encoder: Path) -> list[list[list[Pair]]]:
    """Returns the groups of the first and of the second month."""
    if by == "random":
        order = random.Random(0).sample(range(len(groups)), len(groups))
    else:
        model = SentenceEncoder.from_pretrained(str(encoder), pooler=MeanPooler())
        vectors = model.encode(
            [group[0][0] for group in groups], convert_to_tensor=True, normalize_embeddings=True
        )
        centered = vectors - vectors.mean(dim=0)
        order = (centered @ centered.svd().V[:, 0]).argsort().tolist()
    half = len(order) // 2
    return [[groups[place] for place in places] for places in (order[:half], order[half:])]


def write_files(months: Sequence[Sequence[list[Pair]]]) -> dict[str, int]:
    """Writes the pairs of the months into the working directory. Returns the number of pairs of each file."""
    files: dict[str, list[Pair]] = {name: [] for name in ("old", "held_old", "new", "held_new")}
    for name, month in zip(("old", "new"), months, strict=True):
        for group in month:
            is_held = zlib.crc32(group[0][0].encode()) % 10 == 0
            files[f"held_{name}" if is_held else name] += group
    draw = random.Random(1)
    files["mixed"] = files["new"] + draw.sample(files["old"], min(len(files["old"]), len(files["new"])))
    files["all"] = files["new"] + files["old"]
    for name, pairs in files.items():
        lines = ["query\tpositive", *("\t".join(pair) for pair in pairs)]
        Path(f"{name}.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    corpus = dict.fromkeys(document for month in months for group in month for _, document in group)
    Path("corpus.txt").write_text("".join(f"{document}\n" for document in corpus), encoding="utf-8")
    Path("config.yaml").write_text(CONFIG, encoding="utf-8")
    return {name: len(pairs) for name, pairs in files.items()}


def fit(name: str, start: str, train: str, lr: str, steps: int) -> str:
    """Trains a model, unless its folder has it. Returns the folder of the model."""
    model = Path(name, "version_0", "model")
    if not model.exists():
        words = ["fit", "--recipe", "simcse", "--config", "config.yaml", "--encoder", start, "--train", train]
        words += ["--model.encoder.max_length", "24", "--lr", lr, "--trainer.max_steps", str(steps)]
        do([*words, "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", name])
    return str(model)


def scores(models: Mapping[str, str], held: str) -> dict[str, tuple[float, str]]:
    """Returns the score of each model on a file of held-out pairs, and its difference from the first model."""
    words = [
        "compare",
        *models.values(),
        "--suite",
        "retrieval",
        "--data",
        f"{held}.tsv",
        "--corpus",
        "corpus.txt",
    ]
    do([*words, "--pooler", "MeanPooler", "--cache", "vectors", "--format", "json", "--output", f"{held}.json"])
    kept = json.loads(Path(f"{held}.json").read_text())
    against = {row["model"]: row for row in kept["differences"]}
    (table,) = kept["scores"]
    found: dict[str, tuple[float, str]] = {}
    for name, place in models.items():
        row = against.get(place)
        difference = "" if row is None else f"{row['difference']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})"
        found[name] = (table["models"][place]["tasks"][0]["score"], difference)
    return found


def shown(score: float, difference: str) -> tuple[str, str]:
    """Returns the cells of a score and of its difference."""
    return f"{score:.1f}", difference


def main() -> None:
    """Trains and scores all models, and files the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--by", choices=("random", "topic"), default="random")
    parser.add_argument("--rows", type=int, default=3600)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "retrain")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    encoder, quora, results = (path.resolve() for path in (options.encoder, options.pairs, options.results))
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(options.out)
    sizes = write_files(split(read_groups(quora, options.rows), options.by, encoder))
    last = fit("last", str(encoder), "old.tsv", FIRST_RATE, FIRST_STEPS)
    models = {"the first month's model": last, "before any training": str(encoder)}
    for train, what in (("new", "the new pairs"), ("mixed", "new and as many old pairs")):
        for lr in RATES:
            models[f"{what}, {lr}"] = fit(f"{train}-{lr}", last, f"{train}.tsv", lr, MORE_STEPS)
    steps = FIRST_STEPS + MORE_STEPS
    models["all pairs, from the start"] = fit("anew", str(encoder), "all.tsv", FIRST_RATE, steps)
    found = {held: scores(models, held) for held in ("held_old", "held_new")}
    lines = [f"# Continue a model with the pairs of another month, months split by {options.by}", ""]
    lines += [
        f"nDCG@10 x 100, one seed. Pairs: {', '.join(f'{name} {size:,}' for name, size in sizes.items())}.",
        "",
    ]
    header = ["trained on, rate", "old queries", "against the first", "new queries", "against the first"]
    rows = [[name, *(cell for held in found.values() for cell in shown(*held[name]))] for name in models]
    lines += [*markdown(header, rows), "", machine()]
    print("\n".join(lines))
    kept = [{"training": name, **{held: found[held][name][0] for held in found}} for name in models]
    print(publish(f"retrain-{options.by}", lines, kept, configurations(Path.cwd()), folder=results))
    drop_weights(Path.cwd())


if __name__ == "__main__":
    main()
