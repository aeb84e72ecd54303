"""Compares the CS224N system's ways to train three tasks: pre-training, combiners, heads, single models.

    python benchmarks/cs224n.py --encoder FOLDER --cs224n FOLDER --quora FOLDER --triples TRIPLES.tsv

Each run is the shell command ``fit`` with a recipe and ``cs224n.yaml`` over it; ``--init_from`` names its first
stage, if it has one. All rows have the same budget: so many batches of each task, and as many again for what is
contrastive. The last weights are scored. A finished run is kept in ``--out`` and not repeated; processes with
different rows (``--only``) may run at once and write one table between them, after every run. Every row has the
first seed; once all are there, the average and the row with the best score get the others. Options that this
script doesn't know go to every ``fit``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from runs import (
    RESULTS,
    ROOT,
    command,
    configurations,
    do,
    drop_weights,
    held,
    in_folder,
    keep,
    learning_rate,
    logged,
    machine,
    markdown,
    mean_and_spread,
    part,
    publish,
    rows_of,
)
from torch.nn.functional import cosine_similarity
from torchmetrics.functional import pearson_corrcoef

from contrastive_text import SentenceEncoder
from contrastive_text.data import Table, read_pairs, read_rows
from contrastive_text.poolers import CLSPooler

TASKS = {"sentiment": "accuracy", "paraphrase": "accuracy", "similarity": "pearson"}
"""The tasks and their scores."""

AVERAGE = "cs224n/multitask_average"


class Setup(NamedTuple):
    """One row of the table.

    Args:
        recipe: As ``--recipe`` takes it.
        said: What the table says of it.
        published: The report's overall score on the development sets.
        mixture: The order of the batches, where it isn't that of the average.
        after: The contrastive run that it starts from.
        alone: The only task that is trained.
        over: A file of ``benchmarks`` over ``cs224n.yaml``.
        heads: The row whose heads it keeps while its encoder is trained on.
    """

    recipe: str
    said: str
    published: str
    mixture: str | None = None
    after: str | None = None
    alone: str | None = None
    over: str | None = None
    heads: str | None = None


SETUPS = {
    "average": Setup(
        AVERAGE, "no pre-training; one loss of a batch of each; first layer of pairs shared", "54.0"
    ),
    "contrastive-first": Setup(AVERAGE, "after contrastive training on the three sets", "66.4", after="3sets"),
    "nli-first": Setup(AVERAGE, "after contrastive training on triples", "66.1", after="nli"),
    "supervised-first": Setup(
        AVERAGE,
        "average, then its encoder on the three sets; heads as the average left them",
        "50.2*",
        mixture="EpochRoundRobin",
        over="cs224n_supervised_first.yaml",
        heads="average",
    ),
    "fusion": Setup(AVERAGE, "each batch supervised, then contrastive", "52.0*", over="cs224n_fusion.yaml"),
    "batch-round-robin": Setup(
        "cs224n/batch_round_robin", "a step for each task in turn", "49.1", mixture="BatchRoundRobin"
    ),
    "epoch-round-robin": Setup(
        "cs224n/epoch_round_robin", "one task after the other", "49.3", mixture="EpochRoundRobin"
    ),
    "pcgrad": Setup("cs224n/pcgrad", "conflicting gradients projected", "62.5*"),
    "separate-heads": Setup("cs224n/separate_heads", "average, no layer shared", "53.0"),
    "shared-head": Setup("cs224n/shared_head", "average, both layers of pairs shared", "49.4"),
    "sentiment-alone": Setup(AVERAGE, "a model of its own", "", alone="sentiment"),
    "paraphrase-alone": Setup(AVERAGE, "a model of its own", "", alone="paraphrase"),
    "similarity-alone": Setup(AVERAGE, "a model of its own", "", alone="similarity"),
}
ENSEMBLE = "ensemble"
PRETRAINING = {"3sets": "cs224n/pretrain_3sets", "nli": "cs224n/pretrain_nli"}
OTHERS = {"start": ("untrained", ""), ENSEMBLE: ("the three models of their own", "70.6")}
"""Name of another row of the table -> its description, and the report's overall score."""
NOTE = "* In another setting: supervised first and fusion on SST, PCGrad after two pre-trainings (average: 62.8)."


