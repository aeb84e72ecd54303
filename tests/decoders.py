"""Small random decoders with tokenizers of their architectures' classes, saved as the published ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    GemmaTokenizer,
    LlamaTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

SIZE = {
    "vocab_size": 400,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
DECODERS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2"},
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": 4},
    "gemma": {"model_type": "gemma", "head_dim": 8},
}
BEGINS = {"qwen2": (), "llama": ("<s>",), "mistral": ("<s>",), "gemma": ("<bos>",)}
ENDS = {"qwen2": "<|endoftext|>", "llama": "</s>", "mistral": "</s>", "gemma": "<eos>"}


def save_decoder(folder: Path, name: str, **changes: Any) -> str:
    """Saves one of ``DECODERS``, no token of which is a padding token; gives the folder's name."""
    tokenizer = tokenizer_of(name)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("pad_token", None)
    path.write_text(json.dumps(settings))
    config = AutoConfig.for_model(**{**SIZE, **DECODERS[name], "pad_token_id": None, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
    return str(folder)


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of the class that the architecture's models have: one of bytes, one of words' pieces, ..."""
    if name == "qwen2":
        vocabulary, merges = learned_pieces(by_bytes=True)
        return Qwen2Tokenizer(vocab=_with(vocabulary, ENDS[name]), merges=merges)
    if name == "llama":
        vocabulary, merges = learned_pieces(by_bytes=False)
        return LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True, add_eos_token=False)
    if name == "gemma":
        vocabulary, merges = learned_pieces(by_bytes=False)
        return GemmaTokenizer(
            vocab=_with({}, "<pad>", "<eos>", "<bos>", "<unk>", *vocabulary), merges=merges, add_bos_token=True
        )
    # A sequence of two steps, as Llama 3 and later Mistrals have it.
    vocabulary, merges = learned_pieces(by_bytes=True)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    begin = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def learned_pieces(by_bytes: bool) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE(unk_token=None if by_bytes else "<unk>"))
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = of_bytes if by_bytes else pre_tokenizers.Metaspace()
    alphabet = of_bytes.alphabet() if by_bytes else []
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(tiny.TEXTS, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokenizer.get_vocab(), [(first, second) for first, second in merges]


def _with(vocabulary: dict[str, int], *tokens: str) -> dict[str, int]:
    grown = dict(vocabulary)
    for token in tokens:
        grown.setdefault(token, len(grown))
    return grown
