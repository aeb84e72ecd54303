"""What other positives of a query cost and give: hidden, targets too, or kept as negatives.

    python benchmarks/siblings.py cost
    python benchmarks/siblings.py groups --encoder FOLDER --pairs FOLDER_OF_QUORA

``cost`` times the loss, and a training step of a tiny encoder, with ``keep`` and ``hide`` in turns. ``groups``
joins Quora's duplicates to groups of three texts or more, holds some back, trains on the others (the first text
of a group asks, the rest are its positives) and ranks the held-out texts for each of them. Finished runs aren't
repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from runs import RESULTS, ROOT, configurations, do, in_folder, keep, machine, markdown, mean_and_spread, publish
from timing import TINY, take_turns
from torch import nn

from contrastive_text import SentenceEncoder
from contrastive_text.core.types import Encoded, Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.retrieval import retrieved
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.metrics import ranking_scores
from contrastive_text.metrics.bootstrap import paired_bootstrap_mean
from contrastive_text.objectives import Contrastive

FIGURES = ("recall@1", "mrr@10", "ndcg@10")
WAYS = ("keep", "hide", "attract")


def median_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and a 95 % interval of it, by resamples of the rounds.

    Example:
        >>> median_interval([1.0, 1.0, 1.0])
        (1.0, 1.0, 1.0)
    """
    values = torch.tensor(ratios, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = values[draws].quantile(0.5, dim=1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return float(values.quantile(0.5)), low, high


def work(
    siblings: str, rows: int, repeats: int, encoder: nn.Module | None, same_side: bool
) -> Callable[[], float]:
    """Returns a turn: the seconds of some passes over pairs of which two thirds have siblings."""
    noise = torch.Generator().manual_seed(0)
    vectors = torch.randn(2 * rows, 384, generator=noise, requires_grad=True)
    tokens = torch.randint(5, 400, (2 * rows, 16), generator=noise)
    text_ids = torch.cat([torch.arange(rows) * 2 // 3, rows + torch.arange(rows)])
    objective = Contrastive(NTXent() if same_side else InfoNCE(), siblings=siblings)  # type: ignore[arg-type]  # one of them
    slots = (Slot("anchor", 0), Slot("positive", 0))

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            read = vectors if encoder is None else encoder(input_ids=tokens).last_hidden_state.mean(dim=1)
            objective(Encoded(read, slots, text_ids=text_ids)).total.backward()
        return time.perf_counter() - start

    return turn


def cost(options: argparse.Namespace) -> None:
    """Times both ways in turns, and writes the table."""
    encoder = TransformerEncoder(config=TINY, dropout=0.0).model
    table, found = [], []
    for what, rows, network in (("loss", 64, None), ("loss", 512, None), ("tiny step", 64, encoder)):
        for same_side in (False, True):
            turns = {way: work(way, rows, options.repeats, network, same_side) for way in ("keep", "hide")}
            for turn in turns.values():
                turn()
            seconds = take_turns(turns, options.rounds)
            median, low, high = median_interval(
                [b / a for a, b in zip(seconds["keep"], seconds["hide"], strict=True)]
            )
            name = "NTXent" if same_side else "InfoNCE"
            table.append([what, name, str(rows), f"{median:.3f}", f"{low:.3f} to {high:.3f}"])
            found.append({"what": what, "loss": name, "rows": rows, **seconds})
    header = ["", "loss", "rows", "hide / keep, median", "95 %"]
    lines = [
        "# What hiding siblings costs",
        "",
        f"Rounds in turns: {options.rounds}.",
        "",
        *markdown(header, table),
    ]
    lines += ["", machine()]
    print("\n".join(lines))
    if not options.dry:
        print(publish("siblings_cost", lines, found, {}, folder=options.results))


def groups_of(folder: Path) -> list[list[str]]:
    """Returns the texts of each group of three or more that label 1 joins, in the order of their texts."""
    leader: dict[str, str] = {}

    def first(text: str) -> str:
        while leader.setdefault(text, text) != text:
            text = leader[text]
        return text

    for path in sorted(folder.glob("quora.*.tsv")):
        with path.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["label"] == "1":
                    one, other = sorted((first(row["sentence1"]), first(row["sentence2"])))
                    leader[other] = one
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for text in sorted(leader):
        groups[first(text)].append(text)
    return [group for _, group in sorted(groups.items()) if len(group) > 2]


def figures(model: SentenceEncoder, groups: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Returns the figures of each text that looks for the others of its group among all texts."""
    numbers = [number for number, group in enumerate(groups) for _ in group]
    vectors = torch.as_tensor(model.encode([text for group in groups for text in group]))
    relevance = [
        {j: 1.0 for j, other in enumerate(numbers) if other == number and j != i}
        for i, number in enumerate(numbers)
    ]
    scores = ranking_scores(retrieved(vectors, vectors, k=10, own=range(len(vectors))), relevance, FIGURES)
    return {name: values.tolist() for name, values in scores.items()}


def trained(
    way: str, seed: int, folder: Path, data: Path, held: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Trains one run and scores its model."""
    words = ["--recipe", "simcse", "--config", str(ROOT / "examples" / "minilm.yaml"), "--data.pairing", "Given"]
    words += ["--model.encoder.model_name_or_path", options.encoder, "--data.train", str(data)]
    words += ["--model.objectives.contrastive.siblings", way, "--trainer.max_steps", str(options.steps)]
    do(in_folder("fit", [*words, *options.further], folder, seed))
    model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
    return {"siblings": way, "seed": seed, **figures(model, json.loads(held.read_text()))}


def groups(options: argparse.Namespace) -> None:
    """Trains what is missing, and writes the table."""
    every = groups_of(options.pairs)
    random.Random(0).shuffle(every)
    kept, rest = every[: options.held], every[options.held :]
    options.out.mkdir(parents=True, exist_ok=True)
    data, held = options.out / "train.jsonl", options.out / "held.json"
    data.write_text("".join(json.dumps({"query": g[0], "pos": g[1:]}) + "\n" for g in rest))
    held.write_text(json.dumps(kept))
    rows = []
    for seed in range(options.seeds):
        for way in WAYS:
            folder = options.out / f"{way}-{seed}"
            rows.append(
                keep(folder, lambda w=way, s=seed, f=folder: trained(w, s, f, data, held, options))  # type: ignore[misc]  # a closure
            )
    table = []
    for way in WAYS:
        mine = [row for row in rows if row["siblings"] == way]
        cells = [mean_and_spread([100 * sum(row[name]) / len(row[name]) for row in mine]) for name in FIGURES]
        for name in FIGURES if way != "keep" else ():
            first, second = (
                torch.tensor([row[name] for row in rows if row["siblings"] == each]).mean(dim=0)
                for each in ("keep", way)
            )
            bootstrap = paired_bootstrap_mean(first, second, generator=torch.Generator().manual_seed(0))
            low, high = bootstrap.interval()
            cells.append(f"{name} {100 * bootstrap.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
        table.append([way, *cells[:3], "; ".join(cells[3:]) or "-"])
    lines = [
        "# Groups of Quora's duplicates",
        "",
        f"{len(rest)} groups to train on, {len(kept)} held out; x 100, mean ± sd, seeds: {options.seeds}.",
        "",
        *markdown(["siblings", *FIGURES, "against keep, by query, 95 %"], table),
        "",
        machine(),
    ]
    print("\n".join(lines))
    print(publish("siblings_groups", lines, rows, configurations(options.out), folder=options.results))


def main() -> None:
    """Runs one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("cost", "groups"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--encoder")
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--held", type=int, default=140)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "siblings")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options_further = parser.parse_known_args()
    options.further = options_further
    {"cost": cost, "groups": groups}[options.what](options)


if __name__ == "__main__":
    main()
