"""The queue of past columns: against slow loops over several steps, in training, and in checkpoints."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import reference
import tiny
import torch
from covering import crossed
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.callbacks import ModelCheckpoint
from safetensors import safe_open
from torch import Tensor

from contrastive_text.core.batch import Batch as RaggedBatch
from contrastive_text.core.batch import StepBatch
from contrastive_text.core.types import Encoded, Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE, Loss, NTXent, SupCon, reduce_terms
from contrastive_text.losses.triples import Triples
from contrastive_text.objectives import (
    Contrastive,
    Momentum,
    NegativesAsHard,
    Objective,
    PairLabels,
    PositivesOnly,
    SignedPairs,
    Terms,
)
from contrastive_text.objectives.batch_pairs import BatchPairs
from contrastive_text.objectives.queue import Queue
from contrastive_text.training import PCGrad
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial

# Logits of at most 20 in float64, sums of some thirty terms.
ROUNDING = 1e-11
T = 0.2


@dataclass(frozen=True)
class Batch:
    """Vectors and ids of one step by role, example by example; a class for each example, or None."""

    anchors: list[list[float]]
    positives: list[list[float]]
    negatives: list[list[float]]
    ids: tuple[list[int], list[int], list[int]]
    classes: list[int] | None = None

    @property
    def encoded(self) -> Encoded:
        slots = [Slot("anchor", 0), Slot("positive", 0), *([Slot("negative", 0)] if self.negatives else [])]
        return Encoded(
            torch.tensor([*self.anchors, *self.positives, *self.negatives], dtype=torch.float64),
            tuple(slots),
            text_ids=torch.tensor([*self.ids[0], *self.ids[1], *self.ids[2]]),
            target=None if self.classes is None else torch.tensor(self.classes).double(),
        )


def batch(n: int, seed: int, ids: Sequence[int] = (), hard: bool = False, classes: bool = False) -> Batch:
    """Random vectors; the texts of all batches differ unless ids, role by role, are given."""
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, n, 4, generator=noise, dtype=torch.float64).tolist()
    texts = list(ids) if ids else list(range(1000 * seed, 1000 * seed + 3 * n))
    return Batch(
        anchors=vectors[0],
        positives=vectors[1],
        negatives=vectors[2] if hard else [],
        ids=(texts[:n], texts[n : 2 * n], texts[2 * n :] if hard else []),
        classes=[(seed + i) % 2 for i in range(n)] if classes else None,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Batch], int]:
    """Two to four steps of uneven size over few texts, and a queue that may be shorter than a step."""
    hard, steps = draw(st.booleans()), []
    for _ in range(draw(st.integers(2, 4))):
        n = draw(st.integers(1, 4))
        ids = draw(st.lists(st.integers(0, 9), min_size=3 * n, max_size=3 * n))
        steps.append(batch(n, draw(st.integers(0, 2**31)), ids=ids, hard=hard, classes=True))
    return steps, draw(st.integers(1, 20))


Past = list[tuple[list[float], int, int]]
"""Vector, id and class of each past column, oldest first."""


def slow_terms(step: Batch, past: Past, same_side: bool, masked: bool = True, pulls: bool = False) -> list[float]:
    """A term for each row; with ``pulls`` the mean over the columns of the row's class."""
    n = len(step.anchors)
    classes = step.classes or [0] * n
    texts = [*step.anchors, *step.positives]
    ids = [*step.ids[0], *step.ids[1]]
    terms = []
    for i in range(2 * n if same_side else n):
        partner = (i + n) % (2 * n)
        own = {ids[i], ids[partner]} if masked else set()
        logits, pulled = [], []
        for j in range(0 if same_side else n, 2 * n):
            if j == partner or (j != i and ids[j] not in own):
                logits.append(reference.cosine(texts[i], texts[j]) / T)
                if j == partner or (pulls and classes[j % n] == classes[i % n]):
                    pulled.append(logits[-1])
        for vector, text in zip(step.negatives, step.ids[2], strict=True):
            if text not in own:
                logits.append(reference.cosine(texts[i], vector) / T)
        for vector, text, kind in past:
            if text not in own:
                logits.append(reference.cosine(texts[i], vector) / T)
                if pulls and kind == classes[i % n]:
                    pulled.append(logits[-1])
        terms.append(sum(reference.cross_entropy(logit, logits) for logit in pulled) / len(pulled))
    return terms


