"""The module: one step's loss and gradient, what is refused at construction, what a checkpoint keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch
from architectures import CONFIGS
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from contrastive_text.cli import run
from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Encoded, Hidden, Tokens
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import Comparison, InfoNCE, Loss, NTXent, cosine_similarity_matrix
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.pairings import Given
from contrastive_text.poolers import CLSPooler, FirstLastPooler, MeanPooler, Pooler
from contrastive_text.training import AdamW, ConstantSchedule, Optimizer
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.start_checks import causal_warning
from contrastive_text.views import DeleteTokens, FeatureCutoff, SwapWords, TokenView

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10


class SquaredNorm(Objective):
    """Mean squared length of the anchors, as a user would write it."""

    def forward(self, encoded: Encoded) -> Terms:
        anchors = encoded.role("anchor")[:, 0]
        return Terms(
            total=anchors.square().sum(), count=len(anchors), logs={"longest": anchors.norm(dim=1).max()}
        )


class Distance(Loss):
    """1 - cosine of a row and its target, times a factor."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def terms(self, block: Comparison) -> Tensor:
        cosines = cosine_similarity_matrix(block.rows, block.columns)
        return self.factor * (1 - cosines.gather(1, block.target.unsqueeze(1)).squeeze(1))


class LastToken(Pooler):
    """The vector of the last token."""

    def forward(self, hidden: Hidden) -> Tensor:
        return hidden.layers[-1][torch.arange(len(hidden.mask)), hidden.mask.sum(dim=1) - 1]


class Forgetful(TokenView):
    """Doesn't store its argument."""

    def __init__(self, rate: float = 0.1) -> None:
        self.kept = 1 - rate

    def __call__(self, tokens: Tokens, rng: object) -> Tokens:  # noqa: ARG002  # the base's signature
        return tokens


class HeadOnly(Optimizer):
    """Trains the parameters of the head alone."""

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for name, p in parameters if name.startswith("head")], lr=1.0)


