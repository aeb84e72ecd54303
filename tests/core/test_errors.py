"""Errors of the library, and checks of option values."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Literal

import pytest

from contrastive_text.core import errors
from contrastive_text.core.errors import above, at_least, fraction, one_of

Unit = Literal["token", "word"]

ANSWERS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]


@pytest.mark.parametrize("cls", ANSWERS)
def test_an_answer_goes_from_process_to_process(cls: type[errors.ContrastiveTextError]) -> None:
    assert issubclass(cls, errors.ContrastiveTextError)
    numbered = (7, "a text") if cls is errors.InvalidTextError else ()
    error = cls("where: expected a, got b; do c", *numbered)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert str(again).endswith("where: expected a, got b; do c")
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda value: one_of("unit", value, Unit), "word"),
        (lambda value: one_of("unit", value, ["token"]), "token"),
        (lambda value: at_least("k", value, 1), 1),
        (lambda value: above("k", value), 1e-9),
        (lambda value: fraction("rate", value), 0.0),
        (lambda value: fraction("rate", value), 1),
        (lambda value: fraction("rate", value, with_zero=False, with_one=False), 0.5),
    ],
)
def test_a_check_returns_a_valid_value_and_none(call: Callable[[object], object], value: object) -> None:
    assert call(value) is value
    assert call(None) is None


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: one_of("unit", "byte", Unit), "unit: expected token or word, got 'byte'"),
        (lambda: one_of("unit", "byte", ["a", "b", "c"], "name one"), "one of a, b or c, got 'byte'; name one"),
        (lambda: at_least("k", 999, 1000, "1000 is usual"), "k: expected 1,000 or more, got 999; 1000 is usual"),
        (lambda: at_least("k", math.inf, 0), "k: expected a finite number of 0 or more, got inf"),
        (lambda: at_least("k", math.nan, 0), "k: expected 0 or more, got nan"),
        (lambda: above("k", 0), "k: expected a finite number above 0, got 0"),
        (lambda: above("k", math.nan), "k: expected a finite number above 0, got nan"),
        (lambda: fraction("rate", 1.5), "rate: expected a share from 0 to 1, got 1.5"),
        (lambda: fraction("rate", math.nan), "rate: expected a share from 0 to 1, got nan"),
        (lambda: fraction("rate", 1, with_one=False), "rate: expected a share from 0 to below 1, got 1"),
        (
            lambda: fraction("rate", 0, "try 0.1", with_zero=False),
            "rate: expected a share above 0 to 1, got 0; try",
        ),
    ],
)
def test_a_check_names_the_option_the_expected_values_and_the_value(
    refused: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=r"expected") as caught:
        refused()
    assert message in str(caught.value)
