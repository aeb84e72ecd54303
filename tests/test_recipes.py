"""Every shipped recipe and every example file runs two steps with a tiny encoder laid over it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import wordnet_files
import yaml
from covering import rest_slow
from jsonargparse import ArgumentParser
from recipe_options import INFERENCE, own_options
from torch import Tensor, nn

from contrastive_text.cli import run
from contrastive_text.core.specs import describe
from contrastive_text.core.types import NO_LABEL, Encoded, Slot
from contrastive_text.data import Collator, KeyedRow
from contrastive_text.data.mixture import Mixture
from contrastive_text.data.steps import TaskSize
from contrastive_text.data.token_rows import collate_texts
from contrastive_text.heads import TanhHead
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import CosineMSE, ListMLE, ListNet, NTXent, RankLoss
from contrastive_text.objectives import BilinearScorer
from contrastive_text.pairings import SameText
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.recipes import BASE, recipe_file, recipe_names
from contrastive_text.recipes.layers import read_config, read_layers, read_recipe
from contrastive_text.training import ConstantSchedule
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens

EXAMPLES = Path(__file__).parents[1] / "examples"
NLI_CLASSES = ["contradiction", "entailment", "neutral"]


def two_steps(folder: Path) -> list[str]:
    """Returns options that make a run two steps long, with validation."""
    return [
        "--data.validation", tiny.write_pairs(folder / "pairs.tsv"), "--data.batch_size", "8",
        "--data.num_workers", "0", "--trainer.max_steps", "2", "--trainer.val_check_interval", "2",
        "--trainer.accelerator", "cpu", "--trainer.log_every_n_steps", "1",
        "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those options, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return two_steps(tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=512)


@pytest.fixture(scope="module")
def trained(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """From a recipe's name to the folder in which it ran two steps, once for all that look at it."""

    @cache
    def folder_of(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "path", [*sys.path])
            if "subs" in name:
                patch.setenv("NLTK_DATA", wordnet_files.write_wordnet(folder / "nltk_data"))
            words = ["--model.encoder.model_name_or_path", bert, *two_steps(folder), *own_options(name, folder)]
            assert run(["fit", "--recipe", name, *words]) == 0
        return folder

    return folder_of


@pytest.fixture(scope="module")
def built(bert: str) -> Callable[[str], ContrastiveModule]:
    """From a recipe's name to its module around the tiny encoder, one for all that only read it."""
    return cache(lambda name: ContrastiveModule.from_recipe(name, bert))


@pytest.fixture
def words(tmp_path: Path, steps: list[str]) -> list[str]:
    """The same, with texts to train on."""
    return ["--data.train", tiny.write_texts(tmp_path / "texts.txt"), *steps]


def finished(folder: Path) -> ContrastiveModule:
    """The module of the one checkpoint that a run left, after two steps with a score."""
    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["global_step"] == 2
    metrics = next(folder.rglob("metrics.csv")).read_text()
    assert "val/spearman" in metrics.splitlines()[0]
    module = ContrastiveModule.load_from_checkpoint(checkpoint)
    vectors = SentenceEncoder.from_pretrained(checkpoint.parents[1] / "model").encode(tiny.TEXTS)
    assert len({tuple(vector) for vector in vectors.round(4).tolist()}) == len(tiny.TEXTS)
    return module


