"""Parts as plain data: what comes out, and what is refused."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from contrastive_text.core.config.specs import describe, part_spec, to_plain
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive, Siblings
from contrastive_text.poolers import MeanPooler
from contrastive_text.views import SwapWords, ViewPlan


class Forgetful:
    """Stores its argument under another name."""

    def __init__(self, rate: float) -> None:
        self.share = rate


class Open:
    """Takes more arguments than it names."""

    def __init__(self, first: int, *more: int, **options: int) -> None:  # noqa: ARG002  # the base's signature
        self.first = first


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
