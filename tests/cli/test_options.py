"""Tests of command-line options: help without torch, and checks of words and numbers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import pytest

from contrastive_text.cli import commands
from contrastive_text.cli.commands import RECORDS
from contrastive_text.cli.compare import _FORMATS as COMPARED
from contrastive_text.cli.main import COMMANDS
from contrastive_text.cli.models import DTYPES
from contrastive_text.cli.options import UNPARSED, _unfolded, check_options_used, read_options
from contrastive_text.cli.search import _FORMATS as SEARCHED
from contrastive_text.cli.sweep import _FORMATS as SWEPT
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.diagnosis import LIMIT
from contrastive_text.evaluation.results import FORMATS
from contrastive_text.evaluation.sts import SETTINGS
from contrastive_text.evaluation.suites import SUITES
from contrastive_text.inference.encoding import BLOCK_SIZE
from contrastive_text.inference.mining import Mining, Ranks, Short, Take
from contrastive_text.inference.mining_run import Form
from contrastive_text.inference.onnx_export import OPSET
from contrastive_text.inference.quantization import PRECISIONS
from contrastive_text.inference.runtimes import BACKENDS
from contrastive_text.runs.sweep_table import Take as SweepTake

HELP = """
import sys
from contrastive_text.cli import run
for words in [["--help"], ["--version"], *([command, "--help"] for command in {commands})]:
    try:
        run(words)
    except SystemExit as left:
        assert not left.code
print({{"torch", "numpy", "transformers", "pytorch_lightning", "jsonargparse"}} & sys.modules.keys() or "light")
"""


@dataclass(frozen=True)
class Tried:
    """A command."""

    place: Path
    more: Sequence[str] = ()
    _: KW_ONLY
    kind: Literal["a", "b"] | None = None
    numbers: Annotated[Mapping[str, int] | None, {"metavar": "NAME=NUMBER"}] = None
    each: Annotated[Sequence[str], {"action": "append", "nargs": None}] = ()
    flag: Annotated[bool, "a flag"] = False


@dataclass(frozen=True, kw_only=True)
class Passing:
    """A command that passes words on."""

    size: int = 1
    left: Annotated[Sequence[str], UNPARSED] = ()


def test_help_loads_no_library_that_takes_seconds() -> None:
    others = [command for command in COMMANDS if command != "fit"]
    words = [sys.executable, "-c", HELP.format(commands=others)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1:] == ["light"], done.stderr
    assert all(f"usage: contrastive-text {command} " in done.stdout for command in others)


def test_the_usage_lists_every_command() -> None:
    names = dict.fromkeys(name.partition(" ")[0] for name in RECORDS)  # index build, index add, ...
    assert [command for command in COMMANDS if command in names] == list(names)
    assert set(COMMANDS) - names.keys() == {"fit", "validate", "test", "predict", "views"}


CHOICES: dict[str, Sequence[str]] = {
    "Embed.backend": ["torch", *BACKENDS],
    "Embed.dtype": [*DTYPES],
    "Embed.precision": [*PRECISIONS],
    "Search.format": [*SEARCHED],
    "Evaluate.suite": [*SUITES, "glue", "mteb"],
    "Evaluate.setting": [*SETTINGS],
    "Evaluate.protocol": [*PROTOCOLS],
    "Evaluate.classifier": [*CLASSIFIERS],
    "Evaluate.format": [*FORMATS],
    "Compare.format": [*COMPARED],
    "Mine.form": get_args(Form),
    "Mine.ranks": get_args(Ranks),
    "Mine.take": get_args(Take),
    "Mine.short": get_args(Short),
    "Sweep.take": get_args(SweepTake),
    "Sweep.format": [*SWEPT],
}


@pytest.mark.parametrize("place", CHOICES)
def test_choices_are_those_of_the_library(place: str) -> None:
    record, _, field = place.partition(".")
    kind, *_ = _unfolded(get_type_hints(vars(commands)[record])[field])
    assert sorted(get_args(kind)) == sorted(CHOICES[place])


@pytest.mark.parametrize(
    ("record", "field", "default"),
    [
        ("Embed", "block_size", BLOCK_SIZE),
        ("Diagnose", "limit", LIMIT),
        *(("Mine", each.name, each.default) for each in fields(Mining)),
        ("Onnx", "opset", OPSET),
    ],
)
def test_defaults_are_those_of_the_library(record: str, field: str, default: object) -> None:
    assert inspect.signature(vars(commands)[record]).parameters[field].default == default


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a", Tried(Path("a"))),
        ("--flag a --kind b c d", Tried(Path("a"), ["c", "d"], kind="b", flag=True)),
        ("a --each=1 --each 2", Tried(Path("a"), each=["1", "2"])),
        ("a --numbers x=1 y=-2", Tried(Path("a"), numbers={"x": 1, "y": -2})),
        ("--flag -- -a --flag", Tried(Path("-a"), ["--flag"], flag=True)),
    ],
)
def test_words_become_a_record(line: str, expected: Tried) -> None:
    read, record = (
        {name: value or None for name, value in vars(each).items()}
        for each in (read_options(Tried, line.split()), expected)
    )
    assert read == record


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the following arguments are required: place"),
        ("a --flg", "no option --flg; did you mean --flag?"),
        ("--fla", "no option --fla; did you mean --flag?"),
        ("a --kind c", "argument --kind: invalid choice: 'c'"),
        ("a --numbers x", "argument --numbers: expected NAME=NUMBER, got x"),
        ("a --numbers x=y", "argument --numbers: expected NAME=NUMBER, got x=y"),
    ],
)
def test_wrong_words_are_answered_with_the_usage(line: str, said: str) -> None:
    with pytest.raises(ValueError, match="usage: contrastive-text tried ") as caught:
        read_options(Tried, line.split())
    assert said in str(caught.value)


def test_a_record_may_leave_words_to_another_parser() -> None:
    assert read_options(Passing, ["--x.y", "1", "--size", "2", "z"]) == Passing(size=2, left=["--x.y", "1", "z"])


def test_an_option_needs_a_reader_unless_it_has_its_default() -> None:
    readers = {"backend": ("files",)}
    check_options_used(commands.Evaluate("m", suite=["glue"]), readers, suites=["glue"])
    with pytest.raises(ValueError, match=r"^--backend: expected something that reads it, got glue"):
        check_options_used(commands.Evaluate("m", suite=["glue"], backend="onnx"), readers, suites=["glue"])
