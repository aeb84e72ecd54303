"""Training starts from an embedding model's own parts; a method's pooler and options of the user win."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from torch import nn

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.cli import run
from contrastive_text.cli.configuration import configured
from contrastive_text.cli.words import expand_recipes
from contrastive_text.data.prompts import Prompts
from contrastive_text.poolers import MeanPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run import Run

Build = Callable[[SimpleNamespace, str], Any]
PROMPTS = {"query": "an old ", "document": "the small ", "clustering": "one "}
QUIET: dict[str, Any] = {
    "accelerator": "cpu", "batch_size": 8, "num_workers": 0, "enable_progress_bar": False, "max_steps": 2,
}  # fmt: skip


def shell(files: dict[str, str], *options: str) -> list[str]:
    """Returns the words of a run that trains one step at a rate that moves nothing."""
    return [
        *("fit", "--recipe", "simcse", "--train", files["texts"], "--batch_size", "8", "--lr", "1e-30"),
        *("--data.num_workers", "0", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        *("--trainer.max_steps", "1", "--trainer.default_root_dir", files["runs"], *options),
    ]


@pytest.fixture
def files(tmp_path: Path, texts: str) -> dict[str, str]:
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    return {"texts": texts, "pairs": pairs, "runs": str(tmp_path / "runs")}


@pytest.fixture(scope="module")
def labse(bert: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a layer after the mean, unit length, a short limit, prompts and fewer features in use."""
    folder = tmp_path_factory.mktemp("labse") / "model"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = nn.Sequential(nn.Linear(16, 12), nn.Tanh())
    prompts, encoder = Prompts(PROMPTS), TransformerEncoder(bert)
    SentenceEncoder(encoder, MeanPooler(), head, True, 9, prompts, truncate_dim=8).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_a_model_whose_rate_moves_nothing_is_exported_as_it_was(
    labse: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, start = tmp_path / "out", SentenceEncoder.from_pretrained(labse)
    run(shell(files, "--encoder", labse, "--export.dirpath", str(out), "--validation", files["pairs"]))
    said = capsys.readouterr().out
    assert "before the first step: val/spearman" in said
    fact = facts(files)["start"].splitlines()
    assert fact[1].startswith("taken from it: MeanPooler, Linear(12) Tanh UnitLength FirstFeatures(8), prompts ")
    assert fact[1].endswith(", cosine, 9 tokens")
    assert len(fact) == 2  # nothing is replaced, and the recipe's 32 tokens are more
    ours = SentenceEncoder.from_pretrained(out)
    for encode in ("encode", "encode_query", "encode_document"):
        assert np.array_equal(getattr(ours, encode)(tiny.TEXTS), getattr(start, encode)(tiny.TEXTS))
    assert (ours.max_length, ours.normalize, ours.truncate_dim) == (9, True, 8)
    assert ours.prompts == start.prompts
    assert settings(out) == settings(Path(labse))


def facts(files: dict[str, str]) -> dict[str, str]:
    (checkpoint,) = Path(files["runs"]).glob("*/checkpoints/step*.ckpt")
    said: dict[str, str] = torch.load(checkpoint, weights_only=True)["callbacks"]["RunSummary"]
    return said


def settings(folder: Path) -> list[Any]:
    """Returns what a folder says of its model, beside the weights."""
    own = ("config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")
    names = ("modules.json", *own)
    return [json.loads((folder / name).read_text(encoding="utf-8")) for name in names]


@pytest.mark.parametrize(
    ("recipe", "model", "config", "pooler", "head"),
    rest_slow(
        [
            ("simcse", "labse", {}, "MeanPooler", True),
            ("promptbert", "labse", {}, "MaskTokenPooler", False),
            ("tsdae", "labse", {}, "CLSPooler", False),
            ("simcse", "labse", {"model.pooler": "CLSPooler"}, "CLSPooler", False),
            ("simcse", "bert", {}, "CLSPooler", False),
        ]
    ),
)
def test_an_option_comes_before_a_method_and_a_method_before_the_folder(
    labse: str, bert: str, recipe: str, model: str, config: dict[str, Any], pooler: str, head: bool
) -> None:
    words = [f"--{name}={value}" for name, value in config.items()]
    words = expand_recipes(["--recipe", recipe, *words, f"--model.encoder.model_name_or_path={locals()[model]}"])
    _, parsed = configured("views", words)
    made = parsed["model"]
    assert made["pooler"]["class_path"].endswith(f".{pooler}")
    assert (made["head"] is not None and "Linear" in str(made["head"])) is head
    assert made["inference"]["pooler"] is None or recipe == "promptbert"
    assert made["inference"]["max_length"] == (9 if model == "labse" else None)
    module = Run.from_recipe(recipe, locals()[model], config, **QUIET).module
    assert type(module.pooler).__name__ == pooler
    assert len(getattr(module.head, "stack", [])) == (4 if head else "UnitLength" in str(made["head"]))


@pytest.mark.slow
def test_a_checkpoint_has_the_parts_of_a_folder_that_was_changed_since(
    labse: str, files: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(labse, model)
    started = ContrastiveModule.from_recipe("simcse", str(model)).sentence_encoder().eval()
    run(shell(files, "--encoder", str(model)))
    tiny.by_hand(model)
    pooling = json.loads((model / "1_Pooling/config.json").read_text(encoding="utf-8"))
    changed = {name: value and name == "word_embedding_dimension" and value for name, value in pooling.items()}
    (model / "1_Pooling/config.json").write_text(json.dumps(changed | {"pooling_mode_max_tokens": True}))
    (checkpoint,) = Path(files["runs"]).glob("*/checkpoints/step*.ckpt")
    run(["export", str(checkpoint), str(tmp_path / "again")])
    again = SentenceEncoder.from_pretrained(tmp_path / "again")
    assert np.array_equal(again.encode(tiny.TEXTS), started.encode(tiny.TEXTS))
    run(shell(files, "--encoder", str(model), "--ckpt_path", str(checkpoint), "--trainer.max_steps", "2"))
    resumed = SentenceEncoder.from_pretrained(Path(files["runs"], "version_1", "model"))
    assert np.array_equal(resumed.encode(tiny.TEXTS), started.encode(tiny.TEXTS))


@pytest.mark.slow
def test_a_second_stage_starts_from_the_parts_of_a_saved_model(
    labse: str, bert: str, files: dict[str, str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    run(shell(files, "--encoder", bert, "--init_from", labse, "--export.dirpath", out))
    ours, start = SentenceEncoder.from_pretrained(out), SentenceEncoder.from_pretrained(labse)
    assert np.array_equal(ours.encode_query(tiny.TEXTS), start.encode_query(tiny.TEXTS))
    assert settings(Path(out)) == settings(Path(labse))
    assert facts(files)["start"].startswith(f"{labse}, an embedding model\ntaken from it: MeanPooler, Linear(12)")


@pytest.fixture(scope="module")
def theirs() -> SimpleNamespace:
    """sentence-transformers' names, where versions 5 and 6 have them."""
    pytest.importorskip("sentence_transformers", reason="the comparison needs sentence-transformers (dev extra)")
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer import modules
    except ImportError:
        from sentence_transformers import models as modules
    return SimpleNamespace(SentenceTransformer=SentenceTransformer, **vars(modules))


def _dense(theirs: SimpleNamespace, bert: str) -> Any:
    dense = theirs.Dense(16, 16, activation_function=nn.Tanh())
    parts = [theirs.Transformer(bert, max_seq_length=9), theirs.Pooling(16, "cls"), dense]
    return theirs.SentenceTransformer(modules=parts, device="cpu", similarity_fn_name="dot")


def _gemma(theirs: SimpleNamespace, bert: str) -> Any:
    dense = [theirs.Dense(*size, bias=False, activation_function=nn.Identity()) for size in ((16, 48), (48, 16))]
    parts = [theirs.Transformer(bert), theirs.Pooling(16, "mean"), *dense, theirs.Normalize()]
    prompts = {"query": "an old ", "document": "the small ", "STS": "one "}
    return theirs.SentenceTransformer(modules=parts, device="cpu", prompts=prompts)


def _narrow(theirs: SimpleNamespace, bert: str) -> Any:
    parts = [theirs.Transformer(bert), theirs.Pooling(16, "max"), theirs.Normalize()]
    options = {"prompts": {"query": "an old ", "document": "the small "}, "default_prompt_name": "query"}
    return theirs.SentenceTransformer(modules=parts, device="cpu", truncate_dim=6, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:contrastive. the space has collapsed")  # random weights, two steps
@pytest.mark.parametrize(("build", "place"), [(_dense, ""), (_gemma, "0_Transformer"), (_narrow, "")])
def test_a_folder_of_sentence_transformers_is_trained_and_exported_with_all_its_parts(
    build: Build, place: str, theirs: SimpleNamespace, bert: str, files: dict[str, str], tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    build(theirs, bert).save(str(model))
    if place:
        _move_network(model, place)
    start = theirs.SentenceTransformer(str(model), device="cpu")
    options = {"train": files["texts"], "default_root_dir": files["runs"]}
    config = {"export.dirpath": str(out), "model.optimizer.lr": 0.001}
    fit = Run.from_recipe("simcse", str(model), config, **options, **QUIET)
    ours = fit.module.sentence_encoder().eval()
    for encode in ("encode", "encode_query", "encode_document"):
        given, expected = (getattr(deepcopy(one).double(), encode)(list(tiny.TEXTS)) for one in (ours, start))
        assert np.abs(given - expected).max() <= 1e-12  # float64: sums in another order
    fit.module.train()
    fit.fit()
    trained, saved = theirs.SentenceTransformer(str(out), device="cpu"), SentenceEncoder.from_pretrained(out)
    found = [deepcopy(one).double().encode(list(tiny.TEXTS)) for one in (trained, saved)]
    assert np.abs(found[0] - found[1]).max() <= 1e-12
    assert [type(part).__name__ for part in trained] == [type(part).__name__ for part in start]
    for name in ("similarity_fn_name", "prompts", "default_prompt_name", "truncate_dim", "max_seq_length"):
        assert getattr(trained, name) == getattr(start, name), name
    for before, after in zip(start, trained, strict=True):
        pairs = zip(before.parameters(), after.parameters(), strict=True)
        moved = [not torch.equal(one, other) for one, other in pairs]
        assert any(moved) or not moved


def _move_network(model: Path, place: str) -> None:
    """Moves the network's files into a folder inside the model's, as sentence-transformers once saved them."""
    others = ("modules.json", "config_sentence_transformers.json", "README.md", place)
    (model / place).mkdir()
    for file in model.iterdir():
        if file.is_file() and file.name not in others:
            shutil.move(file, model / place / file.name)
    modules = json.loads((model / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = place
    (model / "modules.json").write_text(json.dumps(modules), encoding="utf-8")


@pytest.mark.slow
def test_lower_casing_of_a_folder_is_that_of_training(
    theirs: SimpleNamespace, bert: str, tmp_path: Path, texts: str
) -> None:
    cased = tmp_path / "cased"
    shutil.copytree(bert, cased)
    tokenizer = json.loads((cased / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"] = None
    (cased / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    parts = [theirs.Transformer(str(cased), do_lower_case=True), theirs.Pooling(16, "mean")]
    model = theirs.SentenceTransformer(modules=parts, device="cpu")
    model.save(str(tmp_path / "model"))
    module = Run.from_recipe("simcse", str(tmp_path / "model"), train=texts, **QUIET).module
    loud = [text.upper() for text in tiny.TEXTS]
    assert np.abs(module.sentence_encoder().eval().encode(loud) - model.encode(loud)).max() <= 1e-6
