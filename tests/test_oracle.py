"""Five recipes against plain Transformers and torch: losses, gradients and weights of three steps in float64.

The oracle knows the recipes from their papers and codes. It shares nothing with other tests, and takes from the
library's run only what is drawn at random there:

- the starting weights of fresh layers: heads, the row of a new token;
- DeCLUTR's spans, CLEAR's edited copies, hidden tokens and shuffled positions, as they stand in the batches; the
  texts of the other recipes are tokenized here;
- ConSERT's features that are cut off, from the public view, called with the rows' keys.

Encoding is padded; similarity, losses, clipping and optimizers are loops.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.core.random import RowRandom
from contrastive_text.data import TextTask
from contrastive_text.pairings import Given, Pairing, SameText, Spans
from contrastive_text.training import ConstantSchedule
from contrastive_text.views import FeatureCutoff

STEPS, EXAMPLES, WIDTH = 3, 5, 16
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{consonant}{vowel}" for consonant in "bcdfghjklmnp" for vowel in "aeiou"]
Rows = list[list[int]]


def sentences(count: int, longest: int, seed: int) -> list[str]:
    """Distinct texts of 3 words or more."""
    noise = torch.Generator().manual_seed(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        length = int(torch.randint(3, longest + 1, (1,), generator=noise))
        words = torch.randint(len(WORDS), (length,), generator=noise).tolist()
        found[" ".join(WORDS[word] for word in words)] = None
    return list(found)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT without dropout, with a head for hidden tokens and a tokenizer of 65 entries."""
    folder = tmp_path_factory.mktemp("bert")
    numbers = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(numbers), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=512, initializer_range=0.3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


class Recorder(pl.Callback):
    """Writes down each step's batch, loss and gradient before it is clipped."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.losses: list[float] = []
        self.gradients: list[dict[str, Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.batches.append(copy.deepcopy(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002  # the base's signature
        self.gradients.append(
            {named(n): p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.losses.append(float(outputs["loss"].detach()))


_PLACES = {
    "encoder.model.": "bert.",
    "encoder.token_head.layers.": "",
    "objectives.contrastive.head.network.": "head.",
    "head.network.": "head.",
}


def named(name: str) -> str:
    """The oracle's name of one of the library's parameters."""
    place = next(place for place in _PLACES if name.startswith(place))
    return _PLACES[place] + name.removeprefix(place)


def layers(kind: str | None) -> nn.Sequential:
    """The head of a recipe."""
    if kind == "tanh":
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    if kind == "mlp":
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential()


class Oracle(nn.Module):
    """A model of Transformers with a head after it."""

    def __init__(self, folder: str, head: str | None, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        whole = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        entries = len(start["bert.embeddings.word_embeddings.weight"])
        of_folder = len(whole.bert.embeddings.word_embeddings.weight)
        if entries > of_folder:
            whole.resize_token_embeddings(entries)
        self.bert, self.cls, self.head = whole.bert, whole.cls, layers(head)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.startswith("head."):
                    weight.copy_(start[name])
                elif entries > of_folder and entries in weight.shape:
                    weight[of_folder:] = start[name][of_folder:]
        for name, weight in self.named_parameters():
            assert name not in start or torch.equal(weight, start[name]), name
        self.double()

    def hidden(self, rows: Rows, positions: Rows | None = None, kept: Tensor | None = None) -> Tensor:
        """The last layer of rows that are padded to the longest; the embedding output times ``kept``."""
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask, places = torch.zeros_like(ids), torch.arange(longest).repeat(len(rows), 1)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
            if positions is not None:
                places[i, : len(row)] = torch.tensor(positions[i])
        handle = self.bert.embeddings.register_forward_hook(
            lambda _module, _inputs, output: output if kept is None else output * kept
        )
        try:
            last: Tensor = self.bert(input_ids=ids, attention_mask=mask, position_ids=places).last_hidden_state
        finally:
            handle.remove()
        return last

    def first(self, rows: Rows) -> list[Tensor]:
        """The [CLS] vectors after the head."""
        return list(self.head(self.hidden(rows)[:, 0]))

    def mean(self, rows: Rows, **how: Any) -> list[Tensor]:
        """The mean of each row's tokens."""
        return [
            each[: len(row)].sum(dim=0) / len(row)
            for each, row in zip(self.hidden(rows, **how), rows, strict=True)
        ]

    def hidden_tokens(self, rows: Rows, labels: Rows) -> Tensor:
        """The mean cross entropy of the tokens that have a label."""
        logits = self.cls(self.hidden(rows))
        terms = [
            logits[i, j].logsumexp(dim=0) - logits[i, j, label]
            for i, row in enumerate(labels)
            for j, label in enumerate(row)
            if label != -100
        ]
        return torch.stack(terms).mean()


