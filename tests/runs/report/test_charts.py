"""Charts, and the colors of both themes: contrast by WCAG 2.2, distances in Oklab for eyes without a cone."""

import io
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.axes import Axes
from PIL import Image

from contrastive_text.runs.report.charts import COLORS, STYLE_SHEET, WIDTH, Chart, color_of, draw, number
from contrastive_text.runs.report.runs import MOST_RUNS, read_runs

LABEL = "</svg> $x$ < & #ffffff 0.123456"
DARK = dict(re.findall(r"--([\w-]+): (#\w{6})", STYLE_SHEET.split("@media")[1]))
Vector = npt.NDArray[np.float64]
SEEN_AS = {
    "all cones": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    # Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, row by row.
    "protanopia": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    "deuteranopia": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881],
    "tritanopia": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900],
}
# Ottosson 2020, "A perceptual color space for image processing": from linear sRGB to cones, from those to Lab.
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
CONES += [[0.0883024619, 0.2817188376, 0.6299787005]]
LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
LAB += [[0.0259040371, 0.7827717662, -0.8086757660]]


def chart() -> Chart:
    def paint(axes: Axes) -> None:
        axes.plot([1, 2, 3], [1.0, -4.0, 2.0], color=color_of(0))
        axes.set_title(LABEL, color=COLORS["ink"])

    return draw("loss", "Loss <total>", "It fell.", paint)


def test_a_chart_has_the_themes_colors_unique_ids_and_its_texts_unchanged() -> None:
    assert chart() == chart()  # without a date
    drawing = ElementTree.fromstring(f'<svg xmlns:xlink="x">{chart().svg}</svg>')
    assert LABEL in [element.text for element in drawing.iter("text")]
    styles = " ".join(element.get("style", "") for element in drawing.iter())
    assert "#" not in styles and "DejaVu" not in styles
    assert all(f"var(--{name})" in styles for name in ("series-1", "ink", "paper"))
    assert not [name for element in drawing.iter() if (name := element.get("id")) and "_" in name]


def test_the_png_file_has_two_dots_a_pixel_in_light_colors_and_no_name_of_a_library() -> None:
    picture = Image.open(io.BytesIO(chart().png))
    assert picture.size == (2 * WIDTH, 2 * chart().height)
    assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert "Software" not in picture.info


def test_a_legend_names_runs_unless_one_is_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / f"<b>{'x' * 40}"]
    for folder in folders:
        (folder / "checkpoints").mkdir(parents=True)
    several, alone = (draw("c", "", "", Axes.grid, read_runs(each)).svg for each in (folders, folders[:1]))
    assert ">a</text>" in several and f">…{'x' * 22}</text>" in several
    assert ">a</text>" not in alone


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (-3.2381, ".2f", "\u22123.24"),
        (0.00012, ".3g", "0.00012"),
        (4357.2, ".3g", "4,357"),
        (-43572.0, ".3g", "\u221243,572"),
        (3e12, ".3g", "3e+12"),
    ],
)
def test_a_number_has_a_typographic_minus_and_no_exponent_below_a_billion(
    value: float, form: str, text: str
) -> None:
    assert number(value, form) == text


def linear(color: str) -> Vector:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    dark, light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def seen(color: str, by: str) -> Vector:
    return LAB @ np.cbrt(CONES @ np.clip(np.reshape(SEEN_AS[by], (3, 3)) @ linear(color), 0, 1))


@pytest.mark.parametrize("theme", [COLORS, DARK], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_and_colors_of_runs_differ_for_all_eyes(theme: dict[str, str]) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)  # WCAG 2.2, definition of contrast ratio
    for name, ground in itertools.product(("ink", "muted", "gone", "new"), ("paper", "soft")):
        assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    series = [color for name, color in theme.items() if name.startswith("series-")]
    assert len(series) == MOST_RUNS
    assert min(contrast(color, theme["paper"]) for color in series) >= 3.0
    for eyes in SEEN_AS:
        vectors = [seen(color, eyes) for color in series]
        assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(vectors, 2)) >= 0.12, eyes


def test_each_theme_has_each_color_and_a_drawn_color_is_of_one_name() -> None:
    assert COLORS.keys() == DARK.keys()
    assert len({*COLORS.values()}) == len(COLORS)
