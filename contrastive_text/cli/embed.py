"""The command that writes one vector per text of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contrastive_text.cli.options import Parser, load_model, say_truncated
from contrastive_text.data import read_rows


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
    model = load_model(options.model, device=options.device)
    vectors = model.encode(
        [str(row["text"]) for row in table],
        batch_size=options.batch_size,
        show_progress_bar=True,
        normalize_embeddings=options.normalize,
    )
    write_vectors(options.output, np.asarray(vectors))
    say_truncated(model, texts=len(vectors))
    print(f"{len(vectors):,} vectors of {vectors.shape[1]} features written to {options.output}")
