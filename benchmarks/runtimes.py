"""Measures encoding by torch, onnxruntime and OpenVINO, short and long texts, turn by turn, and what int8 loses.

    python benchmarks/runtimes.py --data FOLDER

The folder has ``sts`` and ``documents``. Short texts are sentences of STS, long ones pieces of WikiText-2 of 200
words, some 256 tokens. Scores are Spearman's correlation on STS-B's test rows. By hand is the runtime on
the same graph in a short program: texts sorted by length, batches of 16 and of 64, the mean, unit length. After
the rounds a profile says where the time goes, ours and by hand.

A smoke run without data: ``--quick``. Some contenders alone: ``--contenders torch,float32 onnx,int8``.
"""

from __future__ import annotations

import cProfile
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from encode import Encode, cosines, seconds_of
from inputs import (
    describe_lengths,
    draw,
    encoder_name,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from machines import machine, needs
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns
from tokenizers import Tokenizer
from torchmetrics.functional import spearman_corrcoef

CONTENDERS = (
    "torch,float32",
    "torch,bfloat16",
    "onnx,float32",
    "onnx,int8",
    "openvino,float32",
    "openvino,bfloat16",
    "openvino,int8",
)
BY_HAND = (16, 64)
"""Texts of a batch by hand: as many as ours has in a block of rows, and a common number."""
STAGES = {
    "TextTokenizer.tokenize_with_template": "tokenizing",
    "<method 'encode_batch' of 'tokenizers.Tokenizer' objects>": "tokenizing",
    "OnnxRuntime.__call__": "the graph",
    "OpenVINORuntime.__call__": "the graph",
    "MeanPooler.forward": "pooling",
}
"""Functions whose time is told; by hand, pooling is some lines among others."""
STAGE_NAMES = (*dict.fromkeys(STAGES.values()), "all else")


def long_texts(folder: Path, count: int, words: int = 200) -> list[str]:
    """Returns pieces of WikiText-2 of so many words, 256 tokens or nearly so."""
    with gzip.open(folder / "documents" / "wikitext2.train.jsonl.gz", "rt", encoding="utf-8") as lines:
        stream = [word for line in lines for word in json.loads(line)["text"].split()]
    return draw([" ".join(stream[i : i + words]) for i in range(0, len(stream) - words, words)], count)


def by_hand(folder: str, backend: str, precision: str, batch_size: int) -> Encode:
    """Returns a short program that has a runtime encode: what a user of its graph would write."""
    from contrastive_text import SentenceEncoder

    model = SentenceEncoder.from_pretrained(folder, backend=backend, dtype=getattr(torch, precision))
    assert model.runtime is not None
    session = model.runtime.open_runtime((-1,))
    tokenizer = Tokenizer.from_str(model.encoder.tokenizer.backend_tokenizer.to_str())
    tokenizer.enable_truncation(model.max_length)
    tokenizer.no_padding()

    def encode(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        rows = [each.ids for each in tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        vectors = np.empty((len(rows), model.encoder.features), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids = np.zeros((len(chosen), len(rows[chosen[0]])), dtype=np.int64)
            mask = np.zeros_like(ids)
            for place, i in enumerate(chosen):
                ids[place, : len(rows[i])], mask[place, : len(rows[i])] = rows[i], 1
            (hidden,) = session(ids, mask)
            mean = (hidden * mask[:, :, None].astype(np.float32)).sum(1)
            vectors[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors

    return encode


def ours(folder: str, backend: str, precision: str) -> Encode:
    """Returns our ``encode``, as it is by default."""
    from contrastive_text import SentenceEncoder

    model = SentenceEncoder.from_pretrained(
        folder, backend=backend, dtype=getattr(torch, precision), device="cpu"
    )
    return lambda texts: np.asarray(model.encode(texts))


def stsb(folder: Path) -> tuple[list[str], list[float]]:
    """Returns the sentences of STS-B's test rows, all first ones and then all second ones, and their scores."""
    with (folder / "sts" / "stsb.test.tsv").open(encoding="utf-8") as lines:
        head = next(lines).rstrip("\n").split("\t")
        rows = [dict(zip(head, line.rstrip("\n").split("\t"), strict=True)) for line in lines]
    sentences = [row[column] for column in ("sentence1", "sentence2") for row in rows]
    return sentences, [float(row["score"]) for row in rows]


def score(vectors: npt.NDArray[np.float32], gold: Sequence[float]) -> float:
    """Returns Spearman's correlation x 100 of cosines with scores."""
    found = cosines(vectors[: len(gold)], vectors[len(gold) :])
    return 100 * float(spearman_corrcoef(torch.from_numpy(found), torch.tensor(gold, dtype=torch.float64)))


def stages(encode: Encode, texts: Sequence[str]) -> dict[str, float]:
    """Returns the seconds of each stage of an encoding and of all else, and how often each was called.

    Example:
        >>> found = stages(lambda texts: np.zeros((1, 1), np.float32), ["a"])
        >>> found["the graph"], found["calls of the graph"]
        (0.0, 0)
    """
    found = {name: 0.0 for stage in STAGES.values() for name in (stage, f"calls of {stage}")}
    watch = cProfile.Profile()
    begun = time.perf_counter()
    watch.runcall(encode, texts)
    found["all else"] = time.perf_counter() - begun
    for each in watch.getstats():
        stage = STAGES.get(each.code if isinstance(each.code, str) else each.code.co_qualname)
        if stage is not None:
            found[stage] = max(found[stage], each.totaltime)  # one may call the other
            found[f"calls of {stage}"] = max(found[f"calls of {stage}"], each.callcount)
    found["all else"] -= sum(found[stage] for stage in set(STAGES.values()))
    return found


def hand(name: str, batch_size: int) -> str:
    """Returns what a contender by hand is called."""
    return f"{name} by hand, {batch_size} at once"


def stage_table(found: Mapping[str, Any]) -> list[str]:  # Any: figures and names
    """Returns the table of where the time goes, and of ours against each program by hand."""
    lines = []
    for kind, each in found["stages"].items():
        for name, rounds in each.items():
            spent = {stage: statistics.median(one[stage] for one in rounds) for stage in rounds[0]}
            seconds = found["rows"][name][kind]
            ours = found["rows"][name.partition(" by hand")[0]][kind]
            lines.append(
                [
                    kind,
                    name,
                    "" if ours is seconds else ratio_and_range(seconds, ours),
                    *(f"{spent[stage]:.3f}" for stage in STAGE_NAMES),
                    f"{spent['calls of the graph']:.0f}",
                ]
            )
    header = ["texts", "contender", "ours against it", *(f"{stage}, s" for stage in STAGE_NAMES)]
    return markdown([*header, "calls of the graph"], lines)


def table(found: Mapping[str, Any]) -> list[str]:  # Any: figures and names
    """Returns the table of all contenders."""
    lines = []
    for name, row in found["rows"].items():
        cells = [name]
        for kind in ("short", "long"):
            seconds = row[kind]
            cells.append(f"{found[kind] / statistics.median(seconds):,.0f}")
            cells += [ratio_and_range(found["rows"][base][kind], seconds) for base in found["bases"]]
        agreed, points = row.get("cosines"), row.get("stsb")
        cells.append("" if agreed is None else f"{agreed[0]:.6f}, {agreed[1]:.6f}")
        cells.append("" if points is None else f"{points:.2f}")
        lines.append(cells)
    header = ["contender"]
    for kind in ("short", "long"):
        header += [f"{kind}, texts/s", *(f"x {base}" for base in found["bases"])]
    return markdown([*header, "cosine to torch,float32: mean, lowest", "STS-B test"], lines)


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__, rounds=3)
    own.add_argument("--data", type=Path, help="folder with sts and documents")
    own.add_argument("--sentences", type=int, default=1500, help="short texts; of long ones a twelfth")
    own.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    options = own.parse_args()
    needs("onnx", "onnxscript", "onnxruntime", "openvino")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            options.sentences, options.rounds = 120, min(options.rounds, 2)
            short = made_up_texts(options.sentences)
            long = [" ".join(short[i : i + 9]) for i in range(0, 90, 9)]
            encoder, scored = tiny_encoder(Path(made), short), (short, [float(i) for i in range(len(short) // 2)])
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            short = draw(sts_texts(options.data / "sts"), options.sentences)
            long = long_texts(options.data, options.sentences // 12)
            encoder, scored = options.encoder or installed_encoder(), stsb(options.data)
        names = dict.fromkeys(["torch,float32", *options.contenders])
        encoders = {name: ours(encoder, *name.split(",")) for name in names}
        vectors = {name: encode(scored[0]) for name, encode in encoders.items()}  # also warms up
        for name in names:
            for size in BY_HAND if not name.startswith("torch") else ():
                encoders[hand(name, size)] = by_hand(encoder, *name.split(","), batch_size=size)
                encoders[hand(name, size)](short[:64])
        texts = {"short": short, "long": long}
        works = {
            f"{kind}|{name}": partial(seconds_of, encode, texts[kind], "cpu")
            for name, encode in encoders.items()
            for kind in texts
        }
        times = take_turns(works, options.rounds)
        run = [name for name in encoders if not name.startswith("torch")]
        watched = {
            f"{kind}|{name}": partial(stages, encoders[name], texts[kind]) for kind in texts for name in run
        }
        spent = take_turns(watched, options.rounds)
        limit = 256
        lengths = {kind: lengths_of(each, encoder, limit) for kind, each in texts.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name in encoders:
        rows[name] = {kind: times[f"{kind}|{name}"] for kind in texts}
        if name in vectors:
            agreed = cosines(vectors[name], vectors["torch,float32"])
            rows[name]["cosines"] = [float(agreed.mean()), float(agreed.min())]
            rows[name]["stsb"] = score(vectors[name], scored[1])
    bases = [name for name in ("torch,float32", "torch,bfloat16") if name in rows]
    found = {
        "rows": rows,
        "bases": bases,
        **{kind: len(each) for kind, each in texts.items()},
        "stages": {kind: {name: spent[f"{kind}|{name}"] for name in run} for kind in texts},
    }
    lines = [
        "# Encoding by a runtime",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, 'cpu')}.",
        f"{options.rounds} rounds over all texts, the contenders taking turns; ratios are medians of the rounds'",
        "ratios (lowest to highest), above 1 where the contender is the faster one. Written by",
        "`benchmarks/runtimes.py`.",
        "",
        *table(found),
        "",
        *(
            f"- {kind.capitalize()}, sorted: {describe_lengths(sorted(lengths[kind], reverse=True), size)}."
            for kind in texts
            for size in BY_HAND
        ),
        "",
        "## Where the time goes",
        "",
        f"Medians of {options.rounds} passes over the same texts under Python's profiler. All else is batches,",
        "their order and unit length, and by hand pooling too.",
        "",
        *stage_table(found),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("runtimes", lines, [found], vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
