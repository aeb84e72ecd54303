"""A docstring in Google's style as Markdown; ``links`` has the public names, each as a link to its place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example")
_ITEM = re.compile(r"(?P<name>[\w*.]+(?:, [\w*.]+)*): (?P<text>.*)", flags=re.DOTALL)


def sections(docstring: str | None) -> dict[str, list[str]]:
    """Splits a docstring at the headings that stand alone on a line; what comes first has the name ''."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line.removesuffix(":") in _SECTIONS and line.endswith(":"):
            current = line.removesuffix(":")
            found[current] = []
        elif current and line and not line.startswith(" "):
            current = ""  # prose goes on behind a section
            found[""] += ["", line]
        else:
            found[current].append(line)
    return found


def documented(docstring: str, links: Mapping[str, str]) -> list[str]:
    """Returns a whole docstring: prose, lists of arguments and errors, the example."""
    found = sections(docstring)
    lines = prose(found[""], links)
    for name in _SECTIONS:
        body = inspect.cleandoc("\n" + "\n".join(found.get(name, ()))).splitlines()
        if not body:
            continue
        if name == "Example":
            lines += ["", "```python", *body, "```"]
        else:
            lines += ["", f"**{name}**", "", *_list(body, links)]
    return lines


def _list(body: Sequence[str], links: Mapping[str, str]) -> list[str]:
    """Returns ``name: text`` with deeper lines under it as items; anything else as one item of prose."""
    items: list[list[str]] = []
    for line in body:
        if not items or (line[:1] != " " and _ITEM.match(line)):
            items.append([line])
        else:
            items[-1].append(line.strip())
    lines = []
    for item in items:
        said = " ".join(part for part in item if part)
        match = _ITEM.match(said)
        name, text = (f"`{match['name']}`: ", match["text"]) if match else ("", said)
        lines.append(f"- {name}{marked(text, links)}")
    return lines


def prose(lines: Sequence[str], links: Mapping[str, str]) -> list[str]:
    """Returns paragraphs as they stand; tables drawn with ``===`` as they are typed."""
    text = "\n".join(lines).strip("\n")
    parts = re.split(r"\n\n+", text)
    found = []
    for part in parts:
        if re.match(r"=+ +=+", part):
            found.append(f"```text\n{part}\n```")
        else:
            found.append(part if part.startswith("    ") else marked(part, links))
    return "\n\n".join(found).splitlines()


def marked(text: str, links: Mapping[str, str]) -> str:
    """Turns double backticks into code, with a link where they hold a public name."""

    def replaced(match: re.Match[str]) -> str:
        return links.get(match[1], f"`{match[1]}`")

    return re.sub(r"``(.+?)``", replaced, text, flags=re.DOTALL)


def summary(docstring: str | None, links: Mapping[str, str]) -> str:
    """Returns the first paragraph in one line of a table."""
    first = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return marked(" ".join(first.split()), links).replace("|", r"\|")
