"""Prompts in use: the vectors of sentence-transformers, with and without the prompt in the pooler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import crossed, rest_slow
from inference.test_layout_families import FAMILIES, save_network
from transformers import AutoModel

from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.index import Index
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import vectors_by_pooler
from contrastive_text.poolers import (
    CLSPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MaxPooler,
    MeanPooler,
    Pooler,
    WeightedMeanPooler,
)

EQUAL = 1e-5  # of two libraries on one folder; float32
NAMED = {"query": "the old ", "document": "a tall man: ", "news-query": "bird "}
TEXTS = (*tiny.TEXTS[:4], "bird", " ".join(tiny.TEXTS[:6]))
"""The last one is cut."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("prompts")
    # RoBERTa's tokenizer joins a blank to the word after it.
    roberta = save_network(place / "roberta", FAMILIES["RoBERTa"])
    return {"bert": tiny.save_bert(place / "bert"), "roberta": str(roberta)}


def load_theirs(folder: Path) -> Any:
    module = pytest.importorskip("sentence_transformers", reason="the comparison needs it (dev extra)")
    return module.SentenceTransformer(str(folder), device="cpu")


QUICK = [("bert", MeanPooler(), True), ("roberta", MeanPooler(), False)]
REST = [
    ("bert", CLSPooler(), False), ("roberta", MaxPooler(), False), ("bert", LastTokenPooler(), False),
    ("roberta", WeightedMeanPooler(), False), ("roberta", LastTokenPooler(), True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pooler", "pooled"), rest_slow([*QUICK, *REST]))
def test_vectors_are_those_of_sentence_transformers(
    folders: dict[str, str], tmp_path: Path, name: str, pooler: Pooler, pooled: bool
) -> None:
    model = SentenceEncoder(
        TransformerEncoder(folders[name]), pooler, max_length=16, prompts=Prompts(NAMED, "query", pooled)
    )
    model.save_pretrained(tmp_path / "saved")
    again, theirs = (
        SentenceEncoder.from_pretrained(tmp_path / "saved", device="cpu"),
        load_theirs(tmp_path / "saved"),
    )
    assert again.prompts == model.prompts
    assert again.identity == model.identity
    calls: tuple[tuple[str, dict[str, str]], ...] = (
        ("encode_query", {}),
        ("encode_document", {}),
        ("encode", {}),
        ("encode", {"prompt_name": "document"}),
        ("encode", {"prompt": "bird "}),
        ("encode", {"prompt": ""}),
        ("encode_query", {"prompt_name": "news-query"}),
    )
    found = []
    for method, options in calls:
        ours, read, peers = (getattr(each, method)(TEXTS, **options) for each in (model, again, theirs))
        np.testing.assert_allclose(ours, peers, rtol=0, atol=EQUAL, err_msg=f"{method} {options}")
        np.testing.assert_array_equal(ours, read)
        found.append(ours)
    query, document, default, as_document, *_ = found
    np.testing.assert_array_equal(query, default)
    np.testing.assert_array_equal(document, as_document)
    assert np.abs(query - document).max() > 0.1
    assert model.truncated


def test_a_prompt_left_out_is_in_no_row_of_the_mean_but_in_its_attention(folders: dict[str, str]) -> None:
    encoder = TransformerEncoder(folders["bert"])
    kept, left_out, without = (
        SentenceEncoder(encoder, MeanPooler(), prompts=prompts).encode(TEXTS)
        for prompts in (Prompts(NAMED, "query"), Prompts(NAMED, "query", pooled=False), Prompts())
    )
    assert min(np.abs(left_out - kept).max(), np.abs(left_out - without).max()) > 0.1


def test_a_model_without_prompts_has_none_before_queries_and_documents(folders: dict[str, str]) -> None:
    model = SentenceEncoder(TransformerEncoder(folders["bert"]), MeanPooler())
    alone = SentenceEncoder(model.encoder, MeanPooler(), prompts=Prompts({"default": "the "}, "default"))
    plain = model.encode(TEXTS)
    for each in (model, alone):
        np.testing.assert_array_equal(each.encode_query(TEXTS), plain)
        np.testing.assert_array_equal(each.encode_document(TEXTS), plain)
    assert np.abs(alone.encode(TEXTS) - plain).max() > 0.1


def test_a_search_holds_queries_against_documents(folders: dict[str, str], tmp_path: Path) -> None:
    model = SentenceEncoder(TransformerEncoder(folders["bert"]), MeanPooler(), prompts=Prompts(NAMED, "query"))
    corpus = list(tiny.TEXTS)
    expected = model.similarity(model.encode_query("an old bird"), model.encode_document(corpus))[0]
    (hits,) = model.search("an old bird", corpus, top_k=3)
    assert [hit.corpus_id for hit in hits] == expected.argsort(descending=True)[:3].tolist()
    index = Index.create(tmp_path / "index", model)
    index.add(corpus)
    assert [int(hit.id) for hit in index.search("an old bird", top_k=3)[0]] == [hit.corpus_id for hit in hits]
    model.prompts = Prompts({**NAMED, "document": "else "}, "query")
    with pytest.raises(ValueError, match="prompt"):
        Index.open(tmp_path / "index", model)


def test_other_poolers_read_what_is_left_too(folders: dict[str, str], tmp_path: Path) -> None:
    prompts = Prompts(NAMED, "query", pooled=False)
    model = SentenceEncoder(TransformerEncoder(folders["bert"]), LastTwoPooler(), prompts=prompts)
    model.save_pretrained(tmp_path / "saved")  # under its class path, which sentence-transformers doesn't read
    again = SentenceEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.prompts == prompts
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    found = vectors_by_pooler(model, ["LastTwoPooler", "CLSPooler"], TEXTS)
    np.testing.assert_allclose(found["LastTwoPooler"], model.encode(TEXTS), rtol=0, atol=EQUAL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_name": "passage"}, "expected one of query, document, news-query, got 'passage'"),
        ({"prompt_name": "query", "prompt": "a "}, "expected no prompt together with prompt_name"),
        ({"prompt": "the old bird " * 5}, "expected fewer tokens than the 14 that max_length 16 leaves.*got 15"),
    ],
)
def test_prompts_can_be_given_to_a_folder_and_one_that_cannot_be_is_refused(
    folders: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.warns(UserWarning, match="names no pooler"):
        model = SentenceEncoder.from_pretrained(folders["bert"], prompts=Prompts(NAMED), max_length=16)
    np.testing.assert_array_equal(model.encode_query("bird"), model.encode("bird", prompt="the old "))
    with pytest.raises(ValueError, match=message):
        model.encode(TEXTS, **options)


TEMPLATE = "the old '{text} ' sings {mask}."


@pytest.mark.parametrize(("name", "apart"), crossed(["bert", "roberta"], [True, False]))
def test_a_template_is_embedded_at_its_mask_token(
    folders: dict[str, str], tmp_path: Path, name: str, apart: bool
) -> None:
    encoder = TransformerEncoder(folders[name])
    tokenizer = encoder.tokenizer
    assert tokenizer is not None
    template = TEMPLATE.replace("{mask}", tokenizer.mask_token)
    prompts = Prompts({"default": TEMPLATE}, "default", apart=apart)
    model = SentenceEncoder(encoder, MaskTokenPooler(), prompts=prompts)
    before, after = template.split("{text}")
    texts = ["A bird", *tiny.TEXTS[:3]]
    for text, found in zip(texts, model.encode(texts), strict=True):
        whole = tokenizer(before).input_ids[:-1] + model.tokenizer.ids([text])[0] + tokenizer(after).input_ids[1:]
        ids = torch.tensor([whole if apart else tokenizer(f"{before}{text}{after}").input_ids])
        with torch.no_grad():
            hidden = AutoModel.from_pretrained(folders[name]).eval()(input_ids=ids).last_hidden_state
        np.testing.assert_allclose(found, hidden[ids == tokenizer.mask_token_id][0], rtol=0, atol=EQUAL)
    model.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert (again.prompts, again.identity) == (prompts, model.identity)
    np.testing.assert_array_equal(again.encode(texts), model.encode(texts))
    with pytest.raises(ValueError, match=r"text 2 \('a .*\): expected exactly one mask token .* got 2"):
        again.encode([*texts[:2], f"a {tokenizer.mask_token}"])


@pytest.mark.parametrize(
    "prompts", rest_slow([{"named": {"d": "the {text} sings"}}, {"named": {"d": "the "}, "apart": True}])
)
def test_a_template_fails_in_sentence_transformers_instead_of_standing_before_texts(
    folders: dict[str, str], tmp_path: Path, prompts: dict[str, Any]
) -> None:
    ours = SentenceEncoder(
        TransformerEncoder(folders["bert"]), MeanPooler(), prompts=Prompts(**prompts, default="d")
    )
    ours.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))
    with pytest.raises(Exception, match=r".+"):  # whichever error their version has: no vectors is what counts
        load_theirs(tmp_path / "saved").encode(TEXTS)
