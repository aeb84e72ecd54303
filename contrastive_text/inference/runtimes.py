"""Networks run by onnxruntime or OpenVINO, on a CPU, in place of torch; all else stays ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.forks import check_not_forked
from contrastive_text.core.libraries import require
from contrastive_text.core.setting import one_thread
from contrastive_text.core.signal_stack import kept_signal_stack
from contrastive_text.core.types import Alter, Hidden
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.layouts import pad, token_mask
from contrastive_text.inference.graphs import (
    INPUTS,
    Layers,
    network_graph,
    products_of_bytes,
    weights_of_bytes,
)

TOLERANCE = 1e-4
"""Largest difference of a token's feature, as part of the largest one: rounding of float32 is some 1e-6 of it."""

Arrays = list[npt.NDArray[np.float32]]

_opening = Lock()
"""Held while a graph is made and opened: both change settings of the process."""


class Runtime(ABC):
    """A graph that is ready to run.

    Args:
        graph: Its file.
        dtype: What products are computed in; one of ``dtypes``.

    Attributes:
        library: Its module.
        dtypes: What it computes in on a CPU.
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
        """Returns the token vectors of each layer, (n, L) twice -> (n, L, D), in memory of their own.

        Several threads may call it at once.
        """


class OnnxRuntime(Runtime):
    """A graph in onnxruntime: float32, or products of bytes; see ``Runtime``."""

    library = "onnxruntime"
    dtypes = (torch.float32, torch.int8)
    shrink = staticmethod(products_of_bytes)

    def __init__(self, graph: Path, dtype: torch.dtype) -> None:  # noqa: ARG002  # the graph says it
        check_not_forked("backend", has_pool=True)
        library = require(self.library, "backend")
        options = library.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self._session = library.InferenceSession(
            str(graph), sess_options=options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer."""
        found: Arrays = self._session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        return found


class OpenVINORuntime(Runtime):
    """A graph in OpenVINO: float32, bfloat16, or weights and factors of a byte; see ``Runtime``.

    Left to itself, OpenVINO computes in bfloat16 where the processor can; here it does what it is told.
    """

    library = "openvino"
    dtypes = (torch.float32, torch.bfloat16, torch.int8)
    shrink = staticmethod(weights_of_bytes)

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

    def __call__(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Arrays:
        """Returns the token vectors of each layer."""
        with self._running:  # outputs are copied: the next call writes over shared ones
            found = self._request.infer({0: ids, 1: mask}, share_inputs=True)
        return [found[place] for place in range(self._outputs)]


BACKENDS: Mapping[str, type[Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVINORuntime}


class RuntimeEncoder(Encoder):
    """The network of an encoder, as a runtime computes it; gives what the encoder would, but for rounding.

    A graph is made once for each set of layers that a pooler reads, of the weights as they are then, and kept in
    the user's cache; see ``graphs.network_graph``.

    Args:
        encoder: Stays as it is.
        backend: ``onnx`` or ``openvino``.
        dtype: What products are computed in.

    Raises:
        ImportError: Without the runtime.
        ValueError: Another name, or a type that the runtime doesn't compute in.

    Example:
        >>> runtime = RuntimeEncoder(model.encoder, "openvino", torch.int8)  # doctest: +SKIP
        >>> runtime(batch).layers[-1].shape  # doctest: +SKIP
        torch.Size([64, 21, 384])
    """

    def __init__(self, encoder: TransformerEncoder, backend: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        check_backend(backend, dtype)
        require(BACKENDS[backend].library, "backend")  # before a graph is made, which takes a while
        self.features, self.vocabulary_size, self.limit = encoder.features, encoder.vocabulary_size, encoder.limit
        self.tokenizer = encoder.tokenizer
        self.backend, self.dtype = backend, dtype
        self._encoder = (encoder,)  # a tuple's modules are none of ours
        self._runtimes: dict[tuple[int, ...], Runtime] = {}

    def runtime(self, layers: tuple[int, ...]) -> Runtime:
        """Returns the graph of some layers, ready to run; made now where there is none.

        Raises:
            ImportError: Without the runtime, or what makes a graph.
            ValueError: A network that can't be exported.
            DiskError: The cache can't be written.
        """
        if layers not in self._runtimes:
            with _opening:
                if layers not in self._runtimes:
                    self._runtimes[layers] = self._open(layers)
        return self._runtimes[layers]

    def _open(self, layers: tuple[int, ...]) -> Runtime:
        made = BACKENDS[self.backend]
        path = network_graph(
            self._encoder[0],
            layers,
            check=partial(_check, made),
            shrink=made.shrink if self.dtype == torch.int8 else None,
        )
        return made(path, self.dtype)

    @contextmanager
    def undisturbed(self, layers: tuple[int, ...]) -> Iterator[None]:
        """Has torch compute in one thread within, for its others would wait busily on the cores of the runtime's.

        Without it a runtime took 1.1 to 1.3 times as long on two cores.

        Args:
            layers: Of the graph that is run within; it is made ready first, with all threads.
        """
        self.runtime(layers)
        with one_thread():
            yield

    def forward(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        """Encodes the rows and gives them right-padded to the longest, on the CPU; see ``Encoder.forward``.

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
        ids = pad(batch.ids, mask, fill=self._encoder[0].model.config.pad_token_id or 0)
        found = self.runtime(layers)(ids.numpy(), mask.long().numpy())
        vectors = dict(zip(layers, map(torch.from_numpy, found), strict=True))
        return Hidden(vectors, mask, ids, None if self.tokenizer is None else self.tokenizer.mask_token_id)

    def __getstate__(self) -> dict[str, Any]:  # Any: of a module
        """Returns what another process, or a copy, is made of; it opens the graphs anew."""
        return {**self.__dict__, "_runtimes": {}}


def check_backend(backend: str, dtype: torch.dtype) -> None:
    """Checks that there is such a runtime, and that it computes in a type.

    Raises:
        ValueError: There is none, or it doesn't.
    """
    if backend not in BACKENDS:
        raise InvalidValueError(f"backend: expected torch, {' or '.join(BACKENDS)}, got {backend!r}")
    if dtype not in (known := BACKENDS[backend].dtypes):
        raise InvalidValueError(
            f"dtype: expected {', '.join(map(str, known))} with backend={backend!r}, got {dtype}"
        )


def _check(runtime: type[Runtime], graph: Path, module: Layers) -> None:
    """Holds a new graph against the network, for rows of one token to some, and for one alone."""
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
            if not difference <= TOLERANCE:  # nor is NaN
                raise InvalidValueError(
                    f"backend: expected the network's own vectors to {TOLERANCE:.0e} of the largest feature, "
                    f"got a difference of {difference:.1e} by {runtime.library}; this network needs torch: leave "
                    "the backend out"
                )
