"""mteb's tasks, on texts in memory: the model as mteb calls it, scores that are ours, files that are mteb's."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from parts import check_refused

from contrastive_text import SentenceEncoder
from contrastive_text.cli import run
from contrastive_text.core.config.class_paths import UntrustedError, import_from_working_directory, trusting
from contrastive_text.data import RetrievalSet
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation import score_retrieval
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.mteb import MTEBModel, find_mteb, organized_name, score_mteb
from contrastive_text.metrics import pair_similarity, spearman
from contrastive_text.poolers import MeanPooler

FIRST, SECOND, GOLD = (list(column) for column in zip(*tiny.scored_pairs(30), strict=True))
pytestmark = pytest.mark.slow  # mteb takes seconds to import

OF_TASK = SimpleNamespace(name="Local", type="STS")


@pytest.fixture(scope="module", autouse=True)
def mteb() -> Any:
    """The library, imported where a test asks for it: every worker of a run collects this file."""
    return pytest.importorskip("mteb", reason="the extra mteb is not installed")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of the user's own tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    shutil.copy(Path(__file__).parents[1] / "own_mteb_tasks.py", tmp_path / "mine.py")
    return tmp_path


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")


@pytest.fixture(scope="module")
def prompted(model: SentenceEncoder) -> SentenceEncoder:
    """With a prompt by task for each kind of task."""
    named = {"query": "an ", "document": "the ", "LocalSearch-query": "old ", "LocalPairs": "tall "}
    return SentenceEncoder(model.encoder, model.pooler, prompts=Prompts(named))


def own_tasks(*names: str) -> list[Any]:
    with import_from_working_directory(), trusting(["mine"]):
        return find_mteb([f"mine.{name}" for name in names])


@pytest.mark.slow
def test_scores_and_prompts_are_ours_and_the_files_are_mteb_s(
    mteb: Any, prompted: SentenceEncoder, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = MTEBModel(prompted, "mine/tiny")
    pairs, search, lost = score_mteb(adapter, own_tasks("Pairs", "Search", "Lost"), here / "out")

    u, v = (torch.as_tensor(prompted.encode(texts, prompt="tall ")) for texts in (FIRST, SECOND))
    cosines, gold = pair_similarity(u, v), torch.tensor(GOLD)
    assert cosines.sort().values.diff().min() > 1e-5  # else rounding in float32 would choose the order
    of_splits = [100 * float(spearman(cosines[:rows], gold[:rows])) for rows in (15, 30)]
    assert pairs.parts == pytest.approx(
        {"dev, default": of_splits[0], "test, default": of_splits[1]}, abs=1e-4
    )  # mteb rounds to six digits
    assert (pairs.task, pairs.metric) == ("LocalPairs", "cosine_spearman")
    assert pairs.score == pytest.approx(sum(of_splits) / 2, abs=1e-4)

    relevance = tuple({i: 1.0, i + 5: 1.0} for i in range(5))
    data = RetrievalSet(
        queries=tiny.TEXTS[:5], documents=tiny.TEXTS, relevance=relevance, own_documents=(-1,) * 5
    )
    (ours,) = score_retrieval(CachedEncoder(prompted), {"LocalSearch": data})
    assert search.score == pytest.approx(ours.score, abs=2e-3)  # mteb rounds a query's to five digits
    (plain,) = score_retrieval(CachedEncoder(prompted), {"Other": data})
    assert ours.score != pytest.approx(plain.score, abs=0.1)  # the prompt of the data set counts

    assert np.isnan(lost.score) and "got ConnectionError (no way to the hub)" in lost.missing
    folder = here / "out" / "results" / "mine__tiny" / prompted.identity
    assert {path.stem for path in folder.glob("Lo*.json")} == {"LocalPairs", "LocalSearch"}
    own = mteb.TaskResult.from_disk(folder / "LocalPairs.json")
    assert 100 * own.get_score() == pytest.approx(pairs.score, abs=1e-3)
    monkeypatch.setattr(prompted, "encode", None)  # what is there isn't run again
    (again,) = score_mteb(MTEBModel(prompted, "mine/tiny"), own_tasks("Pairs"), here / "out")
    assert again.score == pytest.approx(pairs.score, abs=1e-3)


@pytest.mark.slow
def test_the_shell_prints_main_scores_and_fills_the_folder(
    bert: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", bert, "--suite", "mteb", "--tasks", "mine.Pairs", "--trust", "mine"]
    assert run([*words, "--output", "out", "--format", "json"]) == 0
    captured = capsys.readouterr()
    (row,) = json.loads(captured.out)["mteb"]["models"][bert]["tasks"]
    (file,) = (here / "out" / "results").rglob("LocalPairs.json")
    stored = json.loads(file.read_text())["scores"]
    assert [row["parts"][f"{split}, default"] for split in stored] == pytest.approx(
        [100 * scores[0]["main_score"] for scores in stored.values()], abs=1e-3
    )
    assert "mteb's results are in out/results" in captured.err and "names no pooler" in captured.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: find_mteb(["stsbenchmark"]), ["--tasks", "'stsbenchmark'", "did you mean STS"]),
        (lambda _: find_mteb(["Touche2020Retrieval.v9"]), ["did you mean Touche2020Retrieval.v3"]),  # not a class
        (lambda _: find_mteb(["qqqq"]), ["'qqqq'", "module.Class of your own"]),
        (lambda _: find_mteb([]), ["--tasks", "STSBenchmark", "got no name"]),
        (lambda _: find_mteb(["CIFAR10"]), ["CIFAR10", "image"]),
        (lambda model: MTEBModel(model, "simcse"), ["organization/name", "'simcse'"]),
        (lambda model: MTEBModel(model, "/simcse"), ["organization/name"]),
        (lambda model: MTEBModel(model, "a/b/c"), ["organization/name"]),
        (
            lambda model: MTEBModel(model, "mine/tiny").encode(
                [{"image": ["?"]}], task_metadata=OF_TASK, hf_split="", hf_subset=""
            ),
            ["texts", "image"],
        ),
    ],
)
def test_wrong_tasks_names_and_inputs_are_refused(
    model: SentenceEncoder, call: Callable[[SentenceEncoder], object], words: list[str]
) -> None:
    check_refused(lambda: call(model), ValueError, words)


@pytest.mark.slow
def test_tasks_are_found_once_and_untrusted_ones_are_not_imported() -> None:
    assert [task.metadata.name for task in find_mteb(["STS12", "STS12", "SciFact"])] == ["STS12", "SciFact"]
    with pytest.raises(UntrustedError, match="nothing was imported: if you know what mine does"):
        find_mteb(["mine.Pairs"])


def test_without_mteb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"--tasks: expected mteb, .*pip install 'contrastive-text\[mteb\]'"):
        find_mteb(["STS12"])


@pytest.mark.parametrize(
    ("path", "name"),
    [("BAAI/bge-m3", "BAAI/bge-m3"), ("/runs/version_0/model/", "version_0/model"), ("/m", "local/m")],
)
def test_a_model_is_filed_under_its_last_two_folders(path: str, name: str) -> None:
    assert organized_name(path) == name


# The adapter


@pytest.mark.slow
def test_the_adapter_is_an_encoder_to_mteb(mteb: Any, model: SentenceEncoder) -> None:
    adapter = MTEBModel(model, "mine/tiny")
    assert isinstance(adapter, mteb.EncoderProtocol)
    meta = adapter.mteb_model_meta
    assert (meta.embed_dim, meta.max_tokens, meta.use_instructions) == (16, 32, False)
    assert meta.similarity_fn_name == "cosine"


def test_batches_come_back_as_one_array_in_order(model: SentenceEncoder) -> None:
    adapter = MTEBModel(model, "mine/tiny")
    batches = [{"text": FIRST[:20]}, {"text": FIRST[20:]}]
    vectors = adapter.encode(batches, task_metadata=OF_TASK, hf_split="test", hf_subset="default")
    np.testing.assert_allclose(vectors, model.encode(FIRST), atol=1e-6)  # float32; the same batches
    pairs = adapter.similarity_pairwise(vectors[:5], vectors[5:10])
    torch.testing.assert_close(pairs, adapter.similarity(vectors[:5], vectors[5:10]).diagonal())


@pytest.mark.parametrize("lacking", [(), ("Local-query",), ("Local-query", "STS")], ids=str)
@pytest.mark.parametrize("kind", [None, "query", "document"])
def test_a_text_gets_the_prompt_that_mteb_names(
    mteb: Any, model: SentenceEncoder, kind: str | None, lacking: tuple[str, ...]
) -> None:
    named = {"query": "an ", "document": "the ", "Local-query": "old ", "STS": "bird ", "Local": "man "}
    prompts = Prompts({name: text for name, text in named.items() if name not in lacking}, default="document")
    prompted = SentenceEncoder(model.encoder, model.pooler, prompts=prompts)
    asked = None if kind is None else mteb.types.PromptType(kind)
    expected = mteb.models.abs_encoder.get_prompt_name(dict(prompts.named), OF_TASK, asked)
    batches = [{"text": FIRST[:3]}]
    found = MTEBModel(prompted, "mine/tiny").encode(
        batches, task_metadata=OF_TASK, hf_split="", hf_subset="", prompt_type=asked
    )
    np.testing.assert_array_equal(found, prompted.encode(FIRST[:3], prompt_name=expected))
