"""The denoising decoder: the plain loss text by text, with shared weights, trained, resumed and thrown away."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from covering import rest_slow
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.packing import Layout
from contrastive_text.objectives import DenoisingDecoder
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens

TEXTS = ((2, 11, 12, 13, 14, 3), (2, 21, 3), (2, 31, 32, 33, 3))
SOURCES = ((2, 11, 14, 3), (2, 21, 3), (2, 32, 3))
SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("original", 0))


def batch_of(sources: tuple[tuple[int, ...], ...] = SOURCES, texts: tuple[tuple[int, ...], ...] = TEXTS) -> Batch:
    rows = (*sources, *sources, *texts)
    return Batch(
        ids=torch.tensor([i for row in rows for i in row]),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=SLOTS,
        row_slots=torch.arange(3).repeat_interleave(len(texts)),
        draw_keys=torch.arange(len(rows)),
        text_ids=torch.arange(len(rows)),
        seed=5,
    )


def module_of(
    tied: bool = True, dropout: float = 0.0, layout: Layout = "auto", **parts: Any
) -> ContrastiveModule:
    torch.manual_seed(0)
    encoder = TransformerEncoder(config={**tiny.CONFIG, "initializer_range": 0.3}, dropout=dropout, layout=layout)
    objectives = {"tsdae": DenoisingDecoder(tied, block=4)}
    return ContrastiveModule(encoder, CLSPooler(), objectives=dict(objectives), **parts).double()


def plain_loss(module: ContrastiveModule, predicted: Sequence[Container[int]] = (range(1, 9),) * 3) -> Tensor:
    """Text by text, without padding, through the models of Transformers."""
    objective = module.objectives["tsdae"]
    decoder = objective.decoder
    terms = []
    for source, text, places in zip(SOURCES, TEXTS, predicted, strict=True):
        vector = module.encoder.model(torch.tensor([source])).last_hidden_state[:, 0]
        states = decoder.network.model(torch.tensor([text[:-1]]), encoder_hidden_states=vector[:, None])
        scores = decoder.token_logits(states.last_hidden_state[0])
        followed = [i for i in range(len(text) - 1) if i + 1 in places]
        terms += [cross_entropy(scores[i], torch.tensor(text[i + 1])) for i in followed]
    return torch.stack(terms).mean()


@pytest.mark.parametrize(
    ("tied", "layout"), rest_slow([(True, "packed"), (False, "bucketed"), (True, "padded")], quick=2)
)
def test_loss_and_gradient_are_those_of_plain_models_text_by_text(tied: bool, layout: Layout) -> None:
    module = module_of(tied, layout=layout)
    assert len(module.encode(batch_of()).slots) == 1  # neither positive nor original goes through the encoder
    found: dict[str, list[Any]] = {"ours": [], "plain": []}
    ours = module.step_losses(batch_of())["tsdae"]
    for name, loss in (("ours", ours), ("plain", plain_loss(module))):
        module.zero_grad()
        loss.backward()
        found[name] = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    torch.testing.assert_close(ours, plain_loss(module), rtol=1e-12, atol=0)
    assert len(found["ours"]) == len(list(module.parameters()))
    largest = max(float(gradient.abs().max()) for gradient in found["plain"])
    for one, other in zip(found["ours"], found["plain"], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10 * largest)


def test_what_follows_a_token_and_other_texts_change_nothing_of_it() -> None:
    module = module_of()
    whole = module.step_losses(batch_of())["tsdae"] * 11
    alone = [
        module.step_losses(batch_of((source,), (text,)))["tsdae"] * (len(text) - 1)
        for source, text in zip(SOURCES, TEXTS, strict=True)
    ]
    torch.testing.assert_close(whole, torch.stack(alone).sum())
    cut = module.step_losses(batch_of(SOURCES[:1], (TEXTS[0][:3],)))["tsdae"] * 2
    last = module.step_losses(batch_of(SOURCES[:1], ((*TEXTS[0][:3], 99),)))["tsdae"] * 3
    assert float((last - cut).detach()) > 0  # the first two terms are the same: the third is added
    assert module.step_losses(batch_of(((2, 3),), ((7,),)))["tsdae"] == 0  # one token has nothing to follow it


def test_all_of_a_template_is_read_and_only_what_ends_the_text_is_predicted() -> None:
    module = module_of()
    around = torch.tensor([[1, 1]] * 6 + [[3, 2], [1, 1], [1, 3]])
    predicted = [{3, 4}, {1, 2}, {1, 2}]  # places of the three texts: a token each, and what follows it
    torch.testing.assert_close(
        module.step_losses(batch_of().replace(around=around))["tsdae"], plain_loss(module, predicted)
    )


def test_several_anchors_of_a_text_each_write_it() -> None:
    module = module_of()
    encoded = module.encode(batch_of())
    twice = replace(
        encoded,
        embeddings=encoded.embeddings.repeat(2, 1),
        slots=(Slot("anchor", 0), Slot("anchor", 1)),
    )
    once, both = (module.objective_parts()["tsdae"](each) for each in (encoded, twice))
    torch.testing.assert_close(both.total, 2 * once.total)
    assert both.count == 2 * once.count == 22


def test_dropout_in_the_decoder_follows_the_batchs_key_also_where_it_is_computed_anew() -> None:
    module = module_of(dropout=0.3, layout="packed")

    def gradient(seed: int, chunk_tokens: int | None) -> list[Tensor]:
        module.set_chunk_tokens(chunk_tokens)
        loss = module.step_losses(batch_of().replace(seed=seed))["tsdae"]
        torch.rand(7)  # whatever was drawn between
        return list(torch.autograd.grad(loss, list(module.parameters())))

    each = [gradient(seed, 6) for seed in (1, 1, 2)]
    assert all(torch.equal(one, other) for one, other in zip(each[0], each[1], strict=True))
    assert not torch.equal(each[0][0], each[2][0])
    # Numerical gradient of one weight, with the same masks: what is computed anew is what was computed.
    named = dict(module.named_parameters())
    name = next(name for name in named if name.endswith("crossattention.self.value.bias"))
    weight, place = named[name], list(named).index(name)
    found = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight[3] += step
            found.append(float(module.step_losses(batch_of().replace(seed=1))["tsdae"]))
            weight[3] -= step
    assert (found[0] - found[1]) / 2e-6 == pytest.approx(float(each[0][place][3]), rel=1e-5)


# In a run


def fit(folder: Path, bert: str, resume: Path | None = None) -> ContrastiveModule:
    torch.manual_seed(len(str(folder)))  # what starts at random comes with the checkpoint
    module = ContrastiveModule(
        TransformerEncoder(bert, dropout=0.1),
        CLSPooler(),
        views={"anchor": [DeleteTokens(rate=0.6, unit="word")]},
        objectives={"tsdae": DenoisingDecoder()},
    )
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder, enable_checkpointing=True, callbacks=[keep], max_steps=2, accumulate_grad_batches=2
    )
    data = tiny.data(tiny.write_texts(folder.parent / "texts.txt"), batch_size=4)
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_trains_each_weight_once_resumes_exactly_and_keeps_no_decoder(bert: str, tmp_path: Path) -> None:
    module = fit(tmp_path / "whole", bert)
    (group, plain) = module.trainer.optimizers[0].param_groups
    trained = [*group["params"], *plain["params"]]
    assert len(trained) == len({*map(id, trained)}) == len(list(module.parameters()))
    again = fit(tmp_path / "again", bert, resume=tmp_path / "whole" / "step=1.ckpt")
    for name, weight in module.state_dict().items():
        assert not isinstance(weight, Tensor) or torch.equal(weight, again.state_dict()[name]), name
    decoder = again.objectives["tsdae"].decoder
    assert decoder.network.model.embeddings.word_embeddings.weight is (
        again.encoder.model.embeddings.word_embeddings.weight
    )
    said = "tsdae: a decoder with the encoder's weights, cross-attention that starts at random and a token head, "
    assert model_facts(module)["networks of objectives"] == f"{said}which starts at random"
    assert not [name for name, _ in module.sentence_encoder().named_parameters() if "cross" in name]
    # A second stage begins with the trained encoder, which its decoder shares or copies.
    for tied in (True, False):
        second = tiny.module(bert, pooler=CLSPooler(), objectives={"other": DenoisingDecoder(tied)})
        said = load_initial_weights(second, tmp_path / "whole" / "step=2.ckpt")
        assert "starts anew: objective other" in said
        copied = second.objectives["other"].decoder.network.model.embeddings.word_embeddings.weight
        assert torch.equal(copied, module.encoder.model.embeddings.word_embeddings.weight)
