"""Unsupervised sentence embeddings under one protocol: every method from one start, on the same sentences.

    python benchmarks/protocol.py scores --encoder FOLDER --teacher FOLDER --sentences FILE --sts FOLDER
    python benchmarks/protocol.py steps --encoder FOLDER --teacher FOLDER --sentences FILE --sts FOLDER

A method is a file of ``benchmarks/protocol`` over ``common.yaml`` there and the recipe ``simcse``: 75 steps of 64
texts. It gets the better of two rates on STS-B's development set, before any test set is looked at; that run is
its first seed. Then come two more seeds, and the test sets are scored: STS12, STS14, STS15, STS-B and SICK-R.
Each difference from SimCSE has a 95 % interval over resampled test pairs, the same ones for both, means over
seeds on either side. Finished runs are kept in ``--out`` and not repeated, nor are rows of an earlier result, a
JSON file that ``--earlier`` names; after each method the table of all that are there is written. ``steps`` times
the training step of each method beside the others', in turns: its last result is a column of the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from runs import (
    RESULTS,
    ROOT,
    cell_configurations,
    command,
    do,
    drop_weights,
    held,
    keep,
    machine,
    markdown,
    mean_and_spread,
    publish,
)
from timing import Contender, Turn, ratio_and_range, take_turns

from contrastive_text import Run, SentenceEncoder
from contrastive_text.cli.configuration import configured
from contrastive_text.cli.words import expand_recipes
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.sts import aggregate, pair_cosines
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.metrics.bootstrap import PairedBootstrap, paired_bootstrap_spearman

TASKS = ("STS12", "STS14", "STS15", "STS-B", "SICK-R")
GEOMETRY = ("val/alignment", "val/uniformity", "val/effective_rank")
DEVELOPMENT = "val/spearman"
RATES = ("3e-5", "1e-4")
BASELINE = "simcse"
AT_ONCE = 4
"""Methods that take turns with SimCSE: a process of each has some 2 GB."""


class Method(NamedTuple):
    """A row of the table.

    Args:
        said: Its name there.
        teacher: Place in the configuration of the teacher's vectors; None for a method without.
        start: Place where the start is named once more, beside the encoder's; None for none.
    """

    said: str
    teacher: str | None = None
    start: str | None = None


METHODS = {
    "simcse": Method("SimCSE"),
    "simcse_tenth": Method("SimCSE, temperature 0.1"),
    "consert": Method("ConSERT"),
    "dcl": Method("DCL"),
    "esimcse": Method("ESimCSE"),
    "barlow": Method("Barlow Twins"),
    "align_uniform": Method("alignment + uniformity"),
    "promptbert": Method("PromptBERT"),
    "rankcse": Method("RankCSE", teacher="model.guides.teacher.init_args.path"),
    "gist": Method("GIST", teacher="model.guides.teacher.init_args.path"),
    "vicreg": Method("VICReg"),
    "tsdae": Method("TSDAE"),
    "diffcse": Method("DiffCSE", start="model.objectives.replaced.init_args.generator"),
    "clear": Method("CLEAR"),
    "mlm": Method("MLM alone"),
    "declutr": Method("DeCLUTR, following sentences"),
}


class Turns(Callback):
    """Tells a turn of every step.

    Args:
        turn: Of this process.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Waits for the first turn."""
        self.turn.loaded()

    def on_train_batch_end(self, *_: object) -> None:
        """Counts a step."""
        self.turn.ended_step(tokens=0)


def train(words: Sequence[str], turn: Turn) -> None:
    """Trains in turns, without validation and without end."""
    run = Run(*configured("fit", expand_recipes(words)))
    vars(run.trainer)["callbacks"].append(Turns(turn))
    run.fit()


class Protocol:
    """The runs of all methods.

    Args:
        options: Of the shell.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.folder = ROOT / "benchmarks" / "protocol"
        self.taken_over: dict[str, Any] = {}
        """Configurations of the sweeps whose rows are of an earlier result."""

    def words(self, name: str) -> list[str]:
        """Returns the options of a method's runs."""
        own = self.folder / f"{name}.yaml"
        words = ["--recipe", "simcse", "--config", str(self.folder / "common.yaml")]
        words += ["--config", str(own)] if own.exists() else []
        words += ["--model.encoder.model_name_or_path", str(self.options.encoder)]
        words += ["--data.train", str(self.options.sentences), "--trainer.precision", self.options.precision]
        if (teacher := METHODS[name].teacher) is not None:
            words += [f"--{teacher}", str(self.vectors())]
        if (start := METHODS[name].start) is not None:
            words += [f"--{start}", str(self.options.encoder)]
        return [*words, *self.options.words]

    def sweep(self, name: str, rate: str, seeds: Sequence[int], *more: str) -> list[dict[str, Any]]:
        """Returns the runs of a method at a rate; those that are missing are made."""
        place = self.out / name / rate
        words = ["sweep", *self.words(name), "--data.validation", str(self.options.sts / "stsb.dev.tsv")]
        words += ["--vary", f"model.optimizer.lr={rate}", "--seeds", *map(str, seeds), "--select", DEVELOPMENT]
        do([*words, "--report", DEVELOPMENT, *more, "--keep_weights", "--output", str(place)])
        [cell] = json.loads((place / "table.json").read_text())["cells"]
        runs: list[dict[str, Any]] = cell["runs"]
        return runs

    def vectors(self) -> Path:
        """Returns the teacher's vectors of the sentences, made once."""
        path = self.out / "teacher.npy"
        with held(path):
            if not path.exists():
                words = ["embed", str(self.options.sentences), str(path), "--model", str(self.options.teacher)]
                do([*words, "--distinct"])
        return path

    def row(self, name: str) -> dict[str, Any]:
        """Returns the row of a method: its rate, the figures of its seeds, and its cosines of the test pairs."""

        def make() -> dict[str, Any]:
            development = {rate: self.sweep(name, rate, [1])[0]["figures"][DEVELOPMENT] for rate in RATES}
            rate = max(development, key=lambda each: development[each])
            reports = [word for figure in GEOMETRY for word in ("--report", figure)]
            runs = self.sweep(name, rate, [1, 2, 3], *reports)
            place = self.out / name / rate
            cosines = {run["seed"]: self.cosines(place, run["seed"]) for run in runs}
            torch.save(cosines, self.out / f"{name}.pt")
            for run in runs:
                run["scores"] = self.scores(cosines[run["seed"]])
            for each in RATES:
                drop_weights(self.out / name / each)
            return {"name": name, "rate": rate, "development": development, "runs": runs}

        return keep(self.out / f"{name}.row", make)

    def take_over(self, earlier: Path) -> None:
        """Takes the rows of an earlier result over, where there are none of these methods."""
        result = json.loads(earlier.read_text())
        self.taken_over = result["configuration"]
        for row in result["rows"]:
            keep(self.out / f"{row['name']}.row", partial(dict[str, Any], row))

    def tasks(self) -> dict[str, STSPairs]:
        """Returns the scored pairs of the test sets."""
        found = find_sts(self.options.sts)
        return {name: pairs for name in TASKS if isinstance(pairs := found[name], STSPairs)}

    def cosines(self, place: Path, seed: int) -> dict[str, torch.Tensor]:
        """Returns a run's cosines of the pairs of each test set."""
        model = next(next(place.rglob(f"seed-{seed}")).rglob("modules.json")).parent
        embed = CachedEncoder(SentenceEncoder.from_pretrained(model, device="cpu"))
        return {name: pair_cosines(embed, pairs) for name, pairs in self.tasks().items()}

    def scores(self, cosines: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Returns the score of each test set, and their mean."""
        found = {task: aggregate(cosines[task], pairs, "all")[0] for task, pairs in self.tasks().items()}
        return {**found, "mean": statistics.mean(found.values())}

    def interval(self, name: str) -> str:
        """Returns a method's difference from the baseline with its interval: the mean over tasks and seeds."""
        kept = self.out / f"{BASELINE}.pt"
        if not kept.exists():  # its row was taken over from a result, which has scores alone
            shutil.rmtree(self.out / f"{BASELINE}.row")
            self.row(BASELINE)
        ours, theirs = torch.load(self.out / f"{name}.pt"), torch.load(kept)
        each_task = [
            PairedBootstrap.mean(
                [
                    paired_bootstrap_spearman(
                        theirs[seed][task],
                        ours[seed][task],
                        target=pairs.gold,
                        resamples=self.options.resamples,
                        generator=torch.Generator().manual_seed(0),  # for all seeds the same pairs
                    )
                    for seed in ours
                ]
            )
            for task, pairs in self.tasks().items()
        ]
        found = PairedBootstrap.mean(each_task)
        low, high = found.interval()
        return f"{100 * found.difference:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"

    def steps(self) -> dict[str, dict[str, list[float]]]:
        """Returns the seconds of each turn of every method and of SimCSE beside it.

        A few methods and SimCSE take turns, then the next few: each is a process with weights of its own.
        """
        names = [name for name in self.options.only or METHODS if name != BASELINE]
        found = {}
        for first in range(0, len(names), AT_ONCE):
            few = names[first : first + AT_ONCE]
            seconds = self.turns([BASELINE, *few])
            found |= {name: {"own": seconds[name], BASELINE: seconds[BASELINE]} for name in few}
        return found

    def turns(self, names: Sequence[str]) -> dict[str, list[float]]:
        """Returns the seconds of each turn of some methods, some steps each."""
        endless = ["--trainer.max_steps", "100000", "--trainer.limit_val_batches", "0"]
        with ExitStack() as stack, TemporaryDirectory() as folder:
            place = ["--trainer.default_root_dir", folder, "--trainer.enable_progress_bar", "false"]
            contenders = {
                name: stack.enter_context(
                    Contender(train, [*self.words(name), *endless, *place], threads=1, device="cpu")
                )
                for name in names
            }
            works = {name: partial(contender, self.options.steps) for name, contender in contenders.items()}
            for work in works.values():
                work()  # the first steps of a process take longer
            found = take_turns(works, self.options.rounds)
        return {name: [answer.seconds for answer in answers] for name, answers in found.items()}

    def publish_steps(self) -> None:
        """Times the methods in turns, and writes the table."""
        seconds = self.steps()
        ratios = {name: ratio_and_range(each["own"], each[BASELINE]) for name, each in seconds.items()}
        self.ratios().write_text(json.dumps({BASELINE: "1", **ratios}))
        table = [[METHODS[name].said, ratio] for name, ratio in ratios.items()]
        lines = ["# A training step of each method", "", f"{machine()}; {self.options.precision}."]
        lines += [f"Rounds in turns: {self.options.rounds}, of {self.options.steps} steps of 64 texts.", ""]
        lines += markdown(["", "seconds of a step, SimCSE's = 1: median, range"], table)
        print("\n".join(lines))
        words = {name: self.words(name) for name in [BASELINE, *seconds]}
        print(publish("protocol_steps", lines, seconds, words, folder=self.options.results))

    def ratios(self) -> Path:
        """Returns the file of each method's seconds of a step over SimCSE's."""
        return self.out / "steps.json"

    def publish(self) -> None:
        """Writes the table of all methods that are finished."""
        geometry = [name.removeprefix("val/").replace("_", " ") for name in GEOMETRY]
        header = ["", "rate", *TASKS, "mean", "against SimCSE", *geometry, "step, SimCSE's = 1"]
        ratios = json.loads(self.ratios().read_text()) if self.ratios().exists() else {}
        rows, table = [], []
        for name, method in METHODS.items():
            if not (self.out / f"{name}.row" / "row.json").exists():
                asked = command(["benchmarks/protocol.py", "scores", "--only", name]).replace(
                    "contrastive-text", "python"
                )
                table.append([method.said, f"not run: `{asked} ...`", *[""] * (len(header) - 2)])
                continue
            row = self.row(name)
            if "against" not in row:
                row["against"] = "-" if name == BASELINE else self.interval(name)
            row.setdefault("step", ratios.get(name, "not run"))
            rows.append(row)
            table.append([*self.cells(name, row), row["step"]])
        named = {name: vars(self.options)[name].name for name in ("encoder", "sentences", "teacher")}
        lines = [
            "# Unsupervised sentence embeddings under one protocol",
            "",
            f"Start {named['encoder']}; sentences {named['sentences']}; teacher {named['teacher']}.",
            f"75 steps of 64 texts, {self.options.precision}, three seeds. {machine()}.",
            "",
            *markdown(header, table),
            "",
            "Scores: Spearman x 100, mean ± standard deviation over seeds. Against SimCSE: the difference of the",
            "means, with 95 % over resampled test pairs. Step: its seconds over SimCSE's, median and range.",
        ]
        print("\n".join(lines))
        print(publish("protocol", lines, rows, self.configurations(), folder=self.options.results))

    def cells(self, name: str, row: Mapping[str, Any]) -> list[str]:
        """Returns the cells of a finished row."""

        runs = row["runs"]
        scores = [mean_and_spread([run["scores"][each] for run in runs]) for each in (*TASKS, "mean")]
        geometry = [mean_and_spread([run["figures"][figure] for run in runs]) for figure in GEOMETRY]
        return [METHODS[name].said, row["rate"], *scores, row["against"], *geometry]

    def configurations(self) -> dict[str, Any]:
        """Returns the configurations of all sweeps, by method and rate."""
        tables = sorted(self.out.glob("*/*/table.json"))
        own = {str(table.parent.relative_to(self.out)): cell_configurations(table.parent) for table in tables}
        return {**self.taken_over, **own}


def main() -> None:
    """Makes the rows that are asked for, and writes the table of all that are there; or times steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scores", "steps"))
    for name in ("encoder", "teacher", "sentences", "sts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=METHODS, help="methods; none for the table alone")
    parser.add_argument("--earlier", type=Path, help="JSON of a result whose rows are taken over")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed where the processor is faster by it")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10, help="of steps")
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "protocol")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, options_words = parser.parse_known_args()
    options.words = options_words
    protocol = Protocol(options)
    if options.what == "steps":
        protocol.publish_steps()
        return
    if options.earlier is not None:
        protocol.take_over(options.earlier)
    methods = list(METHODS) if options.only is None else options.only
    for name in methods:
        protocol.row(name)
        protocol.publish()
    if not methods:
        protocol.publish()


if __name__ == "__main__":
    main()
