"""Model folders in every layout of sentence-transformers 6.2: equal vectors, or a refusal with the reason.

The folders are written by its classes with tiny weights. Each of ``GROUPS`` is a row of the table in
``docs/model_folders.md``. Here are the modules of a folder, in ``test_layout_settings`` its settings.
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
from safetensors.torch import load_file
from torch import nn

from contrastive_text import Run
from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.inference.sentence_encoder import SentenceEncoder

EQUAL = 2e-6
"""Largest difference of two libraries' vectors over their largest entry: some ten roundings of float32."""

LONG = " ".join(tiny.TEXTS[:6])
TEXTS = [*tiny.TEXTS[::5], LONG, "The OLD Bird Sings", "a", ""]
"""Texts of all lengths, one longer than every limit, one in capitals, and one without a word."""

NO_POOLER = "ignore:.* names no pooler:UserWarning"
DIMENSION = "ignore:Implicit dimension choice:UserWarning"  # torch's, of Softmax
SETTINGS, MODEL, MODULES = "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
FLAGS = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
MODES = tuple(FLAGS)
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


def normalize(st: Any) -> Any:
    return st.Normalize()


def dropout(st: Any) -> Any:
    return st.Dropout(0.5)


MEAN = pooling("mean")
PLAIN = saved(MEAN)


def then(build: Build, change: Callable[[Path], object]) -> Build:
    """Returns what writes the folder and then changes it."""
    return lambda folder, bert: (build(folder, bert), change(folder))


def read(path: Path) -> Any:  # Any: JSON
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def changed(file: str, build: Build = PLAIN, drop: tuple[str, ...] = (), **values: object) -> Build:
    """Returns what writes the folder and then changes keys of one of its files, or of each module in a list."""

    def change(folder: Path) -> None:
        content = read(folder / file)
        for record in content if isinstance(content, list) else [content]:
            record.update(values)
            for key in drop:
                record.pop(key, None)
        (folder / file).write_text(json.dumps(content), encoding="utf-8")

    return then(build, change)


def replaced(file: str, content: object) -> Build:
    """Returns what writes the folder with another content of one file."""
    return then(PLAIN, lambda folder: (folder / file).write_text(json.dumps(content), encoding="utf-8"))


def flags(*modes: str) -> dict[str, object]:
    """Returns the settings of a pooling as older versions write them."""
    return {"word_embedding_dimension": 16} | {flag: name in modes for name, flag in FLAGS.items()}


def settings(**values: object) -> Build:
    """Returns what writes a folder whose Transformer has these settings, in the form of older versions."""
    return replaced(SETTINGS, {"max_seq_length": 10, "do_lower_case": False} | values)


