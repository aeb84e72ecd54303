"""Sends many requests at once to a server of each backend, and compares every answer with that of one thread.

    python benchmarks/load.py --data FOLDER

The server is uvicorn with FastAPI in a process of its own. ``/encode`` encodes by ``asyncio.to_thread``,
``/search`` searches an index in FastAPI's thread pool. The folder has ``sts`` and ``documents``; requests hold 1
to 8 sentences of STS, and every twentieth one 16 paragraphs, for which weights are packed. Memory and open files
of the server are read after the first tenth of the requests and after the last.

A smoke run without data: ``--quick``. ``--packed`` packs weights on a processor that is slower with them, too.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from inputs import draw, encoder_name, installed_encoder, made_up_texts, sts_texts, tiny_encoder
from machines import machine, needs, read_status
from runs import RESULTS, markdown, publish
from runtimes import long_texts
from timing import parser

BACKENDS = ("torch", "onnx", "openvino")
ROUNDING = 1e-4
"""Largest difference of an entry, as part of a vector's length: kernels of runtimes round by some 1e-6."""
PATIENCE = 300.0
"""Seconds until a server answers for the first time; a graph is made by then."""
HITS = 3
"""Hits of a search."""
BUNDLE = 8
"""Most texts of a short request."""
LONG_EVERY = 20
"""Requests of which one is long."""


class Job(NamedTuple):
    """Model and index that a server serves.

    Args:
        encoder: Folder of the model.
        backend: What runs the network.
        packed: Whether to pack weights on any processor.
        threads: Of torch.
        corpus: Folder of the index that is searched.
    """

    encoder: str
    backend: str
    packed: bool
    threads: int
    corpus: str


class Usage(NamedTuple):
    """Resources of a server: resident memory in bytes, open files, threads."""

    memory: int
    files: int
    threads: int


def load(job: Job) -> Any:  # Any: contrastive_text is imported late
    """Returns the model of a job."""
    from contrastive_text import SentenceEncoder
    from contrastive_text.encoders import prepacked

    torch.set_num_threads(job.threads)
    if job.packed:
        vars(prepacked)["has_fast_packed_layers"] = lambda: True
    return SentenceEncoder.from_pretrained(job.encoder, backend=job.backend, device="cpu")


def serve(job: Job, port: int) -> None:
    """Serves a model until the process is ended."""
    import uvicorn
    from fastapi import Body, FastAPI, Response

    from contrastive_text.inference import Index

    model = load(job)
    index = Index.open(job.corpus, model)
    application = FastAPI()

    @application.post("/encode")
    async def encode(texts: list[str] = Body()) -> Response:  # noqa: B008  # FastAPI's way
        vectors = await asyncio.to_thread(model.encode, texts)
        return Response(np.asarray(vectors).tobytes(), media_type="application/octet-stream")

    @application.post("/search")
    def search(texts: list[str] = Body()) -> list[list[int]]:  # noqa: B008  # FastAPI's way
        return [[int(hit.id) for hit in hits] for hits in index.search(texts, top_k=HITS)]

    @application.get("/usage")
    def usage() -> Usage:
        status = Path("/proc/self/status").read_text()
        return Usage(
            read_status(status, "VmRSS"),
            len(os.listdir("/proc/self/fd")),
            int(status.split("Threads:")[1].split()[0]),
        )

    uvicorn.run(application, host="127.0.0.1", port=port, log_level="warning")


