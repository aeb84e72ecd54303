"""Unsupervised sentence embeddings under one protocol: every method from one start, on the same sentences.

    python benchmarks/protocol.py runs --encoder FOLDER --teacher FOLDER --sentences FILE --sts FOLDER
    python benchmarks/protocol.py steps --encoder FOLDER --teacher FOLDER --sentences FILE --sts FOLDER

A method is a file of ``benchmarks/protocol`` over ``common.yaml`` there and the recipe ``simcse``: 300 steps of
64 texts, validated every 50. Each method is tuned with the first seed: two rates, and two temperatures where its
loss has one. The development pairs are those of SICK and of STS-B that are in no test set. The best setting then
trains with all seeds, and the weights of its best validation are scored: STS12, STS14, STS15, STS-B and SICK-R.
With ``--second``, the five best methods and SimCSE are trained from a second start with equal settings: the first
two layers of the start, which predict tokens badly, after masked language modeling on the same sentences.

Finished runs are kept in ``--out``, as are the rows of ``--earlier``, filed results, and aren't repeated.
``protocol_table.py`` writes the tables and the curve. ``steps`` times the training step of each method in turns.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import Callback
from runs import RESULTS, ROOT, do, drop_weights, held, in_folder, keep, logged, machine, markdown, publish
from timing import Contender, Turn, ratio_and_range, take_turns
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from contrastive_text import Run, SentenceEncoder
from contrastive_text.cli.configuration import configured
from contrastive_text.cli.words import expand_recipes
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.sts import aggregate, pair_cosines
from contrastive_text.evaluation.sts_data import STSPairs, find_pairs, find_sts
from contrastive_text.metrics.bootstrap import PairedBootstrap, paired_bootstrap_spearman

TASKS = ("STS12", "STS14", "STS15", "STS-B", "SICK-R")
GEOMETRY = ("val/alignment", "val/uniformity", "val/effective_rank")
DEVELOPMENT = "val/spearman"
RATES = ("1e-4", "3e-4")
TEMPERATURES = ("0.05", "0.1")
TEMPERATURE = "model.objectives.contrastive.init_args.loss.init_args.temperature"
SEEDS = (1, 2, 3, 4, 5)
RESAMPLES = 1000
"""Number of resamples of the test pairs, which are the same for all runs."""
BASELINE = "simcse"
BEST = 5
"""Number of methods that are trained from the second start."""
SECOND_LAYERS = 2
SECOND_WORDS = [
    *("--model.optimizer.lr", "5e-4", "--model.schedule.warmup_ratio", "0.1"),
    *("--trainer.max_steps", "1000", "--trainer.limit_val_batches", "0"),
]
"""Options of the masked language modeling that makes the second start."""
AT_ONCE = 4
"""Methods that take turns with SimCSE: a process of each has some 2 GB."""


class Method(NamedTuple):
    """A row of the table.

    Args:
        said: Name in the table.
        tempered: Whether the contrastive loss has a temperature to tune.
        teacher: Option for the file of the teacher's vectors; None for a method without a teacher.
        start: Further option that names the start; None if there is none.
    """

    said: str
    tempered: bool = True
    teacher: str | None = None
    start: str | None = None


METHODS = {
    "diffcse": Method("DiffCSE", start="model.objectives.replaced.init_args.generator"),
    "tsdae": Method("TSDAE", tempered=False),
    "promptbert": Method("PromptBERT"),
    "consert": Method("ConSERT"),
    "esimcse": Method("ESimCSE"),
    "clear": Method("CLEAR"),
    "declutr": Method("DeCLUTR, following sentences"),
    "simcse": Method("SimCSE"),
    "dcl": Method("DCL"),
    "rankcse": Method("RankCSE", teacher="model.guides.teacher.init_args.path"),
    "gist": Method("GIST", teacher="model.guides.teacher.init_args.path"),
    "barlow": Method("Barlow Twins", tempered=False),
    "vicreg": Method("VICReg", tempered=False),
    "align_uniform": Method("alignment + uniformity", tempered=False),
    "mlm": Method("MLM alone", tempered=False),
}
"""Methods, the slowest first, so that processes finish together."""


class Setting(NamedTuple):
    """Values that a method is tuned over.

    Args:
        rate: Learning rate.
        temperature: Temperature of the contrastive loss; None for a method without one.
    """

    rate: str
    temperature: str | None = None

    def words(self) -> list[str]:
        """Returns the options of a run.

        Example:
            >>> Setting("1e-4").words()
            ['--model.optimizer.lr', '1e-4']
        """
        words = ["--model.optimizer.lr", self.rate]
        return words if self.temperature is None else [*words, f"--{TEMPERATURE}", self.temperature]

    def name(self) -> str:
        """Returns the name of the setting's folder."""
        return self.rate if self.temperature is None else f"{self.rate}-{self.temperature}"


