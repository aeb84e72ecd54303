from pathlib import Path

import pytest

from contrastive_text.cli import run


@pytest.mark.slow
def test_report_writes_a_page_into_the_runs_folder(
    finished: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(finished["folder"])
    assert run(["report", str(folder.parent), "--limit", "20"]) == 0
    assert f"{folder / 'report' / 'report.html'} written" in capsys.readouterr().out
    assert (folder / "report" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "report" / "spectrum.png").is_file()


@pytest.mark.slow
def test_models_and_runs_are_points_of_one_plane(
    finished: dict[str, str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", finished["folder"], files["bert"], "--pairs", files["pairs"], "--limit", "20"]
    assert run([*words, "--output", "plane"]) == 0
    assert "bert names no pooler: taking the mean over tokens" in capsys.readouterr().out
    page = (here / "plane" / "report.html").read_text(encoding="utf-8")
    assert (here / "plane" / "plane.png").is_file()
    chart = page[page.index("Alignment and uniformity") :]
    assert "uniformity (lower is more even)" in chart and "alignment (lower is nearer)" in chart
    assert "bert: alignment" in chart and "bert is a saved model, without its run" in page


@pytest.mark.slow
def test_a_page_escapes_texts(finished: dict[str, str], here: Path) -> None:
    texts = "<script>alert(1)</script> \x1b[31m\n" * 4 + "".join(f"a dog {i}\n" for i in range(30))
    (here / "bad.txt").write_text(texts, encoding="utf-8")
    words = ["report", finished["folder"], "--texts", "bad.txt", "--output", "page", "--limit", "20"]
    assert run(words) == 0
    page = next((here / "page").glob("*.html")).read_text(encoding="utf-8")
    assert "<script>alert" not in page
