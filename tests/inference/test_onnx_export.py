"""Exported graphs, run by onnxruntime, against the models they come from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import architectures
import numpy as np
import pytest
import tiny
import torch
from covering import turn_of
from tokenizers import Tokenizer
from torch import Tensor, nn

from contrastive_text.core.batch import Hidden
from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.encoders import Encoder, TransformerEncoder
from contrastive_text.inference.onnx_export import export_onnx
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import (
    CLSPooler,
    FirstLastPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MaxPooler,
    MeanPooler,
    Pooler,
    WeightedMeanPooler,
)
from contrastive_text.runs.verification import verify

# float32: other kernels add in another order. Vectors have entries of size 1.
ROUNDING = 1e-5
POOLERS = (
    MeanPooler(),
    CLSPooler(),
    MaxPooler(),
    LastTwoPooler(),
    FirstLastPooler("embeddings"),
    FirstLastPooler("block_1"),
    LastTokenPooler(),
    WeightedMeanPooler(),
)
SAME_GRAPHS = {"bert", "xlm-roberta", "electra-equal", "qwen2"}
"""Architectures of the graphs of others: every pooler's, RoBERTa's, ELECTRA's, Llama's."""
LONG = " ".join(tiny.TEXTS)  # far above the tiny encoder's 32 tokens


class Every(Pooler):
    """All poolers side by side: one export is enough to try them."""

    layers = (-1, -2, 0, 1)

    def forward(self, hidden: Hidden) -> Tensor:
        return torch.cat([pooler(hidden) for pooler in POOLERS], dim=1)


class OtherInGraphs(Pooler):
    """A pooler that an exporter gets wrong."""

    def forward(self, hidden: Hidden) -> Tensor:
        return hidden.layers[-1][:, 0] * (1.01 if torch.compiler.is_exporting() else 1.0)


class Reading(Pooler):
    """A pooler that reads values in Python, which no graph can."""

    def forward(self, hidden: Hidden) -> Tensor:
        return torch.stack([hidden.layers[-1][0, i - 1] for i in hidden.mask.sum(dim=1).tolist()])


@pytest.fixture(scope="module", autouse=True)
def extra() -> None:
    """Skips all without the extra; imports it here, for every worker of a run collects this file."""
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")


@pytest.fixture(scope="module")
def every(bert: str) -> SentenceEncoder:
    """A model in training mode with all poolers."""
    return SentenceEncoder(TransformerEncoder(bert), Every()).train()


@pytest.fixture(scope="module")
def graph(every: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its graph."""
    folder = tmp_path_factory.mktemp("new") / "graph"
    exported = export_onnx(every, folder)
    assert exported.features == len(POOLERS) * 16
    assert exported.inputs == ("input_ids", "attention_mask")  # the learned tokenizer gives no types
    assert exported.difference < ROUNDING
    return folder


