"""Compares what inference data add: SimCSE on triples, SBERT, ConSERT's joint training, a second stage on both.

    python benchmarks/nli.py --encoder FOLDER --nli FOLDER --sts FOLDER --sentences SENTENCES.tsv.gz

Each run is the shell command ``fit`` with a recipe, ``nli.yaml`` over it and, for a second stage, the run of its
first stage with the same seed to start from. The checkpoint with the best Spearman correlation on STS-B dev is
scored: all pairs of a file together, as SimCSE and ConSERT do. A finished run is kept in ``--out`` and not
repeated; processes with different rows (``--only``) may run at once and write one table between them, after
every run. Options that this script doesn't know go to every ``fit``.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Callable, Iterable, Sequence
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
    publish,
    rows_of,
)

from contrastive_text import SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.poolers import CLSPooler, LastTwoPooler, MeanPooler, Pooler

TESTS = {"STS12": "sts12.test", "STS14": "sts14.test", "STS15": "sts15.test", "STS-B test": "stsb.test"}
TESTS |= {"SICK-R": "sick.test"}
STARTS: dict[str, Callable[[], Pooler]] = {
    "start, [CLS]": CLSPooler,
    "start, last layer": MeanPooler,
    "start, last two layers": LastTwoPooler,
}


class Setup(NamedTuple):
    """One row: a recipe, its texts, and the row whose run it starts from.

    Args:
        recipe: As ``--recipe`` takes it.
        pairing: Which texts of a row belong together, where it isn't the recipe's.
        texts: One of ``Texts``.
        said: What the table calls the texts.
        after: The row of the first stage.
    """

    recipe: str
    texts: str
    said: str
    pairing: str | None = None
    after: str | None = None


SETUPS = {
    "simcse-unsup": Setup("simcse/unsup_bert_base", "sentences", "sentences, without labels"),
    "simcse-sup": Setup("simcse/sup_bert_base", "triples", "the given triples", pairing="Given"),
    "simcse-sup-built": Setup(
        "simcse/sup_bert_base", "pairs", "triples that NLITriples builds of the inference pairs", "NLITriples"
    ),
    "sbert": Setup("consert/sup_base", "pairs", "inference pairs"),
    "joint": Setup("consert/joint_base", "pairs", "inference pairs"),
    "sup-unsup": Setup("consert/sup_unsup_base", "sts", "STS sentences, without scores", after="sbert"),
    "joint-unsup": Setup("consert/joint_unsup_base", "sts", "STS sentences, without scores", after="joint"),
}


class Ordering(NamedTuple):
    """Finding of a paper: one method is above another, by averages of seven STS tasks for BERT-base."""

    paper: str
    better: str
    worse: str
    published: tuple[float, float]
    strictly: bool = True


ORDERINGS = (
    Ordering("SimCSE", "simcse-sup", "simcse-unsup", (81.57, 76.25)),
    Ordering("SimCSE", "simcse-sup-built", "simcse-unsup", (81.57, 76.25)),
    Ordering("ConSERT", "joint", "sbert", (77.12, 74.24)),
    Ordering("ConSERT", "sup-unsup", "sbert", (79.00, 74.24)),
    Ordering("ConSERT", "sup-unsup", "joint", (79.00, 77.12), strictly=False),
    Ordering("ConSERT", "joint-unsup", "sup-unsup", (79.37, 79.00), strictly=False),
)


def write_sts_texts(sts: Path, path: Path) -> int:
    """Writes the sentences of the training files that are in no file that is scored, and gives their number.

    STS-B is drawn from STS12 to STS17: many of its training sentences are in those test files.
    """
    scored = {text for name in ("stsb.dev", *TESTS.values()) for text in _texts(sts / f"{name}.tsv")}
    train = [text for name in ("stsb", "sick", "sts12") for text in _texts(sts / f"{name}.train.tsv")]
    texts = [text for text in dict.fromkeys(train) if text not in scored]
    path.write_text("sentence\n" + "".join(f"{text}\n" for text in texts), encoding="utf-8")
    return len(texts)


def _texts(path: Path) -> list[str]:
    return [str(row[side]) for row in read_pairs(path) for side in ("anchor", "positive")]


def score(model: SentenceEncoder | EncodedOnce, path: Path) -> float:
    """Returns the Spearman correlation over all pairs of a file, times 100."""
    return evaluate_pairs(model, read_pairs(path), batch_size=64)[0].spearman


class EncodedOnce:
    """An encoder's vectors of given texts, of which the files hold many several times."""

    def __init__(self, model: SentenceEncoder, texts: Iterable[str]) -> None:
        self.places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        self.vectors = torch.as_tensor(model.encode(list(self.places), batch_size=64, convert_to_tensor=True))

    def encode(self, sentences: Sequence[str], **_: object) -> torch.Tensor:
        """Returns the vectors of some of the texts, whatever the options."""
        return self.vectors[[self.places[text] for text in sentences]]


