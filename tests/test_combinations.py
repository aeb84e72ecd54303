"""Any pairing with any views, pooler, head and objectives: from YAML, two steps each, or refused when built.

The default suite runs two; ``slow`` a set in which every two choices of different axes meet, and a part of all
at random, ``make exhaustive`` every one.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import torch
import yaml
from covering import choices, covering, pairs, share_of

from contrastive_text.cli import run
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import MaskedLM
from contrastive_text.poolers import MeanPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens


def part(class_path: str, **init_args: object) -> dict[str, object]:
    return {"class_path": class_path, "init_args": init_args}


PAIRINGS: dict[str, dict[str, Any]] = {
    "same": {"pairing": part("SameText")},
    "given": {"pairing": part("Given")},
    "neighbors": {"pairing": part("Neighbors")},
    "spans": {"pairing": part("Spans", min_length=4, max_length=12), "batch_size": 4},
}
DELETE = part("DeleteTokens", rate=0.3, mark="[DEL]")
VIEWS: dict[str, dict[str, list[object]]] = {
    "none": {},
    "text": {"anchor": [part("SwapWords", rate=0.5)], "positive": [part("Prompt", template="so: {text}")]},
    "tokens": {"anchor": [DELETE, part("ReorderSpans")], "positive": [part("CropTokens", rate=0.3)]},
    "positions": {"positive": [part("ShufflePositions")]},
    "embeddings": {"anchor": [part("TokenCutoff", rate=0.3)], "positive": [part("EmbeddingDropout")]},
    "gradient": {"positive": [part("Adversarial", objective="contrastive")]},
    "dropout": {"positive": [part("FixedDropout")]},
    "all levels": {
        "anchor": [
            part("SwapWords", rate=0.5), DELETE, part("DeleteSpans"), part("ShufflePositions"),
            part("FeatureCutoff"), part("SpanCutoff", rate=0.3), part("GaussianNoise"),
            part("Adversarial", objective="contrastive"),
        ]
    },
}  # fmt: skip
POOLERS = {
    "mean": part("MeanPooler"),
    "CLS": part("CLSPooler"),
    "last two": part("LastTwoPooler"),
    "first and last": part("FirstLastPooler", first="block_1"),
    "max": part("MaxPooler"),
    "last": part("LastTokenPooler"),
    "weighted mean": part("WeightedMeanPooler"),
    "mask token": part("MaskTokenPooler", template_bias=True),
    "sparse": part("SpladePooler"),
    "one per role": None,  # an encoder per role, which pools
}
HEADS = {
    "none": (None, None),
    "kept": (part("MLPHead", train_only=False), None),
    "thrown": (None, part("TanhHead")),
}
BOTH = ["Duplicates", "Siblings"]
PAST = part("Queue", size=20)
DIRECTIONS = ["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]
OBJECTIVES: dict[str, dict[str, dict[str, object]]] = {
    "InfoNCE": {"contrastive": part("Contrastive", loss=part("InfoNCE"))},
    "NTXent, MLM on anchor": {"contrastive": part("Contrastive", loss=part("NTXent")), "mlm": part("MaskedLM")},
    "two-sided, MLM on original": {
        "contrastive": part("Contrastive", loss=part("NTXent", reduction="two_sided")),
        "mlm": part("MaskedLM"),
    },
    "InfoNCE, classes of texts and of pairs": {
        "contrastive": part("Contrastive", loss=part("InfoNCE")),
        "text": part("TextClassification", classes=2),
        "pair": part("PairClassification", classes=2, scorer=part("BilinearScorer")),
    },
    "InfoNCE, denoising decoder": {
        "contrastive": part("Contrastive", loss=part("InfoNCE")),
        "decoder": part("DenoisingDecoder"),
    },
    "InfoNCE, replaced tokens": {
        "contrastive": part("Contrastive", loss=part("InfoNCE")),
        "replaced": part("ReplacedTokens", generator="generator"),
    },
    "SupCon, pairs signed by label, PCGrad": {
        "contrastive": part(
            "Contrastive", loss=part("SupCon"), columns=["Duplicates", part("SameClass", classes=2)]
        ),
        "signed": part("Contrastive", loss=part("NTXent"), columns=[*BOTH, "SignedPairs"]),
    },
    "InfoNCE, queues of keys": {
        "contrastive": part("Contrastive", columns=[*BOTH, PAST, part("Momentum", of="anchor", head="trained")]),
        "alone": part("Contrastive", columns=[*BOTH, PAST, "MaskBatch", "Momentum"]),
    },
    "SigLIP, DCLW, four directions, debiased": {
        "contrastive": part("Contrastive", loss=part("SigLIP")),
        "weighed": part("Contrastive", loss=part("DCLW")),
        "directions": part("Contrastive", loss=part("InfoNCE", directions=DIRECTIONS, in_batch_hardness=9.0)),
        "debiased": part("Contrastive", loss=part("DebiasedNTXent")),
    },
    "no negatives, projectors, angles of pairs": {
        "contrastive": part("WholeBatch", loss=part("AlignmentUniformity")),
        "barlow": part("WholeBatch", loss=part("BarlowTwins"), head=part("ProjectorHead", together=False)),
        "vicreg": part("WholeBatch", loss=part("VICReg"), head=part("ProjectorHead", last_norm=True)),
        "sigreg": part("WholeBatch", loss=part("SIGReg", directions=8)),
        "gor": part("WholeBatch", loss=part("GlobalOrthogonalRegularization")),
        "angles": part("PairRegression", loss=part("AnglE"), low=0.0, high=1.0),
        "labeled": part("Contrastive", loss=part("NTXent"), columns=[*BOTH, "NegativesAsHard"]),
    },
    "InfoNCE, ranks and vectors of a guide": {
        "contrastive": part("Contrastive", loss=part("InfoNCE")),
        "ranks": part("RankDistillation", loss=part("ListMLE"), guides=["teacher"]),
        "consistency": part("Consistency"),
        "vectors": part("VectorDistillation", guide="teacher"),
    },
}
MASKED = {"NTXent, MLM on anchor": "anchor", "two-sided, MLM on original": "original"}
AXES = {"pairing": PAIRINGS, "views": VIEWS, "pooler": POOLERS, "head": HEADS, "objectives": OBJECTIVES}


class Combination(NamedTuple):
    """One choice of every axis, by name."""

    pairing: str
    views: str
    pooler: str
    head: str
    objectives: str

    def __str__(self) -> str:
        return ", ".join(self)


EVERY = [Combination(*names) for names in itertools.product(*AXES.values())]
QUICK, COVERING = covering(EVERY, of=choices), covering(EVERY)


def config(combination: Combination) -> dict[str, Any]:
    """Returns the combination as the YAML of a run."""
    kept, thrown = HEADS[combination.head]
    views = dict(VIEWS[combination.views])
    role = MASKED.get(combination.objectives)
    objectives = dict(OBJECTIVES[combination.objectives])
    contrastive = objectives["contrastive"]
    objectives["contrastive"] = {**contrastive, "init_args": {**contrastive["init_args"], "head": thrown}}  # type: ignore[dict-item]  # a dict
    if "replaced" in objectives:
        named = {"generator": "generator", "head_of": "contrastive" if thrown else None}
        objectives["replaced"] = part("ReplacedTokens", **named)
    if role is not None:
        chain = views.get(role, [])
        place = next((i for i, view in enumerate(chain) if view["class_path"] in AFTER_TOKENS), len(chain))  # type: ignore[index]  # a view is a mapping here
        views[role] = [*chain[:place], part("MaskTokens", rate=0.5), *chain[place:]]
    model = {"pooler": POOLERS[combination.pooler], "head": kept, "views": views, "objectives": objectives}
    if combination.pooler == "mask token":
        model |= {"prompts": {"named": {"default": "it says {text} means {mask}."}, "apart": True}}
    if "PCGrad" in combination.objectives:
        model["combine"] = part("PCGrad")
    return {"model": model, "data": {"task": PAIRINGS[combination.pairing]}}


AFTER_TOKENS = (
    "ShufflePositions", "TokenCutoff", "EmbeddingDropout", "FeatureCutoff", "SpanCutoff", "GaussianNoise",
    "Adversarial", "FixedDropout",
)  # fmt: skip


REFUSED_PER_ROLE = {
    **dict.fromkeys(MASKED, "AsymmetricEncoder: expected a network with a masked-language-model head"),
    "InfoNCE, denoising decoder": "DenoisingDecoder: expected an architecture that can be a decoder",
    "InfoNCE, replaced tokens": "ReplacedTokens: expected an architecture with an embedding module",
}
"""Objectives of tokens -> what is said with an encoder per role, which gives vectors of texts."""


REFUSED_SPARSE = {
    "InfoNCE, ranks and vectors of a guide": "guide_features: expected 16, the width of the vectors of teacher",
    "InfoNCE, denoising decoder": "DenoisingDecoder: expected vectors as wide as the encoder's tokens",
    "InfoNCE, replaced tokens": "ReplacedTokens: expected a vector as wide as the encoder's tokens",
}
"""Objectives of vectors of another width -> what is said of vectors as wide as the vocabulary."""


def senseless(combination: Combination) -> list[str]:
    """Returns what a combination without sense is answered, one answer per reason; the first found is given."""
    reasons = []
    if combination.views == "dropout" and combination.pairing != "same":
        reasons.append("FixedDropout: expected a pairing that repeats the anchor")
    if combination.pooler == "one per role" and (refusal := REFUSED_PER_ROLE.get(combination.objectives)):
        reasons.append(refusal)
    if combination.pooler == "sparse" and (refusal := REFUSED_SPARSE.get(combination.objectives)):
        reasons.append(refusal)
    if combination.pooler == "mask token" and combination.objectives in MASKED:
        reasons.append("expected no view that hides tokens with MaskTokenPooler")
    if combination.pairing == "same" and "of pairs" in combination.objectives:
        reasons.append("expected two texts for an objective that predicts their label or score")
    if "replaced" in combination.objectives and "[DEL]" in str(VIEWS[combination.views]):
        reasons.append("generator: expected the encoder's vocabulary")  # which has one more
    return reasons


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny encoder and a file for every pairing."""
    folder = tmp_path_factory.mktemp("combinations")
    bert = tiny.save_bert(folder / "bert", max_position_embeddings=64)
    tiny.save_masked_lm(folder / "generator", max_position_embeddings=64)
    SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu").save_pretrained(folder / "teacher")
    long = tuple(" ".join(tiny.TEXTS[i : i + 12]) for i in range(8))
    for name, texts in (("same", tiny.TEXTS), ("neighbors", tiny.TEXTS), ("spans", long)):
        lines = ["label\ttext", *(f"{i % 2}\t{text}" for i, text in enumerate(texts))]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    triples = Path(tiny.write_triples(folder / "given.jsonl"))
    rows = [json.loads(line) | {"label": i % 2} for i, line in enumerate(triples.read_text().splitlines())]
    triples.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder


