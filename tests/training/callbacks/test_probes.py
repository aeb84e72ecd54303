from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from contrastive_text import Run
from contrastive_text.inference import SentenceEncoder
from contrastive_text.metrics import nearest_neighbor_accuracy, paired_retrieval
from contrastive_text.training import NeighborProbe, RetrievalProbe

LABELED = [(text, ("bad", "good")[i % 2]) for i, text in enumerate(tiny.TEXTS[:24])]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.save_bert(tmp_path / "encoder")
    tiny.write_texts(tmp_path / "texts.txt")
    lines = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *LABELED])
    (tmp_path / "labeled.tsv").write_text(lines, encoding="utf-8")
    tiny.write_triples(tmp_path / "pairs.jsonl")
    return tmp_path


PROBES = [
    {
        "class_path": "contrastive_text.training.NeighborProbe",
        "init_args": {"file": "labeled.tsv", "classes": ["bad", "good"], "every": 2, "k": 3},
    },
    {"class_path": "contrastive_text.training.RetrievalProbe", "init_args": {"file": "pairs.jsonl", "every": 2}},
]


def trained(folder: str, **options: Any) -> Run:  # Any: options of a run
    run = Run.from_recipe(
        "simcse", encoder="encoder/", train="texts.txt", batch_size=8, max_steps=4, num_workers=0,
        accelerator="cpu", enable_progress_bar=False, default_root_dir=folder,
        config={"model.optimizer.lr": 1e-2}, **options,
    )  # fmt: skip
    run.fit()
    return run


def logged(folder: Path) -> dict[str, dict[str, float]]:
    """Returns what probes found, by step."""
    found: dict[str, dict[str, float]] = {}
    with (folder / "version_0" / "metrics.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            named = {name: float(cell) for name, cell in row.items() if name.startswith("probe/") and cell}
            if named:
                found.setdefault(row["step"], {}).update(named)
    return found


@pytest.mark.slow
def test_probes_find_the_figures_of_the_model_that_is_saved_and_change_no_bit_of_the_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, without = trained("probed", callbacks=PROBES), trained("plain")
    said = "".join(capsys.readouterr())
    assert "probe at step 0: knn@3 " in said and "on 24 rows of labeled.tsv" in said
    plain = without.module.state_dict()
    assert all(torch.equal(plain[name], weight) for name, weight in run.module.state_dict().items())
    found = logged(here / "probed")
    assert {step: sorted(figures) for step, figures in found.items()} == {
        key: ["probe/knn@3", "probe/mrr", "probe/recall@1"] for key in ("1", "3")
    }
    model = SentenceEncoder.from_pretrained(here / "probed" / "version_0" / "model", device="cpu")
    vectors = torch.as_tensor(model.encode([text for text, _ in LABELED]))
    labels = torch.tensor([("bad", "good").index(label) for _, label in LABELED])
    last = found["3"]
    assert last["probe/knn@3"] == pytest.approx(nearest_neighbor_accuracy(vectors, labels, k=3))
    rows = RetrievalProbe("pairs.jsonl").rows
    sides = [torch.as_tensor(model.encode([str(row[side]) for row in rows])) for side in ("anchor", "positive")]
    recall, mrr = paired_retrieval(*sides)
    assert (last["probe/recall@1"], last["probe/mrr"]) == pytest.approx((recall, mrr), rel=1e-4)


def test_wrong_numbers_are_refused_and_a_file_that_is_not_there(here: Path) -> None:
    with pytest.raises(ValueError, match=r"NeighborProbe\.every: expected 1 or more"):
        NeighborProbe("labeled.tsv", classes=["bad", "good"], every=0)
    with pytest.raises(ValueError, match=r"NeighborProbe\.k: expected 1 or more, got 0"):
        NeighborProbe("labeled.tsv", classes=["bad", "good"], k=0)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tsv"):
        trained("lost", callbacks=[{**PROBES[1], "init_args": {"file": "nowhere.tsv"}}])
    assert not (here / "lost" / "version_0" / "checkpoints").exists()


def test_votes_are_weighed_by_cosine_as_in_a_double_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(30, 5, generator=generator)
    labels = torch.randint(0, 3, (30,), generator=generator)
    unit, right = vectors / vectors.norm(dim=1, keepdim=True), 0
    for i in range(30):
        others = sorted((j for j in range(30) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:7]
        votes = [sum(torch.exp(unit[i] @ unit[j] / 0.07) for j in others if labels[j] == c) for c in range(3)]
        right += max(range(3), key=lambda c: float(votes[c])) == int(labels[i])
    assert nearest_neighbor_accuracy(vectors, labels, k=7) == pytest.approx(100 * right / 30)
