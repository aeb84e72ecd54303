"""The commands that build a run from a configuration: fit, validate, test and predict."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger

from contrastive_text.callbacks import BestCheckpoint, ExportModel, RunSummary
from contrastive_text.cli.suggestions import short_answer
from contrastive_text.cli.use import write_vectors
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.module import ContrastiveModule
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import Config, merge, option_over, read_config
from contrastive_text.training.checkpoints import verify_checkpoint

_RUNS = "runs"


class _Parser(LightningArgumentParser):
    """Answers a wrong option in a few lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # noqa: ARG002  # jsonargparse's
        print(f"error: {short_answer(message)}", file=sys.stderr)
        raise SystemExit(2)


class ContrastiveCLI(LightningCLI):
    """Lightning's command line around the module, the data and the three callbacks of a run.

    A checkpoint given by ``--ckpt_path`` brings the parts it was trained with; options override them.
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the callbacks' options and gives the one seed to the data too."""
        parser.add_lightning_class_args(BestCheckpoint, "checkpoint")
        parser.add_lightning_class_args(ExportModel, "export")
        parser.link_arguments("seed_everything", "data.seed")
        if self.show_views:
            parser.add_argument("--n", type=int, default=3, help="rows to show")

    def __init__(self, words: list[str], show_views: bool = False) -> None:
        self.show_views = show_views
        defaults = {"default_config_files": [str(BASE)]}
        super().__init__(
            model_class=ContrastiveModule,
            datamodule_class=TextDataModule,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"callbacks": [RunSummary()]},
            seed_everything_default=42,
            parser_class=_Parser,
            parser_kwargs=defaults if show_views else dict.fromkeys(self.subcommands(), defaults),
            auto_configure_optimizers=False,
            args=words,
            run=not show_views,
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses the words: checkpoint, files and lists laid over each other, then single options."""
        words = args if isinstance(args, list) else []
        command, rest = ([], words) if self.show_views else (words[:1], words[1:])
        below = [] if self.show_views else [_checkpoint_parts(_option(rest, "--ckpt_path"))]
        config, options = _laid_over(below, rest)
        self.config = parser.parse_args(
            [*command, *(["--config", json.dumps(config)] if config else []), *options]
        )

    def _parse_ckpt_path(self) -> None:
        """Nothing is left to do: Lightning's own way would let the checkpoint override options."""

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Logs to CSV under the run's own folder unless the configuration names a logger."""
        settings = self._get(self.config_init, "trainer", default={})
        if settings.get("logger") is None:
            kwargs["logger"] = CSVLogger(save_dir=settings.get("default_root_dir") or _RUNS, name="")
        return super().instantiate_trainer(**kwargs)

    def predict(self, **kwargs: Any) -> None:
        """Embeds ``--data.predict`` and writes the vectors into the run's folder."""
        parts = self.trainer.predict(**kwargs)
        vectors = torch.cat([part for part in parts or [] if isinstance(part, torch.Tensor)])
        path = Path(self.trainer.log_dir or _RUNS) / "predictions.npy"  # all ranks ask for the folder
        if not self.trainer.is_global_zero:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_vectors(path, vectors.cpu().numpy())
        print(f"{len(vectors):,} vectors of {vectors.shape[1]} features written to {path}")


def _checkpoint_parts(path: str | None) -> Config:
    """Gives the parts that a checkpoint was trained with, as a configuration."""
    if path in (None, "best", "last"):
        return {}
    verify_checkpoint(str(path))
    saved = torch.load(str(path), map_location="cpu", weights_only=True)
    parts: Config = {}
    for place, key in (("model", "hyper_parameters"), ("data", "datamodule_hyper_parameters")):
        linked = ("_instantiator", "seed")  # the seed follows seed_everything
        parts[place] = {name: part for name, part in saved.get(key, {}).items() if name not in linked}
    return parts


def _laid_over(layers: list[Config], words: Sequence[str]) -> tuple[Config, list[str]]:
    """Gives the layers with the words' files over them, and the options that are left to the parser.

    Files come in their order, and options after them, wherever they stand.
    """
    options: list[list[str]] = []
    rest = iter(words)
    for word in rest:
        name, joined, value = word.partition("=")
        if name == "--config":
            layers = [*layers, read_config(value if joined else next(rest, ""))]
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


def _option(words: Sequence[str], name: str) -> str | None:
    following = [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
    joined = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return next(iter(following + joined), None)


def quieten() -> None:
    """Keeps away what Lightning says of its shop, and of workers for tiny evaluation files."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(lambda r: "Tip:" not in r.getMessage())
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    warnings.filterwarnings("ignore", message=".*LeafSpec")
    warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")  # no validation


def train(words: list[str]) -> None:
    """Runs ``fit``, ``validate``, ``test`` or ``predict``."""
    quieten()
    ContrastiveCLI(words)
