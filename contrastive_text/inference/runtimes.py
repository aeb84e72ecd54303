"""Networks run by onnxruntime or OpenVINO on a CPU in place of torch, from ONNX graphs in the user's cache."""

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
from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import DiskError, InvalidValueError, first_line
from contrastive_text.core.libraries import quiet, require
from contrastive_text.core.native import check_not_forked, kept_signal_stack
from contrastive_text.core.setting import one_thread
from contrastive_text.core.storage.manifests import GRAPH
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.core.types import Alter
from contrastive_text.data.cache import cache_folder, cached
from contrastive_text.encoders import Encoder, TransformerEncoder, pad, token_mask
from contrastive_text.encoders.networks import padding_id, without_cache

OPSET = 18
"""Version of ONNX's operators that torch's exporter writes; it converts to other versions."""
INPUTS = ("input_ids", "attention_mask")
"""Inputs of a network's graph, (n, L) int64 each. A row is one text, so all its types are equal."""
TOLERANCE = 1e-4
"""Largest difference of a token's feature, relative to the largest one; rounding of float32 is some 1e-6."""

Arrays = list[npt.NDArray[np.float32]]

_opening = Lock()
"""Held while a graph is made and opened: both change settings of the process."""


def write_graph(
    module: nn.Module,
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: Path,
    vocabulary_size: int,
    opset: int = OPSET,
    where: str = "export_onnx",
) -> None:
    """Writes a module as a graph for any number of rows of any length.

    Args:
        module: Takes the inputs in order, as ``*values``.
        inputs: Names of the inputs, (n, L) each: token ids, mask and types as Transformers calls them.
        outputs: Names of the outputs.
        path: File of the graph.
        vocabulary_size: Entries of the token table.
        opset: Version of ONNX's operators.
        where: Beginning of errors.

    Raises:
        ImportError: onnx or onnxscript isn't installed.
        ValueError: A module that torch can't export, or an opset that the graph can't be converted to.
    """
    onnx = require("onnx", where)
    require("onnxscript", where)
    other_opset = InvalidValueError(
        f"export_onnx.opset: expected one that the graph can be converted to, got {opset}; take {OPSET}, or a "
        "later one that your onnx has"
    )
    if not 1 <= opset <= onnx.defs.onnx_opset_version():
        raise other_opset
    ids = torch.arange(14).reshape(2, 7) % vocabulary_size
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    examples = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    free = {0: "batch", 1: "length"}
    try:
        with _silent(), torch.no_grad():
            program = torch.onnx.export(
                module,
                tuple(examples[name] for name in inputs),
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
    if version != opset:  # the converter reports it only in its log
        raise other_opset


@contextmanager
def _silent() -> Iterator[None]:
    """Hides the exporter's messages on torchvision, deprecations inside torch and names of axes."""
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


def onnx_session(graph: Path, where: str) -> Any:  # Any: onnxruntime ships no types
    """Returns a session of onnxruntime on the CPU, with as many threads as torch has.

    Args:
        graph: File of the graph.
        where: Beginning of errors.
    """
    library = require("onnxruntime", where)
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return library.InferenceSession(str(graph), sess_options=options, providers=["CPUExecutionProvider"])


class Runtime(ABC):
    """A graph that is ready to run.

    Args:
        graph: File of the graph.
        dtype: Type in which products are computed; one of ``dtypes``.

    Attributes:
        library: Module of the runtime.
        dtypes: Types in which it computes on a CPU.
    """

    library: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]

    @abstractmethod
    def __init__(self, graph: Path, dtype: torch.dtype) -> None: ...

    @staticmethod
    @abstractmethod
    def shrink(source: Path, target: Path) -> None:
        """Writes the int8 form of a graph to another file."""

    @abstractmethod
    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer, (n, L) twice -> (n, L, D), in their own memory.

        Several threads may call it at once.
        """


class OnnxRuntime(Runtime):
    """A graph in onnxruntime: float32, or products of bytes; see ``Runtime``."""

    library = "onnxruntime"
    dtypes = (torch.float32, torch.int8)

    def __init__(self, graph: Path, dtype: torch.dtype) -> None:  # noqa: ARG002  # the graph has it
        check_not_forked("backend", has_pool=True)
        self._session = onnx_session(graph, "backend")

    @staticmethod
    def shrink(source: Path, target: Path) -> None:
        """Writes a graph whose products with a matrix are of bytes, by onnxruntime's dynamic quantization."""
        quantization = require("onnxruntime.quantization", "backend")
        model = require("onnx", "backend").load(source)
        note = model.metadata_props.add()  # without it Python's root logger advises preprocessing
        note.key, note.value = "onnx.quant.pre_process", "onnxruntime.quant"
        quantization.quantize_dynamic(
            model,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer."""
        found: Arrays = self._session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        return found


class OpenVINORuntime(Runtime):
    """A graph in OpenVINO: float32, bfloat16, or weights and factors of a byte; see ``Runtime``.

    By default OpenVINO computes in bfloat16 if the processor can. Here it computes in the requested type.
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
            # Features that share a scale; 0 would compute in float32 with weights of a byte.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if dtype == torch.int8 else 0,
        }
        with kept_signal_stack():
            compiled = library.Core().compile_model(str(graph), "CPU", settings)
        self._request = compiled.create_infer_request()
        self._running = Lock()  # with the hint LATENCY requests run one after the other anyway
        self._outputs = len(compiled.outputs)

    @staticmethod
    def shrink(source: Path, target: Path) -> None:
        """Writes a graph whose matrices are int8 with a scale for each column, by its largest value.

        OpenVINO rounds the other factor of each product itself.
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
            levels = np.rint(weight / scale).astype(np.int8)
            parts = {"bytes": levels, "scale": scale, "zero": np.zeros(len(scale), np.int8)}
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

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer."""
        with self._running:  # outputs are copied, because the next call overwrites shared ones
            found = self._request.infer({0: ids, 1: mask}, share_inputs=True)
        return [found[place] for place in range(self._outputs)]