def check(combination: Combination, place: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a combination for two steps, or sees it refused."""
    (folder / "run.yaml").write_text(yaml.safe_dump(config(combination)))
    train = next(place.glob(f"{combination.pairing}.*"))
    bert = part("TransformerEncoder", model_name_or_path=str(place / "bert"))
    roles = {"query": bert, "document": bert, "query_pooler": part("MaxPooler"), "frozen": "document"}
    encoder = part("AsymmetricEncoder", **roles) if combination.pooler == "one per role" else bert
    words = ["fit", "--config", str(folder / "run.yaml"), "--model.encoder", json.dumps(encoder)]
    words += ["--data.train", str(train)]
    words += ["--data.num_workers", "0", "--data.cache_dir", str(place / "cache")]
    words += ["--trainer.max_steps", "2", "--trainer.accelerator", "cpu", "--trainer.logger", "false"]
    words += ["--trainer.default_root_dir", str(folder), "--trainer.enable_progress_bar", "false"]
    words += [] if combination.pairing == "spans" else ["--data.batch_size", "8"]
    words += ["--data.task.pair_labels", "all"] if combination.pairing == "given" else []
    if "replaced" in combination.objectives:
        words += ["--model.objectives.replaced.generator", str(place / "generator")]
    if "guide" in combination.objectives:
        guides = {"teacher": part("GuideModel", folder=str(place / "teacher"))}
        words += ["--model.guides", json.dumps(guides)]
    status, refusals = run(words), senseless(combination)
    said = capsys.readouterr().err
    if refusals:
        assert status == 2
        assert any(refusal in said for refusal in refusals), said
        return
    assert status == 0, said
    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["global_step"] == 2
    weights = [value for value in saved["state_dict"].values() if isinstance(value, torch.Tensor)]
    assert all(weight.isfinite().all() for weight in weights)


def test_the_covering_set_has_every_pair_and_is_small() -> None:
    assert set().union(*map(pairs, COVERING)) == set().union(*map(pairs, EVERY))
    one, other = sorted(map(len, AXES.values()))[-2:]
    assert len(COVERING) <= 1.1 * one * other
    assert set().union(*map(choices, QUICK)) == set().union(*map(choices, EVERY))


def test_the_parts_together_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in range(1, 7):
        monkeypatch.setenv("CONTRASTIVE_TEXT_PART", f"{number}/6")
        found += share_of(EVERY)
    assert sorted(found) == sorted(EVERY)


@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(each, marks=[] if each in QUICK[:2] else pytest.mark.slow)
        for each in dict.fromkeys([*QUICK, *COVERING])
    ],
    ids=str,
)
def test_any_with_any(
    combination: Combination, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(combination, place, tmp_path, capsys)


DRAWN = share_of(EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(DRAWN), 16))  # each is collected in any run
def test_more_of_any_with_any(
    first: int, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, combination in enumerate(DRAWN[first : first + 16]):
        folder = tmp_path / str(number)
        folder.mkdir()
        check(combination, place, folder, capsys)


def test_an_original_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    encoder = TransformerEncoder(tiny.save_bert(tmp_path / "bert"))
    for chain in ([DeleteTokens()], [MaskTokens()]):
        with pytest.raises(ValueError, match=r"model\.views\.original: expected an objective that reads"):
            ContrastiveModule(encoder, views={"original": chain})
    ContrastiveModule(
        encoder, views={"original": [MaskTokens()]}, objectives={"mlm": MaskedLM()}
    )  # nothing is compared, and nothing is refused
