"""Heads of a run, written to folders that Transformers, ``CrossEncoder`` and this library load."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from conftest import SHARED
from covering import rest_slow
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from contrastive_text import Classifier, Regressor, Reranker, SentenceEncoder
from contrastive_text.core.types import TextPair
from contrastive_text.data import learn_vocabulary
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import FineTuningHead, Head, MLPHead, StackHead
from contrastive_text.inference.head_models import HeadModel, folder_kind
from contrastive_text.objectives import (
    BilinearScorer,
    Contrastive,
    CosineScorer,
    Objective,
    PairClassification,
    PairRegression,
    TextClassification,
    TextRegression,
)
from contrastive_text.poolers import CLSPooler, LastTokenPooler, MeanPooler, Pooler
from contrastive_text.training.callbacks.export_model import choose_head, product_head, run_heads, save_head
from contrastive_text.training.module import ContrastiveModule

NAMES = ["contradiction", "entailment", "neutral"]
PAIRS = [(first, tiny.TEXTS[(3 * place + 7) % 40]) for place, first in enumerate(tiny.TEXTS)]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "mpnet": {},
    "distilbert": {"dim": 16, "n_heads": 2, "n_layers": 2, "hidden_dim": 32},
}
CLOSE = 1e-6
"""Float32 with other padding: some units in the last place of logits of about 1."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer learned from the tiny texts."""
    folder = tmp_path_factory.mktemp("tokenizer")
    learn_vocabulary(tiny.TEXTS, 300).save_pretrained(folder)
    return str(folder)


def module(
    tokenizer: str,
    objectives: dict[str, Objective],
    architecture: str = "bert",
    pooler: Pooler | None = None,
    **parts: Any,
) -> ContrastiveModule:
    """A module around a random encoder in evaluation mode."""
    torch.manual_seed(0)
    config = {**tiny.CONFIG, "max_position_embeddings": 40, "initializer_range": 0.3, "pad_token_id": 0}
    config |= {"model_type": architecture, **SIZES.get(architecture, {})}
    encoder = TransformerEncoder(config=config, tokenizer_name_or_path=tokenizer)
    return ContrastiveModule(encoder, pooler or CLSPooler(), objectives=objectives, **parts).eval()


def joined(pairing: str = "OneSequence") -> dict[str, Any]:
    """Arguments of a data module with a pairing."""
    return {"task": {"init_args": {"pairing": {"class_path": f"contrastive_text.pairings.{pairing}"}}}}


def saved(
    module: ContrastiveModule, kind: Any, folder: Path, pairing: str = "OneSequence", **options: Any
) -> str:
    """Saves the only head of a module; gives the folder's name."""
    head = choose_head(run_heads(module, joined(pairing)), None, kind)
    save_head(module, head, kind, folder, checkpoint="", **options)
    return str(folder)


