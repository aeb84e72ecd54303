"""The folder a model is saved in: sentence-transformers' layout, written and read without it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.misspelt import nearest_folder
from contrastive_text.core.model_files import MODULES, TODO, check_whole, whole_folder
from contrastive_text.core.records import inside, read_json, records
from contrastive_text.core.types import MASK, SLOT
from contrastive_text.data.prompts import Prompts
from contrastive_text.inference.folder_modules import (
    DENSE,
    KINDS,
    NETWORK,
    NORMALIZE,
    POOLER,
    Kind,
    read_record,
    write_json,
)
from contrastive_text.inference.model_card import put_card, read_card
from contrastive_text.inference.model_parts import ModelParts

_SETTINGS = "config_sentence_transformers.json"
_TEMPLATES = "contrastive_text_prompts"
"""Key of prompts in the settings that sentence-transformers can't express."""
_OPTIONS = {"apart": False, "counted": True}
"""Those of ``Prompts`` that stand with them, and what they are where none is said."""
_MOST_MODULES = 100
"""Of a model: each names a place, which is looked up on the disk."""


def local_folder(model_name_or_path: str) -> Path:
    """Returns the folder of a model: itself, or where the hub's copy of a name lies.

    Raises:
        ValueError: Neither a folder nor a name the hub has, or the hub is out of reach.
    """
    path = Path(model_name_or_path)
    if path.is_dir() and not (path / "config.json").exists() and (path / "checkpoints").is_dir():
        model = path / "model"
        todo = (
            f"give {model}" if (model / MODULES).exists() else f"make one: contrastive-text export {path} FOLDER"
        )
        raise InvalidValueError(f"model: expected a model folder, got {path}, the folder of a run; {todo}")
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute():
        raise InvalidValueError(
            f"model: expected a model folder, got {path}; give the folder that holds config.json"
        )
    try:
        return Path(snapshot_download(model_name_or_path, ignore_patterns=["*.onnx", "openvino/*", "*.h5"]))
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"model: expected a local folder or a name on the Hugging Face hub, got {model_name_or_path!r}; "
            f"there is no such folder, and the hub was out of reach or doesn't have it{nearest_folder(path)}"
        ) from error


def names_pooler(model_name_or_path: str) -> bool:
    """Returns whether a model's folder names its pooler, as those do that were trained for embeddings."""
    return any(kind is POOLER for kind, *_ in _read_modules(local_folder(model_name_or_path)))


def folder_prompts(model_name_or_path: str) -> Prompts:
    """Returns the prompts that the folder of a model names; none of a name on the hub, which isn't asked for it.

    Raises:
        ValueError: Its configuration isn't one.

    Example:
        >>> folder_prompts("bert-base-uncased").describe()
        'none'
    """
    prompts, _ = _read_settings(Path(model_name_or_path, _SETTINGS))
    return prompts


def write_folder(folder: Path, parts: ModelParts, adapters_beside: bool = False) -> None:
    """Writes a folder that ``sentence_transformers.SentenceTransformer(folder)`` loads with equal vectors.

    An older model there is there until the newer one is written whole; see ``model_files.whole_folder``. A pooler
    that sentence-transformers can't express, or any with prompts that are more than strings before texts, is
    written under its class path: there loading fails instead of giving other vectors, here it loads. A
    ``README.md`` that a user wrote stays.

    Args:
        folder: Its place.
        parts: The model.
        adapters_beside: Whether LoRA is written beside the weights as they were, in peft's format, and whoever
            loads the folder needs peft; otherwise adapters become part of the weights.

    Raises:
        ValueError: An encoder without a tokenizer or with other weights than its architecture's, or a head of
            other layers than Linear and activations.
        DiskError: The folder can't be written to, or the disk is full.
    """
    if not adapters_beside:
        parts = replace(parts, encoder=parts.encoder.without_adapters(merge=True))
    items = [(kind, item) for kind in KINDS for item in kind.of(parts)]
    named: dict[str, Any] = {"prompts": dict(parts.prompts.named), "default_prompt_name": parts.prompts.default}
    if (
        not parts.prompts.is_plain
    ):  # what reads such a file for sentence-transformers would put these before texts
        named = {_TEMPLATES: named | {name: getattr(parts.prompts, name) for name in _OPTIONS}}
    prompts = named if parts.prompts else {}
    kept = {"truncate_dim": parts.truncate_dim} if parts.truncate_dim else {}
    modules = []
    with whole_folder(folder) as made:
        for number, (kind, item) in enumerate(items):
            path = f"{number}_{kind.name}" if number else ""
            (made / path).mkdir(exist_ok=True)
            class_path = kind.write(made / path, item) or f"sentence_transformers.models.{kind.name}"
            modules.append({"idx": number, "name": str(number), "path": path, "type": class_path})
        write_json(made / _SETTINGS, {"similarity_fn_name": "cosine"} | prompts | kept)
        write_json(made / MODULES, modules)
    put_card(folder, parts.card)  # no part of what is whole or not


