"""Objectives with networks of their own, TSDAE and DiffCSE: plain models text by text, and runs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import parts
import pytest
import tiny
import torch
from covering import rest_slow
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.packing import Layout
from contrastive_text.heads import ProjectorHead
from contrastive_text.objectives import Contrastive, DenoisingDecoder, ReplacedTokens
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens

TEXTS = ((2, 11, 12, 13, 14, 3), (2, 21, 3), (2, 31, 32, 33, 3))
SOURCES = ((2, 11, 14, 3), (2, 21, 3), (2, 32, 3))
SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("original", 0))


def texts_of(sources: tuple[tuple[int, ...], ...] = SOURCES, texts: tuple[tuple[int, ...], ...] = TEXTS) -> Batch:
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


def tsdae(tied: bool = True, dropout: float = 0.0, layout: Layout = "auto", **parts: Any) -> ContrastiveModule:
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


@pytest.mark.parametrize(("tied", "layout"), [(True, "packed"), (False, "bucketed")])
def test_loss_and_gradient_are_those_of_plain_models_text_by_text(tied: bool, layout: Layout) -> None:
    module = tsdae(tied, layout=layout)
    assert len(module.encode(texts_of()).slots) == 1  # neither positive nor original goes through the encoder
    found: dict[str, list[Any]] = {"ours": [], "plain": []}
    ours = module.step_losses(texts_of())["tsdae"]
    for name, loss in (("ours", ours), ("plain", plain_loss(module))):
        module.zero_grad()
        loss.backward()
        found[name] = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    torch.testing.assert_close(ours, plain_loss(module), rtol=1e-12, atol=0)
    assert len(found["ours"]) == len(list(module.parameters()))
    largest = max(float(gradient.abs().max()) for gradient in found["plain"])
    for one, other in zip(found["ours"], found["plain"], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10 * largest)


def test_what_follows_a_token_changes_nothing_of_it() -> None:
    module = tsdae()
    cut, last = (
        module.step_losses(texts_of(SOURCES[:1], (text,)))["tsdae"] * (len(text) - 1)
        for text in (TEXTS[0][:3], (*TEXTS[0][:3], 99))
    )
    assert float((last - cut).detach()) > 0  # the first two terms are the same: the third is added
    assert module.step_losses(texts_of(((2, 3),), ((7,),)))["tsdae"] == 0  # one token has nothing to follow it


def test_all_of_a_template_is_read_and_only_what_ends_the_text_is_predicted() -> None:
    module = tsdae()
    around = torch.tensor([[1, 1]] * 6 + [[3, 2], [1, 1], [1, 3]])
    predicted = [{3, 4}, {1, 2}, {1, 2}]  # places of the three texts: a token each, and what follows it
    torch.testing.assert_close(
        module.step_losses(texts_of().replace(template_lengths=around))["tsdae"], plain_loss(module, predicted)
    )


def test_several_anchors_of_a_text_each_write_it() -> None:
    module = tsdae()
    encoded = module.encode(texts_of())
    twice = replace(
        encoded, embeddings=encoded.embeddings.repeat(2, 1), slots=(Slot("anchor", 0), Slot("anchor", 1))
    )
    once, both = (module.objective_parts()["tsdae"](each) for each in (encoded, twice))
    torch.testing.assert_close(both.total, 2 * once.total)
    assert both.count == 2 * once.count == 22


@pytest.mark.slow
def test_dropout_in_the_decoder_follows_the_batchs_key_also_where_it_is_computed_anew() -> None:
    module = tsdae(dropout=0.3, layout="packed")

    def gradient(seed: int, chunk_tokens: int | None) -> list[Tensor]:
        module.set_chunk_tokens(chunk_tokens)
        loss = module.step_losses(texts_of().replace(seed=seed))["tsdae"]
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
            found.append(float(module.step_losses(texts_of().replace(seed=1))["tsdae"]))
            weight[3] -= step
    assert (found[0] - found[1]) / 2e-6 == pytest.approx(float(each[0][place][3]), rel=1e-5)


# In a run


def fit(module: ContrastiveModule, folder: Path, resume: str | Path | None) -> ContrastiveModule:
    """Trains two steps of two batches each, with a checkpoint after each step."""
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder, enable_checkpointing=True, callbacks=[keep], max_steps=2, accumulate_grad_batches=2
    )
    data = tiny.data(tiny.write_texts(folder.parent / "texts.txt"), batch_size=4)
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    return module


def fit_tsdae(folder: Path, bert: str, resume: Path | None = None) -> ContrastiveModule:
    torch.manual_seed(len(str(folder)))  # what starts at random comes with the checkpoint
    module = ContrastiveModule(
        TransformerEncoder(bert, dropout=0.1),
        CLSPooler(),
        views={"anchor": [DeleteTokens(rate=0.6, unit="word")]},
        objectives={"tsdae": DenoisingDecoder()},
    )
    return fit(module, folder, resume)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_trains_each_weight_once_resumes_exactly_and_keeps_no_decoder(bert: str, tmp_path: Path) -> None:
    module = fit_tsdae(tmp_path / "whole", bert)
    (group, plain) = module.trainer.optimizers[0].param_groups
    trained = [*group["params"], *plain["params"]]
    assert len(trained) == len({*map(id, trained)}) == len(list(module.parameters()))
    again = fit_tsdae(tmp_path / "again", bert, resume=tmp_path / "whole" / "step=1.ckpt")
    for name, weight in module.state_dict().items():
        assert not isinstance(weight, Tensor) or torch.equal(weight, again.state_dict()[name]), name
    decoder = again.objectives["tsdae"].decoder
    assert decoder.network.model.embeddings.word_embeddings.weight is (
        again.encoder.model.embeddings.word_embeddings.weight
    )
    said = "tsdae: a decoder with the encoder's weights, randomly initialized cross-attention and a "
    assert model_facts(module)["networks of objectives"] == f"{said}randomly initialized token head"
    assert not [name for name, _ in module.sentence_encoder().named_parameters() if "cross" in name]
    # A second stage begins with the trained encoder, which its decoder shares or copies.
    for tied in (True, False):
        second = tiny.module(bert, pooler=CLSPooler(), objectives={"other": DenoisingDecoder(tied)})
        said = load_initial_weights(second, tmp_path / "whole" / "step=2.ckpt")
        assert "starts from scratch: objective other" in said
        copied = second.objectives["other"].decoder.network.model.embeddings.word_embeddings.weight
        assert torch.equal(copied, module.encoder.model.embeddings.word_embeddings.weight)


PAIR = (Slot("anchor", 0), Slot("positive", 0))


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random masked language model with the vocabulary of all tests."""
    return tiny.save_masked_lm(tmp_path_factory.mktemp("generator"), num_hidden_layers=1)


