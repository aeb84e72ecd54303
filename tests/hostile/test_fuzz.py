"""Fuzz tests of file readers: a reader returns a correct result or a library error, never another exception.

Derandomized, as all tests that draw: the examples are the same in every run.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import yaml
from hostile.judging import limited, shell
from hostile.sound import Sound
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contrastive_text import Classifier, Reranker
from contrastive_text.cli.models import read_document_vectors
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.data import read_rows
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.head_models import folder_kind
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.layers import merge, option_over, read_config
from contrastive_text.runs.ensemble import read_choices
from contrastive_text.runs.grid import Cell
from contrastive_text.runs.sweep_table import SweepRun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of other libraries, on what chance made of their files
]
_T = TypeVar("_T")


def examples(number: int) -> settings:
    """Returns the settings of a test with so many examples."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=number, derandomize=True, deadline=None, suppress_health_check=quiet)


def outcome(work: Callable[[], _T]) -> _T | ContrastiveTextError:
    """Returns a result or an answer; another exception, and a hang, go on."""
    try:
        with limited():
            return work()
    except ContrastiveTextError as answer:
        assert str(answer)
        return answer


# Damage that chance does: to bytes, and to the values of JSON

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["os.system", "../x", "a\0b", "", "contrastive_text.poolers.MeanPooler", "1e999"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""JSON values of every kind."""


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws a change of some bytes: other ones, fewer, more, zeros."""
    place = draw(st.integers(0, len(content)))
    length = draw(st.integers(0, 64))
    kind = draw(st.sampled_from(["other", "cut", "zeros", "more", "less", "bit"]))
    if kind == "cut":
        return content[:place]
    if kind == "zeros":
        return content[:place] + bytes(len(content) - place)
    if kind == "less":
        return content[:place] + content[place + length :]
    if kind == "bit" and content:
        place = min(place, len(content) - 1)
        return content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    new = draw(st.binary(min_size=1, max_size=64))
    return content[:place] + new + content[place + (len(new) if kind == "other" else 0) :]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # Any: JSON
    """Yields every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


@st.composite
def damaged_json(draw: st.DrawFn, value: Any) -> Any:  # Any: JSON
    """Draws a change of one to three values, anywhere inside: another one, or none."""
    changed = {"": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(changed))[:400]
        container, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.booleans()) or container is changed:
            container[key] = draw(values)
        else:
            del container[key]
    return changed[""]


# Texts

ODD = st.sampled_from([" ", "\t", "\u200b", "\ufeff", "\u2028", "\x85", '"', ",", "\\", "\x1b[2J", "[/b]", "\r"])
LINE = st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=6) | ODD,
                max_size=4).map("".join)  # fmt: skip
LEFT_OUT = re.compile(r"([\d,]+) (?:blank lines?|rows? with an empty text) left out")


def read_both(path: Path, rows: int | None) -> None:
    """Reads a file whole and as a stream, which agree; all rows of the file are given or counted."""
    table = outcome(lambda: read_rows(path, reads=("text",)))
    stream = TextStream(path)
    texts = outcome(lambda: list(stream))
    if isinstance(table, ContrastiveTextError) or isinstance(texts, ContrastiveTextError):
        assert type(table) is type(texts)
        return
    assert [row["text"] for row in table] == texts
    assert stream.summary is not None
    assert stream.summary.description == table.description
    assert all(isinstance(text, str) and text.strip() for text in texts)
    left_out = sum(int(number.replace(",", "")) for number in LEFT_OUT.findall(table.description))
    assert rows is None or len(texts) + left_out == rows


@examples(100)
@given(lines=st.lists(LINE, max_size=8), end=st.sampled_from(["\n", "\r\n", ""]), packed=st.booleans())
def test_lines_of_texts_are_given_or_counted(lines: list[str], end: str, packed: bool, tmp_path: Path) -> None:
    joined = (end or "\n").join(lines) + end
    rows = joined.count("\n") + (not joined.endswith("\n") and bool(joined))
    path = tmp_path / ("t.txt.gz" if packed else "t.txt")
    content = joined.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    read_both(path, rows)


@examples(100)
@given(cells=st.lists(st.tuples(LINE, LINE), max_size=8), suffix=st.sampled_from([".csv", ".tsv"]))
def test_rows_of_tables_are_given_or_counted(cells: list[tuple[str, str]], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    out = io.StringIO()
    if suffix == ".csv":
        writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)  # a bare "\r" ends a record
        writer.writerows([("text", "n"), *cells])
    else:
        out.write("".join(f"{a}\t{b}\n" for a, b in [("text", "n"), *cells]))
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    read_both(path, len(cells))


@examples(100)
@given(rows=st.lists(st.dictionaries(st.sampled_from(["text", "n", "text ", "sentence"]), values, max_size=3),
                     max_size=6))  # fmt: skip
def test_objects_are_given_or_answered(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    read_both(path, None)


SOUND_FILES = {
    ".txt": "a small dog\nthe cold river\n\n",
    ".tsv": "text\tn\na dog\t1\na bird\t2\n",
    ".csv": 'text,n\n"a ""dog""",1\n"a\nbird",2\n',
    ".jsonl": '{"text": "a dog", "n": 1}\n{"text": ["a", "b\\u00fc"]}\n',
}


