"""Tests of notebook tables of summaries, scores, comparisons and data: well-formed HTML, escaped texts."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tiny

from contrastive_text import Run
from contrastive_text.core.terminal import facts_table
from contrastive_text.evaluation.compare import Agreement, ModelComparison, ScoreDifference
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.training import RunSummary


class Tables:
    """Reads well-formed tables without styles or classes."""

    def __init__(self, markup: str) -> None:
        root = ElementTree.fromstring(f"<all>{markup.replace('<br>', chr(10))}</all>")
        assert all({*each.attrib} <= {"scope"} for each in root.iter()), "no style, no class"
        self.rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
        self.captions = [each.text for each in root.iter("caption")]
        self.notes = [each.text for each in root.iter("li")]


SCORES = ScoreTable(
    "accuracy < 100",
    {"<b>mine": [TaskScore("MR", "accuracy", 81.0), TaskScore.absent("CR", "accuracy", "get <cr.tsv>")]},
)


def test_texts_stay_texts_and_lines_lines() -> None:
    hostile = {"<script>": "a\n</td><img src=x onerror='y'> & \"z\""}
    found = Tables(facts_table("</caption>", hostile))
    assert found.captions == ["</caption>"]
    assert found.rows == [["", "value"], *map(list, hostile.items())]


def test_scores_and_what_is_missing_of_them() -> None:
    found = Tables(SCORES._repr_html_())
    assert found.captions == ["accuracy < 100"]
    assert found.rows == [["model", "MR", "CR", "Avg."], ["<b>mine", "81.00", "n/a", "n/a"]]
    assert found.notes == ["CR: get <cr.tsv>"]


def test_a_comparison() -> None:
    difference = ScoreDifference("other", "MR", 1.5, 0.5, 2.5, p_value=0.01, holm=math.nan)
    agreement = Agreement("other", neighbors=0.25, cka=math.nan)
    comparison = ModelComparison("<b>mine", (SCORES,), (difference,), (agreement,), 7, 999, notes=("a < b",))
    found = Tables(comparison._repr_html_())
    assert found.captions == ["accuracy < 100", "Differences, times 100", "Agreement of the vectors"]
    assert found.rows[3] == ["other", "MR", "+1.50", "+0.50 to +2.50 *", "0.0100", ""]
    assert found.rows[5] == ["other", "25.0%", "n/a"]
    assert found.notes[-1] == "a < b" and found.notes[1].startswith("* the 95 % interval excludes 0")
    without = ModelComparison("mine", (), (difference,), (), 7, 999, notes=())
    assert Tables(without._repr_html_()).captions == ["Differences, times 100"]


@pytest.mark.slow
def test_a_run_its_data_and_its_summary(bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts, pairs = tiny.write_texts(tmp_path / "texts.txt"), tiny.write_pairs(tmp_path / "pairs.tsv")
    run = Run.from_recipe(
        "simcse", bert, train=texts, validation=pairs, batch_size=8, num_workers=0, max_steps=1,
        accelerator="cpu", enable_progress_bar=False,
    )  # fmt: skip
    before = [dict(Tables(each._repr_html_()).rows) for each in (run, run.data, RunSummary())]
    assert "contrastive: 1 x Contrastive" in before[0]["objectives"]
    assert (before[1]["train"], before[1]["batch_size"]) == (texts, "8") and "labels" not in before[1]
    assert before[2] == {"": "value"}
    run.fit()
    facts, data = (dict(Tables(each._repr_html_()).rows) for each in (run, run.data))
    assert {"encoder", "training data", "step", "val/spearman"} < {*facts}
    assert facts["val/spearman"] == f"{float(run.trainer.callback_metrics['val/spearman']):.2f}"
    assert data["training data"] == facts["training data"] and "validation data" in data