METHODS = ["clear", "consert", "consert_joint_base", "cs224n", "declutr", "simcse"]
"""Recipes with parts of their own; the others give other values to the same parts, or have fewer of them.

Supervised SimCSE runs on triples made of NLI below, and ConSERT's joint one has Sentence-BERT's objective.
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in METHODS else pytest.mark.slow) for name in recipe_names()]
)
def test_a_recipe_runs_two_steps_with_a_tiny_encoder(
    name: str,
    trained: Callable[[str], Path],
    built: Callable[[str], ContrastiveModule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = trained(name)
    if "subs" in name:
        monkeypatch.setenv("NLTK_DATA", str(folder / "nltk_data"))
    module = finished(folder)
    header = next(folder.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    config = yaml.safe_load(next(folder.rglob("config.yaml")).read_text())
    predicting = [task for task in (config["data"].get("tasks") or {}).values() if task["validation"]]
    assert ("val/overall" in header) == bool(predicting)
    if name.startswith("diffcse"):  # its generator is a tiny one, too
        named = module.hparams["objectives"]["replaced"]["init_args"]
        named["generator"] = read_recipe(name)["model"]["objectives"]["replaced"]["init_args"]["generator"]
    assert module.hparams == built(name).hparams  # from the shell and from Python
    assert class_paths(config["model"]) <= class_paths(module.hparams)  # one spelling in both files
    if name == "cs224n":  # the multi-task system is chosen by the mean of its scores
        assert {"val/sentiment/accuracy", "val/paraphrase/accuracy", "val/similarity/pearson"} <= {*header}
        saved = torch.load(next(folder.rglob("*.ckpt")), weights_only=True)["callbacks"]
        assert "val/overall" in {state.get("monitor") for state in saved.values()}


def class_paths(plain: Any) -> set[str]:  # Any: what YAML can hold
    """Every class path in plain data."""
    if isinstance(plain, dict):
        own = {plain["class_path"]} if "class_path" in plain else set()
        return own.union(*map(class_paths, plain.values()))
    return set().union(*map(class_paths, plain)) if isinstance(plain, list) else set()


def test_a_file_lies_over_the_recipe_that_it_names(tmp_path: Path) -> None:
    own = [read_config(recipe_file(name)) for name in ("simcse", "simcse_sup", "simcse_sup_bert_base")]
    assert [layer.pop("recipe", None) for layer in own] == [None, "simcse", "simcse_sup"]
    assert read_layers(recipe_file("simcse_sup_bert_base")) == own
    (tmp_path / "mine.yaml").write_text("recipe: simcse_sup\ndata: {batch_size: 8}\n")
    assert read_layers(tmp_path / "mine.yaml") == [*own[:2], {"data": {"batch_size": 8}}]
    (tmp_path / "mine.yaml").write_text("recipe: simsce\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: recipe: expected .*, got 'simsce'; did you mean simcse"):
        read_layers(tmp_path / "mine.yaml")


def test_the_minilm_example_lays_itself_over_the_recipe(words: list[str], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    chosen = ["--recipe", "simcse", "--config", str(EXAMPLES / "minilm.yaml")]
    assert run(["fit", *chosen, "--model.encoder.model_name_or_path", bert, *words]) == 0
    module = finished(tmp_path)
    objective = module.objectives["contrastive"]
    assert isinstance(module.pooler, MeanPooler)
    assert isinstance(objective.loss, NTXent)
    assert objective.head is None
    assert module.encoder.max_length == 32  # the recipe's
    assert module.optimizer.lr == 1e-4


def test_the_example_from_nothing_learns_its_vocabulary_from_the_text(words: list[str], tmp_path: Path) -> None:
    chosen = ["--recipe", "simcse", "--config", str(EXAMPLES / "from_scratch.yaml")]
    small = ["--model.encoder.config.hidden_size", "16", "--model.encoder.config.intermediate_size", "32"]
    assert run(["fit", *chosen, *small, *words]) == 0
    module = finished(tmp_path)
    assert module.encoder.features == 16
    assert module.objectives["contrastive"].head is None
    assert module.encoder.tokenizer is not None
    assert module.encoder.tokenizer.tokenize("the old bird") == ["the", "old", "bird"]
    assert [type(view) for role in ("anchor", "positive") for view in module.plan.chains[role]] == [
        DeleteTokens
    ] * 2


@pytest.mark.parametrize("name", recipe_names())
def test_the_head_of_a_recipe_says_how_true_it_is_and_what_to_expect(name: str) -> None:
    text = recipe_file(name).read_text()
    head = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"fidelity: (paper|code|corrected)\b", head)
    assert re.search(r"[Nn]ot reproduced here|benchmarks/results|Out of reach", head)
    assert "expect:" in head
    assert "http" in head  # where the method comes from
    assert yaml.safe_load(text).keys() <= {"recipe", "model", "trainer", "data", "seed_everything"}


def test_two_masked_copies_weigh_as_the_sum_of_two_losses(built: Callable[[str], ContrastiveModule]) -> None:
    module, logits = built("clear_mlm_double_mask"), nn.Linear(4, 9)
    assert read_recipe("clear_mlm_double_mask")["data"]["originals"] == 2
    hidden, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6)

    def loss(copies: slice) -> float:
        read = Encoded(
            hidden[:2], (Slot("anchor", 0),), torch.arange(2), None, hidden[copies], labels[copies], logits
        )
        return float(module.objective_parts()["mlm"](read).loss().detach())

    both = module.weights["mlm"] * loss(slice(6))
    assert both == pytest.approx(loss(slice(3)) + loss(slice(3, 6)), rel=1e-6)


def test_the_base_is_no_recipe_and_keeps_lightning_from_repeating_rows() -> None:
    assert "base" not in recipe_names()
    base = yaml.safe_load(BASE.read_text())
    assert base["trainer"]["use_distributed_sampler"] is False
    with pytest.raises(ValueError, match=r"expected one of .*, got 'base'"):
        recipe_file("base")


# What recipes promise, by the numbers of the specification


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
    return int(collate_texts(tokenizer, tokenizer.framed([text])).lengths.max())


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
    plain = collate_texts(tokenizer, tokenizer.framed(tiny.TEXTS[:8]))
    first = module.encoder(plain).layers[-1][:, 0]
    # [CLS], which g would have changed. float32: another layout, of which some matrices have other shapes.
    torch.testing.assert_close(module(plain), first, rtol=0, atol=1e-5)
    assert isinstance(module.sentence_encoder().pooler, CLSPooler) and module.sentence_encoder().head is None


@pytest.mark.parametrize(
    ("name", "rate", "batch"),
    [
        ("bert_base", 3e-5, 64),
        ("bert_large", 1e-5, 64),
        ("roberta_base", 1e-5, 512),
        ("roberta_large", 3e-5, 512),
    ],
)
def test_unsupervised_simcse_has_the_settings_of_its_readme(name: str, rate: float, batch: int) -> None:
    config = read_recipe(f"simcse_unsup_{name}")
    encoder = name.replace("_", "-") + ("-uncased" if name.startswith("bert") else "")
    assert config["model"]["encoder"]["init_args"] == {"model_name_or_path": encoder, "max_length": 32}
    assert (config["model"]["optimizer"]["init_args"]["lr"], config["data"]["batch_size"]) == (rate, batch)


@pytest.mark.parametrize(
    ("name", "rate", "queue", "dropout", "repeated"),
    [
        ("bert_base", 3e-5, 160, None, 0.32),
        ("bert_large", 1e-5, 160, None, 0.32),
        ("roberta_base", 1e-5, 160, None, 0.30),
        ("roberta_large", 1e-5, 128, 0.15, 0.28),
    ],
)
def test_esimcse_has_the_settings_of_its_script_and_is_simcse_else(
    name: str, rate: float, queue: int, dropout: float | None, repeated: float
) -> None:
    own, simcse = read_recipe(f"esimcse_{name}"), read_recipe("simcse")
    model, objective = own["model"], own["model"]["objectives"]["contrastive"]["init_args"]
    assert model.pop("views") == {"positive": [{"class_path": "RepeatTokens", "init_args": {"rate": repeated}}]}
    keys = {"decay": 0.995, "of": "anchor", "views": False, "dropout": False, "head": "trained"}
    assert (objective.pop("queue"), objective.pop("keys")["init_args"]) == (queue, keys)
    encoder = name.replace("_", "-") + ("-uncased" if name.startswith("bert") else "")
    assert model["encoder"]["init_args"].pop("dropout", None) == dropout
    assert model["encoder"]["init_args"].pop("model_name_or_path") == encoder
    assert model["optimizer"]["init_args"].pop("lr") == rate
    del (
        simcse["model"]["encoder"]["init_args"]["model_name_or_path"],
        simcse["model"]["optimizer"]["init_args"]["lr"],
    )
    assert own == simcse


def test_moco_is_simcse_with_the_settings_of_moco() -> None:
    own, simcse = read_recipe("moco"), read_recipe("simcse")
    objective = own["model"]["objectives"]["contrastive"]["init_args"]
    keys = {"decay": 0.999, "of": "positive"}
    assert (objective.pop("queue"), objective.pop("in_batch"), objective.pop("keys")["init_args"]) == (
        65536, False, keys,
    )  # fmt: skip
    assert objective["loss"]["init_args"].pop("temperature") == 0.07
    del simcse["model"]["objectives"]["contrastive"]["init_args"]["loss"]["init_args"]["temperature"]
    assert own == simcse


def test_dcl_is_simcse_but_for_the_loss() -> None:
    own, simcse = read_recipe("dcl"), read_recipe("simcse")
    assert own["model"]["objectives"]["contrastive"]["init_args"].pop("loss") == {
        "class_path": "DCL",
        "init_args": {"temperature": 0.1},
    }
    del simcse["model"]["objectives"]["contrastive"]["init_args"]["loss"]
    assert own == simcse


@pytest.mark.parametrize(
    ("name", "loss"),
    [("rankcse_listnet", ListNet(0.05, guide_temperature=0.025)), ("rankcse_listmle", ListMLE(0.05))],
)
def test_rankcse_has_the_settings_of_its_readme_and_one_head(name: str, loss: RankLoss, bert: str) -> None:
    module, config = ContrastiveModule.from_recipe(name, bert), read_recipe(name)
    contrastive, consistency, ranking = module.objective_parts().values()
    assert describe(ranking.loss) == describe(loss)
    assert (ranking.guides, ranking.weights) == (("diffcse_base", "simcse_large"), [0.33, 0.67])
    assert ranking.guides == tuple(config["model"]["guides"])
    assert contrastive.loss.temperature == consistency.temperature == 0.05
    assert module.weights == {"contrastive": 1.0, "consistency": 1.0, "ranking": 1.0}
    assert (module.optimizer.lr, config["data"]["batch_size"], module.encoder.max_length) == (3e-5, 128, 32)
    first, *others = (part.head.network[0] for part in (contrastive, consistency, ranking))
    assert all(other is first for other in others)


@pytest.mark.parametrize(
    ("name", "encoder", "rate"),
    [
        ("simcse_sup_bert_base", "bert-base-uncased", 5e-5),
        ("simcse_sup_bert_large", "bert-large-uncased", 1e-5),
        ("simcse_sup_roberta_base", "roberta-base", 5e-5),
        ("simcse_sup_roberta_large", "roberta-large", 1e-5),
    ],
)
def test_supervised_simcse_has_the_settings_of_its_readme(
    name: str, encoder: str, rate: float, built: Callable[[str], ContrastiveModule]
) -> None:
    config = read_recipe(name)
    assert config["model"]["encoder"]["init_args"] == {"model_name_or_path": encoder, "max_length": 32}
    assert config["data"] == {"batch_size": 512, "pairing": "Given"}
    assert config["trainer"]["max_epochs"] == 3
    module = built(name)
    assert (module.optimizer.lr, module.optimizer.weight_decay) == (rate, 0.0)
    loss = module.objectives["contrastive"].loss
    assert (loss.temperature, loss.hard_negative_log_weight) == (0.05, 0.0)


def test_s8_supervised_simcse_keeps_its_head_for_use_and_unsupervised_does_not(bert: str) -> None:
    kept, thrown_away = (ContrastiveModule.from_recipe(name, bert).eval() for name in ("simcse_sup", "simcse"))
    assert isinstance(kept.head, TanhHead) and not kept.head.train_only
    assert kept.objectives["contrastive"].head is None
    tokenizer = kept.text_tokenizer()
    assert tokenizer is not None
    batch = collate_texts(tokenizer, tokenizer.framed(tiny.TEXTS[:4]))
    (linear, _), first = kept.head.network, kept.encoder(batch).layers[-1][:, 0]
    assert torch.allclose(kept(batch), (first @ linear.weight.T + linear.bias).tanh(), atol=1e-6)
    assert thrown_away.head is None and thrown_away.sentence_encoder().head is None
    assert kept.sentence_encoder().head is kept.head.network


def test_sbert_reads_the_paper_s_features_of_the_last_layer_s_mean(
    built: Callable[[str], ContrastiveModule],
) -> None:
    module = built("sbert_nli")
    inference = module.objectives["inference"]
    assert inference.classes == NLI_CLASSES
    assert inference.scorer.linear.in_features == 3 * module.encoder.features
    assert isinstance(module.pooler, MeanPooler) and module.inference_pooler is None
    assert (module.optimizer.lr, module.schedule.warmup_ratio) == (2e-5, 0.1)
    assert read_recipe("sbert_nli")["data"]["batch_size"] == 16


@pytest.mark.parametrize("name", INFERENCE)
def test_consert_s_first_stages_have_the_settings_of_their_scripts(
    name: str, built: Callable[[str], ContrastiveModule]
) -> None:
    module, config = built(name), read_recipe(name)
    joint, paper = name.startswith("consert_joint"), name.endswith("_paper")
    assert module.weights == {"inference": 1.0} | ({"contrastive": 0.15} if joint else {})
    assert module.objectives["inference"].classes == NLI_CLASSES
    features = module.objectives["inference"].scorer.linear.in_features / module.encoder.features
    assert features == (3 if paper else 4)
    assert module.optimizer.lr == 2e-5 and not module.optimizer.bias_correction
    assert set(module.encoder.dropout_in_effect.values()) == {0.0 if paper else 0.1}
    assert module.encoder.max_length == (40 if "joint_large" in name else 64)
    assert config["trainer"]["max_epochs"] == 1 and config["trainer"]["callbacks"] == []
    assert config["data"]["batch_size"] == 96
    if not joint:
        assert not module.plan.chains
        return
    contrastive = module.objectives["contrastive"]
    assert (contrastive.between, contrastive.loss.temperature, contrastive.loss.reduction) == (
        "views", 0.1, "mean" if paper else "two_sided",
    )  # fmt: skip
    altered = {slot: module.plan.chain_name(slot) for slot in map(Slot, ("anchor", "positive") * 2, (0, 0, 1, 1))}
    assert [name for name in altered.values() if name] == ["anchor_2", "positive_2"]
    assert [describe(view) for _, view in module.plan.views_with_places()] == [
        f"TokenCutoff(rate={0.15 if paper else 0.1}, specials=True)"
    ] * 2
    assert module.objectives["inference"].view == 1  # unaltered


@pytest.mark.parametrize(
    ("name", "view", "epochs", "length"),
    [
        ("consert_sup_unsup_base", "FeatureCutoff(rate=0.1)", 25, 64),
        ("consert_sup_unsup_large", "FeatureCutoff(rate=0.1)", 10, 64),
        ("consert_joint_unsup_base", "ShufflePositions(specials=True)", 25, 64),
        ("consert_joint_unsup_large", "ShufflePositions(specials=True)", 10, 40),
    ],
)
def test_consert_s_second_stages_alter_one_of_two_views_of_single_texts(
    name: str, view: str, epochs: int, length: int, built: Callable[[str], ContrastiveModule]
) -> None:
    module, config = built(name), read_recipe(name)
    assert [(place, describe(part)) for place, part in module.plan.views_with_places()] == [
        ("views.positive[0]", view)
    ]
    assert module.objectives["contrastive"].between == "texts"
    assert module.weights == {"contrastive": 0.15}
    assert (module.optimizer.lr, module.encoder.max_length) == (5e-7, length)
    assert set(module.encoder.dropout_in_effect.values()) == {0.1}
    assert config["trainer"]["max_epochs"] == epochs
    assert config["trainer"]["callbacks"][0]["init_args"]["patience"] == 10
    assert "pairing" not in config["data"]


MULTI_TASK = [
    name
    for name in recipe_names()
    if name.startswith("cs224n") and not re.search("pretrain|fusion|vanilla|no_heads", name)
]


def first_and_second_layers(module: ContrastiveModule) -> dict[str, tuple[Tensor, Tensor]]:
    """The weights of each task's head."""
    return {
        name: tuple(layer.weight for layer in part.head.network if isinstance(layer, nn.Linear))
        for name, part in module.objectives.items()
        if part.head is not None
    }


