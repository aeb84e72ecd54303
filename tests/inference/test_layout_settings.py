"""Model folders of sentence-transformers 6.2 with all settings: equal vectors, or a refusal with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from inference.test_layouts import (
    GROUPS,
    MEAN,
    MODEL,
    NO_POOLER,
    PLAIN,
    PROMPTS,
    Build,
    Layout,
    changed,
    check_loaded_and_saved,
    check_refused,
    check_trained,
    first_names,
    grouped,
    names,
    normalize,
    replaced,
    saved,
    settings,
    then,
)
from transformers import AutoModel

TOKENIZER = "tokenizer_config.json"
TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
PAGE = Path(__file__).parents[2] / "docs" / "model_folders.md"


def to_half(folder: Path) -> None:
    AutoModel.from_pretrained(folder, add_pooling_layer=False).bfloat16().save_pretrained(folder)


def cased(build: Build) -> Build:
    """Returns what writes the folder with a tokenizer that keeps capitals."""
    return changed("tokenizer.json", build, normalizer=None)


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
OWN = grouped(OF_NETWORK | OF_MODEL)
LAYOUTS = {name: layout for group in OWN.values() for name, layout in group.items()}


@pytest.mark.filterwarnings(NO_POOLER)
@pytest.mark.parametrize("name", names(OWN, False, "query_length", "prompts with a default"))
def test_a_layout_has_equal_vectors_loaded_and_saved(bert: str, tmp_path: Path, name: str) -> None:
    check_loaded_and_saved(LAYOUTS[name], bert, tmp_path)


@pytest.mark.parametrize("name", names(OWN, True, "a prompt with a place for the text"))
def test_a_layout_without_an_equal_is_refused_by_its_name(bert: str, tmp_path: Path, name: str) -> None:
    check_refused(LAYOUTS[name], bert, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings(NO_POOLER)
@pytest.mark.parametrize("name", first_names(OWN))
def test_a_layout_trains(bert: str, tmp_path: Path, name: str) -> None:
    check_trained(LAYOUTS[name], bert, tmp_path, length=9 if "prompt" in name else 5)


def test_the_documented_table_has_a_row_for_each_group_of_layouts() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("### Modules and settings\n")[2].partition("\n### ")[0]
    row = r"^\| (.+?) \| (\d+) \| (?:(yes) \| yes \| yes \| yes \| |no \| \| \| \| .+ )\|$"
    found = re.findall(row, table, flags=re.MULTILINE)
    assert [title for title, *_ in found] == [*GROUPS, *OWN]
    for title, count, loads in found:
        refusals = [bool(layout.refused) for layout in (GROUPS | OWN)[title].values()]
        assert (len(refusals), set(refusals)) == (int(count), {not loads}), title
