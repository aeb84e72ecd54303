"""``SparseStaticEncoder`` and SPLADE-doc: the loss in plain torch, ranks, saved models, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from architectures import ROWS, ragged
from executions import Execution, compare, execute
from processes import free_ports, meeting, start_all
from resume.runs import check_same, flat
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SparseStaticEmbedding, SpladePooling
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.core.types import Slot
from contrastive_text.encoders import AsymmetricEncoder, SparseStaticEncoder
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import FLOPS, Contrastive, MaskedLM, Matryoshka
from contrastive_text.pairings import Given
from contrastive_text.poolers import CLSPooler, MeanPooler, SpladePooler
from contrastive_text.training import ContrastiveModule
from contrastive_text.training.optim import ConstantSchedule
from contrastive_text.views import MaskTokens

TEXTS = [*tiny.TEXTS[:6], "a bird, a bird and a dog", ""]
PAIR = (Slot("anchor", 0), Slot("positive", 0))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bert"
    # As many rows as tokens, which sentence-transformers needs to compare queries with documents.
    return tiny.save_masked_lm(folder, initializer_range=0.1, vocab_size=171)


def splade_doc(bert: str, **options: object) -> AsymmetricEncoder:
    return AsymmetricEncoder(bert, document_pooler=SpladePooler(), **options)  # type: ignore[arg-type]  # of the encoder


def module_of(bert: str, **options: object) -> ContrastiveModule:
    encoder = AsymmetricEncoder(
        query=SparseStaticEncoder(bert),
        document=TransformerEncoder(bert, dropout=0.0),
        document_pooler=SpladePooler(),
    )
    objectives = {"c": Contrastive(InfoNCE(1.0, similarity="dot"), columns=[]), "flops": FLOPS(0.0, 0.1)}
    return ContrastiveModule(encoder, objectives=objectives, **options).double()  # type: ignore[arg-type]  # of the module


def test_the_loss_and_the_gradients_of_both_sides_are_those_in_plain_torch(bert: str) -> None:
    module, batch = module_of(bert), ragged(*ROWS, slots=PAIR)
    weight = torch.linspace(0.5, 2, 171, dtype=torch.float64, requires_grad=True)
    module.get_parameter("encoder.query.weight").data.copy_(weight)
    network = AutoModelForMaskedLM.from_pretrained(bert).double().eval()
    rows = torch.split(batch.ids, batch.lengths.tolist())
    half = len(rows) // 2
    cls, sep = AutoTokenizer.from_pretrained(bert)("")["input_ids"]
    queries = []
    for row in rows[:half]:
        inner = row[int(row[0] == cls) : len(row) - int(row[-1] == sep)]
        queries.append(torch.zeros(171, dtype=torch.float64).index_fill(0, inner, 1.0) * weight)
    documents = torch.stack([network(row[None]).logits[0].relu().log1p().amax(dim=0) for row in rows[half:]])
    scores = torch.stack(queries) @ documents.T
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(half))
    expected = expected + 0.1 * documents.mean(dim=0).square().sum()
    found = module.training_step(batch, 0)
    # float64: sums in another order, relative to the largest entry
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    expected.backward()
    found.backward()
    pairs = [
        ("query.weight", weight.grad),
        ("document.model.embeddings.word_embeddings.weight", network.get_input_embeddings().weight.grad),
    ]
    for name, gradient in pairs:
        own = module.get_parameter(f"encoder.{name}").grad
        assert own is not None and gradient is not None and gradient.any()
        assert (own - gradient).abs().max() <= 1e-10 * gradient.abs().max()


# Ranks and resumed runs

EXECUTIONS = [
    Execution("InfoNCE", "no views", layout, parts, "dense", "two uneven ranks")
    for layout, parts in (("packed", "whole"), ("bucketed", "chunked"))
]


def take_steps(number: int, port: int, folder: str, bert: str) -> None:
    """One of two ranks: takes steps in each way."""
    plain = torch.load(Path(folder) / "plain.pt", weights_only=False)
    with meeting(number, world=2, port=port):
        wrong = [compare(execute(execution, module_of(bert)), plain).wrong for execution in EXECUTIONS]
    torch.save(wrong, Path(folder) / f"{number}.pt")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with more rows than tokens, for batches of any ids."""
    return tiny.save_masked_lm(tmp_path_factory.mktemp("wide") / "bert", initializer_range=0.1)


