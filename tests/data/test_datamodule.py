"""The data module: the same batches whatever the workers, facts, rows from Python, and cleaned texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow
from token_pairings import Halves

from contrastive_text import Run
from contrastive_text.core.batch import Batch, StepBatch, move_to_device
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.types import Example, Row
from contrastive_text.data import Clean, TextTask, read_pairs, read_rows
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.pairings import Given, Pairing
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, SwapWords


class TwoSpans(Pairing):
    """Two examples a row, cut at a random word: a pairing that draws."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        words = str(row["text"]).split()
        cuts = rng.integers(1, len(words), size=2)
        return [Example(anchor=" ".join(words[:cut]), positives=(" ".join(words[cut:]),)) for cut in cuts]


class Reversed(Given):
    """The positive asks for the anchor."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        return super().__call__({"anchor": row["positive"], "positive": row["anchor"]}, rng)


@pytest.fixture
def altering(bert: str) -> ContrastiveModule:
    """A module with a text view and a token view."""
    return tiny.module(bert, views={"anchor": [SwapWords(rate=0.5)], "positive": [DeleteTokens(rate=0.3)]})


def ready(module: ContrastiveModule, data: TextDataModule) -> TextDataModule:
    data.set_module(module)
    data.setup("fit")
    return data


def epochs(data: TextDataModule, count: int = 2) -> list[list[Batch]]:
    """The batches of the first epochs, as Lightning asks for them."""
    loader = data.train_dataloader()
    found = []
    for epoch in range(count):
        loader.batch_sampler.sampler.set_epoch(epoch)  # where Lightning looks for it
        found.append(list(loader))
    loader._iterator = None  # its workers end now, and not at a collection of garbage that they wait for
    return found


def same(one: Batch, other: Batch) -> bool:
    """Returns whether every field of two batches is equal, bit by bit."""
    pairs = [(vars(one)[name], vars(other)[name]) for name in vars(one)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


# The same batches anywhere


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # a machine of two cores
@pytest.mark.parametrize(
    ("pairing", "workers"),
    rest_slow([(None, 1), (TwoSpans(), 3), (Halves(least=2), 2)]),
    ids=["SameText", "a pairing that draws", "a pairing that reads tokens"],
)
def test_no_one_and_three_workers_give_the_same_batches_and_the_next_epoch_others(
    altering: ContrastiveModule, texts: str, pairing: Pairing | None, workers: int, tmp_path: Path
) -> None:
    alone, together = (
        epochs(ready(altering, tiny.data(texts, pairing=pairing, num_workers=count, cache_dir=str(tmp_path))))
        for count in (0, workers)
    )
    for mine, theirs in zip(alone, together, strict=True):
        assert len(mine) == 5
        assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    first, second = alone
    assert not any(same(a, b) for a in first for b in second)
    # another order, and for the same text other draws
    keys, later_keys = (torch.cat([batch.draw_keys for batch in epoch]) for epoch in (first, second))
    texts_seen, later = (torch.cat([batch.text_ids[:, 0] for batch in epoch]) for epoch in (first, second))
    assert not torch.isin(keys, later_keys).any()
    if pairing is None:
        assert not torch.equal(texts_seen, later)
        assert torch.equal(texts_seen.sort().values, later.sort().values)


def test_the_trainer_gets_these_batches_epoch_by_epoch(
    altering: ContrastiveModule, texts: str, tmp_path: Path
) -> None:
    class Keep(pl.Callback):
        def __init__(self) -> None:
            self.batches: list[Batch] = []

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
            self.batches.append(batch)

    keep = Keep()
    trainer = tiny.trainer(tmp_path, max_steps=-1, max_epochs=2, callbacks=[keep])
    trainer.fit(altering, datamodule=tiny.data(texts, num_workers=1))
    expected = [batch for epoch in epochs(ready(altering, tiny.data(texts))) for batch in epoch]
    assert len(expected) == 10
    assert all(same(a, b) for a, b in zip(keep.batches, expected, strict=True))


# What a run says


def test_the_length_limit_and_how_many_texts_it_cuts_are_said_and_logged(bert: str, tmp_path: Path) -> None:
    long = " ".join(tiny.TEXTS[:8])
    file = tiny.write_texts(tmp_path / "long.txt", (*tiny.TEXTS[:15], long))
    data = ready(tiny.module(bert), tiny.data(file, batch_size=16))
    assert data.facts()["length limit"] == (
        "32 tokens with special ones; 6.2% of 16 sampled texts are longer and will be cut"
    )
    trainer = tiny.trainer(tmp_path, max_steps=-1, max_epochs=1)
    trainer.fit(tiny.module(bert), datamodule=tiny.data(file))
    assert float(trainer.callback_metrics["train/truncated"]) == 2  # the text and its copy


def test_texts_are_counted_with_the_prompts_of_their_roles(bert: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\n" + "a bird\ta dog\n" * 2)

    prompts = Prompts({"query": "the ", "document": "the old tall man sings: "})
    data = ready(tiny.module(bert, prompts=prompts), tiny.data(str(path), pairing=Reversed(), batch_size=2))
    texts = list(data.training.of().strings([0], prompts.with_training_defaults()))
    assert texts == [("the ", "a dog"), ("the old tall man sings: ", "a bird")]
    same = ready(tiny.module(bert, prompts=prompts), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    assert "80 sampled texts" in same.facts()["length limit"]  # 40, each as query and as document


def test_without_validation_data_it_is_said_which_weights_are_kept(bert: str, texts: str) -> None:
    assert "the last weights are kept" in ready(tiny.module(bert), tiny.data(texts)).facts()["validation data"]


# Scored pairs


def test_each_validation_file_has_its_score_and_the_mean_is_kept_beside(
    bert: str, texts: str, tmp_path: Path
) -> None:
    files = [tiny.write_pairs(tmp_path / "near.tsv"), tiny.write_pairs(tmp_path / "far.tsv", count=17, start=5)]
    module = tiny.module(bert)
    data = tiny.data(texts, validation=files, test=files[0], eval_batch_size=5)
    trainer = tiny.trainer(tmp_path)
    (scores,) = [tiny.merged(trainer.validate(module, datamodule=data, verbose=False))]
    model = module.sentence_encoder()
    expected = [evaluate_pairs(model, read_pairs(file))[0].spearman for file in files]
    assert abs(expected[0] - expected[1]) > 0.01  # ten times what is allowed below
    # a rank correlation of the same order of the same pairs, in float32
    assert scores["val/spearman/near"] == pytest.approx(expected[0], abs=1e-3)
    assert scores["val/spearman/far"] == pytest.approx(expected[1], abs=1e-3)
    assert scores["val/spearman"] == pytest.approx(sum(expected) / 2, abs=1e-3)
    tested = tiny.merged(trainer.test(module, datamodule=data, verbose=False))
    assert tested.keys() == {"test/spearman", "test/pearson"}
    assert tested["test/spearman"] == pytest.approx(expected[0], abs=1e-3)


def test_views_never_touch_evaluation(altering: ContrastiveModule, bert: str, tmp_path: Path) -> None:
    file = tiny.write_pairs(tmp_path / "pairs.tsv")
    scores = [
        tiny.merged(
            tiny.trainer(tmp_path).validate(module, datamodule=TextDataModule(validation=file), verbose=False)
        )
        for module in (altering, tiny.module(bert))
    ]
    assert scores[0] == scores[1]


def test_a_batch_is_copied_to_a_gpu_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.device, bool]] = []
    locked: list[torch.Tensor] = []

    def to(self: torch.Tensor, where: torch.device, non_blocking: bool = False) -> torch.Tensor:
        asked.append((where, non_blocking))
        return self

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: locked.append(self) or self)
    values = torch.arange(3)
    for name in ("cuda", "mps", "xla", "cpu"):
        move_to_device(values, torch.device(name))
    assert asked == [(torch.device(name), name != "mps") for name in ("cuda", "mps", "xla", "cpu")]
    assert len(locked) == 1


def test_with_a_gpu_batches_are_page_locked_as_a_whole(
    altering: ContrastiveModule, texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ready(altering, TextDataModule(train=texts, batch_size=4))
    batch = next(iter(data.train_dataloader()))
    locked: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: locked.append(self) or self)
    assert isinstance(StepBatch({"train": batch}).pin_memory(), StepBatch)
    assert {id(tensor) for tensor in locked} == {
        id(each) for each in (batch.ids, batch.draw_keys, batch.text_ids)
    }
    assert not data.train_dataloader().pin_memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert data.train_dataloader().pin_memory


ROWS = [{"query": one, "pos": other} for one, other in zip(tiny.TEXTS[:12], tiny.TEXTS[12:24], strict=True)]


def batches(bert: str, data: TextDataModule) -> list[dict[str, Any]]:
    """The fields of each batch, tensors as lists."""
    data.set_module(tiny.module(bert))
    data.setup("fit")
    given = [batch.batches["one"] if data.tasks else batch for batch in data.train_dataloader()]
    return [
        {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in vars(batch).items()
        }
        for batch in given
    ]


def test_rows_from_python_give_the_batches_of_a_file(bert: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    one, other = (
        batches(bert, TextDataModule(train=train, task=TextTask(pairing=Given()), batch_size=4))
        for train in (str(path), ROWS)
    )
    assert one == other
    assert len(one) == 3


@pytest.mark.slow
def test_a_checkpoint_keeps_the_record_and_asks_for_the_rows_again(bert: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    data = TextDataModule(train=ROWS, task=TextTask(pairing=Given()), batch_size=4)
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(tiny.module(bert), datamodule=data)
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    record = saved["datamodule_hyper_parameters"]["train"]
    assert type(record) is str
    assert record.startswith("given:list:12:")
    with pytest.raises(ContrastiveTextError, match=rf"data\.train: .* got their record alone \({record}\)"):
        TextDataModule.load_from_checkpoint(path)
    again = TextDataModule.load_from_checkpoint(path, train=ROWS)
    assert str(again.train) == record
    others = TextDataModule(train=ROWS[:11] + ROWS[:1], task=TextTask(pairing=Given()), batch_size=4)
    resumed = tiny.trainer(tmp_path)
    resumed.fit(tiny.module(bert), datamodule=again, ckpt_path=path)
    assert resumed.global_step == 2
    with pytest.raises(ContrastiveTextError, match="of train of the checkpoint, got other rows of list"):
        tiny.trainer(tmp_path).fit(tiny.module(bert), datamodule=others, ckpt_path=path)


@pytest.mark.slow
def test_a_run_takes_rows_and_its_configuration_their_record(bert: str, tmp_path: Path) -> None:
    texts = [{"text": text} for text in tiny.TEXTS]
    options: dict[str, Any] = {"encoder": bert, "batch_size": 4, "fast_dev_run": 1, "accelerator": "cpu"}
    run = Run.from_recipe("simcse", train=texts, default_root_dir=str(tmp_path), **options)
    assert run.data.hparams["train"].startswith("given:list:40:")
    run.fit()
    data = TextDataModule.from_recipe("simcse", tasks={"one": TextTask(train=texts)}, batch_size=4)
    assert batches(bert, data) == batches(
        bert, TextDataModule(tasks={"one": TextTask(train=texts)}, batch_size=4)
    )
    with pytest.raises(ContrastiveTextError, match=r"read more than once, got a generator"):
        TextTask(train=(text for text in texts))


MESSY = "It  rains.\n\n\tWe \u00a0stay.  "


@pytest.mark.parametrize(
    ("clean", "expected"),
    [
        (Clean(), MESSY),
        (Clean(collapse=True), "It rains. We stay."),
        (Clean(collapse=True, lower=True, leading_blank=True), " it rains. we stay."),
        (Clean(leading_blank=True), f" {MESSY}"),
        (Clean(lower=True), MESSY.lower()),
    ],
)
def test_each_option_does_its_own(clean: Clean, expected: str) -> None:
    assert clean(MESSY) == expected
    assert clean(expected) == expected  # once is enough


def test_the_texts_that_are_trained_on_are_cleaned_which_is_said_and_no_others(tmp_path: Path) -> None:
    train = tiny.write_texts(tmp_path / "texts.txt", tuple(f"{text}  THE  END" for text in tiny.TEXTS))
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    data = tiny.data(train, validation=pairs, clean=Clean(collapse=True, lower=True))
    data.set_module(tiny.module(tiny.save_bert(tmp_path / "bert")))
    data.setup("fit")
    assert [row["text"] for row in data.table("train")["train"]] == [f"{text} the end" for text in tiny.TEXTS]
    assert data.table("validation")["pairs"].rows == read_rows(pairs, ("anchor", "positive", "target")).rows
    assert data.facts()["training data"].splitlines()[1] == (
        "cleaned: white space collapsed, lower case; 40 of 40 rows changed, and no text that is scored or "
        "embedded"
    )
