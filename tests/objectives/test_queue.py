"""The queue of past columns: what is compared with them, against slow loops over several steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from chains import (
    ROUNDING,
    WAYS,
    Batch,
    T,
    Text,
    batch,
    chain,
    fill,
    held,
    pushed,
    runs,
    slow_terms,
    train,
    value,
)
from covering import crossed
from hypothesis import given

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE, Loss, NTXent, SupCon, reduce_terms
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    NegativesAsHard,
    PositivesOnly,
    Queue,
    Siblings,
    SignedPairs,
)

# The formula


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        *crossed([InfoNCE(T), InfoNCE(T, "two_sided"), NTXent(T, "sum"), NTXent(T, streamed=True)], WAYS),
        (SupCon(T), {"classes": True}),
    ],
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
    weighed = Contrastive(InfoNCE(T, hard_negative_log_weight=0.7), columns=[Duplicates(), Siblings(), Queue(9)])
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
    objective = Contrastive(loss, columns=[Duplicates(), Siblings(), Queue(7)])
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
        objective = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(8)])
        objective(run[0])
        objective.finish_step()
        totals.append(float(objective(run[1]).total))
        objective.finish_step()
        restored = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), Queue(8)])
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
    labelled, plain = (
        Contrastive(loss, columns=[Duplicates(), Siblings(), PositivesOnly(), Queue(5)]),
        Contrastive(loss, columns=[Duplicates(), Siblings(), Queue(5)]),
    )
    assert train(labelled, steps) == train(plain, kept)
    assert torch.equal(held(labelled)["ids"], held(plain)["ids"])


def test_second_texts_of_negative_pairs_enter_where_they_are_hard_negatives() -> None:
    objective = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), NegativesAsHard(), Queue(8)])
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
    objective = Contrastive(loss, columns=[Duplicates(), Siblings(), SignedPairs(weight=0.5), Queue(6)])
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
    objective = Contrastive(InfoNCE(T, "two_sided"), columns=[Duplicates(), Siblings(), SignedPairs(), Queue(30)])
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
    anchors, positives = (
        Contrastive(NTXent(T), columns=[Duplicates(), Siblings(), Queue(5)]),
        Contrastive(NTXent(T), columns=[Duplicates(), Siblings(), Queue(5)]),
    )
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
    objective = Contrastive(loss, columns=[Duplicates(), Siblings(), Queue(8)])
    described = objective.describe_negatives(batch_size=4, positives=1, negatives=int(hard))
    assert described.startswith(said)
    assert described.endswith("accumulate_grad_batches adds none, but fills the queue sooner")
    alike = [[1.0, 0.0, 2.0, 0.0]] * 4
    steps = [batch(4, seed, hard=hard) for seed in range(4)]
    same = [replace(s, anchors=alike, positives=alike, negatives=alike if hard else []) for s in steps]
    # Collapsed vectors: a term is the logarithm of the columns, the target among them.
    columns = torch.tensor(float(described.split()[0]) + 1).double()
    assert train(objective, same)[-1] == pytest.approx(float(columns.log()), abs=ROUNDING)
