"""examples/serve.py: each request gets the vectors of ``encode``, whatever other requests are in its batch."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import BertConfig, BertForSequenceClassification

from contrastive_text import Reranker, SentenceEncoder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Prompts, learn_vocabulary
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference import Index
from contrastive_text.poolers import MeanPooler

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
from starlette.testclient import TestClient

EXAMPLE = Path(__file__).parents[1] / "examples" / "serve.py"
SPEC = importlib.util.spec_from_file_location("serve_example", EXAMPLE)
assert SPEC is not None and SPEC.loader is not None
serve = sys.modules["serve_example"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(serve)

# Rows are padded to the longest text of a batch, and kernels sum in another order: 1e-7 of entries of size 1.
ROUNDING = 1e-5
PROMPTS = Prompts({"query": "the man: ", "document": "a bird: "}, default="document")
LENGTH = 12
CLIENTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts and a shorter limit for queries, and a reranker."""
    folder = tmp_path_factory.mktemp("models")
    encoder = TransformerEncoder(tiny.save_bert(folder / "bert"))
    model = SentenceEncoder(encoder, MeanPooler(), max_length=LENGTH, prompts=PROMPTS, query_length=8)
    model.save_pretrained(folder / "model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(**{**tiny.CONFIG, "initializer_range": 0.3}, num_labels=1)
        BertForSequenceClassification(config).save_pretrained(folder / "reranker")
    learn_vocabulary(tiny.TEXTS, vocabulary_size=300).save_pretrained(folder / "reranker")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(folder / "model", device="cpu")


@pytest.fixture(scope="module")
def reranker(folder: Path) -> Reranker:
    return Reranker.from_pretrained(folder / "reranker", device="cpu", max_length=16)


@pytest.fixture
def client(model: SentenceEncoder, reranker: Reranker) -> Iterator[TestClient]:
    limits = serve.Limits(max_texts=40)
    with TestClient(serve.create_app(model, limits, reranker=reranker, training=tiny.TEXTS)) as client:
        yield client


def functions(client: TestClient) -> dict[str, Callable[[list[Any]], Any]]:
    """Returns the functions that compute batches, for tests that replace one."""
    found: dict[str, Callable[[list[Any]], Any]] = client.app.state.batcher.functions  # type: ignore[attr-defined]
    return found


def embed(client: TestClient, texts: Sequence[str], **options: object) -> np.ndarray:
    response = client.post("/embed", json={"texts": list(texts), **options})
    assert response.status_code == 200, response.text
    return np.array(response.json()["vectors"])


def figures(client: TestClient) -> dict[str, float]:
    """Returns the figures of /metrics, each line of which has Prometheus's form."""
    lines = client.get("/metrics").text.splitlines()
    assert all(
        re.fullmatch(r'# TYPE \w+ (counter|gauge|summary)|\w+(\{(\w+="[^"]*",?)+\})? \S+', line) for line in lines
    )
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_embed_returns_the_vectors_of_the_kind_of_text(client: TestClient, model: SentenceEncoder) -> None:
    texts = list(tiny.TEXTS[:9])
    expected = {
        "query": model.encode_query(texts),
        "document": model.encode_document(texts),
        "none": model.encode(texts),
    }
    for kind, vectors in expected.items():
        np.testing.assert_allclose(embed(client, texts, kind=kind), vectors, atol=ROUNDING)
    np.testing.assert_allclose(embed(client, texts), expected["none"], atol=ROUNDING)
    assert np.abs(expected["query"] - expected["document"]).max() > 0.1
    units = model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(embed(client, texts, normalize=True), units, atol=ROUNDING)


def test_the_number_of_truncated_texts_is_that_of_encode(client: TestClient, model: SentenceEncoder) -> None:
    for kind, encode in (
        ("query", model.encode_query),
        ("document", model.encode_document),
        ("none", model.encode),
    ):
        encode(tiny.TEXTS)
        body = {"texts": list(tiny.TEXTS), "kind": kind}
        assert client.post("/embed", json=body).json()["truncated"] == model.truncated
    assert 0 < model.truncated < len(tiny.TEXTS)


def test_tokens_of_a_batch_are_the_tokens_that_the_model_reads(
    model: SentenceEncoder, reranker: Reranker
) -> None:
    lengths, truncated = serve.TokenCounter(model, "none")(tiny.TEXTS)
    template = model.prompts.template(None, model.tokenizer)
    rows = model.tokenizer.tokenize_with_template(tiny.TEXTS, template)
    assert lengths == [min(row.length + model.tokenizer.specials, LENGTH) for row in rows]
    assert truncated == sum(row.length + model.tokenizer.specials > LENGTH for row in rows)
    pairs = [(tiny.TEXTS[0], text) for text in tiny.TEXTS]
    lengths, truncated = serve.TokenCounter(reranker, "rerank")(pairs)
    reranker.predict(pairs)
    assert truncated == reranker.truncated > 0 and max(lengths) == 16


def test_rerank_has_the_order_and_scores_of_the_reranker(client: TestClient, reranker: Reranker) -> None:
    query, documents = tiny.TEXTS[0], list(tiny.TEXTS[1:20])
    response = client.post("/rerank", json={"query": query, "documents": documents, "top_k": 7})
    expected = reranker.rank(query, documents, top_k=7)
    assert [hit["index"] for hit in response.json()["results"]] == [hit["corpus_id"] for hit in expected]
    scores = [hit["score"] for hit in response.json()["results"]]
    np.testing.assert_allclose(scores, [hit["score"] for hit in expected], atol=ROUNDING)


def test_search_finds_the_hits_of_the_index_also_after_documents_were_added(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", model)
    index.add(tiny.TEXTS[:20], ids=[f"t{number}" for number in range(20)])
    queries, fields = list(tiny.TEXTS[15:25]), ("id", "score", "text", "metadata", "span")

    def assert_same_hits() -> None:
        response = client.post("/search", json={"queries": queries, "top_k": 4})
        for hits, expected in zip(response.json()["hits"], index.search(queries, top_k=4), strict=True):
            assert [hit["text"] for hit in hits] == [hit.text for hit in expected]
            assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
            np.testing.assert_allclose(
                [hit["score"] for hit in hits], [hit.score for hit in expected], atol=ROUNDING
            )
            assert all(tuple(hit) == fields for hit in hits)

    with TestClient(serve.create_app(model, serve.Limits(), index=index, training=tiny.TEXTS)) as client:
        assert_same_hits()
        index.add(tiny.TEXTS[20:], ids=[f"t{number}" for number in range(20, 40)])
        assert_same_hits()
        assert client.get("/health").json()["documents"] == 40
        assert client.post("/search", json={"queries": [" "]}).status_code == 422
        assert client.post("/search", json={"queries": ["a"], "top_k": 1001}).status_code == 422
        assert 'serve_mean_cosine{kind="query",texts="served"}' in figures(client)


BAD = [
    ({"texts": []}, "texts: expected 1 to 40 texts, got 0; send at least one text"),
    ({"texts": ["a"] * 41}, "texts: expected 1 to 40 texts, got 41; send several requests of up to 40"),
    ({"texts": ["a", " \n"]}, "texts.1: expected a text, got the blank text ' \\n'; correct or remove it"),
    ({"texts": ["\ud800"]}, "texts.0: expected a text, got half a surrogate pair (U+D800) at character 1; corr"),
    ({"texts": [1]}, "texts.0: expected a valid string, got 1; see /docs for the fields"),
    ({"texts": "a"}, "texts: expected a valid list, got 'a'; see /docs"),
    ({"text": ["a"]}, "texts: expected this field, got {'text': ['a']}; see /docs"),
    ({"texts": ["a"], "truncate": 3}, "truncate: expected no such field, got 3; see /docs"),
    ({"texts": ["a"], "kind": "answer"}, "kind: expected 'query', 'document' or 'none', got 'answer'; see /docs"),
    ([], "body: expected a valid dictionary or object"),
    ("[", "body: expected JSON, got an error at character "),
]


def test_an_invalid_request_is_told_what_is_wrong(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    for body, message in BAD:
        content = body if isinstance(body, str) else json.dumps(body)
        response = client.post("/embed", content=content, headers=headers)
        assert response.status_code == 422 and response.json()["detail"].startswith(message), response.text
    for body in ({"query": "a", "documents": []}, {"query": " ", "documents": ["a"]}):
        assert client.post("/rerank", json=body).status_code == 422
    response = client.post("/rerank", json={"query": "a", "documents": ["b"], "top_k": 0})
    assert response.json()["detail"].startswith("top_k: expected greater than or equal to 1, got 0")
    assert client.post("/search", json={"queries": ["a"]}).status_code == 404


def test_a_body_above_the_limit_is_refused_before_it_is_read(client: TestClient) -> None:
    response = client.post("/embed", content=b" " * 1_000_001)
    assert response.status_code == 413
    assert response.json()["detail"].startswith("body: expected up to 1,000,000 bytes, got more; send several")
    assert client.post("/embed", content=iter([b" " * 10**5] * 11)).status_code == 413  # without a length
    assert figures(client)['serve_requests_total{endpoint="/embed",status="413"}'] == 2


def test_concurrent_requests_share_batches_and_get_their_own_vectors(model: SentenceEncoder) -> None:
    limits, sizes, release = serve.Limits(max_tokens_per_batch=150), [], threading.Event()
    expected = dict(zip(tiny.TEXTS, model.encode(tiny.TEXTS), strict=True))
    counter = serve.TokenCounter(model, "none")

    def encode(texts: list[str]) -> Any:
        sizes.append(sum(counter(texts)[0]))
        release.wait(60)
        return model.encode(texts)

    def ask(number: int) -> bool:
        texts = tiny.TEXTS[number % 5 : number % 5 + (40 if number % 8 == 0 else 1 + number % 4)]
        vectors = embed(client, texts)
        return np.allclose(vectors, [expected[text] for text in texts], atol=ROUNDING)

    with TestClient(serve.create_app(model, limits)) as client, ThreadPoolExecutor(24) as threads:
        functions(client)["none"] = encode
        answers = [threads.submit(ask, number) for number in range(24)]
        # Three requests fill a batch each. Of 12 others, two smaller ones follow each other, and share one.
        while figures(client)["serve_queue_length"] < 12 and not any(answer.done() for answer in answers):
            time.sleep(0.01)
        release.set()
        assert all(answer.result() for answer in answers)
        found = figures(client)
    assert max(sizes) <= 150 and len(sizes) == found["serve_batches_total"] < 24
    assert sum(sizes) == found["serve_tokens_total"]


def test_a_full_queue_is_answered_by_429_and_the_others_are_served(model: SentenceEncoder) -> None:
    release = threading.Event()

    def encode(texts: list[str]) -> Any:
        release.wait(10)
        return model.encode(texts)

    with TestClient(serve.create_app(model, serve.Limits(max_queue=3))) as client:
        functions(client)["none"] = encode
        with ThreadPoolExecutor(3) as threads:
            served = [threads.submit(client.post, "/embed", json={"texts": ["a bird"]}) for _ in range(3)]
            while figures(client)["serve_requests_in_progress"] < 3:
                time.sleep(0.005)
            refused = client.post("/embed", json={"texts": ["a bird"]})
            release.set()
            assert [response.result().status_code for response in served] == [200] * 3
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["detail"].startswith("queue: expected up to 3 requests in progress, got one more")


def test_vectors_that_are_not_finite_fail_only_their_own_request(model: SentenceEncoder) -> None:
    barrier = threading.Barrier(2)

    def encode(texts: list[str]) -> Any:
        vectors = model.encode(texts)
        if "nan" in texts:
            raise InvalidValueError("encode: expected finite vectors, got NaN or infinity for text 0 ('nan')")
        return vectors * (math.inf if "infinite" in texts else 1)

    def ask(text: str) -> tuple[int, Any]:
        barrier.wait(10)
        response = client.post("/embed", json={"texts": [text]})
        return response.status_code, response.json().get("detail")

    with TestClient(serve.create_app(model, serve.Limits(max_wait_ms=200))) as client:
        functions(client)["none"] = encode
        for bad, message in (("nan", "encode: expected finite"), ("infinite", "none: expected finite numbers")):
            with ThreadPoolExecutor(2) as threads:
                (status, detail), good = threads.map(ask, (bad, "a bird"))
            assert status == 500 and detail.startswith(message) and good == (200, None)
        assert figures(client)["serve_batches_total"] == 2


def test_a_request_waits_for_others_only_if_the_last_one_had_company(model: SentenceEncoder) -> None:
    release, found = threading.Event(), {}

    def encode(texts: list[str]) -> Any:
        found[texts[0]] = batcher.has_company
        if texts == ["second"]:
            release.wait(10)
        return model.encode(texts)

    def ask(text: str) -> int:
        return client.post("/embed", json={"texts": [text]}).status_code

    app = serve.create_app(model, serve.Limits(max_wait_ms=0))
    batcher = app.state.batcher
    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        functions(client)["none"] = encode
        assert ask("first") == 200
        answers = [threads.submit(ask, "second")]
        while "second" not in found:
            time.sleep(0.01)
        answers.append(threads.submit(ask, "third"))
        while not figures(client)["serve_queue_length"]:
            time.sleep(0.01)
        release.set()
        assert [answer.result() for answer in answers] == [200, 200]
        assert ask("fourth") == 200
    assert found == {"first": True, "second": False, "third": True, "fourth": False}
    app = serve.create_app(model, serve.Limits(max_wait_ms=10**7))
    app.state.batcher.has_company = False
    with ThreadPoolExecutor(1) as threads, TestClient(app) as client:
        response = threads.submit(client.post, "/embed", json={"texts": ["alone"]})
        assert response.result(timeout=60).status_code == 200


def test_the_drift_is_of_the_last_texts_and_of_the_training_texts(
    client: TestClient, model: SentenceEncoder
) -> None:
    training, texts = model.encode_query(tiny.TEXTS), tiny.TEXTS[:3] * 2
    embed(client, texts, kind="query")
    center = (training / np.linalg.norm(training, axis=1, keepdims=True)).mean(axis=0)
    found = figures(client)
    for name, vectors in (("training", training), ("served", model.encode_query(texts))):
        norms = np.linalg.norm(vectors, axis=1)
        cosines = vectors @ center / norms / np.linalg.norm(center)
        labels = f'{{kind="query",texts="{name}"}}'
        assert found[f"serve_mean_norm{labels}"] == pytest.approx(norms.mean(), abs=ROUNDING)
        assert found[f"serve_mean_cosine{labels}"] == pytest.approx(cosines.mean(), abs=ROUNDING)
    assert 'serve_mean_norm{kind="document",texts="served"}' not in found


def test_metrics_count_requests_and_health_names_the_model(client: TestClient, model: SentenceEncoder) -> None:
    for _ in range(3):
        embed(client, tiny.TEXTS[:2])
    client.post("/embed", json={})
    client.post("/some/where", json={})
    found = figures(client)
    assert found['serve_requests_total{endpoint="/embed",status="200"}'] == 3
    assert found['serve_requests_total{endpoint="/embed",status="422"}'] == 1
    assert found['serve_requests_total{endpoint="other",status="404"}'] == 1
    quantiles = [
        found[f'serve_request_seconds{{endpoint="/embed",quantile="{share}"}}'] for share in (0.5, 0.95, 0.99)
    ]
    assert 0 < quantiles[0] <= quantiles[1] <= quantiles[2]
    assert (found["serve_texts_total"], found["serve_queue_length"]) == (6, 0)
    health = client.get("/health")
    assert health.status_code == 200 and health.json()["ready"]
    assert (health.json()["fingerprint"], health.json()["features"]) == (model.identity, 16)


def post(port: int, path: str, body: object) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@contextlib.contextmanager
def running(folder: Path, pause: float, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Runs the server in a process, with a pause in each call of ``encode``. Yields its port and the process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"""
import sys, time
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import serve
encode = serve.SentenceEncoder.encode
serve.SentenceEncoder.encode = lambda *args, **options: time.sleep({pause}) or encode(*args, **options)
sys.exit(serve.main())
"""
    command = [sys.executable, "-c", code, "--model", str(folder / "model"), "--port", str(port), *words]
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
        yield port, process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_sigterm_finishes_the_requests_in_progress_and_exits_with_0(folder: Path, model: SentenceEncoder) -> None:
    with running(folder, 1.0) as (port, process), ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(post, port, "/embed", {"texts": [text]}) for text in tiny.TEXTS[:4]]
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(OSError):
            post(port, "/embed", {"texts": ["a bird"]})
        vectors = np.array([answer.result()[1]["vectors"][0] for answer in answers])
        np.testing.assert_allclose(vectors, model.encode(tiny.TEXTS[:4]), atol=ROUNDING)
        assert process.wait(20) == 0


@pytest.mark.slow
def test_a_server_serves_clients_of_all_kinds(folder: Path, model: SentenceEncoder) -> None:
    """Many clients, of which some leave at once, and some send 10 MB."""
    expected = model.encode(tiny.TEXTS)

    def leave(port: int) -> bool:
        body = json.dumps({"texts": tiny.TEXTS})
        head = "POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall((head + body).encode())
            time.sleep(0.005)
        return True

    def ask(number: int) -> bool:
        if number % 10 == 0:
            return leave(port)
        start, stop = number % 30, number % 30 + 1 + number % 9
        status, answer = post(port, "/embed", {"texts": tiny.TEXTS[start:stop]})
        return status == 200 and np.allclose(answer["vectors"], expected[start:stop], atol=ROUNDING)

    with running(folder, 0.01, "--max_wait_ms", "2") as (port, process), ThreadPoolExecutor(CLIENTS) as threads:
        assert all(threads.map(ask, range(400)))
        assert post(port, "/embed", b" " * 10_000_000)[0] == 413
        assert post(port, "/embed", {"texts": ["a bird"]})[0] == 200
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/metrics")
            said = connection.getresponse().read().decode()
        assert 'serve_requests_total{endpoint="/embed",status="200"} ' in said and 'status="413"} 1' in said
        assert 'status="500"' not in said and "serve_requests_in_progress 0" in said
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
