"""Masked language modeling: the plain loss at the hidden places alone, beside contrast, in one pass."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import NAMES, PAIR, ROWS, encoder_of, ragged
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.types import NO_LABEL
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.base import Embedder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import Contrastive, MaskedLM
from contrastive_text.poolers import MeanPooler
from contrastive_text.training import AdamW, ConstantSchedule
from contrastive_text.training.forward_pass import encode_views
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens, View, ViewPlan

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
DECODERS = ("qwen2", "llama")


def labeled(*places: int) -> Batch:
    """Six rows whose tokens at the given places of the batch are to be predicted."""
    batch = ragged(*ROWS)
    labels = torch.full_like(batch.ids, NO_LABEL)
    labels[list(places)] = batch.ids[list(places)] + 20
    return batch.replace(labels=labels)


# In rows 0, 1, 1, 1, 3, 4 and 5; rows 2 (one token) and others have places without a label.
SOME = labeled(1, 3, 4, 9, 12, 15, 21)
NONE = labeled()


def encode(encoder: TransformerEncoder, batch: Batch) -> Encoded:
    return encode_views(batch, Embedder(encoder, MeanPooler()), ViewPlan())


def gradients(encoder: TransformerEncoder, loss: Tensor) -> dict[str, Tensor]:
    encoder.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in encoder.named_parameters() if weight.grad is not None}


def close(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    scale = max(float(value.abs().max()) for value in theirs.values())
    assert scale > 1e-3
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=0, atol=PROMISE * scale, msg=name)


def with_head(name: str) -> TransformerEncoder:
    encoder = encoder_of(name)
    encoder.build_token_head()
    return encoder.double()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECODERS])
def test_loss_and_gradient_are_those_of_the_architectures_own_model_over_all_places(name: str) -> None:
    encoder = with_head(name)
    assert encoder.token_head is not None
    plain = AutoModelForMaskedLM.from_config(encoder.model.config).double().eval()
    plain.base_model.load_state_dict(encoder.model.state_dict())
    for key, part in encoder.token_head.layers.items():
        plain.get_submodule(key).load_state_dict(part.state_dict())

    def padded(values: Tensor, fill: int) -> Tensor:
        rows = values.split(SOME.lengths.tolist())
        return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)

    assert SOME.labels is not None
    labels = padded(SOME.labels, NO_LABEL)
    mask = padded(torch.ones_like(SOME.ids), 0)
    ids = padded(SOME.ids, plain.config.pad_token_id)
    expected = plain(input_ids=ids, attention_mask=mask, labels=labels)
    terms = MaskedLM()(encode(encoder, SOME))
    assert terms.count == 7
    # Some architectures calculate their own loss in float32.
    assert terms.total.item() / 7 == pytest.approx(expected.loss.item(), abs=1e-6)
    total = cross_entropy(expected.logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert terms.total.item() == pytest.approx(total.item(), rel=1e-12)  # float64: sums in another order
    found = expected.logits.argmax(dim=-1) == labels
    assert float(terms.logs["accuracy"]) == pytest.approx(float(found.sum()) / 7)
    total.backward()
    inner = f"{plain.base_model_prefix}."
    ours = dict(encoder.named_parameters())
    reached = (
        (f"model.{key.removeprefix(inner)}" if key.startswith(inner) else f"token_head.layers.{key}", weight.grad)
        for key, weight in plain.named_parameters(remove_duplicate=False)
    )
    theirs = {key: gradient for key, gradient in reached if key in ours and gradient is not None}
    close(gradients(encoder, terms.total), theirs)


def of_scores(hidden: Tensor, labels: Tensor) -> Encoded:
    """Hidden tokens whose scores are three times their vectors."""
    return Encoded(
        torch.zeros(6, 4),
        PAIR,
        text_ids=torch.arange(6),
        masked_hidden=hidden,
        masked_labels=labels,
        token_logits=lambda rows: 3 * rows,
    )


def test_the_accuracy_is_the_share_of_hidden_tokens_that_score_best() -> None:
    terms = MaskedLM(block=3)(of_scores(torch.eye(4, dtype=torch.float64), torch.tensor([0, 1, 2, 0])))
    assert float(terms.logs["accuracy"]) == 0.75
    # By hand: log(e^3 + 3) - 3 for three of them, log(e^3 + 3) for the other.
    log_sum = torch.logsumexp(torch.tensor([3.0, 0, 0, 0], dtype=torch.float64), dim=0)
    assert terms.total.item() == pytest.approx(float(4 * log_sum - 9), rel=1e-12)


def test_half_precision_scores_are_compared_in_float32() -> None:
    hidden = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    total = MaskedLM()(of_scores(hidden, torch.arange(5) % 4)).total
    assert total.dtype == torch.float32
    assert torch.equal(total, cross_entropy((3 * hidden).float(), torch.arange(5) % 4, reduction="sum"))


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_blocks_of_any_size_give_one_loss_and_gradient_and_no_more_logits_at_a_time(block: int) -> None:
    encoder = with_head("bert")
    encoded = encode(encoder, SOME)
    widths: list[int] = []

    def logits(hidden: Tensor) -> Tensor:
        widths.append(len(hidden))
        return encoder.token_logits(hidden)

    terms = MaskedLM(block=block)(replace(encoded, token_logits=logits))
    mine = gradients(encoder, terms.total)
    assert max(widths) == min(block, 7)
    assert sum(widths) == 14  # each once forward, and once again in the backward pass
    assert encoded.masked_hidden is not None
    scores = encoder.token_logits(encode(encoder, SOME).masked_hidden)  # type: ignore[arg-type]  # labels are there
    total = cross_entropy(scores, encoded.masked_labels, reduction="sum")  # type: ignore[arg-type]  # the same
    assert terms.total.item() == pytest.approx(total.item(), rel=1e-12)  # float64: sums in another order
    close(mine, gradients(encoder, total))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECODERS])
def test_without_a_hidden_token_the_loss_is_zero_and_every_gradient_is_zero(name: str) -> None:
    encoder = with_head(name)
    terms = MaskedLM()(encode(encoder, NONE))
    assert (terms.count, terms.total.item(), float(terms.logs["accuracy"])) == (0, 0.0, 0.0)
    reached = gradients(encoder, terms.total)
    # Every weight takes part all the same: ranks with and without hidden tokens meet in one backward pass.
    assert reached.keys() == dict(encoder.named_parameters()).keys()
    assert not any(value.any() for value in reached.values())


# In a module


def masked(folder: str, views: dict[str, list[View]] | None = None, **parts: Any) -> ContrastiveModule:
    """A module that contrasts and predicts masked tokens."""
    chosen = {"anchor": [MaskTokens(rate=0.4)]} if views is None else views
    objectives = {"contrastive": Contrastive(), "mlm": MaskedLM()}
    return tiny.module(folder, views=chosen, objectives=objectives, **{"weights": {"mlm": 0.1}, **parts})


def first_batch(module: ContrastiveModule, train: str, **options: Any) -> Batch:
    data = tiny.data(train, **options)
    data.set_module(module)
    data.setup("fit")
    return next(iter(data.train_dataloader()))


def tied(module: ContrastiveModule) -> bool:
    encoder = module.encoder
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.token_head is not None
    decoder = encoder.token_head.layers.get_parameter("cls.predictions.decoder.weight")
    return decoder is encoder.model.get_input_embeddings().weight


def test_the_head_is_made_only_where_it_is_needed(bert: str) -> None:
    module = tiny.module(bert, views={"anchor": [MaskTokens()]})
    assert not [name for name, _ in module.named_parameters() if "token_head" in name]
    assert [name for name, _ in masked(bert).named_parameters() if "token_head" in name]


def test_s12_special_tokens_are_never_predicted_and_every_hidden_place_is(bert: str, texts: str) -> None:
    module = masked(bert, views={"original": [MaskTokens(rate=0.6)]}, dropout=0.0)
    batch = first_batch(module, texts)
    assert batch.labels is not None
    chosen = batch.labels != NO_LABEL
    rows = batch.row_slots.repeat_interleave(batch.lengths)
    assert {batch.slots[i].role for i in rows[chosen].tolist()} == {"original"}
    encoded = module.encode(batch)
    specials = module.encoder.tokenizer.all_special_ids
    assert len(encoded.masked_labels) == int(chosen.sum()) > 20
    assert not torch.isin(encoded.masked_labels, torch.tensor(specials)).any()
    # Each is predicted from the last layer at its own place.
    hidden = module.encoder(batch)
    scores = module.encoder.token_logits(hidden.layers[-1][hidden.mask][chosen])
    expected = cross_entropy(scores, batch.labels[chosen], reduction="sum")
    # float32: sums in another order
    assert MaskedLM()(encoded).total.item() == pytest.approx(expected.item(), rel=1e-5)


def test_d15_one_pass_gives_both_losses_and_positives_stay_as_they_are(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = masked(bert, dropout=0.0)
    batch = first_batch(module, texts)
    plain = first_batch(tiny.module(bert), texts)
    ids = [each.ids.split(each.lengths.tolist()) for each in (batch, plain)]
    changed = [not torch.equal(mine, theirs) for mine, theirs in zip(*ids, strict=True)]
    assert not any(changed[8:])
    assert sum(changed[:8]) > 4  # of 8 texts with 6 to 10 tokens at a rate of 0.4
    passes: list[bool] = []
    block = module.encoder.model.encoder.layer[0]
    block.register_forward_hook(lambda layer, _, __: passes.append(layer.training))
    tiny.trainer(tmp_path, max_steps=3).fit(module, datamodule=tiny.data(texts))
    assert sum(passes) == 3  # of those that train; which tokens the attention sees is tried beforehand


# What is kept


def test_the_decoder_stays_the_token_table_with_a_new_token_too_and_is_loaded_so(
    bert: str, texts: str, tmp_path: Path
) -> None:
    # A mark for each of two rows to spare, and one more: the table grows.
    size = len(TransformerEncoder(bert).tokenizer) + 2
    marks: list[View] = [DeleteTokens(rate=0.0, mark=f"[M{i}]") for i in range(2)]
    views: dict[str, list[View]] = {"anchor": [MaskTokens(rate=0.4)]}
    views["positive"] = [*marks, DeleteTokens(rate=0.5, mark="[DEL]")]
    module = masked(tiny.save_bert(tmp_path / "bert", vocab_size=size), views=views)
    before = module.encoder.model.get_input_embeddings().weight.detach().clone()
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    assert not torch.equal(module.encoder.model.get_input_embeddings().weight, before)
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "whole.ckpt")
    for each in (module, loaded, deepcopy(module), deepcopy(module).to(torch.float64)):
        assert tied(each)
        assert each.encoder.vocabulary_size == size + 1
        # One name in the optimizer, though two in the state.
        names = [name for name, value in each.named_parameters() if value.shape == (size + 1, 16)]
        assert names == ["encoder.model.embeddings.word_embeddings.weight"]
    ours, theirs = module.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    batch = first_batch(module, texts)
    losses = [each.eval().objectives["mlm"](each.encode(batch)).total.item() for each in (module, loaded)]
    assert losses[0] == losses[1] > 0


@pytest.mark.slow
def test_the_row_of_a_new_token_is_trained_and_the_model_in_use_knows_it(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(
        bert,
        dropout=0.0,
        views={"positive": [DeleteTokens(rate=0.5, mark="[DEL]")]},
        # without decay a row moves only where a text has its token
        optimizer=AdamW(lr=1e-2, weight_decay=0.0),
        schedule=ConstantSchedule(),
    )
    number = module.encoder.tokenizer.convert_tokens_to_ids("[DEL]")
    batch = first_batch(module, texts)
    assert (batch.ids == number).sum() >= 8
    table = module.encoder.model.get_input_embeddings().weight
    before = table.detach().clone()
    tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(texts))
    assert torch.equal((table != before).any(dim=1).nonzero().flatten(), batch.ids.unique())
    ours = module.eval().sentence_encoder()
    ours.save_pretrained(tmp_path / "model")
    loaded, strings = SentenceEncoder.from_pretrained(tmp_path / "model"), ["a bird [DEL] in the tree", "[DEL]"]
    assert loaded.tokenizer([strings[-1]])[0].ids == (number,)
    vectors = (torch.as_tensor(each.encode(strings)) for each in (loaded, ours))
    assert torch.equal(*vectors)


@pytest.mark.slow
def test_a_learned_vocabulary_has_mask_and_marks_and_the_table_keeps_its_size(texts: str, tmp_path: Path) -> None:
    module = ContrastiveModule(
        TransformerEncoder(config=tiny.CONFIG),
        views={"anchor": [MaskTokens(rate=0.4)], "positive": [DeleteTokens(rate=0.5, mark="[DEL]")]},
        objectives={"contrastive": Contrastive(), "mlm": MaskedLM()},
    )
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "learned.ckpt")
    loaded, batch = ContrastiveModule.load_from_checkpoint(tmp_path / "learned.ckpt"), first_batch(module, texts)
    tokenizer = module.encoder.tokenizer
    mark, mask = tokenizer.convert_tokens_to_ids(["[DEL]", "[MASK]"])
    assert len({mark, mask, tokenizer.unk_token_id}) == 3
    assert {mark, mask} <= {*batch.ids.tolist()}
    for each in (module, loaded):
        assert each.encoder.vocabulary_size == len(each.encoder.model.get_input_embeddings().weight) == 300
        assert tied(each)
    assert torch.equal(first_batch(loaded, texts).ids, batch.ids)
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))
