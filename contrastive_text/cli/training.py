"""A run out of a configuration: Lightning's command line with the parts of this library."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO

from contrastive_text.cli.paths import check_paths
from contrastive_text.cli.predictions import write_predictions
from contrastive_text.cli.resume import resuming
from contrastive_text.cli.suggestions import short_answer
from contrastive_text.cli.trainer_options import answering, check_processes, check_seed, check_trainer
from contrastive_text.core.checkpoints import read_checkpoint
from contrastive_text.core.disk import remove_abandoned
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.places import check_words
from contrastive_text.core.terminal import say
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.inference.vector_files import write_vectors
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import Config, merge, option_over, put, read_config
from contrastive_text.runs.ensemble import tasks_of
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.training.callbacks import BestCheckpoint, ExportModel, RunSummary
from contrastive_text.training.callbacks.chunk_size import ChunkSize
from contrastive_text.training.callbacks.collapse_doctor import CollapseDoctor
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.held_out import predicting
from contrastive_text.training.initial_weights import load_initial_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run_folders import OwnFolders, RunLogger

_RUNS = "runs"
_OF_A_TRAINER = ("best", "last", "hpc")
"""Lightning's words for a checkpoint of its own earlier run in the same process."""
PLACES = {
    "model": ContrastiveModule,
    "data": TextDataModule,
    "trainer": pl.Trainer,
    "checkpoint": BestCheckpoint,
    "export": ExportModel,
    "resumable": SaveWhenStopped,
}
"""Places of a configuration that hold the arguments of a class."""


