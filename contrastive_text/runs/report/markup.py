"""HTML whose texts can't become markup: what is not ``Html`` is escaped on its way in."""

from __future__ import annotations

import html
from collections.abc import Iterable

TIMES_100 = "\u00d7 100"
"""How scores are scaled."""
_WRITTEN_OUT = 1e9
"""Below this a number has no exponent."""
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})


class Html(str):
    """Markup that stands as it is."""

    __slots__ = ()


class Note(Html):
    """A note that takes the place of a chart."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Returns a text as markup that shows it as it is; markup stays.

    Example:
        >>> escaped("</script><b> & ")
        '&lt;/script&gt;&lt;b&gt; &amp; '
    """
    return text if isinstance(text, Html) else Html(html.escape(text))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Returns parts one after the other, texts escaped."""
    return Html(escaped(between).join(map(escaped, parts)))


def tag(name: str, /, *content: str, **attributes: str | int | None) -> Html:
    """Returns an element.

    Args:
        name: Of the element.
        content: Texts, which are escaped, and markup.
        attributes: ``class_`` stands for ``class``, ``aria_label`` for ``aria-label``; None leaves one out.

    Example:
        >>> tag("p", "a < b", tag("br"), class_="text", dir="auto")
        '<p class="text" dir="auto">a &lt; b<br></p>'
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{named}>" if name in _VOID else f"<{name}{named}>{join(content)}</{name}>")


def table(
    head: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]], caption: str, class_: str | None = None
) -> Html:
    """Returns a table whose first column names the rows; a wide one scrolls in its own box.

    Args:
        head: Names of all columns.
        rows: Name of a row, and its cells.
        caption: What the table shows, for those who hear the page too.
        class_: Class of the table.
    """
    names = tag("tr", *(tag("th", name, scope="col") for name in head))
    lines = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells)) for name, cells in rows
    ]
    inner = tag("table", tag("caption", caption), tag("thead", names), tag("tbody", *lines), class_=class_)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def missing(what: str, why: str, remedy: str) -> Note:
    """Returns the note that stands where a figure can't: what isn't there, why, and what would bring it."""
    return Note(tag("p", tag("strong", f"{what}: not shown. "), f"{why}; {remedy}.", class_="missing"))


def number(value: float | None, form: str) -> str:
    """Returns a number as text, with the minus sign of print, and without an exponent up to a billion; or n/a.

    Example:
        >>> number(3.2381, ".2f"), number(4357.2, ".3g"), number(None, ".2f")
        ('3.24', '4,357', 'n/a')
    """
    if value is None:
        return "n/a"
    text = format(value, form)
    if "e+" in text and abs(value) < _WRITTEN_OUT:
        text = f"{value:,.0f}"
    return text.replace("-", "\u2212")
