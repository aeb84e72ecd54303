"""Hostile texts, columns and names through the commands: shown, never sent to the terminal, no markup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from contrastive_text.cli import run
from contrastive_text.core.terminal import shown

BAD = "x[/bold]y [link=http://a]b[/link] \x1b[31mred\x1b]0;title\x07 \x9b2J \u202eabc"
SHOWN = r"x[/bold]y [link=http://a]b[/link] \x1b[31mred\x1b]0;title\x07 \x9b2J \u202eabc"
Said: TypeAlias = Callable[[list[str]], tuple[int, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs words, and gives the status and all that was printed."""

    def of(words: list[str]) -> tuple[int, str]:
        try:
            status = run(words)
        except SystemExit as left:
            status = int(str(left.code))
        out, error = capsys.readouterr()
        assert shown(out) == out and shown(error) == error, words
        return status, out + error

    capsys.readouterr()
    return of


def test_texts_are_shown_by_every_command_that_prints_them(
    here: Path, finished: dict[str, str], tiny_words: list[str], monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    model = finished["model"]
    (here / "bad.txt").write_text(f"{BAD}\n{BAD} more\na dog\na bird\n" + "a river\n" * 8, encoding="utf-8")
    status, text = said(["views", "--recipe", "simcse", *tiny_words, "--data.train", "bad.txt"])
    assert status == 0  # and no complaint of markup; the tiny tokenizer knows none of these words
    status, text = said(["search", "bad.txt", BAD, "--model", model, "--top_k", "2"])
    assert status == 0 and SHOWN in text
    status, text = said(["duplicates", "bad.txt", "pairs.tsv", "--model", model, "--threshold", "0.5"])
    assert status == 0
    status, text = said(["embed", "bad.txt", "out.npy", "--model", model])
    assert status == 0


def test_names_of_files_columns_and_options_are_shown(
    here: Path, finished: dict[str, str], files: dict[str, str], said: Said
) -> None:
    model = finished["model"]
    name = BAD.replace("/", "-")
    (here / f"{name}.tsv").write_text(Path(files["pairs"]).read_text())
    (here / "bad.tsv").write_text(f"{BAD}\tother\nx\ty\n", encoding="utf-8")
    status, text = said(["evaluate", model, f"{name}.tsv"])
    assert status == 0 and shown(name) in text
    status, text = said(["evaluate", model, "bad.tsv"])
    assert status == 2 and r"\x1b[" in text
    for words in (
        ["evaluate", model, f"{BAD}.tsv"],
        ["embed", files["texts"], "out.npy", "--model", BAD],
        ["embed", files["texts"], f"{name}/out.npy", "--model", model],
        ["embed", files["texts"], "out.npy", f"--{BAD}".replace("=", "-"), "--model", model],
        ["report", BAD],
        ["fit", "--recipe", BAD],
        ["fit", "--config", BAD],
        ["fit", "--recipe", "simcse", "--trust", BAD],
        [BAD],
    ):
        status, text = said(words)
        assert status == 2, words
        assert r"\x1b[" in text, (words, text)


def test_a_file_s_name_that_is_no_utf_8_and_one_behind_two_dashes(
    here: Path, finished: dict[str, str], files: dict[str, str], said: Said
) -> None:
    texts = Path(files["texts"]).read_text()
    try:
        (here / "a\udcff.txt").write_text(texts)
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    status, text = said(["embed", "a\udcff.txt", "out.npy", "--model", finished["model"]])
    assert status == 0 and r"a\udcff.txt" in text
    (here / "-in.txt").write_text(texts)
    status, _ = said(["embed", "--model", finished["model"], "--", "-in.txt", "dashes.npy"])
    assert status == 0 and (here / "dashes.npy").exists()


@pytest.mark.slow
def test_a_report_escapes_what_it_shows(finished: dict[str, str], here: Path, said: Said) -> None:
    (here / "bad.txt").write_text(
        "<script>alert(1)</script> \x1b[31m\n" * 4 + "".join(f"a dog {i}\n" for i in range(30)), encoding="utf-8"
    )
    status, text = said(["report", finished["folder"], "--texts", "bad.txt", "--output", "page", "--limit", "20"])
    assert status == 0, text
    page = next((here / "page").glob("*.html")).read_text(encoding="utf-8")
    assert "<script>alert" not in page
