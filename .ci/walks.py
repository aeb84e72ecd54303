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

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "contrastive_text"
sys.path.insert(0, str(ROOT / "tests"))


def traced(run: Callable[[], object]) -> list[str]:
    """Runs a function and returns the file of each function of the package that it calls, by first calls."""
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
    return list(codes.values())


def files_of(calls: list[str]) -> list[str]:
    return list(dict.fromkeys(calls))


def returns(calls: list[str]) -> int:
    """Returns how often a way comes back to a file that it has left."""
    stays = sum(1 for first, second in itertools.pairwise(calls) if first == second)
    return len(calls) - stays - len(set(calls))


def step_files() -> list[str]:
    """Returns the files that a training step of SimCSE executes."""
    import tiny

    from contrastive_text.training import ContrastiveModule

    with tempfile.TemporaryDirectory() as folder:
        module = ContrastiveModule.from_recipe("simcse", tiny.save_bert(Path(folder, "bert")))
        data = tiny.data(tiny.write_texts(Path(folder, "texts.txt")))
        data.attach(module)
        data.setup("fit")
        ContrastiveModule.current_epoch = property(lambda _: 0)  # type: ignore[assignment,method-assign]
        batch = next(iter(data.train_dataloader()))
        return files_of(traced(lambda: module.training_step(batch, 0)))


class Owner:
    """Takes a view, as the module takes its parts."""

    def __init__(self, view: Any = None) -> None:
        self.view = view


def yaml_calls() -> list[str]:
    """Traces how a key of a YAML file becomes an object."""
    from contrastive_text.recipes.building import build_part
    from contrastive_text.recipes.layers import read_recipe
    from contrastive_text.views import View

    Owner.__init__.__annotations__["view"] = View  # read at call time: the package is imported late
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own.yaml")
        path.write_text("owner: {view: {class_path: DeleteTokens, init_args: {rate: 0.5}}}\n", encoding="utf-8")
        return traced(lambda: build_part(Owner, "owner", read_recipe(str(path)), "own.yaml"))


def yaml_files() -> list[str]:
    return files_of(yaml_calls())


def walks(folder: Path) -> dict[str, list[str]]:
    """Returns the calls of each way by its name."""
    import tiny
    import torch

    from contrastive_text import SentenceEncoder
    from contrastive_text.cli import run
    from contrastive_text.inference.search import nearest
    from contrastive_text.training import ContrastiveModule

    bert, texts = tiny.save_bert(folder / "bert"), tiny.write_texts(folder / "texts.txt")
    found: dict[str, list[str]] = {}

    def to_loss() -> None:
        data = tiny.data(texts)
        data.attach(module)
        data.setup("fit")
        module.training_step(next(iter(data.train_dataloader())), 0)

    module = ContrastiveModule.from_recipe("simcse", bert)
    ContrastiveModule.current_epoch = property(lambda _: 0)  # type: ignore[assignment,method-assign]
    found["a batch from file to loss"] = traced(to_loss)
    found["a YAML key to its object"] = yaml_calls()
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts]
    words += [
        "--data.batch_size",
        "8",
        "--data.num_workers",
        "0",
        "--trainer.max_steps",
        "1",
        "--trainer.accelerator",
        "cpu",
    ]
    said = io.StringIO()
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        if run([*words, "--trainer.enable_progress_bar", "false"]) != 0:
            raise SystemExit(f"the run that the walks need has failed: {said.getvalue()}")
        (checkpoint,) = folder.rglob("*.ckpt")
        found["a checkpoint to a model"] = traced(lambda: ContrastiveModule.load_from_checkpoint(checkpoint))

    def to_hit() -> None:
        corpus, query = model.encode(list(tiny.TEXTS)), model.encode(["an old bird sings"])
        nearest("cosine", torch.as_tensor(query), torch.as_tensor(corpus), k=3)

    model = SentenceEncoder.from_pretrained(bert)
    found["encode to a search hit"] = traced(to_hit)
    return found


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as name:
        for title, calls in walks(Path(name)).items():
            files = files_of(calls)
            print(f"{title}: {len(files)} files, {len(calls)} functions, {returns(calls)} returns")
            print("  " + ", ".join(files))
