"""Records of the commands: one dataclass per command, whose fields are the command's arguments and options.

``cli/options.py`` turns a record into a parser. The records here belong to commands whose modules import torch:
help needs no torch. The other records are in the modules of their commands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from contrastive_text.cli.classify import Classify
from contrastive_text.cli.corpus import Corpus
from contrastive_text.cli.ensemble import Ensemble
from contrastive_text.cli.export import Export
from contrastive_text.cli.index import IndexAdd, IndexBuild, IndexInfo, IndexRemove
from contrastive_text.cli.merge import Merge
from contrastive_text.cli.new import New
from contrastive_text.cli.onnx import Onnx
from contrastive_text.cli.options import (
    FILES,
    UNPARSED,
    Backend,
    Cache,
    Column,
    Columns,
    Dtype,
    EncodingCommand,
    Model,
    Output,
    Ranked,
    Texts,
    TextsCommand,
    command_of,
)
from contrastive_text.cli.paper import Paper
from contrastive_text.cli.paths import ReadPath, WrittenFile, WrittenFolder
from contrastive_text.cli.rank import Rank
from contrastive_text.cli.recipes import Recipes
from contrastive_text.cli.report import Report
from contrastive_text.cli.score import Score
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
    """Returns the paths of a vector file and its companion files."""
    from contrastive_text.inference.vector_files import all_paths  # here: it imports torch

    return all_paths(path)


def _part(values: Mapping[str, object]) -> WrittenFile:
    """Returns the output file of ``embed``: all vectors, or the vectors of the shard in ``--shard``."""
    from contrastive_text.inference.vector_files import Shard  # here: it imports torch

    shard = values.get("shard")
    return WrittenFile(_vectors if shard is None else lambda path: _vectors(Shard.parse(str(shard)).path(path)))


def _scores(values: Mapping[str, object]) -> WrittenFile | WrittenFolder:
    """Returns the output path of ``evaluate``: a file of tables, or a folder of mteb's JSON files."""
    return WrittenFolder() if values.get("suite") and "mteb" in str(values["suite"]) else WrittenFile()


def _with_index(path: Path) -> Sequence[Path]:
    """Returns the paths of a table of duplicates, and of the vector files that exist until it is written."""
    return [path, *_vectors(path.with_name(f"{path.name}.vectors.npy"))]


def _with_mining(path: Path) -> Sequence[Path]:
    """Returns the paths of a file of mined negatives, and of the working files that exist until it is written."""
    from contrastive_text.inference.mining_run import working_files  # here: it imports torch

    return working_files(path)


@dataclass(frozen=True)
class Embed(EncodingCommand):
    """Write one vector per text. If the command is stopped or killed, the same command resumes."""

    input: Annotated[Texts, f"{FILES} For a file of pairs, all its texts are encoded."]
    output: Annotated[Path, WrittenFile(by_options=_part), "Vector file to write: .npy, .tsv or .parquet."]
    _: KW_ONLY
    shard: Annotated[
        str | None,
        {"metavar": "K/N"},
        "Encode only shard K of N and write it to its own file, such as OUT-00003-of-00016.npy. Commands that "
        "read OUTPUT read all shards together.",
    ] = None
    distinct: Annotated[
        bool, "Encode each distinct text once and write a table of text ids, as GuideFile reads it."
    ] = False
    normalize: Annotated[bool, "Normalize vectors to length 1."] = False
    prompt_name: Annotated[
        str | None,
        "Name of the prompt of the model that is put before each text. Default: the model's default prompt.",
    ] = None
    truncate_dim: Annotated[int | None, "Number of features to keep, from the first (Matryoshka models)."] = None
    precision: Annotated[
        Precision,
        "Type of the stored features: int8 and uint8 take one byte per feature, binary and ubinary one bit.",
    ] = "float32"
    ranges: Annotated[
        Path | None,
        ReadPath(),
        "File of the lowest and highest value of each feature, (2, D) as .npy, for int8 and uint8. Default: "
        "measured on the first texts.",
    ] = None


@dataclass(frozen=True)
class Search(EncodingCommand):
    """Find the texts of a corpus, or of an index, with the highest cosine to each query."""

    corpus: Annotated[Texts, f"Folder of an index. Or a corpus that is encoded for this search only. {FILES}"]
    query: Annotated[Sequence[str], "Query texts."] = ()
    _: KW_ONLY
    model: Annotated[
        str, ReadPath(model=True), "Model folder, or a name on the hub. Default: the folder that the index names."
    ] = ""
    queries: Annotated[Texts | None, "File of queries, in the same formats as the corpus."] = None
    query_column: Annotated[
        str | None, "Column of --queries that holds the query. Default: found by its usual name."
    ] = None
    top_k: Annotated[int, "Number of hits per query."] = 5
    format: Annotated[Literal["text", "tsv", "json"], "Format of the hits; json writes one line per query."] = (
        "text"
    )