def tested(model: SentenceEncoder, sts: Path) -> dict[str, Any]:
    """Returns the scores on all test files, their mean, and the pooler in use."""
    paths = {name: sts / f"{file}.tsv" for name, file in TESTS.items()}
    encoded = EncodedOnce(model, (text for path in paths.values() for text in _texts(path)))
    scores = {name: score(encoded, path) for name, path in paths.items()}
    return {"pooler": type(model.pooler).__name__, **scores, "mean": statistics.mean(scores.values())}


class Benchmark:
    """The runs of a command line, each made when it is first asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = options.out / f"{options.steps}-steps"
        self.sts_texts = self.folder / "sts_texts.tsv"
        with held(self.sts_texts):
            self.texts = write_sts_texts(options.sts, self.sts_texts)

    def words(self, name: str, seed: int) -> list[str]:
        """Returns the options of a run; that of the first stage is made if it isn't there."""
        options, setup = self.options, SETUPS[name]
        files = {
            "sentences": options.sentences,
            "triples": options.nli / "snli_triplets.dev.tsv",
            "pairs": options.nli / "snli_sample.train.tsv",
            "sts": self.sts_texts,
        }
        words = ["--recipe", setup.recipe, "--config", str(ROOT / "benchmarks" / "nli.yaml")]
        if setup.after is not None:
            words += ["--config", str(ROOT / "benchmarks" / "nli_second.yaml")]
            words += ["--init_from", str(self.place(setup.after, seed) / "version_0")]
        words += ["--model.encoder.model_name_or_path", str(options.encoder)]
        words += ["--data.train", str(files[setup.texts])]
        words += ["--data.task.pairing", setup.pairing] if setup.pairing else []
        words += ["--data.validation", str(options.sts / "stsb.dev.tsv")]
        words += ["--trainer.max_steps", str(options.steps)]
        return [*words, "--trainer.val_check_interval", str(max(1, options.steps // 2)), *options.more]

    def place(self, name: str, seed: int) -> Path:
        """Returns the folder of a run."""
        return self.folder / name / str(seed)

    def start(self, name: str) -> dict[str, Any]:
        """Returns the row of the encoder as it is, under a pooler."""

        def measure() -> dict[str, Any]:
            model = SentenceEncoder.from_pretrained(str(self.options.encoder), pooler=STARTS[name]())
            dev = score(model, self.options.sts / "stsb.dev.tsv")
            return {"row": name, "seed": None, "dev": dev, **tested(model, self.options.sts)}

        return keep(self.options.out / name, measure)

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the row of a run, and first that of its first stage."""
        setup, folder = SETUPS[name], self.place(name, seed)
        if setup.after is not None:
            self.run(setup.after, seed)

        def measure() -> dict[str, Any]:
            words = in_folder("fit", self.words(name, seed), folder, seed)
            seconds = do(words)
            curve = logged(folder, "val/spearman")
            model = SentenceEncoder.from_pretrained(folder / "version_0" / "model")
            row = {"row": name, "seed": seed, "dev": max(curve), **tested(model, self.options.sts)}
            if name not in {each.after for each in SETUPS.values()}:
                drop_weights(folder)
            return row | {"dev curve": curve, "seconds": seconds, "command": command(words, self.names())}

        return keep(folder, measure)

    def names(self) -> dict[str, str]:
        """Returns what the table calls the folders."""
        options = self.options
        folders = {options.encoder: "ENCODER", options.nli: "NLI", options.sts: "STS", self.folder: "RUNS"}
        folders |= {options.sentences: "SENTENCES", ROOT / "benchmarks": "benchmarks"}
        return {str(folder): name for folder, name in folders.items()}

    def write(self) -> None:
        """Writes the table of all finished runs."""
        options = self.options
        seeds = sorted({int(place.name) for place in self.folder.glob("*/*") if place.name.isdecimal()})
        places = [self.place(name, seed) for name in SETUPS for seed in seeds]
        with held(options.out / "table"):
            rows = rows_of([*(options.out / name for name in STARTS), *places])
            publish(
                "nli",
                table(rows, options, self.texts),
                rows,
                configurations(self.folder),
                folder=options.results,
            )


WHAT = """\
Each run: {steps} steps of 32 rows, 32 tokens a text, learning rate {rate:g}, in a second stage {second:g}
(`nli.yaml`, `nli_second.yaml`). ConSERT's own rate of a second stage, 5e-7, goes with 25 epochs and moves
nothing in so few steps. Scored is the better of two checkpoints on STS-B dev. Test scores are one correlation
over all pairs of a file; their mean is over these five files (STS13 and STS16 are not among them). Inference
pairs: `snli_sample.train.tsv`. The given triples, `snli_triplets.dev.tsv`, are made of SNLI's development set,
of which nothing is scored here. STS sentences: those of stsb.train, sick.train and sts12.train that stand in no
file scored here, {texts}, without their scores. A second stage starts from the best checkpoint of its first
stage with the same seed.
"""


def table(rows: list[dict[str, Any]], options: argparse.Namespace, texts: int) -> list[str]:
    """Returns the lines of the table."""
    lines = ["# Inference data, one stage and two (Spearman x 100)", ""]
    lines += [f"{datetime.date.today().isoformat()}, {machine()}. Written by `benchmarks/nli.py`."]
    lines += [f"Start: `{options.encoder.name}`. {options.start}"]
    rates = {"rate": learning_rate("nli.yaml"), "second": learning_rate("nli_second.yaml")}
    lines += WHAT.format(steps=options.steps, texts=f"{texts:,}", **rates).splitlines()
    lines += [f"Besides, for every run: `{' '.join(options.more)}`."] if options.more else []
    lines.append("")
    columns = ["dev", *TESTS, "mean"]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["row"], []).append(row)
    cells = []
    for name, own in by_name.items():
        first, setup = own[0], SETUPS.get(name)
        trained = "nothing" if setup is None else setup.said + (f", after {setup.after}" if setup.after else "")
        scores = [mean_and_spread([row[column] for row in own]) for column in columns]
        start = by_name.get(f"start, {POOLED[first['pooler']]}", [])
        gain = statistics.mean(row["mean"] for row in own) - start[0]["mean"] if start and setup else None
        cells.append([name, trained, POOLED[first["pooler"]], str(len(own)), *scores, _signed(gain)])
    header = [
        "row",
        "trained on",
        "pooling in use",
        "seeds",
        "STS-B dev",
        *TESTS,
        "mean of tests",
        "over its start",
    ]
    lines += markdown(header, cells)
    lines += ["", "± is the standard deviation over seeds. By seed:", ""]
    trained_rows = [row for row in rows if row["seed"] is not None]
    lines += markdown(
        ["row", "seed", "STS-B dev by validation", "mean of tests", "s"],
        [
            [row["row"], str(row["seed"]), _listed(row["dev curve"]), f"{row['mean']:.2f}", str(row["seconds"])]
            for row in trained_rows
        ],
    )
    lines += [
        "",
        "Which of the papers' orderings hold in the mean of the tests (theirs: seven tasks, BERT-base):",
        "",
    ]
    lines += [f"- {said(ordering, by_name)}" for ordering in ORDERINGS]
    lines += ["", "The commands of the first seed:", "", "```"]
    lines += [own[0]["command"] for name, own in by_name.items() if name in SETUPS]
    return [*lines, "```"]


POOLED = {"CLSPooler": "[CLS]", "MeanPooler": "last layer", "LastTwoPooler": "last two layers"}


def _listed(values: list[float], form: str = ".2f") -> str:
    return ", ".join(format(value, form) for value in values)


def _signed(number: float | None) -> str:
    return "" if number is None else f"{number:+.2f}"


def said(ordering: Ordering, by_name: dict[str, list[dict[str, Any]]]) -> str:
    """Says whether an ordering holds, by the differences of runs with the same seed."""
    better, worse = ({row["seed"]: row["mean"] for row in by_name.get(name, [])} for name in ordering[1:3])
    relation = ">" if ordering.strictly else ">="
    claim = f"{ordering.better} {relation} {ordering.worse} ({ordering.paper}: {ordering.published[0]:.2f} and "
    claim += f"{ordering.published[1]:.2f})"
    gaps = [better[seed] - worse[seed] for seed in better if seed in worse]
    if not gaps:
        return f"{claim}: not measured yet."
    right = sum(gap > 0 or (gap == 0 and not ordering.strictly) for gap in gaps)
    mean = statistics.mean(gaps)
    holds = mean > 0 or (mean == 0 and not ordering.strictly)
    verdict = "holds in the mean only" if holds else "does not hold"
    if right == len(gaps):
        verdict = "holds in every seed" if right > 1 else "holds"
    over = "one seed" if len(gaps) == 1 else f"the mean of {len(gaps)} seeds ({_listed(gaps, '+.2f')})"
    return f"{claim}: {verdict}; {_signed(mean)} in {over}."


def main() -> None:
    """Runs what is missing and writes the table as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--nli", type=Path, required=True, help="folder with snli_sample and snli_triplets")
    parser.add_argument("--sts", type=Path, required=True, help="folder with stsb, sick, sts12, sts14 and sts15")
    parser.add_argument("--sentences", type=Path, required=True, help="sentences for SimCSE without labels")
    parser.add_argument("--start", default="", help="a sentence of the table on what the encoder is")
    parser.add_argument("--only", nargs="+", choices=[*SETUPS, "start"], default=["start", *SETUPS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "nli")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options.more = parser.parse_known_args()
    torch.set_num_threads(options.threads)
    benchmark = Benchmark(options)
    for name in STARTS if "start" in options.only else ():
        print(benchmark.start(name), flush=True)
        benchmark.write()
    for seed in options.seeds:
        for name in (name for name in SETUPS if name in options.only):
            print(benchmark.run(name, seed), flush=True)
            benchmark.write()


if __name__ == "__main__":
    main()
