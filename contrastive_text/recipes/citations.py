"""BibTeX entries of the papers that the recipes cite."""

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
    """Returns the recipe of this package that a YAML file is or overrides; None if there is no such recipe.

    Example:
        >>> shipped(BASE.parent / "simcse.yaml" / "sup")
        'simcse/sup'
    """
    path, variant = split_variant(file)
    if is_shipped(path):
        name = "/".join(filter(None, (path.stem, variant)))
        return name if name in recipe_names() else None
    base = _OVER.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return base[1] if base and base[1] in recipe_names() else None


def citations(recipes: Sequence[str]) -> list[str]:
    """Returns the BibTeX entries of the papers that recipes, or the recipes that they override, cite.

    Args:
        recipes: Names of recipes. Unknown names are ignored.

    Example:
        >>> print(citations(["simcse"])[0].splitlines()[1])
          title = {SimCSE: Simple Contrastive Learning of Sentence Embeddings},
    """
    names = set(recipe_names())
    return list(dict.fromkeys(entry for name in recipes if name in names for entry in _cited(name)))


def entry_of(key: str) -> str:
    """Returns the BibTeX entry with a citation key."""
    return next(text for text in _entries().values() if f"{{{key}," in text)


def _cited(recipe: str) -> list[str]:
    text = recipe_texts()[recipe]
    header = text.partition("\nmodel:")[0]
    cited = sorted((header.find(mark), entry) for mark, entry in _entries().items() if mark in header)
    base = _OVER.search(text)
    return [entry for _, entry in cited] or (_cited(base[1]) if base else [])


@cache
def _entries() -> dict[str, str]:
    """Returns preprint number or title, which a recipe's header cites -> BibTeX entry."""
    texts = re.findall(r"^@.*?^}", _ENTRIES.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    fields: list[dict[str, str]] = [dict(_FIELD.findall(text)) for text in texts]
    return {entry.get("eprint") or entry["title"]: text for entry, text in zip(fields, texts, strict=True)}
