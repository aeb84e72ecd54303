"""Encoding from several threads, after a fork, and during training in another thread."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from torch.backends import mkldnn

from contrastive_text import SentenceEncoder
from contrastive_text.core import machine
from contrastive_text.core.batch import Hidden
from contrastive_text.core.machine import one_thread
from contrastive_text.data.batching import collate_texts
from contrastive_text.encoders import TransformerEncoder, onednn_products, prepacked
from contrastive_text.encoders.shared_use import shared_network
from contrastive_text.inference.index import Index
from contrastive_text.inference.runtimes import BACKENDS
from contrastive_text.poolers import LastTwoPooler, MeanPooler

THREADS = 4
# The order of sums may depend on how many threads are free: some 1e-7 of entries of size 1.
ROUNDING = 1e-5
# A fork's child that waits for threads would wait forever; one that is refused ends at once.
PATIENCE = 60
CALLS: tuple[tuple[str, ...], ...] = tuple(
    tiny.TEXTS if number % 4 == 0 else tiny.TEXTS[number : number + 1 + number % 5] for number in range(16)
)
"""Texts of each call: long ones, which pack weights, next to short ones."""


@pytest.fixture
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder(TransformerEncoder(bert), LastTwoPooler(), max_length=9).eval()


@pytest.fixture(params=["packed", pytest.param("unpacked", marks=pytest.mark.slow)])
def packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs weights for the longer half of the calls or for none, whatever this processor is."""
    is_packed = request.param == "packed"
    for module, name in ((prepacked, "has_fast_packed_layers"), (onednn_products, "has_fast_layers")):
        monkeypatch.setattr(module, name, mkldnn.is_available if is_packed else lambda: False)
    monkeypatch.setattr(prepacked, "_TOKENS", 200)


def check_threads(model: SentenceEncoder, calls: Sequence[Sequence[str]] = CALLS, repeats: int = 2) -> None:
    """Compares the vectors and the number of truncated texts of many calls at once with those of one thread."""

    def call(number: int) -> tuple[object, int]:
        return model.encode(calls[number]), model.truncated

    expected = [call(number) for number in range(len(calls))]
    assert len({truncated for _, truncated in expected}) > 2
    numbers = list(range(len(calls))) * repeats
    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(call, numbers))
    for number, (vectors, truncated) in zip(numbers, results, strict=True):
        np.testing.assert_allclose(vectors, expected[number][0], rtol=0, atol=ROUNDING)
        assert truncated == expected[number][1]


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("dtype", rest_slow([torch.float32, torch.bfloat16]))
def test_threads_get_the_vectors_and_truncated_texts_of_a_single_thread(
    model: SentenceEncoder, dtype: torch.dtype
) -> None:
    model.to(dtype).encode(["bird"])  # Transformers adds its hooks
    before = {part: dict(vars(part)) for part in model.modules()}
    check_threads(model)
    assert {part: vars(part) for part in model.modules()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "dtype"), [(name, dtype) for name, runtime in BACKENDS.items() for dtype in runtime.dtypes]
)
def test_threads_get_the_vectors_of_a_single_thread_from_a_runtime(
    bert: str, backend: str, dtype: torch.dtype
) -> None:
    for library in ("onnxscript", BACKENDS[backend].library):
        pytest.importorskip(library, exc_type=ImportError)
    plain = SentenceEncoder(TransformerEncoder(bert), MeanPooler(), max_length=9)
    model = SentenceEncoder.of(plain.parts.with_runtime(backend, dtype)).eval()
    with ThreadPoolExecutor(THREADS) as threads:  # the first use opens the graph, once
        opened = list(threads.map(lambda _: model.runtime and model.runtime.open_runtime((-1,)), range(THREADS)))
    assert len(set(map(id, opened))) == 1
    check_threads(model, repeats=6)


def test_searches_from_threads_find_the_same_texts_and_leave_the_filters_of_warnings(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", model)
    index.add(tiny.TEXTS)
    filters = list(warnings.filters)
    texts = tiny.TEXTS[:12]
    expected = index.search(texts, top_k=3)
    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(lambda text: index.search(text, top_k=3)[0], texts))
    assert [[hit.id for hit in hits] for hits in results] == [[hit.id for hit in hits] for hits in expected]
    assert warnings.filters == filters


def test_a_network_in_training_mode_is_encoded_without_a_change_of_any_module(bert: str) -> None:
    model = SentenceEncoder(TransformerEncoder(bert, dropout=0.5), MeanPooler())
    expected = copy.deepcopy(model).eval().encode(list(tiny.TEXTS))
    modes: list[bool] = []
    with shared_network(model) as network:
        assert not any(part.training for part in network.modules())
        modes += [part.training for part in model.modules()]
        assert {id(weight) for weight in network.parameters()} == {id(weight) for weight in model.parameters()}
    assert all(modes)
    with ThreadPoolExecutor(THREADS) as threads:
        for vectors in threads.map(lambda _: model.encode(list(tiny.TEXTS)), range(8)):
            np.testing.assert_allclose(vectors, expected, rtol=0, atol=ROUNDING)


