"""Modules of a model folder in the layout of sentence-transformers: a list, or for a ``Router`` one per side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE, MODULES
from contrastive_text.core.storage.records import read_json, records, resolve_inside, write_json
from contrastive_text.encoders import (
    AsymmetricEncoder,
    Embedder,
    Encoder,
    SparseStaticEncoder,
    StaticEncoder,
)
from contrastive_text.encoders.asymmetric import SIDES, SavedEncoder, Side
from contrastive_text.heads import StackHead, UnitLength, describe_stack
from contrastive_text.inference.folder_modules import (
    ELSEWHERE,
    FEATURE_EXTRACTION,
    FILL_MASK,
    TransformerSettings,
    is_loadable_elsewhere,
    is_sparse_elsewhere,
    read_network,
    read_pooler,
    read_record,
    read_sparse_static,
    read_static,
    write_network,
    write_pooler,
)
from contrastive_text.inference.head_files import KINDS, group_layers, read_layers, write_layers
from contrastive_text.inference.model_parts import ModelParts, require_token_head
from contrastive_text.poolers import Pooler

_MODELS = "sentence_transformers.models"
_SPARSE_MODELS = "sentence_transformers.sparse_encoder.models"
_THEIRS = re.compile(
    r"sentence_transformers\.(?:models|base\.modules|sentence_transformer\.modules|sparse_encoder\.(?:models|modules))"
    r"\.(?:\w+\.)?(\w+)"
)
"""Regular expression of the class path of a module of sentence-transformers, in older and newer versions."""
TRANSFORMER, _POOLING, STATIC, ROUTER = "Transformer", "Pooling", "StaticEmbedding", "Router"
"""Class names of modules in sentence-transformers."""
_MLM, SPLADE, SPARSE_STATIC = "MLMTransformer", "SpladePooling", "SparseStaticEmbedding"
"""Class names of modules of a ``SparseEncoder`` of sentence-transformers."""
_POOLED = (STATIC, ROUTER, SPARSE_STATIC)
"""Networks that give a vector per text, without a pooler. The last is only the query route of a ``Router``."""
_NETWORKS = (TRANSFORMER, _MLM, STATIC, ROUTER)
_KINDS = {AsymmetricEncoder: ROUTER, StaticEncoder: STATIC, SparseStaticEncoder: SPARSE_STATIC}
"""Class of an encoder -> its kind, for encoders that aren't transformers."""
_ROUTES = "router_config.json"
"""Name of the file with the routes of a ``Router``, in its folder."""
_MOST_MODULES = 100
"""Largest number of modules of a model. Each module has a folder, which is looked up on the disk."""


class Module(NamedTuple):
    """Entry of a list of modules: its kind, class path and folder."""

    kind: str
    class_path: str
    place: Path


class Layers(NamedTuple):
    """Parts that follow the network in a list of modules.

    Args:
        pooler: Pooler from token vectors to one vector per text.
        pooled: Whether the pooler reads the tokens of a prompt.
        layers: Layers after the pooler, with their weights.
        normalize: Whether vectors are scaled to unit length after the layers.
    """

    pooler: Pooler
    pooled: bool
    layers: nn.Sequential
    normalize: bool


def read_modules(folder: Path) -> list[Module]:
    """Reads the list of modules of a model folder. Returns an empty list for a plain Transformers model.

    After a module that gives a vector per text there is an entry for the pooler, without a class path.

    Raises:
        ValueError: A class is unknown, a name is repeated, the order of modules isn't supported, or the list is
            missing or damaged.
    """
    path = folder / MODULES
    if not path.exists():
        if folders := sorted(part.name for part in folder.glob("[0-9]_*") if part.is_dir()):
            raise InvalidValueError(
                f"{path}: expected the list of the modules {', '.join(folders)}, got no such file; the folder is "
                "damaged, save it again"
            )
        return []
    entries = records(
        read_json(path, MANIFEST_ADVICE), of="modules", where=str(path), todo=MANIFEST_ADVICE, most=_MOST_MODULES
    )
    modules, names = [], set()
    for number, module in enumerate(entries):
        class_path, name = module.text("type"), module.text("name", str(number))
        if name in names:  # sentence-transformers would replace the earlier module
            raise module.refusal("a name that no other module has", name, "name")
        names.add(name)
        place = resolve_inside(folder, module.text("path"), str(path))
        kind = _kind(f"{module.where}: type", class_path, _NETWORKS if number == 0 else ())
        modules.append(Module(kind, class_path, place))
    return _with_pooler(modules, path)


