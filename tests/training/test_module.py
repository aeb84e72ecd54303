"""The module: loss of a step, rates, dropout, refusals at construction, prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from steps import LastToken, Watch, batches
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Tokens
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import Comparison, InfoNCE, Loss, NTXent, cosine_similarity_matrix
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.training import AdamW
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial, DeleteTokens, FeatureCutoff, TokenView


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


class Forgetful(TokenView):
    """Doesn't store its argument."""

    def __init__(self, rate: float = 0.1) -> None:
        self.kept = 1 - rate

    def __call__(self, tokens: Tokens, rng: object) -> Tokens:  # noqa: ARG002  # the base's signature
        return tokens


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
    # float32, once through a normalized product and once through torch's cosine
    torch.testing.assert_close(trainer.callback_metrics["train/near"], expected, rtol=1e-5, atol=1e-6)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "own.ckpt")
    assert isinstance(loaded.pooler, LastToken)
    assert isinstance(loaded.objectives["near"].loss, Distance)
    assert loaded.objectives["near"].loss.factor == 3.0


def test_the_schedule_counts_optimizer_steps_over_epochs_and_accumulation(
    bert: str, texts: str, tmp_path: Path
) -> None:
    watch = Watch()
    module = tiny.module(bert, optimizer=AdamW(lr=6e-3))
    options = {"max_steps": -1, "max_epochs": 2, "accumulate_grad_batches": 2, "callbacks": [watch]}
    tiny.trainer(tmp_path, **options).fit(module, datamodule=tiny.data(texts))
    # 5 batches an epoch: steps after batches 2, 4 and 5
    steps = [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
    assert watch.rates == pytest.approx([6e-3 * (1 - step / 6) for step in steps], rel=1e-12)


def test_a_run_of_unknown_length_is_refused_before_the_first_step(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    trainer = tiny.trainer(tmp_path, max_steps=-1, max_epochs=-1, callbacks=[watch])
    with pytest.raises(ValueError, match=r"LinearSchedule: .* got inf; set trainer\.max_steps"):
        trainer.fit(tiny.module(bert), datamodule=tiny.data(texts))
    assert not watch.losses


# Dropout


def test_dropout_is_on_from_construction_and_off_in_evaluation(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    batch = batches(module, texts)[0]
    anchor, positive = module.encode(batch).embeddings.split(8)
    assert bool((anchor - positive).abs().amax(dim=1).gt(1e-2).all())
    anchor, positive = module.eval().encode(batch).embeddings.split(8)
    # without dropout a text and its copy in one batch differ by no more than float32's rounding
    torch.testing.assert_close(anchor, positive, rtol=0, atol=1e-5)


XLNET = {"model_type": "xlnet", "vocab_size": 30, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16}


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ({"head": TanhHead(train_only=True)}, ValueError, r"model\.head: .*train_only: false, got TanhHead"),
        ({"weights": {"contrstive": 1.0}}, ValueError, r"model\.weights\.contrstive: expected a weight of 0 or"),
        ({"weights": {"contrastive": -0.1}}, ValueError, r"model\.weights\.contrastive: expected a weight"),
        ({"views": {"anchor": [Forgetful()]}}, TypeError, r"anchor\[0\]: .*Forgetful .* as self\.rate"),
        *(
            (
                {"encoder": TransformerEncoder(config=XLNET), "views": {"positive": [view]}},
                ValueError,
                rf"model\.views\.positive\[0\]: .*embedding module for {type(view).__name__}",
            )
            for view in (FeatureCutoff(), Adversarial())
        ),
        ({"prompts": {"query": "q: "}}, TypeError, r"model\.prompts: expected Prompts, got \{'query': 'q: '\}"),
        ({"chunk_tokens": 0}, ValueError, r"model\.chunk_tokens: expected 1 or more, got 0"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    bert: str, parts: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ContrastiveModule(**{"encoder": TransformerEncoder(bert), **parts})


def test_a_kept_head_of_another_width_sets_the_width_of_the_objectives_heads(bert: str, texts: str) -> None:
    module = tiny.module(
        bert, head=MLPHead(out_features=6, train_only=False), objectives={"c": Contrastive(head=TanhHead())}
    )
    vectors = module(batches(module, texts)[0])
    assert vectors.shape == (16, 6)
    assert module.objectives["c"].head(vectors).shape == (16, 6)


def test_half_precision_ends_before_the_loss(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    batch, objective = batches(module, texts)[0], module.objectives["contrastive"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = module.encode(batch)
        inside = objective(encoded).total
    assert encoded.embeddings.dtype == torch.float32
    # the same float32 operations; in bf16 cosines of 3 digits over a temperature of 0.05 would differ by 0.1
    torch.testing.assert_close(inside, objective(encoded).total, rtol=0, atol=1e-5)


def test_a_head_takes_what_a_pooler_gives_in_half_precision(bert: str, texts: str, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1, precision="bf16-true")
    trainer.fit(ContrastiveModule.from_recipe("simcse", bert), datamodule=tiny.data(texts))
    assert trainer.callback_metrics["train/loss"].isfinite()


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
