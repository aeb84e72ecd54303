"""Model folders in every layout of sentence-transformers 6.2: equal vectors, or a refusal with the reason.

The folders are those of ``layouts``; each of ``GROUPS`` is a row of the table in ``docs/model_folders.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from layouts import GROUPS, LAYOUTS, theirs

from contrastive_text import Run
from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.inference.sentence_encoder import SentenceEncoder

EQUAL = 2e-6
"""Largest difference of two libraries' vectors over their largest entry: some ten roundings of float32."""

LONG = " ".join(tiny.TEXTS[:6])
TEXTS = [*tiny.TEXTS[::5], LONG, "The OLD Bird Sings", "a", ""]
"""Texts of all lengths, one longer than every limit, one in capitals, and one without a word."""

QUICK = (
    "pooling max and mean without the prompt", "Dense, LayerNorm, Dense, Normalize", "query_length",
    "prompts with a default",
)  # fmt: skip
"""Rows of the default suite: poolings, modules and settings."""
REFUSED = ("a class of another package with a known name", "a prompt with a place for the text")
NO_POOLER = "ignore:.* names no pooler:UserWarning"
DIMENSION = "ignore:Implicit dimension choice:UserWarning"  # torch's, of Softmax
TRAINED = [next(iter(group)) for group in GROUPS.values() if not next(iter(group.values())).refused]
TRAINED.remove("0_Transformer")  # tests/training has it
PAGE = Path(__file__).parents[2] / "docs" / "model_folders.md"


def rows(refused: bool, quick: tuple[str, ...]) -> list[Any]:  # Any: what parametrize takes
    names = [name for name, layout in LAYOUTS.items() if bool(layout.refused) is refused]
    return rest_slow([*quick, *(name for name in names if name not in quick)], quick=len(quick))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


def vectors(model: Any, batch_size: int = len(TEXTS)) -> dict[str, Any]:  # Any: float32
    """Returns the vectors of the texts, of queries and of documents, by the name of the method."""
    methods = {"encode": model.encode, "query": model.encode_query, "document": model.encode_document}
    return {
        name: np.asarray(encode(TEXTS, batch_size=batch_size, show_progress_bar=False))
        for name, encode in methods.items()
    }


def check_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, those in expected.items():
        assert found[name].shape == those.shape, name
        assert float(np.abs(found[name] - those).max()) <= EQUAL * max(float(np.abs(those).max()), 1.0), name


def files(folder: Path) -> dict[str, Any]:  # Any: JSON, or bytes
    """Returns the content of a saved model's files, but for the model card and the list of digests."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("README.md", MANIFEST)]
    return {
        str(path.relative_to(folder)): json.loads(path.read_bytes())
        if path.suffix == ".json"
        else path.read_bytes()
        for path in paths
    }


@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize("name", rows(refused=False, quick=QUICK))
def test_a_layout_has_equal_vectors_loaded_and_saved(bert: str, tmp_path: Path, name: str) -> None:
    layout, (given, one, two) = LAYOUTS[name], [tmp_path / part for part in ("given", "one", "two")]
    given.mkdir()
    layout.build(given, bert)
    peer = theirs().SentenceTransformer(str(given), device="cpu", **layout.options)
    expected = vectors(peer, batch_size=1 if layout.alone else len(TEXTS))
    ours = SentenceEncoder.from_pretrained(given)
    found = vectors(ours)
    check_equal(found, expected)
    pairs = [
        model.similarity(each["query"], each["document"]) for model, each in ((peer, expected), (ours, found))
    ]
    # The Manhattan distance sums some twenty entries, a dot product their squares.
    torch.testing.assert_close(pairs[1], pairs[0], rtol=1e-5, atol=1e-5)
    ours.save_pretrained(one)
    loaded = SentenceEncoder.from_pretrained(one)
    assert all(np.array_equal(each, found[kind]) for kind, each in vectors(loaded).items())
    assert loaded.identity == ours.identity and loaded.similarity_fn_name == ours.similarity_fn_name
    again = theirs().SentenceTransformer(str(one), device="cpu")
    check_equal(vectors(again), expected)
    assert again.similarity_fn_name == peer.similarity_fn_name
    loaded.save_pretrained(two)
    assert files(one) == files(two)


@pytest.mark.parametrize("name", rows(refused=True, quick=REFUSED))
def test_a_layout_without_an_equal_is_refused_by_its_name(bert: str, tmp_path: Path, name: str) -> None:
    LAYOUTS[name].build(tmp_path, bert)
    with pytest.raises(ValueError, match=LAYOUTS[name].refused):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize("name", TRAINED)
def test_a_layout_trains(bert: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    LAYOUTS[name].build(folder, bert)
    run = Run.from_recipe(
        "simcse",
        encoder=str(folder),
        train=tiny.write_texts(tmp_path / "texts.txt"),
        batch_size=8,
        max_steps=1,
        folder=str(tmp_path / "run"),
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        num_workers=0,
        config={"model.encoder.max_length": 9 if "prompt" in name else 5},
    )
    run.fit()
    assert run.trainer.global_step == 1


def test_the_documented_table_has_a_row_for_each_group_of_layouts() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("### Modules and settings\n")[2].partition("\n### ")[0]
    row = r"^\| (.+?) \| (\d+) \| (?:(yes) \| yes \| yes \| yes \| |no \| \| \| \| .+ )\|$"
    found = re.findall(row, table, flags=re.MULTILINE)
    assert [title for title, *_ in found] == list(GROUPS)
    for title, count, loads in found:
        refusals = [bool(layout.refused) for layout in GROUPS[title].values()]
        assert (len(refusals), set(refusals)) == (int(count), {not loads}), title
