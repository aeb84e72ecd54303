"""Any Hugging Face encoder, from pretrained weights or from a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import quiet
from contrastive_text.core.types import Alter, Batch, Hidden, Slot
from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.dropout import replace_dropouts
from contrastive_text.encoders.layouts import (
    ATTENTION,
    FixedLayout,
    Layout,
    Packing,
    flash_attention,
    natural_positions,
    packed,
    pad,
    pad_vectors,
    token_mask,
)
from contrastive_text.encoders.loading import dropouts, load_architecture, load_model, load_tokenizer
from contrastive_text.encoders.token_head import TokenHead

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
        layout: How rows are laid out (see ``encoders.layouts``); ``auto`` takes the fastest that is right for the
            architecture on the device. The result is the same.
        compiled: Whether blocks are compiled by ``torch.compile`` for lengths of every kind; their rows are then
            padded or bucketed. It takes a minute at the start, and on a CPU nothing was gained by it.

    Raises:
        ValueError: Neither or both of name and config, a model that can't be found, a checkpoint that
            lacks weights of the encoder, a length the model can't take, or ``packed`` for an architecture that
            has no place for another attention function, gives other values with it, or is compiled.

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
        layout: Layout = "auto",
        compiled: bool = False,
    ) -> None:
        super().__init__()
        if layout not in get_args(Layout):
            raise InvalidValueError(
                f"encoder.layout: expected one of {', '.join(get_args(Layout))}, got {layout!r}"
            )
        if (model_name_or_path is None) == (config is None):
            raise InvalidValueError(
                "encoder: expected either model_name_or_path (pretrained) or config (random start), got "
                f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path, and the "
                "other to null"
            )
        if dropout is not None and not 0 <= dropout < 1:
            raise InvalidValueError(f"encoder.dropout: expected a probability in [0, 1) or null, got {dropout}")
        self.model_name_or_path = model_name_or_path
        self.config = config
        self.tokenizer_name_or_path = tokenizer_name_or_path
        self.dropout = dropout
        self.layout = layout
        self.compiled = compiled
        architecture = load_architecture(model_name_or_path, self._full_config(), dropout)
        # It is loaded in eval mode, without dropout and views.
        self.model = load_model(model_name_or_path, architecture).train()
        replace_dropouts(self.model)
        source = tokenizer_name_or_path or model_name_or_path
        self.tokenizer = None if source is None else load_tokenizer(source)
        if config is not None and self.tokenizer is not None and len(self.tokenizer) > architecture.vocab_size:
            raise InvalidValueError(
                f"encoder.config.vocab_size: expected the tokenizer's {len(self.tokenizer)} entries or more, got "
                f"{architecture.vocab_size}"
            )
        self.features = int(architecture.hidden_size)
        self.vocabulary_size = int(architecture.vocab_size)
        self.dropout_in_effect = dropouts(architecture)
        self.limit = _limit(self.model, self.tokenizer)
        if max_length is not None and not 3 <= max_length <= (self.limit or max_length):
            raise InvalidValueError(
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
        self._why_not_packed = self._check_packed() if layout in ("auto", "packed") else "another was asked for"
        if compiled:
            self._why_not_packed = "a compiled network takes no packed rows"
            for block in next(part for part in self.model.modules() if isinstance(part, nn.ModuleList)):
                block.compile(dynamic=True)
        if layout == "packed" and self._why_not_packed:
            raise InvalidValueError(
                f"encoder.layout: expected bucketed, padded or auto, for {self._why_not_packed}, got packed"
            )

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of its rows on a device, and why.

        Raises:
            ValueError: ``packed``, and layers are checkpointed: they are computed anew without the packing.
        """
        checkpointed = any(vars(part).get("gradient_checkpointing") for part in self.model.modules())
        if self.layout == "packed" and checkpointed:
            raise InvalidValueError(
                "encoder.layout: expected auto, bucketed or padded, for layers are checkpointed, whose gradient "
                "would be another, got packed; or set model.chunk_tokens instead of checkpointing them"
            )
        if self.layout != "auto":
            return self.layout, "as asked for"
        if checkpointed:
            layout, why = super().layout_on(device)
            return layout, f"{why}; not packed, for layers are checkpointed: chunk_tokens does that better"
        if self._why_not_packed:
            layout, why = super().layout_on(device)
            return layout, f"{why}; not packed, for {self._why_not_packed}"
        if device.type == "cpu":
            return "packed", "the fastest on a CPU: no padding in any layer"
        if flash_attention() is not None:
            return "packed", "flash_attn is installed; it takes half precision"
        return "padded", "one block of rows for a GPU; with flash_attn installed it would be packed"

    def forward(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        """Encodes the rows and gives them right-padded to the longest; see ``Encoder.forward``."""
        layout, _ = self.layout_on(batch.lengths.device)
        if layout != "packed":
            return self._padded(batch, alter, layers)
        mask = token_mask(batch.lengths)
        output = self._packed(batch, alter, layers, Packing.of(batch.lengths))
        return Hidden({layer: pad_vectors(vectors, mask) for layer, vectors in output.items()}, mask)

    def blocks(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> list[Hidden]:
        """Returns the token vectors run by run of equal length, or all rows padded; see ``Encoder.blocks``."""
        layout, _ = self.layout_on(batch.lengths.device)
        if layout != "packed" or batch.lengths.is_cuda:
            return [self(batch, alter=alter, layers=layers)]
        packing = Packing.of(batch.lengths)
        output = self._packed(batch, alter, layers, packing)
        runs = zip(*(packing.split(vectors) for vectors in output.values()), strict=True)
        return [
            Hidden(dict(zip(output, run, strict=True)), run[0].new_ones(run[0].shape[:2], dtype=torch.bool))
            for run in runs
        ]

    def _packed(
        self, batch: Batch, alter: Alter | None, layers: tuple[int, ...], packing: Packing
    ) -> dict[int, Tensor]:
        """Returns the token vectors of each layer, (T, D)."""
        places = natural_positions(batch.lengths) if batch.positions is None else batch.positions
        with packed(packing):
            outputs = self._run(
                alter,
                token_mask(batch.lengths),
                layers,
                input_ids=batch.ids.unsqueeze(0),
                position_ids=(places + self._first_position).unsqueeze(0),
            )
        return {layer: vectors.squeeze(0) for layer, vectors in outputs.items()}

    def _padded(self, batch: Batch, alter: Alter | None, layers: tuple[int, ...]) -> Hidden:
        mask = token_mask(batch.lengths)
        fill = self.model.config.pad_token_id or 0
        inputs = {"input_ids": pad(batch.ids, mask, fill=fill), "attention_mask": mask.long()}
        if batch.positions is not None:
            natural = torch.arange(mask.shape[1], device=mask.device)
            places = torch.where(mask, pad(batch.positions, mask, fill=0), natural)
            inputs["position_ids"] = places + self._first_position
        return Hidden(self._run(alter, mask, layers, **inputs), mask)

    def _run(
        self, alter: Alter | None, mask: Tensor, layers: tuple[int, ...], **inputs: Tensor
    ) -> dict[int, Tensor]:
        """Calls the network with the alteration in place, and gives the layers asked for."""
        self._alter, self._mask = alter, mask
        try:
            output = self.model(**inputs, output_hidden_states=layers != (-1,))
        finally:
            self._alter = self._mask = None
        if layers == (-1,):
            return {-1: output.last_hidden_state}
        return {layer: output.hidden_states[layer] for layer in layers}

    def _check_packed(self) -> str | None:
        """Returns the reason against packed rows, None if there is none; then the network has our attention.

        Some architectures ignore the attention function that they are given, or do more than it does: so the
        values of padded rows under their own are held against those of packed rows under ours.
        """
        name, own = self.model.config.model_type, self.model.config._attn_implementation
        if not self.model.is_backend_compatible():
            return f"{name} takes no other attention function"
        batch = _trial(self._trial_length(), self.vocabulary_size)
        reason = None
        self.model.eval()
        try:
            with torch.no_grad(), quiet():
                padded = self._padded(batch, alter=None, layers=(-1,))
                self.model.set_attn_implementation(ATTENTION)
                reached = self._packed(batch, None, (-1,), Packing.of(batch.lengths))[-1]
            expected = padded.layers[-1][padded.mask]
            # Rounding of float32 is some 1e-6 of the largest value.
            if not torch.allclose(reached, expected, rtol=0, atol=1e-4 * float(expected.abs().max())):
                reason = f"{name} gives other values with packed rows"
        except (RuntimeError, TypeError, ValueError) as error:
            reason = f"{name} can't be called with packed rows ({first_line(error)})"
        self.model.train()
        if reason is not None:
            with quiet():
                self.model.set_attn_implementation(own)
        return reason

    def _trial_length(self) -> int:
        """Returns the length of a row that shows what attention does: more than a window, where there is one."""
        settings = self.model.config.to_dict()
        windows = [settings.get(name) for name in ("sliding_window", "local_attention")]
        wanted = max([7, *(window + 3 for window in windows if isinstance(window, int))])
        return min(wanted, self.limit or wanted)

    def heeds_positions(self) -> bool:
        """Whether the network reads positions: relative ones (DeBERTa-v2, T5) would be silently ignored."""
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

    def is_causal(self) -> bool:
        """Whether no token sees a later one, as in decoders; tried out, for settings can say otherwise.

        Of three texts the second differs from the first in its last token and the third in its first one: what
        that does to the token at the other end is compared.
        """
        a, b, c, d, other = [i for i in range(5, 12) if i != self.model.config.pad_token_id][:5]
        texts = [[a, b, c, d], [a, b, c, other], [other, b, c, d]]
        ids = torch.tensor(texts, device=self.model.device) % self.vocabulary_size
        modes = [(part, part.training) for part in self.model.modules()]
        self.model.eval()
        try:
            # A compiled network would be compiled once more, without a gradient, for this alone.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        finally:
            for part, mode in modes:
                part.training = mode
        backward = (output[1, 0] - output[0, 0]).abs().max()
        forward = (output[2, -1] - output[0, -1]).abs().max()
        # Where tokens see each other both are of one size; where they don't, one is 0, or its rounding.
        return bool(backward < 1e-3 * forward)

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Returns tokenizer and token table the tokens; a vocabulary still to be learned will have them."""
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
        """Returns a score for every entry of the vocabulary, (M, D) -> (M, V)."""
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
        if output.shape[:2] == self._mask.shape:
            return self._alter(output, self._mask)
        padded = pad_vectors(output.squeeze(0), self._mask)
        return self._alter(padded, self._mask)[self._mask].unsqueeze(0)


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


def _trial(length: int, vocabulary_size: int) -> Batch:
    """Returns three rows, two of them of one length."""
    lengths = torch.tensor([length, 2, 2])
    return Batch(
        ids=torch.arange(5, 5 + int(lengths.sum())) % vocabulary_size,
        lengths=lengths,
        slots=(Slot("anchor", 0),),
        row_slots=torch.zeros(3, dtype=torch.long),
        draw_keys=torch.arange(3),
        text_ids=torch.arange(3),
    )
