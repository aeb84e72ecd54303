"""The Transformers encoder on every architecture we name, tiny and with random weights."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import CONFIGS, NAMES, PAIR, ROWS, SIZE, encoder_of, ragged
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast

from contrastive_text.core.batch import Hidden
from contrastive_text.core.random import RowRandom
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.packing import token_mask
from contrastive_text.views import (
    Adversarial,
    EmbeddingDropout,
    EmbeddingView,
    FeatureCutoff,
    GaussianNoise,
    GradientView,
    SpanCutoff,
    TokenCutoff,
    ViewPlan,
)

BLOCKS = ("encoder.layer.0", "transformer.layer.0", "encoder.albert_layer_groups.0", "layers.0")


def first_block(encoder: TransformerEncoder) -> nn.Module:
    modules = dict(encoder.model.named_modules())
    return next(modules[name] for name in BLOCKS if name in modules)


def on_tokens(hidden: Hidden, layer: int = -1) -> Tensor:
    return hidden.layers[layer][hidden.mask]


class Zero(EmbeddingView):
    """Erases a text's embeddings."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return torch.zeros_like(embeddings)


VIEWS: tuple[EmbeddingView | GradientView, ...] = (
    Zero(),
    FeatureCutoff(rate=0.5),
    TokenCutoff(rate=0.5),
    SpanCutoff(rate=0.5),
    EmbeddingDropout(rate=0.5),
    GaussianNoise(),
    Adversarial(),
)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_ragged_batch_gives_what_the_plain_model_gives_on_padded_input(name: str) -> None:
    encoder, batch = encoder_of(name, layout="padded"), ragged(*ROWS)
    fill = CONFIGS[name].get("pad_token_id", 0)
    longest = max(len(row) for row in ROWS)
    ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in ROWS])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ROWS])
    plain = AutoModel.from_config(encoder.model.config).double().eval()
    unknown = plain.load_state_dict(encoder.model.state_dict(), strict=False).unexpected_keys
    assert not unknown
    expected = plain(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    hidden = encoder(batch)
    assert torch.equal(hidden.mask, mask.bool())
    # The same network on the same numbers: bit for bit.
    assert torch.equal(on_tokens(hidden), expected.last_hidden_state[mask.bool()])
    layers = encoder(batch, layers=(-1, -2, 0, 1))
    assert set(layers.layers) == {-1, -2, 0, 1}
    assert torch.equal(on_tokens(layers), on_tokens(hidden))
    for layer in (-2, 0, 1):
        assert torch.equal(on_tokens(layers, layer), expected.hidden_states[layer][mask.bool()])


@pytest.mark.parametrize(
    ("name", "view"),
    [*zip(NAMES, cycle(VIEWS), strict=False)],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
@torch.no_grad()
def test_an_embedding_view_changes_its_own_slot_and_no_other(
    name: str, view: EmbeddingView | GradientView
) -> None:
    encoder, batch = encoder_of(name), ragged(*ROWS)
    gradient = torch.randn(6, 7, 16, dtype=torch.float64)
    alter = ViewPlan({"positive": [view]}).alter_embeddings(batch, gradient)
    plain = encoder(batch).layers[-1]
    altered = encoder(batch, alter=alter).layers[-1]
    assert torch.equal(altered[:3], plain[:3])
    assert all(not torch.allclose(altered[i, : len(ROWS[i])], plain[i, : len(ROWS[i])]) for i in (3, 4, 5))
    # The alteration ends with the call.
    assert torch.equal(encoder(batch).layers[-1], plain)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_k8_erased_features_enter_the_first_block_as_zeros_and_k6_nothing_else_changes(name: str) -> None:
    encoder, batch = encoder_of(name, layout="padded"), ragged(*ROWS)
    before = batch.ids.clone(), batch.lengths.clone()
    entered: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:  # noqa: ARG001  # the base's signature
        entered.append((*inputs, options.get("hidden_states"))[0])

    handle = first_block(encoder).register_forward_pre_hook(keep, with_kwargs=True)
    alter = ViewPlan({"positive": [FeatureCutoff(rate=0.5)]}).alter_embeddings(batch)
    hidden = encoder(batch, alter=alter, layers=(-1, 0))
    handle.remove()
    for values in (entered[0], hidden.layers[0]):
        zeros = (values == 0) & hidden.mask.unsqueeze(-1)
        assert not zeros[:3].any()
        for i in (3, 4, 5):
            columns = zeros[i, : len(ROWS[i])]
            assert torch.equal(columns, columns[:1].expand_as(columns))
            assert int(columns[0].sum()) == 8
    assert torch.equal(batch.ids, before[0])
    assert torch.equal(batch.lengths, before[1])
    assert torch.equal(hidden.mask, token_mask(batch.lengths))


def test_a_view_that_fails_leaves_no_alteration_behind() -> None:
    encoder, batch = encoder_of("bert"), ragged(*ROWS)
    plain = encoder(batch).layers[-1]

    def broken(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # the base's signature
        raise RuntimeError("broken view")

    with pytest.raises(RuntimeError, match="broken view"):
        encoder(batch, alter=broken)
    assert torch.equal(encoder(batch).layers[-1], plain)


def test_the_gradient_reaches_the_token_table_through_an_altered_embedding() -> None:
    encoder, batch = encoder_of("bert"), ragged(*ROWS)
    alter = ViewPlan({"positive": [Zero()]}).alter_embeddings(batch)
    on_tokens(encoder(batch, alter=alter)).square().sum().backward()
    gradient = encoder.model.get_input_embeddings().weight.grad
    reached = gradient.any(dim=1).nonzero().flatten().tolist()
    assert reached == sorted(i for row in ROWS[:3] for i in row)


@pytest.mark.parametrize("name", NAMES)
def test_positions_are_heeded_everywhere_but_where_they_are_relative(name: str) -> None:
    encoder = encoder_of(name).train()
    assert encoder.reads_positions() is (name != "deberta-v2")
    assert all(module.training for module in encoder.modules())


XLNET = {"model_type": "xlnet", "vocab_size": 30, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16}


@pytest.mark.parametrize(
    ("config", "reads"), [(XLNET, False), (CONFIGS["deberta-v2"] | {"position_biased_input": True}, True)]
)
def test_positions_are_read_only_by_an_architecture_that_adds_them(config: dict[str, Any], reads: bool) -> None:
    encoder = TransformerEncoder(config=config)
    assert encoder.reads_positions() is reads and encoder.model.training


@pytest.mark.parametrize(("name", "first"), [("bert", 0), ("roberta", 2), ("xlm-roberta", 2), ("mpnet", 2)])
@torch.no_grad()
def test_k5_tokens_get_the_architectures_places_in_their_order_and_padding_keeps_its_own(
    name: str, first: int
) -> None:
    encoder, batch = encoder_of(name, layout="padded"), ragged(*ROWS, positions=True)
    assert batch.positions is not None
    backwards = torch.cat([places.flip(0) for places in batch.positions.split(batch.lengths.tolist())])
    seen: list[Tensor] = []
    encoder.model.register_forward_pre_hook(
        lambda module, inputs, options: seen.append(options["position_ids"]),  # noqa: ARG005  # torch's signature
        with_kwargs=True,
    )
    encoder(batch.replace(positions=backwards))
    longest = max(len(row) for row in ROWS)
    places = [[*reversed(range(len(row))), *range(len(row), longest)] for row in ROWS]
    assert seen[0].tolist() == [[first + place for place in row] for row in places]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_s6_with_dropout_the_same_sentence_twice_differs_in_training_only(name: str) -> None:
    encoder = encoder_of(name, dropout=0.3).train()
    first, second = encoder(ragged(ROWS[1], ROWS[1])).layers[-1]
    assert not torch.allclose(first, second)
    first, second = encoder.eval()(ragged(ROWS[1], ROWS[1])).layers[-1]
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dropout", [0.0, 0.37])
def test_k15_the_dropout_given_is_that_of_every_dropout(name: str, dropout: float) -> None:
    encoder = encoder_of(name, dropout=dropout)
    layers = {module.p for module in encoder.model.modules() if isinstance(module, nn.Dropout)}
    rates = {
        value
        for module in encoder.model.modules()
        for key, value in vars(module).items()
        if "dropout" in key and isinstance(value, float)
    }
    assert layers | rates == {dropout}
    assert set(encoder.dropout_in_effect.values()) == {dropout}
    assert encoder.dropout_in_effect


def test_no_dropout_given_keeps_the_models_own() -> None:
    config = {**CONFIGS["bert"], "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.05}
    encoder = TransformerEncoder(config=config)
    assert encoder.dropout_in_effect == {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.05}
    assert {m.p for m in encoder.model.modules() if isinstance(m, nn.Dropout)} == {0.2, 0.05}


def test_layers_are_not_dropped_whole_by_a_dropout_that_is_given() -> None:
    opt = {"model_type": "opt", **SIZE, "ffn_dim": 24, "word_embed_proj_dim": 16}
    encoder = TransformerEncoder(config=opt, dropout=0.3)
    assert (encoder.model.config.dropout, encoder.model.config.layerdrop) == (0.3, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_architecture(name: str) -> None:
    encoder = encoder_of(name)
    assert (encoder.features, encoder.vocabulary_size, encoder.limit) == (16, 60, 40)
    assert encoder.takes_embedding_views
    # Nothing that never gets a gradient: DDP would refuse it.
    assert not any("pooler" in key for key, _ in encoder.named_parameters())
    assert all(p.dtype == torch.float64 for p in encoder.parameters())


def test_an_architecture_without_a_known_embedding_module_takes_no_embedding_views() -> None:
    config = {"model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    assert not TransformerEncoder(config=config).takes_embedding_views


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, learned_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A pretrained BERT in bfloat16 with a pooler and a tokenizer, as a hub folder."""
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(1)
    config = BertConfig(**{**SIZE, "vocab_size": len(learned_tokenizer)})
    AutoModel.from_config(config).bfloat16().save_pretrained(path)
    learned_tokenizer.save_pretrained(path)
    return path


@torch.no_grad()
def test_a_folder_gives_its_weights_in_float32_without_the_pooler(folder: Path) -> None:
    encoder = TransformerEncoder(str(folder), layout="padded").eval()
    saved = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    ours = encoder.model.state_dict()
    assert all(torch.equal(value, saved.state_dict()[key]) for key, value in ours.items())
    assert {key for key in saved.state_dict() if key not in ours} == {"pooler.dense.weight", "pooler.dense.bias"}
    ids = torch.tensor([ROWS[1]])
    expected = saved(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    assert torch.equal(encoder(ragged(ROWS[1], slots=PAIR[:1])).layers[-1], expected)


@torch.no_grad()
def test_s6_a_pretrained_encoder_trains_with_its_dropout(folder: Path) -> None:
    # Transformers hands pretrained models over in evaluation mode, and Lightning no longer changes modes.
    encoder = TransformerEncoder(str(folder))
    assert encoder.training
    assert [name for name, module in encoder.named_modules() if not module.training] == []
    first, second = encoder(ragged(ROWS[1], ROWS[1])).layers[-1]
    assert not torch.allclose(first, second)


def test_a_folder_gives_its_tokenizer_and_another_folder_another(
    folder: Path, tmp_path: Path, learned_tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer = TransformerEncoder(str(folder)).tokenizer
    assert tokenizer is not None
    assert tokenizer("a bird").input_ids == learned_tokenizer("a bird").input_ids
    other = PreTrainedTokenizerFast(tokenizer_object=learned_tokenizer.backend_tokenizer, model_max_length=9)
    other.save_pretrained(tmp_path)
    config = {**CONFIGS["bert"], "vocab_size": len(other)}
    encoder = TransformerEncoder(config=config, tokenizer_name_or_path=str(tmp_path))
    assert encoder.limit == 9


@pytest.mark.parametrize(
    ("key", "value"), [("num_hidden_layers", 3), ("intermediate_size", 32)], ids=["missing", "another shape"]
)
def test_a_checkpoint_that_lacks_weights_is_refused(folder: Path, tmp_path: Path, key: str, value: int) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=r"expected all weights of the encoder in .*missing or of another shape"):
        TransformerEncoder(str(tmp_path))