@dataclass(frozen=True)
class Duplicates(EncodingCommand):
    """Write all pairs of texts whose cosine reaches a threshold, highest cosine first."""

    input: Texts
    output: Annotated[
        Path,
        WrittenFile(_with_index),
        "Table to write (.tsv): kind, cosine, line numbers and texts of each pair.",
    ]
    _: KW_ONLY
    threshold: Annotated[float, "Lowest cosine at which two texts are near-duplicates."] = 0.95
    keep: Annotated[
        Path | None,
        WrittenFile(),
        {"metavar": "FILE"},
        "File for all texts without their near-duplicates: of each group the first text (.txt or .jsonl).",
    ] = None


@dataclass(frozen=True)
class Mine(EncodingCommand):
    """Mine hard negatives: texts with a high cosine to a query that are not among its positives."""

    input: Annotated[Texts, "File of pairs of a query and a positive. A query may have several rows."]
    output: Annotated[Path, WrittenFile(_with_mining), "File to write for fit: .tsv or .jsonl."]
    _: KW_ONLY
    columns: Columns = None
    pair_labels: Annotated[
        Literal["positives", "hard", "all"] | None,
        "Use of pairs with label 0: skip them (positives), use their second texts as candidates (hard), or treat "
        "them as positives (all).",
    ] = None
    corpus: Annotated[Texts | None, "Further texts to mine from. Default: only the positives of all queries."] = (
        None
    )
    form: Annotated[
        Literal["triples", "tuples", "pairs"],
        "Rows to write: one per negative (triples), one per pair with all its negatives (tuples), or one per "
        "text with label and cosine (pairs).",
    ] = "triples"
    negatives: Annotated[int, "Number of hard negatives per query."] = 3
    range_min: Annotated[int, "Number of nearest candidates to skip; --ranks says when they are counted."] = 0
    range_max: Annotated[
        int | None,
        {"metavar": "N"},
        "Number of nearest candidates to consider. Default: range_min + 10 x negatives.",
    ] = None
    ranks: Annotated[
        Literal["before", "after"],
        "Count range_min before or after the margins, score limits and --same remove candidates.",
    ] = "before"
    absolute_margin: Annotated[
        float | None,
        {"metavar": "X"},
        "Remove candidates whose cosine is above the lowest cosine of the query's positives minus X.",
    ] = None
    relative_margin: Annotated[
        float | None,
        {"metavar": "SHARE"},
        "Remove candidates whose cosine is above (1 - SHARE) times the lowest cosine of the query's positives; "
        "0.05 is usual.",
    ] = None
    max_score: Annotated[float | None, {"metavar": "COSINE"}, "Remove candidates with a higher cosine."] = None
    min_score: Annotated[float | None, {"metavar": "COSINE"}, "Remove candidates with a lower cosine."] = None
    same: Annotated[
        float | None, "Remove candidates whose cosine to a positive of the query is at least this."
    ] = 0.97
    take: Annotated[
        Literal["top", "random"], "Choice among the remaining candidates: the nearest (top) or a random sample."
    ] = "top"
    seed: Annotated[int, "Seed of the random sample."] = 42
    short: Annotated[
        Literal["drop", "keep"],
        "Treatment of a query with too few negatives: drop the query, or keep the negatives found.",
    ] = "drop"
    rescore: Annotated[
        str | None,
        ReadPath(model=True),
        {"metavar": "MODEL"},
        "Second embedding model, or a reranker, that scores the candidates again. All rules and the order use "
        "its scores.",
    ] = None


