"""Tests that recipes have the settings of papers and codes, by the numbers of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import yaml
from covering import rest_slow
from recipe_options import INFERENCE, built
from torch import nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.types import NO_LABEL, Slot
from contrastive_text.data import Collator, KeyedRow, TextDataModule
from contrastive_text.data.batching import collate_texts
from contrastive_text.heads import TanhHead
from contrastive_text.losses import ListMLE, ListNet, RankLoss
from contrastive_text.objectives import MaskAbovePositive
from contrastive_text.pairings import NLITriples, SameText
from contrastive_text.poolers import CLSPooler, LastTokenPooler, MeanPooler
from contrastive_text.recipes import recipe_file
from contrastive_text.recipes.layers import read_recipe, value_at
from contrastive_text.training.module import ContrastiveModule

NLI_CLASSES = ["contradiction", "entailment", "neutral"]


def test_k13_consert_has_64_tokens_and_its_authors_67(vectors: dict[str, Any], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=128)
    long = " ".join(tiny.TEXTS)
    corrected = ContrastiveModule.from_recipe("consert", bert)
    assert encoded_length(corrected, long) == 64
    config = yaml.safe_load(recipe_file("consert").read_text())
    config["model"]["encoder"]["init_args"]["max_length"] = 67
    (tmp_path / "faithful.yaml").write_text(yaml.safe_dump(config))
    lengths = vectors["consert_lengths"]
    longest = encoded_length(ContrastiveModule.from_recipe(str(tmp_path / "faithful.yaml"), bert), long)
    assert longest == lengths["max_seq_length_64_total_positions"] == lengths["max_word_pieces_kept"] + 2


def encoded_length(module: ContrastiveModule, text: str) -> int:
    """Positions that a text has in training."""
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None
    return int(collate_texts(tokenizer, tokenizer.tokenize_with_template([text])).lengths.max())


def test_c11_c12_clear_predicts_the_original_and_uses_cls_without_the_projection(tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=512)
    module = ContrastiveModule.from_recipe("clear", bert).eval()
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None
    plan = module.plan
    plan.build(tokenizer.vocabulary(plan.new_tokens))
    mark = tokenizer.vocabulary(plan.new_tokens).added["[DEL]"]
    rows = [KeyedRow(0, i, {"text": text}) for i, text in enumerate(tiny.TEXTS[:8])]
    batch = Collator(tokenizer, SameText(), plan, seed=0)(rows)
    original, anchor = (batch.split(batch.by_role(role)) for role in ("original", "anchor"))
    assert (anchor.ids == mark).any() and not (original.ids == mark).any()
    assert original.labels is not None and (original.labels != NO_LABEL).any()
    plain = collate_texts(tokenizer, tokenizer.tokenize_with_template(tiny.TEXTS[:8]))
    first = module.encoder(plain).layers[-1][:, 0]
    # [CLS], which g would have changed. float32: another layout, of which some matrices have other shapes.
    torch.testing.assert_close(module(plain), first, rtol=0, atol=1e-5)
    assert isinstance(module.sentence_encoder().pooler, CLSPooler) and module.sentence_encoder().head is None


NUMBERS = {
    "simcse/unsup_bert_base": ("bert-base-uncased", 32, 3e-5, 64, 1),
    "simcse/unsup_bert_large": ("bert-large-uncased", 32, 1e-5, 64, 1),
    "simcse/unsup_roberta_base": ("roberta-base", 32, 1e-5, 512, 1),
    "simcse/unsup_roberta_large": ("roberta-large", 32, 3e-5, 512, 1),
    "simcse/sup_bert_base": ("bert-base-uncased", 32, 5e-5, 512, 3),
    "simcse/sup_bert_large": ("bert-large-uncased", 32, 1e-5, 512, 3),
    "simcse/sup_roberta_base": ("roberta-base", 32, 5e-5, 512, 3),
    "simcse/sup_roberta_large": ("roberta-large", 32, 1e-5, 512, 3),
    **dict.fromkeys(("rankcse/listnet", "rankcse/listmle"), ("bert-base-uncased", 32, 3e-5, 128, 1)),
    "sbert_nli": ("bert-base-uncased", 128, 2e-5, 16, 1),
    **{f"consert/{name}": ("bert-base-uncased", 64, 2e-5, 96, 1) for name in ("sup_base", "joint_base")},
    "consert/sup_large": ("bert-large-uncased", 64, 2e-5, 96, 1),
    "consert/joint_large": ("bert-large-uncased", 40, 2e-5, 96, 1),
    "consert/joint_base_paper": ("bert-base-uncased", 64, 2e-5, 96, 1),
    "consert/joint_large_paper": ("bert-large-uncased", 40, 2e-5, 96, 1),
    **{f"consert/{name}_unsup_base": ("bert-base-uncased", 64, 5e-7, 96, 25) for name in ("sup", "joint")},
    "consert/sup_unsup_large": ("bert-large-uncased", 64, 5e-7, 96, 10),
    "consert/joint_unsup_large": ("bert-large-uncased", 40, 5e-7, 96, 10),
}
"""Recipe -> encoder, length, learning rate, batch size and epochs of the readmes and scripts of the papers."""
PLACES = ("model.encoder.model_name_or_path", "model.encoder.max_length", "model.optimizer.lr")
PLACES += ("data.batch_size", "trainer.max_epochs")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_recipe_has_the_numbers_of_its_source(name: str) -> None:
    assert tuple(value_at(read_recipe(name), place) for place in PLACES) == NUMBERS[name]


LOSS, COLUMNS = (f"model.objectives.contrastive.{place}" for place in ("loss", "columns"))


def queued(size: int, *between: str, **momentum: object) -> list[object]:
    """Columns of a queue beside those of SimCSE."""
    queue = {"class_path": "Queue", "init_args": {"size": size}}
    return ["Duplicates", "Siblings", queue, *between, {"class_path": "Momentum", "init_args": momentum}]


def esimcse(rate: float, size: int = 160, **others: object) -> dict[str, object]:
    """Settings of ESimCSE that differ from SimCSE."""
    momentum = {"decay": 0.995, "of": "anchor", "views": False, "dropout": False, "head": "trained"}
    views = {"positive": [{"class_path": "RepeatTokens", "init_args": {"rate": rate}}]}
    return {COLUMNS: queued(size, **momentum), "model.views": views, **others}


def sized(encoder: str) -> dict[str, object]:
    return {"model.encoder.model_name_or_path": encoder, "model.optimizer.lr": 1e-5}


OVER_SIMCSE: dict[str, dict[str, object]] = {
    "dcl": {LOSS: {"class_path": "DCL", "init_args": {"temperature": 0.1}}},
    "moco": {
        f"{LOSS}.temperature": 0.07,
        COLUMNS: queued(65536, "MaskBatch", decay=0.999, of="positive"),
    },
    "esimcse/bert_base": esimcse(0.32),
    "esimcse/bert_large": esimcse(0.32, **sized("bert-large-uncased")),
    "esimcse/roberta_base": esimcse(0.3, **sized("roberta-base")),
    "esimcse/roberta_large": esimcse(0.28, 128, **sized("roberta-large"), **{"model.encoder.dropout": 0.15}),
}
"""Recipe -> all that differs from unsupervised SimCSE."""


def changes(own: object, other: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yields the places where two configurations differ, and what the first has there."""
    if isinstance(own, dict) and isinstance(other, dict) and own.get("class_path") == other.get("class_path"):
        for name in {**own, **other}:
            below = place if name == "init_args" else f"{place}.{name}".lstrip(".")
            yield from changes(own.get(name), other.get(name), below)
    elif own != other:
        yield place, own


