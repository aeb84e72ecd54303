"""A corpus on several processes: whatever is killed, each row has its vector once, and that of ``embed``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from covering import turn_of

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.sentence_encoder import SentenceEncoder

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")

COUNT, FILES = 4_000, 8
TEXTS = tuple(f"{tiny.TEXTS[i % 40]} and {i}" for i in range(COUNT))
EXAMPLE = Path(__file__).parents[1] / "examples" / "embed_ray.py"


def write_corpus(folder: Path) -> None:
    (folder / "in" / "more").mkdir(parents=True)
    each = COUNT // FILES
    for number in range(FILES):
        rows = range(number * each, (number + 1) * each)
        table = pyarrow.table({"id": list(rows), "text": [TEXTS[i] for i in rows]})
        parquet.write_table(table, folder / "in" / ("more" if number % 2 else "") / f"{number}.parquet")


def encode(folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """Runs the example with two workers, or what stands before its words."""
    words = [str(folder / "in"), str(folder / "out"), "--model", str(folder / "bert"), "--workers", "2"]
    alone = {"HF_HUB_OFFLINE": "1", "RAY_ADDRESS": "", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment = {name: value for name, value in (os.environ | alone).items() if value}
    return subprocess.run(
        [sys.executable, *(before or [str(EXAMPLE)]), *words], env=environment, capture_output=True, text=True
    )


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in (folder / "out").rglob("*.parquet")}


def vectors_in(folder: Path) -> np.ndarray:
    """Returns the vectors of the corpus, in its order, whose rows are all there, once each."""
    rows = pyarrow.concat_tables(map(parquet.read_table, folder.rglob("*.parquet"))).sort_by("id")
    assert rows["id"].to_pylist() == list(range(COUNT))
    assert rows["text"].to_pylist() == list(TEXTS)
    return rows["embedding"].combine_chunks().flatten().to_numpy().reshape(COUNT, -1)


@pytest.mark.slow
@pytest.mark.skipif(not turn_of([True], 3), reason="runs in a third of the parts: Ray starts twice")
def test_all_rows_have_their_vectors_once_though_the_job_and_then_a_worker_are_killed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    write_corpus(tmp_path)
    job = str(Path(__file__).with_name("ray_job.py"))
    tiny.save_bert(tmp_path / "bert")
    killed = encode(tmp_path, job, str(tmp_path / "job-killed"), "job")
    assert killed.returncode == -9, killed.stderr[-2000:]
    there = written(tmp_path)
    assert 0 < len(there) < FILES
    again = encode(tmp_path, job, str(tmp_path / "worker-killed"), "worker")
    assert again.returncode == 0, again.stderr[-2000:]
    assert (tmp_path / "worker-killed").exists()
    assert f"{len(there)} of {FILES} files are there" in again.stdout
    assert len(written(tmp_path)) == FILES
    assert there.items() <= written(tmp_path).items()  # none of them was written again
    assert list((tmp_path / "out").rglob("*.tmp")) == []

    with pytest.warns(UserWarning, match="names no pooler"):
        model = SentenceEncoder.from_pretrained(tmp_path / "bert", device="cpu")
    texts = TextStream(tiny.write_texts(tmp_path / "texts.txt", TEXTS))
    EmbeddingRun(model, texts, tmp_path / "v.npy").finish()
    for name in ("out", "pipeline"):
        # Batches of other texts sum in another order: float32 with 16 terms.
        np.testing.assert_allclose(vectors_in(tmp_path / name), np.load(tmp_path / "v.npy"), atol=1e-6)
