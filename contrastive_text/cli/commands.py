"""Arguments and options of each command: a record a command, which ``options`` turns into a parser.

Most commands have their record in their own file, which imports torch only when the command runs. The records of
commands whose modules import torch are here. So help and the answer to a wrong option come at once. A test
compares the words and numbers with those of the library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from contrastive_text.cli.corpus import Corpus
from contrastive_text.cli.ensemble import Ensemble
from contrastive_text.cli.export import Export
from contrastive_text.cli.merge import Merge
from contrastive_text.cli.new import New
from contrastive_text.cli.onnx import Onnx
from contrastive_text.cli.options import (
    FILES,
    OTHERS,
    Backend,
    Cache,
    Column,
    Columns,
    Device,
    Dtype,
    Header,
    Model,
    Output,
    Ranked,
    Separator,
    Texts,
    TextsCommand,
)
from contrastive_text.cli.paper import Paper
from contrastive_text.cli.paths import ReadPath, WrittenFile, WrittenFolder
from contrastive_text.cli.recipes import Recipes
from contrastive_text.cli.report import Report
from contrastive_text.cli.share import Share
from contrastive_text.cli.verify import Verify
from contrastive_text.core.storage.manifests import MODULES

Suite = Literal[
    "sts", "sts-pearson", "trained-sts", "transfer", "probing", "declutr", "retrieval", "glue", "mteb"
]
Setting = Literal["all", "mean", "wmean"]
Protocol = Literal["standard", "fast"]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]


def _vectors(path: Path) -> Sequence[Path]:
    """Returns a file of vectors, and all that lies beside it."""
    from contrastive_text.inference.vector_files import files_of  # here: it imports torch

    return files_of(path)


def _part(values: Mapping[str, object]) -> WrittenFile:
    """Returns the file of all vectors, or of the part that ``--shard`` names."""
    from contrastive_text.inference.vector_files import Shard  # here: it imports torch

    shard = values.get("shard")
    return WrittenFile(_vectors if shard is None else lambda path: _vectors(Shard.parse(str(shard)).path(path)))


def _scores(values: Mapping[str, object]) -> WrittenFile | WrittenFolder:
    """Returns the file of the tables; of mteb the folder of its own JSON."""
    return WrittenFolder() if values.get("suite") and "mteb" in str(values["suite"]) else WrittenFile()


def _with_index(path: Path) -> Sequence[Path]:
    """Returns a table of duplicates, and the vectors that lie beside it until it is written."""
    return [path, *_vectors(path.with_name(f"{path.name}.vectors.npy"))]


def _with_mining(path: Path) -> Sequence[Path]:
    """Returns a file of mined negatives, and all that lies beside it until it is written."""
    from contrastive_text.inference.mining_run import working_files  # here: it imports torch

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
    output: Annotated[Path, WrittenFile(by_options=_part), ".npy, .tsv or .parquet"]
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


@dataclass(frozen=True)
class Evaluate(TextsCommand):
    """Scores of a model: on files of scored pairs, or on suites."""

    model: Model
    files: Annotated[Sequence[Texts], "files of scored pairs: Spearman and Pearson of cosine and gold score"] = ()
    _: KW_ONLY
    columns: Columns = None
    pooler: Annotated[
        Sequence[str],
        {"metavar": "NAME"},
        "what to read the model with: CLSPooler, FirstLastPooler(first=block_1), ...; several share one pass",
    ] = ()
    threshold: Annotated[
        float | None, {"metavar": "COSINE"}, "accuracy too, of pairs labelled 0 or 1: 1 is predicted above it"
    ] = None
    suite: Annotated[
        Sequence[Suite], {"metavar": "SUITE"}, f"suites of tasks, instead of files: {', '.join(get_args(Suite))}"
    ] = ()
    data: Annotated[
        str | None, ReadPath(), "folder of the suites' data sets; hub: STS and NanoBEIR from the hub"
    ] = None
    corpus: Ranked = None
    setting: Annotated[Setting | None, "how sub-sets of a year of STS are joined; all"] = None
    without_frequent: Annotated[
        Sequence[int],
        {"metavar": "K"},
        "STS without the K most frequent tokens in the mean; several share one pass",
    ] = ()
    frequencies: Annotated[Texts | None, "texts whose tokens are counted for it; else those of STS"] = None
    subsets: Annotated[bool, "a table of sub-sets for each year of STS, of each further figure of retrieval"] = (
        False
    )
    protocol: Annotated[Protocol | None, "of classifiers, as in SentEval; standard"] = None
    classifier: Annotated[Literal["torch", "sklearn"] | None, "what trains them; torch"] = None
    tasks: Annotated[
        Sequence[str], {"metavar": "NAME"}, "of GLUE, retrieval or mteb: MRPC, NanoNQ, STSBenchmark, ...; all"
    ] = ()
    grid: Annotated[
        Path | None, ReadPath(), {"metavar": "FILE"}, "grid of GLUE's runs, as in sweep; that of RoBERTa"
    ] = None
    seeds: Annotated[Sequence[int], {"metavar": "N"}, "of each cell of GLUE's grid: how many, or which; 5"] = ()
    config: Annotated[
        Sequence[Path], ReadPath(), {"metavar": "FILE"}, "YAML files that override GLUE's recipe glue"
    ] = ()
    runs: Annotated[
        Path | None, WrittenFolder(around_inputs=True), "its runs, of which finished ones stay; runs/glue"
    ] = None
    format: Annotated[Literal["text", "markdown", "latex", "csv", "json"] | None, "of their tables; text"] = None
    output: Annotated[
        Path | None,
        WrittenFile(by_options=_scores),
        "file for the suites' tables, instead of the terminal; of mteb the folder of its own JSON",
    ] = None
    cache: Cache = None
    backend: Backend = "torch"
    dtype: Dtype = "float32"


@dataclass(frozen=True)
class Compare(TextsCommand):
    """Scores of models, their differences from the first with intervals, and how alike they are."""

    models: Annotated[Sequence[Model], "folders or hub names; the first is the baseline"]
    _: KW_ONLY
    data: Annotated[str, ReadPath(), "folder of data sets, hub, or a file of pairs"]
    pooler: Annotated[
        str | None, {"metavar": "NAME"}, "what to read a model with whose folder names none; the mean of tokens"
    ] = None
    suite: Sequence[Literal["sts", "transfer", "retrieval"]] = ("sts",)
    columns: Columns = None
    corpus: Ranked = None
    tasks: Annotated[Sequence[str], {"metavar": "NAME"}, "of retrieval: NanoNQ, ...; all"] = ()
    setting: Annotated[Setting | None, "how sub-sets of STS tasks are joined; all"] = None
    protocol: Annotated[Protocol | None, "of the transfer tasks; standard"] = None
    texts: Annotated[Texts | None, "texts to compare vectors on; those of the STS tasks where left out"] = None
    resamples: Annotated[int, "of the test rows, for the intervals"] = 1000
    seed: Annotated[int, "of the resamples"] = 42
    format: Literal["text", "markdown", "json"] = "text"
    output: Output = None
    cache: Cache = None


@dataclass(frozen=True)
class Diagnose(TextsCommand):
    """How a model's vectors lie in space."""

    model: Model
    texts: Annotated[Texts, f"{FILES}; some 1,000 texts or more"]
    _: KW_ONLY
    pooler: Annotated[str | None, {"metavar": "NAME"}, "what to read the model with, as in evaluate; its own"] = (
        None
    )
    pairs: Annotated[Texts | None, "scored pairs: alignment, correlation and frequency bias too"] = None
    guide: Annotated[
        str | None, ReadPath(model=True), "another model, or its vectors by embed --distinct: how far both agree"
    ] = None
    format: Literal["text", "json"] = "text"
    output: Output = None
    limit: Annotated[int, "texts that are measured at most"] = 20_000
    seed: Annotated[int, "of the draw, where there are more texts than that"] = 42