class _Parser(LightningArgumentParser):
    """Answers a wrong option in a few lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # noqa: ARG002  # jsonargparse's
        say(f"error: {short_answer(message)}", file=sys.stderr)
        raise SystemExit(2)


class ContrastiveCLI(LightningCLI):
    """Lightning's command line around the module, the data and the callbacks of a run.

    A checkpoint given by ``--ckpt_path`` brings the parts it was trained with; options override them. One given
    by ``--init_from`` brings weights alone.

    Args:
        words: What stands behind ``contrastive-text``.
        show_views: Whether to build the parts and run nothing.
        below: What lies under the words' files and options, in place of the checkpoint's parts.
        folder: Where predictions go; None for the run's folder.
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the callbacks' options and gives the one seed to the data too."""
        parser.add_lightning_class_args(BestCheckpoint, "checkpoint")
        parser.add_lightning_class_args(ExportModel, "export")
        parser.add_lightning_class_args(SaveWhenStopped, "resumable")
        parser.link_arguments("seed_everything", "data.seed")
        parser.add_argument(
            "--init_from",
            type=str | None,
            default=None,
            help="fit: start from the weights of a .ckpt file, of a run's best checkpoint, or of a saved model",
        )
        parser.add_argument(
            "--chunk",
            type=Literal["auto"] | int | None,
            default=None,
            help="fit: tokens encoded together; auto for as many as fit into memory (model.chunk_tokens)",
        )
        parser.add_argument(
            "--oversubscribe", type=bool, default=False, help="allow more processes than the cores can carry"
        )
        if self.show_views:
            parser.add_argument("--n", type=int, default=3, help="rows to show")

    def __init__(
        self,
        words: list[str],
        show_views: bool = False,
        below: Config | None = None,
        folder: Path | None = None,
    ) -> None:
        self.show_views = show_views
        self.below = below
        self.folder = folder
        self.summary = RunSummary()
        self.words = words
        defaults = {"default_config_files": [str(BASE)]}
        with answering():
            super().__init__(
                model_class=ContrastiveModule,
                datamodule_class=TextDataModule,
                save_config_kwargs={"overwrite": True},
                trainer_defaults={"callbacks": [self.summary, CollapseDoctor(), OwnFolders()]},
                seed_everything_default=42,
                parser_class=_Parser,
                parser_kwargs=defaults if show_views else {words[0]: defaults},
                auto_configure_optimizers=False,
                args=words,
                run=not show_views,
            )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's, static, is asked of self
        """Names the one command that the words begin with: each parser takes a tenth of a second to build."""
        return {name: left for name, left in super().subcommands().items() if name in self.words[:1]}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses the words: checkpoint, files and lists laid over each other, then single options."""
        words = args if isinstance(args, list) else []
        command, rest = ([], words) if self.show_views else (words[:1], words[1:])
        below = self.below
        if below is None:
            given = option_value(rest, "--ckpt_path")
            below = {} if self.show_views else checkpoint_parts(given, to_resume=command == ["fit"])
        config, options = laid_over(below, rest)
        check_parts(config, options)
        self.config = parser.parse_args(
            [*command, *(["--config", json.dumps(config)] if config else []), *options]
        )
        parsed = self.config[command[0]] if command else self.config
        check_seed(parsed["seed_everything"])
        run, data = parsed["trainer"], parsed["data"]
        check_processes(run["devices"], run["accelerator"], data["num_workers"], parsed["oversubscribe"])
        name = command[0] if command else "views"
        check_paths(name, {**parsed.as_dict(), "config": option_values(rest, "--config")})

    def _parse_ckpt_path(self) -> None:
        """Nothing is left to do: Lightning's own way would let the checkpoint override options."""

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Logs to CSV under the run's own folder, and writes checkpoints whole, unless it is told otherwise."""
        settings = self._get(self.config_init, "trainer", default={})
        if settings.get("logger") is None:
            kwargs["logger"] = RunLogger(save_dir=settings.get("default_root_dir") or _RUNS, name="")
        with answering(building=True):
            trainer: pl.Trainer = super().instantiate_trainer(**kwargs)
        check_trainer(trainer)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def before_fit(self) -> None:
        """Removes leftovers, heeds ``--chunk``, takes ``--init_from`` before a vocabulary is learned."""
        self._remove_leftovers()
        self._get(self.config_init, "resumable").command = resuming(self.words, self._plain_config())
        assert isinstance(self.model, ContrastiveModule)
        chunk = self._get(self.config_init, "chunk")
        if chunk == "auto":
            vars(self.trainer)["callbacks"].insert(0, ChunkSize())  # before the summary, which prints it
        elif chunk is not None:
            self.model.set_chunk_tokens(chunk)
        path = self._get(self.config_init, "init_from")
        if path is None:
            return
        if self._get(self.config_init, "ckpt_path") is not None:
            raise InvalidValueError(
                "--init_from: expected none beside --ckpt_path, which resumes a run with its own weights, got "
                "both; drop one of them, or set init_from to null"
            )
        self.summary.starts_from = load_initial_weights(self.model, path)

    def _plain_config(self) -> dict[str, Any]:  # Any: what YAML can hold
        config = self.config.get(self.subcommand) or self.config
        plain: dict[str, Any] = config.as_dict()
        return plain

    def _remove_leftovers(self) -> None:
        """Removes what killed runs beside this one left unfinished."""
        for logger in self.trainer.loggers if self.trainer.is_global_zero else ():
            if isinstance(logger, CSVLogger):
                runs = Path(logger.root_dir).glob("*/")
                removed = [
                    path
                    for run in runs
                    for place in (run, run / "checkpoints")
                    for path in remove_abandoned(place)
                ]
                for path in removed:
                    say(f"Removed: {path}, left unfinished by a killed run")

    def predict(self, **kwargs: Any) -> None:
        """Writes what tasks predict, and the vectors of ``--data.predict``, into the run's folder."""
        parts = self.trainer.predict(**kwargs) or []
        self.folder = self.folder or Path(self.trainer.log_dir or _RUNS)  # all ranks ask for the folder
        tables = self.datamodule.table("predict")
        each = [parts] if len(tables) == 1 else parts
        if not self.trainer.is_global_zero:
            return
        for (name, table), results in zip(tables.items(), each, strict=True):
            result = torch.cat([part.cpu() for part in results if isinstance(part, torch.Tensor)])
            if name not in (self.datamodule.tasks or {}):
                self._write_vectors(result)
                continue
            path = self.folder / "predictions" / f"{name}.tsv"
            target = predicting(self.model.by_task.objectives(name)).target
            assert target is not None
            changed = write_predictions(path, table.rows, result, target)
            said = f" (tabs and newlines of {changed:,} rows became blanks)" if changed else ""
            say(f"{len(result):,} predictions of {name} written to {path}{said}")

    def _write_vectors(self, vectors: torch.Tensor) -> None:
        assert self.folder is not None
        path = self.folder / "predictions.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_vectors(path, vectors.numpy())
        say(f"{len(vectors):,} vectors of {vectors.shape[1]} features written to {path}")


