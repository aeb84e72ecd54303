"""Losses over the teacher scores of the data, against double loops and sentence-transformers' losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import KLDivergence, ListMLE, ListNet, MarginMSE, RankLoss
from contrastive_text.losses import base as losses_base
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives import Matryoshka, RankDistillation

# float64 sums of some ten terms, of logits of at most 20.
EXACT = 1e-12
T, TEACHER_T = 0.5, 2.0
LOSSES: dict[str, RankLoss] = {
    "kl": KLDivergence(T, TEACHER_T), "net": ListNet(T, TEACHER_T), "mle": ListMLE(T), "margin": MarginMSE(),
}  # fmt: skip
N, K = 6, 3


def scored(seed: int = 0, scale: float = 4.0) -> Encoded:
    """Returns random rows with three hard negatives each; some lack hard negatives, and anchors recur."""
    noise = torch.Generator().manual_seed(seed)
    slots = (Slot("anchor", 0), Slot("positive", 0), *(Slot("negative", i) for i in range(K)))
    vectors = torch.randn(N * (K + 2), 5, generator=noise, dtype=torch.float64)
    scores = scale * torch.randn(N, K + 1, generator=noise, dtype=torch.float64)
    ids = torch.arange(len(vectors)).reshape(K + 2, N)
    ids[0, 3] = ids[0, 0]  # two siblings,
    ids[3, 3] = ids[2, 0]  # which have a hard negative in common
    ids[2, 4] = ids[1, 1]  # a hard negative is the positive of another row
    ids[1, 5] = ids[0, 5]  # the positive repeats the anchor's text
    ids[3:, 2] = ids[4, 1] = MASKED_ID
    scores[2, 2:] = scores[1, 3] = math.nan
    return Encoded(vectors, slots, text_ids=ids.flatten(), scores=scores)


def similarity(rows: Encoded, kind: str, i: int, j: int) -> float:
    u, v = rows.embeddings[i].tolist(), rows.embeddings[j].tolist()
    return reference.cosine(u, v) if kind == "cosine" else math.fsum(a * b for a, b in zip(u, v, strict=True))


def slow(rows: Encoded, loss: RankLoss, kind: str, among: str) -> float:
    """Returns the sum over rows, from lists of similarities and teacher scores."""
    assert rows.scores is not None
    ids, total = rows.text_ids.tolist(), 0.0
    for i in range(N):
        own = [i + slot * N for slot in range(1, K + 2) if ids[i + slot * N] not in (MASKED_ID, ids[i])]
        others = [
            j
            for j in range(N, len(ids))
            if among == "batch" and j % N != i and ids[j] not in (MASKED_ID, ids[i])
            and ids[j % N] != ids[i] and ids[j] not in [ids[i + slot * N] for slot in range(1, K + 2)]
        ]  # fmt: skip
        student = [similarity(rows, kind, i, j) for j in own + others]
        teacher = [float(rows.scores[i, j // N - 1]) for j in own]
        total += slow_term(loss, student, teacher, first=i + N in own)
    return total


def slow_term(loss: RankLoss, student: list[float], teacher: list[float], first: bool) -> float:
    """Returns the term of a row. The first texts have teacher scores, the others have none."""
    if isinstance(loss, MarginMSE):
        assert first or not teacher or student
        errors = [(student[0] - s - (teacher[0] - t)) ** 2 for s, t in zip(student[1:], teacher[1:], strict=True)]
        return sum(errors) / max(len(errors), 1)
    masses = [math.exp(s / T) for s in student]
    if isinstance(loss, ListMLE):
        order = sorted(range(len(teacher)), key=lambda place: -teacher[place])
        rest = [*order, *range(len(teacher), len(student))]
        return sum(
            math.log(sum(masses[m] for m in rest[k:])) - student[place] / T for k, place in enumerate(order)
        )
    weights = [math.exp(t / TEACHER_T) for t in teacher]
    shares = [weight / sum(weights) for weight in weights]
    logs = [math.log(mass / sum(masses)) for mass in masses]
    if isinstance(loss, KLDivergence):
        return T * T * sum(p * (math.log(p) - log) for p, log in zip(shares, logs, strict=False))
    return -sum(p * log for p, log in zip(shares, logs, strict=False))


@pytest.mark.parametrize("kind", ["cosine", "dot"])
@pytest.mark.parametrize("among", ["own", "batch"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_over_scores_equals_the_double_loop(name: str, among: Any, kind: Any) -> None:
    loss, rows = LOSSES[name], scored()
    if name == "margin":
        # A row whose positive repeats the anchor has no positive to compare with.
        rows = replace(rows, text_ids=torch.where(torch.arange(N * (K + 2)) == N + 5, 99, rows.text_ids))
        if among == "batch":
            with pytest.raises(ValueError, match=r"RankDistillation\.among: expected own for MarginMSE"):
                RankDistillation(loss, among="batch")
            return
    objective = RankDistillation(loss, among=among, similarity=kind)
    terms = objective(rows)
    assert terms.count == N
    assert float(terms.total) == pytest.approx(slow(rows, loss, kind, among), abs=EXACT, rel=EXACT)
    if among == "own":
        assert float(RankDistillation(loss, similarity=kind)(rows).total) == float(terms.total)
    vectors = rows.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda each: objective(replace(rows, embeddings=each)).total, vectors, fast_mode=True
    )


@pytest.mark.parametrize("name", ["kl", "net", "mle"])
def test_some_rows_at_a_time_give_the_same_terms_and_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, found = scored(), []
    for bound in (2**22, 1):
        monkeypatch.setattr(losses_base, "STREAMED_ABOVE", bound)
        monkeypatch.setattr(losses_base, "_ENTRIES", 50)
        vectors = rows.embeddings.clone().requires_grad_()
        total = RankDistillation(LOSSES[name], among="batch")(replace(rows, embeddings=vectors)).total
        total.backward()
        found.append((total.detach(), vectors.grad))
    torch.testing.assert_close(found[0], found[1], rtol=EXACT, atol=EXACT)


def test_a_constant_added_to_the_scores_of_a_row_changes_nothing() -> None:
    """Margins [m, 0] therefore serve in place of two scores."""
    rows = scored()
    assert rows.scores is not None
    shifted = replace(rows, scores=rows.scores + torch.arange(N).double().unsqueeze(1))
    for loss in LOSSES.values():
        values = [float(RankDistillation(loss)(each).total) for each in (rows, shifted)]
        assert values[0] == pytest.approx(values[1], rel=EXACT)


def test_the_logged_agreement_is_of_the_rows_own_texts() -> None:
    rows = scored()
    assert rows.scores is not None
    agreed = compared = 0
    for i in range(N):
        own = [
            j
            for j in range(i + N, len(rows.text_ids), N)
            if rows.text_ids[j] not in (MASKED_ID, rows.text_ids[i])
        ]
        student = [similarity(rows, "cosine", i, j) for j in own]
        teacher = [float(rows.scores[i, j // N - 1]) for j in own]
        compared += 1
        agreed += student.index(max(student)) == teacher.index(max(teacher))
    for among in ("own", "batch"):
        found = RankDistillation(ListNet(), among=among)(rows).logs["guide_agreement"]  # type: ignore[arg-type]  # one of them
        assert float(found) == pytest.approx(agreed / compared)


def test_scores_are_required_and_stay_with_a_wrapped_objective() -> None:
    objective = RankDistillation(MarginMSE())
    assert objective.reads_scores
    assert not objective.guides
    assert Matryoshka(objective, dims=[5, 2]).reads_scores
    assert not RankDistillation(MarginMSE(), ["teacher"]).reads_scores
    built_again = RankDistillation(MarginMSE(), guides=list(objective.guides), among=objective.among)
    assert built_again.reads_scores  # as a checkpoint builds it
    with pytest.raises(ValueError, match="expected teacher scores of every example, got a batch without scores"):
        objective(replace(scored(), scores=None))


# Against sentence-transformers. Rows have all texts, because its bi-encoder losses take no shorter rows.


def theirs(name: str, vectors: list[Tensor], scores: Tensor) -> Tensor:
    """Returns sentence-transformers' loss of one query and several documents a row."""
    import sentence_transformers.cross_encoder.losses as rerankers
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

    if name in ("margin", "kl"):
        arguments: dict[str, Any] = {"model": torch.nn.Identity(), "similarity_fct": util.pairwise_dot_score}
        loss = (
            losses.MarginMSELoss(**arguments)
            if name == "margin"
            else losses.DistillKLDivLoss(**arguments, temperature=T)
        )
        return loss.compute_loss_from_embeddings(vectors, scores)
    logits = torch.stack([(vectors[0] * other).sum(dim=1) for other in vectors[1:]], dim=1) / T

    class Model(torch.nn.Module):
        device = torch.device("cpu")
        num_labels = 1

        def preprocess(self, pairs: list[tuple[str, str]], **_: Any) -> dict[str, Any]:
            return {"places": torch.tensor([[int(query), int(document)] for query, document in pairs])}

        def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
            return {"scores": logits[features["places"][:, 0], features["places"][:, 1]]}

    loss = (
        rerankers.ListNetLoss(Model())
        if name == "net"
        else rerankers.ListMLELoss(Model(), respect_input_order=False)
    )
    documents = [[str(place) for place in range(scores.shape[1])] for _ in scores]
    labels = scores / T if name == "net" else scores
    return loss([[str(row) for row in range(len(scores))], documents], list(labels))


