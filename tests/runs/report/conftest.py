"""Fixtures for tests of the report page: two finished runs of a tiny encoder, and their pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from contrastive_text.cli import run
from contrastive_text.runs.report.page import write_report

_NASTY = ("</script><b>bold</b> & <img src=x onerror=alert(1)>", "an ampersand &amp; \"quotes\" 'of' both kinds")


@pytest.fixture
def nasty() -> tuple[str, ...]:
    """Texts among those of the runs that must show as they are."""
    return _NASTY


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs on the same files: ``plain``, and ``altered``, whose folder has markup in its name,
    with views."""
    folder = tmp_path_factory.mktemp("report")
    texts = tiny.write_texts(folder / "texts.txt", tiny.TEXTS + _NASTY)
    pairs = tiny.write_pairs(folder / "pairs.tsv", count=24)
    words = [
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", tiny.save_bert(folder / "bert"),
        "--data.train", texts, "--data.validation", pairs, "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
        "--trainer.log_every_n_steps", "1", "--trainer.val_check_interval", "2", "--trainer.max_steps", "4",
    ]  # fmt: skip
    altered = ["--model.views.positive", "[{class_path: DeleteTokens, init_args: {rate: 0.5}}, FeatureCutoff]"]
    altered += ["--model.optimizer.lr", "1e-3"]
    folders = {"plain": folder / "plain", "altered": folder / "al<i>tered", "texts": Path(texts)}
    for name, options in (("plain", []), ("altered", altered)):
        assert run([*words, *options, "--trainer.default_root_dir", str(folders[name])]) == 0
    return folders


@pytest.fixture(scope="session")
def page(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run."""
    return write_report([trained["plain"]], tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def page_of_two(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs side by side."""
    return write_report([trained["plain"], trained["altered"]], tmp_path_factory.mktemp("two"))
