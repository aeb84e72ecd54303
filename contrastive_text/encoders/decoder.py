"""A decoder made of an encoder: it predicts a text from its vector, token by token."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders.dropout import replace_dropouts
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.probes import is_causal

if TYPE_CHECKING:
    from contrastive_text.encoders.transformer import TransformerEncoder


class TextDecoder(nn.Module):
    """The encoder's architecture as a causal language model with cross-attention to one vector of each text.

    Wang et al. 2021, TSDAE, https://arxiv.org/abs/2104.06979; the code is Sentence-Transformers'
    ``DenoisingAutoEncoderLoss``. Cross-attention starts at random; the head that predicts tokens is the
    architecture's own, with the checkpoint's weights where it has them, over the token table of the decoder.

    Args:
        encoder: Whose architecture and weights it has; its rows are laid out the same way.
        tied: Whether all but cross-attention and head are the encoder's own weights, and not copies.

    Raises:
        ValueError: An architecture without cross-attention, or without a head that predicts tokens, or an encoder
            with adapters.
    """

    def __init__(self, encoder: TransformerEncoder, tied: bool) -> None:
        super().__init__()
        if encoder.adapters is not None:
            raise InvalidValueError(
                "encoder.adapters: expected null for a decoder that is made of the encoder's weights, got "
                f"{type(encoder.adapters).__name__}; train all weights, or leave the objective out"
            )
        model = _decoder_of(encoder.model)
        if tied:
            for name, weight in encoder.model.named_parameters():
                place, _, own = name.rpartition(".")
                setattr(model.get_submodule(place), own, weight)
        else:
            model.load_state_dict(encoder.model.state_dict(), strict=False)
        self.tied = tied
        self.network = encoder.around(model)
        self.token_head = encoder.token_head_of(model)

    def forward(self, batch: Batch, vectors: Tensor) -> Tensor:
        """Returns states of which each has seen its row's vector and the tokens up to its own, (T, D).

        Args:
            batch: Ragged rows.
            vectors: One for each row, (S, D).
        """

        def given(model: nn.Module, args: Any, inputs: Any) -> Any:  # noqa: ARG001  # torch's signature; Any: the model's
            # Of packed rows, which are one row, (1, S, D); of others (S, 1, D).
            rows = len(inputs["input_ids"])
            states = vectors.to(self.network.model.dtype).reshape(rows, -1, vectors.shape[1])
            return args, {**inputs, "encoder_hidden_states": states}

        handle = self.network.model.register_forward_pre_hook(given, with_kwargs=True)
        try:
            return self.network.token_vectors(batch)
        finally:
            handle.remove()

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns a score for every entry of the vocabulary, (M, D) -> (M, V)."""
        scores: Tensor = self.token_head(hidden)
        return scores


def _decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a network of the same architecture and sizes that is a decoder with cross-attention, at random."""
    architecture = deepcopy(model.config)
    for name, value in (("is_decoder", True), ("add_cross_attention", True), ("use_cache", False)):
        setattr(architecture, name, value)
    predicts = type(architecture) in MODEL_FOR_MASKED_LM_MAPPING
    decoder = build_model(architecture) if predicts else None
    if decoder is None or len(decoder.state_dict()) == len(model.state_dict()) or not is_causal(decoder):
        raise InvalidValueError(
            "DenoisingDecoder: expected an architecture that can be a decoder with cross-attention "
            f"(BERT, RoBERTa, ELECTRA, ...), got {architecture.model_type}; take such an encoder, or leave the "
            "objective out"
        )
    decoder.train()
    replace_dropouts(decoder)
    return decoder