@pytest.mark.slow
def test_ranks_and_chunks_give_one_gradient(wide: str, tmp_path: Path) -> None:
    torch.save(execute(EXECUTIONS[0].plain, module_of(wide)), tmp_path / "plain.pt")
    start_all(take_steps, 2, free_ports(1)[0], str(tmp_path), wide)
    for number in range(2):
        assert torch.load(tmp_path / f"{number}.pt", weights_only=True) == [""] * len(EXECUTIONS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_a_resumed_run_has_the_weights_of_a_run_without_a_stop(bert: str, tmp_path: Path) -> None:
    def weights(folder: Path, steps: int, resume: str | None = None) -> dict[str, Tensor]:
        objectives = {"c": Contrastive(InfoNCE(1.0, similarity="dot")), "flops": FLOPS(0.0, 0.1, 3)}
        module = ContrastiveModule(
            splade_doc(bert, frozen="query"), objectives=objectives, chunk_tokens=40, schedule=ConstantSchedule()
        )
        trainer = tiny.trainer(folder, max_steps=steps)
        data = tiny.data(tiny.write_triples(tmp_path / "triples.jsonl"), pairing=Given())
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        trainer.save_checkpoint(folder / "last.ckpt")
        return dict(flat(module.state_dict()))

    whole = weights(tmp_path / "whole", 4)
    weights(tmp_path / "stopped", 2)
    check_same(whole, weights(tmp_path / "stopped", 4, str(tmp_path / "stopped" / "last.ckpt")))
    assert (whole["encoder.query.weight"] == 1).all()
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "whole" / "last.ckpt")
    check_same(whole, dict(flat(loaded.state_dict())))
    copy = loaded.encoder.clone()
    check_same(dict(flat(loaded.encoder.state_dict())), dict(flat(copy.state_dict())))


# Saved model


def check_equal(theirs: SparseEncoder, ours: SentenceEncoder) -> None:
    for kind in ("query", "document"):
        expected = getattr(theirs, f"encode_{kind}")(TEXTS).to_dense().numpy()
        # Weights of about 1, in float32.
        found = getattr(ours, f"encode_{kind}")(TEXTS).toarray()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=kind)


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    encoder = splade_doc(bert)
    encoder.query.weight.data.copy_(torch.linspace(0.5, 2, 171))  # type: ignore[union-attr]  # of tokens
    return SentenceEncoder(encoder, MeanPooler(), max_length=12, similarity_fn_name="dot")


def test_a_folder_of_ours_has_equal_vectors_in_sentence_transformers(
    model: SentenceEncoder, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "ours")
    theirs = SparseEncoder(str(tmp_path / "ours"), device="cpu")
    check_equal(theirs, model)
    again = SentenceEncoder.from_pretrained(tmp_path / "ours", device="cpu")
    check_equal(theirs, again)
    assert (again.identity, again.similarity_fn_name) == (model.identity, "dot")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    check_equal(theirs, SentenceEncoder.from_pretrained(tmp_path / "theirs", device="cpu"))


