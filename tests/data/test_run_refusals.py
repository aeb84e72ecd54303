"""Refusals of data modules: one table of options of data and module, and the words of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny
from data_files import refuses
from token_pairings import Alone, Halves

from contrastive_text.core.types import Example, Row
from contrastive_text.data import TextDataModule, TextTask
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.pairings import Given, Neighbors, OneSequence, Pairing, Spans
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens, SwapWords


class Ragged(Pairing):
    """One positive or two."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the base's signature
        text = str(row["text"])
        return [Example(anchor=text, positives=(text,) * (1 + (len(text) % 2)))]


class Silent(Pairing):
    """No example at all."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the base's signature
        return []


class Refusal(NamedTuple):
    """Options of data, words of the error in their order, and options of the module."""

    options: Mapping[str, Any]
    words: Sequence[str]
    train: str = "texts"
    module: Mapping[str, Any] = {}


AT_ONCE = [
    *(Refusal({name: number}, [f"{place}.{name}: expected {number + 1} or more, got {number}"])
      for place, name, number in (
          ("data", "batch_size", 0), ("data", "eval_batch_size", 0), ("data", "num_workers", -1),
          ("data.task", "originals", 0), ("data.task", "limit", 0), ("data.task", "repeat", 0))),
    *(Refusal({"limit": share}, ["data.task.limit: expected", f"got '{share}'; such as 1000 or 10%"])
      for share in ("0%", "101%", "a%", "0.1")),
    Refusal({"predict": None, "task": TextTask(test="a.tsv")}, ["data.task.test: expected no files here, got"]),
    *(Refusal({"tasks": {"a": task}, "train": None}, [f"data.tasks.a.{words}"]) for task, words in (
        (TextTask(limit=0), "limit: expected 1 or more"), (TextTask(fraction=6), "fraction: expected a share"),
        (TextTask(fraction=0.5, repeat=2), "repeat: expected no repeat next to fraction, got 2"))),
    Refusal({"tasks": {"a": TextTask()}, "train": None, "repeat": 3}, ["data.task.repeat: expected no option"]),
    Refusal({"tasks": {"a": TextTask()}}, ["data.train: expected no files next to data.tasks"]),
]  # fmt: skip
ON_SETUP = [
    Refusal({"batch_size": 41}, ["at most the number of rows, 40, got 41; lower batch_size"]),
    Refusal({"limit": 41}, ["data.task.limit: expected at most the 40 rows of the data, got 41"]),
    Refusal({}, ["views.negative: expected a slot that the pairing SameText gives (anchor, original, positive)"],
            module={"views": {"negative": [DeleteTokens()]}}),
    Refusal({"pairing": Silent()}, ["pairing Silent: expected at least one example from every row, got no ex"]),
    Refusal({"pairing": Ragged()}, ["pairing Ragged: expected the same number of examples"]),
    Refusal({"pairing": Halves(), "batch_size": 11}, ["at most the number of rows, 10, got 11"], "documents"),
    Refusal({"pairing": Halves(least=99)}, ["data.train: expected a document long", "got 16 of"], "documents"),
    Refusal({"pairing": Alone()}, ["objectives: expected a pairing that gives positive, got Alone"], "documents"),
    Refusal({"pairing": Neighbors()}, ["expected a document of two or more texts", "got documents"], "line"),
    Refusal({"pairing": Spans(anchors=1, min_length=4, max_length=80)}, [
            "Spans.max_length: expected at most 62, the tokens of the encoder's rows", "got 80",
            "raise model.encoder.max_length by 18", "too_long: cut"], "documents"),
    *(Refusal({"pairing": OneSequence()}, ["views.anchor: expected no views of words or tokens on two"], "pairs",
              {"views": {"anchor": [view]}}) for view in (MaskTokens(), SwapWords())),
    *(Refusal({"join": tokens}, ["data.task.join: expected more than the 2 special tokens", f"64, got {tokens}"])
      for tokens in (2, 65)),
    Refusal({"join": 32, "pairing": Given()}, ["data.task.join: expected single", "of anchor, pos"], "pairs"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An encoder with room for 64 tokens, and files of texts, pairs and documents."""
    folder = tmp_path_factory.mktemp("files")
    return {
        "bert": tiny.save_bert(folder / "bert", max_position_embeddings=64),
        "texts": tiny.write_texts(folder / "texts.txt"),
        "line": tiny.write_texts(folder / "line.txt", tiny.TEXTS[:1]),
        "pairs": tiny.write_pairs(folder / "pairs.tsv"),
        "documents": Halves.documents(folder / "documents.txt"),
        "cache_dir": str(folder / "cache"),
    }


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: case.words[0][:50])
def test_options_without_a_meaning_are_refused_at_once(case: Refusal) -> None:
    with refuses(*case.words):
        tiny.data(**{"train": "texts.txt", **case.options})


@pytest.mark.parametrize("case", ON_SETUP, ids=lambda case: case.words[0][:50])
def test_data_that_do_not_fit_are_refused_on_setup_or_with_the_first_batch(
    case: Refusal, files: dict[str, str]
) -> None:
    data = tiny.data(files[case.train], cache_dir=files["cache_dir"], **case.options)
    data.set_module(ContrastiveModule(TransformerEncoder(files["bert"]), **case.module))
    with refuses(*case.words):
        data.setup("fit")
        list(data.train_dataloader())


@pytest.mark.parametrize("stage", ["fit", "test", "predict"])
def test_a_stage_without_its_file_says_which_option_names_it(files: dict[str, str], stage: str) -> None:
    part = {"fit": "train"}.get(stage, stage)
    data = TextDataModule()
    data.set_module(tiny.module(files["bert"]))
    with refuses(f"data.{part}: expected a file, got no file; give --data.{part}"):
        data.setup(stage)


def test_validation_needs_files_of_different_names(files: dict[str, str], tmp_path: Path) -> None:
    with refuses("data.validation: expected a file", "give --data.validation"):
        tiny.trainer(tmp_path).validate(tiny.module(files["bert"]), datamodule=TextDataModule(), verbose=False)
    data = TextDataModule(validation=[files["pairs"], files["pairs"]])
    data.set_module(tiny.module(files["bert"]))
    with refuses("data.validation: expected files of different names, got pairs, pairs"):
        data.setup("validate")


def test_data_ask_for_a_module_and_for_setup(files: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="expected a trainer that runs a ContrastiveModule"):
        TextDataModule(train=files["texts"]).setup("fit")
    with pytest.raises(RuntimeError, match=r'TextDataModule: expected setup\("fit"\) before'):
        TextDataModule(train=files["texts"]).training.of()
