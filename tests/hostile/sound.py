"""The sound files that hostile cases start from, each made when a case first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tiny
from hostile.judging import shell


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
        assert result.status in (0, None), result.said + result.trouble


def _run(sound: Sound) -> Path:
    sound.run(
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", sound["bert"], "--data.train",
        sound["texts"], "--data.validation", sound["pairs"], "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.max_steps", "2",
        "--trainer.limit_val_batches", "1.0", "--trainer.val_check_interval", "2",
        "--trainer.default_root_dir", str(sound.folder / "runs"),
    )  # fmt: skip
    return sound.folder / "runs" / "version_0"


def _vectors(sound: Sound) -> Path:
    sound.run("embed", sound["texts"], str(sound.folder / "vectors.npy"), "--model", sound["bert"])
    return sound.folder / "vectors.npy"


_MAKERS: dict[str, Callable[[Sound], Path | str]] = {
    "folder": lambda sound: sound.folder,
    "bert": lambda sound: tiny.save_bert(sound.folder / "bert", num_hidden_layers=1),
    "texts": lambda sound: tiny.write_texts(sound.folder / "texts.txt"),
    "pairs": lambda sound: tiny.write_pairs(sound.folder / "pairs.tsv"),
    "run": _run,
    "model": lambda sound: Path(sound["run"], "model"),
    "checkpoint": lambda sound: next(Path(sound["run"], "checkpoints").glob("*.ckpt")),
    "vectors": _vectors,
}
