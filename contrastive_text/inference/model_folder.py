"""Model folder in sentence-transformers' layout, written and read without that library."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import snapshot_download
from torch import nn

from contrastive_text.core.checks import one_of
from contrastive_text.core.config.misspelt import nearest_folder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import MODULES, TODO, UNREAD, check_whole, whole_folder
from contrastive_text.core.storage.records import Record, inside, read_json, records
from contrastive_text.core.types import MASK, SLOT
from contrastive_text.data.prompts import DOCUMENT, NO_PROMPTS, QUERY, Prompts
from contrastive_text.heads import UnitLength
from contrastive_text.inference.folder_modules import (
    ELSEWHERE,
    read_network,
    read_pooler,
    read_record,
    read_transformer_settings,
    write_json,
    write_network,
    write_pooler,
)
from contrastive_text.inference.head_layers import READERS, group_layers, write_layers
from contrastive_text.inference.model_card import put_card, read_card
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.search import SimilarityName
from contrastive_text.poolers import Pooler

_SETTINGS = "config_sentence_transformers.json"
_TEMPLATES = "contrastive_text_prompts"
"""Key of prompts in the settings that sentence-transformers can't express."""
_OPTIONS = {"apart": False, "counted": True}
"""Options of ``Prompts`` under that key, and their defaults."""
_MODEL_TYPE = "SentenceTransformer"
_MODELS = "sentence_transformers.models"
_THEIRS = re.compile(
    r"sentence_transformers\.(?:models|base\.modules|sentence_transformer\.modules)\.(?:\w+\.)?(\w+)"
)
"""Class path of a module of sentence-transformers, in its older and newer versions."""
_KINDS = ("Transformer", "Pooling")
"""The first modules of a model, in order: classes of sentence-transformers."""
_MOST_MODULES = 100
"""Modules of a model: each names a folder, which is looked up on the disk."""


def local_folder(model_name_or_path: str) -> Path:
    """Returns the folder of a model: the folder itself, or the hub's copy of a name.

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
        return Path(snapshot_download(model_name_or_path, ignore_patterns=list(UNREAD)))
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"model: expected a local folder or a name on the Hugging Face hub, got {model_name_or_path!r}; "
            f"there is no such folder, and the hub was out of reach or doesn't have it{nearest_folder(path)}"
        ) from error


def names_pooler(model_name_or_path: str) -> bool:
    """Returns whether a model's folder names its pooler, as folders of embedding models do."""
    return len(_read_modules(local_folder(model_name_or_path))) > 1


def folder_prompts(model_name_or_path: str) -> Prompts:
    """Returns the prompts in the folder of a model; none for a name on the hub, which isn't fetched.

    Raises:
        ValueError: Its configuration isn't one.

    Example:
        >>> folder_prompts("bert-base-uncased").describe()
        'none'
    """
    return _read_settings(Path(model_name_or_path, _SETTINGS)).prompts


def write_folder(folder: Path, parts: ModelParts, adapters_beside: bool = False) -> None:
    """Writes a folder that ``sentence_transformers.SentenceTransformer(folder)`` loads with equal vectors.

    An older model in the folder stays until the new one is written whole; see ``whole_folder``. A pooler that
    sentence-transformers can't express, or any pooler with prompts that are more than strings before texts, is
    written under its class path. There loading fails instead of giving other vectors; here it loads. A
    ``README.md`` that a user wrote stays.

    Args:
        folder: The folder.
        parts: The model.
        adapters_beside: Whether LoRA is written next to unchanged weights, in peft's format, so that loading
            needs peft; otherwise adapters are merged into the weights.

    Raises:
        ValueError: An encoder without a tokenizer or with other weights than its architecture's, or a head of
            other layers than Linear and activations.
        DiskError: The folder can't be written to, or the disk is full.
    """
    if not adapters_beside:
        parts = replace(parts, encoder=parts.encoder.without_adapters(merge=True))
    head = [*(parts.head or ()), *([UnitLength()] if parts.normalize else [])]
    grouped = group_layers(head)  # refuses a layer before anything is written
    kinds = [*_KINDS, *(kind for kind, _ in grouped)]
    with whole_folder(folder) as made:
        places = [made / (f"{number}_{kind}" if number else "") for number, kind in enumerate(kinds)]
        for place in places:
            place.mkdir(exist_ok=True)
        write_network(places[0], parts)
        own_pooler = write_pooler(places[1], parts)
        for place, (kind, layers) in zip(places[2:], grouped, strict=True):
            write_layers(place, kind, layers)
        listed = [
            {
                "idx": number,
                "name": str(number),
                "path": place.name if number else "",
                "type": f"{_MODELS}.{kind}",
            }
            for number, (kind, place) in enumerate(zip(kinds, places, strict=True))
        ]
        if own_pooler is not None:
            listed[1]["type"] = own_pooler
        write_json(made / _SETTINGS, _model_settings(parts))
        write_json(made / MODULES, listed)
    put_card(folder, parts.card)  # not part of the manifest


