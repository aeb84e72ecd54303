"""The commands that use a saved model: embed and evaluate."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.suggestions import nearest
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.sentence_encoder import SentenceEncoder


class Parser(argparse.ArgumentParser):
    """Answers a wrong option in a few lines."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def understand(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words; an unknown option is named before a missing one."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            if word.startswith("--") and (option := word.partition("=")[0]) not in known:
                self.error(f"no option {option}{nearest(option, known)}")
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n{self.format_usage()}")


def _load(path: str, device: str | None) -> SentenceEncoder:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = SentenceEncoder.from_pretrained(path, device=device)
    for warning in said:
        if issubclass(warning.category, UserWarning):
            print(f"note: {warning.message}")
    return model


def _say_truncated(model: SentenceEncoder, texts: int) -> None:
    if model.truncated:
        print(f"{model.truncated:,} of {texts:,} texts are longer than {model.max_length} tokens and were cut")


def write_vectors(path: Path, vectors: npt.NDArray[np.float32]) -> None:
    """Writes vectors (N, D) in the format that the suffix names: ``.npy``, ``.tsv`` or ``.parquet``.

    Raises:
        ValueError: Another suffix, or ``.parquet`` without pyarrow.
    """
    check_suffix(path)
    if path.suffix == ".npy":
        np.save(path, vectors)
    elif path.suffix == ".tsv":
        np.savetxt(path, vectors, fmt="%.9g", delimiter="\t")
    else:
        import pyarrow  # type: ignore[import-untyped]  # ships no types
        from pyarrow import parquet

        flat = pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
        parquet.write_table(pyarrow.table({"embedding": flat}), path)


def check_suffix(path: Path) -> None:
    """Refuses a name that ``write_vectors`` couldn't write to, before any text is encoded."""
    if path.suffix not in (".npy", ".tsv", ".parquet"):
        raise ValueError(f"{path}: expected a name that ends in .npy, .tsv or .parquet, got {path.suffix!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: expected an existing folder, found none at {path.parent}; make it first"
        )
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401  # only whether it is there
        except ImportError as error:
            raise ValueError(
                f"{path}: expected pyarrow for .parquet, found none; pip install 'contrastive-text[parquet]'"
            ) from error


def embed(words: Sequence[str]) -> None:
    """Writes one vector per text of a file."""
    parser = Parser(prog="contrastive-text embed", description="Write one vector per text.")
    parser.add_argument(
        "input", help=".txt, .tsv, .csv or .jsonl, each also .gz; a file of pairs gives all its texts"
    )
    parser.add_argument("output", type=Path, help=".npy, .tsv or .parquet")
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--column", help="column of the text, where its name isn't a usual one")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--normalize", action="store_true", help="give vectors of unit length")
    parser.add_argument("--device", help="cpu, cuda, ...; the GPU if there is one")
    options = parser.understand(words)
    check_suffix(options.output)
    table = read_rows(
        options.input, reads=("text",), columns={"text": options.column} if options.column else None
    )
    print(table.understood)
    model = _load(options.model, device=options.device)
    vectors = model.encode(
        [str(row["text"]) for row in table],
        batch_size=options.batch_size,
        show_progress_bar=True,
        normalize_embeddings=options.normalize,
    )
    write_vectors(options.output, np.asarray(vectors))
    _say_truncated(model, texts=len(vectors))
    print(f"{len(vectors):,} vectors of {vectors.shape[1]} features written to {options.output}")


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
    model = _load(options.model, device=options.device)
    console = Console()
    console.print(f"{options.model}: {type(model.pooler).__name__}, at most {model.max_length} tokens")
    shown = Table("file", "sub-set", "pairs", "Spearman x 100", title="cosine similarity against gold score")
    for path, table in tables.items():
        scores = evaluate_pairs(model, table, batch_size=options.batch_size, show_progress_bar=True)
        _say_truncated(model, texts=2 * len(table))
        for score in scores:
            figure = "n/a" if math.isnan(score.spearman) else f"{score.spearman:.2f}"
            shown.add_row(Path(path).name, Text(score.subset), f"{score.pairs:,}", figure)
    console.print(shown)
