"""The command that writes a page."""

from pathlib import Path

import pytest
from shells import Shell


@pytest.mark.slow
def test_report_writes_a_page_into_the_runs_folder(shell: Shell, finished: dict[str, str]) -> None:
    folder = Path(finished["folder"])
    said = shell(f"report {folder.parent} --limit 20").out
    assert f"{folder / 'report' / 'report.html'} written" in said
    assert (folder / "report" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "report" / "spectrum.png").is_file()


@pytest.mark.slow
def test_models_and_runs_are_points_of_one_plane(shell: Shell, here: Path) -> None:
    said = shell("report FOLDER BERT --pairs PAIRS --limit 20 --output plane").out
    assert "bert names no pooler: taking the mean over tokens" in said
    page = (here / "plane" / "report.html").read_text(encoding="utf-8")
    assert (here / "plane" / "plane.png").is_file()
    chart = page[page.index("Alignment and uniformity") :]
    assert "uniformity (lower is more even)" in chart and "alignment (lower is nearer)" in chart
    assert "bert: alignment" in chart and "bert is a saved model, without its run" in page
