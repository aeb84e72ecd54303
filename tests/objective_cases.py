"""Objectives of the library in the combinations that training steps are executed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import tiny
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, move_to_device
from contrastive_text.core.types import Role, Slot
from contrastive_text.heads import FineTuningHead, MLPHead, ProjectorHead, TanhHead
from contrastive_text.losses import (
    DCL,
    DCLW,
    AlignmentUniformity,
    AnglE,
    BarlowTwins,
    CoSENT,
    DebiasedNTXent,
    GlobalOrthogonalRegularization,
    InfoNCE,
    KLDivergence,
    ListMLE,
    ListNet,
    MarginMSE,
    NTXent,
    SigLIP,
    SIGReg,
    SupCon,
    VICReg,
)
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    FLOPS,
    BilinearScorer,
    ConcatenationScorer,
    Consistency,
    Contrastive,
    CosineScorer,
    DenoisingDecoder,
    Duplicates,
    FalseNegatives,
    MaskAbovePositive,
    MaskBatch,
    MaskedLM,
    Matryoshka,
    Momentum,
    NegativesAsHard,
    Objective,
    PairClassification,
    PairRegression,
    PositivesOnly,
    Quantized,
    Queue,
    RankDistillation,
    ReplacedTokens,
    Reranking,
    SameClass,
    Siblings,
    SignedPairs,
    TextClassification,
    TextRegression,
    VectorDistillation,
    WholeBatch,
)
from contrastive_text.poolers import (
    CLSPooler,
    ConcatPooler,
    FirstLastPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MaxPooler,
    MeanSqrtLengthPooler,
    SpladePooler,
    WeightedMeanPooler,
)
from contrastive_text.training import Guide, PCGrad, Uncertainty

STEPS = 2
"""The second one starts from what the first leaves: weights, a momentum, a queue."""

ANCHOR, POSITIVE, NEGATIVE, ORIGINAL = (
    Slot("anchor", 0), Slot("positive", 0), Slot("negative", 0), Slot("original", 0),
)  # fmt: skip
PAIR = (ANCHOR, POSITIVE)
TRIPLE = (ANCHOR, POSITIVE, NEGATIVE)
TWICE = (ANCHOR, Slot("anchor", 1), POSITIVE, Slot("positive", 1))

How = dict[str, bool]
"""Argument of every in-batch loss: whether it is streamed."""


@dataclass(frozen=True)
class Case:
    """Objectives, and what the batches have that they read.

    Args:
        objectives: From the way in which losses are computed.
        slots: Of each batch.
        classes: Number of classes of the target; 0 for none.
        scores: Whether examples have teacher scores.
        hidden: Role of which some tokens are hidden.
        streams: Whether there is a loss that can be streamed.
        template: Whether a mask token stands in each text, one before the last token.
        layers_anew: Whether layers are computed anew in the backward pass, but for the plain execution.
        prompted: Whether the first token of each text is of a prompt, which poolers leave out.
        asymmetric: Whether queries have an encoder of their own, with one layer, another width and a head.
        in_context: Whether texts are spans of a longer text, which is encoded in their place.
        parts: Other arguments of the module.
    """

    objectives: Callable[[How], dict[str, Objective]]
    slots: tuple[Slot, ...] = PAIR
    classes: int = 0
    scores: bool = False
    hidden: Role | None = None
    streams: bool = True
    template: bool = False
    layers_anew: bool = False
    prompted: bool = False
    asymmetric: bool = False
    in_context: bool = False
    parts: Callable[[], dict[str, Any]] = field(default=dict)  # Any: arguments of the module


class Filling:
    """Stands in for a generator, which is float32, and whose largest score may be left to rounding."""

    fingerprint = "none"

    def mask_tokens(self, batch: Batch, rate: float) -> Tensor:
        """Returns ids of which some are others, by their rows' keys."""
        rows = torch.repeat_interleave(torch.arange(len(batch)), batch.lengths)
        keys = batch.draw_keys[move_to_device(rows, batch.ids.device)]
        return torch.where((keys + batch.ids) % 97 < 97 * rate, 4, batch.ids)

    def predict_tokens(self, batch: Batch, dropout: bool) -> Tensor:  # noqa: ARG002  # the generator's signature
        """Returns ids of which some are others."""
        return torch.where(batch.ids % 3 > 0, batch.ids, 5 + batch.ids * 7 % 295)


def replaced() -> ReplacedTokens:
    objective = ReplacedTokens("none", head_of="c")
    vars(objective)["filling"] = Filling()
    return objective


def hard(how: How, learn: bool = False) -> InfoNCE:
    return InfoNCE(temperature=0.2, hard_negative_log_weight=0.7, learn_temperature=learn, **how)


