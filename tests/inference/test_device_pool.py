"""Work on several devices; the processes are real, the devices are CPUs."""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import device_work
import pytest
import torch

from contrastive_text.inference.device_pool import map_on_devices

TWO = ["cpu", "cpu"]


pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process outlives the iteration."""
    yield
    assert not multiprocessing.active_children()


def test_results_come_in_order_however_long_each_takes() -> None:
    naps = [0.4, 0.0, 0.1, 0.0, 0.2, 0.0, 0.0]  # the first is the last to be ready
    assert list(map_on_devices(device_work.nap, naps, TWO)) == naps


def test_two_processes_work_at_once_and_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    processes: set[int] = set()
    for process, count in map_on_devices(device_work.threads, itertools.count(), TWO):  # until both have started
        assert count == 2
        processes.add(process)
        if len(processes) == 2:
            break


def test_the_work_s_tensors_are_on_the_device_and_the_caller_s_stay() -> None:
    work = device_work.Place()
    rows = torch.randn(4, 2)
    ((place, given),) = map_on_devices(work, [rows], ["cpu"])
    assert place == "cpu"
    assert torch.equal(given, work.layer(rows))
    ((place, given),) = map_on_devices(work, [rows], ["meta"])
    assert (place, given.shape) == ("meta", (4, 3))
    assert work.layer.weight.device.type == "cpu"
    assert not work.layer.weight.is_shared()


def test_endless_items_are_read_two_for_each_device_ahead() -> None:
    items = itertools.count()
    results = map_on_devices(device_work.nap, (0 * item for item in items), TWO)
    assert next(items) == 0  # nothing is read before the first result is asked for
    assert [next(results) for _ in range(3)] == [0, 0, 0]
    # item 0 was taken above; three results are taken and three more items are with the processes
    assert next(items) == 1 + 3 + 3
    results.close()


def test_what_the_work_raises_is_raised_with_its_own_traceback() -> None:
    results = map_on_devices(device_work.fail, [0, 1, 4, 2], ["cpu"])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError, match="expected 3 at most") as caught:
        next(results)
    assert "device_work.py" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="Unsendable: three and four"):
        list(map_on_devices(device_work.fail, [3], ["cpu"]))


def test_a_process_that_dies_is_an_error_and_no_wait() -> None:
    with pytest.raises(
        RuntimeError, match="device cpu: expected a result, but its process ended with exit code 7"
    ):
        list(map_on_devices(device_work.die, [0, 0, 7, 0], ["cpu"]))


def test_an_error_of_the_items_and_a_closed_iterator_end_the_processes_while_they_work() -> None:
    def items() -> Iterator[float]:
        yield 60.0  # nobody waits for it
        raise OSError("the disk is gone")

    start = time.monotonic()
    with pytest.raises(OSError, match="the disk is gone"):
        list(map_on_devices(device_work.nap, items(), ["cpu"]))
    results = map_on_devices(device_work.nap, [0.0, 60.0, 60.0, 60.0], TWO)
    assert next(results) == 0.0
    results.close()
    assert time.monotonic() - start < 50


def test_no_device_and_work_that_can_not_be_sent_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one name or more, got an empty list"):
        map_on_devices(device_work.nap, [], [])
    with pytest.raises(ValueError, match="expected names such as cpu or cuda:0, got 'cpux'"):
        map_on_devices(device_work.nap, [], ["cpu", "cpux"])
    with pytest.raises(Exception, match=r"(?i)pickle"):
        list(map_on_devices(lambda item: item, [1], ["cpu"]))


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from math import sqrt\n"
        "from contrastive_text.inference.device_pool import map_on_devices\n"
        "print(list(map_on_devices(sqrt, [4.0], ['cpu'])))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "the script must call this function under if __name__ == '__main__':" in done.stderr
