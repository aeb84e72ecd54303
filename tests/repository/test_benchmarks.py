"""Tests of the numbers that timed benchmarks count and read for their tables."""

from __future__ import annotations

import doctest
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import decoder_memory
import history
import inputs
import machines
import packed_rows
import pytest
import runs
import scaling
import timing
import tiny
import torch
import train_step
from covering import turn_of
from decoders import save_decoder
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from contrastive_text.data import TextDataModule
from contrastive_text.encoders import LoRA, TransformerEncoder
from contrastive_text.training.callbacks.chunk_size import saved_bytes
from contrastive_text.training.module import ContrastiveModule

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = ("timing", "train_step", "memory", "encode", "scaling", "sts", "transfer", "embed", "papers", "runs")
SCRIPTS += ("decoder_memory", "profiles", "history", "duplicates", "search", "loss", "machines", "commits")
SCRIPTS += (
    "inputs",
    "packed_rows",
    "load",
    "serve",
    "revisions",
    "gpu",
    "gpu_work",
    "gpu_speed",
    "gpu_exact",
    "growth",
)
SMOKES = {
    "train_step": ("--max-lengths", "32", "--precisions", "float32", "--only", "ours", "sentence-transformers"),
    "encode": ("--precisions", "float32"),
    "duplicates": (),
    "loss": (),
    "ranking": (),
    "search": (),
}
"""Scripts that time ours beside a peer, with what makes a smoke run of each shorter."""
EXTRAS = {"search": "faiss", "loss": "pytorch_metric_learning"}
"""Benchmark -> package that it needs in addition to the packages of the tests."""
WAYS = [("all", "float32"), ("LoRA", "bfloat16"), ("LoRA", "float32"), ("all", "bfloat16")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_of_a_benchmark_hold(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted or name in ("memory", "transfer", "revisions", "gpu_speed")


def test_a_result_holds_the_configuration_of_its_runs_without_the_folders_of_a_machine(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        run = tmp_path / "runs" / "any" / seed / "version_0"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(f"seed_everything: {seed}\ndata: {{train: [{tmp_path}/texts.txt]}}\n")
    found = runs.configurations(tmp_path / "runs")
    table = runs.publish("grid", ["# A grid"], [{"seed": 1}], found, folder=tmp_path / "results")
    assert table.name.endswith("-grid.md") and table.read_text() == "# A grid\n"
    kept = json.loads(table.with_suffix(".json").read_text())
    assert kept["rows"] == [{"seed": 1}]
    assert kept["configuration"] == {
        f"any/{seed}/version_0": {"seed_everything": seed, "data": {"train": ["texts.txt"]}} for seed in (1, 2)
    }


# No bound on a ratio: works this small are mostly the starting of them, and have come out at 0.6 of the peer's
# speed where those of a real size have 2.2 of it. A script ends with an error where batches or results differ.
@pytest.mark.parametrize("name", turn_of(SMOKES, 2))
def test_a_smoke_run_leaves_figures_of_ours_and_the_peers(name: str, tmp_path: Path) -> None:
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name])
    words = ["--quick", "--rounds", "2", "--threads", "1", "--out", str(tmp_path), *SMOKES[name]]
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True)
    (table,) = tmp_path.glob("*.md")
    assert table.read_text().startswith("# ")
    known = history.read(tmp_path)
    taken = {figure: columns for figure, columns in known.items() if "seconds" in figure}
    assert all(value > 0 for columns in taken.values() for value in columns.values())
    assert len(taken) > 1, "no peer"
    (column,) = {column for columns in taken.values() for column in columns}
    assert column == f"{table.name[:10]}, {machines.processor_of(machines.read_cpuinfo())}"


def test_every_result_has_figures_of_its_date() -> None:
    known = history.read(history.RESULTS)
    shown = {(name.partition(" ")[0], column) for name, columns in known.items() for column in columns}
    expected = set()
    for path in history.RESULTS.glob("*.json"):
        column, what, kept = path.stem[:10], path.stem[11:], json.loads(path.read_text())
        if isinstance(kept, dict) and "processor" in kept:
            assert f"{what}-".startswith(f"{kept['what']}-")  # the file may name the processor too
            column, what = f"{column}, {kept['processor']}", kept["what"]
        assert (what, column) not in expected, "two files have the same figures"
        expected.add((what, column))
    assert shown == expected
    assert known["train-step 32 float32 ours seconds"]["2026-11-22"] > 0


