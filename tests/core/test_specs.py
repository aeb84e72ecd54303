"""Parts as plain data: what comes out, and what is refused."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from contrastive_text.core.config.specs import describe, part_spec, to_plain
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.objectives import Contrastive, Siblings
from contrastive_text.pairings import Given, SameText
from contrastive_text.poolers import CLSPooler, FirstLastPooler, LastTwoPooler, MaxPooler, MeanPooler
from contrastive_text.views import DeleteTokens, FeatureCutoff, SwapWords, ViewPlan

TINY = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
PARTS = (
    InfoNCE(temperature=0.1, reduction="two_sided", hard_negative_log_weight=0.5),
    NTXent(temperature=0.2, reduction="sum"),
    Contrastive(loss=NTXent(), head=MLPHead(hidden_features=8), columns=[]),
    TanhHead(train_only=False),
    MLPHead(out_features=3),
    MeanPooler(),
    CLSPooler(),
    LastTwoPooler(),
    MaxPooler(),
    FirstLastPooler("block_1"),
    SwapWords(0.3),
    DeleteTokens(0.4),
    FeatureCutoff(0.5),
    SameText(),
    Given(),
    TransformerEncoder(config=TINY, dropout=0.2, max_length=9),
)


class Forgetful:
    """Stores its argument under another name."""

    def __init__(self, rate: float) -> None:
        self.share = rate


class Open:
    """Takes more arguments than it names."""

    def __init__(self, first: int, *more: int, **options: int) -> None:  # noqa: ARG002  # the base's signature
        self.first = first


def made(spec: Any) -> Any:
    """Makes what a spec describes, as the command line does."""
    if isinstance(spec, dict) and "class_path" in spec:
        module, _, name = spec["class_path"].rpartition(".")
        return getattr(importlib.import_module(module), name)(**made(spec["init_args"]))
    if isinstance(spec, dict):
        return {key: made(value) for key, value in spec.items()}
    return [made(value) for value in spec] if isinstance(spec, list) else spec


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_made_again_from_its_spec_has_the_same_spec(part: object) -> None:
    spec = part_spec(part, "part")
    again = made(spec)
    assert type(again) is type(part)
    assert part_spec(again, "part") == spec
    assert yaml.safe_load(yaml.safe_dump(spec)) == spec


def arguments(cls: type, **given: object) -> dict[str, object]:
    """Every argument of a class: what is given, else its default."""
    return {name: each.default for name, each in inspect.signature(cls).parameters.items()} | given


def test_a_spec_names_the_class_and_every_argument() -> None:
    loss = {"class_path": "contrastive_text.NTXent", "init_args": arguments(NTXent, temperature=0.2)}
    columns = [
        {"class_path": "contrastive_text.objectives.Duplicates", "init_args": {}},
        {"class_path": "contrastive_text.objectives.Siblings", "init_args": arguments(Siblings)},
    ]
    assert part_spec(Contrastive(loss=NTXent(0.2)), "objective") == {
        "class_path": "contrastive_text.Contrastive",
        "init_args": arguments(Contrastive, loss=loss, columns=columns),
    }
    assert {"temperature", "reduction", "streamed"} < {*arguments(NTXent)}


def test_plain_values_lists_and_dicts_go_through() -> None:
    value = {"a": (1, 2.5, None), "b": [True, "text"], "c": Path("some") / "file"}
    assert to_plain(value, "x") == {"a": [1, 2.5, None], "b": [True, "text"], "c": str(Path("some") / "file")}


def test_chains_of_views_are_plain_lists_of_specs() -> None:
    plain = to_plain(ViewPlan({"positive": [SwapWords(0.2)]}).chains, "model.views")
    assert plain == {"positive": [{"class_path": "contrastive_text.views.SwapWords", "init_args": {"rate": 0.2}}]}


@pytest.mark.parametrize("function", [lambda x: x, len, str.lower, Path.cwd])
def test_a_function_is_refused_with_its_place_and_what_to_do(function: object) -> None:
    message = (
        r"model.views\[1\]: expected plain values or objects of importable classes, got the function .*__call__"
    )
    with pytest.raises(TypeError, match=message):
        to_plain([1, function], "model.views")


def test_a_part_that_does_not_store_an_argument_is_refused() -> None:
    message = r"model.part.x: expected Forgetful to store its argument 'rate' as self.rate, .*Forgetful.__init__"
    with pytest.raises(TypeError, match=message):
        to_plain({"x": Forgetful(0.1)}, "model.part")


def test_arguments_without_a_name_are_left_out() -> None:
    assert part_spec(Open(1, 2, third=3), "part")["init_args"] == {"first": 1}


def test_a_part_is_described_as_a_call() -> None:
    described = describe(Contrastive(loss=NTXent(0.1)))
    loss = ", ".join(f"{name}={value!r}" for name, value in arguments(NTXent, temperature=0.1).items())
    assert described.startswith(f"Contrastive(loss=NTXent({loss}), head=None, between='texts', columns=[")
    assert described.endswith("task=None)")
    assert describe(MeanPooler()) == "MeanPooler()"
