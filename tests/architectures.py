"""Every architecture we name, tiny and with random weights, and ragged batches for them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import torch

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder

SIZE = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
DECODER = {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **SIZE},
    "roberta": {"model_type": "roberta", **SIZE, "max_position_embeddings": 42, "pad_token_id": 1},
    "xlm-roberta": {"model_type": "xlm-roberta", **SIZE, "max_position_embeddings": 42, "pad_token_id": 1},
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 60,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": 40,
    },
    "electra": {"model_type": "electra", **SIZE, "embedding_size": 8},
    "electra-equal": {"model_type": "electra", **SIZE, "embedding_size": 16},
    "albert": {"model_type": "albert", **SIZE, "embedding_size": 8},
    "mpnet": {"model_type": "mpnet", **SIZE, "max_position_embeddings": 42, "pad_token_id": 1},
    "deberta-v2": {
        "model_type": "deberta-v2",
        **SIZE,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "max_relative_positions": 40,
    },
    "modernbert": {
        "model_type": "modernbert",
        **SIZE,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
    },
    "qwen2": {"model_type": "qwen2", **SIZE, **DECODER},
    "llama": {"model_type": "llama", **SIZE, **DECODER},
}
NAMES = list(CONFIGS)
# Rows of three lengths; ids from 5, so that none is a special or padding id anywhere.
ROWS = ((5, 6, 7), (8, 9, 10, 11, 12, 13, 14), (15,), (16, 17, 18, 19), (20, 21, 22, 23, 24), (25, 26))
PAIR = (Slot("anchor", 0), Slot("positive", 0))


def ragged(*rows: tuple[int, ...], slots: tuple[Slot, ...] = PAIR, positions: bool = False) -> Batch:
    places = [i for row in rows for i in range(len(row))]
    return Batch(
        ids=torch.tensor([i for row in rows for i in row]),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(len(rows) // len(slots)),
        draw_keys=torch.arange(len(rows)) * 13,
        text_ids=torch.arange(len(rows)),
        positions=torch.tensor(places) if positions else None,
    )


def encoder_of(name: str, **options: Any) -> TransformerEncoder:
    """A tiny encoder in float64 and evaluation mode: differences are then faults, not rounding."""
    if options.get("compiled"):
        torch.manual_seed(0)
        return TransformerEncoder(config=CONFIGS[name], **options).double().eval()
    encoder, state = _built(name, tuple(options.items()))
    torch.set_rng_state(state)
    return deepcopy(encoder)


@cache
def _built(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[TransformerEncoder, torch.Tensor]:
    """Builds an encoder once; a copy takes a quarter of the time. Returns the state of the generator too."""
    torch.manual_seed(0)
    return TransformerEncoder(config=CONFIGS[name], **dict(options)).double().eval(), torch.get_rng_state()