def checkpoint_parts(path: str | None, to_resume: bool = False) -> Config:
    """Returns the parts that a checkpoint was trained with, as a configuration; a run may go on from it."""
    if path is None:
        return {}
    if path in _OF_A_TRAINER and not Path(path).exists():
        raise InvalidValueError(
            f"--ckpt_path: expected a checkpoint's file, got {path!r}, which only a living Trainer knows; name "
            "the file, or take up a run with fit --resume RUN"
        )
    saved = read_checkpoint(path, to_resume)
    parts: Config = {
        "model": saved.arguments(ContrastiveModule, "model"),
        "data": saved.arguments(TextDataModule, "data", without=("seed",)),  # the seed follows seed_everything
    }
    if tasks := tasks_of(saved.data):
        parts["data"]["tasks"] = tasks  # as files and options have them
    return parts


def check_parts(config: Config, options: Sequence[str]) -> None:
    """Refuses parts where a run has plain values, before the parser imports what they name.

    Args:
        config: Files laid over each other, and what of the options was laid over them.
        options: The other options.

    Raises:
        ValueError: Such a part.
    """
    known = merge([read_config(BASE), config])
    single = [option.removeprefix("--").partition("=") for option in options if option.startswith("--")]
    for layer in (known, *(put(known, name, value) for name, _, value in single)):
        for place, cls in PLACES.items():
            inner = layer.get(place)
            if isinstance(inner, Mapping):
                check_words(inner, cls, place)
            elif inner is not None:  # the parser would read a file of that name, which nobody has looked at
                raise InvalidValueError(
                    f"{place}: expected names and values, got {inner!r}; lay files over each other with --config"
                )


def laid_over(below: Config, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Returns a configuration with the words' files over it, and the options that are left to the parser.

    Files come in their order, and options after them, wherever they stand.
    """
    if "--" in words:
        raise InvalidValueError(
            f"--: expected options alone, got {shlex.join(words[words.index('--') :])}; join a value that begins "
            "with a dash to its option: --data.train=-texts.txt"
        )
    layers = [below]
    options: list[list[str]] = []
    rest = iter(words)
    for word in rest:
        name, joined, value = word.partition("=")
        if name == "--config":
            if not (file := value if joined else next(rest, "")):
                raise InvalidValueError("--config: expected a YAML file, got none; name one behind it")
            layers = [*layers, read_config(file)]
        elif word.startswith("--") or not options or len(options[-1]) == 2:
            options.append([name, value] if joined and word.startswith("--") else [word])
        else:
            options[-1].append(word)
    config = merge(layers)
    left: list[str] = []
    for option in options:
        laid = option_over(config, option[0].removeprefix("--"), option[1]) if len(option) == 2 else None
        if laid is None:
            left += ["=".join(option)] if option[0].startswith("--") else option
        else:
            config = laid
    return config, left


def option_value(words: Sequence[str], name: str) -> str | None:
    """Returns the value of an option among the words; None if it isn't there."""
    return next(iter(option_values(words, name)), None)


def option_values(words: Sequence[str], name: str) -> list[str]:
    """Returns all values of an option among the words."""
    following = [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
    return following + [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
