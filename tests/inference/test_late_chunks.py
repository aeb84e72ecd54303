"""Late chunks: vectors of spans from one pass over a document, in Python, in an index, and in training."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from resume.runs import check_same, flat
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from contrastive_text import Run, SentenceEncoder
from contrastive_text.cli import run
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.inference.index import Index
from contrastive_text.objectives import Contrastive, MaskedLM
from contrastive_text.pairings import Spans
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, MaskTokens, ViewPlan

DOCUMENTS = [". ".join(tiny.TEXTS[i : i + n]) for i, n in ((0, 3), (5, 2), (9, 14))]
"""The last one is longer than a row."""
SPANS = [[match.span() for match in re.finditer(r"[^. ][^.]*", text)] for text in DOCUMENTS]
CLOSE = {"rtol": 0.0, "atol": 1e-6}
"""Float32, and batches of other sizes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model")
    bert = tiny.save_bert(place / "bert", max_position_embeddings=64)
    SentenceEncoder.from_pretrained(bert, pooler="MeanPooler").save_pretrained(place / "mean")
    return str(place / "mean")


@pytest.fixture
def model(folder: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(folder)


def expected(folder: str, text: str, spans: list[tuple[int, int]], before: str = "") -> Tensor:
    """Returns the means of the spans' tokens from one pass of the plain network over the text."""
    inputs = AutoTokenizer.from_pretrained(folder)(
        before + text, return_tensors="pt", return_offsets_mapping=True
    )
    places = (inputs.pop("offset_mapping")[0] - len(before)).tolist()
    hidden = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[0].detach()
    inside = [
        [i for i, (first, stop) in enumerate(places) if first < end and stop > max(start, first)]
        for start, end in spans
    ]
    return torch.stack([hidden[tokens].mean(dim=0) for tokens in inside])


def test_a_span_is_pooled_from_one_pass_over_its_document(folder: str, model: SentenceEncoder) -> None:
    found = model.encode_spans(DOCUMENTS, SPANS, batch_size=2)
    for text, spans, vectors in zip(DOCUMENTS[:2], SPANS, found, strict=False):
        np.testing.assert_allclose(vectors, expected(folder, text, spans), **CLOSE)
        alone = model.encode([text[start:end] for start, end in spans])
        assert np.abs(vectors - alone).max() > 1e-2
    lengths = np.linalg.norm(model.encode_spans(DOCUMENTS[:1], SPANS[:1], normalize_embeddings=True)[0], axis=1)
    np.testing.assert_allclose(lengths, 1.0, **CLOSE)
    assert [len(vectors) for vectors in model.encode_spans([DOCUMENTS[0]], [[]])] == [0]


def test_a_long_document_is_encoded_in_parts_with_whole_spans(folder: str, model: SentenceEncoder) -> None:
    text, spans = DOCUMENTS[2], SPANS[2]
    (vectors,) = model.encode_spans([text], [spans])
    start, done = 0, 0
    while done < len(spans):  # a part begins at the first span that is left, and has 62 tokens
        places = model.tokenizer.token_spans([text[start:]])[0]
        end = start + places[min(62, len(places)) - 1][1]
        part = [(first - start, stop - start) for first, stop in spans[done:] if stop <= end]
        found = vectors[done : done + len(part)]
        np.testing.assert_allclose(found, expected(folder, text[start:end], part), **CLOSE)
        done += len(part)
        start = spans[done][0] if done < len(spans) else start
    assert start > 0


def test_documents_get_their_prompt(folder: str, model: SentenceEncoder) -> None:
    model.prompts = Prompts({"document": "one quiet "})
    (vectors,) = model.encode_spans(DOCUMENTS[:1], SPANS[:1])
    np.testing.assert_allclose(vectors, expected(folder, DOCUMENTS[0], SPANS[0], "one quiet "), **CLOSE)


REFUSED: dict[str, tuple[list[list[tuple[int, int]]], str]] = {
    "outside": ([[(0, 999)]], r"encode_spans: expected spans inside the .* characters of text 0, got 0 to 999"),
    "empty": ([[(5, 5)]], "got 5 to 5; give first character and end"),
    "before the text": ([[(-1, 3)]], "got -1 to 3"),
    "a blank": ([[(2, 3)]], r"expected a token in each span, got ' ' from character 2 of text 0"),
    "too few": ([], "expected spans for each of 1 texts, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_spans_that_cant_be_encoded_are_refused(name: str, model: SentenceEncoder) -> None:
    spans, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        model.encode_spans(["an old bird sings"], spans)


def test_a_span_longer_than_a_row_and_other_poolers_are_refused(model: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=r"expected spans of at most 62 tokens, .* split it"):
        model.encode_spans([DOCUMENTS[2]], [[(0, len(DOCUMENTS[2]))]])
    model.pooler = CLSPooler()
    with pytest.raises(ValueError, match=r"expected a pooler of all tokens of a span, .*, got CLSPooler"):
        model.encode_spans(DOCUMENTS[:1], SPANS[:1])


def test_an_index_of_late_chunks_has_their_vectors_and_grows(
    folder: str, model: SentenceEncoder, tmp_path: Path
) -> None:
    (tmp_path / "documents.txt").write_text("".join(f"{text}\n" for text in DOCUMENTS[:2]))
    place = str(tmp_path / "index")
    line = f"index build {tmp_path / 'documents.txt'} {place} --model {folder} --passages 8/2/late --device cpu"
    assert run(line.split()) == 0
    index = Index.open(place)
    index.add([DOCUMENTS[2]], ["long"])
    built = Index.create(tmp_path / "built", model, passages="8/2/late")
    texts = dict(zip(["0", "1", "long"], DOCUMENTS, strict=True))
    built.add([*texts.values()], [*texts])
    queries = list(tiny.TEXTS[:6])
    for hits, others in zip(index.search(queries, top_k=3), built.search(queries, top_k=3), strict=True):
        assert [hit.span for hit in hits] == [hit.span for hit in others]
        for hit in hits:
            assert hit.span is not None
            assert hit.passage == texts[hit.id][slice(*hit.span)]
    with pytest.raises(ValueError, match="expected a pooler of all tokens of a span"):
        Index.create(tmp_path / "other", SentenceEncoder.from_pretrained(folder, pooler="CLSPooler"), "8/2/late")


LATE = {"anchors": 2, "positives": 2, "min_length": 3, "max_length": 12, "too_short": "shrink"}


def test_training_pools_anchors_and_positives_from_one_pass(folder: str) -> None:
    module = tiny.module(folder, 0.0)
    tokenizer = TextTokenizer(module.encoder.tokenizer, 40)  # type: ignore[arg-type]  # of a folder
    pairing: Any = Spans(**LATE, context="document")  # type: ignore[arg-type]  # as YAML has them
    tokens = tokenizer(DOCUMENTS)
    rows = [KeyedRow(0, i, {"text": each}) for i, each in enumerate(tokens) if pairing.accepts_length(len(each))]
    batch = Collator(tokenizer, pairing, ViewPlan(), seed=1)(rows)
    assert batch.context is not None
    assert batch.context.rows.lengths.max() == 40  # the long document is cut around its spans
    vectors = module.eval().encode(batch).embeddings
    ids = torch.split(batch.context.rows.ids, batch.context.rows.lengths.tolist())
    own = torch.split(batch.ids, batch.lengths.tolist())
    network = AutoModel.from_pretrained(folder).eval()
    for row, (number, start, length) in enumerate(
        zip(batch.context.numbers, batch.context.starts, batch.context.lengths, strict=True)
    ):
        assert torch.equal(ids[number][start : start + length], own[row][1:-1])
        hidden = network(input_ids=ids[number][None]).last_hidden_state[0]
        torch.testing.assert_close(vectors[row], hidden[start : start + length].mean(0), **CLOSE)


def trained(folder: str, place: Path, resume: str | None = None) -> dict[str, Tensor]:
    module = tiny.module(folder, 0.2, objectives={"c": Contrastive()}, chunk_tokens=60)
    lines = tiny.write_texts(place.parent / "documents.txt", tuple(DOCUMENTS[2] for _ in range(6)))
    keep = ModelCheckpoint(place, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(place, enable_checkpointing=True, callbacks=[keep], max_steps=3)
    pairing = Spans(**LATE, context="document")  # type: ignore[arg-type]  # as YAML has them
    data = tiny.data(lines, pairing=pairing, batch_size=2, cache_dir=str(place.parent / "cache"))
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    return dict(flat(module.state_dict()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_ends_with_the_same_bits(folder: str, tmp_path: Path) -> None:
    whole = trained(folder, tmp_path / "whole")
    check_same(whole, trained(folder, tmp_path / "again", str(tmp_path / "whole" / "step=2.ckpt")))


UNFIT: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    "views": (lambda: {"views": {"anchor": [FeatureCutoff()]}}, {}, "expected no views with document"),
    "masked tokens": (
        lambda: {"views": {"original": [MaskTokens()]}, "objectives": {"c": Contrastive(), "mlm": MaskedLM()}},
        {},
        "expected no views with document",
    ),
    "prompts": (lambda: {"prompts": Prompts({"query": "q: "})}, {}, "expected no prompts with document"),
    "a token at a fixed place": (lambda: {"pooler": CLSPooler()}, {}, "expected a pooler of a span's tokens"),
    "long spans": (dict, {"max_length": 32}, r"Spans\.max_length: expected at most 20 with context: document"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_parts_that_need_single_spans_are_refused_before_the_first_step(
    name: str, folder: str, tmp_path: Path
) -> None:
    parts, options, message = UNFIT[name]
    lines = tiny.write_texts(tmp_path / "documents.txt", tuple(DOCUMENTS[2] for _ in range(6)))
    pairing = Spans(**{**LATE, **options}, context="document")
    data = tiny.data(lines, pairing=pairing, batch_size=2, cache_dir=str(tmp_path / "cache"))
    module: ContrastiveModule = tiny.module(folder, 0.0, **parts())
    with pytest.raises(ValueError, match=message):
        tiny.trainer(tmp_path).fit(module, data)


def test_the_recipe_trains_late_chunks(folder: str, tmp_path: Path) -> None:
    lines = tiny.write_texts(tmp_path / "documents.txt", tuple(DOCUMENTS[2] for _ in range(6)))
    short = {"min_length": 3, "max_length": 12, "too_short": "shrink"}
    config = {f"data.task.pairing.{name}": value for name, value in short.items()}
    trainer = {"trainer.max_steps": 2, "trainer.default_root_dir": str(tmp_path), "data.batch_size": 2}
    made = Run.from_recipe("declutr/late", folder, train=lines, config={**config, **trainer})
    made.fit()
    assert made.trainer.global_step == 2
