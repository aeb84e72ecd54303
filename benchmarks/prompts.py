"""Prompts of queries and documents, from training to mteb: what they give on Quora's duplicates.

    python benchmarks/prompts.py --encoder FOLDER --pairs FOLDER_OF_QUORA --sts FOLDER_OF_STSB

A run like E5's, in small: ``query: `` before the first text of a pair, ``passage: `` before its duplicate. A run
has both, one has them left out of the pooler, and one has none; the best checkpoint is that of nDCG@10 of the
development pairs among 1,500 texts. Scored are the queries of the test pairs among all other texts of that file,
and STS-B's development pairs, whose texts are neither queries nor documents: both sides have the query's prompt,
as in E5.

Each trained folder is then read elsewhere: its vectors in sentence-transformers, those that a validation used,
and those that a retrieval task of mteb over the same texts got are held against ours. Finished runs aren't
repeated. A trial: ``--seeds 1 --steps 2 --trainer.val_check_interval 1``.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from runs import RESULTS, ROOT, configurations, do, in_folder, keep, machine, markdown, mean_and_spread, publish
from torch import Tensor

from contrastive_text import ContrastiveModule, SentenceEncoder
from contrastive_text.core.batch import Batch
from contrastive_text.data import RetrievalSet, read_pairs
from contrastive_text.data.prompts import NO_PROMPTS
from contrastive_text.data.retrieval import read_pair_corpus
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.mteb import MTEBModel
from contrastive_text.evaluation.retrieval import retrieval_figures
from contrastive_text.evaluation.sts import score_tasks
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.metrics.bootstrap import paired_bootstrap_mean
from contrastive_text.training.held_out import RetrievalScores
from contrastive_text.training.run import Run
from contrastive_text.training.run_parser import run_parser

FIGURES = ("ndcg@10", "mrr@10", "recall@1")
_TWO = ("--model.prompts.named", '{"query": "query: ", "document": "passage: "}')
TRAINED: Mapping[str, Sequence[str]] = MappingProxyType(
    {"prompts": _TWO, "left out": (*_TWO, "--model.prompts.pooled", "false"), "none": ()}
)
"""Name of a run -> its options."""
ROWS = (
    ("prompts", "prompts", "trained with prompts, scored with them"),
    ("prompts", "none", "trained with prompts, scored without"),
    ("left out", "prompts", "trained with prompts, left out of the pooler, scored with them"),
    ("none", "none", "trained without, scored without"),
)
"""The run, the prompts that are scored with, and what both are called."""


def write_pairs(folder: Path, out: Path) -> None:
    """Writes the duplicates of each part of Quora's pairs, and the texts of all its rows."""
    out.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test"):
        with (folder / f"quora.{part}.tsv").open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
        pairs = [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == "1"]
        texts = dict.fromkeys(row[name] for row in rows for name in ("sentence1", "sentence2"))
        table = "".join(f"{query}\t{document}\n" for query, document in pairs)
        (out / f"{part}.tsv").write_text(f"anchor\tpositive\n{table}", encoding="utf-8")
        (out / f"{part}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def scores(model: SentenceEncoder, data: RetrievalSet, sts: Path) -> dict[str, Any]:
    """Returns the figures of each query, and Spearman's correlation times 100."""
    embed = CachedEncoder(model)
    each = retrieval_figures(embed, data)
    (pairs,) = score_tasks(embed, {"STS-B dev": STSPairs.of_table(read_pairs(sts))}, "all")
    return {"stsb.dev": pairs.score, **{name: each[name].tolist() for name in FIGURES}}


def validated(place: Path) -> tuple[RetrievalSet, dict[str, Tensor], float]:
    """Returns the set that a run ranks, the vectors that validating its best weights uses, and its nDCG@10.

    Args:
        place: Folder of the run.
    """
    parser = run_parser()
    words = ["--config", str(place / "config.yaml"), "--trainer.logger", "false"]
    run = Run(parser, parser.parse_args(words))
    (checkpoint,) = (path for path in (place / "checkpoints").iterdir() if path.stem != "last")
    module = ContrastiveModule.load_from_checkpoint(checkpoint, map_location="cpu")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {"anchor": [], "positive": []}
    sets, add = [], RetrievalScores.add

    def watched(self: RetrievalScores, batch: Batch, number: int, vectors: Tensor) -> None:
        assert batch.target is not None
        sets.append(self.sides[number].data)
        seen[self.sides[number].side].append((batch.target.long(), vectors))
        add(self, batch, number, vectors)

    with patch.object(RetrievalScores, "add", watched):
        found = run.trainer.validate(module, run.data, verbose=False)
    vectors = {}
    for side, each in seen.items():
        numbers, rows = (torch.cat(list(column)) for column in zip(*each, strict=True))
        vectors[side] = rows[numbers.argsort()]
    return sets[0], vectors, next(each["val/ndcg@10"] for each in found if "val/ndcg@10" in each)


class Watched(MTEBModel):
    """The model as mteb calls it, and what it was given."""

    def encode(self, inputs: Any, **options: Any) -> Any:
        """Returns the vectors, and keeps them by the kind of their texts."""
        found = super().encode(inputs, **options)
        self.seen = {**getattr(self, "seen", {}), str(options["prompt_type"].value): found}
        return found


def in_mteb(model: SentenceEncoder, data: RetrievalSet) -> tuple[dict[str, Any], float]:
    """Returns the vectors of queries and documents that a task of mteb got, and its nDCG@10."""
    import mteb
    from datasets import Dataset

    names = [str(own) if own >= 0 else f"q{number}" for number, own in enumerate(data.own_documents)]
    documents = [{"id": str(number), "title": "", "text": text} for number, text in enumerate(data.documents)]
    split = {
        "queries": Dataset.from_list(
            [{"id": name, "text": text} for name, text in zip(names, data.queries, strict=True)]
        ),
        "corpus": Dataset.from_list(documents),
        "relevant_docs": {
            name: {str(number): int(grade) for number, grade in grades.items()}
            for name, grades in zip(names, data.relevance, strict=True)
        },
        "top_ranked": None,
    }
    metadata = mteb.TaskMetadata(
        name="LocalRetrieval", description="of local texts", type="Retrieval", category="t2t",
        modalities=["text"], reference=None, dataset={"path": "local/none", "revision": "1"},
        eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10", date=None, domains=None,
        task_subtypes=None, license=None, annotations_creators=None, dialect=None, sample_creation=None,
        bibtex_citation=None,
    )  # fmt: skip

    def load_data(self: Any, **_: Any) -> None:
        self.dataset, self.data_loaded = {"default": {"test": split}}, True

    attributes = {"metadata": metadata, "load_data": load_data, "ignore_identical_ids": True}
    task = type("LocalRetrieval", (mteb.abstasks.AbsTaskRetrieval,), attributes)()
    watched = Watched(model, "mine/prompts")
    found = mteb.evaluate(watched, task, cache=None, show_progress_bar=False, co2_tracker=False)
    return watched.seen, 100 * found.task_results[0].scores["test"][0]["ndcg_at_10"]


def differences(place: Path) -> dict[str, float]:
    """Returns how far vectors of a run's folder are, at most, from ours elsewhere, and how far its nDCG@10."""
    from sentence_transformers import SentenceTransformer

    ours = SentenceEncoder.from_pretrained(place / "model", device="cpu")
    data, in_validation, ndcg = validated(place)
    theirs = SentenceTransformer(str(place / "model"), device="cpu")
    evaluated = retrieval_figures(embed := CachedEncoder(ours), data)["ndcg@10"].mean().item()
    own = {"anchor": embed(data.queries, "query"), "positive": embed(data.documents, "document")}
    peer = {
        "anchor": theirs.encode_query(list(data.queries)),
        "positive": theirs.encode_document(list(data.documents)),
    }
    seen, in_task = in_mteb(ours, data)
    task = {"anchor": seen["query"], "positive": seen["document"]}
    apart = {
        f"vectors, {name}": max(
            float(np.abs(np.asarray(vectors) - np.asarray(own[side])).max()) for side, vectors in each.items()
        )
        for name, each in (("validation", in_validation), ("sentence-transformers", peer), ("mteb", task))
    }
    return {
        **apart,
        "ndcg@10, validation": abs(ndcg - 100 * evaluated),
        "ndcg@10, mteb": abs(in_task - 100 * evaluated),
    }


def trained(name: str, seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one run, scores its model with and without prompts, and reads it elsewhere."""
    data = options.out / "data"
    words = [
        "--recipe",
        "simcse",
        "--config",
        str(ROOT / "examples" / "minilm.yaml"),
        "--data.task.pairing",
        "Given",
    ]
    words += ["--model.encoder.model_name_or_path", options.encoder, "--data.train", str(data / "train.tsv")]
    words += ["--data.retrieval.files", str(data / "dev.tsv"), "--data.retrieval.corpus", str(data / "dev.txt")]
    words += ["--data.retrieval.documents", "1500"]
    words += ["--trainer.max_steps", str(options.steps), *TRAINED[name]]
    do(in_folder("fit", [*words, *options.further], folder, seed))
    place = next(folder.rglob("modules.json")).parent.parent
    ranked = read_pair_corpus(data / "test.tsv", str(data / "test.txt"))
    model = SentenceEncoder.from_pretrained(place / "model", device="cpu")
    found = {"prompts": scores(model, ranked, options.sts)} if model.prompts else {}
    model.prompts = NO_PROMPTS
    found["none"] = scores(model, ranked, options.sts)
    return {"trained": name, "seed": seed, "scored": found, "apart": differences(place)}


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns a line for each way to train and score, against the one without prompts."""
    table, baseline = [], None
    for name, with_, called in reversed(ROWS):
        mine = [row["scored"][with_] for row in rows if row["trained"] == name]
        by_query = torch.tensor([row["ndcg@10"] for row in mine]).mean(dim=0)
        baseline = by_query if baseline is None else baseline
        bootstrap = paired_bootstrap_mean(baseline, by_query, generator=torch.Generator().manual_seed(0))
        low, high = bootstrap.interval()
        cells = [mean_and_spread([100 * sum(row[each]) / len(row[each]) for row in mine]) for each in FIGURES]
        cells += [f"{100 * bootstrap.difference:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"]
        cells += [mean_and_spread([row["stsb.dev"] for row in mine])]
        table.append([called, *cells])
    table[0][4] = "-"
    return table[::-1]


def main() -> None:
    """Trains what is missing, and writes the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "prompts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.further = parser.parse_known_args()
    options.sts = options.sts / "stsb.dev.tsv"
    write_pairs(options.pairs, options.out / "data")
    rows = []
    for seed in range(options.seeds):
        for name in TRAINED:
            folder = options.out / f"{name.replace(' ', '-')}-{seed}"
            rows.append(keep(folder, lambda n=name, s=seed, f=folder: trained(n, s, f, options)))  # type: ignore[misc]  # a closure
    data = read_pair_corpus(options.out / "data" / "test.tsv", str(options.out / "data" / "test.txt"))
    header = ["", *FIGURES, "ndcg@10 by query, 95 %", "stsb.dev"]
    most = [
        [name, *(f"{max(row['apart'][key] for row in rows if row['trained'] == name):.0e}" for key in keys)]
        for keys in [list(rows[0]["apart"])]
        for name in TRAINED
    ]
    lines = [
        "# Prompts of queries and documents", "",
        f"{len(data.queries):,} queries among {len(data.documents):,} texts; x 100, mean ± sd, seeds: "
        f"{options.seeds}, steps: {options.steps}. Of nDCG@10 the difference from the last row.", "",
        *markdown(header, table_of(rows)), "",
        "The same folders elsewhere, against `evaluate` on the validation's texts: the largest difference of all "
        "seeds. Of mteb's nDCG@10, x 100, three places are known.", "",
        *markdown(["trained with", *rows[0]["apart"]], most), "", machine(),
    ]  # fmt: skip
    print("\n".join(lines))
    print(publish("prompts", lines, rows, configurations(options.out), folder=options.results))


if __name__ == "__main__":
    main()