def several(how: How) -> dict[str, Objective]:
    """A contrastive objective, a masked language model and a classifier, whose gradients partly conflict."""
    return {
        "contrastive": Contrastive(NTXent(0.2, **how)),
        "mlm": MaskedLM(block=8),
        "classes": TextClassification(3),
    }


class Known(Guide):
    """Has a vector of every text, by its id."""

    def __init__(self, width: int) -> None:
        self.width = width

    @property
    def identity(self) -> str:
        return f"{self.width} features"

    @property
    def features(self) -> int:
        return self.width

    def __call__(self, batch: Batch) -> Tensor:
        noise = torch.Generator().manual_seed(self.width)
        table = torch.randn(1000, self.width, generator=noise, dtype=torch.float64)
        return move_to_device(table[batch.host_ids.text_ids], batch.ids.device)


def other_formulas(how: How) -> dict[str, Objective]:
    """Losses that are taken some rows at a time, their temperature learned and not, beside each other."""
    learns = {**how, "learn_temperature": True}
    losses = {
        "directions": InfoNCE(0.2, directions=get_args(Direction), in_batch_hardness=2.0, **learns),
        "dcl": DCL(0.2, **how),
        "dcl learned": DCL(0.2, **learns),
        "dclw": DCLW(0.2, **how),
        "dclw learned": DCLW(0.2, same_side=False, reduction="two_sided", **learns),
        "debiased": DebiasedNTXent(0.2, **how),
        "debiased learned": DebiasedNTXent(0.2, **learns),
        "siglip": SigLIP(0.2, bias=-3.0, **how),
    }
    return {
        name: Contrastive(loss, columns=[Duplicates(), Siblings(), *([Queue(30)] if name == "dcl" else [])])
        for name, loss in losses.items()
    }


