"""What a folder's records name stays inside of the folder."""

from pathlib import Path

import pytest

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.inside import inside


@pytest.mark.parametrize("name", ["", "a", "a/b", "a/b.c", "...", "a..b", "./a"])
def test_a_path_inside_is_taken(tmp_path: Path, name: str) -> None:
    assert inside(tmp_path, name, "a.json") == tmp_path / name


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../a",
        "a/../../b",
        "a/..",
        "/",
        "/etc/passwd",
        "\\a",
        "a\\..\\..\\b",
        "C:\\a",
        "C:a",
        "a\0b",
        "\\\\h\\a",
    ],
)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^a\.json: expected a path inside"):
        inside(tmp_path, name, "a.json")


def test_a_link_that_leads_out_is_refused_and_one_inside_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "real").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (folder / "out").symlink_to(tmp_path / "other")
    (folder / "in").symlink_to(folder / "real")
    assert inside(folder, "in", "a.json") == folder / "in"
    with pytest.raises(InvalidValueError, match="expected a path inside"):
        inside(folder, "out", "a.json")
    (tmp_path / "linked").symlink_to(folder)
    assert inside(tmp_path / "linked", "real", "a.json")  # the folder itself may be reached by a link
