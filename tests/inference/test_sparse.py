"""Sparse vectors: equal in sentence-transformers in both directions, search, retrieval, and refusals."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from processes import free_ports, meeting, start_all
from retrieval_files import write_beir
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.cli import run
from contrastive_text.data.batching import collate_texts
from contrastive_text.evaluation import find_retrieval, query_scores
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.search import rank_documents
from contrastive_text.inference.sparse import comparable, is_sparse, to_csr
from contrastive_text.poolers import SpladePooler
from contrastive_text.training import ContrastiveModule
from contrastive_text.training.held_out import _gather_sparse

TEXTS = list(tiny.TEXTS[:9])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    # With weights of 0.3 the rounding of float32 is above 1e-6.
    return tiny.save_masked_lm(tmp_path_factory.mktemp("models") / "bert", initializer_range=0.1)


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    encoder = SentenceEncoder.from_pretrained(bert, pooler=SpladePooler(), device="cpu")
    encoder.similarity_fn_name = "dot"
    return encoder


@pytest.fixture(scope="module")
def folder(model: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    model.save_pretrained(path)
    return path


def dense(vectors: torch.Tensor) -> np.ndarray:
    return vectors.to_dense().numpy()


# Saved model


def test_a_folder_of_ours_has_equal_vectors_in_sentence_transformers(
    model: SentenceEncoder, folder: Path
) -> None:
    expected = model.encode(TEXTS)
    theirs, again = (
        SparseEncoder(str(folder), device="cpu"),
        SentenceEncoder.from_pretrained(folder, device="cpu"),
    )
    # Weights of about 1, in float32.
    np.testing.assert_allclose(dense(theirs.encode(TEXTS)), expected.toarray(), rtol=1e-6, atol=1e-6)
    assert theirs.similarity_fn_name == again.similarity_fn_name == "dot"
    assert (again.encode(TEXTS) != expected).nnz == 0 and again.identity == model.identity
    types = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert types == ["MLMTransformer", "SpladePooling"]
    theirs.save_pretrained(str(folder.parent / "theirs"))
    here = SentenceEncoder.from_pretrained(folder.parent / "theirs", device="cpu")
    assert (here.encode(TEXTS) != expected).nnz == 0


@pytest.mark.parametrize("network", [Transformer, MLMTransformer])
def test_a_folder_of_sentence_transformers_has_equal_vectors_here(
    network: type[Transformer], bert: str, tmp_path: Path
) -> None:
    modules = [network(bert, transformer_task="fill-mask"), SpladePooling()]
    theirs = SparseEncoder(modules=modules, device="cpu")
    theirs.save_pretrained(str(tmp_path))
    here = SentenceEncoder.from_pretrained(tmp_path, device="cpu")
    assert here.similarity_fn_name == "dot"  # their default
    np.testing.assert_allclose(here.encode(TEXTS).toarray(), dense(theirs.encode(TEXTS)), rtol=1e-6, atol=1e-6)
    ((token, weight),) = theirs.decode(theirs.encode(TEXTS[:1]), 1)[0]
    assert here.decode(here.encode(TEXTS[0]), 1) == [{token: pytest.approx(weight)}]


def settings(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


DAMAGED = {
    "sum": (lambda at: settings(at / "1_SpladePooling/config.json", pooling_strategy="sum"), "expected 'max'"),
    "log1p": (
        lambda at: settings(at / "1_SpladePooling/config.json", activation_function="log1p_relu"), "'relu'",
    ),
    "task": (
        lambda at: settings(at / "sentence_bert_config.json", transformer_task="text-generation"), "fill-mask",
    ),
    "most": (lambda at: settings(at / "config_sentence_transformers.json", max_active_dims=8), "max_active_dims"),
    "dense": (
        lambda at: settings(at / "config_sentence_transformers.json", model_type="SentenceTransformer"),
        "SparseEncoder exactly with a SpladePooling",
    ),
    "order": (lambda at: (at / "modules.json").write_text((at / "modules.json").read_text().replace(
        "sparse_encoder.models.SpladePooling", "models.Pooling")), "expected a Transformer, then"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_folder_with_other_settings_is_refused(name: str, model: SentenceEncoder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    damage, words = DAMAGED[name]
    damage(tiny.by_hand(tmp_path))
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path)


def test_a_model_without_the_weights_of_the_head_is_refused(tmp_path: Path) -> None:
    headless = tiny.save_bert(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"bert: expected the weights of a masked-language-model head"):
        SentenceEncoder.from_pretrained(headless, pooler="SpladePooler")
    with pytest.raises(ValueError, match=r"backend: expected torch for SpladePooler"):
        SentenceEncoder.from_pretrained(headless, pooler="SpladePooler", backend="onnx")


# Encode and search


def test_encode_gives_csr_rows_a_sparse_tensor_or_weights_of_tokens(model: SentenceEncoder) -> None:
    rows = model.encode(TEXTS, batch_size=2)
    assert is_sparse(rows) and rows.shape == (9, 300) and rows.dtype == np.float32
    whole = model(collate_texts(model.tokenizer, model.tokenizer.tokenize_with_template(TEXTS))).detach().numpy()
    np.testing.assert_allclose(rows.toarray(), whole, rtol=1e-5, atol=1e-6)
    tensor = model.encode(TEXTS, batch_size=2, convert_to_tensor=True)
    assert torch.equal(tensor.to_dense(), torch.from_numpy(rows.toarray()))
    assert model.encode(TEXTS[0]).shape == (1, 300) and model.encode([]).shape == (0, 300)
    units = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose((units * units).sum(axis=1), np.ones(9), rtol=1e-6)
    weights = model.decode(rows, top_k=3)
    assert [len(each) for each in weights] == [3] * 9
    assert [*weights[0].values()] == sorted(rows[[0]].data.tolist(), reverse=True)[:3]
    assert len(model.decode(rows)[0]) == rows[[0]].nnz
    with pytest.raises(ValueError, match=r"decode: expected sparse vectors of encode, got Tensor"):
        model.decode(torch.ones(2, 300))


@pytest.mark.parametrize("name", ["dot", "cosine"])
def test_search_ranks_like_dense_products(name: str) -> None:
    noise = torch.Generator().manual_seed(0)
    queries, documents = (torch.randn(n, 40, generator=noise).relu().mul(4).round() for n in (7, 50))
    documents[10] = documents[3]  # equal scores: the lower number first
    scores = queries @ documents.T
    if name == "cosine":
        scores = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(documents).T
    rows, columns = (comparable(name, to_csr(vectors)) for vectors in (queries, documents))
    ids = rank_documents(rows, columns, k=9)
    # Sums in another order.
    torch.testing.assert_close(scores.gather(1, ids), scores.topk(9).values, rtol=1e-5, atol=0)
    if name == "dot":  # of whole numbers: exact, with equal scores
        assert torch.equal(ids, scores.sort(descending=True, stable=True).indices[:, :9])
    without = [[n for n in row if n != own][:8] for own, row in enumerate(ids.tolist())]
    assert rank_documents(rows, columns, k=8, own=range(7)).tolist() == without
    with pytest.raises(ValueError, match=r"expected sparse vectors .*\(7, 40\) and \(50, 300\)"):
        rank_documents(rows, to_csr(torch.zeros(50, 300)), k=2)
    with pytest.raises(ValueError, match=r"similarity_fn_name of sparse vectors: expected dot or cosine"):
        comparable("euclidean", rows)


def test_search_and_similarity_of_texts(model: SentenceEncoder) -> None:
    rows = model.encode(TEXTS)
    scores = torch.from_numpy(rows.toarray() @ rows.toarray().T)
    torch.testing.assert_close(model.similarity(rows, rows), scores)
    torch.testing.assert_close(model.similarity_pairwise(rows, rows), scores.diagonal())
    hits = model.search(TEXTS[:2], TEXTS, top_k=3)
    assert hits == model.search(TEXTS[:2], rows, top_k=3)
    assert [[hit.corpus_id for hit in row] for row in hits] == scores[:2].topk(3).indices.tolist()


def test_sparse_tensors_are_taken_where_arrays_are_and_dense_vectors_are_refused(model: SentenceEncoder) -> None:
    rows, tensor = model.encode(TEXTS), model.encode(TEXTS, convert_to_tensor=True)
    assert torch.equal(model.similarity(tensor, rows), model.similarity(rows, rows))
    assert torch.equal(model.similarity_pairwise(tensor, tensor), model.similarity_pairwise(rows, rows))
    assert model.search(TEXTS[:2], tensor, top_k=3) == model.search(TEXTS[:2], rows, top_k=3)
    assert model.decode(tensor, top_k=4) == model.decode(rows, top_k=4)
    for compare in (model.similarity, model.similarity_pairwise):
        with pytest.raises(ValueError, match="expected sparse vectors on both sides, got Tensor"):
            compare(tensor, tensor.to_dense())
    with pytest.raises(ValueError, match="expected sparse vectors on both sides, got ndarray"):
        model.search(TEXTS[:2], rows.toarray())


@pytest.mark.slow
def test_threads_may_encode_with_one_model(model: SentenceEncoder) -> None:
    expected, found = model.encode(TEXTS), {}

    def encode(number: int) -> None:
        found[number] = [model.encode(TEXTS, batch_size=1) for _ in range(3)]

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for number in found if any(abs(rows - expected).max() > 1e-5 for rows in found[number])] == []


# Retrieval


def test_retrieval_scores_are_those_of_dense_products_and_are_stored(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    write_beir(tmp_path / "set")
    tasks = find_retrieval(tmp_path / "set")
    (data,) = tasks.values()
    queries, documents = (model.encode(texts).toarray() for texts in (data.queries, data.documents))
    order = torch.from_numpy(queries @ documents.T).sort(descending=True, stable=True).indices.tolist()
    gains = [
        sum(data.relevance[q].get(d, 0) / np.log2(place + 2) for place, d in enumerate(row[:10]))
        for q, row in enumerate(order)
    ]
    embed = CachedEncoder(model, tmp_path / "cache")
    (scores,) = query_scores(embed, tasks).values()
    best = [
        sum(gain / np.log2(place + 2) for place, gain in enumerate(sorted(relevant.values(), reverse=True)))
        for relevant in data.relevance
    ]
    np.testing.assert_allclose(scores, np.array(gains) / best, rtol=1e-9)
    again = CachedEncoder(model, tmp_path / "cache")
    (stored,) = query_scores(again, tasks).values()
    assert torch.equal(stored, scores) and again.encoded == 0
    with pytest.raises(ValueError, match=r"evaluate: expected a model with dense vectors"):
        embed(TEXTS)


def gather(number: int, folder: str, port: int) -> None:
    rows = to_csr(torch.eye(6)[: 2 + number] * (1 + number))
    with meeting(number, world=2, port=port):
        whole = _gather_sparse(rows, torch.zeros(1), [2, 3])
    torch.save(torch.from_numpy(whole.toarray()), f"{folder}/{number}.pt")


@pytest.mark.slow
def test_ranks_gather_sparse_rows(tmp_path: Path) -> None:
    start_all(gather, 2, str(tmp_path), free_ports(1)[0])
    expected = torch.cat([torch.eye(6)[:2], 2 * torch.eye(6)[:3]])
    assert all(torch.equal(torch.load(tmp_path / f"{number}.pt"), expected) for number in (0, 1))


# Commands


@pytest.mark.slow
def test_a_trained_model_is_searched_and_scored_and_other_commands_refuse_it(
    bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts, pairs = tiny.write_texts(tmp_path / "texts.txt"), tiny.write_triples(tmp_path / "triples.jsonl")
    write_beir(tmp_path / "set")
    words = ["fit", "--recipe", "splade", "--encoder", bert, "--model.encoder.max_length", "16"]
    words += ["--data.train", pairs, "--data.retrieval.files", "set", "--data.batch_size", "4"]
    words += ["--trainer.max_steps", "2", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", "run"]
    words += ["--export.dirpath", "model", "--data.num_workers", "0", "--trainer.enable_progress_bar", "false"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert "contrastive-text search" in said.out and "contrastive-text embed" not in said.out
    assert "SparseEncoder" in (tmp_path / "model" / "README.md").read_text()
    assert run(["search", texts, tiny.TEXTS[0], "--model", "model", "--top_k", "2", "--format", "tsv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    model = SentenceEncoder.from_pretrained("model", device="cpu")
    hits = model.search(tiny.TEXTS[0], tiny.TEXTS, top_k=2)[0]
    assert [line.split("\t")[4] for line in lines[1:]] == [tiny.TEXTS[hit.corpus_id] for hit in hits]
    assert run(["evaluate", "model", "--suite", "retrieval", "--data", "set", "--device", "cpu"]) == 0
    refused = [
        ["embed", texts, "vectors.npy", "--model", "model"],
        ["index", "build", texts, "index", "--model", "model"],
        ["duplicates", texts, "duplicates.tsv", "--model", "model"],
        ["onnx", "model", "graph"],
        ["evaluate", "model", tiny.write_pairs(tmp_path / "pairs.tsv"), "--device", "cpu"],
    ]
    for command in refused:
        capsys.readouterr()
        assert run(command) == 2, command
        assert "dense vectors" in capsys.readouterr().err, command


@pytest.mark.slow
def test_a_run_goes_on_from_a_saved_model(model: SentenceEncoder, folder: Path) -> None:
    module = ContrastiveModule.from_recipe("splade", str(folder))
    assert isinstance(module.pooler, SpladePooler) and isinstance(module.encoder, TransformerEncoder)
    again = module.eval().sentence_encoder().encode(TEXTS)
    assert abs(again - model.encode(TEXTS)).max() == 0
