from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from contrastive_text import SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.sts import score_table
from contrastive_text.metrics import PairedBootstrap, pair_similarity
from contrastive_text.metrics.verdict import Verdict
from contrastive_text.poolers import MeanPooler
from contrastive_text.runs.report.material import (
    Material,
    Space,
    embed,
    gather,
    gold_scores,
    pair_cosines,
    read_run_files,
)
from contrastive_text.runs.report.page import gain, judgments, main_figures
from contrastive_text.runs.report.runs import read_runs
from contrastive_text.runs.report.vectors import score


@pytest.fixture
def material(trained: dict[str, Path]) -> Material:
    (run,) = read_runs([trained["plain"]])
    return gather({run.name: read_run_files(run)}, None, None, limit=1000)


@pytest.fixture
def spaces(trained: dict[str, Path], altered: Path, material: Material) -> list[Space]:
    found = [embed(run, material, "cpu") for run in read_runs([trained["plain"], altered])]
    return [space for space in found if isinstance(space, Space)]


def test_pairs_are_compared_with_the_prompts_of_their_columns_as_in_validation(bert: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
    model.prompts = Prompts({"query": "an old bird ", "document": "the river "}, default="query")
    pairs = read_pairs(tiny.write_pairs(tmp_path / "pairs.tsv"))
    embed = CachedEncoder(model)
    assert score(pair_cosines(embed, pairs), gold_scores(pairs)) == score_table(embed, pairs)[0].spearman


@pytest.mark.slow
def test_the_gain_is_over_the_weights_that_the_run_started_from(
    spaces: list[Space], material: Material, trained: dict[str, Path]
) -> None:
    found = gain(spaces[0], material, "cpu")
    assert isinstance(found, Verdict) and found.difference is not None and material.pairs is not None
    start = SentenceEncoder.from_pretrained(trained["texts"].parent / "bert", pooler="CLSPooler", device="cpu")
    sides = [start.encode([str(row[side]) for row in material.pairs]) for side in ("anchor", "positive")]
    gold = gold_scores(material.pairs)
    assert found.before == pytest.approx(
        score(pair_similarity(*map(torch.as_tensor, sides)), gold), abs=1e-3
    )  # float32, of another batch
    assert found.after == pytest.approx(score(spaces[0].cosines, gold))
    assert found.difference.difference == pytest.approx(found.after - found.before)


@pytest.mark.slow
def test_each_run_is_judged_and_the_second_against_the_first(spaces: list[Space], material: Material) -> None:
    runs = [space.run for space in spaces]
    names = [run.name for run in runs]
    for named_pairs, title, start in ((True, "Spearman ", "(bert)"), (False, "Validation ", "the first step")):
        judged = judgments(runs, spaces, material, "cpu", named_pairs)
        first, second, between = judged.lines
        assert judged.title.startswith(title)
        assert [first.about, second.about] == [f"{name}: " for name in names]
        assert all(f" before {start}, " in line.figures for line in (first, second))
        assert between.figures.startswith(f"{names[1]} against {names[0]}: ")


@pytest.mark.slow
def test_an_interval_decides_the_answer(
    monkeypatch: pytest.MonkeyPatch, spaces: list[Space], material: Material
) -> None:
    for ends, answer in (
        ((0.1, 0.3), "Training helped"),
        ((-0.3, -0.1), "Training made it worse"),
        ((-0.1, 0.1), "No difference that 24 pairs can show"),
    ):
        draws = PairedBootstrap(0.1, torch.linspace(*ends, 99).double())
        found = Verdict("Spearman", 50.0, 60.0, "max", draws, "24 pairs")
        monkeypatch.setattr("contrastive_text.runs.report.page.gain", lambda *_, found=found: found)
        assert judgments([spaces[0].run], spaces[:1], material, named_pairs=True).lines[0].answer == answer


@pytest.mark.slow
def test_start_weights_that_are_gone_are_named(spaces: list[Space], material: Material) -> None:
    spaces[0].run.config["model"]["encoder"]["init_args"]["model_name_or_path"] = "nowhere/gone"
    (line,) = judgments([spaces[0].run], spaces[:1], material, "cpu", named_pairs=True).lines
    assert "isn't known: gone, from which it started, can't be read now (" in line.figures and not line.answer


def test_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step,train/loss\n0,0,2.5\n0,1,nan\n0,2,nan\n")
    figures = dict(main_figures(read_runs([tmp_path]), []))
    assert figures["loss, last step"] == ["NaN or infinite from step 2 on"]
