"""The adapter for mteb: its tasks, on data in memory, score what ours do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from contrastive_text import SentenceEncoder
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.mteb_model import MTEBModel
from contrastive_text.metrics import pair_similarity, spearman
from contrastive_text.poolers import MeanPooler

FIRST, SECOND, GOLD = (list(column) for column in zip(*tiny.scored_pairs(30), strict=True))
OF_TASK = SimpleNamespace(name="Local", type="STS")


@pytest.fixture(scope="module", autouse=True)
def mteb() -> Any:
    """The library, imported where a test asks for it: every worker of a run collects this file."""
    return pytest.importorskip("mteb", reason="the extra mteb is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("mteb") / "bert")
    return SentenceEncoder.from_pretrained(folder, pooler=MeanPooler(), device="cpu")


def local_task(kind: str, score: str, splits: dict[str, dict[str, Any]], **attributes: Any) -> Any:
    """Returns a task of mteb over columns in memory."""
    import datasets
    import mteb

    loaded = datasets.DatasetDict({name: datasets.Dataset.from_dict(each) for name, each in splits.items()})
    metadata = mteb.TaskMetadata(
        name=f"Local{kind}", description="of local texts", type=kind, category="t2t", modalities=["text"],
        reference=None, dataset={"path": "local/none", "revision": "1"}, eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score=score, date=None, domains=None, task_subtypes=None, license=None,
        annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
    )  # fmt: skip

    def load_data(self: Any, **_: Any) -> None:
        self.dataset, self.data_loaded = loaded, True

    base = getattr(mteb.abstasks, f"AbsTask{kind}")
    return type(f"Local{kind}", (base,), {"metadata": metadata, "load_data": load_data, **attributes})()


def evaluate(mteb: Any, model: SentenceEncoder, task: Any) -> dict[str, float]:
    found = mteb.evaluate(
        MTEBModel(model, "mine/tiny"), task, cache=None, show_progress_bar=False, co2_tracker=False
    )
    assert (found.model_name, found.model_revision) == ("mine/tiny", model.identity)
    (scores,) = found.task_results[0].scores["test"]
    return dict(scores)


def test_an_sts_task_scores_what_ours_does(mteb: Any, model: SentenceEncoder) -> None:
    columns = {"sentence1": FIRST, "sentence2": SECOND, "score": GOLD}
    scores = evaluate(mteb, model, local_task("STS", "cosine_spearman", {"test": columns}))
    u, v = (torch.as_tensor(model.encode(texts)) for texts in (FIRST, SECOND))
    cosines = pair_similarity(u, v)
    assert cosines.sort().values.diff().min() > 1e-4  # else rounding in float32 would choose the order
    expected = float(spearman(cosines, torch.tensor(GOLD)))
    assert scores["cosine_spearman"] == pytest.approx(expected, abs=1e-6)
    assert scores["spearman"] == pytest.approx(expected, abs=1e-6)  # of similarity_pairwise


def test_a_classification_task_runs_over_the_same_vectors(mteb: Any, model: SentenceEncoder) -> None:
    columns = {"text": list(tiny.TEXTS), "label": [int("bird" in text) for text in tiny.TEXTS]}
    splits = {"train": columns, "test": columns}
    task = local_task("Classification", "accuracy", splits, n_experiments=2, samples_per_label=8)
    assert evaluate(mteb, model, task)["accuracy"] > 0.8  # 8 of 40 texts have a bird


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


@pytest.mark.parametrize("name", ["simcse", "mine/", "/simcse", "a/b/c"])
def test_a_name_that_mteb_would_refuse_is_refused_at_once(model: SentenceEncoder, name: str) -> None:
    with pytest.raises(ValueError, match="expected organisation/name, got"):
        MTEBModel(model, name)


def test_inputs_without_texts_are_refused(model: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="expected texts, got image; choose tasks of text"):
        MTEBModel(model, "mine/tiny").encode([{"image": ["?"]}], task_metadata=OF_TASK, hf_split="", hf_subset="")
