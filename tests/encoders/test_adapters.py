"""Adapters: what is trained, what a step gives, what a checkpoint and a folder hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from executions import batch_of
from objective_cases import CASES
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from transformers import AutoModel

from contrastive_text.core.random import Dropout
from contrastive_text.encoders import Adapters, LoRA, TransformerEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import (
    Contrastive,
    DenoisingDecoder,
    Duplicates,
    MaskedLM,
    Momentum,
    Queue,
    Siblings,
)
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, FeatureCutoff, MaskTokens

QUERY = "encoder.layer.0.attention.self.query"
RATE = {"rank": 4, "alpha": 8.0, "dropout": 0.1}

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


class Scales(Adapters):
    def settings(self, layers: Any) -> Any:
        return peft.IA3Config(target_modules=[*layers], feedforward_modules=[])


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random BERT with the head that predicts tokens."""
    return tiny.save_masked_lm(tmp_path_factory.mktemp("masked") / "bert")


def module_of(folder: str, chunk_tokens: int | None = None, **options: Any) -> ContrastiveModule:
    """Returns a module with adapters that have learned something, a momentum network and a token head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = ContrastiveModule(
            TransformerEncoder(folder, adapters=LoRA(**RATE), **options),
            objectives={
                "c": Contrastive(columns=[Duplicates(), Siblings(), Queue(16), Momentum(0.9)]),
                "mlm": MaskedLM(),
            },
            views={"original": [MaskTokens()]},
            chunk_tokens=chunk_tokens,
        )
        learn_something(module.encoder)
    return module


def learn_something(encoder: TransformerEncoder) -> None:
    for name, weight in encoder.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)


def fit(folder: Path, bert: str, steps: int, resume: str | None = None, **options: Any) -> ContrastiveModule:
    """Trains, and keeps a checkpoint of each step."""
    module = module_of(bert)
    folder.mkdir(exist_ok=True)
    keep = ModelCheckpoint(folder / "kept", filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder,
        max_steps=steps,
        enable_checkpointing=True,
        callbacks=[keep],
        plugins=[AtomicCheckpointIO()],
        **options,
    )
    trainer.fit(module, tiny.data(tiny.write_texts(folder / "texts.txt")), ckpt_path=resume, weights_only=True)
    return module


def test_the_blocks_linear_layers_are_adapted_by_name_and_drop_by_keys(masked: str) -> None:
    encoder = TransformerEncoder(masked, adapters=LoRA(**RATE))
    names = dict(encoder.model.named_modules())
    adapted = [name for name, part in names.items() if hasattr(part, "lora_A")]
    blocks = TransformerEncoder(masked).model.encoder.named_modules()
    assert adapted == [f"encoder.{name}" for name, part in blocks if type(part) is nn.Linear]
    assert len(adapted) == 12
    assert type(names[QUERY].lora_dropout["default"]) is Dropout
    trained = [name for name, weight in encoder.named_parameters() if weight.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert encoder.layout_on(torch.device("cpu"))[0] == "packed" and encoder.takes_embedding_views
    assert encoder.dropout_in_effect["adapters"] == 0.1
    few = TransformerEncoder(masked, adapters=LoRA(targets=["query", "1.output.dense"])).model.named_modules()
    assert [name for name, part in few if hasattr(part, "lora_A")] == [
        QUERY, QUERY.replace("0", "1"), "encoder.layer.1.output.dense"
    ]  # fmt: skip


def test_what_does_not_go_with_adapters_is_refused_in_words(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"adapters: expected views without new tokens.*\[DEL\]"):
        tiny_module(masked, views={"anchor": [DeleteTokens(mark="[DEL]")]})
    with pytest.raises(ValueError, match="adapters: expected null with DenoisingDecoder"):
        tiny_module(masked, objectives={"d": DenoisingDecoder()})

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"adapters: expected peft, .*'contrastive-text\[adapters\]'"):
        TransformerEncoder(masked, adapters=LoRA())


def tiny_module(folder: str, **parts: Any) -> ContrastiveModule:
    return ContrastiveModule(TransformerEncoder(folder, adapters=LoRA()), **parts)


def gradients(encoder: TransformerEncoder, chunk_tokens: int | None) -> dict[str, Tensor]:
    module = ContrastiveModule(
        encoder, objectives={"c": Contrastive()}, views={"positive": [FeatureCutoff()]}, chunk_tokens=chunk_tokens
    )
    batch = batch_of(CASES["InfoNCE"], "no views", step=0)
    module.double().training_step(batch, 0).backward()
    return {name: weight.grad for name, weight in encoder.model.named_parameters() if weight.grad is not None}


def test_a_chunked_packed_step_has_the_gradient_that_the_merged_weights_have(masked: str) -> None:
    """In W + s B A, with dW, those of A and B are s B' dW and s dW A', by the chain rule."""
    encoder = TransformerEncoder(masked, dropout=0.0, layout="packed", adapters=LoRA(rank=4, alpha=8.0)).double()
    learn_something(encoder)
    plain = TransformerEncoder(masked, dropout=0.0, layout="padded").double()
    plain.model.load_state_dict(encoder.without_adapters(merge=True).model.state_dict())
    state = encoder.model.state_dict()
    found, whole = gradients(encoder, chunk_tokens=40), gradients(plain, chunk_tokens=None)
    assert len(found) == 24
    for name, gradient in found.items():
        layer, kind = name.split(".lora_")
        change = whole[f"{layer}.weight"]
        a, b = (state[f"{layer}.lora_{each}.default.weight"] for each in "AB")
        expected = 2 * b.T @ change if kind[0] == "A" else 2 * change @ a.T
        assert (gradient - expected).abs().max() <= 1e-10 * expected.abs().max(), name


@pytest.mark.slow
def test_a_chunk_computed_anew_drops_what_it_dropped(masked: str) -> None:
    def both(chunk_tokens: int | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        encoder = TransformerEncoder(masked, dropout=0.0, adapters=LoRA(dropout=0.5))
        learn_something(encoder)
        return gradients(encoder, chunk_tokens)

    whole, one, again = both(None), both(40), both(40)
    for name, gradient in one.items():
        assert torch.equal(gradient, again[name])
    assert any(not torch.allclose(gradient, one[name]) for name, gradient in whole.items())  # other masks


@pytest.mark.slow
def test_a_checkpoint_has_what_is_trained_and_a_resumed_run_its_bits(masked: str, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", masked, steps=3)
    saved = torch.load(tmp_path / "whole" / "kept" / "step=2.ckpt", weights_only=True)
    names = saved["state_dict"].keys()
    kept = {name for name in names if ".model." in name}
    assert kept and all("lora_" in name for name in kept), "of network and momentum network"
    assert any(name.startswith("momentum.c.encoder.model.") for name in kept)
    assert {name for name in names if name.startswith("encoder.token_head.")}
    assert not any("decoder.weight" in name for name in names), "the token table's"
    states = saved["optimizer_states"][0]["state"]
    trained = [weight for weight in whole.parameters() if weight.requires_grad]
    assert len(states) == len(trained) < len([*whole.parameters()])
    momentum = whole.momentum.networks["c"].encoder
    assert {*map(id, momentum.base_weights())} == {*map(id, whole.encoder.base_weights())}
    again = fit(tmp_path / "again", masked, steps=3, resume=str(tmp_path / "whole" / "kept" / "step=2.ckpt"))
    for name, weight in whole.named_parameters():
        assert torch.equal(weight, dict(again.named_parameters())[name]), name
    start = TransformerEncoder(masked).model.state_dict()
    for name, weight in whole.encoder.plain_state().items():
        assert torch.equal(weight, start[name]), name
    said = model_facts(whole)
    count = sum(weight.numel() for weight in whole.encoder.parameters() if weight.requires_grad)
    assert f"of which {count:,} are trained" in said["encoder"]
    assert str(whole.encoder.base_identity) in said["encoder"] and "momentum" in said


@pytest.mark.slow
def test_adapters_go_on_only_upon_the_weights_on_which_they_were_trained(masked: str, tmp_path: Path) -> None:
    fit(tmp_path, masked, steps=1)
    file = tmp_path / "kept" / "step=1.ckpt"
    other = TransformerEncoder(tiny.save_bert(tmp_path / "other", seed=1), adapters=LoRA(**RATE))
    said = "expected the weights on which the checkpoint's adapters were trained"
    with pytest.raises(ValueError, match=said):
        ContrastiveModule.load_from_checkpoint(file, encoder=other)
    begun = module_of(masked)
    load_initial_weights(begun, file)
    kept = ContrastiveModule.load_from_checkpoint(file)
    name = f"encoder.model.{QUERY}.lora_B.default.weight"
    assert torch.equal(begun.get_parameter(name), kept.get_parameter(name))
    for module, advice in (
        (tiny.module(masked), "expected weights without adapters, .*name the run's model folder"),
        (ContrastiveModule(other), "expected adapters on .*, got adapters on .*give the encoder"),
    ):
        with pytest.raises(ValueError, match=advice):
            load_initial_weights(module, file)
    tiny.module(masked).sentence_encoder().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"got weights without adapters .*model_name_or_path: adapters begin on"):
        load_initial_weights(begun, tmp_path / "plain")


@pytest.mark.parametrize("kind", ["merged", pytest.param("beside", marks=pytest.mark.slow)])
def test_a_folder_is_the_adapted_model(kind: str, masked: str, tmp_path: Path) -> None:
    model = module_of(masked).sentence_encoder().eval()
    expected = model.encode(tiny.TEXTS)
    model.save_pretrained(tmp_path / kind, separate_adapters=kind == "beside")
    files = {path.name for path in (tmp_path / kind).iterdir()}
    assert ("adapter_model.safetensors" in files) is (kind == "beside")
    loaded = SentenceEncoder.from_pretrained(tmp_path / kind)
    assert abs(loaded.encode(tiny.TEXTS) - expected).max() <= 1e-5
    assert abs(tiny.module(masked).sentence_encoder().eval().encode(tiny.TEXTS) - expected).max() > 1e-2
    assert loaded.encoder.adapters is None and not hasattr(loaded.encoder.model, "peft_config")
    assert all(weight.requires_grad for weight in loaded.encoder.model.parameters())
    assert model.encode(tiny.TEXTS) == pytest.approx(expected, abs=0), "and is left as it was"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft asks for it by its old name
@pytest.mark.parametrize("kind", ["merged", "beside"])
@pytest.mark.parametrize("token_head", [False, True], ids=["alone", "with token head"])
def test_sentence_transformers_reads_the_same_vectors(
    kind: str, token_head: bool, masked: str, tmp_path: Path
) -> None:
    model = (module_of(masked) if token_head else tiny_module(masked)).sentence_encoder().eval()
    learn_something(model.encoder)
    model.save_pretrained(tmp_path / kind, separate_adapters=kind == "beside")
    theirs = pytest.importorskip("sentence_transformers", reason="needs the dev extra")
    vectors = theirs.SentenceTransformer(str(tmp_path / kind), device="cpu").encode([*tiny.TEXTS])
    assert abs(vectors - model.encode(tiny.TEXTS)).max() <= 1e-5
    if kind == "beside":
        bare = AutoModel.from_pretrained(masked, add_pooling_layer=False)
        whole = peft.PeftModel.from_pretrained(bare, tmp_path / kind).merge_and_unload()
        plain = model.encoder.without_adapters(merge=True).model.state_dict()
        assert all(torch.allclose(weight, plain[name], atol=1e-6) for name, weight in whole.state_dict().items())


@pytest.mark.slow
def test_files_of_adapters_that_say_more_than_lora_are_refused(masked: str, tmp_path: Path) -> None:
    model = module_of(masked).sentence_encoder()
    model.save_pretrained(tmp_path, separate_adapters=True)
    file = tiny.by_hand(tmp_path) / "adapter_config.json"
    settings = json.loads(file.read_text())
    for change, said in (
        ({"megatron_config": {"a": 1}}, "megatron_config: expected plain LoRA"),
        ({"peft_type": "IA3"}, "peft_type: expected LORA, got the text 'IA3'"),
        ({"r": 2}, "expected adapters that fit the weights, got RuntimeError"),
        ({"target_modules": ["query"]}, "expected the weights that adapter_config.json describes"),
    ):
        file.write_text(json.dumps(settings | change))
        with pytest.raises(ValueError, match=said):
            SentenceEncoder.from_pretrained(tmp_path)
    other = TransformerEncoder(masked, adapters=Scales())
    with pytest.raises(ValueError, match="expected LoRA adapters, got IA3"):
        SentenceEncoder(other, model.pooler).save_pretrained(tmp_path / "other", separate_adapters=True)


@pytest.mark.slow
def test_frozen_weights_may_be_bfloat16_and_adapters_are_not(masked: str, tmp_path: Path) -> None:
    encoder = TransformerEncoder(masked, adapters=LoRA(), weights_dtype="bfloat16")
    assert encoder.base_identity == TransformerEncoder(masked, adapters=LoRA()).base_identity
    types = {weight.requires_grad: weight.dtype for weight in encoder.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}
    assert encoder.layout_on(torch.device("cpu"))[0] == "packed"
    learn_something(encoder)
    module = ContrastiveModule(encoder)
    tiny.trainer(tmp_path, max_steps=1).fit(module, tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    model = module.sentence_encoder().eval()
    model.save_pretrained(tmp_path / "merged")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "merged")
    assert next(loaded.parameters()).dtype == torch.float32
    cosines = torch.as_tensor(loaded.similarity(loaded.encode(tiny.TEXTS), model.encode(tiny.TEXTS))).diagonal()
    assert cosines.min() > 0.999
