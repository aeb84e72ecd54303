"""Fine-tuning on pairs in one sequence: the losses of a plain loop over Transformers' own model, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from contrastive_text.core.random import fold_key, text_id
from contrastive_text.data import learn_vocabulary
from contrastive_text.heads import FineTuningHead
from contrastive_text.training import Run

STEPS, LENGTH = 10, 24
PAIRS = [(tiny.TEXTS[i], " ".join(tiny.TEXTS[i + 1 : i + 2 + i % 3])) for i in range(37)]
KINDS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "TextClassification": ({"classes": 3}, [float(i % 3) for i in range(37)]),
    "TextRegression": ({}, [i % 6 / 5 for i in range(37)]),
}


def save_with_pooler(folder: Path) -> str:
    """Saves a random BERT with its pooler, as BERT's own checkpoints have it."""
    torch.manual_seed(3)
    learn_vocabulary(tiny.TEXTS, vocabulary_size=300).save_pretrained(folder)
    config = BertConfig(**{**tiny.CONFIG, "initializer_range": 0.3})
    BertForSequenceClassification(config).bert.save_pretrained(folder)
    return str(folder)


class Recorder(pl.Callback):
    """Keeps the rows and the loss of each step."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.losses: list[float] = []
        self._numbers = {fold_key(*map(text_id, pair)): number for number, pair in enumerate(PAIRS)}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Lightning's signature
        (rows,) = batch.batches.values()
        self.rows.append([self._numbers[number] for number in rows.text_ids.tolist()])
        self.losses.append(float(outputs["loss"]))


def run_of(kind: str, bert: str, folder: Path) -> Run:
    """Returns a run of ten steps without dropout, in float64."""
    arguments, labels = KINDS[kind]
    scale = 1 if arguments else 5
    rows = ["\t".join((*pair, f"{scale * label:g}")) for pair, label in zip(PAIRS, labels, strict=True)]
    file = tiny.write_texts(folder / "pairs.tsv", ("sentence1\tsentence2\tlabel", *rows))
    head = {
        "class_path": "FineTuningHead",
        "init_args": {"out_features": arguments.get("classes", 1), "dropout": 0.0},
    }
    return Run.from_recipe(
        "glue",
        encoder=bert,
        config={
            "model.encoder.dropout": 0.0,
            "model.encoder.max_length": LENGTH,
            "model.objectives": {"pairs": {"class_path": kind, "init_args": {**arguments, "head": head}}},
            "data.tasks": {"pairs": {"train": file, "pairing": "OneSequence"}},
            "data.batch_size": 8,
            "data.num_workers": 0,
            "trainer.max_steps": STEPS,
            "trainer.precision": "64-true",
            "trainer.accelerator": "cpu",
            "trainer.enable_progress_bar": False,
            "trainer.default_root_dir": str(folder / "runs"),
            "model.optimizer.lr": 1e-3,
        },
    )


def plain_model(bert: str, head: FineTuningHead) -> BertForSequenceClassification:
    """Returns Transformers' classifier without dropout, whose last layer is that of a head as it starts."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": head.out_features}
    plain = BertForSequenceClassification.from_pretrained(bert, **off).double()
    assert head.network is not None
    first, last = head.network[0], head.network[-1]
    assert torch.equal(first.weight.double(), plain.bert.pooler.dense.weight), "the checkpoint's own pooler"
    plain.classifier.load_state_dict(last.state_dict())
    return plain


def plain_losses(
    plain: BertForSequenceClassification, rows: list[list[int]], kind: str, bert: str
) -> list[float]:
    """Returns the losses of a loop as tutorials write it: padded batches, AdamW, linear schedule with warm-up."""
    tokenizer = AutoTokenizer.from_pretrained(bert)
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in plain.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=STEPS)
    losses = []
    for numbers in rows:
        firsts, seconds = ([PAIRS[number][side] for number in numbers] for side in (0, 1))
        inputs = tokenizer(
            firsts, seconds, padding=True, truncation="longest_first", max_length=LENGTH,
            return_token_type_ids=True, return_tensors="pt",
        )  # fmt: skip
        arguments, labels = KINDS[kind]
        target = torch.tensor([labels[number] for number in numbers], dtype=torch.float64)
        loss = plain(**inputs, labels=target.long() if arguments else target).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_is_a_plain_loop_over_transformers(kind: str, tmp_path: Path) -> None:
    bert = save_with_pooler(tmp_path / "bert")
    run, recorder = run_of(kind, bert, tmp_path), Recorder()
    head = run.module.objective_parts()["pairs"].head
    assert isinstance(head, FineTuningHead) and head.pretrained
    plain = plain_model(bert, head)
    run.trainer.callbacks.append(recorder)
    run.fit()
    assert len(recorder.losses) == STEPS and {number for rows in recorder.rows for number in rows} == {*range(37)}
    expected = plain_losses(plain, recorder.rows, kind, bert)
    assert recorder.losses == pytest.approx(expected, abs=1e-6)
    assert max(recorder.losses) - min(recorder.losses) > 0.01