def read_folder(folder: Path) -> ModelParts:
    """Reads a folder written by us, by sentence-transformers, or by Transformers alone.

    Raises:
        ValueError: A module of sentence-transformers that has no equal here, or a damaged file, by its name.
    """
    check_whole(folder)
    modules = _read_modules(folder) or [(NETWORK, "", folder)]
    held: dict[str, list[Any]] = {kind.name: [] for kind in KINDS}  # Any: of each kind its own
    for kind, class_path, place in reversed(modules):  # the network last, for it takes longest
        held[kind.name].insert(0, kind.read(place, class_path))
    ((encoder, max_length),) = held[NETWORK.name]
    layers = [part for layer in held[DENSE.name] for part in layer]
    pooler, pooled = next(iter(held[POOLER.name]), (None, True))
    prompts, truncate_dim = _read_settings(folder / _SETTINGS)
    return ModelParts(
        encoder=encoder,
        pooler=pooler,
        head=nn.Sequential(*layers) if layers else None,
        normalize=bool(held[NORMALIZE.name]),
        max_length=max_length,
        prompts=replace(prompts, pooled=pooled),
        truncate_dim=truncate_dim,
        card=read_card(folder),
    )


def _read_modules(folder: Path) -> list[tuple[Kind, str, Path]]:
    """Returns the kind, the class path and the folder of each module; none for a model of Transformers alone."""
    path = folder / MODULES
    if not path.exists():
        if beside := sorted(part.name for part in folder.glob("[0-9]_*") if part.is_dir()):
            raise InvalidValueError(
                f"{path}: expected the list of modules beside {', '.join(beside)}, got none; the folder is "
                "damaged, save it again"
            )
        return []
    listed = records(read_json(path, TODO), of="modules", where=str(path), todo=TODO, most=_MOST_MODULES)
    by_name = {kind.name: kind for kind in KINDS}
    modules = []
    for module in listed:
        class_path = module.text("type")
        kind = by_name.get(class_path.rpartition(".")[2], POOLER)
        modules.append((kind, class_path, inside(folder, module.text("path"), str(path))))
    # In another order they would be used otherwise than they are here.
    if not re.fullmatch("T(PD*N?)?", "".join(kind.name[0] for kind, *_ in modules)):
        names = [class_path.rpartition(".")[2] for _, class_path, _ in modules]
        raise InvalidValueError(
            f"{path}: expected a Transformer and, where more follows, a pooler, Dense layers and Normalize in "
            f"this order, got {', '.join(names[:6]) or 'none'}{', ...' * (len(names) > 6)}; load this model "
            "with sentence-transformers"
        )
    return modules


def _read_settings(path: Path) -> tuple[Prompts, int | None]:
    """Returns the prompts, and the features that are kept where a number is said."""
    if not path.exists():
        return Prompts(), None
    settings = read_record(path)
    ours = _TEMPLATES in settings
    said = settings.record(_TEMPLATES) if ours else settings
    listed = said.record("prompts", {})
    named = {name: listed.text(name, "") for name in listed}
    default = said.text("default_prompt_name", None)
    if default is not None and default not in named:
        raise listed.refusal(f"the default prompt {default!r}", ", ".join(named) or "none")
    if not ours and (found := next((text for text in named.values() if SLOT in text or MASK in text), None)):
        raise listed.refusal(f"a prompt without {SLOT} or {MASK}, which would be taken for a template's", found)
    options = {name: said.flag(name, standard) for name, standard in _OPTIONS.items()} if ours else {}
    return Prompts(named, default, **options), settings.integer("truncate_dim", None, least=1)
