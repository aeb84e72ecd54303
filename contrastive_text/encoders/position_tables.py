"""Where a network numbers the tokens of a row from, and how many places it has."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def first_position(model: PreTrainedModel) -> int:
    """Returns the number of the first token's place."""
    # RoBERTa and its relatives keep the rows up to the padding index of the position table for padding.
    return max((t.padding_idx + 1 for t in _position_tables(model) if t.padding_idx is not None), default=0)


def longest_row(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """Returns the longest row in tokens that a network and its tokenizer take; None for no limit."""
    limits = [table.num_embeddings - first_position(model) for table in _position_tables(model)]
    # GPT-2's own key is n_positions, and others have others: the configuration maps this name to it.
    places = getattr(model.config, "max_position_embeddings", None)
    if not limits and isinstance(places, int) and places > 0:  # XLNet says -1 for no limit
        limits = [places]
    # Tokenizers without a limit carry a huge number as theirs.
    if tokenizer is not None and tokenizer.model_max_length < 10**9:
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


def _position_tables(model: PreTrainedModel) -> list[nn.Embedding]:
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
