"""Measures how many rows a second each view alters, and how far the collator keeps ahead of a training step.

    python benchmarks/views.py --encoder FOLDER --texts TEXTS.tsv.gz --documents TEXTS.jsonl.gz --nltk FOLDER

One worker, one thread. Text and token views alter 512 sentences, token views with a generator for each that is
made in the same time; embedding views alter a block of 64 rows of 32 tokens. Where nlpaug has the same
alteration it runs on the same texts, the two taking turns. The collator is timed against forward and backward
pass of the same batch, for every recipe with the encoder laid over it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from runs import publish

from contrastive_text import ContrastiveModule
from contrastive_text.core.config.specs import describe
from contrastive_text.core.random import RowRandom, generator
from contrastive_text.data import Collator, KeyedRow, TextTask, read_rows
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.pairings import Spans
from contrastive_text.recipes import recipe_names
from contrastive_text.views import (
    CropTokens,
    DeleteOneWord,
    DeleteSpans,
    DeleteTokens,
    EmbeddingDropout,
    EmbeddingView,
    FeatureCutoff,
    GaussianNoise,
    MaskTokens,
    NlpaugView,
    Prompt,
    ReorderSpans,
    ShufflePositions,
    SpanCutoff,
    SubstituteSynonyms,
    SwapWords,
    TextView,
    TokenCutoff,
    TokenView,
)
from contrastive_text.views.synonyms import WordNetSynonyms

ROWS = 512


class Measured(NamedTuple):
    """Rows a second: the median of the rounds, and the slowest and the fastest."""

    median: float
    slowest: float
    fastest: float


def measure(*works: Callable[[], object], rows: int, rounds: int) -> list[Measured]:
    """Times several works in turn, round by round, after one round that doesn't count."""
    speeds: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + 1):
        first = turn % len(works)  # who begins changes
        for place in [*range(first, len(works)), *range(first)]:
            begun = time.perf_counter()
            works[place]()
            if turn:
                speeds[place].append(rows / (time.perf_counter() - begun))
    return [Measured(statistics.median(own), min(own), max(own)) for own in speeds]


def text_speed(view: TextView, texts: Sequence[str]) -> Callable[[], object]:
    """Returns the work of altering the texts; their generators are made before, once for a whole chain."""
    rngs = [generator(i) for i in range(len(texts))]
    return lambda: view.alter_all(texts, rngs)


def main() -> None:
    """Measures all and writes the dated table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--documents", required=True)
    parser.add_argument("--nltk", required=True, help="NLTK's data folder")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["NLTK_DATA"] = options.nltk  # where nlpaug looks
    torch.set_num_threads(1)
    texts = [str(row["text"]) for row in read_rows(options.texts, reads=("text",)).rows[:ROWS]]
    tables = {
        "views": view_table(options, texts),
        "against nlpaug": nlpaug_table(options, texts),
        "collator": collator_table(options),
    }
    write(tables, options)


def view_table(options: argparse.Namespace, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Measures every view by itself."""
    module = ContrastiveModule.from_recipe("clear/del_word", options.encoder).eval()
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None
    vocabulary = tokenizer.vocabulary(module.plan.new_tokens)
    tokens = [tokenizer.truncate(each) for each in tokenizer(texts)]
    rows = [tokenizer.with_specials(each) for each in tokens]
    mark = {"mark": "[DEL]"}
    synonyms = WordNetSynonyms(options.nltk)
    views = [
        SwapWords(), Prompt("so: {text}"), SubstituteSynonyms(source=synonyms),
        SubstituteSynonyms(source=WordNetSynonyms(options.nltk, same_part_of_speech=True)),
        DeleteTokens(), DeleteTokens(0.7, **mark), DeleteTokens(0.7, unit="word", **mark), DeleteSpans(),
        DeleteOneWord(), CropTokens(), ReorderSpans(), MaskTokens(), MaskTokens(whole_word=True),
        ShufflePositions(),
        TokenCutoff(), FeatureCutoff(), EmbeddingDropout(), SpanCutoff(), GaussianNoise(),
    ]  # fmt: skip
    mask = torch.arange(32) < torch.tensor([min(len(row), 32) for row in rows[:64]]).unsqueeze(1)
    embeddings = torch.randn(*mask.shape, module.encoder.features)
    found = []
    for view in views:
        view.build(vocabulary)
        count = len(texts)
        if isinstance(view, TextView):
            work = text_speed(view, texts)
        elif isinstance(view, TokenView):
            given = rows if view.after_specials else tokens
            work = lambda view=view, given=given: [view(each, generator(i)) for i, each in enumerate(given)]  # type: ignore[misc]  # noqa: E731
        else:
            assert isinstance(view, EmbeddingView)
            count = len(mask)
            work = lambda view=view: view(embeddings, mask, RowRandom(torch.arange(len(mask))))  # type: ignore[misc]  # noqa: E731
        (speed,) = measure(work, rows=count, rounds=options.rounds)
        found.append({"view": describe(view), **speed._asdict(), "us a row": 1e6 / speed.median})
        print(found[-1], flush=True)
    return found


