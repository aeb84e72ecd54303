"""Frequency bias: do frequent tokens, which say little, pull the mean over tokens?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Table
from contrastive_text.data.token_rows import collate_texts
from contrastive_text.encoders.embedder import Embedder, in_order, pooled_part
from contrastive_text.encoders.layouts import pad
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.sts.cosine import score_tasks
from contrastive_text.evaluation.sts.data import STSPairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import exact_similarity, spearman
from contrastive_text.poolers import FirstLastPooler, LastTwoPooler, MeanPooler

REMOVED = (0, 2, 4, 8, 16, 34, 64, 128)
"""How many of the most frequent tokens are left out: 2 are BERT's special ones, 34 was the best in the paper."""

_AT_ONCE = 8192
"""Tokens that go through the network together."""

_COUNTED = 16_384
"""Texts whose tokens are counted together."""


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
    _check_mean(model)
    texts = [str(row[side]) for side in ("anchor", "positive") for row in pairs]
    target = torch.tensor([float(str(row["target"])) for row in pairs])
    counts = token_counts(model, texts)
    fewer = [number for number in removed if number < int((counts > 0).sum())]
    return [
        (number, 100 * float(spearman(exact_similarity(vectors[: len(pairs)], vectors[len(pairs) :]), target)))
        for number, vectors in vectors_without(model, texts, fewer, counts).items()
    ]


def scores_without(
    model: SentenceEncoder,
    tasks: Mapping[str, STSPairs | str],
    removed: Sequence[int],
    corpus: Iterable[str] | None = None,
    setting: str = "all",
) -> dict[int, list[TaskScore]]:
    """Returns the scores of the STS tasks without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741), figure 4: the average over the tasks against the
    number of tokens; plain BERT-base has 53.86 with all and 61.66 without 34. The tasks' texts go through the
    network once. See ``frequency_bias``.

    Args:
        model: A model whose pooler is a mean over tokens.
        tasks: As ``find_sts`` gives them.
        removed: How many tokens are left out each time, 0 for none.
        corpus: Texts whose tokens are counted; None for those of the tasks.
        setting: How the sub-sets of a year are joined; see ``aggregate``.

    Returns:
        For each number a score a task, in the order of the tasks.

    Raises:
        ValueError: A pooler that takes no mean, or a number below 0, given twice, or as large as that of the
            different tokens.
    """
    _check_mean(model)
    found = [pairs for pairs in tasks.values() if isinstance(pairs, STSPairs)]
    texts = list(dict.fromkeys(text for pairs in found for text in (*pairs.first, *pairs.second)))
    counts = token_counts(model, texts if corpus is None else corpus)
    different = int((counts > 0).sum())
    if len({*removed}) < len(removed) or not all(0 <= number < different for number in removed):
        raise InvalidValueError(
            f"frequency: expected different numbers of tokens from 0 to {different - 1:,}, of the {different:,} "
            f"that occur, got {', '.join(map(str, removed))}"
        )
    place = {text: i for i, text in enumerate(texts)}
    return {
        number: score_tasks(partial(_known, place, vectors), tasks, setting)
        for number, vectors in vectors_without(model, texts, removed, counts).items()
    }


def frequency_table(
    embeds: Mapping[str, CachedEncoder],
    tasks: Mapping[str, STSPairs | str],
    removed: Sequence[int],
    corpus: Sequence[str] | None = None,
    setting: str = "all",
) -> ScoreTable:
    """Returns a table of the STS tasks, with a row for each model and number; see ``scores_without``."""
    rows = {
        f"{name} without {number}": scores
        for name, embed in embeds.items()
        for number, scores in scores_without(embed.model, tasks, removed, corpus, setting).items()
    }
    counted = "the tasks' texts" if corpus is None else f"{len(corpus):,} texts"
    return ScoreTable(f"Spearman x 100, {setting}, without the most frequent tokens of {counted}", rows)


def _known(places: Mapping[str, int], vectors: Tensor, texts: Sequence[str]) -> Tensor:
    return vectors[[places[text] for text in texts]]


def token_counts(model: SentenceEncoder, texts: Iterable[str]) -> Tensor:
    """Returns how often each token occurs in texts as they enter the network, special ones too, (V,)."""
    counts, frame = torch.zeros(0, dtype=torch.long), model.prompts.frame(None, model.tokenizer)
    left = iter(texts)
    while some := list(islice(left, _COUNTED)):
        ids = collate_texts(model.tokenizer, model.tokenizer.framed(some, frame)).ids
        new = torch.bincount(ids, minlength=len(counts))
        counts = torch.cat([counts, counts.new_zeros(len(new) - len(counts))]) + new
    return counts


@torch.inference_mode()
def vectors_without(
    model: SentenceEncoder, texts: Sequence[str], removed: Sequence[int], counts: Tensor
) -> dict[int, Tensor]:
    """Returns for each number the texts' vectors without so many of the most frequent tokens, (N, D) each.

    The texts go through the network once; see ``frequency_bias``.

    Args:
        model: A model whose pooler is a mean over tokens.
        texts: N texts.
        removed: The numbers.
        counts: How often each token occurs, as ``token_counts`` gives it, (V,).
    """
    frame = model.prompts.frame(None, model.tokenizer)
    batch = collate_texts(model.tokenizer, model.tokenizer.framed(texts, frame), frame.unpooled)
    counts = torch.cat([counts, counts.new_zeros(max(int(batch.ids.max()) + 1 - len(counts), 0))])
    places = counts.argsort(descending=True, stable=True).argsort().to(model.device)  # of equal ones the first id
    groups = Embedder(model.encoder, model.pooler, chunk_tokens=_AT_ONCE).groups(batch)
    vectors: dict[int, list[Tensor]] = {number: [] for number in removed}
    with evaluating(model):
        for group in groups:
            rows = group.batch.to(model.device)
            hidden = model.encoder(rows, layers=model.pooler.layers)
            place = pad(places[rows.ids], hidden.mask, fill=0)
            (hidden,) = [hidden] if rows.unpooled is None else pooled_part([hidden], rows.unpooled)
            for number, found in vectors.items():
                kept = hidden.mask & (place >= number)
                kept = torch.where(kept.any(dim=1, keepdim=True), kept, hidden.mask)
                pooled = model.pooler(replace(hidden, mask=kept))
                found.append(model.from_pooled(pooled)[:, : model.truncate_dim])
    return {number: in_order(found, groups).cpu() for number, found in vectors.items()}


def _check_mean(model: SentenceEncoder) -> None:
    if not takes_mean(model):
        raise InvalidValueError(
            "frequency: expected a pooler that takes the mean over tokens, of which some can be left out, "
            f"got {type(model.pooler).__name__}"
        )
