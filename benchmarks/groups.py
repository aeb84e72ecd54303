"""Trains on groups of Quora's duplicates, and ranks held-out ones among many other questions.

    python benchmarks/groups.py siblings --encoder FOLDER --pairs FOLDER_OF_QUORA
    python benchmarks/groups.py negatives --encoder FOLDER --pairs FOLDER_OF_QUORA
    python benchmarks/groups.py own --encoder FOLDER --pairs FOLDER_OF_QUORA
    python benchmarks/groups.py quantized --encoder FOLDER --pairs FOLDER_OF_QUORA
    python benchmarks/groups.py asymmetric --encoder FOLDER --pairs FOLDER_OF_QUORA
    python benchmarks/groups.py sparse --encoder FOLDER --pairs FOLDER_OF_QUORA

Duplicates are joined to groups; those of three texts or more are held back or trained on: the first text of a
group asks, the rest are its positives. Each held-out text then looks for the others of its group among all
held-out texts and further questions of no group. ``siblings`` compares what becomes of other positives of a query
that meet in a batch. ``negatives`` compares rows without a hard negative, with a random one and with one that the
first model finds among the questions that aren't held out. ``own`` masks columns by the model's own scores
(``MaskAbovePositive``), and counts the siblings that the scores find. ``quantized`` trains several widths with
and without ``Quantized``, and ranks by floats and bits of each width. ``asymmetric`` trains static queries
against frozen documents, on pairs and on single texts, and times queries. ``sparse`` trains SPLADE with several
weights of FLOPS, next to BM25 and dense vectors. Finished runs aren't repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
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
from contrastive_text.encoders import AsymmetricEncoder
from contrastive_text.inference.search import rank_documents
from contrastive_text.metrics import ranking_scores
from contrastive_text.metrics.bootstrap import paired_bootstrap_mean
from contrastive_text.poolers import MeanPooler

FIGURES = ("recall@1", "mrr@10", "ndcg@10")
ROUNDS = 5
"""Rounds of a timing, without the first."""
NEGATIVES = 1
"""Hard negatives of each row."""


def questions(folder: Path) -> tuple[list[list[str]], list[str]]:
    """Returns the texts of each group of three or more that label 1 joins, and all texts of no group at all."""
    leader: dict[str, str] = {}
    every: dict[str, None] = {}

    def first(text: str) -> str:
        while leader.setdefault(text, text) != text:
            text = leader[text]
        return text

    for path in sorted(folder.glob("quora.*.tsv")):
        with path.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                every |= dict.fromkeys((row["sentence1"], row["sentence2"]))
                if row["label"] == "1":
                    one, other = sorted((first(row["sentence1"]), first(row["sentence2"])))
                    leader[other] = one
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for text in sorted(leader):
        groups[first(text)].append(text)
    return [group for _, group in sorted(groups.items()) if len(group) > 2], sorted(every.keys() - leader)


COLUMNS = {
    "keep": "[Duplicates]",
    "hide": "[Duplicates, Siblings]",
    "attract": "[Duplicates, {class_path: Siblings, init_args: {effect: positive}}]",
    "own": "[Duplicates, MaskAbovePositive]",
}
"""Treatment of siblings -> columns of the objective."""


WIDTHS = (384, 128, 64, 32)
_WIDE = {
    "class_path": "Matryoshka",
    "init_args": {
        "dims": [*WIDTHS],
        "objective": {
            "class_path": "Contrastive",
            "init_args": {
                "loss": {"class_path": "NTXent", "init_args": {"temperature": 0.05}},
                "columns": ["Duplicates", "Siblings"],
            },
        },
    },
}
WRAPPED = {
    "floats alone": _WIDE,
    "with bits": {"class_path": "Quantized", "init_args": {"precisions": ["binary"], "objective": _WIDE}},
}
"""Name -> objective over several widths."""


class Groups:
    """Texts to train on and held-out ones, the same in every run, and what trains and scores a model.

    Args:
        options: Of the shell.
        script: Words of the shell that start the script.
    """

    def __init__(self, options: argparse.Namespace, script: Sequence[str]) -> None:
        self.options = options
        self.script = script
        self.out: Path = options.out
        groups, alone = questions(options.pairs)
        draw = random.Random(0)
        draw.shuffle(groups)
        draw.shuffle(alone)
        self.held, self.trained_on = groups[: options.held], groups[options.held :]
        self.further, self.candidates = alone[: options.further], alone[options.further :]
        self.out.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps({"query": group[0], "pos": group[1:]}) for group in self.trained_on]
        self.pairs = self._written("train.jsonl", rows)
        self.corpus = self._written("candidates.txt", self.candidates)

    def _written(self, name: str, lines: Sequence[str]) -> Path:
        path = self.out / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def drawn(self) -> Path:
        """Returns a file of the rows with negatives drawn from the candidates."""
        draw = random.Random(0)
        rows = [
            json.dumps({"query": group[0], "pos": text, "neg": draw.sample(self.candidates, NEGATIVES)})
            for group in self.trained_on
            for text in group[1:]
        ]
        return self._written("drawn.jsonl", rows)

    def mined(self, model: Path, seed: int) -> Path:
        """Returns a file of the rows with negatives that a model finds among candidates and other positives."""
        path = self.out / f"mined-{seed}.jsonl"
        words = ["mine", str(self.pairs), str(path), "--model", str(model), "--corpus", str(self.corpus)]
        words += ["--form", "tuples", "--negatives", str(NEGATIVES), "--range_max", "30", "--take", "random"]
        words += ["--relative_margin", "0.05", "--seed", str(seed), "--short", "keep", "--device", "cpu"]
        do(words)
        return path

    def train(self, folder: Path, seed: int, data: Path, *words: str) -> SentenceEncoder:
        """Trains with further words of the shell, and returns the saved model."""
        fixed = ["--recipe", "simcse", "--config", str(ROOT / "examples" / "minilm.yaml")]
        fixed += ["--model.encoder.model_name_or_path", self.options.encoder, "--data.task.pairing", "Given"]
        fixed += ["--data.train", str(data), "--trainer.max_steps", str(self.options.steps)]
        fixed += ["--data.batch_size", str(self.options.batch_size), "--trainer.max_epochs", "-1"]
        do(in_folder("fit", [*fixed, *words, *self.options.words], folder, seed))
        return SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")

    def run(self, name: str, seed: int, data: Callable[[], Path], siblings: str) -> dict[str, Any]:
        """Returns the row of a run: trained where it isn't yet."""
        folder = self.out / f"{name}-{seed}"

        def make() -> dict[str, Any]:
            columns = ("--model.objectives.contrastive.columns", COLUMNS[siblings])
            trained = self.train(folder, seed, data(), *columns)
            scores = {**self.scores(trained), "masked": self.masked(trained)}
            if not (name == "hide" and seed == 0):  # which mines
                drop_weights(folder)
            return {"name": name, "seed": seed, **scores}

        return keep(folder, make)

    def run_wrapped(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the row of a run with a wrapped objective: MRR@10 of each held-out group by width and kind."""
        folder = self.out / f"{name}-{seed}"

        def make() -> dict[str, Any]:
            config = {"model": {"objectives": {"contrastive": WRAPPED[name]}}}
            path = self._written(f"{name}.yaml", [yaml.safe_dump(config)])
            trained = self.train(folder, seed, self.pairs, "--config", str(path))
            scores = {}
            for width in WIDTHS:
                trained.truncate_dim = width
                scores[f"{width} floats"] = self.scores(trained)["mrr@10"]
                scores[f"{width} bits"] = self.scores(trained, lambda rows: (rows > 0) * 2.0 - 1)["mrr@10"]
            drop_weights(folder)
            return {"name": name, "seed": seed, **scores}

        return keep(folder, make)

    def run_asymmetric(self, name: str, seed: int, data: Path, pairing: str) -> dict[str, Any]:
        """Returns the row of a run of the recipe ``asymmetric``, on pairs or on single texts."""
        folder = self.out / f"{name}-{seed}"

        def make() -> dict[str, Any]:
            fixed = ["--recipe", "asymmetric", "--encoder", self.options.encoder, "--data.train", str(data)]
            fixed += ["--data.task.pairing", pairing, "--data.batch_size", str(self.options.batch_size)]
            fixed += ["--trainer.max_epochs", "-1", "--trainer.max_steps", str(self.options.steps)]
            do(in_folder("fit", [*fixed, *self.options.words], folder, seed))
            model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
            drop_weights(folder)
            return {"name": name, "seed": seed, **self.scores(model)}

        return keep(folder, make)

    def run_sparse(self, name: str, seed: int, recipe: str, *words: str) -> dict[str, Any]:
        """Returns the row of a run of a recipe of sparse vectors, with the non-zeros of held-out texts."""
        folder = self.out / f"{name}-{seed}"

        def make() -> dict[str, Any]:
            fixed = ["--recipe", recipe, "--encoder", self.options.encoder, "--data.train", str(self.pairs)]
            fixed += ["--data.batch_size", str(self.options.batch_size)]
            fixed += ["--trainer.max_steps", str(self.options.steps), *words]
            do(in_folder("fit", [*fixed, *self.options.words], folder, seed))
            model = SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent, device="cpu")
            texts = [text for group in self.held for text in group]
            queries, documents = model.encode_query(texts), model.encode_document([*texts, *self.further])
            drop_weights(folder)
            counts = [vectors.nnz / vectors.shape[0] for vectors in (queries, documents)]
            found = rank_documents(queries, documents, k=10, own=range(len(texts)))
            return {"name": name, "seed": seed, **self.by_group(found), "nonzeros": counts}

        return keep(folder, make)

    def bm25(self) -> dict[str, list[float]]:
        """Returns the figures of each held-out group by BM25."""
        import bm25s

        texts = [text for group in self.held for text in group]
        index = bm25s.BM25()
        index.index(bm25s.tokenize([*texts, *self.further], show_progress=False), show_progress=False)
        found = []
        for own, text in enumerate(texts):
            words = bm25s.tokenize([text], return_ids=False, show_progress=False)[0]
            scores = torch.as_tensor(index.get_scores(words))
            scores[own] = -torch.inf
            found.append(scores.sort(descending=True, stable=True).indices[:10])
        return self.by_group(torch.stack(found))

    def queries_a_second(self, models: Mapping[str, SentenceEncoder]) -> dict[str, list[float]]:
        """Returns the queries a second of models on one core, by turns."""
        texts, rates = self.candidates[:2000], {name: [] for name in models}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(ROUNDS + 1):
            for name, model in models.items():
                start = time.perf_counter()
                model.encode_query(texts)
                rates[name].append(len(texts) / (time.perf_counter() - start))
        torch.set_num_threads(threads)
        return {name: each[1:] for name, each in rates.items()}

    def scores(
        self, model: SentenceEncoder, change: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows
    ) -> dict[str, list[float]]:
        """Returns the figures of each held-out group: means over its texts, each of which asks for the others."""
        texts = [text for group in self.held for text in group]
        vectors, queries = model.encode_document([*texts, *self.further]), model.encode_query(texts)
        vectors, queries = (change(torch.as_tensor(rows)) for rows in (vectors, queries))
        return self.by_group(rank_documents(queries, vectors, k=10, own=range(len(texts))))

    def by_group(self, found: torch.Tensor) -> dict[str, list[float]]:
        """Returns the figures of each held-out group for the ranking of each held-out text, (texts, 10)."""
        group_of = [number for number, group in enumerate(self.held) for _ in group]
        relevance = [
            {place: 1.0 for place, other in enumerate(group_of) if other == group and place != own}
            for own, group in enumerate(group_of)
        ]
        each = ranking_scores(found, relevance, FIGURES)
        sizes = [len(group) for group in self.held]
        return {name: [float(part.mean()) for part in values.split(sizes)] for name, values in each.items()}

    def masked(self, model: SentenceEncoder, margin: float = 0.1) -> tuple[float, float]:
        """Returns the shares of siblings and of other columns of the trained rows that a model's scores mask."""
        rows = [(number, text) for number, group in enumerate(self.trained_on) for text in group[1:]]
        queries = torch.as_tensor(model.encode([group[0] for group in self.trained_on]))
        columns = torch.nn.functional.normalize(torch.as_tensor(model.encode([text for _, text in rows])), dim=1)
        group_of = torch.tensor([number for number, _ in rows])
        cosines = torch.nn.functional.normalize(queries, dim=1)[group_of] @ columns.T
        mask = cosines > cosines.diagonal().unsqueeze(1) + margin
        same = group_of.unsqueeze(1) == group_of
        siblings = same.clone().fill_diagonal_(False)
        return float(mask[siblings].double().mean()), float(mask[~same].double().mean())

    def publish(
        self,
        what: str,
        title: str,
        first: str,
        rows: Sequence[Mapping[str, Any]],
        *notes: str,
        figures: Sequence[str] = FIGURES,
    ) -> None:
        """Writes the table: means and spreads over seeds, and differences by group."""
        names = list(dict.fromkeys(row["name"] for row in rows))
        others = [name for name in names if name != first]
        table = []
        for figure in figures:
            of = {name: torch.tensor([row[figure] for row in rows if row["name"] == name]) for name in names}
            cells = [mean_and_spread((100 * each.mean(dim=1)).tolist()) for each in of.values()]
            table.append([figure, *cells, *(_difference(of[first], of[name]) for name in others)])
        texts = sum(map(len, self.held))
        named = {str(self.options.encoder): "ENCODER", str(self.options.pairs): "QUORA"}
        words = [*self.script, "--encoder", str(self.options.encoder)]
        words += ["--pairs", str(self.options.pairs), "--steps", str(self.options.steps)]
        words += ["--batch_size", str(self.options.batch_size), *self.options.words]
        said = command([*words, "--further", str(self.options.further)], named).replace(
            "contrastive-text", "python"
        )
        lines = [
            f"# {title}", "",
            f"Quora's duplicates in groups of three texts or more: {len(self.trained_on)} to train on, "
            f"{len(self.held)} held out.",
            f"Each of the {texts} held-out texts looks for the others of its group among {texts - 1:,} of them "
            f"and {len(self.further):,} further questions.",
            f"From {Path(self.options.encoder).name}, {self.options.steps} steps of {self.options.batch_size} "
            f"rows; seeds: {self.options.seeds}; x 100, mean ± sd over them.",
            *notes, "Differences: means over seeds, 95 % by resampled groups.", "",
            *markdown(["", *names, *(f"{name} against {first}" for name in others)], table), "",
            machine(), "", f"    {said}",
        ]  # fmt: skip
        print("\n".join(lines))
        print(publish(what, lines, rows, configurations(self.out), folder=self.options.results))


def _difference(first: torch.Tensor, other: torch.Tensor) -> str:
    """Returns a difference of scores, (seeds, groups) each, with the interval of its mean over seeds."""
    generator = torch.Generator().manual_seed(0)
    found = paired_bootstrap_mean(first.mean(dim=0), other.mean(dim=0), generator=generator)
    low, high = found.interval()
    return f"{100 * found.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def siblings(groups: Groups) -> None:
    """Compares what becomes of siblings."""
    ways = ("keep", "hide", "attract")
    rows = [
        groups.run(way, seed, lambda: groups.pairs, way) for seed in range(groups.options.seeds) for way in ways
    ]
    groups.publish("groups_siblings", "Other positives of a query", "keep", rows)


def negatives(groups: Groups) -> None:
    """Compares hard negatives: none, drawn, mined."""
    rows = []
    for seed in range(groups.options.seeds):
        rows.append({**groups.run("hide", seed, lambda: groups.pairs, "hide"), "name": "none"})
        rows.append(groups.run("random", seed, groups.drawn, "hide"))
        miner = next((groups.out / "hide-0").rglob("modules.json")).parent
        rows.append(groups.run("mined", seed, lambda: groups.mined(miner, seed), "hide"))  # noqa: B023  # called at once
    notes = "The model of the first seed without negatives mines them: of 30 candidates, relative margin 0.05."
    groups.publish("groups_negatives", "Mined and random negatives", "random", rows, notes)


def own(groups: Groups) -> None:
    """Compares columns masked by the model's own scores with all columns, and with known siblings masked."""
    ways, seeds = ("keep", "own", "hide"), range(groups.options.seeds)
    rows = [groups.run(way, seed, lambda: groups.pairs, way) for seed in seeds for way in ways]

    def share(masked: Sequence[Sequence[float]]) -> str:
        said = (mean_and_spread([100 * each[which] for each in masked]) for which in (0, 1))
        return "{} % of siblings, {} % of other columns".format(*said)

    start = SentenceEncoder.from_pretrained(groups.options.encoder, pooler=MeanPooler(), device="cpu")
    shares = {"before training": [groups.masked(start)]}
    shares |= {f"after training, {way}": [row["masked"] for row in rows if row["name"] == way] for way in ways}
    notes = [
        "keep: siblings are negatives. hide: known siblings are masked. own: columns are masked if "
        "cos(row, column) > cos(anchor, positive) + 0.1.",
        "Of all pairs of a trained row and another positive, the model's own scores mask:", "",
        *(f"- {name}: {share(masked)}" for name, masked in shares.items()), "",
    ]  # fmt: skip
    groups.publish("groups_own_scores", "False negatives by the model's own scores", "keep", rows, *notes)


def quantized(groups: Groups) -> None:
    """Compares vectors that were trained for bits too with vectors that were not, as floats and as bits."""
    rows = [groups.run_wrapped(name, seed) for seed in range(groups.options.seeds) for name in WRAPPED]
    figures = [f"{width} {kind}" for width in WIDTHS for kind in ("floats", "bits")]
    notes = "MRR@10. Both were trained for the widths by Matryoshka; bits are compared by Hamming distance."
    groups.publish("groups_quantized", "Vectors as bits", "floats alone", rows, notes, figures=figures)


def asymmetric(groups: Groups) -> None:
    """Compares static queries against frozen documents with the documents' encoder on both sides.

    Static queries are trained on pairs, or on the questions of no group that aren't ranked. Each of these is its
    own positive: once as a query, once as a document.
    """
    both = SentenceEncoder.from_pretrained(groups.options.encoder, device="cpu")
    start = SentenceEncoder(AsymmetricEncoder(groups.options.encoder), MeanPooler())
    rows = [
        {"name": name, "seed": 0, **groups.scores(model)}
        for name, model in (("both sides", both), ("static queries, untrained", start))
    ]
    for seed in range(groups.options.seeds):
        rows.append(groups.run_asymmetric("static queries, pairs", seed, groups.pairs, "Given"))
        rows.append(groups.run_asymmetric("static queries, single texts", seed, groups.corpus, "SameText"))
    rates = groups.queries_a_second({"both sides": both, "static queries": start})
    said = (
        f"{name} {statistics.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})"
        for name, each in rates.items()
    )
    notes = f"Queries a second on one core, medians and ranges of {ROUNDS} rounds by turns: {', '.join(said)}."
    groups.publish("groups_asymmetric", "A static encoder for queries", "both sides", rows, notes)


FLOPS_WEIGHTS = (3e-4, 3e-3, 3e-2)
"""Weights of FLOPS, of queries and of documents."""


def sparse(groups: Groups) -> None:
    """Compares SPLADE with several weights of FLOPS with BM25 and dense vectors."""
    rows = [{"name": "BM25", "seed": 0, **groups.bm25()}]
    steps = groups.options.steps
    fixed = ["--model.schedule.warmup_steps", str(steps // 10), "--model.optimizer.lr", "2e-4"]
    fixed += ["--model.objectives.flops.warmup_steps", str(steps // 2)]
    for seed in range(groups.options.seeds):
        for weight in FLOPS_WEIGHTS:
            sides = [f"--model.objectives.flops.{side}_weight={weight}" for side in ("query", "document")]
            rows.append(groups.run_sparse(f"SPLADE, FLOPS {weight:g}", seed, "splade", *fixed, *sides))
        rows.append(groups.run_sparse("SPLADE-doc", seed, "splade/doc", *fixed))
        rows.append({**groups.run("hide", seed, lambda: groups.pairs, "hide"), "name": "dense"})
    notes = ["Mean non-zeros of queries and of documents:", ""]
    for name in dict.fromkeys(row["name"] for row in rows if "nonzeros" in row):
        counts = [row["nonzeros"] for row in rows if row["name"] == name]
        said = (mean_and_spread([count[side] for count in counts]) for side in (0, 1))
        notes.append(f"- {name}: {' and '.join(said)}")
    notes.append("")
    groups.publish("groups_sparse", "Sparse vectors", "dense", rows, *notes)


COMPARISONS = {
    "siblings": siblings, "negatives": negatives, "own": own, "quantized": quantized, "asymmetric": asymmetric,
    "sparse": sparse,
}  # fmt: skip


def main() -> None:
    """Trains what is missing, and writes the table of one comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(COMPARISONS))
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--held", type=int, default=140, help="groups that are held out")
    parser.add_argument("--further", type=int, default=20_000, help="questions of no group to rank beside them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "groups")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options_words = parser.parse_known_args()
    options.words = options_words
    COMPARISONS[options.what](Groups(options, ["benchmarks/groups.py", options.what]))


if __name__ == "__main__":
    main()