class Watch(pl.Callback):
    """Writes down what happens in a run."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.rates: list[float] = []
        self.modes: dict[str, set[bool]] = {"train": set(), "validation": set()}

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.modes["train"].add(pl_module.encoder.model.training)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.losses.append(outputs["loss"])

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:  # noqa: ARG002  # the base's signature
        self.modes["validation"].add(pl_module.encoder.model.training)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "texts.txt")


def batches(module: ContrastiveModule, train: str, **options: Any) -> list[Batch]:
    """The batches of the first epoch."""
    data = tiny.data(train, **options)
    data.attach(module)
    data.setup("fit")
    return list(data.train_dataloader())


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


# One step


def test_the_logged_loss_is_the_loss_of_vectors_computed_without_the_library(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(bert, dropout=0.0, objectives={"side": Contrastive(loss=NTXent(temperature=0.3))})
    (first, *_) = batches(module, texts)
    theirs = TransformerEncoder(bert, dropout=0.0)
    strings = [theirs.tokenizer.decode(row[1:-1]) for row in first.ids.split(first.lengths.tolist())]
    assert len(set(strings)) == 8  # no duplicate to be masked
    inputs = theirs.tokenizer(strings, padding=True, return_tensors="pt")
    hidden = theirs.model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(texts))
    expected = NTXent(temperature=0.3)(vectors[:8], vectors[8:])
    assert expected > 0.1
    # float32: two ways through the same network
    torch.testing.assert_close(trainer.callback_metrics["train/loss"], expected.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(trainer.callback_metrics["train/side"], expected.detach(), rtol=0, atol=1e-5)


def test_objectives_are_added_by_their_weights_and_each_is_logged(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(
        bert,
        dropout=0.0,
        objectives={"pull": Contrastive(), "length": SquaredNorm(), "off": SquaredNorm()},
        weights={"length": 0.25, "off": 0},
    )
    encoded = module.encode(batches(module, texts)[0])
    vectors = encoded.embeddings.detach()
    trainer = tiny.trainer(tmp_path, max_steps=1, precision="64-true")
    trainer.fit(module, datamodule=tiny.data(texts))
    logged = trainer.callback_metrics
    length = vectors[:8].square().sum(dim=1).mean()
    pull = InfoNCE()(vectors[:8], vectors[8:])
    # the step ran in float64, the hand's vectors are float32
    assert float(logged["train/length"]) == pytest.approx(float(length), rel=1e-5)
    assert float(logged["train/pull"]) == pytest.approx(float(pull), rel=1e-4)
    assert float(logged["train/length/longest"]) == pytest.approx(float(vectors[:8].norm(dim=1).max()), rel=1e-5)
    total = float(logged["train/pull"]) + 0.25 * float(logged["train/length"])
    assert float(logged["train/loss"]) == pytest.approx(total, rel=1e-6)  # logged in float32


def test_a_user_s_loss_and_pooler_need_no_more_than_their_one_method(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(
        bert, dropout=0.0, pooler=LastToken(), objectives={"near": Contrastive(loss=Distance(factor=3.0))},
        views={"positive": [DeleteTokens(rate=0.5)]},
    )  # fmt: skip
    batch = batches(module, texts)[0]
    vectors = module(batch).detach()
    ends = batch.lengths.cumsum(0) - 1
    assert torch.equal(batch.ids[ends], torch.full((16,), module.encoder.tokenizer.sep_token_id))
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(texts))
    expected = 3 * (1 - nn.functional.cosine_similarity(vectors[:8], vectors[8:])).mean()
    assert expected > 0.1
    # float32, once through a normalised product and once through torch's cosine
    torch.testing.assert_close(trainer.callback_metrics["train/near"], expected, rtol=1e-5, atol=1e-6)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "own.ckpt")
    assert isinstance(loaded.pooler, LastToken)
    assert isinstance(loaded.objectives["near"].loss, Distance)
    assert loaded.objectives["near"].loss.factor == 3.0


def test_hard_negatives_from_the_data_reach_the_loss(bert: str, tmp_path: Path) -> None:
    triples = tiny.write_triples(tmp_path / "triples.jsonl")
    loss = InfoNCE(temperature=0.5, hard_negative_log_weight=1.0)
    module = tiny.module(bert, dropout=0.0, objectives={"c": Contrastive(loss=loss, mask_duplicates=False)})
    encoded = module.encode(batches(module, triples, pairing=Given())[0])
    assert encoded.embeddings.shape[0] == 24
    a, p, n = encoded.embeddings.detach().reshape(3, 8, -1)
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(triples, pairing=Given()))
    assert abs(float(loss(a, p, n)) - float(loss(a, p))) > 0.1
    # the same float32 operations on the same batch
    assert float(trainer.callback_metrics["train/c"]) == pytest.approx(float(loss(a, p, n)), abs=1e-5)


# Dropout


def test_dropout_is_on_from_construction_and_off_in_evaluation(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    batch = batches(module, texts)[0]
    anchor, positive = module.encode(batch).embeddings.split(8)
    assert bool((anchor - positive).abs().amax(dim=1).gt(1e-2).all())
    anchor, positive = module.eval().encode(batch).embeddings.split(8)
    # without dropout a text and its copy in one batch differ by no more than float32's rounding
    torch.testing.assert_close(anchor, positive, rtol=0, atol=1e-5)


def test_training_runs_with_dropout_and_validation_without(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    trainer = tiny.trainer(tmp_path, max_steps=3, val_check_interval=1, callbacks=[watch])
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    trainer.fit(tiny.module(bert), datamodule=tiny.data(texts, validation=pairs))
    assert watch.modes == {"train": {True}, "validation": {False}}


def test_a_step_s_dropout_masks_depend_on_its_rows_and_on_no_generator_state(
    bert: str, texts: str, tmp_path: Path
) -> None:
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        watch = Watch()
        tiny.trainer(tmp_path, max_steps=3, callbacks=[watch]).fit(tiny.module(bert), datamodule=tiny.data(texts))
        seen.append(torch.stack(watch.losses))
    assert torch.equal(*seen)
    assert len(set(seen[0].tolist())) == 3  # other rows, other masks


def test_one_batch_twice_has_one_loss_and_another_seed_another(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    batch, other = batches(module, texts)[:2]

    def encoded(part: Batch) -> Tensor:
        return module.encode(batch.replace(seed=part.seed)).embeddings.detach()

    assert torch.equal(encoded(batch), encoded(batch))
    assert not torch.equal(encoded(batch), encoded(other))


# What is refused at construction


def test_a_train_only_head_doesn_t_stand_in_the_module(bert: str) -> None:
    with pytest.raises(ValueError, match=r"model\.head: expected a head with train_only: false, got TanhHead"):
        tiny.module(bert, head=TanhHead(train_only=True))


def test_a_head_that_inference_keeps_doesn_t_stand_in_an_objective() -> None:
    with pytest.raises(
        ValueError, match=r"Contrastive\.head: expected a head with train_only: true, got MLPHead"
    ):
        Contrastive(head=MLPHead(train_only=False))


def test_a_kept_head_of_another_width_sets_the_width_of_the_objectives_heads(bert: str, texts: str) -> None:
    module = tiny.module(
        bert, head=MLPHead(out_features=6, train_only=False), objectives={"c": Contrastive(head=TanhHead())}
    )
    vectors = module(batches(module, texts)[0])
    assert vectors.shape == (16, 6)
    assert module.objectives["c"].head(vectors).shape == (16, 6)


def test_embedding_views_are_refused_where_there_is_no_embedding_module() -> None:
    config = {"model_type": "xlnet", "vocab_size": 30, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16}
    encoder = TransformerEncoder(config=config)
    with pytest.raises(
        ValueError, match=r"model\.views\.positive\[0\]: expected an architecture with an embedding module"
    ):
        ContrastiveModule(encoder, views={"positive": [FeatureCutoff()]})
    assert ContrastiveModule(encoder, views={"positive": [DeleteTokens()]}).plan.roles == ("positive",)


@pytest.mark.parametrize("weights", [{"contrstive": 1.0}, {"contrastive": -0.1}])
def test_weights_for_no_objective_and_below_zero_are_refused(bert: str, weights: dict[str, float]) -> None:
    with pytest.raises(
        ValueError, match=rf"model\.weights\.{next(iter(weights))}: expected a weight of 0 or more"
    ):
        tiny.module(bert, weights=weights)


def test_a_chain_out_of_order_is_refused(bert: str) -> None:
    with pytest.raises(ValueError, match="move SwapWords before FeatureCutoff"):
        tiny.module(bert, views={"anchor": [FeatureCutoff(), SwapWords()]})


def test_a_part_that_does_not_store_its_argument_is_refused_by_name(bert: str) -> None:
    with pytest.raises(TypeError, match=r"model\.views\.anchor\[0\]: expected Forgetful .* as self\.rate"):
        tiny.module(bert, views={"anchor": [Forgetful()]})


# Checkpoints


def shape_of(value: object) -> object:
    """Types and keys of plain data."""
    if isinstance(value, Mapping):
        return {key: shape_of(item) for key, item in value.items()}
    return [shape_of(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.slow
def test_a_module_from_python_and_one_from_the_shell_leave_the_same_checkpoint(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = ContrastiveModule(
        TransformerEncoder(bert, max_length=32),
        pooler=FirstLastPooler(first="block_1"),
        views={"positive": [SwapWords(rate=0.3), DeleteTokens(rate=0.2), FeatureCutoff(rate=0.25)]},
        objectives={"contrastive": Contrastive(InfoNCE(temperature=0.05), head=TanhHead())},
        optimizer=AdamW(lr=3e-5),
    )
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "python.ckpt")
    views = (
        '{"positive": [{"class_path": "SwapWords", "init_args": {"rate": 0.3}}, '
        '{"class_path": "DeleteTokens", "init_args": {"rate": 0.2}}, '
        '{"class_path": "FeatureCutoff", "init_args": {"rate": 0.25}}]}'
    )
    words = [
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts,
        "--model.pooler", '{"class_path": "FirstLastPooler", "init_args": {"first": "block_1"}}',
        "--model.views", views, "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.max_steps", "2", "--trainer.val_check_interval", "1.0", "--trainer.accelerator", "cpu",
        "--checkpoint.dirpath", str(tmp_path / "kept"),
    ]  # fmt: skip
    assert run(words) == 0
    (kept,) = (tmp_path / "kept").iterdir()
    ours, shells = (torch.load(path, weights_only=True) for path in (tmp_path / "python.ckpt", kept))
    assert ours["hyper_parameters"] == shells["hyper_parameters"]
    assert shape_of(ours["hyper_parameters"]) == shape_of(shells["hyper_parameters"])
    assert ours["state_dict"].keys() == shells["state_dict"].keys()
    # the same seed, rows, views and dropout masks; the train-only head alone started from other random weights
    for name, value in ours["state_dict"].items():
        if name.startswith("encoder"):
            torch.testing.assert_close(value, shells["state_dict"][name], rtol=0, atol=3e-4)
    assert ours["datamodule_hyper_parameters"].keys() == shells["datamodule_hyper_parameters"].keys()


def test_a_checkpoint_gives_back_equal_vectors_and_every_part(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(
        bert,
        pooler=CLSPooler(),
        head=MLPHead(hidden_features=5, out_features=7, train_only=False),
        views={"anchor": [SwapWords(rate=0.5)], "positive": [FeatureCutoff(rate=0.4)]},
        objectives={"c": Contrastive(NTXent(temperature=0.2), head=TanhHead(), mask_duplicates=False)},
        weights={"c": 2.0},
        optimizer=AdamW(lr=1e-2, weight_decay=0.01),
        schedule=ConstantSchedule(warmup_steps=1),
    )
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "whole.ckpt")
    batch = batches(module, texts)[0]
    trained = module.eval()(batch)
    assert torch.equal(loaded.eval()(batch), trained)
    assert not torch.equal(tiny.module(bert, pooler=CLSPooler()).eval()(batch)[:, :7], trained)
    assert loaded.hparams == module.hparams
    assert loaded.weights == {"c": 2.0}
    assert not loaded.objectives["c"].mask_duplicates


@pytest.mark.slow
def test_a_user_s_parts_in_the_working_directory_survive_the_checkpoint(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_of_mine.py").write_text(
        "from contrastive_text.poolers import Pooler\n"
        "from contrastive_text.views import TextView\n"
        "class Shout(TextView):\n"
        "    def __init__(self, mark='!'):\n"
        "        self.mark = mark\n"
        "    def __call__(self, text, rng):\n"
        "        return text + self.mark\n"
        "class SecondToken(Pooler):\n"
        "    def forward(self, hidden):\n"
        "        return hidden.layers[-1][:, 1]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import parts_of_mine  # type: ignore[import-not-found]  # written above

    module = tiny.module(bert, pooler=parts_of_mine.SecondToken(), views={"anchor": [parts_of_mine.Shout("?")]})
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    monkeypatch.delitem(sys.modules, "parts_of_mine")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "mine.ckpt", trust=["parts_of_mine"])
    (view,) = loaded.plan.chains["anchor"]
    assert type(view).__module__ == "parts_of_mine"
    assert view.mark == "?"
    batch = batches(module, texts)[0]
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))


@pytest.mark.slow
def test_a_tokenizer_learned_from_the_corpus_survives_the_checkpoint(texts: str, tmp_path: Path) -> None:
    module = ContrastiveModule(TransformerEncoder(config=tiny.CONFIG))
    assert module.text_tokenizer() is None
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "learned.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "learned.ckpt")
    ours, theirs = module.text_tokenizer(), loaded.text_tokenizer()
    assert ours is not None
    assert theirs is not None
    assert theirs(tiny.TEXTS) == ours(tiny.TEXTS)
    assert len({tokens.ids for tokens in ours(tiny.TEXTS)}) == len(tiny.TEXTS)
    assert theirs.tokenizer.vocab_size <= tiny.CONFIG["vocab_size"]
    batch = batches(loaded, texts)[0]
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))


@pytest.mark.parametrize("damage", ["cut short", "a flipped byte", "empty", "text", "not there"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(
    bert: str, texts: str, tmp_path: Path, damage: str
) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(tiny.module(bert), datamodule=tiny.data(texts))
    path = tmp_path / "damaged.ckpt"
    trainer.save_checkpoint(path)
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    if damage == "cut short":
        path.write_bytes(content[:half])
    elif damage == "a flipped byte":
        content[half] ^= 0x10
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"damaged\.ckpt.*; .*checkpoint|check --ckpt_path"):
        ContrastiveModule.load_from_checkpoint(path)


# Optimiser and schedule


def test_every_parameter_is_in_one_group_and_only_matrices_decay(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(
        bert,
        head=TanhHead(train_only=False),
        objectives={"c": Contrastive(head=MLPHead())},
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
    )
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=tiny.data(texts))
    groups = trainer.optimizers[0].param_groups
    placed = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(module.parameters()))
    for name, parameter in module.named_parameters():
        spared = name.endswith("bias") or "LayerNorm" in name
        assert placed[id(parameter)] == (0.0 if spared else 0.1), name


def test_the_schedule_moves_with_every_step(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert, optimizer=AdamW(lr=8e-3))
    tiny.trainer(tmp_path, max_steps=4, callbacks=[watch]).fit(module, datamodule=tiny.data(texts))
    assert watch.rates == pytest.approx([8e-3, 6e-3, 4e-3, 2e-3], rel=1e-12)


def test_the_schedule_counts_optimiser_steps_over_epochs_and_accumulation(
    bert: str, texts: str, tmp_path: Path
) -> None:
    watch = Watch()
    module = tiny.module(bert, optimizer=AdamW(lr=6e-3))
    options = {"max_steps": -1, "max_epochs": 2, "accumulate_grad_batches": 2, "callbacks": [watch]}
    tiny.trainer(tmp_path, **options).fit(module, datamodule=tiny.data(texts))
    # 5 batches an epoch: steps after batches 2, 4 and 5
    steps = [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
    assert watch.rates == pytest.approx([6e-3 * (1 - step / 6) for step in steps], rel=1e-12)


def test_s11_the_recipe_s_schedule_over_15625_steps(bert: str, texts: str, tmp_path: Path) -> None:
    class Stop(pl.Callback):
        rates: tuple[float, ...] = ()

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # the base's signature
            scheduler = trainer.lr_scheduler_configs[0].scheduler
            self.rates = tuple(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](n) for n in (0, 125, 15_624))
            trainer.should_stop = True

    stop = Stop()
    module = ContrastiveModule.from_recipe("simcse", bert)
    tiny.trainer(tmp_path, max_steps=15_625, callbacks=[stop]).fit(module, datamodule=tiny.data(texts))
    # the sheet prints three and four digits
    assert stop.rates == pytest.approx((3e-5, 2.976e-5, 1.92e-9), rel=1e-3)


def test_a_run_of_unknown_length_is_refused_before_the_first_step(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    trainer = tiny.trainer(tmp_path, max_steps=-1, max_epochs=-1, callbacks=[watch])
    with pytest.raises(ValueError, match=r"LinearSchedule: .* got inf; set trainer\.max_steps"):
        trainer.fit(tiny.module(bert), datamodule=tiny.data(texts))
    assert not watch.losses


def test_accumulated_batches_give_the_mean_of_their_gradients(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(bert, dropout=0.0, optimizer=tiny.SGD(), schedule=ConstantSchedule()).double()
    start = weights_of(module)
    expected = {name: torch.zeros_like(value) for name, value in start.items()}
    for batch in batches(module, texts)[:2]:
        z = module.encode(batch).embeddings
        for name, g in zip(
            start, torch.autograd.grad(InfoNCE()(z[:8], z[8:]), list(module.parameters())), strict=True
        ):
            expected[name] += g / 2
    options = {"max_steps": 1, "accumulate_grad_batches": 2, "precision": "64-true"}
    tiny.trainer(tmp_path, **options).fit(module, datamodule=tiny.data(texts))
    check_gradients(start, weights_of(module), expected)


def check_gradients(
    start: Mapping[str, Tensor], end: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Holds what a step of SGD with rate 1 took off the weights against gradients."""
    scale = max(float(g.abs().max()) for g in expected.values())
    assert scale > 1e-3
    for name, g in expected.items():
        # weights of size 1 lose 1e-16 in the subtraction, far below the promise
        torch.testing.assert_close(start[name] - end[name], g, rtol=0, atol=PROMISE * scale, msg=name)