@pytest.mark.parametrize(("trained", "dtype"), WAYS)
def test_a_decoder_keeps_as_many_bytes_as_the_formula_says(trained: str, dtype: str, tmp_path: Path) -> None:
    tokens = 32
    sizes = decoder_memory.Sizes(layers=5, features=128, inner=320, queries=128, keys=64, vocabulary=400)
    changes = {"num_hidden_layers": 5, "hidden_size": 128, "intermediate_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    folder = save_decoder(tmp_path, "llama", **changes, **heads)
    for anew in (False, True):
        adapters = {"adapters": LoRA(rank=4), "weights_dtype": dtype} if trained == "LoRA" else {}
        encoder = TransformerEncoder(folder, gradient_checkpointing=anew, **adapters)
        module = ContrastiveModule(encoder)
        module.trainer = tiny.trainer(tmp_path)
        if trained == "all":
            module.to(getattr(torch, dtype))
        way = decoder_memory.Way(trained, dtype, layers_anew=anew)
        said = decoder_memory.predicted(sizes, way, tokens, rank=4)
        weights = {weight.data_ptr(): weight.nbytes for weight in encoder.parameters()}
        assert sum(weights.values()) == said.weights
        states = 3 * sum(weight.nbytes for weight in encoder.parameters() if weight.requires_grad)
        assert states == said.states
        # Not in the formula: what attention keeps of each head, means, places of tokens; and of the first layer
        # frozen embeddings want no gradient.
        assert saved_bytes(module, tokens) == pytest.approx(said.kept, rel=0.03 if not anew else 0.06)


def test_forward_flops_are_those_that_torch_counts() -> None:
    length = 7
    shape = inputs.Shape(layers=2, features=16, inner=24)
    config = BertConfig(
        vocab_size=30,
        hidden_size=shape.features,
        num_hidden_layers=shape.layers,
        num_attention_heads=2,
        intermediate_size=shape.inner,
        attn_implementation="eager",  # torch doesn't count its fused attention on a CPU
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(3, length, dtype=torch.long))
    assert inputs.forward_flops(shape, [length] * 3) == counter.get_total_flops()


def test_the_bare_loop_attends_within_rows_alone() -> None:
    attend = packed_rows.attend_in_runs
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 7, 4)
    packed, _ = attend(nn.Identity(), q, k, v, None, runs=[(2, 2), (1, 3)])
    alone = [
        torch.nn.functional.scaled_dot_product_attention(*(each[:, :, start:stop] for each in (q, k, v)))
        for start, stop in ((0, 2), (2, 4), (4, 7))
    ]
    torch.testing.assert_close(packed, torch.cat(alone, dim=2).transpose(1, 2))


def test_the_peers_read_the_batches_in_the_order_of_our_sampler(tmp_path: Path) -> None:
    given, ordered = train_step.write_texts(tmp_path, tiny.TEXTS, 8)
    data = TextDataModule(train=given, batch_size=8)
    folder = tmp_path / "model"
    folder.mkdir()
    data.set_module(tiny.module(tiny.save_bert(folder)))
    data.setup("fit")
    rows = data.training.of().rows
    texts = [rows[key.number]["text"] for keys in data.train_dataloader().order for key in keys]
    assert Path(ordered).read_text(encoding="utf-8").splitlines() == texts
    assert texts != list(tiny.TEXTS)


def test_a_turn_answers_after_its_steps_and_only_then() -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.send(2)
    turn = timing.Turn(theirs, "cpu")
    turn.loaded()
    turn.ended_step(tokens=3, loss=0.5)
    assert not ours.poll()
    ours.send(1)  # the next turn, which it would wait for
    turn.ended_step(tokens=4, loss=0.25)
    answer = ours.recv()
    assert (answer.tokens, answer.losses) == (7, (0.5, 0.25))
    ours.send(1)
    turn.ended_step(tokens=1)
    assert ours.recv().tokens == 1


def test_texts_of_columns_come_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "sts.tsv"
    path.write_text('score\tsentence1\tsentence2\n1\ta "\tb\n2\tc\td\n', encoding="utf-8")
    assert inputs.column_texts(path, ("sentence1", "sentence2")) == ['a "', "b", "c", "d"]


def test_a_finished_setting_is_not_measured_again(tmp_path: Path) -> None:
    kept = timing.kept
    assert kept(tmp_path, "32-float32", lambda: [{"seconds": 1}]) == [{"seconds": 1}]
    assert kept(tmp_path, "32-float32", lambda: [{"seconds": 2}]) == [{"seconds": 1}]
    assert kept(None, "32-float32", lambda: [{"seconds": 2}]) == [{"seconds": 2}]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_cost_model_has_the_flops_of_the_loss(ranks: int) -> None:
    paper = scaling.cost(ranks, pairs=8, features=16, parameters=10)
    assert scaling.counted_loss_flops(ranks, 8, 16) == paper.loss_flops
