"""Command ``new``: writes a template for a part of your own, with its test and its YAML."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class New:
    """Write a working template for a part of your own: a Python file, its test and its YAML."""

    kind: Annotated[
        Literal["view", "text_view", "embedding_view", "pooler", "loss", "objective"],
        "Kind of part for which a Python file, its test and a YAML file are written; view: a view of tokens.",
    ]
    name: Annotated[str, "Name of the class, such as DropStopWords."]


_TEMPLATES = Path(__file__).parent / "templates"
"""Folder of the templates of the command ``new``: one for each kind of part."""


def new(options: New) -> None:
    """Writes the three files of a template to the working directory, and prints the commands that use them.

    Raises:
        ValueError: The name is not a class name, Python has another module of that name, or a file exists.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", options.name) or keyword.iskeyword(options.name):
        raise InvalidValueError(
            f"new: expected the name of a class, such as DropStopWords, got {options.name!r}; give another"
        )
    module = module_name(options.name)
    installed = find_spec(module)
    if keyword.iskeyword(module) or (installed is not None and not Path(f"{module}.py").exists()):
        raise InvalidValueError(
            f"new: expected a name whose module is free, got {options.name}. Python has another module {module}; "
            f"use My{options.name}"
        )
    files = template_files(options.kind, options.name)
    if existing := [name for name in files if Path(name).exists()]:
        raise InvalidValueError(
            f"new: expected new files, got existing files: {', '.join(existing)}; use another name"
        )
    for name, text in files.items():
        with open(name, "x", encoding="utf-8") as file:
            file.write(text)
        print_message(f"{name} written")
    print_message("The template works unchanged. Next: change it, and run")
    print_message(f"  pytest test_{module}.py")
    print_message(
        f"  contrastive-text fit --recipe simcse --config {module}.yaml --encoder ENCODER --train TEXTS.txt"
    )


def module_name(name: str) -> str:
    """Converts the name of a class to the name of its module.

    Example:
        >>> module_name("DropStopWords"), module_name("BM25Negatives")
        ('drop_stop_words', 'bm25_negatives')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def template_files(kind: str, name: str) -> dict[str, str]:
    """Returns file name -> text of each file of a template.

    Example:
        >>> list(template_files("view", "DropStopWords"))
        ['drop_stop_words.py', 'test_drop_stop_words.py', 'drop_stop_words.yaml']
    """
    text = Template((_TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8"))
    whole = text.substitute(name=name, module=module_name(name))
    parts = re.split(r"^--- (.+)\n", whole, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))
