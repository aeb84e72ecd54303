"""A run in Python and a run of the shell are one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch

from contrastive_text import Run
from contrastive_text.cli import run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.poolers import LastTwoPooler
from contrastive_text.training import BestCheckpoint
from contrastive_text.views import CropTokens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A random encoder, texts, documents, scored pairs and labelled rows."""
    folder = tmp_path_factory.mktemp("run")
    labelled = {
        "sentiment": [{"text": text, "target": i % 5} for i, text in enumerate(tiny.TEXTS)],
        "paraphrase": [
            {"anchor": text, "positive": tiny.TEXTS[i - 1], "target": i % 2} for i, text in enumerate(tiny.TEXTS)
        ],
        "similarity": [
            {"anchor": text, "positive": tiny.TEXTS[i - 1], "target": i % 6} for i, text in enumerate(tiny.TEXTS)
        ],
        "documents": [{"text": " ".join(tiny.TEXTS)} for _ in range(16)],
    }
    for name, rows in labelled.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return {
        "bert": tiny.save_bert(folder / "bert", max_position_embeddings=600),
        "texts": tiny.write_texts(folder / "texts.txt"),
        "pairs": tiny.write_pairs(folder / "pairs.tsv"),
        **{name: str(folder / f"{name}.jsonl") for name in labelled},
    }


def options_of(recipe: str, files: dict[str, str]) -> dict[str, Any]:
    """Returns what makes the recipe small, by the names that the shell's options have."""
    options = {
        "data.batch_size": 8,
        "data.num_workers": 0,
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": False,
        "trainer.max_steps": 2,
        "trainer.default_root_dir": "runs",
    }
    if recipe == "cs224n":
        tasks = ("sentiment", "paraphrase", "similarity")
        return options | {
            f"data.tasks.{task}.{part}": files[task] for task in tasks for part in ("train", "validation")
        }
    options["data.validation"] = files["pairs"]
    if recipe == "declutr":
        return options | {
            "data.cache_dir": "tokens",
            "data.train": files["documents"],
            "data.task.pairing.min_length": 8,
            "data.task.pairing.max_length": 32,
        }
    return options | {"data.train": files["texts"]}


@pytest.mark.parametrize(
    "recipe", ["simcse", *(pytest.param(name, marks=pytest.mark.slow) for name in ("declutr", "cs224n"))]
)
def test_python_and_the_shell_leave_the_same_files_and_equal_bits(
    recipe: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(recipe, files)
    saved = []
    for place in ("shell", "python"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        if place == "shell":
            words = [f"--{name}={value}" for name, value in options.items()]
            assert (
                run(["fit", "--recipe", recipe, f"--model.encoder.model_name_or_path={files['bert']}", *words])
                == 0
            )
        else:
            built = Run.from_recipe(recipe, encoder=files["bert"], config=options)
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
    [
        ({"max_epoch": 1}, "Run: .* got 'max_epoch'; did you mean max_epochs"),
        ({"monitor": "val/overall"}, "got 'monitor'; one of another place goes by its dotted name into config"),
        ({"config": {"modl.pooler": "CLSPooler"}}, "Run: .* got 'modl.pooler'; did you mean model"),
        ({"config": {"data.trian": "a.txt"}}, "trian"),
        ({"pooler": "CLSPoolr"}, "model.pooler: .* got CLSPoolr; did you mean CLSPooler"),
        ({"batch_size": "many"}, "data.batch_size: expected int, got many"),
        ({"pooler": len}, "pooler: expected plain values .* got the function"),
        ({"max_steps": -4}, "trainer: .*max_steps"),
        ({"seed": -4}, "seed_everything: expected 0 to"),
        ({"ckpt_path": "none.ckpt"}, "expected a file, found none at none.ckpt"),
        ({"train": "a.txt", "tasks": {"one": {}}}, r"data\.train: expected no files next to data"),
    ],
)
def test_what_no_run_can_be_made_of_is_answered(
    options: dict[str, Any], said: str, files: dict[str, str]
) -> None:
    with pytest.raises(ContrastiveTextError, match=said):
        Run.from_recipe("simcse", encoder=files["bert"], accelerator="cpu", **options)


def test_a_script_started_again_has_the_model_of_its_finished_run(files: dict[str, str], tmp_path: Path) -> None:
    vectors = []
    for _ in range(2):
        made = Run.from_recipe(
            "simcse", files["bert"], train=files["texts"], batch_size=8, max_steps=2, num_workers=0,
            folder=str(tmp_path / "mine"), accelerator="cpu", enable_progress_bar=False,
        )  # fmt: skip
        made.fit()
        vectors.append(made.model.encode(tiny.TEXTS))
    assert (vectors[0] == vectors[1]).all()


def test_the_learning_rate_finder_is_refused_in_words(files: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected no LearningRateFinder, got one: it sets an attribute lr"):
        Run.from_recipe(
            "simcse", files["bert"], {"trainer.callbacks": ["LearningRateFinder"]}, train=files["texts"]
        )


@pytest.mark.slow
def test_the_scores_before_the_first_step_are_said_on_request(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        Run.from_recipe(
            "simcse",
            files["bert"],
            train=files["texts"],
            validation=files["pairs"],
            batch_size=8,
            max_steps=2,
            num_workers=0,
            num_sanity_val_steps=steps,
            default_root_dir=str(tmp_path / str(i)),
            accelerator="cpu",
            enable_progress_bar=False,
        )
        for i, steps in enumerate((0, 0, -1))
    ]
    (figures,) = made[0].call(pl.Trainer.validate)
    said = f"before the first step: val/spearman {figures['val/spearman']:.2f}\n"
    for one, says in ((made[1], False), (made[2], True)):
        capsys.readouterr()
        one.fit()
        assert (said in capsys.readouterr().out) == says
    first, second = (one.model.encode(tiny.TEXTS) for one in made[1:])
    assert (first == second).all()
