"""Options that messages name: each is one of the command that prints the message, or of one that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import contrastive_text
from contrastive_text.cli.commands import RECORDS
from contrastive_text.cli.files import form_of
from contrastive_text.cli.main import COMMANDS
from contrastive_text.cli.options import option_words
from contrastive_text.cli.words import SHORT
from contrastive_text.data.tasks import RUN_OPTIONS
from contrastive_text.training.run_parser import run_parser

ROOT = Path(contrastive_text.__file__).parent
ENCODING = ("embed", "search", "duplicates", "mine")
PRINTERS: Mapping[str, Sequence[str]] = {
    "cli/options.py": ("evaluate", "compare"),
    "cli/evaluate.py": ("evaluate", "fit"),
    "cli/files.py": ("search", "mine", "rank"),
    "cli/index.py": ("index build",),
    "cli/models.py": (*ENCODING, "evaluate", "compare", "diagnose", "merge", "postprocess", "report"),
    "cli/sweep": ("sweep",),
    "cli": ("fit",),
    "evaluation/suites.py": ("evaluate", "compare"),
    "evaluation": ("evaluate",),
    "inference/mining": ("mine",),
    "cli/share.py": ("share",),
    "inference/embedding_run.py": ENCODING,
    "inference/vector_files": ("embed",),
    "inference/sequence_classifier.py": ("export", "fit"),
    "inference": (),
    "runs/ensemble.py": ("ensemble",),
    "runs/glue": ("evaluate", "fit"),
    "runs/report": ("report",),
    "runs/grid": ("sweep",),
    "runs/sweep_": ("sweep",),
    "training/callbacks/export_model.py": ("export", "fit"),
    "": ("fit",),
}
"""Beginning of a file's name -> the commands that print its messages; the longest counts.

All of them need an option, or with ``fit`` among them any: one runs the other.
"""
OTHERS = {
    "inference/model_parts.py": "names an option of another project's script",
    "cli/completion.py": "looks for words that were typed",
    "cli/sweep.py": "adds words for evaluate; sweep_checks.py has the advice",
    "cli/train.py": "adds a word for jsonargparse",
}
"""Files whose options are no advice."""
OPTION = re.compile(r"(?<![\w-])--([a-z][\w.]*)(?!-)\b(?!-)")


@cache
def options_of(command: str) -> frozenset[str]:
    """Returns the options of a command, without dashes."""
    if command in RECORDS:
        own = {name.removeprefix("--") for name in option_words(RECORDS[command])}
        return frozenset(own | {"trust"} | (options_of("fit") if command == "sweep" else set()))
    if command != "fit":  # its own command line is that of fit
        return options_of("fit")
    actions = run_parser()._actions
    own = {name.removeprefix("--") for action in actions for name in action.option_strings}
    return frozenset({*own, *SHORT, "recipe", "resume", "trust", "dry_run", "print_config", "version", "n"})


@cache
def has(command: str, option: str) -> bool:
    """Returns whether a command has an option, or a key below one."""
    name = option.rstrip(".")
    known = options_of(command)
    below = any(name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in known)
    return name in known or name in ("", "KEY") or (below and command not in ENCODING)


def literals(path: Path) -> Iterator[str]:
    """Yields the texts of a file that aren't docstrings, a text with values as one."""
    content = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(content))) if OPTION.search(content) else []
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in node.values}
    skipped = alone | inside
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value
    for node in joined:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def printers(file: str) -> Sequence[str]:
    """Returns the commands that print the messages of a file."""
    command = Path(file).stem
    if file.startswith("cli/") and command in RECORDS and file not in PRINTERS:
        return (command,)
    if file == "cli/commands.py":  # helps, of one command each
        return ("fit", *RECORDS)
    return PRINTERS[max((name for name in PRINTERS if file.startswith(name)), key=len)]


def wrong_options(file: str, text: str) -> list[str]:
    """Returns the options in a text that neither its printers have nor a command that it names."""
    if "--" not in text:
        return []
    commands = printers(file)
    named = [command for command in COMMANDS if re.search(rf"\b{command}\b", text)]
    wrong = []
    for option in OPTION.findall(text):
        every = [has(command, option) for command in commands]
        is_printed = any(every) if "fit" in commands else bool(every) and all(every)
        if not is_printed and not any(has(command, option) for command in named):
            wrong.append(f"{file}: --{option} in {text[:80]!r}")
    return wrong


def test_every_option_in_a_message_is_one_of_the_command_that_prints_it() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
    texts = [(file, text) for file, path in files.items() if file not in OTHERS for text in literals(path)]
    assert sum(bool(OPTION.search(text)) for _, text in texts) > 100
    assert [each for file, text in texts for each in wrong_options(file, text)] == []


@pytest.mark.parametrize("option", ["colums", "query_column"])
def test_an_option_that_a_command_lacks_is_noticed(option: str) -> None:
    assert wrong_options("cli/embed.py", f"give --{option} NAME") != []
    assert wrong_options("cli/search.py", "give --query_column NAME") == []


def test_the_advice_of_readers_names_options_of_the_command() -> None:
    for command, record in RECORDS.items():
        spelled = form_of(SimpleNamespace(**dict.fromkeys(vars(record)["__dataclass_fields__"]))).options
        assert {name.removeprefix("--") for name in spelled.values()} <= options_of(command)
    for place in ("data", "data.tasks.reviews"):
        assert all(has("fit", f"{place}.{name}") for name in RUN_OPTIONS)
