"""From the words of the shell to the configuration of a run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from jsonargparse import Namespace
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.cli.paths import RUN_READS, RUN_WRITES, check_paths
from contrastive_text.cli.words import option_value, option_values, with_values
from contrastive_text.core.config.misspelt import parser_answer
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
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
from contrastive_text.training.folder_start import with_start
from contrastive_text.training.run_parser import (
    answering,
    check_places,
    checkpoint_parts,
    importing_parts,
    run_parser,
)


class _Parser(LightningArgumentParser):
    """Answers a wrong option in a few lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        options = [option for action in self._actions for option in action.option_strings]
        if "--config" not in options:  # a part's own parser: the outer parser names the place
            super().error(message, ex)
        say(f"error: {parser_answer(message, options)}", file=sys.stderr)
        raise SystemExit(2)


def configured(
    command: str, words: Sequence[str], below: Config | None = None, is_foreign: bool = False
) -> tuple[LightningArgumentParser, Namespace]:
    """Returns the parser of a command and what it makes of the words, of which a ``Run`` is made.

    A checkpoint given by ``--ckpt_path`` brings the parts it was trained with; files override it and each
    other, and options override all. One given by ``--init_from`` brings weights alone.

    Args:
        command: ``fit``, ``validate``, ``test``, ``predict`` or ``views``.
        words: The options after it.
        below: What lies under the words' files and options, in place of the checkpoint's parts.
        is_foreign: Whether a file among the words comes from the folder of a run, which may be a stranger's.

    Raises:
        ValueError: Words that no run can be made of.
        SystemExit: An option that the parser refuses, which it has answered.
    """
    parser = run_parser(command, _Parser)
    path = option_value(words, "--ckpt_path")
    if below is None:
        below = {} if path is None or command == "views" else checkpoint_parts(path, to_resume=command == "fit")
    config, options = laid_over(below, words)
    known = merge([read_config(BASE), config])
    single = [option.removeprefix("--").partition("=") for option in options if option.startswith("--")]
    for layer in (known, *(put(known, name, value) for name, _, value in single)):
        check_places(layer)
    typed = [value or option for option, _, value in single]
    with answering(), importing_parts(known, is_foreign or path is not None, typed):
        parsed = parser.parse_args([*(["--config", json.dumps(config)] if config else []), *options])
    if command != "fit":
        parsed["folder"] = None  # a file may have it, and it is of the run that trained
    paths = RUN_READS | RUN_WRITES if command == "fit" else RUN_READS
    files = [str(split_variant(path)[0]) for path in option_values(words, "--config")]
    check_paths(paths, {**parsed.as_dict(), "config": files})
    return parser, parsed


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
    for word, file in with_values(words, "--config"):
        name, joined, value = word.partition("=")
        if file is not None:
            if not file:
                raise InvalidValueError("--config: expected a YAML file, got none; name one after it")
            layers += read_layers(file, apart=True)
        elif word.startswith("--") or not options or len(options[-1]) == 2:
            options.append([name, value] if joined and word.startswith("--") else [word])
        else:
            options[-1].append(word)
    config = with_start(layers, lambda merged: _overridden(merged, options))
    return _with_options(config, options)


def _overridden(config: Config, options: Sequence[Sequence[str]]) -> Config:
    """Returns a configuration with all options over it, also those that are left to the parser."""
    config, left = _with_options(config, options)
    for name, joined, value in (option.removeprefix("--").partition("=") for option in left):
        config = put(config, name, value) if joined else config
    return config


def _with_options(config: Config, options: Sequence[Sequence[str]]) -> tuple[Config, list[str]]:
    """Returns a configuration with options over it, and the options that are left to the parser."""
    left: list[str] = []
    for option in options:
        key, typed = option[0].removeprefix("--"), option[1] if len(option) == 2 else None
        if typed and typed[0] in "[{":  # it is laid over the part whose class an earlier option may have named
            for name, _, part in (each.removeprefix("--").partition("=") for each in left):
                config = lay(config, name, {"class_path": part}) if key.startswith(f"{name}.") else config
        laid = None if typed is None else option_over(config, key, typed)
        if laid is None:
            left += ["=".join(option)] if option[0].startswith("--") else option
        else:
            config = laid
    given = {name: option_value(left, f"--trainer.{name}") for name in UNBOUNDED}
    bounds = {name: parse_yaml(value, f"--trainer.{name}") for name, value in given.items() if value is not None}
    return replace_bounds(config, bounds), left