def diffcse(bert: str, generator: str, layout: Layout = "auto", **options: Any) -> ContrastiveModule:
    """DiffCSE in small; the encoder has no dropout unless it is asked for."""
    dropout = options.pop("dropout", 0.0)
    torch.manual_seed(0)
    objectives = {
        "contrastive": Contrastive(head=ProjectorHead(last_norm=True)),
        "replaced": ReplacedTokens(generator, **{"rate": 0.5, "head_of": "contrastive", **options}),
    }
    encoder = TransformerEncoder(bert, dropout=dropout, layout=layout)
    return ContrastiveModule(encoder, CLSPooler(), objectives=dict(objectives), weights={"replaced": 0.1})


def pairs_of(module: ContrastiveModule, texts: tuple[str, ...] = tiny.TEXTS[:4], seed: int = 3) -> Batch:
    tokenizer = module.encoder.tokenizer
    assert tokenizer is not None
    rows = [tokenizer(text)["input_ids"] for text in texts] * 2
    return Batch(
        ids=torch.tensor([i for row in rows for i in row]),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=PAIR,
        row_slots=torch.arange(2).repeat_interleave(len(texts)),
        draw_keys=torch.arange(len(rows)) * 71 + seed,
        text_ids=torch.arange(len(texts)).repeat(2),
        seed=seed,
    )


