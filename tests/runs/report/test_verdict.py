from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contrastive_text import SentenceEncoder
from contrastive_text.metrics import PairedBootstrap, pair_similarity, spearman
from contrastive_text.runs.report.material import Material, gather
from contrastive_text.runs.report.run_parts import read_run_parts
from contrastive_text.runs.report.runs import read_runs
from contrastive_text.runs.report.space import Space, embed, gold_scores, side_texts
from contrastive_text.runs.report.verdict import Gain, gain, verdict

pytestmark = pytest.mark.slow


@pytest.fixture
def material(trained: dict[str, Path]) -> Material:
    (run,) = read_runs([trained["plain"]])
    return gather({run.name: read_run_parts(run)}, None, None, limit=1000)


@pytest.fixture
def spaces(trained: dict[str, Path], material: Material) -> list[Space]:
    found = [embed(run, material, "cpu") for run in read_runs([trained["plain"], trained["altered"]])]
    return [space for space in found if isinstance(space, Space)]


def test_before_is_the_score_of_the_weights_that_the_run_started_from(
    spaces: list[Space], material: Material, trained: dict[str, Path]
) -> None:
    found = gain(spaces[0], material, "cpu")
    assert isinstance(found, Gain) and material.pairs is not None
    start = SentenceEncoder.from_pretrained(trained["texts"].parent / "bert", pooler="CLSPooler", device="cpu")
    sides = [start.encode(side_texts(material.pairs, side)) for side in ("anchor", "positive")]
    gold = gold_scores(material.pairs)
    before = 100 * float(spearman(pair_similarity(*map(torch.as_tensor, sides)), gold))
    assert found.before == pytest.approx(before, abs=1e-3)
    assert found.after == pytest.approx(100 * float(spearman(spaces[0].cosines, gold)))
    assert 100 * found.difference.difference == pytest.approx(found.after - found.before)


def test_each_run_is_judged_and_the_second_against_the_first(spaces: list[Space], material: Material) -> None:
    said = verdict(spaces, material, "cpu")
    first, second = (space.run.name for space in spaces)
    assert f"{first}: <b>" in said and f"{second}: <b>" in said and f"{second} against {first}: " in said
    assert said.count(" before (bert), ") == 2


def test_an_interval_decides_the_words(
    monkeypatch: pytest.MonkeyPatch, spaces: list[Space], material: Material
) -> None:
    for ends, words in (
        ((0.1, 0.3), "Training helped"),
        ((-0.3, -0.1), "made it worse"),
        ((-0.1, 0.1), "No difference"),
    ):
        found = Gain(50.0, 60.0, PairedBootstrap(0.1, torch.linspace(*ends, 99).double()), "bert")
        monkeypatch.setattr("contrastive_text.runs.report.verdict.gain", lambda *_, found=found: found)
        assert words in verdict(spaces[:1], material)


def test_a_start_that_is_gone_is_said(spaces: list[Space], material: Material) -> None:
    run = spaces[0].run
    run.config["model"]["encoder"]["init_args"]["model_name_or_path"] = "nowhere/gone"
    found = gain(spaces[0], material, "cpu")
    assert isinstance(found, str) and found.startswith("gone, from which it started, can't be read now (")
    assert "not known: gone, from which" in verdict(spaces[:1], material, "cpu")
    assert verdict([], material) == ""
