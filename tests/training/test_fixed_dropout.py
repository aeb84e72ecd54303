"""Fixed dropout: one mask for a text and its copies, by role."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from architectures import PAIR, ragged
from passes import TRIPLE, Along, ReadsAll, masked, module_of, texts

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
        ValueError, match=r"views\.anchor: expected no FixedDropout on the anchor.* move it to positive"
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
