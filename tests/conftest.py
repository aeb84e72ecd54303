"""Fixtures for all tests: no network, repeatable examples, the conformance vectors, a learned tokenizer."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The hub client reads this on its first import.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a model of 40 small weights loads faster without threads
# Torch reads this, and so do the processes that tests start: parent and child sum in one order. One thread is the
# default, because two take half as long again over matrices of 16 columns.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# More threads than cores sleep while they wait. Otherwise a suite of four threads takes three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from bits import compares_bits
from hypothesis import settings

# Never the user's cache; one for all workers of a run, so that each graph is exported once.
_OURS = "CONTRASTIVE_TEXT_CACHE_OF_TESTS"
if _OURS not in os.environ:
    os.environ[_OURS] = tempfile.mkdtemp(prefix="contrastive_text_cache_")
    atexit.register(shutil.rmtree, os.environ[_OURS], ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = os.environ[_OURS]
SHARED = Path(os.environ.get("CONTRASTIVE_TEXT_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"needs data of others, which are in no repository of ours; {DATA} isn't there"
)

LONGEST = ("test_installation", "test_embed_ray", "test_one_gradient", "test_tutorials")
"""Files with tests of minutes. They begin first: at the end the other workers would wait for them."""

# Programs of a user, which tests start or copy, and calls that mypy reads.
collect_ignore = ["ray_job.py", "own_mteb_tasks.py", "repository/typed_calls.py"]


def pytest_report_header() -> str:
    """Names the processor, threads and versions that the last bits of a number depend on."""
    from contrastive_text.core.machine import current_setting

    return "setting: " + ", ".join(f"{name} {value}" for name, value in current_setting().items())


SLOW_EXAMPLES = ("contrastive_text.inference.device_pool.map_on_devices",)  # starts a process as users do


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Moves the longest tests to the front; marks slow examples and, if ``-m`` asks, tests that compare bits."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker("slow")
    if "bits" in config.getoption("markexpr"):
        for item in items:
            if compares_bits(item):
                item.add_marker("bits")


# The same examples in every run: a failure is a bug of the change under test. No deadline, because the first
# example of a test pays for torch's warm-up.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("repeatable")

# Modules and collected tests stay to the end. The garbage collector would search them again and again, a fifth of
# the time: it starts after the collection, without them.
gc.disable()

CORPUS = (
    "the old bird sings in the tall green tree",
    "a young bird flies over the cold river",
    "two people walk along the river in the rain",
    "the man plays an old guitar in the street",
    "a woman reads a long book under the tree",
    "children play with a red ball, and a dog runs after them!",
    "the train to the north leaves at seven o'clock",
    "it rains; nobody is walking in the street",
)


def pytest_collection_finish() -> None:
    """Starts the garbage collector."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def processes_start_fast() -> Iterator[None]:
    """Forks the server of processes before a test starts a thread. Skips ``os.fsync``: no test cuts the power."""
    import processes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        processes.serve()
        yield


@pytest.fixture(autouse=True)
def messages_are_printed() -> None:
    """Prints the messages of runs, as the shell does, whatever an earlier test's library did to the loggers."""
    from contrastive_text.core.terminal import LOGGER, log_to_terminal

    log_to_terminal()
    LOGGER.disabled = False
    LOGGER.setLevel(logging.INFO)


@pytest.fixture(autouse=True)
def no_place_among_processes() -> Iterator[None]:
    """Removes the variables that Lightning's launchers set: a later command would wait for other processes."""
    names = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    before = {name: os.environ[name] for name in names if name in os.environ}
    yield
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks a device's process from the server. A spawned process takes seconds to import torch.

    The example of ``map_on_devices`` and other slow tests spawn their processes, as users do.
    """
    of = multiprocessing.get_context
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda kind=None: of("forkserver" if kind == "spawn" else kind)
    )


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """The conformance vectors of the specification sheet, by key: numbers and made texts."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="session")
def methods() -> dict[str, Any]:
    """Values of the methods after the seeds, by key, each of the vectors under ``inputs``."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "methods.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="session")
def nltk_data() -> Path:
    """Folder of NLTK's resources; a test that needs it skips where it isn't there."""
    return DATA / "nltk_data"


@pytest.fixture(scope="session")
def corpus() -> tuple[str, ...]:
    """Eight short sentences."""
    return CORPUS


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random BERT, which all tests read and none changes."""
    import tiny  # here, and below: the process that hands tests out to workers needs no Lightning

    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a file of forty sentences, which all tests read and none changes."""
    import tiny

    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "texts.txt")


@pytest.fixture(scope="session")
def learned_tokenizer() -> Any:  # Any: of a library that is imported late
    """A WordPiece tokenizer learned from the eight sentences; some words stay in pieces."""
    from contrastive_text.data import learn_vocabulary

    return learn_vocabulary(CORPUS, vocabulary_size=90)
