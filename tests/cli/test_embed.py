"""The embed command: any size, any precision, stopped and taken up again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from shells import Shell

from contrastive_text.core.machine import current_setting
from contrastive_text.data.prompts import Prompts
from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.quantization import quantize
from contrastive_text.inference.sentence_encoder import SentenceEncoder

MANY = tuple(f"{text} and {i}" for i in range(10) for text in tiny.TEXTS)
"""400 different texts."""
EMBED = "embed many.txt v.npy --model BERT --block_size 100 --device cpu"


@pytest.fixture(autouse=True)
def many(here: Path) -> str:
    """The texts in many.txt."""
    return tiny.write_texts(here / "many.txt", MANY)


@pytest.fixture
def stopped(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Embeds as if Ctrl-C came when three blocks are saved; gives what is said then."""
    append = UnfinishedVectors.append

    def then_stop(self: UnfinishedVectors, vectors: np.ndarray, truncated: int) -> None:
        append(self, vectors, truncated)
        if self.done == 300:
            raise KeyboardInterrupt

    def of(setting: dict[str, str] | None = None) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(UnfinishedVectors, "append", then_stop)
            if setting is not None:
                patched.setattr("contrastive_text.inference.embedding_run.current_setting", lambda _: setting)
            assert shell.status(EMBED) == 130  # as a shell has it for Ctrl-C
        return shell.capture.readouterr().err

    return of


@pytest.mark.slow
def test_ctrl_c_says_how_it_goes_on_and_the_same_words_do_but_not_with_another_model(
    shell: Shell, here: Path, stopped: Callable[..., str]
) -> None:
    said = stopped({"threads": "17"})
    assert "stopped: the vectors of 300 of 400 texts are saved; the same command resumes after them" in said
    assert not (here / "v.npy").exists()
    tiny.save_bert(here / "other", seed=1)
    other = EMBED.replace("BERT", "other")
    said = shell.refused(other)
    assert "v.npy.unfinished: expected vectors of these texts and options, got another model" in said
    assert "start again with --restart" in said
    said = shell(EMBED).out
    assert "300 of 400 texts are encoded already; resuming after them" in said
    assert (
        "note: v.npy: its first vectors were computed under another setting, so the last bits of the remaining "
    ) in said
    assert json.loads((here / "v.npy.json").read_text())["settings"] == [{"threads": "17"}, current_setting()]
    shell(EMBED.replace("v.npy", "whole.npy"))
    assert (here / "v.npy").read_bytes() == (here / "whole.npy").read_bytes()
    shell(f"{other} --restart")
    assert (here / "v.npy").read_bytes() != (here / "whole.npy").read_bytes()
    assert len(np.load(here / "v.npy")) == 400
    names = {"many.txt", "other", "v.npy", "v.npy.json", "whole.npy", "whole.npy.json"}
    assert {path.name for path in here.iterdir()} == names


def test_features_and_precisions_are_those_of_encode(shell: Shell, here: Path, files: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match="names no pooler"):
        model = SentenceEncoder.from_pretrained(files["bert"], device="cpu")
    options = "many.txt --model BERT --device cpu --truncate_dim 10 --normalize"
    expected = model.encode(MANY, truncate_dim=10, normalize_embeddings=True)
    said = shell(f"embed {options} b.npy --precision ubinary").out
    assert "400 vectors of 2 bytes written to b.npy" in said
    assert np.array_equal(np.load(here / "b.npy"), quantize(expected, "ubinary").numpy())
    said = shell(f"embed {options} i.npy --precision int8").out
    assert (
        "value ranges of the features are from the vectors of the first 1,000 texts; saved to i.npy.ranges.npy"
        in said
    )
    ranges = np.load(here / "i.npy.ranges.npy")
    np.testing.assert_array_equal(ranges, [each(expected, axis=0) for each in (np.min, np.max)])
    assert np.array_equal(np.load(here / "i.npy"), quantize(expected, "int8", ranges).numpy())
    shell(f"embed {options} j.npy --precision int8 --ranges i.npy.ranges.npy")
    assert (here / "j.npy").read_bytes() == (here / "i.npy").read_bytes()


def test_bfloat16_weights_move_vectors_a_little(shell: Shell, here: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        shell(f"embed TEXTS {dtype}.npy --model BERT --device cpu --dtype {dtype}")
    one, other = (np.load(here / f"{dtype}.npy") for dtype in ("float32", "bfloat16"))
    assert one.dtype == other.dtype == np.float32
    assert not np.array_equal(one, other)
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.99  # eight bits of each weight and each step


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_several_devices_write_the_same_vectors(shell: Shell, here: Path) -> None:
    shell(EMBED)
    shell(f"{EMBED.replace('v.npy', 'two.npy')} --device cpu,cpu")
    # Another number of threads may sum in another order.
    np.testing.assert_allclose(np.load(here / "v.npy"), np.load(here / "two.npy"), rtol=0, atol=1e-5)


def test_one_split_of_a_file_is_encoded(shell: Shell, here: Path) -> None:
    (here / "in.tsv").write_text("text\tsplit\na bird\ttrain\nthe dog\tdev\na cat\tdev\n")
    said = shell("embed in.tsv v.npy --model BERT --split dev").out
    assert "split: dev (2); train (1) left out" in said
    assert len(np.load(here / "v.npy")) == 2


def test_few_texts_for_ranges_are_noted(shell: Shell, here: Path) -> None:
    said = shell("embed TEXTS v.npy --model BERT --precision int8")
    assert "note: value_ranges: ranges from 40 vectors are a matter of luck; take 100 or more\n" in said.out
    assert "UserWarning" not in said.err
    assert (here / "v.npy.ranges.npy").exists()


@pytest.mark.parametrize("words", ["embed TEXTS v.npy", "duplicates TEXTS d.tsv"])
def test_a_vector_that_is_not_finite_is_refused(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    forward = SentenceEncoder.forward
    monkeypatch.setattr(SentenceEncoder, "forward", lambda self, batch: forward(self, batch) / 0)
    assert "expected finite vectors" in shell.refused(f"{words} --model BERT")
    assert [path.name for path in here.iterdir()] == ["many.txt"]


def test_the_prompt_that_texts_are_read_after_is_said(shell: Shell, here: Path, files: dict[str, str]) -> None:
    prompts = Prompts({"query": "query: ", "document": "passage: "}, default="query")
    model = SentenceEncoder.from_pretrained(files["bert"], pooler="MeanPooler", prompts=prompts)
    model.save_pretrained(here / "m")
    for words, prompt in (("", "query: "), ("--prompt_name document", "passage: ")):
        said = shell(f"embed TEXTS v.npy --model m --restart {words}").out
        assert f"with the prompt {prompt!r}; --prompt_name selects one of document, query" in said
