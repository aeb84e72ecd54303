"""Supervised pairs: classes and scores of two texts, on one process and on two."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import of_two_ranks
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.types import Slot
from contrastive_text.heads import MLPHead, TanhHead, share_layers
from contrastive_text.losses import CoSENT, CosineMSE, NTXent, ScoreLoss, reduce_terms
from contrastive_text.objectives import (
    BilinearScorer,
    ConcatenationScorer,
    Contrastive,
    CosineScorer,
    Objective,
    PairClassification,
    PairRegression,
    Scorer,
    TextClassification,
)
from contrastive_text.objectives.scorers import pair_features

PAIR = (Slot("anchor", 0), Slot("positive", 0))
TWO_VIEWS = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
# Sums of some ten values of order 1 in float64.
ROUNDING = 1e-12
EXACT = 1e-6
"""Tolerance of the sheet's printed values."""
PROMISE = 1e-10
"""The promise in float64: max |dg| <= 1e-10 max |g|."""


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def pairs(vectors: Tensor, target: list[float] | None, slots: tuple[Slot, ...] = PAIR) -> Encoded:
    labels = None if target is None else torch.tensor(target)
    return Encoded(vectors, slots, text_ids=torch.arange(len(vectors)), target=labels)


def some(n: int, width: int = 4, seed: int = 0, slots: int = 2) -> Tensor:
    return torch.randn(slots * n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(objective: Objective, features: int = 4) -> Any:  # Any: the class that came
    torch.manual_seed(0)
    objective.build(features)
    return objective.double()


# Scorers.


def test_k10_features_of_the_paper_and_of_the_scripts(vectors: dict[str, Any]) -> None:
    case = vectors["consert_pair_features"]
    u, v = double(case["u"]), double(case["v"])
    assert pair_features(u, v).tolist() == [case["paper_u_v_absdiff"]]
    assert pair_features(u, v, max_squared=True).tolist() == [case["scripts_u_v_absdiff_maxsq"]]


@pytest.mark.parametrize(("max_squared", "name"), [(False, "paper"), (True, "scripts")])
def test_k10_inputs_of_the_classifier(vectors: dict[str, Any], max_squared: bool, name: str) -> None:
    scorer = ConcatenationScorer(max_squared=max_squared)
    scorer.build(features=768, classes=3)
    assert scorer.linear is not None
    expected = vectors["consert_pair_features"]["classifier_input_dim_768"][name]
    assert (scorer.linear.in_features, scorer.linear.out_features) == (expected, 3)


def test_k10_the_classifier_reads_the_features() -> None:
    objective = built(PairClassification(3, scorer=ConcatenationScorer(max_squared=True)), features=2)
    rows = double([1.0, -2.0], [0.5, 1.0])
    features = double([1.0, -2.0, 0.5, 1.0, 0.5, 3.0, 1.0, 1.0])
    expected = objective.scorer.linear(features)
    assert torch.equal(objective.predict(pairs(rows, None)), expected)


def test_k11_joint_training_adds_the_weighted_contrastive_losses_of_both_sides(vectors: dict[str, Any]) -> None:
    # All vectors collapsed, N = 96, an untouched classifier: CE = ln 3 and 0.15 * (La1 + La2 + Lb1 + Lb2).
    n = 96
    same = torch.ones(2 * n, 4, dtype=torch.float64)
    classifier = built(PairClassification(3))
    nn.init.zeros_(classifier.scorer.linear.weight)
    nn.init.zeros_(classifier.scorer.linear.bias)
    terms = classifier(pairs(same, [float(i % 3) for i in range(n)]))
    entropy = reduce_terms(terms.total, terms.count, terms.reduction).item()
    assert entropy == pytest.approx(math.log(3), abs=ROUNDING)
    side = Contrastive(NTXent(temperature=0.1, reduction="two_sided"))(pairs(same, None))
    contrast = 2 * float(reduce_terms(side.total, side.count, side.reduction))  # premises and hypotheses
    expected = vectors["consert_joint_weight"]["all_collapsed_N96_contrastive_part"]
    assert entropy + 0.15 * contrast == pytest.approx(math.log(3) + expected, abs=EXACT)


def bilinear(case: dict[str, Any]) -> PairClassification:
    objective: PairClassification = built(PairClassification(2, scorer=BilinearScorer()), features=2)
    assert isinstance(objective.scorer, BilinearScorer) and objective.scorer.bilinear is not None
    with torch.no_grad():
        objective.scorer.bilinear.weight.copy_(double(*case["bilinear_W"]))
        objective.scorer.bilinear.bias.fill_(case["bias"])
    return objective


def test_m6_the_bilinear_form_and_its_binary_cross_entropy(vectors: dict[str, Any]) -> None:
    case = vectors["cs224n_heads"]
    objective, rows = bilinear(case), double(case["u"], case["v"])
    (logit,) = objective.scorer(rows[:1], rows[1:])
    assert logit.item() == pytest.approx(case["bilinear_logit"], abs=EXACT)
    terms = objective(pairs(rows, [1.0]))
    assert terms.total.item() == pytest.approx(case["bce_with_label1"], abs=EXACT)
    zero = binary_cross_entropy_with_logits(logit, torch.zeros_like(logit))
    assert objective(pairs(rows, [0.0])).total.item() == pytest.approx(zero.item(), abs=ROUNDING)
    assert objective.predict(pairs(rows, None)).tolist() == [[0.0, logit.item()]]


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_m6_cross_entropy_of_one_logit_is_torchs_binary_one_however_large_it_is(scale: float) -> None:
    objective = built(PairClassification(2, scorer=BilinearScorer()))
    vectors, target = scale * some(6), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    logits = objective.scorer(vectors[:6], vectors[6:]).squeeze(1)
    expected = binary_cross_entropy_with_logits(logits, torch.tensor(target).double(), reduction="sum")
    terms = objective(pairs(vectors, target))
    assert terms.total.item() == pytest.approx(expected.item(), rel=ROUNDING)
    hits = ((logits > 0) == torch.tensor(target).bool()).float().mean()
    assert float(terms.logs["accuracy"]) == pytest.approx(float(hits), abs=1e-6)  # logged in float32


@given(n=st.integers(1, 4), classes=st.integers(3, 4), seed=st.integers(0, 2**31))
def test_more_classes_have_a_form_each_and_equal_the_loop(n: int, classes: int, seed: int) -> None:
    objective = built(PairClassification(classes, scorer=BilinearScorer()), features=3)
    vectors = some(n, width=3, seed=seed)
    weight, bias = objective.scorer.bilinear.weight.tolist(), objective.scorer.bilinear.bias.tolist()
    assert len(weight) == classes
    target = [float((seed + i) % classes) for i in range(n)]
    total = 0.0
    for u, v, number in zip(vectors[:n].tolist(), vectors[n:].tolist(), target, strict=True):
        logits = []
        for matrix, constant in zip(weight, bias, strict=True):
            logits.append(constant + sum(u[i] * matrix[i][j] * v[j] for i in range(3) for j in range(3)))
        total += reference.cross_entropy(logits[int(number)], logits)
    terms = objective(pairs(vectors, target))
    assert (terms.total.item(), terms.count) == (pytest.approx(total, abs=ROUNDING), n)


@given(n=st.integers(1, 5), max_squared=st.booleans(), seed=st.integers(0, 2**31))
def test_the_concatenation_equals_the_loop(n: int, max_squared: bool, seed: int) -> None:
    objective = built(PairClassification(3, scorer=ConcatenationScorer(max_squared)), features=3)
    vectors = some(n, width=3, seed=seed)
    rows, bias = objective.scorer.linear.weight.tolist(), objective.scorer.linear.bias.tolist()
    target = [float((seed + i) % 3) for i in range(n)]
    total = 0.0
    for u, v, number in zip(vectors[:n].tolist(), vectors[n:].tolist(), target, strict=True):
        features = [*u, *v, *(abs(a - b) for a, b in zip(u, v, strict=True))]
        if max_squared:
            features += [max(a, b) ** 2 for a, b in zip(u, v, strict=True)]
        logits = [
            b + sum(w * x for w, x in zip(row, features, strict=True)) for row, b in zip(rows, bias, strict=True)
        ]
        total += reference.cross_entropy(logits[int(number)], logits)
    assert objective(pairs(vectors, target)).total.item() == pytest.approx(total, abs=ROUNDING)


def test_the_classification_of_pairs_equals_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import SoftmaxLoss

    class Given(nn.Module):
        """A model whose features are the vectors already."""

        device = torch.device("cpu")

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return features

    objective, vectors = built(PairClassification(3)), some(5)
    theirs = SoftmaxLoss(model=Given(), embedding_dimension=4, num_labels=3).double()
    theirs.classifier.load_state_dict(objective.scorer.linear.state_dict())
    sides = [{"sentence_embedding": vectors[:5]}, {"sentence_embedding": vectors[5:]}]
    expected = theirs(sides, torch.tensor([0, 2, 1, 1, 0]))
    terms = objective(pairs(vectors, [0.0, 2.0, 1.0, 1.0, 0.0]))
    assert reduce_terms(terms.total, terms.count, terms.reduction).item() == pytest.approx(
        expected.item(), abs=ROUNDING
    )


class Other(Scorer):
    """A user's scorer with a number of outputs of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, u: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        return u[:, : self.outputs]


def test_a_scorer_with_another_number_of_outputs_is_refused() -> None:
    assert built(PairClassification(3, scorer=Other(3))).predict(pairs(some(2), None)).shape == (2, 3)
    for outputs in (1, 2):
        objective = built(PairClassification(3, scorer=Other(outputs)))
        message = rf"PairClassification.scorer: expected 3 outputs, one for each class, got {outputs} of Other"
        with pytest.raises(ValueError, match=message):
            objective.predict(pairs(some(2), None))


@pytest.mark.parametrize("scorer", [ConcatenationScorer(), BilinearScorer()])
def test_a_scorer_without_its_layers_says_what_it_wants(scorer: Scorer) -> None:
    message = rf"{type(scorer).__name__}: expected build\(features, classes\) before the first call"
    with pytest.raises(RuntimeError, match=message):
        scorer(torch.zeros(1, 4), torch.zeros(1, 4))


def test_pairs_above_a_cosine_are_of_the_second_class_without_any_weight() -> None:
    objective = built(PairClassification(2, scorer=CosineScorer(threshold=0.5)))
    assert not [*objective.parameters()]
    first, second = ([1.0, 0.0], [3.0, 4.0], [0.0, 1.0]), ([2.0, 0.0], [0.0, 5.0], [0.0, -1.0])
    scores = objective.predict(pairs(double(*first, *second), None))
    assert (scores[:, 1] - scores[:, 0]).tolist() == pytest.approx([0.5, 0.3, -1.5], abs=ROUNDING)
    assert scores.argmax(dim=1).tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match=r"CosineScorer: expected two classes, such as 0 and 1, got 3"):
        built(PairClassification(3, scorer=CosineScorer()))
    with pytest.raises(ValueError, match=r"CosineScorer\.threshold: expected a cosine from -1 to below 1, got 1"):
        CosineScorer(threshold=1)


# Scores.


def test_m7_the_cosine_of_the_sts_head(vectors: dict[str, Any]) -> None:
    case = vectors["cs224n_heads"]
    rows = pairs(double(case["u"], case["v"]), [0.4])
    assert PairRegression().predict(rows).tolist() == pytest.approx([case["sts_cosine"]], abs=EXACT)
    assert PairRegression()(rows).total.item() == pytest.approx(1.0, abs=EXACT)  # (-0.6 - 0.4)^2


def test_m7_the_cosine_is_that_of_the_transformed_vectors(vectors: dict[str, Any]) -> None:
    case = vectors["cs224n_heads"]
    head = MLPHead(hidden_features=4, out_features=2)
    objective = built(PairRegression(head=head), features=2)
    assert head.network is not None
    first, second = head.network[0], head.network[2]
    turned = double([0.0, -1.0], [1.0, 0.0])
    with torch.no_grad():  # relu(x) - relu(-x) = x: the head turns its input by 90 degrees
        first.weight.copy_(torch.cat([torch.eye(2), -torch.eye(2)]))
        second.weight.copy_(torch.cat([turned, -turned], dim=1))
        first.bias.zero_()
        second.bias.copy_(torch.tensor([0.0, 0.0]))
    rows = pairs(double(case["u"], case["v"]), None)
    assert objective.predict(rows).tolist() == pytest.approx([case["sts_cosine"]], abs=EXACT)
    with torch.no_grad():
        second.bias.copy_(torch.tensor([1.0, 2.0]))
    moved = reference.cosine([-2.0 + 1, 1.0 + 2], [1.0 + 1, 0.5 + 2])
    assert objective.predict(rows).tolist() == pytest.approx([moved], abs=ROUNDING)


def test_m8_paraphrase_and_sts_share_the_first_layer_and_sentiment_has_its_own() -> None:
    def head(out_features: int, share: str | None) -> MLPHead:
        layers = None if share is None else 1
        return MLPHead(8, out_features, dropout=0.3, share=share, shared_layers=layers)

    paraphrase = PairClassification(2, scorer=BilinearScorer(), head=head(8, "pairs"))
    sts = PairRegression(head=head(8, "pairs"))
    sentiment = TextClassification(5, head=head(5, None))
    objectives = nn.ModuleList([paraphrase, sts, sentiment])
    for objective in (paraphrase, sts, sentiment):
        objective.build(6)
    share_layers([part for part in objectives.modules() if isinstance(part, MLPHead)])
    first = [[name for name, _ in part.named_parameters() if name.startswith("head")] for part in objectives]
    assert first[0] == first[1] == first[2]  # the layout doesn't change
    one, other, own = (dict(part.named_parameters()) for part in (paraphrase, sts, sentiment))
    assert one["head.network.1.weight"] is other["head.network.1.weight"]
    assert one["head.network.1.bias"] is other["head.network.1.bias"]
    assert one["head.network.1.weight"] is not own["head.network.1.weight"]
    assert one["head.network.4.weight"] is not other["head.network.4.weight"]
    rows = pairs(some(3, width=6).float(), [0.0, 1.0, 1.0])
    alone = torch.autograd.grad(sts(rows).total, one["head.network.1.weight"])[0]  # reached through sts alone
    assert alone.abs().max() > 0


@given(n=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_the_squared_error_of_the_cosine_equals_the_loop(n: int, seed: int) -> None:
    vectors, total = some(n, seed=seed), 0.0
    target = [(seed + i) % 6 / 5 for i in range(n)]
    rows = pairs(vectors, None)
    for u, v, score in zip(vectors[:n].tolist(), vectors[n:].tolist(), target, strict=True):
        total += (reference.cosine(u, v) - score) ** 2
    rows = Encoded(vectors, PAIR, text_ids=torch.arange(2 * n), target=torch.tensor(target, dtype=torch.float64))
    terms = PairRegression()(rows)
    assert (terms.total.item(), terms.count) == (pytest.approx(total, abs=ROUNDING), n)


def test_cosent_is_one_term_of_the_whole_batch() -> None:
    vectors, target = some(4), [0.0, 1.0, 0.25, 0.25]
    objective = PairRegression(loss=CoSENT(temperature=0.2))
    terms = objective(pairs(vectors, target))
    expected = objective.loss(objective.predict(pairs(vectors, None)), torch.tensor(target))
    assert (terms.total.item(), terms.count, terms.reduction) == (expected.item(), 1, "mean")
    assert terms.total.item() > 0


def test_a_zero_vector_has_cosine_zero_and_a_finite_gradient() -> None:
    vectors = double([0.0, 0.0], [1.0, 2.0]).requires_grad_()
    terms = PairRegression()(pairs(vectors, [0.5]))
    terms.total.backward()
    assert terms.total.item() == 0.25
    assert vectors.grad is not None and torch.isfinite(vectors.grad).all()


def test_the_target_is_scaled_by_its_bounds_and_predictions_return_to_them() -> None:
    objective = PairRegression(low=1.0, high=5.0)
    assert objective.target.read("4") == 0.75
    assert objective.target.write(torch.tensor([0.75])) == ["4.0000"]
    with pytest.raises(ValueError, match=r"expected finite bounds low < high, got 5\.0 and 0\.0"):
        PairRegression(low=5.0, high=0.0)


# Both.

OBJECTIVES = {
    "concatenation": lambda: PairClassification(3, scorer=ConcatenationScorer(max_squared=True)),
    "bilinear": lambda: PairClassification(2, scorer=BilinearScorer()),
    "bilinear of three classes": lambda: PairClassification(3, scorer=BilinearScorer()),
    "classification after a head": lambda: PairClassification(2, head=MLPHead(5, 2)),
    "squared error": lambda: PairRegression(),
    "cosent": lambda: PairRegression(loss=CoSENT(temperature=0.3)),
    "cosent after a head": lambda: PairRegression(loss=CoSENT(temperature=0.3), head=TanhHead()),
}
TARGET = [1.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    objective = built(OBJECTIVES[name](), features=3)
    vectors = some(3, width=3, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: objective(pairs(rows, TARGET[:3])).total, [vectors])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_leaves_predictions_in_float32(name: str) -> None:
    objective = built(OBJECTIVES[name](), features=32).float()
    rows = pairs(some(8, width=32).float(), None)
    outside = objective.predict(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = objective.predict(rows)
        assert (rows.embeddings @ torch.eye(32)).dtype == torch.bfloat16  # autocast was on
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_view_is_read_on_both_sides_and_others_are_not(name: str) -> None:
    first, second = (built(OBJECTIVES[name]()) for _ in range(2))
    second.view = 2
    four = some(3, slots=4)  # anchor 0, anchor 1, positive 0, positive 1
    a0, a1, p0, p1 = four.split(3)
    both = pairs(four, TARGET[:3], slots=TWO_VIEWS)
    assert torch.equal(first(both).total, first(pairs(torch.cat([a0, p0]), TARGET[:3])).total)
    assert torch.equal(second(both).total, first(pairs(torch.cat([a1, p1]), TARGET[:3])).total)
    with pytest.raises(ValueError, match=r"\.view: expected one of the 1 slots of anchor, got 2"):
        second(pairs(some(3), TARGET[:3]))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_without_targets_is_refused_and_can_be_predicted(name: str) -> None:
    objective = built(OBJECTIVES[name]())
    assert len(objective.predict(pairs(some(3), None))) == 3
    with pytest.raises(ValueError, match="expected a label or a score for every example, got a batch without"):
        objective(pairs(some(3), None))


@pytest.mark.parametrize("make", [lambda **options: PairClassification(2, **options), PairRegression])
def test_arguments_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(
        ValueError, match=r"\.head: expected a head with train_only: true, got TanhHead with false"
    ):
        make(head=TanhHead(train_only=False))
    with pytest.raises(ValueError, match=r"\.view: expected the number of a view, 1 or more, got 0"):
        make(view=0)


# Two gloo processes against one.

RANKED = ("bilinear", "squared error", "cosent", "cosent after a head")
PARTS = {"equal": (3, 3), "uneven": (4, 2), "one without pairs": (6, 0)}
SCORES = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def step(name: str, part: slice) -> dict[str, Tensor]:
    """Loss and gradients of a step on a part of six pairs, both as means over the ranks."""
    objective = built(OBJECTIVES[name]())
    torch.manual_seed(1)
    encoder = nn.Linear(5, 4).double()
    sides = some(6, width=5).reshape(2, 6, 5)[:, part]
    terms = objective(pairs(encoder(sides.flatten(0, 1)), SCORES[part]))
    count = sum_over_ranks(torch.tensor(float(terms.count)))
    loss = reduce_terms(terms.total * world_size(), count, terms.reduction)
    loss.backward()
    named = {**dict(encoder.named_parameters()), **dict(objective.named_parameters())}
    gradients = {key: p.grad for key, p in named.items() if p.grad is not None}
    return {key: sum_over_ranks(value) / world_size() for key, value in {"loss": loss, **gradients}.items()}


def work(number: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for split, sizes in PARTS.items():
        start = sum(sizes[:number])
        for name in RANKED:
            results[f"{split} {name}"] = step(name, slice(start, start + sizes[number]))
    objective = PairRegression(loss=CoSENT()).eval()
    if number == 0:  # the other rank doesn't take part
        results["evaluation"] = objective(pairs(some(3), SCORES[:3])).total
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of two ranks."""
    return of_two_ranks(work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow  # the default run has these objectives on ranks in test_one_gradient.py
@pytest.mark.parametrize("split", PARTS)
@pytest.mark.parametrize("name", RANKED)
def test_the_gradient_of_two_ranks_is_that_of_one_process(
    ranks: list[dict[str, Any]], split: str, name: str
) -> None:
    alone = step(name, slice(None))
    scale = max(float(gradient.abs().max()) for key, gradient in alone.items() if key != "loss")
    assert scale > 1e-3
    for results in ranks:
        reached = results[f"{split} {name}"]
        assert reached.keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(reached[key], expected.detach(), rtol=0, atol=PROMISE * scale)


@pytest.mark.slow
def test_in_evaluation_no_rank_waits_for_another(ranks: list[dict[str, Any]]) -> None:
    alone = PairRegression(loss=CoSENT()).eval()(pairs(some(3), SCORES[:3]))
    assert torch.equal(ranks[0]["evaluation"], alone.total)


@pytest.mark.parametrize("loss", [CosineMSE(), CoSENT()])
def test_a_rank_without_pairs_keeps_its_place_in_the_backward_pass(loss: ScoreLoss) -> None:
    head = TanhHead()
    objective = built(PairRegression(loss=loss, head=head))
    objective(pairs(some(0), [])).total.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in head.parameters())
