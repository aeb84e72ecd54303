"""YAML that others wrote is read within bounds; what can't be read is named with its line and column."""

from pathlib import Path

import pytest

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.recipes.layers import option_over, parse_yaml, read_config

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2: expected YAML, got while parsing a flow sequence"),
        ("a: 1\n\tb: 2\n", "line 2, column 1: expected YAML"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4, column 3: expected every name once, got c twice"),
        (LAUGHS, "expected at most 100,000 values, got more, with aliases expanded"),
        ("a: &a [*a]\n", "line 1, column 4: expected values that end, got an alias inside its own anchor"),
        ("[" * 5000, "line 1, column 61: expected at most 60 levels, got more"),
        ("a: " + "{b: " * 100 + "1" + "}" * 100, "expected at most 60 levels, got more"),
        ("a: *b\n", "line 1, column 4: expected YAML, got found undefined alias"),
        ("a: !!python/object/apply:os.system [ls]\n", "expected YAML, got could not determine a constructor"),
        ("a: \x01\n", "expected YAML, got: unacceptable character"),
    ],
)
def test_what_is_no_yaml_or_out_of_bounds_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidValueError) as error:
        read_config(path)
    assert str(error.value).startswith(f"--config: {path}")
    assert said in str(error.value)


def test_aliases_and_merged_names_are_read() -> None:
    text = "base: &base {a: 1, b: [1.0e-3, null]}\nmore:\n  <<: *base\n  a: 2\n"
    base = {"a": 1, "b": [1e-3, None]}
    assert parse_yaml(text, "mine.yaml") == {"base": base, "more": {**base, "a": 2}}
    assert parse_yaml("", "mine.yaml") is None


@pytest.mark.parametrize("content", [b"a: \xff\n", "a: 1\n".encode("utf-16")])
def test_bytes_of_another_encoding_and_folders_are_answers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(ContrastiveTextError, match=str(place)):
            read_config(place)


def test_an_option_that_is_no_yaml_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"--data\.task\.labels: \{a: .*line 1, column"):
        option_over({}, "data.task.labels", "{a: [")