class Job(NamedTuple):
    """A run.

    Args:
        method: Name of the method.
        setting: Rate and temperature.
        seed: Seed of the run.
        encoder: Folder of the start.
        place: Folder of the row: ``tuning``, ``seeds`` or ``second``.
    """

    method: str
    setting: Setting
    seed: int
    encoder: Path
    place: str

    def folder(self, out: Path) -> Path:
        """Returns the folder of the run."""
        return out / self.place / self.method / self.setting.name() / f"seed-{self.seed}"


class Turns(Callback):
    """Ends a turn of the timing at every step.

    Args:
        turn: Turn of this process.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Waits for the first turn."""
        self.turn.loaded()

    def on_train_batch_end(self, *_: object) -> None:
        """Counts a step."""
        self.turn.ended_step(tokens=0)


def test_pairs(sts: Path) -> dict[str, STSPairs]:
    """Returns the scored pairs of the test sets."""
    found = find_sts(sts)
    return {name: pairs for name in TASKS if isinstance(pairs := found[name], STSPairs)}


def unordered_pairs(pairs: STSPairs) -> list[frozenset[str]]:
    """Returns the texts of each pair, in lower case and without order."""
    return [
        frozenset({a.lower().strip(), b.lower().strip()}) for a, b in zip(pairs.first, pairs.second, strict=True)
    ]


