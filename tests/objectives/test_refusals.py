"""Objectives and their parts that are refused: by their arguments, by each other, and by what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parts
import pytest
import tiny
import torch
from architectures import encoder_of
from chains import batch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import (
    DCL,
    DCLW,
    DebiasedNTXent,
    InfoNCE,
    ListNet,
    MarginMSE,
    NTXent,
    SigLIP,
    SupCon,
    VICReg,
)
from contrastive_text.objectives import (
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
    PairClassification,
    PairRegression,
    PositivesOnly,
    Queue,
    RankDistillation,
    ReplacedTokens,
    Reranking,
    SameClass,
    Scorer,
    Siblings,
    SignedPairs,
    TextClassification,
    TextRegression,
    VectorDistillation,
    WholeBatch,
)
from contrastive_text.poolers import CLSPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens

INF, NAN = float("inf"), float("nan")
OTHER: Any = "other"  # what YAML may hold and the types forbid
ATTRACT, TWO = Siblings("positive"), InfoNCE(directions=["query_to_doc", "doc_to_doc"])


class Other(Scorer):
    """A scorer with a number of outputs of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, u: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        return u[:, : self.outputs]


class WithNetwork(Contrastive):
    def build_networks(self, embedder: Any) -> None:
        """Makes one, which nobody would make of the copies."""