def test_rotary_frequencies_of_one_call_are_not_those_of_another(bert: str) -> None:
    """A network with dynamic frequencies computes them for the longest row of a pass, and keeps them."""
    config = {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 8,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "dynamic", "factor": 4.0},
    }
    encoder = TransformerEncoder(config=config, tokenizer_name_or_path=bert)
    encoder.limit = None
    model = SentenceEncoder(encoder, MeanPooler(), max_length=40).eval()
    rotary = next(part for part in model.modules() if "rope_type" in vars(part))
    before = rotary.inv_freq.clone()
    model.encode([" ".join(tiny.TEXTS[:4])])
    assert torch.equal(rotary.inv_freq, before)


def train(model: SentenceEncoder, steps: int, stepped: Callable[[], object] = lambda: None) -> None:
    """Takes some steps of SGD, with dropout of the model's mode."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = collate_texts(model.tokenizer, model.tokenizer.tokenize_with_template(tiny.TEXTS))
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        stepped()


def test_a_model_that_another_thread_trains_is_refused_until_it_is_in_evaluation_mode(bert: str) -> None:
    model = SentenceEncoder(TransformerEncoder(bert), MeanPooler())
    trained, ended = threading.Event(), threading.Event()

    def stepped() -> None:
        trained.set()
        ended.wait(PATIENCE)

    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(train, model, 1, stepped)
        assert trained.wait(PATIENCE)
        try:
            with pytest.raises(
                ValueError, match=r"expected a model that no other thread trains, got a Transf.*eval"
            ):
                model.encode(["bird"])
            copied = copy.deepcopy(model).encode(["bird"])
            np.testing.assert_array_equal(model.eval().encode(["bird"]), copied)
        finally:
            ended.set()
        training.result()


def test_weights_that_change_during_a_call_are_refused(bert: str) -> None:
    class Changing(MeanPooler):
        def forward(self, hidden: Hidden) -> torch.Tensor:
            next(encoder.parameters()).mul_(1.0)
            return super().forward(hidden)

    encoder = TransformerEncoder(bert)
    with pytest.raises(ValueError, match="expected unchanged weights"):
        SentenceEncoder(encoder, Changing()).eval().encode(["bird"])


def test_one_thread_is_a_setting_of_the_calling_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as thread, one_thread():
            assert torch.get_num_threads() == 1
            assert thread.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def exit_status(child: int) -> int:
    """Returns a child's exit status; ends a child that waits forever."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError("the child waits forever")


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@forks
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_refuses_to_encode_and_to_load(
    model: SentenceEncoder, bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(machine, "_has_threads", False)  # and what it becomes is undone
    model.encode(["bird"])
    uses: tuple[Callable[[], object], ...] = (
        lambda: model.encode(["bird"]),
        lambda: next(model.encode_blocks(["bird"])),
        lambda: TransformerEncoder(bert),
    )
    for use in uses:
        if not (child := os.fork()):
            try:
                use()
            except RuntimeError as error:
                os._exit(7 if "get_context('spawn')" in str(error) else 1)
            finally:
                os._exit(2)
        assert exit_status(child) == 7


PROGRAM = """
import multiprocessing, sys
from contrastive_text import SentenceEncoder

def encode(model, texts):
    try:
        return model.encode(texts).tolist()
    except RuntimeError as error:
        return str(error)

if __name__ == "__main__":
    folder, backend, used = sys.argv[1:]
    texts = ["a small dog sings in the green tree"] * 300
    model = SentenceEncoder.from_pretrained(folder, pooler="MeanPooler", backend=backend)
    if used == "used":
        model.encode(texts)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(encode, (model, texts)))
    print(encode(model, texts))
"""


@pytest.mark.slow
@forks
@pytest.mark.parametrize(
    ("backend", "threads", "used"),
    [("torch", "2", "loaded"), ("torch", "1", "used"), ("onnx", "1", "loaded"), ("onnx", "2", "used"),
     ("openvino", "1", "used")],
)  # fmt: skip
def test_a_pool_of_forked_processes_never_waits_for_the_threads_of_its_parent(
    bert: str, tmp_path: Path, backend: str, threads: str, used: str
) -> None:
    if backend != "torch":
        for library in ("onnxscript", BACKENDS[backend].library):
            pytest.importorskip(library, exc_type=ImportError)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program), bert, backend, used],
        env={**os.environ, "OMP_NUM_THREADS": threads},
        timeout=4 * PATIENCE,
        capture_output=True,
        text=True,
        check=True,
    )
    if (backend, threads) == ("torch", "1"):
        child, parent = map(json.loads, ended.stdout.splitlines())
        assert child == parent
    else:
        assert "expected a process that is started by spawn" in ended.stdout
