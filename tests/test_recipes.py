"""Every shipped recipe and every example file runs two steps with a tiny encoder laid over it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import yaml

from contrastive_text.callbacks import export
from contrastive_text.cli import run
from contrastive_text.data import Collator, KeyedRow, collate_texts
from contrastive_text.losses import NTXent
from contrastive_text.module import ContrastiveModule
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.recipes import BASE, recipe_files, recipe_names
from contrastive_text.sentence_encoder import SentenceEncoder
from contrastive_text.specs import describe
from contrastive_text.types import NO_LABEL
from contrastive_text.views import DeleteTokens, SameText

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that make a run two steps long, with validation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return [
        "--data.train", tiny.write_texts(tmp_path / "texts.txt"), "--data.validation",
        tiny.write_pairs(tmp_path / "pairs.tsv"), "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--trainer.accelerator", "cpu",
        "--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip


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


def documents(folder: Path) -> str:
    """A line of 160 tokens or more for each of twelve documents, in a file of its own kind."""
    lines = [" ".join(tiny.TEXTS[i : i + 24]) for i in range(12)]
    return tiny.write_texts(folder / "documents.txt", tuple(lines))


def own_options(name: str, folder: Path) -> list[str]:
    """What a recipe needs to run on tiny data."""
    if name.startswith("declutr"):
        short = ["--data.pairing.min_length", "4", "--data.pairing.max_length", "16", "--data.batch_size", "4"]
        return ["--data.train", documents(folder), "--data.cache_dir", str(folder / "cache"), *short]
    return ["--model.encoder.config", "null"] if name.startswith("clear") else []


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_runs_two_steps_with_a_tiny_encoder(
    name: str, words: list[str], tmp_path: Path, nltk_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "subs" in name:
        if not nltk_data.exists():
            pytest.skip(f"needs WordNet, and {nltk_data} isn't there")
        monkeypatch.setenv("NLTK_DATA", str(nltk_data))
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=512)
    words = ["--model.encoder.model_name_or_path", bert, *words, *own_options(name, tmp_path)]
    assert run(["fit", "--recipe", name, *words]) == 0
    module = finished(tmp_path)
    built = ContrastiveModule.from_recipe(name, bert)
    assert module.hparams == built.hparams  # from the shell and from Python


def test_a_recipe_lies_over_its_method_s() -> None:
    for name in recipe_names():
        files = recipe_files(name)
        assert files[-1].stem == name
        assert files[0].exists()
    assert [file.stem for file in recipe_files("declutr_base")] == ["declutr", "declutr_base"]


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
    text = recipe_files(name)[-1].read_text()
    head = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"fidelity: (paper|code|corrected)\b", head)
    assert re.search(r"[Nn]ot reproduced here|benchmarks/results|Out of reach", head)
    assert "expect:" in head
    assert "http" in head  # where the method comes from
    assert yaml.safe_load(text).keys() <= {"model", "trainer", "data", "seed_everything"}


def test_the_base_is_no_recipe_and_keeps_lightning_from_repeating_rows() -> None:
    assert "base" not in recipe_names()
    base = yaml.safe_load(BASE.read_text())
    assert base["trainer"]["use_distributed_sampler"] is False
    with pytest.raises(ValueError, match=r"expected one of .*, got 'base'"):
        recipe_files("base")


# What recipes promise, by the numbers of the specification


def test_k13_consert_has_64_tokens_and_its_authors_67(vectors: dict[str, Any], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=128)
    long = " ".join(tiny.TEXTS)
    corrected = ContrastiveModule.from_recipe("consert", bert)
    assert encoded_length(corrected, long) == 64
    config = yaml.safe_load(recipe_files("consert")[0].read_text())
    config["model"]["encoder"]["init_args"]["max_length"] = 67
    (tmp_path / "faithful.yaml").write_text(yaml.safe_dump(config))
    lengths = vectors["consert_lengths"]
    longest = encoded_length(ContrastiveModule.from_recipe(str(tmp_path / "faithful.yaml"), bert), long)
    assert longest == lengths["max_seq_length_64_total_positions"] == lengths["max_word_pieces_kept"] + 2


def encoded_length(module: ContrastiveModule, text: str) -> int:
    """Positions that a text has in training."""
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None
    return int(collate_texts(tokenizer, [text]).lengths.max())


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
    plain = collate_texts(tokenizer, tiny.TEXTS[:8])
    first = module.encoder(plain).layers[-1][:, 0]
    assert torch.equal(module(plain), first)  # [CLS]; g would have changed it
    assert isinstance(export(module).pooler, CLSPooler) and export(module).head is None


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
    assert describe(module.plan.chains["anchor"][0]) == "ReorderSpans(pairs=5, rate=0.05, unit='token')"
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
