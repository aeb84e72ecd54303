"""Runtimes (onnxruntime, OpenVINO) that compute a network on a CPU in place of torch, from cached ONNX graphs."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, Hidden
from contrastive_text.core.errors import DiskError, InvalidValueError, first_line, one_of
from contrastive_text.core.libraries import require, silence_transformers
from contrastive_text.core.machine import check_not_forked, one_thread, restored_signal_stack
from contrastive_text.core.storage.manifests import GRAPH
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.data.files.mapped import cache_folder, get_cache_entry
from contrastive_text.encoders import Encoder, TransformerEncoder, pad, token_mask
from contrastive_text.encoders.networks import padding_id, without_cache

OPSET = 18
"""Version of ONNX's operators that torch's exporter writes. Graphs are converted to other versions."""
INPUTS = ("input_ids", "attention_mask")
"""Names of the inputs of a network's graph, each (n, L), int64. Token types are left at their default."""
TOLERANCE = 1e-4
"""Largest allowed difference of a token's feature, relative to the largest feature. Rounding of float32 is about
1e-6."""

Arrays = list[npt.NDArray[np.float32]]

_opening = Lock()
"""Lock for exporting and opening a graph, because both change settings of the process."""


def write_graph(
    module: nn.Module,
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: Path,
    vocabulary_size: int,
    opset: int = OPSET,
    where: str = "export_onnx",
) -> None:
    """Exports a module to an ONNX graph that takes any number of rows of any length.

    Args:
        module: Module, which takes the inputs in order as ``*values``.
        inputs: Names of the inputs, (n, L) each: ``input_ids``, ``attention_mask`` or ``token_type_ids``.
        outputs: Names of the outputs.
        path: File of the graph.
        vocabulary_size: Number of entries of the token table.
        opset: Version of ONNX's operators.
        where: Beginning of error messages.

    Raises:
        ImportError: onnx or onnxscript isn't installed.
        ValueError: torch can't export the module, or the graph can't be converted to ``opset``.
    """
    onnx = require("onnx", where)
    require("onnxscript", where)
    opset_error = InvalidValueError(
        f"export_onnx.opset: expected one that the graph can be converted to, got {opset}; take {OPSET}, or a "
        "later one that your onnx has"
    )
    if not 1 <= opset <= onnx.defs.onnx_opset_version():
        raise opset_error
    ids = torch.arange(14).reshape(2, 7) % vocabulary_size
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    examples = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    axes = {0: "batch", 1: "length"}
    try:
        with _silent(), torch.no_grad():
            program = torch.onnx.export(
                module,
                tuple(examples[name] for name in inputs),
                dynamo=True,
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=[tuple(axes for _ in inputs)],
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
    graph = onnx.load(path, load_external_data=False)
    (version,) = (entry.version for entry in graph.opset_import if entry.domain == "")
    if version != opset:  # the converter reports a failure only in its log
        raise opset_error


@contextmanager
def _silent() -> Iterator[None]:
    """Hides messages of torch's exporter in this context: on torchvision, deprecations and names of axes."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), silence_transformers():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _without_log_handlers() -> Iterator[None]:
    """Removes handlers that a library adds to the root logger in this context; all libraries log to them."""
    root = logging.getLogger()
    handlers = [*root.handlers]
    try:
        yield
    finally:
        root.handlers[:] = handlers


def onnx_session(graph: Path, where: str) -> Any:  # Any: onnxruntime has no types
    """Opens a graph in onnxruntime on the CPU, with torch's number of threads.

    Args:
        graph: File of the graph.
        where: Beginning of error messages.

    Raises:
        ImportError: onnxruntime isn't installed.
    """
    library = require("onnxruntime", where)
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return library.InferenceSession(str(graph), sess_options=options, providers=["CPUExecutionProvider"])


class Runtime(ABC):
    """Base class of runtimes, which compute a network in place of torch.

    An instance is an opened graph that computes token vectors on the CPU.

    Args:
        graph: File of the graph.
        dtype: Type in which matrix products are computed, one of ``dtypes``.

    Attributes:
        library: Python module of the runtime.
        dtypes: Types in which the runtime computes on a CPU.
    """

    library: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]

    @abstractmethod
    def __init__(self, graph: Path, dtype: torch.dtype) -> None: ...

    @staticmethod
    @abstractmethod
    def quantize_graph(source: Path, target: Path) -> None:
        """Quantizes the matrices of a graph to int8 and writes the graph to another file."""

    @abstractmethod
    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Computes the token vectors of each layer of the graph. Several threads may call it at the same time.

        Args:
            ids: Padded token ids, (n, L).
            mask: 1 for tokens and 0 for padding, (n, L).

        Returns:
            Token vectors of each layer, (n, L, D), in memory that no later call overwrites.
        """


class OnnxRuntime(Runtime):
    """Runtime of onnxruntime, in float32 or int8; see ``Runtime``."""

    library = "onnxruntime"
    dtypes = (torch.float32, torch.int8)

    def __init__(self, graph: Path, dtype: torch.dtype) -> None:  # noqa: ARG002  # the file of the graph has it
        check_not_forked("backend", has_pool=True)
        self._session = onnx_session(graph, "backend")

    @staticmethod
    def quantize_graph(source: Path, target: Path) -> None:
        """Writes a graph with int8 matrix products, by onnxruntime's dynamic quantization."""
        quantization = require("onnxruntime.quantization", "backend")
        model = require("onnx", "backend").load(source)
        note = model.metadata_props.add()  # without it, a log message advises preprocessing
        note.key, note.value = "onnx.quant.pre_process", "onnxruntime.quant"
        with _without_log_handlers():
            quantization.quantize_dynamic(
                model,
                target,
                op_types_to_quantize=["MatMul", "Gemm"],
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True},
            )

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer, computed by onnxruntime."""
        vectors: Arrays = self._session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        return vectors


class OpenVINORuntime(Runtime):
    """Runtime of OpenVINO, in float32, bfloat16 or int8; see ``Runtime``.

    OpenVINO alone would compute in bfloat16 if the processor supports it. This class sets the requested type.
    """

    library = "openvino"
    dtypes = (torch.float32, torch.bfloat16, torch.int8)

    def __init__(self, graph: Path, dtype: torch.dtype) -> None:
        check_not_forked("backend", has_pool=True)
        library = require(self.library, "backend")
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
            # Number of features that share a scale. 0 computes in float32, even with int8 weights.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if dtype == torch.int8 else 0,
        }
        with restored_signal_stack():
            compiled = library.Core().compile_model(str(graph), "CPU", settings)
        self._request = compiled.create_infer_request()
        self._running = Lock()  # costs nothing: with the hint LATENCY, requests run one after the other anyway
        self._outputs = len(compiled.outputs)

    @staticmethod
    def quantize_graph(source: Path, target: Path) -> None:
        """Writes a graph with int8 matrices, with a scale for the largest absolute value of each column.

        OpenVINO quantizes the other factor of each product when it computes.
        """
        onnx = require("onnx", "backend")
        model = onnx.load(source)
        graph, dequantizers = model.graph, []
        matrices = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
        inputs_of_all = [name for node in graph.node for name in node.input]
        for node in graph.node:
            name = node.input[1] if node.op_type == "MatMul" else None
            if name not in matrices or inputs_of_all.count(name) > 1:
                continue
            weight = onnx.numpy_helper.to_array(matrices[name])
            scale = np.maximum(np.abs(weight).max(axis=0) / 127, np.finfo(np.float32).tiny).astype(np.float32)
            levels = np.rint(weight / scale).astype(np.int8)
            parts = {"bytes": levels, "scale": scale, "zero": np.zeros(len(scale), np.int8)}
            for part, values in parts.items():
                graph.initializer.append(onnx.numpy_helper.from_array(values, f"{name}_{part}"))
            inputs = [f"{name}_{part}" for part in parts]
            dequantizers.append(onnx.helper.make_node("DequantizeLinear", inputs, [f"{name}_float"], axis=1))
            graph.initializer.remove(matrices[name])
            node.input[1] = f"{name}_float"
        nodes = [*dequantizers, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        onnx.save(model, target)

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer, computed by OpenVINO."""
        with self._running:  # outputs aren't shared, because the next call would overwrite them
            outputs = self._request.infer({0: ids, 1: mask}, share_inputs=True)
        return [outputs[number] for number in range(self._outputs)]


