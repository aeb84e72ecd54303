"""Model folders whose network, tokenizer or adapters are special: loaded and saved, or refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from decoders import save_decoder
from inference.test_layout_families import (
    BERT,
    GPT,
    SIZE,
    T5,
    TEXTS,
    Family,
    bert_tokenizer,
    gpt2_tokenizer,
    modernbert_tokenizer,
    near,
    save_family,
    save_network,
    t5_tokenizer,
    their_vectors,
)
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModel,
    CLIPConfig,
    CLIPModel,
    FNetConfig,
    FNetModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5GemmaConfig,
    T5GemmaModel,
    T5Model,
)

from contrastive_text import SentenceEncoder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.poolers import LastTokenPooler, MeanPooler


def with_types(single: str) -> PreTrainedTokenizerBase:
    plain = bert_tokenizer()
    ends = [(token, plain.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    # BERT's own class makes its post-processor anew.
    return PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, **plain.special_tokens_map, model_input_names=names
    )


def gpt2_with_types() -> PreTrainedTokenizerBase:
    tokenizer = modernbert_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


XLNET = {"model_type": "xlnet", "vocab_size": 420, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
VARIED = {
    "types of one text": Family(BERT, lambda: with_types("[CLS] $A:1 [SEP]:1")),
    "types of GPT-2": Family({"model_type": "gpt2", **GPT}, gpt2_with_types),
    "types of XLNet": Family({**XLNET, "initializer_range": 0.3}, lambda: with_types("$A [SEP] [CLS]:2")),
    "one type": Family({**BERT, "type_vocab_size": 1}, bert_tokenizer),
    "limit by n_positions": Family({"model_type": "gpt2", **GPT, "n_positions": 24}, gpt2_tokenizer, limit=None),
}


@pytest.mark.parametrize("name", rest_slow(reversed(VARIED)))
def test_token_types_and_position_limits_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers", reason="the comparison needs it (dev extra)")
    folder = save_network(tmp_path / "model", VARIED[name])
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    if model.tokenizer.pad_token is None:
        model.tokenizer.pad_token = model.tokenizer.eos_token
    expected = model.encode(TEXTS, batch_size=1)
    vectors = SentenceEncoder.from_pretrained(folder, pooler=MeanPooler()).encode(TEXTS)
    assert np.abs(np.asarray(vectors) - expected).max() <= near(expected)


def test_the_checkpoint_s_own_pooler_is_saved_again_and_is_no_part_of_the_network(tmp_path: Path) -> None:
    source = save_network(tmp_path / "source", Family(BERT, bert_tokenizer))
    encoder = TransformerEncoder(str(source))
    assert not [name for name, _ in encoder.named_parameters() if "pooler" in name]  # DDP would miss its gradient
    SentenceEncoder(encoder, MeanPooler()).save_pretrained(tmp_path / "saved")
    SentenceEncoder.from_pretrained(tmp_path / "saved").save_pretrained(tmp_path / "again")
    encoder.build_token_head()
    SentenceEncoder(encoder, MeanPooler()).save_pretrained(tmp_path / "masked")
    for name in ("saved", "again", "masked"):
        loaded, report = AutoModel.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
        assert torch.equal(loaded.pooler.dense.weight, AutoModel.from_pretrained(source).pooler.dense.weight)


def test_a_checkpoint_without_a_pooler_is_saved_without_one_and_draws_no_random_number(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path / "bert")
    torch.manual_seed(3)
    encoder = TransformerEncoder(folder)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1)
    assert encoder.pretrained_pooler() is None
    SentenceEncoder(encoder, MeanPooler()).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").stat().st_size == Path(
        folder, "model.safetensors"
    ).stat().st_size


def test_a_decoder_s_folder_names_a_padding_token_and_leaves_the_embedding_table_alone(tmp_path: Path) -> None:
    base = save_decoder(tmp_path / "base", "llama")
    ours = SentenceEncoder(
        TransformerEncoder(base, append_eos=True, attention="bidirectional"), LastTokenPooler()
    )
    ours.save_pretrained(tmp_path / "saved")
    before, after = (json.loads((Path(each) / "config.json").read_text()) for each in (base, tmp_path / "saved"))
    assert before.get("pad_token_id") is None and after.get("pad_token_id") is None
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert (settings["pad_token"], settings["padding_side"]) == ("</s>", "right")
    model = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert np.array_equal(model.encode(tiny.TEXTS), ours.encode(tiny.TEXTS)) and model.identity == ours.identity
    table = model.encoder.model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding) and table.padding_idx is None  # its row is trained


@pytest.mark.parametrize("name", rest_slow(("BERT", "Qwen", "sentence-T5"), quick=0))
def test_adapters_that_sentence_transformers_saved_are_merged_into_their_base_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = pytest.importorskip("sentence_transformers", reason="it builds the folders (dev extra)")
    peft = pytest.importorskip("peft", reason="it makes the adapters (dev extra)")
    base = save_family(tmp_path / "base", name)
    model = theirs.SentenceTransformer(str(base), device="cpu")
    plain = model.encode(TEXTS, batch_size=1)
    model.add_adapter(peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
    model.save(str(tmp_path / "adapted"), create_model_card=False)
    assert not (tmp_path / "adapted" / "config.json").exists()
    expected = their_vectors(tmp_path / "adapted")
    assert np.abs(expected - plain).max() > 0.1
    ours = SentenceEncoder.from_pretrained(tmp_path / "adapted")
    # The merged weights are rounded where theirs are added at each step.
    assert np.abs(np.asarray(ours.encode(TEXTS)) - expected).max() <= 5 * near(expected)
    ours.save_pretrained(tmp_path / "saved")
    assert np.abs(their_vectors(tmp_path / "saved") - expected).max() <= 5 * near(expected)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"contrastive-text\[adapters\]"):
        SentenceEncoder.from_pretrained(tmp_path / "adapted")


def save(folder: Path, network: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> Path:
    network.save_pretrained(folder)  # type: ignore[operator]  # a network of Transformers
    tokenizer.save_pretrained(folder)
    return folder


def small_bert(folder: Path) -> Path:
    config = AutoConfig.for_model(**{**BERT, "vocab_size": 60})
    return save(folder, AutoModel.from_config(config), bert_tokenizer())


def clip(folder: Path) -> Path:
    text = {**SIZE, "max_position_embeddings": 77}
    vision = {key: SIZE[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = CLIPConfig(text_config=text, vision_config={**vision, "intermediate_size": 24}, projection_dim=8)
    return save(folder, CLIPModel(config), bert_tokenizer())


def fnet(folder: Path) -> Path:
    config = FNetConfig(**{key: SIZE[key] for key in SIZE if key != "num_attention_heads"}, pad_token_id=0)
    return save(folder, FNetModel(config), bert_tokenizer())


def adapters_of_nothing(folder: Path) -> Path:
    bert_tokenizer().save_pretrained(folder)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": "/no/such"}))
    return folder


REFUSED = {
    "tokens without embeddings": (small_bert, r"token ids, got 60; .*resize_token_embeddings\(\d+\)"),
    "CLIP": (clip, r"expected a network of texts alone, got clip, which also reads image"),
    "padding in the vectors": (fnet, r"the same next to padding, got fnet"),
    "a base model that is gone": (adapters_of_nothing, r"base_model_name_or_path: expected .* got /no/such"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_cannot_be_right_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    build, reason = REFUSED[name]
    with pytest.raises(InvalidValueError, match=reason):
        SentenceEncoder.from_pretrained(build(tmp_path), pooler=MeanPooler())


@pytest.mark.slow  # families that are rarely met
def test_the_encoder_alone_is_loaded_of_a_whole_encoder_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = save(tmp_path / "t5", T5Model(T5Config(**T5)), t5_tokenizer())
    sizes: dict[str, Any] = {**SIZE, "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8}
    gemma = save(
        tmp_path / "gemma",
        T5GemmaModel(T5GemmaConfig(encoder=sizes, decoder=sizes, vocab_size=420)),
        t5_tokenizer(),
    )
    for folder in (whole, gemma):
        ours = SentenceEncoder.from_pretrained(folder, pooler=MeanPooler())
        assert "decoder" not in "".join(name for name, _ in ours.encoder.named_parameters())
        vectors = np.asarray(ours.encode(TEXTS))
        assert np.abs(their_vectors(folder) - vectors).max() <= near(vectors)
        ours.save_pretrained(tmp_path / f"saved-{folder.name}")
        assert np.abs(their_vectors(tmp_path / f"saved-{folder.name}") - vectors).max() <= near(vectors)
