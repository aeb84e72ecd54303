"""Networks as ONNX graphs: written by torch's exporter, kept in the user's cache, with weights of a byte."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.errors import DiskError, InvalidValueError, first_line
from contrastive_text.core.libraries import quiet, require
from contrastive_text.core.storage.manifests import GRAPH
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.data.cache import cache_folder, cached
from contrastive_text.encoders import TransformerEncoder

OPSET = 18
"""The one that torch's exporter writes in; others are converted from it."""
INPUTS = ("input_ids", "attention_mask")
"""Of a network's graph: (n, L) int64 each; a row is one text, so that its types are all the same."""


def write_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    path: Path,
    opset: int = OPSET,
    where: str = "export_onnx",
) -> None:
    """Writes a module as a graph, whose number of rows and their length are free.

    Args:
        module: Takes the inputs in order, as ``*values``.
        inputs: Name -> an example, (n, L).
        outputs: Names of what it gives.
        path: Of the graph.
        opset: Version of ONNX's operators.
        where: What errors begin with.

    Raises:
        ImportError: Without onnx and onnxscript.
        ValueError: A module that torch can't export, or an opset that the graph can't be converted to.
    """
    onnx = require("onnx", where)
    require("onnxscript", where)
    free = {0: "batch", 1: "length"}
    try:
        with _silent(), torch.no_grad():
            program = torch.onnx.export(
                module,
                tuple(inputs.values()),
                dynamo=True,
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=[tuple(free for _ in inputs)],
                opset_version=opset,
                verbose=False,
            )
            assert program is not None
            program.save(path)
    except torch.onnx.OnnxExporterError as error:
        raise InvalidValueError(
            f"{where}: expected a network that torch exports at opset {opset}, got {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    loaded = onnx.load(path, load_external_data=False)
    (version,) = (each.version for each in loaded.opset_import if each.domain == "")
    if version != opset:  # the converter says so only in its log
        raise no_opset(opset)


def no_opset(opset: int) -> InvalidValueError:
    """Returns what is wrong with a version of ONNX's operators."""
    return InvalidValueError(
        f"export_onnx.opset: expected one that the graph can be converted to, got {opset}; take {OPSET}, or a "
        "later one that your onnx has"
    )


def example_inputs(vocabulary_size: int) -> dict[str, Tensor]:
    """Returns two padded rows, for the exporter to follow."""
    ids = torch.arange(14).reshape(2, 7) % vocabulary_size
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps away what the exporter says of torchvision, of deprecations inside torch and of names of axes."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


class Layers(nn.Module):
    """From padded token ids to the token vectors of some layers, (n, L, D) each.

    Args:
        encoder: Whose network is copied, in float32, adapters merged into it.
        layers: Numbered as in ``Hidden``.
    """

    def __init__(self, encoder: TransformerEncoder, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.network = copy.deepcopy(encoder.without_adapters(merge=True).model)
        nn.Module.to(self.network, "cpu", torch.float32)  # Transformers' own has no types
        nn.Module.eval(self.network)
        with quiet():
            self.network.set_attn_implementation("eager")  # ours packs rows; torch's is more nodes of a graph
        self.layers = layers
        # Decoders would keep keys and values of all layers for tokens to come.
        keeps = "use_cache" in inspect.signature(self.network.forward).parameters
        self.options = {"use_cache": False} if keeps else {}

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns the layers' token vectors in order, of any value on padding."""
        further = self.layers != (-1,)
        inputs = dict(zip(INPUTS, values, strict=True))
        output = self.network(**inputs, **self.options, output_hidden_states=further)
        return tuple(output.hidden_states[n] for n in self.layers) if further else (output.last_hidden_state,)


def network_graph(
    encoder: TransformerEncoder,
    layers: tuple[int, ...],
    check: Callable[[Path, Layers], None],
    shrink: Callable[[Path, Path], None] | None = None,
) -> Path:
    """Returns the graph of a network, which is made once and then found in ``~/.cache/contrastive_text/graphs``.

    It is found by a digest of all that it is made of: every weight, the configuration, the layers, the versions
    of what wrote it. Other weights in a folder of the same name thus have another graph, and one whose bytes were
    changed is made anew.

    Args:
        encoder: The network.
        layers: Whose token vectors it gives, numbered as in ``Hidden``.
        check: Is called on a new graph and on what it was made of, and raises where they differ.
        shrink: From the graph to one with weights of a byte, and where to write that; None for float32.

    Raises:
        ImportError: Without onnx and onnxscript, where it is not yet made.
        ValueError: A network that torch can't export.
        DiskError: The cache can't be written.
    """
    whole = _cached(_key(encoder, layers), partial(_make, encoder, layers, check))
    if shrink is None:
        return whole
    function = f"{shrink.__module__}.{shrink.__qualname__}"
    return _cached(
        f"{whole.parent.name}-{function.rpartition('.')[2]}", lambda folder: shrink(whole, folder / GRAPH)
    )


def _cached(key: str, make: Callable[[Path], None]) -> Path:
    try:
        entry, _ = cached(cache_folder(None, "graphs"), key, what="graph", names=[GRAPH], make=make)
    except DiskError as error:
        raise DiskError(*error.args[:-1], f"{error}; graphs lie below $XDG_CACHE_HOME, or ~/.cache") from error
    return entry / GRAPH


def _make(
    encoder: TransformerEncoder, layers: tuple[int, ...], check: Callable[[Path, Layers], None], folder: Path
) -> None:
    module = Layers(encoder, layers)
    examples = example_inputs(encoder.vocabulary_size)
    names = [f"layer_{number}" for number in layers]
    write_graph(module, {name: examples[name] for name in INPUTS}, names, folder / GRAPH, where="backend")
    check(folder / GRAPH, module)


def _key(encoder: TransformerEncoder, layers: tuple[int, ...]) -> str:
    import transformers

    settings = json.dumps(encoder.model.config.to_diff_dict(), sort_keys=True, default=str)
    made_by = [torch.__version__, transformers.__version__, OPSET]
    digest = hashlib.blake2b(json.dumps([settings, layers, made_by]).encode(), digest_size=16)
    add_weights(digest, encoder.model.state_dict())
    return digest.hexdigest()


def weights_of_bytes(source: Path, target: Path) -> None:
    """Writes a graph whose matrices are int8 with a scale for each column, by its largest value.

    A runtime that computes in bytes rounds the other factor of each product by itself, as it comes.
    """
    onnx = require("onnx", "backend")
    model = onnx.load(source)
    graph, made = model.graph, []
    matrices = {each.name: each for each in graph.initializer if len(each.dims) == 2}
    used = [name for node in graph.node for name in node.input]
    for node in graph.node:
        name = node.input[1] if node.op_type == "MatMul" else None
        if name not in matrices or used.count(name) > 1:
            continue
        weight = onnx.numpy_helper.to_array(matrices[name])
        scale = np.maximum(np.abs(weight).max(axis=0) / 127, np.finfo(np.float32).tiny).astype(np.float32)
        parts = {
            "bytes": np.rint(weight / scale).astype(np.int8),
            "scale": scale,
            "zero": np.zeros(len(scale), np.int8),
        }
        for part, values in parts.items():
            graph.initializer.append(onnx.numpy_helper.from_array(values, f"{name}_{part}"))
        inputs = [f"{name}_{part}" for part in parts]
        made.append(onnx.helper.make_node("DequantizeLinear", inputs, [f"{name}_float"], axis=1))
        graph.initializer.remove(matrices[name])
        node.input[1] = f"{name}_float"
    nodes = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, target)


def products_of_bytes(source: Path, target: Path) -> None:
    """Writes a graph whose products with a matrix are of bytes, by onnxruntime's dynamic quantization."""
    quantization = require("onnxruntime.quantization", "backend")
    model = require("onnx", "backend").load(source)
    note = model.metadata_props.add()
    note.key, note.value = (
        "onnx.quant.pre_process",
        "onnxruntime.quant",
    )  # else it advises to, by Python's root logger
    quantization.quantize_dynamic(
        model,
        target,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )
