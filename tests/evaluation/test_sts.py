"""Semantic textual similarity: three settings, files of pairs, and the trained regressor."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sts_files
import tiny
import torch
from conftest import DATA, SHARED
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn

from contrastive_text.data import read_pairs
from contrastive_text.evaluation import CachedEncoder, evaluate_pairs, sts_scores, trained_sts_scores
from contrastive_text.evaluation import sts as trained_sts
from contrastive_text.evaluation.sts import SETTINGS, aggregate, features, fit_regressor, score_classes
from contrastive_text.evaluation.sts_data import STS_TASKS, STSPairs, find_pairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import spearman
from contrastive_text.poolers import LastTwoPooler, MeanPooler

HEADER = "sentence1\tsentence2\tscore\tgenre"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("bert"))
    return SentenceEncoder.from_pretrained(folder, pooler=MeanPooler())


def write(path: Path, subsets: list[str]) -> Path:
    """Pairs of the tiny texts in the given sub-sets, of which none is another one turned round: a tie."""
    rows = [f"{tiny.TEXTS[i]}\t{tiny.TEXTS[(i + 13) % 40]}\t{i % 5}\t{name}" for i, name in enumerate(subsets)]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def pairs_of(gold: Sequence[float], subsets: Sequence[str] | None = None) -> STSPairs:
    """Pairs of which only scores and sub-sets matter."""
    texts = [f"text {i}" for i in range(len(gold))]
    return STSPairs(
        first=texts,
        second=[f"{text}, altered" for text in texts],
        gold=torch.tensor(gold, dtype=torch.float64),
        subsets=list(subsets or ["one"] * len(gold)),
    )


def vectors_of(rows: list[list[float]]) -> Any:  # Any: in place of a CachedEncoder
    """Returns these vectors for whatever texts."""
    return lambda texts: torch.tensor(rows)[: len(texts)]


def by_hand(model: SentenceEncoder, rows: list[dict[str, object]]) -> float:
    left, right = (model.encode([str(row[side]) for row in rows]) for side in ("anchor", "positive"))
    cosines = model.similarity(left, right).diagonal()
    return 100 * float(spearman(cosines, torch.tensor([float(str(row["target"])) for row in rows])))


def test_every_sub_set_and_all_pairs_together_have_their_own_correlation(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    table = read_pairs(write(tmp_path / "pairs.tsv", [("news", "forum", "news")[i % 3] for i in range(24)]))
    scores = evaluate_pairs(model, table, batch_size=5)
    assert [(score.subset, score.pairs) for score in scores] == [("all", 24), ("news", 16), ("forum", 8)]
    for score in scores:
        rows = [dict(row) for row in table if score.subset in ("all", row["subset"])]
        # float32 cosines: no two of these pairs are nearer than rounding, so the order is the same
        assert score.spearman == pytest.approx(by_hand(model, rows), abs=1e-3)
    # "all" is one correlation of all pairs, not a mean of the sub-sets'
    assert abs(scores[0].spearman - (scores[1].spearman + scores[2].spearman) / 2) > 0.1


def test_a_sub_set_of_one_pair_has_no_correlation_and_costs_nothing_else(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    table = read_pairs(write(tmp_path / "pairs.tsv", ["news"] * 5 + ["one"]))
    whole, news, one = evaluate_pairs(model, table)
    assert (one.subset, one.pairs) == ("one", 1) and one.spearman != one.spearman
    assert whole.pairs == 6 and news.spearman == news.spearman
    (alone,) = evaluate_pairs(model, read_pairs(write(tmp_path / "nameless.tsv", [""] * 10)))
    assert (alone.subset, alone.pairs) == ("all", 10)


# The three settings


def test_e1_a_score_is_of_all_pairs_or_a_mean_over_sub_sets(vectors: dict[str, Any]) -> None:
    given = vectors["sts_aggregation"]
    system = [value for part in given["subsets"].values() for value in part["system"]]
    gold = [value for part in given["subsets"].values() for value in part["gold"]]
    pairs = pairs_of(gold, [name for name, part in given["subsets"].items() for _ in part["gold"]])
    for setting in SETTINGS:
        score, parts = aggregate(torch.tensor(system, dtype=torch.float64), pairs, setting)
        # ten digits are given
        assert score == pytest.approx(100 * given[setting], abs=1e-7)
        assert parts == {
            name: pytest.approx(100 * r, abs=1e-7) for name, r in given["spearman_per_subset"].items()
        }


def test_a_setting_must_be_one_and_find_the_sub_sets_it_averages() -> None:
    similarities = torch.tensor([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="setting: expected one of all, mean or wmean, got 'median'"):
        aggregate(similarities, pairs_of([1, 2, 3]), "median")
    nameless = pairs_of([1, 2, 3], ["", "", ""])
    assert aggregate(similarities, nameless, "all") == (pytest.approx(100), {"": pytest.approx(100)})
    with pytest.raises(ValueError, match="expected pairs whose subsets are named for wmean"):
        aggregate(similarities, nameless, "wmean")
    with pytest.raises(ValueError, match="two pairs or more in each subset for the setting mean, got one in b"):
        aggregate(similarities, pairs_of([1, 2, 3], ["a", "a", "b"]), "mean")


# The suite


@pytest.fixture(scope="module")
def embed(model: SentenceEncoder) -> CachedEncoder:
    return CachedEncoder(model)


def test_the_seven_tasks_come_in_the_papers_order_with_the_sub_sets_of_the_years(
    embed: CachedEncoder, tmp_path: Path
) -> None:
    table = sts_files.write_tables(tmp_path) / "sts12.test.tsv"
    head, _, *rows = table.read_text().splitlines()
    table.write_text("\n".join([head, *rows]) + "\n")  # its first sub-set is smaller than the others
    scores = sts_scores(embed, tmp_path, setting="wmean")
    assert [score.task for score in scores] == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
    assert all(score.metric == "spearman" and not score.missing for score in scores)
    for score in scores[:5]:
        assert [*score.parts] == [name.removeprefix("surprise.") for name in sts_files.YEARS[score.task]]
        sizes = [4 if (score.task, place) == ("STS12", 0) else 5 for place in range(len(score.parts))]
        assert score.size == sum(sizes)
        assert score.score == pytest.approx(np.average([*score.parts.values()], weights=sizes))
    assert [(score.size, score.parts) for score in scores[5:]] == [(20, {}), (20, {})]


def test_collapsed_vectors_score_0_with_a_warning_that_names_the_task(tmp_path: Path) -> None:
    class Collapsed:
        def __call__(self, texts: Sequence[str]) -> Tensor:
            return torch.ones(len(texts), 3)

    with pytest.warns(UserWarning) as said:
        scores = sts_scores(Collapsed(), sts_files.write_tables(tmp_path), setting="mean")  # type: ignore[arg-type]  # a stand-in for an encoder
    assert [score.score for score in scores] == [0.0] * 7
    assert [str(warning.message).partition(": ")[0] for warning in said] == list(STS_TASKS)
    assert all("collapsed" in str(warning.message) for warning in said)


@pytest.mark.slow
def test_k16_plain_bert_base_scores_what_consert_reports() -> None:
    """ConSERT, table 2: BERT-base without training, mean of the last two layers, setting all."""
    weights = SHARED / "models" / "bert-base-uncased"
    if not weights.is_dir():
        pytest.skip(f"BERT-base is not here; put bert-base-uncased into {weights.parent}")
    found = find_sts(DATA)
    if missing := [task for task, pairs in found.items() if isinstance(pairs, str)]:
        pytest.skip(f"data sets are not here: {', '.join(missing)}")
    model = SentenceEncoder.from_pretrained(weights, pooler=LastTwoPooler())
    scores = [score.score for score in sts_scores(CachedEncoder(model), DATA)]
    assert sum(scores) / 7 == pytest.approx(53.86, abs=0.1)  # two digits, and texts that differ in their blanks


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of at most 42 epochs, a look at the dev pairs every second."""
    monkeypatch.setattr(trained_sts, "_ROUND", 2)
    monkeypatch.setattr(trained_sts, "_EPOCHS", 42)


