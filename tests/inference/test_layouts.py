"""Model folders in every layout of sentence-transformers 6.2: equal vectors, or a refusal with the reason.

A row of ``LAYOUTS`` is a row of the table in ``docs/use.md``. Architectures have a table in a file of their own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from torch import nn
from transformers import AutoModel

from contrastive_text import Run
from contrastive_text.core.manifests import MANIFEST
from contrastive_text.inference.sentence_encoder import SentenceEncoder

EQUAL = 2e-6
"""Largest difference of two libraries' vectors over their largest entry: some ten roundings of float32."""

LONG = " ".join(tiny.TEXTS[:6])
TEXTS = [*tiny.TEXTS[::5], LONG, "The OLD Bird Sings", "a", ""]
"""Texts of all lengths, one longer than every limit, one in capitals, and one without a word."""

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
    """A row of the table.

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

LAYOUTS: dict[str, Layout] = {
    # Pooling
    **{f"pooling {mode}": Layout(saved(pooling(mode))) for mode in MODES},
    **{
        f"pooling {mode}, flags": Layout(
            replaced(
                POOLING,
                {"word_embedding_dimension": 16} | {flag: name == mode for name, flag in FLAGS.items()},
            )
        )
        for mode in MODES
    },
    **{
        f"pooling {first} and {second}": Layout(saved(pooling(first, second)))
        for i, first in enumerate(MODES)
        for second in MODES[i + 1 :]
    },
    "pooling mean and cls, in this order": Layout(saved(pooling("mean", "cls"))),
    "pooling of all modes": Layout(saved(pooling(*reversed(MODES)))),
    "pooling of three modes, flags": Layout(
        replaced(
            POOLING,
            {"word_embedding_dimension": 16}
            | {FLAGS[name]: name in ("lasttoken", "cls", "mean") for name in FLAGS},
        )
    ),
    "pooling without a mode": Layout(replaced(POOLING, {"embedding_dimension": 16})),
    "pooling with every flag false": Layout(
        replaced(POOLING, {"word_embedding_dimension": 16} | dict.fromkeys(FLAGS.values(), False))
    ),
    "pooling of a mode that isn't theirs": Layout(
        replaced(POOLING, {"embedding_dimension": 16, "pooling_mode": "median"}), "pooling_mode.*got median"
    ),
    "pooling of an empty list": Layout(
        replaced(POOLING, {"embedding_dimension": 16, "pooling_mode": []}), "pooling_mode"
    ),
    **{
        f"pooling {mode} without the prompt": Layout(
            saved(pooling(mode, include_prompt=False), prompts=PROMPTS, default_prompt_name="query")
        )
        for mode in MODES
    },
    "pooling max and mean without the prompt": Layout(
        saved(pooling("max", "mean", include_prompt=False), prompts=PROMPTS)
    ),
    # Modules after the pooling
    "Normalize": Layout(saved(MEAN, normalize)),
    "Normalize without a folder": Layout(without_folder),
    "Normalize twice": Layout(saved(MEAN, normalize, normalize)),
    "Dense": Layout(saved(MEAN, dense())),
    "Dense without bias": Layout(saved(MEAN, dense(bias=False))),
    "Dense, activation not named": Layout(
        changed(DENSE, saved(MEAN, dense()), drop=("activation_function", "bias", "module_input_name"))
    ),
    "Dense in pytorch_model.bin": Layout(binary_weights),
    "Dense, Normalize": Layout(saved(MEAN, dense(), normalize)),
    "Normalize, Dense": Layout(saved(MEAN, normalize, dense())),
    "Normalize, Dense, Normalize": Layout(saved(MEAN, normalize, dense(), normalize)),
    "Dense, Dense": Layout(saved(MEAN, dense(16, "GELU"), dense(8, "Identity"))),
    "LayerNorm": Layout(saved(MEAN, layer_norm())),
    "LayerNorm, Normalize": Layout(saved(MEAN, layer_norm(), normalize)),
    "Dense, LayerNorm, Dense, Normalize": Layout(
        saved(MEAN, dense(16), layer_norm(), dense(8, "ReLU"), normalize)
    ),
    "Dropout": Layout(saved(MEAN, dropout)),
    "Dropout, Dense, Dropout, Normalize": Layout(saved(MEAN, dropout, dense(), dropout, normalize)),
    **{
        f"Dense with {name}": Layout(saved(MEAN, dense(12, name), normalize))
        for name in ACTIVATIONS
        if name != "Tanh"
    },
    "Dense with an activation of another package": Layout(
        changed(DENSE, saved(MEAN, dense()), activation_function="evil.Tanh"),
        r"activation_function: expected an activation of torch\.nn.*got .*evil\.Tanh",
    ),
    "Dense with a shortcut": Layout(saved(MEAN, dense(use_residual=True)), "use_residual"),
    "Dense on tokens": Layout(
        saved(MEAN, dense(module_input_name="token_embeddings")), "module_input_name.*token_embeddings"
    ),
    "Dense into another name": Layout(
        saved(MEAN, dense(module_output_name="other")), "module_output_name.*other"
    ),
    "Normalize on tokens": Layout(
        saved(MEAN, lambda st: st.Normalize(module_input_name="token_embeddings")),
        "module_input_name.*token_embeddings",
    ),
    # Modules that have no equal
    **{name: Layout(build, rf"type: .*{name}.*sentence-transformers") for name, build in OTHERS.items()},
    "a class of another package with a known name": Layout(
        typed(f"{BASE}.transformer.Transformer", "evil.Pooling"), r"got evil\.Pooling"
    ),
    "a first class of another package with a known name": Layout(
        typed("evil.Transformer", f"{ST}.pooling.Pooling"), r"type: .*evil\.Transformer"
    ),
    "a class that sentence-transformers doesn't have": Layout(
        typed(f"{BASE}.transformer.Transformer", "sentence_transformers.models.Median"), r"models\.Median"
    ),
    "two modules of one name": Layout(changed(MODULES, name="0"), "name: expected .*'0'"),
    "a Normalize before the pooling": Layout(saved(normalize, MEAN), "Transformer, Normalize, Pooling"),
    # Class paths and places
    "class paths models.X": Layout(
        typed(*(f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling")))
    ),
    "class paths models.X.X": Layout(
        typed(*(f"sentence_transformers.models.{name}.{name}" for name in ("Transformer", "Pooling")))
    ),
    "class paths of packages": Layout(typed(f"{BASE}.Transformer", f"{ST}.Pooling")),
    "0_Transformer": Layout(in_subfolder),
    "a folder of Transformers alone": Layout(no_modules),
    "modules.json without idx": Layout(changed(MODULES, drop=("idx",))),
    "modules.json with kwargs": Layout(changed(MODULES, kwargs=["task"])),
    # Settings of the Transformer
    **{
        f"sentence_{kind}_config.json": Layout(renamed(f"sentence_{kind}_config.json"))
        for kind in ("bert", *OLDER)
    },
    "no settings of the Transformer": Layout(replaced(SETTINGS, {})),
    "max_seq_length 7": Layout(settings(max_seq_length=7)),
    "max_seq_length null": Layout(changed(TOKENIZER, settings(max_seq_length=None), model_max_length=9)),
    "max_seq_length above the tokenizer's": Layout(
        changed(TOKENIZER, settings(max_seq_length=20), model_max_length=9)
    ),
    "do_lower_case": Layout(cased(settings(do_lower_case=True))),
    "a tokenizer with capitals": Layout(cased(settings())),
    "keys that nobody reads": Layout(
        changed("config.json", settings(backend="onnx"), _name_or_path="x", transformers_version="4.1")
    ),
    "model_args": Layout(settings(model_args={"attn_implementation": "eager", "trust_remote_code": True})),
    "model_kwargs of another network": Layout(
        settings(model_kwargs={"num_hidden_layers": 1}), "model_kwargs: .*num_hidden_layers"
    ),
    "model_args of another network": Layout(
        settings(model_args={"num_hidden_layers": 1}), "model_args: .*num_hidden_layers"
    ),
    "tokenizer_args": Layout(settings(tokenizer_args={"model_max_length": 8})),
    "processor_kwargs": Layout(settings(processor_kwargs={"model_max_length": 8}, max_seq_length=None)),
    "processor_kwargs of another tokenizer": Layout(
        settings(processor_kwargs={"add_prefix_space": True}), "processor_kwargs: .*add_prefix_space"
    ),
    "config_args": Layout(settings(config_args={"use_cache": False})),
    "config_kwargs of another network": Layout(
        settings(config_kwargs={"hidden_act": "relu"}), "config_kwargs: .*hidden_act"
    ),
    "processing_kwargs text.max_length": Layout(settings(processing_kwargs={"text": {"max_length": 6}})),
    "processing_kwargs at their defaults": Layout(
        settings(
            processing_kwargs={"text": {"padding": True, "truncation": True}, "image": {"size": 3}, "common": {}}
        )
    ),
    "processing_kwargs without special tokens": Layout(
        settings(processing_kwargs={"text": {"add_special_tokens": False}}),
        "processing_kwargs: text: .*add_special_tokens",
    ),
    "processing_kwargs without truncation": Layout(
        settings(processing_kwargs={"text": {"truncation": False}}), "processing_kwargs: text: .*truncation"
    ),
    "query_length": Layout(settings(query_length=5)),
    "document_length": Layout(settings(document_length=5)),
    "query_length and document_length": Layout(settings(query_length=14, document_length=6)),
    "query_expansion": Layout(settings(query_expansion={"strategy": "fixed", "length": 12}), "query_expansion"),
    "transformer_task": Layout(settings(transformer_task="feature-extraction")),
    "transformer_task fill-mask": Layout(
        settings(transformer_task="fill-mask"), "transformer_task: .*feature-extraction.*fill-mask"
    ),
    "modality_config": Layout(settings(modality_config=TEXT, module_output_name="token_embeddings")),
    "modality_config of the pooler": Layout(
        settings(
            modality_config={"text": {"method": "forward", "method_output_name": "pooler_output"}},
            module_output_name="sentence_embedding",
        ),
        "modality_config: .*pooler_output",
    ),
    "modality_config with messages": Layout(
        settings(
            modality_config=TEXT | {"message": TEXT["text"] | {"format": "flat"}},
            module_output_name="token_embeddings",
        ),
        "modality_config: .*message",
    ),
    "module_output_name of the sentence": Layout(
        settings(modality_config=TEXT, module_output_name="sentence_embedding"), "module_output_name"
    ),
    "unpad_inputs": Layout(settings(unpad_inputs=False)),
    "tokenizer_name_or_path": Layout(settings(tokenizer_name_or_path="other"), "tokenizer_name_or_path"),
    # The tokenizer's own settings
    "truncation_side left": Layout(changed(TOKENIZER, truncation_side="left"), "truncation_side"),
    "padding_side left": Layout(changed(TOKENIZER, padding_side="left"), alone=True),
    "weights in bfloat16": Layout(half, options={"model_kwargs": {"dtype": torch.float32}}),
    # Settings of the model
    "no settings of the model": Layout(replaced(MODEL, {})),
    "prompts": Layout(saved(MEAN, prompts=PROMPTS)),
    "prompts with a default": Layout(saved(MEAN, prompts=PROMPTS | {"sts": "one "}, default_prompt_name="sts")),
    "prompts that are null": Layout(changed(MODEL, prompts={"query": None, "document": "a "})),
    "a default prompt that isn't named": Layout(changed(MODEL, prompts={}, default_prompt_name="query")),
    **{
        f"similarity_fn_name {name}": Layout(changed(MODEL, similarity_fn_name=name))
        for name in ("cosine", "dot", "euclidean", "manhattan", None)
    },
    "similarity_fn_name maxsim": Layout(
        changed(MODEL, similarity_fn_name="maxsim"), "similarity_fn_name: .*maxsim"
    ),
    "truncate_dim": Layout(changed(MODEL, truncate_dim=5)),
    "truncate_dim after Normalize": Layout(changed(MODEL, saved(MEAN, normalize), truncate_dim=5)),
    "model_type SparseEncoder": Layout(changed(MODEL, model_type="SparseEncoder"), "model_type: .*SparseEncoder"),
    "another version and other keys": Layout(
        changed(MODEL, __version__={"sentence_transformers": "2.2.2"}, author="me")
    ),
}


QUICK = ("pooling max and mean without the prompt", "Dense, LayerNorm, Dense, Normalize", "query_length")
"""Rows of the default suite: a pooling, modules and a setting."""
NO_POOLER = "ignore:.* names no pooler:UserWarning"
DIMENSION = "ignore:Implicit dimension choice:UserWarning"  # torch's, of Softmax
PAGE = Path(__file__).parents[2] / "docs" / "use.md"


def rows(refused: bool, quick: tuple[str, ...]) -> list[Any]:  # Any: what parametrize takes
    names = [name for name, layout in LAYOUTS.items() if bool(layout.refused) is refused]
    return rest_slow([*quick, *(name for name in names if name not in quick)], quick=len(quick))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


def vectors(model: Any, batch_size: int = len(TEXTS)) -> dict[str, Any]:  # Any: float32
    """Returns the vectors of the texts, of queries and of documents, by the name of the method."""
    methods = {"encode": model.encode, "query": model.encode_query, "document": model.encode_document}
    return {
        name: np.asarray(encode(TEXTS, batch_size=batch_size, show_progress_bar=False))
        for name, encode in methods.items()
    }


def check_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, those in expected.items():
        assert found[name].shape == those.shape, name
        assert float(np.abs(found[name] - those).max()) <= EQUAL * max(float(np.abs(those).max()), 1.0), name


def files(folder: Path) -> dict[str, Any]:  # Any: JSON, or bytes
    """Returns the content of a saved model's files, but for the model card and the list of digests."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("README.md", MANIFEST)]
    return {
        str(path.relative_to(folder)): json.loads(path.read_bytes())
        if path.suffix == ".json"
        else path.read_bytes()
        for path in paths
    }


