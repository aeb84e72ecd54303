"""STS-B and SICK-R with a trained regressor: SentEval's protocol spelled out, and what reads training pairs."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path

import pytest
import sts_files
import tiny
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn

from contrastive_text.evaluation import CachedEncoder, sts_scores, trained_sts_scores
from contrastive_text.evaluation.sts import trained as trained_sts
from contrastive_text.evaluation.sts.data import STSPairs, find_pairs
from contrastive_text.evaluation.sts.trained import features, fit_regressor, score_classes
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler


@pytest.fixture(scope="module")
def embed(tmp_path_factory: pytest.TempPathFactory) -> CachedEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("bert"))
    return CachedEncoder(SentenceEncoder.from_pretrained(folder, pooler=MeanPooler()))


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


def test_features_are_the_distance_and_the_product(embed: CachedEncoder) -> None:
    pairs = STSPairs(first=[tiny.TEXTS[0]], second=[tiny.TEXTS[1]], gold=torch.zeros(1), subsets=[""])
    u, v = embed([tiny.TEXTS[0], tiny.TEXTS[1]])
    assert torch.equal(features(embed, pairs), torch.cat([(u - v).abs(), u * v])[None])


@pytest.mark.slow
def test_e6_only_the_trained_task_reads_the_training_pairs(embed: CachedEncoder, tmp_path: Path) -> None:
    sts_files.write_tables(tmp_path)
    before, trained_before = sts_scores(embed, tmp_path), trained_sts_scores(embed, tmp_path)
    assert trained_sts_scores(embed, tmp_path) == trained_before  # the same run again is the same
    for table in ("stsb.train.tsv", "sick.train.tsv"):
        header, *lines = (tmp_path / table).read_text().splitlines()
        scores = [line.split("\t", 1)[0] for line in lines]
        random.Random(0).shuffle(scores)
        shuffled = [f"{score}\t{line.split(chr(9), 1)[1]}" for score, line in zip(scores, lines, strict=True)]
        (tmp_path / table).write_text("\n".join([header, *shuffled]) + "\n")
    assert sts_scores(embed, tmp_path) == before
    for changed, score in zip(trained_sts_scores(embed, tmp_path), trained_before, strict=True):
        assert changed.score != score.score


def test_all_pairs_are_read_before_a_text_is_encoded(embed: CachedEncoder, tmp_path: Path) -> None:
    sts_files.write_tables(tmp_path)
    (tmp_path / "sick.test.tsv").write_text("score\tsentence1\tsentence2\n9\ta\tb\n")
    fresh = CachedEncoder(embed.model)
    with pytest.raises(ValueError, match=r"sick\.test\.tsv"):
        trained_sts_scores(fresh, tmp_path)
    assert fresh.encoded == 0


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_task_without_one_of_its_splits_has_no_score(embed: CachedEncoder, tmp_path: Path, split: str) -> None:
    (sts_files.write_tables(tmp_path) / f"sick.{split}.tsv").unlink()
    (tmp_path / "stsb.train.tsv").unlink()
    stsb, sick = trained_sts_scores(embed, tmp_path)
    assert f"expected sick.{split}.tsv" in sick.missing and "expected stsb.train.tsv" in stsb.missing
    assert sick.score != sick.score


def test_predictions_that_are_all_equal_score_0_with_a_warning(
    embed: CachedEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_sts, "features", lambda _, pairs: torch.zeros(len(pairs), 4))
    with pytest.warns(UserWarning, match=r"\(trained\): spearman: all 20 values of the first argument are equal"):
        scores = trained_sts_scores(embed, sts_files.write_tables(tmp_path))
    assert [(score.score, score.parts["dev pearson"]) for score in scores] == [(0.0, 0.0)] * 2