def run(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    """Encodes texts with the exported files, as a user's program does."""
    import onnxruntime

    rows = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    values = {
        "input_ids": [row.ids for row in rows],
        "attention_mask": [row.attention_mask for row in rows],
        "token_type_ids": [row.type_ids for row in rows],
    }
    inputs = {each.name: np.array(values[each.name]) for each in session.get_inputs()}
    (vectors,) = session.run(["sentence_embedding"], inputs)
    return np.asarray(vectors)


def check(model: SentenceEncoder, folder: Path) -> None:
    """Holds the graph against the model for batches of other sizes and lengths than the exporter saw."""
    for texts in (["bird"], ["the old bird", "", LONG], list(tiny.TEXTS), [LONG], tiny.TEXTS[4:6]):
        np.testing.assert_allclose(run(folder, list(texts)), model.encode(texts), rtol=0, atol=ROUNDING)


def check_without_torch(every: SentenceEncoder, graph: Path, folder: Path) -> None:
    """Runs a graph in a process that imports neither torch nor this library."""
    shutil.copytree(graph, folder, dirs_exist_ok=True)
    program = (
        "import sys, numpy as np, onnxruntime\n"
        "from tokenizers import Tokenizer\n"
        "rows = Tokenizer.from_file('tokenizer.json').encode_batch(['the old bird', 'bird'])\n"
        "lists = [row.ids for row in rows], [row.attention_mask for row in rows]\n"
        "inputs = dict(zip(('input_ids', 'attention_mask'), map(np.array, lists)))\n"
        "session = onnxruntime.InferenceSession('model.onnx')\n"
        "(vectors,) = session.run(None, inputs)\n"
        "assert not {'torch', 'transformers', 'contrastive_text'} & set(sys.modules)\n"
        "np.save('vectors.npy', vectors)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=120)
    expected = every.encode(["the old bird", "bird"])
    np.testing.assert_allclose(np.load(folder / "vectors.npy"), expected, rtol=0, atol=ROUNDING)


@pytest.mark.slow
def test_every_pooler_gives_its_vectors_for_all_sizes_of_a_batch_and_without_torch(
    every: SentenceEncoder, graph: Path, tmp_path: Path
) -> None:
    check(every, graph)
    assert every.encoder.model.training  # and still packs its rows, or the vectors above would be others
    assert sorted(path.name for path in graph.parent.iterdir()) == ["graph"]
    found = list(verify(graph))
    assert {each.path.name for each in found if each.has_digest} >= {"model.onnx", "tokenizer.json", MANIFEST}
    assert all(each.has_digest and each.damage is None for each in found)
    check_without_torch(every, graph, tmp_path)


@pytest.mark.slow
def test_an_export_leaves_no_second_class_of_the_encoder(bert: str, tmp_path: Path) -> None:
    # A second class of one name would make the short name of the encoder ambiguous in a later configuration.
    export_onnx(SentenceEncoder.from_pretrained(bert, pooler="MeanPooler", device="cpu"), tmp_path / "onnx")
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in Encoder.__subclasses__()]
    assert len(names) == len({*names})


@pytest.mark.slow
def test_head_unit_length_truncation_limit_types_and_opset_are_in_the_files(bert: str, tmp_path: Path) -> None:
    import onnx

    torch.manual_seed(0)
    model = SentenceEncoder(
        TransformerEncoder(bert),
        MeanPooler(),
        head=nn.Sequential(nn.Linear(16, 12), nn.Tanh()),
        normalize=True,
        max_length=9,
        truncate_dim=7,
    )
    model.encoder.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    exported = export_onnx(model.to(torch.bfloat16), tmp_path, opset=20)
    assert exported[:2] == (("input_ids", "attention_mask", "token_type_ids"), 7)
    check(model.float(), tmp_path)
    shapes = [
        len(row.ids) for row in Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode_batch(["a", LONG])
    ]
    assert shapes == [9, 9]
    assert [each.version for each in onnx.load(tmp_path / "model.onnx").opset_import if not each.domain] == [20]
    with pytest.raises(ValueError, match="that the graph can be converted to, got 11; take 18"):
        export_onnx(model, tmp_path, opset=11)


@pytest.mark.slow
@pytest.mark.parametrize("name", turn_of(sorted({*architectures.NAMES} - SAME_GRAPHS), 3))
def test_each_architecture(bert: str, tmp_path: Path, name: str) -> None:
    # The learned tokenizer's padding is 0; RoBERTa counts positions past all of that id, whatever it stands for.
    config = {**architectures.CONFIGS[name], "vocab_size": 300, "pad_token_id": 0}
    torch.manual_seed(0)
    model = SentenceEncoder(TransformerEncoder(config=config, tokenizer_name_or_path=bert), MeanPooler())
    export_onnx(model, tmp_path)
    check(model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooler", "words"),
    [
        (OtherInGraphs(), r"to 1e-05 of the largest feature, got a difference of 1\.0e-02"),
        (Reading(), "expected a network that torch exports at opset 18, got TorchExportError"),
    ],
)
def test_a_graph_with_other_vectors_or_none_is_not_kept(
    bert: str, tmp_path: Path, pooler: Pooler, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        export_onnx(SentenceEncoder(TransformerEncoder(bert, layout="padded"), pooler), tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_before_anything_is_written(bert: str, tmp_path: Path) -> None:
    model = SentenceEncoder(TransformerEncoder(bert), MeanPooler())
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "out").write_text("kept")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for folder, opset, words in (
        ("out", 18, "expected a folder, got the file"),
        ("model/../model", 18, "expected a folder without a model, got .*, whose tokenizer would be"),
        ("graph", 0, "that the graph can be converted to, got 0; take 18"),
        ("graph", 999, "that the graph can be converted to, got 999; take 18"),
    ):
        with pytest.raises(ValueError, match=words):
            export_onnx(model, tmp_path / folder, opset=opset)
    model.pooler = MaskTokenPooler()
    with pytest.raises(ValueError, match="got MaskTokenPooler, which reads the template"):
        export_onnx(model, tmp_path / "graph")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
