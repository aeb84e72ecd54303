"""The parts of ``gpu.py`` that measure time and memory. Each gives its pieces by name; a piece gives a row."""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import encode
import loss
import torch
import train_step
from gpu_work import (
    SHAPES,
    Pieces,
    Row,
    Setting,
    batches_of,
    loss_and_gradient,
    module_of,
    peak_of,
    rows_that_fit,
    seconds_of,
)
from inputs import lengths_of, made_up_texts
from machines import matmul_speed
from timing import ratio_and_range, take_turns

LENGTHS = (32, 256)
"""Two, because each piece starts two processes, and an import of all libraries can take 10 s."""
STEPS = 8
"""Steps of a turn."""
PEER_SIZES = (64, 256, 1024)
"""Batch sizes of which the peer's best is taken."""
PEERS = ("sentence_transformers", "accelerate", "datasets")


def peer_is_there() -> bool:
    """Returns whether sentence-transformers and the packages of its trainer are installed."""
    return all(importlib.util.find_spec(name) for name in PEERS)


def products(setting: Setting) -> Pieces:
    """The speed of a large product of matrices: the chip's peak, as far as torch reaches it."""

    def speed(dtype: torch.dtype, rule: str) -> Row:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(rule)
        try:
            found = matmul_speed(dtype, setting.device, rows=256 if setting.quick else None)
        finally:
            torch.set_float32_matmul_precision(before)
        return {"said": f"{found / 1e12:,.1f} TFLOP/s", "FLOP/s": found}

    return {
        "bfloat16": partial(speed, torch.bfloat16, "highest"),
        "float32": partial(speed, torch.float32, "highest"),
        "float32, TF32 allowed": partial(speed, torch.float32, "high"),
    }


def steps(setting: Setting) -> Pieces:
    """Training steps beside sentence-transformers' trainer, and as a share of the product's speed."""
    lengths = (16,) if setting.quick else LENGTHS
    precisions = ("float32",) if setting.quick else ("bfloat16", "float32")
    shapes = ("MiniLM-L6",) if setting.quick else tuple(SHAPES)
    return {
        f"{shape}, {tokens} tokens, {precision}": partial(training_step, setting, shape, tokens, precision)
        for precision, shape, tokens in itertools.product(precisions, shapes, lengths)
    }


