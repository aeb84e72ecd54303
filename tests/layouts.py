"""Builders of model folders in the layouts of sentence-transformers 6.2, by its classes and tiny weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import AutoModel

SETTINGS, MODEL, MODULES = "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"
TOKENIZER, POOLING, DENSE = "tokenizer_config.json", "1_Pooling/config.json", "2_Dense/config.json"
OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax",
    "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
)  # fmt: skip
"""The activations of ``torch.nn`` that are made without arguments and take a matrix."""
PROMPTS = {"query": "the old ", "document": "a young bird "}

Build = Callable[[Path, str], object]
"""Writes a folder; the text names the folder of the tiny BERT."""
Part = Callable[[Any], nn.Module]
"""From sentence-transformers' modules to one of them."""


@dataclass(frozen=True)
class Layout:
    """A model folder in one layout.

    Args:
        build: Writes the folder.
        refused: Pattern of the refusal; empty if the folder loads.
        options: Arguments with which sentence-transformers loads it.
        alone: Whether sentence-transformers takes each text alone, because others in the batch change its vector.
    """

    build: Build
    refused: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


def theirs() -> SimpleNamespace:
    """Returns sentence-transformers' names."""
    pytest.importorskip("sentence_transformers", minversion="6.2", reason="the layouts are those of 6.2")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    names = {name: vars(modules)[name] for name in modules.__all__}
    return SimpleNamespace(SentenceTransformer=SentenceTransformer, **names)


def saved(*parts: Part, **options: Any) -> Build:
    """Returns what saves a model of the tiny BERT and these modules by sentence-transformers itself."""

    def build(folder: Path, bert: str) -> None:
        st = theirs()
        torch.manual_seed(0)
        modules = [st.Transformer(bert, max_seq_length=10), *(part(st) for part in parts)]
        st.SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder))

    return build


def pooling(*modes: str, include_prompt: bool = True) -> Part:
    return lambda st: st.Pooling(16, pooling_mode=modes, include_prompt=include_prompt)


def dense(width: int = 12, activation: str = "Tanh", **options: Any) -> Part:
    return lambda st: st.Dense(16, width, activation_function=getattr(nn, activation)(), **options)


def layer_norm(width: int = 16) -> Part:
    def make(st: Any) -> nn.Module:
        layer: nn.Module = st.LayerNorm(width)
        for weight in layer.parameters():
            nn.init.normal_(weight)
        return layer

    return make


def normalize(st: Any) -> nn.Module:
    layer: nn.Module = st.Normalize()
    return layer


def dropout(st: Any) -> nn.Module:
    layer: nn.Module = st.Dropout(0.5)
    return layer


MEAN = pooling("mean")
PLAIN = saved(MEAN)


def changed(file: str, build: Build = PLAIN, drop: tuple[str, ...] = (), **values: object) -> Build:
    """Returns what writes the folder and then changes keys of one of its files, or of each module in a list."""

    def change(folder: Path, bert: str) -> None:
        build(folder, bert)
        path = folder / file
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for record in content if isinstance(content, list) else [content]:
            record.update(values)
            for key in drop:
                record.pop(key, None)
        path.write_text(json.dumps(content), encoding="utf-8")

    return change


def replaced(file: str, content: object, build: Build = PLAIN) -> Build:
    """Returns what writes the folder with another content of one file."""

    def replace(folder: Path, bert: str) -> None:
        build(folder, bert)
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(content), encoding="utf-8")

    return replace


def flags(*modes: str) -> dict[str, object]:
    """Returns the settings of a pooling as older versions write them."""
    return {"word_embedding_dimension": 16} | {flag: name in modes for name, flag in FLAGS.items()}


def settings(**values: object) -> Build:
    """Returns what writes a folder whose Transformer has these settings, in the form of older versions."""
    return replaced(SETTINGS, {"max_seq_length": 10, "do_lower_case": False} | values)


def renamed(name: str) -> Build:
    """Returns what writes the Transformer's settings under an older name."""

    def rename(folder: Path, bert: str) -> None:
        settings(max_seq_length=7)(folder, bert)
        (folder / SETTINGS).rename(folder / name)

    return rename


def typed(*paths: str, build: Build = PLAIN) -> Build:
    """Returns what writes the folder with other class paths."""

    def rename(folder: Path, bert: str) -> None:
        build(folder, bert)
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        for module, path in zip(modules, paths, strict=True):
            module["type"] = path
        (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")

    return rename


def in_subfolder(folder: Path, bert: str) -> None:
    """Writes the network into ``0_Transformer/``, as versions before 1.0 did."""
    PLAIN(folder, bert)
    inner = folder / "0_Transformer"
    inner.mkdir()
    outside = (MODULES, MODEL, "README.md")
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in outside]:
        path.rename(inner / path.name)
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    modules[0]["path"] = inner.name
    (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")


def cased(build: Build) -> Build:
    """Returns what writes the folder with a tokenizer that keeps capitals."""

    def keep(folder: Path, bert: str) -> None:
        build(folder, bert)
        path = folder / "tokenizer.json"
        described = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**described, "normalizer": None}), encoding="utf-8")

    return keep


