"""No command writes over what it reads, by whatever name; what can't be written is known before any work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from covering import rest_slow
from shells import Shell

from contrastive_text.cli.commands import RECORDS
from contrastive_text.cli.options import paths_of
from contrastive_text.cli.paths import RUN_READS, RUN_WRITES, ReadPath, Role, check_paths
from contrastive_text.core.storage.disk import hold_lock
from contrastive_text.core.storage.manifests import GRAPH

TEXTS, PAIRS, RANGES = "texts.tsv", "pairs.tsv", "ranges.npy"
RUN = f"--recipe simcse --config c.yaml --data.train {TEXTS} --data.validation {PAIRS} --encoder model"
LINES = {
    "embed": f"{TEXTS} OUT.npy --model model --ranges {RANGES} --precision int8",
    "index build": f"{TEXTS} OUT --model model",
    "index add": f"OUT {TEXTS} --model model",
    "index remove": f"OUT a --ids {TEXTS}",
    "classify": f"{TEXTS} OUT.tsv --model model",
    "rank": f"{PAIRS} {TEXTS} OUT.tsv --model model",
    "score": f"{PAIRS} OUT.jsonl --model model",
    "duplicates": f"{TEXTS} OUT.tsv --keep KEPT.txt --model model",
    "mine": f"{PAIRS} OUT.tsv --corpus {TEXTS} --model model --rescore run",
    "evaluate": "model --suite sts --data data --output OUT.txt --cache CACHE",
    "compare": f"model run --data data --texts {TEXTS} --output OUT.txt --cache CACHE",
    "diagnose": f"model {TEXTS} --pairs {PAIRS} --output OUT.txt",
    "report": f"run --pairs {PAIRS} --texts {TEXTS} --output OUT",
    "merge": f"OUT model run/model --pairs {PAIRS}",
    "postprocess": f"model {TEXTS} OUT --pairs {PAIRS} --whiten",
    "corpus": "consert --data data --output OUT.txt",
    "export": "run OUT",
    "onnx": "model OUT",
    "ensemble": "OUT --runs run",
    "fit": f"{RUN} --init_from run --export.dirpath OUT --checkpoint.dirpath CACHE",
    "sweep": (
        f"{RUN} --vary model.pooler=MeanPooler --output OUT --select val/spearman --report sts:mean "
        "--report_data data"
    ),
}
"""Command -> a line that names each of its inputs, and its outputs in capitals."""
ROLES = {command: paths_of(record) for command, record in RECORDS.items()} | {"fit": RUN_READS | RUN_WRITES}
PARSED_FOR_LONG = ("fit", "sweep")


def cases() -> Iterator[object]:
    """Yields commands with every output and every input once: how two are compared is the same for all."""
    for command, line in LINES.items():
        words = dict.fromkeys(line.split())
        outputs = [word for word in words if word.partition(".")[0] in ("OUT", "KEPT", "CACHE")]
        inputs = [word for word in words if word in (TEXTS, PAIRS, RANGES, "model", "run", "data", "c.yaml")]
        for number in range(max(len(outputs), len(inputs))):
            marks = [pytest.mark.slow] if command in PARSED_FOR_LONG and number else []
            output, read = outputs[number % len(outputs)], inputs[number % len(inputs)]
            yield pytest.param(command, output, read, marks=marks)


@pytest.fixture
def inputs(here: Path, files: dict[str, str]) -> dict[str, bytes]:
    """Writes the inputs of all commands, and returns the bytes of every file."""
    shutil.copytree(files["bert"], here / "model")
    shutil.copytree(files["bert"], here / "run" / "model")
    (here / "run" / "checkpoints").mkdir()
    (here / "run" / "config.yaml").write_text("{}\n")
    (here / "data").mkdir()
    (here / "data" / "sts.tsv").write_text("a\tb\n")
    shutil.copy(files["pairs"], here / PAIRS)
    (here / TEXTS).write_text("text\na bird\na dog\n")
    (here / RANGES).write_bytes(b"ranges")
    (here / "c.yaml").write_text("trainer: {max_steps: 1, accelerator: cpu}\n")
    return contents(here)


def all_read(roles: Mapping[str, Role]) -> bool:
    return all(isinstance(role, ReadPath) for role in roles.values())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_command_declares_its_paths() -> None:
    assert {command for command, roles in ROLES.items() if not roles} == {"completion", "new", "paper", "recipes"}
    reading = {command for command, roles in ROLES.items() if all_read(roles)}
    assert ROLES.keys() - reading == LINES.keys()


@pytest.mark.parametrize(("command", "output", "read"), [*cases()])
def test_no_input_is_written_over(
    inputs: dict[str, bytes], here: Path, shell: Shell, command: str, output: str, read: str
) -> None:
    said = shell.refused(f"{command} {re.sub(rf'{output}(?= |$)', read, LINES[command])}")
    assert any(f"expected {a}" in said for a in ("another", "a file", "a folder", "a new", "a name")), said
    assert contents(here) == inputs


@pytest.mark.parametrize("name", ["./texts.tsv", "linked", "hard", "data/../texts.tsv", "model/../linked"])
def test_a_file_is_known_under_every_name(inputs: dict[str, bytes], here: Path, shell: Shell, name: str) -> None:
    (here / "linked").symlink_to(TEXTS)
    (here / "hard").hardlink_to(here / TEXTS)
    said = shell.refused(f"diagnose model {TEXTS} --output {name}")
    assert "expected another file than the input texts.tsv, got the same file, which would be lost" in said
    assert {name: contents(here)[name] for name in inputs} == inputs


@pytest.mark.parametrize(
    ("command", "values", "said"),
    [
        ("diagnose", {"model": "model", "output": "model/config.json"}, "a file of the input model"),
        ("evaluate", {"data": "data", "output": "data/sts.tsv"}, "a new file, got a file of the input data"),
        ("postprocess", {"model": "model", "output": "model/1_Pooling"}, "a folder inside the input model"),
        ("postprocess", {"model": "run/model", "output": "run"}, "that does not contain the input run/model"),
        ("onnx", {"model": "model", "output": "model/onnx"}, "a path outside of the model folder model"),
        ("diagnose", {"model": "model", "output": "model/new.txt"}, "a path outside of the model folder model"),
        ("diagnose", {"model": "model", "output": "nowhere"}, "a file or a free name, got a link"),
        ("diagnose", {"model": "model", "output": "loop"}, "a file or a free name, got a link"),
        ("postprocess", {"output": "odd"}, "modules.json: expected a file, got a folder or a special file"),
        ("fit", {"trainer": {"default_root_dir": f"{PAIRS}/a"}}, "pairs.tsv: expected a folder, got a file"),
        ("fit", {"export": {"dirpath": PAIRS}}, "export.dirpath: pairs.tsv: expected a folder, got a file"),
        ("onnx", {"model": "model", "output": "run/model"}, "a folder without a model, got a folder with"),
        ("embed", {"input": "v.npy.json", "output": "v.npy"}, "v.npy.json: expected another file"),
        ("embed", {"ranges": "v.npy.ranges.npy", "output": "v.npy"}, "v.npy.ranges.npy: expected another file"),
        ("duplicates", {"output": "d.tsv", "keep": "d.tsv.vectors.npy"}, "another file than the output d.tsv"),
        ("duplicates", {"output": "d.tsv", "keep": "D.tsv"}, "another file than the output d.tsv"),
        ("embed", {"input": TEXTS, "output": Path()}, "expected a file, got a folder; name a file in it"),
        ("duplicates", {"input": TEXTS, "output": ""}, "expected a file, got a folder; name a file in it"),
        ("diagnose", {"output": "data"}, "data: expected a file, got a folder; name a file in it"),
        ("diagnose", {"output": "no/out"}, "no/out: expected an existing folder, found none at no"),
        ("diagnose", {"output": "a\0b"}, "expected a valid file name, got: embedded null"),
        ("diagnose", {"output": "a" * 300}, "expected a valid file name, got: File name too long"),
        ("diagnose", {"output": "/dev/null"}, "/dev/null: expected a file, got a device"),
        ("onnx", {"model": "model", "output": PAIRS}, "pairs.tsv: expected a folder, got a file"),
        ("onnx", {"model": "model", "output": f"{PAIRS}/out"}, "pairs.tsv: expected a folder, got a file"),
    ],
)  # fmt: skip
def test_places_that_would_lose_something_or_cannot_be_are_refused(
    inputs: dict[str, bytes], here: Path, command: str, values: dict[str, object], said: str
) -> None:
    (here / "nowhere").symlink_to("gone")
    (here / "loop").symlink_to("loop")
    (here / "odd" / "modules.json").mkdir(parents=True)
    (here / "model" / "1_Pooling").mkdir(exist_ok=True)
    (here / "model" / "1_Pooling" / "config.json").touch()
    for name in ("v.npy.json", "v.npy.ranges.npy"):
        (here / name).touch()
    with pytest.raises((ValueError, OSError)) as caught:
        check_paths(ROLES[command], values)
    assert said in str(caught.value)
    assert inputs.items() <= contents(here).items()


@pytest.mark.usefixtures("inputs")
def test_what_is_usual_is_left_alone(here: Path) -> None:
    (here / "graph").mkdir()
    (here / "graph" / GRAPH).touch()
    (here / "old.txt").touch()
    for command, values in (
        ("diagnose", {"model": "model", "texts": TEXTS, "output": "old.txt"}),
        ("evaluate", {"model": "model", "data": "data", "output": "data/new.txt"}),
        ("evaluate", {"model": "model", "data": ".", "output": "new.txt", "cache": "cache"}),
        ("compare", {"models": ["hub/name", "model"], "data": "hub", "output": "new.txt", "cache": "cache"}),
        ("onnx", {"model": "model", "output": "graph"}),
        ("report", {"runs": ["run"], "output": "."}),
        ("report", {"runs": ["run"], "output": None}),
        ("postprocess", {"model": "model", "texts": TEXTS, "output": "new/white"}),
        ("fit", {"data": {"train": [TEXTS]}, "export": {"dirpath": None}, "ckpt_path": "best"}),
    ):
        check_paths(ROLES[command], values)


@pytest.mark.usefixtures("inputs")
def test_a_folder_that_cannot_be_written_to_is_told_before_any_work(
    monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def refuses(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuses)
    for command, line in LINES.items():
        if command not in PARSED_FOR_LONG:
            said = shell.refused(f"{command} {line}")
            assert "expected a writable folder, got Permission denied in" in said, command


@pytest.mark.parametrize(
    "command", rest_slow(["embed", "postprocess", "export", "onnx", "ensemble", "report", "index build"])
)
@pytest.mark.usefixtures("inputs")
def test_an_output_that_another_process_writes_is_refused(here: Path, shell: Shell, command: str) -> None:
    line = re.sub(r"\brun\b", "FOLDER", LINES[command].partition(" --ranges")[0])
    output = next(word for word in line.split() if word.startswith("OUT"))
    with hold_lock(here / output) as mine:
        assert mine
        said = shell.refused(f"{command} {line}")
        assert "expected no other writer, got a process that writes it" in said
