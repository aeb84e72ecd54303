"""Correlation of cosine and gold score: over a file, over its sub-sets, and from files of several formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import tiny
import torch

from contrastive_text.data import read_pairs
from contrastive_text.evaluation import PairScore, evaluate_pairs
from contrastive_text.metrics import spearman
from contrastive_text.poolers import MeanPooler
from contrastive_text.sentence_encoder import SentenceEncoder

HEADER = "sentence1\tsentence2\tscore\tgenre"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("bert"))
    return SentenceEncoder.from_pretrained(folder, pooler=MeanPooler())


def write(path: Path, subsets: list[str]) -> Path:
    """Pairs of the tiny texts in the given sub-sets."""
    rows = [f"{tiny.TEXTS[i]}\t{tiny.TEXTS[(7 * i + 3) % 40]}\t{i % 5}\t{name}" for i, name in enumerate(subsets)]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


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


@pytest.mark.parametrize("subsets", [["one"] * 10, [""] * 10], ids=["one sub-set", "an empty column"])
def test_one_sub_set_is_not_said_twice(model: SentenceEncoder, tmp_path: Path, subsets: list[str]) -> None:
    scores = evaluate_pairs(model, read_pairs(write(tmp_path / "pairs.tsv", subsets)))
    assert [score.subset for score in scores] == ["all"]


def test_the_scores_are_a_perfect_correlation_for_scores_made_from_the_cosine(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    pairs = [(tiny.TEXTS[i], tiny.TEXTS[i + 13]) for i in range(20)]
    left, right = (model.encode([pair[side] for pair in pairs], convert_to_tensor=True) for side in (0, 1))
    cosines = torch.nn.functional.cosine_similarity(left, right)
    assert float(cosines.sort().values.diff().min()) > 1e-5  # no ties that rounding could turn
    for sign in (1, -1):
        lines = [f"{a}\t{b}\t{sign * float(c)}" for (a, b), c in zip(pairs, cosines, strict=True)]
        (tmp_path / "made.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
        assert evaluate_pairs(model, read_pairs(tmp_path / "made.tsv")) == [
            PairScore("all", 20, pytest.approx(100 * sign, abs=1e-4))  # float32
        ]


def test_packed_files_and_several_files_give_what_one_plain_file_gives(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    whole = write(tmp_path / "pairs.tsv", ["x"] * 20)
    packed = tmp_path / "packed.tsv.gz"
    packed.write_bytes(gzip.compress(whole.read_bytes()))
    lines = whole.read_text().splitlines()
    halves = [tmp_path / "one.tsv", tmp_path / "two.tsv"]
    for half, part in zip(halves, (lines[1:11], lines[11:]), strict=True):
        half.write_text("\n".join([lines[0], *part]) + "\n")
    expected = evaluate_pairs(model, read_pairs(whole))
    assert evaluate_pairs(model, read_pairs(packed)) == expected
    assert evaluate_pairs(model, read_pairs(halves)) == expected


def test_a_file_without_scores_is_refused_with_its_columns(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\na\tb\n")
    with pytest.raises(
        ValueError, match=r"pairs\.tsv: expected a column for target .*, got sentence1, sentence2"
    ):
        read_pairs(tmp_path / "pairs.tsv")


def test_a_sub_set_of_one_pair_has_no_correlation_and_costs_nothing_else(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    table = read_pairs(write(tmp_path / "pairs.tsv", ["news"] * 5 + ["one"]))
    whole, news, one = evaluate_pairs(model, table)
    assert (one.subset, one.pairs) == ("one", 1) and one.spearman != one.spearman
    assert whole.pairs == 6 and news.spearman == news.spearman
