"""Records of the commands that encode a file of texts, and keep the vectors as they go; see ``commands``."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from contrastive_text.cli.arguments import (
    FILES,
    Backend,
    Column,
    Columns,
    Device,
    Dtype,
    Header,
    Model,
    Separator,
    Texts,
    TextsCommand,
)
from contrastive_text.cli.paths import ReadPath, WrittenFile

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]


def _vectors(path: Path) -> Sequence[Path]:
    """Returns a file of vectors, and all that lies beside it."""
    from contrastive_text.inference.vector_files.formats import files_of  # here: it imports torch

    return files_of(path)


def _part(path: Path, shard: str) -> Path:
    """Returns the file of a part of the vectors."""
    from contrastive_text.inference.vector_files import Shard  # here: it imports torch

    return Shard.parse(shard).path(path)


def _with_index(path: Path) -> Sequence[Path]:
    """Returns a table of duplicates, and the vectors that lie beside it until it is written."""
    return [path, *_vectors(path.with_name(f"{path.name}.vectors.npy"))]


def _with_mining(path: Path) -> Sequence[Path]:
    """Returns a file of mined negatives, and all that lies beside it until it is written."""
    from contrastive_text.inference.mining import working_files  # here: it imports torch

    return working_files(path)


@dataclass(frozen=True, kw_only=True)
class EncodingCommand(TextsCommand):
    """The options of every command that encodes a file of texts and keeps the vectors as it goes."""

    model: Model
    column: Column = None
    header: Header = None
    separator: Separator = None
    split: Annotated[str | None, "of a file with a column split: train, dev, test, another, or all"] = None
    block_size: Annotated[int, "texts that are encoded and then saved together"] = 16_384
    device: Annotated[Device, "cpu, cuda, ... or several: cuda:0,cuda:1; the GPU if there is one"] = None
    backend: Backend = "torch"
    dtype: Dtype = "float32"
    restart: Annotated[bool, "throw away what a stopped run has left"] = False


@dataclass(frozen=True)
class Embed(EncodingCommand):
    """Write one vector per text. Stopped or killed, the same command goes on where it was."""

    input: Annotated[Texts, f"{FILES}; a file of pairs gives all its texts"]
    output: Annotated[Path, WrittenFile(_vectors, renamed_by=("shard", _part)), ".npy, .tsv or .parquet"]
    _: KW_ONLY
    shard: Annotated[
        str | None,
        {"metavar": "K/N"},
        "only the K-th of N equal parts, from 1/N to N/N, into a file of its own (OUT-00003-of-00016.npy); what "
        "reads OUTPUT reads all parts as one",
    ] = None
    distinct: Annotated[bool, "each text once, with a table of text ids: a file for GuideFile"] = False
    normalize: Annotated[bool, "give vectors of unit length"] = False
    prompt_name: Annotated[str | None, "which of the model's prompts; none for its default"] = None
    truncate_dim: Annotated[int | None, "features to keep, the first ones"] = None
    precision: Annotated[Precision, "a byte or a bit for each feature"] = "float32"
    ranges: Annotated[
        Path | None, ReadPath(), "of features for a byte, (2, D) as .npy; else the first texts'"
    ] = None


@dataclass(frozen=True)
class Search(EncodingCommand):
    """Find the texts of a corpus that are nearest to each query by cosine, exactly."""

    corpus: Texts
    query: Annotated[Sequence[str], "what to look for"] = ()
    _: KW_ONLY
    queries: Annotated[Texts | None, "a file of queries, read as the corpus is"] = None
    query_column: Annotated[str | None, "column of the query in --queries, where it has no usual name"] = None
    top_k: Annotated[int, "hits of each query"] = 5
    index: Annotated[Path | None, WrittenFile(_vectors), ".npy file that keeps the corpus's vectors"] = None
    format: Annotated[Literal["text", "tsv", "json"], "json: a line a query"] = "text"


@dataclass(frozen=True)
class Duplicates(EncodingCommand):
    """Write all pairs of texts with a cosine of the threshold or more, nearest first."""

    input: Texts
    output: Annotated[Path, WrittenFile(_with_index), ".tsv: kind, cosine, lines and texts of each pair"]
    _: KW_ONLY
    threshold: Annotated[float, "lowest cosine of a pair"] = 0.95
    keep: Annotated[
        Path | None, WrittenFile(), {"metavar": "FILE"}, "first text of each group, .txt or .jsonl"
    ] = None


@dataclass(frozen=True)
class Mine(EncodingCommand):
    """Write hard negatives of pairs: texts near to a query that nothing says belong to it."""

    input: Annotated[Texts, "pairs of a query and a positive; all rows of a query are its positives"]
    output: Annotated[Path, WrittenFile(_with_mining), ".tsv or .jsonl, for fit"]
    _: KW_ONLY
    columns: Columns = None
    pair_labels: Annotated[
        Literal["positives", "hard", "all"] | None,
        "of pairs with labels: leave those labelled 0 out, take their second texts as candidates, or take all "
        "for positives",
    ] = None
    corpus: Annotated[Texts | None, "texts that become negatives, beside the positives of all queries"] = None
    form: Annotated[
        Literal["triples", "tuples", "pairs"],
        "a row for each negative; for each pair, with all of them; for each text, with label and cosine",
    ] = "triples"
    negatives: Annotated[int, "of each query"] = 3
    range_min: Annotated[int, "how many of the nearest are skipped; by --ranks"] = 0
    range_max: Annotated[
        int | None, {"metavar": "N"}, "how many of the nearest are looked at; range_min + 10 x negatives"
    ] = None
    ranks: Annotated[
        Literal["before", "after"], "range_min counts all of these, or what the next six have left"
    ] = "before"
    absolute_margin: Annotated[
        float | None, {"metavar": "X"}, "none above the query's lowest positive less this"
    ] = None
    relative_margin: Annotated[
        float | None, {"metavar": "SHARE"}, "none above that less this share of it; 0.05 is usual"
    ] = None
    max_score: Annotated[float | None, {"metavar": "COSINE"}, "none above it"] = None
    min_score: Annotated[float | None, {"metavar": "COSINE"}, "none below it"] = None
    same: Annotated[float | None, "none with such a cosine, or more, to a positive of the query"] = 0.97
    take: Annotated[Literal["top", "random"], "the nearest of what is left, or random ones"] = "top"
    seed: Annotated[int, "of the random ones"] = 42
    short: Annotated[
        Literal["drop", "keep"], "a query with fewer negatives: leave it out, or keep those that there are"
    ] = "drop"
    rescore: Annotated[
        str | None, ReadPath(model=True), {"metavar": "MODEL"}, "whose cosines then judge and order candidates"
    ] = None
