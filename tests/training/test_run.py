"""A run in Python and a run of the shell are one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow

from contrastive_text import Run
from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.poolers import LastTwoPooler
from contrastive_text.training import BestCheckpoint
from contrastive_text.views import CropTokens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A random encoder, texts, and scored pairs."""
    folder = tmp_path_factory.mktemp("run")
    return {
        "bert": tiny.save_bert(folder / "bert"),
        "texts": tiny.write_texts(folder / "texts.txt"),
        "pairs": tiny.write_pairs(folder / "pairs.tsv"),
    }


def small(files: dict[str, str], **options: Any) -> Run:
    """Returns a run of two steps."""
    return Run.from_recipe(
        "simcse", files["bert"], train=files["texts"], batch_size=8, max_steps=2, num_workers=0,
        accelerator="cpu", enable_progress_bar=False, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_python_and_the_shell_leave_the_same_files_and_equal_bits(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "data.train": files["texts"], "data.validation": files["pairs"], "data.batch_size": 8,
        "data.num_workers": 0, "trainer.accelerator": "cpu", "trainer.enable_progress_bar": False,
        "trainer.max_steps": 2, "trainer.default_root_dir": "runs",
    }  # fmt: skip
    saved = []
    for place in ("shell", "python"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        if place == "shell":
            words = [f"--{name}={value}" for name, value in options.items()]
            encoder = f"--model.encoder.model_name_or_path={files['bert']}"
            assert run(["fit", "--recipe", "simcse", encoder, *words]) == 0
        else:
            built = Run.from_recipe("simcse", encoder=files["bert"], config=options)
            torch.rand(7)  # what is drawn between is no part of the run
            built.fit()
        (checkpoint,) = Path("runs/version_0/checkpoints").iterdir()
        saved.append(torch.load(checkpoint, weights_only=True))
    ours, theirs = (tmp_path / place / "runs/version_0" for place in ("python", "shell"))
    files_of = [sorted(str(path.relative_to(run)) for path in run.rglob("*")) for run in (ours, theirs)]
    assert files_of[0] == files_of[1] and "config.yaml" in files_of[0]
    for name in ("config.yaml", "hparams.yaml", "model/model.safetensors", "metrics.csv"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert_equal(*saved)
    vectors = built.model.encode(tiny.TEXTS)
    expected = built.module.load_from_checkpoint(checkpoint).sentence_encoder().encode(tiny.TEXTS)
    assert (vectors == expected).all()


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Compares two checkpoints, whose paths lead into folders beside each other."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert [_beside(name) for name in one] == [_beside(name) for name in other], where
        for pair in zip(one.items(), other.items(), strict=True):
            assert_equal(*(value for _, value in pair), where=f"{where}.{pair[0][0]}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, where=f"{where}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert _beside(one) == _beside(other), where


def _beside(value: object) -> object:
    return value.replace("/python/", "/shell/") if isinstance(value, str) else value


def test_names_find_their_places_and_values_may_be_parts(files: dict[str, str]) -> None:
    built = Run.from_recipe(
        "simcse",
        encoder=Path(files["bert"]),
        train=files["texts"],
        pooler=LastTwoPooler(),
        views={"positive": [CropTokens(rate=0.5)]},
        seed=7,
        chunk=64,
        max_epochs=3,
        accelerator="cpu",
        config={"checkpoint.monitor": "val/overall", "model.objectives.contrastive.loss.temperature": 0.2},
    )
    assert isinstance(built.module.pooler, LastTwoPooler)
    assert built.module.plan.chains["positive"][0].rate == 0.5
    assert vars(built.module.objective_parts()["contrastive"])["_modules"]["loss"].temperature == 0.2
    assert built.data.seed == 7 and built.trainer.max_epochs == 3
    (best,) = (part for part in built.trainer.checkpoint_callbacks if isinstance(part, BestCheckpoint))
    assert best.monitor == "val/overall"
    with pytest.raises(ContrastiveTextError, match=r"Run\.model: expected a trained run.*call run\.fit\(\)"):
        built.model  # noqa: B018  # the property itself refuses


@pytest.mark.parametrize(
    ("options", "said"),
    rest_slow(
        [
            ({"max_epoch": 1}, "Run: .* got 'max_epoch'; did you mean max_epochs"),
            ({"monitor": "val/overall"}, "got 'monitor'; give other options by their dotted name in config"),
            ({"config": {"modl.pooler": "CLSPooler"}}, "Run: .* got 'modl.pooler'; did you mean model"),
            ({"config": {"data.trian": "a.txt"}}, "trian"),
            ({"pooler": "CLSPoolr"}, "model.pooler: .* got CLSPoolr; did you mean CLSPooler"),
            ({"batch_size": "many"}, "data.batch_size: expected int, got many"),
            ({"pooler": len}, "pooler: expected plain values .* got the function"),
            ({"max_steps": -4}, "trainer: .*max_steps"),
            ({"seed": -4}, "seed_everything: expected 0 to"),
            ({"ckpt_path": "none.ckpt"}, "expected a file, found none at none.ckpt"),
            ({"train": "a.txt", "tasks": {"one": {}}}, r"data\.train: expected no files next to data"),
            (
                {"config": {"trainer.callbacks": ["LearningRateFinder"]}},
                "expected no LearningRateFinder, got one: it sets",
            ),
        ],
        quick=4,
    ),
)
def test_what_no_run_can_be_made_of_is_answered(
    options: dict[str, Any], said: str, files: dict[str, str]
) -> None:
    with pytest.raises(ContrastiveTextError, match=said):
        Run.from_recipe("simcse", encoder=files["bert"], accelerator="cpu", **options)


@pytest.mark.slow
def test_a_script_started_again_has_the_model_of_its_finished_run(files: dict[str, str], tmp_path: Path) -> None:
    vectors = []
    for _ in range(2):
        made = small(files, folder=str(tmp_path / "mine"))
        made.fit()
        vectors.append(made.model.encode(tiny.TEXTS))
    assert (vectors[0] == vectors[1]).all()


@pytest.mark.slow
def test_the_scores_before_the_first_step_are_said_on_request(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        small(
            files, validation=files["pairs"], num_sanity_val_steps=steps, default_root_dir=str(tmp_path / str(i))
        )
        for i, steps in enumerate((0, 0, -1))
    ]
    (figures,) = made[0].call(pl.Trainer.validate)
    line = f"before the first step: val/spearman {figures['val/spearman']:.2f}"
    for one, says in ((made[1], []), (made[2], [line])):
        capsys.readouterr()
        one.fit()
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("before the first step")] == says
    first, second = (one.model.encode(tiny.TEXTS) for one in made[1:])
    assert (first == second).all()


@pytest.mark.parametrize(
    ("bound", "interval", "validated"),
    rest_slow(
        [
            ({"max_steps": 3}, 2, [2, 3]),
            ({"max_steps": 7}, 5, [5, 7]),  # an epoch has 5 batches
            ({"max_epochs": 2}, 3, [3, 8, 10]),
            ({"max_steps": 3, "accumulate_grad_batches": 2}, 4, [2, 3]),
        ]
    ),
)
def test_the_last_step_is_validated_whatever_the_interval(
    bound: dict[str, int], interval: int, validated: list[int], tmp_path: Path
) -> None:
    run = Run.from_recipe(
        "simcse", tiny.save_bert(tmp_path / "bert"), train=tiny.write_texts(tmp_path / "texts.txt"),
        validation=tiny.write_pairs(tmp_path / "pairs.tsv"), batch_size=8, num_workers=0, accelerator="cpu",
        enable_progress_bar=False, default_root_dir=str(tmp_path), val_check_interval=interval, **bound,
    )  # fmt: skip
    run.fit()
    log = pandas.read_csv(tmp_path / "version_0" / "metrics.csv")
    steps = log["step"][log["val/spearman"].notna()] + 1  # Lightning counts from 0
    assert steps.tolist() == validated
