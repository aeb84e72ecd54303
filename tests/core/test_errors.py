"""What is printed as an answer is an error of the library's own."""

import ast
import pickle
from pathlib import Path

import pytest

import contrastive_text
from contrastive_text.core import errors

PACKAGE = Path(contrastive_text.__file__).parent
BUILT_IN = {
    "Exception", "ValueError", "TypeError", "OSError", "FileNotFoundError", "FileExistsError", "ImportError",
    "KeyError", "IndexError",
}  # fmt: skip
ANSWERS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]


def test_no_file_raises_a_built_in_error_where_an_answer_is_meant() -> None:
    plain = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = (
                node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Return) else None
            )
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in BUILT_IN:
                plain.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not plain


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
