"""Without frequent tokens in the mean: against a mean that is taken text by text."""

from collections import Counter
from pathlib import Path

import pytest
import sts_files
import tiny
import torch
from scipy import stats

from contrastive_text import SentenceEncoder
from contrastive_text.data import Table, read_pairs
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import frequency_bias, scores_without, token_counts, vectors_without
from contrastive_text.evaluation.sts import score_tasks
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.heads import MLPHead, build_head
from contrastive_text.poolers import FirstLastPooler, LastTwoPooler, MaxPooler, MeanPooler, Pooler

LAYOUTS = {"packed": MeanPooler(), "padded": LastTwoPooler(), "bucketed": FirstLastPooler("embeddings")}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return read_pairs(
        tiny.write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.tsv")
    )  # no two of one cosine, whose order rounding would choose


def model(bert: str, pooler: Pooler) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=pooler, device="cpu")


def leaving(encoder: SentenceEncoder, texts: list[str], removed: int) -> list[int]:
    """The ids of the most frequent tokens."""
    counts = Counter(token for text in texts for token in encoder.encoder.tokenizer(text)["input_ids"])
    return sorted(counts, key=lambda token: (-counts[token], token))[:removed]


def slow_vectors(encoder: SentenceEncoder, texts: list[str], frequent: list[int]) -> torch.Tensor:
    """Each text by itself through Transformers' model; a mean over its tokens that are left."""
    rows = [encoder.encoder.tokenizer(text)["input_ids"] for text in texts]
    vectors = []
    for row in rows:
        with torch.no_grad():
            output = encoder.encoder.model(torch.tensor([row]), output_hidden_states=True).hidden_states
        hidden = torch.stack([output[layer][0] for layer in encoder.pooler.layers]).mean(dim=0)
        kept = [i for i, token in enumerate(row) if token not in frequent] or list(range(len(row)))
        vectors.append(hidden[kept].mean(dim=0))
    return torch.stack(vectors)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_the_means_over_the_tokens_that_are_left(bert: str, layout: str) -> None:
    encoder = model(bert, LAYOUTS[layout])
    encoder.encoder.layout = layout
    texts = [*tiny.TEXTS[:12], "a", "the bird sings"]  # of "a" nothing is left
    found = vectors_without(encoder, texts, (0, 2, 5), token_counts(encoder, texts))
    assert list(found) == [0, 2, 5]
    for removed, vectors in found.items():
        # Sums in another order, in float32 over values of some units.
        torch.testing.assert_close(
            vectors, slow_vectors(encoder, texts, leaving(encoder, texts, removed)), rtol=0, atol=1e-5
        )


def test_without_removal_vectors_and_score_are_those_of_encode(bert: str, pairs: Table) -> None:
    encoder = model(bert, MeanPooler())
    encoder.head = build_network(encoder.encoder.features)
    encoder.prompts = Prompts({"a": "a bird "}, "a")
    texts = [str(row["anchor"]) for row in pairs]
    (vectors,) = vectors_without(encoder, texts, (0,), token_counts(encoder, texts)).values()
    torch.testing.assert_close(vectors, torch.as_tensor(encoder.encode(texts)), rtol=0, atol=1e-5)
    ((number, score),) = frequency_bias(encoder, pairs, (0,))
    sides = [encoder.encode([str(row[side]) for row in pairs]) for side in ("anchor", "positive")]
    cosines = torch.nn.functional.cosine_similarity(*map(torch.as_tensor, sides))
    gold = [float(str(row["target"])) for row in pairs]
    assert number == 0
    assert score == pytest.approx(100 * stats.spearmanr(cosines, gold).statistic, abs=1e-4)


def build_network(features: int) -> torch.nn.Sequential:
    head = MLPHead(hidden_features=5, out_features=3, train_only=False)
    build_head(head, features)
    return head.network


def test_the_suite_is_scored_once_for_each_number_with_the_frequencies_of_a_corpus(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, tasks = model(bert, MeanPooler()), find_sts(sts_files.write_senteval(tmp_path))
    corpus = [
        "bird bird bird bird",
        "dog",
    ]  # after the two special tokens "bird" is the most frequent, then "dog"
    passes: list[int] = []
    counting = encoder.encoder.forward
    monkeypatch.setattr(encoder.encoder, "forward", lambda *a, **b: (passes.append(1), counting(*a, **b))[1])
    found = scores_without(encoder, tasks, (0, 2, 3), corpus)
    assert len(passes) <= 2  # the groups of one pass over all texts
    assert [score.score for score in found[0]] == pytest.approx(
        [score.score for score in score_tasks(CachedEncoder(encoder), tasks, "all")], abs=1e-3
    )
    counts = token_counts(encoder, corpus)
    bird, dog, unk = (encoder.encoder.tokenizer.convert_tokens_to_ids(word) for word in ("bird", "dog", "[UNK]"))
    assert (int(counts[bird]), int(counts[dog]), int(counts.sum())) == (4, 1, 9) and bird != unk
    pairs = tasks["STS13"]
    assert isinstance(pairs, STSPairs)
    vectors = [slow_vectors(encoder, texts, leaving(encoder, corpus, 3)) for texts in (pairs.first, pairs.second)]
    expected = stats.spearmanr(torch.cosine_similarity(*vectors), pairs.gold).statistic
    assert found[3][1].score == pytest.approx(100 * expected, abs=1e-3)
    for wrong in ((4,), (-1,), (1, 1)):
        with pytest.raises(ValueError, match="from 0 to 3, of the 4"):
            scores_without(encoder, tasks, wrong, corpus)


def test_the_bias_repeats_in_training_and_leaves_out_numbers_of_all_tokens(bert: str, pairs: Table) -> None:
    encoder = model(bert, MeanPooler()).train()
    first, second = (frequency_bias(encoder, pairs, (0, 4, 10_000)) for _ in range(2))
    assert first == second and [number for number, _ in first] == [0, 4]
    assert encoder.training
    with pytest.raises(ValueError, match=r"mean over tokens.*got MaxPooler"):
        frequency_bias(model(bert, MaxPooler()), pairs)
