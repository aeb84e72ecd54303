"""An index finds what exact search finds among the documents that are left, and loses nothing to a kill."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from covering import rest_slow

from contrastive_text.core.storage.disk import hold_lock
from contrastive_text.inference import approximate
from contrastive_text.inference.index import Index, IndexHit
from contrastive_text.inference.index_documents import Window
from contrastive_text.inference.index_files import DATABASE
from contrastive_text.inference.sentence_encoder import SentenceEncoder

TEXTS = list(tiny.TEXTS)
QUERIES = ["a bird sings", TEXTS[7], "the train to the north"]


def files_of(index: Index) -> list[str]:
    return sorted(file.name for file in index.folder.iterdir())


def check_exact(index: Index, model: SentenceEncoder, left: dict[str, str], k: int = 7) -> None:
    """Compares an index with exact search in the texts that are left, in the order in which they were added."""
    ids, texts = list(left), list(left.values())
    assert index.ids == ids and len(index) == len(ids)
    expected = model.search(QUERIES, texts, top_k=len(texts)) if texts else [[]] * len(QUERIES)
    for hits, others in zip(index.search(QUERIES, top_k=k), expected, strict=True):
        # Batches of other texts sum in another order: float32 with 16 terms. Equal scores come in any order.
        found, score_of = [hit.score for hit in hits], {texts[hit.corpus_id]: hit.score for hit in others}
        assert found == pytest.approx([hit.score for hit in others[:k]], abs=2e-6)
        assert found == pytest.approx([score_of[hit.text] for hit in hits], abs=2e-6)
        assert [hit.text for hit in hits] == [left[hit.id] for hit in hits]
        assert len({hit.id for hit in hits}) == len(hits)


@pytest.mark.parametrize("changes", rest_slow([4, 30]))
def test_hits_are_those_of_exact_search_after_any_changes(
    model: SentenceEncoder, tmp_path: Path, changes: int
) -> None:
    index = Index.create(tmp_path / "index", model)
    check_exact(index, model, {})
    draw = np.random.default_rng(0)
    left: dict[str, str] = {}
    reader = Index.open(tmp_path / "index", model)
    for number in range(changes):
        texts = [f"{TEXTS[draw.integers(40)]} {number}" for _ in range(draw.integers(1, 12))]
        left |= dict(zip(index.add(texts), texts, strict=True))
        if number % 3 == 2:
            gone = draw.permutation(list(left))[: draw.integers(1, len(left))].tolist()
            index.remove(gone)
            left = {name: text for name, text in left.items() if name not in gone}
        check_exact(reader, model, left)
    check_exact(Index.open(tmp_path / "index", model), model, left)
    numbers = [int(name.split("-")[1].split(".")[0]) for name in files_of(index) if name != DATABASE]
    assert len(numbers) <= 8  # log2 of the number of documents
    index.remove(list(left))
    check_exact(reader, model, {})
    assert files_of(index) == [DATABASE]


def test_documents_keep_their_ids_and_numbers_are_never_used_again(index: Index) -> None:
    assert index.ids == list(map(str, range(40)))
    assert index.add(["a bird", "a dog"], ids=[50, "b"], metadata=[{"year": 2020, "tags": ["new"]}, None]) == [
        "50",
        "b",
    ]
    index.remove(["50", 3])
    assert index.add(["a cat", "a cow"]) == ["51", "52"]
    assert ("b" in index, 51 in index, "3" in index, "50" in index) == (True, True, False, False)
    assert index.add(["a bird"], ids=["50"], metadata=[{"year": 2021}]) == ["50"]
    (hit,) = (hit for hit in index.search("a bird", top_k=43)[0] if hit.id == "50")
    assert hit == IndexHit("50", hit.score, "a bird", {"year": 2021}, None)


def test_only_new_texts_are_encoded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = SentenceEncoder.encode_document

    def noted(self: SentenceEncoder, sentences: Any, **options: Any) -> Any:
        encoded.extend(sentences)
        return encode(self, sentences, **options)

    monkeypatch.setattr(SentenceEncoder, "encode_document", noted)
    index.add(["a new bird"])
    index.remove(range(30))  # merges
    assert encoded == ["a new bird"]
    assert index.info()["removed"] == 0


BAD: dict[str, tuple[Callable[[Index], object], str]] = {
    "no texts": (lambda index: index.add([]), "texts: expected at least one text, got an empty list"),
    "a blank text": (lambda index: index.add(["a", " "]), "texts: text 1: expected a visible character, got ' '"),
    "a number": (lambda index: index.add(["a", 3]), "texts: text 1: expected a string, got int"),
    "a string": (lambda index: index.add("ab"), "expected a list of texts, got one string"),
    "half a pair": (lambda index: index.add(["\ud800"]), "expected a text that UTF-8 can hold"),
    "an id twice": (lambda index: index.add(["a", "b"], ["x", "x"]), "expected each id once, got 'x' 2 times"),
    "an id that is there": (lambda index: index.add(["a"], [7]), "ids that the index does not have, got '7'"),
    "fewer ids": (lambda index: index.add(["a", "b"], ["x"]), "ids: expected 2, one for each text, got 1"),
    "an id of 1.5": (lambda index: index.add(["a"], [1.5]), r"strings or whole numbers, got '1\.5' of float"),
    "an id of True": (lambda index: index.add(["a"], [True]), "strings or whole numbers, got 'True' of bool"),
    "a blank id": (lambda index: index.add(["a"], [""]), "ids: id: expected a visible character, got ''"),
    "a set": (lambda index: index.add(["a"], metadata=[{"a": {1}}]), "document 0: .* Object of type set is not"),
    "NaN": (lambda index: index.add(["a"], metadata=[{"a": float("nan")}]), "not JSON compliant"),
    "a tuple": (lambda index: index.add(["a"], metadata=[{"a": (1, 2)}]), "values that JSON would change"),
    "a list": (lambda index: index.add(["a"], metadata=[[1]]), "a mapping of names .* got list"),
    "an unknown id": (
        lambda index: index.remove(["5", "no", "x"]),
        "ids of the index, got 'no' and 1 more, which",
    ),
    "no ids": (lambda index: index.remove([]), "ids: expected at least one id, got an empty list"),
    "one id": (lambda index: index.remove("5"), "expected a list of ids, got '5'; put it into a list"),
    "no hits": (lambda index: index.search("a", top_k=0), "top_k: expected 1 or more, got 0"),
    "another width": (lambda index: index.search_vectors(np.ones((1, 3))), r"\(Q, 16\), got the shape \(1, 3\)"),
    "a vector of NaN": (
        lambda index: index.search_vectors(np.full((1, 16), np.nan, np.float32)),
        "expected finite numbers, got NaN",
    ),
}


@pytest.mark.parametrize("name", rest_slow(BAD, quick=12))
def test_a_call_that_is_refused_changes_nothing(index: Index, model: SentenceEncoder, name: str) -> None:
    change, said = BAD[name]
    before = files_of(index)
    with pytest.raises((ValueError, TypeError), match=said):
        change(index)
    assert files_of(index) == before
    check_exact(index, model, dict(zip(map(str, range(40)), TEXTS, strict=True)))


def test_vectors_that_are_not_finite_are_refused(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentenceEncoder, "encode_document", lambda *_, **__: np.full((1, 16), np.nan))
    before = files_of(index)
    with pytest.raises(ValueError, match="expected finite vectors of 16 features, got NaN or infinity"):
        index.add(["a"])
    assert files_of(index) == before and len(index) == 40


def test_another_model_is_refused_also_of_equal_width(
    index: Index, model: SentenceEncoder, folder: str, tmp_path: Path
) -> None:
    tiny.save_bert(tmp_path / "other", seed=1)
    other = SentenceEncoder.from_pretrained(tmp_path / "other", device="cpu", pooler=model.pooler)
    assert other.features == model.features
    with pytest.raises(ValueError, match=r"expected the model of this index \(from Python\), got another model"):
        Index.open(index.folder, other)
    with pytest.raises(ValueError, match="got None, and the index names no folder; give its model"):
        Index.open(index.folder)
    Index.create(tmp_path / "named", folder).add(["a bird"])
    assert Index.open(tmp_path / "named").search("a bird")[0][0].text == "a bird"
    assert Index.open(tmp_path / "named", folder).info()["model"] == str(Path(folder).resolve())


def test_a_new_index_needs_a_new_folder(index: Index, model: SentenceEncoder, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="expected a new folder, got an index; add to it"):
        Index.create(index.folder, model)
    with pytest.raises(FileExistsError, match="expected a new folder, got one with index"):
        Index.create(tmp_path, model)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="expected a new folder, got a file"):
        Index.create(tmp_path / "file", model)
    with pytest.raises(
        FileNotFoundError, match=r"expected the folder of an index, got a folder without index\.sqlite"
    ):
        Index.open(tmp_path, model)


# Writers and readers


def test_a_second_writer_is_refused_and_waits_for_nothing(index: Index) -> None:
    with hold_lock(index.folder), pytest.raises(ValueError, match="expected no other writer, got a process"):
        index.add(["a bird"])
    assert index.add(["a bird"]) == ["40"]


@pytest.mark.parametrize("changes", rest_slow([4, 40]))
def test_readers_see_the_documents_before_or_after_a_change(
    index: Index, model: SentenceEncoder, changes: int
) -> None:
    """Each change adds or removes a group of documents. A reader finds whole groups, and no removed document."""
    reader, stop, errors = Index.open(index.folder, model), threading.Event(), list[str]()
    gone: set[str] = set()
    query = np.asarray(model.encode_query(["a bird sings"]))

    def read() -> None:
        while not stop.is_set():
            before = set(gone)
            ids = [hit.id for hit in reader.search_vectors(query, top_k=1000)[0]]
            groups = {name.split("-")[0]: 0 for name in ids if "-" in name}
            for name in ids:
                if "-" in name:
                    groups[name.split("-")[0]] += 1
            if set(groups.values()) - {5} or len(ids) < 40 or before & set(ids):
                errors.append(f"{groups} {len(ids)} {before & set(ids)}")

    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(read) for _ in range(2)]
        for number in range(changes):
            names = [f"{number}-{place}" for place in range(5)]
            index.add([f"a bird {name}" for name in names], names)
            if number % 2:
                index.remove(names)
                gone |= set(names)
        stop.set()
        for future in work:
            future.result()
    assert not errors


def test_a_search_goes_on_while_its_hits_are_removed_and_merged(index: Index, model: SentenceEncoder) -> None:
    reader = Index.open(index.folder, model)
    state = reader._files.state

    def removing_state() -> Any:
        found = state()
        with suppress(ValueError):
            index.remove(range(30))  # merges all segments after the state was read
        return found

    reader._files.state = removing_state  # type: ignore[method-assign]
    assert {int(hit.id) for hit in reader.search("a bird", top_k=40)[0]} == {*range(30, 40)}


# Passages


def test_a_hit_names_the_best_passage_of_each_document(model: SentenceEncoder, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", model, passages="6/2")
    documents = [" ".join(TEXTS[start : start + 4]) for start in range(0, 40, 4)]
    index.add([*documents, "a bird"])
    window = Window(6, 2)
    spans = list(window.spans(model.tokenizer, documents))
    passages = [documents[i][start:end] for i, all_spans in enumerate(spans) for start, end in all_spans]
    owners = [i for i, all_spans in enumerate(spans) for _ in all_spans]
    vectors = np.asarray(model.encode_document(passages))
    query = "the train to the north"
    best: dict[int, float] = {}
    for hit in model.search(query, vectors, top_k=len(passages))[0]:
        best.setdefault(owners[hit.corpus_id], hit.score)
    hits = [hit for hit in index.search(query, top_k=11)[0] if hit.id != "10"]
    assert {int(hit.id): hit.score for hit in hits} == pytest.approx(best, abs=2e-6)
    for hit in hits:
        assert hit.span is not None and hit.passage in passages and hit.text == documents[int(hit.id)]
    assert Index.open(tmp_path / "index", model).search("a bird")[0][0].span is not None
    index.remove([hits[0].id])
    assert [hit.id for hit in index.search(query, top_k=10)[0] if hit.id != "10"] == [hit.id for hit in hits[1:]]


def test_windows_cover_a_text_and_overlap(model: SentenceEncoder) -> None:
    text = " ".join(TEXTS[:8])
    words = text.split()
    for window in (Window(6, 2), Window(5), Window(9, 8)):
        (spans,) = window.spans(model.tokenizer, [text])
        passages = [text[start:end] for start, end in spans]
        assert {word for passage in passages for word in passage.split()} == set(words)
        assert spans[0][0] == 0 and spans[-1][1] == len(text)
        overlaps = [after[0] < before[1] for before, after in pairwise(spans)]
        assert all(overlaps) == (window.overlap > 0)
        lengths = [len(ids) for ids in model.tokenizer.ids(passages)]
        assert max(lengths) <= window.tokens
    assert list(Window(3).spans(model.tokenizer, ["a bird"])) == [[(0, 6)]]
    long_word = "x" * 40
    assert len(next(Window(3, 1).spans(model.tokenizer, [f"a {long_word} b"]))) >= 1


@pytest.mark.parametrize(
    ("passages", "said"),
    [
        ("31/4", "expected at most 30 tokens, which the limit of 32 leaves"),
        ("8", "expected TOKENS/OVERLAP, such as 128/32, or 128/32/late, got '8'"),
        ("8/8", "expected tokens and a smaller overlap, such as 128/32, got 8/8"),
        ("0/0", "expected tokens and a smaller overlap"),
        ("٨/1", "expected TOKENS/OVERLAP"),
    ],
)
def test_a_window_that_does_not_fit_is_refused_before_anything_is_written(
    model: SentenceEncoder, tmp_path: Path, passages: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Index.create(tmp_path / "index", model, passages=passages)
    assert not (tmp_path / "index").exists()


# Approximate search


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_search_stays_valid_after_changes(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "APPROXIMATE_FROM", 100)
    monkeypatch.setattr(approximate, "_PROBED", 1)  # searches all cells
    index = Index.create(tmp_path / "index", model, approximate=kind)
    left = {f"{place}": text for place, text in enumerate(f"{text} {n}" for n in range(4) for text in TEXTS)}
    index.add(list(left.values()))
    info = index.info()
    assert info["approximate_vectors"] == len(left) and 0.9 < info["recall"] <= 1
    left |= dict(
        zip(index.add(["a bird sings loud", "one more"]), ["a bird sings loud", "one more"], strict=True)
    )
    gone = list(left)[5:25]
    index.remove(gone)
    left = {name: text for name, text in left.items() if name not in gone}
    check_exact(Index.open(tmp_path / "index", model), model, left)
    index.remove(list(left)[:40])  # merges, and builds the approximate search again
    check_exact(index, model, dict(list(left.items())[40:]))
    assert len(files_of(index)) == 3
    graph = next(tmp_path.glob("index/*.faiss"))
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="expected an unchanged file, got changed bytes"):
        Index.open(tmp_path / "index", model)


def test_faiss_is_named_where_it_is_missing(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(
        ImportError, match=r"approximate search: expected faiss-cpu, .* 'contrastive-text\[faiss\]'"
    ):
        Index.create(tmp_path / "index", model, approximate="hnsw")
    with pytest.raises(ValueError, match="approximate: expected hnsw or ivf, got 'flat'"):
        Index.create(tmp_path / "index", model, approximate="flat")  # type: ignore[arg-type]