def slow_push(past: Past, step: Batch, same_side: bool, size: int) -> Past:
    """The queue after a step."""
    classes = step.classes or [0] * len(step.anchors)
    entered = list(zip(step.anchors, step.ids[0], classes, strict=True)) if same_side else []
    entered += zip(step.positives, step.ids[1], classes, strict=True)
    entered += [(vector, text, -1) for vector, text in zip(step.negatives, step.ids[2], strict=True)]
    return [*past, *entered][-size:]


def value(terms: Terms) -> float:
    return float(reduce_terms(terms.total, max(terms.count, 1), terms.reduction))


def train(objective: Objective, steps: Sequence[Batch]) -> list[float]:
    """The loss of every step, as the module goes through them."""
    losses = []
    for step in steps:
        losses.append(value(objective(step.encoded)))
        objective.finish_step()
    return losses


def held(objective: Objective) -> dict[str, Any]:
    """The extra state of the objective's queue."""
    return dict(objective.state_dict()["queues.texts._extra_state"])


def fill(objective: Objective) -> list[int]:
    """Columns in each queue of the objective."""
    return [part.filled for part in objective.modules() if isinstance(part, Queue)]


# The formula


@pytest.mark.parametrize(
    ("loss", "masked"),
    crossed([InfoNCE(T), InfoNCE(T, "sum"), NTXent(T), NTXent(T, "two_sided")], [True, False]),
)
@given(run=runs())
def test_past_columns_are_negatives_as_in_the_double_loop(
    loss: Loss, masked: bool, run: tuple[list[Batch], int]
) -> None:
    steps, size = run
    objective = Contrastive(loss, mask_duplicates=masked, queue=size, siblings="keep")
    past: Past = []
    for step in steps:
        terms = slow_terms(replace(step, classes=None), past, same_side=loss.same_side, masked=masked)
        expected = float(reduce_terms(torch.tensor(sum(terms), dtype=torch.float64), len(terms), loss.reduction))
        [reached] = train(objective, [step])
        assert reached == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)
        past = slow_push(past, step, same_side=loss.same_side, size=size)
        assert fill(objective) == [len(past)]


@given(run=runs())
def test_with_two_sides_only_the_anchors_meet_past_columns(run: tuple[list[Batch], int]) -> None:
    steps, size = run
    past: Past = []
    objective = Contrastive(InfoNCE(T, "two_sided"), queue=size, siblings="keep")
    for step in steps:
        step = replace(step, classes=None)
        backward = Batch(step.positives, step.anchors, [], (step.ids[1], step.ids[0], []))
        sides = [slow_terms(step, past, same_side=False), slow_terms(backward, [], same_side=False)]
        expected = sum(sum(terms) / len(terms) for terms in sides)
        assert train(objective, [step]) == pytest.approx([expected], abs=ROUNDING, rel=ROUNDING)
        past = slow_push(past, step, same_side=False, size=size)


@given(run=runs())
def test_past_texts_of_a_rows_class_are_pulled(run: tuple[list[Batch], int]) -> None:
    steps, size = run
    past: Past = []
    objective = Contrastive(SupCon(T), classes=2, queue=size)
    for step in steps:
        terms = slow_terms(step, past, same_side=True, pulls=True)
        expected = sum(terms) / len(terms)
        assert train(objective, [step]) == pytest.approx([expected], abs=ROUNDING, rel=ROUNDING)
        past = slow_push(past, step, same_side=True, size=size)


def test_past_columns_are_no_rows_own_hard_negatives() -> None:
    steps = [batch(3, seed, hard=True) for seed in range(3)]
    weighed = Contrastive(InfoNCE(T, hard_negative_log_weight=0.7), queue=9)
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


