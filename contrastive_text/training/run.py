"""``Run``, which builds module, data and trainer from a configuration, for Python and the command line."""

from __future__ import annotations

import inspect
import json
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytorch_lightning as pl
from jsonargparse import Namespace
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO

from contrastive_text.core.config.class_paths import foreign_modules, trust_options
from contrastive_text.core.config.specs import to_plain
from contrastive_text.core.config.suggestions import short_parser_errors, suggest_name
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.manifests import find_model_folder
from contrastive_text.core.terminal import escaping_output, facts_table, log_message
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.data.files.in_memory import given_sources, in_memory_rows
from contrastive_text.data.tasks import TextTask
from contrastive_text.encoders import Encoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.layers import Config, lay, layer_file, parse_yaml, read_layers, replace_bounds
from contrastive_text.recipes.papers import shipped
from contrastive_text.training.callbacks import ExportModel, RunSummary, SaveWhenStopped
from contrastive_text.training.callbacks.chunk_size import ChunkSize
from contrastive_text.training.callbacks.collapse_doctor import CollapseDoctor
from contrastive_text.training.callbacks.export_model import add_card
from contrastive_text.training.callbacks.run_summary import TITLE, RunProgressBar, model_facts
from contrastive_text.training.checkpoint_io import AtomicCheckpointIO
from contrastive_text.training.folder_start import merge_start
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run_folder import (
    FINISHED,
    LockFolders,
    RunFolder,
    SaveConfig,
    check_folder_options,
    find_resumable,
    remove_leftovers,
)
from contrastive_text.training.run_log import (
    RunLogger,
    SaveLogWithCheckpoints,
    check_loggers,
    remove_empty_folders,
)
from contrastive_text.training.run_parser import (
    PLACES,
    VALUES,
    check_places,
    check_processes,
    check_reads_batches,
    check_seed,
    check_trainer,
    checkpoint_parts,
    importing_parts,
    naming_options,
    run_parser,
)

T = TypeVar("T")
RUNS = "runs"
"""Default parent folder of runs."""
_IGNORED_WARNINGS = (
    ".*does not have many workers",  # tiny evaluation files
    ".*LeafSpec",  # Lightning's use of torch
    "Total length of `list` across ranks is zero",  # no validation
    r"Found .* module\(s\) in eval mode",  # the frozen side of an encoder
)
"""Patterns of Lightning's warnings that are suppressed, because a user can't change their cause."""
_OWN_CHECKPOINTS = "Checkpoint directory .* exists and is not empty"
"""Pattern of a warning that is suppressed if a run resumes in its folder."""


