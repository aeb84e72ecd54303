"""Losses of scored pairs against loops, the gradient of all pairs, and sentence-transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import parts
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Slot
from contrastive_text.losses import AnglE, CoSENT, NTXent, angle_similarity, cosent_loss
from contrastive_text.objectives import Contrastive, Duplicates, NegativesAsHard, PairRegression, Siblings
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training.tasks import TaskParts

# Exponents up to 2 / 0.02 = 100 in float64, sums of at most some 40.
ROUNDING = 1e-11
TEMPERATURES = st.floats(0.02, 5.0)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(rows: int = 6, features: int = 4, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, features, generator=noise, dtype=torch.float64)


SCORES = torch.tensor([0.2, 1.0, 0.0, 0.4, 1.0, 0.4], dtype=torch.float64)


def cosent_by_hand(cosines: Sequence[float], scores: Sequence[float], temperature: float) -> float:
    """log(1 + sum exp), pair of pairs by pair of pairs, the largest exponent taken out first."""
    exponents = [0.0]
    for i in range(len(cosines)):
        for j in range(len(cosines)):
            if scores[i] > scores[j]:
                exponents.append((cosines[j] - cosines[i]) / temperature)
    largest = max(exponents)
    total = 0.0
    for exponent in exponents:
        total += math.exp(exponent - largest)
    return largest + math.log(total)


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Cosines and scores of one to eight pairs; with six scores, ties are common."""
    n = draw(st.integers(1, 8))
    cosines = draw(st.lists(st.floats(-1, 1), min_size=n, max_size=n))
    scores = draw(st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), min_size=n, max_size=n))
    return cosines, scores


@given(case=scored(), temperature=TEMPERATURES)
def test_cosent_equals_the_double_loop(case: tuple[list[float], list[float]], temperature: float) -> None:
    cosines, scores = case
    expected = cosent_by_hand(cosines, scores, temperature)
    reached = CoSENT(temperature=temperature)(double(*cosines), double(*scores))
    assert float(reached) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def cosent_of_all_pairs(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """The matrix of all pairs of pairs, for its gradient."""
    exponents = (cosines.unsqueeze(0) - cosines.unsqueeze(1)) / temperature
    compared = scores.unsqueeze(1) > scores.unsqueeze(0)
    return torch.cat([exponents.new_zeros(1), exponents[compared]]).logsumexp(dim=0)


@given(
    n=st.integers(1, 40),
    levels=st.sampled_from([1, 2, 5, 1000]),
    temperature=st.floats(0.002, 5.0),
    seed=st.integers(0, 2**31),
)
def test_the_gradient_of_cosent_is_that_of_all_pairs(n: int, levels: int, temperature: float, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n,), generator=noise).double()
    found = []
    for compute in (cosent_of_all_pairs, cosent_loss):
        cosines = (2 * torch.rand(n, generator=noise.manual_seed(seed), dtype=torch.float64) - 1).requires_grad_()
        value = compute(cosines, scores, temperature)
        value.backward()
        assert cosines.grad is not None
        found.append((value.detach(), cosines.grad))
    (expected, gradient), (reached, streamed) = found
    torch.testing.assert_close(reached, expected, rtol=1e-10, atol=1e-12)
    # The promise of every way to compute a step: 1e-10 of the largest entry, in float64.
    torch.testing.assert_close(streamed, gradient, rtol=0, atol=1e-10 * float(gradient.abs().max()))


def test_cosent_of_many_pairs_keeps_float32s_digits_and_no_matrix() -> None:
    noise = torch.Generator().manual_seed(1)
    cosines = (2 * torch.rand(500, generator=noise) - 1).requires_grad_()
    scores, sizes = torch.rand(500, generator=noise), [0]

    def note(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        value = cosent_loss(cosines, scores, temperature=0.05)
    (gradient,) = torch.autograd.grad(value, cosines)
    exact = cosines.detach().double().requires_grad_()
    expected = cosent_of_all_pairs(exact, scores, 0.05)
    (wanted,) = torch.autograd.grad(expected, exact)
    assert value.dtype == torch.float32
    # The value is rounded once, at 1e-7 of it; so is each entry of the gradient.
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))
    assert max(sizes) <= 501


def test_cosent_of_no_pairs_is_zero() -> None:
    cosines = torch.zeros(0, requires_grad=True)
    value = cosent_loss(cosines, torch.zeros(0), temperature=0.05)
    value.backward()
    assert float(value.detach()) == 0.0


