"""Objectives that predict tokens: masked language modeling, and the denoising decoder of TSDAE."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from contrastive_text.core.batch import Batch, Encoded, move_to_device
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.random import replace_dropouts
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Role
from contrastive_text.encoders import Embedder, Encoder, TransformerEncoder
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.networks import is_causal
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms


class MaskedLM(Objective):
    """Masked language modeling: cross-entropy of the masked tokens, with the head of the encoder's architecture.

    The mean is over the masked tokens of all ranks (Devlin et al. 2019, BERT, https://arxiv.org/abs/1810.04805,
    section 3.1). A ``MaskTokens`` view selects the texts. On ``anchor`` one forward pass of the masked text also
    gives the contrastive embedding (DeCLUTR, Giorgi et al. 2021, section 3.2). On ``original`` an unaltered copy
    of the text is masked (CLEAR, Wu et al. 2020, section 3.2; SimCSE's MLM option). Logits are computed block by
    block, and again in the backward pass, so that memory is bounded by ``block`` rows of the vocabulary's width.

    The mean is over all masked copies of a text. If a paper adds the losses of two copies (``data.task.originals:
    2``; CLEAR's double MLM), set a weight of 2 in ``model.weights``.

    Differs: SimCSE's code masks every view of a text in a second pass; here ``data.task.originals: 2`` gives two
    masked copies. SimCSE's head copies BERT's weights without tying them; here the head is tied to the encoder.

    Args:
        block: Largest number of masked tokens whose logits are in memory at a time.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``block`` is below 1.
    """

    optional_roles: tuple[Role, ...] = ()
    needs_token_logits: ClassVar[bool] = True

    def __init__(self, block: int = 1024, task: str | None = None) -> None:
        super().__init__(task)
        self.block = at_least("MaskedLM.block", block, 1, "1024 is usual")

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the local masked tokens and their number.

        Raises:
            ValueError: The batch has no masked tokens.
        """
        hidden, labels, logits = encoded.masked_hidden, encoded.masked_labels, encoded.token_logits
        if hidden is None or labels is None or logits is None:
            raise InvalidValueError(
                "MaskedLM: expected a batch with masked tokens, got no masked tokens; add a MaskTokens view to "
                "anchor or original"
            )
        total, hits, count = token_cross_entropy(hidden, labels, logits, self.block)
        return Terms(total=total, count=count, logs={"accuracy": hits / max(count, 1)})


def token_cross_entropy(
    hidden: Tensor, labels: Tensor, logits: Callable[[Tensor], Tensor], block: int
) -> tuple[Tensor, Tensor, int]:
    """Returns the summed cross-entropy of tokens, the number of correct predictions, and the number of tokens.

    Args:
        hidden: Hidden states from which the tokens are predicted, (M, D).
        labels: Ids of the tokens, (M,).
        logits: Maps hidden states to logits of the vocabulary, (M, D) -> (M, V).
        block: Largest number of tokens whose logits are in memory at a time. The backward pass computes the
            logits again.
    """

    def entropy(part: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = at_least_float32(logits(part))
        hits = (scores.detach().argmax(dim=1) == labels).sum()
        return cross_entropy(scores, labels, reduction="sum"), hits

    # Without tokens there is one empty block, so that the head is part of every backward pass.
    pairs = zip(torch.split(hidden, block), torch.split(labels, block), strict=True)
    parts = [checkpoint(entropy, *pair, use_reentrant=False) for pair in pairs]
    total = torch.stack([loss for loss, _ in parts]).sum()
    return total, torch.stack([hit for _, hit in parts]).sum(), len(labels)


class DenoisingDecoder(Objective):
    """TSDAE: cross-entropy of a text's tokens, each predicted from earlier tokens and the anchor's vector.

    Views on ``anchor`` delete words. A decoder predicts the text in ``original``; its only other input is the
    anchor's vector. Source: Wang et al. 2021, TSDAE (https://arxiv.org/abs/2104.06979), and
    Sentence-Transformers' ``DenoisingAutoEncoderLoss``. The decoder is a causal language model of the encoder's
    architecture with cross-attention. Its weights are the encoder's, except for cross-attention and the head. It
    is trained, and is not part of the saved model. The mean is over the tokens of all ranks, from the second
    token of each row on. The decoder also reads a prompt or template, but predicts only the token that ends the
    text, such as [SEP]. The other tokens of a prompt or template are the same for every text.

    Cost: encoder and decoder, each with a backward pass, and logits of every token of the texts. Logits are
    computed block by block, and again in the backward pass.

    Differs: three example scripts of Sentence-Transformers, and the docstring of its loss, keep the words that
    they should delete: with 0.6 they keep 60 %. Its data set and its documentation delete 60 %, as the recipe
    here.

    Args:
        tied: Whether the decoder shares the encoder's weights. If false, it starts with copies of them.
        block: Largest number of tokens whose logits are in memory at a time.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``block`` is below 1. Raised by ``build_networks``: the architecture can't be a decoder with
            cross-attention, or the vectors have another width than the encoder's tokens.
    """

    required_roles: tuple[Role, ...] = ("anchor",)
    optional_roles: tuple[Role, ...] = ()
    token_roles: tuple[Role, ...] = ("original",)

    def __init__(self, tied: bool = True, block: int = 1024, task: str | None = None) -> None:
        super().__init__(task)
        self.tied = tied
        self.block = at_least("DenoisingDecoder.block", block, 1, "1024 is usual")
        self.decoder: TextDecoder | None = None
        self._width = 0

    def build(self, features: int) -> None:
        """Stores the width of the vectors that the decoder will read."""
        self._width = features

    def build_networks(self, embedder: Embedder) -> None:
        """Builds the decoder that reconstructs the texts.

        Raises:
            ValueError: The vectors have another width than the encoder's tokens.
        """
        if self._width != embedder.encoder.features:
            tokens = embedder.encoder.features
            raise InvalidValueError(
                f"DenoisingDecoder: expected vectors as wide as the encoder's tokens ({tokens}), got "
                f"{self._width}; remove --model.head, or use a pooler of token vectors"
            )
        self.decoder = TextDecoder(embedder.encoder, self.tied)

    def describe_networks(self) -> str:
        """Returns a description of the decoder and the origin of its weights, for the run's summary."""
        assert self.decoder is not None
        weights = "the encoder's weights" if self.tied else "copies of the encoder's weights"
        start = "pretrained" if self.decoder.token_head.pretrained else "randomly initialized"
        return f"a decoder with {weights}, randomly initialized cross-attention and a {start} token head"

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the tokens of the local texts, once for each anchor of a text."""
        decoder = self.decoder
        if decoder is None or encoded.run_in_chunks is None:
            raise RuntimeError("DenoisingDecoder: expected build_networks(embedder) before the first call")
        anchors = encoded.role("anchor").transpose(0, 1)
        examples = torch.arange(anchors.shape[1])
        texts = encoded.tokens("original").split(examples.repeat(len(anchors)))  # the same text for all anchors
        vectors = anchors.flatten(0, 1)

        def decode(rows: Batch, indices: Tensor) -> Tensor:
            states: Tensor = decoder(rows, vectors[indices])
            return states

        hidden, labels = [], []
        for rows, _, states in encoded.run_in_chunks(texts, decode):
            positions = _predicted_positions(rows)
            hidden.append(states[move_to_device(positions - 1, states.device)])
            labels.append(rows.ids[move_to_device(positions, states.device)])
        total, hits, count = token_cross_entropy(
            torch.cat(hidden), torch.cat(labels), decoder.token_logits, self.block
        )
        return Terms(total, count, logs={"accuracy": hits / max(count, 1)})


def _predicted_positions(rows: Batch) -> Tensor:
    """Returns the positions of the tokens to predict: a text and the next token, but no row's first, (P,)."""
    starts, ends = rows.lengths.cumsum(0) - rows.lengths, rows.lengths.cumsum(0)
    first, end = starts + 1, ends
    if rows.template_lengths is not None:
        before, after = rows.template_lengths.unbind(1)
        first, end = starts + before.clamp(min=1), ends - (after - 1).clamp(min=0)
    positions = torch.arange(len(rows.ids))
    first, end = (bound.repeat_interleave(rows.lengths) for bound in (first, end))
    return ((first <= positions) & (positions < end)).nonzero().flatten()


class TextDecoder(nn.Module):
    """Causal language model of the encoder's architecture with cross-attention to the vector of each text.

    Cross-attention is randomly initialized. The head that predicts tokens is from the architecture, with the
    checkpoint's weights if it has them, and is tied to the decoder's token embeddings.

    Args:
        encoder: Encoder whose architecture, weights and layout of rows the decoder uses.
        tied: Whether the decoder shares the encoder's weights, except for cross-attention and head. If false, it
            starts with copies.

    Raises:
        ValueError: The encoder is not a ``TransformerEncoder`` or has adapters, or its architecture has no
            cross-attention or no head that predicts tokens.
    """

    def __init__(self, encoder: Encoder, tied: bool) -> None:
        super().__init__()
        if not isinstance(encoder, TransformerEncoder):
            raise InvalidValueError(
                "DenoisingDecoder: expected an architecture that can be a decoder with cross-attention (BERT, "
                f"RoBERTa, ... in a TransformerEncoder), got {type(encoder).__name__}; use such an encoder, or "
                "remove the objective"
            )
        if encoder.adapters is not None:
            raise InvalidValueError(
                "encoder.adapters: expected null with DenoisingDecoder, whose decoder uses the encoder's "
                f"weights, got {type(encoder.adapters).__name__}; train all weights, or remove the objective"
            )
        model = _build_decoder(encoder.model)
        if tied:
            for name, weight in encoder.model.named_parameters():
                module, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(module), attribute, weight)
        else:
            model.load_state_dict(encoder.model.state_dict(), strict=False)
        self.tied = tied
        self.network = encoder.with_network(model)
        self.token_head = encoder.token_head_of(model)

    def forward(self, batch: Batch, vectors: Tensor) -> Tensor:
        """Returns the hidden state of each token, from the tokens up to it and its row's vector, (T, D).

        Args:
            batch: Ragged rows of tokens.
            vectors: Vector of each row, (S, D).
        """

        def with_vectors(model: nn.Module, args: Any, inputs: Any) -> Any:  # noqa: ARG001  # torch's signature; Any: the model's
            # (1, S, D) for packed rows, which are one row of the network; (S, 1, D) for padded rows.
            rows, tokens = inputs["input_ids"].shape
            fill = tokens - len(batch.ids) if rows == 1 else 0
            states = pad(vectors.to(self.network.model.dtype), (0, 0, 0, fill))
            return args, {**inputs, "encoder_hidden_states": states.reshape(rows, -1, vectors.shape[1])}

        handle = self.network.model.register_forward_pre_hook(with_vectors, with_kwargs=True)
        try:
            return self.network.token_vectors(batch)
        finally:
            handle.remove()

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all tokens of the vocabulary, (M, D) -> (M, V)."""
        scores: Tensor = self.token_head(hidden)
        return scores


def _build_decoder(model: PreTrainedModel) -> PreTrainedModel:
    """Builds a decoder with cross-attention and random weights, of a network's architecture and sizes."""
    architecture = deepcopy(model.config)
    for name, value in (("is_decoder", True), ("add_cross_attention", True), ("use_cache", False)):
        setattr(architecture, name, value)
    predicts = type(architecture) in MODEL_FOR_MASKED_LM_MAPPING
    decoder = build_model(architecture) if predicts else None
    if decoder is None or len(decoder.state_dict()) == len(model.state_dict()) or not is_causal(decoder):
        raise InvalidValueError(
            "DenoisingDecoder: expected an architecture that can be a decoder with cross-attention "
            f"(BERT, RoBERTa, ELECTRA, ...), got {architecture.model_type}; use such an encoder, or remove the "
            "objective"
        )
    decoder.train()
    replace_dropouts(decoder)
    return decoder
