"""What can be typed after each command: a record a command, from which ``options`` makes arguments and options.

Nothing here imports torch, so that help and the answer to a wrong option come at once. Words and numbers that a
function of the library has too are its own, which a test holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from contrastive_text.cli.arguments import (
    FILES,
    Backend,
    Cache,
    Column,
    Columns,
    Device,
    Dtype,
    Model,
    Output,
    Ranked,
    Texts,
    TextsCommand,
)
from contrastive_text.cli.encoding_commands import Duplicates, Embed, Mine, Search
from contrastive_text.cli.options import OTHERS
from contrastive_text.cli.paths import ReadPath, WrittenFile, WrittenFolder
from contrastive_text.core.storage.manifests import GRAPH, MODULES

Suite = Literal[
    "sts", "sts-pearson", "trained-sts", "transfer", "probing", "declutr", "retrieval", "glue", "mteb"
]
Setting = Literal["all", "mean", "wmean"]
Protocol = Literal["standard", "fast"]


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
    learning_rates: Annotated[Sequence[float], {"metavar": "RATE"}, "of GLUE's grid; 1e-5 2e-5 3e-5"] = ()
    batch_sizes: Annotated[Sequence[int], {"metavar": "ROWS"}, "of GLUE's grid; 16 32"] = ()
    seeds: Annotated[Sequence[int], {"metavar": "N"}, "of each of its cells: how many, or which; 5"] = ()
    epochs: Annotated[int | None, {"metavar": "N"}, "of its runs; 10"] = None
    steps: Annotated[int | None, {"metavar": "N"}, "of its runs, in place of epochs"] = None
    config: Annotated[Sequence[Path], ReadPath(), {"metavar": "FILE"}, "YAML files over its recipe glue"] = ()
    runs: Annotated[
        Path | None, WrittenFolder(around_inputs=True), "its runs, of which finished ones stay; runs/glue"
    ] = None
    format: Annotated[Literal["text", "markdown", "latex", "csv", "json"] | None, "of their tables; text"] = None
    output: Annotated[
        Path | None,
        WrittenFile(folder_for=("suite", "mteb")),
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
class Corpus:
    """Write the training texts of a paper, one a line; consert: those of the STS data sets without scores."""

    name: Literal["consert"]
    _: KW_ONLY
    data: Annotated[str, ReadPath(), "SentEval's data folder"]
    output: Annotated[Path, WrittenFile(), ".txt"]


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
class Export:
    """Save the model of a checkpoint as a folder to load anywhere, as fit does with the best one at its end."""

    checkpoint: Annotated[str, ReadPath(), "a .ckpt file; or the folder of a run, for its best"]
    output: Annotated[Path, WrittenFolder(key=MODULES), "folder of the model; is made"]
    _: KW_ONLY
    adapters_beside: Annotated[bool, "LoRA beside the weights, in peft's format; not merged into them"] = False


@dataclass(frozen=True)
class Onnx:
    """Export a model to ONNX, and compare its vectors to the model's."""

    model: Model
    output: Annotated[Path, WrittenFolder(key=GRAPH, never_with=(MODULES, "config.json")), "folder; is made"]
    _: KW_ONLY
    opset: Annotated[int, "version of ONNX's operators (18)"] = 18


@dataclass(frozen=True)
class Report:
    """Write a page of a run, or of several runs and models side by side."""

    runs: Annotated[Sequence[str], ReadPath(), {"metavar": "RUN"}, "folder of a run, or of a saved model"]
    _: KW_ONLY
    output: Annotated[
        Path | None,
        WrittenFolder(key="report.html", around_inputs=True),
        "folder of the page; report in the run's folder, or, of several, in the working directory",
    ] = None
    pairs: Annotated[Texts | None, "scored pairs, in place of the run's validation file"] = None
    texts: Annotated[Texts | None, "texts, in place of the run's training files"] = None
    limit: Annotated[int, "texts, and pairs, that are embedded at most"] = 1000
    device: Device = None


