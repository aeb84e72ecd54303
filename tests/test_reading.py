"""The files in which a step of SimCSE is read: the table of docs/design.md against a step that is traced."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import tiny

import contrastive_text
from contrastive_text.training import ContrastiveModule

PACKAGE = Path(contrastive_text.__file__).parent
SECTION = re.search(
    r"## Reading a step\n(.*?)\n## ",
    (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)


def traced_step(module: ContrastiveModule, batch: object) -> dict[str, set[CodeType]]:
    """Returns the code that a step runs by file of the package, files in the order of their first call."""
    ran: dict[str, set[CodeType]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and "<" not in frame.f_code.co_name:
            ran.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(frame.f_code)

    sys.setprofile(note)
    try:
        module.training_step(batch, 0)
    finally:
        sys.setprofile(None)
    return ran


def test_a_step_is_read_in_the_nine_files_of_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECTION is not None
    module = ContrastiveModule.from_recipe("simcse", tiny.save_bert(tmp_path / "bert"))
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    data.attach(module)
    data.setup("fit")
    monkeypatch.setattr(type(module), "current_epoch", 0)
    ran = traced_step(module, next(iter(data.train_dataloader())))
    table = re.findall(r"^\| \[`([\w/.]+)`\]\S+ \| (\d+) \| (.+) \|$", SECTION[1], flags=re.MULTILINE)
    read = [file for file, _, _ in table]
    assert len(read) <= 9
    assert read == [file for file in ran if file in read], "in the order in which a batch passes them"
    linked = dict(re.findall(r"\[`([\w/.]+\.py)`\]\(\.\./contrastive_text/([^)]+)\)", SECTION[1]))
    assert linked == {file: file for file in ran}, "what else is called is named too, each with a link"
    for file, lines, words in table:
        names = {code.co_name for code in ran[file]}
        assert set(re.findall(r"`(\w+)`", words)) <= names, file
        length = sum(
            len(inspect.getsourcelines(code)[0]) for code in ran[file] if "<locals>" not in code.co_qualname
        )
        assert abs(length - int(lines)) <= max(10, 0.2 * int(lines)), f"{file}: {length} lines run"
