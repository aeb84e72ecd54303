"""White space and case of the texts that are trained on, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from contrastive_text.data import Clean, read_rows
from contrastive_text.data.datamodule import TextDataModule

MESSY = "It  rains.\n\n\tWe \u00a0stay.  "


@pytest.mark.parametrize(
    ("clean", "expected"),
    [
        (Clean(), MESSY),
        (Clean(collapse=True), "It rains. We stay."),
        (Clean(collapse=True, lower=True, leading_blank=True), " it rains. we stay."),
        (Clean(leading_blank=True), f" {MESSY}"),
        (Clean(lower=True), MESSY.lower()),
    ],
)
def test_each_option_does_its_own(clean: Clean, expected: str) -> None:
    assert clean(MESSY) == expected
    assert clean(expected) == expected  # once is enough


def test_the_texts_that_are_trained_on_are_cleaned_which_is_said_and_no_others(tmp_path: Path) -> None:
    train = tiny.write_texts(tmp_path / "texts.txt", tuple(f"{text}  THE  END" for text in tiny.TEXTS))
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    data = tiny.data(train, validation=pairs, clean=Clean(collapse=True, lower=True))
    data.attach(tiny.module(tiny.save_bert(tmp_path / "bert")))
    data.setup("fit")
    assert [row["text"] for row in data.table("train")["train"]] == [f"{text} the end" for text in tiny.TEXTS]
    assert data.table("validation")["pairs"].rows == read_rows(pairs, ("anchor", "positive", "target")).rows
    assert data.facts()["training data"].splitlines()[1] == (
        "cleaned: white space collapsed, lower case; 40 of 40 rows changed, and no text that is scored or "
        "embedded"
    )


def test_the_recipes_of_declutr_clean_as_the_authors_do_and_no_other_recipe_does() -> None:
    assert TextDataModule.from_recipe("declutr/base").task.clean == Clean(collapse=True, leading_blank=True)
    assert TextDataModule.from_recipe("simcse").task.clean is None
