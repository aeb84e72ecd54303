"""Folders of embedding models in the layouts that their families' authors publish: loaded, trained and saved.

Networks are saved by Transformers' classes, folders by those of sentence-transformers, and ``as_published`` then
gives the folder's JSON files the keys of the published ones. Those keys are from memory alone, for every family:
no published folder was at hand. Tokenizers are of the family's class, with a vocabulary of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from decoders import SIZE as DECODER_SIZE
from decoders import learned_pieces, tokenizer_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    AutoConfig,
    AutoModel,
    BertTokenizer,
    CLIPTextModel,
    CLIPTokenizer,
    DebertaV2Tokenizer,
    GPT2Tokenizer,
    MPNetTokenizer,
    MT5EncoderModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    T5EncoderModel,
    T5Tokenizer,
    UMT5EncoderModel,
    XLMRobertaTokenizer,
)

from contrastive_text import Run, SentenceEncoder
from contrastive_text.encoders import TransformerEncoder

FLAGS = {
    "mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token",
    "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
SIZE = {
    "vocab_size": 420, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
T5 = {
    "vocab_size": 420, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "initializer_factor": 3.0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
GPT = {"vocab_size": 420, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
GPT_NEO = {
    "model_type": "gpt_neo", "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]], "window_size": 4,
    "vocab_size": 420, "initializer_range": 0.3,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"], "use_bidirectional_attention": True,
}  # fmt: skip


class Dense(NamedTuple):
    """A Dense module: its width, and whether it has a bias and Tanh after it."""

    features: int
    tanh: bool = True
    bias: bool = True


class Family(NamedTuple):
    """Layout in which the models of a family are published.

    Args:
        config: Of the network, with its ``model_type``.
        tokenizer: Makes the tokenizer.
        pooling: Mode of sentence-transformers' Pooling.
        dense: Dense modules after it.
        normalize: Whether Normalize is the last module.
        limit: The length limit of ``sentence_bert_config.json``.
        settings: Of ``config_sentence_transformers.json``.
        network: Class of the network; None for the one that ``AutoModel`` takes.
    """

    config: dict[str, Any]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    pooling: str = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    limit: int | None = 32
    settings: Mapping[str, Any] = {}
    network: Any = None  # Any: a class of Transformers


@cache
def _words() -> tuple[str, ...]:
    """Returns the pieces of a WordPiece vocabulary of the tests' texts."""
    learning = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learning.normalizer = normalizers.BertNormalizer(lowercase=True)
    learning.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learning.train_from_iterator(tiny.TEXTS, trainers.WordPieceTrainer(vocab_size=200, show_progress=False))
    return tuple(sorted(learning.get_vocab()))


def _numbered(*specials: str) -> dict[str, int]:
    return {piece: number for number, piece in enumerate([*specials, *_words()])}


def _scored(*specials: str) -> list[tuple[str, float]]:
    """Returns a Unigram vocabulary: the words of the tests' texts, their letters, and special tokens first."""
    words = sorted({f"▁{word}" for text in tiny.TEXTS for word in text.split()})
    letters = sorted({letter for word in words for letter in word})
    scores = [(word, -3.0) for word in words] + [(letter, -9.0) for letter in letters]
    return [*((token, 0.0) for token in specials), *scores]


