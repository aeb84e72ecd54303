"""Distills a static model from a transformer, and compares both with model2vec's recipe.

    python benchmarks/static.py --teacher FOLDER --texts TEXTS --sts STSB_TEST --pairs FOLDER_OF_QUORA

Rows: the teacher; a table from the teacher without training (model2vec's recipe: PCA and weights by Zipf's law);
the table trained by the recipe ``static``; the same from a random table. Scores: Spearman on STS-B, and MRR@10 on
Quora by the protocol of ``groups.py``. Speed: texts of STS-B per second of one core, by the CPU time of the
process, which other processes hardly change. Finished runs aren't repeated.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from groups import Groups
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

from contrastive_text import SentenceEncoder, StaticEncoder
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.metrics import spearman
from contrastive_text.poolers import MeanPooler

FIGURES = ("STS-B test", "Quora MRR@10", "texts a second", "MB")
STARTS = {"table": "this table", "random": "random values"}
"""Start of a trained table -> its name in the results, after the row of the recipe's table."""
_PASSES = 3
"""Number of timed passes, of which the fastest counts."""


class Static:
    """Teacher, texts and scores of all rows.

    Args:
        options: Of the shell.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.groups = Groups(options, ["benchmarks/static.py"])
        with options.sts.open(encoding="utf-8") as lines:
            self.sts = [*csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
        self.vectors = self.out / "teacher.npy"

    def scores(self, model: SentenceEncoder) -> dict[str, float]:
        """Returns the figures of a model."""
        sides = [model.encode([row[name] for row in self.sts]) for name in ("sentence1", "sentence2")]
        first, second = (torch.nn.functional.normalize(torch.as_tensor(side).double(), dim=1) for side in sides)
        gold = torch.tensor([float(row["score"]) for row in self.sts])
        mrr = self.groups.scores(model)["mrr@10"]
        return {
            "STS-B test": 100 * float(spearman((first * second).sum(dim=1), gold)),
            "Quora MRR@10": 100 * statistics.mean(mrr),
            "texts a second": self.speed(model),
            "MB": sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 2**20,
        }

    def speed(self, model: SentenceEncoder) -> float:
        """Returns the number of texts per second of CPU time, tokenization included."""
        texts = [row[name] for row in self.sts for name in ("sentence1", "sentence2")]
        if isinstance(model.encoder, StaticEncoder):
            texts *= 10
        seconds = []
        for _ in range(_PASSES):
            begun = time.process_time()
            model.encode(texts)
            seconds.append(time.process_time() - begun)
        return len(texts) / min(seconds)

    def teacher(self) -> dict[str, Any]:
        """Returns the row of the teacher, and writes its vectors of the training texts."""
        model = SentenceEncoder.from_pretrained(self.options.teacher, device="cpu")
        if not self.vectors.exists():
            EmbeddingRun(
                model, TextStream(str(self.options.texts), distinct=True), self.vectors, with_ids=True
            ).finish()
        return keep(self.out / "teacher", lambda: {"name": "teacher", "seed": 0, **self.scores(model)})

    def untrained(self, features: int) -> dict[str, Any]:
        """Returns the row of model2vec's recipe, and saves its table, from which training starts."""

        def make() -> dict[str, Any]:
            model = SentenceEncoder(StaticEncoder(str(self.options.teacher), features=features), MeanPooler())
            model.eval().save_pretrained(self.out / f"table-{features}")
            return {"name": f"model2vec's recipe, {features}", "seed": 0, **self.scores(model)}

        return keep(self.out / f"untrained-{features}", make)

    def trained(self, start: str, features: int, seed: int) -> dict[str, Any]:
        """Returns the row of a distilled table of some width, from the teacher's table or a random one."""
        folder = self.out / f"{start}-{features}-{seed}"

        def make() -> dict[str, Any]:
            sources = {
                "table": ["--model.encoder.model_name_or_path", str(self.out / f"table-{features}")],
                "random": [
                    "--model.encoder.model_name_or_path", "null", "--model.encoder.features", str(features),
                    "--model.encoder.tokenizer_name_or_path", str(self.options.teacher),
                ],
            }  # fmt: skip
            words = ["--recipe", "static", "--data.train", str(self.options.texts), *sources[start]]
            words += ["--model.guides.teacher.init_args.path", str(self.vectors)]
            words += ["--trainer.max_steps", str(self.options.steps), "--trainer.max_epochs", "-1"]
            do(in_folder("fit", [*words, *self.options.words], folder, seed))
            place = next(path for path in folder.rglob("modules.json")).parent
            row = self.scores(SentenceEncoder.from_pretrained(place, device="cpu"))
            drop_weights(folder)
            return {"name": f"distilled from {STARTS[start]}, {features}", "seed": seed, **row}

        return keep(folder, make)


def main() -> None:
    """Trains what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--name", default="all-MiniLM-L6-v2", help="name of the teacher in the table")
    parser.add_argument("--texts", type=Path, required=True, help="sentences to learn from, one per line")
    parser.add_argument("--sts", type=Path, required=True, help="scored pairs of STS-B's test set")
    parser.add_argument("--pairs", type=Path, required=True, help="folder of Quora's pairs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--held", type=int, default=140, help="groups that are held out")
    parser.add_argument("--further", type=int, default=20_000, help="questions of no group to rank beside them")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "static")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.words = parser.parse_known_args()
    torch.set_num_threads(1)
    static, features = Static(options), options.features
    rows = [static.teacher(), static.untrained(features)]
    for seed in range(options.seeds):
        rows += [static.trained(start, features, seed) for start in ("table", "random")]
    names = list(dict.fromkeys(row["name"] for row in rows))
    table = [
        [name, *(mean_and_spread([row[figure] for row in rows if row["name"] == name]) for figure in FIGURES)]
        for name in names
    ]
    lines = len(options.texts.read_text(encoding="utf-8").splitlines())
    folders = {str(options.teacher): "TEACHER", str(options.texts): "TEXTS", str(options.sts): "STSB_TEST"}
    words = ["benchmarks/static.py", "--teacher", str(options.teacher), "--texts", str(options.texts)]
    words += ["--sts", str(options.sts), "--pairs", str(options.pairs), "--steps", str(options.steps)]
    said = command(words, {**folders, str(options.pairs): "QUORA"}).replace("contrastive-text", "python")
    text = [
        "# Static models", "",
        f"Teacher: {options.name}. {lines:,} sentences of {options.texts.name}; {options.steps} steps of the "
        f"recipe's batch; seeds: {options.seeds}; mean ± sd over them. Spearman and MRR x 100.",
        f"Texts a second: STS-B's texts, by CPU time of one core, the fastest of {_PASSES} passes.", "",
        *markdown(["", *FIGURES], table), "", machine(), "", f"    {said}",
    ]  # fmt: skip
    print("\n".join(text))
    print(publish("static", text, rows, configurations(options.out), folder=options.results))


if __name__ == "__main__":
    main()
