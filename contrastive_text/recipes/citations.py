"""The papers of the recipes, as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from contrastive_text.recipes import BASE, recipe_names, recipe_texts
from contrastive_text.recipes.layers import is_shipped, split_variant

_ENTRIES = BASE.parent / "papers" / "citations.bib"
_FIELD = re.compile(r"^ +(\w+) = \{(.*)\},?$", flags=re.MULTILINE)
_OVER = re.compile(r"^recipe: *([\w./-]+)", flags=re.MULTILINE)


def shipped(file: str | Path) -> str | None:
    """Returns the name of the shipped recipe that a file is, or that it overrides; None for neither.

    Example:
        >>> shipped(BASE.parent / "simcse.yaml" / "sup")
        'simcse/sup'
    """
    path, variant = split_variant(file)
    if is_shipped(path):
        name = "/".join(filter(None, (path.stem, variant)))
        return name if name in recipe_names() else None
    found = _OVER.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found and found[1] in recipe_names() else None


def citations(recipes: Sequence[str]) -> list[str]:
    """Returns BibTeX entries of the papers that recipes name in their headers, or those that they override.

    Args:
        recipes: Names; one that no shipped recipe has gives none.

    Example:
        >>> print(citations(["simcse"])[0].splitlines()[1])
          title = {SimCSE: Simple Contrastive Learning of Sentence Embeddings},
    """
    known = set(recipe_names())
    return list(dict.fromkeys(entry for name in recipes if name in known for entry in _cited(name)))


def entry_of(key: str) -> str:
    """Returns the BibTeX entry of a key."""
    return next(text for text in _entries().values() if f"{{{key}," in text)


def _cited(recipe: str) -> list[str]:
    text = recipe_texts()[recipe]
    header = text.partition("\nmodel:")[0]
    found = sorted((header.find(mark), entry) for mark, entry in _entries().items() if mark in header)
    above = _OVER.search(text)
    return [entry for _, entry in found] or (_cited(above[1]) if above else [])


@cache
def _entries() -> dict[str, str]:
    """Returns each entry under what a header names it by: the number of its preprint, or its title."""
    texts = re.findall(r"^@.*?^}", _ENTRIES.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    fields: list[dict[str, str]] = [dict(_FIELD.findall(text)) for text in texts]
    return {each.get("eprint") or each["title"]: text for each, text in zip(fields, texts, strict=True)}
