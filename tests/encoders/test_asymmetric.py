"""An encoder for queries and another for documents: their vectors, the frozen side, special tokens, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from resume.runs import check_same, flat
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.encoders import AsymmetricEncoder, LoRA, TransformerEncoder
from contrastive_text.heads import MLPHead, StackHead
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive, MaskedLM, TextClassification
from contrastive_text.pairings import Given
from contrastive_text.poolers import CLSPooler, LastTwoPooler
from contrastive_text.training import FSDP2Strategy, WeightedSum
from contrastive_text.training.checks import check_split
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, MaskTokens

QUERIES, DOCUMENTS = tiny.TEXTS[:3], tiny.TEXTS[10:13]
WIDER = [{"name": "Linear", "out_features": 16}, {"name": "Tanh"}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a narrower encoder of one layer and the same tokenizer."""
    narrow = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16}
    return tiny.save_bert(tmp_path_factory.mktemp("small"), seed=1, **narrow)


def encoder(small: str, bert: str, **options: Any) -> AsymmetricEncoder:
    networks = [TransformerEncoder(name, dropout=options.pop("dropout", 0.0)) for name in (small, bert)]
    given = {"document_pooler": CLSPooler(), "query_head": StackHead(WIDER), **options}
    torch.manual_seed(0)
    return AsymmetricEncoder(query=networks[0], document=networks[1], **given)


def batch_of(tokenizer: Any, texts: dict[str, tuple[str, ...]]) -> Batch:  # Any: of Transformers
    """Returns a batch with a slot of texts for each role."""
    rows = [torch.tensor(tokenizer(text)["input_ids"]) for slot in texts.values() for text in slot]
    numbers = torch.arange(len(rows))
    return Batch(
        ids=torch.cat(rows),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=tuple(Slot(role, 0) for role in texts),  # type: ignore[arg-type]  # a role
        row_slots=torch.arange(len(texts)).repeat_interleave(len(rows) // len(texts)),
        draw_keys=numbers,
        text_ids=numbers,
    )


def test_vectors_and_loss_are_those_of_plain_torch(small: str, bert: str) -> None:
    own = encoder(small, bert)
    module = ContrastiveModule(own, objectives={"c": Contrastive(InfoNCE(0.1), columns=[])}).double()
    batch = batch_of(AutoTokenizer.from_pretrained(bert), {"anchor": QUERIES, "positive": DOCUMENTS})
    loss = module.step_losses(batch)["c"]

    def hidden(folder: str, texts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        network = AutoModel.from_pretrained(folder).double().eval()
        inputs = AutoTokenizer.from_pretrained(folder)([*texts], padding=True, return_tensors="pt")
        return network(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)

    tokens, mask = hidden(small, QUERIES)
    assert own.query_head is not None
    linear = own.query_head.network[0]  # type: ignore[index]  # built
    queries = torch.tanh(F.linear((tokens * mask).sum(1) / mask.sum(1), linear.weight, linear.bias))
    documents = hidden(bert, DOCUMENTS)[0][:, 0]
    logits = F.cosine_similarity(queries[:, None], documents[None], dim=-1) / 0.1
    # float64: sums in another order
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.arange(3)), rtol=1e-12, atol=0)
    vectors = module.encode(batch).embeddings
    torch.testing.assert_close(vectors, torch.cat([queries, documents]), rtol=0, atol=1e-12)


