"""Measures ``examples/serve.py`` with each runtime under 1 to 8 clients, in turns with other servers.

    python benchmarks/serve.py --data FOLDER --rounds 3

Each server has a process, and all processes use the same encoder. The contenders are the example with each
runtime; the example with ``encode`` of sentence-transformers in the place of ours; and a server that encodes each
request alone in a thread, once more with ``MALLOC_ARENA_MAX=1``, by which glibc keeps less freed memory for each
thread. The folder has ``sts`` and ``documents``. Requests hold 1 to 4 sentences of STS, and every twentieth one 2
paragraphs. Every vector is compared with that of ``encode``. Latencies are those of the clients.

A smoke run without data: ``--quick``.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from inputs import (
    draw,
    encoder_name,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from load import is_near
from machines import machine, needs, read_status
from runs import RESULTS, markdown, publish
from runtimes import long_texts
from timing import parser, ratio_and_range, take_turns, variables

OURS, PEER, ALONE, ONE_ARENA = (
    "examples/serve.py",
    "examples/serve.py with sentence-transformers",
    "a server, one encode per request",
    "a server, one encode per request, MALLOC_ARENA_MAX=1",
)
RUNTIMES = {f"{OURS}, {backend}": backend for backend in ("onnx", "openvino")}
CONTENDERS = (OURS, *RUNTIMES, PEER, ALONE, ONE_ARENA)
LONGEST = 256
"""Length limit of the texts that are counted, in tokens: that of the encoder of the extra ``offline``."""
PEER_SIZE = 4
"""Batch size of sentence-transformers, which pads a batch to its longest text. Of 4, 8, 16 and 64, this size took
the least CPU time for these requests: 57, 74, 136 and 171 ms each."""
SHORT, LONG, LONG_EVERY = 4, 2, 20
"""Most texts of a request of short texts, texts of a request of long texts, requests of which one is long."""
HEADER = ("clients", "contender", "requests/s", "ours to it", "p50 ms", "p95 ms", "CPU ms", "MiB", "wrong")
PATIENCE = 120.0
"""Seconds until a server answers for the first time."""


class Round(NamedTuple):
    """Figures of a contender's round.

    Args:
        seconds: Of all requests together.
        latencies: Of each request, in seconds.
        wrong: Requests with another vector than that of ``encode``, or with an error.
        memory: Resident memory of the contender's process afterwards, in bytes.
        cpu: CPU time of the contender's process, in seconds.
    """

    seconds: float
    latencies: Sequence[float]
    wrong: int
    memory: int
    cpu: float


def example() -> ModuleType:
    """Returns the module of the example."""
    path = Path(__file__).parents[1] / "examples" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve_example", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(contender: str, encoder: str, port: int, threads: int) -> None:
    """Serves the encoder until the process ends."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    from contrastive_text import SentenceEncoder

    torch.set_num_threads(threads)
    ours = example()
    backend = RUNTIMES.get(contender, "torch")
    model = SentenceEncoder.from_pretrained(encoder, device="cpu", backend=backend)
    app = FastAPI()
    if contender in (ALONE, ONE_ARENA):

        async def embed(body: Any) -> JSONResponse:  # Any: an example's class
            vectors = await asyncio.to_thread(model.encode, body.texts)
            return JSONResponse({"vectors": vectors.tolist()})

        embed.__annotations__["body"] = ours.EmbedBody
        app.post("/embed")(embed)
    else:
        app = ours.create_app(model, ours.Limits())
    if contender == PEER:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(encoder, device="cpu")
        app.state.batcher.functions["none"] = partial(peer.encode, batch_size=PEER_SIZE, show_progress_bar=False)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def ask(port: int, bodies: Sequence[bytes]) -> list[tuple[float, int, bytes]]:
    """Sends requests over one connection. Returns seconds, status and body of each response."""
    answers = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    for body in bodies:
        begun = time.perf_counter()
        connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        answers.append((time.perf_counter() - begun, response.status, content))
    connection.close()
    return answers


def round_of_server(
    port: int, pid: int, requests: Sequence[Sequence[str]], expected: Sequence[Any], clients: int
) -> Round:
    """Sends all requests from several clients. Responses are compared after the clock has stopped."""
    bodies = [json.dumps({"texts": texts}).encode() for texts in requests]
    begun, cpu = time.perf_counter(), cpu_seconds(pid)
    with ThreadPoolExecutor(clients) as threads:
        parts = list(threads.map(partial(ask, port), [bodies[start::clients] for start in range(clients)]))
    seconds, cpu = time.perf_counter() - begun, cpu_seconds(pid) - cpu
    memory = read_status(Path(f"/proc/{pid}/status").read_text(), "VmRSS")
    answers = [
        (answer, vectors)
        for i, part in enumerate(parts)
        for answer, vectors in zip(part, expected[i::clients], strict=True)
    ]
    wrong = sum(
        status != 200 or not is_near(np.array(json.loads(content)["vectors"], np.float32), vectors)
        for (_, status, content), vectors in answers
    )
    return Round(seconds, [latency for (latency, _, _), _ in answers], wrong, memory, cpu)


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and of its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Returns a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Waits until a server accepts connections."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"expected the server to answer within {PATIENCE:.0f} s, got nothing")


