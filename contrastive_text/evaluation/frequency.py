"""Frequency bias: do frequent tokens, which say little, pull the mean over tokens?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Hidden
from contrastive_text.data import Table
from contrastive_text.data.collator import collate_texts
from contrastive_text.encoders.embedder import Embedder, in_order
from contrastive_text.encoders.layouts import pad
from contrastive_text.inference.blocks import evaluating
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import pair_similarity, spearman
from contrastive_text.poolers import FirstLastPooler, LastTwoPooler, MeanPooler

REMOVED = (0, 2, 4, 8, 16, 34, 64, 128)
"""How many of the most frequent tokens are left out: 2 are BERT's special ones, 34 was the best in the paper."""

_AT_ONCE = 8192
"""Tokens that go through the network together."""


def takes_mean(model: SentenceEncoder) -> bool:
    """Whether a model's vectors are means over tokens, of which some can be left out."""
    return isinstance(model.pooler, MeanPooler | LastTwoPooler | FirstLastPooler)


def frequency_bias(
    model: SentenceEncoder, pairs: Table, removed: Sequence[int] = REMOVED
) -> list[tuple[int, float]]:
    """Returns the correlation on scored pairs without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741, section 5.1): without the 34 most
    frequent tokens the mean of plain BERT gains 8 points of Spearman; a trained model should gain hardly any. The
    network reads whole texts; only the mean leaves tokens out. Frequencies are those in the pairs' own texts, as
    they enter the network, special tokens among them. A text that would lose all its tokens keeps them all.

    Args:
        model: A model whose pooler is a mean over tokens.
        pairs: Scored pairs, as ``data.read_pairs`` gives them.
        removed: How many tokens are left out each time; numbers that would leave none are dropped.

    Returns:
        For each number the Spearman correlation of cosine and gold score, times 100.

    Raises:
        ValueError: A pooler that takes no mean.
    """
    if not takes_mean(model):
        raise InvalidValueError(
            "frequency_bias: expected a pooler that takes the mean over tokens, of which some can be left out, "
            f"got {type(model.pooler).__name__}"
        )
    texts = [str(row[side]) for side in ("anchor", "positive") for row in pairs]
    target = torch.tensor([float(str(row["target"])) for row in pairs])
    return [
        (number, 100 * float(spearman(pair_similarity(vectors[: len(pairs)], vectors[len(pairs) :]), target)))
        for number, vectors in vectors_without(model, texts, removed).items()
    ]


@torch.inference_mode()
def vectors_without(model: SentenceEncoder, texts: Sequence[str], removed: Sequence[int]) -> dict[int, Tensor]:
    """Returns for each number the texts' vectors without so many of their most frequent tokens, (N, D) each.

    The texts go through the network once; see ``frequency_bias``.
    """
    batch = collate_texts(model.tokenizer, model.tokenizer([model.prompt + text for text in texts]))
    counts = torch.bincount(batch.ids)
    places = counts.argsort(descending=True, stable=True).argsort().to(model.device)  # of equal ones the first id
    groups = Embedder(model.encoder, model.pooler, chunk_tokens=_AT_ONCE).groups(batch)
    vectors: dict[int, list[Tensor]] = {number: [] for number in removed if number < int((counts > 0).sum())}
    with evaluating(model):
        for group in groups:
            hidden = model.encoder(group.batch.to(model.device), layers=model.pooler.layers)
            place = pad(places[group.batch.ids.to(model.device)], hidden.mask, fill=0)
            for number, found in vectors.items():
                kept = hidden.mask & (place >= number)
                kept = torch.where(kept.any(dim=1, keepdim=True), kept, hidden.mask)
                pooled = model.pooler(Hidden(hidden.layers, kept))
                found.append(model.from_pooled(pooled)[:, : model.truncate_dim])
    return {number: in_order(found, groups).cpu() for number, found in vectors.items()}
