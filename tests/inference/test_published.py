"""Folders of the form in which models were published have the pooling that their authors report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from transformers import BertConfig, BertModel, RobertaConfig, RobertaForMaskedLM

from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, LastTwoPooler, MeanPooler, Pooler

ROUNDING = 1e-5  # float32: another way of attention, over padded rows


def save(folder: Path, kind: Any, config: Any) -> Any:
    """Saves a random checkpoint of a kind of Transformers' with a tokenizer; gives it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = kind(config(**{**tiny.CONFIG, "initializer_range": 0.3})).eval()
    model.save_pretrained(folder)
    tiny.learn_vocabulary(tiny.TEXTS, vocabulary_size=tiny.CONFIG["vocab_size"]).save_pretrained(folder)
    return model


@torch.no_grad()
def expected(model: Any, encoder: SentenceEncoder, pooler: str) -> Any:
    """The vector of a text as plain Transformers give it."""
    tokens = encoder.encoder.tokenizer("the bird sings", return_tensors="pt")  # type: ignore[misc]  # it has one
    output = model(**{key: tokens[key] for key in ("input_ids", "attention_mask")}, output_hidden_states=True)
    layers = output.hidden_states
    return {
        "cls": lambda: layers[-1][0, 0],
        "mlp": lambda: output.pooler_output[0],
        "mean": lambda: layers[-1][0].mean(dim=0),
        "two": lambda: ((layers[-1] + layers[-2]) / 2)[0].mean(dim=0),
    }[pooler]().numpy()


@pytest.mark.parametrize(
    ("place", "kind", "config", "pooler", "read"),
    rest_slow(
        [
            ("unsup-simcse-bert-base-uncased", BertModel, BertConfig, CLSPooler, "cls"),
            ("sup-simcse-bert-base-uncased", BertModel, BertConfig, CLSPooler, "mlp"),
            (
                "models--johngiorgi--declutr-small/snapshots/1f",
                RobertaForMaskedLM,
                RobertaConfig,
                MeanPooler,
                "mean",
            ),
            ("unsup-consert-base", BertModel, BertConfig, LastTwoPooler, "two"),
        ],
        quick=2,
    ),
)
def test_a_published_checkpoint_has_the_pooling_of_its_authors(
    tmp_path: Path, place: str, kind: Any, config: Any, pooler: type[Pooler], read: str
) -> None:
    folder = tmp_path / place
    theirs = save(folder, kind, config)
    with pytest.warns(
        UserWarning, match=f"names no pooler: taking {pooler.__name__}.*pooling of its authors .https"
    ):
        model = SentenceEncoder.from_pretrained(folder, device="cpu")
    assert type(model.pooler) is pooler and "the pooling of its authors (https://github.com/" in model.pooling
    np.testing.assert_allclose(
        model.encode("the bird sings"), expected(theirs, model, read), rtol=0, atol=ROUNDING
    )
    asked = SentenceEncoder.from_pretrained(folder, pooler=CLSPooler(), device="cpu")
    assert asked.head is None and asked.pooling == "CLSPooler, asked for"
    np.testing.assert_allclose(
        asked.encode("the bird sings"), expected(theirs, model, "cls"), rtol=0, atol=ROUNDING
    )


def test_what_a_copy_was_saved_from_counts_and_a_head_that_is_missing_is_refused(tmp_path: Path) -> None:
    tiny.save_bert(tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["_name_or_path"] = "princeton-nlp/sup-simcse-bert-base-uncased"
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    with (
        pytest.warns(UserWarning, match="pooling of its authors"),
        pytest.raises(ValueError, match=r"expected a checkpoint with the layer over \[CLS\]"),
    ):
        SentenceEncoder.from_pretrained(tmp_path / "copy", device="cpu")


def test_a_folder_of_consert_s_own_program_says_that_it_takes_the_last_two_layers(tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    plain = SentenceEncoder.from_pretrained(bert, pooler="LastTwoPooler", device="cpu")
    SentenceEncoder(plain.encoder, MeanPooler()).save_pretrained(tmp_path / "consert")
    flags = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens")}
    flags |= {"word_embedding_dimension": 16, "pooling_mode_mean_last_2_tokens": True}
    (tiny.by_hand(tmp_path / "consert") / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    read = SentenceEncoder.from_pretrained(tmp_path / "consert", device="cpu")
    assert np.array_equal(read.encode(tiny.TEXTS[:3]), plain.encode(tiny.TEXTS[:3]))
