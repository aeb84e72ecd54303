"""Tests of the protocol of unsupervised methods: development pairs, a small run, its tables, a resumed folder."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import inputs
import protocol
import protocol_table
import pytest
import runs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXTS = inputs.made_up_texts(120, (4, 10))


def write_sts(folder: Path) -> Path:
    """Writes test sets of 30 pairs each, and development sets of which a third are test pairs, reversed."""
    folder.mkdir()
    header = "id\tsubset\tscore\tsentence1\tsentence2\n"
    for number, name in enumerate(("sts12", "sts14", "sts15", "stsb", "sick")):
        rows = [f"{i}\tany\t{i % 6}\t{TEXTS[i + number]}\t{TEXTS[i + 40]}\n" for i in range(30)]
        (folder / f"{name}.test.tsv").write_text(header + "".join(rows))
    for name in ("stsb", "sick"):
        tested = [f"{i}\tany\t{i % 6}\t{TEXTS[i + 40].upper()}\t{TEXTS[i]}\n" for i in range(10)]
        own = [f"{i}\tany\t{i % 6}\t{TEXTS[i]}\t{TEXTS[i + 90]}\n" for i in range(20)]
        (folder / f"{name}.dev.tsv").write_text(header + "".join(tested + own))
    return folder


@pytest.mark.parametrize("module", [protocol, protocol_table])
def test_the_examples_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed


def test_no_development_pair_is_a_test_pair(tmp_path: Path) -> None:
    counts = protocol.write_development(write_sts(tmp_path / "sts"), tmp_path)
    assert counts == {"STS-B": (30, 20), "SICK-R": (30, 20)}
    for task in counts:
        _, *rows = (tmp_path / f"{task}.dev.tsv").read_text().splitlines()
        assert [row.split("\t")[1:] for row in rows] == [[TEXTS[i], TEXTS[i + 90]] for i in range(20)]


def test_the_best_setting_trains_with_all_seeds_and_a_filed_result_is_not_trained_again(tmp_path: Path) -> None:
    sts, sentences = write_sts(tmp_path / "sts"), tmp_path / "sentences.txt"
    sentences.write_text("\n".join(TEXTS))
    encoder = inputs.tiny_encoder(tmp_path, TEXTS)

    def call(script: str, *words: str) -> None:
        command = [sys.executable, str(BENCHMARKS / script), *words]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True)

    def train(out: Path, *words: str) -> None:
        call("protocol.py", "runs", "--encoder", encoder, "--teacher", encoder, "--sentences", str(sentences),
             "--sts", str(sts), "--out", str(out), "--only", "simcse", "dcl", "--seeds", "2", "--second",
             "--trainer.max_steps", "2", "--trainer.val_check_interval", "1", *words)  # fmt: skip

    steps = {"dcl": {"own": [1.0], "simcse": [1.0]}}
    runs.publish("protocol_steps", [], steps, {}, tmp_path / "results")
    train(tmp_path / "out")
    call("protocol_table.py", "--out", str(tmp_path / "out"), "--results", str(tmp_path / "results"),
         "--figure", str(tmp_path / "curve.svg"))  # fmt: skip

    tables = {path.stem[11:]: path for path in (tmp_path / "results").glob("*.json")}
    runs_tables = {"protocol", "protocol_tuning", "protocol_second"}
    assert tables.keys() == {"protocol_steps", "protocol_untrained", *runs_tables}
    tuning, seeds = (json.loads(tables[name].read_text())["rows"] for name in ("protocol_tuning", "protocol"))
    assert [(row["name"], len(row["runs"])) for row in tuning] == [
        (name, 1) for name in ["simcse"] * 4 + ["dcl"] * 4
    ]
    for row in seeds:
        assert [run["seed"] for run in row["runs"]] == [1, 2]
        scores = {
            tuple(each["setting"].values()): protocol.development_score(each["runs"][0])
            for each in tuning
            if each["name"] == row["name"]
        }
        assert scores[tuple(row["setting"].values())] == max(scores.values())
        for run in row["runs"]:
            assert [*run["validations"]] == ["1", "2"]
            assert {*run["scores"]} == {*protocol.TASKS, "mean"} and len(run["resampled"]) == protocol.RESAMPLES
            # The bootstrap's mean is near the score; 30 pairs have a standard error of some 20.
            assert abs(sum(run["resampled"]) / protocol.RESAMPLES - run["scores"]["mean"]) < 10
    assert "<svg" in (tmp_path / "curve.svg").read_text()

    start = tmp_path / "out" / "second_start" / "model-2-layers"
    assert json.loads((start / "config.json").read_text())["num_hidden_layers"] == 2
    (losses,) = json.loads((start.parent / "row.json").read_text()).values()
    assert losses and min(losses) > 0
    second = json.loads(tables["protocol_second"].read_text())["rows"]
    assert {row["encoder"] for row in second} == {start.name}

    untrained = json.loads(tables["protocol_untrained"].read_text())["rows"]
    assert [row["name"] for row in untrained] == ["teacher", "start", "second start"]
    assert all({*row["scores"]} == {*protocol.TASKS, "mean"} for row in untrained)

    earlier = [str(tables[name]) for name in sorted(runs_tables)]
    again = tmp_path / "again"
    train(again, "--earlier", *earlier)
    assert not [*again.rglob("metrics.csv")]
    for name, number in {"row.json": 8 + 4 + 4 + 2, "config.yaml": 8 + 2 + 2}.items():
        found = {path.relative_to(again).parts[:4] for path in again.rglob(name)}
        assert len(found) == number
        assert found <= {path.relative_to(tmp_path / "out").parts[:4] for path in (tmp_path / "out").rglob(name)}


def test_the_page_and_the_readme_have_the_figures_of_the_newest_results() -> None:
    def table_lines(name: str) -> list[str]:
        newest = max(runs.RESULTS.glob(f"*-{name}.md"))
        return [line for line in newest.read_text().splitlines() if line.startswith("| ")]

    methods = table_lines("protocol")
    others = [line for name in ("tuning", "second", "untrained") for line in table_lines(f"protocol_{name}")]
    page = (BENCHMARKS.parent / "docs" / "protocol.md").read_text().splitlines()
    assert not {*methods, *others} - {*page}
    cells = {line.split(" | ")[0].strip("| "): {*line.split(" | ")} for line in methods}
    readme = (BENCHMARKS.parent / "README.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in readme if line.strip("| ").split(" | ")[0] in cells]
    assert len(rows) > 5
    for name, *figures in rows:
        assert {*figures} - {"-"} <= cells[name], name
