"""One training pass: rows in order, fixed dropout, gradient views, and parts that are computed anew."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import PAIR, encoder_of, ragged
from covering import rest_slow
from passes import PROMISE, TRIPLE, Along, ReadsAll, all_gradients, contrast, masked, module_of, texts
from steps import batches
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL, Slot
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.packing import Layout, token_mask
from contrastive_text.heads import Head, MLPHead
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive, MaskedLM, Objective, PairClassification
from contrastive_text.pairings import Given, Neighbors
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import (
    Adversarial,
    DeleteTokens,
    EmbeddingView,
    FeatureCutoff,
    FixedDropout,
    GaussianNoise,
    GradientView,
    MaskTokens,
    ShufflePositions,
    SpanCutoff,
    SwapWords,
    TokenCutoff,
    View,
)


class Largest(EmbeddingView):
    """Divides by the largest value of all rows, of which there has to be one."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings / embeddings.max()


# Where a view has no place


def test_positions_are_refused_where_the_architecture_ignores_them() -> None:
    said = r"model\.views\.anchor\[0\]: expected an architecture that reads positions for ShufflePositions"
    with pytest.raises(ValueError, match=said):
        ContrastiveModule(encoder_of("deberta-v2"), views={"anchor": [ShufflePositions()]})
    ContrastiveModule(encoder_of("modernbert"), views={"anchor": [ShufflePositions()]})


# Rows by length


