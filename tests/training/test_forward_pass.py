"""One training pass: gradient views in two passes, dropout masks by key and by role, rows by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import PAIR, encoder_of, ragged
from covering import crossed, rest_slow
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL, ROLES, Encoded, Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.layouts import Layout, token_mask
from contrastive_text.heads import Head, MLPHead
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.objectives import Contrastive, MaskedLM, Objective, PairClassification
from contrastive_text.pairings import Given, Neighbours
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import (
    Adversarial,
    DeleteTokens,
    EmbeddingDropout,
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
        self.takes = ROLES


class Along(GradientView):
    """Adds the gradient itself, times a size: a wrong scale of it shows."""

    def __init__(self, size: float = 0.5, objective: str | None = None, same_dropout: bool = False) -> None:
        self.size = size
        self.objective = objective
        self.same_dropout = same_dropout

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + self.size * gradient


class Largest(EmbeddingView):
    """Divides by the largest value of all rows, of which there has to be one."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings / embeddings.max()


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
    crossed(
        [("positive",), ("anchor",), ("anchor", "positive")],
        [5, 24],
        [(Along(), halfway), (Adversarial(norm=0.7), uphill)],
    ),
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
def test_both_passes_see_the_same_dropout_masks_only_if_asked(same: bool) -> None:
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


def test_the_trained_pass_has_the_masks_of_a_run_without_a_gradient_view() -> None:
    batch = texts(24)
    plain = module_of({}, dropout=0.3).encode(batch).embeddings
    for same in (True, False):
        module = module_of({"positive": [Along(size=0.0, same_dropout=same)]}, dropout=0.3)
        assert torch.equal(module.encode(batch).embeddings, plain)


@pytest.mark.parametrize(
    ("views", "objectives", "got"),
    [
        ({"anchor": [Along(objective="mlm")]}, ("contrastive",), r"anchor\[0\]\.objective: .* got mlm"),
        ({"anchor": [Along()]}, ("contrastive", "other"), r"anchor\[0\]\.objective: .* got None; name the one"),
        (
            {"anchor": [Along(objective="contrastive")], "positive": [Along(objective="other")]},
            ("contrastive", "other"),
            r"\[0\]\.objective: .* the same for all gradient views, got",
        ),
    ],
    ids=["no such objective", "none of several", "two of them"],
)  # fmt: skip
def test_a_gradient_view_without_one_objective_to_follow_is_refused(
    views: dict[str, list[View]], objectives: tuple[str, ...], got: str
) -> None:
    with pytest.raises(ValueError, match=rf"model\.views\.\w*{got}"):
        module_of(views, objectives={name: Contrastive() for name in objectives})


def test_the_only_objective_may_be_named_or_not() -> None:
    batch = texts(5)
    named, unnamed = (
        module_of({"anchor": [Along(objective=name)]}, objectives={"c": Contrastive()}).encode(batch).embeddings
        for name in ("c", None)
    )
    assert torch.equal(named, unnamed)


def test_two_gradient_views_on_a_role_and_one_before_an_embedding_view_are_refused() -> None:
    with pytest.raises(ValueError, match=r"views\.anchor: expected one Along at most"):
        module_of({"anchor": [Along(), Along()]})
    with pytest.raises(ValueError, match="move FeatureCutoff before Along"):
        module_of({"anchor": [Along(), FeatureCutoff()]})


# The masks of a role


def test_fixed_dropout_gives_a_text_and_its_copy_one_vector() -> None:
    batch = texts(24, equal=True)
    anchor, positive = module_of({}, dropout=0.3).encode(batch).embeddings.split(24)
    assert bool((anchor - positive).abs().amax(dim=1).gt(1e-2).all())
    module = module_of({"positive": [FixedDropout()]}, dropout=0.3)
    anchor, positive = module.encode(batch).embeddings.split(24)
    assert torch.equal(anchor, positive)
    # Dropout is on, and another step has other masks.
    assert not torch.equal(module.encode(batch.replace(seed=1)).embeddings[:24], anchor)


def test_fixed_dropout_leaves_views_of_other_levels_as_what_tells_two_texts_apart() -> None:
    batch = texts(24, equal=True)
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
        match=r"FixedDropout: expected rows as long as their anchors on positive, got others; .* SameText",
    ):
        module.encode(batch)


def test_fixed_dropout_on_the_anchor_and_without_dropout_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"views\.anchor: expected no FixedDropout, got one; .* put it on positive"
    ):
        module_of({"anchor": [FixedDropout()]}, dropout=0.3)
    with pytest.raises(
        ValueError, match=r"model\.views\.positive\[0\]: expected an encoder with dropout for FixedDropout, got"
    ):
        module_of({"positive": [FixedDropout()]}, dropout=0.0)


