"""Weights of layers that are no network's, or of none, are refused; heads and zero biases are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import architectures
import pytest
import tiny
import torch
from covering import rest_slow
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.loading import build_model, load_architecture, load_model


def load(folder: Path) -> torch.nn.Module:
    return load_model(str(folder), load_architecture(str(folder), None, None))[0]


def config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    found = load_file(folder / "model.safetensors")
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


LAYERS = {"distilbert": "n_layers", "albert": "num_hidden_groups"}


@pytest.mark.parametrize("name", rest_slow(architectures.NAMES, quick=3))
def test_left_over_layers_and_matrices_of_zeros_are_refused_in_every_architecture(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    two = {"num_hidden_groups": 2} if name == "albert" else {}
    fresh = build_model(load_architecture(None, {**architectures.CONFIGS[name], **two}, None))
    fresh.save_pretrained(tmp_path)
    load(tmp_path)  # as it is, nothing is wrong with it
    layers = LAYERS.get(name, "num_hidden_layers")
    config(tmp_path, **{layers: 1, "layer_types": None})
    with pytest.raises(InvalidValueError, match=r"got weights of further layers \(.*1\); put back the number of"):
        load(tmp_path)
    config(tmp_path, **{layers: 2, "layer_types": fresh.config.to_dict().get("layer_types")})
    blocks = [key for key, value in load_file(tmp_path / "model.safetensors").items()
              if ".1." in f".{key}" and value.ndim == 2]  # fmt: skip
    weights(tmp_path, lambda found: found[blocks[0]].zero_())
    with pytest.raises(InvalidValueError, match=r"got matrices of zeros \(.*1.*\); the file is damaged"):
        load(tmp_path)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_they_are_refused_in_every_format(kind: str, sharded: bool, tmp_path: Path) -> None:
    model = build_model(load_architecture(None, {**tiny.CONFIG, "num_hidden_layers": 3}, None))
    with torch.no_grad():
        model.encoder.layer[2].attention.self.key.weight.zero_()
    model.save_pretrained(tmp_path, max_shard_size="20kB" if sharded else "1GB")
    if kind == "bin":
        for file in tmp_path.glob("*.safetensors"):
            torch.save(
                load_file(file),
                tmp_path / file.name.replace("model", "pytorch_model").replace("safetensors", "bin"),
            )
            file.unlink()
        for index in tmp_path.glob("*.index.json"):
            read = json.loads(index.read_text())
            names = {key: name.replace("model", "pytorch_model").replace("safetensors", "bin")
                     for key, name in read["weight_map"].items()}  # fmt: skip
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({**read, "weight_map": names}))
            index.unlink()
    assert len(list(tmp_path.glob(f"*.{kind}"))) == (len(list(tmp_path.glob("*-of-*"))) or 1)
    with pytest.raises(InvalidValueError, match=r"zeros \(encoder\.layer\.2\.attention\.self\.key\.weight\)"):
        load(tmp_path)
    config(tmp_path, num_hidden_layers=2)
    with pytest.raises(InvalidValueError, match=r"further layers \(encoder\.layer\.2\)"):
        load(tmp_path)


def test_heads_zero_biases_and_adapters_are_no_damage(tmp_path: Path) -> None:
    tiny.save_bert(tmp_path)
    encoder = load(tmp_path)
    whole = BertForMaskedLM(BertConfig(**tiny.CONFIG))
    whole.bert.load_state_dict(encoder.state_dict(), strict=False)
    whole.save_pretrained(tmp_path)

    def change(found: dict[str, torch.Tensor]) -> None:
        for key, value in found.items():
            if key.endswith(".bias"):
                value.zero_()
        found["bert.encoder.layer.0.attention.self.query.lora_B.weight"] = torch.zeros(16, 4)
        found["bert.pooler.dense.weight"] = torch.zeros(16, 16)
        found["lm_head.decoder.weight"] = torch.zeros(300, 16)

    weights(tmp_path, change)
    assert load(tmp_path)
    assert TransformerEncoder(str(tmp_path)).features == 16
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path), BertForMaskedLM)
    assert AutoModel.from_pretrained(tmp_path) is not None


def test_weights_in_float64_are_read_in_float32(tmp_path: Path) -> None:
    expected = load(Path(tiny.save_bert(tmp_path))).state_dict()
    AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).double().save_pretrained(tmp_path)
    assert all(torch.equal(weight, expected[name]) for name, weight in load(tmp_path).state_dict().items())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, r"config\.json: num_hidden_layers: expected .* at most 1,000, got"),
        ({"hidden_size": 2**20, "num_attention_heads": 2}, "expected the sizes of the weight files .* got"),
        ({"vocab_size": 10**10}, "expected the sizes of the weight files"),
        ({"hidden_size": 10**30}, "expected a whole model folder, got"),
        ({"hidden_size": "wide"}, "expected a whole model folder, got"),
    ],
)
def test_numbers_that_would_fill_the_memory_are_answered_first(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    config(Path(tiny.save_bert(tmp_path)), **changes)
    with pytest.raises(InvalidValueError, match=said):
        load(tmp_path)


def test_code_that_a_folder_brings_is_never_asked_about(tmp_path: Path) -> None:
    named = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
    config(Path(tiny.save_bert(tmp_path)), auto_map=named, model_type="x")
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InvalidValueError, match="expected a whole model folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attn_implementation": "theirs/kernel"}, "attn_implementation: expected"),
        ({"_attn_implementation": "theirs/kernel"}, "_attn_implementation: expected"),
        ({"attn_implementation": {"text_config": "theirs/kernel"}}, "text_config: expected"),
        ({"text_config": {"attn_implementation": "theirs/kernel"}}, "attn_implementation: expected"),
    ],
)
def test_no_configuration_names_code_to_fetch(changes: dict[str, object], named: str, tmp_path: Path) -> None:
    tiny.save_bert(tmp_path)
    config(tmp_path, **changes)
    with pytest.raises(
        InvalidValueError, match=rf"config\.json: .*{named}.* code that would be downloaded and run"
    ):
        load_architecture(str(tmp_path), None, None)
    with pytest.raises(InvalidValueError, match="code that would be downloaded and run"):
        load_architecture(None, {**tiny.CONFIG, **changes}, None)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "sub/a.safetensors", 5])
def test_the_parts_of_weights_lie_in_the_folder(name: object, tmp_path: Path) -> None:
    tiny.save_bert(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
    with pytest.raises(InvalidValueError, match=r"weight_map: a\.weight: expected"):
        load_architecture(str(tmp_path), None, None)


def test_zero_biases_of_two_dimensions_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ConvBERT and RecurrentGemma have them."""
    set_up = BertLayer.__init__

    def with_bias(layer: BertLayer, *given: Any, **named: Any) -> None:
        set_up(layer, *given, **named)
        layer.gate_bias = torch.nn.Parameter(torch.zeros(4, 4))
        layer.shift = torch.nn.Parameter(torch.zeros(4, 1))

    monkeypatch.setattr(BertLayer, "__init__", with_bias)
    build_model(load_architecture(None, tiny.CONFIG, None)).save_pretrained(tmp_path)
    load(tmp_path)
