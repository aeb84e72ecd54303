"""Trains a reranker, and bi-encoders by hard labels, by its scores and by both, on groups of Quora's duplicates.

    python benchmarks/teacher_scores.py --encoder FOLDER --pairs FOLDER_OF_QUORA

The groups and the held-out questions are those of ``groups.py``. A first model is trained without hard
negatives, and mines hard negatives of each pair. For each seed a reranker learns from them by the recipe
``reranker``, and scores them. Three bi-encoders learn from the same rows. Each held-out text looks for the
others of its group. The reranker orders the first 50 results of the bi-encoder of hard labels again. Finished
runs aren't repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from groups import FIGURES, Groups
from runs import (
    RESULTS,
    ROOT,
    do,
    drop_weights,
    in_folder,
    keep,
    part,
)

from contrastive_text import Reranker, SentenceEncoder
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.retrieval import Rerank
from contrastive_text.inference.search import rank_documents
from contrastive_text.metrics import ranking_scores

NEGATIVES = 4
"""Hard negatives of each row."""
TOP_K = 50
"""Number of first results that the reranker orders again."""
HARD_LABELS = part("Contrastive", loss=part("InfoNCE", temperature=0.05))


def distillation(guide_temperature: float) -> dict[str, Any]:
    """Returns the objective of scores."""
    return part(
        "RankDistillation", loss=part("KLDivergence", temperature=0.05, guide_temperature=guide_temperature)
    )


WAYS: dict[str, dict[str, Any]] = {
    "hard labels": {"objectives": {"contrastive": HARD_LABELS}},
    "scores, T 1": {"objectives": {"distillation": distillation(1.0)}},
    "scores, T 0.13": {"objectives": {"distillation": distillation(0.13)}},
    "both, T 1, no weight": {"objectives": {"contrastive": HARD_LABELS, "distillation": distillation(1.0)}},
    "both, T 0.13": {
        "objectives": {"contrastive": HARD_LABELS, "distillation": distillation(0.13)},
        "weights": {"distillation": 400},  # KLDivergence multiplies by 0.05 squared
    },
}
"""Training of a bi-encoder -> its objectives, which replace those of the recipe. T divides the scores."""


class Taught(Groups):
    """Texts to train on and held-out ones, with the models of each seed."""

    def mined_rows(self) -> Path:
        """Returns the file of rows with hard negatives that a first model finds."""
        path = self.out / "tuples.jsonl"
        self.run("hide", 0, lambda: self.pairs, "hide")
        if not path.exists():
            miner = next((self.out / "hide-0").rglob("modules.json")).parent
            words = ["mine", str(self.pairs), str(path), "--model", str(miner), "--corpus", str(self.corpus)]
            words += ["--form", "tuples", "--negatives", str(NEGATIVES), "--range_max", "40", "--take", "random"]
            do([*words, "--relative_margin", "0.05", "--device", "cpu"])
        return path

    def reranker(self, seed: int) -> Path:
        """Returns the folder of the reranker of a seed: trained where it isn't yet."""
        folder = self.out / f"reranker-{seed}"

        def make() -> dict[str, Any]:
            words = ["--recipe", "reranker", "--model.encoder.model_name_or_path", self.options.encoder]
            words += ["--model.encoder.max_length", "128", "--data.train", str(self.mined_rows())]
            words += ["--model.optimizer.lr", "5e-5", "--trainer.max_epochs", str(self.options.epochs)]
            do([*in_folder("fit", words, folder, seed), "--export.dirpath", str(folder / "model")])
            return {"seed": seed}

        keep(folder, make)
        return folder / "model"

    def scored_rows(self, seed: int) -> Path:
        """Returns the file of the mined rows with the scores of the reranker of a seed."""
        path = self.out / f"scored-{seed}.jsonl"
        if not path.exists():
            do(
                [
                    "score",
                    str(self.mined_rows()),
                    str(path),
                    "--model",
                    str(self.reranker(seed)),
                    "--device",
                    "cpu",
                ]
            )
        return path

    def taught(self, way: str, seed: int) -> dict[str, Any]:
        """Returns the row of a bi-encoder, with the scores after the reranker: trained where it isn't yet."""
        folder = self.out / f"{way.replace(' ', '-')}-{seed}"

        def make() -> dict[str, Any]:
            config = folder / "objectives.yaml"
            config.write_text(json.dumps({"model": WAYS[way]}))
            words = [
                "--recipe",
                "simcse",
                "--config",
                str(ROOT / "examples" / "minilm.yaml"),
                "--config",
                str(config),
            ]
            words += ["--model.encoder.model_name_or_path", self.options.encoder, "--data.task.pairing", "Given"]
            words += ["--data.train", str(self.scored_rows(seed)), "--trainer.max_steps", str(self.options.steps)]
            words += ["--data.batch_size", str(self.options.batch_size), "--trainer.max_epochs", "-1"]
            do(in_folder("fit", words, folder, seed))
            model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
            scores: dict[str, Any] = {"name": way, "seed": seed, **self.scores(model)}
            if way == "hard labels":
                scores["reranked"] = self.reranked(model, seed)
            drop_weights(folder)
            return scores

        return keep(folder, make)

    def reranked(self, model: SentenceEncoder, seed: int) -> dict[str, list[float]]:
        """Returns the figures of each held-out group after the reranker has ordered the first results again."""
        data, sizes = self.held_out()
        vectors = torch.as_tensor(model.encode(list(data.documents)))
        found = rank_documents(vectors[: len(data.queries)], vectors, k=TOP_K, own=data.own_documents)
        rerank = Rerank(Reranker.from_pretrained(self.reranker(seed), device="cpu"), TOP_K, batch_size=64)
        each = ranking_scores(rerank(data, found), data.relevance, FIGURES)
        return {name: [float(part.mean()) for part in values.split(sizes)] for name, values in each.items()}

    def held_out(self) -> tuple[RetrievalSet, list[int]]:
        """Returns the held-out texts as a retrieval set, and the number of texts of each group."""
        texts = [text for group in self.held for text in group]
        group_of = [number for number, group in enumerate(self.held) for _ in group]
        relevance = tuple(
            {place: 1.0 for place, other in enumerate(group_of) if other == group and place != own}
            for own, group in enumerate(group_of)
        )
        documents = (*texts, *self.further)
        data = RetrievalSet(tuple(texts), documents, relevance, tuple(range(len(texts))))
        return data, [len(group) for group in self.held]


def report(taught: Taught, options: argparse.Namespace) -> None:
    """Writes the table: means and spreads over seeds, and differences from hard labels by group."""
    rows = [taught.taught(way, seed) for seed in range(options.seeds) for way in WAYS]
    ranked = [
        {"name": f"hard labels, top {TOP_K} reranked", "seed": row["seed"], **row["reranked"]}
        for row in rows
        if "reranked" in row
    ]
    note = (
        f"Rows have {NEGATIVES} hard negatives of a first model. The reranker: recipe reranker, rate 5e-5, "
        f"{options.epochs} epochs. Scores: KLDivergence over a row's own texts."
    )
    title = "Hard labels, scores of a reranker, and both"
    taught.publish("teacher_scores", title, "hard labels", [*rows, *ranked], note)


def main() -> None:
    """Trains what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--held", type=int, default=140, help="groups that are held out")
    parser.add_argument("--further", type=int, default=20_000, help="questions of no group to rank as well")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the reranker")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "teacher_scores")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.words = []
    report(Taught(options, ["benchmarks/teacher_scores.py"]), options)


if __name__ == "__main__":
    main()
