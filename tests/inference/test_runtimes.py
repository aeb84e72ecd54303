"""Networks run by onnxruntime and OpenVINO, against torch."""

from __future__ import annotations

import importlib.util
import logging
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from contrastive_text.cli import run
from contrastive_text.core.batch import Hidden
from contrastive_text.core.machine import signal_stack
from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference import runtimes
from contrastive_text.inference.runtimes import BACKENDS, OpenVINORuntime, Runtime, RuntimeEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import models_by_pooler
from contrastive_text.poolers import LastTwoPooler, MaskTokenPooler, MeanPooler

# float32: other kernels add in another order. Vectors have entries of size 1.
ROUNDING = 1e-5
# More than go through a graph at once; the last one is far above the tiny encoder's 32 tokens.
TEXTS = ["bird", "", *tiny.TEXTS[:20], " ".join(tiny.TEXTS)]

backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                any(importlib.util.find_spec(each) is None for each in ("onnx", "onnxscript", made.library)),
                reason=f"needs the extra {name}",
            ),
        )
        for name, made in BACKENDS.items()
    ],
)


def equal(model: SentenceEncoder, other: SentenceEncoder, texts: list[str] = TEXTS) -> None:
    np.testing.assert_allclose(model.encode(texts), other.encode(texts), rtol=0, atol=ROUNDING)
    assert model.truncated == other.truncated


@pytest.mark.slow
@backends
def test_a_runtime_gives_torchs_vectors_with_and_without_post_processing(
    bert: str, tmp_path: Path, backend: str
) -> None:
    torch.manual_seed(0)
    plain = SentenceEncoder(TransformerEncoder(bert), MeanPooler(), max_length=9)
    layer = nn.Linear(16, 12)
    prompts = Prompts({"query": "the old "}, pooled=False)
    whole = SentenceEncoder(plain.encoder, MeanPooler(), nn.Sequential(layer), True, 9, prompts, truncate_dim=7)
    for name, model in (("plain", plain), ("whole", whole)):
        model.save_pretrained(tmp_path / name)
        loaded = SentenceEncoder.from_pretrained(tmp_path / name, backend=backend)
        equal(loaded, model.eval())
        assert loaded.truncated > 0
        assert loaded.identity == model.identity
        np.testing.assert_allclose(loaded.encode_query(TEXTS), model.encode_query(TEXTS), rtol=0, atol=ROUNDING)
        equal(pickle.loads(pickle.dumps(loaded)), model)
    found = models_by_pooler(
        plain.parts.with_runtime(backend, torch.float32), ["LastTwoPooler", "CLSPooler"], name="plain"
    )
    equal(found["LastTwoPooler"], SentenceEncoder(plain.encoder, LastTwoPooler(), max_length=9).eval())
    masked = replace(
        plain.parts, pooler=MaskTokenPooler(), prompts=Prompts({"masked": '"{text}" is {mask}.'}, "masked")
    )
    equal(SentenceEncoder.of(masked.with_runtime(backend, torch.float32)), SentenceEncoder.of(masked))


class Threads(MeanPooler):
    """Writes down how many threads torch has."""

    seen: ClassVar[list[int]] = []

    def forward(self, hidden: Hidden) -> Tensor:
        self.seen.append(torch.get_num_threads())
        return super().forward(hidden)


