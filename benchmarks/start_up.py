"""Measures how long imports, help texts and the first training step take, ours and sentence-transformers'.

    python benchmarks/start_up.py --encoder FOLDER --texts TEXTS.txt

Each figure is of a process of its own, from its start to the mark; the processes take turns, ``--rounds`` rounds
after one that doesn't count. The first step is one of unsupervised SimCSE: 64 texts, each twice, 32 tokens at the
most, the same encoder and file for all; its end is that of the update. ``--texts`` has a text a line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

BATCH, TOKENS, LR = 64, 32, 3e-5
_BEGUN = "START_UP_BEGUN"
"""Environment variable with the time at which the process was started."""


class Mark(NamedTuple):
    """A place in a process: its name, and the seconds since the start, by the clock and of all cores."""

    name: str
    clock: float
    cores: float


_marks: list[Mark] = []


def mark(name: str) -> None:
    """Notes that a process has come to a place."""
    _marks.append(Mark(name, time.time() - float(os.environ[_BEGUN]), sum(os.times()[:4])))


def end(*_: object, **__: object) -> None:
    """Tells the marks and leaves; what would follow the first step doesn't count."""
    mark("first step")
    print(json.dumps(_marks), flush=True)
    os._exit(0)


def python_step(encoder: str, texts: str) -> None:
    """Ours from Python: recipe, data, trainer."""
    import pytorch_lightning as pl

    from contrastive_text import ContrastiveModule, TextDataModule

    class FirstStep(pl.Callback):
        on_train_batch_end = end

    mark("imports")
    module = ContrastiveModule.from_recipe("simcse", encoder)
    mark("model")
    data = TextDataModule(train=texts, batch_size=BATCH)
    trainer = pl.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[FirstStep()],
    )
    mark("trainer")
    trainer.fit(module, datamodule=data)


def shell_step(encoder: str, texts: str) -> None:
    """Ours from the shell, with all that a run prints, logs and keeps."""
    from contrastive_text.cli import run, train
    from contrastive_text.training import Run
    from contrastive_text.training.callbacks import RunSummary

    def then(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*given: Any, **named: Any) -> Any:  # Any: whatever the function takes
            result = function(*given, **named)
            mark(name)
            return result

        return marked

    mark("imports")
    train.configured = then("arguments", train.configured)
    Run.__init__ = then("model", Run.__init__)  # type: ignore[method-assign]  # marks the time after it
    RunSummary.on_train_batch_end = end  # type: ignore[method-assign]  # the summary is part of every run
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "fit",
            "--recipe",
            "simcse",
            "--model.encoder.model_name_or_path",
            encoder,
            "--data.train",
            texts,
        ]
        words += [
            "--trainer.max_steps",
            "1",
            "--trainer.default_root_dir",
            folder,
            "--trainer.accelerator",
            "cpu",
        ]
        run([*words, "--export.dirpath", f"{folder}/model"])


