"""Checkpoints and configurations of others: nothing that only they name is imported or made."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import shutil
import sys
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import crossed, rest_slow
from foreign_code import EVIL, POPEN
from shells import Shell

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.cli import run
from contrastive_text.core.config.untrusted import check_untrusted
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.recipes.layers import read_config
from contrastive_text.runs.ensemble import TaskEnsemble
from contrastive_text.training.run_parser import importing_parts, run_parser


def put(saved: dict[str, Any], place: str, value: object) -> None:
    """Puts a value at a place of a checkpoint."""
    *way, last = place.split("|")
    at: Any = saved
    for name in way:
        at = at[name]
    at[last] = value


MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"

NLPAUG = {"class_path": "NlpaugView", "init_args": {"augmenter": "evil.Evil"}}

HOLES: dict[str, tuple[str, object]] = {
    "a shell command among the columns": (f"{DATA}|task|columns", POPEN),
    "a shell command in a column": (f"{DATA}|task|columns", {"anchor": POPEN}),
    "a shell command in the encoder's configuration": (f"{MODEL}|encoder|init_args|config", POPEN),
    "a shell command in an augmenter's arguments": (
        f"{MODEL}|views",
        {"anchor": [{**NLPAUG, "init_args": {"augmenter": "nlpaug.Augmenter", "arguments": POPEN}}]},
    ),
    "an augmenter": (f"{MODEL}|views", {"anchor": [NLPAUG]}),
    "a shell command in place of a pooler": (f"{MODEL}|pooler", POPEN),
    "a class of the working directory": (f"{MODEL}|pooler", EVIL),
    "a class as a word": (f"{MODEL}|pooler", "evil.Evil"),
    "a class as text": (f"{MODEL}|pooler", json.dumps(EVIL)),
    "a file that names a class": (f"{MODEL}|pooler", "evil.yaml"),
    "a class inside a part": (f"{MODEL}|objectives|contrastive|init_args|loss", EVIL),
    "a chain of views": (f"{MODEL}|views", {"anchor": "evil.Evil"}),
    "a view of a task": (f"{MODEL}|views", {"a": {"anchor": [EVIL]}}),
    "a pairing": (f"{DATA}|task|pairing", EVIL),
    "the pairing of a task": (f"{DATA}|tasks", {"a": {"train": "a.txt", "pairing": EVIL}}),
    "a task": (f"{DATA}|tasks", {"a": EVIL}),
    "another module": (f"{MODEL}|_class_path", "evil.Evil"),
    "another instantiator": (f"{MODEL}|_instantiator", "evil.Evil"),
    "arguments under an older name": ("hparams", {"pooler": EVIL}),
    "arguments in the place of one": ("hparams_name", "head"),
    "a dotted name": (f"{MODEL}|pooler.class_path", "evil.Evil"),
    "a name with a plus": (f"{MODEL}|pooler+", "evil.Evil"),
    "a dotted name inside a part": (f"{MODEL}|objectives|contrastive|init_args|loss.class_path", "evil.Evil"),
    "a dotted name in a task": (f"{DATA}|tasks", {"a": {"train": "a.txt", "pairing.class_path": "evil.Evil"}}),
}


def _foreign_run(hole: str, folder: Path, finished: dict[str, str]) -> Path:
    """Makes a run and an ensemble of a damaged checkpoint, and gives the checkpoint."""
    saved = copy.deepcopy(torch.load(finished["checkpoint"], weights_only=True))
    put(saved, *HOLES[hole])
    place = folder / "foreign" / "checkpoints" / "step=5.ckpt"
    place.parent.mkdir(parents=True)
    torch.save(saved, place)
    (folder / "ensemble").mkdir()
    shutil.copy(place, folder / "ensemble" / "member-1.ckpt")
    choice = {"member": "member-1.ckpt", "metric": "m", "score": 1, "validation": [], "rows": None, "source": ""}
    (folder / "ensemble" / "ensemble.json").write_text(json.dumps({"tasks": {"a": choice}}))
    return place


@pytest.mark.parametrize("hole", rest_slow(HOLES, quick=2))
def test_a_checkpoint_has_nothing_imported_or_made(hole: str, foreign: Path, finished: dict[str, str]) -> None:
    place = _foreign_run(hole, foreign, finished)
    calls: dict[str, Callable[[], object]] = {
        MODEL: lambda: ContrastiveModule.load_from_checkpoint(place),
        DATA: lambda: TextDataModule.load_from_checkpoint(place),
        "either": lambda: TaskEnsemble.load("ensemble", device="cpu"),
    }
    for where, call in calls.items():
        if HOLES[hole][0].startswith(where) or where == "either":
            with pytest.raises(ContrastiveTextError):
                call()
        elif "|" not in HOLES[hole][0]:
            with contextlib.suppress(ContrastiveTextError):
                call()
    if hole == "a shell command among the columns":  # tests/hostile has the other commands
        run(["report", "foreign", "--limit", "4"])


KEYS = (
    *("{}.class_path", "{}+", "{}.init_args.x.class_path", "{}.x", "init_args.{}", "init_args.{}.class_path"),
    *("+{}", ".{}", "{}.", "{} ", "class_path", "_class_path", "dict_kwargs"),
)
"""Spellings of a name."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [("model",), ("model", "encoder"), ("model", "encoder", "init_args"), ("data",)]
)
@pytest.mark.usefixtures("foreign")
def test_no_spelling_of_a_name_has_anything_imported(place: tuple[str, ...], finished: dict[str, str]) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    config: dict[str, Any] = {"model": saved[MODEL], "data": {**saved[DATA], "seed": None}}
    for inner in config.values():
        inner.pop("_instantiator")
    at: Any = config
    for name in place:
        at = at[name]
    before = dict(at)
    values = itertools.cycle(
        ("evil.Evil", json.dumps(EVIL), "evil.yaml")
    )  # each spelling meets each, name by name
    for key in dict.fromkeys(key.format(name) for name in (*before, "pairing") for key in KEYS):
        at[key] = next(values)
        with contextlib.suppress(ValueError):
            check_untrusted(config, "a.ckpt")
            with importing_parts(config, is_foreign=True), contextlib.suppress(ArgumentError):
                run_parser().parse_object(config)
        at.clear()
        at.update(before)