def bert_tokenizer() -> PreTrainedTokenizerBase:
    return BertTokenizer(vocab=_numbered("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))


def mpnet_tokenizer() -> PreTrainedTokenizerBase:
    return MPNetTokenizer(vocab=_numbered("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"))


def roberta_tokenizer() -> PreTrainedTokenizerBase:
    vocabulary, merges = learned_pieces(by_bytes=True)
    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    rest = [piece for piece in vocabulary if piece not in specials]
    return RobertaTokenizer(
        vocab={piece: number for number, piece in enumerate([*specials, *rest])}, merges=merges
    )


def xlm_roberta_tokenizer() -> PreTrainedTokenizerBase:
    return XLMRobertaTokenizer(vocab=[*_scored("<s>", "<pad>", "</s>", "<unk>"), ("<mask>", 0.0)])


def albert_tokenizer() -> PreTrainedTokenizerBase:
    return AlbertTokenizer(vocab=_scored("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))


def deberta_tokenizer() -> PreTrainedTokenizerBase:
    return DebertaV2Tokenizer(vocab=_scored("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), unk_id=1)


def t5_tokenizer() -> PreTrainedTokenizerBase:
    return T5Tokenizer(vocab=_scored("<pad>", "</s>", "<unk>"), extra_ids=0)


def clip_tokenizer() -> PreTrainedTokenizerBase:
    vocabulary, _ = learned_pieces(by_bytes=True)
    letters = sorted(piece for piece in vocabulary if len(piece) == 1)
    pieces = [*letters, *(f"{letter}</w>" for letter in letters)][:414]
    specials = ("<|startoftext|>", "<|endoftext|>")
    return CLIPTokenizer(
        vocab={piece: number for number, piece in enumerate([*pieces, *specials])}, merges=[], model_max_length=77
    )


def modernbert_tokenizer() -> PreTrainedTokenizerBase:
    vocabulary, merges = learned_pieces(by_bytes=True)
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    numbered = {piece: number for number, piece in enumerate([*specials, *vocabulary])}
    backend = Tokenizer(models.BPE(vocab=numbered, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, numbered[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    vocabulary, merges = learned_pieces(by_bytes=True)
    return GPT2Tokenizer(vocab={**vocabulary, "<|endoftext|>": len(vocabulary)}, merges=merges)


def sgpt_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = gpt2_tokenizer()
    tokenizer.add_tokens(["[SOS]", "{SOS}"], special_tokens=True)
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def ended(name: str, left: bool = False) -> PreTrainedTokenizerBase:
    """Returns a decoder's tokenizer whose own post-processor puts the end token after a text."""
    tokenizer = tokenizer_of(name)
    begin, end = {"qwen2": ("", "<|endoftext|>"), "mistral": ("<s> ", "</s>"), "gemma": ("<bos> ", "<eos>")}[name]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A {end}",
        pair=f"{begin}$A {end} $B:1 {end}:1",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin.split(), end}],
    )
    tokenizer.padding_side = "left" if left else "right"
    tokenizer.pad_token = tokenizer.pad_token or end
    return tokenizer


BERT = {"model_type": "bert", **SIZE}
MPNET = {"model_type": "mpnet", **SIZE, "max_position_embeddings": 66, "pad_token_id": 1}
ROBERTA = {
    "model_type": "roberta", **SIZE, "max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1,
}  # fmt: skip
INSTRUCT = "Instruct: Given a question, retrieve passages\nQuery: "
GEMMA_PROMPTS = {
    "query": "task: search result | query: ", "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}  # fmt: skip
DEBERTA = {
    "model_type": "deberta-v2", **SIZE, "type_vocab_size": 0, "relative_attention": True,
    "position_biased_input": False, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
    "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
MODERNBERT = {
    "model_type": "modernbert", **SIZE, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
    "bos_token_id": 2, "eos_token_id": 3, "global_attn_every_n_layers": 2, "local_attention": 8,
}  # fmt: skip
CLIP = {
    "model_type": "clip_text_model", **SIZE, "max_position_embeddings": 77, "bos_token_id": 414,
    "eos_token_id": 415, "pad_token_id": 415, "initializer_factor": 8.0,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "BERT": Family(BERT, bert_tokenizer),
    "MPNet": Family(MPNET, mpnet_tokenizer, normalize=True),
    "RoBERTa": Family(ROBERTA, roberta_tokenizer, normalize=True),
    "XLM-R": Family({**ROBERTA, "model_type": "xlm-roberta"}, xlm_roberta_tokenizer),
    "DistilBERT": Family(
        {"model_type": "distilbert", **SIZE, **DISTILBERT}, lambda: _without_types(bert_tokenizer())
    ),
    "ALBERT": Family({"model_type": "albert", **SIZE, "embedding_size": 8}, albert_tokenizer),
    "ELECTRA": Family({"model_type": "electra", **SIZE, "embedding_size": 8}, bert_tokenizer),
    "DeBERTa": Family(
        DEBERTA,
        deberta_tokenizer,
    ),
    "ModernBERT": Family(
        MODERNBERT,
        modernbert_tokenizer,
        limit=None,
        settings={"prompts": {"query": "search_query: ", "document": "search_document: "}},
    ),
    "E5": Family(
        BERT,
        bert_tokenizer,
        normalize=True,
        settings={"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"},
    ),
    "BGE": Family(BERT, bert_tokenizer, pooling="cls", normalize=True),
    "LaBSE": Family(BERT, bert_tokenizer, pooling="cls", dense=(Dense(16),), normalize=True),
    "sentence-T5": Family(
        {"model_type": "t5", **T5},
        t5_tokenizer,
        dense=(Dense(12, tanh=False, bias=False),),
        normalize=True,
        network=T5EncoderModel,
    ),
    "GTR": Family(
        {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu"},
        t5_tokenizer,
        dense=(Dense(12, tanh=False, bias=False),),
        normalize=True,
    ),
    "mT5": Family({"model_type": "mt5", **T5}, t5_tokenizer, network=MT5EncoderModel),
    "UMT5": Family({"model_type": "umt5", **T5}, t5_tokenizer, network=UMT5EncoderModel),
    "CLIP text": Family(
        CLIP,
        clip_tokenizer,
        limit=77,
        network=CLIPTextModel,
    ),
    "GPT-2": Family({"model_type": "gpt2", **GPT}, gpt2_tokenizer),
    "SGPT": Family(GPT_NEO, sgpt_tokenizer, pooling="weightedmean"),
    "Qwen": Family(
        {"model_type": "qwen3", **DECODER_SIZE, "head_dim": 8},
        lambda: ended("qwen2", left=True),
        pooling="lasttoken",
        normalize=True,
        limit=64,
        settings={"prompts": {"query": INSTRUCT, "document": ""}},
    ),
    "Llama": Family({"model_type": "llama", **DECODER_SIZE}, lambda: tokenizer_of("llama")),
    "Mistral": Family(
        {"model_type": "mistral", **DECODER_SIZE, "sliding_window": 4},
        lambda: ended("mistral"),
        pooling="lasttoken",
        normalize=True,
        limit=64,
        settings={"prompts": {"query": INSTRUCT}},
    ),
    "Gemma": Family(
        {"model_type": "gemma2", **DECODER_SIZE, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
        lambda: ended("gemma"),
        pooling="lasttoken",
        normalize=True,
    ),
    "EmbeddingGemma": Family(
        {**DECODER_SIZE, **GEMMA_3},
        lambda: ended("gemma"),
        dense=(Dense(24, tanh=False, bias=False), Dense(16, tanh=False, bias=False)),
        normalize=True,
        limit=64,
        settings={"prompts": GEMMA_PROMPTS},
    ),
    "multi-qa": Family(MPNET, mpnet_tokenizer, pooling="cls", settings={"similarity_fn_name": "dot"}),
}


def _without_types(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def save_network(folder: Path, family: Family) -> Path:
    """Saves the network and the tokenizer of a family alone, as Transformers does."""
    tokenizer = family.tokenizer()
    tokenizer.save_pretrained(folder)
    config = AutoConfig.for_model(**family.config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: PreTrainedModel = (family.network or AutoModel._model_mapping[type(config)])(config)
        network.save_pretrained(folder)
    return folder


def save_family(folder: Path, name: str) -> Path:
    """Saves a model of a family, as sentence-transformers saves it, with the keys of the published folders."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense as TheirDense
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    family = FAMILIES[name]
    base = save_network(folder.with_name(f"{folder.name}-base"), family)
    network = Transformer(str(base), max_seq_length=family.limit)
    if network.tokenizer.pad_token is None:
        network.tokenizer.pad_token = network.tokenizer.eos_token
    width = network.get_embedding_dimension()
    modules = [network, Pooling(width, pooling_mode=family.pooling)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for layer in family.dense:
            activation = torch.nn.Tanh() if layer.tanh else torch.nn.Identity()
            modules.append(TheirDense(width, layer.features, bias=layer.bias, activation_function=activation))
            width = layer.features
    modules += [Normalize()] * family.normalize
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    as_published(folder, family)
    return folder


def as_published(folder: Path, family: Family) -> None:
    """Writes the JSON files of a folder with the keys that published ones have, those of older versions."""
    listed = json.loads((folder / "modules.json").read_text())
    for module in listed:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(listed))
    path = folder / "1_Pooling" / "config.json"
    width = json.loads(path.read_text())["embedding_dimension"]
    path.write_text(json.dumps({"word_embedding_dimension": width, FLAGS[family.pooling]: True}))
    limit = {"max_seq_length": family.limit, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    versions = {"sentence_transformers": "2.2.2", "transformers": "4.30.0", "pytorch": "2.0.0"}
    settings = {"__version__": versions, **family.settings}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


TEXTS = ["b", "a bird", *tiny.TEXTS[:6], " ".join(tiny.TEXTS[:8])]
"""Texts of several lengths; the last is longer than every limit."""
POOLERS = {
    "mean": "MeanPooler", "cls": "CLSPooler", "lasttoken": "LastTokenPooler",
    "weightedmean": "WeightedMeanPooler",
}  # fmt: skip
FIRST = ("CLIP text", "sentence-T5")
NAMES = [*FIRST, *(name for name in FAMILIES if name not in FIRST)]


def near(vectors: np.ndarray) -> float:
    """Float32's rounding in two orders of summation, of values as large as these."""
    return 2e-5 * max(1.0, float(np.abs(vectors).max()))


def their_vectors(folder: Path, **options: Any) -> np.ndarray:  # Any: options of encode
    theirs = pytest.importorskip("sentence_transformers", reason="the comparison needs it (dev extra)")
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    # One text at a time: GPT-2 in sentence-transformers counts positions from the padding on the left.
    vectors: np.ndarray = model.encode(TEXTS, batch_size=1, **options)
    return vectors


@pytest.mark.parametrize("name", rest_slow(NAMES, quick=len(FIRST)))
def test_a_family_s_folder_gives_equal_vectors_here_and_saved_again(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="it builds the folders (dev extra)")
    folder = save_family(tmp_path / "model", name)
    expected = their_vectors(folder)
    assert expected.std(axis=0).mean() > 0.02  # the texts have different vectors
    model = SentenceEncoder.from_pretrained(folder)
    assert np.abs(np.asarray(model.encode(TEXTS)) - expected).max() <= near(expected)
    for prompt in FAMILIES[name].settings.get("prompts", {}):
        ours = np.asarray(model.encode(TEXTS, prompt_name=prompt))
        assert np.abs(ours - their_vectors(folder, prompt_name=prompt)).max() <= near(expected)
    model.save_pretrained(tmp_path / "saved")
    assert np.abs(their_vectors(tmp_path / "saved") - expected).max() <= near(expected)
    architectures = [
        json.loads((each / "config.json").read_text())["architectures"] for each in (folder, tmp_path / "saved")
    ]
    assert architectures[0] == architectures[1]


@pytest.mark.slow  # a second each
@pytest.mark.filterwarnings("ignore:model.pooler")  # of decoders that are published with the mean
@pytest.mark.parametrize("name", NAMES)
def test_a_family_s_folder_is_trained_for_a_step(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="it builds the folders (dev extra)")
    folder = save_family(tmp_path / "model", name)
    options: dict[str, Any] = {
        "data.train": tiny.write_texts(tmp_path / "texts.txt"),
        "data.validation": tiny.write_pairs(tmp_path / "pairs.tsv"),
        "data.batch_size": 8,
        "data.num_workers": 0,
        # Their prompts take up to 47 tokens.
        "model.encoder.init_args.max_length": 64 if name in ("Qwen", "Mistral", "EmbeddingGemma") else 24,
        "model.pooler": POOLERS[FAMILIES[name].pooling],
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": False,
        "trainer.max_steps": 1,
        "trainer.default_root_dir": str(tmp_path / "runs"),
    }
    Run.from_recipe("simcse", encoder=folder, config=options).fit()
    saved = next((tmp_path / "runs").rglob("modules.json")).parent
    trained = SentenceEncoder.from_pretrained(saved)
    vectors = their_vectors(saved)
    assert np.abs(np.asarray(trained.encode(TEXTS)) - vectors).max() <= near(vectors)
    start = TransformerEncoder(str(folder)).model.state_dict()
    moved = [
        key for key, value in trained.encoder.model.state_dict().items() if not torch.equal(value, start[key])
    ]
    assert len(moved) > len(start) // 2