@pytest.mark.parametrize("loss", [InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T)])
def test_the_gradient_reaches_the_step_alone(loss: Loss) -> None:
    objective = Contrastive(loss, queue=7)
    first = batch(4, 0).encoded
    first.embeddings.requires_grad_()
    objective(first).total.backward()
    objective.finish_step()
    assert not any(part.requires_grad for part in held(objective).values())
    second = batch(3, 1).encoded
    vectors = second.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: objective(replace(second, embeddings=v)).total, [vectors])


def test_a_copy_of_a_past_text_is_left_out_unless_duplicates_are_kept() -> None:
    steps = [batch(2, 0, ids=[1, 2, 3, 4]), batch(2, 1, ids=[1, 5, 6, 2])]
    # Of the past positives 3 and 4 none is a copy; as anchors, 1 and 2 would be.
    for loss, past in ((InfoNCE(T), 2), (NTXent(T), 4)):
        masked, kept = (Contrastive(loss, None, on, queue=8, siblings="keep") for on in (True, False))
        losses = train(masked, steps)[1], train(kept, steps)[1]
        assert (losses[0] == pytest.approx(losses[1], abs=ROUNDING)) is (loss.same_side is False)
        assert fill(kept) == [2 * past]


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
        objective = Contrastive(InfoNCE(T), queue=8)
        objective(run[0])
        objective.finish_step()
        totals.append(float(objective(run[1]).total))
        objective.finish_step()
        restored = Contrastive(InfoNCE(T), queue=8)
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
    labelled, plain = Contrastive(loss, pair_labels=PositivesOnly(), queue=5), Contrastive(loss, queue=5)
    assert train(labelled, steps) == train(plain, kept)
    assert torch.equal(held(labelled)["ids"], held(plain)["ids"])


def test_second_texts_of_negative_pairs_enter_where_they_are_hard_negatives() -> None:
    objective = Contrastive(InfoNCE(T), pair_labels=NegativesAsHard(), queue=8)
    train(objective, [replace(batch(3, 0, ids=[0, 1, 2, 3, 4, 5]), classes=[1, 0, 1])])
    assert held(objective)["ids"].tolist() == [3, 5, 4]  # positives, then further negatives
    step = replace(batch(3, 1, ids=[6, 6, 7, 8, 9, 4]), classes=[1, 0, 1])
    # The second text of the last pair was a negative pair's: left out of that row only.
    slow = Batch(
        [step.anchors[0], step.anchors[2]],
        [step.positives[0], step.positives[2]],
        [step.positives[1]],
        ([6, 7], [8, 4], [9]),
    )
    past = [(v, i, -1) for v, i in zip(held(objective)["vectors"].tolist(), [3, 5, 4], strict=True)]
    expected = slow_terms(slow, past, same_side=False)
    assert train(objective, [step]) == pytest.approx([sum(expected) / 2], abs=ROUNDING)


@pytest.mark.parametrize("loss", [InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T)])
def test_the_bound_of_negative_pairs_is_that_of_a_guess_among_past_columns_too(loss: Loss) -> None:
    # Collapsed vectors: the loss of every row is that of a guess, and so the bound of every negative one.
    objective = Contrastive(loss, pair_labels=SignedPairs(weight=0.5), queue=6)
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
    objective = Contrastive(InfoNCE(T, "two_sided"), pair_labels=SignedPairs(), queue=30)
    steps = [replace(batch(4, seed), classes=[1, 0, 1, 0]) for seed in range(3)]
    train(objective, steps[:2])
    step = replace(steps[2], classes=None)
    past = slow_push(slow_push([], steps[0], same_side=False, size=30), steps[1], same_side=False, size=30)
    backward = Batch(step.positives, step.anchors, [], (step.ids[1], step.ids[0], []))
    sides = [slow_terms(step, past, same_side=False), slow_terms(backward, [], same_side=False)]
    assert max(sides[1][1], sides[1][3]) > math.log(4 + 8)  # bounded, whichever bound it is
    pulled = sum(terms[0] + terms[2] for terms in sides) / 2
    pushed = sum(min(sides[0][i], math.log(12)) + min(sides[1][i], math.log(4)) for i in (1, 3)) / 2
    assert train(objective, steps[2:]) == pytest.approx([pulled - pushed], abs=ROUNDING)