def training_step(setting: Setting, shape: str, tokens: int, precision: str) -> Row:
    """Measures steps of texts of half to all of a length, as many as a third of the memory takes."""
    rows, count = 8, 2
    if not setting.quick:
        rows = rows_that_fit(SHAPES[shape], tokens, precision, torch.cuda.mem_get_info()[0])
        count = STEPS
    encoder, folder = setting.encoder(shape), setting.folder / f"{shape}-{tokens}-{precision}"
    folder.mkdir()
    texts = made_up_texts(
        rows * (train_step.WARM_UP + setting.rounds * count + 2), words=(tokens // 2, tokens - 2)
    )
    given, ordered = train_step.write_texts(folder, texts, rows)
    lengths = lengths_of(Path(ordered).read_text(encoding="utf-8").splitlines(), encoder, tokens)
    workers = 0 if setting.quick else min(4, (os.cpu_count() or 2) // 2)
    job = train_step.Job(
        encoder, given, ordered, rows, tokens, precision, setting.device, str(folder), {"workers": workers}
    )  # type: ignore[arg-type]  # one of them
    names = ["ours", *(["sentence-transformers"] if peer_is_there() else [])]
    options = SimpleNamespace(
        only=names, layout=None, threads=setting.threads, device=setting.device, rounds=setting.rounds
    )
    found = {row["contender"]: row for row in train_step.rows_for(job, options, lengths, count)}
    own = found["ours"]
    reached = statistics.median(b / a for a, b in zip(own["seconds"], own["floor"], strict=True))
    said = [f"{2 * rows:,} texts a step, {own['texts a round'] / statistics.median(own['seconds']):,.0f} texts/s"]
    if (peer := found.get("sentence-transformers")) is not None:
        said.append(f"{ratio_and_range(peer['seconds'], own['seconds'])} times the peer's speed")
    said.append(f"{reached:.0%} of the product's speed")
    return {"said": ", ".join(said), "workers": workers, "share": reached, "measured": list(found.values())}


def encoding(setting: Setting) -> Pieces:
    """Texts a second of ``encode``, short and long, beside the peer at its best batch size."""
    works = {"short texts": (20_000, (4, 20)), "long texts": (4_000, (200, 300))}
    if setting.quick:
        works = {"short texts": (100, (4, 20))}
    precisions = ("float32",) if setting.quick else ("bfloat16", "float32")
    return {
        f"{name}, {precision}": partial(encoded, setting, *works[name], precision)
        for precision, name in itertools.product(precisions, works)
    }


def encoded(setting: Setting, count: int, words: tuple[int, int], precision: str) -> Row:
    """Measures both, of the shape of MiniLM-L6."""
    texts, folder = made_up_texts(count, words), setting.encoder("MiniLM-L6")
    works = {"ours": encode.ours(folder, precision, setting.device)}
    part = texts[: count // 4]
    if peer_is_there():
        sizes = {size: encode.theirs(folder, precision, setting.device, size) for size in PEER_SIZES}
        for each in sizes.values():
            each(texts[:64])
        taken = {size: encode.seconds_of(each, part, setting.device) for size, each in sizes.items()}
        best = min(taken, key=lambda size: taken[size])
        works[f"sentence-transformers, batches of {best}"] = sizes[best]
    works["ours"](part)
    turns = {name: partial(encode.seconds_of, each, texts, setting.device) for name, each in works.items()}
    found = take_turns(turns, setting.rounds)
    said = f"{count / statistics.median(found['ours']):,.0f} texts/s"
    for name in [*found][1:]:
        said += f", {ratio_and_range(found[name], found['ours'])} times the speed of {name}"
    return {"said": said, "texts": count, "seconds": found}


def losses(setting: Setting) -> Pieces:
    """NT-Xent over many rows, forward and backward, streamed and where it fits dense."""

    def measured(rows: int) -> Row:
        found = loss.times("NT-Xent", rows, setting.device, setting.rounds, ("streamed", "dense"))
        pair = loss.sides(rows, setting.device)
        peaks = {
            form: peak_of(partial(loss.step, loss.make("NT-Xent", form), *pair), setting.device) for form in found
        }
        said = [
            f"{form} {statistics.median(times) * 1e3:,.1f} ms, {peaks[form] / 2**20:,.0f} MiB"
            for form, times in found.items()
        ]
        if "dense" not in found:
            said.append("dense doesn't fit")
        return {"said": "; ".join(said), "rows": rows, "seconds": found, "bytes": peaks}

    return {f"{rows:,} rows": partial(measured, rows) for rows in ((256,) if setting.quick else (16_384, 65_536))}


def chunks(setting: Setting) -> Pieces:
    """Memory and time of a gradient by ``chunk_tokens``, of the shape of BERT-base in bfloat16."""
    rows, words, sizes = 256, (64, 126), (None, 32_768, 8_192, 2_048)
    if setting.quick:
        rows, words, sizes = 16, (8, 30), (None, 64)

    def measured(chunk_tokens: int | None) -> Row:
        module = module_of(setting.encoder("BERT-base"), chunk_tokens=chunk_tokens).to(setting.device)
        (batch,) = batches_of(module, setting.folder, made_up_texts(rows, words), rows)
        batch = batch.to(setting.device)
        work = partial(loss_and_gradient, module, batch, "bfloat16")
        work()
        taken = [seconds_of(work, setting.device) for _ in range(setting.rounds)]
        module.zero_grad(set_to_none=True)
        most = peak_of(work, setting.device)
        said = f"{most / 2**20:,.0f} MiB above the weights, {statistics.median(taken) * 1e3:,.0f} ms"
        return {"said": said, "texts": 2 * rows, "tokens": batch.ids.numel(), "bytes": most, "seconds": taken}

    return {"the whole batch" if size is None else f"{size:,} tokens": partial(measured, size) for size in sizes}


def compiled(setting: Setting) -> Pieces:
    """Compiled blocks: their gradient, and their time over batches of several lengths."""
    # A smoke run is one of what goes around the compiler.
    stance: Callable[[], AbstractContextManager[object]] = (
        partial(torch.compiler.set_stance, "force_eager") if setting.quick else nullcontext
    )

    def measured(precision: str) -> Row:
        rows = 8 if setting.quick else 128
        texts = [text for words in ((4, 12), (20, 40), (40, 60)) for text in made_up_texts(rows, words)]
        ways = {
            name: module_of(
                setting.encoder("MiniLM-L6"), dropout=0.0, layout="padded", compiled=name == "compiled"
            ).to(setting.device)
            for name in ("compiled", "padded")
        }
        own, plain = ways.values()
        batches = [each.to(setting.device) for each in batches_of(plain, setting.folder, texts, rows)]

        def work(module: torch.nn.Module) -> None:
            for batch in batches:
                loss_and_gradient(module, batch, precision)  # type: ignore[arg-type]  # one of the two

        with stance():
            for module in ways.values():
                work(module)
            apart = far(own, plain)
            found = take_turns(
                {name: partial(seconds_of, partial(work, each), setting.device) for name, each in ways.items()},
                setting.rounds,
            )
        said = f"{ratio_and_range(found['padded'], found['compiled'])} times the speed of the same not compiled"
        return {"said": f"{said}; gradients {apart:.0e} apart", "apart": apart, "seconds": found}

    return {precision: partial(measured, precision) for precision in ("float32", "bfloat16")}


def far(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Returns the greatest difference of two gradients, as a share of the greatest entry of the second."""
    pairs = [
        (a.grad.double(), b.grad.double())
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
        if a.grad is not None and b.grad is not None
    ]
    most = max(float(b.abs().max()) for _, b in pairs)
    return max(float((a - b.to(a.device)).abs().max()) for a, b in pairs) / most
