"""Folders with an encoder per role: equal vectors in sentence-transformers, in both directions, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from covering import rest_slow
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.encoders import AsymmetricEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.heads import StackHead
from contrastive_text.inference.encoding import Encoding
from contrastive_text.poolers import CLSPooler, MeanPooler

TEXTS = [*tiny.TEXTS[:5], " ".join(tiny.TEXTS[:9]), ""]
"""Texts below and above the length limits, and an empty one."""
CLOSE = {"rtol": 0, "atol": 1e-12}
"""Bound for float64: sums in another order, and batches of other sizes."""
HEAD = [{"name": "Linear", "out_features": 16}, {"name": "Tanh"}, {"name": "UnitLength"}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a narrower encoder of one layer and the same tokenizer."""
    narrow = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16}
    return tiny.save_bert(tmp_path_factory.mktemp("small"), seed=1, **narrow)


def ours(kind: str, bert: str, small: str) -> SentenceEncoder:
    if kind == "static queries":
        return SentenceEncoder(AsymmetricEncoder(bert), MeanPooler(), normalize=True, max_length=20)
    networks = {"query": TransformerEncoder(small), "document": TransformerEncoder(bert)}
    encoder = AsymmetricEncoder(**networks, document_pooler=CLSPooler(), query_head=StackHead(HEAD))
    return SentenceEncoder(encoder, MeanPooler(), query_length=12, document_length=20, max_length=20)


def theirs(kind: str, bert: str, small: str) -> SentenceTransformer:
    def transformer(folder: str, length: int) -> Transformer:
        module = Transformer(folder)
        module.max_seq_length = length
        return module

    if kind == "static queries":
        table = StaticEmbedding(Tokenizer.from_file(f"{bert}/tokenizer.json"), embedding_dim=16)
        document = [transformer(bert, 20), Pooling(16, "cls"), Dense(16, 16)]
        return SentenceTransformer(modules=[Router.for_query_document([table], document), Normalize()])
    query = [transformer(small, 12), Pooling(8, "max"), Dense(8, 16)]
    router = Router({"query": query, "document": [transformer(bert, 24), Pooling(16, "mean"), Normalize()]})
    return SentenceTransformer(modules=[router], prompts={"query": "q: "})


def vectors(model: Any) -> dict[str, np.ndarray[Any, Any]]:  # Any: of either library
    model = deepcopy(model).double()
    queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
    return {"query": queries, "document": documents, "neither": model.encode(TEXTS)}


def check_close(found: Any, expected: Any) -> None:
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, **CLOSE, err_msg=name)


KINDS = ("static queries", "two transformers")


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_a_folder_of_ours_has_equal_vectors_in_sentence_transformers(
    kind: str, bert: str, small: str, tmp_path: Path
) -> None:
    model = ours(kind, bert, small)
    expected = vectors(model)
    assert np.abs(expected["query"] - expected["document"]).max() > 1e-2
    model.save_pretrained(tmp_path / "model")
    check_close(vectors(SentenceTransformer(str(tmp_path / "model"), device="cpu")), expected)
    again = SentenceEncoder.from_pretrained(tmp_path / "model")
    check_close(vectors(again), expected)
    assert again.identity == model.identity


@pytest.mark.filterwarnings("ignore:.*Different max_seq_lengths")
@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_a_folder_of_sentence_transformers_has_equal_vectors_here_and_is_saved_again(
    kind: str, bert: str, small: str, tmp_path: Path
) -> None:
    model = theirs(kind, bert, small)
    expected = vectors(model)
    model.save(str(tmp_path / "theirs"))
    read = SentenceEncoder.from_pretrained(tmp_path / "theirs")
    check_close(vectors(read), expected)
    read.save_pretrained(tmp_path / "again")
    check_close(vectors(SentenceTransformer(str(tmp_path / "again"), device="cpu")), expected)


@pytest.fixture
def folder(bert: str, small: str, tmp_path: Path) -> Path:
    ours("two transformers", bert, small).save_pretrained(tmp_path / "model")
    return tiny.by_hand(tmp_path / "model")