def test_cosent_and_angle_equal_those_of_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss

    rows = drawn(features=5)
    cosines = torch.cosine_similarity(*rows.unbind(1))
    for theirs, ours in ((CoSENTLoss, CoSENT(0.05)(cosines, SCORES)), (AnglELoss, AnglE(0.05)(rows, SCORES))):
        loss = theirs(model=torch.nn.Identity(), scale=20.0)
        expected = loss.compute_loss_from_embeddings(list(rows.unbind(1)), SCORES)
        assert float(ours) == pytest.approx(float(expected), abs=ROUNDING)


# AnglE


@pytest.mark.parametrize("features", [4, 5])
def test_angle_equals_the_slow_loop_over_complex_numbers(features: int) -> None:
    rows, similarities = drawn(features=features), []
    half = (features + 1) // 2
    for x, y in rows.tolist():
        z, w = ([complex(*parts) for parts in zip(v[:half], [*v[half:], 0.0], strict=False)] for v in (x, y))
        length = math.hypot(*y)
        quotients = [u * v.conjugate() / length**2 for u, v in zip(z, w, strict=True)]
        quotients = [quotient / (math.hypot(*x) / length) for quotient in quotients]
        similarities.append(abs(sum(quotient.real + quotient.imag for quotient in quotients)))
    total = 1.0
    for s, score in zip(similarities, SCORES.tolist(), strict=True):
        for other, lower in zip(similarities, SCORES.tolist(), strict=True):
            total += math.exp((other - s) / 0.3) if score > lower else 0
    assert float(AnglE(0.3)(rows, SCORES)) == pytest.approx(math.log(total), abs=ROUNDING)


SLOTS = (Slot("anchor", 0), Slot("positive", 0))


def test_the_objective_gives_vectors_and_predicts_cosines() -> None:
    rows, labels = drawn(), (SCORES > 0.3).double()
    encoded = Encoded(rows.transpose(0, 1).flatten(0, 1), SLOTS, torch.arange(12), target=labels)
    objective = PairRegression(AnglE(0.5), low=0, high=1)
    terms = objective(encoded)
    assert torch.equal(terms.total, AnglE(0.5)(rows, labels))
    assert terms.count == 1
    cosines = torch.cosine_similarity(*rows.unbind(1))
    torch.testing.assert_close(objective.predict(encoded), cosines, rtol=0, atol=ROUNDING)
    assert torch.equal(angle_similarity(torch.zeros(1, 4), torch.ones(1, 4)), torch.zeros(1))


def test_the_recipe_weighs_the_in_batch_part_as_the_authors_mean_over_all_rows() -> None:
    """Theirs: 30 x the mean over both texts of all pairs, in which those of label 0 count as 0."""
    config = read_recipe("angle_nli")
    weights, objectives = config["model"]["weights"], config["model"]["objectives"]
    temperatures = {part["init_args"]["loss"]["init_args"]["temperature"] for part in objectives.values()}
    assert temperatures == {1 / 20}
    rows, labels = drawn(), torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    unit = rows / rows.norm(dim=2, keepdim=True)
    texts = [(pair, side) for pair in range(6) for side in (0, 1)]
    total = 0.0
    for pair, side in texts:
        if labels[pair] == 1:
            # But for premises of contradicted hypotheses, of which theirs are columns too.
            others = [each for each in texts if each != (pair, side) and (labels[each[0]] == 1 or each[1] == 1)]
            logits = torch.stack([unit[pair, side] @ unit[each] for each in others]) / 0.05
            total += float(logits.logsumexp(0) - logits[others.index((pair, 1 - side))])
    encoded = Encoded(rows.transpose(0, 1).flatten(0, 1), SLOTS, torch.arange(12), target=labels)
    found = Contrastive(NTXent(0.05), columns=[Duplicates(), Siblings(), NegativesAsHard()])(encoded).loss()
    assert weights["in_batch"] * float(found) == pytest.approx(30 * total / len(texts), rel=1e-9)


def test_scores_from_0_to_1_serve_for_labels_of_pairs_and_no_others_do() -> None:
    contrastive = Contrastive(NTXent(), columns=[Duplicates(), Siblings(), NegativesAsHard()])
    for high in (1, 5):
        scored = PairRegression(AnglE(), low=0, high=high)
        for task in (
            TaskParts({"a": contrastive, "b": scored}, {}),
            TaskParts({"b": scored, "a": contrastive}, {}),
        ):
            if high == 1:
                assert task._target(None) == Scores(0, 1)
            else:
                parts.check_refused(lambda t=task: t._target(None), ValueError, ["the same labels as"])  # type: ignore[misc]  # a default of a lambda
    assert not Scores(0, 1).is_compatible_with(Classes(("no", "yes")))
    assert not Classes(("0", "1")).is_compatible_with(Scores(0, 1))
