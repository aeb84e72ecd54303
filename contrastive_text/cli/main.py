"""Runs the command that the words of the shell name, and turns exceptions into short error messages.

The module of a command is imported when the command runs: ``--help``, ``--version`` and the error for a wrong
option do not wait for torch, Lightning and Transformers.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import traceback
from collections.abc import Sequence

from contrastive_text import __version__
from contrastive_text.cli.words import RUN_COMMANDS, expand_recipes, expand_short_options, take_trust
from contrastive_text.core.config.class_paths import UntrustedError, import_from_working_directory, trusting
from contrastive_text.core.config.suggestions import find_constructor_error, suggest_name
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, find_cause, iter_causes, one_of
from contrastive_text.core.libraries import is_out_of_memory, is_panic
from contrastive_text.core.terminal import escaping_output, log_to_terminal, print_message

_TRAINING = ("fit", "validate", "test", "predict")
_USAGE = """usage: contrastive-text COMMAND [options]

Train a model:
  fit          Train an encoder, or resume a run.
  validate     Score a checkpoint on validation data.
  test         Score a checkpoint on test data.
  predict      Write the vectors or the predictions of a checkpoint.
  ensemble     Select the best of several runs for each task.
  export       Save the model of a checkpoint, or a trained head.
  sweep        Run a grid of configurations and tabulate their scores.
  recipes      List the methods, or print the configuration of one.
  views        Print training texts next to their views.
  corpus       Write the training texts of ConSERT from SentEval's data.
  new          Write a template for a view, a loss or another part of your own.
  paper        Print the results of a paper and the commands that reproduce them.

Measure a model or a run:
  evaluate     Score a model on scored pairs, STS, SentEval, GLUE, retrieval or mteb.
  diagnose     Measure the geometry of a model's vectors.
  compare      Compare the scores of models, with intervals.
  report       Write a report page of runs.

Use a model:
  embed        Write one vector per text.
  index        Build an index, add or remove documents, or describe it.
  search       Find the nearest texts of an index or a corpus.
  classify     Write the class of each text or pair.
  rank         Order documents for queries by a reranker.
  score        Score pairs and hard negatives by a reranker.
  duplicates   Find pairs of near-duplicate texts.
  mine         Mine hard negatives for pairs.
  postprocess  Whiten a model, or remove its top components.
  merge        Average the weights of models.
  onnx         Export a model to ONNX.
  share        Upload a model to the hub.
  verify       Compare the files of a model or a run with their digests.
  completion   Print the completion script of a shell.

Examples:
  contrastive-text recipes simcse
  contrastive-text fit --recipe simcse --encoder bert-base-uncased --train texts.txt
  contrastive-text evaluate runs/version_0/model pairs.tsv
  contrastive-text embed texts.txt vectors.npy --model runs/version_0/model

`contrastive-text COMMAND --help` lists the options of a command.
`--print_config` prints the configuration of a run. Later recipes and --config files
override earlier ones; options override all files.
`--trust MODULE` allows a file to import your own module."""
COMMANDS = re.findall(r"^  (\w+) ", _USAGE, flags=re.MULTILINE)
_OF_A_RUN = """usage: contrastive-text {command} [options]

  --recipe NAME     Recipe of a method or a variant, such as simcse or simcse/sup.
  --config FILE     YAML file that overrides the recipe. Of several files, later ones override earlier ones.
  --ckpt_path FILE  Checkpoint to load, with the model and the data files of its run. Options override them.
  --KEY VALUE       Any key of the configuration, such as --data.validation PAIRS.tsv or --trainer.devices 2.{own}
  --print_config    Print the configuration and exit.

All keys, with types and defaults: contrastive-text fit --help all"""
_FIT = """usage: contrastive-text fit --recipe NAME --encoder ENCODER --train FILE [options]

Train an encoder, keep the checkpoint with the best validation score, and save its model.

  contrastive-text fit --recipe simcse --encoder bert-base-uncased --train texts.txt \\
      --validation pairs.tsv --export.dirpath my-model

