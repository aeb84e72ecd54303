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
    """The run ``plain``, and its texts."""
    folder = tmp_path_factory.mktemp("report")
    tiny.write_texts(folder / "texts.txt", tiny.TEXTS + _NASTY)
    tiny.write_pairs(folder / "pairs.tsv", count=24)
    tiny.save_bert(folder / "bert")
    return {"plain": fit(folder, "plain"), "texts": folder / "texts.txt"}


@pytest.fixture(scope="session")
def altered(trained: dict[str, Path]) -> Path:
    """A run on the same files, with views; its folder has markup in its name."""
    views = "[{class_path: DeleteTokens, init_args: {rate: 0.5}}, FeatureCutoff]"
    options = ["--model.views.positive", views, "--model.optimizer.lr", "1e-3"]
    return fit(trained["texts"].parent, "al<i>tered", *options)


def fit(folder: Path, name: str, *options: str) -> Path:
    """Trains on the files of a folder, and returns the folder of the run."""
    files = {name: str(folder / name) for name in ("bert", "texts.txt", "pairs.tsv")}
    words = [
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", files["bert"],
        "--data.train", files["texts.txt"], "--data.validation", files["pairs.tsv"],
        "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
        "--trainer.log_every_n_steps", "1", "--trainer.val_check_interval", "2", "--trainer.max_steps", "4",
    ]  # fmt: skip
    assert run([*words, *options, "--trainer.default_root_dir", str(folder / name)]) == 0
    return folder / name


@pytest.fixture(scope="session")
def page(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run."""
    return write_report([trained["plain"]], tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def page_of_two(trained: dict[str, Path], altered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs side by side."""
    return write_report([trained["plain"], altered], tmp_path_factory.mktemp("two"))
