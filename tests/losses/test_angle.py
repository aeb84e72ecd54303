"""AnglE: the sheet's values, complex numbers of Python, and sentence-transformers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Slot
from contrastive_text.losses import AnglE, NTXent, angle_similarity
from contrastive_text.objectives import Contrastive, Duplicates, NegativesAsHard, PairRegression, Siblings
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training.tasks import TaskParts

ROUNDING = 1e-12
"""Float64, exponents of at most some ten."""


def drawn(rows: int = 6, features: int = 4, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, features, generator=noise, dtype=torch.float64)


SCORES = torch.tensor([0.2, 1.0, 0.0, 0.4, 1.0, 0.4], dtype=torch.float64)


@pytest.mark.parametrize("features", [4, 5])
def test_it_equals_the_slow_loop_over_complex_numbers(features: int) -> None:
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


def test_it_equals_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import AnglELoss

    rows, theirs = drawn(features=5), AnglELoss(model=torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings(list(rows.unbind(1)), SCORES)
    assert float(AnglE()(rows, SCORES)) == pytest.approx(float(expected), abs=1e-11)  # exponents of 20 and more


def test_lengths_do_not_count_but_the_order_of_a_pair_does_and_a_zero_vector_has_similarity_0() -> None:
    rows, loss = drawn(), AnglE(0.5)
    before = float(loss(rows, SCORES))
    scaled = rows * torch.tensor([3.0, 0.2]).reshape(1, 2, 1)
    assert float(loss(scaled, SCORES)) == pytest.approx(before, abs=ROUNDING)
    assert abs(float(loss(rows.flip(1), SCORES)) - before) > 1e-2  # x / y isn't y / x
    assert torch.equal(angle_similarity(torch.zeros(1, 4), torch.ones(1, 4)), torch.zeros(1))


# In an objective

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
    for scored, together in (
        (PairRegression(AnglE(), low=0, high=1), True),
        (PairRegression(AnglE(), low=0, high=5), False),
    ):
        for parts in ({"a": contrastive, "b": scored}, {"b": scored, "a": contrastive}):
            task = TaskParts(parts, {})
            if together:
                assert task._target(None) == Scores(0, 1)
            else:
                with pytest.raises(ValueError, match="expected the same labels as"):
                    task._target(None)
    assert not Scores(0, 1).serves(Classes(("no", "yes")))
    assert not Classes(("0", "1")).serves(Scores(0, 1))
