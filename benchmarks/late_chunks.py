"""Retrieval of passages, each encoded alone or pooled from one pass over its document, before and after training.

    python benchmarks/late_chunks.py --encoder FOLDER --documents WIKITEXT.jsonl.gz

The inverse cloze task of Lee et al. 2019 (https://arxiv.org/abs/1906.00300, section 4): a sentence is taken out
of a passage and looks for it among the passages of all held-out documents. The recipes ``declutr/late`` and
``declutr/contrastive_only``, with the same spans, train on the other documents. Finished runs aren't repeated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
    publish,
)

from contrastive_text import SentenceEncoder
from contrastive_text.inference.search import rank_documents
from contrastive_text.metrics import ranking_scores
from contrastive_text.metrics.bootstrap import paired_bootstrap_mean

FIGURES = ("recall@1", "mrr@10")
WORDS = 60
"""Words of a passage, of which a sentence of at least 8 words is taken out."""
TRAINED = {"trained, span alone": "declutr/contrastive_only", "trained, late": "declutr/late"}
"""Name of a model -> its recipe."""


class Held(NamedTuple):
    """Held-out documents without their queries, the spans of their passages, and a query of each passage."""

    documents: list[str]
    spans: list[list[tuple[int, int]]]
    queries: list[str]


def held_out(texts: Sequence[str]) -> Held:
    """Splits documents into passages of whole sentences, and takes a sentence out of each."""
    documents, all_spans, queries = [], [], []
    draw = random.Random(0)
    for text in texts:
        passages: list[list[str]] = [[]]
        for sentence in re.split(r"(?<=[.?!]) ", text):
            if sum(len(part.split()) for part in passages[-1]) >= WORDS:
                passages.append([])
            passages[-1].append(sentence)
        whole, spans = "", []
        for sentences in passages:
            long = [i for i, sentence in enumerate(sentences) if len(sentence.split()) >= 8]
            if not long or len(sentences) < 3:
                continue
            queries.append(sentences.pop(draw.choice(long)))
            passage = " ".join(sentences)
            spans.append((len(whole), len(whole) + len(passage)))
            whole += f"{passage} "
        if spans:
            documents.append(whole)
            all_spans.append(spans)
    return Held(documents, all_spans, queries)


def scores(model: SentenceEncoder, held: Held) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of each query by the way in which passages are encoded."""
    queries = torch.as_tensor(model.encode(held.queries))
    texts = [
        text[start:end] for text, spans in zip(held.documents, held.spans, strict=True) for start, end in spans
    ]
    ways = {
        "alone": model.encode(texts),
        "late": np.concatenate(model.encode_spans(held.documents, held.spans, batch_size=4)),
    }
    relevance = [{place: 1.0} for place in range(len(texts))]
    found = {}
    for way, vectors in ways.items():
        ranked = rank_documents(queries, torch.as_tensor(vectors), k=10)
        each = ranking_scores(ranked, relevance, FIGURES)
        found[way] = {name: values.tolist() for name, values in each.items()}
    return found


def trained(options: argparse.Namespace, name: str, seed: int, train: Path, held: Held) -> dict[str, Any]:
    """Returns the row of a trained model: run where it isn't yet."""
    folder = options.out / f"{name}-{seed}"

    def make() -> dict[str, Any]:
        words = ["--recipe", TRAINED[name], "--encoder", options.encoder, "--data.train", str(train)]
        words += ["--data.task.pairing.max_length", "120", "--data.task.pairing.min_length", "24"]
        words += ["--model.encoder.max_length", str(options.length), "--data.batch_size", "4"]
        words += ["--trainer.max_steps", str(options.steps), "--trainer.max_epochs", "-1"]
        do(in_folder("fit", [*words, *options.words], folder, seed))
        model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
        model.max_length = options.length
        row = {"name": name, "seed": seed, **scores(model, held)}
        drop_weights(folder)
        return row

    return keep(folder, make)


def difference(first: torch.Tensor, other: torch.Tensor) -> str:
    """Returns the difference of the means over seeds with its interval, by resampled queries."""
    generator = torch.Generator().manual_seed(0)
    found = paired_bootstrap_mean(first.mean(dim=0), other.mean(dim=0), generator=generator)
    low, high = found.interval()
    return f"{100 * found.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def main() -> None:
    """Trains what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--documents", type=Path, required=True, help=".jsonl.gz with the key text")
    parser.add_argument("--held", type=int, default=40, help="documents that are held out")
    parser.add_argument("--length", type=int, default=512, help="longest row in tokens")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "late_chunks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.words = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with gzip.open(options.documents, "rt", encoding="utf-8") as lines:
        texts = [" ".join(str(json.loads(line)["text"]).split()) for line in lines]
    random.Random(0).shuffle(texts)
    held = held_out(texts[: options.held])
    train = options.out / "train.jsonl"
    train.write_text(
        "".join(f"{json.dumps({'text': text})}\n" for text in texts[options.held :]), encoding="utf-8"
    )
    start = SentenceEncoder.from_pretrained(options.encoder, pooler="MeanPooler", device="cpu")
    start.max_length = options.length
    rows = [{"name": "start", "seed": 0, **scores(start, held)}]
    for seed in range(options.seeds):
        rows += [trained(options, name, seed, train, held) for name in TRAINED]
    table = []
    for name in ("start", *TRAINED):
        for figure in FIGURES:
            of = {
                way: torch.tensor([row[way][figure] for row in rows if row["name"] == name])
                for way in ("alone", "late")
            }
            cells = [mean_and_spread((100 * each.mean(dim=1)).tolist()) for each in of.values()]
            table.append([name, figure, *cells, difference(of["alone"], of["late"])])
    passages = sum(map(len, held.spans))
    words = ["benchmarks/late_chunks.py", "--encoder", options.encoder, "--documents", str(options.documents)]
    named = {options.encoder: "ENCODER", str(options.documents): "WIKITEXT"}
    said = command([*words, "--steps", str(options.steps)], named).replace("contrastive-text", "python")
    lines = [
        "# Passages alone and from one pass over their document", "",
        f"{len(texts) - options.held} documents to train on, {len(held.documents)} held out with {passages:,} "
        f"passages of some {WORDS} words.",
        "Inverse cloze task: a sentence taken out of each passage looks for it among all of them; x 100.",
        f"From {Path(options.encoder).name}, {options.steps} steps of 4 documents: 2 anchors, 4 positives each; "
        f"rows of {options.length} tokens; seeds: {options.seeds}; mean ± sd over them.",
        "Differences: late against alone, means over seeds, 95 % by resampled queries.", "",
        *markdown(["model", "", "passages alone", "late", "difference"], table), "",
        machine(), "", f"    {said}",
    ]  # fmt: skip
    print("\n".join(lines))
    print(publish("late_chunks", lines, rows, configurations(options.out), folder=options.results))


if __name__ == "__main__":
    main()
