"""The command that prints the scores of a saved model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.options import Parser, load_model, say_truncated
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs


def evaluate(words: Sequence[str]) -> None:
    """Prints the correlation of cosine similarity with gold scores, per file and sub-set."""
    parser = Parser(prog="contrastive-text evaluate", description="Spearman x 100 of cosine and gold score.")
    parser.add_argument("model", help="folder or hub name")
    parser.add_argument("files", nargs="+", help="files of scored pairs")
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="anchor=..., positive=..., target=..., where the names aren't usual ones",
    )
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--device", help="cpu, cuda, ...; the GPU if there is one")
    options = parser.understand(words)
    for named in options.columns:
        if "=" not in named:
            parser.error(f"--columns: expected NAME=COLUMN, got {named}; write target=gold, for example")
    columns = dict(named.split("=", 1) for named in options.columns)
    tables = {path: read_pairs(path, columns=columns) for path in options.files}
    model = load_model(options.model, device=options.device)
    console = Console()
    console.print(f"{options.model}: {type(model.pooler).__name__}, at most {model.max_length} tokens")
    shown = Table("file", "sub-set", "pairs", "Spearman x 100", title="cosine similarity against gold score")
    for path, table in tables.items():
        scores = evaluate_pairs(model, table, batch_size=options.batch_size, show_progress_bar=True)
        say_truncated(model, texts=2 * len(table))
        for score in scores:
            figure = "n/a" if math.isnan(score.spearman) else f"{score.spearman:.2f}"
            shown.add_row(Path(path).name, Text(score.subset), f"{score.pairs:,}", figure)
    console.print(shown)
