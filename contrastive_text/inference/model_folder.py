"""Reading and writing of model folders in the layout of sentence-transformers, without that library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import snapshot_download
from torch import nn

from contrastive_text.core.config.suggestions import suggest_folder
from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.storage.manifests import (
    MANIFEST_ADVICE,
    MODULES,
    UNREAD,
    check_whole,
    folder_with_manifest,
)
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.types import MASK_PLACEHOLDER, TEXT_PLACEHOLDER
from contrastive_text.data.prompts import DOCUMENT, QUERY, Prompts
from contrastive_text.inference.folder_modules import (
    ELSEWHERE,
    is_sparse_elsewhere,
    read_static_settings,
    read_transformer_settings,
)
from contrastive_text.inference.head_files import TaskHead
from contrastive_text.inference.model_card import read_card, write_card
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.module_lists import (
    STATIC,
    TRANSFORMER,
    Module,
    check_widths,
    is_sparse_list,
    read_encoder,
    read_layers_of,
    read_modules,
    tasks_of,
    write_modules,
)
from contrastive_text.inference.search import SimilarityName
from contrastive_text.poolers import Pooler

SETTINGS = "config_sentence_transformers.json"
"""Name of the file with the settings of a whole model of sentence-transformers."""
_TEMPLATES = "contrastive_text_prompts"
"""Key in a model folder's settings for prompts that sentence-transformers doesn't support."""
_OPTIONS = {"apart": False, "counted": True}
"""Options of ``Prompts`` under the key ``_TEMPLATES`` -> their defaults."""
_MODEL_TYPE, _SPARSE_TYPE = "SentenceTransformer", "SparseEncoder"
"""Names of classes of models in sentence-transformers. The second computes sparse vectors."""


def local_folder(model_name_or_path: str) -> Path:
    """Returns the local folder of a model. Downloads the model if the name is a name on the Hugging Face hub.

    Raises:
        ValueError: There is no such folder, and the hub has no such model or can't be reached; or the folder is a
            run folder or a file.
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
            f"there is no such folder, and the hub was out of reach or doesn't have it{suggest_folder(path)}"
        ) from error


def has_pooler(model_name_or_path: str) -> bool:
    """Returns True if a model's folder names a pooler, as folders of embedding models do."""
    return len(read_modules(local_folder(model_name_or_path))) > 1


def read_prompts(model_name_or_path: str) -> Prompts:
    """Reads the prompts of a local model folder. Returns no prompts for a name on the hub, without downloading.

    Raises:
        ValueError: The settings of the folder are damaged.

    Example:
        >>> read_prompts("bert-base-uncased").describe()
        'none'
    """
    return _read_prompts(_read_settings(Path(model_name_or_path)))


def write_folder(
    folder: Path, parts: ModelParts, separate_adapters: bool = False, head: TaskHead | None = None
) -> None:
    """Writes a model to a folder that ``sentence_transformers.SentenceTransformer`` loads with equal vectors.

    An older model in the folder is replaced when the new model is complete; see ``folder_with_manifest``. If
    sentence-transformers doesn't support the pooler or the prompts, the pooler is written with its class path of
    this library. sentence-transformers then refuses the folder instead of computing other vectors. A
    ``README.md`` that a user wrote is kept.

    Args:
        folder: Folder to write.
        parts: Parts of the model.
        separate_adapters: Whether LoRA is written as separate files in peft's format, with unchanged weights.
            Loading then needs peft. Otherwise adapters are merged into the weights.
        head: Trained head of a task, which is written in addition. The network is then in ``0_Transformer``, so
            that Transformers doesn't load the folder with a random head.

    Raises:
        ValueError: The encoder has no tokenizer, its weights don't fit its architecture, or sentence-transformers
            has no module for a layer of the head.
        DiskError: The folder can't be written to, or the disk is full.
    """
    if not separate_adapters:
        parts = replace(parts, encoder=parts.encoder.without_adapters(merge=True))
    with folder_with_manifest(folder) as target:
        paths = write_modules(target, parts, in_root=head is None)
        entries = [
            {"idx": number, "name": str(number), "path": path, "type": class_path}
            for number, (path, class_path) in enumerate(paths.items())
        ]
        if head is not None:
            head.write(target)
        write_json(target / SETTINGS, _model_settings(parts))
        write_json(target / MODULES, entries)
    write_card(folder, parts.card)  # not part of the manifest


def _model_settings(parts: ModelParts) -> dict[str, object]:
    prompts: dict[str, object] = {
        "prompts": dict(parts.prompts.named),
        "default_prompt_name": parts.prompts.default,
    }
    if not parts.prompts.is_plain:  # sentence-transformers would put templates before texts
        prompts = {_TEMPLATES: prompts | {name: getattr(parts.prompts, name) for name in _OPTIONS}}
    prompts = prompts if parts.prompts.named else {}
    truncation = {"truncate_dim": parts.truncate_dim} if parts.truncate_dim else {}
    model_type = {"model_type": _SPARSE_TYPE} if is_sparse_elsewhere(parts) else {}
    return {"similarity_fn_name": parts.similarity_fn_name} | model_type | prompts | truncation