def test_torch_leaves_the_cores_to_a_runtime_and_has_them_again_afterwards(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(RuntimeEncoder):
        def open_runtime(self, layers: tuple[int, ...]) -> Runtime:  # noqa: ARG002  # the base's signature
            made_with.append(torch.get_num_threads())
            return lambda ids, mask: [np.ones((*mask.shape, 16), np.float32)]  # type: ignore[return-value]  # noqa: ARG005  # the base's signature

    made_with: list[int] = []
    threads = torch.get_num_threads()
    monkeypatch.setitem(sys.modules, "onnxruntime", sys)
    encoder = TransformerEncoder(bert)
    model = SentenceEncoder(encoder, Threads(), runtime=Counting(encoder, "onnx")).eval()
    torch.set_num_threads(3)
    try:
        model.encode(TEXTS)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert made_with[0] == 3  # ready before
    assert set(Threads.seen) == {1}


@pytest.mark.slow
@backends
def test_int8_is_near_and_known_as_other_vectors(bert: str, backend: str) -> None:
    handlers = [*logging.getLogger().handlers]
    model = SentenceEncoder.from_pretrained(bert, pooler="MeanPooler")
    small = SentenceEncoder.from_pretrained(bert, pooler="MeanPooler", backend=backend, dtype=torch.int8)
    expected, got = model.encode(TEXTS), small.encode(TEXTS)
    cosines = (expected * got).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(got, axis=1)
    assert 1e-7 < 1 - cosines.mean() < 0.02  # other numbers, near ones
    assert small.identity != model.identity
    assert logging.getLogger().handlers == handlers  # onnxruntime adds one


@pytest.mark.slow
def test_other_weights_or_a_changed_graph_are_noticed(bert: str, tmp_path: Path) -> None:
    for library in ("onnxscript", *(runtime.library for runtime in BACKENDS.values())):
        pytest.importorskip(library, exc_type=ImportError)
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)

    def load(backend: str = "torch") -> SentenceEncoder:
        return SentenceEncoder.from_pretrained(folder, pooler="MeanPooler", backend=backend)

    before = {backend: load(backend).encode(TEXTS) for backend in BACKENDS}
    tiny.save_bert(folder, seed=1)
    for backend, vectors in before.items():
        assert np.abs(load(backend).encode(TEXTS) - vectors).max() > 0.1
        equal(load(backend), load())
    runtimes.network_graph(load().encoder, (-1,), BACKENDS["onnx"]).write_bytes(b"damaged")  # one for both
    with pytest.warns(UserWarning, match="damaged graph"):
        equal(load("openvino"), load())


@pytest.mark.slow
@backends
def test_the_shell_encodes_by_a_runtime(
    bert: str, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    SentenceEncoder(TransformerEncoder(bert), MeanPooler()).save_pretrained(tmp_path / "model")
    texts = tiny.write_texts(tmp_path / "texts.txt", tiny.TEXTS)
    words = [texts, str(tmp_path / "v.npy"), "--model", str(tmp_path / "model"), "--backend", backend]
    run(["embed", *words, "--dtype", "int8"])
    assert "40 vectors of 16 features" in capsys.readouterr().out
    run(["embed", *words[:-2], "--dtype", "int8"])
    assert "give backend='onnx' or 'openvino'" in capsys.readouterr().err


@pytest.mark.parametrize(("backend", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_runtime_is_named_with_its_command_before_anything_is_made(
    bert: str, monkeypatch: pytest.MonkeyPatch, backend: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(runtimes, "network_graph", None)
    with pytest.raises(
        ImportError, match=rf"{library}, found none .*pip install 'contrastive-text\[{backend}\]'"
    ):
        SentenceEncoder.from_pretrained(bert, pooler="MeanPooler", backend=backend)


@pytest.mark.skipif(sys.platform != "linux", reason="signal stacks are kept on Linux")
def test_networks_of_openvino_leave_the_thread_its_signal_stack(tmp_path: Path) -> None:
    onnx, _ = (pytest.importorskip(name, exc_type=ImportError) for name in ("onnx", "openvino"))
    shape, kind = ["n", "L"], onnx.TensorProto
    names = [onnx.helper.make_tensor_value_info(name, kind.INT64, shape) for name in runtimes.INPUTS]
    out = onnx.helper.make_tensor_value_info("out", kind.INT64, shape)
    add = onnx.helper.make_node("Add", runtimes.INPUTS, ["out"])
    graph = onnx.helper.make_graph([add], "sum", names, [out])
    opset = onnx.helper.make_opsetid("", runtimes.OPSET)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset]), tmp_path / "sum.onnx")
    before = signal_stack()
    ready = [OpenVINORuntime(tmp_path / "sum.onnx", torch.float32) for _ in range(2)]
    ones = np.ones((2, 3), np.int64)
    while ready:
        assert ready[0](ones, ones)[0].tolist() == [[2] * 3] * 2
        del ready[0]  # the first goes first
        after = signal_stack()
        assert (after.start, after.size) == (before.start, before.size)
