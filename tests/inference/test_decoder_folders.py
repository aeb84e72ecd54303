"""Decoders in a saved folder: the same tokens and vectors here, loaded again, and in sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from decoders import DECODERS, ENDS, save_decoder

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.networks import Attention
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import LastTokenPooler, MeanPooler, Pooler, WeightedMeanPooler
from contrastive_text.training.module import ContrastiveModule

WITHIN = 1e-5  # the issue's, of float32 with entries of size 1
LAST, WEIGHTED, MEAN = LastTokenPooler(), WeightedMeanPooler(), MeanPooler()
CASES = [
    (name, pooler, attention)
    for name in DECODERS
    for pooler, attention in ((LAST, None), (WEIGHTED, None), (MEAN, "bidirectional"))
]


@pytest.mark.slow  # a second each, for sentence-transformers to load it
@pytest.mark.parametrize(("name", "pooler", "attention"), CASES)
def test_a_decoder_s_vectors_are_the_same_here_loaded_again_and_in_sentence_transformers_with_either_padding(
    name: str, pooler: Pooler, attention: Attention | None, tmp_path: Path
) -> None:
    theirs = pytest.importorskip("sentence_transformers", reason="the comparison needs it (dev extra)")
    encoder = TransformerEncoder(save_decoder(tmp_path / "base", name), attention=attention)
    module = ContrastiveModule(encoder, pooler=pooler)
    # Of several lengths, so that padding stands beside most of them.
    texts = [
        "a bird",
        *tiny.TEXTS[:6],
        "the tall man sleeps under the long table all day and the dog runs after it",
    ]
    ours = module.sentence_encoder()
    expected = np.asarray(ours.encode(texts))
    assert expected.std() > 0.05
    ours.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert type(again.pooler) is type(pooler) and again.identity == ours.identity
    assert again.encoder.is_causal() == (attention is None)
    assert np.abs(np.asarray(again.encode(texts)) - expected).max() <= WITHIN
    loaded = theirs.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert loaded.tokenizer.padding_side == "right" and loaded.tokenizer.pad_token is not None
    last = {ids[-1] for ids in loaded.tokenizer(texts).input_ids if ids[-1] != loaded.tokenizer.pad_token_id}
    if pooler is LAST:
        assert last <= {loaded.tokenizer.convert_tokens_to_ids(ENDS[name])}
    for side in ("right", "left"):
        loaded.tokenizer.padding_side = side
        beside = loaded.tokenizer(texts, padding=True, return_tensors="pt")["attention_mask"]
        assert bool((beside[0, 0] == 0) == (side == "left")) and not bool(beside.all())
        assert np.abs(loaded.encode(texts, batch_size=len(texts)) - expected).max() <= WITHIN


def test_the_folder_names_a_padding_token_and_leaves_the_embedding_table_alone(tmp_path: Path) -> None:
    base = save_decoder(tmp_path / "base", "llama")
    ours = SentenceEncoder(TransformerEncoder(base, append_eos=True, attention="bidirectional"), LAST)
    ours.save_pretrained(tmp_path / "saved")
    before, after = (json.loads((Path(each) / "config.json").read_text()) for each in (base, tmp_path / "saved"))
    assert before.get("pad_token_id") is None and after.get("pad_token_id") is None
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert (settings["pad_token"], settings["padding_side"]) == ("</s>", "right")
    model = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert np.array_equal(model.encode(tiny.TEXTS), ours.encode(tiny.TEXTS)) and model.identity == ours.identity
    table = model.encoder.model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding) and table.padding_idx is None  # its row is trained
