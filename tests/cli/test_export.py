"""The command that saves the model of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from huggingface_hub import ModelCard
from shells import Shell

from contrastive_text.inference.sentence_encoder import SentenceEncoder


@pytest.mark.slow
@pytest.mark.parametrize("what", ["CHECKPOINT", "FOLDER"])
def test_the_model_of_a_checkpoint_is_the_one_that_the_run_has_saved(
    what: str, shell: Shell, finished: dict[str, str], here: Path
) -> None:
    (here / "out").mkdir()
    (here / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    assert "--model out" in shell(f"export {what} out").out
    exported, saved = (SentenceEncoder.from_pretrained(folder) for folder in ("out", finished["model"]))
    assert (exported.encode(tiny.TEXTS) == saved.encode(tiny.TEXTS)).all()
    assert (here / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.slow
def test_an_exported_folder_has_a_card_that_names_no_place_and_leaves_a_user_s_own(
    shell: Shell, finished: dict[str, str], here: Path
) -> None:
    shell("export CHECKPOINT out")
    card = ModelCard.load(here / "out" / "README.md")
    assert card.data.pipeline_tag == "sentence-similarity"
    assert card.data.library_name == "sentence-transformers"
    assert card.data.base_model is None  # a folder is no name on the hub
    for line in ("| training data | ", "| val/spearman | ", "| recipe | simcse |", "eprint = {2104.08821}"):
        assert line in card.text
    (score, _) = card.data.eval_results
    assert score.metric_type == "spearman_cosine" and score.dataset_name == "pairs.tsv"
    assert f"| val/spearman | {score.metric_value:.4g} |" in card.text
    assert str(Path(finished["checkpoint"]).parents[2]) not in card.content
    assert (Path(finished["model"]) / "README.md").read_text(encoding="utf-8") == card.content
    shell("verify out")
    SentenceEncoder.from_pretrained("out").save_pretrained("again")
    assert (here / "again" / "README.md").read_text(encoding="utf-8") == card.content
    SentenceEncoder.from_pretrained("out", pooler="MeanPooler").save_pretrained("again")
    assert not (here / "again" / "README.md").exists()  # its scores are of another pooler
    (here / "out" / "README.md").write_text("mine", encoding="utf-8")
    shell("export CHECKPOINT out")
    assert (here / "out" / "README.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.slow
def test_a_checkpoint_of_weights_and_parts_alone_has_a_model(
    shell: Shell, finished: dict[str, str], here: Path
) -> None:
    whole = torch.load(finished["checkpoint"], weights_only=True)
    named = ("state_dict", "hyper_parameters", "pytorch-lightning_version", "global_step", "epoch")
    torch.save({name: whole[name] for name in named}, here / "weights.ckpt")
    shell("export weights.ckpt out")
    assert (here / "out" / "modules.json").is_file()
