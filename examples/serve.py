"""Serves a saved model over HTTP: /embed, /search, /rerank, /health and /metrics. docs/serve.md explains it.

    python serve.py --model encoder/ --index index/ --reranker reranker/

The texts of concurrent requests are encoded together, by one thread. Needs pip install 'contrastive-text[serve]'.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import random
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contrastive_text import Reranker, SentenceEncoder
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, at_least
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.core.types import TextPair
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import build_row
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference import Index

WINDOW = 1000  # number of requests and of texts that the quantiles and means of /metrics are of: the last ones
GRACE = 25  # seconds that SIGTERM leaves to requests in progress; Kubernetes kills a process after 30
COUNTED = ("/embed", "/search", "/rerank")  # other paths of requests are counted together


class Limits(NamedTuple):
    """Limits of the server. docs/serve.md says what each of them is for."""

    max_tokens_per_batch: int = 16_384
    max_wait_ms: float = 5
    max_queue: int = 256
    max_texts: int = 256
    max_body: int = 1_000_000


class Job(NamedTuple):
    """Items of a request that one function computes: texts, or pairs of a query and a document."""

    kind: str
    items: Sequence[Any]
    tokens: int
    arrival: float
    request: Request
    result: asyncio.Future[Sequence[Any]]


class Batcher:
    """Collects the jobs of concurrent requests to batches, and computes a batch at a time in a thread.

    Args:
        functions: Kind of a job -> function from items to as many results.
        limits: Limits of the server.
    """

    def __init__(self, functions: Mapping[str, Callable[[list[Any]], Sequence[Any]]], limits: Limits) -> None:
        self.functions, self.limits = dict(functions), limits
        self.waiting: deque[Job] = deque()
        self.arrived = asyncio.Event()
        self.has_company = True  # whether the last batch had several jobs, or a job arrived meanwhile
        self.counts: Counter[str] = Counter(batches=0, tokens=0, texts=0, truncated=0)

    async def compute(
        self, kind: str, items: Sequence[Any], tokens: Sequence[int], request: Request
    ) -> list[Any]:
        """Returns the result of each item. A large request has several jobs, one after the other."""
        loop, most = asyncio.get_running_loop(), self.limits.max_tokens_per_batch
        results: list[Any] = []
        while (start := len(results)) < len(items):
            totals = np.cumsum(tokens[start:])
            count = max(int(np.searchsorted(totals, most, side="right")), 1)
            part, total = items[start : start + count], int(totals[count - 1])
            job = Job(kind, part, total, loop.time(), request, loop.create_future())
            self.waiting.append(job)
            self.arrived.set()
            results += await job.result
        return results

    async def run(self) -> None:
        """Computes batch after batch, until the task is canceled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "encoder") as thread:
            while True:
                batch = await self._collect()
                results = await loop.run_in_executor(thread, self._results, batch)
                for job, result in zip(batch, results, strict=True):
                    if job.result.done():  # canceled, because the server stops
                        continue
                    if isinstance(result, Exception):
                        job.result.set_exception(result)
                    else:
                        job.result.set_result(result)
                self.has_company = len(batch) > 1 or bool(self.waiting)
                texts, tokens = sum(len(job.items) for job in batch), sum(job.tokens for job in batch)
                self.counts.update(batches=bool(batch), texts=texts, tokens=tokens)

    async def _collect(self) -> list[Job]:
        """Waits for a job, then a short time for more. Returns the jobs of a batch, sorted by kind."""
        await self.arrived.wait()
        most, batch, tokens = self.limits.max_tokens_per_batch, list[Job](), 0
        wait = self.limits.max_wait_ms / 1000 if self.has_company else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.waiting[0].arrival + wait):
                while sum(job.tokens for job in self.waiting) < most:
                    self.arrived.clear()
                    await self.arrived.wait()
        while self.waiting and (not batch or tokens + self.waiting[0].tokens <= most):
            job = self.waiting.popleft()
            if await job.request.is_disconnected() and not job.result.done():
                job.result.set_exception(HTTPException(499, "the client left"))
            elif not job.result.done():
                batch.append(job)
                tokens += job.tokens
        (self.arrived.set if self.waiting else self.arrived.clear)()
        return sorted(batch, key=lambda job: job.kind)

    def _results(self, batch: Sequence[Job]) -> list[Sequence[Any] | Exception]:
        """Computes jobs of a kind together; or each alone if that fails, so that only one request fails."""
        results: list[Sequence[Any] | Exception] = []
        for kind, group in groupby(batch, key=lambda job: job.kind):
            jobs = list(group)
            try:
                values = self.functions[kind]([item for job in jobs for item in job.items])
                if isinstance(values, np.ndarray) and not np.isfinite(values).all():
                    raise InvalidValueError(f"{kind}: expected finite numbers, got NaN or infinity")
                rest = iter(values)
                results += [list(islice(rest, len(job.items))) for job in jobs]
            except Exception as error:
                results += [error] if len(jobs) == 1 else [self._results([job])[0] for job in jobs]
        return results