@pytest.mark.parametrize("name", MULTI_TASK)
def test_m8_heads_share_what_the_recipe_says(name: str, built: Callable[[str], ContrastiveModule]) -> None:
    heads = first_and_second_layers(built(name))
    expected = {"cs224n_separate_heads": [False, False], "cs224n_shared_head": [True, True]}
    pairs = zip(heads["paraphrase"], heads["similarity"], strict=True)
    assert [one is other for one, other in pairs] == expected.get(name, [True, False])
    others = {*heads["paraphrase"], *heads["similarity"]}
    assert not others & {*heads["sentiment"]}


@pytest.mark.parametrize("name", MULTI_TASK)
def test_a_multi_task_recipe_has_the_report_s_heads_and_losses(
    name: str, built: Callable[[str], ContrastiveModule]
) -> None:
    module = built(name)
    sentiment, paraphrase, similarity = module.objectives.values()
    assert [part.task for part in module.objectives.values()] == ["sentiment", "paraphrase", "similarity"]
    assert sentiment.head.out_features == sentiment.classes == 5
    assert {part.head.dropout for part in module.objectives.values()} == {0.3}
    assert isinstance(paraphrase.scorer, BilinearScorer) and paraphrase.classes == 2
    assert isinstance(similarity.loss, CosineMSE) and (similarity.low, similarity.high) == (0, 5)
    combine = "PCGrad(scope='shared', reduction='sum', seed=42)" if name == "cs224n_pcgrad" else None
    assert describe(module.combine) == (combine or "WeightedSum(reduction='mean')")
    assert (module.optimizer.lr, type(module.schedule)) == (1e-5, ConstantSchedule)
    assert isinstance(module.pooler, CLSPooler)