@dataclass(frozen=True)
class Evaluate(TextsCommand):
    """Score a model on files of scored pairs or on suites of tasks."""

    model: Model
    files: Annotated[
        Sequence[Texts],
        "Files of scored pairs: prints the Spearman and Pearson correlation of cosine and gold score.",
    ] = ()
    _: KW_ONLY
    columns: Columns = None
    pooler: Annotated[
        Sequence[str],
        {"metavar": "NAME"},
        "Pooler to use instead of the model's, such as CLSPooler or FirstLastPooler(first=block_1). Several "
        "poolers share one pass.",
    ] = ()
    precision: Annotated[
        Literal["float32", "binary", "int8"] | None,
        "Precision of the compared vectors: binary takes one bit per feature, int8 one byte. Default: float32.",
    ] = None
    threshold: Annotated[
        float | None,
        {"metavar": "COSINE"},
        "Print the accuracy on pairs with labels 0 and 1 too; a pair above this cosine is predicted as 1.",
    ] = None
    suite: Annotated[
        Sequence[Suite],
        {"metavar": "SUITE"},
        f"Suites of tasks to run instead of files: {', '.join(get_args(Suite))}.",
    ] = ()
    data: Annotated[
        str | None,
        ReadPath(),
        "Folder that holds the data sets of the suites, or hub to load STS and NanoBEIR from the hub.",
    ] = None
    corpus: Ranked = None
    rerank: Annotated[
        str | None,
        ReadPath(model=True),
        {"metavar": "RERANKER"},
        "Reranker that orders the first documents of each query again in the suite retrieval. Its scores are "
        "printed below those of the model alone.",
    ] = None
    rerank_top_k: Annotated[
        int | None, {"metavar": "K"}, "Number of first documents that --rerank orders again. Default: 100."
    ] = None
    setting: Annotated[
        Setting | None,
        "Way to combine the subsets of an STS year: all, mean or wmean (weighted mean). Default: all.",
    ] = None
    without_frequent: Annotated[
        Sequence[int],
        {"metavar": "K"},
        "Exclude the K most frequent tokens from the mean in the suite sts. Several values share one pass.",
    ] = ()
    frequencies: Annotated[
        Texts | None, "Texts whose tokens --without_frequent counts. Default: the texts of the STS tasks."
    ] = None
    subsets: Annotated[bool, "Print a table of the subsets of each STS year, and all metrics of retrieval."] = (
        False
    )
    protocol: Annotated[
        Protocol | None, "Training protocol of the classifiers, as in SentEval. Default: standard."
    ] = None
    classifier: Annotated[
        Literal["torch", "sklearn"] | None, "Library that trains the classifiers. Default: torch."
    ] = None
    tasks: Annotated[
        Sequence[str],
        {"metavar": "NAME"},
        "Tasks of the suites glue, retrieval or mteb, such as MRPC, NanoNQ or STSBenchmark. Default: all.",
    ] = ()
    grid: Annotated[
        Path | None,
        ReadPath(),
        {"metavar": "FILE"},
        "Grid file of the fine-tuning runs of the suite glue. Default: the grid of RoBERTa.",
    ] = None
    seeds: Annotated[
        Sequence[int],
        {"metavar": "N"},
        "Seeds of each cell of the grid of the suite glue: their number, or two or more seeds. Default: 5.",
    ] = ()
    config: Annotated[
        Sequence[Path],
        ReadPath(),
        {"metavar": "FILE"},
        "YAML files that override the recipe glue in the suite glue.",
    ] = ()
    runs: Annotated[
        Path | None,
        WrittenFolder(around_inputs=True),
        "Folder of the runs of the suite glue; finished runs are reused. Default: runs/glue.",
    ] = None
    format: Annotated[
        Literal["text", "markdown", "latex", "csv", "json"] | None, "Format of the tables. Default: text."
    ] = None
    output: Annotated[
        Path | None,
        WrittenFile(by_options=_scores),
        "File for the tables. For the suite mteb: folder of mteb's JSON files. Default: the terminal.",
    ] = None
    cache: Cache = None
    backend: Backend = "torch"
    dtype: Dtype = "float32"


@dataclass(frozen=True)
class Compare(TextsCommand):
    """Compare models: scores, differences from the first model with intervals, and agreement of vectors."""

    models: Annotated[Sequence[Model], "Model folders or names on the hub; the first is the baseline."]
    _: KW_ONLY
    data: Annotated[
        str,
        ReadPath(),
        "Folder of data sets, a file of scored pairs, or hub to load STS and NanoBEIR from the hub.",
    ]
    pooler: Annotated[
        str | None, {"metavar": "NAME"}, "Pooler of models whose folder defines none. Default: MeanPooler."
    ] = None
    suite: Annotated[Sequence[Literal["sts", "transfer", "retrieval"]], "Suites of tasks to run."] = ("sts",)
    columns: Columns = None
    corpus: Ranked = None
    tasks: Annotated[
        Sequence[str], {"metavar": "NAME"}, "Tasks of the suite retrieval, such as NanoNQ. Default: all."
    ] = ()
    setting: Annotated[
        Setting | None,
        "Way to combine the subsets of an STS year: all, mean or wmean (weighted mean). Default: all.",
    ] = None
    protocol: Annotated[
        Protocol | None, "Training protocol of the classifiers of the suite transfer. Default: standard."
    ] = None
    texts: Annotated[
        Texts | None,
        "Texts on which the vectors of the models are compared. Default: the texts of the STS tasks.",
    ] = None
    resamples: Annotated[int, "Number of bootstrap resamples for the intervals."] = 1000
    seed: Annotated[int, "Seed of the bootstrap."] = 42
    format: Annotated[Literal["text", "markdown", "json"], "Format of the tables."] = "text"
    output: Output = None
    cache: Cache = None