def _with_pooler(modules: list[Module], path: Path) -> list[Module]:
    """Returns a list of modules in which a pooler follows the network, and checks their order."""
    first, second = (modules[number].kind if number < len(modules) else None for number in (0, 1))
    if first in _POOLED and second != _POOLING:
        modules.insert(1, Module(_POOLING, "", path.parent))
    elif first in _POOLED and modules[1].class_path.startswith("sentence_transformers."):
        raise InvalidValueError(
            f"{path}: expected no {_POOLING} of sentence-transformers after {first}, which gives a vector per "
            f"text, got {modules[1].class_path}; remove it"
        )
    if first == _MLM and second == SPLADE:
        modules[0] = modules[0]._replace(kind=TRANSFORMER)
    kinds = [TRANSFORMER if module.kind in _POOLED else module.kind for module in modules]
    kinds[1:2] = [_POOLING if kind == SPLADE and first in (TRANSFORMER, _MLM) else kind for kind in kinds[1:2]]
    expected = [*(TRANSFORMER, _POOLING)[: len(kinds)], *kinds[2:]]
    if kinds != expected or not kinds or not all(kind in KINDS for kind in kinds[2:]):
        raise InvalidValueError(
            f"{path}: expected a Transformer, then a Pooling or a pooler of yours (an MLMTransformer, then a "
            f"SpladePooling), and then {', '.join(KINDS)} "
            f"in any order, got {', '.join(kinds[:6]) or 'none'}{', ...' * (len(kinds) > 6)}; {ELSEWHERE}"
        )
    return modules


def _kind(where: str, class_path: str, first: Sequence[str]) -> str:
    """Returns the kind of a module, which is its class name in sentence-transformers.

    A class outside of sentence-transformers is a pooler of this library, or of a module that the user trusts.

    Args:
        where: Beginning of the error.
        class_path: Path of the module's class.
        first: Kinds of the first module of a list; empty for a later module.
    """
    match = _THEIRS.fullmatch(class_path)
    if match is not None and match[1] in (first or (_POOLING, SPLADE, *KINDS)):
        return match[1]
    if first or not class_path or class_path.startswith("sentence_transformers."):
        names = ", ".join((*_NETWORKS, _POOLING, SPLADE, *KINDS))
        raise InvalidValueError(
            f"{where}: expected a class of sentence-transformers of {names}, got {class_path}; {ELSEWHERE}"
        )
    return _POOLING


def read_layers_of(modules: Sequence[Module]) -> Layers:
    """Reads the pooler and the layers after it of a list of modules."""
    pooler, pooled = read_pooler(modules[1].place, modules[1].class_path)
    if modules[0].kind == ROUTER:
        pooled = all(read_layers_of(route).pooled for route in _read_routes(modules[0].place)[0].values())
    layers = [layer for module in modules[2:] for layer in read_layers(module.place, module.kind)]
    normalize = bool(layers) and isinstance(layers[-1], UnitLength)
    return Layers(pooler, pooled, nn.Sequential(*layers[: len(layers) - normalize]), normalize)


def read_encoder(modules: Sequence[Module]) -> tuple[SavedEncoder, int | None, TransformerSettings]:
    """Reads the network of a list of modules. Returns encoder, longest text in tokens (or None), and settings.

    Raises:
        ValueError: The folder is damaged, or a setting isn't supported.
    """
    kind, _, place = modules[0]
    if kind == ROUTER:
        return _read_router(place)
    return read_static(place) if kind == STATIC else read_network(place, tasks_of(modules))


def is_sparse_list(modules: Sequence[Module]) -> bool:
    """Returns whether a list of modules is a ``SparseEncoder`` of sentence-transformers."""
    if modules[0].kind == ROUTER:
        modules = _read_routes(modules[0].place)[0]["document"]
    return modules[1].kind == SPLADE


