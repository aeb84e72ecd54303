"""Wrong input at the shell: a few lines, the nearest right name, no traceback."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny
import torch
from covering import rest_slow

from contrastive_text.cli import run
from contrastive_text.cli.answers import answer as answer_of
from contrastive_text.cli.commands import RECORDS
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.training.checkpoint_io import AtomicCheckpointIO

# Lightning on the place of the best checkpoint, where validate, test and predict load one of another run
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed from")

Answer = Callable[[Sequence[str]], str]
FIT = ["fit", "--recipe", "simcse"]


# Misspelt names


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["fti"], "did you mean fit?"),
        (["evalute", "x"], "did you mean evaluate?"),
        (["fit", "--recipe", "simsce"], "did you mean simcse?"),
        ([*FIT, "--data.trian", "x.txt"], "'train'"),
        ([*FIT, "--data.batchsize", "3"], "'batch_size'"),
        ([*FIT, "--trainer.max_stps", "3"], "'max_steps'"),
        ([*FIT, "--modl.pooler", "MeanPooler"], "'model'"),
        ([*FIT, "--model.poler", "MeanPooler"], "'pooler'"),
        ([*FIT, "--model.encoder.max_lenght", "8"], "'max_length'"),
        ([*FIT, "--model.optimizer.weight_deacy", "0.1"], "'weight_decay'"),
        ([*FIT, "--model.objectives.contrastive.loss.temprature", "0.1"], "'temperature'"),
        ([*FIT, "--model.pooler", "MeanPoler"], "did you mean MeanPooler?"),
        ([*FIT, "--model.guides", "{a: {class_path: GuideFil}}"], "did you mean GuideFile?"),
        ([*FIT, "--model.pooler", "MeanPooler(2)"], "class_path: MeanPooler, and its arguments under init_args"),
        ([*FIT, "--model.schedule", "LinearShedule"], "did you mean LinearSchedule?"),
        ([*FIT, "--model.objectives.contrastive.loss", "InfoNec"], "did you mean InfoNCE?"),
        ([*FIT, "--model.views", '{"positive": ["FeatureCutof"]}'], "did you mean FeatureCutoff?"),
        ([*FIT, "--checkpoint.dirpaht", "x"], "'dirpath'"),
        (["embed", "in.txt", "out.npy", "--modl", "x"], "did you mean --model?"),
        (["evaluate", "x", "y", "--batchsize", "3"], "did you mean --batch_size?"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_a_misspelt_name_is_answered_with_the_nearest_right_one(
    answer: Answer, words: list[str], right: str
) -> None:
    assert right in answer(words)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("model: {poler: MeanPooler}", "'pooler'"),
        ("data: {batch_sise: 8}", "'batch_size'"),
        ("model: {optimizer: {class_path: AdamW, init_args: {lrr: 1.0e-3}}}", "'lr'"),
        ("model: {views: {anchor: [{class_path: DeletTokens}]}}", "did you mean DeleteTokens?"),
        ("model: {objectives: {c: {class_path: Contrastive, init_args: {los: NTXent}}}}", "'loss'"),
    ],
)
def test_a_misspelt_name_in_a_file_is_answered_likewise(
    answer: Answer, here: Path, text: str, right: str
) -> None:
    (here / "mine.yaml").write_text(text)
    assert right in answer([*FIT, "--config", "mine.yaml"])


def test_a_class_that_is_not_in_one_s_file_is_named(answer: Answer, here: Path) -> None:
    (here / "file_of_mine.py").write_text("x = 1\n")
    said = answer([*FIT, "--model.pooler", "file_of_mine.Missing"])
    assert "file_of_mine.Missing" in said


MINE = """
from contrastive_text.losses import NTXent
from contrastive_text.views import TextView

class KeepFirst(TextView):
    def __init__(self, share: float = 0.5):
        self.share = share
    def __call__(self, text, rng):
        return text

class OwnLoss(NTXent):
    pass
