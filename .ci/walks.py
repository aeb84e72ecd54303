"""Traces four ways through the package and prints the files of each in the order in which a reader meets them.

Each function counts once, at its first call. A way returns to a file when it calls a function there after it has
called one in another file.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "contrastive_text"
sys.path.insert(0, str(ROOT / "tests"))


def traced(run: Callable[[], object]) -> dict[CodeType, str]:
    """Runs a function and returns the code that it executes with its file of the package, by first calls."""
    codes: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in codes and "<" not in code.co_name:
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE):
                codes[code] = path.relative_to(PACKAGE).as_posix()

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return codes


def returns(calls: list[str]) -> int:
    """Returns how often a way comes back to a file that it has left."""
    stays = sum(1 for first, second in itertools.pairwise(calls) if first == second)
    return len(calls) - stays - len(set(calls))


def step_codes(whole: bool = False) -> dict[CodeType, str]:
    """Traces a training step of SimCSE, or the whole way from its file of texts to the loss."""
    import tiny

    from contrastive_text.training import ContrastiveModule

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(ContrastiveModule, "current_epoch", 0),
    ):
        module = ContrastiveModule.from_recipe("simcse", tiny.save_bert(Path(folder, "bert")))
        data = tiny.data(tiny.write_texts(Path(folder, "texts.txt")))

        def batch() -> Any:  # Any: as the module takes it
            data.set_module(module)
            data.setup("fit")
            return next(iter(data.train_dataloader()))

        if whole:
            return traced(lambda: module.training_step(batch(), 0))
        ready = batch()
        return traced(lambda: module.training_step(ready, 0))


class Owner:
    """Takes a view, as the module takes its parts."""

    def __init__(self, view: Any = None) -> None:
        self.view = view


def yaml_codes() -> dict[CodeType, str]:
    """Traces how a key of a YAML file becomes an object."""
    from contrastive_text.recipes.layers import build_part, read_recipe
    from contrastive_text.views import View

    Owner.__init__.__annotations__["view"] = View  # read at call time: the package is imported late
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own.yaml")
        path.write_text("owner: {view: {class_path: DeleteTokens, init_args: {rate: 0.5}}}\n", encoding="utf-8")
        return traced(lambda: build_part(Owner, "owner", read_recipe(str(path)), "own.yaml"))


def walks(folder: Path) -> dict[str, dict[CodeType, str]]:
    """Returns the code of each way by its name."""
    import tiny
    import torch

    from contrastive_text import SentenceEncoder
    from contrastive_text.cli import run
    from contrastive_text.inference.search import nearest
    from contrastive_text.training import ContrastiveModule

    bert, texts = tiny.save_bert(folder / "bert"), tiny.write_texts(folder / "texts.txt")
    words = (
        f"fit --recipe simcse --model.encoder.model_name_or_path {bert} --data.train {texts} --data.batch_size 8"
        " --data.num_workers 0 --trainer.max_steps 1 --trainer.enable_progress_bar false"
    )
    said = io.StringIO()
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        if run(words.split()) != 0:
            raise SystemExit(f"the run that the walks need has failed: {said.getvalue()}")
    (checkpoint,) = folder.rglob("*.ckpt")
    model = SentenceEncoder.from_pretrained(bert)

    def to_hit() -> None:
        corpus, query = model.encode(list(tiny.TEXTS)), model.encode(["an old bird sings"])
        nearest("cosine", torch.as_tensor(query), torch.as_tensor(corpus), k=3)

    return {
        "a batch from file to loss": step_codes(whole=True),
        "a YAML key to its object": yaml_codes(),
        "a checkpoint to a model": traced(lambda: ContrastiveModule.load_from_checkpoint(checkpoint)),
        "encode to a search hit": traced(to_hit),
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as name:
        for title, codes in walks(Path(name)).items():
            calls = list(codes.values())
            files = list(dict.fromkeys(calls))
            print(f"{title}: {len(files)} files, {len(calls)} functions, {returns(calls)} returns")
            print("  " + ", ".join(files))