def fitted(folder: Path, own: AsymmetricEncoder, steps: int = 3, resume: str | None = None) -> dict[str, Tensor]:
    """Trains on pairs with views and dropout. Returns the last weights."""
    views: Any = {"anchor": [FeatureCutoff(0.2)]}
    module = ContrastiveModule(own, views=views, objectives={"c": Contrastive(InfoNCE(0.1), columns=[])})
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(folder, enable_checkpointing=True, callbacks=[keep], max_steps=steps)
    train = tiny.write_triples(folder.parent / "triples.jsonl")
    trainer.fit(module, tiny.data(train, pairing=Given()), ckpt_path=resume, weights_only=True)
    return dict(flat(module.state_dict()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Found .* in eval mode", "ignore:The dirpath has changed")
def test_a_frozen_side_keeps_its_weights_and_a_resumed_run_ends_with_the_same_bits(
    small: str, bert: str, tmp_path: Path
) -> None:
    options = {"frozen": "document", "dropout": 0.2}
    start = {name: weight.clone() for name, weight in encoder(small, bert, **options).state_dict().items()}
    whole = fitted(tmp_path / "whole", encoder(small, bert, **options))
    moved = {name for name, weight in start.items() if not torch.equal(weight, whole[f"encoder.{name}"])}
    assert {name.partition(".")[0] for name in moved} == {"query", "query_head"}
    again = fitted(
        tmp_path / "again", encoder(small, bert, **options), resume=str(tmp_path / "whole" / "step=2.ckpt")
    )
    check_same(whole, again)
    assert not encoder(small, bert, **options).document.training
    assert encoder(small, bert, **options).query.training
    (path,) = (tmp_path / "whole").glob("step=3.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(path)
    check_same(whole, dict(flat(loaded.state_dict())))


def test_the_side_without_special_tokens_reads_the_text_alone(small: str, bert: str) -> None:
    own = encoder(small, bert)
    bare = TransformerEncoder(small, dropout=0.0)
    assert bare.tokenizer is not None
    bare.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    mixed = AsymmetricEncoder(
        query=bare, document=own.document, document_pooler=CLSPooler(), query_head=own.query_head
    )
    assert mixed.tokenizer is own.document.tokenizer
    texts = {"anchor": QUERIES, "positive": DOCUMENTS}
    vectors = ContrastiveModule(mixed).eval().encode(batch_of(mixed.tokenizer, texts)).embeddings
    expected = ContrastiveModule(mixed).eval().encode(batch_of(bare.tokenizer, {"anchor": QUERIES})).embeddings
    torch.testing.assert_close(vectors[:3], expected, rtol=1e-5, atol=1e-6)  # float32, batches of other sizes
    documents = ContrastiveModule(own).eval().encode(batch_of(mixed.tokenizer, texts)).embeddings[3:]
    torch.testing.assert_close(vectors[3:], documents, rtol=1e-5, atol=1e-6)


def other_vocabulary(small: str, _: str, folder: Path) -> AsymmetricEncoder:
    return encoder(small, tiny.save_bert(folder / "other", texts=("a b c d", "e f g h")))


Refused = Callable[[str, str, Path], object]
REFUSED: dict[str, tuple[Refused, str]] = {
    "other widths": (
        lambda small, bert, _: encoder(small, bert, query_head=None),
        "expected vectors of queries and documents of one width, got 8 and 16 features; set encoder.query_head",
    ),
    "another vocabulary": (other_vocabulary, r"encoder\.query: expected the tokenizer of encoder\.document"),
    "a train-only head": (
        lambda small, bert, _: encoder(small, bert, query_head=MLPHead(out_features=16)),
        r"encoder\.query_head: expected a head with train_only: false",
    ),
    "adapters": (
        lambda _, bert, __: AsymmetricEncoder(
            query=TransformerEncoder(bert, adapters=LoRA(rank=2)), document=TransformerEncoder(bert)
        ),
        r"encoder\.query: expected one encoder without adapters, got TransformerEncoder with adapters",
    ),
    "roles in roles": (
        lambda small, bert, _: AsymmetricEncoder(query=TransformerEncoder(bert), document=encoder(small, bert)),
        r"encoder\.document: expected one encoder without adapters, got AsymmetricEncoder with two sides",
    ),
    "another pooler": (
        lambda small, bert, _: ContrastiveModule(encoder(small, bert), pooler=LastTwoPooler()),
        r"model\.pooler: expected none, because AsymmetricEncoder pools, got LastTwoPooler",
    ),
    "no documents to encode": (
        lambda small, bert, _: ContrastiveModule(
            encoder(small, bert), objectives={"c": TextClassification(classes=2)}
        ),
        r"model\.objectives: expected one that reads positives or negatives, .*, got c; use a single encoder",
    ),
    "masked tokens": (
        lambda small, bert, _: ContrastiveModule(
            encoder(small, bert),
            views={"anchor": [MaskTokens()]},
            objectives={"c": Contrastive(), "mlm": MaskedLM()},
        ),
        "AsymmetricEncoder: expected a network with a masked-language-model head",
    ),
    "no documents": (
        lambda small, _, __: AsymmetricEncoder(query=TransformerEncoder(small)),
        "encoder: expected model_name_or_path, or document with query",
    ),
    "an unknown side": (
        lambda small, bert, _: encoder(small, bert, frozen="documents"),
        r"encoder\.frozen: expected .*query.*document.*got 'documents'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_trained_is_refused_when_it_is_built(
    name: str, small: str, bert: str, tmp_path: Path
) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        build(small, bert, tmp_path)


def test_split_weights_are_refused_before_the_first_step(small: str, bert: str) -> None:
    trainer: Any = SimpleNamespace(strategy=FSDP2Strategy())
    with pytest.raises(ValueError, match=r"trainer\.strategy: expected ddp with AsymmetricEncoder"):
        check_split(trainer, WeightedSum(), encoder(small, bert))


def test_both_tokenizers_learn_new_tokens_and_a_copy_has_weights_of_its_own(small: str, bert: str) -> None:
    own = encoder(small, bert)
    own.add_tokens(["[NEW]"])
    tokenizers = own.query.tokenizer, own.document.tokenizer
    numbers = {tokenizer.convert_tokens_to_ids("[NEW]") for tokenizer in tokenizers if tokenizer is not None}
    assert len(numbers) == 1
    assert own.query.vocabulary_size == own.vocabulary_size == own.document.vocabulary_size
    copy = own.clone()
    nn.init.zeros_(next(copy.query.parameters()))
    assert next(own.query.parameters()).any()
    assert isinstance(own.tokenizer, type(tokenizers[1]))
    assert TextTokenizer(own.tokenizer, own.limit).max_length == own.limit == 32