@dataclass(frozen=True)
class Postprocess(TextsCommand):
    """Whiten a model, or remove its top components, and save it with that."""

    model: Model
    texts: Annotated[Texts, "what to fit on; a file of pairs gives all its texts"]
    output: Annotated[Path, WrittenFolder(key=MODULES), "folder of the new model"]
    _: KW_ONLY
    whiten: Annotated[bool, "this or the next: mean 0 and covariance I (Su et al. 2021)"] = False
    remove_components: Annotated[
        int | None,
        {"metavar": "K"},
        "take away the mean and K top components (Mu and Viswanath 2018, who take features / 100)",
    ] = None
    features: Annotated[int | None, "how many to keep, with --whiten; all where left out"] = None
    column: Column = None
    pairs: Annotated[Texts | None, "scored pairs: print Spearman before and after"] = None


@dataclass(frozen=True)
class Completion:
    """Print what a shell needs to complete: eval "$(contrastive-text completion bash)"."""

    shell: Annotated[Literal["bash", "zsh"], "which one"]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid of runs: fit with every combination of values, under every seed; other options are those of fit."""

    grid: Annotated[Path | None, ReadPath(), {"metavar": "FILE"}, "YAML file of keys with lists of values"] = None
    vary: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "KEY=VALUE,VALUE,..."},
        "a further key: values as fit takes them, none, Class(rate=0.3) or [Class, Class(rate=0.3)]",
    ] = ()
    seeds: Annotated[Sequence[int], "how many; or which, of two or more"] = (3,)
    output: Annotated[
        Path, WrittenFolder(key="table.json", around_inputs=True), "folder of the runs and tables of this sweep"
    ] = Path("runs/sweep")
    select: Annotated[
        str | None, {"metavar": "val/FIGURE"}, "what chooses the validation and the weights that count"
    ] = None
    take: Annotated[Literal["best", "last"], "which validation of a run counts"] = "best"
    report: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "FIGURE"},
        "figure of the table: val/FIGURE, SUITE:TASK or SUITE:mean; the figure that chooses, without it",
    ] = ()
    report_data: Annotated[
        str | None, ReadPath(), "folder of the suites' data sets; hub: STS and NanoBEIR from the hub"
    ] = None
    report_pooler: Annotated[
        str | None, {"metavar": "NAME"}, "pooler that measures the best weights, as in evaluate; their own"
    ] = None
    format: Annotated[Literal["markdown", "csv", "json"], "of the printed table"] = "markdown"
    dry_run: Annotated[bool, "check all configurations and run nothing"] = False
    keep_weights: Annotated[bool, "keep checkpoints and model of every run"] = False
    fit: Annotated[Sequence[str], OTHERS] = ()


_RECORDS = (
    Ensemble, Export, Corpus, Sweep, Recipes, New, Paper, Evaluate, Diagnose, Compare, Report, Embed, Search,
    Duplicates, Mine, Postprocess, Merge, Onnx, Verify, Share, Completion,
)  # fmt: skip
RECORDS: Mapping[str, type] = {record.__name__.lower(): record for record in _RECORDS}
"""Command -> its record; the options of the other commands are those of a run."""