@pytest.mark.parametrize("name", OVER_SIMCSE)
def test_a_recipe_is_simcse_but_for_what_its_paper_changes(name: str) -> None:
    assert dict(changes(read_recipe(name), read_recipe("simcse"))) == OVER_SIMCSE[name]


@pytest.mark.parametrize(
    ("name", "loss"),
    rest_slow([("rankcse/listnet", ListNet(0.05, guide_temperature=0.025)), ("rankcse/listmle", ListMLE(0.05))]),
)
def test_rankcse_has_the_settings_of_its_readme_and_one_head(name: str, loss: RankLoss, bert: str) -> None:
    module, config = ContrastiveModule.from_recipe(name, bert), read_recipe(name)
    contrastive, consistency, ranking = module.objective_parts().values()
    assert describe(ranking.loss) == describe(loss)
    assert (ranking.guides, ranking.weights) == (("diffcse_base", "simcse_large"), [0.33, 0.67])
    assert ranking.guides == tuple(config["model"]["guides"])
    assert contrastive.loss.temperature == consistency.temperature == 0.05
    assert module.weights == {"contrastive": 1.0, "consistency": 1.0, "ranking": 1.0}
    first, *others = (part.head.network[0] for part in (contrastive, consistency, ranking))
    assert all(other is first for other in others)


