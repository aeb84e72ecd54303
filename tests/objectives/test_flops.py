"""``FLOPS`` and ``SpladePooler``: the loss of SPLADE in plain torch, the schedule, parts, and refusals."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import tiny
import torch
from architectures import ROWS, ragged
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from transformers import AutoModelForMaskedLM

from contrastive_text import TransformerEncoder, poolers
from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives import FLOPS, Contrastive, Matryoshka, Quantized
from contrastive_text.poolers import ConcatPooler, MeanPooler, SpladePooler
from contrastive_text.training import ContrastiveModule
from contrastive_text.training.module import Inference

PAIR = (Slot("anchor", 0), Slot("positive", 0))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_masked_lm(tmp_path_factory.mktemp("models") / "bert")


def splade(bert: str, warmup_steps: int = 0, **options: object) -> ContrastiveModule:
    objectives = {
        "c": Contrastive(InfoNCE(1.0, similarity="dot"), columns=[]),
        "flops": FLOPS(0.3, 0.1, warmup_steps),
    }
    encoder = TransformerEncoder(bert, dropout=0.0)
    return ContrastiveModule(encoder, SpladePooler(), objectives=objectives, **options).double()  # type: ignore[arg-type]  # of the module


def plain_vectors(bert: str, batch: Batch) -> tuple[torch.nn.Module, Tensor]:
    """Returns the network of Transformers, and its vectors of each row."""
    network = AutoModelForMaskedLM.from_pretrained(bert).double().eval()
    rows = torch.split(batch.ids, batch.lengths.tolist())
    return network, torch.stack([network(row[None]).logits[0].relu().log1p().amax(dim=0) for row in rows])


def test_the_loss_of_a_step_and_its_gradient_are_those_in_plain_torch(bert: str) -> None:
    module, batch = splade(bert, warmup_steps=2), ragged(*ROWS, slots=PAIR)
    network, vectors = plain_vectors(bert, batch)
    queries, documents = vectors.chunk(2)
    scores = queries @ documents.T
    contrastive = torch.nn.functional.cross_entropy(scores, torch.arange(len(queries)))
    flops = 0.3 * queries.mean(dim=0).square().sum() + 0.1 * documents.mean(dim=0).square().sum()
    expected = contrastive + flops / 4  # the first of two steps: (1 / 2)^2
    found = module.training_step(batch, 0)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    expected.backward()
    found.backward()
    own = dict(module.encoder.named_parameters())
    pairs = [
        (own["model.embeddings.word_embeddings.weight"].grad, network.get_input_embeddings().weight.grad),
        (own["token_head.layers.cls.predictions.transform.dense.weight"].grad,
         network.cls.predictions.transform.dense.weight.grad),
    ]  # fmt: skip
    for one, other in pairs:
        # Sums in another order: relative to the largest entry.
        assert one is not None and (one - other).abs().max() <= 1e-10 * other.abs().max()
    counts = [(side > 0).sum(dim=1).double().mean() for side in (queries, documents)]
    names = ("flops/query_nonzeros", "flops/document_nonzeros")
    assert [float(module.figures[name]) for name in names] == [float(count) for count in counts]


@pytest.mark.parametrize("logits", [1, 300, 2000])
def test_logits_in_parts_give_the_vectors_and_the_gradient_of_all_at_once(bert: str, logits: int) -> None:
    module, batch = splade(bert), ragged(*ROWS)
    bias = module.get_parameter("encoder.token_head.layers.cls.predictions.bias")

    def gradient() -> tuple[Tensor, Tensor]:
        vectors = module.encode(batch).embeddings
        (found,) = torch.autograd.grad(vectors.pow(2).sum(), [bias])
        return vectors, found

    expected = gradient()
    with (
        mock.patch.object(poolers, "_LOGITS", logits),
        mock.patch.object(poolers, "checkpoint", wraps=poolers.checkpoint) as parts,
    ):
        found = gradient()
    assert parts.call_count > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_weights_grow_quadratically_and_go_on_from_a_state_dict() -> None:
    encoded = Encoded(torch.tensor([[1.0], [2.0]]), PAIR, text_ids=torch.arange(2))
    objective, values = FLOPS(1.0, 1.0, warmup_steps=4), []
    for _ in range(3):
        values += [float(objective(encoded).total)] * 2  # a gradient view computes it twice
        objective.finish_step()
    again = FLOPS(1.0, 1.0, warmup_steps=4)
    again.load_state_dict(objective.state_dict())
    for _ in range(3):
        values.append(float(again(encoded).total))
        again.finish_step()
    shares = [1 / 16, 1 / 16, 4 / 16, 4 / 16, 9 / 16, 9 / 16, 1, 1, 1]
    assert values == [5 * share for share in shares]
    assert float(FLOPS(1.0, 1.0, warmup_steps=4).eval()(encoded).total) == 5


def test_missing_negatives_and_missing_documents_do_not_count() -> None:
    slots = (*PAIR, Slot("negative", 0))
    vectors = torch.tensor([[1.0], [1.0], [2.0], [4.0], [-6.0], [99.0]])
    ids = torch.tensor([0, 1, 2, 3, 4, MASKED_ID])
    terms = FLOPS(0.0, 1.0)(Encoded(vectors, slots, text_ids=ids))
    assert float(terms.total) == 16 and float(terms.logs["document_nonzeros"]) == 1
    alone = FLOPS(1.0, 1.0)(Encoded(vectors[:2], slots[:1], text_ids=ids[:2]))
    assert float(alone.total) == 1 and [*alone.logs] == ["query_nonzeros"]


def test_what_does_not_fit_is_refused_before_the_first_step(bert: str, tmp_path: Path) -> None:
    encoder = TransformerEncoder(bert)
    with pytest.raises(ValueError, match=r"StaticEncoder: expected .*remove MaskedLM and SpladePooler"):
        from contrastive_text import StaticEncoder

        ContrastiveModule(StaticEncoder(tokenizer_name_or_path=bert, features=4), SpladePooler())
    with pytest.raises(ValueError, match=r"inference\.pooler: expected SpladePooler as in training.*MeanPooler"):
        ContrastiveModule(encoder, SpladePooler(), inference=Inference(pooler=MeanPooler()))
    for wrapper in (Matryoshka(Contrastive(), [16, 8]), Quantized(Contrastive(), ["binary"])):
        with pytest.raises(ValueError, match=rf"objectives\.c: .*got {type(wrapper).__name__}"):
            ContrastiveModule(encoder, SpladePooler(), objectives={"c": wrapper})
    with pytest.raises(ValueError, match=r"ConcatPooler\.poolers: .*SpladePooler"):
        ConcatPooler([SpladePooler(), MeanPooler()])
    with pytest.raises(ValueError, match=r"model\.objectives: expected another objective with FLOPS"):
        ContrastiveModule(encoder, SpladePooler(), objectives={"flops": FLOPS()})
    with pytest.raises(ValueError, match=r"FLOPS\.document_weight: .*-1"):
        FLOPS(document_weight=-1)
    trainer, texts = tiny.trainer(tmp_path), tiny.write_texts(tmp_path / "texts.txt")
    with (
        mock.patch("contrastive_text.training.tasks.MOST_WEIGHTS", 2000),
        pytest.raises(ValueError, match=r"data\.batch_size: expected at most 6 texts .*300 tokens.* got 16"),
    ):
        trainer.fit(ContrastiveModule(encoder, SpladePooler()), datamodule=tiny.data(texts, batch_size=8))


def trained(folder: Path, bert: str, steps: int, resume: str | None = None) -> dict[str, Tensor]:
    """Trains with dropout, and keeps every step."""
    torch.manual_seed(0)
    objectives = {"c": Contrastive(InfoNCE(1.0, similarity="dot")), "flops": FLOPS(0.3, 0.1, warmup_steps=5)}
    module = ContrastiveModule(TransformerEncoder(bert), SpladePooler(), objectives=objectives)
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(folder, max_steps=steps, enable_checkpointing=True, callbacks=[keep])
    data = tiny.data(tiny.write_texts(folder.parent / "texts.txt"))
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
    assert module.objective_parts()["flops"].get_extra_state() == {"steps": steps}  # type: ignore[comparison-overlap]  # of FLOPS
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_ends_with_the_same_weights(bert: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", bert, 4)
    resumed = trained(tmp_path / "resumed", bert, 4, resume=str(tmp_path / "whole" / "step=2.ckpt"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
