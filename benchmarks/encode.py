"""Measures encoding of mixed sentences: ours and sentence-transformers at its best batch size, turn by turn.

    python benchmarks/encode.py --data FOLDER

The folder has ``sts``, ``nli``, ``unlabeled`` and ``documents``; of these 4,000 STS sentences, 3,000 of inference
pairs, 3,000 of English Wikipedia and 500 paragraphs of 60 words or more are drawn, 10,500 in random order. The
peer's batch size is chosen first, for each precision, on a part of them; ours is its default. bfloat16 means
bfloat16 weights for both. After the rounds a profile of ours says where its time goes.

A smoke run without data: ``--quick``. One precision alone: ``--precisions float32``. Long texts alone:
``--words 100 300``, with more ``--sentences``, of which one in 21 is a long paragraph.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from inputs import (
    Shape,
    column_texts,
    describe_lengths,
    draw,
    encoder_name,
    forward_flops,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from machines import machine, matmul_speed, needs, synchronize
from profiles import Profile, Shares, section
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = (16, 32, 64, 128, 256)
"""Batch sizes of which the peer's best is taken."""
LONG_WORDS = 60
"""Words from which a paragraph counts as long."""

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]


def mixed_texts(folder: Path, count: int) -> tuple[list[str], str]:
    """Returns some 10,500 texts, or a like mixture of another size, and what they are."""
    nli = column_texts(folder / "nli" / "snli_sample.train.tsv", ("premise", "hypothesis"))
    wikipedia = column_texts(folder / "unlabeled" / "wiki1m_head.tsv.gz", ("sentence",))
    with gzip.open(folder / "documents" / "wikitext2.train.jsonl.gz", "rt", encoding="utf-8") as lines:
        paragraphs = [text for line in lines for text in json.loads(line)["text"].split("\n")]
    sources = {
        "STS12, 14, 15 and STS-B": (40, sts_texts(folder / "sts")),
        "SNLI": (30, list(dict.fromkeys(nli))),
        "English Wikipedia": (30, list(dict.fromkeys(wikipedia))),
        f"paragraphs of WikiText-2 of {LONG_WORDS} words or more": (
            5,
            list(dict.fromkeys(text for text in paragraphs if len(text.split()) >= LONG_WORDS)),
        ),
    }
    parts = {name: draw(texts, count * share // 105) for name, (share, texts) in sources.items()}
    texts = [text for part in parts.values() for text in part]
    return draw(texts, len(texts), seed=1), ", ".join(f"{len(part):,} {name}" for name, part in parts.items())


def ours(folder: str, precision: str, device: str) -> Encode:
    """Returns our ``encode``, as it is by default."""
    from contrastive_text import SentenceEncoder

    model = SentenceEncoder.from_pretrained(folder, device=device, dtype=DTYPES[precision])
    return lambda texts: np.asarray(model.encode(texts))


def theirs(folder: str, precision: str, device: str, batch_size: int) -> Encode:
    """Returns the peer's ``encode`` at a batch size."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device=device, model_kwargs={"dtype": DTYPES[precision]})
    return lambda texts: np.asarray(
        model.encode(list(texts), batch_size=batch_size, show_progress_bar=False), dtype=np.float32
    )


def seconds_of(encode: Encode, texts: Sequence[str], device: str) -> float:
    """Returns the seconds that encoding takes."""
    begun = time.perf_counter()
    encode(texts)
    synchronize(device)
    return time.perf_counter() - begun


def best_size(folder: str, precision: str, texts: Sequence[str], device: str) -> tuple[int, dict[int, float]]:
    """Returns the batch size at which the peer is fastest, and texts a second at each."""
    works = {size: theirs(folder, precision, device, size) for size in SIZES}
    for encode in works.values():
        encode(texts[:64])
    named = {str(size): partial(seconds_of, encode, texts, device) for size, encode in works.items()}
    found = take_turns(named, rounds=2)
    speeds = {int(size): len(texts) / min(times) for size, times in found.items()}
    return max(speeds, key=lambda size: speeds[size]), speeds


def cosines(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Returns the cosine of each row with the same row of the other, in float64, (N, D) twice -> (N,).

    Example:
        >>> cosines(np.array([[1, 0], [3, 4]], np.float32), np.array([[0, 1], [3, 4]], np.float32)).tolist()
        [0.0, 1.0]
    """
    a, b = (each.astype(np.float64) for each in (one, other))
    product: npt.NDArray[np.float64] = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return product


def watched(encode: Encode, texts: Sequence[str], device: str) -> Shares:
    """Returns the shares of an encoding's operations."""
    encode(texts[:64])
    noted = Profile(device)
    with noted.watched():
        encode(texts)
    return noted.shares()


def measure(options: Any, texts: Sequence[str], encoder: str) -> dict[str, Any]:  # Any: argparse's; figures
    """Measures all precisions together."""
    few, device = texts[: options.sample], options.device
    sizes: dict[str, dict[int, float]] = {}
    encoders: dict[str, Encode] = {}
    for precision in options.precisions:
        best, sizes[precision] = best_size(encoder, precision, few, device)
        encoders[f"ours, {precision}"] = ours(encoder, precision, device)
        encoders[f"sentence-transformers, {precision}, batches of {best}"] = theirs(
            encoder, precision, device, best
        )
    vectors = {name: encode(few) for name, encode in encoders.items()}  # also warms up
    works: dict[str, Callable[[], float]] = {
        name: partial(seconds_of, encode, texts, device) for name, encode in encoders.items()
    }
    for precision in options.precisions:
        works[f"product, {precision}"] = partial(matmul_speed, DTYPES[precision], device)
    found = take_turns(works, options.rounds)
    lengths = lengths_of(texts, encoder, limit_of(encoder))
    flops = forward_flops(Shape.of(encoder), lengths)
    base = next(name for name in vectors if name.startswith("sentence-transformers"))
    rows = []
    for name in encoders:
        precision = name.split(", ")[1]
        agreed = cosines(vectors[name], vectors[base])
        rows.append(
            {
                "contender": name,
                "precision": precision,
                "seconds": found[name],
                "product FLOP/s": found[f"product, {precision}"],
                "lowest cosine": float(agreed.min()),
                "mean cosine": float(agreed.mean()),
            }
        )
    profiles = {
        name: watched(encode, few, device) for name, encode in encoders.items() if name.startswith("ours")
    }
    return {
        "rows": rows,
        "texts": len(texts),
        "tokens": sum(lengths),
        "flops": flops,
        "cosines with": base,
        "peer's batch sizes, texts/s": sizes,
        "profiles": profiles,
        "lengths": describe_lengths(lengths, 32),
        "tokenizing": tokenizing(encoder, texts),
    }


def limit_of(encoder: str) -> int:
    """Returns the length at which a model cuts texts."""
    from contrastive_text import SentenceEncoder

    return SentenceEncoder.from_pretrained(encoder, device="cpu").max_length or 10**6


def tokenizing(encoder: str, texts: Sequence[str]) -> float:
    """Returns the seconds that our tokenizer takes for all texts."""
    from contrastive_text import SentenceEncoder

    tokenizer = SentenceEncoder.from_pretrained(encoder, device="cpu").tokenizer
    begun = time.perf_counter()
    tokenizer(texts)
    return time.perf_counter() - begun


def table(found: Mapping[str, Any]) -> list[str]:  # Any: figures and names
    """Returns the table of all contenders."""
    rows = found["rows"]
    own = {row["precision"]: row["seconds"] for row in rows if row["contender"].startswith("ours")}
    lines = []
    for row in rows:
        seconds = statistics.median(row["seconds"])
        reached = [found["flops"] / s / f for s, f in zip(row["seconds"], row["product FLOP/s"], strict=True)]
        lines.append(
            [
                row["contender"],
                f"{found['texts'] / seconds:,.0f}",
                f"{found['tokens'] / seconds:,.0f}",
                *(ratio_and_range(row["seconds"], times) for times in own.values()),
                f"{statistics.median(reached):.0%}",
                f"{row['lowest cosine']:.6f}",
            ]
        )
    faster = [f"ours in {precision} is faster by" for precision in own]
    header = ["contender", "texts/s", "tokens/s", *faster, "share of the product's speed", "lowest cosine"]
    return markdown(header, lines)


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__)
    own.add_argument("--data", type=Path, help="folder with sts, nli, unlabeled and documents")
    own.add_argument("--sentences", type=int, default=10_500)
    own.add_argument("--sample", type=int, default=1500, help="sentences for choosing the batch size and cosines")
    own.add_argument("--words", type=int, nargs=2, metavar=("FEWEST", "MOST"), help="only texts of so many words")
    own.add_argument("--precisions", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    options = own.parse_args()
    needs("sentence-transformers")
    torch.set_num_threads(options.threads)
    if options.quick:
        options.sentences, options.sample, options.rounds = 400, 100, min(options.rounds, 2)
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            texts, said = made_up_texts(options.sentences), f"{options.sentences} made-up texts"
            encoder = tiny_encoder(Path(made), texts)
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            texts, said = mixed_texts(options.data, options.sentences)
            encoder = options.encoder or installed_encoder()
        if options.words:
            fewest, most = options.words
            texts = [text for text in texts if fewest <= len(text.split()) <= most]
            said += f"; of these {len(texts):,} of {fewest} to {most} words"
        found = measure(options, texts, encoder)
    products = {row["precision"]: statistics.median(row["product FLOP/s"]) / 1e9 for row in found["rows"]}
    lines = [
        "# Encoding",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}.",
        f"{options.rounds} rounds over all texts, the contenders taking turns; ratios are medians of the rounds'",
        "ratios (lowest to highest). Written by `benchmarks/encode.py`.",
        "",
        *table(found),
        "",
        f"Texts: {said}. {found['lengths']}. Cosines are those of the first {options.sample:,} vectors with",
        f"{found['cosines with']}. The share is that of the forward FLOPs of tokens without padding at the speed",
        f"of a square product ({', '.join(f'{name} {speed:,.0f} GFLOP/s' for name, speed in products.items())}).",
        f"Tokenizing all texts alone takes {found['tokenizing']:.2f} s.",
        "",
        "## The peer's batch sizes, texts a second",
        "",
        *markdown(
            ["precision", *map(str, SIZES)],
            [
                [precision, *(f"{each[size]:,.0f}" for size in SIZES)]
                for precision, each in found["peer's batch sizes, texts/s"].items()
            ],
        ),
        *section(found["profiles"], "a pass over the sample"),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    what = "-".join(["encode", *(map(str, options.words) if options.words else [])])
    print(publish(what, lines, [found], vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
