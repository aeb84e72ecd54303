"""Checks of a sweep before its first run, and its plan: options, configuration of every cell, and reports."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from jsonargparse import Namespace, get_loader
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.cli.commands import Sweep
from contrastive_text.cli.configuration import configured
from contrastive_text.cli.options import check_options_used, paths_of
from contrastive_text.cli.paths import RUN_READS, check_paths
from contrastive_text.cli.words import SHORT, expand_recipes, option_values, with_values
from contrastive_text.core.config.specs import flat_settings
from contrastive_text.core.config.suggestions import find_constructor_error, suggest_name
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.evaluation.results import in_columns
from contrastive_text.evaluation.suites import SUITES, missing_data, read_suites
from contrastive_text.metrics.verdict import Mode, usual_mode
from contrastive_text.recipes.layers import Config, is_shipped, names_file, read_layers, split_variant, value_at
from contrastive_text.runs.grid import RECIPE, Axis, Cell
from contrastive_text.runs.sweep_table import Report
from contrastive_text.training.callbacks import PAIR_SCORE, RANKING_SCORE, TASK_SCORE
from contrastive_text.training.run import Run
from contrastive_text.training.run_folder import check_folder_options

_OURS = {
    "seed_everything": "--seeds",
    "data.seed": "--seeds",
    "checkpoint.monitor": "--select",
    **dict.fromkeys(("folder", "trainer.default_root_dir"), "--output"),
    **dict.fromkeys(
        ("export.dirpath", "checkpoint.dirpath"), "--keep_weights, which keeps them in each run's folder"
    ),
    "ckpt_path": "--init_from, because a run starts at step 0",
}
"""Option of the sweep to use instead of an option of ``fit`` that the sweep sets, by the latter's name."""
_MEAN = "mean"
_METHOD = ("model.views", "model.guides", "data.task.pairing")
"""Keys that define a method. Cells are expected to differ in them."""
_OBJECTIVES = "model.objectives"
"""Key of the objectives. Only settings that all cells have, such as a temperature, can be compared."""
_START = "model.encoder.model_name_or_path"
"""Key of the start of training. A user always sets it, although recipes name the encoder of their paper."""
_LONGEST = 30
"""Largest number of letters of a value in the tables of settings."""


