"""Rows that are trained on: drawn, repeated, joined, or those that a pairing can serve."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import several
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_pairings import LONG, Alone, Halves
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import NO_LABEL, Role, Slot
from contrastive_text.data import (
    Clean,
    EpochRoundRobin,
    Table,
    TextTokenizer,
    learn_vocabulary,
    loader,
    read_rows,
)
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.preparation import join_texts, sample_rows_by_seed
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.objectives import Contrastive, MaskedLM
from contrastive_text.pairings import Neighbors
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, MaskTokens, TextView, View


def ready(module: ContrastiveModule, data: TextDataModule) -> TextDataModule:
    data.set_module(module)
    data.setup("fit")
    return data


def test_a_limit_draws_the_same_rows_whatever_the_batches_and_smaller_ones_among_them(
    bert: str, texts: str
) -> None:
    module = tiny.module(bert)

    def rows(**options: Any) -> list[str]:
        training = ready(module, tiny.data(texts, **options)).training.of()
        return [str(row["text"]) for row in training.texts]

    ten = rows(limit=10)
    assert len(set(ten)) == 10
    assert rows(limit=10, batch_size=3) == ten
    assert set(ten) < set(rows(limit=20))
    assert set(ten) != set(rows(limit=10, seed=7))
    assert rows(limit=40) == list(tiny.TEXTS)  # all of them, in the order of the file
    assert (rows(limit="25%"), rows(limit="100%")) == (ten, list(tiny.TEXTS))
    neighbors = rows(limit=10, pairing=Neighbors())
    assert set(neighbors) < set(tiny.TEXTS[:-1])


def test_rows_that_come_again_are_altered_anew_and_it_is_said(bert: str, texts: str) -> None:
    module = tiny.module(bert)
    data = ready(module, tiny.data(texts, limit=3, repeat=2, batch_size=8))
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [16, 16]
    assert len(torch.cat([batch.draw_keys for batch in batches]).unique()) == 32
    anchors = [ids for batch in batches for ids in batch.text_ids[batch.by_role("anchor")].tolist()]
    assert sorted(anchors.count(text) for text in set(anchors)) == [5, 5, 6]
    facts = data.facts()
    assert facts["rows"] == "3 of 40 rows, drawn by seed 42"
    assert facts["order"] == "a permutation by seed and epoch"
    assert facts["duplicates"] == "0 of 3 rows repeat the text of another"
    assert facts["repeated rows"] == (
        "16 an epoch: each of the 3 comes some 5.3 times, altered each time; a step of 8 has each some 2.7 "
        "times, and copies of a text are negatives of each other only without Duplicates"
    )
    few = ready(module, tiny.data(texts, limit=1, repeat=1)).facts()["repeated rows"]
    assert few.endswith("only without Duplicates; without it the loss is 0")


def test_a_fraction_is_drawn_anew_each_epoch(tmp_path: Path, bert: str) -> None:
    tasks = several.fewer(several.write_tasks(tmp_path))
    data = ready(several.module(bert), several.data(tasks, EpochRoundRobin()))
    seen = []
    for number in range(2):
        loader = data.train_dataloader()
        loader.order.set_epoch(number)
        quora = [batch["quora"] for batch in (step.batches for step in loader) if "quora" in batch]
        seen.append({text for batch in quora for text in batch.text_ids[batch.by_role("anchor")].tolist()})
    assert len(seen[0]) == len(seen[1]) == 18  # of 40, in three whole batches of the 20
    assert seen[0] != seen[1]
    assert data.facts()["mixture"].splitlines()[1:] == [
        "sst: 3 steps, 5 rows as 18 an epoch, 6 a step",
        "quora: 3 steps, 18 of 40 rows an epoch, 6 a step, others each time",
        "sts: 3 steps, 18 of 18 rows an epoch, 6 a step",
    ]


def test_a_few_of_many_rows_are_drawn_in_the_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "PERMUTATION_ROWS", 10**6)
    tracemalloc.start()
    try:
        chosen, _ = sample_rows_by_seed(range(10**7), 1000, seed=1, task="train")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(set(chosen)) == list(chosen)
    assert {*chosen} < {*sample_rows_by_seed(range(10**7), 2000, seed=1, task="train")[0]}
    assert 0 <= chosen[0] < chosen[-1] < 10**7
    assert peak < 200_000


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer as RoBERTa's: a word has other tokens at the start of a text than after a blank."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(tiny.TEXTS)] * 3, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = [
    TextTokenizer(made, max_length=64)
    for made in (byte_level(), learn_vocabulary(tiny.TEXTS, vocabulary_size=80))
]


def table_of(*documents: list[str]) -> Table:
    rows = tuple({"text": text} for texts in documents for text in texts)
    return Table(rows, ("a.txt",), "a.txt", sizes=tuple(map(len, documents)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


some_texts = st.lists(st.sampled_from([*tiny.TEXTS[:12], "  spaced  ", "a"]), min_size=1, max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte level", "word pieces"])
@settings(max_examples=40)
@given(documents=st.lists(some_texts, min_size=1, max_size=3), limit=st.integers(4, 64))
def test_rows_are_as_long_as_they_can_be_and_no_longer(
    tokenizer: TextTokenizer, cache: Path, documents: list[list[str]], limit: int
) -> None:
    table = join_texts(table_of(*documents), limit, tokenizer, cache, "data.task.join")
    room = limit - tokenizer.specials

    def tokens(text: str) -> int:
        return len(tokenizer.ids([text])[0])

    for rows, texts in zip(table.documents, documents, strict=True):
        left = [text.strip() for text in texts]
        for row in (str(row["text"]) for row in rows):
            count = next(n for n in range(len(left), 0, -1) if row.strip() == " ".join(left[:n]))
            assert tokens(row) <= room or count == 1
            if left[count:]:
                assert tokens(f"{row} {left[count]}") > room
            left = left[count:]
        assert not left


def test_a_blank_line_and_the_end_of_a_file_end_a_document_and_it_is_said(tmp_path: Path, cache: Path) -> None:
    one, two, three = tmp_path / "one.txt", tmp_path / "two.jsonl", tmp_path / "folder"
    one.write_text("a b\nc d\n\n\ne f\n")
    two.write_text('{"text": "g"}\n{"text": "h i"}\n\n{"text": "j"}\n')
    three.mkdir()
    for name in "kl":
        (three / f"{name}.txt").write_text(f"{name}\n")
    table = read_rows([one, two, three], reads=("text",))
    assert table.sizes == (2, 1, 2, 1, 1, 1)
    whole = join_texts(table, 64, TOKENIZERS[0], cache, "data.task.join")
    assert [row["text"] for row in whole] == ["a b c d", "e f", "g h i", "j", "k\n".strip(), "l"]
    assert whole.description.splitlines()[-1] == (
        "joined: 6 rows of up to 64 tokens, from 8 texts in 6 documents, 0 of them longer and alone"
    )
    assert len(Neighbors().arrange(table.documents)[0]) == 2


def test_a_run_trains_on_joined_rows_after_they_are_cleaned(tmp_path: Path) -> None:
    texts = tuple(f"{text}   yes" for text in tiny.TEXTS)
    train = tiny.write_texts(tmp_path / "texts.txt", texts)
    bert = tiny.save_bert(tmp_path / "bert")
    clean = Clean(collapse=True, leading_blank=True)
    data = tiny.data(train, join=32, clean=clean, limit=5, batch_size=5, cache_dir=str(tmp_path / "cache"))
    data.set_module(tiny.module(bert))
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch.truncated == 0
    assert int(batch.lengths.max()) <= 32
    rows = [str(row["text"]) for row in data.training.of().texts]
    assert all(row.startswith(" ") and "  " not in row for row in rows)
    assert "joined: " in data.facts()["training data"]


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
        made.set_module(module)
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
    whole = data(module, documents, pairing=Halves(least=2)).facts()["rows"]
    assert whole.startswith("16 of 16 documents are long enough for the pairing; ")
    assert len(made.training.steps) == 2
    seen = [
        anchor + positive
        for batch in made.train_dataloader()
        for anchor, positive in zip(rows_of(batch, "anchor"), rows_of(batch, "positive"), strict=True)
    ]
    assert sorted(seen) == sorted(ids_of(module, LONG))


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


def test_documents_are_cut_with_a_vocabulary_learned_from_them(documents: str, data: Any, tmp_path: Path) -> None:
    module = ContrastiveModule(TransformerEncoder(config={**tiny.CONFIG, "max_position_embeddings": 64}))
    made = data(module, documents, pairing=Halves())
    assert len(made.training.of().rows) == 10
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(documents, pairing=Halves(), cache_dir=str(tmp_path), batch_size=5))
    assert trainer.global_step == 2
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