Common options:
  --recipe NAME              Recipe of a method. `contrastive-text recipes` lists them.
  --encoder ENCODER          Hugging Face encoder: folder or hub name. Default: the recipe's.
  --train FILE               Texts, pairs, documents or labeled rows, as the recipe expects.
  --columns anchor=NAME ...  Columns of the training data. Default: found by their usual names.
  --validation PAIRS.tsv     Scored pairs that select the best checkpoint. Default: none.
  --batch_size ROWS          Rows of a step, summed over all processes. Default: the recipe's.
  --epochs N                 Number of epochs; or set --trainer.max_steps N. Default: the recipe's.
  --lr RATE                  Learning rate. Default: the recipe's.
  --trainer.precision P      Number type, such as bf16-mixed. Default: 32-true.
  --trainer.devices N        Number of processes or GPUs of this machine. Default: auto.
  --chunk auto               Encode batches in chunks that fit into memory. Default: whole batches.
  --seed_everything N        Seed of all random draws. Default: 42.
  --export.dirpath FOLDER    Folder to save the model to. Default: runs/version_N/model.
  --folder RUN               Run folder. The same command starts the run or resumes it.

Recipes to start with:
  simcse, dcl, consert       sentences, one per line
  simcse/sup, gist           pairs or triples
  declutr                    documents
  sbert_nli, cs224n, glue    labeled rows

Continue a run:
  --resume RUN               Resume a stopped or killed run in its folder, with bit-equal results.
  --init_from RUN            Start a second stage from the weights of another run.

Configuration:
  --config FILE              YAML file that overrides the recipe. Later files override earlier ones.
  --print_config             Print the configuration of the run and exit.
  --dry_run                  Load the data, build the model, print the summary of the run, and exit.
  --KEY VALUE                Any key of the configuration, such as --model.pooler MeanPooler.

