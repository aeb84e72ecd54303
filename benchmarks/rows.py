"""Measures time and memory of many rows before the first step, and compares the batches of all row formats.

Rows are real pairs, repeated with a small edit: a number after the anchor, and after every other positive.
Each size is a run of its own, in one process or in two; anonymous memory is ``RssAnon`` of ``/proc/self/status``
at the first step, the most of all processes, and its peak before. The first run of a size writes the mapped rows,
the second finds them.

    python benchmarks/rows.py PAIRS.tsv --rows 10000000 --processes 1 2
    python benchmarks/rows.py PAIRS.tsv --forms 100000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

BEFORE = 100_000
"""Rows that others are held beside."""


def anonymous() -> float:
    """Returns this process's anonymous memory in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def pairs(path: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yields so many different pairs."""
    with path.open(encoding="utf-8") as file:
        real = [tuple(line.rstrip("\n").split("\t")[:2]) for line in islice(file, 1, None)]
    for number, (one, other) in enumerate(islice(cycle(real), count)):
        yield f"{one} {number}", f"{other} {number // 2}" if number % 2 else other


def write(path: Path, source: Path, count: int) -> None:
    """Writes pairs as ``.tsv``."""
    with path.open("w", encoding="utf-8") as file:
        file.write("anchor\tpositive\n")
        file.writelines(f"{one}\t{other}\n" for one, other in pairs(source, count))


def train(options: argparse.Namespace) -> None:
    """Trains one step and writes what it took; Lightning starts this again for a second process."""
    start = time.perf_counter()
    import pytorch_lightning as pl
    import torch

    from contrastive_text import ContrastiveModule, TextDataModule
    from contrastive_text.data import TextTask
    from contrastive_text.pairings import Given

    torch.set_num_threads(1)
    imported, peak, ended = anonymous(), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], anonymous())

    threading.Thread(target=watch, daemon=True).start()

    class Measure(pl.Callback):
        """Notes time and memory when the first batch has come."""

        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            data.facts()  # as the summary of a run has them
            ended.set()
            found = {"seconds": time.perf_counter() - start, "imported": imported, "memory": anonymous()}
            found["peak"] = max(peak[0], found["memory"])
            Path(f"{options.report}.{trainer.global_rank}").write_text(json.dumps(found), encoding="utf-8")

    module = ContrastiveModule.from_recipe("simcse/sup", encoder(Path(options.cache)))
    data = TextDataModule(options.file, task=TextTask(pairing=Given()), batch_size=64, cache_dir=options.cache)
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", devices=options.train, logger=False, enable_checkpointing=False,
        strategy="ddp" if options.train > 1 else "auto", enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, callbacks=[Measure()],
    )  # fmt: skip
    trainer.fit(module, data)


def encoder(folder: Path) -> Any:
    """Returns a small random BERT, made in the folder if it isn't there."""
    from transformers import BertConfig, BertModel

    from contrastive_text.data import learn_vocabulary

    place = folder / "encoder"
    if not (place / "config.json").is_file():
        words = [
            "a man is playing a guitar",
            "what is the best way to learn",
            "0 1 2 3 4 5 6 7 8 9 k z q x w v j u",
        ]
        learn_vocabulary(words, vocabulary_size=300).save_pretrained(place)
        config = BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        BertModel(config, add_pooling_layer=False).save_pretrained(place)
    return str(place)


def measured(folder: Path, file: Path, processes: int) -> dict[str, float]:
    """Returns what a run of its own took: the most of all processes."""
    report = folder / "report"
    words = ["--train", str(processes), "--file", str(file), "--cache", str(folder), "--report", str(report)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    found = [json.loads(Path(f"{report}.{rank}").read_text(encoding="utf-8")) for rank in range(processes)]
    return {name: max(each[name] for each in found) for name in found[0]}


def sizes(options: argparse.Namespace, folder: Path) -> None:
    """Measures each size, and writes the table."""
    from runs import RESULTS, machine, markdown, publish

    encoder(folder)
    rows: list[dict[str, Any]] = []
    for count in (BEFORE, options.rows):
        write(folder / f"{count}.tsv", options.pairs, count)
        for number, processes in enumerate(options.processes):
            for run in ("first", "second") if number == 0 else ("second",):
                found = measured(folder, folder / f"{count}.tsv", processes)
                rows.append({"rows": count, "processes": processes, "run": run, **found})
                print(rows[-1], flush=True)
    header = ["rows", "processes", "run", "s to the first step", "MiB anonymous", "MiB at its peak"]
    cells = [
        [f"{row['rows']:,}", str(row["processes"]), row["run"], f"{row['seconds']:.1f}"]
        + [f"{row[name]:.0f}" for name in ("memory", "peak")]
        for row in rows
    ]
    lines = [
        "# Many rows", "", "A tiny encoder; the most of all processes. The first run writes the mapped rows.", "",
        *markdown(header, cells), "", machine(),
    ]  # fmt: skip
    print(publish("rows", lines, rows, vars(options), folder=options.results or RESULTS).name)


def forms(options: argparse.Namespace, folder: Path) -> None:
    """Checks that the batches of an epoch are the same in every form of the same rows."""
    import datasets
    import pandas
    import polars

    from contrastive_text import ContrastiveModule, TextDataModule
    from contrastive_text.data import TextTask
    from contrastive_text.pairings import Given

    rows = [{"anchor": one, "positive": other} for one, other in pairs(options.pairs, options.forms)]
    write(folder / "rows.tsv", options.pairs, options.forms)
    frame = pandas.DataFrame(rows)
    frame.to_parquet(folder / "rows.parquet")
    given = {
        "a file": str(folder / "rows.tsv"), "parquet": str(folder / "rows.parquet"), "dicts": rows,
        "tuples": [tuple(row.values()) for row in rows], "pandas": frame, "polars": polars.DataFrame(rows),
        "datasets": datasets.Dataset.from_list(rows),
    }  # fmt: skip
    module = ContrastiveModule.from_recipe("simcse/sup", encoder(folder))
    of_file = None
    for name, data in given.items():
        start = time.perf_counter()
        loaded = TextDataModule(data, task=TextTask(pairing=Given()), batch_size=500)
        loaded.set_module(module)
        loaded.setup("fit")
        digests = [
            hash(
                tuple(
                    repr(getattr(value, "tolist", lambda value=value: value)()) for value in vars(batch).values()
                )
            )
            for batch in loaded.train_dataloader()
        ]
        of_file = of_file or digests
        same = "the same batches" if digests == of_file else "OTHER BATCHES"
        seconds = time.perf_counter() - start
        print(f"{name}: {len(digests)} batches of {options.forms:,} rows, {same}, {seconds:.1f} s", flush=True)
        assert digests == of_file


def main() -> None:
    """Measures sizes, or compares forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pairs", type=Path, nargs="?", help="a .tsv with a header, whose first columns are two texts"
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--forms", type=int, help="compare the forms of so many rows")
    parser.add_argument("--folder", type=Path, help="where files go; a temporary folder by default")
    parser.add_argument("--results", type=Path, help="folder of the result; benchmarks/results by default")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    for name in ("--file", "--cache", "--report"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        (forms if options.forms else sizes)(options, Path(folder))


if __name__ == "__main__":
    main()
