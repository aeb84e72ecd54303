"""The command that writes hard negatives, and a run on what it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from contrastive_text.cli import run


@pytest.mark.slow
def test_mined_triples_train_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.save_bert(tmp_path / "model")
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "triples.tsv"
    rows = [f'{{"query": "{tiny.TEXTS[i]}", "answer": "{tiny.TEXTS[i + 8]}"}}\n' for i in range(16)]
    pairs.write_text("".join(rows))
    corpus = tiny.write_texts(tmp_path / "corpus.txt")
    words = ["mine", str(pairs), str(out), "--model", model, "--corpus", corpus, "--negatives", "2"]
    assert run([*words, "--relative_margin", "0.01", "--range_min", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "16 pairs of 16 queries; a corpus of 40 texts" in said
    assert "equal to the query" in said and "--relative_margin 0.01" in said
    assert "the nearest 1 of all candidates were skipped" in said
    assert "50%" in said and "#" in said and f"rows written to {out}" in said
    assert out.read_text().startswith("anchor\tpositive\tnegative\tpositive_cosine\tnegative_cosine\n")
    fit = ["fit", "--recipe", "simcse/sup", "--model.encoder.model_name_or_path", model, "--data.train", str(out)]
    fit += ["--data.batch_size", "8", "--data.num_workers", "0", "--trainer.max_steps", "1"]
    fit += ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path / "run")]
    assert run([*fit, "--trainer.val_check_interval", "1.0", "--export.dirpath", str(tmp_path / "out")]) == 0
    assert "negative" in capsys.readouterr().out