class TokenCounter:
    """Counts the tokens that a model reads of texts or pairs, and the texts that it truncates."""

    def __init__(self, model: SentenceEncoder | Reranker, kind: str) -> None:
        self.tokenizer = copy.deepcopy(model.tokenizer)  # truncation is a state of a reranker's tokenizer
        self.template = None
        if isinstance(model, SentenceEncoder):
            lengths = {"query": model.query_length, "document": model.document_length}
            length, limit = lengths.get(kind) or model.max_length, model.encoder.limit
            self.tokenizer = TextTokenizer(self.tokenizer.tokenizer, length, limit and length and limit - length)
            prompt = None if kind == "none" else model.prompts.for_kind(kind)
            self.template = model.prompts.template(prompt, self.tokenizer)

    def __call__(self, items: Sequence[Any]) -> tuple[list[int], int]:
        """Returns the number of tokens of each item, and the number of truncated items."""
        if self.template is None:
            rows = self.tokenizer.pair_rows([TextPair(*pair) for pair in items])
        else:
            texts = self.tokenizer.tokenize_with_template(items, self.template, with_words=False)
            rows = [build_row(text, self.tokenizer) for text in texts]
        return [len(row.ids) for row in rows], sum(row.truncated for row in rows)


class Drift:
    """Norms of the last vectors, and their cosines with the mean of the training texts' unit vectors.

    Args:
        training: Vectors of training texts, (N, D).
    """

    def __init__(self, training: np.ndarray) -> None:
        self.center = unit(unit(training).mean(axis=0))
        self.training = self.norms_and_cosines(training).mean(axis=0)
        self.last: deque[np.ndarray] = deque(maxlen=WINDOW)

    def norms_and_cosines(self, vectors: np.ndarray) -> np.ndarray:
        """Returns norm and cosine of each vector: (N, D) -> (N, 2)."""
        return np.stack([np.linalg.norm(vectors, axis=1), unit(vectors) @ self.center], axis=1)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors, (..., D), scaled to unit length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


class Metrics:
    """Figures of the server, in Prometheus's text format."""

    def __init__(self, batcher: Batcher, drifts: Mapping[str, Drift]) -> None:
        self.batcher, self.drifts = batcher, drifts
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.in_progress = 0

    def lines(self) -> Iterator[str]:
        """Yields the lines of all figures."""
        yield "# TYPE serve_requests_total counter"
        for (endpoint, status), count in sorted(self.requests.items()):
            yield f'serve_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        yield "# TYPE serve_request_seconds gauge"
        for endpoint, seconds in self.seconds.items():
            for share, value in zip((0.5, 0.95, 0.99), np.quantile(seconds, (0.5, 0.95, 0.99)), strict=True):
                yield f'serve_request_seconds{{endpoint="{endpoint}",quantile="{share}"}} {value:.6f}'
        yield f"# TYPE serve_requests_in_progress gauge\nserve_requests_in_progress {self.in_progress}"
        yield f"# TYPE serve_queue_length gauge\nserve_queue_length {len(self.batcher.waiting)}"
        for name, count in self.batcher.counts.items():
            yield f"# TYPE serve_{name}_total counter\nserve_{name}_total {count}"
        for place, name in enumerate(("norm", "cosine") if self.drifts else ()):
            yield f"# TYPE serve_mean_{name} gauge"
            for kind, drift in self.drifts.items():
                for texts, rows in (("training", [drift.training]), ("served", drift.last)):
                    if rows:
                        value = np.mean(rows, axis=0)[place]
                        yield f'serve_mean_{name}{{kind="{kind}",texts="{texts}"}} {value:.6f}'


