"""Tests of the computing environment that bits depend on: recorded, stored and compared."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from contrastive_text.core import machine
from contrastive_text.core.machine import current_setting, describe_setting_change, is_faster_in_bfloat16


@pytest.mark.bits
def test_tests_have_the_threads_and_the_instructions_that_are_asked_for() -> None:
    asked, threads = int(os.environ["OMP_NUM_THREADS"]), torch.get_num_threads()
    assert current_setting()["threads"] == str(threads)
    assert threads == asked == 1 or 1 < threads <= asked or os.cpu_count() == 1  # no more than there are cores
    wanted = os.environ.get("ATEN_CPU_CAPABILITY")
    assert wanted is None or torch.backends.cpu.get_cpu_capability() == wanted.upper()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    assert limit is None or f"ONEDNN_MAX_CPU_ISA={limit}" in current_setting()["processor"]


def test_a_setting_names_processor_threads_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = current_setting("cpu")
    assert torch.backends.cpu.get_cpu_capability() in here["processor"].split()
    assert here["torch"] == torch.__version__
    assert list(here)[:2] == ["processor", "threads"]  # no GPU is asked for on a CPU
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert current_setting()["processor"] == f"{here['processor']} MKL_CBWR=COMPATIBLE"


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"threads": "1", "torch": "2.0"}, ""),
        ({"threads": "2", "torch": "2.0"}, "threads 2 then, 1 now"),
        ({"threads": "2", "torch": "2.1"}, "threads 2 then, 1 now; torch 2.1 then, 2.0 now"),
        ({"threads": "1", "torch": "2.0", "GPU": "H200"}, "GPU H200 then, none now"),
        ({"threads": "1"}, "torch none then, 2.0 now"),
        ({"threads": "1", "torch": "\x1b[2J"}, r"torch '\x1b[2J' then, 2.0 now"),
        (None, ""),
        ("of an older version", ""),
    ],
)
def test_what_differs_is_said(kept: Any, said: str) -> None:
    assert describe_setting_change(kept, {"threads": "1", "torch": "2.0"}) == said


@pytest.mark.parametrize(
    ("instructions", "seconds", "faster"),
    [
        ("avx512_bf16", {torch.float32: 2.0, torch.bfloat16: 1.0}, True),
        ("amx_bf16", {torch.float32: 2.0, torch.bfloat16: 1.0}, True),
        ("avx512_bf16", {torch.float32: 1.0, torch.bfloat16: 1.8}, False),
        ("avx512_bf16", {torch.float32: 1.1, torch.bfloat16: 1.0}, False),
        ("avx2", {}, False),  # not tried
    ],
)
def test_bfloat16_is_faster_where_it_was_seen_to_be(
    instructions: str, seconds: dict[torch.dtype, float], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    monkeypatch.setattr(machine, "_seconds_of_product", lambda dtype: seconds[dtype])
    assert is_faster_in_bfloat16.__wrapped__("cpu") is faster  # for it keeps its answer


def test_to_try_products_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    before = torch.get_rng_state()
    is_faster_in_bfloat16.__wrapped__("cpu")
    assert torch.equal(torch.get_rng_state(), before)
