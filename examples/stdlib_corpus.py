"""Provides English documents that every Python installation contains.

The documents are the docstrings of the standard library, read from its source files without importing
them, and the sections of the language reference. The body of a document is the answer to its summary.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

SKIPPED = r"tests?|.*_test|idlelib|lib2to3|turtledemo|distutils|ensurepip|pydoc_data|.*-packages"
TWINS = {"ntpath": "posixpath", "genericpath": "posixpath", "sre_parse": "re", "sre_compile": "re"}


@dataclass(frozen=True)
class Document:
    """Docstring or section: its module and name, its first line (summary) and the following text (body)."""

    module: str
    name: str
    summary: str
    body: str

    @property
    def group(self) -> str:
        """Returns the top-level module. A module and its private or pure twin have the same group."""
        top = self.module.partition(".")[0]
        return TWINS.get(top, re.sub(r"^_(py(?=[a-z]))?", "", top))

    def sentences(self) -> set[str]:
        """Returns the summary, the body and their sentences of four words or more, in lower case."""
        whole = [self.summary.lower(), self.body.lower()]
        parts = [part for text in whole for part in re.split(r"(?<=[.:!?])\s+", text)]
        return {*whole, *(part for part in parts if len(part.split()) >= 4)}


def _words(text: str) -> int:
    """Counts the words of a text that consist of letters only."""
    return sum(word.strip("()'\".,:;!?").isalpha() for word in text.split())


def _paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of a text, each on one line, without its interactive examples."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if part and not part.startswith(">>>")]


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yields the qualified name and docstring of a module, its classes and its functions."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield name, ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            inner = getattr(child, "name", "")
            yield from _docstrings(child, f"{name}.{inner}" if inner else name)


def _library() -> Iterator[Document]:
    """Yields the docstrings of the standard library, in the order of the files' paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for parts in sorted(path.relative_to(root).parts for path in root.rglob("*.py")):
        if any(re.fullmatch(SKIPPED, part) for part in parts):
            continue
        module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        tree = ast.parse(root.joinpath(*parts).read_bytes())
        for name, docstring in _docstrings(tree, module):
            summary, *rest = _paragraphs(docstring) or [""]
            yield Document(module, name, summary, " ".join(rest))


def _reference() -> Iterator[Document]:
    """Yields the sections of the language reference, each headed by its underlined title."""
    for topic in sorted(topics):
        pieces = re.split(r"^(\S.*)\n[*=~^-]{3,}$", topics[topic], flags=re.MULTILINE)
        for title, text in zip(pieces[1::2], pieces[2::2], strict=True):
            yield Document("reference", topic, title, " ".join(_paragraphs(text)))


def documents() -> list[Document]:
    """Returns the documents in a fixed order. No summary and no body occurs twice."""
    found, seen = [], set[str]()
    for document in (*_library(), *_reference()):
        texts = (document.summary.lower(), document.body.lower())
        prose = _words(texts[0]) >= 2 and _words(texts[1]) >= 6 and len(texts[0]) <= 200
        if prose and seen.isdisjoint(texts):
            seen.update(texts)
            found.append(document)
    return found


def split(found: Iterable[Document], every: int = 4) -> tuple[list[Document], list[Document]]:
    """Returns the training and the held-out documents.

    About one module in ``every`` is held out as a whole, chosen by a checksum of its name. A document of another
    module that shares a sentence with a held-out document is in neither list.
    """
    training, held_out = [], []
    for document in found:
        chosen = zlib.crc32(document.group.encode()) % every == 0
        (held_out if chosen else training).append(document)
    unseen = set().union(*(document.sentences() for document in held_out))
    return [document for document in training if unseen.isdisjoint(document.sentences())], held_out