def authors_loss(module: ContrastiveModule, generator: str, batch: Batch) -> tuple[Tensor, float]:
    """The authors' steps, text by text without padding; and the share of replaced tokens."""
    objective = module.objectives["replaced"]
    writer = AutoModelForMaskedLM.from_pretrained(generator).eval()
    hidden = torch.split(objective.filling.mask_tokens(batch, objective.rate), batch.lengths.tolist())
    texts = torch.split(batch.ids, batch.lengths.tolist())
    vectors = torch.cat([module.encoder.model(text[None]).last_hidden_state[:, 0] for text in texts])
    given = module.objectives["contrastive"].head(vectors)
    network = module.encoder.model if objective.network is None else objective.network.model
    terms, changed = [], []
    for text, masked, vector in zip(texts, hidden, given, strict=True):
        edited = writer(masked[None]).logits[0].argmax(dim=1)
        edited[0] = text[0]
        entered = network.embeddings(edited[None]).clone()
        entered[0, 0] = vector
        states = network.encoder(entered, attention_mask=None).last_hidden_state[0]
        labels = (edited != text).long()
        terms.append(cross_entropy(objective.classifier(states), labels, reduction="none"))
        changed.append(labels)
    return torch.cat(terms).mean(), float(torch.cat(changed).double().mean())


@pytest.mark.parametrize(
    ("layout", "shared", "chunk_tokens"), rest_slow([("packed", False, 30), ("bucketed", True, None)])
)
def test_loss_and_gradient_are_those_of_the_authors_steps_text_by_text(
    layout: Layout, shared: bool, chunk_tokens: int | None, bert: str, generator: str
) -> None:
    module = diffcse(bert, generator, layout, shared=shared).double()
    batch = pairs_of(module)
    module.set_chunk_tokens(chunk_tokens)
    ours = module.step_losses(batch)["replaced"]
    expected, share = authors_loss(module, generator, batch)
    torch.testing.assert_close(ours, 0.1 * expected, rtol=1e-10, atol=0)
    assert float(module.figures["replaced/replaced"]) == pytest.approx(share)
    assert 0.2 < share < 1  # a random generator is seldom right; first tokens are never replaced
    weights = [*module.encoder.parameters(), *module.objectives["replaced"].parameters()]
    weights += [*module.objectives["contrastive"].head.parameters()]
    mine, plain = (torch.autograd.grad(loss, weights) for loss in (ours, 0.1 * expected))
    largest = max(float(gradient.abs().max()) for gradient in plain)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * largest)
    assert float(mine[0].abs().max()) > 0  # the encoder learns through the vector


def test_tokens_are_hidden_by_keys_eight_in_ten_masked_and_special_ones_never(bert: str, generator: str) -> None:
    module = diffcse(bert, generator)
    module.objective_parts()["replaced"].check()
    filling = module.objectives["replaced"].filling
    batch = pairs_of(module, tiny.TEXTS * 20)
    hidden = filling.mask_tokens(batch, rate=0.3)
    assert torch.equal(hidden, filling.mask_tokens(batch, rate=0.3))
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    places = batch.replace(ids=torch.arange(len(batch.ids))).split(order).ids
    assert torch.equal(
        filling.mask_tokens(batch.split(order), rate=0.3), hidden[places]
    )  # whatever stands beside a row
    first, second = hidden.chunk(2)
    assert not torch.equal(first, second)  # another draw for each view
    special = torch.isin(batch.ids, torch.tensor(filling.special_ids))
    assert special.any()
    assert torch.equal(hidden[special], batch.ids[special])
    ordinary = hidden[~special], batch.ids[~special]
    masked = (ordinary[0] == filling.mask_id).double().mean()
    other = ((ordinary[0] != ordinary[1]) & (ordinary[0] != filling.mask_id)).double().mean()
    # 15,000 tokens: five standard deviations are 0.018 and 0.007.
    assert float(masked) == pytest.approx(0.3 * 0.8, abs=0.018)
    assert float(other) == pytest.approx(0.3 * 0.1, abs=0.007)