BACKENDS: Mapping[str, type[Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVINORuntime}


class _Layers(nn.Module):
    """From padded token ids to the token vectors of some layers, (n, L, D) each.

    Args:
        encoder: Encoder whose network is copied, in float32, with adapters merged.
        layers: Numbered as in ``Hidden``.
    """

    def __init__(self, encoder: TransformerEncoder, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.network = copy.deepcopy(encoder.without_adapters(merge=True).model)
        nn.Module.to(self.network, "cpu", torch.float32)  # Transformers' own method has no types
        nn.Module.eval(self.network)
        with quiet():
            self.network.set_attn_implementation("eager")  # ours packs rows; torch's has more nodes in a graph
        self.layers = layers

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns the layers' token vectors in order, of any value on padding."""
        further = self.layers != (-1,)
        inputs = dict(zip(INPUTS, values, strict=True)) | without_cache(self.network)
        output = self.network(**inputs, output_hidden_states=further)
        return tuple(output.hidden_states[n] for n in self.layers) if further else (output.last_hidden_state,)


def network_graph(
    encoder: TransformerEncoder, layers: tuple[int, ...], runtime: type[Runtime], in_bytes: bool = False
) -> Path:
    """Returns the graph of a network. It is made once and then read from ``~/.cache/contrastive_text/graphs``.

    Its key is a digest of every weight, the configuration, the layers, and the versions of the libraries that
    wrote it. So other weights in a folder of the same name have another graph. A graph with changed bytes is
    made again.

    Args:
        encoder: The network.
        layers: Layers whose token vectors it returns, numbered as in ``Hidden``.
        runtime: Runs a new graph, whose token vectors are compared with the network's.
        in_bytes: Whether products are computed in bytes.

    Raises:
        ImportError: The graph isn't made yet, and onnx or onnxscript isn't installed.
        ValueError: A network that torch can't export, or whose vectors differ in the runtime.
        DiskError: The cache can't be written.
    """

    def make(folder: Path) -> None:
        module, names = _Layers(encoder, layers), [f"layer_{number}" for number in layers]
        write_graph(module, INPUTS, names, folder / GRAPH, encoder.vocabulary_size, where="backend")
        _check(runtime, folder / GRAPH, module)

    settings = json.dumps(encoder.model.config.to_diff_dict(), sort_keys=True, default=str)
    made_by = [torch.__version__, transformers.__version__, OPSET]
    digest = hashlib.blake2b(json.dumps([settings, layers, made_by]).encode(), digest_size=16)
    add_weights(digest, encoder.model.state_dict())
    whole = _cached(digest.hexdigest(), make)
    if not in_bytes:
        return whole
    return _cached(f"{whole.parent.name}-{runtime.library}", lambda folder: runtime.shrink(whole, folder / GRAPH))


def _cached(key: str, make: Callable[[Path], None]) -> Path:
    try:
        entry, _ = cached(cache_folder(None, "graphs"), key, what="graph", names=[GRAPH], make=make)
    except DiskError as error:
        raise DiskError(*error.args[:-1], f"{error}; graphs lie below $XDG_CACHE_HOME, or ~/.cache") from error
    return entry / GRAPH


def _check(runtime: type[Runtime], graph: Path, module: _Layers) -> None:
    """Compares a new graph with the network, for rows of several lengths together and for one alone."""
    config = module.network.config
    lengths = [1, 2, 7, min(getattr(config, "max_position_embeddings", 64) or 64, 64) // 2]
    mask = token_mask(torch.tensor(lengths))
    ids = torch.arange(mask.numel()).reshape(mask.shape) % config.vocab_size
    if config.pad_token_id is not None:
        ids = torch.where(ids == config.pad_token_id, ids + 1, ids) % config.vocab_size
    ready = runtime(graph, torch.float32)
    for rows in (slice(None), slice(1, 2)):
        length = int(mask[rows].sum(1).max())
        part, kept = ids[rows, :length].contiguous(), mask[rows, :length].contiguous()
        with torch.no_grad():
            expected = module(part, kept.long())
        for one, other in zip(ready(part.numpy(), kept.long().numpy()), expected, strict=True):
            difference = float((torch.from_numpy(one) - other)[kept].abs().max() / other[kept].abs().max())
            if not difference <= TOLERANCE:  # NaN isn't either
                raise InvalidValueError(
                    f"backend: expected the network's own vectors to {TOLERANCE:.0e} of the largest feature, "
                    f"got a difference of {difference:.1e} by {runtime.library}; this network needs torch: leave "
                    "the backend out"
                )


class RuntimeEncoder(Encoder):
    """The network of an encoder, computed by a runtime, with the encoder's vectors except for rounding.

    A graph is made once for each set of layers that a pooler reads, from the weights at that time; see
    ``network_graph``.

    Args:
        encoder: Stays unchanged.
        backend: ``onnx`` or ``openvino``.
        dtype: Type in which products are computed.

    Raises:
        ImportError: The runtime isn't installed.
        ValueError: Another name, or a type in which the runtime doesn't compute.

    Example:
        >>> runtime = RuntimeEncoder(model.encoder, "openvino", torch.int8)  # doctest: +SKIP
        >>> runtime(batch).layers[-1].shape  # doctest: +SKIP
        torch.Size([64, 21, 384])
    """

    def __init__(self, encoder: TransformerEncoder, backend: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        one_of("backend", backend, BACKENDS, "torch is the default")
        one_of("dtype", dtype, BACKENDS[backend].dtypes, f"these are the types of backend={backend!r}")
        require(BACKENDS[backend].library, "backend")  # before a graph is made, which takes a while
        self.features, self.vocabulary_size, self.limit = encoder.features, encoder.vocabulary_size, encoder.limit
        self.tokenizer = encoder.tokenizer
        self.backend, self.dtype = backend, dtype
        self._encoder = (encoder,)  # in a tuple: not a module of ours
        self._runtimes: dict[tuple[int, ...], Runtime] = {}

    def runtime(self, layers: tuple[int, ...]) -> Runtime:
        """Returns the graph of some layers, ready to run; makes it if there is none.

        Raises:
            ImportError: The runtime, or a library that makes a graph, isn't installed.
            ValueError: A network that can't be exported.
            DiskError: The cache can't be written.
        """
        if layers not in self._runtimes:
            with _opening:
                if layers not in self._runtimes:
                    made, in_bytes = BACKENDS[self.backend], self.dtype == torch.int8
                    path = network_graph(self._encoder[0], layers, made, in_bytes)
                    self._runtimes[layers] = made(path, self.dtype)
        return self._runtimes[layers]

    @contextmanager
    def undisturbed(self, layers: tuple[int, ...]) -> Iterator[None]:
        """Makes torch compute in one thread within. Its other threads would wait busily on the runtime's cores.

        Otherwise a runtime took 1.1 to 1.3 times as long on two cores.

        Args:
            layers: Layers of the graph that runs within; it is made ready first, with all threads.
        """
        self.runtime(layers)
        with one_thread():
            yield

    def forward(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        """Encodes the rows and returns them right-padded to the longest, on the CPU; see ``Encoder.forward``.

        Raises:
            ValueError: A batch on another device.
        """
        assert alter is None and batch.positions is None, "a runtime is for use, where nothing is altered"
        if batch.ids.device.type != "cpu":
            raise InvalidValueError(
                f"backend: expected the model on the CPU, where {self.backend} runs it, got {batch.ids.device}; "
                "leave the device out, or the backend"
            )
        mask = token_mask(batch.lengths)
        ids = pad(batch.ids, mask, fill=padding_id(self._encoder[0].model.config))
        found = self.runtime(layers)(ids.numpy(), mask.long().numpy())
        vectors = dict(zip(layers, map(torch.from_numpy, found), strict=True))
        return Hidden(vectors, mask, ids, None if self.tokenizer is None else self.tokenizer.mask_token_id)

    def __getstate__(self) -> dict[str, Any]:  # Any: state of a module
        """Returns the state for another process or a copy, which opens the graphs again."""
        return {**self.__dict__, "_runtimes": {}}
