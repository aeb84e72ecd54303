"""Model folders in every layout of sentence-transformers 6.2, written by its classes with tiny weights.

Each of ``GROUPS`` is a row of the table in ``docs/model_folders.md``. ``model_families`` has the architectures.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel

SETTINGS, MODEL, MODULES = "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"
TOKENIZER, POOLING, DENSE = "tokenizer_config.json", "1_Pooling/config.json", "2_Dense/config.json"
OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
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


def to_half(folder: Path) -> None:
    AutoModel.from_pretrained(folder, add_pooling_layer=False).bfloat16().save_pretrained(folder)


def cased(build: Build) -> Build:
    """Returns what writes the folder with a tokenizer that keeps capitals."""
    return changed("tokenizer.json", build, normalizer=None)


BASE, ST = "sentence_transformers.base.modules", "sentence_transformers.sentence_transformer.modules"
SPARSE, MANY = (
    "sentence_transformers.sparse_encoder.modules",
    "sentence_transformers.multi_vector_encoder.modules",
)
FIRST = (
    f"{ST}.bow.BoW", f"{ST}.word_embeddings.WordEmbeddings", f"{ST}.static_embedding.StaticEmbedding",
    f"{BASE}.router.Router", "sentence_transformers.models.Asym", f"{ST}.clip_model.CLIPModel",
    f"{SPARSE}.mlm_transformer.MLMTransformer", f"{SPARSE}.sparse_static_embedding.SparseStaticEmbedding",
)  # fmt: skip
LATER = (
    f"{ST}.weighted_layer_pooling.WeightedLayerPooling", f"{ST}.cnn.CNN", f"{ST}.lstm.LSTM",
    f"{ST}.word_weights.WordWeights", f"{SPARSE}.splade_pooling.SpladePooling",
    f"{SPARSE}.sparse_auto_encoder.SparseAutoEncoder", f"{MANY}.multi_vector_mask.MultiVectorMask",
    f"{MANY}.token_pooling.HierarchicalTokenPooling", f"{MANY}.token_pooling.LambdaTokenPooling",
)  # fmt: skip
OTHERS = {
    **{path.rpartition(".")[2]: typed(path, f"{ST}.pooling.Pooling") for path in FIRST},
    **{path.rpartition(".")[2]: typed(f"{BASE}.transformer.Transformer", path) for path in LATER},
}
"""Modules of sentence-transformers that have no equal here."""
TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}

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
OF_NETWORK: dict[str, dict[str, Layout | Build]] = {
    "`max_seq_length`: below the tokenizer's `model_max_length`, above it, null": {
        "max_seq_length 7": settings(max_seq_length=7),
        "max_seq_length null": changed(TOKENIZER, settings(max_seq_length=None), model_max_length=9),
        "max_seq_length above the tokenizer's": changed(
            TOKENIZER, settings(max_seq_length=20), model_max_length=9
        ),
    },
    "`do_lower_case`, and a tokenizer that keeps capitals": {
        "do_lower_case": cased(settings(do_lower_case=True)),
        "a tokenizer with capitals": cased(settings()),
    },
    "`query_length`, `document_length`": {
        "query_length": settings(query_length=5),
        "document_length": settings(document_length=5),
        "query_length and document_length": settings(query_length=14, document_length=6),
    },
    "`model_args`, `config_args`, `tokenizer_args`, `*_kwargs`: a length, and keys that change no vector": {
        "model_args": settings(model_args={"attn_implementation": "eager", "trust_remote_code": True}),
        "tokenizer_args": settings(tokenizer_args={"model_max_length": 8}),
        "processor_kwargs": settings(processor_kwargs={"model_max_length": 8}, max_seq_length=None),
        "config_args": settings(config_args={"use_cache": False}),
    },
    "other keys of them": {
        "model_kwargs of another network": Layout(
            settings(model_kwargs={"num_hidden_layers": 1}), "model_kwargs: num_hidden_layers"
        ),
        "model_args of another network": Layout(
            settings(model_args={"num_hidden_layers": 1}), "model_args: num_hidden_layers"
        ),
        "processor_kwargs of another tokenizer": Layout(
            settings(processor_kwargs={"add_prefix_space": True}), "processor_kwargs: add_prefix_space"
        ),
        "config_kwargs of another network": Layout(
            settings(config_kwargs={"hidden_act": "relu"}), "config_kwargs: hidden_act"
        ),
    },
    "`processing_kwargs`: `text.max_length`, and keys that change no vector": {
        "processing_kwargs text.max_length": settings(processing_kwargs={"text": {"max_length": 6}}),
        "processing_kwargs at their defaults": settings(
            processing_kwargs={"text": {"padding": True, "truncation": True}, "image": {"size": 3}, "common": {}}
        ),
    },
    "other keys of `processing_kwargs`": {
        "processing_kwargs without special tokens": Layout(
            settings(processing_kwargs={"text": {"add_special_tokens": False}}),
            "processing_kwargs: text: add_special_tokens",
        ),
        "processing_kwargs without truncation": Layout(
            settings(processing_kwargs={"text": {"truncation": False}}), "processing_kwargs: text: truncation"
        ),
        "processing_kwargs common": Layout(
            settings(processing_kwargs={"common": {"add_special_tokens": False}}),
            "processing_kwargs: common: add_special_tokens",
        ),
    },
    "`transformer_task`, `modality_config`, `module_output_name` at their defaults, `unpad_inputs`": {
        "transformer_task": settings(transformer_task="feature-extraction"),
        "modality_config": settings(modality_config=TEXT, module_output_name="token_embeddings"),
        "unpad_inputs": settings(unpad_inputs=False),
    },
    "other values of them, such as a chat template's messages": {
        "transformer_task fill-mask": Layout(
            settings(transformer_task="fill-mask"), "transformer_task: .*feature-extraction.*fill-mask"
        ),
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
    },
    "`query_expansion`, `tokenizer_name_or_path`": {
        "query_expansion": Layout(
            settings(query_expansion={"strategy": "fixed", "length": 12}), "query_expansion: expected null"
        ),
        "tokenizer_name_or_path": Layout(
            settings(tokenizer_name_or_path="other"), "tokenizer_name_or_path: expected null"
        ),
    },
    "`truncation_side: left` of the tokenizer": {
        "truncation_side left": Layout(changed(TOKENIZER, truncation_side="left"), "truncation_side: .*'left'")
    },
    "`padding_side: left`: the vectors that each text has alone": {
        "padding_side left": Layout(changed(TOKENIZER, padding_side="left"), alone=True)
    },
    "weights in bfloat16, read in float32": {
        "weights in bfloat16": Layout(then(PLAIN, to_half), options={"model_kwargs": {"dtype": torch.float32}})
    },
}
OF_MODEL: dict[str, dict[str, Layout | Build]] = {
    "`prompts`, `default_prompt_name`": {
        "no settings of the model": replaced(MODEL, {}),
        "prompts": saved(MEAN, prompts=PROMPTS),
        "prompts with a default": saved(MEAN, prompts=PROMPTS | {"sts": "one "}, default_prompt_name="sts"),
        "prompts that are null": changed(MODEL, prompts={"query": None, "document": "a "}),
        "a default prompt that isn't named": changed(MODEL, prompts={}, default_prompt_name="query"),
    },
    "a prompt with `{text}` or `{mask}`": {
        "a prompt with a place for the text": Layout(
            changed(MODEL, prompts={"query": "say {text} "}), "prompts: .*say {text}"
        )
    },
    "`similarity_fn_name`: cosine, dot, euclidean, manhattan, null": {
        f"similarity_fn_name {name}": changed(MODEL, similarity_fn_name=name)
        for name in ("cosine", "dot", "euclidean", "manhattan", None)
    },
    "`truncate_dim`": {
        "truncate_dim": changed(MODEL, truncate_dim=5),
        "truncate_dim after Normalize": changed(MODEL, saved(MEAN, normalize), truncate_dim=5),
    },
    "`similarity_fn_name: maxsim`, another `model_type`": {
        "similarity_fn_name maxsim": Layout(
            changed(MODEL, similarity_fn_name="maxsim"), "similarity_fn_name: .*maxsim"
        ),
        "model_type SparseEncoder": Layout(
            changed(MODEL, model_type="SparseEncoder"), "model_type: .*SparseEncoder"
        ),
    },
    "keys that no program reads: `_name_or_path`, `transformers_version`, `__version__`, ...": {
        "keys that nobody reads": changed(
            "config.json", settings(backend="onnx"), _name_or_path="x", transformers_version="4.1"
        ),
        "another version and other keys": changed(
            MODEL, __version__={"sentence_transformers": "2.2.2"}, author="me"
        ),
    },
}
GROUPS = {
    row: {name: each if isinstance(each, Layout) else Layout(each) for name, each in group.items()}
    for row, group in (POOLINGS | LAYERS | PLACES | OF_NETWORK | OF_MODEL).items()
}
"""A row of the documented table -> its layouts; all of a row load, or none."""
LAYOUTS = {name: layout for group in GROUPS.values() for name, layout in group.items()}