def test_scores_become_the_classes_of_senteval() -> None:
    gold = [0.0, 0.25, 1.0, 1.6, 2.0, 3.999, 4.2, 5.0]
    for score, row in zip(gold, score_classes(torch.tensor(gold)), strict=True):
        expected = [0.0] * 5
        for i in range(5):
            if i + 1 == math.floor(score) + 1:
                expected[i] = score - math.floor(score)
            if i + 1 == math.floor(score):
                expected[i] = math.floor(score) - score + 1
        assert row.tolist() == pytest.approx(expected, abs=1e-6)  # float32


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features of which three tell the score, with noise."""
    x = torch.randn(count, 6, generator=generator)
    noise = torch.randn(count, generator=generator)
    return x, (x[:, :3].sum(dim=1) + noise + 2.5).clamp(0, 5).double()


@pytest.mark.parametrize(("rate", "ended"), [(1e-3, "after the last epoch"), (0.3, "after four failures")])
@pytest.mark.usefixtures("short")
def test_the_regressor_is_trained_as_in_senteval(
    monkeypatch: pytest.MonkeyPatch, rate: float, ended: str
) -> None:
    """Rounds, choice by dev pairs and both ends, with torch's own layers; at a high rate no gain follows."""
    adam = torch.optim.Adam
    monkeypatch.setattr(
        torch.optim, "Adam", lambda parameters, lr: adam(parameters, lr=rate if lr == 1e-3 else 0)
    )
    generator = torch.Generator().manual_seed(0)
    x, gold = drawn(150, generator)
    dev_x, dev_gold = drawn(60, generator)
    regressor, chosen_by = fit_regressor(x, gold, dev_x, dev_gold, seed=5)

    draws = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 5), nn.Softmax(dim=1))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1 / math.sqrt(6), 1 / math.sqrt(6), generator=draws)
    optimizer = adam(model.parameters(), lr=rate)
    classes = torch.arange(1.0, 6.0)
    epochs, failures, best, best_model = 0, 0, -1.0, model
    while epochs < 42 and failures < 4:
        for _ in range(2):
            order = torch.randperm(150, generator=draws)
            for start in range(0, 150, 64):
                batch = order[start : start + 64]
                loss = nn.MSELoss()(model(x[batch]), score_classes(gold[batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += 2
        correlation = pearsonr((model(dev_x) @ classes).detach().numpy(), dev_gold.numpy())[0]
        if correlation > best:
            best, best_model = correlation, copy.deepcopy(model)
        else:
            failures += 1
    assert (failures == 4) == (ended == "after four failures")
    assert chosen_by == pytest.approx(best, abs=1e-5)  # float32
    torch.testing.assert_close(
        regressor(dev_x), (best_model(dev_x) @ classes).detach().double(), atol=1e-4, rtol=0
    )


def test_the_scores_are_of_the_test_pairs(embed: CachedEncoder, tmp_path: Path) -> None:
    sts_files.write_tables(tmp_path)
    found = [find_pairs("STS-B", tmp_path, split) for split in ("train", "dev", "test")]
    train, dev, test = ((features(embed, pairs), pairs.gold) for pairs in found if isinstance(pairs, STSPairs))
    regressor, dev_pearson = fit_regressor(*train, *dev)
    predicted = regressor(test[0]).numpy()
    score, sick = trained_sts_scores(embed, tmp_path)
    assert (score.task, score.metric, score.size) == ("STS-B (trained)", "spearman", 20)
    assert (sick.task, sick.size) == ("SICK-R (trained)", 20)
    assert score.score == pytest.approx(100 * spearmanr(predicted, test[1].numpy())[0], abs=1e-9)
    assert score.parts == {
        "dev pearson": 100 * dev_pearson,
        "test pearson": pytest.approx(100 * pearsonr(predicted, test[1].numpy())[0], abs=1e-9),
    }


def test_a_trained_task_without_one_of_its_splits_has_no_score_and_another_reads_the_test_pairs_alone(
    embed: CachedEncoder, tmp_path: Path
) -> None:
    sts_files.write_tables(tmp_path)
    before = sts_scores(embed, tmp_path)
    for name in ("sick.dev.tsv", "stsb.train.tsv"):
        (tmp_path / name).unlink()
    stsb, sick = trained_sts_scores(embed, tmp_path)
    assert "expected sick.dev.tsv" in sick.missing and "expected stsb.train.tsv" in stsb.missing
    assert sick.score != sick.score
    assert sts_scores(embed, tmp_path) == before


def test_predictions_that_are_all_equal_score_0_with_a_warning(
    embed: CachedEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_sts, "features", lambda _, pairs: torch.zeros(len(pairs), 4))
    with pytest.warns(UserWarning, match=r"\(trained\): spearman: all 20 values of the first argument are equal"):
        scores = trained_sts_scores(embed, sts_files.write_tables(tmp_path))
    assert [(score.score, score.parts["dev pearson"]) for score in scores] == [(0.0, 0.0)] * 2
