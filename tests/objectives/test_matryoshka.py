"""Any objective at several widths: the values of the specification sheet, gradients, runs, and what is saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import (
    BilinearScorer,
    Contrastive,
    Matryoshka,
    Objective,
    PairClassification,
    PairRegression,
)

# Students A and P of the sheet (methods.json, "inputs"), and InfoNCE at 0.1 of their first 2, 4 and 6 features.
A = [
    [-0.11, 1.55, 0.97, 0.22, -1.42, -1.91],
    [1.19, 0.82, -1.99, 0.63, -2.39, 1.0],
    [0.7, 0.97, -0.44, 0.69, -0.26, -1.41],
    [0.55, 0.48, 0.17, 0.25, -0.61, 0.01],
]
P = [
    [-0.32, 0.13, -0.12, 0.08, -2.51, -1.3],
    [1.81, 1.69, -0.76, 0.8, -1.76, 0.82],
    [-0.01, 1.33, -0.67, -0.87, -1.21, -1.53],
    [1.27, -1.15, 0.85, 0.05, -0.8, 0.46],
]
EACH = {2: 4.093341303206443, 4: 3.7709508175557933, 6: 1.564320019738776}
SUM, MEAN = 9.428612140501013, 3.1428707135003378
SLOTS = (Slot("anchor", 0), Slot("positive", 0))
ROUNDING = 1e-12  # float64, logits of at most 10


def encoded(target: list[float] | None = None) -> Encoded:
    vectors = torch.tensor([*A, *P], dtype=torch.float64, requires_grad=True)
    return Encoded(
        vectors, SLOTS, torch.arange(8), target=None if target is None else torch.tensor(target).double()
    )


def info_nce() -> Contrastive:
    return Contrastive(InfoNCE(0.1))


@pytest.mark.parametrize(
    ("weights", "value"),
    [(None, SUM), ([1 / 3] * 3, MEAN), ([0.5, 2.0, 1.0], 0.5 * EACH[4] + 2 * EACH[2] + EACH[6])],
)
def test_the_values_of_the_sheet(weights: list[float] | None, value: float) -> None:
    found = Matryoshka(info_nce(), dims=[4, 2, 6], weights=weights)(encoded())
    assert found.loss().item() == pytest.approx(value, abs=ROUNDING)
    assert found.count == 4 and {"accuracy", "accuracy@4", "accuracy@2"} <= found.logs.keys()
    for width, single in EACH.items():
        assert Matryoshka(info_nce(), [width])(encoded()).loss().item() == pytest.approx(single, abs=ROUNDING)


@pytest.mark.parametrize(
    "objective", [info_nce(), PairRegression(), PairClassification(3), PairClassification(2, BilinearScorer())]
)
def test_the_gradient_is_the_sum_of_those_of_cut_vectors(objective: Objective) -> None:
    torch.manual_seed(0)
    wrapped = Matryoshka(objective, dims=[6, 3], weights=[1.0, 0.5])
    wrapped.build(6)
    batch, again = (encoded([0.0, 1.0, 1.0, 0.0]) for _ in range(2))
    wrapped.double()(batch).loss().backward()
    expected: Tensor = torch.zeros(8, 6, dtype=torch.float64)
    narrow = wrapped.copies["3"]
    for width, weight, part in ((6, 1.0, wrapped.objective), (3, 0.5, narrow)):
        cut = again.embeddings.detach()[:, :width].clone().requires_grad_()
        part(Encoded(cut, SLOTS, again.text_ids, target=again.target)).loss().backward()
        assert cut.grad is not None
        expected[:, :width] += weight * cut.grad
    torch.testing.assert_close(batch.embeddings.grad, expected, rtol=0, atol=ROUNDING)
    assert not set(map(id, narrow.parameters())) & set(map(id, wrapped.objective.parameters()))


def test_widths_are_drawn_by_the_number_of_the_step_and_go_on_where_they_stopped() -> None:
    one, other = (Matryoshka(info_nce(), dims=[2, 4, 6], per_step=2) for _ in range(2))

    def drawn(objective: Matryoshka) -> tuple[str, ...]:
        said = objective(encoded()).logs
        assert objective(encoded()).logs.keys() == said.keys()  # within a step they stay
        objective.finish_step()
        return tuple(name for name in said if name.startswith("accuracy"))

    steps = [drawn(one) for _ in range(16)]
    counts = Counter(name for names in steps for name in names)
    assert {len(names) for names in steps} == {2}
    # Hypergeometric: each width in 11 of 16 steps, standard deviation 2.
    assert counts.keys() == {"accuracy", "accuracy@4", "accuracy@2"} and min(counts.values()) >= 5
    for _ in range(8):
        drawn(other)
    third = Matryoshka(info_nce(), dims=[2, 4, 6], per_step=2)
    third.load_state_dict(other.state_dict())
    assert [drawn(third) for _ in range(8)] == steps[8:]
    assert len(one.eval()(encoded()).logs) == 3 * len(info_nce()(encoded()).logs)


def test_the_saved_vectors_are_those_that_were_trained(bert: str) -> None:
    narrow = Matryoshka(Contrastive(), [4, 2])
    kept: dict[int | None, list[dict[str, Objective]]] = {
        None: [{"c": Matryoshka(Contrastive(), [16, 4])}, {"c": narrow, "s": PairRegression()}],
        8: [{"c": narrow, "s": Matryoshka(PairRegression(), [8, 2])}],
    }
    for width, each in kept.items():
        assert [tiny.module(bert, objectives=o).sentence_encoder().truncate_dim for o in each] == [width] * len(
            each
        )


def test_validation_scores_each_width(bert: str, tmp_path: Path) -> None:
    module = tiny.module(bert, objectives={"c": Matryoshka(Contrastive(), dims=[12, 4])})
    texts, pairs = tiny.write_texts(tmp_path / "texts.txt"), tiny.write_pairs(tmp_path / "pairs.tsv")
    (scores,) = tiny.trainer(tmp_path).validate(module, tiny.data(texts, validation=pairs), verbose=False)
    assert {"val/spearman", "val/spearman@4", "val/pearson@4"} <= scores.keys()
    assert "val/spearman@12" not in scores
    assert scores["val/spearman"] != scores["val/spearman@4"]
