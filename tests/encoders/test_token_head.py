"""The head that predicts hidden tokens: the architecture's own, tied as the checkpoint has it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import tiny
import torch
from architectures import CONFIGS, NAMES, PAIR, ROWS, encoder_of, ragged
from covering import rest_slow
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from contrastive_text.encoders import TransformerEncoder

DECODERS = ("qwen2", "llama")
MASKED = [name for name in NAMES if name not in DECODERS]
DECODER = "cls.predictions.decoder.weight"


def with_head(name: str) -> TransformerEncoder:
    encoder = encoder_of(name)
    encoder.build_token_head()
    return encoder.double()


def layers_of(encoder: TransformerEncoder) -> nn.ModuleDict:
    assert encoder.token_head is not None
    return encoder.token_head.layers


def plain_model(encoder: TransformerEncoder) -> PreTrainedModel:
    """The architecture's own masked language model with equal weights."""
    plain = AutoModelForMaskedLM.from_config(encoder.model.config).double().eval()
    plain.base_model.load_state_dict(encoder.model.state_dict())
    for key, part in layers_of(encoder).items():
        plain.get_submodule(key).load_state_dict(part.state_dict())
    return plain


def tied(encoder: TransformerEncoder) -> bool:
    """Returns whether the token table and the head's decoder share their weights."""
    table = encoder.model.get_input_embeddings().weight
    places = [weight for weight in layers_of(encoder).parameters() if weight is table]
    shapes = [weight for weight in layers_of(encoder).parameters() if weight.shape == table.shape]
    return len(places) == len(shapes) == 1