@pytest.mark.parametrize("count", [3, 40])
@torch.no_grad()
def test_rows_encoded_by_length_come_back_in_the_batchs_order(count: int) -> None:
    module = module_of({}, head=MLPHead(out_features=7, train_only=False)).eval()
    batch = texts(count)
    head = module.head
    assert head is not None
    each = [batch.split(torch.tensor([i])) for i in range(len(batch))]
    alone = torch.cat([Embedder(module.encoder, MeanPooler(), head).pool(row) for row in each])
    # float64: sums over other widths of padding
    torch.testing.assert_close(module(batch), alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(module.encode(batch).embeddings, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "view",
    [FeatureCutoff(rate=0.5), SpanCutoff(rate=0.5), GaussianNoise()],
    ids=lambda view: type(view).__name__,
)
@torch.no_grad()
def test_a_view_alters_a_row_in_the_same_way_whatever_rows_are_encoded_beside_it(view: EmbeddingView) -> None:
    batch = texts(24)
    module = module_of({"anchor": [view]}, pooler=CLSPooler())
    pairs = [torch.tensor([i, 24 + i]) for i in range(24)]
    each = torch.stack([module.encode(batch.split(pair)).embeddings for pair in pairs], dim=1)
    vectors = module.encode(batch).embeddings
    # float64: sums over other widths of padding
    torch.testing.assert_close(vectors, each.flatten(0, 1), rtol=0, atol=1e-12)
    plain = module_of({}, pooler=CLSPooler()).encode(batch).embeddings
    assert bool((vectors - plain)[:24].abs().amax(dim=1).gt(1e-6).all())
    assert torch.equal(vectors[24:], plain[24:])


def test_a_view_never_gets_a_block_without_rows() -> None:
    # 20 anchors of 9 tokens and 20 positives of 3: no block of 16 has both but one.
    rows = [tuple(range(5 + i, 14 + i)) for i in range(20)] + [(5 + i, 6, 7) for i in range(20)]
    encoded = module_of({"anchor": [Largest()]}).encode(ragged(*rows))
    assert bool(encoded.embeddings.isfinite().all())


# Fixed dropout: one mask for a text and its copies, by role


def test_fixed_dropout_gives_a_text_and_its_copy_one_vector() -> None:
    batch = texts(24, equal=True)
    anchor, positive = module_of({}, dropout=0.3).encode(batch).embeddings.split(24)
    assert bool((anchor - positive).abs().amax(dim=1).gt(1e-2).all())
    module = module_of({"positive": [FixedDropout()]}, dropout=0.3)
    anchor, positive = module.encode(batch).embeddings.split(24)
    assert torch.equal(anchor, positive)
    # Dropout is on, and another step has other masks.
    assert not torch.equal(module.encode(batch.replace(seed=1)).embeddings[:24], anchor)
    # A view of another level still tells two texts apart.
    module = module_of({"positive": [FeatureCutoff(rate=0.5), FixedDropout()]}, dropout=0.3)
    anchor, positive = module.encode(batch).embeddings.split(24)
    assert bool((anchor - positive).abs().amax(dim=1).gt(1e-3).all())


def test_fixed_dropout_of_positives_leaves_the_others_masks_of_their_own() -> None:
    slots = (*PAIR, Slot("positive", 1), Slot("negative", 0), Slot("original", 0))
    module = module_of({"positive": [FixedDropout()]}, dropout=0.3, objectives={"all": ReadsAll()})
    vectors = module.encode(texts(6, slots=slots, equal=True)).embeddings.split(6)
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
    apart = [(vectors[i] - vectors[j]).abs().amax(dim=1).gt(1e-3).all() for i, j in ((0, 3), (0, 4), (3, 4))]
    assert all(apart)


def test_fixed_dropout_works_beside_a_gradient_view_and_masked_tokens() -> None:
    views: dict[str, list[View]] = {
        "anchor": [Along(objective="c", size=0.0)],
        "positive": [FixedDropout()],
        "original": [MaskTokens()],
    }
    objectives: dict[str, Objective] = {"c": Contrastive(), "mlm": MaskedLM()}
    module = module_of(views, dropout=0.3, objectives=objectives)
    batch = masked(texts(20, slots=TRIPLE, equal=True))
    encoded = module.encode(batch)
    anchor, positive, _ = encoded.embeddings.split(20)
    assert torch.equal(anchor, positive)
    assert batch.labels is not None
    assert encoded.masked_labels is not None
    # Part by part, long rows first.
    assert sorted(encoded.masked_labels.tolist()) == sorted(batch.labels[batch.labels != NO_LABEL].tolist())


def test_rows_of_other_lengths_than_their_anchors_are_refused() -> None:
    module = module_of({"positive": [FixedDropout()]}, dropout=0.3)
    batch = ragged((5, 6, 7), (8, 9), (5, 6, 7), (8, 9, 10))
    with pytest.raises(
        ValueError, match=r"expected rows as long as their anchors on positive, got others; .* SameText"
    ):
        module.encode(batch)


@pytest.mark.parametrize(
    ("views", "dropout", "words"),
    [
        ({"anchor": [FixedDropout()]}, 0.3, "expected no FixedDropout on the anchor.* move it to positive"),
        ({"positive": [FixedDropout()]}, 0.0, r"positive\[0\]: expected an encoder with dropout"),
        (
            {"positive": [DeleteTokens(), FixedDropout()]}, 0.3,
            r"views\.positive: expected no view that may change a text's length",
        ),
        (
            {"anchor": [SwapWords()], "positive": [FixedDropout()]}, 0.3,
            r"views\.anchor: expected no view that may change a text's length",
        ),
    ],
)  # fmt: skip
def test_fixed_dropout_is_refused_where_no_mask_could_be_the_same(
    views: dict[str, list[View]], dropout: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        module_of(views, dropout=dropout)


def test_fixed_dropout_is_refused_at_setup_where_the_roles_texts_are_others_than_the_anchors(
    bert: str, texts: str, tmp_path: Path
) -> None:
    triples = tiny.write_triples(tmp_path / "triples.jsonl")
    for file, pairing in ((triples, Given()), (texts, Neighbors())):
        data = tiny.data(file, pairing=pairing)
        data.attach(tiny.module(bert, views={"positive": [FixedDropout()]}))
        with pytest.raises(ValueError, match=r"FixedDropout: expected a pairing that repeats the anchor, got"):
            data.setup("fit")
    # An original is the anchor's text under every pairing.
    views: dict[str, list[View]] = {"original": [MaskTokens(rate=0.0), FixedDropout()]}
    objectives: dict[str, Objective] = {"contrastive": Contrastive(), "mlm": MaskedLM()}
    module = tiny.module(bert, views=views, objectives=objectives, pooler=CLSPooler())
    (batch, *_) = batches(module, triples, pairing=Given())
    anchor, _, _, original = module.encode(batch).embeddings.split(8)
    assert torch.equal(anchor, original)


# Gradient views, against two passes written out


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


@pytest.mark.parametrize("same", [True, False])
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


# Parts of a batch that the backward pass computes anew: the same masks, draws and precision


def chunked(
    views: dict[str, list[View]], dropout: float = 0.3, layout: Layout = "packed", **parts: Any
) -> ContrastiveModule:
    """A module whose batches of 24 examples go through the network in five parts or more."""
    return module_of(views, dropout=dropout, layout=layout, chunk_tokens=60, **parts)


def kept(encode: Callable[[], object], **options: bool) -> object:  # noqa: ARG001  # checkpoint's
    """In the place of ``checkpoint``: activations stay where they are."""
    return encode()


class DrawsFromTorch(EmbeddingView):
    """Ignores the generator that it is handed: torch's has to draw the same anew."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + torch.randn_like(embeddings)


CHUNKED_VIEWS: dict[str, dict[str, list[View]]] = {
    "no views": {"original": [MaskTokens()]},
    "embeddings": {
        "anchor": [TokenCutoff(rate=0.4), GaussianNoise(0.1), DrawsFromTorch()], "original": [MaskTokens()],
    },
    "a gradient": {"positive": [SpanCutoff(), Along(objective="c")], "original": [MaskTokens()]},
    "a gradient, same masks": {"original": [MaskTokens(), Adversarial(objective="mlm", same_dropout=True)]},
    "fixed masks": {"positive": [FixedDropout()], "original": [MaskTokens()]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("views", "layout"), rest_slow(zip(CHUNKED_VIEWS, itertools.cycle(["packed", "bucketed", "padded"])), quick=3)
)
def test_parts_are_computed_anew_with_the_same_masks_and_draws(
    views: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = masked(texts(24, slots=TRIPLE, equal=True))
    objectives: dict[str, Objective] = {"c": Contrastive(), "mlm": MaskedLM(block=5)}
    module = chunked(CHUNKED_VIEWS[views], layout=layout, objectives=objectives)
    assert len(module.embedder.groups(batch)) >= 5
    calls: list[int] = []
    module.encoder.model.register_forward_pre_hook(
        lambda model, args, inputs: calls.append(1) if "input_ids" in inputs else None,  # noqa: ARG005  # torch's signature
        with_kwargs=True,
    )
    anew = all_gradients(module, batch, names=("c", "mlm"))
    twice = len(calls)
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", kept)
    expected = all_gradients(module, batch, names=("c", "mlm"))
    once = len(calls) - twice
    # The last part of each pass is kept: the backward pass begins with it.
    assert twice == 2 * once - (2 if "a gradient" in views else 1)
    assert anew.keys() == expected.keys()
    # Bit for bit: the same operations on the same numbers.
    assert all(torch.equal(anew[name], value) for name, value in expected.items())
    other = all_gradients(module, batch.replace(seed=1), names=("c", "mlm"))
    assert any(not torch.equal(other[name], value) for name, value in expected.items())


def test_a_second_batch_before_the_backward_pass_of_the_first_changes_no_view_of_it() -> None:
    # A hook that holds the views of the last call alters the first batch by the second's, silently.
    module = chunked({"anchor": [FeatureCutoff(rate=0.5)], "positive": [Along()]})
    batches = [texts(24), texts(23).replace(seed=5)]

    def loss(batch: Batch) -> Tensor:
        return module.objective_value(module.encode(batch), "contrastive")[0]

    each = [torch.autograd.grad(loss(batch), list(module.parameters())) for batch in batches]
    first, second = (loss(batch) for batch in batches)
    together = torch.autograd.grad(first + second, list(module.parameters()))
    for reached, one, other in zip(together, *each, strict=True):
        torch.testing.assert_close(reached, one + other, rtol=0, atol=1e-12)


class Normalized(Head):
    """Batch normalization, whose statistics are those of what it is given."""

    def __init__(self) -> None:
        super().__init__(train_only=False)

    def layers(self, features: int) -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm1d(features))


def test_a_head_that_is_kept_sees_the_whole_batch_and_sees_it_once() -> None:
    # Within the parts its statistics would be a part's, and be updated twice.
    whole, parts = (module_of({}, layout="packed", chunk_tokens=bound, head=Normalized()) for bound in (None, 60))
    expected, reached = (all_gradients(module, texts(24), names=("contrastive",)) for module in (whole, parts))
    scale = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(reached[name], value, rtol=0, atol=PROMISE * scale, msg=name)
    for module in (whole, parts):
        assert int(module.state_dict()["head.network.0.num_batches_tracked"]) == 1


def test_parts_are_computed_anew_in_the_precision_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = texts(24)
    module = chunked({}).float()

    def gradient() -> dict[str, Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module.objective_value(module.encode(batch), "contrastive")[0]
        loss.backward()  # outside, as Lightning does
        return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}

    anew = gradient()
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", kept)
    expected = gradient()
    assert all(torch.equal(anew[name], value) for name, value in expected.items())
    assert anew.keys() == expected.keys()


def test_parts_that_train_nothing_go_before_a_head_that_learns() -> None:
    module = chunked({}, dropout=0.0, head=MLPHead(train_only=False))
    module.encoder.requires_grad_(False)
    gradients = all_gradients(module, texts(24), names=("contrastive",))
    assert gradients
    assert all(name.startswith("head.") for name in gradients)
    plain = module_of({}, layout="packed", head=MLPHead(train_only=False))
    plain.load_state_dict(module.state_dict())
    expected = all_gradients(plain, texts(24), names=("contrastive",))
    for name, value in gradients.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


@torch.no_grad()
def test_without_a_gradient_nothing_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", None)  # no call of it would do
    parts, whole = chunked({}, dropout=0.0), module_of({}, layout="packed")
    for read in (lambda module: module.encode(texts(24)).embeddings, lambda module: module(texts(24))):
        torch.testing.assert_close(read(parts), read(whole), rtol=0, atol=1e-12)