# Class -> options that it refuses, and words that are said.
OPTIONS: list[tuple[Callable[..., object], dict[str, Any], list[str]]] = [
    (Contrastive, {"between": OTHER}, ["Contrastive.between", "texts or views", "'other'"]),
    (Contrastive, {"columns": [Duplicates(), Duplicates()]}, ["each part once", "Duplicates twice"]),
    (Contrastive, {"columns": [PositivesOnly()], "between": "views"}, ["PositivesOnly", "texts", "BetweenViews"]),
    (Contrastive, {"columns": [PositivesOnly()], "loss": SupCon()}, ["PositivesOnly", "classes", "SupCon"]),
    (Contrastive, {"columns": [PositivesOnly(), SameClass(2)]}, ["reads labels", "PositivesOnly and SameClass"]),
    (Contrastive, {"loss": SupCon()}, ["expected SameClass", "SupCon", "Duplicates"]),
    (Contrastive, {"columns": [SameClass(3)]}, ["SameClass", "classes", "InfoNCE"]),
    *((Contrastive, {"columns": [SignedPairs()], "loss": loss}, ["SignedPairs", "maximized", type(loss).__name__])
      for loss in (TWO, DCLW(), SigLIP())),
    (Contrastive, {"loss": SupCon(), "columns": [SameClass(2), Duplicates(), Siblings()]},
     ["Siblings", "SupCon"]),
    (Contrastive, {"between": "views", "columns": [Duplicates(), ATTRACT]}, ["Siblings", "BetweenViews"]),
    (Contrastive, {"columns": [Duplicates(), ATTRACT, SignedPairs()]}, ["Siblings", "SignedPairs"]),
    (Contrastive, {"columns": [ATTRACT]}, ["Siblings", "without Duplicates"]),
    *((Contrastive, {"loss": loss, "columns": [Duplicates(), ATTRACT]}, ["Siblings.effect", type(loss).__name__])
      for loss in (DCL(), DCLW(), DebiasedNTXent(), SigLIP(), TWO, InfoNCE(in_batch_hardness=9.0))),
    (Contrastive, {"columns": [SignedPairs(), FalseNegatives("teacher")]}, ["FalseNegatives", "SignedPairs"]),
    *((Contrastive, {"columns": [MaskAbovePositive(), part]}, ["MaskAbovePositive expects", type(part).__name__])
      for part in (SignedPairs(), FalseNegatives("teacher"))),
    (MaskAbovePositive, {"margin": -0.1}, ["MaskAbovePositive.margin", "0 or more, got -0.1"]),
    (Contrastive, {"between": "views", "columns": [FalseNegatives("t")]},
     ["absolute_margin", "BetweenViews", "got 0"]),
    (Contrastive, {"between": "views", "columns": [Momentum()]}, ["Momentum", "BetweenViews"]),
    (Contrastive, {"columns": [Momentum(of="original"), Queue(9)]},
     ["Momentum.of", "anchor, positive, negative", "original"]),
    (Contrastive, {"columns": [Momentum(of="anchor")]}, ["Momentum.of", "Queue", "anchor"]),
    (Contrastive, {"columns": [Queue(9), MaskBatch()], "loss": NTXent()}, ["MaskBatch", "NTXent"]),
    (Contrastive, {"columns": [Queue(9), MaskBatch()], "loss": InfoNCE(0.2, "two_sided")},
     ["MaskBatch", "InfoNCE"]),
    (Contrastive, {"columns": [Queue(9), MaskBatch(), NegativesAsHard()]}, ["MaskBatch", "NegativesAsHard"]),
    (Queue, {"size": 0}, ["Queue.size", "1 or more", "got 0"]),
    (Siblings, {"effect": OTHER}, ["Siblings.effect", "mask or positive", "'other'"]),
    (Siblings, {"effect": "positive", "joined": OTHER}, ["Siblings.joined", "mean or sum", "'other'"]),
    (Siblings, {"joined": "sum"}, ["effect: positive", "sum", "effect: mask"]),
    (FalseNegatives, {"guide": "t", "relative_margin": -0.1}, ["FalseNegatives.relative_margin", "-0.1"]),
    *((SignedPairs, {"weight": weight}, ["SignedPairs.weight", f"{weight}"]) for weight in (-1.0, INF, NAN)),
    *((SignedPairs, {"bound": bound}, ["SignedPairs.bound", f"{bound}"]) for bound in (0.0, -1.0, NAN)),
    (Momentum, {"decay": 1.0}, ["Momentum.decay", "a share from 0 to below 1", "got 1.0"]),
    (Momentum, {"of": []}, ["Momentum.of", "one or more of anchor, positive, negative, original", "got []"]),
    (Momentum, {"of": OTHER}, ["Momentum.of", "got 'other'"]),
    (Momentum, {"head": OTHER}, ["Momentum.head", "copied or trained", "'other'"]),
    (WholeBatch, {"loss": VICReg(), "between": OTHER}, ["WholeBatch.between", "texts or views", "'other'"]),
    *((Matryoshka, {"objective": Contrastive(), **options}, words) for options, words in (
        ({"dims": []}, ["dims", "different widths"]),
        ({"dims": [4, 0]}, ["dims", "1 or more", "got [4, 0]"]),
        ({"dims": [4, 4]}, ["dims", "different widths", "got [4, 4]"]),
        ({"dims": [4, 2], "weights": [1.0]}, ["weights", "for each of the 2 dims"]),
        ({"dims": [4], "weights": [0.0]}, ["weights", "a number above 0"]),
        ({"dims": [4, 2], "per_step": 3}, ["per_step", "1 to 2, the number of dims", "got 3"]))),
    *((Matryoshka, {"dims": [4], "objective": objective}, words) for objective, words in (
        (Contrastive(head=TanhHead()), ["head: expected null, got TanhHead"]),
        (PairRegression(head=MLPHead()), ["head: expected null, got MLPHead"]),
        *((each, ["reads sentence vectors", f"got {type(each).__name__}"]) for each in (
            MaskedLM(), DenoisingDecoder(), ReplacedTokens("generator"), Matryoshka(Contrastive(), [2]),
            WithNetwork())))),
    *((VectorDistillation, {"guide": "teacher", **options}, words) for options, words in (
        ({"distance": OTHER}, ["VectorDistillation.distance", "cosine or squared", "'other'"]),
        ({"guide_features": 0}, ["VectorDistillation.guide_features", "1 or more", "got 0"]))),
    *((RankDistillation, {"loss": ListNet(), **options}, words) for options, words in (
        *(({"guides": guides}, ["guides", "different names of model.guides", f"got {guides!r}"])
          for guides in (["a", "a"], "teacher")),
        ({"weights": [1.0]}, ["guides", "different names of model.guides", "got None"]),
        ({"similarity": OTHER}, ["RankDistillation.similarity", "cosine or dot", "'other'"]),
        ({"loss": MarginMSE(), "among": "batch"}, ["among", "expected own for MarginMSE", "got batch"]),
        ({"guides": ["a", "b"], "weights": [1.0]}, ["weights", "a number above 0 for each of the 2 guides"]),
        ({"guides": ["a"], "weights": [0.0]}, ["weights", "a number above 0", "got [0.0]"]),
        ({"guides": ["a"], "among": OTHER}, ["RankDistillation.among", "batch or own", "'other'"]))),
    *((Reranking, options, words) for options, words in (
        ({"positive_weight": 0.0}, ["Reranking.positive_weight", "above 0", "got 0.0"]),
        ({"positive_weight": 2.0, "loss": MarginMSE()}, ["expected 1 with MarginMSE", "got 2.0"]))),
    (MaskedLM, {"block": 0}, ["MaskedLM.block", "1 or more", "got 0"]),
    (DenoisingDecoder, {"block": 0}, ["DenoisingDecoder.block", "1 or more", "got 0"]),
    (ReplacedTokens, {"generator": "g", "rate": 0.0}, ["rate", "above 0 and at most 1", "got 0.0"]),
    (CosineScorer, {"threshold": 1}, ["CosineScorer.threshold", "a cosine from -1 to below 1", "got 1"]),
    (PairRegression, {"low": 5.0, "high": 0.0}, ["finite bounds low < high", "got 5.0 and 0.0"]),
    *((each, {"view": 0}, [f"{each.__name__}.view", "1 or more", "got 0"])
      for each in (PairRegression, TextRegression)),
    (TextClassification, {"classes": 1}, ["TextClassification.classes", "two classes or more"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "options", "words"), OPTIONS, ids=lambda each: each.__name__ if isinstance(each, type) else ""
)
def test_options_that_are_wrong_or_exclude_each_other_are_refused(
    cls: Callable[..., object], options: dict[str, Any], words: list[str]
) -> None:
    parts.check_refused(lambda: cls(**options), ValueError, words)


PAIRS = Encoded(torch.ones(4, 4), (Slot("anchor", 0), Slot("positive", 0)), torch.arange(4))


def views(positives: int) -> Encoded:
    """Two views of two anchors, and so many slots of positives."""
    slots = (Slot("anchor", 0), Slot("anchor", 1), *(Slot("positive", i) for i in range(positives)))
    return Encoded(torch.ones(2 * len(slots), 4), slots, torch.arange(2 * len(slots)))


def built(objective: Any, features: int = 4) -> Any:
    objective.build(features)
    return objective


CALLS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "no target": (
        lambda: Contrastive(SupCon(), columns=[SameClass(2)])(batch(3, 0).encoded),
        ["expected a batch with a target", "got a batch without a target"],
    ),
    **{
        f"{n} slots of positives": (
            lambda n=n: Contrastive(between="views")(views(n)),
            [f"two views of one text as positive, got {n} slots", "views_per_text"],
        )
        for n in (1, 3)
    },
    "one slot of anchors": (lambda: Contrastive(between="views")(PAIRS), ["views of one text as anchor, got 1"]),
    "no masked tokens": (
        lambda: MaskedLM()(Encoded(torch.ones(6, 4), PAIRS.slots, torch.arange(6))),
        ["MaskedLM: expected a batch with masked tokens, got no masked tokens", "MaskTokens"],
    ),
    "other outputs than classes": (
        lambda: TextClassification(5, head=MLPHead(hidden_features=4)).build(768),
        ["TextClassification.head: expected out_features: 5, one for each class, got 768", "MLPHead"],
    ),
    **{
        f"{n} outputs": (
            lambda n=n: built(PairClassification(3, scorer=Other(n))).predict(PAIRS),
            ["PairClassification.scorer: expected 3 outputs, one for each class", f"got {n} from Other"],
        )
        for n in (1, 2)
    },
    "three classes by a cosine": (
        lambda: built(PairClassification(3, scorer=CosineScorer())),
        ["CosineScorer: expected two classes, such as 0 and 1, got 3"],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_can_not_be_compared_is_refused(name: str) -> None:
    call, words = CALLS[name]
    parts.check_refused(call, ValueError, words)


def without_first_token(bert: str) -> object:
    encoder = TransformerEncoder(bert)
    assert encoder.tokenizer is not None
    encoder.tokenizer.backend_tokenizer.post_processor = None
    return ContrastiveModule(encoder, CLSPooler(), objectives={"r": ReplacedTokens("g")})


def module_of(**arguments: Any) -> Callable[[str], object]:  # Any: of a module
    return lambda bert: tiny.module(bert, **arguments)


HIDES: Any = {"anchor": [MaskTokens()]}
# From the folder of an encoder.
MODULES: dict[str, tuple[Callable[[str], object], list[str]]] = {
    **{f"masked LM with {name}": (
        lambda _, name=name: ContrastiveModule(encoder_of(name), views=HIDES, objectives={"mlm": MaskedLM()}),
        ["expected an architecture with a masked-language-model", f"got {name};"],
    ) for name in ("qwen2", "llama")},
    "masked LM, nothing hidden": (
        module_of(views={"anchor": [DeleteTokens()]}, objectives={"mlm": MaskedLM()}),
        ["model.objectives.mlm: expected a view that masks tokens for MaskedLM"],
    ),
    "widths above that of the vectors": (
        module_of(head=MLPHead(9, 9, train_only=False), objectives={"c": Matryoshka(Contrastive(), [12, 4])}),
        ["widths of at most 9, the width of the vectors, got 12"],
    ),
    "decoder of another width": (
        module_of(head=MLPHead(8, 8, train_only=False), objectives={"d": DenoisingDecoder()}),
        ["tokens (16)", "got 8"],
    ),
    "decoder of hidden tokens": (
        module_of(views={"original": [MaskTokens()]}, objectives={"d": DenoisingDecoder(), "mlm": MaskedLM()}),
        ["views.original: expected no hidden tokens where d (DenoisingDecoder) reads them"],
    ),
    **{f"head of {name}": (
        module_of(objectives={"c": Contrastive(head=TanhHead()), "r": ReplacedTokens("g", head_of=name)}),
        ["r.head_of: expected an objective with a head (c)", f"got {name}"],
    ) for name in ("other", "r")},
    "replaced tokens, another width": (
        module_of(
            objectives={"c": Contrastive(head=MLPHead(8, 8)), "r": ReplacedTokens("g", head_of="c")}
        ),
        ["a vector as wide as the encoder's tokens (16)", "got 8"],
    ),
    "replaced tokens of hidden ones": (
        module_of(views=HIDES, objectives={"mlm": MaskedLM(), "r": ReplacedTokens("g")}),
        ["views.anchor: expected no hidden tokens where r (ReplacedTokens)"],
    ),
    "replaced tokens without a first one": (without_first_token, ["a special token before a text"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_can_not_be_trained_is_refused_when_it_is_built(name: str, bert: str) -> None:
    build, words = MODULES[name]
    parts.check_refused(lambda: build(bert), ValueError, words)