@pytest.mark.parametrize("view", [DeleteTokens(), SwapWords()])
@pytest.mark.parametrize("role", ["anchor", "positive"])
def test_a_view_that_may_change_lengths_is_refused_beside_fixed_dropout(role: str, view: View) -> None:
    views: dict[str, list[View]] = {"anchor": [], "positive": [FixedDropout()]}
    views[role] = [view, *views[role]]
    with pytest.raises(ValueError, match=rf"views\.{role}: expected no view that may change a text's length"):
        module_of(views, dropout=0.3)


def test_fixed_dropout_is_refused_at_setup_where_the_roles_texts_are_others_than_the_anchors(
    tmp_path: Path,
) -> None:
    folder = tiny.save_bert(tmp_path / "bert")
    module = tiny.module(folder, views={"positive": [FixedDropout()]})
    triples = tiny.write_triples(tmp_path / "triples.jsonl")
    lines = tiny.write_texts(tmp_path / "texts.txt")
    for file, pairing in ((triples, Given()), (lines, Neighbours())):
        data = tiny.data(file, pairing=pairing)
        data.attach(module)
        with pytest.raises(ValueError, match=r"FixedDropout: expected a pairing that repeats the anchor, got"):
            data.setup("fit")
    # An original is the anchor's text under every pairing.
    originals = tiny.module(
        folder,
        views={"original": [MaskTokens(rate=0.0), FixedDropout()]},
        objectives={"contrastive": Contrastive(), "mlm": MaskedLM()},
        pooler=CLSPooler(),
    )
    data = tiny.data(triples, pairing=Given())
    data.attach(originals)
    data.setup("fit")
    vectors = originals.encode(next(iter(data.train_dataloader()))).embeddings.split(8)
    assert len(vectors) == 4
    assert torch.equal(vectors[0], vectors[3])


# Where a view has no place


def test_positions_are_refused_where_the_architecture_ignores_them() -> None:
    with pytest.raises(
        ValueError,
        match=r"model\.views\.anchor\[0\]: expected an architecture that reads positions for ShufflePositions",
    ):
        ContrastiveModule(encoder_of("deberta-v2"), views={"anchor": [ShufflePositions()]})
    assert ContrastiveModule(encoder_of("modernbert"), views={"anchor": [ShufflePositions()]}).plan.roles == (
        "anchor",
    )


def test_a_gradient_view_is_refused_where_there_is_no_embedding_module() -> None:
    config = {"model_type": "xlnet", "vocab_size": 30, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16}
    with pytest.raises(
        ValueError, match=r"views\.positive\[0\]: expected an architecture with an embedding module"
    ):
        ContrastiveModule(TransformerEncoder(config=config), views={"positive": [Along()]})


# Rows by length


@pytest.mark.parametrize("count", [3, 16, 40])
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
    [FeatureCutoff(rate=0.5), TokenCutoff(rate=0.5), SpanCutoff(rate=0.5), EmbeddingDropout(), GaussianNoise()],
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


# ConSERT's joint mode: two views of each of two texts


def joint(views: dict[str, list[View]]) -> tuple[ContrastiveModule, Batch]:
    """A module that classifies the first views of two texts and compares the two views of each, and a batch."""
    objectives: dict[str, Objective] = {
        "inference": PairClassification(3),
        "contrastive": Contrastive(NTXent(temperature=0.1, reduction="two_sided"), between="views"),
    }
    slots = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
    batch = texts(6, slots=slots)
    lengths, ids = batch.lengths.clone(), list(torch.split(batch.ids, batch.lengths.tolist()))
    for first, second in ((0, 6), (12, 18)):  # the second view of a text is that text
        for i in range(6):
            ids[second + i], lengths[second + i] = ids[first + i], lengths[first + i]
    same = batch.replace(ids=torch.cat(ids), lengths=lengths, target=torch.tensor([0.0, 1, 2, 0, 1, 2]))
    torch.manual_seed(0)
    return module_of(views, objectives=objectives), same


def test_an_adversarial_second_view_leaves_the_first_to_the_classifier() -> None:
    uphill: list[View] = [Adversarial(norm=1.0, objective="inference")]
    module, batch = joint({"anchor_2": uphill, "positive_2": uphill})
    plain, _ = joint({})
    encoded, clean = module.encode(batch), plain.encode(batch)
    anchors, positives = encoded.role("anchor"), encoded.role("positive")
    assert torch.allclose(anchors[:, 0], clean.role("anchor")[:, 0])
    assert torch.allclose(positives[:, 0], clean.role("positive")[:, 0])
    # The classifier reads the first views; along its gradient there the second ones move.
    for role in (anchors, positives):
        assert ((role[:, 1] - role[:, 0]).abs().amax(dim=1) > 1e-4).all()


