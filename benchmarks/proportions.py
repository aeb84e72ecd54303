"""Compares mixtures of two data sets of which one has ten times the rows of the other.

    python benchmarks/proportions.py --encoder FOLDER --quora FOLDER_OF_QUORA --snli FOLDER_OF_SNLI

The large set has duplicate questions of Quora, the small set has premises and entailed hypotheses of SNLI. Every
run has the same number of steps, each with a batch of one set. Held-out queries of each set look for their
positive among the texts of the held-out rows. Finished runs aren't repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from runs import (
    RESULTS,
    ROOT,
    command,
    configurations,
    do,
    drop_weights,
    in_folder,
    keep,
    machine,
    markdown,
    mean_and_spread,
    part,
    publish,
)

from contrastive_text import SentenceEncoder
from contrastive_text.data import BatchRoundRobin, Mixture, Proportional, TaskSize
from contrastive_text.inference.search import rank_documents
from contrastive_text.metrics import ranking_scores
from contrastive_text.metrics.bootstrap import paired_bootstrap_mean

FIGURE = "mrr@10"
FIRST = "in turn, to the smaller set's end"
MIXTURES: dict[str, Mixture] = {
    FIRST: BatchRoundRobin(),
    "in turn, all rows": BatchRoundRobin(downsample=False),
    "proportional": Proportional(),
    "proportional, temperature 2": Proportional(temperature=2.0),
}
"""Name of a row of the table -> its mixture."""


def read(path: Path, label: str, most: int | None = None) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the pairs with a label, and the second texts of all rows, of the first rows of a file."""
    pairs, texts = {}, {}
    with path.open(encoding="utf-8") as lines:
        for row in islice(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), 1, most):
            texts[row[3]] = None
            if row[1] == label:
                pairs[row[2]] = row[3]  # each query once
    return list(pairs.items()), list(texts)


class Sets:
    """Both sets, the same in every run, and what trains and scores a model."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        quora, snli = options.quora, options.snli
        trained = {
            "quora": (read(quora / "quora.train.tsv", "1")[0], 10 * options.rows),
            "snli": (read(snli / "snli_sample.train.tsv", "entailment")[0], options.rows),
        }
        self.held = {
            "quora": read(quora / "quora.dev.tsv", "1", options.held),
            "snli": read(snli / "snli_sample.dev.tsv", "entailment", options.held),
        }
        self.sizes = {}
        for name, (pairs, count) in trained.items():
            random.Random(0).shuffle(pairs)
            lines = [json.dumps({"query": query, "pos": [text]}) for query, text in pairs[:count]]
            (self.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            self.sizes[name] = TaskSize(len(lines), options.batch_size)
        self.steps = sum(size.rows // size.batch_size for size in self.sizes.values())

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the row of a run: trained where it isn't yet."""
        folder = self.out / f"{list(MIXTURES).index(name)}-{seed}"

        def make() -> dict[str, Any]:
            loss = {"class_path": "InfoNCE", "init_args": {"temperature": 0.05}}
            objectives = {each: part("Contrastive", loss=loss, task=each) for each in self.sizes}
            tasks = {each: {"train": str(self.out / f"{each}.jsonl"), "pairing": "Given"} for each in self.sizes}
            mixture = MIXTURES[name]
            words = ["--model.encoder", json.dumps(part("TransformerEncoder", **self.encoder()))]
            words += ["--model.pooler", "MeanPooler", "--model.objectives", json.dumps(objectives)]
            words += ["--model.optimizer", json.dumps(part("AdamW", lr=1e-4))]
            words += ["--data.tasks", json.dumps(tasks), "--data.batch_size", str(self.options.batch_size)]
            words += ["--data.mixture", json.dumps(part(type(mixture).__name__, **vars(mixture)))]
            words += ["--trainer.max_steps", str(self.steps), "--trainer.max_epochs", "-1", *self.options.words]
            do(in_folder("fit", words, folder, seed))
            model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
            scores = {each: self.scores(model, each) for each in self.sizes}
            drop_weights(folder)
            return {"name": name, "seed": seed, **scores}

        return keep(folder, make)

    def encoder(self) -> dict[str, object]:
        """Returns the arguments of the encoder."""
        return {"model_name_or_path": str(self.options.encoder), "max_length": 32}

    def scores(self, model: SentenceEncoder, name: str) -> list[float]:
        """Returns the figure of each held-out query."""
        pairs, texts = self.held[name]
        places = {text: place for place, text in enumerate(texts)}
        queries = torch.as_tensor(model.encode([query for query, _ in pairs]))
        documents = torch.as_tensor(model.encode(texts))
        own = [places.get(query, -1) for query, _ in pairs]
        found = rank_documents(queries, documents, k=10, own=own)
        scores = ranking_scores(found, [{places[text]: 1.0} for _, text in pairs], (FIGURE,))
        return [float(value) for value in scores[FIGURE]]

    def counts(self, name: str) -> str:
        """Returns the steps of each set in a run."""
        epoch = MIXTURES[name].steps(self.sizes, drop_last=True)
        tasks = Counter(next(iter(step.parts)) for step in islice(cycle(epoch), self.steps))
        return ", ".join(f"{each} {tasks[each]}" for each in self.sizes)


