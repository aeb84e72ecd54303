"""Tasks of mteb over texts in memory, as a user's own module has them; tests copy it to where they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mteb
import tiny
from datasets import Dataset, DatasetDict
from mteb import abstasks

FIRST, SECOND, GOLD = (list(column) for column in zip(*tiny.scored_pairs(30), strict=True))


def metadata(name: str, kind: str, score: str, splits: Sequence[str] = ("test",)) -> Any:
    """Returns what mteb wants to know of a task."""
    return mteb.TaskMetadata(
        name=name, description="of local texts", type=kind, category="t2t", modalities=["text"],
        reference=None, dataset={"path": "local/none", "revision": "1"}, eval_splits=list(splits),
        eval_langs=["eng-Latn"], main_score=score, date=None, domains=None, task_subtypes=None, license=None,
        annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
    )  # fmt: skip


class Pairs(abstasks.AbsTaskSTS):
    """Scored pairs in two splits."""

    metadata = metadata("LocalPairs", "STS", "cosine_spearman", ["dev", "test"])

    def load_data(self, **_: Any) -> None:
        columns = {"sentence1": FIRST, "sentence2": SECOND, "score": GOLD}
        halves = {"dev": slice(0, 15), "test": slice(0, 30)}
        self.dataset = DatasetDict({
            split: Dataset.from_dict({name: each[rows] for name, each in columns.items()})
            for split, rows in halves.items()
        })  # fmt: skip
        self.data_loaded = True


class Lost(Pairs):
    """Data that can't be had."""

    metadata = metadata("Lost", "STS", "cosine_spearman")

    def load_data(self, **_: Any) -> None:
        raise ConnectionError("no way to the hub")


class Search(abstasks.AbsTaskRetrieval):
    """Five queries among all texts, each with two documents."""

    metadata = metadata("LocalSearch", "Retrieval", "ndcg_at_10")

    def load_data(self, **_: Any) -> None:
        corpus = [{"id": f"d{i:02}", "title": "", "text": text} for i, text in enumerate(tiny.TEXTS)]
        queries = [{"id": f"q{i}", "text": tiny.TEXTS[i]} for i in range(5)]
        data = {
            "corpus": Dataset.from_list(corpus),
            "queries": Dataset.from_list(queries),
            "relevant_docs": {f"q{i}": {f"d{i:02}": 1, f"d{i + 5:02}": 1} for i in range(5)},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": data}}
        self.data_loaded = True
