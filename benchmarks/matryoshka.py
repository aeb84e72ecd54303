"""Scores short vectors with and without Matryoshka: unsupervised SimCSE, STS-B's development pairs, three seeds.

    python benchmarks/matryoshka.py --encoder FOLDER --sentences SENTENCES.tsv.gz --sts FOLDER_OF_STSB

The runs are a ``sweep`` over examples/minilm.yaml and the same with matryoshka.yaml over it, 75 steps each; a
second call goes on where the first was stopped. Every model is scored by the first features of its vectors; one
of each kind is loaded by sentence-transformers too, and cut there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from runs import RESULTS, ROOT, command, configurations, do, machine, markdown, mean_and_spread, publish
from sentence_transformers import SentenceTransformer

from contrastive_text import SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs

CONFIGS = {"without": "examples/minilm.yaml", "with": "benchmarks/matryoshka.yaml"}


def scores(model: SentenceEncoder, pairs: Path, widths: Sequence[int]) -> dict[int, float]:
    """Returns the Spearman correlation of scored pairs, times 100, by the first features of their vectors."""
    found = {}
    for width in widths:
        model.truncate_dim = width
        found[width] = evaluate_pairs(model, read_pairs(pairs))[0].spearman
    return found


def difference(folder: Path, pairs: Path, widths: Sequence[int]) -> float:
    """Returns how far vectors are, at most, from those that sentence-transformers cuts, of length 1."""
    texts = [str(row["anchor"]) for row in read_pairs(pairs)][:200]
    most = 0.0
    for width in widths:
        ours = SentenceEncoder.from_pretrained(folder, device="cpu", truncate_dim=width)
        theirs = SentenceTransformer(str(folder), device="cpu", truncate_dim=width)
        cut = [model.encode(texts, normalize_embeddings=True) for model in (ours, theirs)]
        most = max(most, float(np.abs(cut[0] - cut[1]).max()))
    return most


def main() -> None:
    """Trains what is missing, scores all, and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=[384, 256, 128, 64, 32])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "matryoshka")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, further = parser.parse_known_args()
    pairs = options.sts / "stsb.dev.tsv"
    words = ["sweep", "--recipe", "simcse", "--config", str(ROOT / CONFIGS["without"])]
    words += ["--model.encoder.model_name_or_path", options.encoder, "--data.train", options.sentences]
    words += ["--data.validation", str(pairs), "--output", str(options.out), "--seeds", str(options.seeds)]
    words += ["--vary", "config=" + ",".join(str(ROOT / path) for path in CONFIGS.values()), "--keep_weights"]
    do([*words, *further])
    rows = []
    for name, config in CONFIGS.items():
        places = [
            place
            for place in options.out.rglob("model/modules.json")
            if Path(config).stem in str(place.relative_to(options.out))
        ]
        models = sorted(place.parent for place in places)
        each = [
            scores(SentenceEncoder.from_pretrained(model, device="cpu"), pairs, options.widths)
            for model in models
        ]
        rows.append({"matryoshka": name, "scores": each, "cut": difference(models[0], pairs, options.widths)})
    table = [
        [row["matryoshka"], *(mean_and_spread([of[width] for of in row["scores"]]) for width in options.widths)]
        for row in rows
    ]
    words = [word.replace(f"{ROOT}/", "") for word in words]
    named = {options.encoder: "ENCODER", options.sentences: "SENTENCES", str(options.sts): "STS"}
    lines = [
        "# Short vectors, with and without Matryoshka", "",
        f"Spearman x 100 on stsb.dev by the first features of a vector; mean ± sd, seeds: {options.seeds}.", "",
        *markdown(["Matryoshka", *map(str, options.widths)], table), "",
        f"The same folders in sentence-transformers, cut to each width: vectors of length 1 differ by at most "
        f"{max(row['cut'] for row in rows):.1e}.", "", machine(), "",
        "    " + command(words, named),
    ]  # fmt: skip
    print("\n".join(lines))
    print(publish("matryoshka", lines, rows, configurations(options.out), folder=options.results))


if __name__ == "__main__":
    main()
