"""A model becomes a folder in sentence-transformers' layout, by the names of its older versions."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import quiet
from contrastive_text.core.model_files import MODULES, whole_folder
from contrastive_text.core.specs import part_spec
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.loading import load_model
from contrastive_text.inference.model_folder import ACTIVATIONS, POOLING_FLAGS, POOLING_MODES
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.poolers import Pooler

_THEIRS = "sentence_transformers.models"


def write_folder(folder: Path, parts: ModelParts) -> None:
    """Writes a folder that ``sentence_transformers.SentenceTransformer(folder)`` loads with equal vectors.

    An older model there is there until the newer one is written whole; see ``model_files.whole_folder``. A pooler
    that sentence-transformers can't express is written under its class path: there loading fails instead of
    pooling otherwise, here it loads.

    Raises:
        ValueError: An encoder without a tokenizer or with other weights than its architecture's, or a head of
            other layers than Linear and activations.
        DiskError: The folder can't be written to, or the disk is full.
    """
    encoder, pooler = parts.encoder, parts.pooler
    if encoder.tokenizer is None or pooler is None:
        raise InvalidValueError("save_pretrained: expected an encoder with a tokenizer and a pooler, got none")
    layers = _dense_layers(parts.head)
    check_loadable(encoder, where="save_pretrained")
    with whole_folder(folder) as made:
        with quiet():
            encoder.model.save_pretrained(made)
        encoder.tokenizer.save_pretrained(made)
        _write_settings(made, parts)
        listed = [("", f"{_THEIRS}.Transformer")]
        listed.append(("1_Pooling", _write_pooling(made / "1_Pooling", pooler, encoder.features)))
        for linear, activation in layers:
            name = f"{len(listed)}_Dense"
            listed.append((name, f"{_THEIRS}.Dense"))
            _write_dense(made / name, linear, activation)
        if parts.normalize:
            (made / f"{len(listed)}_Normalize").mkdir()
            listed.append((f"{len(listed)}_Normalize", f"{_THEIRS}.Normalize"))
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(listed)
        ]
        _write_json(made / MODULES, modules)


def check_loadable(encoder: TransformerEncoder, where: str) -> None:
    """Refuses an encoder whose weights its own architecture couldn't load again, such as one with LoRA put in.

    Args:
        encoder: The encoder that is to be saved.
        where: What errors begin with.

    Raises:
        ValueError: Weights of other names or shapes than those of a fresh model of its configuration.
    """
    with torch.device("meta"):
        fresh = load_model(None, encoder.model.config).state_dict()
    held = {name: weight.shape for name, weight in encoder.model.state_dict().items()}
    other = [name for name in {**held, **fresh} if name not in fresh or held.get(name) != fresh[name].shape]
    if other:
        raise InvalidValueError(
            f"{where}: expected an encoder with the weights of {encoder.model.config.model_type}, got others "
            f"({', '.join(other[:3])}{', ...' * (len(other) > 3)}), which no saved folder can hold; merge "
            "adapters such as LoRA into the weights first (in peft: merge_and_unload), or leave ExportModel out"
        )


def _write_settings(folder: Path, parts: ModelParts) -> None:
    limit = {"max_seq_length": parts.max_length, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", limit)
    prompt = {"prompts": {"default": parts.prompt}, "default_prompt_name": "default"} if parts.prompt else {}
    kept = {"truncate_dim": parts.truncate_dim} if parts.truncate_dim else {}
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | prompt | kept)


def _write_pooling(folder: Path, pooler: Pooler, features: int) -> str:
    """Writes a pooler's settings, and gives the name of its kind."""
    mode = next((mode for mode, cls in POOLING_MODES.items() if type(pooler) is cls), None)
    if mode is None:
        spec = part_spec(pooler, "pooler")
        _write_json(folder / "config.json", spec["init_args"])
        return str(spec["class_path"])
    flags = {flag: name == mode for name, flag in POOLING_FLAGS.items()}
    others = dict.fromkeys(("pooling_mode_mean_sqrt_len_tokens",), False)
    _write_json(folder / "config.json", {"word_embedding_dimension": features} | flags | others)
    return f"{_THEIRS}.Pooling"


def _dense_layers(head: nn.Sequential | None) -> list[tuple[nn.Linear, nn.Module]]:
    layers: list[tuple[nn.Linear, nn.Module]] = []
    for layer in head or ():
        if isinstance(layer, nn.Linear):
            layers.append((layer, nn.Identity()))
        elif layers and type(layer) in ACTIVATIONS.values() and isinstance(layers[-1][1], nn.Identity):
            layers[-1] = (layers[-1][0], layer)
        elif not isinstance(layer, nn.Dropout):
            raise InvalidValueError(
                f"save_pretrained: expected a head of Linear layers and activations, got {type(layer).__name__}; "
                "sentence-transformers could not express it"
            )
    return layers


def _write_dense(folder: Path, linear: nn.Linear, activation: nn.Module) -> None:
    cls = type(activation)
    config = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"{cls.__module__}.{cls.__qualname__}",
    }
    _write_json(folder / "config.json", config)
    weights = {f"linear.{name}": weight.contiguous() for name, weight in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