# Precision


def test_in_bf16_the_loss_is_float32_and_computed_in_float32(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert)
    before = weights_of(module)
    trainer = tiny.trainer(tmp_path, precision="bf16-mixed", callbacks=[watch])
    trainer.fit(module, datamodule=tiny.data(texts))
    assert [loss.dtype for loss in watch.losses] == [torch.float32] * 2
    assert all(bool(loss.isfinite()) for loss in watch.losses)
    assert all(value.dtype == torch.float32 for value in module.parameters())
    assert any(not torch.equal(before[name], value) for name, value in module.named_parameters())


@pytest.mark.parametrize("loss", [InfoNCE(), NTXent()], ids=["InfoNCE", "NTXent"])
def test_autocast_does_not_reach_into_the_loss(bert: str, texts: str, loss: Loss) -> None:
    module = tiny.module(bert, objectives={"c": Contrastive(loss=loss)})
    batch = batches(module, texts)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = module.encode(batch)
        inside = module.objectives["c"](encoded).total
    outside = module.objectives["c"](encoded).total
    assert encoded.embeddings.dtype == torch.float32
    # the same float32 operations; in bf16 cosines of 3 digits over a temperature of 0.05 would differ by 0.1
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-5)


def test_float64_stays_float64(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert, objectives={"c": Contrastive(head=TanhHead())})
    tiny.trainer(tmp_path, precision="64-true", callbacks=[watch]).fit(module, datamodule=tiny.data(texts))
    assert [loss.dtype for loss in watch.losses] == [torch.float64] * 2