def check_words(words: Sequence[str], axes: Sequence[Axis]) -> None:
    """Checks that neither the options of ``fit`` nor the grid have a key that the sweep sets itself.

    Raises:
        ValueError: The sweep sets a key itself, or a launcher started several processes of the sweep.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValueError(
            "sweep: expected to be started once, got several processes; each run starts its own"
        )
    options = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    for key in (*options, *(key for axis in axes for key in axis.name.split(","))):
        if key in _OURS:
            raise InvalidValueError(
                f"--{key}: expected options that the sweep doesn't set itself, got {key}; give {_OURS[key]}"
            )


def check_recipes(words: Sequence[str], axes: Sequence[Axis]) -> None:
    """Checks the key ``recipe`` of a grid: YAML files must define a method, and only the grid may name recipes.

    Raises:
        ValueError: A file defines no method, or the shared options name a recipe too, which would override the
            recipe of every cell.
    """
    labels = [label for axis in axes if axis.name == RECIPE for label in axis.values.values()]
    if not labels:
        return
    for label in filter(names_file, labels):
        layers = read_layers(label)
        if len(layers) == 1 and value_at(layers[0], "model.objectives") is None:
            raise InvalidValueError(
                f"--vary {RECIPE}: {label}: expected the key recipe or model.objectives, got "
                f"{', '.join(layers[0]) or 'an empty file'}; add for example 'recipe: simcse'"
            )
    files = option_values(expand_recipes(words), "--config")
    if shared := [path for path in files if is_shipped(path) or len(read_layers(path)) > 1]:
        name = split_variant(shared[0])[0].name
        raise InvalidValueError(
            f"--vary {RECIPE}: expected recipes in the grid alone, got also {name}, which would override "
            "them; remove --recipe, or the key recipe of the file"
        )


def with_seed(words: Sequence[str], seed: int) -> list[str]:
    """Replaces ``{seed}`` in the path of ``--init_from`` by the seed."""
    pairs = with_values(words, "--init_from")
    return [word if path is None else f"--init_from={path.replace('{seed}', str(seed))}" for word, path in pairs]


def check_cells(cells: Sequence[Cell], options: Sweep, seed: int) -> dict[Cell, Config]:
    """Returns the configuration of every cell of a sweep. Parses all configurations, then builds all of them.

    Raises:
        ValueError: ``fit`` would refuse a cell, two cells have the same configuration, or a cell has no
            validation data.
    """
    configs: dict[Cell, Config] = {}
    parsed = []
    for cell in cells:
        words = with_seed(cell.words(options.fit), seed)
        with _naming(cell):
            parser, namespace, config = _parsed(words)
        if (twin := next((earlier for earlier, value in configs.items() if value == config), None)) is not None:
            raise InvalidValueError(
                f"--vary: expected different runs, got one configuration for {twin.name} and {cell.name}; drop a "
                "value, or the option that overrides it"
            )
        if usual_score(config) is None and not (options.select and _has_held_out(config)):
            raise InvalidValueError(
                f"data.validation: expected a file to score the runs on, got no file for {cell.name}; set "
                "--data.validation PAIRS.tsv, or --data.retrieval.files FOLDER, or --data.task.held_out FILE "
                "with --select val/OBJECTIVE/loss"
            )
        check_folder_options(str(options.output), config["trainer"])
        files = [str(split_variant(path)[0]) for path in option_values(words, "--config")]
        check_paths(RUN_READS | paths_of(Sweep), {**config, **vars(options), "config": files})
        configs[cell] = config
        parsed.append((cell, parser, namespace))
    for cell, parser, namespace in parsed:
        with _naming(cell):
            Run(parser, namespace)
    return configs


def _parsed(words: Sequence[str]) -> tuple[LightningArgumentParser, Namespace, Config]:
    parser, namespace = configured("views", expand_recipes(words))
    config: Config = get_loader("yaml")(parser.dump(namespace, skip_none=False))
    del config["n"]  # an option of ``views``
    return parser, namespace, config


def describe_cells(configs: Mapping[Cell, Config], axes: Sequence[Axis]) -> str:
    """Describes settings of cells of several recipes or files that could be taken for an effect of the method.

    The first table has the settings in which cells differ, besides views, guides, the pairing and the keys of the
    grid. The second table has the settings of recipes that the shared files and options replace.

    Args:
        configs: Configuration of each cell.
        axes: Axes of the grid.

    Returns:
        The tables as text; empty if there is nothing to say.
    """
    places = [place for place, axis in enumerate(axes) if axis.name in (RECIPE, "config")]
    cells: dict[str, Cell] = {}
    for cell in configs if places else ():
        cells.setdefault(" | ".join(cell.labels[place] for place in places), cell)
    varied = [key for axis in axes for key in axis.name.split(",")]
    used = [flat_settings(configs[cell]) for cell in cells.values()]
    own = [_settings_of_recipe(cell.first) for cell in cells.values()]
    differing, replaced = [], []
    for key in dict.fromkeys(key for settings in (*used, *own) for key in settings):
        values = [settings.get(key) for settings in used]
        pairs = [*zip(values, (settings.get(key) for settings in own), strict=True)]
        lost = [recipe if recipe != value else None for value, recipe in pairs]
        if _is_under(key, varied):
            continue
        is_compared = not _is_under(key, _METHOD) and not (_is_under(key, [_OBJECTIVES]) and None in values)
        if len(set(values)) > 1 and is_compared:
            stars = [" *" if value is not None and value == recipe else "" for value, recipe in pairs]
            texts = [f"{_shown(value)}{star}" for value, star in zip(values, stars, strict=True)]
            differing.append([key, *texts, _option(key, values[0])])
        if any(lost) and key != _START:
            replaced.append([key, *map(_shown, lost), ", ".join(dict.fromkeys(map(_shown, values)))])
    text = []
    if differing:
        text += ["Settings that differ between the cells, besides views (*: the recipe sets it):"]
        text += [in_columns([["setting", *cells, "option that makes them equal"], *differing])]
    if replaced:
        text += ["Settings of recipes that the shared files and options replace:"]
        text += [in_columns([["setting", *cells, "in the sweep"], *replaced])]
    return "\n".join(text)


def _settings_of_recipe(words: Sequence[str]) -> dict[str, str]:
    """Returns the settings that a cell's recipe names, as they are without the shared options."""
    if not words:
        return {}
    (file,) = option_values(expand_recipes(words), "--config")
    named = {key for layer in read_layers(file) for key in flat_settings(layer)}
    return {key: value for key, value in flat_settings(_parsed(words)[2]).items() if key in named}