def binary_weights(folder: Path, bert: str) -> None:
    """Writes a Dense layer in the format before safetensors."""
    from safetensors.torch import load_file

    saved(MEAN, dense())(folder, bert)
    path = folder / "2_Dense" / "model.safetensors"
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()


def no_modules(folder: Path, bert: str) -> None:
    """Copies the plain folder of Transformers."""
    shutil.copytree(bert, folder, dirs_exist_ok=True)


def listed(place: int, path: str) -> Build:
    """Returns what writes a folder that lists another class, as its first module or as one more."""

    def build(folder: Path, bert: str) -> None:
        PLAIN(folder, bert)
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        if place == 0:
            modules[0]["type"] = path
        else:
            (folder / "9_Other").mkdir()
            modules.insert(place, {"idx": place, "name": "other", "path": "9_Other", "type": path})
        (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")

    return build


def other(*parts: Part) -> Build:
    """Returns what saves a model of these modules alone by sentence-transformers itself."""

    def build(folder: Path, bert: str) -> None:  # noqa: ARG001  # a model without a Transformer
        st = theirs()
        st.SentenceTransformer(modules=[part(st) for part in parts], device="cpu").save(str(folder))

    return build


def words(st: Any) -> nn.Module:
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    module: nn.Module = st.WordEmbeddings(WhitespaceTokenizer(["bird", "dog"]), torch.ones(2, 16).numpy())
    return module


def static(st: Any) -> nn.Module:
    tokenizer = tiny.learn_vocabulary(tiny.TEXTS, vocabulary_size=300)
    module: nn.Module = st.StaticEmbedding(tokenizer, embedding_dim=8)
    return module


def routed(folder: Path, bert: str) -> None:
    """Writes a model with a network for queries and one for documents."""
    st = theirs()
    sides = [[st.Transformer(bert), st.Pooling(16)] for _ in range(2)]
    st.SentenceTransformer(modules=[st.Router.for_query_document(*sides)], device="cpu").save(str(folder))


def without_folder(folder: Path, bert: str) -> None:
    """Writes a Normalize whose empty folder is lost, as git loses it."""
    saved(MEAN, normalize)(folder, bert)
    shutil.rmtree(folder / "2_Normalize")


def half(folder: Path, bert: str) -> None:
    """Writes the weights in bfloat16."""
    PLAIN(folder, bert)
    AutoModel.from_pretrained(folder, add_pooling_layer=False).bfloat16().save_pretrained(folder)


ST, BASE = "sentence_transformers.sentence_transformer.modules", "sentence_transformers.base.modules"
SPARSE, MANY = (
    "sentence_transformers.sparse_encoder.modules",
    "sentence_transformers.multi_vector_encoder.modules",
)
OTHERS: dict[str, Build] = {
    "BoW": other(lambda st: st.BoW(["bird", "dog"])),
    "WordEmbeddings": other(words, pooling("mean")),
    "StaticEmbedding": other(static),
    "Router": routed,
    "Asym": listed(0, "sentence_transformers.models.Asym"),
    "CLIPModel": listed(0, f"{ST}.clip_model.CLIPModel"),
    "MLMTransformer": listed(0, f"{SPARSE}.mlm_transformer.MLMTransformer"),
    "SparseStaticEmbedding": listed(0, f"{SPARSE}.sparse_static_embedding.SparseStaticEmbedding"),
    "WeightedLayerPooling": saved(lambda st: st.WeightedLayerPooling(16, 2, layer_start=1), MEAN),
    "CNN": saved(lambda st: st.CNN(16, 8, [1, 3]), MEAN),
    "LSTM": saved(lambda st: st.LSTM(16, 8), MEAN),
    "WordWeights": saved(lambda st: st.WordWeights(["bird"], {"bird": 2.0}), MEAN),
    "SpladePooling": listed(1, f"{SPARSE}.splade_pooling.SpladePooling"),
    "SparseAutoEncoder": listed(2, f"{SPARSE}.sparse_auto_encoder.SparseAutoEncoder"),
    "MultiVectorMask": listed(1, f"{MANY}.multi_vector_mask.MultiVectorMask"),
    "HierarchicalTokenPooling": listed(1, f"{MANY}.token_pooling.HierarchicalTokenPooling"),
    "LambdaTokenPooling": listed(1, f"{MANY}.token_pooling.LambdaTokenPooling"),
}
"""Modules of sentence-transformers that have no equal here."""
TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
