"""Tests of the callback that measures and sets the number of tokens that fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pytorch_lightning.callbacks import Callback

from contrastive_text.cli.main import run as shell
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.objectives import DenoisingDecoder
from contrastive_text.training.callbacks import chunk_size
from contrastive_text.training.callbacks.chunk_size import RESERVE, ChunkSize, free_bytes, saved_bytes
from contrastive_text.training.module import ContrastiveModule


class Calls(Callback):
    """Counts how often the first block of the encoder is called in each step."""

    def on_train_start(self, trainer: object, pl_module: ContrastiveModule) -> None:  # noqa: ARG002  # Lightning's
        self.count = 0
        pl_module.encoder.model.encoder.layer[0].register_forward_hook(self.note)

    def note(self, *_: object) -> None:
        self.count += 1


def fit(bert: str, texts: str, folder: Path, **parts: Any) -> tuple[ContrastiveModule, int]:
    module, calls = tiny.module(bert, **parts), Calls()
    tiny.trainer(folder, max_steps=1, callbacks=[ChunkSize(), calls]).fit(module, tiny.data(texts))
    return module, calls.count


def given_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(chunk_size, "free_bytes", lambda device: free)  # noqa: ARG005  # the same signature


def held(module: ContrastiveModule) -> int:
    return 3 * sum(weight.numel() * weight.element_size() for weight in module.parameters())


def test_with_much_memory_the_batch_is_one_chunk_and_too_little_for_a_row_is_refused(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_free(monkeypatch, 2**34)
    module, calls = fit(bert, texts, tmp_path)
    assert module.chunk_tokens is not None and module.chunk_tokens > 10_000
    assert calls == 1  # one part, and nothing is computed twice
    given_free(monkeypatch, 1000)
    with pytest.raises(ValueError, match=r"chunk: expected memory for a row of 32 tokens, .* GiB, got 0\.00 GiB"):
        fit(bert, texts, tmp_path)


def test_with_little_memory_a_chunk_holds_as_many_rows_as_are_paid_for(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tiny.module(bert)
    module.trainer = tiny.trainer(tmp_path)  # for its precision plug-in
    short, row = saved_bytes(module, 8), saved_bytes(module, 32)
    # Of each token: some ten vectors of 16 floats and two of 32 in each of two blocks, and attention's weights.
    assert 4 * short <= row < 8 * short
    assert 32 * 4 * 16 * 10 < row < 32 * 4 * 16 * 100
    given_free(monkeypatch, int(held(module) + 2.5 * row / (1 - RESERVE)))
    module, calls = fit(bert, texts, tmp_path)
    assert module.chunk_tokens == module.hparams["chunk_tokens"] == 2 * 32
    assert calls > 3
    assert "Chunks: 64 tokens" in capsys.readouterr().out
    # A decoder, as deep as the encoder, has a chunk of its own in memory.
    parts: dict[str, Any] = {"objectives": {"d": DenoisingDecoder()}}
    given_free(monkeypatch, int(held(tiny.module(bert, **parts)) + 4.5 * row / (1 - RESERVE)))
    assert fit(bert, texts, tmp_path, **parts)[0].chunk_tokens == 2 * 32


@pytest.mark.slow
def test_of_checkpointed_layers_an_input_each_is_saved_and_all_of_one(tmp_path: Path) -> None:
    def saved(layers: int, anew: bool) -> int:
        config = {**tiny.CONFIG, "num_hidden_layers": layers}
        module = ContrastiveModule(TransformerEncoder(config=config, gradient_checkpointing=anew))
        module.trainer = tiny.trainer(tmp_path)
        return saved_bytes(module, 32)

    assert saved(1, anew=True) == saved(1, anew=False)
    assert saved(6, anew=True) == saved(1, anew=True) + 5 * 32 * tiny.CONFIG["hidden_size"] * 4
    assert saved(6, anew=True) < saved(6, anew=False) / 3


@pytest.mark.parametrize(
    ("line", "group", "files"),
    [
        ("0::/job/step", "sys/fs/cgroup/job", ("memory.max", "memory.current", "inactive_file")),
        ("0::/machine/of/a/host", "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/job\n4:memory,hugetlb:/job",
            "sys/fs/cgroup/memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["version 2", "version 2 in a container", "version 1"],
)
def test_a_container_has_the_memory_of_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, group: str, files: tuple[str, str, str]
) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    monkeypatch.setattr(chunk_size, "_SYSTEM", tmp_path)
    assert free_bytes(torch.device("cpu")) == 800 * 1024
    write("proc/self/cgroup", f"{line}\n")
    limit, used, inactive = files
    write(f"{group}/{used}", "3000\n")
    write(f"{group}/memory.stat", f"anon 1\n{inactive} 500\n")
    write(f"{group}/{limit}", "max\n" if limit == "memory.max" else f"{2**63 - 4096}\n")
    assert free_bytes(torch.device("cpu")) == 800 * 1024
    write(f"{group}/{limit}", "10000\n")
    assert free_bytes(torch.device("cpu")) == 7500


def test_a_device_that_does_not_tell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chunk: expected a GPU or Linux, .* got meta; give a number"):
        free_bytes(torch.device("meta"))


@pytest.mark.slow
def test_the_shell_finds_a_number_keeps_it_and_resumes_with_it(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_free(monkeypatch, 2**28)
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts]
    words += ["--data.batch_size", "8", "--data.num_workers", "0", "--trainer.accelerator", "cpu"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", str(tmp_path)]
    assert shell([*words, "--chunk", "auto", "--trainer.max_steps", "2"]) == 0
    said = capsys.readouterr().out
    (saved,) = tmp_path.glob("version_0/checkpoints/*.ckpt")
    chunk = read_checkpoint(saved).model["chunk_tokens"]
    assert f"Chunks: {chunk:,} tokens" in said
    assert f"chunks of {chunk:,}" in said.replace("\n", " ")
    given_free(monkeypatch, 2**34)
    assert shell([*words, "--chunk", "auto", "--trainer.max_steps", "3", "--ckpt_path", str(saved)]) == 0
    assert f"Chunks: {chunk:,} tokens, as in the checkpoint" in capsys.readouterr().out