CASES: dict[str, Case] = {
    "InfoNCE": Case(lambda how: {"c": Contrastive(InfoNCE(0.2, **how))}),
    "InfoNCE, an encoder per role": Case(
        lambda how: {"c": Contrastive(InfoNCE(0.2, **how))}, slots=TRIPLE, prompted=True, asymmetric=True
    ),
    "InfoNCE, spans of a document": Case(
        lambda how: {"c": Contrastive(InfoNCE(0.2, **how))}, slots=TRIPLE, in_context=True
    ),
    "InfoNCE by dot product, FLOPS, of sparse vectors": Case(
        lambda how: {
            "c": Contrastive(InfoNCE(5.0, similarity="dot", **how)),
            "flops": FLOPS(0.3, 0.1, warmup_steps=3),
            "margins": RankDistillation(MarginMSE(), similarity="dot"),
        },
        slots=TRIPLE,
        scores=True,
        prompted=True,
        parts=lambda: {"pooler": SpladePooler()},
    ),
    "other formulas, learned temperature, queue": Case(other_formulas, slots=TRIPLE),
    "NTXent, hard, siblings attract, and SupCon": Case(
        lambda how: {
            "c": Contrastive(NTXent(0.2, **how), columns=[Duplicates(), Siblings("positive", joined="sum")]),
            "supcon": Contrastive(SupCon(0.2, **how), columns=[Duplicates(), SameClass(3)]),
        },
        slots=TRIPLE,
        classes=3,
        parts=lambda: {"pooler": LastTokenPooler()},
    ),
    "NTXent, sum, several positives, head": Case(
        lambda how: {"c": Contrastive(NTXent(0.2, "sum", **how), head=TanhHead())},
        slots=(*PAIR, Slot("positive", 1), Slot("positive", 2)),
        parts=lambda: {"pooler": LastTwoPooler()},
    ),
    "NTXent, between views": Case(
        lambda how: {"c": Contrastive(NTXent(0.2, "two_sided", **how), between="views")},
        slots=TWICE,
        layers_anew=True,
        parts=lambda: {"pooler": FirstLastPooler(first="block_1")},
    ),
    "positives only, negatives as hard, signed pairs; classes of texts and of pairs": Case(
        lambda how: {
            "positives": Contrastive(InfoNCE(0.2, **how), columns=[Duplicates(), Siblings(), PositivesOnly()]),
            "hard": Contrastive(hard(how), columns=[Duplicates(), Siblings(), NegativesAsHard()]),
            "signed": Contrastive(NTXent(0.2, **how), columns=[Duplicates(), Siblings(), SignedPairs()]),
            "text": TextClassification(2, head=MLPHead(out_features=2)),
            "pair": PairClassification(2, scorer=ConcatenationScorer()),
            "bilinear": PairClassification(2, scorer=BilinearScorer(), head=TanhHead()),
            "cosine": PairClassification(2, scorer=CosineScorer()),
        },
        classes=2,
    ),
    "InfoNCE, NTXent and SupCon, learned temperature": Case(
        lambda how: {
            "c": Contrastive(hard(how, learn=True)),
            "ntxent": Contrastive(NTXent(0.2, learn_temperature=True, **how)),
            "supcon": Contrastive(
                SupCon(0.2, learn_temperature=True, **how), columns=[Duplicates(), SameClass(3)]
            ),
        },
        slots=TRIPLE,
        classes=3,
        parts=lambda: {"head": MLPHead(out_features=9, train_only=False)},
    ),
    "queue, hard, siblings attract, and InfoNCE, two-sided": Case(
        lambda how: {
            "c": Contrastive(hard(how), columns=[Duplicates(), Siblings("positive"), Queue(40)]),
            "two-sided": Contrastive(InfoNCE(0.2, "two_sided", hard_negative_log_weight=0.7, **how), columns=[]),
        },
        slots=TRIPLE,
        parts=lambda: {"pooler": CLSPooler()},
    ),
    "queue, NTXent, learned temperature, and SupCon": Case(
        lambda how: {
            "c": Contrastive(
                NTXent(0.2, learn_temperature=True, **how),
                head=ProjectorHead([12, 6], last_norm=True),
                columns=[Duplicates(), Siblings(), Queue(70)],
            ),
            "supcon": Contrastive(SupCon(0.2, **how), columns=[Duplicates(), SameClass(3), Queue(50)]),
        },
        classes=3,
        parts=lambda: {"pooler": ConcatPooler([WeightedMeanPooler(), MeanSqrtLengthPooler()])},
    ),
    "some widths, a guide, siblings attract, queue of keys, prompts": Case(
        lambda how: {
            "c": Matryoshka(
                Contrastive(
                    NTXent(0.2, **how),
                    columns=[
                        Duplicates(),
                        Siblings("positive"),
                        FalseNegatives("teacher", absolute_margin=0.1),
                        Queue(30),
                        Momentum(0.5),
                    ],
                ),
                dims=[3, 16, 8],
                per_step=2,
            )
        },
        slots=TRIPLE,
        layers_anew=True,
        prompted=True,
        parts=lambda: {"guides": {"teacher": Known(7)}},
    ),
    "template, queue, signed pairs": Case(
        lambda how: {
            "c": Contrastive(InfoNCE(0.2, **how), columns=[Duplicates(), Siblings(), SignedPairs(), Queue(20)])
        },
        classes=2,
        template=True,
        parts=lambda: {"pooler": MaskTokenPooler(template_bias=True)},
    ),
    "alignment and uniformity, GOR, SIGReg": Case(
        lambda how: {  # noqa: ARG005  # as each case is called
            "c": WholeBatch(AlignmentUniformity()),
            "gor": WholeBatch(GlobalOrthogonalRegularization()),
            "sigreg": WholeBatch(SIGReg(directions=20), head=ProjectorHead([10, 6])),
        },
        slots=TRIPLE,
        streams=False,
    ),
    "Barlow Twins, VICReg between views": Case(
        lambda how: {  # noqa: ARG005  # as each case is called
            "c": WholeBatch(BarlowTwins(), head=ProjectorHead([10, 6], together=False)),
            "vicreg": WholeBatch(VICReg(), between="views"),
        },
        slots=TWICE,
        streams=False,
    ),
    "queue of keys, and queue of keys alone": Case(
        # The first step of the second has no negatives, and so no gradient.
        lambda how: {
            "c": Contrastive(
                InfoNCE(0.2, **how),
                head=TanhHead(),
                columns=[
                    Duplicates(),
                    Siblings("positive"),
                    Queue(40),
                    Momentum(0.5, of="anchor", head="trained"),
                ],
            ),
            "alone": Contrastive(
                InfoNCE(0.2, **how),
                head=TanhHead(),
                columns=[Duplicates(), Siblings(), Queue(40), MaskBatch(), Momentum(0.5, views=False)],
            ),
        },
        slots=TRIPLE,
    ),
    "masked tokens alone": Case(
        lambda how: {"mlm": MaskedLM(block=5)},  # noqa: ARG005  # it has no in-batch loss
        hidden="anchor",
        streams=False,
    ),
    "NTXent and masked tokens": Case(
        lambda how: {"c": Contrastive(NTXent(0.2, **how)), "mlm": MaskedLM()},
        slots=(*PAIR, ORIGINAL),
        hidden="original",
        parts=lambda: {"weights": {"mlm": 0.3}, "pooler": MaxPooler()},
    ),
    "replaced tokens, InfoNCE, projector": Case(
        lambda how: {"r": replaced(), "c": Contrastive(InfoNCE(0.2, **how), head=ProjectorHead(last_norm=True))}
    ),
    "denoising decoder, InfoNCE": Case(
        lambda how: {"d": DenoisingDecoder(block=7), "c": Contrastive(InfoNCE(0.2, **how))},
        slots=(*PAIR, ORIGINAL),
        layers_anew=True,
    ),
    "scores of texts and of pairs, and their order": Case(
        lambda how: {  # noqa: ARG005  # as each case is called
            "text": TextRegression(head=FineTuningHead(out_features=1, dropout=0.0)),
            "scores": PairRegression(),
            "order": PairRegression(CoSENT(0.2), head=TanhHead()),
            "angle": PairRegression(AnglE(0.2)),
        },
        classes=6,
        streams=False,
    ),
    "ranks of the batch and of a row's own texts as guides have them, vectors, consistency": Case(
        lambda how: {  # noqa: ARG005  # as each case is called
            "net": RankDistillation(ListNet(0.2, 0.1), ["teacher", "other"], weights=[0.3, 0.7], head=TanhHead()),
            "mle": RankDistillation(ListMLE(0.2), ["teacher"]),
            "same": Consistency(0.2, head=TanhHead()),
            "kl": RankDistillation(KLDivergence(0.2, 0.1), ["teacher"], among="own"),
            "margins": RankDistillation(MarginMSE(), ["other"], among="own"),
            "cosine": VectorDistillation("teacher", guide_features=7),
            "squared": VectorDistillation("other", "squared"),
        },
        slots=TRIPLE,
        streams=False,
        parts=lambda: {"guides": {"teacher": Known(7), "other": Known(tiny.CONFIG["hidden_size"])}},
    ),
    "teacher scores of a row's own texts and among the batch, siblings, InfoNCE, rerankers": Case(
        lambda how: {
            "c": Contrastive(InfoNCE(0.2, **how), columns=[Duplicates(), Siblings()]),
            "kl": RankDistillation(KLDivergence(0.2, 1.0)),
            "margins": RankDistillation(MarginMSE(), similarity="dot", head=TanhHead()),
            "net": RankDistillation(ListNet(0.2, 1.0), among="batch"),
            "mle": RankDistillation(ListMLE(0.2), among="batch"),
            "widths": Matryoshka(RankDistillation(ListMLE(0.2)), dims=[16, 8]),
            "labels": Reranking(positive_weight=2.0),
            "reranked": Reranking(KLDivergence(1.0, 1.0), head=FineTuningHead(out_features=1, dropout=0.0)),
        },
        slots=(*TRIPLE, Slot("negative", 1)),
        scores=True,
    ),
    "GIST, hard negatives, and queue, NTXent, a guide, siblings attract": Case(
        lambda how: {
            "c": Contrastive(
                InfoNCE(0.2, directions=["query_to_doc", "query_to_query", "doc_to_doc"], **how),
                columns=[Duplicates(), Siblings(), FalseNegatives("teacher", absolute_margin=0.1)],
            ),
            "queue": Contrastive(
                NTXent(0.2, **how),
                columns=[Duplicates(), Siblings("positive"), Queue(60), FalseNegatives("teacher")],
            ),
            "bits": Quantized(
                Matryoshka(Contrastive(NTXent(0.2, **how), columns=[Queue(30)]), dims=[16, 8]), ["binary", "int8"]
            ),
        },
        slots=TRIPLE,
        parts=lambda: {"guides": {"teacher": Known(7)}},
    ),
    "own scores, hard negatives, and queue, NTXent; own hard negatives alone": Case(
        lambda how: {
            "c": Contrastive(
                InfoNCE(0.2, directions=["query_to_doc", "query_to_query", "doc_to_doc"], **how),
                columns=[Duplicates(), Siblings(), MaskAbovePositive()],
            ),
            "queue": Contrastive(
                NTXent(0.2, **how),
                columns=[Duplicates(), Siblings("positive"), Queue(60), MaskAbovePositive(0.0)],
            ),
            "alone": Contrastive(
                InfoNCE(0.2, **how), columns=[Duplicates(), MaskAbovePositive(), MaskBatch(hard_negatives=True)]
            ),
        },
        slots=TRIPLE,
    ),
    "PCGrad of three": Case(
        several, classes=3, hidden="anchor", layers_anew=True, parts=lambda: {"combine": PCGrad()}
    ),
    "learned weights of three": Case(
        several, classes=3, hidden="anchor", parts=lambda: {"combine": Uncertainty()}
    ),
}
