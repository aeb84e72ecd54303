"""What enters the queue of past columns, what leaves it, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from chains import T, batch, held, train

from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives import Contrastive, Duplicates, Pairs, Queue, Siblings

# What enters, and when


def test_only_a_finished_step_enters_and_only_once() -> None:
    objective, twice = (
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(9)]),
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(9)]),
    )
    steps = [batch(3, seed) for seed in range(3)]
    train(objective, steps[:2])
    twice(steps[2].encoded)  # as the pass that looks for a gradient does
    twice(steps[0].encoded)
    twice.finish_step()
    twice.finish_step()
    twice(steps[2].encoded)
    [reached] = train(twice, [steps[1]])
    assert reached == train(Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(9)]), steps[:2])[1]
    for name, part in held(objective).items():
        assert torch.equal(part, held(twice)[name])


def test_in_evaluation_the_queue_is_neither_read_nor_filled() -> None:
    objective = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(9)])
    steps = [batch(3, seed) for seed in range(2)]
    train(objective, steps[:1])
    before = held(objective)
    assert train(objective.eval(), steps[1:]) == train(Contrastive(InfoNCE(T)), steps[1:])
    assert torch.equal(held(objective)["vectors"], before["vectors"])
    assert train(objective.train(), steps[1:]) != train(Contrastive(InfoNCE(T)), steps[1:])


@pytest.mark.parametrize(
    ("size", "expected"), [(2, [1004, 1005]), (4, [4, 1003, 1004, 1005]), (99, [3, 4, 1003, 1004, 1005])]
)
def test_the_oldest_columns_leave_first(size: int, expected: list[int]) -> None:
    objective = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(size)])
    steps = [batch(2, 0, ids=[0, 1, 3, 4]), batch(3, 1)]
    train(objective, steps)
    state = held(objective)
    assert state["ids"].tolist() == expected
    assert state["vectors"].tolist() == [*steps[0].positives, *steps[1].positives][-size:]
    # No part of an older, larger tensor is kept alive, or written into a checkpoint.
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in state.values())


def test_columns_are_kept_behind_the_head_and_in_float32() -> None:
    objective = Contrastive(InfoNCE(T), head=TanhHead(), columns=[Duplicates(), Siblings(), Queue(4)])
    objective.build(4)
    assert objective.head is not None
    rows = batch(2, 0).encoded
    rows = replace(rows, embeddings=rows.embeddings.float())
    objective(rows)
    objective.finish_step()
    # The objective projects anchors and positives apart, whose products a processor may round otherwise.
    torch.testing.assert_close(held(objective)["vectors"], objective.head(rows.embeddings)[2:].detach())
    plain = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(4)])
    half = replace(rows, embeddings=rows.embeddings.bfloat16())
    plain(half)
    plain.finish_step()
    plain.bfloat16()  # as a run in pure half precision is set up
    assert held(plain)["vectors"].dtype == torch.float32
    assert torch.equal(held(plain)["vectors"], half.embeddings[2:].float())


# State


def test_a_shorter_queue_takes_the_latest_columns_over() -> None:
    long, short = (
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(9)]),
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(4)]),
    )
    steps = [batch(3, seed) for seed in range(4)]
    train(long, steps[:3])
    short.load_state_dict(long.state_dict())
    fresh = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(4)])
    assert train(short, steps[3:]) == train(fresh, steps)[3:]


def test_without_a_queue_there_is_no_state() -> None:
    assert not Contrastive().state_dict()
    assert not list(Contrastive(columns=[Duplicates(), Siblings(), Queue(4)]).parameters())
    assert not list(
        Contrastive(columns=[Duplicates(), Siblings(), Queue(4)]).buffers()
    )  # DDP would send them round


def test_another_device_takes_the_past_columns_along() -> None:
    queue = Queue(size=4)
    texts = Triples.distinct(torch.eye(2), torch.eye(2))
    queue.finish(Pairs("texts", InfoNCE(), texts, texts, 0, texts))
    queue.finish_step()
    there = texts.map(lambda rows: rows.to("meta"))
    [block] = queue(Pairs("texts", InfoNCE(), there, there, 0, there)).blocks()
    assert (block.columns.device.type, len(block.columns)) == ("meta", 4)
