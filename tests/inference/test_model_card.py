"""Names of files and models in a card are shown, and are no markup of it."""

from __future__ import annotations

import re

import pytest
import yaml

from contrastive_text.core.terminal import code_span, escape_controls
from contrastive_text.inference.model_card import ModelCard

NAMES = (
    "<img src=x onerror=alert(1)>", "a|b", "](javascript:x)", "`code`", "``", "two\nlines", "\u202egnp.exe",
    "\x1b[2J", "---", "# head", "{{x}}", "&lt;",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_in_a_card_and_is_no_markup_of_it(name: str) -> None:
    card = ModelCard(
        description=f"From {code_span(name)}.",
        in_sentence_transformers=True,
        facts={name: name},
        scores={f"val/{name}": 1.0, "spearman": 50.0},
        pairs=name,
    ).text()
    front, _, body = card.removeprefix("---\n").partition("\n---\n")
    (result,) = yaml.safe_load(front)["model-index"][0]["results"]
    assert result["dataset"]["name"] == " ".join(escape_controls(name).split())
    (what,) = [line for line in body.split("\n") if line.startswith("From ")]
    rows = [line for line in body.split("\n") if line.startswith("| ")]
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", what)
    prose = "\n".join([outside_code, *rows]).replace("<br>", "")
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`\]]", prose), prose
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows), rows
    assert not re.search("[\x1b\u202e]", card)