def test_the_second_views_move_along_the_gradient_of_the_classifier_of_the_first() -> None:
    step: list[View] = [Along(size=1.0, objective="inference")]
    module, batch = joint({"anchor_2": step, "positive_2": step})
    entered: list[Tensor] = []

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # the contract
        entered.append(embeddings.detach().requires_grad_())
        return entered[-1]

    first = batch.split(torch.cat([torch.arange(6), torch.arange(12, 18)]))
    vectors = module.pooler(module.encoder(first, alter=enter))
    slots = (Slot("anchor", 0), Slot("positive", 0))
    encoded = Encoded(vectors, slots, text_ids=first.text_ids, target=batch.target)
    (gradient,) = torch.autograd.grad(module.objectives["inference"](encoded).total / 6, entered)

    def move(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # the contract
        return embeddings + gradient

    moved = module.pooler(module.encoder(first, alter=move))
    found = module.encode(batch)
    expected = torch.stack([moved[:6], moved[6:]], dim=1)
    actual = torch.stack([found.role("anchor")[:, 1], found.role("positive")[:, 1]], dim=1)
    assert torch.allclose(actual, expected, atol=1e-12)
    assert not torch.allclose(expected, torch.stack([vectors[:6], vectors[6:]], dim=1), atol=1e-6)


def test_a_second_view_follows_the_objective_that_compares_both() -> None:
    module, batch = joint({"anchor_2": [Adversarial(norm=1.0, objective="contrastive")]})
    anchors = module.encode(batch).role("anchor")
    assert ((anchors[:, 1] - anchors[:, 0]).abs().amax(dim=1) > 1e-4).all()


# Chunks


def chunked(
    views: dict[str, list[View]], dropout: float = 0.3, layout: Layout = "packed", **parts: Any
) -> ContrastiveModule:
    """A module whose batches of 24 examples go through the network in five parts or more."""
    return module_of(views, dropout=dropout, layout=layout, chunk_tokens=60, **parts)


def kept(encode: Callable[[], object], **options: bool) -> object:  # noqa: ARG001  # checkpoint's
    """In the place of ``checkpoint``: activations stay where they are."""
    return encode()


def all_gradients(module: ContrastiveModule, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Returns the gradient of the sum of some objectives, by parameter."""
    module.zero_grad()
    encoded = module.encode(batch)
    torch.stack([module.objective_value(encoded, name)[0] for name in names]).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


CHUNKED_VIEWS: dict[str, dict[str, list[View]]] = {
    "no views": {"original": [MaskTokens()]},
    "embeddings": {"anchor": [TokenCutoff(rate=0.4), GaussianNoise(0.1)], "original": [MaskTokens()]},
    "a gradient": {"positive": [SpanCutoff(), Along(objective="c")], "original": [MaskTokens()]},
    "a gradient, same masks": {"original": [MaskTokens(), Adversarial(objective="mlm", same_dropout=True)]},
    "fixed masks": {"positive": [FixedDropout()], "original": [MaskTokens()]},
}  # fmt: skip


@pytest.mark.parametrize("layout", rest_slow(["packed", "bucketed", "padded"]))
@pytest.mark.parametrize("views", CHUNKED_VIEWS)
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
    table = "encoder.model.embeddings.word_embeddings.weight"
    assert not torch.equal(other[table], expected[table])


class DrawsFromTorch(EmbeddingView):
    """Ignores the generator that it is handed."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + torch.randn_like(embeddings)


def test_even_a_view_that_draws_from_torchs_generator_draws_the_same_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = texts(24)
    module = chunked({"anchor": [DrawsFromTorch()]}, dropout=0.0)
    anew = all_gradients(module, batch, names=("contrastive",))
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", kept)
    expected = all_gradients(module, batch, names=("contrastive",))
    assert all(torch.equal(anew[name], value) for name, value in expected.items())


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


class Normalised(Head):
    """Batch normalisation, whose statistics are those of what it is given."""

    def __init__(self) -> None:
        super().__init__(train_only=False)

    def layers(self, features: int) -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm1d(features))


def test_a_head_that_is_kept_sees_the_whole_batch_and_sees_it_once() -> None:
    # Within the parts its statistics would be a part's, and be updated twice.
    whole, parts = (module_of({}, layout="packed", chunk_tokens=bound, head=Normalised()) for bound in (None, 60))
    expected, reached = (all_gradients(module, texts(24), names=("contrastive",)) for module in (whole, parts))
    scale = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(reached[name], value, rtol=0, atol=PROMISE * scale, msg=name)
    for module in (whole, parts):
        assert module.head is not None
        assert module.head.network is not None
        norm = module.head.network[0]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.num_batches_tracked is not None
        assert int(norm.num_batches_tracked) == 1


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
    def refuse(encode: object, **options: bool) -> None:  # noqa: ARG001  # checkpoint's
        raise AssertionError("a checkpoint")

    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", refuse)
    module = chunked({}, dropout=0.0)
    whole = module_of({}, layout="packed")
    torch.testing.assert_close(
        module.encode(texts(24)).embeddings, whole.encode(texts(24)).embeddings, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(module(texts(24)), whole(texts(24)), rtol=0, atol=1e-12)
