"""The look of a page: colours of light and dark, and the style sheet that uses them.

The colours of runs and groups differ from each other by at least 0.12 of Oklab (Ottosson 2020) for eyes that see
all colours and for those without one of the three cones (Machado, Oliveira and Fernandes 2009), and from the page
by a contrast of at least 3 to 1; text has at least 4.5 to 1, as WCAG 2.2 asks at level AA. The tests measure it.
"""

from __future__ import annotations

from importlib.resources import files

LIGHT = {
    "paper": "#ffffff",
    "soft": "#f3f4f7",
    "rule": "#dadce3",
    "ink": "#191c24",
    "muted": "#575d6b",
    "gone": "#a31d2f",
    "new": "#11663c",
    "series-1": "#2b5fc7",
    "series-2": "#cf5a17",
    "series-3": "#20a08a",
    "series-4": "#440326",
    "series-5": "#784401",
    "series-6": "#3f3181",
}
"""Name of a colour -> its value on white, which pictures have too."""
DARK = {
    "paper": "#14161a",
    "soft": "#1e2127",
    "rule": "#363b45",
    "ink": "#eceae5",
    "muted": "#a7acb8",
    "gone": "#ff98a0",
    "new": "#7fdca4",
    "series-1": "#6ea0ff",
    "series-2": "#ff9457",
    "series-3": "#9efcf1",
    "series-4": "#b54974",
    "series-5": "#fbef85",
    "series-6": "#6f55ca",
}
"""The same names -> values for the dark."""
_VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
SERIES = 6
"""Number of colours for runs, or groups, that can be told apart."""


def series(number: int) -> str:
    """Returns the colour of a run or group, from 0, as drawings take it.

    Example:
        >>> series(0)
        '#2b5fc7'
    """
    return LIGHT[f"series-{number + 1}"]


def dashes(number: int) -> str | tuple[int, tuple[float, ...]]:
    """Returns the dashes of a run's lines: they tell runs apart on grey paper, and where one hides another."""
    return ("solid", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (2.5, 1)), (0, (8, 2)))[number]


def variable(colour: str) -> str:
    """Returns the CSS variable of a colour of ``LIGHT``, by which a drawing follows the page's theme.

    Example:
        >>> variable("#ffffff"), variable("#123456")
        ('var(--paper)', '#123456')
    """
    return _VARIABLES.get(colour, colour)


def style_sheet() -> str:
    """Returns the CSS of a page, with both themes."""
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in theme.items()) for theme in (LIGHT, DARK))
    themes = (
        f":root{{{light}color-scheme:light dark}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
    return themes + files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def script() -> str:
    """Returns the few lines by which a map shows the text under a finger, a pointer or the focus."""
    return files(__package__).joinpath("map.js").read_text(encoding="utf-8")
