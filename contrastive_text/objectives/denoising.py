"""Objective that predicts a whole text from the vector of its remaining words, and the decoder for it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from contrastive_text.core.batch import Batch, Encoded, sent
from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import replace_dropouts
from contrastive_text.core.types import Role
from contrastive_text.encoders import Embedder, Encoder, TransformerEncoder
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.networks import is_causal
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.masked_lm import token_entropy
from contrastive_text.objectives.terms import Terms


class DenoisingDecoder(Objective):
    """Cross entropy of a text's tokens, each predicted from those before it and from the vector of the anchor.

    TSDAE (Wang et al. 2021, https://arxiv.org/abs/2104.06979; the code is Sentence-Transformers'
    ``DenoisingAutoEncoderLoss``): views on ``anchor`` delete words, and a decoder writes the text in ``original``
    with nothing but the anchor's one vector to look at. The decoder is a causal language model of the encoder's
    architecture with cross-attention; its weights are the encoder's, but for cross-attention and the head. It is
    trained and thrown away. The mean runs over the tokens of all ranks, from each row's second one on. Of what
    stands around a text, a prompt or a template, the decoder reads all and predicts only the token that ends the
    text, as it does [SEP]: the rest is the same for every text, and no vector has to say it.

    Cost: encoder and decoder, each with a backward pass, and logits of every token of the texts, which are made a
    block at a time and once more in the backward pass.

    Differs: three example scripts of Sentence-Transformers, and the docstring of its loss, keep the words that
    they mean to delete: with 0.6 they keep 60 %. Its data set and its page delete 60 %, as the recipe here does.

    Args:
        tied: Whether the decoder has the encoder's weights, and not copies that go their own way.
        block: Tokens whose logits exist at a time.
        task: The data set that it reads, where there are several.

    Raises:
        ValueError: A block below 1; when it is built, an architecture that can't be a decoder with
            cross-attention, or vectors of another width than the encoder's.
    """

    reads: tuple[Role, ...] = ("anchor",)
    takes: tuple[Role, ...] = ()
    reads_tokens: tuple[Role, ...] = ("original",)

    def __init__(self, tied: bool = True, block: int = 1024, task: str | None = None) -> None:
        super().__init__(task)
        self.tied = tied
        self.block = at_least("DenoisingDecoder.block", block, 1, "1024 is usual")
        self.decoder: TextDecoder | None = None
        self._width = 0

    def build(self, features: int) -> None:
        """Notes the width of the vectors that the decoder will read."""
        self._width = features

    def build_networks(self, embedder: Embedder) -> None:
        """Makes the decoder."""
        if self._width != embedder.encoder.features:
            tokens = embedder.encoder.features
            raise InvalidValueError(
                f"DenoisingDecoder: expected vectors as wide as the encoder's tokens ({tokens}), which its"
                f" decoder looks at, got {self._width}; leave --model.head out"
            )
        self.decoder = TextDecoder(embedder.encoder, self.tied)

    def describe_networks(self) -> str:
        """Returns where the decoder's weights come from."""
        assert self.decoder is not None
        whose = "the encoder's weights" if self.tied else "copies of the encoder's weights"
        head = "the checkpoint's" if self.decoder.token_head.pretrained else "which starts at random"
        return f"a decoder with {whose}, cross-attention that starts at random and a token head, {head}"

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local texts' tokens, of a text for each of its anchors."""
        decoder = self.decoder
        if decoder is None or encoded.by_groups is None:
            raise RuntimeError("DenoisingDecoder: expected build_networks(embedder) before the first call")
        anchors = encoded.role("anchor").transpose(0, 1)
        examples = torch.arange(anchors.shape[1])
        texts = encoded.tokens("original").split(examples.repeat(len(anchors)))  # copies are alike
        vectors = anchors.flatten(0, 1)

        def decode(rows: Batch, places: Tensor) -> Tensor:
            states: Tensor = decoder(rows, vectors[places])
            return states

        hidden, labels = [], []
        for rows, _, states in encoded.by_groups(texts, decode):
            predicted = _predicted(rows)
            hidden.append(states[sent(predicted - 1, states.device)])
            labels.append(rows.ids[sent(predicted, states.device)])
        total, hits, count = token_entropy(torch.cat(hidden), torch.cat(labels), decoder.token_logits, self.block)
        return Terms(total, count, logs={"accuracy": hits / max(count, 1)})


def _predicted(rows: Batch) -> Tensor:
    """Returns the places of what is predicted: a text's tokens and the one after it, but no row's first, (P,)."""
    starts, ends = rows.lengths.cumsum(0) - rows.lengths, rows.lengths.cumsum(0)
    first, end = starts + 1, ends
    if rows.around is not None:
        before, after = rows.around.unbind(1)
        first, end = starts + before.clamp(min=1), ends - (after - 1).clamp(min=0)
    places = torch.arange(len(rows.ids))
    first, end = (each.repeat_interleave(rows.lengths) for each in (first, end))
    return ((first <= places) & (places < end)).nonzero().flatten()


class TextDecoder(nn.Module):
    """The encoder's architecture as a causal language model with cross-attention to one vector of each text.

    Cross-attention starts at random. The head that predicts tokens is the architecture's own, with the
    checkpoint's weights if it has them, over the token table of the decoder.

    Args:
        encoder: Encoder whose architecture, weights and layout of rows the decoder has.
        tied: Whether all weights except cross-attention and head are the encoder's own, and not copies.

    Raises:
        ValueError: Another encoder than a ``TransformerEncoder``, an architecture without cross-attention or
            without a head that predicts tokens, or an encoder with adapters.
    """

    def __init__(self, encoder: Encoder, tied: bool) -> None:
        super().__init__()
        if not isinstance(encoder, TransformerEncoder):
            raise InvalidValueError(
                "DenoisingDecoder: expected an architecture that can be a decoder with cross-attention (BERT, "
                f"RoBERTa, ... in a TransformerEncoder), got {type(encoder).__name__}; leave the objective out"
            )
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
        """Returns states that have seen their row's vector and the tokens up to their own, (T, D).

        Args:
            batch: Ragged rows.
            vectors: One for each row, (S, D).
        """

        def with_vectors(model: nn.Module, args: Any, inputs: Any) -> Any:  # noqa: ARG001  # torch's signature; Any: the model's
            # (1, S, D) for packed rows, which are one row; (S, 1, D) for others.
            rows = len(inputs["input_ids"])
            states = vectors.to(self.network.model.dtype).reshape(rows, -1, vectors.shape[1])
            return args, {**inputs, "encoder_hidden_states": states}

        handle = self.network.model.register_forward_pre_hook(with_vectors, with_kwargs=True)
        try:
            return self.network.token_vectors(batch)
        finally:
            handle.remove()

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns a score for every entry of the vocabulary, (M, D) -> (M, V)."""
        scores: Tensor = self.token_head(hidden)
        return scores


def _decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a decoder with cross-attention of a network's architecture and sizes, with random weights."""
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
