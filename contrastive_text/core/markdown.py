"""Names and texts of others in Markdown that a library writes: cards of models and tables of scores."""

from __future__ import annotations

import re

from contrastive_text.core.terminal import shown

_MARKUP = re.compile(r"[\\`*\[\]<|~$&#]|^>|(?<!\w)_|_(?!\w)")
"""Characters of markup; an underscore inside a word is none."""


def as_markdown(text: object) -> str:
    r"""Returns a text as Markdown that shows it unchanged on one line: no markup, no HTML, no cell ends.

    Characters that steer a terminal or the direction of writing are shown as escapes.

    Example:
        >>> print(as_markdown("<img src=x onerror=alert(1)> a|b"))
        \<img src=x onerror=alert(1)> a\|b
        >>> print(as_markdown("](javascript:x) `code`\nmodel_name_or_path __init__"))
        \](javascript:x) \`code\` model_name_or_path \__init_\_
    """
    return _MARKUP.sub(r"\\\g<0>", shown(_one_line(text)))


def _one_line(text: object) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", str(text))


def code_span(text: object) -> str:
    """Returns a text as code in Markdown, whatever backticks it has.

    Example:
        >>> code_span("bert-base"), code_span("a`b"), code_span("`a")
        ('`bert-base`', '``a`b``', '`` `a ``')
    """
    line = shown(_one_line(text)) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"