class Gate:
    """Middleware that counts requests, and refuses a POST request that is too large or finds a full queue."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits) -> None:
        self.app, self.metrics, self.limits = app, metrics, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        begun, status, size, app, limits = time.perf_counter(), 500, 0, self.app, self.limits
        too_large = f"body: expected up to {limits.max_body:,} bytes, got more; send several requests"
        if self.metrics.in_progress >= limits.max_queue:
            detail = f"queue: expected up to {limits.max_queue:,} requests in progress, got one more; retry later"
            app = JSONResponse({"detail": detail}, 429, {"Retry-After": "1"})
        elif int(dict(scope["headers"]).get(b"content-length", 0)) > limits.max_body:
            app = JSONResponse({"detail": too_large}, 413)

        async def receive_bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limits.max_body:
                raise HTTPException(413, too_large)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self.metrics.in_progress += 1
        try:
            await app(scope, receive_bounded, send_noted)
        finally:
            self.metrics.in_progress -= 1
            endpoint = scope["path"] if scope["path"] in COUNTED else "other"
            self.metrics.requests[endpoint, status] += 1
            if status == 200:
                self.metrics.seconds[endpoint].append(time.perf_counter() - begun)


class EmbedBody(BaseModel, extra="forbid", strict=True):
    """Texts to encode. Texts of kind ``none`` get the model's default prompt, if there is one."""

    texts: list[str]
    kind: Literal["query", "document", "none"] = "none"
    normalize: bool = False


class SearchBody(BaseModel, extra="forbid", strict=True):
    """Queries of a search."""

    queries: list[str]
    top_k: int = Field(default=5, ge=1, le=1000)


class RerankBody(BaseModel, extra="forbid", strict=True):
    """Documents to order by their score for a query."""

    query: str
    documents: list[str]
    top_k: int | None = Field(default=None, ge=1)


def check_texts(name: str, texts: Sequence[str], most: int) -> None:
    """Checks that there are 1 to ``most`` texts, none of them blank."""
    if not 1 <= len(texts) <= most:
        todo = f"send several requests of up to {most:,}" if texts else "send at least one text"
        raise HTTPException(422, f"{name}: expected 1 to {most:,} texts, got {len(texts):,}; {todo}")
    for place, text in enumerate(texts):
        if problem := lone_surrogate(text) or ("" if text.strip() else f"the blank text {text!r:.20}"):
            raise HTTPException(422, f"{name}.{place}: expected a text, got {problem}; correct or remove it")


def explain(error: RequestValidationError) -> str:
    """Returns the first problem of a body: the place, the expected value and the value."""
    first = error.errors()[0]
    place, kind, got = ".".join(map(str, first["loc"][1:])) or "body", first["type"], first["input"]
    if kind == "json_invalid":
        return f"body: expected JSON, got an error at character {place}: {first['ctx']['error']}; correct it"
    fields = {"missing": "this field", "extra_forbidden": "no such field"}
    expected = fields.get(kind, first["msg"].removeprefix("Input should be "))
    return f"{place}: expected {expected}, got {got!r:.60}; see /docs for the fields"