@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize("name", rows(refused=False, quick=QUICK))
def test_a_layout_has_equal_vectors_loaded_and_saved(bert: str, tmp_path: Path, name: str) -> None:
    layout, (given, one, two) = LAYOUTS[name], [tmp_path / part for part in ("given", "one", "two")]
    given.mkdir()
    layout.build(given, bert)
    peer = theirs().SentenceTransformer(str(given), device="cpu", **layout.options)
    expected = vectors(peer, batch_size=1 if layout.alone else len(TEXTS))
    ours = SentenceEncoder.from_pretrained(given)
    found = vectors(ours)
    check_equal(found, expected)
    pairs = [
        model.similarity(each["query"], each["document"]) for model, each in ((peer, expected), (ours, found))
    ]
    # The Manhattan distance sums some twenty entries, a dot product their squares.
    torch.testing.assert_close(pairs[1], pairs[0], rtol=1e-5, atol=1e-5)
    ours.save_pretrained(one)
    loaded = SentenceEncoder.from_pretrained(one)
    assert all(np.array_equal(those, found[kind]) for kind, those in vectors(loaded).items())
    assert loaded.identity == ours.identity and loaded.similarity_fn_name == ours.similarity_fn_name
    again = theirs().SentenceTransformer(str(one), device="cpu")
    check_equal(vectors(again), expected)
    assert again.similarity_fn_name == peer.similarity_fn_name
    loaded.save_pretrained(two)
    assert files(one) == files(two)


@pytest.mark.parametrize("name", rows(refused=True, quick=("a class of another package with a known name",)))
def test_a_layout_without_an_equal_is_refused_by_its_name(bert: str, tmp_path: Path, name: str) -> None:
    LAYOUTS[name].build(tmp_path, bert)
    with pytest.raises(ValueError, match=LAYOUTS[name].refused):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if not layout.refused])
def test_a_layout_trains(bert: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    LAYOUTS[name].build(folder, bert)
    run = Run.from_recipe(
        "simcse",
        encoder=str(folder),
        train=tiny.write_texts(tmp_path / "texts.txt"),
        batch_size=8,
        max_steps=1,
        folder=str(tmp_path / "run"),
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
    )
    run.fit()
    assert run.trainer.global_step == 1