def test_signed_pairs_meet_past_columns_in_both_kinds_of_rows() -> None:
    objective = Contrastive(NTXent(T), pair_labels=SignedPairs(bound=100.0), queue=5)
    steps = [replace(batch(3, seed), classes=[1, 0, 1]) for seed in range(2)]
    train(objective, steps[:1])
    past = slow_push([], steps[0], same_side=True, size=5)
    terms = slow_terms(replace(steps[1], classes=None), past, same_side=True)
    expected = (terms[0] + terms[2] + terms[3] + terms[5]) / 4 - (terms[1] + terms[4]) / 2
    assert train(objective, steps[1:]) == pytest.approx([expected], abs=ROUNDING)


def test_between_views_each_role_has_its_queue() -> None:
    slots = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
    roles = Contrastive(NTXent(T), between="views", queue=5)
    anchors, positives = Contrastive(NTXent(T), queue=5), Contrastive(NTXent(T), queue=5)
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
    objective = Contrastive(NTXent(T), between="views", queue=5)
    objective(replace(batch(2, 0).encoded, slots=(Slot("anchor", 0), Slot("anchor", 1))))
    objective.finish_step()
    assert fill(objective) == [4, 0]
    again = Contrastive(NTXent(T), between="views", queue=5)
    again.load_state_dict(objective.state_dict())
    assert fill(again) == [4, 0]


# What enters, and when


def test_only_a_finished_step_enters_and_only_once() -> None:
    objective, twice = Contrastive(InfoNCE(T), queue=9), Contrastive(InfoNCE(T), queue=9)
    steps = [batch(3, seed) for seed in range(3)]
    train(objective, steps[:2])
    twice(steps[2].encoded)  # as the pass that looks for a gradient does
    twice(steps[0].encoded)
    twice.finish_step()
    twice.finish_step()
    twice(steps[2].encoded)
    [reached] = train(twice, [steps[1]])
    assert reached == train(Contrastive(InfoNCE(T), queue=9), steps[:2])[1]
    for name, part in held(objective).items():
        assert torch.equal(part, held(twice)[name])


def test_in_evaluation_the_queue_is_neither_read_nor_filled() -> None:
    objective = Contrastive(InfoNCE(T), queue=9)
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
    objective = Contrastive(InfoNCE(T), queue=size)
    steps = [batch(2, 0, ids=[0, 1, 3, 4]), batch(3, 1)]
    train(objective, steps)
    state = held(objective)
    assert state["ids"].tolist() == expected
    assert state["vectors"].tolist() == [*steps[0].positives, *steps[1].positives][-size:]
    # No part of an older, larger tensor is kept alive, or written into a checkpoint.
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in state.values())


def test_columns_are_kept_behind_the_head_and_in_float32() -> None:
    objective = Contrastive(InfoNCE(T), head=TanhHead(), queue=4)
    objective.build(4)
    assert objective.head is not None
    rows = batch(2, 0).encoded
    rows = replace(rows, embeddings=rows.embeddings.float())
    objective(rows)
    objective.finish_step()
    # The objective projects anchors and positives apart, whose products a processor may round otherwise.
    torch.testing.assert_close(held(objective)["vectors"], objective.head(rows.embeddings)[2:].detach())
    plain = Contrastive(InfoNCE(T), queue=4)
    half = replace(rows, embeddings=rows.embeddings.bfloat16())
    plain(half)
    plain.finish_step()
    plain.bfloat16()  # as a run in pure half precision is set up
    assert held(plain)["vectors"].dtype == torch.float32
    assert torch.equal(held(plain)["vectors"], half.embeddings[2:].float())


# State


@pytest.mark.parametrize("filled", [0, 1, 3])
def test_a_restored_queue_goes_on_as_before(filled: int) -> None:
    steps = [batch(3, seed, classes=True) for seed in range(5)]
    objective = Contrastive(SupCon(T), classes=2, queue=13)
    train(objective, steps[:filled])
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    again = Contrastive(SupCon(T), classes=2, queue=13)
    train(again, steps[2:4])  # what it held before is gone
    again.load_state_dict(torch.load(file, weights_only=True))
    assert fill(again) == [min(6 * filled, 13)]
    assert train(again, steps[filled:]) == train(objective, steps[filled:])


