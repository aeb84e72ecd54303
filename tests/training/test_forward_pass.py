"""One training pass: rows in order, fixed dropout, and parts of a batch that are computed again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import PAIR, encoder_of, ragged
from covering import rest_slow
from steps import batches
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL, ROLES, Slot
from contrastive_text.encoders.base import Embedder
from contrastive_text.encoders.packing import Layout
from contrastive_text.heads import Head, MLPHead
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive, MaskedLM, Objective
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

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
TRIPLE = (*PAIR, Slot("original", 0))


class ReadsAll(Contrastive):
    """Keeps every slot in the encoding."""

    def __init__(self) -> None:
        super().__init__()
        self.optional_roles = ROLES


class Along(GradientView):
    """Adds the gradient itself, times a size: a wrong scale of it shows."""

    def __init__(self, size: float = 0.5, objective: str | None = None, same_dropout: bool = False) -> None:
        self.size = size
        self.objective = objective
        self.same_dropout = same_dropout

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + self.size * gradient


def texts(count: int, slots: tuple[Slot, ...] = PAIR, equal: bool = False) -> Batch:
    """Rows of 3 to 9 tokens; those of an example have one length, or with ``equal`` one text."""
    noise = torch.Generator().manual_seed(count)
    lengths = torch.randint(3, 10, (count,), generator=noise).tolist()
    ids = torch.randint(5, 60, (len(slots), count, 9), generator=noise).tolist()
    rows = [tuple(ids[0 if equal else slot][i][:n]) for slot in range(len(slots)) for i, n in enumerate(lengths)]
    batch = ragged(*rows, slots=slots)
    return batch.replace(text_ids=torch.arange(count).repeat(len(slots))) if equal else batch


def masked(batch: Batch) -> Batch:
    """Each original's second token is to be predicted."""
    labels = torch.full_like(batch.ids, NO_LABEL)
    starts = (batch.lengths.cumsum(0) - batch.lengths)[batch.by_role("original")]
    labels[starts + 1] = batch.ids[starts + 1]
    return batch.replace(labels=labels)


def module_of(
    views: dict[str, list[View]], dropout: float = 0.0, layout: Layout = "auto", **parts: Any
) -> ContrastiveModule:
    encoder = encoder_of("bert", dropout=dropout, layout=layout).train()
    return ContrastiveModule(encoder, views=views, **parts).double()


def contrast(vectors: Tensor, count: int) -> Tensor:
    """The loss of anchors and positives that come first among the rows."""
    loss: Tensor = InfoNCE()(vectors[:count], vectors[count : 2 * count])
    return loss


def all_gradients(module: ContrastiveModule, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Returns the gradient of the sum of some objectives, by parameter."""
    module.zero_grad()
    encoded = module.encode(batch)
    torch.stack([module.objective_value(encoded, name)[0] for name in names]).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


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
        ValueError,
        match=r"expected rows as long as their anchors on positive, got rows of other lengths. .* SameText",
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
        data.set_module(tiny.module(bert, views={"positive": [FixedDropout()]}))
        with pytest.raises(ValueError, match=r"FixedDropout: expected a pairing that repeats the anchor, got"):
            data.setup("fit")
    # An original is the anchor's text under every pairing.
    views: dict[str, list[View]] = {"original": [MaskTokens(rate=0.0), FixedDropout()]}
    objectives: dict[str, Objective] = {"contrastive": Contrastive(), "mlm": MaskedLM()}
    module = tiny.module(bert, views=views, objectives=objectives, pooler=CLSPooler())
    (batch, *_) = batches(module, triples, pairing=Given())
    anchor, _, _, original = module.encode(batch).embeddings.split(8)
    assert torch.equal(anchor, original)


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
    ("views", "layout"), rest_slow(zip(CHUNKED_VIEWS, itertools.cycle(["packed", "bucketed", "padded"])), quick=2)
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


@pytest.mark.slow
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