def write_development(sts: Path, out: Path) -> dict[str, tuple[int, int]]:
    """Writes the development pairs that are in no test set. Returns set -> their number before and after."""
    tested = {pair for pairs in test_pairs(sts).values() for pair in unordered_pairs(pairs)}
    counts = {}
    for task in ("STS-B", "SICK-R"):
        pairs = find_pairs(task, sts, split="dev")
        assert isinstance(pairs, STSPairs), pairs
        rows = zip(pairs.gold.tolist(), pairs.first, pairs.second, unordered_pairs(pairs), strict=True)
        left = [(gold, first, second) for gold, first, second, pair in rows if pair not in tested]
        counts[task] = (len(pairs), len(left))
        lines = ["score\tsentence1\tsentence2", *(f"{gold}\t{first}\t{second}" for gold, first, second in left)]
        (out / f"{task}.dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return counts


def run_job(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of a run, which is trained if it isn't finished."""
    torch.set_num_threads(options.threads)
    return keep(job.folder(options.out), partial(train, job, options))


def train(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Trains a run. Returns its validations, and the scores of its best weights unless it only tunes."""
    folder = job.folder(options.out)
    if job.place == "second":
        keep(job.encoder.parent, partial(make_second_start, options))
    words = [*method_words(job.method, job.encoder, options), *job.setting.words()]
    words += [
        "--data.validation",
        json.dumps([str(options.out / f"{task}.dev.tsv") for task in ("STS-B", "SICK-R")]),
    ]
    do(in_folder("fit", words, folder, job.seed))
    with next(folder.rglob("metrics.csv")).open() as file:
        logged = [line for line in csv.DictReader(file) if line.get(DEVELOPMENT)]
    names = (DEVELOPMENT, *GEOMETRY)
    validations = {  # the logger counts steps from 0
        str(1 + int(line["step"])): {name: float(line[name]) for name in names if line[name]} for line in logged
    }
    row = {
        **job._asdict(),
        "encoder": job.encoder.name,
        "setting": job.setting._asdict(),
        "validations": validations,
    }
    if job.place != "tuning":
        row |= test_scores(
            SentenceEncoder.from_pretrained(next(folder.rglob("modules.json")).parent), options.sts
        )
    drop_weights(folder)
    return row


def test_scores(encoder: SentenceEncoder, sts: Path) -> dict[str, Any]:
    """Returns a model's score of each test set, their mean, and the mean score of each resample of the pairs."""
    tests, embed = test_pairs(sts), CachedEncoder(encoder)
    return scores_of({name: pair_cosines(embed, pairs) for name, pairs in tests.items()}, tests)


def score_untrained(options: argparse.Namespace) -> None:
    """Scores the teacher with its own pooler, and the starts with the mean over tokens, before training."""
    folders = {"teacher": options.teacher, "start": options.encoder}
    if second_start(options).exists():
        folders["second start"] = second_start(options)

    def row(name: str, folder: Path) -> dict[str, Any]:
        pooler = None if name == "teacher" else "MeanPooler"
        scored = test_scores(SentenceEncoder.from_pretrained(folder, pooler), options.sts)
        return {"name": name, "scores": scored["scores"]}

    for name, folder in folders.items():
        keep(options.out / "untrained" / name, partial(row, name, folder))


def scores_of(cosines: Mapping[str, torch.Tensor], tests: Mapping[str, STSPairs]) -> dict[str, Any]:
    """Returns the scores of the test sets of given cosines; see ``test_scores``."""
    scores = {task: aggregate(cosines[task], pairs, "all")[0] for task, pairs in tests.items()}
    against_gold = [
        paired_bootstrap_spearman(
            pairs.gold,
            cosines[task],
            target=pairs.gold,
            resamples=RESAMPLES,
            generator=torch.Generator().manual_seed(0),  # the same pairs for all runs
        )
        for task, pairs in tests.items()
    ]
    resampled = 100 * (1 + PairedBootstrap.mean(against_gold).resample_differences)  # gold's own score is 1
    mean = statistics.mean(scores.values())
    return {"scores": {**scores, "mean": mean}, "resampled": [round(each, 3) for each in resampled.tolist()]}


def train_in_turns(words: Sequence[str], turn: Turn) -> None:
    """Trains in turns, without validation and without end."""
    run = Run(*configured("fit", expand_recipes(words)))
    vars(run.trainer)["callbacks"].append(Turns(turn))
    run.fit()


def method_words(name: str, encoder: Path, options: argparse.Namespace) -> list[str]:
    """Returns the options of a method's runs from a start."""
    folder, method = ROOT / "benchmarks" / "protocol", METHODS[name]
    words = ["--recipe", "simcse", "--config", str(folder / "common.yaml")]
    words += ["--config", str(own)] if (own := folder / f"{name}.yaml").exists() else []
    words += ["--model.encoder.model_name_or_path", str(encoder)]
    words += ["--data.train", str(options.sentences), "--trainer.precision", options.precision]
    words += [f"--{method.teacher}", str(teacher_vectors(options))] if method.teacher else []
    words += [f"--{method.start}", str(encoder)] if method.start else []
    return [*words, *options.words]


def teacher_vectors(options: argparse.Namespace) -> Path:
    """Returns the file of the teacher's vectors of the sentences, which is written once."""
    path: Path = options.out / "teacher.npy"
    with held(path):
        if not path.exists():
            do(["embed", str(options.sentences), str(path), "--model", str(options.teacher), "--distinct"])
    return path


def second_start(options: argparse.Namespace) -> Path:
    """Returns the folder of the second start; the first run from it makes it."""
    path: Path = options.out / "second_start" / f"{options.encoder.name}-{SECOND_LAYERS}-layers"
    return path


def make_second_start(options: argparse.Namespace) -> dict[str, Any]:
    """Trains the first layers of the start by masked language modeling. Returns the last losses."""
    path = second_start(options)
    cut, run = path.with_name("cut"), path.with_name("run")
    config = AutoConfig.from_pretrained(options.encoder, num_hidden_layers=SECOND_LAYERS)
    AutoModelForMaskedLM.from_pretrained(options.encoder, config=config, dtype=torch.float32).save_pretrained(cut)
    AutoTokenizer.from_pretrained(options.encoder).save_pretrained(cut)
    do(in_folder("fit", [*method_words("mlm", cut, options), *SECOND_WORDS, *options.words], run, SEEDS[0]))
    next(run.rglob("modules.json")).parent.rename(path)
    return {"losses": logged(run, "train/loss")[-20:]}


def settings_of(method: str) -> list[Setting]:
    """Returns the settings that a method is tuned over.

    Example:
        >>> [setting.name() for setting in settings_of("simcse")], len(settings_of("barlow"))
        (['1e-4-0.05', '1e-4-0.1', '3e-4-0.05', '3e-4-0.1'], 2)
    """
    temperatures = TEMPERATURES if METHODS[method].tempered else (None,)
    return [Setting(rate, temperature) for rate in RATES for temperature in temperatures]


def tuned(rows: Sequence[Mapping[str, Any]]) -> dict[str, Setting]:
    """Returns the setting of each method with the highest development score."""
    best: dict[str, tuple[float, Setting]] = {}
    for row in rows:
        score = development_score(row)
        if score > best.get(row["method"], (float("-inf"), None))[0]:
            best[row["method"]] = score, Setting(**row["setting"])
    return {method: setting for method, (_, setting) in best.items()}


def best_step(row: Mapping[str, Any]) -> str:
    """Returns the step of a run's best validation. A validation before the first step doesn't count."""
    steps = [step for step in row["validations"] if int(step)]
    return max(steps, key=lambda step: float(row["validations"][step][DEVELOPMENT]))


def development_score(row: Mapping[str, Any]) -> float:
    """Returns the development score of a run's best validation."""
    return float(row["validations"][best_step(row)][DEVELOPMENT])


def by_method(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns method -> rows of its seeds, the best mean test score first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    means = {name: statistics.mean(row["scores"]["mean"] for row in each) for name, each in found.items()}
    return dict(sorted(found.items(), key=lambda item: -means[item[0]]))


def all_rows(out: Path, place: str) -> list[dict[str, Any]]:
    """Returns the rows of all finished runs of a kind, in the order of the methods."""
    files = sorted((out / place).glob("*/*/seed-*/row.json"))
    rows = [json.loads(path.read_text()) for path in files]
    return sorted(rows, key=lambda row: ([*METHODS].index(row["method"]), row["seed"]))


def work_off(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains runs in several processes. Yields their rows; a run that fails is printed, and others continue."""
    if options.workers == 1:
        yield from (run_job(job, options) for job in jobs)
        return
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job, options): job for job in jobs}
        for future in as_completed(futures):
            try:
                yield future.result()
            except Exception:
                print(f"FAILED {futures[future]}")
                traceback.print_exc()


def take_over(earlier: Path, out: Path) -> None:
    """Stores the runs of a filed result, and their configurations, in the folder of the runs."""
    filed = json.loads(earlier.read_text())
    for row in filed["rows"]:
        setting, names = Setting(**row["setting"]), {name: row[name] for name in ("setting", "place", "encoder")}
        for run in row["runs"]:
            job = Job(row["name"], setting, run["seed"], Path(row["encoder"]), row["place"])
            keep(job.folder(out), partial(dict[str, Any], {"method": row["name"], **names, **run}))
    for folder, configuration in filed["configuration"].items():
        if not [*(out / folder).glob("version_*")]:
            (out / folder / "version_0").mkdir(parents=True)
            (out / folder / "version_0" / "config.yaml").write_text(yaml.safe_dump(configuration))


def run_all(options: argparse.Namespace) -> None:
    """Tunes all methods, trains each best setting with all seeds, and the best methods from a second start."""
    options.out.mkdir(parents=True, exist_ok=True)
    for earlier in options.earlier:
        take_over(earlier, options.out)
    counts = write_development(options.sts, options.out)
    (options.out / "development.json").write_text(json.dumps(counts))
    if any(METHODS[name].teacher for name in options.only):
        teacher_vectors(options)
    tuning = [(name, setting) for name in options.only for setting in settings_of(name)]
    jobs = [Job(name, setting, SEEDS[0], options.encoder, "tuning") for name, setting in tuning]
    settings = tuned(list(work_off(jobs, options)))
    seeds = [(name, seed) for seed in SEEDS[: options.seeds] for name in options.only if name in settings]
    jobs = [Job(name, settings[name], seed, options.encoder, "seeds") for name, seed in seeds]
    ranked = by_method(list(work_off(jobs, options)))
    if options.second:
        start, best = second_start(options), {BASELINE, *list(ranked)[:BEST]}
        jobs = [Job(name, settings[name], seed, start, "second") for name, seed in seeds if name in best]
        list(work_off(jobs, options))
    score_untrained(options)


def time_steps(options: argparse.Namespace) -> None:
    """Times the methods in turns with SimCSE, a few at once, and writes the table."""
    names = [name for name in options.only if name != BASELINE]
    seconds = {}
    for first in range(0, len(names), AT_ONCE):
        few = names[first : first + AT_ONCE]
        turns = turns_of([BASELINE, *few], options)
        seconds |= {name: {"own": turns[name], BASELINE: turns[BASELINE]} for name in few}
    ratios = {name: ratio_and_range(each["own"], each[BASELINE]) for name, each in seconds.items()}
    table = [[METHODS[name].said, ratio] for name, ratio in ratios.items()]
    lines = ["# A training step of each method", "", f"{machine()}; {options.precision}."]
    lines += [f"Rounds in turns: {options.rounds}, of {options.steps} steps of 64 texts.", ""]
    lines += markdown(["", "seconds of a step, SimCSE's = 1: median, range"], table)
    print("\n".join(lines))
    words = {name: method_words(name, options.encoder, options) for name in [BASELINE, *seconds]}
    print(publish("protocol_steps", lines, seconds, words, folder=options.results))


def turns_of(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the seconds of each turn of some methods, some steps each."""
    endless = ["--trainer.max_steps", "100000", "--trainer.limit_val_batches", "0"]
    with ExitStack() as stack, TemporaryDirectory() as folder:
        place = ["--trainer.default_root_dir", folder, "--trainer.enable_progress_bar", "false"]
        contenders = {
            name: stack.enter_context(
                Contender(
                    train_in_turns,
                    [*method_words(name, options.encoder, options), *endless, *place],
                    threads=1,
                    device="cpu",
                )
            )
            for name in names
        }
        works: dict[str, Callable[[], Any]] = {
            name: partial(contender, options.steps) for name, contender in contenders.items()
        }
        for work in works.values():
            work()  # the first steps of a process take longer
        found = take_turns(works, options.rounds)
    return {name: [answer.seconds for answer in answers] for name, answers in found.items()}


def main() -> None:
    """Makes the runs, or times steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("runs", "steps"))
    for name in ("encoder", "teacher", "sentences", "sts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--second", action="store_true", help="train the best methods from a second start too")
    parser.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS), help="methods")
    parser.add_argument(
        "--earlier", type=Path, nargs="*", default=[], help="filed JSON whose runs aren't repeated"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "protocol")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=1, help="threads of a run")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed where the processor is faster with it")
    parser.add_argument("--rounds", type=int, default=10, help="of steps")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    options, options.words = parser.parse_known_args()
    if options.what == "steps":
        time_steps(options)
    else:
        run_all(options)


if __name__ == "__main__":
    main()