@pytest.mark.filterwarnings("ignore:.*Different max_seq_lengths")
def test_folders_of_sentence_transformers_have_equal_vectors_here(bert: str, tmp_path: Path) -> None:
    query = SparseStaticEmbedding(AutoTokenizer.from_pretrained(bert), torch.linspace(0.5, 2, 171), frozen=True)
    document = [MLMTransformer(bert, transformer_task="fill-mask"), SpladePooling()]
    theirs = SparseEncoder(modules=[Router.for_query_document([query], document)], device="cpu")
    theirs.save_pretrained(str(tmp_path / "router"))
    check_equal(theirs, SentenceEncoder.from_pretrained(tmp_path / "router", device="cpu"))
    SparseEncoder(modules=[query], device="cpu").save_pretrained(str(tmp_path / "alone"))
    with pytest.raises(ValueError, match=r"got .*SparseStaticEmbedding; load this model with sentence-transf"):
        SentenceEncoder.from_pretrained(tmp_path / "alone")


def test_a_query_finds_documents_by_its_own_tokens(model: SentenceEncoder, wide: str) -> None:
    queries = model.encode_query("a bird, a bird")
    (weights,) = model.decode(queries)
    assert weights.keys() == {"a", "bird", "[UNK]"}
    documents = model.encode_document(TEXTS[:4])
    scores = queries.toarray() @ documents.toarray().T
    hits = model.search("a bird, a bird", documents, top_k=4)
    assert [hit.score for hit in hits[0]] == pytest.approx(sorted(scores[0].tolist(), reverse=True))
    both = [SentenceEncoder(splade_doc(wide), MeanPooler()).encode_query("a bird") for _ in range(2)]
    assert both[0].shape == (1, 300) and (both[0] != both[1]).nnz == 0


# Refusals


def test_parts_that_do_not_fit_are_refused(bert: str) -> None:
    queries, network = SparseStaticEncoder(bert), TransformerEncoder(bert)
    with pytest.raises(ValueError, match=r"encoder: .*got sparse vectors of the query encoder only; set Splade"):
        AsymmetricEncoder(query=queries, document=network)
    with pytest.raises(ValueError, match=r"encoder: .*got sparse vectors of the document encoder only"):
        AsymmetricEncoder(query=network, document=network, document_pooler=SpladePooler())
    with pytest.raises(
        ValueError, match=r"query_pooler: expected none, because SparseStaticEncoder pools, got CLS"
    ):
        splade_doc(bert, query_pooler=CLSPooler())
    with pytest.raises(ValueError, match=r"expected views without new tokens with sparse vectors, got \[NEW\]"):
        splade_doc(bert).add_tokens(["[NEW]"])
    with pytest.raises(ValueError, match=r"objectives\.c: expected an objective of whole vectors"):
        ContrastiveModule(splade_doc(bert), objectives={"c": Matryoshka(Contrastive(), [16, 8])})
    with pytest.raises(ValueError, match="masked-language-model head"):
        ContrastiveModule(
            splade_doc(bert),
            views={"anchor": [MaskTokens()]},
            objectives={"c": Contrastive(), "mlm": MaskedLM()},
        )


QUERY = Path("0_Router", "query_0_SparseStaticEmbedding")
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file of weights": (
        lambda at: (at / QUERY / "config.json").write_text('{"path": "idf.json"}'), "path: expected null",
    ),
    "too few weights": (
        lambda at: save_file({"weight": torch.ones(20)}, at / QUERY / "model.safetensors"),
        r"each of the tokenizer's 171 tokens, got weight \(20,\)",
    ),
    "no number": (
        lambda at: save_file({"weight": torch.full((171,), torch.nan)}, at / QUERY / "model.safetensors"),
        "expected weight, a finite number",
    ),
    "a dense model": (
        lambda at: (at / "config_sentence_transformers.json").write_text('{"model_type": "SentenceTransformer"}'),
        "SparseEncoder exactly with",
    ),
    "no settings": (lambda at: (at / QUERY / "config.json").unlink(), "expected a file of the model"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_folder_with_other_files_is_refused(name: str, model: SentenceEncoder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    damage, words = DAMAGED[name]
    damage(tiny.by_hand(tmp_path / "model"))
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path / "model")
