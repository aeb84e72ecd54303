"""Configurations of others, options and files of a run: no plain value in them names a class that is made."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_code import EVIL, POPEN
from pytorch_lightning import Trainer

from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.places import settled
from contrastive_text.recipes.layers import read_config

NAMED = {
    "the data, from a file of its own": "data: %s",
    "columns": "data: {task: {columns: %s}}",
    "a column": "data: {task: {columns: {anchor: %s}}}",
    "labels": "data: {task: {labels: {a: %s}}}",
    "the encoder's config": "model: {encoder: {init_args: {config: %s}}}",
    "a key of it": "model: {encoder: {init_args: {config: {model_type: bert, a: %s}}}}",
    "an augmenter's arguments": "model: {views: {anchor: [{class_path: NlpaugView, init_args: {arguments: "
    "%s}}]}}",
    "a callback's function": "trainer: {callbacks: [{class_path: LambdaCallback, init_args: "
    "{on_fit_start: %s}}]}",
    "a strategy's state": "trainer: {strategy: {class_path: DDPStrategy, init_args: {ddp_comm_state: %s}}}",
    "a number": "trainer: {max_steps: %s}",
    "the loss's temperature": "model: {objectives: {contrastive: {class_path: Contrastive, init_args: "
    "{loss: {class_path: InfoNCE, init_args: {temperature: %s}}}}}}",
}

VALUES = [
    json.dumps(EVIL),
    pytest.param(repr(json.dumps(EVIL)), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("place", NAMED)
def test_a_configuration_names_no_class_where_a_plain_value_stands(
    place: str, value: str, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (foreign / "run.yaml").write_text(NAMED[place] % value)
    chosen = ["--recipe", "simcse", "--config", "run.yaml", "--data.train", "a.txt"]
    for words in (
        ["views", *chosen],
        ["fit", *chosen],
        ["sweep", "--dry_run", "--vary", "data.batch_size=8", "--data.validation", "a.tsv", *chosen],
    ):
        try:
            assert run(words) == 2
        except SystemExit as left:
            assert left.code == 2
    capsys.readouterr()


def test_an_option_names_no_class_where_a_plain_value_stands(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (foreign / "other.yaml").write_text(f"encoder: {{init_args: {{config: {json.dumps(EVIL)}}}}}")
    for option in (
        f"--data.task.columns={json.dumps(EVIL)}",
        f"--data.task.columns.anchor={json.dumps(EVIL)}",
        f"--model.encoder.config={json.dumps(POPEN)}",
        f"--model.encoder.init_args.config={json.dumps(EVIL)}",
        "--model.encoder.config.class_path=evil.Evil",
        "--trainer.max_steps=evil.Evil",
        "--model=other.yaml",
    ):
        try:
            assert run(["fit", "--recipe", "simcse", "--data.train", "a.txt", option]) == 2, option
        except SystemExit as left:
            assert left.code == 2, option
    capsys.readouterr()


def test_a_place_of_a_part_takes_parts_of_its_kind_from_any_module(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "kind.py").write_text(
        "from contrastive_text.poolers import MeanPooler\nfrom pytorch_lightning import Callback\n"
        "class Mine(MeanPooler):\n    pass\nclass Told(Callback):\n    pass\n"
    )
    (here / "a.txt").write_text("a dog\n" * 9)
    (here / "right.yaml").write_text(
        "model: {pooler: {class_path: kind.Mine}}\ntrainer: {callbacks: [{class_path: kind.Told}]}\n"
    )
    (here / "wrong.yaml").write_text("model: {pooler: {class_path: kind.Told}}\n")
    chosen = ["sweep", "--dry_run", "--vary", "model.combine=none", "--recipe", "simcse", "--data.train", "a.txt"]
    config = '{"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}'
    chosen += ["--model.encoder.model_name_or_path=null", f"--model.encoder.config={config}"]
    chosen += ["--data.validation", "a.txt"]
    assert run([*chosen, "--config", "right.yaml"]) == 0
    capsys.readouterr()
    assert run([*chosen, "--config", "wrong.yaml"]) == 2
    del sys.modules["kind"]


# A run's own file

FSDP = "pytorch_lightning.strategies.FSDPStrategy"


@pytest.mark.usefixtures("foreign")
def test_a_run_s_file_has_no_other_file_opened_and_no_unreadable_place_filled() -> None:
    for name in ("strategy", "profiler", "logger", "callbacks", "plugins"):
        for text in ("evil.yaml", "evil", "./evil", "'evil.yaml'"):
            Path("evil").write_text("class_path: evil.Evil\n")
            with pytest.raises(ContrastiveTextError):
                settled({name: text}, Trainer, "config.yaml: trainer")
    for name, value in (
        ("auto_wrap_policy", ["evil.Evil"]),
        ("auto_wrap_policy", "[evil.Evil]"),
        ("auto_wrap_policy", "- evil.Evil"),
        ("cpu_offload", "{class_path: evil.Evil}"),
        ("cpu_offload", {"class_path": "evil.Evil"}),
        ("mixed_precision", "evil.Evil"),
        ("mixed_precision", "'evil.Evil'"),
        ("device_mesh", {"x": {"class_path": "evil.Evil"}}),
        ("anything_else", "evil.Evil"),
    ):
        spec = {"class_path": FSDP, "init_args": {name: value}}
        with pytest.raises(ContrastiveTextError):
            settled({"strategy": spec}, Trainer, "config.yaml: trainer")
    plain = {
        "strategy": "ddp",
        "profiler": "simple",
        "logger": False,
        "default_root_dir": "runs/a",
        "devices": "auto",
    }
    assert settled(plain, Trainer, "config.yaml: trainer") == plain


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
    foreign: Path, finished: dict[str, str], capsys: pytest.CaptureFixture[str]
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
        assert run(["fit", "--resume", str(place)]) == 2, hole
        said = capsys.readouterr().err
        assert "config.yaml" in said, hole
        assert "expected" in said, hole
