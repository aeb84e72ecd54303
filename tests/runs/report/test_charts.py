import io
import re
from xml.etree import ElementTree

from matplotlib.figure import Figure
from PIL import Image

from contrastive_text.runs.report.charts import HEIGHT, WIDTH, Chart, draw
from contrastive_text.runs.report.style import LIGHT, series

LABEL = "$x$ < & #ffffff 0.123456"


def paint(figure: Figure) -> None:
    axes = figure.subplots()
    axes.plot([1, 2, 3], [1.0, -4.0, 2.0], color=series(0))
    axes.set_title(LABEL, color=LIGHT["ink"])


def chart() -> Chart:
    return draw("loss", "Loss <total>", "It fell.", paint)


def test_the_same_drawing_has_the_same_bytes() -> None:
    assert chart() == chart()


def test_a_chart_is_one_element_in_the_themes_colours_without_a_date() -> None:
    svg = chart().svg
    tree = ElementTree.fromstring(svg)
    assert tree.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
    assert not re.search(r"<metadata|<!--|<!DOCTYPE|xlink|Matplotlib|DejaVu", svg)
    styles = " ".join(element.get("style", "") for element in tree.iter())
    assert "#" not in styles
    assert "var(--series-1)" in styles and "var(--ink)" in styles and "var(--paper)" in styles


def test_text_of_a_chart_stays_text_as_it_was_written() -> None:
    tree = ElementTree.fromstring(chart().svg)
    assert LABEL in [element.text for element in tree.iter("text")]


def test_a_chart_is_named_and_described() -> None:
    tree = ElementTree.fromstring(chart().svg)
    spoken = {element.get("id"): element.text for element in tree if element.tag in ("title", "desc")}
    assert spoken == {"loss-title": "Loss <total>", "loss-desc": "It fell."}
    assert tree.get("aria-labelledby") == "loss-title loss-desc"


def test_the_picture_has_two_dots_a_pixel_in_light_colours_and_no_name_of_a_library() -> None:
    picture = Image.open(io.BytesIO(chart().png))
    assert picture.size == (2 * WIDTH, 2 * HEIGHT)
    assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert "Software" not in picture.info