@pytest.mark.parametrize(
    "columns", rest_slow([{"pairing.class_path": "evil.Evil"}, {"anchor": json.dumps(EVIL)}])
)
def test_a_part_among_the_names_of_columns_is_a_name(
    columns: dict[str, str], foreign: Path, finished: dict[str, str]
) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    put(saved, f"{DATA}|task|columns", columns)
    torch.save(saved, foreign / "a.ckpt")
    assert TextDataModule.load_from_checkpoint(foreign / "a.ckpt").task.columns == columns


def test_a_misspelt_argument_of_a_checkpoint_is_answered(here: Path, finished: dict[str, str]) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    saved[MODEL]["poler"] = None
    torch.save(saved, here / "a.ckpt")
    with pytest.raises(ContrastiveTextError, match="did you mean pooler"):
        ContrastiveModule.load_from_checkpoint(here / "a.ckpt")


# Configurations: parts that they name, and the one in the folder of a run that others made


def test_a_place_of_a_part_takes_parts_of_its_kind_from_any_module(shell: Shell, here: Path) -> None:
    (here / "kind.py").write_text(
        "from contrastive_text.poolers import MeanPooler\nfrom pytorch_lightning import Callback\n"
        "class Mine(MeanPooler):\n    pass\nclass Told(Callback):\n    pass\n"
    )
    (here / "right.yaml").write_text(
        "model: {pooler: {class_path: kind.Mine}}\ntrainer: {callbacks: [{class_path: kind.Told}]}\n"
    )
    (here / "wrong.yaml").write_text("model: {pooler: {class_path: kind.Told}}\n")
    chosen = "sweep --recipe simcse TINY --dry_run --vary model.combine=none --data.validation PAIRS --config"
    shell(f"{chosen} right.yaml")
    shell.refused(f"{chosen} wrong.yaml")
    del sys.modules["kind"]


# A run's own file

FSDP = "pytorch_lightning.strategies.FSDPStrategy"
CALLS = "pytorch_lightning.callbacks.LambdaCallback"


POLICIES = ["evil.Evil", ["evil.Evil"], "[evil.Evil]", "- evil.Evil", EVIL, {"x": EVIL}]
FSDP_ARGUMENTS = ("auto_wrap_policy", "cpu_offload", "mixed_precision", "device_mesh", "anything_else")


def parse_trainer(place: str, value: object) -> None:
    with importing_parts({}, is_foreign=True), contextlib.suppress(Exception):
        run_parser().parse_object({"trainer": {place: value}, "model": {"encoder": "TransformerEncoder"}})


@pytest.mark.parametrize(("argument", "value"), crossed(FSDP_ARGUMENTS, POLICIES))
@pytest.mark.usefixtures("foreign")
def test_a_run_s_file_has_nothing_imported_for_its_strategy(argument: str, value: object) -> None:
    parse_trainer("strategy", {"class_path": FSDP, "init_args": {argument: value}})


@pytest.mark.usefixtures("foreign")
def test_a_run_s_file_has_nothing_imported_for_its_trainer() -> None:
    Path("evil").write_text("class_path: evil.Evil\n")
    places = [
        *(
            (name, text)
            for name in ("strategy", "profiler", "logger", "callbacks")
            for text in ("evil.yaml", "evil")
        ),
        ("callbacks", "evil.Evil"),
        ("callbacks", [{"class_path": CALLS, "init_args": {"on_fit_start": "os.system"}}]),
    ]
    for place, value in places:
        parse_trainer(place, value)


RESUMED: dict[str, Any] = {
    "a dotted place": {"model.pooler": "evil.Evil"},
    "dotted callbacks": {"trainer.callbacks": [EVIL]},
    "one callback more": {"trainer": {"callbacks+": EVIL}},
    "a dotted argument": {"trainer": {"x.callbacks": [EVIL]}},
    "an argument beside a part's": {"model": {"encoder": {"init_args": {}, "class_path+": "evil.Evil"}}},
    "another file": {"config": "evil.yaml"},
    "another command": {"fit": {"model": {"pooler": "evil.Evil"}}},
    "a name that no run has": {"optimizer": EVIL},
    "a part in place of a number": {"chunk": EVIL},
    "parts in place of a model": {"model": [EVIL]},
    "pickles": {"model": {"pooler": EVIL}, "weights_only": False},
}


def test_a_run_that_is_resumed_has_nothing_imported(
    shell: Shell, foreign: Path, finished: dict[str, str]
) -> None:
    place = foreign / "run"
    (place / "checkpoints").mkdir(parents=True)
    shutil.copy(finished["checkpoint"], place / "checkpoints")
    config = read_config(Path(finished["folder"]) / "config.yaml")
    for hole, value in RESUMED.items():
        changed = {
            name: {**config[name], **inner}
            if name in config and isinstance(inner, dict) and name != "chunk"
            else inner
            for name, inner in value.items()
        }
        (place / "config.yaml").write_text(json.dumps({**config, **changed}))
        assert shell.status(f"fit --resume {place}") == 2, hole
        assert "error: " in shell.capture.readouterr().err, hole
