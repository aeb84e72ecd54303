"""Hooks of mkdocs: the navigation, pages from the root, links to files outside of docs/."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
"""Files of the project's root -> the pages that show them."""
_PAGES = (".md", ".ipynb")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills in the navigation: ``folder/*`` is each page of a folder that has no place of its own."""
    docs = Path(config.docs_dir)
    named = {*_named(config.nav or [])}
    found = [path.relative_to(docs) for path in sorted(docs.rglob("*")) if path.suffix in _PAGES]
    hidden = config.exclude_docs
    free = [
        path.as_posix()
        for path in found
        if path.as_posix() not in named and not (hidden and hidden.match_file(path.as_posix()))
    ]
    config.nav = _filled(config.nav or [], free)
    return config


def _named(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for own in entry.values():
                yield from _named([own] if isinstance(own, str) else own)


def _filled(entries: Iterable[Any], free: list[str]) -> list[Any]:
    """Returns the entries with pages in place of patterns; a section of no pages is left out."""
    filled: list[Any] = []
    for entry in entries:
        if not isinstance(entry, str):
            for title, own in entry.items():
                pages = own if isinstance(own, str) else _filled(own, free)
                filled += [{title: pages}] if pages else []
        elif entry.endswith("*"):
            folder = PurePosixPath(entry).parent
            filled += [page for page in free if PurePosixPath(page).parent == folder]
        else:
            filled.append(entry)
    return filled


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that stand in the project's root."""
    for name, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mends links out of docs/: to a page of the site, to the repository's address, or to plain words."""
    at_root = {place: name for name, place in FROM_ROOT.items()}.get(page.file.src_uri)
    source = PurePosixPath(at_root or f"docs/{page.file.src_uri}")

    def mended(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        place = os.path.normpath(source.parent / target)
        site = FROM_ROOT.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(site):
            return f"[{text}]({os.path.relpath(site, PurePosixPath(page.file.src_uri).parent)}{anchor})"
        if not (ROOT / place).exists():
            return match[0]  # for mkdocs to complain of
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{place}{anchor})" if config.repo_url else text

    return _LINK.sub(mended, markdown)
