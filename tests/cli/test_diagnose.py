"""The command that diagnoses a space, from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from shells import Shell

from contrastive_text import SentenceEncoder
from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.data import read_pairs
from contrastive_text.data.files.readers import TextStream
from contrastive_text.evaluation.cached import CachedEncoder, sample_texts
from contrastive_text.evaluation.diagnosis import diagnose
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.poolers import CLSPooler, MeanPooler


def test_the_table_has_every_figure_and_the_verdicts(shell: Shell, files: dict[str, str]) -> None:
    said = shell("diagnose BERT TEXTS --pairs PAIRS --guide BERT").out
    model = SentenceEncoder.from_pretrained(files["bert"], pooler=MeanPooler(), device="cpu")
    found = diagnose(CachedEncoder(model), tiny.TEXTS, read_pairs(files["pairs"]))
    assert "texts.txt: text -> text; 40 rows" in said
    assert "MeanPooler, for it names none, 40 different texts of 40" in said
    lines = {line.split("│")[1].strip(): line for line in said.splitlines() if line.startswith("│")}
    assert f"{found.mean_cosine:.3f}" in lines["mean cosine"]
    assert f"{found.effective_rank:.1f}" in lines["effective rank"]
    assert "1 to 16" in lines["effective rank"]
    assert "100.0%" in lines["guide agreement"]
    assert f"{found.alignment:.3f}" in lines["alignment"]
    assert f"{found.spearman:.2f}" in lines["Spearman x 100"]
    assert found.frequency is not None
    assert f"{dict(found.frequency)[34]:.2f}" in lines["without 34 tokens"]
    assert found.warnings
    assert all(f"warning: {each}" in said for each in found.warnings)


def test_json_is_all_that_stands_on_standard_output(shell: Shell, files: dict[str, str], here: Path) -> None:
    other = SentenceEncoder.from_pretrained(files["bert"], pooler=CLSPooler(), device="cpu")
    EmbeddingRun(other, TextStream(files["texts"], distinct=True), here / "guide.npy", with_ids=True).finish()
    captured = shell("diagnose BERT TEXTS --format json --limit 20 --seed 3 --guide guide.npy")
    found = json.loads(captured.out)
    model = SentenceEncoder.from_pretrained(files["bert"], pooler=MeanPooler(), device="cpu")
    embed = CachedEncoder(model)
    assert found == diagnose(embed, tiny.TEXTS, limit=20, seed=3, guide=CachedEncoder(other)).to_dict()
    known = sample_texts(tiny.TEXTS, 20, seed=3)
    cosines = [
        cosine_similarity_matrix(*2 * [coder(known)]).fill_diagonal_(-1)
        for coder in (embed, CachedEncoder(other))
    ]
    same = cosines[0].argmax(dim=1) == cosines[1].argmax(dim=1)
    assert found["guide_agreement"] == pytest.approx(float(same.double().mean()))
    assert 0 < found["guide_agreement"] < 1
    assert len(found["spectrum"]) == 16
    assert "names no pooler" in captured.err


@pytest.mark.parametrize("form", ["text", "json"])
def test_it_is_written_to_a_file_if_asked_for_and_texts_that_are_cut_are_said(
    shell: Shell, here: Path, form: str
) -> None:
    (here / "long.txt").write_text("a bird\n" + 20 * "the old bird sings " + "\n")
    said = shell(f"diagnose BERT long.txt --format {form} --output found")
    assert "Diagnosis written to found" in said.out + said.err
    assert "isotropy" in (here / "found").read_text()
    assert form == "json" or "1 of 2 texts exceed 32 tokens and were truncated" in said.out


def test_a_pooler_without_a_mean_is_said(shell: Shell, files: dict[str, str]) -> None:
    said = shell("diagnose BERT TEXTS --pairs PAIRS --pooler CLSPooler").out
    assert f"{files['bert']}: CLSPooler, asked for, 40 different texts" in said
    (line,) = [line for line in said.splitlines() if "frequency bias" in line]
    assert "n/a" in line
    assert "the pooler takes no mean over tokens" in line