@pytest.mark.slow
@pytest.mark.parametrize("negatives", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_sentence_transformers(
    name: str, negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its losses of rerankers compute in float32 by ``Tensor.float``, which is here double precision."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    noise = torch.Generator().manual_seed(negatives)
    vectors = torch.randn(negatives + 2, 8, 5, generator=noise, dtype=torch.float64)
    scores = 3 * torch.randn(8, negatives + 1, generator=noise, dtype=torch.float64)
    slots = (Slot("anchor", 0), Slot("positive", 0), *(Slot("negative", i) for i in range(negatives)))
    ours, other = (vectors.clone().requires_grad_() for _ in range(2))
    loss = {"kl": KLDivergence(T, T), "net": ListNet(T, T)}.get(name, LOSSES[name])
    rows = Encoded(ours.flatten(0, 1), slots, text_ids=torch.arange(len(slots) * 8), scores=scores)
    terms = RankDistillation(loss, similarity="dot")(rows)
    (terms.total / terms.count).backward()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        expected = theirs(name, list(other.unbind(0)), scores)
    finally:
        torch.set_default_dtype(default)
    expected.backward()
    assert expected.dtype == torch.float64
    torch.testing.assert_close(terms.total.detach() / terms.count, expected.detach(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(ours.grad, other.grad, rtol=EXACT, atol=EXACT)
    assert ours.grad is not None
    assert float(ours.grad.abs().max()) > 0.01


@pytest.mark.parametrize(
    ("teacher_scores", "temperature", "words"),
    [
        ([[0.9, 0.5, 0.3, 0.1], [0.8, 0.2, 0.2, math.nan]], 1.0, "nearly equal for all candidates"),
        ([[9.0, -9.0, -8.0, -7.0], [8.0, -9.0, -9.0, math.nan]], 0.01, "nearly 1 for one candidate"),
        ([[9.0, 2.0, -8.0, -7.0], [8.0, 5.0, -9.0, math.nan]], 3.0, ""),
        ([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, math.nan]], 1.0, ""),  # equal scores, which the reader reports
    ],
)
def test_a_temperature_that_does_not_fit_the_scores_is_described(
    teacher_scores: list[list[float]], temperature: float, words: str
) -> None:
    loss = ListNet(guide_temperature=temperature)
    rows = scored()
    slots = rows.embeddings.reshape(K + 2, N, -1)[:, :2].flatten(0, 1)
    ids = torch.arange(2 * (K + 2))
    ids[-1] = MASKED_ID
    two = replace(rows, embeddings=slots, text_ids=ids, scores=torch.tensor(teacher_scores, dtype=torch.float64))
    logs = RankDistillation(loss)(two).logs
    entropies, deviations = [], []
    for row in teacher_scores:
        own = [score for score in row if not math.isnan(score)]
        masses = [math.exp((score - max(own)) / temperature) for score in own]
        shares = [mass / math.fsum(masses) for mass in masses]
        entropies.append(-math.fsum(p * math.log(p) for p in shares if p) / math.log(len(own)))
        mean = math.fsum(own) / len(own)
        deviations.append(math.sqrt(math.fsum((score - mean) ** 2 for score in own) / len(own)))
    if max(deviations):
        assert float(logs["target_entropy"]) == pytest.approx(sum(entropies) / 2, abs=EXACT)
    assert float(logs["teacher_deviation"]) == pytest.approx(sum(deviations) / 2, abs=EXACT)
    message = loss.describe_misfit(float(logs["target_entropy"]), float(logs["teacher_deviation"]))
    assert (words in message) if words else not message
    assert not words or message.endswith(f"Try guide_temperature {sum(deviations) / 4:.2g}")
