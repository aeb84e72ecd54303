"""Fixed dropout: one mask for a text and its copies, by role."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from architectures import PAIR, ragged
from passes import TRIPLE, Along, ReadsAll, masked, module_of, texts
from steps import batches

from contrastive_text.core.types import NO_LABEL, Slot
from contrastive_text.objectives import Contrastive, MaskedLM, Objective
from contrastive_text.pairings import Given, Neighbours
from contrastive_text.poolers import CLSPooler
from contrastive_text.views import DeleteTokens, FeatureCutoff, FixedDropout, MaskTokens, SwapWords, View


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
    for file, pairing in ((triples, Given()), (texts, Neighbours())):
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
