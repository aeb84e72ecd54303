"""The palette is measured: contrast by WCAG 2.2, distances in Oklab as people without a cone see the colours."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from contrastive_text.runs.report.style import DARK, LIGHT, SERIES, style_sheet, variable

Vector = npt.NDArray[np.float64]

SEEN_AS = {
    "all cones": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    # Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, row by row.
    "protanopia": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    "deuteranopia": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881],
    "tritanopia": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900],
}
# Ottosson 2020, "A perceptual color space for image processing": from linear sRGB to cones, from those to Lab.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> Vector:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def seen(colour: str, by: str) -> Vector:
    return LAB @ np.cbrt(CONES @ np.clip(np.reshape(SEEN_AS[by], (3, 3)) @ linear(colour), 0, 1))


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)  # WCAG 2.2, definition of contrast ratio


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: dict[str, str]) -> None:
    for name, ground in itertools.product(("ink", "muted", "gone", "new"), ("paper", "soft")):
        assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    for number in range(SERIES):
        assert contrast(theme[f"series-{number + 1}"], theme["paper"]) >= 3.0, number


@pytest.mark.parametrize("eyes", SEEN_AS)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_of_runs_differ_for_all_eyes(theme: dict[str, str], eyes: str) -> None:
    colours = [seen(theme[f"series-{number + 1}"], eyes) for number in range(SERIES)]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(colours, 2)) >= 0.12


def test_each_theme_has_each_colour_and_each_drawn_colour_its_variable() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len({*LIGHT.values()}) == len(LIGHT)  # or a drawing's colour would not tell which it is
    assert [variable(colour) for colour in LIGHT.values()] == [f"var(--{name})" for name in LIGHT]
    for name in LIGHT:
        assert style_sheet().count(f"--{name}:") == 2
