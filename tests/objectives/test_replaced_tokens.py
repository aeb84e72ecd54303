"""Replaced tokens (DiffCSE): the authors' steps text by text with plain models, a frozen generator, runs."""

from __future__ import annotations

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
from contrastive_text.objectives import Contrastive, ReplacedTokens
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule

SLOTS = (Slot("anchor", 0), Slot("positive", 0))


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random masked language model with the vocabulary of all tests."""
    return tiny.save_masked_lm(tmp_path_factory.mktemp("generator"), num_hidden_layers=1)


def module_of(bert: str, generator: str, layout: Layout = "auto", **options: Any) -> ContrastiveModule:
    """DiffCSE in small; the encoder has no dropout unless it is asked for."""
    dropout = options.pop("dropout", 0.0)
    torch.manual_seed(0)
    objectives = {
        "contrastive": Contrastive(head=ProjectorHead(last_norm=True)),
        "replaced": ReplacedTokens(generator, **{"rate": 0.5, "head_of": "contrastive", **options}),
    }
    encoder = TransformerEncoder(bert, dropout=dropout, layout=layout)
    return ContrastiveModule(encoder, CLSPooler(), objectives=dict(objectives), weights={"replaced": 0.1})


def batch_of(module: ContrastiveModule, texts: tuple[str, ...] = tiny.TEXTS[:4], seed: int = 3) -> Batch:
    tokenizer = module.encoder.tokenizer
    assert tokenizer is not None
    rows = [tokenizer(text)["input_ids"] for text in texts] * 2
    return Batch(
        ids=torch.tensor([i for row in rows for i in row]),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=SLOTS,
        row_slots=torch.arange(2).repeat_interleave(len(texts)),
        draw_keys=torch.arange(len(rows)) * 71 + seed,
        text_ids=torch.arange(len(texts)).repeat(2),
        seed=seed,
    )


def plain_loss(module: ContrastiveModule, generator: str, batch: Batch) -> tuple[Tensor, float]:
    """The authors' steps, text by text without padding; and the share of replaced tokens."""
    objective = module.objectives["replaced"]
    writer = AutoModelForMaskedLM.from_pretrained(generator).eval()
    hidden = torch.split(objective.filling.hide(batch, objective.rate), batch.lengths.tolist())
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
    ("layout", "shared", "chunk_tokens"),
    rest_slow([("packed", False, 30), ("bucketed", True, None), ("padded", False, None)], quick=2),
)
def test_loss_and_gradient_are_those_of_the_authors_steps_text_by_text(
    layout: Layout, shared: bool, chunk_tokens: int | None, bert: str, generator: str
) -> None:
    module = module_of(bert, generator, layout, shared=shared).double()
    batch = batch_of(module)
    module.set_chunk_tokens(chunk_tokens)
    ours = module.step_losses(batch)["replaced"]
    expected, share = plain_loss(module, generator, batch)
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
    module = module_of(bert, generator)
    module.objective_parts()["replaced"].check()
    filling = module.objectives["replaced"].filling
    batch = batch_of(module, tiny.TEXTS * 20)
    hidden = filling.hide(batch, rate=0.3)
    assert torch.equal(hidden, filling.hide(batch, rate=0.3))
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    places = batch.replace(ids=torch.arange(len(batch.ids))).split(order).ids
    assert torch.equal(filling.hide(batch.split(order), rate=0.3), hidden[places])  # whatever stands beside a row
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
        module = module_of(bert, generator, **options)
        found = []
        for seed in (3, 3, 4):
            module.step_losses(batch_of(module).replace(seed=seed))
            found.append(float(module.figures["replaced"]))
        return found

    plain, dropping = shares(), shares(generator_dropout=True)
    assert plain[0] == plain[1] == plain[2]
    assert dropping[0] == dropping[1] != dropping[2]


def test_masks_and_draws_are_the_same_where_the_discriminator_is_computed_anew(bert: str, generator: str) -> None:
    module = module_of(bert, generator, dropout=0.3, generator_dropout=True).double()
    batch = batch_of(module)
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


def fit(folder: Path, bert: str, generator: str, resume: str | None = None) -> ContrastiveModule:
    module = module_of(bert, generator, dropout=0.1)
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder, enable_checkpointing=True, callbacks=[keep], max_steps=2, accumulate_grad_batches=2
    )
    data = tiny.data(tiny.write_texts(folder.parent / "texts.txt"), batch_size=4)
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_resumes_exactly_with_the_same_generator_and_keeps_none_of_its_networks(
    bert: str, generator: str, tmp_path: Path
) -> None:
    module = fit(tmp_path / "whole", bert, generator)
    path = tmp_path / "whole" / "step=1.ckpt"
    said = f"copy of the encoder as discriminator; {generator} as generator, not trained, without dropout"
    assert model_facts(module)["networks of objectives"] == f"replaced: a {said}"
    state = fit(tmp_path / "again", bert, generator, resume=str(path)).state_dict()
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]) if isinstance(value, Tensor) else value == state[name], name
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert not [name for name in saved if "filling" in name or "token_head" in name]
    assert len([name for name in saved if "0.weight" in name and "head.network" in name]) == 1  # one projector
    trained = [weight for group in module.trainer.optimizers[0].param_groups for weight in group["params"]]
    assert {*map(id, trained)} == {*map(id, module.parameters())}
    # Another generator is refused, and none is needed where nothing is trained.
    other = tiny.save_masked_lm(tmp_path / "other", num_hidden_layers=2)
    with pytest.raises(ValueError, match="expected the weights with which the run began"):
        fit(tmp_path / "changed", bert, other, resume=str(path))
    assert ContrastiveModule.load_from_checkpoint(path).objectives["replaced"].filling is None
    # A second stage's discriminator begins as its encoder does.
    second = module_of(bert, generator)
    load_initial_weights(second, tmp_path / "whole" / "step=2.ckpt")
    copied = second.objectives["replaced"].network.model.state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in module.encoder.model.state_dict().items())


def test_a_generator_that_cant_be_one_is_refused_before_the_first_step(bert: str, tmp_path: Path) -> None:
    words = tiny.save_masked_lm(tmp_path / "words", texts=("another few words of its own",))
    short = tiny.save_masked_lm(tmp_path / "short", max_position_embeddings=16)
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    for name, said in (
        (bert, ["expected a masked language model with its head"]),
        (words, ["expected the tokens of the encoder, each with its number"]),
        (short, ["expected a model that takes the encoder's rows, of up to 32 tokens", "which takes 16"]),
        (str(tmp_path / "nothing"), ["expected a local model folder or a name"]),
    ):
        module = module_of(bert, name)
        parts.check_refused(lambda m=module: tiny.trainer(tmp_path).fit(m, data), ValueError, said)  # type: ignore[misc]  # a default of a lambda
