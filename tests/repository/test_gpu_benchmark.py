"""The parts of ``benchmarks/gpu.py``, tiny and on the CPU: a row for each piece, and what holds there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu
import gpu_exact
import pytest
import torch
from gpu_work import Setting

pytestmark = [
    pytest.mark.filterwarnings("ignore:It is recommended to use `self.log"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method"),  # torch 2.13's own, as it loads its compiler
]


def rows_of(part: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Works a part off and gives its rows by piece; there is one of every piece, and none is an error."""
    setting = Setting("cpu", True, folder, threads=torch.get_num_threads(), rounds=2)
    first, *rows = gpu.work_off(gpu.pieces_of(part, setting))
    assert first["pieces"] == [row["piece"] for row in rows]
    assert not [row for row in rows if "error" in row]
    return {row["piece"]: row for row in rows}


def test_the_gradient_is_one_in_every_way(tmp_path: Path) -> None:
    rows = rows_of("gradients", tmp_path)
    assert all(row["kept"] for row in rows.values()), rows
    ways = [row["apart"] for name, row in rows.items() if name not in ("padded, float64", "padded, float32")]
    assert all(apart > 0 for apart in ways), "executed alike"
    assert len(ways) == 2 * (len(gpu_exact.WAYS) - 1)


def test_a_killed_run_ends_with_the_bits_of_one_that_nobody_stops(tmp_path: Path) -> None:
    assert all(row["equal"] for row in rows_of("resume", tmp_path).values())


def test_a_group_of_one_process_changes_nothing(tmp_path: Path) -> None:
    rows = rows_of("nccl", tmp_path)
    assert rows["a run under DDP"]["equal"]
    assert all(rows["collectives"]["right"].values())


@pytest.mark.parametrize("part", ["products", "loss", "chunks", "compiled", "encode"])
def test_a_part_that_measures_gives_figures(part: str, tmp_path: Path) -> None:
    for row in rows_of(part, tmp_path).values():
        taken = row.get("seconds", [row.get("FLOP/s")])
        each = [*taken.values()] if isinstance(taken, dict) else [taken]
        assert all(second > 0 for seconds in each for second in seconds)
        assert row.get("apart", 0.0) <= 1e-5  # the blocks of a smoke run aren't compiled


def test_a_training_step_is_measured_beside_the_peers(tmp_path: Path) -> None:
    ((name, row),) = rows_of("step", tmp_path).items()
    assert name == "MiniLM-L6, 16 tokens, float32"
    assert [each["contender"] for each in row["measured"]] == ["ours", "sentence-transformers"]
    assert len({tuple(each["tokens a round"]) for each in row["measured"]}) == 1
    # Times of steps this small are those of starting one: no bound on their ratio would tell a regression.
    assert 0 < row["share"] < 1


def test_a_part_without_time_is_named_in_the_table(tmp_path: Path) -> None:
    setting = Setting("cpu", True, tmp_path)
    found = gpu.measure(["gradients", "loss"], setting, seconds=0.0)
    assert found["loss"] == [{"piece": "all", "error": "not run: the 0 s for this part were over"}]
    lines = gpu.report(found, "A device", minutes=0.1)
    assert lines[-1] == "| all | not run: the 0 s for this part were over |"


def test_pieces_that_a_process_did_not_reach_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loss.jsonl").write_text('{"pieces": ["one", "other"]}\n{"piece": "one", "said": "1 ms"}\n')
    monkeypatch.setattr(gpu.sys, "executable", "false")  # a process that ends at once, with status 1
    setting = Setting("cpu", True, tmp_path)
    assert gpu.run_part("loss", setting, seconds=10.0) == [
        {"piece": "one", "said": "1 ms"},
        {"piece": "other", "error": "not run: its process ended with status 1"},
    ]