@dataclass(frozen=True)
class Diagnose(TextsCommand):
    """Measure the geometry of a model's vectors, such as uniformity, effective rank and hubs."""

    model: Model
    texts: Annotated[Texts, f"{FILES} At least 1,000 texts are advised."]
    _: KW_ONLY
    pooler: Annotated[
        str | None, {"metavar": "NAME"}, "Pooler to use instead of the model's, as in evaluate."
    ] = None
    pairs: Annotated[
        Texts | None, "File of scored pairs, to measure alignment, correlation and frequency bias too."
    ] = None
    guide: Annotated[
        str | None,
        ReadPath(model=True),
        "Second model, or its vectors as written by embed --distinct, to measure the agreement of both.",
    ] = None
    format: Annotated[Literal["text", "json"], "Format of the report."] = "text"
    output: Output = None
    limit: Annotated[int, "Largest number of texts to measure."] = 20_000
    seed: Annotated[int, "Seed of the sample if there are more than --limit texts."] = 42


@dataclass(frozen=True)
class Postprocess(TextsCommand):
    """Save a model with a whitening layer, or with its top principal components removed."""

    model: Model
    texts: Annotated[Texts, "Texts to fit on. For a file of pairs, all its texts are used."]
    output: Annotated[Path, WrittenFolder(key=MODULES), "Folder of the new model."]
    _: KW_ONLY
    whiten: Annotated[bool, "Whiten: transform vectors to mean 0 and identity covariance (Su et al. 2021)."] = (
        False
    )
    remove_components: Annotated[
        int | None,
        {"metavar": "K"},
        "Subtract the mean and remove the K top components (Mu and Viswanath 2018; they remove features / 100).",
    ] = None
    features: Annotated[int | None, "Number of features to keep with --whiten. Default: all."] = None
    column: Column = None
    pairs: Annotated[
        Texts | None, "File of scored pairs, to print the Spearman correlation before and after."
    ] = None


@dataclass(frozen=True)
class Completion:
    """Print the completion script of a shell, to use as: eval "$(contrastive-text completion bash)"."""

    shell: Annotated[Literal["bash", "zsh"], "Shell for which the completion script is printed."]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Run fit for every combination of values and every seed. Other options are those of fit."""

    grid: Annotated[
        Path | None,
        ReadPath(),
        {"metavar": "FILE"},
        "YAML file of the sweep: maps each key of the configuration to the list of its values.",
    ] = None
    vary: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "KEY=VALUE,VALUE,..."},
        "Key to vary and its values, as fit takes them: plain values, none, Class(rate=0.3) or [Class, "
        "Class(rate=0.3)].",
    ] = ()
    seeds: Annotated[Sequence[int], "Number of seeds, or two or more seeds."] = (3,)
    output: Annotated[
        Path, WrittenFolder(key="table.json", around_inputs=True), "Folder of the runs and tables of the sweep."
    ] = Path("runs/sweep")
    select: Annotated[
        str | None,
        {"metavar": "val/METRIC"},
        "Metric that selects the validation step and the weights of each run.",
    ] = None
    take: Annotated[
        Literal["best", "last"],
        "Validation step whose metrics are reported: the best step by --select, or the last step.",
    ] = "best"
    report: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "FIGURE"},
        "Score of the table: val/METRIC, SUITE:TASK or SUITE:mean. Default: the metric of --select.",
    ] = ()
    report_data: Annotated[
        str | None,
        ReadPath(),
        "Folder that holds the data sets of the suites, or hub to load STS and NanoBEIR from the hub.",
    ] = None
    report_pooler: Annotated[
        str | None,
        {"metavar": "NAME"},
        "Pooler used to evaluate the selected weights, as in evaluate. Default: the model's own.",
    ] = None
    format: Annotated[Literal["markdown", "latex", "csv", "json"], "Format of the printed table."] = "markdown"
    dry_run: Annotated[bool, "Check all configurations without running them."] = False
    keep_weights: Annotated[bool, "Keep the checkpoints and the model of every run."] = False
    fit: Annotated[Sequence[str], UNPARSED] = ()


_RECORDS = (
    Ensemble, Export, Sweep, Recipes, Corpus, New, Paper, Evaluate, Diagnose, Compare, Report, Embed, IndexBuild,
    IndexAdd, IndexRemove, IndexInfo, Search, Classify, Rank, Score, Duplicates, Mine, Postprocess, Merge, Onnx,
    Share, Verify, Completion,
)  # fmt: skip
RECORDS: Mapping[str, type] = {command_of(record): record for record in _RECORDS}
"""Name of a command -> dataclass of its arguments and options. The other commands take the options of a run."""