def cosine(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())


def info_nce(
    anchors: list[Tensor], positives: list[Tensor], negatives: list[Tensor], temperature: float
) -> Tensor:
    """Gao et al. 2021, equations 1 and 5: each anchor against all positives and hard negatives."""
    terms = []
    for i, anchor in enumerate(anchors):
        logits = torch.stack([cosine(anchor, other) / temperature for other in [*positives, *negatives]])
        terms.append(logits.exp().sum().log() - logits[i])
    return torch.stack(terms).mean()


def nt_xent(anchors: list[Tensor], positives: list[Tensor], temperature: float) -> Tensor:
    """Chen et al. 2020, equation 1: each of 2N texts against the 2N - 1 others; the mean."""
    texts, count = [*anchors, *positives], len(anchors)
    terms = []
    for i, text in enumerate(texts):
        others = {j: cosine(text, other) / temperature for j, other in enumerate(texts) if j != i}
        partner = others[(i + count) % (2 * count)]
        terms.append(torch.stack(list(others.values())).exp().sum().log() - partner)
    return torch.stack(terms).mean()


def split(values: Tensor, batch: Any) -> dict[str, list[Rows]]:
    """Values of all tokens as rows: role -> slot -> example."""
    rows = [each.tolist() for each in values.split(batch.lengths.tolist())]
    count = len(rows) // len(batch.slots)
    found: dict[str, list[Rows]] = {}
    for number, slot in enumerate(batch.slots):
        found.setdefault(slot.role, []).append(rows[number * count : (number + 1) * count])
    return found


