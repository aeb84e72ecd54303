"""Helpers for benchmarks: stored results of finished cells, runs of the shell command, dated tables."""

from __future__ import annotations

import csv
import datetime
import fcntl
import json
import os
import platform
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from machines import processor_of, read_cpuinfo

from contrastive_text.cli import run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for benchmarks.mixtures in a configuration


def part(class_path: str, **init_args: object) -> dict[str, object]:
    """Returns a part as YAML names it."""
    return {"class_path": class_path, "init_args": init_args}


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds a file's lock, for which other processes wait; it ends with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keep(folder: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of a cell's folder; makes it where it isn't finished, in an empty folder.

    A process that asks for a cell at which another one is working waits for it.
    """
    kept = folder / "row.json"
    with held(folder):
        if not kept.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _write(kept, json.dumps(make()))
        row: dict[str, Any] = json.loads(kept.read_text())
        return row


def rows_of(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Returns the rows of the finished cells, whichever process made them, in the order of the folders."""
    kept = [folder / "row.json" for folder in folders]
    return [json.loads(path.read_text()) for path in kept if path.exists()]


def command(words: Sequence[str], names: Mapping[str, str] | None = None) -> str:
    """Returns a command to repeat.

    Args:
        words: What follows ``contrastive-text``.
        names: Folder -> what it is called instead.
    """
    said = shlex.join(["contrastive-text", *words])
    for folder, name in sorted((names or {}).items(), key=lambda item: -len(item[0])):
        said = said.replace(folder, name)
    return said


def do(words: Sequence[str]) -> int:
    """Prints a command, runs it and gives its seconds.

    Raises:
        SystemExit: It failed.
    """
    print(command(words), flush=True)
    begun = time.perf_counter()
    if run(words) != 0:
        raise SystemExit(f"the run failed; its command: {command(words)}")
    return round(time.perf_counter() - begun)


def in_folder(name: str, words: Sequence[str], folder: Path, seed: int | None = None) -> list[str]:
    """Returns the words of a command whose run is written into a folder."""
    seeded = [] if seed is None else ["--seed_everything", str(seed)]
    place = ["--trainer.default_root_dir", str(folder), "--trainer.enable_progress_bar", "false"]
    return [name, *words, *seeded, *place]


def logged(folder: Path, figure: str) -> list[float]:
    """Returns what the only run of a folder logged under a name, in order."""
    with next(folder.rglob("metrics.csv")).open() as lines:
        return [float(row[figure]) for row in csv.DictReader(lines) if row.get(figure)]


def learning_rate(name: str) -> float:
    """Returns the rate that a file of the benchmarks sets."""
    config = yaml.safe_load((ROOT / "benchmarks" / name).read_text())
    return float(config["model"]["optimizer"]["init_args"]["lr"])


def drop_weights(folder: Path) -> None:
    """Removes checkpoints and models."""
    for weights in (*folder.rglob("*.ckpt"), *folder.rglob("*.safetensors")):
        weights.unlink()


def mean_and_spread(values: Sequence[float]) -> str:
    """Returns the mean and, of several, the standard deviation.

    Example:
        >>> mean_and_spread([1.0, 3.0]), mean_and_spread([1.0])
        ('2.00 ± 1.41', '1.00')
    """
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def machine() -> str:
    """Returns what the seconds depend on."""
    threads = torch.get_num_threads()
    cores = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"torch {torch.__version__}, CPU, {cores}, {threads} thread{'s' if threads > 1 else ''} a run"


def configurations(folder: Path) -> dict[str, Any]:
    """Returns the whole configuration of every run of a folder, by its place there."""
    files = sorted(folder.rglob("version_*/config.yaml"))
    return {str(file.parent.relative_to(folder)): yaml.safe_load(file.read_text()) for file in files}


def publish(
    what: str,
    lines: Sequence[str],
    rows: object,
    configuration: Mapping[str, Any],
    folder: Path = RESULTS,
) -> Path:
    """Writes a dated table and its JSON, which names the processor of this machine, each in one go.

    Args:
        what: Of the file's name, what stands after the date.
        lines: The table.
        rows: Its figures.
        configuration: All that made them: the options of a script, or what ``configurations`` found of its runs.
            Of files and folders their names alone are kept.
        folder: Where both are written.
    """
    path = folder / f"{datetime.date.today().isoformat()}-{what}.md"
    folder.mkdir(parents=True, exist_ok=True)
    _write(path, "\n".join(lines) + "\n")
    processor = processor_of(read_cpuinfo())
    kept = {"what": what, "processor": processor, "configuration": nameless(configuration), "rows": rows}
    _write(path.with_suffix(".json"), json.dumps(kept, indent=1) + "\n")
    return path


def nameless(value: Any) -> Any:  # Any: what JSON holds, and paths
    """Returns a configuration whose absolute paths have lost their folders.

    Example:
        >>> nameless({"train": ["/data/texts.txt"], "rate": 0.1, "encoder": Path("/models/bert")})
        {'train': ['texts.txt'], 'rate': 0.1, 'encoder': 'bert'}
    """
    if isinstance(value, Mapping):
        return {str(key): nameless(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [nameless(each) for each in value]
    if isinstance(value, str | Path) and Path(value).is_absolute():
        return Path(value).name
    return value if isinstance(value, str | int | float | None) else str(value)


def _write(path: Path, text: str) -> None:
    """Writes a file that another process sees whole or not at all."""
    part_of = path.with_name(f"{path.name}.{os.getpid()}")
    part_of.write_text(text)
    part_of.replace(path)


def cell_configurations(folder: Path) -> dict[str, Any]:  # Any: what YAML holds
    """Returns the configuration of each cell of a sweep, of the run of its first seed."""
    files = sorted(folder.glob("**/seed-*/config.yaml"), reverse=True)
    found = {str(file.parent.parent.relative_to(folder)): yaml.safe_load(file.read_text()) for file in files}
    return dict(sorted(found.items()))