def test_a_shorter_queue_takes_the_latest_columns_over() -> None:
    long, short = Contrastive(InfoNCE(T), queue=9), Contrastive(InfoNCE(T), queue=4)
    steps = [batch(3, seed) for seed in range(4)]
    train(long, steps[:3])
    short.load_state_dict(long.state_dict())
    fresh = Contrastive(InfoNCE(T), queue=4)
    assert train(short, steps[3:]) == train(fresh, steps)[3:]


def test_without_a_queue_there_is_no_state() -> None:
    assert not Contrastive().state_dict()
    assert not list(Contrastive(queue=4).parameters())
    assert not list(Contrastive(queue=4).buffers())  # DDP would send them round


# What is said, and what is refused


@pytest.mark.parametrize(
    ("loss", "hard", "said"),
    [
        (
            InfoNCE(T),
            False,
            "11 per anchor once the queue is full: 3 other positives, 8 past columns (of 2 batches); ",
        ),
        (InfoNCE(T), True, "15 per anchor once the queue is full: 3 other positives, 4 hard negatives, 8 past"),
        (NTXent(T), False, "14 per anchor once the queue is full: 3 other positives, 3 texts of its own side, 8"),
        (
            InfoNCE(T, directions=["query_to_doc", "query_to_query"]),
            False,
            "14 per anchor once the queue is full: 3 other positives, 3 other anchors, 8 past columns (of 1 b",
        ),
    ],
)
def test_the_summary_counts_the_columns_of_a_full_queue(loss: Loss, hard: bool, said: str) -> None:
    objective = Contrastive(loss, queue=8)
    described = objective.describe_negatives(batch_size=4, positives=1, negatives=int(hard))
    assert described.startswith(said)
    assert described.endswith("accumulate_grad_batches adds none, but fills the queue sooner")
    alike = [[1.0, 0.0, 2.0, 0.0]] * 4
    steps = [batch(4, seed, hard=hard) for seed in range(4)]
    same = [replace(s, anchors=alike, positives=alike, negatives=alike if hard else []) for s in steps]
    # Collapsed vectors: a term is the logarithm of the columns, the target among them.
    columns = torch.tensor(float(described.split()[0]) + 1).double()
    assert train(objective, same)[-1] == pytest.approx(float(columns.log()), abs=ROUNDING)


class Unaware(PairLabels):
    """Arranges the pairs by itself, as labels did before there were queues."""

    note: ClassVar[str] = "all pairs are positive"

    def terms(self, loss: Loss, pairs: BatchPairs) -> Terms:
        terms = loss.compare(loss.comparisons(pairs.local, pairs.every, pairs.offset))
        return Terms(total=terms.sum(), count=len(terms), reduction=loss.reduction)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queue": -1}, r"Contrastive.queue: expected 0 or more past columns, got -1; 0 keeps none"),
        ({"queue": 8, "pair_labels": Unaware()}, r"pair_labels that take a queue, got Unaware; .*takes_queue"),
    ],
)
def test_what_makes_no_queue_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contrastive(**arguments)


def test_labels_of_a_users_own_work_without_a_queue() -> None:
    step = replace(batch(3, 0), classes=[1, 1, 1])
    assert train(Contrastive(InfoNCE(T), pair_labels=Unaware()), [step]) == train(Contrastive(InfoNCE(T)), [step])


def test_another_device_takes_the_past_columns_along() -> None:
    queue = Queue(size=4)
    texts = Triples.distinct(torch.eye(2), torch.eye(2))
    queue.comparisons(InfoNCE(), texts, texts, offset=0)
    queue.take_in()
    there = texts.map(lambda rows: rows.to("meta"))
    [block] = queue.comparisons(InfoNCE(), there, there, offset=0)
    assert (block.columns.device.type, len(block.columns)) == ("meta", 4)


# A run


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "texts.txt")


