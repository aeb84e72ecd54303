"""The plan of views: what it refuses, in which order chains run, and whose rows they touch."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import parts
import pytest
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom, generator
from contrastive_text.core.types import Slot, Tokens, Vocabulary
from contrastive_text.views import (
    DeleteTokens,
    EmbeddingView,
    FeatureCutoff,
    SwapWords,
    TextView,
    TokenView,
    View,
    ViewPlan,
)


class Append(TextView):
    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the base's signature
        return f"{text} {self.word}"


class Add(TokenView):
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:  # noqa: ARG002  # the base's signature
        return Tokens(ids=(*tokens.ids, self.number), words=(*tokens.words, 0))


class AddAfter(Add):
    after_specials: ClassVar[bool] = True


class Times(EmbeddingView):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings * self.factor


class Plus(EmbeddingView):
    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + 1


class Inner(EmbeddingView):
    specials = False

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings.masked_fill(mask.unsqueeze(2), 0.0)


class Noise(EmbeddingView):
    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + rng.rand(*embeddings.shape[1:])


SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1), Slot("negative", 0), Slot("original", 0))


def batch(slots: tuple[Slot, ...] = SLOTS, n: int = 2) -> Batch:
    """A batch of n examples whose rows all have two tokens."""
    rows = n * len(slots)
    return Batch(
        ids=torch.arange(2 * rows),
        lengths=torch.full((rows,), 2),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(n),
        draw_keys=torch.arange(rows) * 17,
        text_ids=torch.arange(rows),
    )


def altered(plan: ViewPlan, part: Batch, values: Tensor) -> Tensor:
    alter = plan.alter_embeddings(part)
    assert alter is not None
    return alter(values, torch.ones(values.shape[:2], dtype=torch.bool))


@pytest.mark.parametrize(
    ("early", "late", "levels"),
    [
        (DeleteTokens(), SwapWords(), "text views before token views"),
        (AddAfter(1), DeleteTokens(), "token views before token views after special tokens"),
        (FeatureCutoff(), DeleteTokens(), "token views before embedding views"),
        (FeatureCutoff(), AddAfter(1), "token views after special tokens before embedding views"),
        (FeatureCutoff(), SwapWords(), "text views before embedding views"),
    ],
)
def test_levels_out_of_order_are_refused_with_what_to_move(early: View, late: View, levels: str) -> None:
    a, b = type(late).__name__, type(early).__name__
    words = [f"views.negative: expected {levels}, got {a} after {b}; move {a} before {b}"]
    parts.check_refused(lambda: ViewPlan({"negative": [early, late]}), ValueError, words)


def test_chains_run_in_the_written_order() -> None:
    plan = ViewPlan({"positive": [Append("b"), Append("c"), Add(1), Add(2), AddAfter(3), Plus(), Times(10)]})
    rng = generator(0)
    assert plan.alter_texts("positive", ["a", "d"], [rng, rng]) == ["a b c", "d b c"]
    tokens = Tokens(ids=(0,), words=(0,))
    assert plan.alter_tokens("positive", tokens, rng).ids == (0, 1, 2)
    assert plan.alter_tokens("positive", tokens, rng, after_specials=True).ids == (0, 3)
    values = altered(plan, batch(), torch.ones(10, 2, 3))
    assert values[2:6].unique().tolist() == [20.0]


def test_a_role_without_a_chain_is_left_alone() -> None:
    plan = ViewPlan({"positive": [Append("b"), Add(1)]})
    tokens = Tokens(ids=(0,), words=(0,))
    assert plan.alter_texts("anchor", ["a"], [generator(0)]) == ["a"]
    assert plan.alter_tokens("anchor", tokens, generator(0)) is tokens
    assert plan.alter_embeddings(batch()) is None
    assert ViewPlan().roles == ()


@pytest.mark.parametrize(
    ("role", "rows"), [("anchor", [0, 1]), ("positive", [2, 3, 4, 5]), ("negative", [6, 7]), ("original", [8, 9])]
)
def test_embedding_views_touch_the_rows_of_their_role_only(role: str, rows: list[int]) -> None:
    values = torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(0))
    before = values.clone()
    after = altered(ViewPlan({role: [Times(0.0)]}), batch(), values)
    assert torch.equal(values, before)
    others = [i for i in range(10) if i not in rows]
    assert torch.equal(after[rows], torch.zeros(len(rows), 2, 3))
    assert torch.equal(after[others], before[others])


def test_a_view_of_ones_own_is_handed_what_it_may_alter() -> None:
    plan = ViewPlan({"positive": [Inner()], "negative": [Times(2.0)]})
    plan.build(Vocabulary(size=9, prefix=1, suffix=2))
    alter = plan.alter_embeddings(batch())
    assert alter is not None
    lengths = torch.tensor([5, 5, 5, 4, 3, 1, 5, 5, 5, 5])
    after = alter(torch.ones(10, 5, 1), torch.arange(5) < lengths.unsqueeze(1)).squeeze(2)
    assert after[2:6].tolist() == [[1, 0, 0, 1, 1], [1, 0, 1, 1, 1], [1] * 5, [1] * 5]
    assert after[[0, 1, 8, 9]].unique().tolist() == [1.0]
    assert after[6:8].unique().tolist() == [2.0]


def test_embedding_draws_follow_the_row_through_a_split() -> None:
    plan, whole = ViewPlan({"anchor": [Noise()], "positive": [Noise(), Noise()]}), batch()
    values = torch.zeros(10, 2, 3)
    expected = altered(plan, whole, values)
    for rows in ([9, 4, 1], [0], [5, 2, 3, 0, 8, 6, 7, 1]):
        places = torch.tensor(rows)
        assert torch.equal(altered(plan, whole.split(places), values[places]), expected[places])


def test_two_equal_views_in_a_chain_draw_differently() -> None:
    once = altered(ViewPlan({"anchor": [Noise()]}), batch(), torch.zeros(10, 2, 3))
    twice = altered(ViewPlan({"anchor": [Noise(), Noise()]}), batch(), torch.zeros(10, 2, 3))
    assert not torch.allclose(twice[:2], 2 * once[:2])


class Returns(TextView):
    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the base's signature
        return None  # type: ignore[return-value]  # what is refused


class ReturnsIds(TokenView):
    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:  # noqa: ARG002  # the base's signature
        return list(tokens.ids)  # type: ignore[return-value]  # what is refused


class DropsFirst(EmbeddingView):
    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings[:, 1:]


def test_what_a_view_of_a_users_own_returns_is_looked_at() -> None:
    rng = generator(0)
    refused: list[parts.Refused] = [
        (lambda: ViewPlan({"positive": [Returns()]}).alter_texts("positive", ["a"], [rng]), TypeError,
         ["views.positive[0]: expected Returns to return a str, got None", "return"]),
        (lambda: ViewPlan({"positive": [ReturnsIds()]}).alter_tokens("positive", Tokens((5, 6), (0, 1)), rng),
         TypeError, ["views.positive: expected ReturnsIds to return a Tokens, got a list", "tokens.take"]),
        (lambda: altered(ViewPlan({"positive": [DropsFirst()]}), batch(), torch.zeros(10, 9, 4)), ValueError,
         ["views.positive[0]: expected DropsFirst to return vectors of shape (4, 9, 4), got (4, 8, 4)"]),
    ]  # fmt: skip
    for call, error, words in refused:
        parts.check_refused(call, error, words)