def _model_settings(parts: ModelParts) -> dict[str, object]:
    named: dict[str, object] = {
        "prompts": dict(parts.prompts.named),
        "default_prompt_name": parts.prompts.default,
    }
    if not parts.prompts.is_plain:  # a reader of plain prompts would put them before texts
        named = {_TEMPLATES: named | {name: getattr(parts.prompts, name) for name in _OPTIONS}}
    prompts = named if parts.prompts.named else {}
    truncated = {"truncate_dim": parts.truncate_dim} if parts.truncate_dim else {}
    return {"similarity_fn_name": parts.similarity_fn_name} | prompts | truncated


class ModelStart(NamedTuple):
    """Parts of a model folder around its network.

    Args:
        pooler: From token vectors to one vector per text.
        layers: After the pooler, with the folder's weights.
        normalize: Whether vectors get unit length after them.
        truncate_dim: Features that are kept; None for all.
        prompts: What comes before texts.
        inference: Further arguments of ``SentenceEncoder``, which training doesn't change.
    """

    pooler: Pooler
    layers: nn.Sequential
    normalize: bool
    truncate_dim: int | None
    prompts: Prompts
    inference: dict[str, int | str | None]


def read_start(folder: Path) -> ModelStart | None:
    """Reads the parts of a model folder around its network; returns None if the folder names no pooler.

    Raises:
        ValueError: As ``read_folder``.
    """
    modules = _read_modules(folder)
    if len(modules) < 2:
        return None
    pooler, pooled = read_pooler(modules[1].place, modules[1].class_path)
    layers = [layer for each in modules[2:] for layer in READERS[each.kind](each.place)]
    normalize = bool(layers) and isinstance(layers[-1], UnitLength)
    settings, network = _read_settings(folder / _SETTINGS), read_transformer_settings(modules[0].place)
    inference: dict[str, int | str | None] = network._asdict()
    inference["max_length"] = network.max_length or _tokenizer_limit(modules[0].place)
    if settings.similarity_fn_name != "cosine":
        inference["similarity_fn_name"] = settings.similarity_fn_name
    return ModelStart(
        pooler=pooler,
        layers=nn.Sequential(*layers[: len(layers) - normalize]),
        normalize=normalize,
        truncate_dim=settings.truncate_dim,
        prompts=replace(settings.prompts, pooled=pooled),
        inference={name: value for name, value in inference.items() if value is not None},
    )


def _tokenizer_limit(folder: Path) -> int | None:
    """Returns the longest text in tokens by a folder's tokenizer; None for no limit."""
    path = folder / "tokenizer_config.json"
    limit = read_record(path).values.get("model_max_length") if path.exists() else None
    return int(limit) if isinstance(limit, int | float) and limit < 10**9 else None  # a huge number: no limit


def read_folder(folder: Path) -> ModelParts:
    """Reads a folder written by us, by sentence-transformers, or by Transformers alone.

    Raises:
        ValueError: A module or a setting of sentence-transformers that has no equal here, or a damaged file, by
            its name.
    """
    check_whole(folder)
    modules = _read_modules(folder) or [_Module(_KINDS[0], "", folder)]
    settings, start = _read_settings(folder / _SETTINGS), read_start(folder)
    encoder, max_length, of_network = read_network(modules[0].place)  # last, because it takes longest
    if start is not None:
        _check_widths(start, encoder.features, folder)
    return ModelParts(
        encoder=encoder,
        pooler=None if start is None else start.pooler,
        head=start.layers if start is not None and len(start.layers) else None,
        normalize=start is not None and start.normalize,
        max_length=max_length,
        prompts=settings.prompts if start is None else start.prompts,
        truncate_dim=settings.truncate_dim,
        similarity_fn_name=settings.similarity_fn_name,
        query_length=of_network.query_length,
        document_length=of_network.document_length,
        card=read_card(folder),
    )