def test_m10_m11_m13_the_steps_of_an_epoch() -> None:
    sizes = {
        "sentiment": TaskSize(8544, 16),
        "paraphrase": TaskSize(141506, 16),
        "similarity": TaskSize(6041, 16),
    }
    average, batches, epochs = (
        mixture_of(name).steps(sizes, drop_last=read_recipe(name)["data"]["drop_last"])
        for name in ("cs224n_multitask_average", "cs224n_batch_round_robin", "cs224n_epoch_round_robin")
    )
    assert len(average) == 378 == math.ceil(6041 / read_recipe("cs224n")["data"]["batch_size"])
    assert all(list(step.parts) == list(sizes) for step in average)
    assert [list(step.parts) for step in batches] == [[task] for _ in range(378) for task in sizes]
    turns = [task for task, size in sizes.items() for _ in range(math.ceil(size.rows / 16))]
    assert [list(step.parts) for step in epochs] == [[task] for task in turns]
    fusion = mixture_of("cs224n_fusion").steps({"sentiment": TaskSize(32, 16)}, drop_last=False)
    assert [step.objectives for step in fusion] == [("sentiment",), ("contrastive",)] * 2
    assert fusion[0].parts == fusion[1].parts


def mixture_of(name: str) -> Mixture:
    """A recipe's mixture."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixture", type=Mixture)
    built: Mixture = parser.instantiate(
        parser.parse_object({"mixture": read_recipe(name)["data"]["mixture"]})
    ).mixture
    return built


def test_m9_m14_pretraining_on_three_sets_signs_labelled_pairs_and_throws_its_one_head_away(
    built: Callable[[str], ContrastiveModule],
) -> None:
    module = built("cs224n_pretrain_3sets")
    parts = module.objective_parts()
    assert {part.loss.temperature for part in parts.values()} == {0.05}
    assert {name: describe(part.pair_labels) for name, part in parts.items() if part.pair_labels} == {
        "paraphrase": "SignedPairs(weight=1.0, bound=None)"
    }
    one, other, third = first_and_second_layers(module).values()
    assert all(a is b is c for a, b, c in zip(one, other, third, strict=True))
    assert module.sentence_encoder().head is None and module.optimizer.lr == 2e-5
    sizes = {name: TaskSize(32, 16) for name in read_recipe("cs224n_pretrain_3sets")["data"]["tasks"]}
    steps = mixture_of("cs224n_pretrain_3sets").steps(sizes, drop_last=False)
    assert [list(step.parts) for step in steps] == [
        [task] for task in ("paraphrase", "sentiment", "similarity") for _ in range(2)
    ]


def test_pre_training_takes_the_three_sets_in_turn_and_a_part_of_quora_s_pairs() -> None:
    tasks = read_recipe("cs224n_pretrain")["data"]["tasks"]
    sizes = {f"{name}_texts": TaskSize(32, 16) for name in ("sst", "quora", "sts")}
    assert [*tasks] == [*sizes, "paraphrase", "similarity"]
    assert [tasks[name].get("fraction") for name in sizes] == [None, 0.06, None]
    assert round(0.06 * 141506) == 8490  # the report's pairs
    steps = mixture_of("cs224n_pretrain").steps(sizes, drop_last=False)
    assert [task for step in steps for task in step.parts] == [task for task in sizes for _ in range(2)]


def test_supervised_first_keeps_the_head_of_sentiment_and_scores_all_three(
    trained: Callable[[str], Path], steps: list[str], tmp_path: Path, bert: str
) -> None:
    start, name = trained("cs224n_vanilla") / "runs" / "version_0", "cs224n_pretrain_after_sentiment"
    words = ["--model.encoder.model_name_or_path", bert, *steps, *own_options(name, tmp_path)]
    assert run(["fit", "--recipe", name, *words, "--init_from", str(start), "--keep_heads"]) == 0
    first, second = (
        ContrastiveModule.load_from_checkpoint(next(folder.rglob("*.ckpt"))) for folder in (start, tmp_path)
    )
    heads = [first_and_second_layers(each)["sentiment"] for each in (first, second)]
    assert all(torch.equal(a, b) for a, b in zip(*heads, strict=True))  # scored, not trained
    before, after = (torch.cat([p.flatten() for p in each.encoder.parameters()]) for each in (first, second))
    assert not torch.equal(before, after)
    header = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    tasks = ("sentiment/accuracy", "paraphrase/accuracy", "similarity/pearson", "overall")
    assert {f"val/{score}" for score in tasks} <= {*header}


@pytest.mark.parametrize(
    ("first", "second"),
    rest_slow([("consert_joint_base", "consert_joint_unsup_base"), ("cs224n_pretrain_3sets", "cs224n")]),
)
def test_a_second_stage_starts_from_the_first_one_s_encoder(
    first: str, second: str, steps: list[str], tmp_path: Path, bert: str, trained: Callable[[str], Path]
) -> None:
    start = trained(first) / "runs" / "version_0"
    words = ["--model.encoder.model_name_or_path", bert, *steps, *own_options(second, tmp_path)]
    assert (
        run(["fit", "--recipe", second, *words, "--model.optimizer.lr", "1e-12", "--init_from", str(start)]) == 0
    )
    saved = [start, tmp_path / "runs" / "version_0"]
    encoders = [ContrastiveModule.load_from_checkpoint(next(run.rglob("*.ckpt"))).encoder for run in saved]
    fresh = ContrastiveModule.from_recipe(second, bert).encoder
    mine, after, untrained = (torch.cat([p.flatten() for p in e.parameters()]) for e in (*encoders, fresh))
    torch.testing.assert_close(mine, after)
    assert not torch.equal(mine, untrained)


def test_nli_triples_take_the_place_of_given_triples(steps: list[str], tmp_path: Path, bert: str) -> None:
    rows = [(text, tiny.TEXTS[i + 8], "entailment") for i, text in enumerate(tiny.TEXTS[:16])]
    rows += [(text, tiny.TEXTS[i + 16], "contradiction") for i, text in enumerate(tiny.TEXTS[:16])]
    file = tiny.write_texts(tmp_path / "nli.tsv", ("premise\thypothesis\tlabel", *map("\t".join, rows)))
    words = ["--model.encoder.model_name_or_path", bert, *steps, "--data.train", file]
    assert run(["fit", "--recipe", "simcse_sup", *words, "--data.pairing", "NLITriples"]) == 0
    finished(tmp_path)


def test_a_part_of_another_class_inherits_nothing(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model:\n  encoder: {init_args: {config: null}}\n  views:\n    anchor: [ReorderSpans]\n"
        "    original: [MaskTokens]\n  objectives:\n    contrastive:\n      class_path: Contrastive\n"
        "      init_args: {loss: InfoNCE}\n    mlm: MaskedLM\n"
    )
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=512)
    words = ["--model.encoder.model_name_or_path", bert, *words]
    assert run(["fit", "--recipe", "clear", "--config", str(tmp_path / "mine.yaml"), *words]) == 0
    module = finished(tmp_path)
    assert (
        describe(module.plan.chains["anchor"][0])
        == "ReorderSpans(pairs=5, rate=0.05, unit='token', mark='[DEL]')"
    )
    assert set(module.plan.chains) == {"anchor", "original"}  # clear.yaml's DeleteTokens had rate 0.7
    contrastive = module.objective_parts()["contrastive"]
    assert describe(contrastive).startswith("Contrastive(loss=InfoNCE(temperature=0.05,")  # clear.yaml's is 0.1


def test_a_list_given_as_an_option_inherits_nothing_either(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del tmp_path
    with pytest.raises(SystemExit):
        run(["fit", "--model.views.anchor", "[ReorderSpans]", "--recipe", "clear", *words, "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    (reorder,) = config["model"]["views"]["anchor"]
    assert reorder["init_args"]["rate"] == 0.05
    assert config["model"]["views"]["positive"]  # the others stay


@pytest.mark.parametrize(
    ("recipe", "option", "place", "argument", "value"),
    [
        ("clear", ["--model.views", '{"anchor": ["CropTokens"]}'], "views.anchor.0", "rate", 0.1),
        ("clear", ["--model.schedule", "ConstantSchedule"], "schedule", "warmup_steps", 0),
        ("clear", ["--model.schedule=ConstantSchedule"], "schedule", "warmup_steps", 0),
        ("clear", ["--model.optimizer", "AdamW"], "optimizer", "lr", 6e-4),  # the same class: merged
        (
            "consert",
            ["--model.objectives.contrastive.loss", "InfoNCE"],
            "objectives.contrastive.init_args.loss",
            "temperature",
            0.05,
        ),
    ],
)
def test_an_option_of_another_class_inherits_nothing(
    recipe: str,
    option: list[str],
    place: str,
    argument: str,
    value: float,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run(["fit", *option, "--recipe", recipe, *words, "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)["model"]
    for name in place.split("."):
        config = config[int(name)] if name.isdigit() else config[name]
    assert float(config["init_args"][argument]) == value
