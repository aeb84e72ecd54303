"""The embed command: any size, any precision, stopped and taken up again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text.cli import run
from contrastive_text.core.setting import current_setting
from contrastive_text.data.prompts import Prompts
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.quantization import quantize
from contrastive_text.inference.sentence_encoder import SentenceEncoder

Answer = Callable[[Sequence[str]], str]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def many(here: Path) -> str:
    """Some thousand different texts."""
    return tiny.write_texts(here / "many.txt", tuple(f"{t} and {i}" for i in range(75) for t in tiny.TEXTS))


def words_of(files: dict[str, str], texts: str, out: str, *options: str) -> list[str]:
    return ["embed", texts, out, "--model", files["bert"], "--block_size", "100", "--device", "cpu", *options]


def stop_after(blocks: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Lets something happen when so many blocks are saved."""
    from contrastive_text.inference.embedding_run import UnfinishedVectors

    append = UnfinishedVectors.append

    def then_stop(self: UnfinishedVectors, vectors: np.ndarray, truncated: int) -> None:
        append(self, vectors, truncated)
        if self.done == 100 * blocks:
            raise error

    monkeypatch.setattr(UnfinishedVectors, "append", then_stop)


@pytest.fixture
def stopped(files: dict[str, str], many: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Embeds as if Ctrl-C came when three blocks are saved, and gives the exit status."""

    def of(setting: dict[str, str] | None = None) -> object:
        with monkeypatch.context() as patched:
            stop_after(3, patched, KeyboardInterrupt)
            if setting is not None:
                patched.setattr("contrastive_text.inference.embedding_run.current_setting", lambda _: setting)
            with pytest.raises(SystemExit) as left:
                run(words_of(files, many, "v.npy"))
        return left.value.code

    return of


@pytest.mark.slow
def test_ctrl_c_says_how_it_goes_on_and_the_same_words_do(
    files: dict[str, str], many: str, here: Path, stopped: Callable[..., object], capsys: Capture
) -> None:
    assert run(words_of(files, many, "whole.npy")) == 0
    assert stopped() == 130  # as a shell has it for Ctrl-C
    said = capsys.readouterr().err
    assert "stopped: the vectors of 300 of 3,000 texts are saved; the same command resumes after them" in said
    assert not (here / "v.npy").exists()
    assert run(words_of(files, many, "v.npy")) == 0
    assert "300 of 3,000 texts are encoded already; resuming after them" in capsys.readouterr().out
    assert (here / "v.npy").read_bytes() == (here / "whole.npy").read_bytes()


def kill_and_resume(words: list[str], record: Path, after: Sequence[int]) -> int:
    """Kills a process each time that so many more rows are on the disk; gives how many were killed."""
    killed = 0
    for rows in after:
        process = subprocess.Popen(
            [sys.executable, "-m", "contrastive_text", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        begun = rows_in(record)
        while process.poll() is None and rows_in(record) < begun + rows:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        _, error = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), error.decode()
        killed += process.returncode != 0
    return killed


def rows_in(record: Path) -> int:
    """Returns the rows that the record of an unfinished output counts, by the bytes of its vectors."""
    if not record.exists():
        return 0
    vectors = np.load(record.with_suffix(""), mmap_mode="r")
    filled = json.loads(record.read_text())["vectors"]["size"] - vectors.offset
    return int(filled // vectors[:1].nbytes)


@pytest.mark.slow
def test_vectors_that_another_setting_takes_up_are_said_to_differ_in_their_last_bits(
    files: dict[str, str], many: str, here: Path, stopped: Callable[..., object], capsys: Capture
) -> None:
    stopped({"threads": "17"})
    capsys.readouterr()
    assert run(words_of(files, many, "v.npy")) == 0
    said = (
        "note: v.npy: its first vectors were computed under another setting, so the last bits of the remaining "
    )
    assert said in capsys.readouterr().out
    kept = json.loads((here / "v.npy.json").read_text())["settings"]
    assert kept == [{"threads": "17"}, current_setting()]


@pytest.mark.slow
@pytest.mark.parametrize("out", ["v.npy", "v.tsv", "v.parquet"])
def test_many_kills_at_any_time_leave_the_same_bytes(
    files: dict[str, str], many: str, here: Path, out: str
) -> None:
    draws = random.Random(out)
    words = words_of(files, many, out, "--precision", "int8")
    after = [draws.choice([0, 1, 1, 200, 400]) for _ in range(8)]
    assert kill_and_resume(words, here / f"{out}.unfinished.json", after) >= 4
    assert run(words) == 0
    assert run([word if word != out else f"whole{out}" for word in words]) == 0
    assert (here / out).read_bytes() == (here / f"whole{out}").read_bytes()


def test_another_model_is_refused_with_what_to_do(
    files: dict[str, str], many: str, here: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    with monkeypatch.context() as patched:
        stop_after(3, patched, KeyboardInterrupt)
        with pytest.raises(SystemExit):
            run(words_of(files, many, "v.npy"))
    other = tiny.save_bert(here / "other", seed=1)
    words = words_of({"bert": other}, many, "v.npy")
    said = answer(words)
    assert "v.npy.unfinished: expected vectors of these texts and options, got another model" in said
    assert "start again with --restart" in said
    assert run([*words, "--restart"]) == 0
    assert len(np.load(here / "v.npy")) == 3000
    assert {path.name for path in here.iterdir()} == {"many.txt", "other", "v.npy", "v.npy.json"}


@pytest.mark.slow
def test_features_and_precisions_are_those_of_encode(files: dict[str, str], here: Path, capsys: Capture) -> None:
    with pytest.warns(UserWarning, match="names no pooler"):
        model = SentenceEncoder.from_pretrained(files["bert"], device="cpu")
    texts = [f"{text} and {i}" for i in range(30) for text in tiny.TEXTS]
    many = tiny.write_texts(here / "many.txt", tuple(texts))
    options = ("--truncate_dim", "10", "--normalize", "--block_size", "1200")
    expected = model.encode(texts, truncate_dim=10, normalize_embeddings=True)
    assert run(words_of(files, many, "v.npy", *options)) == 0
    assert np.array_equal(np.load(here / "v.npy"), expected)
    assert run(words_of(files, many, "b.npy", *options, "--precision", "ubinary")) == 0
    assert "1,200 vectors of 2 bytes written to b.npy" in capsys.readouterr().out
    assert np.array_equal(np.load(here / "b.npy"), quantize(expected, "ubinary").numpy())
    assert run(words_of(files, many, "i.npy", *options, "--precision", "int8")) == 0
    said = capsys.readouterr().out
    assert (
        "value ranges of the features are from the vectors of the first 1,000 texts; saved to i.npy.ranges.npy"
        in said
    )
    ranges = np.load(here / "i.npy.ranges.npy")
    # By themselves: in batches with others, several threads take their sums in another order.
    sample = model.encode(texts[:1000], truncate_dim=10, normalize_embeddings=True)
    np.testing.assert_array_equal(ranges, [each(sample, axis=0) for each in (np.min, np.max)])
    assert np.array_equal(np.load(here / "i.npy"), quantize(expected, "int8", ranges).numpy())
    again = words_of(files, many, "j.npy", *options, "--precision", "int8", "--ranges", "i.npy.ranges.npy")
    assert run(again) == 0
    assert (here / "j.npy").read_bytes() == (here / "i.npy").read_bytes()


def test_bfloat16_weights_move_vectors_a_little(files: dict[str, str], here: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        assert run(words_of(files, files["texts"], f"{dtype}.npy", "--dtype", dtype)) == 0
    one, other = (np.load(here / f"{dtype}.npy") for dtype in ("float32", "bfloat16"))
    assert one.dtype == other.dtype == np.float32
    assert not np.array_equal(one, other)
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.99  # eight bits of each weight and each step


@pytest.mark.slow
def test_several_devices_write_the_same_vectors(files: dict[str, str], many: str, here: Path) -> None:
    words = words_of(files, many, "one.npy")
    assert run(words) == 0
    assert run([*words_of(files, many, "two.npy"), "--device", "cpu,cpu"]) == 0
    # Another number of threads may sum in another order.
    np.testing.assert_allclose(np.load(here / "one.npy"), np.load(here / "two.npy"), rtol=0, atol=1e-5)


def test_one_split_of_a_file_is_encoded(files: dict[str, str], here: Path, capsys: Capture) -> None:
    (here / "in.tsv").write_text("text\tsplit\na bird\ttrain\nthe dog\tdev\na cat\tdev\n")
    assert run(words_of(files, "in.tsv", "v.npy", "--split", "dev")) == 0
    assert "split: dev (2); train (1) left out" in capsys.readouterr().out
    assert len(np.load(here / "v.npy")) == 2


def test_few_texts_for_ranges_are_noted(files: dict[str, str], here: Path, capsys: Capture) -> None:
    assert run(words_of(files, files["texts"], "v.npy", "--precision", "int8")) == 0
    said = capsys.readouterr()
    assert "note: value_ranges: ranges from 40 vectors are a matter of luck; take 100 or more\n" in said.out
    assert "UserWarning" not in said.err
    assert (here / "v.npy.ranges.npy").exists()


@pytest.mark.parametrize(("command", "out"), [("embed", "v.npy"), ("duplicates", "d.tsv")])
def test_a_vector_that_is_not_finite_is_refused(
    files: dict[str, str], here: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch, command: str, out: str
) -> None:
    forward = SentenceEncoder.forward
    monkeypatch.setattr(SentenceEncoder, "forward", lambda self, batch: forward(self, batch) / 0)
    words = words_of(files, files["texts"], out)
    assert "expected finite vectors" in answer([command, *words[1:]])
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_texts_that_change_meanwhile_are_told(
    files: dict[str, str], many: str, here: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = EmbeddingRun.finish

    def changed_first(self: EmbeddingRun, show_progress_bar: bool = False) -> tuple[int, ...]:
        with open(many, "r+") as file:
            file.write("AN")
        return finish(self, show_progress_bar)

    monkeypatch.setattr(EmbeddingRun, "finish", changed_first)
    assert "many.txt: expected the texts that were there at the start, got others" in answer(
        words_of(files, many, "v.npy")
    )
    assert not (here / "v.npy").exists()


def test_the_prompt_that_texts_are_read_after_is_said(files: dict[str, str], here: Path, capsys: Capture) -> None:
    prompts = Prompts({"query": "query: ", "document": "passage: "}, default="query")
    SentenceEncoder.from_pretrained(files["bert"], pooler="MeanPooler", prompts=prompts).save_pretrained(
        here / "m"
    )
    for words, prompt in (((), "query: "), (("--prompt_name", "document"), "passage: ")):
        assert run(words_of({"bert": str(here / "m")}, files["texts"], "v.npy", "--restart", *words)) == 0
        said = capsys.readouterr().out
        assert f"with the prompt {prompt!r}; --prompt_name selects one of document, query" in said