def nlpaug_table(options: argparse.Namespace, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Measures ours and nlpaug's in turn on the same texts."""
    few = texts[:64]
    pairs = [
        (
            SubstituteSynonyms(source=WordNetSynonyms(options.nltk)),
            NlpaugView("nlpaug.augmenter.word.SynonymAug", {"aug_src": "wordnet", "aug_p": 0.3}),
        ),
        (
            SubstituteSynonyms(source=WordNetSynonyms(options.nltk, same_part_of_speech=True)),
            NlpaugView("nlpaug.augmenter.word.SynonymAug", {"aug_src": "wordnet", "aug_p": 0.3}),
        ),
        (SwapWords(), NlpaugView("nlpaug.augmenter.word.RandomWordAug", {"action": "swap"})),
    ]
    found = []
    for ours, theirs in pairs:
        ours(texts[0], generator(0))  # builds the table
        own, other = measure(text_speed(ours, few), text_speed(theirs, few), rows=len(few), rounds=options.rounds)
        found.append(
            {
                "view": describe(ours),
                "nlpaug": describe(theirs),
                "rows/s": own.median,
                "nlpaug rows/s": other.median,
                "ratio": own.median / other.median,
            }
        )
        print(found[-1], flush=True)
    return found


def collator_table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures, for every recipe, collating a batch against the forward and backward pass of the same batch."""
    found = []
    for recipe in recipe_names():
        if "roberta" in recipe or recipe.endswith("large"):
            continue  # the same parts as their method's, around another network
        module = ContrastiveModule.from_recipe(recipe, options.encoder)
        documents = recipe.startswith("declutr")
        pairing = Spans(positives=0 if "mlm_only" in recipe else 2, too_long="cut") if documents else None
        data = TextDataModule(
            train=options.documents if documents else options.texts,
            task=TextTask(pairing=pairing),
            batch_size=4 if documents else 64,
        )
        data.set_module(module)
        data.setup("fit")
        collator, size = data.collator(), data.batch_size
        rows = [KeyedRow(0, i, data.training.of().rows[i]) for i in range(size)]
        batch = collator(rows)

        def collate(collator: Collator = collator, rows: list[KeyedRow] = rows) -> object:
            return collator(rows)

        def step(module: ContrastiveModule = module, batch: Any = batch) -> None:
            encoded = module.encode(batch)
            loss = torch.stack([module.objective_value(encoded, name)[0] for name in module.objectives]).sum()
            loss.backward()
            module.zero_grad()

        collating, stepping = measure(collate, step, rows=size, rounds=options.rounds)
        found.append(
            {
                "recipe": recipe,
                "rows": size,
                "collate rows/s": collating.median,
                "collate ms a batch": 1e3 * size / collating.median,
                "step rows/s": stepping.median,
                "ratio": collating.median / stepping.median,
            }
        )
        print(found[-1], flush=True)
    return found


def write(tables: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Writes the dated tables and their JSON."""
    today = datetime.date.today().isoformat()
    tables = json.loads(json.dumps(tables).replace(options.nltk, "FOLDER"))
    lines = [
        "# Throughput of views",
        "",
        f"{today}, torch {torch.__version__}, CPU, one thread; medians of {options.rounds}",
    ]
    lines[-1] += f" rounds. Encoder: `{Path(options.encoder).name}`. Written by `benchmarks/views.py`."
    for name, rows in tables.items():
        lines += ["", f"## {name}", "", f"| {' | '.join(rows[0])} |", f"| {' | '.join('---' for _ in rows[0])} |"]
        for row in rows:
            cells = [f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()]
            lines.append(f"| {' | '.join(cells)} |")
    print(publish("views", lines, tables, vars(options)).read_text())


if __name__ == "__main__":
    main()
