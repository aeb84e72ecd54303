"""The queue of past columns: what is compared with them, by slow loops; what enters, and what is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import tiny
import torch
from chains import (
    ROUNDING,
    WAYS,
    Batch,
    T,
    Text,
    batch,
    chain,
    contrast,
    fill,
    held,
    pushed,
    runs,
    slow_terms,
    train,
    value,
)
from covering import rest_slow
from hypothesis import given
from torch import Tensor

from contrastive_text.core.batch import Batch as RaggedBatch
from contrastive_text.core.batch import Encoded, StepBatch
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE, Loss, NTXent, SupCon, reduce_terms
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    MaskBatch,
    Momentum,
    NegativesAsHard,
    PositivesOnly,
    Queue,
    RowsAndColumns,
    Siblings,
    SignedPairs,
    Terms,
)
from contrastive_text.training import LogGradients, PCGrad
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial

# The formula


@pytest.mark.parametrize(
    ("loss", "how"),
    rest_slow(
        [
            (InfoNCE(T), WAYS[0]),
            (InfoNCE(T, "two_sided"), WAYS[1]),
            (NTXent(T, "sum"), WAYS[2]),
            (NTXent(T, streamed=True), WAYS[3]),
            (InfoNCE(T), WAYS[4]),
            (SupCon(T), {"classes": True}),
        ],
        quick=4,
    ),
    ids=str,
)
@given(run=runs())
def test_past_columns_are_columns_of_later_steps_as_in_the_double_loop(
    loss: Loss, how: dict[str, Any], run: tuple[list[Batch], int]
) -> None:
    steps, size = run
    objective, past = Contrastive(loss, columns=[*chain(**how), Queue(size)]), list[Text]()
    for step in steps:
        terms = slow_terms(step.encoded, loss, past, **how)
        expected = float(reduce_terms(torch.tensor(sum(terms), dtype=torch.float64), len(terms), loss.reduction))
        assert train(objective, [step]) == pytest.approx([expected], abs=ROUNDING, rel=ROUNDING)
        past = pushed(past, step.encoded, loss, size)
        assert fill(objective) == [len(past)]


def test_past_columns_are_no_rows_own_hard_negatives() -> None:
    steps = [batch(3, seed, hard=True) for seed in range(3)]
    weighed = contrast(InfoNCE(T, hard_negative_log_weight=0.7), Queue(9))
    train(weighed, steps[:2])
    step = steps[2]
    terms = []
    for i in range(3):
        target = reference.cosine(step.anchors[i], step.positives[i]) / T
        columns = [*step.positives, *step.negatives, *held(weighed)["vectors"].tolist()]
        logits = [reference.cosine(step.anchors[i], column) / T for column in columns]
        logits[3 + i] += 0.7
        terms.append(reference.cross_entropy(target, logits))
    assert train(weighed, [step]) == pytest.approx([sum(terms) / 3], abs=ROUNDING)


@pytest.mark.parametrize("loss", rest_slow([InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T)]))
def test_the_gradient_reaches_the_step_alone(loss: Loss) -> None:
    objective = contrast(loss, Queue(7))
    first = batch(4, 0).encoded
    first.embeddings.requires_grad_()
    objective(first).total.backward()
    objective.finish_step()
    assert not any(part.requires_grad for part in held(objective).values())
    second = batch(3, 1).encoded
    vectors = second.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: objective(replace(second, embeddings=v)).total, [vectors])


def test_a_past_text_that_views_made_equal_is_left_out() -> None:
    steps = [batch(2, 0, ids=[1, 2, 3, 4]), batch(2, 1, ids=[5, 6, 7, 8])]
    first, second = (step.encoded for step in steps)
    left = torch.tensor([[11, 12, 13, 14], [15, 16, 17, 13]])  # of the last positive what was left of the third
    edited = [
        replace(e, text_ids=torch.stack([e.text_ids, ids], 1))
        for e, ids in zip((first, second), left, strict=True)
    ]
    same = [replace(first, text_ids=torch.tensor([1, 2, 8, 4])), second]
    totals = []
    for run in (edited, same, [first, second]):
        objective = contrast(InfoNCE(T), Queue(8))
        objective(run[0])
        objective.finish_step()
        totals.append(float(objective(run[1]).total))
        objective.finish_step()
        restored = contrast(InfoNCE(T), Queue(8))
        restored.load_state_dict(objective.state_dict())
        assert torch.equal(restored(run[1]).total, objective(run[1]).total)
    assert totals[0] == totals[1] != totals[2]


# Labels and views


@pytest.mark.parametrize("loss", [InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T)])
def test_negative_pairs_left_out_do_not_enter(loss: Loss) -> None:
    steps = [replace(batch(4, seed), classes=[1, 0, 1, seed % 2]) for seed in range(3)]
    kept = []
    for step in steps:
        pairs = [i for i in range(4) if step.classes and step.classes[i]]
        anchors, positives = ([rows[i] for i in pairs] for rows in (step.anchors, step.positives))
        kept.append(
            Batch(anchors, positives, [], ([step.ids[0][i] for i in pairs], [step.ids[1][i] for i in pairs], []))
        )
    labeled, plain = (contrast(loss, PositivesOnly(), Queue(5)), contrast(loss, Queue(5)))
    assert train(labeled, steps) == train(plain, kept)
    assert torch.equal(held(labeled)["ids"], held(plain)["ids"])


def test_second_texts_of_negative_pairs_enter_where_they_are_hard_negatives() -> None:
    objective = contrast(InfoNCE(T), NegativesAsHard(), Queue(8))
    train(objective, [replace(batch(3, 0, ids=[0, 1, 2, 3, 4, 5]), classes=[1, 0, 1])])
    assert held(objective)["ids"].tolist() == [3, 5, 4]  # positives, then further negatives
    step = replace(batch(3, 1, ids=[6, 6, 7, 8, 9, 4]), classes=[1, 0, 1])
    kept = Batch(
        [step.anchors[0], step.anchors[2]], [step.positives[0], step.positives[2]], [], ([6, 7], [8, 4], [])
    )
    # The second text of the last pair was a negative pair's: left out of that row only.
    past = [Text(v, i) for v, i in zip(held(objective)["vectors"].tolist(), [3, 5, 4], strict=True)]
    expected = slow_terms(kept.encoded, InfoNCE(T), [Text(step.positives[1], 9), *past])
    assert train(objective, [step]) == pytest.approx([sum(expected) / 2], abs=ROUNDING)


@pytest.mark.parametrize("loss", [InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T)])
def test_the_bound_of_negative_pairs_is_that_of_a_guess_among_past_columns_too(loss: Loss) -> None:
    # Collapsed vectors: the loss of every row is that of a guess, and so the bound of every negative one.
    objective = contrast(loss, SignedPairs(weight=0.5), Queue(6))
    steps = []
    for seed in range(3):
        step = batch(4, seed)
        alike = [[1.0, 2.0, 0.0, 1.0]] * 4
        steps.append(replace(step, anchors=alike, positives=alike, classes=[1, 0, 1, 0]))
    sides = 2 if loss.reduction == "two_sided" else 1
    for reached, past in zip(train(objective, steps), (0, 8 if loss.same_side else 4, 6), strict=True):
        columns = torch.tensor((7 if loss.same_side else 4) + min(past, 6)).double()
        guesses = float(columns.log()) + (sides - 1) * float(torch.tensor(4.0).double().log())
        assert reached == pytest.approx((1 - 0.5) * guesses, abs=ROUNDING)


def test_the_bound_of_positives_that_look_for_anchors_counts_no_past_columns() -> None:
    objective = contrast(InfoNCE(T, "two_sided"), SignedPairs(), Queue(30))
    steps = [replace(batch(4, seed), classes=[1, 0, 1, 0]) for seed in range(3)]
    train(objective, steps[:2])
    past = list[Text]()
    for step in steps[:2]:
        past = pushed(past, step.encoded, InfoNCE(T), size=30)
    terms = slow_terms(steps[2].encoded, InfoNCE(T, "two_sided"), past)
    sides = terms[:4], terms[4:]
    assert max(sides[1][1], sides[1][3]) > math.log(4 + 8)  # bounded, whichever bound it is
    pulled = sum(terms[0] + terms[2] for terms in sides) / 2
    bounded = sum(min(sides[0][i], math.log(12)) + min(sides[1][i], math.log(4)) for i in (1, 3)) / 2
    assert train(objective, steps[2:]) == pytest.approx([pulled - bounded], abs=ROUNDING)


def test_between_views_each_role_has_its_queue() -> None:
    slots = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
    roles = Contrastive(NTXent(T), between="views", columns=[Duplicates(), Queue(5)])
    anchors, positives = (contrast(NTXent(T), Queue(5)), contrast(NTXent(T), Queue(5)))
    for seed in range(3):
        one, two = batch(2, seed), batch(2, seed + 10)
        both = Encoded(
            torch.cat([one.encoded.embeddings, two.encoded.embeddings]),
            slots,
            text_ids=torch.cat([one.encoded.text_ids, two.encoded.text_ids]),
        )
        reached = value(roles(both))
        roles.finish_step()
        expected = train(anchors, [one])[0] + train(positives, [two])[0]
        assert reached == pytest.approx(expected, abs=ROUNDING)
    assert fill(roles) == [5, 5]


def test_between_views_one_text_alone_leaves_the_other_queue_empty() -> None:
    objective = Contrastive(NTXent(T), between="views", columns=[Duplicates(), Queue(5)])
    objective(replace(batch(2, 0).encoded, slots=(Slot("anchor", 0), Slot("anchor", 1))))
    objective.finish_step()
    assert fill(objective) == [4, 0]
    again = Contrastive(NTXent(T), between="views", columns=[Duplicates(), Queue(5)])
    again.load_state_dict(objective.state_dict())
    assert fill(again) == [4, 0]


# What is said, and what is refused


FULL = "per anchor once the queue is full: "


@pytest.mark.parametrize(
    ("loss", "hard", "queue", "said"),
    [
        (InfoNCE(T), 0, 0, "3 per anchor: 3 other positives;"),
        (InfoNCE(T), 1, 0, "7 per anchor: 3 other positives, 4 hard negatives;"),
        (NTXent(T), 0, 0, "6 per anchor: 3 other positives, 3 other anchors;"),
        (InfoNCE(T), 0, 8, f"11 {FULL}3 other positives, 8 past columns (of 2 batches);"),
        (InfoNCE(T), 1, 8, f"15 {FULL}3 other positives, 4 hard negatives, 8 past"),
        (NTXent(T), 0, 8, f"14 {FULL}3 other positives, 3 other anchors, 8"),
        (InfoNCE(T, directions=["query_to_doc", "query_to_query"]), 0, 8,
         f"14 {FULL}3 other positives, 3 other anchors, 8 past columns (of 1 b"),
    ],
)  # fmt: skip
def test_the_summary_counts_the_columns_of_the_loss(loss: Loss, hard: int, queue: int, said: str) -> None:
    columns = [Duplicates(), Siblings(), *([Queue(queue)] if queue else [])]
    objective = Contrastive(loss, columns=columns)
    described = objective.describe_negatives(batch_size=4, positives=1, negatives=hard)
    assert described.startswith(said)
    assert described.endswith("accumulate_grad_batches adds none" + ", but fills the queue sooner" * bool(queue))
    alike = [[1.0, 0.0, 2.0, 0.0]] * 4
    steps = [batch(4, seed, hard=bool(hard)) for seed in range(4)]
    same = [replace(s, anchors=alike, positives=alike, negatives=alike if hard else []) for s in steps]
    # Collapsed vectors: a term is the logarithm of the columns, the target among them.
    assert train(objective, same)[-1] == pytest.approx(math.log(float(described.split()[0]) + 1), abs=ROUNDING)


def test_the_summary_counts_keys_and_the_texts_of_one_role() -> None:
    columns = [Duplicates(), Siblings(), Queue(160)]
    for objective, said in (
        (Contrastive(NTXent(T), between="views"), "126 per anchor: 63 other texts of its role, 63 other anchors"),
        (Contrastive(columns=[*columns, Momentum(of="anchor")]),
         f"223 {FULL}63 other positives, 160 past keys of anchor (of 2.5 batches);"),
        (Contrastive(columns=[*columns, Momentum(), MaskBatch()]),
         f"160 {FULL}160 past keys of positive (of 2.5 batches);"),
    ):  # fmt: skip
        assert objective.describe_negatives(64, 1, 0).startswith(said)


# What enters, and when


def test_only_a_finished_step_enters_and_only_once() -> None:
    objective, twice = (contrast(InfoNCE(T), Queue(9)), contrast(InfoNCE(T), Queue(9)))
    steps = [batch(3, seed) for seed in range(3)]
    train(objective, steps[:2])
    twice(steps[2].encoded)  # as the pass that looks for a gradient does
    twice(steps[0].encoded)
    twice.finish_step()
    twice.finish_step()
    twice(steps[2].encoded)
    [reached] = train(twice, [steps[1]])
    assert reached == train(contrast(InfoNCE(T), Queue(9)), steps[:2])[1]
    for name, part in held(objective).items():
        assert torch.equal(part, held(twice)[name])


def test_in_evaluation_the_queue_is_neither_read_nor_filled() -> None:
    objective = contrast(InfoNCE(T), Queue(9))
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
    objective = contrast(InfoNCE(T), Queue(size))
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
    plain = contrast(InfoNCE(T), Queue(4))
    half = replace(rows, embeddings=rows.embeddings.bfloat16())
    plain(half)
    plain.finish_step()
    plain.bfloat16()  # as a run in pure half precision is set up
    assert held(plain)["vectors"].dtype == torch.float32
    assert torch.equal(held(plain)["vectors"], half.embeddings[2:].float())


# State


def test_a_shorter_queue_takes_the_latest_columns_over() -> None:
    long, short = (contrast(InfoNCE(T), Queue(9)), contrast(InfoNCE(T), Queue(4)))
    steps = [batch(3, seed) for seed in range(4)]
    train(long, steps[:3])
    short.load_state_dict(long.state_dict())
    fresh = contrast(InfoNCE(T), Queue(4))
    assert train(short, steps[3:]) == train(fresh, steps)[3:]


def test_without_a_queue_there_is_no_state() -> None:
    assert not Contrastive().state_dict()
    assert not list(contrast(InfoNCE(), Queue(4)).parameters())
    assert not list(contrast(InfoNCE(), Queue(4)).buffers())  # DDP would send them round


def test_another_device_takes_the_past_columns_along() -> None:
    queue = Queue(size=4)
    texts = ExampleVectors.distinct(torch.eye(2), torch.eye(2))
    queue.receive_columns(RowsAndColumns("texts", InfoNCE(), texts, texts, 0, texts))
    queue.finish_step()
    there = texts.map(lambda rows: rows.to("meta"))
    [block] = queue(RowsAndColumns("texts", InfoNCE(), there, there, 0, there)).blocks()
    assert (block.columns.device.type, len(block.columns)) == ("meta", 4)


class Watched(Contrastive):
    """Keeps what each pass compares."""

    def __init__(self, queue: int, task: str | None = None) -> None:
        super().__init__(columns=[Duplicates(), Siblings(), Queue(queue)], task=task)
        self.queue = queue
        self.seen: list[Tensor] = []

    def forward(self, encoded: Encoded) -> Terms:
        self.seen.append(encoded.role("positive")[:, 0].detach())
        return super().forward(encoded)


def test_the_pass_that_finds_a_gradient_view_does_not_enter(bert: str, texts: str, tmp_path: Path) -> None:
    watched = Watched(queue=99)
    module = tiny.module(bert, views={"positive": [Adversarial()]}, objectives={"watched": watched})
    tiny.trainer(tmp_path, max_steps=2).fit(module, tiny.data(texts))
    assert len(watched.seen) == 4
    assert torch.equal(held(watched)["vectors"], torch.cat(watched.seen[1::2]))


def test_every_micro_batch_enters_under_any_combination_of_gradients(
    bert: str, texts: str, tmp_path: Path
) -> None:
    objectives = {"one": Watched(99), "other": contrast(NTXent(), Queue(99))}
    built = tiny.module(bert, combine=PCGrad(), objectives=objectives)
    trainer = tiny.trainer(tmp_path, max_steps=2, accumulate_grad_batches=2, callbacks=[LogGradients(every=1)])
    trainer.fit(built, tiny.data(texts))
    assert [fill(part) for part in built.objective_parts().values()] == [[32], [64]]


def test_what_is_only_followed_in_a_step_does_not_enter() -> None:
    watched = Watched(queue=99, task="texts")
    built = ContrastiveModule(
        TransformerEncoder(config=tiny.CONFIG),
        views={"positive": [Adversarial(objective="watched")]},
        objectives={"watched": watched, "other": Contrastive(task="texts")},
    )
    rows = RaggedBatch(
        ids=torch.arange(5, 29),
        lengths=torch.full((6,), 4),
        slots=(Slot("anchor", 0), Slot("positive", 0)),
        row_slots=torch.arange(2).repeat_interleave(3),
        draw_keys=torch.arange(6),
        text_ids=torch.arange(6),
    )
    built.training_step(StepBatch({"texts": rows}, objectives=("other",)), 0)
    assert (len(watched.seen), fill(watched)) == (1, [0])
    built.training_step(StepBatch({"texts": rows}, objectives=("watched", "other")), 1)
    assert (len(watched.seen), fill(watched)) == (3, [3])
    assert torch.equal(held(watched)["vectors"], watched.seen[-1])
