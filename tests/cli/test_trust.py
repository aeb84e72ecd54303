"""Checkpoints of others: nothing that only they name is imported or made, by whatever reads them."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import rest_slow
from foreign_code import EVIL, POPEN

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.cli import run
from contrastive_text.core.config.foreign import check_foreign
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.runs.ensemble import TaskEnsemble
from contrastive_text.training.run_parser import importing_parts, run_parser


def _in_checkpoint(saved: dict[str, Any], place: str, value: object) -> None:
    at: Any = saved
    *way, last = place.split(".")
    for name in way:
        at = at[name]
    at[last] = value


MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"

NLPAUG = {"class_path": "NlpaugView", "init_args": {"augmenter": "evil.Evil"}}

HOLES: dict[str, tuple[str, object]] = {
    "a shell command among the columns": (f"{DATA}.task.columns", POPEN),
    "a shell command in a column": (f"{DATA}.task.columns", {"anchor": POPEN}),
    "a shell command in the encoder's configuration": (f"{MODEL}.encoder.init_args.config", POPEN),
    "a shell command in an augmenter's arguments": (
        f"{MODEL}.views",
        {"anchor": [{**NLPAUG, "init_args": {"augmenter": "nlpaug.Augmenter", "arguments": POPEN}}]},
    ),
    "an augmenter": (f"{MODEL}.views", {"anchor": [NLPAUG]}),
    "a shell command in place of a pooler": (f"{MODEL}.pooler", POPEN),
    "a class of the working directory": (f"{MODEL}.pooler", EVIL),
    "a class as a word": (f"{MODEL}.pooler", "evil.Evil"),
    "a class as text": (f"{MODEL}.pooler", json.dumps(EVIL)),
    "a file that names a class": (f"{MODEL}.pooler", "evil.yaml"),
    "a class inside a part": (f"{MODEL}.objectives.contrastive.init_args.loss", EVIL),
    "a chain of views": (f"{MODEL}.views", {"anchor": "evil.Evil"}),
    "a view of a task": (f"{MODEL}.views", {"a": {"anchor": [EVIL]}}),
    "a pairing": (f"{DATA}.task.pairing", EVIL),
    "the pairing of a task": (f"{DATA}.tasks", {"a": {"train": "a.txt", "pairing": EVIL}}),
    "a task": (f"{DATA}.tasks", {"a": EVIL}),
    "another module": (f"{MODEL}._class_path", "evil.Evil"),
    "another instantiator": (f"{MODEL}._instantiator", "evil.Evil"),
    "arguments under an older name": ("hparams", {"pooler": EVIL}),
    "arguments in the place of one": ("hparams_name", "head"),
}


def _foreign_run(hole: str, folder: Path, finished: dict[str, str]) -> Path:
    """Makes a run and an ensemble of a damaged checkpoint, and gives the checkpoint."""
    saved = copy.deepcopy(torch.load(finished["checkpoint"], weights_only=True))
    _in_checkpoint(saved, *HOLES[hole])
    place = folder / "foreign" / "checkpoints" / "step=5.ckpt"
    place.parent.mkdir(parents=True)
    torch.save(saved, place)
    (folder / "ensemble").mkdir()
    shutil.copy(place, folder / "ensemble" / "member-1.ckpt")
    choice = {"member": "member-1.ckpt", "metric": "m", "score": 1, "validation": [], "rows": None, "source": ""}
    (folder / "ensemble" / "ensemble.json").write_text(json.dumps({"tasks": {"a": choice}}))
    return place


@pytest.mark.parametrize("hole", rest_slow(HOLES, quick=4))
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
        elif "." not in HOLES[hole][0]:
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
    for key in dict.fromkeys(key.format(name) for name in (*before, "pairing") for key in KEYS):
        for value in ("evil.Evil", json.dumps(EVIL), "evil.yaml"):
            at[key] = value
            with contextlib.suppress(ValueError):
                check_foreign(config, "a.ckpt")
                with importing_parts(config, is_foreign=True), contextlib.suppress(ArgumentError):
                    run_parser().parse_object(config)
            at.clear()
            at.update(before)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (f"{MODEL}|pooler.class_path", "evil.Evil"),
        (f"{MODEL}|pooler+", "evil.Evil"),
        (f"{MODEL}|objectives|contrastive|init_args|loss.class_path", "evil.Evil"),
        (f"{DATA}|tasks", {"a": {"train": "a.txt", "pairing.class_path": "evil.Evil"}}),
        (f"{DATA}|task|columns", {"pairing.class_path": "evil.Evil"}),
        (f"{DATA}|task|columns", {"anchor": json.dumps(EVIL)}),
    ],
)
def test_a_dotted_name_or_a_part_as_text_in_a_checkpoint_has_nothing_imported(
    place: str, value: object, foreign: Path, finished: dict[str, str]
) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    *way, last = place.split("|")
    at = saved
    for name in way:
        at = at[name]
    at[last] = value
    torch.save(saved, foreign / "a.ckpt")
    cls = ContrastiveModule if place.startswith(MODEL) else TextDataModule
    if "columns" not in place:
        with pytest.raises(ContrastiveTextError):
            cls.load_from_checkpoint(foreign / "a.ckpt")
        return
    loaded = TextDataModule.load_from_checkpoint(foreign / "a.ckpt")
    assert "evil.Evil" in str(loaded.task.columns)


def test_a_misspelt_argument_of_a_checkpoint_is_answered(here: Path, finished: dict[str, str]) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    saved[MODEL]["poler"] = None
    torch.save(saved, here / "a.ckpt")
    with pytest.raises(ContrastiveTextError, match="did you mean pooler"):
        ContrastiveModule.load_from_checkpoint(here / "a.ckpt")