def typed(*paths: str) -> Build:
    """Returns what writes the folder with other class paths."""

    def rename(folder: Path) -> None:
        modules = [{**module, "type": path} for module, path in zip(read(folder / MODULES), paths, strict=True)]
        (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")

    return then(PLAIN, rename)


def to_subfolder(folder: Path) -> None:
    """Moves the network into ``0_Transformer/``, as versions before 1.0 have it."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    outside = (MODULES, MODEL, "README.md")
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in outside]:
        path.rename(inner / path.name)
    modules = read(folder / MODULES)
    modules[0]["path"] = inner.name
    (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")


def to_binary(folder: Path) -> None:
    """Writes the weights of a Dense layer in the format before safetensors."""
    path = folder / "2_Dense" / "model.safetensors"
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()


BASE, ST = "sentence_transformers.base.modules", "sentence_transformers.sentence_transformer.modules"
SPARSE, MANY = (
    "sentence_transformers.sparse_encoder.modules",
    "sentence_transformers.multi_vector_encoder.modules",
)
FIRST = (
    f"{ST}.bow.BoW", f"{ST}.word_embeddings.WordEmbeddings",
    "sentence_transformers.models.Asym", f"{ST}.clip_model.CLIPModel",
    f"{SPARSE}.sparse_static_embedding.SparseStaticEmbedding",
)  # fmt: skip
LATER = (
    f"{ST}.weighted_layer_pooling.WeightedLayerPooling", f"{ST}.cnn.CNN", f"{ST}.lstm.LSTM",
    f"{ST}.word_weights.WordWeights", f"{SPARSE}.sparse_auto_encoder.SparseAutoEncoder",
    f"{MANY}.multi_vector_mask.MultiVectorMask",
    f"{MANY}.token_pooling.HierarchicalTokenPooling", f"{MANY}.token_pooling.LambdaTokenPooling",
)  # fmt: skip
OTHERS = {
    **{path.rpartition(".")[2]: typed(path, f"{ST}.pooling.Pooling") for path in FIRST},
    **{path.rpartition(".")[2]: typed(f"{BASE}.transformer.Transformer", path) for path in LATER},
}
"""Modules of sentence-transformers that have no equal here."""

POOLINGS: dict[str, dict[str, Layout | Build]] = {
    "`Pooling` in each of its six modes": {f"pooling {mode}": saved(pooling(mode)) for mode in MODES},
    "`Pooling` by the flags of older versions, one, three or none of them": {
        **{f"flag of {mode}": replaced(POOLING, flags(mode)) for mode in MODES},
        "flags of three modes": replaced(POOLING, flags("lasttoken", "cls", "mean")),
        "every flag false": replaced(POOLING, flags()),
        "no mode": replaced(POOLING, {"embedding_dimension": 16}),
    },
    "`Pooling` in two modes, or all, in their order": {
        "pooling cls and mean": saved(pooling("cls", "mean")),
        "pooling mean and cls": saved(pooling("mean", "cls")),
        "pooling of all modes": saved(pooling(*reversed(MODES))),
    },
    "`include_prompt: false`, in each mode and in two": {
        **{
            f"pooling {mode} without the prompt": saved(
                pooling(mode, include_prompt=False), prompts=PROMPTS, default_prompt_name="query"
            )
            for mode in MODES
        },
        "pooling max and mean without the prompt": saved(
            pooling("max", "mean", include_prompt=False), prompts=PROMPTS
        ),
    },
    "`pooling_mode`: another name, or none": {
        "pooling median": Layout(
            replaced(POOLING, {"embedding_dimension": 16, "pooling_mode": "median"}), "pooling_mode: .*got median"
        ),
        "pooling of an empty list": Layout(
            replaced(POOLING, {"embedding_dimension": 16, "pooling_mode": []}), "pooling_mode: .*got no mode"
        ),
    },
}
LAYERS: dict[str, dict[str, Layout | Build]] = {
    "`Dense`: with and without bias, without an activation's name, in `pytorch_model.bin`": {
        "Dense": saved(MEAN, dense()),
        "Dense without bias": saved(MEAN, dense(bias=False)),
        "Dense, activation not named": changed(
            DENSE, saved(MEAN, dense()), drop=("activation_function", "bias", "module_input_name")
        ),
        "Dense in pytorch_model.bin": then(saved(MEAN, dense()), to_binary),
    },
    "`Dense` with each activation of `torch.nn` that needs no arguments": {
        f"Dense with {name}": saved(MEAN, dense(12, name), normalize) for name in ACTIVATIONS
    },
    "`Normalize`, also without its empty folder": {
        "Normalize": saved(MEAN, normalize),
        "Normalize without a folder": then(
            saved(MEAN, normalize), lambda folder: shutil.rmtree(folder / "2_Normalize")
        ),
    },
    "`LayerNorm`": {"LayerNorm": saved(MEAN, layer_norm())},
    "`Dropout`": {"Dropout": saved(MEAN, dropout)},
    "`Dense`, `LayerNorm`, `Dropout`, `Normalize` in other orders, and several of each": {
        "Normalize, Dense": saved(MEAN, normalize, dense()),
        "Normalize, Dense, Normalize": saved(MEAN, normalize, dense(), normalize),
        "LayerNorm, Normalize": saved(MEAN, layer_norm(), normalize),
        "Dense, LayerNorm, Dense, Normalize": saved(MEAN, dense(16), layer_norm(), dense(8, "ReLU"), normalize),
        "Dropout, Dense, Dropout, Normalize": saved(MEAN, dropout, dense(), dropout, normalize),
    },
    "`activation_function` of another package": {
        "Dense with an activation of another package": Layout(
            changed(DENSE, saved(MEAN, dense()), activation_function="evil.Tanh"),
            r"activation_function: expected an activation of torch\.nn.*got .*evil\.Tanh",
        )
    },
    "`use_residual`": {
        "Dense with a shortcut": Layout(saved(MEAN, dense(use_residual=True)), "use_residual: expected false")
    },
    "`module_input_name`, `module_output_name` other than the sentence's vector": {
        "Dense on tokens": Layout(
            saved(MEAN, dense(module_input_name="token_embeddings")), "module_input_name: .*token_embeddings"
        ),
        "Dense into another name": Layout(
            saved(MEAN, dense(module_output_name="other")), "module_output_name: .*other"
        ),
        "Normalize on tokens": Layout(
            saved(MEAN, lambda st: st.Normalize(module_input_name="token_embeddings")),
            "module_input_name: .*token_embeddings",
        ),
    },
    f"{', '.join(f'`{name}`' for name in OTHERS)}": {
        name: Layout(build, rf"type: .*{name}.*load this model with sentence-transformers")
        for name, build in OTHERS.items()
    },
    "a class outside sentence-transformers, also one named `Pooling`, or one that it doesn't have": {
        "a class of another package with a known name": Layout(
            typed(f"{BASE}.transformer.Transformer", "evil.Pooling"), r"got evil\.Pooling"
        ),
        "a first class of another package with a known name": Layout(
            typed("evil.Transformer", f"{ST}.pooling.Pooling"), r"type: .*evil\.Transformer"
        ),
        "a class that sentence-transformers doesn't have": Layout(
            typed(f"{BASE}.transformer.Transformer", "sentence_transformers.models.Median"), r"models\.Median"
        ),
    },
    "another order of modules, or two of one name": {
        "two modules of one name": Layout(changed(MODULES, name="0"), "name: expected .*'0'"),
        "a Normalize before the pooling": Layout(saved(normalize, MEAN), "got Transformer, Normalize, Pooling"),
    },
}
PLACES: dict[str, dict[str, Layout | Build]] = {
    "class paths `models.X`, `models.X.X`, of packages and of 6.2": {
        "class paths models.X": typed(
            *(f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling"))
        ),
        "class paths models.X.X": typed(
            *(f"sentence_transformers.models.{name}.{name}" for name in ("Transformer", "Pooling"))
        ),
        "class paths of packages": typed(f"{BASE}.Transformer", f"{ST}.Pooling"),
    },
    "`0_Transformer/`": {"0_Transformer": then(PLAIN, to_subfolder)},
    "`modules.json` without `idx`, with `kwargs`": {
        "modules.json without idx": changed(MODULES, drop=("idx",)),
        "modules.json with kwargs": changed(MODULES, kwargs=["task"]),
    },
    "a folder of Transformers alone, read with the mean": {
        "a folder of Transformers alone": Layout(
            lambda folder, bert: shutil.copytree(bert, folder, dirs_exist_ok=True)
        )
    },
    "`sentence_bert_config.json`, its six older names, or none": {
        **{
            f"sentence_{kind}_config.json": then(
                settings(max_seq_length=7),
                lambda folder, kind=kind: (folder / SETTINGS).rename(folder / f"sentence_{kind}_config.json"),
            )
            for kind in ("bert", *OLDER)
        },
        "no settings of the Transformer": replaced(SETTINGS, {}),
    },
}
Groups = dict[str, dict[str, Layout]]


def grouped(groups: Mapping[str, Mapping[str, Layout | Build]]) -> Groups:
    return {
        row: {name: each if isinstance(each, Layout) else Layout(each) for name, each in group.items()}
        for row, group in groups.items()
    }


GROUPS = grouped(POOLINGS | LAYERS | PLACES)
"""A row of the documented table -> its layouts; all of a row load, or none."""
LAYOUTS = {name: layout for group in GROUPS.values() for name, layout in group.items()}


def names(groups: Groups, refused: bool, *quick: str) -> list[Any]:  # Any: what parametrize takes
    """Returns the names of the layouts that load, or are refused, all but the quick ones marked as slow."""
    those = [
        name for group in groups.values() for name, layout in group.items() if bool(layout.refused) is refused
    ]
    return rest_slow([*quick, *(name for name in those if name not in quick)], quick=len(quick))


def first_names(groups: Groups) -> list[str]:
    """Returns the first layout of each group that loads, but one, which tests/training has."""
    firsts = [next(iter(group.items())) for group in groups.values()]
    return [name for name, layout in firsts if not layout.refused and name != "0_Transformer"]


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


def check_loaded_and_saved(layout: Layout, bert: str, place: Path) -> None:
    """Compares the vectors of a layout with those of sentence-transformers, loaded and saved again."""
    given, one, two = (place / part for part in ("given", "one", "two"))
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
    assert all(np.array_equal(each, found[kind]) for kind, each in vectors(loaded).items())
    assert loaded.identity == ours.identity and loaded.similarity_fn_name == ours.similarity_fn_name
    again = theirs().SentenceTransformer(str(one), device="cpu")
    check_equal(vectors(again), expected)
    assert again.similarity_fn_name == peer.similarity_fn_name
    loaded.save_pretrained(two)
    assert files(one) == files(two)


def check_refused(layout: Layout, bert: str, folder: Path) -> None:
    layout.build(folder, bert)
    with pytest.raises(ValueError, match=layout.refused):
        SentenceEncoder.from_pretrained(folder)


def check_trained(layout: Layout, bert: str, place: Path, length: int = 5) -> None:
    """Takes a step from a layout, on texts of some tokens."""
    folder = place / "model"
    folder.mkdir()
    layout.build(folder, bert)
    run = Run.from_recipe(
        "simcse",
        encoder=str(folder),
        train=tiny.write_texts(place / "texts.txt"),
        batch_size=8,
        max_steps=1,
        folder=str(place / "run"),
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        num_workers=0,
        config={"model.encoder.max_length": length},
    )
    run.fit()
    assert run.trainer.global_step == 1


QUICK = ("pooling max and mean without the prompt", "Dense, LayerNorm, Dense, Normalize")


@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize("name", names(GROUPS, False, *QUICK))
def test_a_layout_has_equal_vectors_loaded_and_saved(bert: str, tmp_path: Path, name: str) -> None:
    check_loaded_and_saved(LAYOUTS[name], bert, tmp_path)


@pytest.mark.parametrize("name", names(GROUPS, True, "a class of another package with a known name"))
def test_a_layout_without_an_equal_is_refused_by_its_name(bert: str, tmp_path: Path, name: str) -> None:
    check_refused(LAYOUTS[name], bert, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings(NO_POOLER, DIMENSION)
@pytest.mark.parametrize(
    "name", [name for name in first_names(GROUPS) if name != "0_Transformer"]
)  # tests/training has it
def test_a_layout_trains(bert: str, tmp_path: Path, name: str) -> None:
    check_trained(LAYOUTS[name], bert, tmp_path, length=9 if "prompt" in name else 5)