def their_logits(folder: str, inputs: list[Any]) -> Tensor:
    """Logits of Transformers, all inputs padded in one batch."""
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = list(zip(*inputs, strict=True)) if isinstance(inputs[0], tuple) else [inputs]
    tokens = AutoTokenizer.from_pretrained(folder)(
        *map(list, texts), padding=True, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits: Tensor = network(**tokens).logits
    return logits


def cross_encoder(folder: str) -> Any:  # Any: of a library that is imported late
    from sentence_transformers import CrossEncoder

    return CrossEncoder(folder, device="cpu")


def check_everywhere(model: HeadModel, folder: str, inputs: list[Any]) -> None:
    """Compares logits and scores here, in Transformers and in ``CrossEncoder``."""
    logits = model.logits(inputs, batch_size=7)
    scale = max(1.0, float(logits.abs().max()))
    assert torch.allclose(logits, their_logits(folder, inputs), rtol=0, atol=CLOSE * scale)
    if isinstance(inputs[0], tuple):
        encoder = cross_encoder(folder)
        raw = torch.from_numpy(encoder.predict(inputs, activation_fn=nn.Identity())).reshape(logits.shape)
        assert torch.allclose(logits, raw, rtol=0, atol=CLOSE * scale)
        if not isinstance(model, Classifier):
            assert np.allclose(model.predict(inputs), encoder.predict(inputs), rtol=0, atol=CLOSE * scale)


def head_of(architecture: str, outputs: int) -> Head:
    """The head that an architecture's own classification head is."""
    return MLPHead(out_features=outputs) if architecture == "distilbert" else FineTuningHead(outputs)


@pytest.mark.parametrize("architecture", rest_slow(["bert", "roberta", "distilbert"]))
def test_logits_of_a_pair_classifier_are_equal_everywhere(
    architecture: str, tokenizer: str, tmp_path: Path
) -> None:
    run = module(tokenizer, {"nli": TextClassification(NAMES, head=head_of(architecture, 3))}, architecture)
    folder = saved(run, "classifier", tmp_path / "out")
    classifier = Classifier.from_pretrained(folder)
    check_everywhere(classifier, folder, PAIRS)
    assert classifier.classes == tuple(NAMES) and folder_kind(folder) == "classifier"
    assert set(classifier.predict(PAIRS)) <= {*NAMES} and classifier.predict(PAIRS[0]) in NAMES
    shares = classifier.predict_proba(PAIRS)
    assert np.allclose(shares.sum(axis=1), 1)
    assert [NAMES[place] for place in shares.argmax(axis=1)] == classifier.predict(PAIRS)


@pytest.mark.slow
def test_a_classifier_of_texts_predicts_as_the_objective_of_the_run(tokenizer: str, tmp_path: Path) -> None:
    objective = TextClassification(["bad", "good"], head=FineTuningHead(2))
    run = module(tokenizer, {"sentiment": objective})
    folder = saved(run, "classifier", tmp_path / "out", "SameText")
    classifier = Classifier.from_pretrained(folder)
    check_everywhere(classifier, folder, list(tiny.TEXTS))
    vectors = torch.from_numpy(run.sentence_encoder().encode(tiny.TEXTS))
    with torch.no_grad():
        expected = objective.head(vectors)  # type: ignore[misc]  # it is a head
    assert torch.allclose(classifier.logits(tiny.TEXTS), expected, atol=CLOSE)
    with pytest.raises(TypeError, match=r"input 0: expected a text, as in training, got \('a', 'b'\)"):
        classifier.predict([("a", "b")])


@pytest.mark.slow
@pytest.mark.parametrize("own_format", [False, True])
def test_threads_may_predict_with_one_model(own_format: bool, tokenizer: str, tmp_path: Path) -> None:
    run = module(tokenizer, {"nli": TextClassification(NAMES, head=FineTuningHead(3))})
    classifier = Classifier.from_pretrained(saved(run, "classifier", tmp_path, own_format=own_format))
    expected = classifier.logits(PAIRS)
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: classifier.logits(PAIRS, batch_size=1), range(12))]
    assert all(torch.allclose(logits, expected, atol=CLOSE) for logits in results)


@pytest.mark.slow
def test_a_reranker_of_two_classes_scores_the_second_class(tokenizer: str, tmp_path: Path) -> None:
    run = module(tokenizer, {"r": TextClassification(["no", "yes"], head=FineTuningHead(2))})
    folder = saved(run, "reranker", tmp_path / "out")
    reranker = Reranker.from_pretrained(folder)
    check_everywhere(reranker, folder, PAIRS)
    classifier = Classifier.from_pretrained(saved(run, "classifier", tmp_path / "classes"))
    assert np.allclose(reranker.predict(PAIRS), classifier.predict_proba(PAIRS)[:, 1], atol=CLOSE)
    ours = reranker.rank(tiny.TEXTS[0], tiny.TEXTS, top_k=5, return_documents=True)
    theirs = cross_encoder(folder).rank(tiny.TEXTS[0], tiny.TEXTS, top_k=5, return_documents=True)
    assert [(hit["corpus_id"], hit["text"]) for hit in ours] == [
        (hit["corpus_id"], hit["text"]) for hit in theirs
    ]
    assert np.allclose([hit["score"] for hit in ours], [hit["score"] for hit in theirs], atol=CLOSE)
    with pytest.raises(
        ValueError, match="Classifier: expected a head with several outputs, got 1; load it with Rer"
    ):
        Classifier.from_pretrained(folder)
    with pytest.raises(
        ValueError, match=r"Reranker: expected a head with one output, got 2 \(no, yes\); load it"
    ):
        Reranker.from_pretrained(tmp_path / "classes")


@pytest.mark.slow
def test_a_regressor_has_the_scale_of_the_training_data(tokenizer: str, tmp_path: Path) -> None:
    objective = TextRegression(low=1, high=5, head=FineTuningHead(1))
    run = module(tokenizer, {"scores": objective}, "roberta")
    folder = saved(run, "regressor", tmp_path / "out")
    check_everywhere(Regressor.from_pretrained(folder), folder, PAIRS)
    shares = Reranker.from_pretrained(saved(run, "reranker", tmp_path / "shares")).predict(PAIRS)
    assert np.allclose(Regressor.from_pretrained(folder).predict(PAIRS), 1 + 4 * shares, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SIZES)
