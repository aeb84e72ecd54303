"""The sound files that hostile cases start from, each made when a case first asks for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import tiny
import torch
from hostile.cases import SWEPT
from hostile.judging import filled, shell
from safetensors.torch import save_file
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.inference.vector_files import Array


class Sound(Mapping[str, str]):
    """Name -> path of a sound file or folder.

    Args:
        folder: Where they are made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._made: dict[str, str] = {"folder": str(folder)}

    def __getitem__(self, name: str) -> str:
        if name not in self._made:
            self._made[name] = str(_MAKERS[name](self))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MAKERS)

    def __len__(self) -> int:
        return len(_MAKERS)

    def run(self, *words: str) -> None:
        """Runs a command that works."""
        result = shell(list(words), self.folder)
        assert result.status in (0, None) and not result.trouble, result.said + result.trouble


_SMALL = (
    "--data.batch_size", "8", "--data.num_workers", "0", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--trainer.max_steps", "2", "--trainer.val_check_interval", "2",
)  # fmt: skip
"""Options of a run of two steps."""


def _run(sound: Sound) -> Path:
    sound.run(
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", sound["bert"], "--data.train",
        sound["texts"], "--data.validation", sound["pairs"], *_SMALL, "--trainer.limit_val_batches", "1.0",
        "--trainer.default_root_dir", str(sound.folder / "runs"),
    )  # fmt: skip
    return sound.folder / "runs" / "version_0"


def _task_run(sound: Sound) -> Path:
    labeled = sound.folder / "labeled.tsv"
    rows = [f"{text}\t{('bad', 'good')[i % 2]}" for i, text in enumerate(tiny.TEXTS)]
    labeled.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    sound.run(
        "fit", "--model.encoder", "TransformerEncoder", "--model.encoder.model_name_or_path", sound["bert"],
        "--data.tasks.sst.train", str(labeled), "--data.tasks.sst.validation", str(labeled),
        "--model.objectives.sst", "TextClassification", "--model.objectives.sst.task", "sst",
        "--model.objectives.sst.classes", "[bad, good]", "--model.optimizer", "AdamW", *_SMALL,
        "--trainer.default_root_dir", str(sound.folder / "task_runs"),
    )  # fmt: skip
    return sound.folder / "task_runs" / "version_0"


def _vectors(sound: Sound) -> Path:
    sound.run(
        "embed", sound["texts"], str(sound.folder / "vectors.npy"), "--model", sound["bert"], "--device", "cpu"
    )
    return sound.folder / "vectors.npy"


def _foreign(sound: Sound) -> Path:
    """Makes a folder as other libraries leave it: with a pooler and a dense layer, and without a manifest."""
    folder = sound.folder / "foreign"
    shutil.copytree(sound["bert"], folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [
        {"idx": i, "name": f"{i}", "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    parts: dict[str, object] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None},
        "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True,
                                  "pooling_mode_max_tokens": False},
        "2_Dense/config.json": {"in_features": 16, "out_features": 16, "bias": True,
                                "activation_function": "torch.nn.modules.activation.Tanh"},
    }  # fmt: skip
    for name, content in parts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    dense = {"linear.weight": torch.eye(16), "linear.bias": torch.full((16,), 0.1)}
    save_file(dense, folder / "2_Dense" / "model.safetensors")
    return folder


def _network(sound: Sound) -> Path:
    """Makes a reranker's folder as Transformers writes it, without a manifest."""
    folder = sound.folder / "network"
    config = BertConfig(**{**BertConfig.from_pretrained(sound["bert"]).to_diff_dict(), "num_labels": 1})
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(sound["bert"]).save_pretrained(folder)
    return folder


def _own_head(sound: Sound) -> Path:
    """Makes a classifier's folder in this library's format, without its manifest."""
    folder = sound.folder / "own_head"
    sound.run("export", sound["task_run"], str(folder), "--as", "classifier", "--own_format")
    (folder / MANIFEST).unlink()
    return folder


def _unfinished(sound: Sound) -> Path:
    """Makes what a stopped ``embed`` leaves behind its second block of four."""
    from contrastive_text.inference.embedding_run import UnfinishedVectors

    append = UnfinishedVectors.append

    def then_stop(self: UnfinishedVectors, vectors: Array, truncated: int) -> None:
        append(self, vectors, truncated)
        if self.done == 20:
            raise KeyboardInterrupt

    with patch.object(UnfinishedVectors, "append", then_stop):
        words = ["embed", sound["texts"], str(sound.folder / "stopped.npy"), "--model", sound["bert"]]
        result = shell([*words, "--block_size", "10", "--device", "cpu"], sound.folder)
    assert result.status == 130, result
    return sound.folder / "stopped.npy.unfinished"


def _ensemble(sound: Sound) -> Path:
    sound.run("ensemble", str(sound.folder / "ensemble"), "--runs", sound["task_run"])
    return sound.folder / "ensemble"


def _cache(sound: Sound) -> Path:
    folder = sound.folder / "cache"
    sound.run("evaluate", sound["bert"], sound["pairs"], "--cache", str(folder), "--device", "cpu")
    return folder


def _sweep(sound: Sound) -> Path:
    folder = sound.folder / "sweep"
    words = filled(f"{SWEPT} --vary model.pooler=CLSPooler", sound)
    sound.run(*words, "--output", str(folder))
    return folder


_MAKERS: dict[str, Callable[[Sound], Path | str]] = {
    "folder": lambda sound: sound.folder,
    "bert": lambda sound: tiny.save_bert(sound.folder / "bert", num_hidden_layers=1),
    "texts": lambda sound: tiny.write_texts(sound.folder / "texts.txt"),
    "pairs": lambda sound: tiny.write_pairs(sound.folder / "pairs.tsv"),
    "run": _run,
    "model": lambda sound: Path(sound["run"], "model"),
    "checkpoint": lambda sound: next(Path(sound["run"], "checkpoints").glob("*.ckpt")),
    "foreign": _foreign,
    "network": _network,
    "own_head": _own_head,
    "task_run": _task_run,
    "labeled": lambda sound: (sound["task_run"], sound.folder / "labeled.tsv")[1],
    "ensemble": _ensemble,
    "cache": _cache,
    "sweep": _sweep,
    "unfinished": _unfinished,
    "unfinished_record": lambda sound: f"{sound['unfinished']}.json",
    "vectors": _vectors,
    "vectors_record": lambda sound: f"{sound['vectors']}.json",
}