def fit(module: ContrastiveModule, texts: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Trains, eight texts a step, keeping every step; gives the last weights and queues."""
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    resume = options.pop("resume", None)
    trainer = tiny.trainer(folder, enable_checkpointing=True, callbacks=[keep], **options)
    trainer.fit(module, tiny.data(texts), ckpt_path=resume, weights_only=True)
    return module.state_dict()


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, part in one.items():
        if isinstance(part, Tensor):
            assert torch.equal(part, other[name]), name
        else:
            check_equal(part, other[name])


def module(bert: str, **parts: Any) -> ContrastiveModule:
    """Queues of unlike kinds, one of keys, dropout, and rates that let the weights move."""
    keys = Momentum(0.9, of="anchor", head="trained")
    one, other = Contrastive(InfoNCE(T), queue=12, keys=keys), Contrastive(NTXent(T), queue=40)
    objectives = {"one": one, "other": other}
    return tiny.module(bert, dropout=0.1, optimizer=tiny.SGD(), **{"objectives": objectives, **parts})


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own
def test_a_resumed_run_ends_with_the_same_weights_and_the_same_queue(
    bert: str, texts: str, tmp_path: Path
) -> None:
    whole = fit(module(bert), texts, tmp_path / "whole", max_steps=6)
    resume = str(tmp_path / "whole" / "step=1.ckpt")  # before the queues are full; tests/resume has other steps
    check_equal(whole, fit(module(bert), texts, tmp_path / "again", max_steps=6, resume=resume))
    emptied = torch.load(tmp_path / "whole" / "step=3.ckpt", weights_only=True)
    emptied["state_dict"] |= {name: {} for name in emptied["state_dict"] if name.endswith("_extra_state")}
    torch.save(emptied, tmp_path / "emptied.ckpt")
    other = fit(module(bert), texts, tmp_path / "lost", max_steps=6, resume=str(tmp_path / "emptied.ckpt"))
    name = next(name for name in whole if name.endswith("word_embeddings.weight"))
    assert not torch.equal(whole[name], other[name])


def test_every_micro_batch_enters_under_any_combination_of_gradients(
    bert: str, texts: str, tmp_path: Path
) -> None:
    built = module(bert, combine=PCGrad(), log_gradients=1)
    built.objectives["one"], built.objectives["other"] = Contrastive(queue=99), Contrastive(NTXent(), queue=99)
    fit(built, texts, tmp_path, max_steps=2, accumulate_grad_batches=2)
    assert [fill(part) for part in built.objective_parts().values()] == [[32], [64]]


class Watched(Contrastive):
    """Keeps what each pass compares."""

    def __init__(self, queue: int, task: str | None = None) -> None:
        super().__init__(queue=queue, task=task)
        self.seen: list[Tensor] = []

    def forward(self, encoded: Encoded) -> Terms:
        self.seen.append(encoded.role("positive")[:, 0].detach())
        return super().forward(encoded)


def test_the_pass_that_finds_a_gradient_view_does_not_enter(bert: str, texts: str, tmp_path: Path) -> None:
    watched = Watched(queue=99)
    views = {"positive": [Adversarial()]}
    fit(tiny.module(bert, views=views, objectives={"watched": watched}), texts, tmp_path, max_steps=2)
    assert len(watched.seen) == 4
    assert torch.equal(held(watched)["vectors"], torch.cat(watched.seen[1::2]))


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


@pytest.mark.slow
def test_checkpoints_hold_the_queue_and_saved_models_and_second_stages_do_not(
    bert: str, texts: str, tmp_path: Path
) -> None:
    fit(module(bert), texts, tmp_path, max_steps=2)
    path = tmp_path / "step=2.ckpt"
    loaded = ContrastiveModule.load_from_checkpoint(path)
    assert [fill(part) for part in loaded.objective_parts().values()] == [[12], [32]]
    loaded.sentence_encoder().save_pretrained(tmp_path / "model")
    with safe_open(next((tmp_path / "model").rglob("model.safetensors")), framework="pt") as saved:
        found = [*saved.keys()]
    assert len(found) == len([*loaded.encoder.model.state_dict()])
    assert not [name for name in found if re.search("queue|extra|momentum", name)]
    second = module(bert)
    said = load_initial_weights(second, path)
    assert (
        "\nstarts as a copy: momentum network\nleft out of it: objective one, objective other, momentum" in said
    )
    assert [fill(part) for part in second.objective_parts().values()] == [[0], [0]]