class Client:
    """A connection to a server.

    Args:
        port: Of the server, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def usage(self) -> Usage:
        """Returns what the server holds."""
        return Usage(*json.loads(self._answer("GET", "/usage")))

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns the vectors of texts."""
        return np.frombuffer(self._answer("POST", "/encode", texts), np.float32).reshape(len(texts), -1)

    def search(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the hits of texts."""
        hits: list[list[int]] = json.loads(self._answer("POST", "/search", texts))
        return hits

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def _answer(self, method: str, path: str, texts: Sequence[str] | None = None) -> bytes:
        body = None if texts is None else json.dumps(texts)
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: expected status 200, got {answer.status}: {content[:200]!r}")
        return content


def requests_of(short: Sequence[str], long: Sequence[str], count: int) -> list[list[str]]:
    """Returns the texts of some requests.

    Example:
        >>> [len(texts) for texts in requests_of(["a"] * 9, ["b"] * 16, count=3)]
        [16, 2, 3]
    """
    return [
        list(long) if number % LONG_EVERY == 0 else list(np.roll(short, -number)[: 1 + number % BUNDLE])
        for number in range(count)
    ]


def is_near(vectors: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> bool:
    """Returns whether vectors are those expected, but for rounding.

    Example:
        >>> is_near(np.array([[3.0, 4.0]]), np.array([[3.0, 4.1]]))
        False
    """
    if vectors.shape != expected.shape:
        return False
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    return bool((np.abs(vectors - expected) <= ROUNDING * lengths).all())


def put_under_load(job: Job, requests: Sequence[Sequence[str]], count: int, clients: int) -> dict[str, Any]:
    """Returns what became of many requests of several clients; figures by name."""
    model = load(job)
    from contrastive_text.inference import Index

    index = Index.create(job.corpus, model)
    index.add([text for texts in requests for text in texts])
    vectors = [np.asarray(model.encode(texts)) for texts in requests]
    hits = [[[int(hit.id) for hit in each] for each in index.search(texts, top_k=HITS)] for texts in requests]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(job, port), daemon=True)
    process.start()

    def work(numbers: Sequence[int]) -> list[str]:
        client, outcomes = Client(port), []
        for number in numbers:
            place, searches = number % len(requests), number % 5 == 4
            try:
                if searches:
                    right = client.search(requests[place]) == hits[place]
                else:
                    right = is_near(client.encode(requests[place]), vectors[place])
                outcomes.append(f"{'search' if searches else 'encode'} {'right' if right else 'wrong'}")
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                outcomes.append(f"error: {error}")
                client.close()
        client.close()
        return outcomes

    def all_at_once(numbers: Sequence[int]) -> list[str]:
        with ThreadPoolExecutor(clients) as threads:
            parts = threads.map(work, [numbers[start::clients] for start in range(clients)])
            return [outcome for part in parts for outcome in part]

    try:
        wait_for(port)
        outcomes, before = all_at_once(range(count // 10)), usage_of(port)
        begun = time.perf_counter()
        outcomes += all_at_once(range(count // 10, count))
        seconds = time.perf_counter() - begun
        after = usage_of(port)
    finally:
        process.terminate()
        process.join()
    errors = [outcome for outcome in outcomes if outcome.startswith("error")]
    return {
        "contender": job.backend + (", packed" if job.packed else ""),
        "requests": len(outcomes),
        **{
            f"{kind} {result}": outcomes.count(f"{kind} {result}")
            for kind in ("encode", "search")
            for result in ("right", "wrong")
        },
        "errors": len(errors),
        "first error": errors[0] if errors else "",
        "seconds": seconds,
        "memory before": before.memory,
        "memory after": after.memory,
        "files before": before.files,
        "files after": after.files,
        "threads after": after.threads,
    }


def usage_of(port: int) -> Usage:
    """Returns what a server holds, asked by a connection that is closed again."""
    client = Client(port)
    try:
        return client.usage()
    finally:
        client.close()


def wait_for(port: int) -> None:
    """Waits until a server answers."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            usage_of(port)
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"expected the server to answer within {PATIENCE:.0f} s, got nothing")


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__)
    own.add_argument("--data", type=Path, help="folder with sts and documents")
    own.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    own.add_argument("--requests", type=int, default=2000, help="of each backend")
    own.add_argument("--clients", type=int, default=8)
    own.add_argument("--packed", action="store_true", help="pack weights on any processor")
    options = own.parse_args()
    needs("fastapi", "uvicorn")
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            short = made_up_texts(200)
            long = [" ".join(short[i : i + 5]) for i in range(0, 200, 5)]
            encoder = tiny_encoder(Path(made), short)
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            short, long = draw(sts_texts(options.data / "sts"), 200), long_texts(options.data, 16)
            encoder = options.encoder or installed_encoder()
        requests = requests_of(short, long, min(200, options.requests))
        rows = [
            put_under_load(
                Job(encoder, backend, options.packed, options.threads, str(Path(made) / f"{backend}.npy")),
                requests,
                options.requests,
                options.clients,
            )
            for backend in options.backends
        ]
    cells = [
        [
            row["contender"],
            *(f"{row[f'{kind} right']:,}, {row[f'{kind} wrong']:,}" for kind in ("encode", "search")),
            f"{row['errors']:,}",
            *(f"{row[f'memory {when}'] / 2**20:,.0f}" for when in ("before", "after")),
            *(f"{row[f'files {when}']}" for when in ("before", "after")),
            f"{0.9 * row['requests'] / row['seconds']:,.0f}",
        ]
        for row in rows
    ]
    header = ["backend", "encode: right, wrong", "search: right, wrong", "errors", "MiB before", "MiB after"]
    lines = [
        "# A server under load",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, 'cpu')}.",
        f"{options.clients} clients send {options.requests:,} requests of 1 to {max(map(len, requests))} texts.",
        f"Answers are compared with those of a single thread, entries to {ROUNDING:.0e} of a vector's length.",
        "Memory and open files are the server's, after a tenth of the requests and after all. Written by",
        "`benchmarks/load.py`.",
        "",
        *markdown([*header, "files before", "files after", "requests/s"], cells),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    what = "load-packed" if options.packed else "load"
    print(publish(what, lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