def _is_under(key: str, beginnings: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{beginning}.") for beginning in beginnings)


def _shown(value: str | None) -> str:
    return "-" if value is None else value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."


def _option(key: str, value: str | None) -> str:
    """Returns the option that gives a key a value in all cells; empty without such an option."""
    names = {key: short for short, key in SHORT.items()}
    return "" if value is None or value.startswith("[") else f"--{names.get(key, key)} {value}"


def check_metrics(configs: Mapping[Cell, Config], options: Sweep) -> None:
    """Checks that all cells of a sweep have the metrics of ``--select`` and ``--report``, as far as names tell.

    Raises:
        ValueError: Without ``--select``, cells would select by different metrics; or a metric is the metric of an
            objective that a cell doesn't have.
    """
    usual = {cell.name: usual_score(config) for cell, config in configs.items()}
    (first, score), *_ = usual.items()
    for name, other in usual.items():
        if options.select is None and other != score:
            raise InvalidValueError(
                f"--select: expected one metric for all cells, got {score} for {first} and {other} for {name}; "
                "add --select with a metric that all cells have"
            )
    objectives = {
        cell.name: {*(config["model"]["objectives"] or ("contrastive",))} for cell, config in configs.items()
    }
    for option, metric in [("select", options.select or ""), *(("report", name) for name in options.report)]:
        owners = {*metric.split("/")[1:-1]} & set().union(*objectives.values())
        for name, owned in objectives.items():
            if owners - owned:
                raise InvalidValueError(
                    f"--{option}: expected a metric of all cells, got {metric}, which the cell {name} doesn't "
                    f"have; name a metric of all cells, such as {score or PAIR_SCORE}"
                )


def usual_score(config: Config) -> str | None:
    """Returns the metric by which ``fit`` selects the best checkpoint, or None without scored pairs."""
    data = config["data"]
    if config["checkpoint"]["monitor"]:
        return str(config["checkpoint"]["monitor"])
    if any(task["validation"] for task in (data["tasks"] or {}).values()):
        return TASK_SCORE
    return PAIR_SCORE if data["validation"] else RANKING_SCORE if data["retrieval"]["files"] else None


def _has_held_out(config: Config) -> bool:
    data = config["data"]
    return bool(data["task"]["held_out"] or any(task["held_out"] for task in (data["tasks"] or {}).values()))


@contextlib.contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Hides the output of parsing and building a cell of the sweep's grid, and names the cell in an error."""
    output = io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield
    except SystemExit as error:  # the parser has printed an error
        reason = output.getvalue().rpartition("error: ")[2].strip()
        raise InvalidValueError(f"in the cell {cell.name}: {reason}") from error
    except ValueError as error:
        raise InvalidValueError(f"in the cell {cell.name}: {find_constructor_error(error) or error}") from error
    finally:
        logging.disable(logging.NOTSET)


def read_reports(options: Sweep, select: str, mode: Mode, suffix: str) -> list[Report]:
    """Returns the reports of the sweep's table. Reads and checks the data of the suites.

    Raises:
        FileNotFoundError: The folder of data sets doesn't exist.
        ValueError: A figure is unknown, a task has no data, or no report reads an option.
    """
    names = list(dict.fromkeys(options.report)) or [select]
    suites = list(dict.fromkeys(name.partition(":")[0] for name in names if ":" in name))
    if not select.startswith("val/"):
        raise InvalidValueError(
            f"--select: expected a validation metric such as {PAIR_SCORE}, got {select}. Test data must not "
            "select weights; report that metric with --report"
        )
    for name in names:
        source, colon, _ = name.partition(":")
        if not name.startswith("val/") and not (colon and source in SUITES):
            raise InvalidValueError(
                f"--report: expected val/METRIC, or a task or mean of a suite ({', '.join(SUITES)}) as in "
                f"sts:mean, got {name}{suggest_name(source, SUITES)}"
            )
        if colon and options.take == "last":
            raise InvalidValueError(
                f"--report {name}: expected --take best, got last. Suites are measured on the best weights of a "
                "run; drop --take, or report validation metrics"
            )
    if suites and options.report_data is None:
        raise InvalidValueError(
            f"--report {suites[0]}: expected a folder of the suite's data sets, got no folder; add --report_data"
        )
    check_options_used(options, dict.fromkeys(("report_data", "report_pooler"), (*SUITES,)), suites or names)
    data = read_suites(options.report_data or "", suites, where="--report_data") if suites else {}
    reports = []
    for name in names:
        suite, colon, task = name.partition(":")
        if not colon:
            reports.append(Report(name, mode if name == select else usual_mode(name)))
            continue
        problems = missing_data(data[suite])
        if task not in (*problems, _MEAN):
            choices = [*problems, _MEAN]
            raise InvalidValueError(
                f"--report {name}: expected one of {', '.join(choices)}, got {task}{suggest_name(task, choices)}"
            )
        all_tasks = [task] if task != _MEAN else SUITES[suite].averaged or list(problems)
        tasks = [task for task in all_tasks if not problems[task]]
        if not tasks:
            raise InvalidValueError(
                f"--report {name}: expected the data of {name} in --report_data, got no data; "
                f"{problems[all_tasks[0]]}"
            )
        parts = tuple(f"{suite}:{task}{suffix}" for task in tasks)
        over = ", ".join(tasks) if task == _MEAN else ""
        reports.append(Report(f"{name}{suffix}", usual_mode(name), parts, over=over))
    return reports