@examples(100)
@given(data=st.data(), suffix=st.sampled_from([*SOUND_FILES, ".txt.gz", ".jsonl.gz"]))
def test_damaged_files_of_texts_are_read_or_answered(data: st.DataObject, suffix: str, tmp_path: Path) -> None:
    content = SOUND_FILES[suffix.removesuffix(".gz")].encode()
    path = tmp_path / f"t{suffix}"
    path.write_bytes(data.draw(damaged_bytes(gzip.compress(content, mtime=0) if ".gz" in suffix else content)))
    read_both(path, None)


@examples(30)
@given(texts=st.lists(st.binary(max_size=30), min_size=1, max_size=4))
def test_documents_are_read_or_answered(texts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("docs")
    for number, content in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(content)
    read_both(folder, None)


# Model folders, checkpoints

PARTS = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json",
    "2_Dense/config.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    "model.safetensors", "2_Dense/model.safetensors",
)  # fmt: skip


def damage(path: Path, data: st.DataObject) -> None:
    """Damages a file: its bytes, or values of JSON."""
    content = path.read_bytes()
    if path.suffix == ".json" and data.draw(st.booleans()):
        path.write_text(json.dumps(data.draw(damaged_json(json.loads(content)))), encoding="utf-8")
    else:
        path.write_bytes(data.draw(damaged_bytes(content)))


def encoded(folder: Path) -> Any:  # Any: an array of numpy
    """Encodes two texts with a folder."""
    vectors = np.asarray(
        SentenceEncoder.from_pretrained(str(folder), device="cpu").encode(["a dog", "a cold river"])
    )
    assert vectors.ndim == 2 and len(vectors) == 2 and np.isfinite(vectors).all()
    return vectors


@pytest.mark.parametrize("file", PARTS)
@examples(20)
@given(data=st.data())
def test_a_folder_with_damaged_bytes_or_other_values_is_loaded_or_answered(
    file: str, data: st.DataObject, sound: Sound, tmp_path: Path
) -> None:
    damage(shutil.copytree(sound["foreign"], tmp_path / "m", dirs_exist_ok=True) / file, data)
    outcome(lambda: encoded(tmp_path / "m"))


HEADS = {
    "network": ("config.json", "tokenizer.json", "model.safetensors"),
    "own_head": ("contrastive_text_head.json", "contrastive_text_head.safetensors", "modules.json"),
}
"""Folder of a trained head -> files that are damaged."""


def predicted(folder: Path) -> None:
    """Loads the head of a folder as its kind, and predicts one text or pair."""
    model = (Classifier if folder_kind(folder) == "classifier" else Reranker).from_pretrained(folder, "cpu")
    logits = model.logits(["a dog"] if model.settings.reads == "text" else [("a dog", "a cold river")])
    assert logits.shape == (1, model.settings.outputs)


@pytest.mark.parametrize(("kind", "file"), [(kind, file) for kind, files in HEADS.items() for file in files])
@examples(20)
@given(data=st.data())
def test_a_head_with_damaged_bytes_or_other_values_is_loaded_or_answered(
    kind: str, file: str, data: st.DataObject, sound: Sound, tmp_path: Path
) -> None:
    damage(shutil.copytree(sound[kind], tmp_path / "m", dirs_exist_ok=True) / file, data)
    outcome(lambda: predicted(tmp_path / "m"))


@examples(100)
@given(data=st.data(), part=st.sampled_from(["all", "start", "end"]))
def test_a_checkpoint_with_damaged_bytes_is_refused_or_read_bit_equal(
    data: st.DataObject, part: str, sound: Sound, tmp_path: Path
) -> None:
    content, path = Path(sound["checkpoint"]).read_bytes(), tmp_path / "c.ckpt"
    first = {"all": 0, "start": 0, "end": len(content) - 2048}[part]
    last = 2048 if part == "start" else len(content)
    path.write_bytes(content[:first] + data.draw(damaged_bytes(content[first:last])) + content[last:])
    found = outcome(lambda: read_checkpoint(path))
    if not isinstance(found, ContrastiveTextError):
        whole = read_checkpoint(sound["checkpoint"])
        assert all(torch.equal(weight, whole.weights[name]) for name, weight in found.weights.items())
        assert (found.step, found.model, found.data) == (whole.step, whole.model, whole.data)


