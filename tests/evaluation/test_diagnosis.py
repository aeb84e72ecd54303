"""The diagnosis of a space: its figures are those of the metrics, and what is off is said in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
import torch
from parts import check_refused
from torch import Tensor

from contrastive_text import SentenceEncoder, metrics
from contrastive_text.data import Table, read_pairs
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import REMOVED, diagnose, frequency_bias
from contrastive_text.poolers import CLSPooler, MeanPooler


class Given(CachedEncoder):
    """Gives made-up vectors for the texts "0", "1", ..."""

    def __init__(self, vectors: Tensor, model: SentenceEncoder) -> None:
        super().__init__(model)
        self.vectors = vectors

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return self.vectors[[int(text) for text in texts]]


@pytest.fixture(scope="module")
def cls(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=CLSPooler(), device="cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return read_pairs(tiny.write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.tsv", count=24))


@pytest.fixture
def said(cls: SentenceEncoder) -> Callable[..., list[str]]:
    """Returns what is said of made-up vectors, and of pairs (i, j, score) of them."""

    def warnings(vectors: Tensor, *scored: tuple[int, int, float]) -> list[str]:
        rows = tuple({"anchor": str(i), "positive": str(j), "target": score} for i, j, score in scored)
        table = Table(rows, source=("made up",), description="", sizes=(len(rows),)) if rows else None
        return diagnose(Given(vectors, cls), [str(i) for i in range(len(vectors))], table).warnings

    return warnings


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_figures_are_those_of_the_metrics(bert: str, pairs: Table) -> None:
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
    texts = tiny.TEXTS[:30]
    found = diagnose(CachedEncoder(model), [*texts, texts[0]], pairs)
    x = torch.as_tensor(model.encode(texts))
    assert (found.texts, found.features) == (30, 16)
    # Texts are encoded in other batches: rounding of float32.
    assert found.mean_cosine == pytest.approx(metrics.mean_cosine(x).item(), abs=1e-5)
    assert found.effective_rank == pytest.approx(metrics.effective_rank(x).item(), rel=1e-4)
    assert found.isotropy == pytest.approx(metrics.iso_score(x).item(), abs=1e-5)
    assert found.off_diagonal == pytest.approx(metrics.off_diagonal(x).item(), abs=1e-4)
    assert (found.hubness, found.orphans) == pytest.approx(metrics.hubness(x), abs=1e-5)
    assert found.spectrum == pytest.approx(metrics.spectrum(x).tolist(), abs=1e-5)
    u, v = (torch.as_tensor(model.encode([str(row[side]) for row in pairs])) for side in ("anchor", "positive"))
    best = [row["target"] == 5 for row in pairs]  # of scores from 0 to 5 those above 4
    assert found.alignment == pytest.approx(metrics.alignment(u[best], v[best]).item(), abs=1e-5)
    both = sorted({str(row[side]) for side in ("anchor", "positive") for row in pairs})
    expected = metrics.uniformity(torch.as_tensor(model.encode(both))).item()
    assert found.uniformity == pytest.approx(expected, abs=1e-4)
    assert found.spearman == pytest.approx(evaluate_pairs(model, pairs)[0].spearman, abs=1e-4)
    assert found.frequency == frequency_bias(model, pairs)
    assert found.frequency is not None
    assert [number for number, _ in found.frequency] == [number for number in REMOVED if number < 64]


def test_without_pairs_there_is_no_alignment_and_uniformity_is_of_the_texts(cls: SentenceEncoder) -> None:
    found = diagnose(CachedEncoder(cls), tiny.TEXTS)
    assert found.alignment is found.spearman is found.frequency is None
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    expected = metrics.uniformity(torch.as_tensor(cls.encode(tiny.TEXTS))).item()
    assert found.uniformity == pytest.approx(expected, abs=1e-4)


def test_of_too_many_texts_some_are_drawn_by_the_seed_and_it_is_said(cls: SentenceEncoder) -> None:
    embed = CachedEncoder(cls)
    first, again, other = (diagnose(embed, tiny.TEXTS, limit=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.mean_cosine != other.mean_cosine
    assert first.texts == 20
    assert first.warnings[-1] == "20 of 40 different texts were drawn, with seed 1"
    assert not any("drawn" in each for each in diagnose(embed, tiny.TEXTS, limit=40).warnings)


# What is said


Scored = tuple[int, int, float]
EVEN, COPIES = normal(300, 16), normal(100, 16, seed=1)
CENTER = torch.ones(2, 128) + 0.05 * normal(2, 128, seed=2)
OWN: list[Scored] = [(i, i, 5.0) for i in range(20)]
OTHER: list[Scored] = [(i, i + 30, 5.0) for i in range(20)]


@pytest.mark.parametrize(
    ("vectors", "scored", "verdicts"),
    [
        (
            torch.cat([EVEN, EVEN + 0.5 * normal(300, 16, seed=1)]),
            [(i, 300 + i, 5.0) for i in range(20)] + [(i, 330 + i, 1.0) for i in range(20)],
            [],
        ),
        (
            torch.ones(50, 16) + 1e-3 * normal(50, 16),
            [(0, 1, 5.0), (2, 3, 0.0)],
            ["the space has collapsed: two texts have cosine 1.000 on average"],
        ),
        (torch.ones(12, 16), [(0, 1, 5.0), (2, 3, 0.0)], ["the space has collapsed"]),  # no warning of ranks
        (
            torch.eye(64)[:2].repeat_interleave(50, dim=0),
            [],
            ["the vectors fill 2.0 of 64 directions: a partial collapse"],
        ),
        (normal(200, 16) + 1.2, [], ["the space is anisotropic: two texts have cosine 0."]),
        (torch.cat([torch.eye(128), -torch.eye(128), CENTER]), [], ["hubs: the skewness of neighborhoods is "]),
        (
            normal(100, 16),
            OWN + [(i, i + 30, 1.0) for i in range(20)],
            ["positives are trivial: alignment 0.0000"],
        ),
        (
            torch.cat([normal(100, 16), normal(100, 16) + 0.01 * COPIES]),
            [*OTHER, (0, 1, 1.0)],
            [
                "positives are hardly nearer than any two texts",
                "near-duplicates: 100% of the texts have another with cosine 0.98",
            ],
        ),
        (normal(30, 64), [], ["few texts: 30 of them can't fill 64 directions"]),
    ],
    ids=["even", "collapse", "equal", "partial", "cone", "hubs", "trivial", "duplicates", "few"],
)
def test_a_space_gets_the_verdicts_that_it_deserves(
    said: Callable[..., list[str]], vectors: Tensor, scored: list[Scored], verdicts: list[str]
) -> None:
    found = said(vectors, *scored)
    assert len(found) == len(verdicts)
    assert all(one.startswith(other) for one, other in zip(found, verdicts, strict=True))


def test_frequent_tokens_that_pull_the_mean_are_named(
    bert: str, pairs: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
    told = {"scores": [(0, 50.0), (2, 48.0), (34, 78.5)]}
    monkeypatch.setattr("contrastive_text.evaluation.diagnosis.frequency_bias", lambda *_: told["scores"])
    wanted = (
        "frequent tokens pull the mean: without the 34 most frequent ones Spearman x 100 is 78.5 in place of 50.0"
    )
    assert wanted in diagnose(CachedEncoder(model), tiny.TEXTS, pairs).warnings
    told["scores"] = [(0, 50.0), (34, 51.5)]
    assert not any("frequent" in each for each in diagnose(CachedEncoder(model), tiny.TEXTS, pairs).warnings)


# What is refused


def test_pairs_of_one_score_have_no_correlation(cls: SentenceEncoder, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("sentence1\tsentence2\tscore\na bird\ta dog\t1\na man\ta red ball\t1\n")
    found = diagnose(CachedEncoder(cls), tiny.TEXTS, read_pairs(path))
    assert found.alignment is not None
    assert found.spearman is found.frequency is None


def test_pairs_have_the_prompts_of_their_columns(bert: str, pairs: Table) -> None:
    prompts = Prompts({"query": "an old bird ", "document": "the river "}, default="query")
    model = SentenceEncoder.from_pretrained(bert, pooler=CLSPooler(), device="cpu", prompts=prompts)
    found = diagnose(CachedEncoder(model), tiny.TEXTS, pairs)
    (score, *_) = evaluate_pairs(model, pairs)
    assert found.spearman == pytest.approx(score.spearman, abs=1e-4)
    u, v = (
        model.encode_query([str(row["anchor"]) for row in pairs]),
        model.encode_document([str(row["positive"]) for row in pairs]),
    )
    both = torch.cat([torch.as_tensor(u).unique(dim=0), torch.as_tensor(v).unique(dim=0)])
    assert found.uniformity == pytest.approx(float(metrics.uniformity(both)), abs=1e-4)


ONE_SCORE = (("a bird", "a dog", 0.0), ("a man", "a red ball", -1.0))


@pytest.mark.parametrize(
    ("texts", "scored", "limit", "words"),
    [
        ([], (), 10, ["texts", "two different texts or more", "got 0 among 0"]),
        (["a bird"] * 5, (), 10, ["texts", "got 1 among 5"]),
        (tiny.TEXTS, ONE_SCORE, 10, ["pairs", "positive scores", "got scores up to 0"]),
        (tiny.TEXTS, (), 1, ["limit", "2 or more, got 1"]),
    ],
)
def test_texts_and_pairs_that_cannot_be_measured_are_refused(
    cls: SentenceEncoder, texts: list[str], scored: Sequence[tuple[str, str, float]], limit: int, words: list[str]
) -> None:
    rows = tuple(dict(zip(("anchor", "positive", "target"), row, strict=True)) for row in scored)
    pairs = Table(rows, source=("made up",), description="", sizes=(len(rows),)) if rows else None
    check_refused(lambda: diagnose(CachedEncoder(cls), texts, pairs, limit), ValueError, words)