def test_the_generators_dropout_is_off_unless_asked_for_and_follows_keys(bert: str, generator: str) -> None:
    def shares(**options: Any) -> list[float]:
        module = diffcse(bert, generator, **options)
        found = []
        for seed in (3, 3, 4):
            module.step_losses(pairs_of(module).replace(seed=seed))
            found.append(float(module.figures["replaced"]))
        return found

    plain, dropping = shares(), shares(generator_dropout=True)
    assert plain[0] == plain[1] == plain[2]
    assert dropping[0] == dropping[1] != dropping[2]


@pytest.mark.slow
def test_masks_and_draws_are_the_same_where_the_discriminator_is_computed_anew(bert: str, generator: str) -> None:
    module = diffcse(bert, generator, dropout=0.3, generator_dropout=True).double()
    batch = pairs_of(module)
    module.set_chunk_tokens(20)
    loss = module.step_losses(batch)["replaced"]
    weight = module.objectives["replaced"].network.model.embeddings.LayerNorm.weight
    (gradient,) = torch.autograd.grad(loss, [weight])
    found = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight[5] += step
            found.append(float(module.step_losses(batch)["replaced"]))
            weight[5] -= step
    assert (found[0] - found[1]) / 2e-6 == pytest.approx(float(gradient[5]), rel=1e-5)


# In a run


def fit_diffcse(folder: Path, bert: str, generator: str, resume: str | None = None) -> ContrastiveModule:
    return fit(diffcse(bert, generator, dropout=0.1), folder, resume)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_resumes_exactly_with_the_same_generator_and_keeps_none_of_its_networks(
    bert: str, generator: str, tmp_path: Path
) -> None:
    module = fit_diffcse(tmp_path / "whole", bert, generator)
    path = tmp_path / "whole" / "step=1.ckpt"
    said = f"copy of the encoder as discriminator; {generator} as generator, not trained, without dropout"
    assert model_facts(module)["networks of objectives"] == f"replaced: a {said}"
    state = fit_diffcse(tmp_path / "again", bert, generator, resume=str(path)).state_dict()
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]) if isinstance(value, Tensor) else value == state[name], name
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert not [name for name in saved if "filling" in name or "token_head" in name]
    assert len([name for name in saved if "0.weight" in name and "head.network" in name]) == 1  # one projector
    trained = [weight for group in module.trainer.optimizers[0].param_groups for weight in group["params"]]
    assert {*map(id, trained)} == {*map(id, module.parameters())}
    # Another generator is refused, and none is needed where nothing is trained.
    other = tiny.save_masked_lm(tmp_path / "other", num_hidden_layers=2)
    with pytest.raises(ValueError, match="expected the weights with which the run started"):
        fit_diffcse(tmp_path / "changed", bert, other, resume=str(path))
    assert ContrastiveModule.load_from_checkpoint(path).objectives["replaced"].filling is None
    # A second stage's discriminator begins as its encoder does.
    second = diffcse(bert, generator)
    load_initial_weights(second, tmp_path / "whole" / "step=2.ckpt")
    copied = second.objectives["replaced"].network.model.state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in module.encoder.model.state_dict().items())


@pytest.mark.slow
def test_a_generator_that_cant_be_one_is_refused_before_the_first_step(bert: str, tmp_path: Path) -> None:
    words = tiny.save_masked_lm(tmp_path / "words", texts=("another few words of its own",))
    short = tiny.save_masked_lm(tmp_path / "short", max_position_embeddings=16)
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    for name, said in (
        (bert, ["expected a masked language model with its head"]),
        (words, ["expected the encoder's vocabulary with the same token ids"]),
        (short, ["expected a model that reads rows of up to 32 tokens, as the encoder", "which reads 16"]),
        (str(tmp_path / "nothing"), ["expected a local model folder or a name"]),
    ):
        module = diffcse(bert, name)
        parts.check_refused(lambda m=module: tiny.trainer(tmp_path).fit(m, data), ValueError, said)  # type: ignore[misc]  # a default of a lambda
