"""Which rows a pairing can serve, and documents that come as tokens: their spans from the file to the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from token_pairings import LONG, Alone, Halves

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import text_id
from contrastive_text.core.types import NO_LABEL, Role, Slot
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.objectives import Contrastive, MaskedLM
from contrastive_text.pairings import Neighbours
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens, TextView, View


class Louder(TextView):
    """Says everything in one more word."""

    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the base's signature
        return f"{text} guitar"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=64)


@pytest.fixture
def documents(tmp_path: Path) -> str:
    """Ten long documents, each with a short one after it as long as there are any."""
    return Halves.documents(tmp_path / "documents.txt")


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """Makes training data whose cache is the test's own."""

    def make(module: ContrastiveModule, train: str, **options: Any) -> TextDataModule:
        made = tiny.data(train, **{"batch_size": 5, "cache_dir": str(tmp_path / "cache"), **options})
        made.attach(module)
        made.setup("fit")
        return made

    return make


def rows_of(batch: Batch, role: Role) -> list[tuple[int, ...]]:
    """Ids of a role's rows without special tokens."""
    rows = batch.ids.split(batch.lengths.tolist())
    return [tuple(rows[i][1:-1].tolist()) for i in batch.by_role(role).tolist()]


def ids_of(module: ContrastiveModule, texts: tuple[str, ...]) -> list[tuple[int, ...]]:
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None
    return [tokens.ids for tokens in tokenizer(texts)]


# Rows that a pairing can serve


def test_documents_that_are_too_short_are_left_out_and_counted(bert: str, documents: str, data: Any) -> None:
    module = tiny.module(bert)
    made = data(module, documents, pairing=Halves())
    assert len(made.training.of().rows) == 10
    assert made.facts()["rows"].startswith("10 of 16 documents are long enough for the pairing, 6 left out; ")
    assert len(made.training.steps) == 2
    seen = [
        anchor + positive
        for batch in made.train_dataloader()
        for anchor, positive in zip(rows_of(batch, "anchor"), rows_of(batch, "positive"), strict=True)
    ]
    assert sorted(seen) == sorted(ids_of(module, LONG))


def test_that_none_was_left_out_is_said_too(bert: str, documents: str, data: Any) -> None:
    made = data(tiny.module(bert), documents, pairing=Halves(least=2))
    assert made.facts()["rows"].startswith("16 of 16 documents are long enough for the pairing; ")


def test_neighbours_are_a_text_and_the_next_line_and_the_last_line_is_no_anchor(
    bert: str, tmp_path: Path, data: Any
) -> None:
    train = tiny.write_texts(tmp_path / "lines.txt", tiny.TEXTS[:11])
    made = data(tiny.module(bert), train, pairing=Neighbours())
    assert made.facts()["rows"] == "10 texts with their successor"
    batches = list(made.train_dataloader())
    anchors, positives = (
        torch.cat([batch.text_ids[batch.by_role(role)] for batch in batches]).tolist()
        for role in ("anchor", "positive")
    )
    follower = dict(zip(map(text_id, tiny.TEXTS[:10]), map(text_id, tiny.TEXTS[1:11]), strict=True))
    assert sorted(anchors) == sorted(follower)
    assert [follower[anchor] for anchor in anchors] == positives


# Roles


def test_a_pairing_without_positives_serves_an_objective_of_anchors(bert: str, documents: str, data: Any) -> None:
    alone = tiny.module(bert, views={"anchor": [MaskTokens(rate=0.5)]}, objectives={"mlm": MaskedLM()})
    made = data(alone, documents, pairing=Alone())
    assert made.training.of().slots == (Slot("anchor", 0),)
    batch = next(iter(made.train_dataloader()))
    assert batch.slots == (Slot("anchor", 0),)
    assert float(alone.objectives["mlm"](alone.encode(batch)).total.detach()) > 0


def test_two_originals_are_two_slots_each_with_tokens_hidden_of_its_own(
    bert: str, documents: str, data: Any
) -> None:
    views: dict[str, list[View]] = {"original": [MaskTokens(rate=0.5, mask=1.0, random=0.0)]}
    module = tiny.module(bert, views=views, objectives={"c": Contrastive(), "mlm": MaskedLM()})
    batch = next(iter(data(module, documents, pairing=Halves(), originals=2).train_dataloader()))
    assert batch.slots == (Slot("anchor", 0), Slot("positive", 0), Slot("original", 0), Slot("original", 1))
    assert batch.labels is not None
    whole = torch.where(batch.labels == NO_LABEL, batch.ids, batch.labels).split(batch.lengths.tolist())
    rows = batch.ids.split(batch.lengths.tolist())
    for i in range(5):
        assert torch.equal(whole[10 + i], rows[i])
        assert torch.equal(whole[15 + i], rows[i])
    assert sum(not torch.equal(rows[10 + i], rows[15 + i]) for i in range(5)) >= 4  # of a dozen coins, twice
    assert torch.equal(batch.text_ids[10:15, 0], batch.text_ids[:5, 0])
    assert len(batch.draw_keys.unique()) == 20
    # Without views on them there are no originals, however many are asked for.
    plain = next(iter(data(tiny.module(bert), documents, pairing=Halves(), originals=2).train_dataloader()))
    assert len(plain.slots) == 2


# Spans


def test_a_span_longer_than_the_limit_is_cut_from_its_start_and_counted(
    bert: str, documents: str, data: Any
) -> None:
    module = ContrastiveModule(
        TransformerEncoder(bert, max_length=12),
        views={"anchor": [MaskTokens(rate=0.0)]},
        objectives={"mlm": MaskedLM()},
    )
    batch = next(iter(data(module, documents, pairing=Alone()).train_dataloader()))
    starts = {ids[:10] for ids in ids_of(module, LONG)}
    assert set(rows_of(batch, "anchor")) <= starts
    assert batch.truncated == 5
    assert batch.lengths.tolist() == [12] * 5


def test_a_text_view_gets_a_span_as_text_and_other_roles_keep_their_tokens(
    bert: str, documents: str, data: Any
) -> None:
    plain, altered = (
        tiny.module(bert),
        tiny.module(bert, views={"anchor": [Louder()], "positive": [DeleteTokens(0)]}),
    )
    before, after = (
        next(iter(data(module, documents, pairing=Halves()).train_dataloader())) for module in (plain, altered)
    )
    tokenizer = plain.encoder.tokenizer
    spoken = [tokenizer.decode(list(ids)) + " guitar" for ids in rows_of(before, "anchor")]
    assert rows_of(after, "anchor") == ids_of(plain, tuple(spoken))
    assert rows_of(after, "positive") == rows_of(before, "positive")
    assert torch.equal(after.text_ids[:, 0], before.text_ids)  # of the span before any view


def test_a_span_of_whole_words_survives_the_way_through_text(bert: str) -> None:
    tokenizer = tiny.module(bert).text_tokenizer()
    assert tokenizer is not None
    for tokens in tokenizer(tiny.TEXTS):
        assert tokenizer([tokenizer.text(tokens)])[0] == tokens


def test_documents_are_cut_with_a_vocabulary_learned_from_them(documents: str, data: Any, tmp_path: Path) -> None:
    module = ContrastiveModule(TransformerEncoder(config={**tiny.CONFIG, "max_position_embeddings": 64}))
    made = data(module, documents, pairing=Halves())
    assert len(made.training.of().rows) == 10
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(documents, pairing=Halves(), cache_dir=str(tmp_path), batch_size=5))
    assert trainer.global_step == 2
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