def test_s8_supervised_simcse_keeps_its_head_for_use_and_unsupervised_does_not(bert: str) -> None:
    kept, thrown_away = (ContrastiveModule.from_recipe(name, bert).eval() for name in ("simcse/sup", "simcse"))
    assert isinstance(kept.head, TanhHead) and not kept.head.train_only
    assert kept.objectives["contrastive"].head is None
    assert read_recipe("simcse/sup")["data"]["task"] == {"pairing": "Given"}
    loss = kept.objectives["contrastive"].loss
    assert (kept.optimizer.weight_decay, loss.temperature, loss.hard_negative_log_weight) == (0.0, 0.05, 0.0)
    tokenizer = kept.text_tokenizer()
    assert tokenizer is not None
    batch = collate_texts(tokenizer, tokenizer.tokenize_with_template(tiny.TEXTS[:4]))
    (linear, _), first = kept.head.network, kept.encoder(batch).layers[-1][:, 0]
    assert torch.allclose(kept(batch), (first @ linear.weight.T + linear.bias).tanh(), atol=1e-6)
    assert thrown_away.head is None and thrown_away.sentence_encoder().head is None
    assert kept.sentence_encoder().head is kept.head.network


def test_sbert_reads_the_paper_s_features_of_the_last_layer_s_mean(bert: str) -> None:
    module = built("sbert_nli", bert)
    inference = module.objectives["inference"]
    assert inference.classes == NLI_CLASSES
    assert inference.scorer.linear.in_features == 3 * module.encoder.features
    assert isinstance(module.pooler, MeanPooler) and module.inference_pooler is None
    assert module.schedule.warmup_ratio == 0.1


@pytest.mark.parametrize("name", rest_slow(INFERENCE, quick=2))
def test_consert_s_first_stages_have_the_settings_of_their_scripts(name: str, bert: str) -> None:
    module, config = built(name, bert), read_recipe(name)
    joint, paper = name.startswith("consert/joint"), name.endswith("_paper")
    assert module.weights == {"inference": 1.0} | ({"contrastive": 0.15} if joint else {})
    assert module.objectives["inference"].classes == NLI_CLASSES
    features = module.objectives["inference"].scorer.linear.in_features / module.encoder.features
    assert features == (3 if paper else 4)
    assert not module.optimizer.bias_correction
    assert set(module.encoder.dropout_in_effect.values()) == {0.0 if paper else 0.1}
    assert config["trainer"]["callbacks"] == []
    if not joint:
        assert not module.plan.chains
        return
    contrastive = module.objectives["contrastive"]
    assert (contrastive.between, contrastive.loss.temperature, contrastive.loss.reduction) == (
        "views", 0.1, "mean" if paper else "two_sided",
    )  # fmt: skip
    altered = {slot: module.plan.chain_name(slot) for slot in map(Slot, ("anchor", "positive") * 2, (0, 0, 1, 1))}
    assert [name for name in altered.values() if name] == ["anchor_2", "positive_2"]
    assert [describe(view) for _, view in module.plan.named_views()] == [
        f"TokenCutoff(rate={0.15 if paper else 0.1}, specials=True)"
    ] * 2
    assert module.objectives["inference"].view == 1  # unaltered


