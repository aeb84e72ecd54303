"""Files of others: nothing that only they name is imported or made, by whatever command or call reads them."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import rest_slow
from pytorch_lightning import Trainer

from contrastive_text import ContrastiveModule, SentenceEncoder, TextDataModule
from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.places import settled
from contrastive_text.recipes.layers import read_config
from contrastive_text.runs.ensemble import TaskEnsemble

POPEN = {"class_path": "subprocess.Popen", "init_args": {"args": "touch RUN", "shell": True}}
EVIL = {"class_path": "evil.Evil"}
IMPORTED: set[str] = set()
"""What was asked for since the last look."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import":
        IMPORTED.add(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def audited() -> None:
    """Notes every import of this process, also one that fails."""
    sys.addaudithook(_note)


@pytest.fixture
def foreign(here: Path) -> Iterator[Path]:
    """A working directory with code that tells when it is run; nothing in it may be imported."""
    (here / "evil.py").write_text(
        "open('RUN', 'w').close()\n"
        "from contrastive_text.poolers import MeanPooler\n"
        "class Evil(MeanPooler):\n    pass\n"
    )
    (here / "evil.yaml").write_text("class_path: evil.Evil\n")
    sys.path.append(str(here))
    IMPORTED.clear()
    yield here
    assert not {name for name in IMPORTED if name.partition(".")[0] == "evil"}
    assert not (here / "RUN").exists()


def _in_checkpoint(saved: dict[str, Any], place: str, value: object) -> None:
    at: Any = saved
    *way, last = place.split(".")
    for name in way:
        at = at[name]
    at[last] = value


MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"
NLPAUG = {"class_path": "NlpaugView", "init_args": {"augmenter": "evil.Evil"}}
HOLES: dict[str, tuple[str, object]] = {
    "a shell command among the columns": (f"{DATA}.columns", POPEN),
    "a shell command in a column": (f"{DATA}.columns", {"anchor": POPEN}),
    "a part in a column, as text": (f"{DATA}.columns", {"anchor": json.dumps(EVIL)}),
    "a part among the columns, as text": (f"{DATA}.columns", json.dumps(EVIL)),
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
    "a pairing": (f"{DATA}.pairing", EVIL),
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


@pytest.mark.parametrize("hole", rest_slow(HOLES, quick=11))
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


KEYS = (
    *("{}.class_path", "{}+", "{}.init_args.x.class_path", "{}.x", "init_args.{}", "init_args.{}.class_path"),
    *(
        "+{}",
        ".{}",
        "{}.",
        "{} ",
        "class_path",
        "_class_path",
        "x.class_path",
        "dict_kwargs",
        "pooler.class_path",
    ),
)
"""Spellings of a name; the last ones name nothing that stands there."""


def _mappings(plain: object, way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the way to each mapping inside of plain data."""
    if isinstance(plain, dict):
        yield way
        for name, inner in plain.items():
            yield from _mappings(inner, (*way, name))


@pytest.mark.slow
@pytest.mark.usefixtures("foreign")
def test_no_spelling_of_a_name_has_anything_imported(finished: dict[str, str]) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    for place, cls in ((MODEL, ContrastiveModule), (DATA, TextDataModule)):
        arguments = {name: value for name, value in saved[place].items() if name != "_instantiator"}
        if cls is TextDataModule:
            arguments |= {"train": None, "tasks": {"a": {"train": "a.txt"}}, "columns": {"anchor": "a"}}
        assert settled(arguments, cls, "a.ckpt")
        for way in _mappings(arguments):
            changed = copy.deepcopy(arguments)
            at: Any = changed
            for name in way:
                at = at[name]
            for key in dict.fromkeys(key.format(name) for name in (*at, "pairing") for key in KEYS):
                for value in ("evil.Evil", EVIL, [EVIL]):
                    before = dict(at)
                    at[key] = value
                    try:
                        taken = settled(changed, cls, "a.ckpt")
                    except ContrastiveTextError:
                        taken = {}
                    # What gets through is text among names and values of the user's own.
                    assert not taken or way == ("columns",), (way, key, value)
                    at.clear()
                    at.update(before)
    assert not {name for name in IMPORTED if name.startswith("evil")}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (f"{MODEL}|pooler.class_path", "evil.Evil"),
        (f"{MODEL}|pooler+", "evil.Evil"),
        (f"{MODEL}|objectives|contrastive|init_args|loss.class_path", "evil.Evil"),
        (f"{DATA}|tasks", {"a": {"train": "a.txt", "pairing.class_path": "evil.Evil"}}),
        (f"{DATA}|columns", {"pairing.class_path": "evil.Evil"}),
    ],
)
def test_a_dotted_name_in_a_checkpoint_has_nothing_imported(
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
    with pytest.raises(ContrastiveTextError) if "columns" not in place else contextlib.nullcontext():
        cls.load_from_checkpoint(foreign / "a.ckpt")


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


def test_a_misspelt_argument_of_a_checkpoint_is_answered(finished: dict[str, str]) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)[MODEL]
    arguments = {name: value for name, value in saved.items() if name != "_instantiator"}
    with pytest.raises(ContrastiveTextError, match="did you mean 'pooler'"):
        settled({**arguments, "poler": None}, ContrastiveModule, "a.ckpt")


OFTEN = "a shell command among the columns"
MANY = [
    OFTEN,
    *(
        pytest.param(hole, marks=pytest.mark.slow)
        for hole in (
            "a shell command in the encoder's configuration",
            "an augmenter",
            "a class of the working directory",
            "a file that names a class",
            "a view of a task",
            "another instantiator",
            "arguments under an older name",
        )
    ),
]


@pytest.mark.parametrize("hole", MANY)
def test_no_command_imports_or_makes_what_a_checkpoint_names(
    hole: str, foreign: Path, finished: dict[str, str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(_foreign_run(hole, foreign, finished))
    for words in (
        ["validate", "--data.validation", files["pairs"], "--ckpt_path", place],
        ["predict", "--data.predict", files["texts"], "--ckpt_path", place],
        ["fit", "--ckpt_path", place],
        ["validate", "--ckpt_path", "ensemble", "--data.tasks.a.validation", files["pairs"]],
        ["report", "foreign", "--limit", "4"],
    ):
        try:
            # The shell makes the parts by itself, without an instantiator; a page says what it lacks and why.
            assert run(words) == 2 or words[0] == "report" or "instantiator" in hole, words
        except SystemExit as left:
            assert left.code == 2, words
    capsys.readouterr()


NAMED = {
    "the data, from a file of its own": "data: %s",
    "columns": "data: {columns: %s}",
    "a column": "data: {columns: {anchor: %s}}",
    "labels": "data: {labels: {a: %s}}",
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
        f"--data.columns={json.dumps(EVIL)}",
        f"--data.columns.anchor={json.dumps(EVIL)}",
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


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_folder_has_nothing_imported(
    inside: bool, foreign: Path, finished: dict[str, str], files: dict[str, str],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shutil.copytree(finished["model"], foreign / "model")
    listed = json.loads((foreign / "model" / "modules.json").read_text())
    for kind in ("evil.Evil", "evil.sub.Evil", "subprocess.Popen"):
        listed[1]["type"] = kind
        (foreign / "model" / "modules.json").write_text(json.dumps(listed))
        name = "model"
        if inside:  # cd foreign-model; embed ... --model .
            shutil.copy(foreign / "evil.py", foreign / "model" / "evil.py")
            monkeypatch.chdir(foreign / "model")
            name = "."
        with pytest.raises(ContrastiveTextError):
            SentenceEncoder.from_pretrained(name)
        for words in (
            ["embed", files["texts"], "out.npy", "--model", name],
            ["evaluate", name, files["pairs"]],
            ["search", files["texts"], "a dog", "--model", name],
            ["fit", "--recipe", "simcse", "--data.train", files["texts"], "--init_from", name],
        ):
            assert run(words) == 2, words
        assert not Path("RUN").exists()
        monkeypatch.chdir(foreign)
    capsys.readouterr()


@pytest.mark.parametrize("away", ["../model", "{here}/model", "..", "link"])
def test_what_a_folder_names_stays_inside_of_it(
    away: str, here: Path, finished: dict[str, str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished["model"], here / "model")
    shutil.copytree(finished["model"], here / "foreign")
    for manifest in here.glob("*/*manifest*"):
        manifest.unlink()  # theirs knows nothing of ours
    (here / "foreign" / "link").symlink_to(here / "model")
    listed = json.loads((here / "foreign" / "modules.json").read_text())
    for module in listed[:2]:
        module["path"] = away.format(here=here)
        (here / "foreign" / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ContrastiveTextError, match="expected a path inside"):
            SentenceEncoder.from_pretrained("foreign")
    (here / "ensemble").mkdir()
    (here / "model" / "a.ckpt").write_bytes(Path(finished["checkpoint"]).read_bytes())
    (here / "ensemble" / "link").symlink_to(here / "model")
    choice = {"member": f"{away.format(here=here)}/a.ckpt", "metric": "m", "score": 1, "validation": []}
    choice["source"] = ""
    (here / "ensemble" / "ensemble.json").write_text(json.dumps({"tasks": {"a": choice}}))
    with pytest.raises(ContrastiveTextError, match="expected a path inside"):
        TaskEnsemble.load("ensemble", device="cpu")
    assert run(["validate", "--ckpt_path", "ensemble", "--data.tasks.a.validation", files["pairs"]]) == 2
    assert "expected a path inside" in capsys.readouterr().err


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


@pytest.mark.parametrize("auto", ["AutoConfig", "AutoModel", "AutoTokenizer"])
def test_code_that_a_model_brings_along_is_not_run(
    auto: str, foreign: Path, finished: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished["model"], foreign / "model")
    for manifest in (foreign / "model").glob("*manifest*"):
        manifest.unlink()
    shutil.copy(foreign / "evil.py", foreign / "model" / "evil.py")
    for file in ("config.json", "tokenizer_config.json"):
        config = json.loads((foreign / "model" / file).read_text())
        named = ["evil.Evil", "evil.Evil"] if auto == "AutoTokenizer" else "evil.Evil"
        config |= {"auto_map": {auto: named}} | ({"model_type": "evil"} if auto == "AutoConfig" else {})
        (foreign / "model" / file).write_text(json.dumps(config))
    if auto == "AutoConfig":
        with pytest.raises(ContrastiveTextError):
            SentenceEncoder.from_pretrained("model")
    else:
        SentenceEncoder.from_pretrained("model")  # the architecture is known; the code beside it isn't asked for
    capsys.readouterr()


SHADOWED = (
    *("__future__", "typing", "dataclasses", "csv", "json", "random", "string", "logging", "argparse", "shlex"),
    *("traceback", "tempfile", "torch", "numpy", "rich", "yaml", "jsonargparse", "transformers", "tokenizers"),
    *("safetensors", "pytorch_lightning", "huggingface_hub"),
)  # but what Python reads for -m itself, before any of ours
DRIVER = """
import sys
sys.path.insert(0, {here!r})  # as python -m does
sys.path.append({home!r})
from contrastive_text.__main__ import leave_working_directory
leave_working_directory(sys.path)
from contrastive_text.cli import run
for words in {commands!r}:
    try:
        run(words)
    except SystemExit:
        pass
"""


def test_python_m_reads_no_module_of_the_working_directory(tmp_path: Path) -> None:
    _shadow(tmp_path)
    home = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "contrastive_text", "--version"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(home)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_no_command_reads_a_module_of_the_working_directory(
    tmp_path: Path, finished: dict[str, str], files: dict[str, str], tiny_words: list[str]
) -> None:
    _shadow(tmp_path)
    model, texts, pairs = finished["model"], files["texts"], files["pairs"]
    commands = [
        ["fit", "--recipe", "simcse", *tiny_words, "--trainer.max_steps=1"],
        ["validate", "--ckpt_path", finished["checkpoint"], "--data.validation", pairs],
        ["views", "--recipe", "simcse", *tiny_words],
        ["embed", texts, "v.npy", "--model", model],
        ["search", texts, "a dog", "--model", model],
        ["duplicates", texts, "d.tsv", "--model", model],
        ["evaluate", model, pairs],
        ["diagnose", model, texts],
        ["compare", model, model, "--pairs", pairs],
        ["report", finished["folder"], "--output", "page", "--limit", "8"],
        ["postprocess", model, texts, "white"],
        ["onnx", model, "onnx"],
        ["sweep", "--dry_run", "--vary", "data.batch_size=8,16", "--recipe", "simcse", *tiny_words],
    ]
    home = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER.format(here=str(tmp_path), home=home, commands=commands)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shadowed" not in done.stderr + done.stdout
    assert (tmp_path / "v.npy").exists()


def _shadow(folder: Path) -> None:
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"raise SystemExit('shadowed {name}')\n")