def _check_widths(start: ModelStart, features: int, folder: Path) -> None:
    """Checks that the pooler and each layer give the features that the next layer takes.

    Args:
        start: The parts after the network.
        features: The network's features.
        folder: What errors begin with.
    """
    width, source = start.pooler.width(features), type(start.pooler).__name__
    for layer in start.layers:
        match layer:
            case nn.Linear():
                takes, gives = layer.in_features, layer.out_features
            case nn.LayerNorm():
                takes = gives = layer.normalized_shape[0]
            case _:
                continue
        if takes != width:
            raise InvalidValueError(
                f"{folder}: expected a layer for the {width} features of {source}, got {layer}; the folder is "
                "damaged, save it again"
            )
        width, source = gives, str(layer)


class _Module(NamedTuple):
    """A module in a folder's list: its kind, its class path and its folder."""

    kind: str
    class_path: str
    place: Path


def _read_modules(folder: Path) -> list[_Module]:
    """Returns the modules of a folder; none for a model of Transformers alone.

    Raises:
        ValueError: A class that is neither a pooler nor a class of sentence-transformers with an equal here, a
            repeated name, or another order of modules.
    """
    path = folder / MODULES
    if not path.exists():
        if beside := sorted(part.name for part in folder.glob("[0-9]_*") if part.is_dir()):
            raise InvalidValueError(
                f"{path}: expected the list of modules beside {', '.join(beside)}, got none; the folder is "
                "damaged, save it again"
            )
        return []
    listed = records(read_json(path, TODO), of="modules", where=str(path), todo=TODO, most=_MOST_MODULES)
    modules, names = [], set()
    for number, module in enumerate(listed):
        class_path, name = module.text("type"), module.text("name", str(number))
        if name in names:  # sentence-transformers would replace the earlier module
            raise module.refusal("a name that no other module has", name, "name")
        names.add(name)
        place = inside(folder, module.text("path"), str(path))
        modules.append(_Module(_kind(module, class_path, first=number == 0), class_path, place))
    kinds = [module.kind for module in modules]
    after = [*_KINDS[: len(kinds)], *kinds[len(_KINDS) :]]
    if kinds != after or not kinds or not all(kind in READERS for kind in kinds[len(_KINDS) :]):
        raise InvalidValueError(
            f"{path}: expected a Transformer, then a Pooling or a pooler of yours, and then {', '.join(READERS)} "
            f"in any order, got {', '.join(kinds[:6]) or 'none'}{', ...' * (len(kinds) > 6)}; {ELSEWHERE}"
        )
    return modules


def _kind(module: Record, class_path: str, first: bool) -> str:
    """Returns the kind of a module by its class path.

    A class outside sentence-transformers is a pooler: one of this library, or of a module that the user trusts.
    """
    theirs = _THEIRS.fullmatch(class_path)
    if theirs is not None and theirs[1] in (*_KINDS, *READERS):
        return theirs[1]
    if first or class_path.startswith("sentence_transformers."):
        expected = f"a class of sentence-transformers of {', '.join((*_KINDS, *READERS))}"
        raise InvalidValueError(f"{module.where}: type: expected {expected}, got {class_path}; {ELSEWHERE}")
    return _KINDS[1]


class _Settings(NamedTuple):
    """Settings of the whole model in a folder."""

    prompts: Prompts = NO_PROMPTS
    truncate_dim: int | None = None
    similarity_fn_name: SimilarityName = "cosine"


def _read_settings(path: Path) -> _Settings:
    if not path.exists():
        return _Settings()
    settings = read_record(path)
    if (model_type := settings.text("model_type", _MODEL_TYPE)) != _MODEL_TYPE:
        raise settings.refusal(repr(_MODEL_TYPE), model_type, "model_type", ELSEWHERE)
    return _Settings(
        _read_prompts(settings),
        settings.integer("truncate_dim", None, least=1),
        one_of(f"{path}: similarity_fn_name", settings.text("similarity_fn_name", "cosine"), SimilarityName),  # type: ignore[arg-type]  # checked
    )


def _read_prompts(settings: Record) -> Prompts:
    ours = _TEMPLATES in settings
    said = settings.record(_TEMPLATES) if ours else settings
    listed = said.record("prompts", {})
    named = {name: listed.text(name, "") for name in listed}
    default = said.text("default_prompt_name", None)
    if default in (QUERY, DOCUMENT):  # every model of sentence-transformers has these two, empty if not named
        named.setdefault(default, "")
    if default is not None and default not in named:
        raise listed.refusal(f"the default prompt {default!r}", ", ".join(named) or "none")
    if not ours and (found := next((text for text in named.values() if SLOT in text or MASK in text), None)):
        raise listed.refusal(f"a prompt without {SLOT} or {MASK}, which would be taken for a template's", found)
    options = {name: said.flag(name, standard) for name, standard in _OPTIONS.items()} if ours else {}
    return Prompts(named, default, **options)
