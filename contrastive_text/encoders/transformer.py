"""Any Hugging Face encoder, from pretrained weights or from a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.layouts import pad, token_mask
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
                f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path"
            )
        if dropout is not None and not 0 <= dropout < 1:
            raise ValueError(f"encoder.dropout: expected a probability in [0, 1) or null, got {dropout}")
        self.model_name_or_path = model_name_or_path
        self.config = config
        self.tokenizer_name_or_path = tokenizer_name_or_path
        self.dropout = dropout
        if config is not None and tokenizer_name_or_path is None:
            config = {"pad_token_id": 0, **config}  # where a learned vocabulary has it
        architecture = _architecture(model_name_or_path, config, dropout)
        self.model = _model(model_name_or_path, architecture).train()  # loaded in eval mode: no dropout, no views
        source = tokenizer_name_or_path or model_name_or_path
        self.tokenizer = None if source is None else _tokenizer(source)
        if config is not None and self.tokenizer is not None and len(self.tokenizer) > architecture.vocab_size:
            raise ValueError(
                f"encoder.config.vocab_size: expected the tokenizer's {len(self.tokenizer)} entries or more, got "
                f"{architecture.vocab_size}"
            )
        self.features = int(architecture.hidden_size)
        self.vocabulary_size = int(architecture.vocab_size)
        self.dropout_in_effect = _dropouts(architecture)
        self.limit = _limit(self.model, self.tokenizer)
        if max_length is not None and not 3 <= max_length <= (self.limit or max_length):
            raise ValueError(
                f"encoder.max_length: expected 3 to {self.limit} tokens for {type(self.model).__name__}, "
                f"got {max_length}"
            )
        self.max_length = max_length
        self._first_position = _first_position(self.model)
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
            inputs["position_ids"] = pad(batch.positions, mask, fill=0) + self._first_position
        self._alter, self._mask = alter, mask
        try:
            output = self.model(**inputs, output_hidden_states=layers != (-1,))
        finally:
            self._alter = self._mask = None
        if layers == (-1,):
            return Hidden({-1: output.last_hidden_state}, mask)
        return Hidden({layer: output.hidden_states[layer] for layer in layers}, mask)

    def _alter_embeddings(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:  # noqa: ARG002  # the base's signature
        if self._alter is None or self._mask is None:
            return None  # torch: keep the output
        return self._alter(output, self._mask)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Transformers' load report and bar away: what matters of it becomes an error here."""
    verbosity = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # theirs
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # theirs


def _not_found(what: str, name: str, error: Exception) -> ValueError:
    near = Path(name)
    if near.is_dir():
        found = ", ".join(sorted(path.name for path in near.iterdir())[:8]) or "nothing"
        return ValueError(f"{what}: expected a whole model folder, got {name} with {found}; {_first_line(error)}")
    return ValueError(
        f"{what}: expected a local model folder or a name on the Hugging Face hub, got {name!r}; there is no "
        f"such folder, and the hub gave none: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _architecture(name: str | None, config: dict[str, Any] | None, dropout: float | None) -> PreTrainedConfig:
    if config is not None:
        if "model_type" not in config:
            raise ValueError(
                f"encoder.config: expected model_type (bert, roberta, ...), got {', '.join(config) or 'nothing'}"
            )
        known = list(CONFIG_MAPPING.keys())
        if config["model_type"] not in known:
            near = ", ".join(get_close_matches(str(config["model_type"]), known)) or "bert, roberta, ..."
            raise ValueError(
                f"encoder.config.model_type: expected an architecture of Transformers (nearest: {near}), "
                f"got {config['model_type']!r}"
            )
        architecture: PreTrainedConfig = AutoConfig.for_model(**config)
    else:
        assert name is not None
        try:
            with _quiet():
                architecture = AutoConfig.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise _not_found("encoder.model_name_or_path", name, error) from error
    if dropout is not None:
        for key in _dropouts(architecture):
            setattr(architecture, key, dropout)  # the names differ by architecture: they come from its config
    return architecture


def _dropouts(architecture: PreTrainedConfig) -> dict[str, float]:
    heads = ("classifier", "summary", "qa_", "seq_classif", "pooler")
    return {
        key: float(value)
        for key, value in architecture.to_dict().items()
        if ("drop" in key and isinstance(value, int | float) and not key.startswith(heads))
    }


def _model(name: str | None, architecture: PreTrainedConfig) -> PreTrainedModel:
    # A BERT-like pooler would never get a gradient, which DDP refuses; other architectures have none.
    try:
        return _load(name, architecture, add_pooling_layer=False)
    except TypeError:
        return _load(name, architecture)


def _load(name: str | None, architecture: PreTrainedConfig, **options: bool) -> PreTrainedModel:
    with _quiet():
        if name is None:
            fresh: PreTrainedModel = AutoModel.from_config(  # type: ignore[no-untyped-call]  # theirs
                architecture, dtype=torch.float32, **options
            )
            return fresh
        try:
            model, report = AutoModel.from_pretrained(
                name,
                config=architecture,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                **options,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise _not_found("encoder.model_name_or_path", name, error) from error
    lacking = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if lacking:
        raise ValueError(
            f"encoder.model_name_or_path: expected all weights of the encoder in {name}, but {len(lacking)} are "
            f"missing or of another shape ({', '.join(lacking[:3])}, ...); they would have started at random"
        )
    pretrained: PreTrainedModel = model
    return pretrained


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        with _quiet():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise _not_found("encoder.tokenizer_name_or_path", name, error) from error
    if not tokenizer.is_fast:
        raise ValueError(f"encoder: expected a fast tokenizer, got {type(tokenizer).__name__} from {name}")
    return tokenizer


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