BACKENDS: Mapping[str, type[Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVINORuntime}
"""Value of ``backend`` -> class of the runtime."""


class _Layers(nn.Module):
    """Module from padded token ids, (n, L), to the token vectors of some layers, (n, L, D) each.

    Args:
        encoder: Encoder whose network is copied, in float32 and with merged adapters.
        layers: Numbers of the layers, as in ``Hidden``.
    """

    def __init__(self, encoder: TransformerEncoder, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.network = copy.deepcopy(encoder.without_adapters(merge=True).model)
        nn.Module.to(self.network, "cpu", torch.float32)  # Transformers' own method has no types
        nn.Module.eval(self.network)
        with silence_transformers():
            # Our attention takes packed rows, and torch's has more nodes in a graph.
            self.network.set_attn_implementation("eager")
        self.layers = layers

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns the token vectors of each layer in order. Vectors of padding are undefined."""
        has_hidden = self.layers != (-1,)
        inputs = dict(zip(INPUTS, values, strict=True)) | without_cache(self.network)
        output = self.network(**inputs, output_hidden_states=has_hidden)
        return tuple(output.hidden_states[n] for n in self.layers) if has_hidden else (output.last_hidden_state,)


def network_graph(
    encoder: TransformerEncoder, layers: tuple[int, ...], runtime: type[Runtime], int8: bool = False
) -> Path:
    """Returns the file of a network's graph, which is exported once to ``~/.cache/contrastive_text/graphs``.

    The key of the cache is a digest of all weights, the configuration, the layers, and the versions of torch and
    Transformers. A graph whose bytes were changed is exported again.

    Args:
        encoder: Encoder with the network.
        layers: Layers whose token vectors the graph returns, numbered as in ``Hidden``.
        runtime: Runtime that checks a new graph against the network.
        int8: Whether matrix products are computed in int8.

    Raises:
        ImportError: The graph isn't cached yet, and onnx or onnxscript isn't installed.
        ValueError: torch can't export the network, or the runtime computes other vectors.
        DiskError: The cache can't be written.
    """

    def make(folder: Path) -> None:
        module, names = _Layers(encoder, layers), [f"layer_{number}" for number in layers]
        write_graph(module, INPUTS, names, folder / GRAPH, encoder.vocabulary_size, where="backend")
        _check(runtime, folder / GRAPH, module)

    settings = json.dumps(encoder.model.config.to_diff_dict(), sort_keys=True, default=str)
    versions = [torch.__version__, transformers.__version__, OPSET]
    digest = hashlib.blake2b(json.dumps([settings, layers, versions]).encode(), digest_size=16)
    add_weights(digest, encoder.model.state_dict())
    graph = _cached(digest.hexdigest(), make)
    if not int8:
        return graph
    return _cached(
        f"{graph.parent.name}-{runtime.library}", lambda folder: runtime.quantize_graph(graph, folder / GRAPH)
    )


def _cached(key: str, make: Callable[[Path], None]) -> Path:
    try:
        entry, _ = get_cache_entry(cache_folder(None, "graphs"), key, what="graph", names=[GRAPH], make=make)
    except DiskError as error:
        raise DiskError(
            *error.args[:-1], f"{error}; graphs are stored below $XDG_CACHE_HOME, or ~/.cache"
        ) from error
    return entry / GRAPH


def _check(runtime: type[Runtime], graph: Path, module: _Layers) -> None:
    """Compares the vectors of a new graph with the network's, for padded rows and for a single row."""
    config = module.network.config
    lengths = [1, 2, 7, min(getattr(config, "max_position_embeddings", 64) or 64, 64) // 2]
    mask = token_mask(torch.tensor(lengths))
    ids = torch.arange(mask.numel()).reshape(mask.shape) % config.vocab_size
    if config.pad_token_id is not None:
        ids = torch.where(ids == config.pad_token_id, ids + 1, ids) % config.vocab_size
    compute = runtime(graph, torch.float32)
    for rows in (slice(None), slice(1, 2)):
        length = int(mask[rows].sum(1).max())
        part, tokens = ids[rows, :length].contiguous(), mask[rows, :length].contiguous()
        with torch.no_grad():
            expected = module(part, tokens.long())
        for vectors, layer in zip(compute(part.numpy(), tokens.long().numpy()), expected, strict=True):
            difference = float(
                (torch.from_numpy(vectors) - layer)[tokens].abs().max() / layer[tokens].abs().max()
            )
            if not difference <= TOLERANCE:  # true for NaN too
                raise InvalidValueError(
                    f"backend: expected the network's own vectors to {TOLERANCE:.0e} of the largest feature, "
                    f"got a difference of {difference:.1e} by {runtime.library}; this network needs torch: "
                    f"remove the backend"
                )


class RuntimeEncoder(Encoder):
    """Encoder whose network is computed by a runtime. Its vectors equal the encoder's except for rounding.

    A graph is exported once for each set of layers that a pooler reads, with the weights at that time; see
    ``network_graph``.

    Args:
        encoder: Encoder, which stays unchanged.
        backend: ``onnx`` or ``openvino``.
        dtype: Type in which matrix products are computed.

    Raises:
        ImportError: The runtime isn't installed.
        ValueError: The backend is unknown, or its runtime doesn't compute in ``dtype``.

    Example:
        >>> runtime = RuntimeEncoder(model.encoder, "openvino", torch.int8)  # doctest: +SKIP
        >>> runtime(batch).layers[-1].shape  # doctest: +SKIP
        torch.Size([64, 21, 384])
    """

    def __init__(self, encoder: TransformerEncoder, backend: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        one_of("backend", backend, BACKENDS, "torch is the default")
        one_of("dtype", dtype, BACKENDS[backend].dtypes, f"these are the types of backend={backend!r}")
        require(BACKENDS[backend].library, "backend")  # before a graph is exported, which takes a while
        self.features, self.vocabulary_size, self.limit = encoder.features, encoder.vocabulary_size, encoder.limit
        self.tokenizer = encoder.tokenizer
        self.backend, self.dtype = backend, dtype
        self._encoder = (encoder,)  # a tuple, so that it isn't registered as a submodule
        self._runtimes: dict[tuple[int, ...], Runtime] = {}

    def open_runtime(self, layers: tuple[int, ...]) -> Runtime:
        """Returns the opened graph that computes some layers. Exports the graph if it isn't cached.

        Args:
            layers: Numbers of the layers, as in ``Hidden``.

        Raises:
            ImportError: A library for exporting a graph isn't installed.
            ValueError: torch can't export the network, or the runtime computes other vectors.
            DiskError: The cache can't be written.
        """
        if layers not in self._runtimes:
            with _opening:
                if layers not in self._runtimes:
                    runtime, int8 = BACKENDS[self.backend], self.dtype == torch.int8
                    path = network_graph(self._encoder[0], layers, runtime, int8)
                    self._runtimes[layers] = runtime(path, self.dtype)
        return self._runtimes[layers]

    @contextmanager
    def single_torch_thread(self, layers: tuple[int, ...]) -> Iterator[None]:
        """Limits torch to one thread in this context, because its idle threads busy-wait on the runtime's cores.

        Without it, a runtime took 1.1 to 1.3 times as long on two cores.

        Args:
            layers: Layers of the graph that runs in this context. The graph is opened first, with all threads.
        """
        self.open_runtime(layers)
        with one_thread():
            yield

    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Encodes a batch with the runtime. Returns right-padded token vectors on the CPU.

        Raises:
            ValueError: The batch isn't on the CPU.
        """
        assert alter is None and batch.positions is None, "a runtime is for use, where nothing is altered"
        if batch.ids.device.type != "cpu":
            raise InvalidValueError(
                f"backend: expected the model on the CPU, where {self.backend} runs it, got {batch.ids.device}; "
                "remove the device, or the backend"
            )
        mask = token_mask(batch.lengths)
        ids = pad(batch.ids, mask, fill=padding_id(self._encoder[0].model.config))
        arrays = self.open_runtime(layers)(ids.numpy(), mask.long().numpy())
        vectors = dict(zip(layers, map(torch.from_numpy, arrays), strict=True))
        return Hidden(vectors, mask, ids, None if self.tokenizer is None else self.tokenizer.mask_token_id)

    def __getstate__(self) -> dict[str, Any]:  # Any: state of a module
        """Returns the encoder's state for pickling, without opened graphs.

        A copy, or another process, opens them again.
        """
        return {**self.__dict__, "_runtimes": {}}