# Configurations

YAML = st.lists(
    st.sampled_from([
        "model:", "data:", "  train: a", "- a", "? b", "{", "}", "[", "]", ": ", "&a", "*a",
        "!!python/name:os.system", "|", ">", "'", '"', "---", "%YAML 1.2",
        "<<: *a", "a: &a {b: *a}", "\t", "#", "1e999", "0x", "~", "2001-13-45",
    ]) | st.text(max_size=6), max_size=10,
)  # fmt: skip


@examples(100)
@given(pieces=YAML, joint=st.sampled_from(["\n", " ", ""]))
def test_yaml_is_read_or_answered(pieces: list[str], joint: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(joint.join(pieces), encoding="utf-8", errors="replace", newline="")
    found = outcome(lambda: read_config(path))
    assert isinstance(found, dict | ContrastiveTextError)


NAMES = st.sampled_from(
    ["model", "data", "tasks", "views", "class_path", "init_args", "a", "positive", "columns"]
)
CONFIGS = st.recursive(values, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)


@examples(100)
@given(below=st.dictionaries(NAMES, CONFIGS, max_size=3), above=st.dictionaries(NAMES, CONFIGS, max_size=3),
       key=st.lists(NAMES, min_size=1, max_size=3).map(".".join), value=st.text(max_size=8))  # fmt: skip
def test_configurations_are_laid_over_each_other_or_answered(
    below: dict[str, Any], above: dict[str, Any], key: str, value: str
) -> None:
    merged = outcome(lambda: merge([below, above]))
    if isinstance(merged, dict):
        outcome(lambda: option_over(merged, key, value))


@examples(30)
@given(data=st.data())
def test_a_run_s_configuration_with_other_values_is_understood_or_answered(
    data: st.DataObject, sound: Sound, tmp_path: Path
) -> None:
    config = yaml.safe_load(Path(sound["run"], "config.yaml").read_text(encoding="utf-8"))
    part = data.draw(st.sampled_from(["model", "data", "checkpoint", "export"]))
    changed = {**config, part: data.draw(damaged_json(config[part]))}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    result = shell(["fit", "--config", "c.yaml", "--print_config"], tmp_path)
    assert result.status in (0, None, 2), result
    assert not result.trouble and "Traceback" not in result.said, result.said


# Records


@examples(40)
@given(data=st.data(), in_bytes=st.booleans())
def test_vectors_are_read_as_they_were_or_refused(
    data: st.DataObject, in_bytes: bool, sound: Sound, tmp_path: Path
) -> None:
    path = tmp_path / "v.npy"
    vectors = Path(sound["vectors"]).read_bytes()
    record = json.loads(Path(sound["vectors_record"]).read_text(encoding="utf-8"))
    path.write_bytes(data.draw(damaged_bytes(vectors)) if in_bytes else vectors)
    changed = record if in_bytes else data.draw(damaged_json(record))
    Path(f"{path}.json").write_text(json.dumps(changed), encoding="utf-8")
    model = SentenceEncoder.from_pretrained(sound["bert"], device="cpu")
    found = outcome(lambda: read_document_vectors(model, TextStream(sound["texts"]), path))
    if isinstance(found, list):
        assert np.array_equal(found[0], np.load(sound["vectors"]))


def read_ensemble(file: Path) -> None:
    """Reads an ensemble's list, whose members lie in its folder."""
    for choice in read_choices(file.parent).values():
        assert (file.parent / choice.member).resolve().parent == file.parent.resolve()


RECORDS: dict[tuple[str, str], Callable[[Path], object]] = {
    ("ensemble", "ensemble.json"): read_ensemble,
    ("sweep", "scores.json"): lambda file: SweepRun.read(Cell(("CLSPooler",)), 1, file.parent),
}


@pytest.mark.parametrize(("kind", "name"), RECORDS)
@examples(40)
@given(data=st.data())
def test_records_with_other_values_are_read_or_refused(
    kind: str, name: str, data: st.DataObject, sound: Sound, tmp_path: Path
) -> None:
    (file,) = shutil.copytree(sound[kind], tmp_path / kind, dirs_exist_ok=True).rglob(name)
    file.write_text(json.dumps(data.draw(damaged_json(json.loads(file.read_text(encoding="utf-8"))))))
    outcome(lambda: RECORDS[kind, name](file))