def create_app(
    model: SentenceEncoder,
    limits: Limits,
    index: Index | None = None,
    reranker: Reranker | None = None,
    training: Sequence[str] = (),
) -> FastAPI:
    """Builds the application.

    Args:
        model: Model of /embed and /search.
        limits: Limits of the server.
        index: Documents of /search; None for no such endpoint.
        reranker: Model of /rerank; None for no such endpoint.
        training: Training texts, with whose vectors /metrics compares the last vectors; empty for no comparison.
    """
    model.require_dense("serve")
    encoders = {"query": model.encode_query, "document": model.encode_document, "none": model.encode}
    counters = {kind: TokenCounter(model, kind) for kind in encoders}
    drifts = {kind: Drift(encode(training)) for kind, encode in encoders.items()} if training else {}
    functions: dict[str, Any] = dict(encoders)
    facts = {"fingerprint": model.identity, "features": model.get_embedding_dimension()}
    if reranker is not None:
        functions["rerank"], counters["rerank"] = reranker.predict, TokenCounter(reranker, "rerank")
        facts["reranker"] = reranker.identity
    if index is not None:
        index.search_vectors(model.encode_query(["a"]))  # raises if the widths differ
    batcher = Batcher(functions, limits)
    metrics = Metrics(batcher, drifts)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.task = asyncio.create_task(batcher.run())
        yield
        app.state.task.cancel()

    app = FastAPI(title="contrastive_text", lifespan=lifespan)
    app.add_middleware(Gate, metrics=metrics, limits=limits)
    app.state.batcher = batcher

    async def compute(kind: str, items: Sequence[Any], request: Request) -> tuple[np.ndarray, int]:
        """Returns the results of items in one array, and the number of truncated items."""
        tokens, truncated = await asyncio.to_thread(counters[kind], items)
        batcher.counts["truncated"] += truncated
        results = np.stack(await batcher.compute(kind, items, tokens, request))
        if kind in drifts:
            drifts[kind].last.extend(drifts[kind].norms_and_cosines(results))
        return results, truncated

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(ContrastiveTextError)
    async def answer_error(_: Request, error: Exception) -> JSONResponse:
        is_request = isinstance(error, RequestValidationError)
        return JSONResponse({"detail": explain(error) if is_request else str(error)}, 422 if is_request else 500)

    @app.post("/embed")
    async def embed(body: EmbedBody, request: Request) -> JSONResponse:
        check_texts("texts", body.texts, limits.max_texts)
        vectors, truncated = await compute(body.kind, body.texts, request)
        vectors = unit(vectors) if body.normalize else vectors
        return JSONResponse({"vectors": vectors.tolist(), "truncated": truncated})

    if index is not None:

        @app.post("/search")
        async def search(body: SearchBody, request: Request) -> JSONResponse:
            check_texts("queries", body.queries, limits.max_texts)
            vectors, truncated = await compute("query", body.queries, request)
            hits = await asyncio.to_thread(index.search_vectors, vectors, body.top_k)
            return JSONResponse({"hits": [list(map(asdict, row)) for row in hits], "truncated": truncated})

    if reranker is not None:

        @app.post("/rerank")
        async def rerank(body: RerankBody, request: Request) -> JSONResponse:
            check_texts("query", [body.query], 1)
            check_texts("documents", body.documents, limits.max_texts)
            pairs = [(body.query, document) for document in body.documents]
            scores, truncated = await compute("rerank", pairs, request)
            order = np.argsort(-scores, kind="stable")[: body.top_k].tolist()
            results = [{"index": place, "score": float(scores[place])} for place in order]
            return JSONResponse({"results": results, "truncated": truncated})

    @app.get("/health")
    async def health() -> JSONResponse:
        is_ready, documents = not app.state.task.done(), {} if index is None else {"documents": len(index)}
        return JSONResponse({"ready": is_ready, **facts, **documents}, 200 if is_ready else 503)

    @app.get("/metrics")
    async def figures() -> PlainTextResponse:
        return PlainTextResponse("\n".join([*metrics.lines(), ""]), media_type="text/plain; version=0.0.4")

    return app


def main() -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder or hub name")
    parser.add_argument("--index", metavar="FOLDER", help="index of /search")
    parser.add_argument("--reranker", help="folder or hub name of the model of /rerank")
    parser.add_argument("--training_texts", metavar="FILE", help="texts for the drift in /metrics")
    parser.add_argument("--backend", default="torch", help="torch, onnx or openvino. Default: torch.")
    parser.add_argument("--trust", action="append", metavar="MODULE", help="module of the model's own parts")
    parser.add_argument("--host", default="127.0.0.1", help="Default: 127.0.0.1.")
    parser.add_argument("--port", type=int, default=8000, help="Default: 8000.")
    for name, default in Limits()._asdict().items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"Default: {default:,}.")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has stopped
    try:
        for name in Limits._fields:
            at_least(f"--{name}", getattr(options, name), 0 if name == "max_wait_ms" else 1)
        limits = Limits(*(getattr(options, name) for name in Limits._fields))
        print(f"loading {options.model}", flush=True)
        model = SentenceEncoder.from_pretrained(options.model, backend=options.backend, trust=options.trust)
        reranker = options.reranker and Reranker.from_pretrained(options.reranker, trust=options.trust)
        texts = list(islice(TextStream(options.training_texts), 100_000)) if options.training_texts else []
        index = options.index and Index.open(options.index, model)
        if texts:
            print(f"encoding up to {WINDOW:,} training texts", flush=True)
        app = create_app(model, limits, index, reranker, random.Random(0).sample(texts, min(len(texts), WINDOW)))
    except ContrastiveTextError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=options.host, port=options.port, access_log=False, timeout_graceful_shutdown=GRACE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
