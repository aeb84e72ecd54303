"""The objective of a reranker compared with a plain loop, and the figures of the order of a row's own texts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from torch.nn.functional import logsigmoid

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.data.tasks import TextTask
from contrastive_text.heads import MLPHead
from contrastive_text.losses import MarginMSE
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives import Reranking
from contrastive_text.pairings import OneSequence
from contrastive_text.training.module import ContrastiveModule

SLOTS = (Slot("anchor", 0), Slot("negative", 0), Slot("negative", 1))
EXACT = {"rel": 1e-12, "abs": 0.0}


def rows(missing: bool = True) -> Encoded:
    """Four rows of a positive and two hard negatives, of which the last row lacks one."""
    noise = torch.Generator().manual_seed(0)
    ids = torch.arange(12)
    if missing:
        ids[11] = MASKED_ID
    vectors = torch.randn(12, 3, generator=noise, dtype=torch.float64)
    scores = torch.randn(4, 3, generator=noise, dtype=torch.float64)
    scores[3, 2] = math.nan
    return Encoded(vectors, SLOTS, ids, scores=scores)


def built(objective: Reranking) -> Reranking:
    torch.manual_seed(0)
    objective.build(3)
    return objective.double()


def test_the_cross_entropy_is_that_of_a_loop_without_missing_texts() -> None:
    objective, encoded = built(Reranking(positive_weight=2.0)), rows()
    scores, expected = objective.scores(encoded).detach(), 0.0
    for number, row in enumerate(scores):
        texts = row[:2] if number == 3 else row
        losses = [-2.0 * logsigmoid(texts[0]), *(-logsigmoid(-score) for score in texts[1:])]
        expected += float(sum(losses)) / len(losses)
    terms = objective(encoded)
    assert terms.total.item() == pytest.approx(expected, **EXACT) and terms.count == 4


def test_margins_are_those_of_the_teacher_scores() -> None:
    objective, encoded = built(Reranking(MarginMSE())), rows()
    scores, teacher = objective.scores(encoded).detach(), encoded.scores
    assert teacher is not None
    expected = 0.0
    for number in range(4):
        count = 2 if number == 3 else 3
        margins = [
            float((scores[number, 0] - scores[number, i]) - (teacher[number, 0] - teacher[number, i]))
            for i in range(1, count)
        ]
        expected += sum(margin**2 for margin in margins) / len(margins)
    assert objective(encoded).total.item() == pytest.approx(expected, **EXACT)


def test_the_order_of_a_row_counts_ties_against_the_positive_and_no_missing_text() -> None:
    objective = built(Reranking())
    assert objective.linear is not None
    with torch.no_grad():
        objective.linear.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    scores = torch.tensor([[3.0, 1.0, 2.0], [2.0, 3.0, 1.0], [1.0, 1.0, 0.0], [0.0, -1.0, 9.0]])
    vectors = torch.zeros(12, 3, dtype=torch.float64)
    vectors[:, 0] = scores.T.flatten()
    logs = objective(replace(rows(), embeddings=vectors)).logs
    assert float(logs["mrr@10"]) == pytest.approx((1 + 1 / 2 + 1 / 2 + 1) / 4)
    assert float(logs["ndcg@10"]) == pytest.approx((1 + 2 / math.log2(3) + 1) / 4)


def test_the_figures_of_held_out_rows_are_those_of_their_order(tmp_path: Path) -> None:
    train = tiny.write_triples(tmp_path / "triples.jsonl")
    module = tiny.module(tiny.save_bert(tmp_path / "bert"), objectives={"rank": Reranking()})
    data = tiny.data(train, task=TextTask(held_out=train, pairing=OneSequence()))
    (figures,) = tiny.trainer(tmp_path).validate(module, data, verbose=False)
    module.eval()
    found = []
    for line in Path(train).read_text().splitlines():
        row = json.loads(line)
        pairs = [(row["anchor"], row[name]) for name in ("positive", "negative")]
        found.append(scores_of(module, pairs))
    expected = sum(1.0 if first > second else 1 / math.log2(3) for first, second in found) / len(found)
    assert figures["val/rank/ndcg@10"] == pytest.approx(100 * expected, rel=1e-6)
    assert figures["val/rank/mrr@10"] == pytest.approx(
        100 * sum(1.0 if first > second else 0.5 for first, second in found) / len(found), rel=1e-6
    )


def scores_of(module: ContrastiveModule, pairs: list[tuple[str, str]]) -> list[float]:
    """The scores of pairs, one after the other, with the token types of BERT."""
    tokenizer, objective = module.encoder.tokenizer, module.objectives["rank"]
    assert tokenizer is not None
    scores = []
    for first, second in pairs:
        ids = tokenizer(first, second)["input_ids"]
        length = ids.index(tokenizer.sep_token_id) + 1
        types = [0] * length + [1] * (len(ids) - length)
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}
            vectors = module.encoder.model(**inputs).last_hidden_state.mean(dim=1)
            scores.append(float(objective.linear(vectors)))
    return scores


def test_a_head_of_several_outputs_and_rows_without_scores_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Reranking\.head: expected out_features: 1, one for each score, got 2"):
        Reranking(head=MLPHead(out_features=2)).build(3)
    with pytest.raises(ValueError, match="expected teacher scores for each row"):
        built(Reranking(MarginMSE()))(replace(rows(), scores=None))
    with pytest.raises(ValueError, match="expected hard negatives for Reranking"):
        Reranking().check_examples(8, 0)
