"""What all tests share: no network, repeatable examples, the conformance vectors, a learned tokenizer."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Read when the hub client is first imported, so set before anything imports it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # of a model of 40 small weights threads take longer
# Likewise for torch. One, unless it is set, for two threads take half as long again over matrices of 16 columns.
# Processes that tests start inherit it, so that parent and child take their sums in one order. Nothing else sets
# the number: torch takes as many threads of these as there are cores, which set_num_threads wouldn't know.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of more threads than cores those that wait sleep; else a suite under four threads takes three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="contrastive_text_cache_")  # never the user's

import pytest
from bits import compares_bits
from hypothesis import settings

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
SHARED = Path(os.environ.get("CONTRASTIVE_TEXT_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
SETTING: dict[str, Any] = {}
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"needs data of others, which are in no repository of ours; {DATA} isn't there"
)

LONGEST = ("test_installation", "test_embed_ray", "test_one_gradient", "test_tutorials")
"""Files with tests of minutes, which begin first: at the end the other workers would wait for one of them."""

collect_ignore = ["ray_job.py", "own_mteb_tasks.py"]  # programs of a user, which tests start or copy


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Notes on which processor, with how many threads and with which versions the numbers are made."""
    if vars(session.config).get("workerinput") or not session.config.getoption("numprocesses", None):
        # here, for the process that hands out tests needs no torch
        from contrastive_text.core.setting import current_setting

        SETTING.update(current_setting())
        vars(session.config).get("workeroutput", {})["setting"] = SETTING


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # Any: pytest-xdist's
    """Takes a worker's note."""
    SETTING.update(getattr(node, "workeroutput", {}).get("setting", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what the note says."""
    terminalreporter.write_line("setting: " + ", ".join(f"{name} {value}" for name, value in SETTING.items()))


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes the longest tests first, and marks those that compare bits where they are asked for.

    To tell those takes a look at their source.
    """
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    if "bits" in config.getoption("markexpr"):
        for item in items:
            if compares_bits(item):
                item.add_marker("bits")


# Derandomised: a failure is a bug of the change under test, never of the day's luck. No deadline, because
# the first example of a test pays for torch's warm-up.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("repeatable")

# What collection imports and makes is there to stay: the collector of garbage, which would look through it again
# and again for a fifth of the time, begins after it.
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
    """Begins to collect garbage, rarely, but for what imports and collection have made: it stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Leaves it to the system when files reach the disk: a test may kill a process, but none cuts the power."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def seeding_what_is_there() -> Iterator[None]:
    """Keeps ``torch.manual_seed`` from writing down its stack, thrice, for devices that may come."""
    import torch

    with pytest.MonkeyPatch.context() as patched:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patched.setattr(device, "_is_in_bad_fork", lambda: True)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_weights_without_memory() -> Iterator[None]:
    """Draws no first values on the device ``meta``, which holds none: a fifth of a small model's loading."""
    from torch import nn

    with pytest.MonkeyPatch.context() as patched:
        for layer in (nn.Linear, nn.Embedding):
            of_layer = layer.reset_parameters

            def reset_parameters(self: Any, of_layer: Any = of_layer) -> None:  # Any: a layer, and its method
                if not self.weight.is_meta:
                    of_layer(self)

            patched.setattr(layer, "reset_parameters", reset_parameters)
        yield


@pytest.fixture(scope="session", autouse=True)
def lightning_without_detours() -> Iterator[None]:
    """Lets Lightning look for other packages' callbacks once, and at its callers without reading their source."""
    from lightning_fabric.utilities import registry
    from pytorch_lightning.utilities import model_helpers

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        frames = SimpleNamespace(**vars(inspect) | {"stack": lambda: inspect.stack(context=0)})
        patched.setattr(model_helpers, "inspect", frames)
        yield


@pytest.fixture(scope="session", autouse=True)
def forking(seeding_what_is_there: None, unflushed: None) -> None:  # noqa: ARG001  # the processes inherit them
    """Starts the server of processes before any test has started a thread."""
    import processes

    processes.serve()


@pytest.fixture(autouse=True)
def no_place_among_processes() -> Iterator[None]:
    """Takes back what Lightning's launchers write into the environment.

    A command that a later test starts would take itself for one of several processes, and wait for the others.
    """
    names = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    before = {name: os.environ[name] for name in names if name in os.environ}
    yield
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks a device's process from the server; one that imports torch itself takes seconds.

    The example of ``map_on_devices`` and the slow tests start theirs as users do.
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
