"""Configuration of a run from the words of the shell: files, then options."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn, get_args

from jsonargparse import Namespace
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.cli.paths import RUN_READS, RUN_WRITES, check_paths
from contrastive_text.cli.words import option_value, option_values, with_values
from contrastive_text.core.config.suggestions import shorten_parser_error
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import (
    UNBOUNDED,
    Config,
    lay,
    merge,
    option_over,
    parse_yaml,
    put,
    read_config,
    read_layers,
    replace_bounds,
    split_variant,
)
from contrastive_text.training.folder_start import merge_start
from contrastive_text.training.optim import ScheduleName
from contrastive_text.training.run_parser import (
    check_places,
    checkpoint_parts,
    importing_parts,
    naming_options,
    run_parser,
)


class _Parser(LightningArgumentParser):
    """Argument parser that prints a short error for a wrong option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        options = [option for action in self._actions for option in action.option_strings]
        if "--config" not in options:  # the parser of a single part: the outer parser adds the place
            super().error(message, ex)
        print_message(f"error: {shorten_parser_error(message, options)}", file=sys.stderr)
        raise SystemExit(2)


def configured(
    command: str, words: Sequence[str], below: Config | None = None, is_foreign: bool = False
) -> tuple[LightningArgumentParser, Namespace]:
    """Parses the options and files of a run's command. Returns parser and configuration, as ``Run`` takes them.

    ``--ckpt_path`` loads the configuration of the checkpoint's run. Files override it and each other, and options
    override all files. ``--init_from`` loads weights only.

    Args:
        command: ``fit``, ``validate``, ``test``, ``predict`` or ``views``.
        words: Options after the command.
        below: Configuration that files and options override, instead of the checkpoint's.
        is_foreign: Whether a file is from a run folder, which another person may have written.

    Raises:
        ValueError: The words do not define a run.
        SystemExit: The parser printed an error and refused an option.
    """
    parser = run_parser(command, _Parser)
    path = option_value(words, "--ckpt_path")
    if below is None:
        below = {} if path is None or command == "views" else checkpoint_parts(path, to_resume=command == "fit")
    config, options = merge_options(below, words)
    merged = merge([read_config(BASE), config])
    pairs = [option.removeprefix("--").partition("=") for option in options if option.startswith("--")]
    for layer in (merged, *(put(merged, name, value) for name, _, value in pairs)):
        check_places(layer)
    values = [value or option for option, _, value in pairs]
    with naming_options(), importing_parts(merged, is_foreign or path is not None, values):
        parsed = parser.parse_args([*(["--config", json.dumps(config)] if config else []), *options])
    if command != "fit":
        parsed["folder"] = None  # a configuration file holds the folder of its own run
    paths = RUN_READS | RUN_WRITES if command == "fit" else RUN_READS
    files = [str(split_variant(path)[0]) for path in option_values(words, "--config")]
    check_paths(paths, {**parsed.as_dict(), "config": files})
    return parser, parsed


def merge_options(below: Config, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Merges the config files and the options of a command over a configuration.

    Files are merged in their order, and options after all files, whatever their position.

    Args:
        below: The configuration to override.
        words: Options of the command.

    Returns:
        The configuration, and the options that the parser has to read.

    Raises:
        ValueError: A word ``--``, or ``--config`` without a file.
    """
    if "--" in words:
        raise InvalidValueError(
            f"--: expected only options, got {shlex.join(words[words.index('--') :])}; join a value that begins "
            "with a dash to its option: --data.train=-texts.txt"
        )
    layers = [below]
    options: list[list[str]] = []
    for word, file in with_values(words, "--config"):
        name, joined, value = word.partition("=")
        if file is not None:
            if not file:
                raise InvalidValueError("--config: expected a YAML file, got no file; name a file after --config")
            layers += read_layers(file, apart=True)
        elif word.startswith("--") or not options or len(options[-1]) == 2:
            options.append([name, value] if joined and word.startswith("--") else [word])
        else:
            options[-1].append(word)
    config = merge_start(layers, lambda merged: _overridden(merged, options))
    return _with_options(config, options)


def _overridden(config: Config, options: Sequence[Sequence[str]]) -> Config:
    """Returns a configuration that all options override, including options that the parser reads later."""
    config, unread = _with_options(config, options)
    for name, joined, value in (option.removeprefix("--").partition("=") for option in unread):
        config = put(config, name, value) if joined else config
    return config


def _with_options(config: Config, options: Sequence[Sequence[str]]) -> tuple[Config, list[str]]:
    """Merges a command's options over a configuration.

    Returns the result, and the options that the parser has to read.
    """
    unread: list[str] = []
    for option in options:
        key, typed = option[0].removeprefix("--"), option[1] if len(option) == 2 else None
        if key == "model.schedule" and typed in get_args(ScheduleName):  # a class, whose options may follow
            unread += ["--model.schedule=TransformersSchedule", f"--model.schedule.name={typed}"]
            continue
        if typed and typed[0] in "[{":  # it overrides a part whose class an earlier option may have set
            for name, _, part in (word.removeprefix("--").partition("=") for word in unread):
                config = lay(config, name, {"class_path": part}) if key.startswith(f"{name}.") else config
        merged = None if typed is None else option_over(config, key, typed)
        if merged is None:
            unread += ["=".join(option)] if option[0].startswith("--") else option
        else:
            config = merged
    texts = {name: option_value(unread, f"--trainer.{name}") for name in UNBOUNDED}
    bounds = {name: parse_yaml(text, f"--trainer.{name}") for name, text in texts.items() if text is not None}
    return replace_bounds(config, bounds), unread