class Run:
    """Training run: module, data, trainer and callbacks of one configuration.

    The command ``fit`` uses this class. The same recipe and values give the same ``config.yaml`` and bit-equal
    weights in Python and on the command line. ``contrastive-text fit --resume`` resumes both. A run has its own
    folder under ``runs``, with its log and configuration. Checkpoints are written atomically: the best validation
    score (``BestCheckpoint``), and one to resume from (``SaveWhenStopped``). ``RunSummary`` prints a summary, and
    ``CollapseDoctor`` logs the distribution of vectors. At the end ``ExportModel`` saves the model.

    ``from_recipe`` builds a run. It sets the seed before the parts draw their initial weights.

    Args:
        parser: Result of ``run_parser``.
        config: Configuration that the parser has parsed.
        files: Files of the configuration, which determine the recipe's name.

    Attributes:
        module: The ``ContrastiveModule``.
        data: The ``TextDataModule``.
        trainer: Lightning's ``Trainer``.

    Raises:
        ValueError: Parts are incompatible, or the Trainer refuses an option.
    """

    def __init__(
        self, parser: LightningArgumentParser, config: Namespace, files: Sequence[str | Path] = ()
    ) -> None:
        seed, options = config["seed_everything"], config["trainer"]
        check_seed(seed)
        check_processes(
            options["devices"], options["accelerator"], config["data.num_workers"], config["oversubscribe"]
        )
        with naming_options():
            if seed is not False:
                config["seed_everything"] = pl.seed_everything(None if seed is True else seed, workers=True)
            self._parts = parser.instantiate_classes(config)
            self._summary = RunSummary(recipe=", ".join(filter(None, map(shipped, files))))
            self._folders = LockFolders()
            self.module: ContrastiveModule = self._parts["model"]
            self.data: TextDataModule = self._parts["data"]
            self._save_config = SaveConfig(parser, config, save_to_log_dir=False)
            self.trainer = self._build_trainer()
        self._command = _resume_command(config)
        self._trained = False
        self._finished: Path | None = None  # model folder of a run that was already finished

    @classmethod
    def from_recipe(
        cls,
        recipe: str | Path,
        encoder: str | Path | Encoder | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Builds the run of a recipe, as ``fit --recipe`` does.

        Args:
            recipe: Name of a shipped recipe, or path of a YAML file.
            encoder: Folder, hub name or encoder that replaces the recipe's encoder.
            config: Dotted name -> value, like options of the command: ``{"model.optimizer.lr": 3e-5}``.
            options: Arguments of ``TextDataModule``, ``TextTask``, ``ContrastiveModule`` and ``pl.Trainer`` by
                their names, and ``seed``, ``folder``, ``chunk``, ``init_from``, ``keep_heads`` and
                ``ckpt_path``. Values may be parts, which are written into the configuration.

        Raises:
            ValueError: The recipe doesn't exist, a name is unknown, or a value is invalid.
            TypeError: A part can't be written into a configuration.

        Example:
            >>> Run.from_recipe("simcse", max_epoch=1)
            Traceback (most recent call last):
            contrastive_text.core.errors.InvalidValueError: Run: expected ... did you mean max_epochs?...
        """  # Any: values of YAML, and parts
        values = {_place_of(name): value for name, value in given_sources(options).items()} | dict(config or {})
        if "data.seed" in values:  # one seed for all
            values["seed_everything"] = values.pop("data.seed")
        if encoder is not None:
            encoder_spec = {"init_args": {"model_name_or_path": str(encoder), "config": None}}
            values["model.encoder"] = encoder_spec if isinstance(encoder, str | Path) else encoder
        for name in values:
            if (place := name.partition(".")[0]) not in (*PLACES, *VALUES):
                names = [*PLACES, *VALUES]
                raise InvalidValueError(
                    f"Run: expected names that begin with one of {', '.join(names)}, got {name!r}"
                    f"{suggest_name(place, names)}"
                )
        path = values.get("ckpt_path")
        below = {} if path is None else checkpoint_parts(str(path), to_resume=True)
        plain = {name: to_plain(value, name) for name, value in values.items()}
        trainer = {name.removeprefix("trainer."): value for name, value in values.items()}

        def override(config: Config) -> Config:
            config = replace_bounds(config, trainer)
            for name, value in plain.items():
                config = lay(config, name, value)
            return config

        merged = override(merge_start([below, *read_layers(layer_file(recipe), apart=True)], override))
        check_places(merged)
        parser = run_parser()
        with short_parser_errors("Run"), importing_parts(merged, path is not None), in_memory_rows(values):
            parsed = parser.parse_args(["--config", json.dumps(merged)])  # the way the command line reads it
            return cls(parser, parsed, [layer_file(recipe)])

    def _build_trainer(self) -> pl.Trainer:
        parts, options = self._parts, self._parts["trainer"].as_dict()
        if (folder := parts["folder"]) is not None:
            options["logger"] = [_logger_of(Path(folder)), *_listed_loggers(options["logger"])]
            options["default_root_dir"] = folder
        elif options["logger"] is not False:
            options["logger"] = _with_csv(options["logger"], options["default_root_dir"] or RUNS)
        user_callbacks = options["callbacks"] or []
        user_callbacks = user_callbacks if isinstance(user_callbacks, list) else [user_callbacks]
        shows = options["enable_progress_bar"] is not False and not any(
            isinstance(callback, ProgressBar) for callback in user_callbacks
        )
        options["callbacks"] = [
            *user_callbacks,
            *([RunProgressBar()] if shows else []),
            *(parts[place] for place in ("checkpoint", "export", "resumable")),
            *(self._summary, CollapseDoctor(), self._folders, SaveLogWithCheckpoints()),
            *([] if options["fast_dev_run"] else [self._save_config]),
        ]
        with naming_options(building=True):
            trainer = pl.Trainer(**options)
        check_trainer(trainer)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def fit(self, dry_run: bool = False) -> None:
        """Trains the module, keeps the best checkpoint, and saves its model.

        Args:
            dry_run: Whether to end before the first step and write nothing. Files are read, parts are built and
                checked, the summary is printed, and a few validation batches are run.

        Raises:
            ValueError: Files or options are incompatible, such as ``init_from`` together with ``ckpt_path``.
            OSError: A folder can't be written to.
            RuntimeError: The loss or the weights became NaN or infinite.
        """
        parts = self._parts
        check_folder_options(parts["folder"], self._parts["trainer"].as_dict())
        if dry_run:
            _make_dry(self.trainer)
        elif parts["folder"] is not None and not self._prepare_folder(Path(parts["folder"])):
            return
        else:
            remove_leftovers(self.trainer)
        parts["resumable"].command = self._command
        parts["resumable"].requeues = parts["folder"] is not None
        if parts["chunk"] == "auto":
            vars(self.trainer)["callbacks"].insert(0, ChunkSize())  # before the summary, which prints it
        elif parts["chunk"] is not None:
            self.module.set_chunk_tokens(parts["chunk"])
        if parts["init_from"] is not None:
            if parts["ckpt_path"] is not None:
                raise InvalidValueError(
                    "--init_from: expected no --init_from with --ckpt_path, which resumes a run with its own "
                    "weights, got both; remove one of them, or set init_from to null"
                )
            init_folder = find_model_folder(parts["init_from"])
            self._summary.saved_model = None if init_folder is None else str(init_folder)
            # Must come before a vocabulary is learned from the corpus.
            self._summary.start_description = load_initial_weights(
                self.module, parts["init_from"], parts["keep_heads"]
            )
        elif parts["keep_heads"] and parts["ckpt_path"] is None:
            raise InvalidValueError(
                "--keep_heads: expected it with --init_from, got it alone; name the run whose heads to keep"
            )
        self._folders.resumes = parts["ckpt_path"]
        try:
            check_loggers(self.trainer.loggers)
            self.call(pl.Trainer.fit)
        except _FirstStepReachedError:
            return
        except BaseException:
            remove_empty_folders(self.trainer.loggers)
            raise
        log = next(iter(self.trainer.loggers), None)
        if isinstance(log, CSVLogger) and self.trainer.is_global_zero:
            with atomic_file(Path(log.log_dir, FINISHED)):
                pass
        parts["ckpt_path"] = None  # further calls use the trained weights, not the checkpoint
        self._trained = True

    def _prepare_folder(self, folder: Path) -> bool:
        """Resumes the run in a named folder if it has begun. Returns False if the run is already finished."""
        config_text = self._save_config.parser.dump(self._save_config.config, skip_none=False)
        state = RunFolder(folder, parse_yaml(config_text, "Run"))
        if self.trainer.is_global_zero:
            state.print_state()
        if state.checkpoint is not None:
            changes = {"ckpt_path": str(state.checkpoint.path), "weights_only": True, "init_from": None}
            for name, value in changes.items():
                self._parts[name] = value
            self._folders.log_end = state.log_end
            self._parts["resumable"].former_checkpoints = find_resumable(folder)
            if self._parts["chunk"] == "auto":
                self.module.set_chunk_tokens(state.checkpoint.model.get("chunk_tokens"))  # measured at its start
            vars(self.trainer)["callbacks"].remove(
                self._save_config
            )  # the folder has the configuration of the first start
        self._finished = state.model
        return state.model is None

    def call(self, method: Callable[..., T]) -> T:
        """Calls a method of the trainer, such as ``pl.Trainer.test``, with the run's module, data and options."""
        check_reads_batches(self.trainer, method.__name__)
        arguments = {
            name: self._parts[name] for name in inspect.signature(method).parameters if name in self._parts
        }
        with naming_options(), escaping_output(), warnings.catch_warnings():
            resume_warnings = [] if self._parts.get("ckpt_path") is None else [_OWN_CHECKPOINTS]
            for message in (*_IGNORED_WARNINGS, *resume_warnings):
                warnings.filterwarnings("ignore", message=message)
            return method(self.trainer, **arguments, datamodule=self.data)

    @property
    def model(self) -> SentenceEncoder:
        """Trained model with the best weights, after ``fit``. A run that was already finished loads its folder.

        Raises:
            RuntimeError: ``fit`` was not called, or the weights are split.
            TypeError: The encoder isn't a ``TransformerEncoder``.
        """
        if self._finished is not None:
            return SentenceEncoder.from_pretrained(self._finished)
        if not self._trained:
            raise RunError("Run.model: expected a trained run, got a run before fit; call run.fit() first")
        if self.module.is_split:
            raise RunError(
                "Run.model: expected whole weights, got weights split by fsdp2; load the folder that the run has "
                "saved, with SentenceEncoder.from_pretrained"
            )
        model = self.module.sentence_encoder()
        callback = self.trainer.checkpoint_callback
        if isinstance(callback, ModelCheckpoint) and Path(callback.best_model_path).is_file():
            add_card(model, callback.best_model_path)
        return model

    def _repr_html_(self) -> str:
        """Returns the summary of the run and the latest scores as an HTML table for a notebook."""
        facts = self._summary.facts or model_facts(self.module)
        figures = self.trainer.callback_metrics.items()
        scores = {name: f"{float(value):.2f}" for name, value in figures if name.startswith(("val/", "test/"))}
        return facts_table(TITLE, facts | scores)


def _place_of(name: str) -> str:
    """Returns the configuration key of a Trainer's argument: ``precision`` becomes ``trainer.precision``."""
    if name in PLACES or name in VALUES:
        return name
    classes = {"data.task": TextTask, **{place: PLACES[place] for place in ("trainer", "model", "data")}}
    signatures = {place: inspect.signature(cls) for place, cls in classes.items()}
    owner = {argument: place for place, signature in signatures.items() for argument in signature.parameters}
    if name not in owner:
        raise InvalidValueError(
            f"Run: expected an argument of the module, the data or the Trainer, got {name!r}"
            f"{suggest_name(name, (*owner, *VALUES))}; give other options by their dotted name in config, such "
            "as config={'checkpoint.monitor': 'val/overall'}"
        )
    return f"{owner[name]}.{name}"


def _logger_of(folder: Path) -> RunLogger:
    """Returns a CSV logger that writes directly to the folder, not to a version folder in it."""
    return RunLogger(save_dir=folder.parent, name="", version=folder.name)


def _with_csv(loggers: object, folder: str) -> list[Any]:  # Any: what a user configures
    """Returns the configured loggers, a CSV logger first. If there is no CSV logger, adds a ``RunLogger``."""
    configured_loggers = sorted(_listed_loggers(loggers), key=lambda logger: not isinstance(logger, CSVLogger))
    csv_loggers = (
        []
        if configured_loggers and isinstance(configured_loggers[0], CSVLogger)
        else [RunLogger(save_dir=folder, name="")]
    )
    return [*csv_loggers, *configured_loggers]


def _listed_loggers(loggers: object) -> list[Any]:  # Any: what a user configures
    """Returns the configured loggers as a list."""
    return list(loggers) if isinstance(loggers, list) else [loggers] if loggers not in (None, True, False) else []


def _resume_command(config: Namespace) -> str:
    """Returns the command that resumes a run, to be followed by the run's folder."""
    return shlex.join(["contrastive-text", "fit", *trust_options(foreign_modules(config.as_dict())), "--resume"])


class _FirstStepReachedError(Exception):
    """Exception that ends a dry run."""


class _EndBeforeFirstStep(Callback):
    """Callback that ends a run before its first step, after Lightning's sanity check of validation batches."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints the number of steps of the run, and ends the dry run.

        Raises:
            _FirstStepReachedError: Always.
        """
        if trainer.is_global_zero:
            steps = trainer.estimated_stepping_batches
            log_message(f"Dry run: {steps:,} steps would follow; nothing was trained, and nothing written")
        raise _FirstStepReachedError


def _make_dry(trainer: pl.Trainer) -> None:
    """Configures a trainer for ``--dry_run``: it stops before the first step and writes nothing."""
    callbacks = vars(trainer)["callbacks"]  # set by Lightning, but not declared
    writers = (ExportModel, SaveConfigCallback, SaveWhenStopped)
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, writers)]
    for callback in callbacks:
        if isinstance(callback, LockFolders):
            callback.writes = False
    callbacks.append(_EndBeforeFirstStep())
    trainer.loggers = []