"""


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        (
            "views",
            '{"anchor": ["mine.KeepFrist"]}',
            "got mine.KeepFrist; there is no KeepFrist in mine; did you mean KeepFirst?",
        ),
        (
            "views",
            '{"anchor": [{"class_path": "mine.KeepFirst", "init_args": {"shar": 0.7}}]}',
            "views.anchor[0]: expected an argument of KeepFirst, got 'shar'; did you mean 'share'?",
        ),
        ("views", '{"one": {"anchor": ["mine.KeepFrist"]}}', "model.views.one.anchor[0]: expected a View"),
        ("views", '{"anchor": ["mnie.KeepFirst"]}', "there is no module mnie; did you mean mine?"),
        ("views", '{"anchor": ["no_syntax.A"]}', "no_syntax.py:2: SyntaxError"),
        (
            "views",
            '{"anchor": ["no_import.A"]}',
            "no_import.py:2: ModuleNotFoundError: No module named 'nothing_there'",
        ),
        (
            "pooler",
            "mine.KeepFrist",
            "model.pooler: expected a Pooler, got mine.KeepFrist; there is no KeepFrist in mine",
        ),
        (
            "pooler",
            "mine.KeepFirst",
            "model.pooler: expected a subclass of Pooler, got mine.KeepFirst, which is none",
        ),
        (
            "objectives.contrastive.loss",
            "mine.OwnLos",
            "loss: expected a Loss, got mine.OwnLos; there is no OwnLos in mine; did you mean OwnLoss?",
        ),
        (
            "objectives",
            '{"c": {"class_path": "mine.Objektive"}}',
            "model.objectives.c: expected an Objective, got mine.Objektive",
        ),
        (
            "objectives",
            '{"c": {"class_path": "Contrastive", "init_args": {"loss": '
            '{"class_path": "mine.OwnLoss", "init_args": {"a": 1}}}}}',
            "objectives.c.loss: expected an argument of OwnLoss, got 'a'; it takes temperature, reduction",
        ),
        (
            "../trainer.callbacks",
            '["mine.Callbak"]',
            "trainer.callbacks[0]: expected a Callback, got mine.Callbak",
        ),
        ("../trainer.callbacks", '[{"class_path": "EarlyStoping"}]', "did you mean EarlyStopping?"),
        ("../data.task.pairing", "mine.Pair", "data.task.pairing: expected a Pairing, got mine.Pair"),
    ],
    ids=lambda value: value[:60],
)
def test_a_misspelt_part_of_one_s_own_is_named_with_its_place(
    answer: Answer, here: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, said: str
) -> None:
    for name in ("mine", "no_syntax", "no_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (here / "mine.py").write_text(MINE)
    (here / "no_syntax.py").write_text("\nclass A(:\n")
    (here / "no_import.py").write_text("\nimport nothing_there\n")
    name = option.removeprefix("../") if option.startswith("../") else f"model.{option}"
    assert said in answer([*FIT, f"--{name}", value])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trainer.devices", "9999"], "trainer.devices: expected at most"),
        (["--data.num_workers", "99999"], "data.num_workers: expected at most"),
    ],
)
def test_more_processes_than_cores_are_refused_before_any_starts(
    answer: Answer, tiny_words: list[str], words: list[str], said: str
) -> None:
    told = answer([*FIT, *tiny_words, *words])
    assert said in told and "--oversubscribe true" in told


def test_a_logger_without_its_library_is_one_line(answer: Answer, tiny_words: list[str]) -> None:
    if find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    said = answer([*FIT, *tiny_words, "--trainer.logger", "WandbLogger"])
    assert said.endswith("error: WandbLogger: expected the library wandb, got none; pip install wandb")


# Wrong values


@pytest.mark.parametrize(
    ("words", "said"),
    rest_slow(
        [
            (
                ["--model.objectives.contrastive.loss.temperature", "0"],
                "temperature: expected a number above 0, got 0",
            ),
            (
                ["--model.objectives.contrastive.loss.temperature", "-1"],
                "temperature: expected a number above 0, got -1",
            ),
            (["--model.objectives.contrastive.head.train_only", "false"], "set --model.head instead"),
            (["--model.optimizer.lr", "0"], "AdamW.lr: expected a positive number, got 0"),
            (
                ["--model.views", '{"positive": [{"class_path": "SwapWords", "init_args": {"rate": 2}}]}'],
                "SwapWords.rate",
            ),
            (["--model.views", '{"positiv": ["SwapWords"]}'], "views.positiv: expected one of the roles anchor"),
            (
                ["--model.views", '{"anchor": ["FeatureCutoff", "SwapWords"]}'],
                "move SwapWords before FeatureCutoff",
            ),
            (
                ["--model.views", '{"negative": ["SwapWords"]}'],
                "views.negative: expected a slot that the pairing",
            ),
            (["--model.weights", '{"other": 1}'], "model.weights.other"),
            (["--model.encoder.model_name_or_path", "/no/such/folder"], "got '/no/such/folder'"),
            (["--model.encoder.max_length", "99"], "expected 3 to 32 tokens"),
            (["--data.batch_size", "41"], "expected at most the number of rows, 40, got 41"),
            (["--data.batch_size", "0"], "data.batch_size: expected 1 or more, got 0"),
            (
                ["--data.batch_size", "1"],
                "data.batch_size: expected 2 or more examples in a step for Contrastive",
            ),
            (["--model.objectives.contrastive.in_batch", "false"], "got rows without a negative and queue: 0"),
            (["--data.batch_size", "many"], "many"),
            (["--trainer.max_epochs", "-1", "--trainer.max_steps", "-1"], "set trainer.max_steps"),
            (["--ckpt_path", "nothing.ckpt"], "expected a file, found none at nothing.ckpt; check --ckpt_path"),
            (["--config", "nothing.yaml"], "nothing.yaml"),
        ],
        quick=8,
    ),
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_value_is_answered_in_the_library_s_words(
    answer: Answer, tiny_words: list[str], words: list[str], said: str
) -> None:
    assert said in answer([*FIT, *tiny_words, *words])


def test_no_training_file_is_answered_with_the_option(answer: Answer, files: dict[str, str]) -> None:
    words = [*FIT, "--model.encoder.model_name_or_path", files["bert"], "--trainer.accelerator", "cpu"]
    assert "give --data.train FILE" in answer(words)


@pytest.mark.parametrize(
    ("command", "part"), rest_slow([("predict", "predict"), ("validate", "validation"), ("test", "test")])
)
def test_a_command_without_its_file_is_answered_with_the_option(
    answer: Answer, finished: dict[str, str], command: str, part: str
) -> None:
    words = [command, "--ckpt_path", finished["checkpoint"], "--trainer.accelerator", "cpu"]
    assert f"give --data.{part} FILE" in answer([*words, f"--data.{part}", "null"])


# Wrong files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    rest_slow(
        [
            ("empty.txt", b"", "empty.txt: expected at least one row with text, got an empty file"),
            ("blank.txt", b"\n  \n", "blank.txt: expected at least one row with text"),
            (
                "latin.txt",
                "gr\u00fcn\nblau\n".encode("latin-1"),
                "latin.txt:1: expected UTF-8, got the byte 0xfc",
            ),
            (
                "lines.jsonl",
                b'{"text": "a"}\n{"text": \n',
                "lines.jsonl:2: expected a JSON object, got invalid JSON",
            ),
            ("table.tsv", b"title\tdate\na\tb\n", "a column for text"),
            ("broken.txt.gz", gzip.compress(b"some text\n" * 50)[:25], "expected a whole gzip file"),
            ("texts.pdf", b"x", "a name that ends in .txt"),
        ],
        quick=3,
    ),
    ids=lambda value: value if isinstance(value, str) and "." in value[-8:] else "",
)
def test_a_wrong_file_is_named_with_its_line(
    answer: Answer, here: Path, tiny_words: list[str], name: str, content: bytes, said: str
) -> None:
    (here / name).write_bytes(content)
    assert said in answer([*FIT, *tiny_words, "--data.train", name])


def test_a_missing_file_is_answered_with_one_of_a_near_name(
    answer: Answer, here: Path, tiny_words: list[str], files: dict[str, str]
) -> None:
    tiny.write_texts(here / "sentences.txt")
    assert "did you mean sentences.txt?" in answer([*FIT, *tiny_words, "--data.train", "sentence.txt"])
    assert "did you mean sentences.txt?" in answer(["embed", "sentence.txt", "v.npy", "--model", files["bert"]])
    assert "expected a file" in answer(["evaluate", files["bert"], "nothing.tsv"])


def test_pairs_without_a_score_are_answered_with_the_column(
    answer: Answer, here: Path, files: dict[str, str]
) -> None:
    (here / "pairs.tsv").write_text("sentence1\tsentence2\na\tb\n")
    assert "a column for target" in answer(["evaluate", files["bert"], "pairs.tsv"])


@pytest.mark.parametrize("damage", ["cut short", "flipped"])
def test_a_damaged_checkpoint_is_answered_in_words(
    answer: Answer, here: Path, finished: dict[str, str], files: dict[str, str], damage: str
) -> None:
    content = bytearray(Path(finished["checkpoint"]).read_bytes())
    content[len(content) // 2] ^= 1
    (here / "bad.ckpt").write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    for command in ("fit", "test"):
        said = answer(
            [command, "--ckpt_path", "bad.ckpt", "--data.train", files["texts"], "--data.test", files["pairs"]]
        )
        assert "bad.ckpt: expected a whole checkpoint" in said


def test_a_damaged_model_folder_is_answered_in_words(answer: Answer, here: Path, files: dict[str, str]) -> None:
    folder = here / "model"
    tiny.save_bert(folder)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "expected" in answer(["embed", files["texts"], "v.npy", "--model", str(folder)])


# embed and evaluate


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["embed"], "required"),
        (["embed", "a.txt", "v.npy"], "--model"),
        (["embed", "a.txt", "v.csv", "--model", "m"], "ends in .npy, .tsv or .parquet, got '.csv'"),
        (["embed", "a.txt", "no/such/v.npy", "--model", "m"], "an existing folder, found none at no/such"),
        (["embed", "a.txt", "v.npy", "--model", "m", "--batch_size", "x"], "batch_size"),
        (["evaluate", "m"], "files"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_embed_and_evaluate_miss_is_said(answer: Answer, words: list[str], said: str) -> None:
    assert said in answer(words)


def test_a_model_that_is_not_there_is_said_before_any_text_is_encoded(
    answer: Answer, files: dict[str, str]
) -> None:
    said = answer(["embed", files["texts"], "v.npy", "--model", "no/such-model"])
    assert "expected a local folder or a name on the Hugging Face hub, got 'no/such-model'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["embed", "a.jsonl", "o.npy", "--model", "x", "--bounds", "depth=2"],
            "a.jsonl:1: expected at most 2 lists",
        ),
        (
            ["embed", "a.jsonl", "o.npy", "--model", "x", "--bounds", "width=2"],
            "expected line, depth, ratio, got 'width'",
        ),
        (["diagnose", "x", "a.jsonl", "--bounds", "line=9"], "a.jsonl:1: expected a line of at most 9 bytes"),
        (["evaluate", "x", "a.jsonl", "--bounds", "line"], "--bounds: expected NAME=N, got line"),
        (["search", "a.jsonl", "--model", "x", "--bounds", "line=9", "--", "-5"], "a.jsonl:1: expected a line"),
        (["embed", "--model", "x", "--", "-a.txt", "--out.npy"], "-a.txt: expected a file, got nothing there"),
        ([*FIT, "--", "a.jsonl"], "--: expected options alone, got -- a.jsonl"),
        ([*FIT, "--data.train", "-a.jsonl"], "-a.jsonl: expected a file, got nothing there"),
        ([*FIT, "--data.train", "a.jsonl", "--data.bounds.depth", "2"], "a.jsonl:1: expected at most 2 lists"),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, list) else "",
)
def test_bounds_are_options_and_behind_two_dashes_nothing_is_one(
    answer: Answer, here: Path, files: dict[str, str], words: list[str], said: str
) -> None:
    (here / "a.jsonl").write_text('{"text": "one", "more": [[["two"]]]}\n')
    encoder = ["--model.encoder.model_name_or_path", files["bert"]] if "--recipe" in words else []
    assert said in answer([*words[:3], *encoder, *words[3:]])


# What is not ours


def test_an_error_inside_a_user_s_own_part_keeps_its_traceback(
    tiny_words: list[str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "faulty_of_mine", raising=False)
    (here / "faulty_of_mine.py").write_text(
        "from contrastive_text.views import TextView\n"
        "class Faulty(TextView):\n"
        "    def __call__(self, text, rng):\n"
        "        raise ValueError('a slip of mine')\n"
    )
    views = '{"anchor": ["faulty_of_mine.Faulty"]}'
    assert run([*FIT, *tiny_words, "--model.views", views, "--trainer.max_steps", "1"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "faulty_of_mine.py" in said
    told = said[said.rindex("ValueError: a slip of mine") :].splitlines()
    assert told[1].startswith("on the text '") and told[1][len("on the text '") : -1] in tiny.TEXTS
    assert told[2] == "raised by views.anchor[0], Faulty"
    assert told[3].startswith("error: this is a bug, of the library or of a part of your own")


def test_a_column_without_its_name_is_refused(answer: Callable[[Sequence[str]], str]) -> None:
    said = answer(["evaluate", "model", "pairs.tsv", "--columns", "gold"])
    assert "--columns: expected NAME=COLUMN, got gold" in said


def test_a_part_of_lightning_that_refuses_its_arguments_is_named() -> None:
    first = RuntimeError("no server at\n127.0.0.1")
    second = ValueError("in between")
    second.__cause__ = first
    path = "pytorch_lightning.loggers.MLFlowLogger"
    third = ValueError(
        f"Does not validate against any\nGiven value: Namespace(class_path='{path}', init_args=None)"
    )
    third.__cause__ = second
    assert answer_of(third) == (
        "MLFlowLogger: expected arguments that it takes, got RuntimeError: no server at 127.0.0.1"
    )
    own = ValueError("Does not validate against any\nGiven value: Namespace(class_path='my_parts.Own')")
    own.__cause__ = second
    assert answer_of(own) is None  # whose bug keeps its traceback


# Memory


@pytest.mark.parametrize(
    ("error", "command", "expected"),
    [
        (
            MemoryError("Unable to allocate 9 GiB"),
            "embed",
            "allocate 9 GiB; give a smaller --batch_size",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "fit", "or --chunk auto"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to get 2 GiB"),
            "fit",
            "CUDA out of memory; give",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "search", "give a smaller --batch_size"),
        (
            RuntimeError("caused by insufficient shared memory (shm)."),
            "fit",
            "--data.num_workers 0",
        ),
        (MemoryError(), "export", "got MemoryError: no more; make batches smaller"),
    ],
)
def test_lack_of_memory_is_answered_as_such(error: Exception, command: str, expected: str) -> None:
    said = answer_of(error, command)
    assert said is not None and said.startswith("memory: expected enough of it, got ") and expected in said
    wrapped = InvalidValueError("a.ckpt: expected a checkpoint, got a damaged file")
    wrapped.__cause__ = error
    assert answer_of(wrapped, command) == said


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't allocate memory"), OSError(errno.ENOMEM, "")]
)
def test_lack_of_memory_is_no_damage_of_a_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    torch.save({}, tmp_path / "a.ckpt")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        read_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(type(error)):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")


def test_the_option_that_saves_memory_is_one_of_the_command() -> None:
    for command in ("embed", "search", "duplicates", "mine", "evaluate", "diagnose", "compare", "postprocess"):
        assert "batch_size" in {field.name for field in dataclasses.fields(RECORDS[command])}, command