class Texts:
    """Tokenizes the lines of a file, and finds those of a batch."""

    def __init__(self, folder: str, lines: list[str]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.of = {tuple(row): row for row in tokenizer(lines)["input_ids"]}

    def rows(self, found: Rows) -> Rows:
        return [self.of[tuple(row)] for row in found]


def simcse(oracle: Oracle, batch: Any, texts: Texts) -> Tensor:
    ids = split(batch.ids, batch)
    rows = texts.rows(ids["anchor"][0])
    assert ids["positive"][0] == rows  # the same text twice
    return info_nce(oracle.first(rows), oracle.first(rows), [], temperature=0.05)


def simcse_sup(oracle: Oracle, batch: Any, texts: Texts) -> Tensor:
    ids = split(batch.ids, batch)
    sides = [oracle.first(texts.rows(ids[role][0])) for role in ("anchor", "positive", "negative")]
    return info_nce(sides[0], sides[1], sides[2], temperature=0.05)


def consert(oracle: Oracle, batch: Any, texts: Texts) -> Tensor:
    ids, positions = split(batch.ids, batch), split(batch.positions, batch)
    rows = texts.rows(ids["anchor"][0])
    assert ids["positive"][0] == rows
    assert positions["anchor"][0] == [list(range(len(row))) for row in rows]
    assert [sorted(places) for places in positions["positive"][0]] == positions["anchor"][0]
    keys = batch.draw_keys[: len(rows)]
    everything = torch.ones(len(rows), 1, WIDTH, dtype=torch.float64)
    kept = FeatureCutoff(rate=0.2)(everything, torch.ones(len(rows), 1, dtype=torch.bool), RowRandom(keys))
    assert kept.sum(dim=(1, 2)).tolist() == [WIDTH - 3.0] * len(rows)  # a fifth of 16, rounded down
    anchors = oracle.mean(rows, kept=kept)
    positives = oracle.mean(rows, positions=positions["positive"][0])
    # Both directions' means are added (their code), and weigh 0.15.
    return 0.15 * 2 * nt_xent(anchors, positives, temperature=0.1)


def declutr(oracle: Oracle, batch: Any, texts: Texts) -> Tensor:  # noqa: ARG001  # the spans are the library's
    ids, labels = split(batch.ids, batch), split(batch.labels, batch)
    spans = batch.text_ids[:, 0].view(len(batch.slots), -1).tolist()  # before masking
    compared = [*map(frozenset, zip(spans[0], strict=True)), *map(frozenset, zip(*spans[1:], strict=True))]
    assert len(set(compared)) == len(compared)  # none twice, which would be no negative
    views = [oracle.mean(rows) for rows in ids["positive"]]
    positives = [torch.stack(each).mean(dim=0) for each in zip(*views, strict=True)]
    assert len(views) == 2
    anchors = oracle.mean(ids["anchor"][0])
    return nt_xent(anchors, positives, temperature=0.05) + oracle.hidden_tokens(
        ids["anchor"][0], labels["anchor"][0]
    )


def clear(oracle: Oracle, batch: Any, texts: Texts) -> Tensor:  # noqa: ARG001  # edited copies are the library's
    ids, labels = split(batch.ids, batch), split(batch.labels, batch)
    assert len(SPECIAL) + len(WORDS) in ids["anchor"][0][0]  # the new token [DEL]
    edited = nt_xent(oracle.first(ids["anchor"][0]), oracle.first(ids["positive"][0]), temperature=0.1)
    return edited + oracle.hidden_tokens(ids["original"][0], labels["original"][0])


@dataclass(frozen=True)
class AdamW:
    """Adam with decay, ``corrected`` as Loshchilov and Hutter 2019, else as in ConSERT's and DeCLUTR's codes."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    corrected: bool = True

    def step(self, weight: Tensor, gradient: Tensor, state: list[Tensor], number: int, factor: float) -> None:
        lr, decay = self.lr * factor, self.decay if weight.ndim > 1 else 0.0
        first, second = self.betas
        state[0] = first * state[0] + (1 - first) * gradient
        state[1] = second * state[1] + (1 - second) * gradient * gradient
        if self.corrected:
            weight -= lr * decay * weight
            mean, square = state[0] / (1 - first**number), state[1] / (1 - second**number)
            weight -= lr * mean / (square.sqrt() + self.eps)
        else:
            weight -= lr * state[0] / (state[1].sqrt() + self.eps)
            weight -= lr * decay * weight


def linear(step: int, warmup: int) -> float:
    return step / warmup if step < warmup else (STEPS - step) / (STEPS - warmup)


def slanted(step: int) -> float:
    """Howard and Ruder 2018, equation 3, the first step being 1; a tenth of 3 steps is none."""
    t, cut = step + 1, math.floor(STEPS * 0.1)
    p = t / cut if t < cut else 1 - (t - cut) / (STEPS - cut)
    return (1 + p * (32 - 1)) / 32


@dataclass(frozen=True)
class Recipe:
    """Settings of a method from its paper and code: loss, optimizer and further options."""

    loss: Callable[[Oracle, Any, Texts], Tensor]
    optimizer: AdamW
    factor: Callable[[int], float]
    pairing: Callable[[], Pairing]
    head: str | None = None


RECIPES = {
    "simcse": Recipe(simcse, AdamW(3e-5), lambda step: linear(step, 0), SameText, head="tanh"),
    "simcse/sup": Recipe(simcse_sup, AdamW(5e-5), lambda step: linear(step, 0), Given, head="tanh"),
    "consert": Recipe(
        consert, AdamW(5e-7, eps=1e-6, decay=0.01, corrected=False), lambda step: linear(step, 1), SameText
    ),
    "declutr": Recipe(
        declutr, AdamW(5e-5, eps=1e-6, decay=0.1, corrected=False), slanted,
        lambda: Spans(anchors=2, positives=2, min_length=6, max_length=24, strategy="any", start="grid"),
    ),
    # Its warm-up of 24,000 steps would leave three with next to no rate.
    "clear": Recipe(
        clear, AdamW(6e-4, betas=(0.9, 0.98), eps=1e-6, decay=0.01), lambda _: 1.0, SameText, head="mlp"
    ),
}  # fmt: skip


def write(path: Path, name: str) -> tuple[str, list[str]]:
    """Training data of a recipe, and their texts."""
    count = STEPS * EXAMPLES
    if name == "simcse/sup":
        texts = sentences(3 * count, longest=9, seed=2)
        rows = ["\t".join(texts[i::count]) for i in range(count)]
        file = path / "triples.tsv"
        file.write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n", encoding="utf-8")
        return str(file), texts
    texts = sentences(count, longest=9, seed=3)
    if name == "declutr":
        texts = [" ".join(sentences(30, longest=9, seed=10 + i)) for i in range(count)]
    file = path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(file), texts


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_three_steps_of_a_recipe_are_those_of_plain_transformers_and_torch(
    bert: str, tmp_path: Path, name: str
) -> None:
    recipe = RECIPES[name]
    train, lines = write(tmp_path, name)
    torch.manual_seed(4)  # the heads
    module = ContrastiveModule.from_recipe(name, bert)
    if name == "clear":
        module.schedule = ConstantSchedule()
    start = {named(n): w.detach().clone() for n, w in module.named_parameters()}
    recorder = Recorder()
    data = TextDataModule(
        train=train, task=TextTask(pairing=recipe.pairing()), batch_size=EXAMPLES, num_workers=0
    )
    pl.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, precision="64-true", gradient_clip_val=1.0,
        default_root_dir=tmp_path, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, callbacks=[recorder],
    ).fit(module, datamodule=data)  # fmt: skip
    assert len(recorder.losses) == STEPS

    oracle, texts = Oracle(bert, recipe.head, start), Texts(bert, lines)
    weights = dict(oracle.named_parameters())
    states = {n: [torch.zeros_like(w), torch.zeros_like(w)] for n, w in weights.items()}
    for step, batch in enumerate(recorder.batches):
        oracle.zero_grad()
        loss = recipe.loss(oracle, batch, texts)
        loss.backward()
        assert recorder.losses[step] == pytest.approx(loss.item(), rel=1e-12)
        gradients = {n: w.grad for n, w in weights.items() if w.grad is not None}
        assert gradients.keys() == recorder.gradients[step].keys()
        scale = max(float(g.abs().max()) for g in gradients.values())
        for n, g in gradients.items():
            # Rounding of float64 over some thousand terms.
            torch.testing.assert_close(recorder.gradients[step][n], g, rtol=0, atol=1e-11 * scale, msg=n)
        norm = sum(float((g * g).sum()) for g in gradients.values()) ** 0.5
        clipped = min(1.0, 1.0 / (norm + 1e-6))  # torch's clip_grad_norm_
        with torch.no_grad():
            for n, g in gradients.items():
                recipe.optimizer.step(weights[n], clipped * g, states[n], step + 1, recipe.factor(step))
    reached = {named(n): w.detach() for n, w in module.named_parameters()}
    moved = max(float((reached[n] - start[n]).abs().max()) for n in reached)
    furthest = max(float((reached[n] - weights[n].detach()).abs().max()) for n in reached)
    assert moved > recipe.optimizer.lr
    # Of gradients that are 0 but for rounding, those of keys' biases, 1e-17 over an eps of 1e-8 is left.
    assert furthest < 1e-8 * recipe.optimizer.lr