def tasks_of(modules: Sequence[Module]) -> Sequence[str | None]:
    """Returns the tasks that the settings of a list's transformer may name; None for settings without a task."""
    if len(modules) > 1 and modules[1].kind == SPLADE:
        return (FILL_MASK, None) if modules[0].class_path.endswith(_MLM) else (FILL_MASK,)
    return (FEATURE_EXTRACTION, None)


def check_widths(pooler: Pooler, layers: nn.Sequential, encoder: Encoder, folder: Path) -> None:
    """Checks that each layer after the network has as many input features as its predecessor has outputs.

    Args:
        pooler: Pooler of the network's vectors.
        layers: Layers after the pooler.
        encoder: The network.
        folder: Beginning of error messages.
    """
    width, source = Embedder(encoder, pooler).width, type(pooler).__name__
    for layer in layers:
        match layer:
            case nn.Linear():
                inputs, outputs = layer.in_features, layer.out_features
            case nn.LayerNorm():
                inputs = outputs = layer.normalized_shape[0]
            case _:
                continue
        if inputs != width:
            raise InvalidValueError(
                f"{folder}: expected a layer for the {width} features of {source}, got {layer}; the folder is "
                "damaged, save it again"
            )
        width, source = outputs, str(layer)


def write_modules(folder: Path, parts: ModelParts, prefix: str = "", in_root: bool = False) -> dict[str, str]:
    """Writes the modules of a model. Returns the name of each module's folder -> its class path, in order.

    Args:
        folder: Folder of the modules' folders.
        parts: Parts of the model.
        prefix: Beginning of the names of the modules' folders.
        in_root: Whether the files of a transformer are in ``folder`` itself.

    Raises:
        ValueError: See ``model_folder.write_folder``.
    """
    after_pooler = [*(parts.head or ()), *([UnitLength()] if parts.normalize else [])]
    modules = group_layers(after_pooler)  # raises for an unsupported layer before a file is written
    kinds = [_KINDS.get(type(parts.encoder), TRANSFORMER)]
    if kinds == [TRANSFORMER] and is_sparse_elsewhere(parts):
        kinds = [_MLM, SPLADE]
    elif not parts.encoder.pools and not (kinds == [STATIC] and is_loadable_elsewhere(parts)):
        kinds.append(_POOLING)
    every = [*kinds, *(kind for kind, _ in modules)]
    names = [f"{prefix}{number}_{kind}" for number, kind in enumerate(every)]
    if in_root and kinds[0] in (TRANSFORMER, _MLM):
        names[0] = ""
    paths = {each: f"{_MODELS}.{kind}" for each, kind in zip(names, every, strict=True)}
    if kinds in ([_MLM, SPLADE], [SPARSE_STATIC]):
        paths |= {each: f"{_SPARSE_MODELS}.{kind}" for each, kind in zip(names, kinds, strict=False)}
    for each in names:
        (folder / each).mkdir(exist_ok=True)
    if isinstance(parts.encoder, AsymmetricEncoder):
        _write_router(folder / names[0], parts, parts.encoder)
    else:
        write_network(folder / names[0], parts)
    if len(kinds) > 1 and (own_pooler := write_pooler(folder / names[1], parts)) is not None:
        paths[names[1]] = own_pooler
    for each, (kind, layers) in zip(names[len(kinds) :], modules, strict=True):
        write_layers(folder / each, kind, layers)
    return paths


def _write_router(folder: Path, parts: ModelParts, encoder: AsymmetricEncoder) -> None:
    """Writes the two sides of an encoder as the routes of a ``Router``."""
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for side in SIDES:
        paths = write_modules(folder, _side(parts, encoder, side), f"{side}_")
        types |= paths
        structure[side] = [*paths]
    parameters: dict[str, object] = {
        "default_route": encoder.default,
        "allow_empty_key": True,
        "route_mappings": {},
    }
    write_json(folder / _ROUTES, {"types": types, "structure": structure, "parameters": parameters})


