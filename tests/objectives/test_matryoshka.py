"""Any objective at several widths: the values of the specification sheet, gradients, runs, and what is saved."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from contrastive_text.cli import run
from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import (
    BilinearScorer,
    Contrastive,
    Matryoshka,
    Objective,
    PairClassification,
    PairRegression,
)
from contrastive_text.training.module import ContrastiveModule

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
    narrow = wrapped.narrower["3"]
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


def test_the_saved_vectors_are_those_that_were_trained(tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    kept = {
        name: tiny.module(bert, objectives=parts).sentence_encoder().truncate_dim
        for name, parts in {
            "full": {"c": Matryoshka(Contrastive(), [16, 4])},
            "narrow": {"c": Matryoshka(Contrastive(), [4, 2]), "s": Matryoshka(PairRegression(), [8, 2])},
            "beside another": {"c": Matryoshka(Contrastive(), [4, 2]), "s": PairRegression()},
        }.items()
    }
    assert kept == {"full": None, "narrow": 8, "beside another": None}


@pytest.mark.slow
def test_a_run_from_yaml_scores_each_width_and_saves_what_sentence_transformers_cuts_alike(
    tmp_path: Path,
) -> None:
    bert, texts = tiny.save_bert(tmp_path / "bert"), tiny.write_texts(tmp_path / "texts.txt")
    (tmp_path / "widths.yaml").write_text(
        "model:\n  objectives:\n    contrastive:\n      class_path: Matryoshka\n      init_args:\n"
        "        dims: [12, 4]\n        objective:\n          class_path: Contrastive\n          init_args:\n"
        "            columns: [Duplicates, Siblings, {class_path: Queue, init_args: {size: 20}}]\n"
    )
    words = ["fit", "--recipe", "simcse", "--config", str(tmp_path / "widths.yaml"), "--data.train", texts]
    words += ["--data.validation", tiny.write_pairs(tmp_path / "pairs.tsv"), "--data.batch_size", "8"]
    words += [
        "--model.encoder.model_name_or_path",
        bert,
        "--data.num_workers",
        "0",
        "--trainer.accelerator",
        "cpu",
    ]
    words += ["--trainer.max_steps", "2", "--trainer.val_check_interval", "1", "--trainer.logger", "true"]
    words += ["--checkpoint.monitor", "val/spearman@4", "--trainer.default_root_dir", str(tmp_path / "run")]
    assert (
        run([*words, "--export.dirpath", str(tmp_path / "model"), "--checkpoint.dirpath", str(tmp_path / "kept")])
        == 0
    )
    (log,) = (tmp_path / "run").rglob("metrics.csv")
    with log.open() as lines:
        last = [row for row in csv.DictReader(lines) if row["val/spearman"]][-1]
    assert last["val/spearman@4"] and last["val/pearson@4"] and "val/spearman@12" not in last
    folder = tmp_path / "model"
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["truncate_dim"] == 12
    ours = SentenceEncoder.from_pretrained(folder, device="cpu")
    (saved,) = (tmp_path / "kept").glob("*.ckpt")
    trained = ContrastiveModule.load_from_checkpoint(saved).eval().sentence_encoder()
    whole = ours.encode(list(tiny.TEXTS))
    assert whole.shape == (40, 12) and np.array_equal(whole, trained.encode(list(tiny.TEXTS)))
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    # float32: another way of attention, over padded rows
    np.testing.assert_allclose(theirs.encode(list(tiny.TEXTS)), whole, rtol=0, atol=1e-5)
    narrow = theirs.encode(list(tiny.TEXTS), truncate_dim=4, normalize_embeddings=True)
    mine = SentenceEncoder.from_pretrained(folder, device="cpu", truncate_dim=4)
    np.testing.assert_allclose(narrow, mine.encode(list(tiny.TEXTS), normalize_embeddings=True), atol=1e-5)
