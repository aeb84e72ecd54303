"""One training pass: rows by length come back in order, and views alter a row alike whatever is beside it."""

from __future__ import annotations

import pytest
import torch
from architectures import encoder_of, ragged
from passes import module_of, texts
from torch import Tensor

from contrastive_text.core.random import RowRandom
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.heads import MLPHead
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import EmbeddingView, FeatureCutoff, GaussianNoise, ShufflePositions, SpanCutoff


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