class FolderParts(NamedTuple):
    """All parts of a model folder except its network, from which training can start.

    Args:
        pooler: Pooler from token vectors to one vector per text.
        layers: Layers after the pooler, with the folder's weights.
        normalize: Whether vectors are scaled to unit length after the layers.
        truncate_dim: Number of first features to keep; None for all.
        prompts: Prompts of the model.
        inference: Further arguments of ``SentenceEncoder``, which training doesn't change.
    """

    pooler: Pooler
    layers: nn.Sequential
    normalize: bool
    truncate_dim: int | None
    prompts: Prompts
    inference: dict[str, int | str | None]


def read_folder_parts(folder: Path) -> FolderParts | None:
    """Reads all parts of a model folder except its network. Returns None if the folder names no pooler.

    Raises:
        ValueError: A file is damaged, or this library doesn't support a module or a setting of the folder.
    """
    modules = read_modules(folder)
    if len(modules) < 2:
        return None
    layers, settings, (kind, _, place) = read_layers_of(modules), _read_settings(folder), modules[0]
    is_sparse = settings.values.get("model_type") == _SPARSE_TYPE
    if is_sparse is not is_sparse_list(modules):
        expected = f"{_SPARSE_TYPE} exactly with a SpladePooling"
        raise settings.refusal(expected, settings.values.get("model_type"), "model_type", ELSEWHERE)
    inference: dict[str, int | str | None] = {}
    if kind == STATIC:
        inference = dict(read_static_settings(place)._asdict())
    elif kind == TRANSFORMER:
        inference = dict(read_transformer_settings(place, tasks_of(modules))._asdict())
        inference["max_length"] = inference["max_length"] or _tokenizer_limit(place)
    if (similarity := _similarity(settings)) != "cosine":
        inference["similarity_fn_name"] = similarity
    return FolderParts(
        pooler=layers.pooler,
        layers=layers.layers,
        normalize=layers.normalize,
        truncate_dim=settings.integer("truncate_dim", None, least=1),
        prompts=replace(_read_prompts(settings), pooled=layers.pooled),
        inference={name: value for name, value in inference.items() if value is not None},
    )


def _similarity(settings: Record) -> SimilarityName:
    usual = "dot" if settings.values.get("model_type") == _SPARSE_TYPE else "cosine"
    name = settings.text("similarity_fn_name", usual)
    return one_of(f"{settings.where}: similarity_fn_name", name, SimilarityName)  # type: ignore[arg-type]  # checked


def _tokenizer_limit(folder: Path) -> int | None:
    """Returns the longest text in tokens that a folder's tokenizer allows; None for no limit."""
    settings = Record.read(folder / "tokenizer_config.json", MANIFEST_ADVICE, required=False)
    limit = settings.values.get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and limit < 10**9 else None  # 10**30 means no limit


def read_folder(folder: Path) -> ModelParts:
    """Reads a model folder that this library, sentence-transformers or Transformers wrote.

    Raises:
        ValueError: A file is damaged, or this library doesn't support a module or a setting of the folder.
    """
    check_whole(folder)
    modules = read_modules(folder) or [Module(TRANSFORMER, "", folder)]
    settings, start = _read_settings(folder), read_folder_parts(folder)
    encoder, max_length, network = read_encoder(modules)  # last, because it takes longest
    if start is not None:
        check_widths(start.pooler, start.layers, encoder, folder)
    return ModelParts(
        encoder=encoder,
        pooler=None if start is None else start.pooler,
        head=start.layers if start is not None and len(start.layers) else None,
        normalize=start is not None and start.normalize,
        max_length=max_length,
        prompts=_read_prompts(settings) if start is None else start.prompts,
        truncate_dim=settings.integer("truncate_dim", None, least=1),
        similarity_fn_name=_similarity(settings),
        query_length=network.query_length,
        document_length=network.document_length,
        card=read_card(folder),
    )


def _read_settings(folder: Path) -> Record:
    """Reads the settings of a whole model; empty if the folder has none."""
    settings = Record.read(folder / SETTINGS, MANIFEST_ADVICE, required=False)
    if (model_type := settings.text("model_type", _MODEL_TYPE)) not in (_MODEL_TYPE, _SPARSE_TYPE):
        raise settings.refusal(f"{_MODEL_TYPE} or {_SPARSE_TYPE}", model_type, "model_type", ELSEWHERE)
    if settings.values.get("max_active_dims") is not None:
        raise settings.refusal("null", settings.values["max_active_dims"], "max_active_dims", ELSEWHERE)
    return settings


def _read_prompts(settings: Record) -> Prompts:
    has_templates = _TEMPLATES in settings
    record = settings.record(_TEMPLATES) if has_templates else settings
    texts = record.record("prompts", {})
    prompts = {name: texts.text(name, "") for name in texts}
    default = record.text("default_prompt_name", None)
    if default in (QUERY, DOCUMENT):  # sentence-transformers has both prompts in every model, empty by default
        prompts.setdefault(default, "")
    if default is not None and default not in prompts:
        raise texts.refusal(f"the default prompt {default!r}", ", ".join(prompts) or "none")
    if not has_templates and (
        template := next(
            (text for text in prompts.values() if TEXT_PLACEHOLDER in text or MASK_PLACEHOLDER in text), None
        )
    ):
        raise texts.refusal(
            f"a prompt without {TEXT_PLACEHOLDER} or {MASK_PLACEHOLDER}, which would be taken for a template's",
            template,
        )
    options = {name: record.flag(name, value) for name, value in _OPTIONS.items()} if has_templates else {}
    return Prompts(prompts, default, **options)