@pytest.mark.parametrize("data", ["mrpc", "sst", "stsb", "snli"])
def test_logits_of_real_texts_are_equal_everywhere(
    data: str, architecture: str, tokenizer: str, tmp_path: Path
) -> None:
    file, names, low, high = {
        "mrpc": ("paraphrase/mrpc.dev.tsv", ["0", "1"], 0, 0),
        "sst": ("classification/sst5.dev.tsv", ["0", "1", "2", "3", "4"], 0, 0),
        "stsb": ("sts/stsb.dev.tsv", [], 0, 5),
        "snli": ("nli/snli_sample.dev.tsv", NAMES, 0, 0),
    }[data]
    if not (SHARED / "data" / file).is_file():
        pytest.skip("needs the shared data")
    with (SHARED / "data" / file).open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[:200]
    columns = next(
        c for c in (("sentence1", "sentence2"), ("premise", "hypothesis"), ("text",)) if c[0] in rows[0]
    )
    inputs = [tuple(row[name] for name in columns) if len(columns) > 1 else row["text"] for row in rows]
    head = head_of(architecture, len(names) or 1)
    objective = TextClassification(names, head=head) if names else TextRegression(low, high, head=head)
    run = module(tokenizer, {"head": objective}, architecture)
    pairing = "OneSequence" if len(columns) > 1 else "SameText"
    (found,) = run_heads(run, joined(pairing)).values()
    for kind in found.kinds:
        folder = saved(run, kind, tmp_path / kind, pairing)
        model = {"classifier": Classifier, "reranker": Reranker, "regressor": Regressor}[kind]
        check_everywhere(model.from_pretrained(folder), folder, inputs)


OWN: dict[str, Any] = {
    "u, v, |u - v|": lambda: PairClassification(NAMES),
    "bilinear": lambda: PairClassification(["no", "yes"], BilinearScorer(), head=MLPHead(dropout=0.3)),
    "cosine": lambda: PairClassification(2, CosineScorer(threshold=0.3)),
    "score": lambda: PairRegression(low=1, high=5, head=MLPHead(out_features=8)),
    "plain score": PairRegression,
    "score of the first features": PairRegression,
}


@pytest.mark.parametrize("name", rest_slow(OWN))
def test_a_head_over_two_vectors_predicts_as_the_objective(name: str, tokenizer: str, tmp_path: Path) -> None:
    objective = OWN[name]()
    first = StackHead([{"name": "FirstFeatures", "out_features": 5}]) if "first features" in name else None
    run = module(tokenizer, {"pairs": objective}, pooler=MeanPooler(), head=first)
    (head,) = run_heads(run, joined("Given")).values()
    assert head.kinds in (("classifier",), ("regressor",)) and product_head(run, joined("Given")) is None
    folder = saved(run, head.kinds[0], tmp_path / "out", "Given")
    model = (Classifier if head.kinds[0] == "classifier" else Regressor).from_pretrained(folder)
    assert folder_kind(folder) == head.kinds[0]
    vectors = [torch.from_numpy(run.sentence_encoder().encode(side)) for side in zip(*PAIRS, strict=True)]
    with torch.no_grad():
        u, v = vectors if objective.head is None else [objective.head(side) for side in vectors]
        if isinstance(objective, PairClassification):
            expected = objective.scorer(u, v)
            expected = expected if expected.shape[1] > 1 else nn.functional.pad(expected, (1, 0))
        else:
            cosine = nn.functional.cosine_similarity(u, v).unsqueeze(1)
            expected = objective.low + (objective.high - objective.low) * cosine
    assert torch.allclose(model.logits(PAIRS, batch_size=5), expected, atol=1e-5)
    assert model.predict(PAIRS[3]) == pytest.approx(model.predict(PAIRS)[3], abs=1e-5)


@pytest.mark.parametrize("reads", rest_slow(["pair", "vectors"]))
def test_threads_get_the_logits_and_truncated_pairs_of_a_single_thread(
    reads: str, tokenizer: str, tmp_path: Path
) -> None:
    objective = TextRegression(head=FineTuningHead(1)) if reads == "pair" else PairRegression()
    pooler, pairing = (CLSPooler(), "OneSequence") if reads == "pair" else (MeanPooler(), "Given")
    run = module(tokenizer, {"scores": objective}, pooler=pooler)
    folder = saved(run, "regressor", tmp_path / "out", pairing)
    model = Regressor.from_pretrained(folder, device="cpu", max_length=8)

    def call(start: int) -> tuple[Tensor, int]:
        return model.logits(PAIRS[: start + 1]), model.truncated

    expected = [call(start) for start in range(0, 40, 5)]
    assert len({truncated for _, truncated in expected}) > 1
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(call, [*range(0, 40, 5)] * 2))
    for (logits, truncated), (their_logits, their_truncated) in zip(results, expected * 2, strict=True):
        assert torch.allclose(logits, their_logits, rtol=0, atol=1e-5) and truncated == their_truncated


