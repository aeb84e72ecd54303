"""An objective over quantized vectors: values, straight-through gradients, and validation scores of bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.inference import quantize, value_ranges
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive, Matryoshka, PairClassification, PairRegression, Quantized
from contrastive_text.training import BestCheckpoint, ExportModel, RunSummary

SLOTS = (Slot("anchor", 0), Slot("positive", 0))
ROUNDING = 1e-12  # float64


def vectors(rows: int = 8, features: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, features, generator=generator, dtype=torch.float64, requires_grad=True)


def encoded(rows: Tensor, target: list[float] | None = None) -> Encoded:
    return Encoded(
        rows, SLOTS, torch.arange(len(rows)), target=None if target is None else torch.tensor(target).double()
    )


def info_nce(rows: Tensor, temperature: float = 0.1) -> Tensor:
    first, second = normalize(rows[: len(rows) // 2]), normalize(rows[len(rows) // 2 :])
    return cross_entropy(first @ second.T / temperature, torch.arange(len(first)))


def bits(rows: Tensor) -> Tensor:
    """Straight-through signs in plain torch."""
    return rows + ((rows > 0).double() * 2 - 1 - rows).detach()


def levels(rows: Tensor) -> Tensor:
    """Straight-through bytes in plain torch: the numbers of 256 steps between a feature's ends, minus 128."""
    low, high = rows.detach().amin(dim=0), rows.detach().amax(dim=0)
    numbers = (rows - low) / ((high - low) * (1 + 2**-16) / 255) - 128
    return numbers + (((numbers + 128).floor().clamp(0, 255) - 128) - numbers).detach()


def test_the_loss_and_its_gradient_are_those_of_straight_through_estimates() -> None:
    rows, again = vectors(), vectors()
    objective = Quantized(Contrastive(InfoNCE(0.1)), ["binary", "int8"], weights=[0.5, 2.0])
    found = objective(encoded(rows)).loss()
    found.backward()
    expected = info_nce(again) + 0.5 * info_nce(bits(again)) + 2 * info_nce(levels(again))
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(rows.grad, again.grad, rtol=0, atol=ROUNDING)


def test_widths_are_trained_in_each_precision() -> None:
    rows, again = vectors(), vectors()
    terms = Quantized(Matryoshka(Contrastive(InfoNCE(0.1)), [16, 8]), ["binary"])(encoded(rows))
    terms.loss().backward()
    expected = sum(
        info_nce(change(again[:, :width])) for width in (16, 8) for change in (lambda rows: rows, bits)
    )
    assert isinstance(expected, Tensor)
    expected.backward()
    torch.testing.assert_close(rows.grad, again.grad, rtol=0, atol=ROUNDING)
    assert {"accuracy", "accuracy@8", "accuracy@binary", "accuracy@8@binary"} <= terms.logs.keys()


def test_the_compared_values_are_the_values_that_are_stored() -> None:
    rows = vectors(400).detach().float()  # as ranges are stored
    low, high = value_ranges(rows)
    stored = quantize(rows, "int8", torch.stack([low, low + (high - low) * (1 + 2**-16)])).float()
    objective = Quantized(PairRegression(), ["int8"], weights=[1.0])
    target = torch.zeros(200)
    found = objective(Encoded(rows, SLOTS, torch.arange(400), target=target)).total
    errors = [cosine_similarity(each[:200], each[200:]).square().sum() for each in (rows, stored)]
    torch.testing.assert_close(found, sum(errors))  # float32


def test_predictions_of_classes_are_scored_in_bits_too() -> None:
    objective = Quantized(PairClassification(3), ["int8", "binary"])
    objective.build(16)
    assert [*objective.predictors()] == ["", "@binary"]
    rows = vectors(6)
    predict = objective.double().predictors()["@binary"]
    assert (predict(encoded(rows)) == predict(encoded(rows.detach().sign()))).all()


def test_a_feature_without_a_range_has_one_value_and_a_finite_gradient() -> None:
    rows = vectors()
    constant = torch.cat([rows, torch.ones(8, 1, dtype=torch.float64)], dim=1)
    Quantized(Contrastive(InfoNCE(0.1)), ["int8"])(encoded(constant)).loss().backward()
    assert rows.grad is not None and bool(rows.grad.isfinite().all())


def test_validation_scores_bits_of_each_width(bert: str, tmp_path: Path) -> None:
    objective = Quantized(Matryoshka(Contrastive(), dims=[16, 8]), ["binary", "int8"])
    module = tiny.module(bert, objectives={"c": objective})
    texts, pairs = tiny.write_texts(tmp_path / "texts.txt"), tiny.write_pairs(tmp_path / "pairs.tsv")
    (scores,) = tiny.trainer(tmp_path).validate(module, tiny.data(texts, validation=pairs), verbose=False)
    names = [f"val/spearman{suffix}" for suffix in ("", "@8", "@binary", "@8@binary")]
    assert {name for name in scores if name.startswith("val/spearman")} == {*names}
    assert len({scores[name] for name in names}) == 4
    # A pooler in use may give more features than the pooler of training.
    wide = torch.ones(2, 40)
    assert {name: len(change(wide)[0]) for name, change in module.by_task.variants.items()} == {
        "": 40, "@8": 8, "@binary": 40, "@8@binary": 8,
    }  # fmt: skip


def test_the_summary_and_the_model_card_name_the_precisions(bert: str, tmp_path: Path) -> None:
    objective = Quantized(Contrastive(), ["int8", "binary"])
    module, summary = tiny.module(bert, objectives={"c": objective}), RunSummary()
    trainer = tiny.trainer(
        tmp_path, callbacks=[summary, BestCheckpoint(), ExportModel()], enable_checkpointing=True
    )
    trainer.fit(module, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    assert summary.facts["precisions"] == "float32, binary, int8"
    (card,) = tmp_path.rglob("README.md")
    assert "| precisions | float32, binary, int8 |" in card.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "features", "words"),
    [
        (lambda: Quantized(Contrastive(), []), 16, ["Quantized.precisions", "binary, int8 or both", "[]"]),
        (lambda: Quantized(Contrastive(), ["binary", "binary"]), 16, ["Quantized.precisions", "both"]),
        (lambda: Quantized(Contrastive(), ["ubinary"]), 16, ["Quantized.precisions", "binary", "ubinary"]),  # type: ignore[list-item]  # what is refused
        (lambda: Quantized(Contrastive(), ["int8"], [0.0]), 16, ["Quantized.weights", "above 0", "[0.0]"]),
        (lambda: Quantized(Contrastive(), ["int8"], [1.0, 1.0]), 16, ["Quantized.weights", "1 precisions"]),
        (lambda: Quantized(Contrastive(), ["binary"]), 12, ["Quantized.precisions", "multiple of 8", "got 12"]),
        (
            lambda: Quantized(Matryoshka(Contrastive(), [16, 12]), ["binary"]), 16,
            ["Quantized.precisions", "multiple of 8", "got 12"],
        ),
        (
            lambda: Quantized(Quantized(Contrastive(), ["int8"]), ["binary"]), 16,
            ["Quantized.objective", "sentence vectors", "got Quantized"],
        ),
        (
            lambda: Matryoshka(Quantized(Contrastive(), ["int8"]), [8]), 16,
            ["Matryoshka.objective", "sentence vectors", "got Quantized"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_quantized_is_refused(make: object, features: int, words: list[str]) -> None:
    assert callable(make)
    with pytest.raises(ValueError) as error:
        make().build(features)
    assert all(word in str(error.value) for word in words)
