"""Figures of training steps of every recipe: ``python tests/freezing.py`` writes both ``frozen*.json`` files.

Six recipes are kept tensor by tensor, all recipes by totals. Only a commit that changes the mathematics, or that
renames a recipe or a weight, and says so, may write the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any, ClassVar

import tiny
import torch
import wordnet_files
from pytorch_lightning import Callback
from recipe_options import draw_weights, drawn, own_options

from contrastive_text.cli import run
from contrastive_text.recipes import recipe_names

RECIPES = ("simcse", "declutr", "consert", "clear", "consert/joint_base", "cs224n")
FILE = Path(__file__).with_name("frozen.json")
TOTALS_FILE = Path(__file__).with_name("frozen_totals.json")
STEPS = 3
Figures = dict[str, Any]  # Any: losses and norms by step, two sums by tensor


class Freezer(Callback):
    """Starts a run from drawn weights, and notes what it comes to."""

    figures: ClassVar[Figures] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        self.figures.clear()
        self.figures.update(losses=[], gradient_norms=[], tensors={})
        draw_weights(pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002  # Lightning's
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        self.figures["gradient_norms"].append(float(torch.nn.utils.get_total_norm(gradients)))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        self.figures["losses"].append(float(outputs["loss"]))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        for name, weight in pl_module.state_dict().items():
            if isinstance(weight, torch.Tensor) and weight.is_floating_point():
                fixed = drawn(f"fixed {name}", weight.shape)
                self.figures["tensors"][name] = [float(weight.sum()), float((weight * fixed).sum())]


def figures_of(recipe: str, folder: Path, bert: str) -> Figures:
    """Runs a recipe over tiny data in float64; gives losses, gradient norms, and sums of every tensor."""
    options = [
        "--model.encoder.model_name_or_path", bert, "--data.batch_size", "8", *own_options(recipe, folder),
        "--data.validation", tiny.write_pairs(folder / "pairs.tsv"), "--data.num_workers", "0",
        "--trainer.max_steps", f"{STEPS}", "--trainer.val_check_interval", f"{STEPS}",
        "--trainer.precision", "64-true", "--trainer.accelerator", "cpu", "--trainer.log_every_n_steps", "1",
        "--trainer.enable_progress_bar", "false",
        "--trainer.callbacks", json.dumps([{"class_path": f"{__name__}.Freezer"}]),
    ]  # fmt: skip
    with chdir(folder):
        assert run(["fit", "--recipe", recipe, *options]) == 0
    return dict(Freezer.figures)


def totals_of(figures: Figures) -> Figures:
    """Returns losses, gradient norms, and totals over all weights."""
    tensors = figures["tensors"]
    return {
        **{name: figures[name] for name in ("losses", "gradient_norms")},
        "weights": len(tensors),
        "names": hashlib.sha256("\n".join(sorted(tensors)).encode()).hexdigest(),
        "totals": [sum(sums[i] for sums in tensors.values()) for i in range(2)],
    }


def main() -> None:
    """Writes the figures of all recipes."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    figures: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["NLTK_DATA"] = wordnet_files.write_wordnet(Path(name) / "nltk_data")
        bert = tiny.save_bert(Path(name) / "bert", max_position_embeddings=512)
        for recipe in recipe_names():
            (folder := Path(name) / "runs" / recipe.replace("/", "_")).mkdir(parents=True)
            figures[recipe] = figures_of(recipe, folder, bert)
    kept = {recipe: figures[recipe] for recipe in RECIPES}
    totals = {recipe: totals_of(each) for recipe, each in figures.items()}
    for file, content in ((FILE, kept), (TOTALS_FILE, totals)):
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
