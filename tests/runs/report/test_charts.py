"""Charts, and the colors of both themes."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from PIL import Image

from contrastive_text.runs.report.charts import COLORS, STYLE_SHEET, WIDTH, Chart, color_of, draw, number
from contrastive_text.runs.report.runs import MOST_RUNS, read_runs

LABEL = "</svg> $x$ < & #ffffff 0.123456"
DARK = dict(re.findall(r"--([\w-]+): (#\w{6})", STYLE_SHEET.split("@media")[1]))


def draw_chart() -> Chart:
    def paint(axes: Axes) -> None:
        axes.plot([1, 2, 3], [1.0, -4.0, 2.0], color=color_of(0))
        axes.set_title(LABEL, color=COLORS["ink"])

    return draw("loss", "Loss <total>", "It fell.", paint)


@pytest.fixture(scope="module")
def chart() -> Chart:
    return draw_chart()


def test_a_chart_has_the_themes_colors_unique_ids_and_its_texts_unchanged(chart: Chart) -> None:
    assert chart == draw_chart()  # without a date
    drawing = ElementTree.fromstring(f'<svg xmlns:xlink="x">{chart.svg}</svg>')
    assert LABEL in [element.text for element in drawing.iter("text")]
    styles = " ".join(element.get("style", "") for element in drawing.iter())
    assert "#" not in styles and "DejaVu" not in styles
    assert all(f"var(--{name})" in styles for name in ("series-1", "ink", "paper"))
    assert not [name for element in drawing.iter() if (name := element.get("id")) and "_" in name]


def test_the_png_file_has_two_dots_a_pixel_in_light_colors_and_no_name_of_a_library(chart: Chart) -> None:
    picture = Image.open(io.BytesIO(chart.png))
    assert picture.size == (2 * WIDTH, 2 * chart.height)
    assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert "Software" not in picture.info


def test_a_legend_names_runs_unless_one_is_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / f"<b>{'x' * 40}"]
    for folder in folders:
        (folder / "checkpoints").mkdir(parents=True)
    several, alone = (draw("c", "", "", Axes.grid, read_runs(each)).svg for each in (folders, folders[:1]))
    assert ">a</text>" in several and f">…{'x' * 22}</text>" in several
    assert ">a</text>" not in alone


def test_each_theme_has_each_color_and_a_drawn_color_is_of_one_name() -> None:
    assert COLORS.keys() == DARK.keys()
    assert len({*COLORS.values()}) == len(COLORS)
    assert sum(name.startswith("series-") for name in COLORS) == MOST_RUNS


def test_a_number_has_a_typographic_minus_and_no_exponent_below_a_billion() -> None:
    shown = [number(value, ".3g") for value in (0.00012, 4357.2, -43572.0, 3e12)]
    assert shown == ["0.00012", "4,357", "\u221243,572", "3e+12"]