class Benchmark:
    """The runs of a command line, each made when it is first asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = options.out / f"{options.steps}-steps"

    def place(self, name: str, seed: int) -> Path:
        """Returns the folder of a run."""
        return self.folder / name / str(seed)

    def checkpoint(self, name: str, seed: int) -> Path:
        """Returns the checkpoint that a run left."""
        return next((self.place(name, seed) / "version_0").rglob("*.ckpt"))

    def files(self, parts: dict[str, str], tasks: list[str]) -> dict[str, dict[str, str]]:
        """Returns the files of tasks as ``data.tasks`` has them: part -> the word in their names."""
        folders = {"sentiment": self.options.cs224n / "sst", "paraphrase": self.options.quora / "quora"}
        folders |= {"similarity": self.options.cs224n / "sts"}
        return {task: {part: f"{folders[task]}.{word}.tsv" for part, word in parts.items()} for task in tasks}

    def limited(self, mixture: str | None, tasks: list[str] | None = None) -> str:
        """Returns the budget as a mixture."""
        order = None if mixture is None else part(mixture)
        spec = part("benchmarks.mixtures.Limited", batches=self.options.steps, mixture=order, tasks=tasks)
        return json.dumps(spec)

    def words(self, recipe: str, start: Path | None, over: str | None = None) -> list[str]:
        """Returns the options that all runs have."""
        files = ["cs224n.yaml", *([over] if over else [])]
        words = ["--recipe", recipe]
        words += [word for file in files for word in ("--config", str(ROOT / "benchmarks" / file))]
        words += ["--model.encoder.model_name_or_path", str(self.options.encoder)]
        return [*words, *(["--init_from", str(start)] if start else []), *self.options.more]

    def pretrain(self, name: str, start: Path | None = None) -> list[str]:
        """Returns the words of a contrastive run."""
        words = self.words(PRETRAINING[name], start)
        if name == "nli":  # as many batches of 16 as the three sets have together
            words += ["--data.train", str(self.options.triples), "--trainer.max_epochs", "-1"]
            return [*words, "--trainer.max_steps", str(len(TASKS) * self.options.steps)]
        files = self.files({"train": "train"}, list(TASKS))
        return [*words, "--data.tasks", json.dumps(files), "--data.mixture", self.limited("EpochRoundRobin")]

    def supervised(self, name: str, seed: int) -> list[str]:
        """Returns the words of a run on labels."""
        setup = SETUPS[name]
        start = None if setup.after is None else self.place(setup.after, seed) / "version_0"
        alone = None if setup.alone is None else [setup.alone]
        files = self.files({"train": "train"}, list(TASKS))
        files |= self.files({"train": "train", "validation": "dev", "test": "test"}, alone or list(TASKS))
        words = [*self.words(setup.recipe, start, setup.over), "--data.tasks", json.dumps(files)]
        place = "--data.mixture.mixture" if setup.over else "--data.mixture"
        return [*words, place, self.limited(setup.mixture, alone)]

    def after(self, heads: str, name: str, seed: int) -> list[str]:
        """Returns the words of a contrastive run from the encoder and with the heads of a run on labels."""
        setup = SETUPS[name]
        files = self.files({"validation": "dev", "test": "test"}, list(TASKS))
        for task, part_of in self.files({"train": "train"}, list(TASKS)).items():
            files[f"{task}_pairs" if task == "paraphrase" else f"{task}_texts"] = part_of
        words = self.words(setup.recipe, self.place(heads, seed) / "version_0", setup.over)
        words += ["--keep_heads", "--data.tasks", json.dumps(files)]
        return [*words, "--data.mixture", self.limited(setup.mixture)]

    def first_stage(self, name: str, seed: int) -> int:
        """Makes a contrastive run and gives its seconds."""
        folder = self.place(name, seed)

        def train() -> dict[str, Any]:
            words = in_folder("fit", self.pretrain(name), folder, seed)
            return {"row": name, "seed": seed, "seconds": do(words), "command": command(words, self.names())}

        return int(keep(folder, train)["seconds"])

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the row of a run, and first those that it needs."""
        setup, folder = SETUPS[name], self.place(name, seed)
        before = 0 if setup.after is None else self.first_stage(setup.after, seed)
        before += 0 if setup.heads is None else int(self.run(setup.heads, seed)["seconds"])

        def measure() -> dict[str, Any]:
            fit = self.supervised(name, seed) if setup.heads is None else self.after(setup.heads, name, seed)
            words = in_folder("fit", fit, folder, seed)
            seconds = do(words)
            do(in_folder("test", ["--ckpt_path", str(self.checkpoint(name, seed))], folder / "test"))
            row = {
                "row": name,
                "seed": seed,
                "dev": scores(folder, "val"),
                "test": scores(folder / "test", "test"),
            }
            if not setup.alone and name not in {each.heads for each in SETUPS.values()}:
                drop_weights(folder)
            return row | {"seconds": before + seconds, "command": command(words, self.names())}

        return keep(folder, measure)

    def ensemble(self, seed: int) -> dict[str, Any]:
        """Returns the row of the three models that are trained alone, and first those."""
        folder = self.place(ENSEMBLE, seed)
        alone = [name for name, setup in SETUPS.items() if setup.alone]
        seconds = sum(int(self.run(name, seed)["seconds"]) for name in alone)

        def measure() -> dict[str, Any]:
            runs = [str(self.place(name, seed) / "version_0") for name in alone]
            words = ["ensemble", str(folder / "models"), "--runs", *runs]
            do(words)
            scored = {}
            for part_of, name, prefix in (("dev", "validate", "val"), ("test", "test", "test")):
                do(in_folder(name, ["--ckpt_path", str(folder / "models")], folder / name))
                scored[part_of] = scores(folder / name, prefix)
            drop_weights(folder)
            row = {"row": ENSEMBLE, "seed": seed, **scored, "seconds": seconds}
            return row | {"command": command(words, self.names())}

        return keep(folder, measure)

    def start(self) -> dict[str, Any]:
        """Returns the row of the encoder as it is."""

        def measure() -> dict[str, Any]:
            model = SentenceEncoder.from_pretrained(str(self.options.encoder), pooler=CLSPooler())
            tables = {part: self.tables(part) for part in ("train", "dev", "test")}
            row: dict[str, Any] = {"row": "start", "seed": None, "seconds": 0}
            for part_of in ("dev", "test"):
                pairs = {task: (tables["train"][task], tables[part_of][task]) for task in TASKS}
                row[part_of] = {task: majority(*pairs[task]) for task in ("sentiment", "paraphrase")}
                row[part_of]["similarity"] = untrained(model, tables[part_of]["similarity"])
            return row

        return keep(self.options.out / "start", measure)

    def tables(self, word: str) -> dict[str, Table]:
        """Returns the rows of a part of each task."""
        paths = {task: files[word] for task, files in self.files({word: word}, list(TASKS)).items()}
        pairs = {task: read_pairs(paths[task]) for task in ("paraphrase", "similarity")}
        return {"sentiment": read_rows(paths["sentiment"], reads=("text", "target")), **pairs}

    def names(self) -> dict[str, str]:
        """Returns what the table calls the folders."""
        options = self.options
        folders = {options.encoder: "ENCODER", options.cs224n: "CS224N", options.quora: "QUORA"}
        folders |= {options.triples: "TRIPLES", self.folder: "RUNS", ROOT / "benchmarks": "benchmarks"}
        return {str(folder): name for folder, name in folders.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of all finished runs."""
        seeds = sorted({int(place.name) for place in self.folder.glob("*/*") if place.name.isdecimal()})
        places = [self.place(name, seed) for name in (*SETUPS, ENSEMBLE) for seed in seeds]
        return rows_of([self.options.out / "start", *places])

    def write(self) -> None:
        """Writes the table of all finished runs."""
        with held(self.options.out / "table"):
            rows = self.rows()
            first = rows_of(self.place(name, self.options.seeds[0]) for name in PRETRAINING)
            publish(
                "cs224n",
                table(rows, first, self.options),
                rows,
                configurations(self.folder),
                folder=self.options.results,
            )


def scores(folder: Path, prefix: str) -> dict[str, float]:
    """Returns the score of each task that a command validated or tested, times 100."""
    runs = sorted(folder.glob("version_*"))  # an ensemble's members have one each
    figures = {
        task: [figure for run in runs for figure in logged(run, f"{prefix}/{task}/{score}")]
        for task, score in TASKS.items()
    }
    return {task: values[-1] for task, values in figures.items() if values}


def majority(train: Table, scored: Table) -> float:
    """Returns the share of rows in the most frequent class of the training file, times 100."""
    most = Counter(row["target"] for row in train).most_common(1)[0][0]
    return 100 * sum(row["target"] == most for row in scored) / len(scored)


def untrained(model: SentenceEncoder, table: Table) -> float:
    """Returns Pearson's correlation of cosine and score, times 100."""
    u, v = (
        torch.as_tensor(model.encode([str(row[side]) for row in table], batch_size=64, convert_to_tensor=True))
        for side in ("anchor", "positive")
    )
    gold = torch.tensor([float(str(row["target"])) for row in table])
    return 100 * float(pearson_corrcoef(cosine_similarity(u, v).cpu(), gold))


def overall(of_tasks: dict[str, float]) -> float | None:
    """Returns the plain mean over the three tasks; None where one has no score."""
    return statistics.mean(of_tasks.values()) if set(of_tasks) == set(TASKS) else None


def routed(rows: list[dict[str, Any]]) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Returns an ensemble's scores on dev and test, and the row that it takes for each task: the best on dev."""
    best = {
        task: max((row for row in rows if task in row["dev"]), key=lambda row: row["dev"][task]) for task in TASKS
    }
    return {part: {task: row[part][task] for task, row in best.items()} for part in ("dev", "test")}, {
        task: row["row"] for task, row in best.items()
    }


WHAT = """\
Start: `{encoder}`. {start} {steps} batches of 16 rows of each task (378 are an epoch of the smallest, STS),
read at [CLS], at a learning rate of {rate:g} (`cs224n.yaml`; the report's 1e-5 is for BERT-base and ten epochs);
round robins take three times as many optimizer steps over the same rows. What is contrastive has {steps}
batches of each set more, or {three} of 16 triples. The last weights are scored, without any choice on dev.
Sentiment and paraphrase: accuracy; similarity: Pearson x 100; overall: their mean. `start` is the encoder
untrained: the most frequent class of the training file for the first two, the cosine at [CLS] for the third.
Trained on: SST of five classes, 16,119 labeled Quora pairs, the project's own split of STS-B, whose training
part holds pairs of STS-B's own test file: that is not scored.
"""


def table(rows: list[dict[str, Any]], first: list[dict[str, Any]], options: argparse.Namespace) -> list[str]:
    """Returns the lines of the table."""
    lines = ["# CS224N: three tasks from one encoder", ""]
    lines += [f"{datetime.date.today().isoformat()}, {machine()}. Written by `benchmarks/cs224n.py`."]
    facts = {
        "encoder": options.encoder.name,
        "start": options.start,
        "steps": options.steps,
        "rate": learning_rate("cs224n.yaml"),
    }
    lines += [*WHAT.format(**facts, three=3 * options.steps).splitlines()]
    lines += [f"Besides, for every run: `{' '.join(options.more)}`."] if options.more else []
    lines.append("")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["row"], []).append(row)
    cells = []
    for name, own in by_name.items():
        setup = SETUPS.get(name)
        said, published = (setup.said, setup.published) if setup else OTHERS[name]
        seconds = f"{statistics.mean(row['seconds'] for row in own):.0f}" if name != "start" else ""
        cells.append([name, said, str(len(own)), *_figures(own), published, seconds])
    seed = options.seeds[0]
    of_seed = [row for row in rows if row["seed"] == seed]
    chosen = []
    members = [row for row in of_seed if row["row"] in SETUPS]
    if {task for row in members for task in row["dev"]} == set(TASKS):
        both, took = routed(members)
        said = "the row that is best on dev for each task"
        cells.append(["ensemble of all rows", said, "1", *_figures([both]), "", ""])
        chosen.append(f"Ensemble of all rows: {', '.join(f'{task} by {row}' for task, row in took.items())}.")
    each = [f"{part} {column}" for part in ("dev", "test") for column in ("overall", *TASKS)]
    lines += markdown(["row", "what", "seeds", *each, "report, dev overall", "s"], cells)
    lines += ["", f"± is the standard deviation over seeds; rows of one seed have {seed}. {NOTE}", *chosen]
    lines += ["", f"The commands of seed {seed}, contrastive runs first:", "", "```"]
    lines += [row["command"] for row in (*first, *of_seed)]
    return [*lines, "```"]


