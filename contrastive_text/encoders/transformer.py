"""Encoder that runs a Transformers model, with pretrained weights or built from a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from inspect import signature
from pathlib import Path
from threading import get_ident
from typing import Any, Self

import torch
import torch.nn.functional as F
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import PreTrainedModel

from contrastive_text.core.batch import Batch, Hidden, PaddedHostCopies, move_to_device, select_tokens
from contrastive_text.core.errors import InvalidValueError, fraction
from contrastive_text.core.libraries import silence_transformers
from contrastive_text.core.machine import check_not_forked
from contrastive_text.core.random import replace_dropouts
from contrastive_text.core.storage.weights import sampled_identity
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.encoders.adapters import (
    Adapters,
    WeightsType,
    check_base,
    plain_name,
    remove_adapters,
    state_without_packing,
)
from contrastive_text.encoders.base import Encoder, training_threads
from contrastive_text.encoders.loading import (
    check_vocabulary,
    end_rows,
    load_architecture,
    load_model,
    load_tokenizer,
)
from contrastive_text.encoders.networks import (
    Attention,
    dropouts,
    embedding_module,
    first_position,
    is_causal,
    longest_row,
    padding_id,
    pooler_layer,
    prepare_layout,
    reads_positions,
    set_attention,
    text_config,
    without_cache,
)
from contrastive_text.encoders.onednn_products import onednn_products
from contrastive_text.encoders.packing import (
    NO_MASK,
    FixedLayout,
    Layout,
    Packing,
    checkpointed_by_others,
    fill_count,
    natural_positions,
    packed_input,
    pad,
    token_mask,
)
from contrastive_text.encoders.token_head import TokenHead


@contextmanager
def _altered_embeddings(model: nn.Module, alter: EmbeddingChange | None, mask: Tensor) -> Iterator[None]:
    """Alters the embedding output, after LayerNorm and dropout, in this thread's forward passes in the block.

    Args:
        model: The network. Its rows are padded, or packed into one row.
        alter: The alteration, which always gets padded rows, or None.
        mask: True on the tokens of the rows, (S, L), on the host.
    """
    embeddings = None if alter is None else embedding_module(model)
    if alter is None or embeddings is None:
        yield
        return

    def enter(module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001  # torch's signature
        if get_ident() != thread:
            return output
        device_mask = move_to_device(mask, output.device)
        if output.shape[:2] == mask.shape:
            return alter(output, device_mask)
        tokens, fill = output.squeeze(0).tensor_split([int(mask.sum())])
        return torch.cat([select_tokens(alter(pad(tokens, mask), device_mask), mask), fill]).unsqueeze(0)

    thread = get_ident()
    hook = embeddings.register_forward_hook(enter)
    try:
        yield
    finally:
        hook.remove()


class TransformerEncoder(Encoder):
    """Encoder that runs a Transformers model without its pooler and heads.

    Weights are float32 for any type of the checkpoint; the trainer sets mixed precision. Weights under adapters
    are frozen, and aren't in checkpoints. A checkpoint has their identity, which is compared when it is loaded.
    An embedding view runs in a forward hook of the embedding module, after its LayerNorm and dropout.

    Args:
        model_name_or_path: Hub name or local folder of a pretrained model.
        config: Architecture with random weights, as in ``config.json`` with ``model_type``. Give
            either this or ``model_name_or_path``.
        tokenizer_name_or_path: Hub name or folder of the tokenizer. None for the model's own or, with ``config``,
            for a tokenizer that is trained on the training corpus.
        max_length: Largest number of tokens of a training row, including special tokens; None for the model's
            limit. At inference the model's limit applies.
        dropout: Probability of every dropout of the network; None keeps the model's own.
        attention: ``causal`` if tokens don't attend to later tokens, ``bidirectional`` if they attend to all
            tokens, as LLM2Vec does with decoders (BehnamGhader et al. 2024, https://arxiv.org/abs/2404.05961).
            The ``config.json`` of a saved model then has ``is_causal: false``, which Transformers 5.2 and later
            read. None for the model's own.
        append_eos: Whether the tokenizer, including the saved one, appends its end token to each text, unless a
            special token already ends the row. None appends it if ``LastTokenPooler`` is trained, except for
            templates with tokens after the text: the pooler then reads the template's last token (PromptEOL).
        layout: Layout of rows (see ``encoders.packing``). ``auto`` selects the fastest layout that the
            architecture supports on the device. The result is the same. Rows are never padded on the left, for
            any padding side of the tokenizer: the position of a token is its number in its row.
        compiled: Whether ``torch.compile`` compiles blocks, for any lengths. Rows are then padded or bucketed. It
            takes a minute at the start, and was no faster on a CPU.
        gradient_checkpointing: Whether layers store only their input and are recomputed in the backward pass,
            with the same gradient in a third more time. The name is that of Transformers' training arguments.
            ``chunk_tokens`` bounds memory by tokens, this option by layers; both can be used together.
        adapters: Adapters to train in place of the network's weights; None to train the weights.
        weights_dtype: Type of the weights under adapters; adapters are always float32. ``nf4`` packs the weights
            of linear layers into 4 bits (QLoRA), and keeps the others in bfloat16.

    Raises:
        ValueError: Neither or both of name and config, a missing model, a checkpoint that lacks weights of the
            encoder, an invalid ``max_length``, an ``attention`` that the architecture doesn't support,
            ``append_eos`` with a tokenizer without an end token, or ``packed`` for an architecture that accepts
            no other attention function, gives other values with it, or is compiled. ``gradient_checkpointing``
            of a compiled network, or of layers that Transformers can't recompute. Adapters on random weights, or
            a small type of weights that are trained.
        ImportError: Adapters without peft.
        RuntimeError: This process was forked from a process that had used a model.

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
        config: dict[str, Any] | None = None,  # Any: values depend on the architecture
        tokenizer_name_or_path: str | None = None,
        max_length: int | None = None,
        dropout: float | None = None,
        attention: Attention | None = None,
        append_eos: bool | None = None,
        layout: Layout = "auto",
        compiled: bool = False,
        gradient_checkpointing: bool = False,
        adapters: Adapters | None = None,
        weights_dtype: WeightsType = "float32",
    ) -> None:
        super().__init__()
        self.model_name_or_path, self.tokenizer_name_or_path = model_name_or_path, tokenizer_name_or_path
        self.config = config
        self.dropout = dropout
        self.attention = attention
        self.append_eos = append_eos
        self.layout, self.compiled = layout, compiled
        if compiled and gradient_checkpointing:
            raise InvalidValueError(
                "encoder.gradient_checkpointing: expected false for a compiled network, which selects the "
                "recomputed layers itself, got true; remove one of both"
            )
        self.gradient_checkpointing = gradient_checkpointing
        self.adapters, self.weights_dtype = adapters, weights_dtype
        full_config = self._full_config()
        check_not_forked("encoder")
        check_base(adapters, config, weights_dtype)
        fraction("encoder.dropout", dropout, "0.1 is usual, null keeps the model's own", with_one=False)
        architecture = load_architecture(model_name_or_path, full_config, dropout)
        self.model, self._pooler = load_model(model_name_or_path, architecture, weights_dtype)
        self._adapted: frozenset[str] = frozenset()  # names of the adapters' weights
        if adapters is not None:
            self.base_identity = sampled_identity(dict(self.model.named_parameters()))
            self._adapted = adapters.add_to(self.model)
        text = text_config(architecture)
        self.features, self.vocabulary_size = int(text.hidden_size), int(text.vocab_size)
        source = tokenizer_name_or_path or model_name_or_path
        self.tokenizer = None if source is None else load_tokenizer(source)
        if self.tokenizer is not None:
            check_vocabulary(self.tokenizer, self.vocabulary_size, model_name_or_path)
        self.model.train()  # it is loaded in evaluation mode, without dropout and views
        replace_dropouts(self.model)
        set_attention(self.model, attention)
        if append_eos:
            self.end_rows()
        self.dropout_in_effect = dropouts(architecture) | ({"adapters": adapters.dropout} if adapters else {})
        self.limit = longest_row(self.model, self.tokenizer)
        if max_length is not None and not 3 <= max_length <= (self.limit or max_length):
            raise InvalidValueError(
                f"encoder.max_length: expected 3 to {self.limit} tokens for {type(self.model).__name__}, "
                f"got {max_length}"
            )
        self.max_length = max_length
        self._first_position, self._options = first_position(self.model), without_cache(self.model)
        self.token_head: TokenHead | None = None
        self.takes_embedding_views = embedding_module(self.model) is not None
        # RoBERTa has a table with a single type; DistilBERT, MPNet and DeBERTa have none. GPT-2 and XLNet lack
        # the key, but type 0 changes their vectors: they get the types that their tokenizer returns.
        types = architecture.to_dict().get("type_vocab_size")
        is_given_types = (
            "token_type_ids" in signature(self.model.forward).parameters
            and self.tokenizer is not None
            and "token_type_ids" in self.tokenizer.model_input_names
        )
        self._reads_zero_types = types is None and is_given_types
        self.takes_types = self._reads_zero_types or (types or 0) > 1
        self._why_not_packed = prepare_layout(self.model, layout, compiled, self.limit, gradient_checkpointing)
        if compiled:
            for block in next(part for part in self.model.modules() if isinstance(part, nn.ModuleList)):
                block.compile(dynamic=True)

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows on a device, and the reason for it; see ``Encoder.layout_on``.

        Raises:
            ValueError: ``packed`` although another function checkpoints layers and would recompute them unpacked.
        """
        has_other_function = checkpointed_by_others(self.model)
        if self.layout == "packed" and has_other_function:
            raise InvalidValueError(
                "encoder.layout: expected auto, bucketed or padded, got packed; another function checkpoints "
                "layers, which changes the gradient of packed rows: set encoder.gradient_checkpointing instead"
            )
        if self.layout != "auto":
            return self.layout, "as asked for"
        why = self._why_not_packed
        if has_other_function:
            why = "layers are checkpointed by another function: encoder.gradient_checkpointing does it packed"
        if why is None and device.type == "cpu":
            return "packed", "the fastest on a CPU: at most 6 % padding"
        if why is None and device.type == "cuda" and torch.version.hip is None:
            return "packed", "torch's kernels take rows of any lengths: no padding in any layer"
        layout, reason = super().layout_on(device)
        return layout, f"{reason}; not packed, for {why}" if why else reason

    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Encodes the rows of a batch and pads their token vectors on the right; see ``Encoder.forward``."""
        layout, _ = self.layout_on(batch.ids.device)
        if layout != "packed":
            return self._padded(batch, alter, layers)
        mask = token_mask(batch.lengths)
        output = self._packed(batch, alter, layers)
        return self._hidden(batch, mask, {layer: pad(vectors, mask) for layer, vectors in output.items()})

    def blocks(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> list[Hidden]:
        """Returns token vectors in blocks of rows of equal length, or all rows padded; see ``Encoder.blocks``."""
        layout, _ = self.layout_on(batch.ids.device)
        if layout != "packed" or batch.ids.device.type != "cpu":
            return [self(batch, alter=alter, layers=layers)]
        packing, output = Packing.of(batch.lengths), self._packed(batch, alter, layers)
        runs = zip(*(packing.split(vectors) for vectors in output.values()), strict=True)
        return [
            Hidden(dict(zip(output, run, strict=True)), torch.ones_like(ids).bool(), ids, self._mask_id)
            for run, ids in zip(runs, packing.split(batch.ids), strict=True)
        ]

    def _packed(self, batch: Batch, alter: EmbeddingChange | None, layers: tuple[int, ...]) -> dict[int, Tensor]:
        """Returns the token vectors of each layer, (T, D)."""
        device, count = batch.ids.device, len(batch.ids)
        fill = fill_count(count) if device.type == "cpu" else 0
        packing = Packing.of(F.pad(batch.lengths, (0, fill), value=1))
        positions = batch.positions
        if positions is None:
            positions = move_to_device(natural_positions(batch.lengths), device)
        inputs = {"input_ids": batch.ids, "position_ids": positions + self._first_position}
        if (types := self._types_of(batch)) is not None:
            inputs["token_type_ids"] = types
        inputs = {name: F.pad(values, (0, fill)).unsqueeze(0) for name, values in inputs.items()}
        if device.type != "cpu":
            # Without a mask decoders search the positions for packed rows, and the host would wait for the GPU.
            inputs["attention_mask"] = torch.ones(NO_MASK, dtype=torch.bool, device=device)
        with packed_input(packing):
            outputs = self._run(alter, token_mask(batch.lengths), layers, **inputs)
        return {layer: vectors.squeeze(0)[:count] for layer, vectors in outputs.items()}

    def _padded(self, batch: Batch, alter: EmbeddingChange | None, layers: tuple[int, ...]) -> Hidden:
        mask = token_mask(batch.lengths)
        fill = padding_id(self.model.config)
        device_mask = move_to_device(mask, batch.ids.device)
        inputs = {"input_ids": pad(batch.ids, mask, fill=fill), "attention_mask": device_mask.long()}
        if (types := self._types_of(batch)) is not None:
            inputs["token_type_ids"] = pad(types, mask)
        if batch.positions is not None:
            natural = torch.arange(mask.shape[1], device=device_mask.device)
            positions = torch.where(device_mask, pad(batch.positions, mask), natural)
            inputs["position_ids"] = positions + self._first_position
        return self._hidden(batch, mask, self._run(alter, mask, layers, **inputs))

    def _types_of(self, batch: Batch) -> Tensor | None:
        """Returns the token types for the network, (T,); None if the network reads no types."""
        if self._reads_zero_types and batch.types is None:
            return torch.zeros_like(batch.ids)
        return batch.types if self.takes_types else None

    def _hidden(self, batch: Batch, mask: Tensor, vectors: dict[int, Tensor]) -> Hidden:
        """Builds padded rows with masks and ids for poolers, on their device and on the host."""
        device_mask, ids = move_to_device(mask, batch.ids.device), pad(batch.ids, mask)
        host_copies = None if device_mask is mask else PaddedHostCopies(mask, pad(batch.host_ids.ids, mask))
        return Hidden(vectors, device_mask, ids, self._mask_id, host_copies)

    def _run(
        self, alter: EmbeddingChange | None, mask: Tensor, layers: tuple[int, ...], **inputs: Tensor
    ) -> dict[int, Tensor]:
        """Runs the network with altered embeddings, and returns the token vectors of the requested layers."""
        if self.training and torch.is_grad_enabled():
            training_threads[self] = get_ident()  # valid until the encoder is in evaluation mode
        # Checkpointed layers run once more in the backward pass, outside this block.
        is_once = not (self.training and self.gradient_checkpointing)
        products = onednn_products(self.model, inputs["input_ids"]) if is_once else nullcontext()
        with _altered_embeddings(self.model, alter, mask), products:
            output = self.model(**inputs, **self._options, output_hidden_states=layers != (-1,))
        if layers == (-1,):
            return {-1: output.last_hidden_state}
        return {layer: output.hidden_states[layer] for layer in layers}

    @property
    def _mask_id(self) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.mask_token_id

    def reads_positions(self) -> bool:
        """Returns whether the network reads positions."""
        return reads_positions(self.model)

    def is_causal(self) -> bool:
        """Returns whether tokens don't attend to later tokens, as in decoders."""
        return is_causal(self.model)

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Adds tokens to the tokenizer and the embedding table, also to a vocabulary that is trained later."""
        if self.tokenizer is None or not tokens:
            return
        missing = [token for token in tokens if token not in self.tokenizer.get_vocab()]
        if missing and self.adapters is not None:
            raise InvalidValueError(
                f"encoder.adapters: expected views without new tokens, got {', '.join(missing)}; set their mark "
                "to null, or train without adapters. Adapters freeze the embedding table."
            )
        self.tokenizer.add_tokens([AddedToken(token, special=True) for token in tokens], special_tokens=True)
        if len(self.tokenizer) > self.vocabulary_size:
            with silence_transformers():
                self.model.resize_token_embeddings(len(self.tokenizer))
            self.vocabulary_size = len(self.tokenizer)

    def end_rows(self) -> None:
        """Makes the tokenizer end rows with the end token, unless ``append_eos`` forbids it."""
        if self.tokenizer is not None and self.append_eos is not False:
            self.row_end = end_rows(self.tokenizer) or self.row_end

    def build_token_head(self) -> None:
        """Builds the architecture's masked-language-model head, with the checkpoint's weights if it has them."""
        self.token_head = self.token_head_of(self.model)

    def token_head_of(self, model: PreTrainedModel) -> TokenHead:
        """Builds the architecture's masked-language-model head for another network of this architecture."""
        architecture = load_architecture(self.model_name_or_path, self._full_config(), self.dropout)
        return TokenHead(model, self.model_name_or_path, architecture)

    def with_network(self, model: PreTrainedModel) -> Self:
        """Returns an encoder that runs another network of the architecture, without a token head."""
        replacements = {id(self.tokenizer): self.tokenizer, id(self.token_head): None, id(self.model): model}
        encoder = deepcopy(self, replacements)
        encoder._why_not_packed = prepare_layout(
            model, self.layout, self.compiled, self.limit, self.gradient_checkpointing
        )
        return encoder

    def clone(self) -> Self:
        """Returns a copy of the encoder with its own weights, except those under adapters."""
        return self.with_network(deepcopy(self.model, {id(weight): weight for weight in self.base_weights()}))

    @property
    def settings(self) -> dict[str, Any]:  # Any: values of the architecture
        """Settings of the network that vectors depend on, besides weights and tokenizer."""
        return self.model.config.to_diff_dict()

    def base_weights(self) -> list[nn.Parameter]:
        """Returns the weights under adapters; see ``Encoder.base_weights``."""
        parameters = self.model.named_parameters() if self.adapters is not None else ()
        return [weight for name, weight in parameters if name not in self._adapted]

    def plain_state(self) -> dict[str, Tensor]:
        """Returns the network's state without adapters, under the names that the weights have without them."""
        state = state_without_packing(self.model, self.model.state_dict())
        return {plain_name(name): value for name, value in state.items() if name not in self._adapted}

    def without_adapters(self, merge: bool) -> Self:
        """Returns a copy of the encoder without adapters, or the encoder itself; see
        ``adapters.remove_adapters``."""
        if self.adapters is None:
            return self
        plain = deepcopy(self, {id(self.tokenizer): self.tokenizer})
        remove_adapters(plain.model, merge)
        plain.adapters, plain.base_identity, plain._adapted = None, None, frozenset()
        return plain

    def pretrained_pooler(self) -> nn.Linear | None:
        """Returns a copy of the dense layer of the checkpoint's own pooler; None if it has none."""
        return pooler_layer(self._pooler)

    def save_network(self, folder: Path) -> None:
        """Saves the network with its configuration, the token head if it was trained, and the pooler's weights.

        The checkpoint's own pooler is saved unchanged, so that other loaders don't initialize one at random.

        Args:
            folder: Folder of the files.
        """
        network = self.model if self.token_head is None else self.token_head.masked_lm
        prefix = "" if network is self.model else f"{network.base_model_prefix}."
        pooler = {f"{prefix}{name}": weight.to(network.dtype) for name, weight in self._pooler.items()}
        with silence_transformers():
            network.save_pretrained(folder, state_dict={**network.state_dict(), **pooler} if pooler else None)

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all tokens of the vocabulary for token vectors, (M, D) -> (M, V)."""
        if self.token_head is None:
            raise RuntimeError("TransformerEncoder: expected build_token_head() before the first call")
        scores: Tensor = self.token_head(hidden)
        return scores

    def _full_config(self) -> dict[str, Any] | None:  # Any: values depend on the architecture
        if self.config is None or self.tokenizer_name_or_path is not None:
            return self.config
        return {"pad_token_id": 0, **self.config}  # the id of padding in a trained vocabulary