def _side(parts: ModelParts, encoder: AsymmetricEncoder, side: Side) -> ModelParts:
    """Returns the parts of one side of a model."""
    network, pooler, head = encoder.parts(side)
    length = {"query": parts.query_length, "document": parts.document_length}[side] or parts.max_length
    limits = [limit for limit in (length, encoder.limit_of(side)) if limit is not None]
    return ModelParts(
        encoder=network,  # type: ignore[arg-type]  # checked by check_loadable
        pooler=pooler,
        head=None if head is None else head.network,
        normalize=False,
        max_length=min(limits) - encoder.removed(side) if limits else None,
        prompts=parts.prompts,
    )


def _read_routes(folder: Path) -> tuple[dict[Side, list[Module]], Side]:
    """Reads the lists of modules of a ``Router``, and the side of texts that have no kind."""
    path = folder / _ROUTES
    config = read_record(path if path.exists() else folder / "config.json")  # the name of older versions
    types, structure, parameters = (config.record(name) for name in ("types", "structure", "parameters"))
    if {*structure} != {*SIDES}:
        raise structure.refusal(f"the routes {' and '.join(SIDES)}", ", ".join(structure), todo=ELSEWHERE)
    if mappings := parameters.values.get("route_mappings"):
        raise parameters.refusal("no mappings", mappings, "route_mappings", ELSEWHERE)
    routes: dict[Side, list[Module]] = {}
    for side in SIDES:
        modules = []
        for number, name in enumerate(structure.texts(side)):
            networks = [TRANSFORMER, _MLM, STATIC, *([SPARSE_STATIC] if side == "query" else [])]
            class_path, first = types.text(name), networks if number == 0 else ()
            place = resolve_inside(folder, name, config.where)
            modules.append(Module(_kind(f"{types.where}: {name}", class_path, first), class_path, place))
        routes[side] = _with_pooler(modules, path)
        if len(routes[side]) < 2:
            raise structure.refusal("a Pooling after the Transformer", "none", side, ELSEWHERE)
    default = parameters.text("default_route", "document" if "document" in structure else None)
    if default not in SIDES:
        raise parameters.refusal(f"one of {', '.join(SIDES)}", default, "default_route", ELSEWHERE)
    return routes, "query" if default == "query" else "document"


def _read_router(folder: Path) -> tuple[AsymmetricEncoder, int | None, TransformerSettings]:
    """Reads a ``Router`` with a route for queries and another for documents; see ``read_encoder``."""
    routes, default = _read_routes(folder)
    networks: dict[Side, SavedEncoder | SparseStaticEncoder] = {}
    after: dict[Side, Layers] = {}
    lengths: dict[Side, int | None] = {}
    for side, modules in routes.items():
        after[side] = layers = read_layers_of(modules)
        if modules[0].kind == SPARSE_STATIC:
            networks[side], lengths[side] = read_sparse_static(modules[0].place)
            continue
        networks[side], lengths[side], settings = read_encoder(modules)
        if settings.query_length or settings.document_length:
            raise InvalidValueError(
                f"{modules[0].place}: expected one length limit, got query_length or document_length; {ELSEWHERE}"
            )
        check_widths(layers.pooler, layers.layers, networks[side], folder)
    if after["query"].pooled != after["document"].pooled:
        raise InvalidValueError(f"{folder}: expected include_prompt to be equal in both routes; {ELSEWHERE}")
    for side, layers in after.items():
        require_token_head(networks[side], layers.pooler)
    encoder = AsymmetricEncoder(
        query=networks["query"],
        document=networks["document"],
        query_pooler=after["query"].pooler,
        document_pooler=after["document"].pooler,
        query_head=_head(after["query"]),
        document_head=_head(after["document"]),
        default=default,
    )
    for side, layers in after.items():
        if (head := encoder.parts(side)[2]) is not None and head.network is not None:
            head.network.load_state_dict(layers.layers.state_dict())
    query, document = (
        None if length is None else length + encoder.removed(side) for side, length in lengths.items()
    )
    if query == document:
        return encoder, query, TransformerSettings(query)
    longest = None if query is None or document is None else max(query, document)
    return encoder, longest, TransformerSettings(longest, query, document)


def _head(layers: Layers) -> StackHead | None:
    """Returns a new head with the layers after a pooler; None if there are none."""
    stack = describe_stack(layers.layers, layers.normalize)
    return StackHead(stack) if stack else None