# Causal attention


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Llama with a tokenizer learned from the texts."""
    folder = tmp_path_factory.mktemp("decoder")
    tiny.save_bert(folder)
    settings = {**CONFIGS["llama"], "vocab_size": tiny.CONFIG["vocab_size"]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.for_model(**settings)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("pooler", "used", "said"),
    [
        (CLSPooler, None, "CLSPooler takes the first token, which has seen itself alone"),
        (MeanPooler, None, "MeanPooler takes the mean over tokens, of which the early ones have seen little"),
        (LastToken, MeanPooler, "MeanPooler takes the mean"),
        (LastToken, None, None),
    ],
)
def test_a_pooler_that_takes_tokens_which_have_seen_little_is_warned_of_at_the_start(
    decoder: str, texts: str, tmp_path: Path, pooler: type[Pooler], used: type[Pooler] | None, said: str | None
) -> None:
    module = tiny.module(decoder, pooler=pooler(), inference_pooler=used and used())
    trainer = tiny.trainer(tmp_path, max_steps=1)
    warned = pytest.warns(UserWarning, match=said) if said else nullcontext()
    with warned:
        trainer.fit(module, datamodule=tiny.data(texts))


def test_a_pooler_over_tokens_that_see_each_other_is_not_warned_of(bert: str) -> None:
    module = tiny.module(bert)
    assert causal_warning(module.encoder, [CLSPooler(), MeanPooler()]) is None


# Several processes


@pytest.mark.slow  # half a minute, for two processes to import torch and Lightning
def test_two_processes_take_the_step_of_one(bert: str, texts: str, tmp_path: Path) -> None:
    def trained(**options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        module = tiny.module(
            bert,
            dropout=0.0,
            head=TanhHead(train_only=False),
            views={
                "anchor": [SwapWords(rate=0.5)],
                "positive": [DeleteTokens(rate=0.3), FeatureCutoff(rate=0.3)],
            },
            objectives={"c": Contrastive(NTXent(temperature=0.2)), "length": SquaredNormSum()},
            weights={"length": 0.1},
            optimizer=tiny.SGD(),
            schedule=ConstantSchedule(),
        )
        with torch.no_grad():
            for parameter in module.head.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
        start = weights_of(module.double())
        # 9 rows a step: ranks of 5 and 4 rows
        data = tiny.data(texts, batch_size=9)
        trainer = tiny.trainer(tmp_path, max_steps=1, precision="64-true", **options)
        trainer.fit(module, datamodule=data)
        return start, weights_of(module)

    start, alone = trained()
    _, together = trained(strategy="ddp_spawn", devices=2)
    check_gradients(start, together, {name: start[name] - alone[name] for name in start})


class SquaredNormSum(SquaredNorm):
    """As ``SquaredNorm``, summed: the other reduction in the same step."""

    def forward(self, encoded: Encoded) -> Terms:
        terms = super().forward(encoded)
        return Terms(total=terms.total, count=terms.count, reduction="sum")


# From a recipe, and on to inference


def test_a_module_from_a_recipe_has_the_recipe_s_parts(bert: str) -> None:
    module = ContrastiveModule.from_recipe("simcse", bert)
    assert isinstance(module.pooler, CLSPooler)
    assert isinstance(module.objectives["contrastive"].head, TanhHead)
    assert module.encoder.max_length == 32
    with pytest.raises(ValueError, match="did you mean simcse"):
        ContrastiveModule.from_recipe("simsce", bert)


def test_s8_mlp_only_in_training_leaves_the_first_token_for_inference(bert: str, texts: str) -> None:
    module = ContrastiveModule.from_recipe("simcse", bert).eval()
    batch = batches(module, texts)[0]
    hidden = module.encoder(batch).layers[-1]
    # float32: another layout of the same rows, of which some matrices have other shapes
    torch.testing.assert_close(module(batch), hidden[:, 0], rtol=0, atol=1e-5)
    head = module.objectives["contrastive"].head
    linear = head.network[0]
    with torch.no_grad():
        for vectors in (module.encode(batch).embeddings, hidden[:, 0]):
            expected = torch.tanh(vectors @ linear.weight.T + linear.bias)
            # float32: one fused product against two operations
            torch.testing.assert_close(head(vectors), expected, rtol=0, atol=1e-6)


def test_prediction_gives_the_vectors_of_the_saved_model_in_file_order(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(bert)
    parts = tiny.trainer(tmp_path).predict(module, datamodule=tiny.data(texts, predict=texts, eval_batch_size=7))
    vectors = torch.cat([part for part in parts or [] if isinstance(part, Tensor)])
    expected = SentenceEncoder(module.encoder, module.pooler).encode(tiny.TEXTS, convert_to_tensor=True)
    # float32: other batches, other widths of padding
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)


def test_a_module_of_another_optimizer_class_is_built_from_the_parameters(
    bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(bert, head=TanhHead(train_only=False), optimizer=HeadOnly())
    start = weights_of(module)
    tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(texts))
    moved = {name for name, value in module.named_parameters() if not torch.equal(start[name], value)}
    assert moved == {"head.network.0.weight", "head.network.0.bias"}


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_head_takes_what_a_pooler_gives_in_half_precision(
    bert: str, texts: str, tmp_path: Path, precision: str
) -> None:
    module = ContrastiveModule.from_recipe("simcse", bert)
    trainer = tiny.trainer(tmp_path, max_steps=1, precision=precision)
    trainer.fit(module, datamodule=tiny.data(texts))
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