def main() -> None:
    """Trains what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--quora", type=Path, required=True)
    parser.add_argument("--snli", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=96, help="rows of the smaller set")
    parser.add_argument("--held", type=int, default=1200, help="held-out rows of each set")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proportions")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.words = parser.parse_known_args()
    sets = Sets(options)
    rows = [sets.run(name, seed) for seed in range(options.seeds) for name in MIXTURES]
    figures = {
        (name, each): torch.tensor([row[each] for row in rows if row["name"] == name])
        for name in MIXTURES
        for each in sets.sizes
    }
    table = []
    for name in MIXTURES:
        cells, against = [], []
        for each in sets.sizes:
            cells.append(mean_and_spread((100 * figures[name, each].mean(dim=1)).tolist()))
            one, other = (figures[which, each].mean(dim=0) for which in (FIRST, name))
            found = paired_bootstrap_mean(one, other, generator=torch.Generator().manual_seed(0))
            low, high = (100 * bound for bound in found.interval())
            against.append(f"{each} {100 * found.difference:+.1f} ({low:+.1f} to {high:+.1f})")
        table.append([name, sets.counts(name), *cells, "-" if name == FIRST else "; ".join(against)])
    named = {str(path): word for path, word in (
        (options.encoder, "ENCODER"), (options.quora, "QUORA"), (options.snli, "SNLI"))}  # fmt: skip
    words = ["benchmarks/proportions.py", "--encoder", str(options.encoder)]
    words += ["--quora", str(options.quora), "--snli", str(options.snli)]
    held = ", ".join(f"{name} {len(pairs):,} of {len(texts):,}" for name, (pairs, texts) in sets.held.items())
    lines = [
        "# Mixtures of two sets, ten to one", "",
        f"Rows to train on: {', '.join(f'{name} {size.rows:,}' for name, size in sets.sizes.items())}. "
        f"Held-out queries among texts: {held}.",
        f"From {options.encoder.name}, {sets.steps} steps of {options.batch_size} rows of one set; seeds: "
        f"{options.seeds}; MRR@10 x 100, mean ± sd over them.",
        "Differences: means over seeds, 95 % by resampled queries.", "",
        *markdown(["mixture", "steps of a run", *sets.sizes, f"against {FIRST}"], table), "", machine(), "",
        f"    {command(words, named).replace('contrastive-text', 'python')}",
    ]  # fmt: skip
    print("\n".join(lines))
    print(publish("proportions", lines, rows, configurations(sets.out), folder=options.results))


if __name__ == "__main__":
    main()