@dataclass(frozen=True)
class Verify:
    """Read all bytes of a model, a checkpoint or a run: are they what was written?"""

    path: Annotated[
        Path, ReadPath(), "model, .ckpt file, run's folder, vectors, unfinished output, cache, or folder"
    ]


@dataclass(frozen=True)
class Ensemble:
    """Route each task to the run that scored best on it."""

    output: Annotated[Path, WrittenFolder(key="ensemble.json"), "new folder"]
    _: KW_ONLY
    runs: Annotated[Sequence[str], ReadPath(), "folders of runs, or .ckpt files"]


@dataclass(frozen=True)
class Merge(TextsCommand):
    """Save the mean of the weights of models of one start (Wortsman et al. 2022)."""

    output: Annotated[Path, WrittenFolder(key=MODULES), "folder of the new model"]
    models: Annotated[Sequence[Model], "folders or hub names, two or more"]
    _: KW_ONLY
    weights: Annotated[Sequence[float], {"metavar": "W"}, "of each, above 0; equal ones"] = ()
    pairs: Annotated[Texts | None, "scored pairs: print Spearman of the new model beside its members'"] = None


@dataclass(frozen=True)
class Share:
    """Upload a saved model to the hub, where it is private."""

    folder: Annotated[Path, ReadPath(), "a saved model"]
    _: KW_ONLY
    to: Annotated[str, {"metavar": "USER/NAME"}, "its name on the hub"]
    public: Annotated[bool, "open it to everyone"] = False
    dry_run: Annotated[bool, "say what would be uploaded, and upload nothing"] = False


@dataclass(frozen=True)
class Paper:
    """Print every table and figure of a paper, with the commands that make it."""

    name: Annotated[str, "simcse, declutr, clear, consert or cs224n"]


@dataclass(frozen=True)
class New:
    """Write a part of your own to begin with, which works as it is: a documented file, its test and its YAML."""

    kind: Annotated[
        Literal["view", "text_view", "embedding_view", "pooler", "loss", "objective"],
        "what it is; view is one of tokens",
    ]
    name: Annotated[str, "of the class, such as DropStopWords"]


@dataclass(frozen=True)
class Recipes:
    """List the recipes; or print one: how closely it follows its source, the score to expect, and its YAML."""

    name: Annotated[str | None, {"nargs": "?"}, "of a recipe"] = None


@dataclass(frozen=True)
class Completion:
    """Print what a shell needs to complete: eval "$(contrastive-text completion bash)"."""

    shell: Annotated[Literal["bash", "zsh"], "which one"]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid of runs: fit with every combination of values, under every seed; other options are those of fit."""

    vary: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "KEY=VALUE,VALUE,..."},
        "what varies; a value is a number, a word, none, Class(rate=0.3), Class+Class or @FILE.yaml",
    ] = ()
    then: Annotated[
        Sequence[str],
        ReadPath(),
        {"action": "append", "nargs": None, "metavar": "STAGE"},
        "a further stage from the weights of the one before: a recipe or a YAML file; its options: --stage2.KEY",
    ] = ()
    seeds: Annotated[Sequence[int], "how many; or which, of two or more"] = (3,)
    output: Annotated[Path, WrittenFolder(key="plan.json", around_inputs=True), "of this sweep alone"] = Path(
        "runs/sweep"
    )
    select: Annotated[
        str | None, {"metavar": "val/FIGURE"}, "what chooses the validation and the weights that count"
    ] = None
    take: Annotated[Literal["best", "last"], "which validation of a run counts"] = "best"
    report: Annotated[
        Sequence[str],
        {"action": "append", "nargs": None, "metavar": "FIGURE"},
        "what the table shows: val/FIGURE, SUITE:TASK, SUITE:mean or diagnose:FIGURE; what chooses, without it",
    ] = ()
    report_data: Annotated[
        str | None, ReadPath(), "folder of the suites' data sets; hub: STS and NanoBEIR from the hub"
    ] = None
    report_pooler: Annotated[
        str | None, {"metavar": "NAME"}, "what the best weights are measured with, as in evaluate; their own"
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
