"""Any Hugging Face encoder, from pretrained weights or from a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.layouts import pad, token_mask
from contrastive_text.encoders.loading import dropouts, load_architecture, load_model, load_tokenizer
from contrastive_text.encoders.token_head import TokenHead
from contrastive_text.hub import quiet
from contrastive_text.types import Alter, Batch, Hidden

# Where an architecture's embedding output has the width of its blocks: after ELECTRA's and ALBERT's
# projection, the embeddings module of BERT's relatives, the token table of decoders.
_EMBEDDING_MODULES = (
    "embeddings_project",
    "encoder.embedding_hidden_mapping_in",
    "embeddings",
    "embed_tokens",
)


class TransformerEncoder(Encoder):
    """A Transformers model without its pooler and heads.

    Weights are float32 whatever the checkpoint's type; mixed precision is the trainer's business. An
    embedding view runs in one forward hook on the embedding module, after its LayerNorm and dropout.

    Args:
        model_name_or_path: Hub name or local folder of a pretrained model.
        config: Architecture for random initialisation, as in ``config.json`` with ``model_type``; give
            either this or ``model_name_or_path``.
        tokenizer_name_or_path: Hub name or folder of the tokenizer; None for the model's own, or, with
            ``config``, for one learned from the training corpus.
        max_length: Longest row in training, in tokens with special ones; None for the model's limit, which
            holds in use whatever was trained with.
        dropout: Probability for every dropout of the network; None keeps the model's own.

    Raises:
        ValueError: Neither or both of name and config, a model that can't be found, a checkpoint that
            lacks weights of the encoder, or a length the model can't take.

    Example:
        >>> tiny = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...         "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12}
        >>> encoder = TransformerEncoder(config=tiny, dropout=0.0)
        >>> encoder.features, encoder.limit
        (8, 12)
    """

    def __init__(
        self,
        model_name_or_path: str | None = None,
        config: dict[str, Any] | None = None,  # Any: a config.json holds what its architecture wants
        tokenizer_name_or_path: str | None = None,
        max_length: int | None = None,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        if (model_name_or_path is None) == (config is None):
            raise ValueError(
                "encoder: expected either model_name_or_path (pretrained) or config (random start), got "
                f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path, and the "
                "other to null"
            )
        if dropout is not None and not 0 <= dropout < 1:
            raise ValueError(f"encoder.dropout: expected a probability in [0, 1) or null, got {dropout}")
        self.model_name_or_path = model_name_or_path
        self.config = config
        self.tokenizer_name_or_path = tokenizer_name_or_path
        self.dropout = dropout
        architecture = load_architecture(model_name_or_path, self._full_config(), dropout)
        self.model = load_model(
            model_name_or_path, architecture
        ).train()  # loaded in eval mode: no dropout, no views
        source = tokenizer_name_or_path or model_name_or_path
        self.tokenizer = None if source is None else load_tokenizer(source)
        if config is not None and self.tokenizer is not None and len(self.tokenizer) > architecture.vocab_size:
            raise ValueError(
                f"encoder.config.vocab_size: expected the tokenizer's {len(self.tokenizer)} entries or more, got "
                f"{architecture.vocab_size}"
            )
        self.features = int(architecture.hidden_size)
        self.vocabulary_size = int(architecture.vocab_size)
        self.dropout_in_effect = dropouts(architecture)
        self.limit = _limit(self.model, self.tokenizer)
        if max_length is not None and not 3 <= max_length <= (self.limit or max_length):
            raise ValueError(
                f"encoder.max_length: expected 3 to {self.limit} tokens for {type(self.model).__name__}, "
                f"got {max_length}"
            )
        self.max_length = max_length
        self._first_position = _first_position(self.model)
        self.token_head: TokenHead | None = None
        self._alter: Alter | None = None
        self._mask: Tensor | None = None
        modules = dict(self.model.named_modules())
        place = next((modules[name] for name in _EMBEDDING_MODULES if name in modules), None)
        self.takes_embedding_views = place is not None
        if place is not None:
            place.register_forward_hook(self._alter_embeddings)

    def forward(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        """Encodes the rows, right-padded to the longest; see ``Encoder.forward``."""
        mask = token_mask(batch.lengths)
        fill = self.model.config.pad_token_id or 0
        inputs = {"input_ids": pad(batch.ids, mask, fill=fill), "attention_mask": mask.long()}
        if batch.positions is not None:
            natural = torch.arange(mask.shape[1], device=mask.device)
            places = torch.where(mask, pad(batch.positions, mask, fill=0), natural)
            inputs["position_ids"] = places + self._first_position
        self._alter, self._mask = alter, mask
        try:
            output = self.model(**inputs, output_hidden_states=layers != (-1,))
        finally:
            self._alter = self._mask = None
        if layers == (-1,):
            return Hidden({-1: output.last_hidden_state}, mask)
        return Hidden({layer: output.hidden_states[layer] for layer in layers}, mask)

    def heeds_positions(self) -> bool:
        """Tells whether the network reads positions: relative ones (DeBERTa-v2, T5) would be silently ignored."""
        ids = torch.arange(4, device=self.model.device).unsqueeze(0)
        mask = torch.ones_like(ids)
        orders = [torch.tensor([order]).to(ids) + self._first_position for order in ([0, 1, 2, 3], [2, 0, 3, 1])]
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                natural, other = (
                    self.model(input_ids=ids, attention_mask=mask, position_ids=order).last_hidden_state
                    for order in orders
                )
        except TypeError:
            return False
        finally:
            self.model.train(training)
        return not torch.equal(natural, other)

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Gives tokenizer and token table the tokens; a vocabulary still to be learned will have them."""
        if self.tokenizer is None or not tokens:
            return
        self.tokenizer.add_tokens([AddedToken(token, special=True) for token in tokens], special_tokens=True)
        if len(self.tokenizer) > self.vocabulary_size:
            with quiet():
                self.model.resize_token_embeddings(len(self.tokenizer))
            self.vocabulary_size = len(self.tokenizer)

    def build_token_head(self) -> None:
        """Makes the architecture's masked-language-model head, with the checkpoint's weights if it has them."""
        architecture = load_architecture(self.model_name_or_path, self._full_config(), self.dropout)
        self.token_head = TokenHead(self.model, self.model_name_or_path, architecture)

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Gives a score for every entry of the vocabulary, (M, D) -> (M, V)."""
        if self.token_head is None:
            raise RuntimeError("TransformerEncoder: expected build_token_head() before the first call")
        scores: Tensor = self.token_head(hidden)
        return scores

    def _full_config(self) -> dict[str, Any] | None:  # Any: a config.json holds what its architecture wants
        if self.config is None or self.tokenizer_name_or_path is not None:
            return self.config
        return {"pad_token_id": 0, **self.config}  # where a learned vocabulary has it

    def _alter_embeddings(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:  # noqa: ARG002  # the base's signature
        if self._alter is None or self._mask is None:
            return None  # torch: keep the output
        return self._alter(output, self._mask)


def _position_tables(model: PreTrainedModel) -> list[nn.Embedding]:
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]


def _first_position(model: PreTrainedModel) -> int:
    # RoBERTa and its relatives keep the rows up to the padding index of the position table for padding.
    return max((t.padding_idx + 1 for t in _position_tables(model) if t.padding_idx is not None), default=0)


def _limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    limits = [table.num_embeddings - _first_position(model) for table in _position_tables(model)]
    if not limits and isinstance(places := model.config.to_dict().get("max_position_embeddings"), int):
        limits = [places]
    # Tokenizers without a limit carry a huge number as theirs.
    if tokenizer is not None and tokenizer.model_max_length < 10**9:
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)