@pytest.mark.parametrize("name", MASKED)
@torch.no_grad()
def test_scores_are_those_of_the_architectures_own_model(name: str) -> None:
    encoder = with_head(name)
    encoder.layout = "padded"  # the architecture's own attention
    plain = plain_model(encoder)
    ids = torch.tensor([ROWS[1]])
    expected = plain(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    hidden = encoder(ragged(ROWS[1], slots=PAIR[:1])).layers[-1][0]
    # The same operations on the same float64 numbers.
    assert torch.equal(encoder.token_logits(hidden), expected)
    # A place's scores don't depend on the others: the head may be called on any of them.
    some = encoder.token_logits(hidden[[4, 1]])
    # float64: matrix products of other sizes
    torch.testing.assert_close(some, expected[[4, 1]], rtol=0, atol=1e-12)
    assert encoder.token_logits(hidden[:0]).shape == (0, 60)


@pytest.mark.parametrize("name", MASKED)
def test_the_decoder_is_the_token_table_and_stays_it_in_another_precision_and_in_a_copy(name: str) -> None:
    encoder = encoder_of(name)
    encoder.build_token_head()
    assert tied(encoder)
    assert tied(encoder.double())
    copy = deepcopy(encoder)
    assert tied(copy)
    with torch.no_grad():
        copy.model.get_input_embeddings().weight.zero_()
    assert not torch.equal(copy.model.get_input_embeddings().weight, encoder.model.get_input_embeddings().weight)
    hidden = torch.ones(1, encoder.features, dtype=torch.float64)
    # With a table of zeros every token scores its bias, which starts at zero.
    assert not copy.token_logits(hidden).any()
    assert encoder.token_logits(hidden).any()


@pytest.mark.parametrize("name", MASKED)
def test_every_weight_gets_a_gradient_and_the_table_that_of_both_its_ends(name: str) -> None:
    encoder = with_head(name)
    hidden = encoder(ragged(ROWS[1], slots=PAIR[:1])).layers[-1][0]
    encoder.token_logits(hidden).logsumexp(dim=1).sum().backward()
    assert [key for key, weight in encoder.named_parameters() if weight.grad is None] == []
    # Tokens that the text lacks are reached through the decoder alone.
    assert bool(encoder.model.get_input_embeddings().weight.grad.any(dim=1).all())


@torch.no_grad()
def test_the_encoder_is_itself_again_after_the_head_even_after_a_failure() -> None:
    encoder = with_head("bert")
    batch = ragged(*ROWS)
    before = encoder(batch).layers[-1]
    encoder.token_logits(torch.ones(2, 16, dtype=torch.float64))
    assert torch.equal(encoder(batch).layers[-1], before)
    with pytest.raises(RuntimeError):
        encoder.token_logits(torch.ones(2, 5, dtype=torch.float64))
    assert torch.equal(encoder(batch).layers[-1], before)


# From a checkpoint


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT without a head."""
    return tiny.save_bert(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT with its head, none of whose weights are zeros or ones."""
    folder = tmp_path_factory.mktemp("masked_lm")
    tiny.save_bert(folder)
    torch.manual_seed(3)
    model = BertForMaskedLM(BertConfig(**tiny.CONFIG))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    return str(folder)


def check_head(encoder: TransformerEncoder, folder: str) -> None:
    saved = BertForMaskedLM.from_pretrained(folder).cls.state_dict()
    ours = layers_of(encoder)["cls"].state_dict()
    assert saved.keys() == ours.keys()
    assert all(torch.equal(ours[key][: len(value)], value) for key, value in saved.items())


@pytest.mark.parametrize("name", rest_slow(MASKED))
def test_the_head_of_any_architecture_is_loaded_where_the_checkpoint_has_one(
    name: str, tmp_path: Path, learned_tokenizer: PreTrainedTokenizerFast
) -> None:
    torch.manual_seed(4)
    config = AutoConfig.for_model(**{**CONFIGS[name], "vocab_size": len(learned_tokenizer)})
    whole, bare = AutoModelForMaskedLM.from_config(config), AutoModel.from_config(config)
    for weight in whole.parameters():
        nn.init.normal_(weight, std=0.3)
    for model, folder in ((whole, tmp_path / "whole"), (bare, tmp_path / "bare")):
        model.save_pretrained(folder)
        learned_tokenizer.save_pretrained(folder)
        encoder = TransformerEncoder(str(folder)).eval()
        encoder.build_token_head()
        assert encoder.token_head is not None
        assert encoder.token_head.pretrained is (model is whole)
        assert tied(encoder)
    ids = torch.tensor([ROWS[1]])
    expected = whole.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    encoder = TransformerEncoder(str(tmp_path / "whole"), layout="padded").eval()
    encoder.build_token_head()
    scores = encoder.token_logits(encoder(ragged(ROWS[1], slots=PAIR[:1])).layers[-1][0])
    assert torch.equal(scores, expected)


@pytest.mark.parametrize("source", ["a checkpoint without a head", "a config"])
def test_a_head_that_starts_at_random_says_so(bare: str, source: str) -> None:
    encoder = TransformerEncoder(config=CONFIGS["bert"]) if source == "a config" else TransformerEncoder(bare)
    before = encoder.model.get_input_embeddings().weight.clone()
    encoder.build_token_head()
    assert encoder.token_head is not None
    assert not encoder.token_head.pretrained
    assert tied(encoder)
    assert torch.equal(encoder.model.get_input_embeddings().weight, before)


def test_new_tokens_widen_table_and_head_and_leave_the_other_rows(masked_lm: str) -> None:
    plain, encoder = TransformerEncoder(masked_lm), TransformerEncoder(masked_lm)
    table = plain.model.get_input_embeddings().weight
    assert plain.tokenizer is not None
    fill = [f"[NEW{i}]" for i in range(plain.vocabulary_size - len(plain.tokenizer))]
    plain.add_tokens(fill)
    assert plain.vocabulary_size == 300  # rows that were to spare
    encoder.add_tokens([*fill, "[DEL]"])
    encoder.add_tokens(["[DEL]"])
    encoder.build_token_head()
    assert encoder.vocabulary_size == encoder.model.config.vocab_size == len(encoder.tokenizer) == 301
    assert tied(encoder)
    assert torch.equal(encoder.model.get_input_embeddings().weight[:300], table)
    check_head(encoder, masked_lm)
    scores = encoder.token_logits(torch.ones(2, 16))
    assert scores.shape == (2, 301)
    assert bool(scores.isfinite().all())


def test_a_decoder_that_the_checkpoint_has_of_its_own_is_kept(masked_lm: str, tmp_path: Path) -> None:
    for path in Path(masked_lm).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    own: Tensor = torch.randn(300, 16)
    save_file({**weights, DECODER: own}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    encoder = TransformerEncoder(str(tmp_path))
    encoder.build_token_head()
    assert encoder.token_head is not None
    assert encoder.token_head.pretrained
    decoder = layers_of(encoder).get_parameter(DECODER)
    assert torch.equal(decoder, own)
    assert not torch.equal(encoder.model.get_input_embeddings().weight, own)
