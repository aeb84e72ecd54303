"""Which rows are trained on, and how often: a limit, rows that come again, a fraction of them in each epoch."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch

from contrastive_text.data import EpochRoundRobin, loader
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.preparation import drawn
from contrastive_text.pairings import Neighbours
from contrastive_text.training.module import ContrastiveModule


def ready(module: ContrastiveModule, data: TextDataModule) -> TextDataModule:
    data.attach(module)
    data.setup("fit")
    return data


def test_a_limit_draws_the_same_rows_whatever_the_batches_and_smaller_ones_among_them(
    bert: str, texts: str
) -> None:
    module = tiny.module(bert)

    def rows(**options: Any) -> list[str]:
        training = ready(module, tiny.data(texts, **options)).training.of()
        return [str(row["text"]) for row in training.texts]

    ten = rows(limit=10)
    assert len(set(ten)) == 10
    assert rows(limit=10, batch_size=3) == ten
    assert set(ten) < set(rows(limit=20))
    assert set(ten) != set(rows(limit=10, seed=7))
    assert rows(limit=40) == list(tiny.TEXTS)  # all of them, in the order of the file
    assert (rows(limit="25%"), rows(limit="100%")) == (ten, list(tiny.TEXTS))
    neighbours = rows(limit=10, pairing=Neighbours())
    assert set(neighbours) < set(tiny.TEXTS[:-1])


def test_rows_that_come_again_are_altered_anew_and_it_is_said(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    data = ready(module, tiny.data(texts, limit=3, repeat=2, batch_size=8))
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [16, 16]
    assert len(torch.cat([batch.draw_keys for batch in batches]).unique()) == 32
    anchors = [ids for batch in batches for ids in batch.text_ids[batch.by_role("anchor")].tolist()]
    assert sorted(anchors.count(text) for text in set(anchors)) == [5, 5, 6]
    facts = data.facts()
    assert facts["rows"] == "3 of 40 rows, drawn by seed 42"
    assert facts["order"] == "a permutation by seed and epoch"
    assert facts["duplicates"] == "0 of 3 rows repeat the text of another"
    assert facts["repeated rows"] == (
        "16 an epoch: each of the 3 comes some 5.3 times, altered anew; a step of 8 has each some 2.7 times, and "
        "copies of a text are negatives of each other only without Duplicates"
    )
    few = ready(module, tiny.data(texts, limit=1, repeat=1)).facts()["repeated rows"]
    assert few.endswith("only without Duplicates; without it the loss is 0")


def test_a_fraction_is_drawn_anew_each_epoch(tmp_path: Path, bert: str) -> None:
    tasks = several.fewer(several.write_tasks(tmp_path))
    data = ready(several.module(bert), several.data(tasks, EpochRoundRobin()))
    seen = []
    for number in range(2):
        loader = data.train_dataloader()
        loader.order.set_epoch(number)
        quora = [batch["quora"] for batch in (step.batches for step in loader) if "quora" in batch]
        seen.append({text for batch in quora for text in batch.text_ids[batch.by_role("anchor")].tolist()})
    assert len(seen[0]) == len(seen[1]) == 18  # of 40, in three whole batches of the 20
    assert seen[0] != seen[1]
    assert data.facts()["mixture"].splitlines()[1:] == [
        "sst: 5 rows as 18 an epoch, 6 a step",
        "quora: 18 of 40 rows an epoch, 6 a step, others each time",
        "sts: 18 of 18 rows an epoch, 6 a step",
    ]


def test_a_few_of_many_rows_are_drawn_in_the_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "PERMUTATION_ROWS", 10**6)
    tracemalloc.start()
    try:
        chosen, _ = drawn(range(10**7), 1000, seed=1, task="train")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(set(chosen)) == list(chosen)
    assert {*chosen} < {*drawn(range(10**7), 2000, seed=1, task="train")[0]}
    assert 0 <= chosen[0] < chosen[-1] < 10**7
    assert peak < 200_000
