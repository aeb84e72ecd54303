"""Gradient views compared with two passes that are written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from architectures import PAIR
from covering import rest_slow
from torch import Tensor, nn
from training.test_forward_pass import PROMISE, TRIPLE, Along, ReadsAll, contrast, masked, module_of, texts

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.types import NO_LABEL, Slot
from contrastive_text.encoders.packing import token_mask
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive, MaskedLM, Objective, PairClassification
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import (
    Adversarial,
    FeatureCutoff,
    GradientView,
    MaskTokens,
    View,
)

Step = Callable[[Tensor], Tensor]


def halfway(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


def uphill(gradient: Tensor) -> Tensor:
    return 0.7 * gradient / (gradient.square().sum(dim=-1, keepdim=True).sqrt() + 1e-10)


def by_hand(
    module: ContrastiveModule,
    batch: Batch,
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: Tensor,
    step: Step = halfway,
) -> Tensor:
    """Vectors of the second pass: the embedding output of some rows a step along the gradient of a loss."""
    model = module.encoder.model
    mask = token_mask(batch.lengths)
    ids = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, batch.ids)

    def run(change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        handle = model.embeddings.register_forward_hook(lambda layer, inputs, output: change(output))  # noqa: ARG005  # torch's signature
        hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        handle.remove()
        weights = mask.unsqueeze(-1)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1), hidden[mask]

    noise = torch.zeros(*mask.shape, 16, dtype=torch.float64, requires_grad=True)
    clean = loss(*run(lambda output: output + noise))
    (gradient,) = torch.autograd.grad(clean, noise)
    chosen = torch.zeros(len(batch), 1, 1, dtype=torch.float64)
    chosen[rows] = 1
    return run(lambda output: output + chosen * step(gradient))[0]


def check_step(module: ContrastiveModule, batch: Batch, expected: Tensor) -> None:
    """Holds vectors and the gradient of every weight against those of vectors made by hand."""
    count = len(batch) // len(batch.slots)
    parameters = dict(module.encoder.model.named_parameters())
    vectors = module.encode(batch).embeddings
    # float64, through two passes: sums over other widths of padding
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-10)
    mine, theirs = (
        torch.autograd.grad(contrast(v, count), list(parameters.values())) for v in (vectors, expected)
    )
    scale = max(float(g.abs().max()) for g in theirs)
    assert scale > 1e-3
    for name, g, h in zip(parameters, mine, theirs, strict=True):
        torch.testing.assert_close(g, h, rtol=0, atol=PROMISE * scale, msg=name)


# 5 examples are encoded as one block, 24 in blocks of rows of similar length.
@pytest.mark.parametrize(
    ("roles", "count", "moved"),
    [
        (("positive",), 5, (Along(), halfway)),
        (("anchor",), 24, (Adversarial(norm=0.7), uphill)),
        (("anchor", "positive"), 24, (Along(), halfway)),
    ],
)
def test_a_gradient_view_moves_its_roles_along_the_gradient_of_the_clean_pass(
    roles: tuple[str, ...], count: int, moved: tuple[GradientView, Step]
) -> None:
    view, step = moved
    module = module_of({role: [view] for role in roles})
    batch = texts(count)
    rows = torch.cat([batch.by_role(role) for role in ("anchor", "positive") if role in roles])
    expected = by_hand(module, batch, lambda vectors, hidden: contrast(vectors, count), rows, step)  # noqa: ARG005  # the other is for masked tokens
    plain = module_of({}).encode(batch).embeddings
    assert (expected[rows] - plain[rows]).abs().amax(dim=1).min() > 1e-4
    check_step(module, batch, expected)


@pytest.mark.parametrize("followed", ["contrastive", "mlm"])
def test_a_gradient_view_follows_the_objective_that_it_names(followed: str) -> None:
    objectives: dict[str, Objective] = {"mlm": MaskedLM(), "contrastive": Contrastive()}
    views: dict[str, list[View]] = {
        "anchor": [Along(objective=followed)],
        "original": [MaskTokens(), Along(objective=followed)],
    }
    module = module_of(views, objectives=objectives)
    batch = masked(texts(4, slots=TRIPLE))
    assert batch.labels is not None
    chosen = batch.labels != NO_LABEL

    def loss(vectors: Tensor, hidden: Tensor) -> Tensor:
        if followed == "contrastive":
            return contrast(vectors, 4)
        scores = module.encoder.token_logits(hidden[chosen])
        return nn.functional.cross_entropy(scores, batch.labels[chosen])  # type: ignore[index]  # they are there

    moved = torch.cat([batch.by_role("anchor"), batch.by_role("original")])
    expected = by_hand(module, batch, loss, moved)
    check_step(module, batch, expected)
    # The objective's own gradient reaches its own rows alone.
    plain = module_of({}, objectives={"all": ReadsAll()}).encode(batch).embeddings
    reached = (module.encode(batch).embeddings - plain).abs().amax(dim=1) > 1e-6
    others = batch.by_role("original" if followed == "contrastive" else "anchor")
    assert not reached[others].any()
    assert reached[moved].sum() == 4
    # A step of the other objective alone follows it too.
    alone = module.encode(batch, names=["mlm" if followed == "contrastive" else "contrastive"])
    assert torch.equal(alone.embeddings, module.encode(batch).embeddings)


def test_the_clean_pass_leaves_no_gradient_on_any_weight_and_keeps_those_that_are_there() -> None:
    module = module_of({"positive": [Along()]}, objectives={"c": Contrastive()})
    batch = texts(5)
    seen: list[bool] = []
    module.encoder.model.register_forward_pre_hook(
        lambda *_: seen.append(any(weight.grad is not None for weight in module.parameters()))
    )
    encoded = module.encode(batch)
    assert seen == [False, False]
    assert all(weight.grad is None for weight in module.parameters())
    contrast(encoded.embeddings, 5).backward()
    accumulated = {
        name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None
    }
    module.encode(batch)
    assert accumulated
    assert all(torch.equal(module.get_parameter(name).grad, value) for name, value in accumulated.items())


def test_a_gradient_view_stands_behind_embedding_views_which_draw_the_same_in_both_passes() -> None:
    module = module_of({"positive": [FeatureCutoff(rate=0.5), Along(size=0.0)]})
    batch = texts(5)
    entered: list[Tensor] = []
    module.encoder.model.encoder.layer[0].register_forward_pre_hook(
        lambda layer, inputs: entered.append(inputs[0].detach())  # noqa: ARG005  # torch's signature
    )
    moved = module.encode(batch).embeddings
    clean, trained = entered
    # A step of size 0 is no step.
    assert torch.equal(clean, trained)
    assert torch.equal(moved, module_of({"positive": [FeatureCutoff(rate=0.5)]}).encode(batch).embeddings)
    assert not torch.equal(moved, module_of({}).encode(batch).embeddings)


@pytest.mark.parametrize("same", rest_slow([True, False]))
def test_both_passes_see_the_same_dropout_masks_only_if_asked_and_the_trained_one_those_of_a_run_without(
    same: bool,
) -> None:
    module = module_of({"positive": [Along(same_dropout=same)]}, dropout=0.3, layout="bucketed")
    batch = texts(24)
    zeros: dict[str, list[Tensor]] = {}
    for name, layer in module.encoder.model.named_modules():
        if isinstance(layer, nn.Dropout) and "attention" not in name:
            layer.register_forward_hook(
                lambda layer, inputs, output, name=name: zeros.setdefault(name, []).append(output == 0)  # noqa: ARG005  # torch's signature
            )
    module.encode(batch)
    assert len(zeros) == 3  # after the embeddings and after each of two blocks' outputs
    for masks in zeros.values():
        half = len(masks) // 2
        clean, trained = masks[:half], masks[half:]
        assert all(torch.equal(*pair) for pair in zip(clean, trained, strict=True)) is same
        assert not torch.equal(clean[0], clean[1])  # blocks of rows never share masks
    # The trained pass has the masks of a run without a gradient view.
    still = module_of({"positive": [Along(size=0.0, same_dropout=same)]}, dropout=0.3)
    plain = module_of({}, dropout=0.3).encode(batch).embeddings
    assert torch.equal(still.encode(batch).embeddings, plain)


ONE, TWO = ("contrastive",), ("contrastive", "other")


@pytest.mark.parametrize(
    ("views", "objectives", "got"),
    [
        ({"anchor": [Along(objective="mlm")]}, ONE, r"views\.anchor\[0\]\.objective: .* got mlm"),
        ({"anchor": [Along()]}, TWO, r"views\.anchor\[0\]\.objective: .* got None; name the one"),
        (
            {"anchor": [Along(objective="contrastive")], "positive": [Along(objective="other")]}, TWO,
            r"\[0\]\.objective: .* the same for all gradient views, got",
        ),
        ({"anchor": [Along(), Along()]}, ONE, r"views\.anchor: expected at most one Along"),
        ({"anchor": [Along(), FeatureCutoff()]}, ONE, "move FeatureCutoff before Along"),
    ],
)  # fmt: skip
def test_gradient_views_without_one_objective_to_follow_or_out_of_place_are_refused(
    views: dict[str, list[View]], objectives: tuple[str, ...], got: str
) -> None:
    with pytest.raises(ValueError, match=got):
        module_of(views, objectives={name: Contrastive() for name in objectives})


# ConSERT's joint mode: two views of each of two texts


def test_the_second_views_move_along_the_gradient_of_the_classifier_of_the_first() -> None:
    objectives: dict[str, Objective] = {
        "inference": PairClassification(3),
        "contrastive": Contrastive(NTXent(temperature=0.1, reduction="two_sided"), between="views"),
    }
    slots = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
    batch = texts(6, slots=slots)
    rows = list(torch.split(batch.ids, batch.lengths.tolist()))
    rows = [*rows[:6], *rows[:6], *rows[12:18], *rows[12:18]]  # the second view of a text is that text
    lengths = torch.tensor([len(row) for row in rows])
    batch = batch.replace(ids=torch.cat(rows), lengths=lengths, target=torch.tensor([0.0, 1, 2, 0, 1, 2]))
    step: list[View] = [Along(size=1.0, objective="inference")]
    module = module_of({"anchor_2": step, "positive_2": step}, objectives=objectives)
    entered: list[Tensor] = []

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # the contract
        entered.append(embeddings.detach().requires_grad_())
        return entered[-1]

    first = batch.split(torch.cat([torch.arange(6), torch.arange(12, 18)]))
    vectors = module.pooler(module.encoder(first, alter=enter))
    encoded = Encoded(vectors, PAIR, text_ids=first.text_ids, target=batch.target)
    (gradient,) = torch.autograd.grad(module.objectives["inference"](encoded).total / 6, entered)
    moved = module.pooler(module.encoder(first, alter=lambda embeddings, mask: embeddings + gradient))  # noqa: ARG005  # the contract
    assert ((moved - vectors).abs().amax(dim=1) > 1e-6).all()
    found = module.encode(batch)
    for role, half in (("anchor", slice(6)), ("positive", slice(6, 12))):
        # The classifier reads the first views, which stay as they are.
        expected = torch.stack([vectors[half], moved[half]], dim=1)
        torch.testing.assert_close(found.role(role), expected, rtol=0, atol=1e-12)