def peer_step(encoder: str, texts: str) -> None:
    """Sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    class FirstStep(TrainerCallback):
        on_step_end = end

    mark("imports")
    model = SentenceTransformer(encoder, device="cpu")
    model.max_seq_length = TOKENS
    mark("model")
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                max_steps=1,
                per_device_train_batch_size=BATCH,
                learning_rate=LR,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[FirstStep()],
        )
        mark("trainer")
        trainer.train()


STEPS = {"ours, from Python": python_step, "ours, from the shell": shell_step, "sentence-transformers": peer_step}
_BERT = "from transformers.models.bert import modeling_bert"
PLAIN = {
    "bare interpreter": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch and transformers' BERT": ["-c", f"import torch; {_BERT}"],
    "the same and pytorch_lightning": ["-c", f"import torch; {_BERT}; import pytorch_lightning"],
    "import contrastive_text": ["-c", "import contrastive_text"],
    "from contrastive_text import SentenceEncoder": ["-c", "from contrastive_text import SentenceEncoder"],
    "import sentence_transformers": ["-c", "import sentence_transformers"],
    "contrastive-text --help": ["-m", "contrastive_text", "--help"],
    "contrastive-text fit --help": ["-m", "contrastive_text", "fit", "--help"],
}
ONE_TEXT = {
    "ours, one text": "from contrastive_text import SentenceEncoder as M; make = M.from_pretrained",
    "sentence-transformers, one text": "from sentence_transformers import SentenceTransformer as make",
}
"""Contender -> code that names the function which loads a model."""


def measured(words: Sequence[str], threads: int) -> list[Mark]:
    """Starts a process and gives its marks; the only one of a process that sets none is its end."""
    before = os.times()
    begun = time.time()
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # a process that is left cleans nothing up
        settings = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **settings, "TMPDIR": folder, _BEGUN: str(begun)},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
        )
    clock, after = time.time() - begun, os.times()
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
    if "--step" in words:
        return [Mark(*each) for each in json.loads(done.stdout.splitlines()[-1])]
    return [Mark("end", clock, sum(after[2:4]) - sum(before[2:4]))]


def main() -> None:
    """Measures all and writes the dated table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the result; benchmarks/results if left out")
    parser.add_argument("--step", choices=STEPS, help="what a process of the first step runs")
    options = parser.parse_args()
    encoder, texts = (str(Path(each).absolute()) for each in (options.encoder, options.texts))
    if options.step:
        STEPS[options.step](encoder, texts)
        raise SystemExit("there was no first step")
    own = [str(Path(__file__).absolute()), "--encoder", encoder, "--texts", texts]
    from timing import take_turns

    encode = "import sys; make(sys.argv[1], device='cpu').encode(['a bird sings'])"
    one_text = {name: ["-c", f"{code}; {encode}", encoder] for name, code in ONE_TEXT.items()}
    commands = PLAIN | one_text | {name: [*own, "--step", name] for name in STEPS}
    works = {name: partial(measured, words, options.threads) for name, words in commands.items()}
    turns = take_turns(works, options.rounds + 1)
    write({name: each[1:] for name, each in turns.items()}, options)


def spread(values: Sequence[float]) -> str:
    """Returns the median, and the least and the greatest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write(found: dict[str, list[list[Mark]]], options: argparse.Namespace) -> None:
    """Writes the dated table and its JSON."""
    from machines import machine
    from runs import RESULTS, markdown, publish

    totals = [
        [name, *(spread([getattr(turn[-1], kind) for turn in turns]) for kind in ("clock", "cores"))]
        for name, turns in found.items()
    ]
    stages = [
        [name, turns[0][i].name, *(f"{middle:.2f}" for middle in parts)]
        for name, turns in found.items()
        if name in STEPS
        for i in range(len(turns[0]))
        if (parts := [_part(turns, i, kind) for kind in ("clock", "cores")])
    ]
    peer = "sentence-transformers"
    ratios = [
        [name, *(spread([_ratio(a, b, kind) for a, b in zip(found[name], found[peer], strict=True)])
                 for kind in ("clock", "cores"))]
        for name in STEPS if name != peer
    ]  # fmt: skip
    lines = [
        "# Start-up",
        "",
        f"{machine(options.threads, 'cpu')}; medians of {options.rounds} rounds, least and greatest in "
        f"brackets. Encoder: `{Path(options.encoder).parent.name}`. Written by `benchmarks/start_up.py`.",
        "",
        "## Seconds from the start of the process",
        "",
        *markdown(["to the end of", "by the clock", "of all cores"], totals),
        "",
        "## First step: where the seconds go",
        "",
        *markdown(["", "up to and with", "by the clock", "of all cores"], stages),
        "",
        "## First step: times sentence-transformers', round by round",
        "",
        *markdown(["", "by the clock", "of all cores"], ratios),
    ]
    rows = [
        {"what": name, "round": number, "marks": [mark._asdict() for mark in marks]}
        for name, turns in found.items()
        for number, marks in enumerate(turns, start=1)
    ]
    print(publish("start_up", lines, rows, vars(options), folder=options.out or RESULTS).read_text())


def _part(turns: Sequence[Sequence[Mark]], i: int, kind: str) -> float:
    """Returns the median seconds between a mark and the one before it."""
    return statistics.median(
        getattr(turn[i], kind) - (getattr(turn[i - 1], kind) if i else 0.0) for turn in turns
    )


def _ratio(ours: Sequence[Mark], theirs: Sequence[Mark], kind: str) -> float:
    return float(getattr(ours[-1], kind) / getattr(theirs[-1], kind))


if __name__ == "__main__":
    main()
