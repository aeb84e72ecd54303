"""A script of the user's own around Lightning's command line does what Lightning's documentation says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny
import torch
from pytorch_lightning.cli import LightningCLI

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.recipes import recipe_texts


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning"
)  # Lightning's own, of loggers and workers
def test_three_lines_fit_from_a_recipe_and_test_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    bert, texts = tiny.save_bert(tmp_path / "bert"), tiny.write_texts(tmp_path / "texts.txt")
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "simcse.yaml").write_text(recipe_texts()["simcse"], encoding="utf-8")  # without its variants
    words = ["fit", "--config", "simcse.yaml", f"--model.encoder.model_name_or_path={bert}"]
    words += [f"--data.train={texts}", f"--data.validation={pairs}", "--data.batch_size=8"]
    words += ["--trainer.accelerator=cpu", "--trainer.max_steps=2", "--trainer.enable_progress_bar=false"]
    words += ["--trainer.val_check_interval=2"]
    fitted = LightningCLI(ContrastiveModule, TextDataModule, args=words)
    folder = Path(fitted.trainer.log_dir)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    words = ["test", f"--config={folder / 'config.yaml'}", f"--ckpt_path={checkpoint}", f"--data.test={pairs}"]
    tested = LightningCLI(ContrastiveModule, TextDataModule, args=words)
    score = tested.trainer.callback_metrics["test/spearman"]
    # The weights of the last step are those of the checkpoint, and validated after it.
    torch.testing.assert_close(score, fitted.trainer.callback_metrics["val/spearman"])
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(weights[name], weight) for name, weight in tested.model.state_dict().items())
    loaded = ContrastiveModule.load_from_checkpoint(checkpoint)
    assert type(loaded.pooler).__name__ == "CLSPooler"
