"""Parts that configurations name, and the configuration in the folder of a run that others made."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_code import EVIL

from contrastive_text.cli import run
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.run_parser import importing_parts, run_parser


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
CALLS = "pytorch_lightning.callbacks.LambdaCallback"


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
    policies = [["evil.Evil"], "[evil.Evil]", "- evil.Evil", "evil.Evil", EVIL, {"x": EVIL}]
    names = ("auto_wrap_policy", "cpu_offload", "mixed_precision", "device_mesh", "anything_else")
    for name in names:
        places += [("strategy", {"class_path": FSDP, "init_args": {name: value}}) for value in policies]
    for place, value in places:
        with importing_parts({}, is_foreign=True), contextlib.suppress(Exception):
            run_parser().parse_object({"trainer": {place: value}, "model": {"encoder": "TransformerEncoder"}})


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
        try:
            assert run(["fit", "--resume", str(place)]) == 2, hole
        except SystemExit as left:  # the parser refused it
            assert left.code == 2, hole
        assert "error: " in capsys.readouterr().err, hole
