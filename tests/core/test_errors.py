"""Errors of the library: what a command prints as an answer."""

import pickle

import pytest

from contrastive_text.core import errors

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