@pytest.mark.parametrize(
    ("name", "view"),
    rest_slow(
        [
            *((f"consert/sup_unsup_{size}", "FeatureCutoff(rate=0.1)") for size in ("base", "large")),
            *((f"consert/joint_unsup_{size}", "ShufflePositions(specials=True)") for size in ("base", "large")),
        ]
    ),
)
def test_consert_s_second_stages_alter_one_of_two_views_of_single_texts(name: str, view: str, bert: str) -> None:
    module, config = built(name, bert), read_recipe(name)
    assert [(place, describe(part)) for place, part in module.plan.named_views()] == [("views.positive[0]", view)]
    assert module.objectives["contrastive"].between == "texts"
    assert module.weights == {"contrastive": 0.15}
    assert set(module.encoder.dropout_in_effect.values()) == {0.1}
    assert config["trainer"]["callbacks"][0]["init_args"]["patience"] == 10
    assert "task" not in config["data"]


def test_two_masked_copies_weigh_as_the_sum_of_two_losses(bert: str) -> None:
    module, logits = built("clear/mlm_double_mask", bert), nn.Linear(4, 9)
    assert read_recipe("clear/mlm_double_mask")["data"]["task"]["originals"] == 2
    hidden, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6)

    def loss(copies: slice) -> float:
        read = Encoded(
            hidden[:2], (Slot("anchor", 0),), torch.arange(2), None, hidden[copies], labels[copies], logits
        )
        return float(module.objective_parts()["mlm"](read).loss().detach())

    both = module.weights["mlm"] * loss(slice(6))
    assert both == pytest.approx(loss(slice(3)) + loss(slice(3, 6)), rel=1e-6)


def test_qwen3_embedding_has_the_terms_and_the_mask_of_its_report(bert: str) -> None:
    module, prompts = built("qwen3_embedding", bert), read_recipe("qwen3_embedding")["model"]["prompts"]
    objective = module.objectives["contrastive"]
    assert objective.loss.directions == ("query_to_doc", "query_to_query", "doc_to_doc")
    assert objective.part(MaskAbovePositive).margin == 0.1
    assert isinstance(module.pooler, LastTokenPooler)
    said = objective.describe_negatives(64, 1, 2)
    assert said.startswith(
        "at most 317 per anchor: 63 other positives, 63 other anchors, 63 other positives (comp"
    )
    assert "masked if cos(row, column) > cos(anchor, positive) + 0.1" in said
    assert prompts["named"]["query"].endswith("\nQuery:") and prompts["default"] == ""


def test_nv_embed_s_second_stage_has_only_hard_negatives_of_the_row(bert: str) -> None:
    module, config = built("nv_embed_second", bert), read_recipe("nv_embed_second")
    assert module.objectives["contrastive"].describe_negatives(128, 1, 7).startswith("7 per anchor: 7 hard neg")
    encoder = config["model"]["encoder"]["init_args"]
    assert encoder["attention"] == "bidirectional"
    assert encoder["adapters"]["init_args"] == {"rank": 16, "alpha": 32.0, "dropout": 0.1}
    assert config["model"]["prompts"]["pooled"] is False


def test_nli_triples_take_the_place_of_given_triples(tmp_path: Path, bert: str) -> None:
    rows = [(text, tiny.TEXTS[i + 8], "entailment") for i, text in enumerate(tiny.TEXTS[:16])]
    rows += [(text, tiny.TEXTS[i + 16], "contradiction") for i, text in enumerate(tiny.TEXTS[:16])]
    file = tiny.write_texts(tmp_path / "nli.tsv", ("premise\thypothesis\tlabel", *map("\t".join, rows)))
    module = built("simcse/sup", bert)
    data = TextDataModule.from_recipe("simcse/sup", train=file, pairing=NLITriples(), batch_size=8, num_workers=0)
    data.set_module(module)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert [slot.role for slot in batch.slots] == ["anchor", "positive", "negative"]
    assert module.step_losses(batch)["contrastive"].isfinite()
