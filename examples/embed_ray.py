"""Embeds Parquet files on many machines with Ray Data. Writes each file of IN to OUT, with a column of vectors.

    python embed_ray.py IN OUT --model my-model --workers 8 --gpus 1

Each file of OUT is written whole or not at all. If the command is killed, run it again: it continues with the
missing files. All machines must see the folders IN and OUT. Needs pip install 'contrastive-text[ray]'.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import ray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, find_cause
from contrastive_text.core.storage.disk import atomic_file, lock_output, remove_abandoned
from contrastive_text.inference import BatchEncoder

KEY = b"contrastive_text"
"""Key of a file's metadata that records the model, the column and the input of its vectors."""


class FileEncoder:
    """Worker that loads a model once and encodes file after file."""

    rows = 4096  # rows that are read, encoded and written together

    def __init__(self, model: str, column: str, identity: str | None) -> None:
        self.model = model
        self.column = column
        self.identity = identity
        self.encode: BatchEncoder | None = None

    def loaded(self) -> BatchEncoder:
        """Returns the encoder. Loads it at the first file, so that an error reaches the main process."""
        if self.encode is None:
            self.encode = BatchEncoder(self.model, self.column)
        if self.identity not in (None, self.encode.model.identity):
            raise InvalidValueError(
                f"{self.model}: expected the model that made the files, got a different model; name another "
                "folder for this model"
            )
        return self.encode

    def __call__(self, batch: dict) -> dict:
        """Encodes the single file of a batch and returns its number of rows."""
        (source,), (target,) = (map(Path, batch[name]) for name in ("source", "target"))
        encode = self.loaded()
        made_of = {"model": encode.model.identity, "column": self.column, "bytes": source.stat().st_size}
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent)
        with pyarrow.parquet.ParquetFile(source) as parquet, atomic_file(target) as file:
            schema = encode(parquet.schema_arrow.empty_table()).schema
            schema = schema.with_metadata({**(schema.metadata or {}), KEY: json.dumps(made_of).encode()})
            with pyarrow.parquet.ParquetWriter(file, schema) as writer:
                for rows in parquet.iter_batches(self.rows):
                    writer.write_table(encode(pyarrow.Table.from_batches([rows])))
        return {"rows": [parquet.metadata.num_rows]}


def files_of(source: Path, target: Path, column: str) -> dict[Path, Path]:
    """Returns a dict of input file to output file. All input files have the column."""
    if target.resolve().is_relative_to(source.resolve()):
        raise InvalidValueError(f"{target}: expected a folder outside of {source}, which is read; name another")
    files = {path: target / path.relative_to(source) for path in sorted(source.rglob("*.parquet"))}
    if not files:
        raise InvalidValueError(
            f"{source}: expected a folder with files .parquet, got no such file; check its name"
        )
    for path in files:
        if column not in (names := pyarrow.parquet.read_schema(path).names):
            raise InvalidValueError(f"{path}: expected a column {column!r}, got {', '.join(names)}; see --column")
    return files


def check_digests(source: Path, target: Path, column: str) -> str:
    """Checks that an existing output file was made from its input file, and returns the identity of its model."""
    written = pyarrow.parquet.read_metadata(target)
    made_of = json.loads((written.metadata or {}).get(KEY, b"{}"))
    known = (made_of.get("column"), made_of.get("bytes"), written.num_rows)
    asked = (column, source.stat().st_size, pyarrow.parquet.read_metadata(source).num_rows)
    if known != asked:
        raise InvalidValueError(
            f"{target}: expected a file made of {source} (column, bytes, rows: {asked}), got {known}; delete it"
        )
    return str(made_of["model"])


def embed(options: argparse.Namespace, worker: type[FileEncoder]) -> None:
    """Encodes the missing output files, on an existing cluster or on this machine."""
    files = files_of(options.source, options.target, options.column)
    models = {check_digests(*each, options.column) for each in files.items() if each[1].exists()}
    if len(models) > 1:
        raise InvalidValueError(f"{options.target}: expected files of one model, got several; delete the others")
    left = [{"source": str(each), "target": str(target)} for each, target in files.items() if not target.exists()]
    print(f"{len(files) - len(left):,} of {len(files):,} files are there", flush=True)
    if not left:
        return
    start(options)
    workers = ray.data.ActorPoolStrategy(size=min(options.workers, len(left)))
    done = ray.data.from_items(left, override_num_blocks=len(left)).map_batches(
        worker,
        fn_constructor_args=[options.model, options.column, *(models or {None})],
        batch_size=1,
        compute=workers,
        num_cpus=options.cpus,
        num_gpus=options.gpus or None,
    )
    rows = sum(pyarrow.parquet.read_metadata(each["source"]).num_rows for each in left)
    columns = TextColumn("Encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as bar:
        task = bar.add_task("Encoding", total=rows)
        for file in done.iter_batches(batch_size=None):
            bar.advance(task, int(file["rows"].sum()))
    print(f"{rows:,} rows of {len(left):,} files written to {options.target}")


def start(options: argparse.Namespace) -> None:
    """Connects to a Ray cluster, or starts Ray on this machine alone."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    if ray.is_initialized():
        return
    if options.address is not None:
        ray.init(address=options.address)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, options.workers * options.cpus),
        include_dashboard=False,
        object_store_memory=100 * 2**20,  # it holds only names of files
        _node_ip_address="127.0.0.1",
    )


def main(words: list[str] | None = None, worker: type[FileEncoder] = FileEncoder) -> int:
    """Reads the options and encodes; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN", type=Path)
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--model", required=True, help="folder, which all machines see, or hub name")
    parser.add_argument("--column", default="text", help="of the texts")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with the model")
    parser.add_argument("--cpus", type=int, default=1, help="of each of them")
    parser.add_argument("--gpus", type=float, default=0, help="of each of them")
    parser.add_argument(
        "--address", default=os.environ.get("RAY_ADDRESS"), help="of a cluster, or auto; this machine without"
    )
    options = parser.parse_args(words)
    options.source, options.target = options.source.resolve(), options.target.resolve()  # as workers see them
    options.model = str(Path(options.model).resolve()) if Path(options.model).exists() else options.model
    try:
        options.target.mkdir(parents=True, exist_ok=True)
        with lock_output(options.target):
            embed(options, worker)
    except Exception as error:
        if (said := find_cause(error, ContrastiveTextError)) is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