def requests_of(short: Sequence[str], long: Sequence[str], count: int) -> list[list[str]]:
    """Returns the texts of some requests.

    Example:
        >>> [len(texts) for texts in requests_of(["a"] * 9, ["b"] * 2, count=6)]
        [2, 2, 3, 4, 1, 2]
    """
    return [
        list(long) if number % LONG_EVERY == 0 else list(np.roll(short, -SHORT * number)[: 1 + number % SHORT])
        for number in range(count)
    ]


def measure(
    encoder: str, requests: Sequence[Sequence[str]], threads: int, clients: Sequence[int], rounds: int
) -> dict[int, dict[str, list[Round]]]:
    """Measures all contenders in turns, for each number of clients."""
    from contrastive_text import SentenceEncoder

    torch.set_num_threads(threads)
    model = SentenceEncoder.from_pretrained(encoder, device="cpu")
    expected = [model.encode(texts) for texts in requests]
    del model
    context = multiprocessing.get_context("spawn")
    processes, works = [], {}
    try:
        for contender in CONTENDERS:
            port = free_port()
            process = context.Process(target=serve, args=(contender, encoder, port, threads), daemon=True)
            with variables({"MALLOC_ARENA_MAX": "1"} if contender == ONE_ARENA else {}):
                process.start()
            processes.append(process)
            wait_for(port)
            ask(port, [json.dumps({"texts": texts}).encode() for texts in requests[:20]])  # warms up
            works[contender] = partial(round_of_server, port, process.pid or 0, requests, expected)
        return {
            count: take_turns({name: partial(work, count) for name, work in works.items()}, rounds)
            for count in clients
        }
    finally:
        for process in processes:
            process.terminate()
            process.join()


def figures(found: Mapping[int, Mapping[str, Sequence[Round]]], count: int) -> list[dict[str, Any]]:
    """Returns a row of figures for each number of clients and contender; a figure of rounds is a list.

    Example:
        >>> figures({8: {"ours": [Round(2.0, [0.1, 0.3], 0, 2**20, 1.5)]}}, count=2)[0]["requests per second"]
        [1.0]
    """
    return [
        {
            "clients": clients,
            "contender": name,
            "requests per second": [count / each.seconds for each in rounds],
            "p50 ms": [1000 * float(np.quantile(each.latencies, 0.5)) for each in rounds],
            "p95 ms": [1000 * float(np.quantile(each.latencies, 0.95)) for each in rounds],
            "cpu ms": [1000 * each.cpu / count for each in rounds],
            "wrong": sum(each.wrong for each in rounds),
            "memory": [each.memory for each in rounds],
        }
        for clients, contenders in found.items()
        for name, rounds in contenders.items()
    ]


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__, rounds=3)
    own.add_argument("--data", type=Path, help="folder with sts and documents")
    own.add_argument("--requests", type=int, default=300, help="of each contender and round")
    own.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of clients, rising")
    own.add_argument("--note", default="", help="what else the machine does, for the result")
    options = own.parse_args()
    needs("fastapi", "uvicorn", "sentence-transformers", "onnxscript", "onnxruntime", "openvino")
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            short = made_up_texts(200)
            long = [" ".join(short[i : i + 5]) for i in range(0, 5 * LONG, 5)]
            encoder, count = tiny_encoder(Path(made), short), min(options.requests, 80)
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            short, long = draw(sts_texts(options.data / "sts"), 2000), long_texts(options.data, LONG)
            encoder, count = options.encoder or installed_encoder(), options.requests
        requests = requests_of(short, long, count)
        rows = figures(measure(encoder, requests, options.threads, options.clients, options.rounds), count)
        lengths = lengths_of([text for texts in requests for text in texts], encoder, max_length=LONGEST)
    speeds = {row["clients"]: row["requests per second"] for row in rows if row["contender"] == OURS}
    cells = [
        [
            str(row["clients"]),
            row["contender"],
            f"{statistics.median(row['requests per second']):.1f}",
            ratio_and_range(speeds[row["clients"]], row["requests per second"]),
            *(f"{statistics.median(row[name]):.0f}" for name in ("p50 ms", "p95 ms", "cpu ms")),
            f"{statistics.median(row['memory']) / 2**20:,.0f}",
            f"{row['wrong']:,} of {options.rounds * count:,}",
        ]
        for row in rows
    ]
    lines = [
        "# A server and its peers",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, 'cpu')}. {options.note}",
        f"The clients send {count:,} requests of 1 to {max(map(len, requests))} texts a round:",
        f"{len(lengths):,} texts of {statistics.mean(lengths):.0f} tokens on average, up to {max(lengths)}.",
        f"Medians over {options.rounds} rounds, in turns. Ratios are medians of the rounds (lowest to highest).",
        "CPU: of the contender's process for each request, without the clients. MiB: resident after the rounds;",
        "a contender keeps its process for all numbers of clients. sentence-transformers has batches of",
        f"{PEER_SIZE}, its fastest size; its process also holds our model. Written by `benchmarks/serve.py`.",
        "",
        *markdown([*HEADER], cells),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("serve", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
