"""Recipes, files and options over each other."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml

from contrastive_text.cli import run
from contrastive_text.cli.configuration import merge_options
from contrastive_text.cli.words import expand_recipes
from contrastive_text.recipes import BASE, recipe_file, recipe_names, recipe_texts
from contrastive_text.recipes.layers import read_config, read_layers, read_recipe


def test_a_file_lies_over_the_recipe_that_it_names(tmp_path: Path) -> None:
    own = [read_config(recipe_file(name)) for name in ("simcse", "simcse/sup", "simcse/sup_bert_base")]
    assert [layer.pop("recipe", None) for layer in own] == [None, None, "simcse/sup"]
    assert read_layers(recipe_file("simcse/sup_bert_base")) == own
    (tmp_path / "mine.yaml").write_text("recipe: simcse/sup\ndata: {batch_size: 8}\n")
    assert read_layers(tmp_path / "mine.yaml") == [*own[:2], {"data": {"batch_size": 8}}]
    (tmp_path / "mine.yaml").write_text("recipe: simsce\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: recipe: expected .*, got 'simsce'; did you mean simcse"):
        read_layers(tmp_path / "mine.yaml")


def test_the_base_is_no_recipe_and_keeps_lightning_from_repeating_rows() -> None:
    assert "base" not in recipe_names()
    base = yaml.safe_load(BASE.read_text())
    assert base["trainer"]["use_distributed_sampler"] is False
    with pytest.raises(ValueError, match=r"expected one of .*, got 'base'"):
        recipe_file("base")


def test_parts_of_another_class_and_lists_inherit_nothing_of_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model:\n  views:\n    anchor: [ReorderSpans]\n    original: [MaskTokens]\n"
        "  objectives:\n    contrastive:\n      class_path: Contrastive\n"
        "      init_args: {loss: InfoNCE}\n    mlm: MaskedLM\n"
    )
    words = ["--config", str(tmp_path / "mine.yaml"), "--model.schedule", "ConstantSchedule"]
    with pytest.raises(SystemExit):
        run(["fit", "--model.views.original", "[CropTokens]", "--recipe", "clear", *words, "--print_config"])
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    assert set(model["views"]) == {"anchor", "original"}
    (reorder,), (crop,) = model["views"].values()
    assert (reorder["init_args"]["rate"], crop["init_args"]["rate"]) == (0.05, 0.1)  # DeleteTokens had 0.7
    loss = model["objectives"]["contrastive"]["init_args"]["loss"]["init_args"]
    assert (float(loss["temperature"]), model["schedule"]["init_args"]["warmup_steps"]) == (0.05, 0)
    assert float(model["optimizer"]["init_args"]["lr"]) == 6e-4  # clear.yaml's


@pytest.mark.parametrize(
    ("option", "place", "expected"),
    [
        (["--model.views", '{"anchor": ["CropTokens"]}'], "views", {"anchor": ["CropTokens"]}),
        (["--model.schedule", "ConstantSchedule"], "schedule", {"class_path": "ConstantSchedule"}),
        (["--model.schedule=ConstantSchedule"], "schedule", {"class_path": "ConstantSchedule"}),
        (["--model.optimizer", "AdamW"], "optimizer", read_recipe("clear")["model"]["optimizer"]),
    ],
)
def test_an_option_of_another_class_inherits_nothing(option: list[str], place: str, expected: object) -> None:
    config, left = merge_options({}, expand_recipes([*option, "--recipe", "clear"]))
    assert config["model"][place] == expected
    assert not left


@pytest.mark.slow
def test_a_recipe_resolves_to_what_it_held_before_it_was_renamed_or_regrouped() -> None:
    resolved, renamed = (
        json.loads(Path(__file__).with_name(name).read_text()) for name in ("resolved.json", "renamed.json")
    )
    names = {old: renamed.get(old, old) for old in resolved}
    assert sorted(names.values()) == recipe_names()
    for old, name in names.items():
        assert hashlib.sha256(json.dumps(read_recipe(name)).encode()).hexdigest() == resolved[old], name


@pytest.mark.slow
def test_the_names_are_those_of_the_files_and_of_their_variants() -> None:
    files = {path.stem: yaml.safe_load(path.read_text()) for path in BASE.parent.glob("*.yaml") if path != BASE}
    variants = {f"{method}/{name}" for method, file in files.items() for name in file.get("variants", {})}
    assert {*files, *variants} == {*recipe_names()}
    for name, text in recipe_texts().items():
        method = name.partition("/")[0]
        assert {"recipe": method, **read_config(recipe_file(name))} == {"recipe": method, **yaml.safe_load(text)}


def test_a_file_of_one_s_own_has_variants_too(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "recipe: dcl\ndata: {batch_size: 8}\n"
        "variants: {long: {trainer: {max_epochs: 9}}, other: {recipe: simcse/sup, data: {batch_size: 4}}}\n"
    )
    assert read_recipe(mine) == {**read_recipe("dcl"), "data": {"batch_size": 8}}
    assert read_recipe(mine / "long")["trainer"]["max_epochs"] == 9
    assert {**read_recipe(mine / "long"), "trainer": 0} == {**read_recipe(mine), "trainer": 0}
    assert read_recipe(mine / "other")["data"] == {"task": {"pairing": "Given"}, "batch_size": 4}
    with pytest.raises(ValueError, match=r"mine\.yaml: expected a variant .long, other., got 'short'"):
        read_recipe(mine / "short")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clear/dell", r"expected the recipe clear or a variant .clear/del_span, .*, got 'clear/dell'"),
        ("gist/large", r"expected the recipe gist or a variant \(no variant\), got 'gist/large'"),
        ("simcse_sup", "did you mean simcse/sup"),
    ],
)
def test_an_unknown_variant_is_told_the_known_ones(
    name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=expected):
        recipe_file(name)
    assert run(["recipes", name]) == 2
    assert re.search(expected, " ".join(capsys.readouterr().err.split()))