@pytest.mark.slow
def test_sentence_transformers_loads_the_encoder_and_no_library_a_random_head(
    tokenizer: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    run = module(tokenizer, {"nli": PairClassification(NAMES)}, pooler=MeanPooler())
    folder = saved(run, "classifier", tmp_path / "out", "Given")
    vectors = run.sentence_encoder().encode(tiny.TEXTS)
    theirs = SentenceTransformer(folder, device="cpu").encode(list(tiny.TEXTS))
    assert np.allclose(vectors, theirs, atol=1e-5)
    assert np.allclose(SentenceEncoder.from_pretrained(folder).encode(tiny.TEXTS), vectors, atol=1e-6)
    with pytest.raises((OSError, ValueError), match=r"config\.json"):
        AutoModelForSequenceClassification.from_pretrained(folder)
    with pytest.raises((OSError, ValueError)):
        cross_encoder(folder)
    with pytest.raises(
        ValueError, match="head that reads two texts in one sequence, got a head that reads the vec"
    ):
        Reranker.from_pretrained(
            saved(module(tokenizer, {"s": PairRegression()}), "regressor", tmp_path / "s", "Given")
        )


DIFFERENT: list[tuple[str, Pooler, Any, str]] = [
    ("bert", MeanPooler(), FineTuningHead(3), "expected CLSPooler, Linear, Tanh, Linear, got MeanPooler"),
    ("bert", CLSPooler(), MLPHead(out_features=3), "train with the objective's head: FineTuningHead"),
    ("roberta", LastTokenPooler(), None, "train with pooler: CLSPooler and the objective's head: FineTuningHead"),
    ("distilbert", CLSPooler(), FineTuningHead(3), r"head: MLPHead\(out_features=3\), or add --own_format"),
    ("t5", CLSPooler(), None, "expected the encoder and a head, got further parts, such as a decoder"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "pooler", "head", "message"), rest_slow(DIFFERENT))
def test_a_head_that_transformers_does_not_have_is_refused_or_written_in_the_own_format(
    architecture: str, pooler: Pooler, head: Any, message: str, tokenizer: str, tmp_path: Path
) -> None:
    run = module(tokenizer, {"nli": TextClassification(NAMES, head=head)}, architecture, pooler)
    with pytest.raises(ValueError, match=message):
        saved(run, "classifier", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    classifier = Classifier.from_pretrained(saved(run, "classifier", tmp_path / "out", own_format=True))
    (found,) = run_heads(run, joined()).values()
    tokenizer_here = run.text_tokenizer(training=False)
    assert tokenizer_here is not None
    from contrastive_text.data.batching import collate_rows

    rows = tokenizer_here.pair_rows([TextPair(*pair) for pair in PAIRS])
    with torch.no_grad():
        vectors = run.inference_embedder.pool(collate_rows(tokenizer_here, rows))
        expected = found.objective.linear(vectors) if head is None else head(vectors)  # type: ignore[union-attr]  # of one text
    assert torch.allclose(classifier.logits(PAIRS, batch_size=6), expected, atol=1e-5)


def test_one_head_is_the_product_of_a_run_and_several_are_named(tokenizer: str) -> None:
    several = {"a": TextClassification(2), "b": TextClassification(3), "c": Contrastive()}
    heads = run_heads(module(tokenizer, several), joined("SameText"))
    assert list(heads) == ["a", "b"] and product_head(module(tokenizer, several), joined("SameText")) is None
    alone = product_head(module(tokenizer, {"a": TextClassification(2)}), joined())
    assert alone is not None and alone.kinds == ("classifier", "reranker")
    three = run_heads(module(tokenizer, {"nli": TextClassification(NAMES)}), joined())
    for refused, name, kind, message in (
        (heads, None, "classifier", "--head: expected a name, because the run has the heads a, b; add --head a"),
        (heads, "c", "classifier", "--head: expected one of the heads a, b, got 'c'"),
        (
            heads,
            "a",
            "reranker",
            "expected a head that reads two .* got a, which reads texts and .* give --as cl",
        ),
        (heads, "a", "regressor", "--as regressor: expected a head that predicts scores, got a, which"),
        ({}, None, "classifier", "--as classifier: expected a run with a head"),
        (
            three,
            "nli",
            "reranker",
            "one output or two classes, got nli, .* the classes contradiction, entailment",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            choose_head(refused, name, kind)
