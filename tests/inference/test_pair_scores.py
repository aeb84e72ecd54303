"""Scores of a reranker: written for rows, used to mine, and used to order documents again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import BertConfig, BertForSequenceClassification

from contrastive_text import Reranker, SentenceEncoder
from contrastive_text.core.types import Row
from contrastive_text.data import learn_vocabulary
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.retrieval import Rerank
from contrastive_text.inference import mining_run
from contrastive_text.inference.mining import Mining, PairTexts
from contrastive_text.inference.mining_run import MiningRun, score_files, score_rows

T = tiny.TEXTS
ROWS: list[Row] = [
    {"anchor": T[0], "positive": T[1], "negative": T[2], "negative_2": T[3]},
    {"anchor": T[0], "positive": T[4], "negative": T[2], "negative_2": ""},
    {"anchor": T[5], "positive": T[1], "negative": T[0], "negative_2": T[6]},
]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    """A random reranker in the form of a ``CrossEncoder`` folder."""
    folder = tmp_path_factory.mktemp("reranker")
    tokenizer = learn_vocabulary(T, 300)
    tokenizer.model_max_length = 48
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        num_labels=1,
        initializer_range=0.5,  # scores that differ
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return Reranker.from_pretrained(folder, device="cpu")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def close(reranker: Reranker, query: str, texts: Sequence[str], scores: Sequence[float]) -> bool:
    """Whether scores are those of the model alone, but for the padding of a batch and six digits."""
    alone = [float(reranker.predict((query, text))) for text in texts]
    return bool(np.allclose(alone, scores, rtol=0, atol=2e-6))


def test_each_text_of_a_row_has_its_score_and_an_equal_pair_is_scored_once(
    reranker: Reranker, tmp_path: Path
) -> None:
    path = tmp_path / "scored.jsonl"
    assert score_rows(reranker, ROWS, path) == 7  # of 8 pairs, one occurs twice
    for row, line in zip(ROWS, lines(path), strict=True):
        negatives = [row[name] for name in ("negative", "negative_2") if row[name]]
        assert (line["anchor"], line["positive"], line["negative"]) == (row["anchor"], row["positive"], negatives)
        assert close(reranker, line["anchor"], [line["positive"], *negatives], line["scores"])
    assert [file for file in score_files(path) if file.exists()] == [path]
    pairs: list[Row] = [{"anchor": T[0], "positive": T[1]}]
    score_rows(reranker, pairs, path)
    (line,) = lines(path)
    assert close(reranker, T[0], [T[1]], [line["score"]])


def test_a_stopped_run_resumes_with_its_saved_scores(
    reranker: Reranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining_run, "_BLOCK_SIZE", 3)
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    score_rows(reranker, ROWS, whole)
    predict, asked = Reranker.predict, []

    def counted(self: Reranker, pairs: Any, **options: Any) -> Any:
        asked.append(len(pairs))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return predict(self, pairs, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Reranker, "predict", counted)
        with pytest.raises(KeyboardInterrupt):
            score_rows(reranker, ROWS, stopped)
        assert not stopped.exists() and asked == [3, 3, 1]
        score_rows(reranker, ROWS, stopped)
    assert asked == [3, 3, 1, 1]
    assert stopped.read_bytes() == whole.read_bytes()


def test_mined_negatives_are_those_of_the_rerankers_scores(reranker: Reranker, bert: str, tmp_path: Path) -> None:
    pairs = [(T[place], T[place + 8]) for place in range(6)] + [(T[0], T[20])]
    texts, path = PairTexts(pairs, T[24:34]), tmp_path / "mined.jsonl"
    mining = Mining(negatives=2, range_max=5, same=None, min_score=0.0)
    model = SentenceEncoder.from_pretrained(bert, pooler="MeanPooler", device="cpu")
    MiningRun(model, texts, path, mining, "tuples", rescore=reranker).finish()
    for line in lines(path):
        assert close(reranker, line["anchor"], [line["positive"], *line["negative"]], line["scores"])
    MiningRun(model, texts, path.with_suffix(".tsv"), mining, "triples", rescore=reranker).finish()
    head, first, *_ = path.with_suffix(".tsv").read_text().splitlines()
    *triple, scores = first.split("\t")
    assert head == "anchor\tpositive\tnegative\tscores"
    assert close(reranker, triple[0], triple[1:], json.loads(scores))
    vectors = torch.nn.functional.normalize(torch.as_tensor(model.encode(texts.corpus)), dim=1)
    queries = torch.nn.functional.normalize(torch.as_tensor(model.encode(texts.queries)), dim=1)
    found = {line["anchor"]: line["negative"] for line in lines(path)}
    assert len(found) == 6
    for place, query in enumerate(texts.queries):
        order = (vectors @ queries[place]).argsort(descending=True).tolist()
        candidates = [
            texts.corpus[i] for i in order if i not in (*texts.positives[place], texts.query_ids[place])
        ]
        scores = {text: float(reranker.predict((query, text))) for text in candidates[:5]}
        assert found[query] == sorted(scores, key=lambda text: -scores[text])[:2]


def test_the_first_documents_are_ordered_again_and_the_others_keep_their_order(reranker: Reranker) -> None:
    data = RetrievalSet((T[0], T[1]), tuple(T[2:10]), ({0: 1.0}, {1: 1.0}), (-1, -1))
    ranked = torch.tensor([[3, 1, 0, 5, 2], [4, -1, -1, -1, -1]])
    again = Rerank(reranker, top_k=3)(data, ranked)
    scores = [float(reranker.predict((T[0], data.documents[place]))) for place in (3, 1, 0)]
    best = [place for _, place in sorted(zip(scores, (3, 1, 0), strict=True), reverse=True)]
    assert again.tolist() == [[*best, 5, 2], [4, -1, -1, -1, -1]]


def test_truncated_pairs_are_told(reranker: Reranker, tmp_path: Path) -> None:
    rows: list[Row] = [{"anchor": T[0], "positive": " ".join(T[:8])}, {"anchor": T[0], "positive": T[1]}]
    with pytest.warns(UserWarning, match="1 of 2 pairs exceed 48 tokens and were truncated"):
        score_rows(reranker, rows, tmp_path / "scored.jsonl")