def _figures(own: list[dict[str, Any]]) -> list[str]:
    """Returns the cells of a row's scores on dev and test, overall first."""
    cells = []
    for part_of in ("dev", "test"):
        means = [mean for row in own if (mean := overall(row[part_of])) is not None]
        cells.append(mean_and_spread(means) if means else "")
        for task in TASKS:
            values = [row[part_of][task] for row in own if task in row[part_of]]
            cells.append(mean_and_spread(values) if values else "")
    return cells


def main() -> None:
    """Runs what is missing and writes the table as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ["start", *SETUPS, ENSEMBLE]
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--cs224n", type=Path, required=True, help="folder with sst and sts, train, dev and test")
    parser.add_argument("--quora", type=Path, required=True, help="folder with quora, train, dev and test")
    parser.add_argument("--triples", type=Path, required=True, help="inference triples, for nli-first")
    parser.add_argument("--start", default="", help="a sentence of the table on what the encoder is")
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=94, help="batches of each task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "cs224n")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.more = parser.parse_known_args()
    torch.set_num_threads(options.threads)
    benchmark = Benchmark(options)

    def add(name: str, seed: int) -> None:
        others = {"start": benchmark.start, ENSEMBLE: lambda: benchmark.ensemble(seed)}
        print(others[name]() if name in others else benchmark.run(name, seed), flush=True)
        benchmark.write()

    for name in options.only:
        add(name, options.seeds[0])
    means = {
        row["row"]: mean
        for row in benchmark.rows()
        if row["row"] in SETUPS and row["seed"] == options.seeds[0] and (mean := overall(row["dev"])) is not None
    }
    if len(means) == sum(setup.alone is None for setup in SETUPS.values()):
        for name in dict.fromkeys(["average", max(means, key=lambda name: means[name])]):
            for seed in options.seeds[1:] if name in options.only else ():
                add(name, seed)


if __name__ == "__main__":
    main()
