"""The retrieval suite: where its data are found, what is missing, and scores that are those of the vectors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from retrieval_files import write_beir
from torch import Tensor

from contrastive_text.data import RetrievalSet
from contrastive_text.data.prompts import NO_PROMPTS
from contrastive_text.data.retrieval import NANO_SETS
from contrastive_text.evaluation import find_retrieval, query_scores, score_retrieval
from contrastive_text.inference.search import rank_documents


def stub(vectors: dict[str, list[float]]) -> object:
    """Returns an encoder stub that returns the given vector of each text."""

    def embed(texts: list[str], prompt_name: str, kind: str) -> Tensor:
        assert prompt_name == kind in ("query", "document")
        return torch.tensor([vectors[text] for text in texts])

    embed.model = SimpleNamespace(device="cpu", prompts=NO_PROMPTS, is_sparse=False)  # type: ignore[attr-defined]  # a stub
    return embed


def test_a_folder_is_a_task_and_so_is_each_folder_in_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_beir(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert list(find_retrieval(tmp_path / "one")) == ["one"]
    found = find_retrieval(tmp_path)
    assert list(found) == ["one", "two"] and all(isinstance(each, RetrievalSet) for each in found.values())
    assert list(find_retrieval(tmp_path, tasks=["two"])) == ["two"]
    with pytest.raises(ValueError, match=r"tasks: expected one, two, got three"):
        find_retrieval(tmp_path, tasks=["three"])


def test_sets_of_nano_beir_that_are_not_there_say_where_to_get_them(tmp_path: Path) -> None:
    assert len(NANO_SETS) == 13
    (tmp_path / "NanoNQ").mkdir()
    write_beir(tmp_path / "NanoNQ", split="dev")  # the only judgments
    found = find_retrieval(tmp_path)
    assert [name for name, each in found.items() if isinstance(each, RetrievalSet)] == ["NanoNQ"]
    assert tuple(found) == NANO_SETS
    scores = score_retrieval(stub({}), {"NanoFEVER": found["NanoFEVER"]})  # type: ignore[arg-type]  # a stub
    assert scores[0].task == "NanoFEVER" and scores[0].score != scores[0].score
    assert "expected NanoFEVER/corpus.jsonl" in scores[0].missing and "give hub" in scores[0].missing
    with pytest.raises(FileNotFoundError, match="expected a folder of data sets or a file of pairs"):
        find_retrieval(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="corpus: expected a file of pairs together with it"):
        find_retrieval(tmp_path, corpus=["more.txt"])
    with pytest.raises(ValueError, match="columns: expected a file of pairs together with it"):
        find_retrieval(tmp_path, columns={"anchor": "searched"})


def test_the_hub_s_form_is_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "nano"
    tables = {
        "corpus": {"_id": ["d2", "d1"], "text": ["a dog", "a cat"]},
        "queries": {"_id": ["q"], "text": ["meow?"]},
        "qrels": {"query-id": ["q"], "corpus-id": ["d1"]},
    }
    head = ["---", "configs:"]
    for name, rows in tables.items():
        (folder / name).mkdir(parents=True)
        datasets.Dataset.from_dict(rows).to_parquet(str(folder / name / "rows.parquet"))
        head += [f"- config_name: {name}", "  data_files:", "  - split: NanoNQ", f"    path: {name}/rows.parquet"]
    (folder / "README.md").write_text("\n".join([*head, "---", ""]))
    found = find_retrieval(f"hub:{folder}", tasks=["NanoNQ", "NanoFEVER"])
    data = found["NanoNQ"]
    assert isinstance(data, RetrievalSet)
    assert (data.queries, data.documents, data.relevance) == (("meow?",), ("a cat", "a dog"), ({0: 1.0},))
    missing = found["NanoFEVER"]
    assert isinstance(missing, str) and "NanoFEVER" in missing and "or give a folder with" in missing


def test_scores_are_those_of_the_vectors(tmp_path: Path) -> None:
    vectors = {
        "what sings?": [1.0, 0.0], "which animals run?": [0.0, 1.0],
        "birds a bird sings in the tree": [0.8, 0.6], "two dogs run over the field": [0.6, 0.8],
        "cats a cat sleeps on the chair": [1.0, 0.1], "rain falls on the town": [0.0, -1.0],
    }  # fmt: skip
    data = find_retrieval(write_beir(tmp_path / "set"))
    (score,) = score_retrieval(stub(vectors), data)  # type: ignore[arg-type]  # a stub
    # q1: cats, birds (grade 2), ...; q2: dogs (1), birds (1), ...
    half = 1 / torch.tensor(3.0).log2().item()
    assert score.score == pytest.approx(100 * (half + 1) / 2)
    assert (score.metric, score.size) == ("ndcg@10", 2)
    assert score.parts["mrr@10"] == pytest.approx(75) and score.parts["recall@1"] == pytest.approx(25)
    (each,) = query_scores(stub(vectors), data).values()  # type: ignore[arg-type]  # a stub
    assert isinstance(each, Tensor) and each.tolist() == pytest.approx([half, 1])


def test_a_query_s_own_document_leaves_no_gap() -> None:
    vectors = torch.eye(3)
    assert rank_documents(vectors[:1], vectors, k=2, own=[0]).tolist() == [[1, 2]]
    assert rank_documents(vectors[:1], vectors, k=4, own=[0]).tolist() == [[1, 2, -1, -1]]
    assert rank_documents(vectors[:1], vectors, k=1, own=[-1]).tolist() == [[0]]