def test_the_name_of_a_prompt_and_the_kind_choose_the_encoder(folder: Path) -> None:
    model = SentenceEncoder.from_pretrained(folder)
    queries = model.encode_query(TEXTS)
    for options in ({"prompt_name": "query"}, {"kind": "query"}):
        np.testing.assert_array_equal(model.encode(TEXTS, **options), queries)
    np.testing.assert_array_equal(model.encode_query(TEXTS, prompt=""), queries)
    blocks = model.encode_blocks(TEXTS, Encoding(kind="query"))
    np.testing.assert_array_equal(np.concatenate([*map(np.asarray, blocks)]), queries)
    embed = CachedEncoder(model)
    np.testing.assert_array_equal(embed(TEXTS, "query"), queries)
    np.testing.assert_array_equal(embed(TEXTS, "document"), model.encode_document(TEXTS))
    np.testing.assert_array_equal(embed(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match=r"encode\.kind: expected .*, got 'queries'"):
        model.encode(TEXTS, kind="queries")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="token vectors: expected an encoder for all texts"):
        model.encode(TEXTS, output_value="token_embeddings")


ROUTES = Path("0_Router", "router_config.json")


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        routes = json.loads((folder / ROUTES).read_text())
        change(routes)
        (folder / ROUTES).write_text(json.dumps(routes))

    return write


def renamed(routes: dict[str, Any]) -> None:
    routes["structure"]["passage"] = routes["structure"].pop("document")


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "other routes": (changed(renamed), r"structure: expected the routes query and document"),
    "mappings": (
        changed(lambda routes: routes["parameters"].update(route_mappings={"('query', None)": "document"})),
        "route_mappings: expected no mappings",
    ),
    "an unknown default": (
        changed(lambda routes: routes["parameters"].update(default_route="passage")),
        "default_route: expected one of query, document",
    ),
    "a route of nothing": (
        changed(lambda routes: routes["structure"].update(query=[])),
        "expected a Transformer, then a Pooling",
    ),
    "no pooler": (
        changed(lambda routes: routes["structure"].update(query=["query_0_Transformer"])),
        "expected a Pooling after the Transformer",
    ),
    "a router in a route": (
        changed(lambda routes: routes["types"].update(query_0_Transformer="sentence_transformers.models.Router")),
        "expected a class of sentence-transformers",
    ),
    "a class of others": (
        changed(lambda routes: routes["types"].update(query_0_Transformer="os.system")),
        "expected a class of sentence-transformers of .*, got os.system",
    ),
    "a module without a class": (
        changed(lambda routes: routes["types"].pop("query_1_Pooling")),
        "query_1_Pooling: expected a text, got nothing",
    ),
    "a folder outside": (
        changed(
            lambda routes: (
                routes["structure"].update(query=["../../elsewhere"]),
                routes["types"].update({"../../elsewhere": "sentence_transformers.models.Transformer"}),
            )
        ),
        "elsewhere",
    ),
    "no routes": (lambda folder: (folder / ROUTES).unlink(), "expected a file of the model, got no file"),
    "another vocabulary": (
        lambda folder: tiny.save_bert(folder / "0_Router" / "query_0_Transformer", ("a b", "c d"), hidden_size=8),
        r"encoder\.query: expected the tokenizer of encoder\.document",
    ),
}


@pytest.mark.parametrize("name", rest_slow(DAMAGED, quick=2))
def test_a_folder_that_cant_be_a_model_with_two_encoders_is_refused(name: str, folder: Path) -> None:
    damage, message = DAMAGED[name]
    damage(folder)
    with pytest.raises(ValueError, match=message):
        SentenceEncoder.from_pretrained(folder)


def test_options_for_one_encoder_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="pooler: expected none, because the model has an encoder and a pooler"):
        SentenceEncoder.from_pretrained(folder, pooler="CLSPooler")
    with pytest.raises(ValueError, match="backend: expected a TransformerEncoder, got AsymmetricEncoder"):
        SentenceEncoder.from_pretrained(folder, backend="onnx")
