"""Views of the embedding output: the counts of the authors' codes, draws, and the step along a gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from architectures import ROWS, encoder_of, ragged
from torch import Tensor

from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Vocabulary
from contrastive_text.views import (
    Adversarial,
    EmbeddingDropout,
    EmbeddingView,
    FeatureCutoff,
    GaussianNoise,
    SpanCutoff,
    TokenCutoff,
    ViewPlan,
)
from contrastive_text.views.embeddings import fgv_perturbation


class Block(NamedTuple):
    """Right-padded rows; no entry is zero of its own."""

    values: Tensor
    mask: Tensor
    keys: Tensor

    def altered(self, view: EmbeddingView) -> Tensor:
        return view(self.values, alterable(view, self.mask), RowRandom(self.keys))


def alterable(view: EmbeddingView, mask: Tensor, suffix: int = 1) -> Tensor:
    plan = ViewPlan({"anchor": [view]})
    plan.build(Vocabulary(size=9, prefix=1, suffix=suffix))
    return plan.alterable_mask(view, mask)


def block(lengths: list[int], features: int, padding: int = 0) -> Block:
    longest = max(lengths) + padding
    values = torch.rand(len(lengths), longest, features, generator=torch.Generator().manual_seed(0)) + 0.5
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    return Block(values, mask, torch.arange(len(lengths)) * 7919)


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("make", [TokenCutoff, SpanCutoff, EmbeddingDropout])
def test_special_tokens_that_are_spared_do_not_count(make: Callable[..., EmbeddingView], rate: float) -> None:
    lengths = [7, 1, 2, 5]
    erased = block(lengths, features=3, padding=2).altered(make(rate, specials=False)) == 0
    whole = erased.all(dim=2) if make is not EmbeddingDropout else erased.flatten(start_dim=1)
    each = 1 if make is not EmbeddingDropout else 3
    assert whole.sum(dim=1).tolist() == [int(max(n - 2, 0) * each * rate) for n in lengths]


@pytest.mark.parametrize("view", [TokenCutoff, SpanCutoff, EmbeddingDropout, GaussianNoise])
def test_sparing_specials_needs_to_know_the_tokenizer(view: Callable[..., EmbeddingView]) -> None:
    plan = ViewPlan({"anchor": [view(specials=False)], "positive": [view()]})
    alter = plan.alter_embeddings(ragged(*ROWS[:3], *ROWS[:3]))
    assert alter is not None
    with pytest.raises(RuntimeError, match=r"\w+\.specials: expected plan.build\(vocabulary\) before"):
        alter(torch.ones(6, 4, 2), torch.ones(6, 4, dtype=torch.bool))


def test_what_may_be_altered_is_counted_from_the_first_real_one() -> None:
    mask = torch.tensor([[False, True, True, True, True], [True, True, False, False, False]])
    between = alterable(TokenCutoff(specials=False), mask, suffix=2)
    assert between.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert alterable(TokenCutoff(), mask) is mask


@pytest.mark.parametrize("view", [TokenCutoff, SpanCutoff])
@pytest.mark.parametrize(
    ("tokens", "rate", "expected"),
    [(10, 0.15, 1), (6, 0.15, 0), (7, 0.15, 1), (20, 0.15, 3), (67, 0.15, 10), (90, 0.7, 62)],
)
def test_k2_a_cutoff_erases_whole_tokens_their_number_cut_off_and_never_padding(
    view: Callable[[float], EmbeddingView], tokens: int, rate: float, expected: int
) -> None:
    # 90 * 0.7 is 62.99... in floating point: 62, as in the authors' code.
    rows = block([tokens] * 20, features=2, padding=30)
    erased = rows.altered(view(rate)) == 0
    assert torch.equal(erased[..., 0], erased[..., 1])
    assert erased[..., 0].sum(dim=1).tolist() == [expected] * 20
    assert not (erased[..., 0] & ~rows.mask).any()


@pytest.mark.parametrize("rate", ["0.15", "0.1"])
def test_k2_token_cutoff_erases_the_vectors_counts(rate: str, vectors: dict[str, Any]) -> None:
    counts = {int(n): count for n, count in vectors["cutoff_counts"][f"token_rate_{rate}"].items()}
    erased = block(list(counts), features=1).altered(TokenCutoff(float(rate))) == 0
    assert erased.sum(dim=(1, 2)).tolist() == list(counts.values())


DRAWS = 20_000


@pytest.mark.parametrize(("tokens", "share"), [(10, 0.1), (20, 0.15)])
def test_k3_every_token_is_cut_equally_often_the_first_too(tokens: int, share: float) -> None:
    rows = Block(torch.ones(DRAWS, tokens, 1), torch.ones(DRAWS, tokens, dtype=torch.bool), torch.arange(DRAWS))
    shares = (rows.altered(TokenCutoff(rate=0.15)) == 0).double().mean(dim=0).flatten()
    # Five standard deviations of a share p: sqrt(p (1 - p) / 20,000).
    expected = torch.full((tokens,), share, dtype=torch.float64)
    torch.testing.assert_close(shares, expected, rtol=0, atol=5 * (share * (1 - share) / DRAWS) ** 0.5)


def test_a_span_is_one_stretch_and_every_start_is_equally_likely_the_last_too() -> None:
    rows = Block(torch.ones(DRAWS, 9, 1), torch.ones(DRAWS, 9, dtype=torch.bool), torch.arange(DRAWS))
    rows.mask[:, 7:] = False
    erased = rows.altered(SpanCutoff(rate=0.45)).squeeze(2) == 0
    counts = Counter(tuple(row) for row in erased.tolist())
    assert set(counts) == {tuple(start <= place < start + 3 for place in range(9)) for start in range(5)}
    # 4,000 each of 20,000, standard deviation 57; five of them.
    assert all(abs(count - 4000) < 5 * 57 for count in counts.values())


@pytest.mark.parametrize(("tokens", "features", "expected"), [(10, 768, 1536), (6, 768, 921), (3, 4, 2)])
def test_k4_dropout_erases_an_exact_number_of_entries_different_in_each_text_without_rescaling(
    tokens: int, features: int, expected: int
) -> None:
    rows = block([tokens, tokens], features=features, padding=4)
    view = rows.altered(EmbeddingDropout(rate=0.2))
    erased = view == 0
    assert erased.sum(dim=(1, 2)).tolist() == [expected, expected]
    assert not torch.equal(erased[0], erased[1])
    assert torch.equal(view[~erased], rows.values[~erased])


def test_noise_is_a_share_of_the_tokens_size_and_normal() -> None:
    # Token i has entries of size 2 ** i: sizes far apart, and exact to divide by.
    values = torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1).repeat(1, 1, 20_000)
    mask, rng = torch.ones(1, 3, dtype=torch.bool), RowRandom(torch.tensor([5]))
    noise = ((GaussianNoise(scale=0.1)(values, mask, rng) - values) / values / 0.1).squeeze(0).double()
    # Five standard deviations, over 20,000 draws, of a mean (1/sqrt(n)), a variance (sqrt(2/n)) and a
    # correlation (1/sqrt(n)).
    assert float(noise.mean(dim=1).abs().max()) < 5 / 20_000**0.5
    assert float((noise.var(dim=1) - 1).abs().max()) < 5 * (2 / 20_000) ** 0.5
    assert float((torch.corrcoef(noise) - torch.eye(3)).abs().max()) < 5 / 20_000**0.5


def test_noise_leaves_what_is_erased_erased_and_the_gradient_whole() -> None:
    rows = block([5, 3], features=4)
    cut = rows.altered(TokenCutoff(rate=0.4)).requires_grad_()
    noisy = rows._replace(values=cut).altered(GaussianNoise(scale=0.5))
    assert torch.equal(noisy == 0, cut == 0)
    assert torch.equal(torch.autograd.grad(noisy.sum(), cut)[0], torch.ones_like(cut))


@pytest.mark.parametrize(
    ("name", "view"), [("bert", TokenCutoff(0.4)), ("electra", SpanCutoff(0.4)), ("bert", EmbeddingDropout(0.4))]
)
@torch.no_grad()
def test_k8_what_is_erased_enters_the_first_block_as_exact_zeros(name: str, view: EmbeddingView) -> None:
    encoder, batch, entered = encoder_of(name, layout="padded"), ragged(*ROWS), list[Tensor]()
    alter = ViewPlan({"positive": [view]}).alter_embeddings(batch)
    clean = encoder(batch, layers=(0,)).layers[0]
    first = encoder.model.get_submodule("encoder.layer.0")
    with first.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0])):
        hidden = encoder(batch, alter=alter, layers=(0,))
    each = 1 if isinstance(view, EmbeddingDropout) else 16
    for values in (entered[0], hidden.layers[0]):
        zeros = (values == 0) & hidden.mask.unsqueeze(2)
        assert torch.equal(values[~zeros], clean[~zeros])
        counts = [0] * 3 + [int(len(row) * 16 / each * 0.4) * each for row in ROWS[3:]]
        assert zeros.sum(dim=(1, 2)).tolist() == counts


@pytest.mark.parametrize(("features", "expected"), [(768, 153), (1024, 204)])
def test_k1_feature_cutoff_zeroes_an_exact_number_of_columns_different_in_each_text(
    features: int, expected: int
) -> None:
    values, mask = torch.ones(8, 5, features), torch.ones(8, 5, dtype=torch.bool)
    mask[:, 3:] = False
    cut = FeatureCutoff(rate=0.2)(values, mask, RowRandom(torch.arange(8))) == 0
    # The same columns in every token of a text, padding too.
    assert torch.equal(cut, cut[:, :1].expand_as(cut))
    columns = cut[:, 0]
    assert columns.sum(dim=1).tolist() == [expected] * 8
    assert len({tuple(row.tolist()) for row in columns}) == 8


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_k9_the_perturbation_is_the_unit_gradient_of_each_token_and_zero_without_one(
    vectors: dict[str, Any],
) -> None:
    vector = vectors["fgv"]
    gradient = torch.tensor(vector["grad_per_token"])
    noise = fgv_perturbation(gradient, norm=vector["noise_norm"])
    # The vector is printed with 8 digits after the point.
    torch.testing.assert_close(noise, torch.tensor(vector["noise"]), rtol=0, atol=5e-9 + 1e-7 * 0.8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 1e-7, 1.0, 1e4])
def test_k9_a_perturbation_has_its_norm_or_is_zero_in_every_precision(dtype: torch.dtype, size: float) -> None:
    gradient = torch.full((2, 3, 4), size, dtype=dtype)
    noise = fgv_perturbation(gradient, norm=0.5)
    length = noise.norm(dim=2)
    # 1e-10 beside a norm of 2e-7, and the roundings of float32.
    torch.testing.assert_close(length, torch.full_like(length, 0.5 * bool(size)), rtol=6e-4, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_adversarial_view_moves_each_token_by_its_own_gradient_and_no_padding(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    embeddings, gradient = (torch.randn(3, 4, 3, generator=noise).to(dtype) for _ in range(2))
    mask = torch.arange(4) < torch.arange(2, 5).unsqueeze(1)
    before = embeddings.clone(), gradient.clone(), mask.clone()
    view = Adversarial(1.5)(embeddings, gradient, mask, RowRandom(torch.arange(3)))
    assert all(torch.equal(*pair) for pair in zip((embeddings, gradient, mask), before, strict=True))
    assert view.dtype == dtype
    step = fgv_perturbation(gradient, 1.5).to(dtype)
    assert torch.equal(view, torch.where(mask.unsqueeze(2), embeddings + step, embeddings))
