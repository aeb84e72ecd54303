"""The doctor of a run: what it logs is what the metrics give, it says what is wrong once, and is else silent."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.core.batch import Hidden
from contrastive_text.data import read_pairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import AlignmentUniformity, BarlowTwins, InfoNCE, VICReg
from contrastive_text.objectives import Contrastive, WholeBatch
from contrastive_text.poolers import Pooler
from contrastive_text.training import AdamW
from contrastive_text.training.callbacks import collapse_doctor
from contrastive_text.training.callbacks.collapse_doctor import (
    EVERY,
    FLAT,
    IN_A_ROW,
    SETTLED,
    CollapseDoctor,
    ProblemDetector,
    remedy,
)
from contrastive_text.training.module import ContrastiveModule

USUAL = {
    "loss": 0.8, "accuracy": 0.9, "positive_similarity": 0.8, "negative_similarity": 0.2, "alignment": 0.4,
    "uniformity": -1.5,
}  # fmt: skip
SOLVED = {**USUAL, "loss": 0.0009, "accuracy": 1.0}
COLLAPSED = {**USUAL, "loss": 4.16, "accuracy": 0.0, "negative_similarity": 0.998, "uniformity": -0.01}


def logged(own: dict[str, float], name: str = "contrastive") -> dict[str, float]:
    """Returns what a run logs of an objective under these figures."""
    figures = {f"train/{name}/{figure}": value for figure, value in own.items() if figure != "loss"}
    return {"train/loss": own["loss"], f"train/{name}": own["loss"], **figures}


def read(signs: ProblemDetector, *readings: dict[str, float], start: int = 0) -> list[str]:
    """Returns the kinds that the last of these readings has, 50 steps apart."""
    for number, own in enumerate(readings):
        found = signs.read(start + EVERY * number, logged(own))
    return sorted(found)


# Signs in what training logs


def test_a_usual_run_shows_no_sign() -> None:
    """SimCSE: the loss comes to 0.001 while uniformity falls; then both stay."""
    falling = [{**SOLVED, "uniformity": -1.0 - 0.1 * step} for step in range(12)]
    signs = ProblemDetector()
    for number, own in enumerate([{**USUAL, "uniformity": -1.0}, *falling, *[falling[-1]] * 20]):
        assert signs.read(EVERY * number, logged(own)) == {}
    # A random encoder on bags of words: a loss of 0.003 at once, and the score rises all the same.
    assert read(ProblemDetector(), *[{**SOLVED, "uniformity": -3.2}] * 20) == []


def test_a_low_loss_over_a_flat_uniformity_means_trivial_positives() -> None:
    signs = ProblemDetector()
    assert read(signs, *[SOLVED] * (IN_A_ROW - 1)) == []
    found = signs.read(500, logged({**SOLVED, "uniformity": -1.52}))
    assert list(found) == ["trivial"]
    assert found["trivial"].startswith(
        "contrastive: loss 0.0009 and accuracy 1.000 at step 500, but uniformity -1.52 is flat, -1.50 at the "
        "start (positives have cosine 0.800, negatives 0.200): positives are trivial"
    )


@pytest.mark.parametrize(
    "change",
    [{"loss": 0.5}, {"accuracy": 0.95}, {"uniformity": -1.5 - FLAT - 0.01}],
    ids=["loss", "accuracy", "uniformity"],
)
def test_a_reading_that_disagrees_starts_the_count_anew(change: dict[str, float]) -> None:
    signs = ProblemDetector()
    assert read(signs, *[SOLVED] * (IN_A_ROW - 1), {**SOLVED, **change}, *[SOLVED] * (IN_A_ROW - 1)) == []
    assert read(signs, SOLVED) == ["trivial"]


def test_negatives_like_positives_mean_collapse_but_not_in_the_first_steps() -> None:
    assert read(ProblemDetector(), *[COLLAPSED] * (IN_A_ROW + 1)) == []  # the first two aren't settled yet
    signs = ProblemDetector()
    assert read(signs, *[COLLAPSED] * (IN_A_ROW - 1), start=SETTLED) == []
    found = signs.read(400, logged(COLLAPSED))
    assert list(found) == ["collapse"]
    said = "the space has collapsed at step 400: positives have cosine 0.800, negatives 0.998"
    assert said in found["collapse"]
    # A random network spreads out later.
    readings = [COLLAPSED] * (SETTLED // EVERY + IN_A_ROW - 1)
    assert read(ProblemDetector(), *readings, {**USUAL, "uniformity": -2.0}) == []


@pytest.mark.parametrize(
    ("figure", "kind", "said"),
    [
        (
            {"negative_similarity": 0.998}, "collapse",
            "the space has collapsed at step 900: pairs have cosine 0.800, other texts 0.998",
        ),
        (
            {"off_diagonal": 0.71}, "alike",
            "features repeat each other at step 900: two of them have a correlation of 0.71, as if all were "
            "mixtures of 2 directions",
        ),
    ],
)  # fmt: skip
def test_a_collapse_without_negatives_is_told_without_speaking_of_them_and_a_low_loss_is_none(
    figure: dict[str, float], kind: str, said: str
) -> None:
    whole = ProblemDetector()
    whole.objectives = {"contrastive": WholeBatch(BarlowTwins())}
    assert read(whole, *[SOLVED] * 9) == []
    readings = [{**USUAL, "off_diagonal": 0.2, **figure}] * IN_A_ROW
    assert read(whole, *readings, start=SETTLED - EVERY) == []  # the first is not settled yet
    found = whole.read(900, logged(readings[0]))
    assert list(found) == [kind] and found[kind].startswith(f"contrastive: {said}")
    assert found[kind].endswith(
        "; try a lower learning rate, a larger batch or a larger off_diagonal_weight, from an earlier checkpoint"
    )
    assert not {"negatives", "temperature"} & {*found[kind].replace(",", "").split()}


def test_the_advice_is_that_of_the_objectives_that_there_are() -> None:
    objectives = [WholeBatch(VICReg()), Contrastive(), Contrastive(InfoNCE())]
    assert remedy(objectives) == (
        "try a lower learning rate, a larger batch, a larger variance_weight and covariance_weight or a lower "
        "temperature, from an earlier checkpoint"
    )
    assert remedy([]) == "try a lower learning rate or a larger batch, from an earlier checkpoint"


def test_an_objective_that_a_step_leaves_out_and_one_without_vectors_are_passed_over() -> None:
    absent = dict.fromkeys(logged(USUAL, "other"), math.nan) | logged(USUAL)
    assert ProblemDetector().read(0, absent) == {}
    figures = {"train/loss": 0.0, "train/mlm": 0.0, "train/mlm/accuracy": 1.0}
    signs = ProblemDetector()
    assert [signs.read(EVERY * number, figures) for number in range(9)] == [{}] * 9


# In a run


@pytest.fixture(scope="module")
def files(texts: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Texts, and two files of pairs whose best score is another."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number, scores in enumerate(((5, 1), (1, 0))):
        pairs = [(tiny.TEXTS[i + number], tiny.TEXTS[i + 9], scores[i % 2]) for i in range(8 + 2 * number)]
        paths.append(folder / f"{number}.tsv")
        rows = ["\t".join(map(str, pair)) for pair in pairs]
        paths[-1].write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return {"train": texts, "validation": [str(path) for path in paths]}


class Alike(Pooler):
    """Gives all texts nearly the same vector."""

    def forward(self, hidden: Hidden) -> Tensor:
        return 1e-3 * hidden.layers[-1].mean(dim=1) + 1


def fit(module: ContrastiveModule, folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    data = {name: options.pop(name) for name in ("train", "validation", "tasks") if name in options}
    trainer = tiny.trainer(folder, callbacks=list(callbacks), val_check_interval=1, **options)
    with mock.patch.multiple(collapse_doctor, EVERY=1, SETTLED=0):  # a tiny run is read at every step
        trainer.fit(module, datamodule=tiny.data(**{"train": None, **data}))
    return trainer


def expected_figures(model: SentenceEncoder, validation: list[str]) -> dict[str, float]:
    """Returns what validation should log of a model: alignment is the mean over files."""
    alignments, vectors = [], []
    for path in validation:
        rows = read_pairs(path).rows
        u, v = (
            torch.as_tensor(model.encode([str(row[side]) for row in rows])) for side in ("anchor", "positive")
        )
        best = [row["target"] == max(row["target"] for row in rows) for row in rows]
        alignments.append(metrics.alignment(u[best], v[best]).item())
        vectors += [u, v]
    figures = {"alignment": sum(alignments) / len(alignments)}
    for measure in (metrics.uniformity, metrics.mean_cosine, metrics.effective_rank):
        figures[measure.__name__] = measure(torch.cat(vectors)).item()
    return figures


def test_validation_logs_the_metrics_of_the_held_out_vectors(
    bert: str, files: dict[str, Any], tmp_path: Path
) -> None:
    module = tiny.module(bert, optimizer=AdamW(lr=1e-2))
    found = fit(module, tmp_path, CollapseDoctor(), num_sanity_val_steps=2, **files).callback_metrics
    for name, figure in expected_figures(module.sentence_encoder(), files["validation"]).items():
        # Texts are encoded in other batches: rounding of float32.
        assert found[f"val/{name}"].item() == pytest.approx(figure, rel=1e-4, abs=1e-5), name
    assert "val/spearman" in found


def test_of_many_texts_only_some_are_measured(
    bert: str, files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.training.callbacks.collapse_doctor.MOST_TEXTS", 10)
    doctor = CollapseDoctor()
    fit(tiny.module(bert), tmp_path, doctor, **files)
    assert [len(torch.cat(metric.vectors)) for metric in doctor._spread] == [10] * 3


SHARP = Contrastive(InfoNCE(temperature=1e-4))
"""Without dropout two views of a text are equal, and so sharp a temperature sees no other text beside them."""


@pytest.mark.parametrize(
    ("parts", "validated", "start", "end"),
    rest_slow([
        (
            {"pooler": Alike()}, True,
            "held out at step 1, the space has collapsed: two texts have cosine 1.000 on average",
            "; try a lower learning rate, a larger batch or a lower temperature, from an earlier checkpoint",
        ),
        (
            {"pooler": Alike(), "objectives": {"whole": WholeBatch(AlignmentUniformity())}}, False,
            f"whole: the space has collapsed at step {IN_A_ROW}: pairs have cosine 1.000",
            "a larger batch or a larger uniformity_weight, from an earlier checkpoint",
        ),
        (
            {"dropout": 0.0, "objectives": {"contrastive": SHARP}}, False,
            "contrastive: loss 0.0000 and accuracy 1.000 at step 4, but uniformity", "",
        ),
    ]),
    ids=["collapsed", "collapsed, without validation", "trivial"],
)  # fmt: skip
def test_what_goes_wrong_is_told_once(
    parts: dict[str, Any],
    validated: bool,
    start: str,
    end: str,
    bert: str,
    files: dict[str, Any],
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    data = files if validated else {"train": files["train"]}
    fit(tiny.module(bert, **parts), tmp_path, CollapseDoctor(), max_steps=IN_A_ROW + 4, **data)
    messages = [str(each.message) for each in recwarn]
    (message,) = [each for each in messages if "collapsed" in each or "trivial" in each or "NaN" in each]
    assert message.startswith(start) and message.endswith(end)


def test_a_validation_by_itself_logs_no_more_than_its_scores(
    bert: str, files: dict[str, Any], tmp_path: Path
) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[CollapseDoctor()])
    found = tiny.merged(trainer.validate(tiny.module(bert), tiny.data(**files), verbose=False))
    assert {name.split("/")[1] for name in found} == {"spearman", "pearson"}


def test_a_resumed_run_knows_how_it_started_and_what_was_said_and_only_the_first_rank_speaks() -> None:
    first, second = CollapseDoctor(), CollapseDoctor()
    first.signs.read(0, logged(USUAL))
    trainer: Any = SimpleNamespace(is_global_zero=True)
    with pytest.warns(UserWarning, match="it has"):
        first._warn(trainer, "collapse", "it has")
    second.load_state_dict(first.state_dict())
    assert second.signs.start == {"contrastive": -1.5}
    second._warn(trainer, "collapse", "it has")  # a second warning would be an error
    trainer.is_global_zero = False
    CollapseDoctor()._warn(trainer, "collapse", "it has")  # and one of another rank


@pytest.mark.slow  # half a minute, for two processes to import torch and Lightning
def test_two_processes_log_the_figures_of_all_pairs(bert: str, files: dict[str, Any], tmp_path: Path) -> None:
    options = {
        "model.encoder.model_name_or_path": bert, "data.train": files["train"],
        "data.validation": json.dumps(files["validation"]), "data.eval_batch_size": 3, "data.batch_size": 8,
        "data.num_workers": 0, "trainer.accelerator": "cpu", "trainer.strategy": "ddp", "trainer.devices": 2,
        "trainer.enable_progress_bar": "false", "trainer.max_steps": 2,
    }  # fmt: skip
    words = [sys.executable, "-m", "contrastive_text", "fit", "--recipe", "simcse"]
    words += [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / "runs" / "version_0" / "metrics.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["val/uniformity"]]
    model = SentenceEncoder.from_pretrained(tmp_path / "runs" / "version_0" / "model")
    for name, figure in expected_figures(model, files["validation"]).items():
        assert float(row[f"val/{name}"]) == pytest.approx(figure, rel=1e-4, abs=1e-5), name
