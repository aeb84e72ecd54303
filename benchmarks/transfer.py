"""Scores a model on transfer tasks, with both classifiers and both protocols, and times it.

    python benchmarks/transfer.py --data FOLDER

The folder has data sets as ``evaluation.senteval_data`` finds them; those that it lacks are left out.
The vectors are encoded first, into a folder that a second run starts from: what it takes is the reading of files
and of vectors, and the classifiers, whose time is that of the processor.

A part of the tasks: ``--tasks CR TREC``. A smoke run without data: ``--quick``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from inputs import encoder_name, installed_encoder, made_up_texts, tiny_encoder
from machines import machine
from runs import RESULTS, markdown, publish
from timing import parser

from contrastive_text import SentenceEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.results import ScoreTable
from contrastive_text.evaluation.senteval import SIMCSE_TASKS, transfer_scores
from contrastive_text.evaluation.senteval_data import TRANSFER_TASKS, LabeledTexts, transfer_data

Row = dict[str, Any]  # Any: names and figures


def write_made_up(folder: Path, texts: Sequence[str]) -> None:
    """Writes MR and TREC whose classes are those of the texts' first letters."""
    rows = [f"{int(text[0] > 'd')}\t{text}" for text in texts]
    parts = {"mr": rows, "trec.train": rows[::2], "trec.test": rows[1::2]}
    for name, lines in parts.items():
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext", *lines, ""]))


def vectors(encoder: str, device: str, data: Path, cache: Path, tasks: Sequence[str]) -> Row:
    """Encodes all texts with a new model; gives the seconds, and how many went through it."""
    embed = CachedEncoder(SentenceEncoder.from_pretrained(encoder, device=device), cache)
    begun = time.perf_counter()
    for task in tasks:
        found = transfer_data(task, data)
        if isinstance(found, LabeledTexts):
            for side in found.sides:
                embed(side)
    return {"seconds": time.perf_counter() - begun, "encoded": embed.encoded}


def measure(encoder: str, device: str, data: Path, cache: Path, tasks: Sequence[str]) -> list[Row]:
    """Scores the tasks with every classifier and protocol, from the vectors in the folder."""
    embed = CachedEncoder(SentenceEncoder.from_pretrained(encoder, device=device), cache)
    rows = []
    for classifier, engine in CLASSIFIERS.items():
        for protocol, setting in PROTOCOLS.items():
            scores, seconds = [], {}
            for task in tasks:
                begun = time.process_time()
                scores += transfer_scores(embed, data, setting, engine, tasks=(task,))
                seconds[task] = time.process_time() - begun
            rows.append({"name": f"{classifier}, {protocol}", "scores": scores, "seconds": seconds})
            print(rows[-1]["name"], f"{sum(seconds.values()):.1f} s", flush=True)
    assert embed.encoded == 0, "a second run has encoded texts"
    return rows


def main() -> None:
    """Measures and writes the dated tables."""
    own = parser(__doc__)
    own.add_argument("--data", type=Path, help="folder of data sets")
    own.add_argument("--tasks", nargs="+", choices=TRANSFER_TASKS, default=list(TRANSFER_TASKS))
    options = own.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as made:
        data, encoder = options.data, options.encoder
        if options.quick:
            texts = made_up_texts(120)
            write_made_up(Path(made), texts)
            data, encoder, options.tasks = Path(made), tiny_encoder(Path(made), texts), ["MR", "TREC"]
        elif data is None:
            own.error("--data FOLDER is needed, or --quick")
        encoder = encoder or installed_encoder()
        place = (encoder, options.device, data, (options.keep or Path(made)) / "vectors", options.tasks)
        first, second = vectors(*place), vectors(*place)
        rows = measure(*place)
    table = ScoreTable(
        "accuracy", {row["name"]: row["scores"] for row in rows}, [t for t in SIMCSE_TASKS if t in options.tasks]
    )
    found = [score.task for score in rows[0]["scores"] if not score.missing]
    lines = [
        "# Transfer tasks",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}.",
        f"{first['encoded']:,} distinct texts were encoded in {first['seconds']:.1f} s; a second run read their",
        f"vectors in {second['seconds']:.1f} s and encoded {second['encoded']}. The mean is over SimCSE's",
        "tasks. Written by `benchmarks/transfer.py`.",
        "",
        table.markdown().replace(str(data), "the folder"),
        "",
        "## Seconds of one core, from the vectors of the first run",
        "",
        *markdown(
            ["classifier, protocol", *found, "all"],
            [
                [row["name"], *(f"{row['seconds'][t]:.1f}" for t in found), f"{sum(row['seconds'].values()):.1f}"]
                for row in rows
            ],
        ),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    kept = [
        {"name": row["name"], "seconds": row["seconds"], "scores": {s.task: s.score for s in row["scores"]}}
        for row in rows
    ]
    print(publish("transfer", lines, [first, second, *kept], vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