All keys, with types and defaults: contrastive-text fit --help all"""
SCREENS = re.findall(r"^ *(--[\w.]+) ", _FIT + _OF_A_RUN, flags=re.MULTILINE)
"""Options of runs that the short help screens list."""
_OWN = {
    "validate": "",
    "test": "",
    "predict": "",
    "views": "\n  --n N             Number of rows to print. Default: 3.",
}
"""Command with the options of ``fit`` -> help of its further options."""
_TRAINED = {"fit": "give a smaller --batch_size, or --chunk auto", "sweep": "give --chunk auto"}
_ON_BATCHES = (
    "embed",
    "index build",
    "index add",
    "search",
    "classify",
    "rank",
    "score",
    "duplicates",
    "mine",
    "evaluate",
    "diagnose",
    "compare",
    "postprocess",
)
"""Commands with an option ``--batch_size`` of texts."""
_IN_A_WORKER = re.compile(r"Caught (?P<error>\w+) in .*\nOriginal Traceback")


def run(words: Sequence[str]) -> int:
    """Runs a command of the shell.

    Args:
        words: Words after ``contrastive-text``.

    Returns:
        The exit status: 0 on success, 2 if the input is wrong, 1 after a bug, whose traceback is printed.
    """
    log_to_terminal()
    with escaping_output():
        return _run(words)


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print_message(_USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        print_message(__version__)
        return 0
    if words[0] == "fit" and words[1:] in (["-h"], ["--help"]):
        print_message(_FIT)
        return 0
    if words[0] in _OWN and words[1:] in (["-h"], ["--help"]):
        print_message(_OF_A_RUN.format(command=words[0], own=_OWN[words[0]]))
        return 0
    try:
        trusted, rest = take_trust(words[1:])
        with trusting(trusted), import_from_working_directory():
            rest = expand_short_options(rest) if words[0] in RUN_COMMANDS else rest
            _dispatch(words[0], expand_recipes(rest))
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        message = answer(error, words[0])
        if message is None:
            print_message(traceback.format_exc(), file=sys.stderr, end="")
            print_message("error: this is a bug in the library or in your own part; see above", file=sys.stderr)
            return 1
        print_message(f"error: {message}", file=sys.stderr)
        if (untrusted := find_cause(error, UntrustedError)) is not None:
            remedy = ["contrastive-text", words[0], "--trust", untrusted.module, *words[1:]]
            print_message(f"  {shlex.join(remedy)}", file=sys.stderr)
        return 2
    return 0


def _dispatch(command: str, words: list[str]) -> None:
    """Calls the function of a command with its options.

    Function and module have the name of the command: ``search`` in ``cli/search.py``, ``index_add`` in
    ``cli/index.py``.
    """
    if command not in COMMANDS:
        raise InvalidValueError(
            f"contrastive-text: expected one of {', '.join(COMMANDS)}, got {command!r}"
            f"{suggest_name(command, COMMANDS)}"
        )
    if command in _TRAINING:
        from contrastive_text.cli.train import train

        if words == ["--help", "all"]:
            words = ["--help"]

        train([command, *words])
        return
    from contrastive_text.cli.commands import RECORDS
    from contrastive_text.cli.options import read_options

    actions = {name.partition(" ")[2]: name for name in RECORDS if name.startswith(f"{command} ")}
    if actions:
        if words[:1] in ([], ["-h"], ["--help"]):
            lines = [f"  {name:<8} {RECORDS[actions[name]].__doc__}" for name in actions]
            usage = f"usage: contrastive-text {command} ACTION [options]\n"
            print_message("\n".join([usage, *lines, f"\nOptions: contrastive-text {command} ACTION --help"]))
            return
        command, words = actions[one_of(f"contrastive-text {command}", words[0], actions)], words[1:]
    options = read_options(RECORDS[command], words) if command in RECORDS else words
    module = importlib.import_module(f"contrastive_text.cli.{command.partition(' ')[0]}")
    vars(module)[command.replace(" ", "_")](options)


def answer(error: BaseException, command: str | None = None) -> str | None:
    """Returns the message of an exception that the user can fix, or None for a bug of the library.

    Args:
        error: The exception.
        command: The command that raised it. Its options are the remedy if memory ran out.

    Example:
        >>> from contrastive_text.core.errors import InvalidValueError
        >>> answer(InvalidValueError("a: expected 1, got 2")), answer(KeyError("prompts"))
        ('a: expected 1, got 2', None)
    """
    if is_out_of_memory(error):
        source = next(cause for cause in iter_causes(error) if not isinstance(cause, ContrastiveTextError))
        return _memory_answer(source, command)
    if is_panic(error):
        return (
            f"tokenizer: expected a tokenizer that accepts these texts, got a crash of its library: {error}; use "
            "another tokenizer.json"
        )
    if isinstance(error, ContrastiveTextError):
        return _outside_its_worker(str(error))
    if "/gloo/transport/" in str(error):  # its own class is RuntimeError alone
        return (
            "processes: expected all processes of the run to live, got one that ended; its own message is above"
        )
    return find_constructor_error(error)


def _outside_its_worker(message: str) -> str:
    """Returns the message of an error without the traceback that a worker process adds to it."""
    match = _IN_A_WORKER.match(message)
    return message if match is None else message.rpartition(f".{match['error']}: ")[2].strip()


def _memory_answer(error: BaseException, command: str | None) -> str:
    """Returns the message of an error that ran out of memory, with the options that reduce it."""
    reason = " ".join(_outside_its_worker(str(error)).split(". ")[0].split())[:300]
    todo = _TRAINED.get(str(command))
    if todo is None:
        has_batches = any(name.partition(" ")[0] == command for name in _ON_BATCHES)
        todo = "give a smaller --batch_size" if has_batches else "make batches smaller"
    if "shared memory" in reason:
        todo = "set --data.num_workers 0, or give the system more shared memory"
    return f"memory: expected enough memory, got {type(error).__name__}: {reason or 'none left'}; {todo}"
