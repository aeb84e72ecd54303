"""From the words of the shell to a command, and from an exception to an answer in a few lines.

Each command is imported when it runs: torch, Lightning and Transformers take seconds, which ``--help``,
``--version`` and the answer to a wrong option do without.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import traceback
from collections.abc import Sequence

from contrastive_text import __version__
from contrastive_text.cli.words import RUN_COMMANDS, expand_recipes, spelled_out, take_trust
from contrastive_text.core.config.class_paths import UntrustedError, finding_own_parts, trusting
from contrastive_text.core.config.misspelt import constructor_answer, nearest
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, cause_of, causes
from contrastive_text.core.libraries import is_out_of_memory, is_panic
from contrastive_text.core.terminal import escaping_output, say

_TRAINING = ("fit", "validate", "test", "predict")
_USAGE = """usage: contrastive-text COMMAND [options]

  fit        train:       contrastive-text fit --recipe simcse --encoder ENCODER --train TEXTS.txt
             then a second stage, from the weights of the first: contrastive-text fit --init_from RUN ...
  validate   score a checkpoint on --validation PAIRS.tsv, or on --data.tasks.NAME.validation FILE
  test       score a checkpoint on --data.test PAIRS.tsv, or on --data.tasks.NAME.test FILE
  predict    embed --data.predict TEXTS.txt, or predict --data.tasks.NAME.predict FILE, with a checkpoint
  ensemble   for each task the best of several runs: contrastive-text ensemble OUT --runs RUN RUN
  export     the model of a checkpoint, as a folder: contrastive-text export CHECKPOINT.ckpt FOLDER
  views      show altered texts side by side: contrastive-text views --recipe simcse --train TEXTS.txt
  corpus     the training texts of ConSERT: contrastive-text corpus consert --data SENTEVAL --output TEXTS.txt
  sweep      a grid of runs: contrastive-text sweep --vary model.views.positive=none,CropTokens ...
  recipes    the methods, or one of them whole: contrastive-text recipes simcse
  new        a part of your own to begin with, with its test and YAML: contrastive-text new view MyView
  paper      the tables and figures of a paper, and what makes them: contrastive-text paper simcse

  evaluate   score a model: contrastive-text evaluate FOLDER PAIRS.tsv, or --suite sts --data DATASETS
  diagnose   how its vectors lie in space: contrastive-text diagnose FOLDER TEXTS.txt
  compare    two models or more, with intervals: contrastive-text compare FOLDER FOLDER --data DATASETS
  report     a page of one run or several: contrastive-text report RUN

  embed      a vector per text: contrastive-text embed TEXTS.txt VECTORS.npy --model FOLDER
  search     the nearest texts of a corpus: contrastive-text search CORPUS.txt "a question" --model FOLDER
  duplicates texts that mean nearly the same: contrastive-text duplicates TEXTS.txt PAIRS.tsv --model FOLDER
  mine       hard negatives of pairs: contrastive-text mine PAIRS.tsv TRIPLES.tsv --model FOLDER
  postprocess whiten a model, or remove its top components: contrastive-text postprocess FOLDER TEXTS.txt OUT
  merge      the mean of the weights of models: contrastive-text merge OUT FOLDER FOLDER
  onnx       export a model to ONNX and check it: contrastive-text onnx FOLDER OUT
  verify     read every byte of a model, a checkpoint or a run: contrastive-text verify PATH
  share      upload a model to the hub: contrastive-text share FOLDER --to USER/NAME
  completion complete with the tab key, in ~/.bashrc or ~/.zshrc: eval "$(contrastive-text completion bash)"

Options of a command: contrastive-text COMMAND --help. The configuration that a run would use: --print_config.
A file may name parts of your own where you trust their module: COMMAND --trust my_views ...
Later files override earlier ones, recipes and --config FILE alike; options override all files."""
COMMANDS = re.findall(r"^  (\w+) ", _USAGE, flags=re.MULTILINE)
_OF_A_RUN = """usage: contrastive-text {command} [options]

  --recipe NAME     the configuration of a method or of a variant: simcse, simcse/sup, ...
  --config FILE     a YAML file over it; of several, later ones override earlier ones
  --ckpt_path FILE  a checkpoint, with the parts and files of its run; options override them
  --KEY VALUE       any key of the configuration: --data.validation PAIRS.tsv, --trainer.devices 2, ...{own}
  --print_config    print the configuration and do nothing

All keys, with types and defaults: contrastive-text fit --help all"""
_FIT = """usage: contrastive-text fit --recipe NAME --encoder ENCODER --train FILE [options]

Trains an encoder, keeps the best checkpoint, and saves its model for use.

  contrastive-text fit --recipe simcse --encoder bert-base-uncased --train texts.txt \\
      --validation pairs.tsv --export.dirpath my-model

What people change:
  --recipe NAME              the method: contrastive-text recipes lists them
  --encoder ENCODER          a folder, or a name on the hub; the recipe's
  --train FILE               texts, pairs, documents, labelled rows: what the recipe reads
  --columns anchor=NAME ...  which of its columns is what, where they have other names than usual
  --validation PAIRS.tsv     scored pairs, by which the best checkpoint is kept; none
  --batch_size ROWS          rows of a step, over all processes; the recipe's
  --epochs N                 or --trainer.max_steps N; the recipe's
  --lr RATE                  learning rate; the recipe's
  --trainer.precision P      bf16-mixed is faster where fit says so; 32-true
  --trainer.devices N        processes or GPUs of this machine; auto
  --chunk auto               the largest part of a batch that fits into memory; whole batches
  --seed_everything N        seed of everything that is drawn; 42
  --export.dirpath FOLDER    where the model goes; runs/version_N/model
  --folder RUN               folder of the run: the same command starts or resumes it

Methods to begin with:
  simcse, dcl, consert       sentences, one a line
  simcse/sup, gist           pairs or triples
  declutr                    documents
  sbert_nli, cs224n, glue    labels

Going on:
  --resume RUN               after a kill, Ctrl-C or SIGTERM, in its folder, with the same bits
  --init_from RUN            a second stage, from the weights of a first

  --config FILE              a YAML file over the recipe; later ones override earlier ones
  --print_config             print the configuration that the run would use, and do nothing
  --dry_run                  read the data, build the model, say what would be trained
  --KEY VALUE                any key of it: --model.pooler MeanPooler,
                             --model.objectives.contrastive.loss.temperature 0.1

All keys, with types and defaults: contrastive-text fit --help all"""
SCREENS = re.findall(r"^ *(--[\w.]+) ", _FIT + _OF_A_RUN, flags=re.MULTILINE)
"""Options of a run that a first screen names, among its hundreds."""
_OWN = {"validate": "", "test": "", "predict": "", "views": "\n  --n N             rows to show, 3 by default"}
"""Command whose options are those of ``fit`` -> what it has beside them."""
_TRAINED = {"fit": "give a smaller --batch_size, or --chunk auto", "sweep": "give --chunk auto"}
_ON_BATCHES = ("embed", "search", "duplicates", "mine", "evaluate", "diagnose", "compare", "postprocess")
"""Commands with an option ``--batch_size`` of texts that are encoded at once."""
_IN_A_WORKER = re.compile(r"Caught (?P<error>\w+) in .*\nOriginal Traceback")


def run(words: Sequence[str]) -> int:
    """Runs a command.

    Args:
        words: What follows ``contrastive-text``.

    Returns:
        The exit status: 0, 2 after an answer to a wrong input, or 1 after a bug, whose traceback is printed.
    """
    with escaping_output():
        return _run(words)


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        say(_USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        say(__version__)
        return 0
    if words[0] == "fit" and words[1:] in (["-h"], ["--help"]):
        say(_FIT)
        return 0
    if words[0] in _OWN and words[1:] in (["-h"], ["--help"]):
        say(_OF_A_RUN.format(command=words[0], own=_OWN[words[0]]))
        return 0
    try:
        trusted, rest = take_trust(words[1:])
        with trusting(trusted), finding_own_parts():
            rest = spelled_out(rest) if words[0] in RUN_COMMANDS else rest
            _dispatch(words[0], expand_recipes(rest))
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        said = answer(error, words[0])
        if said is None:
            say(traceback.format_exc(), file=sys.stderr, end="")
            say("error: this is a bug, of the library or of a part of your own; see above", file=sys.stderr)
            return 1
        say(f"error: {said}", file=sys.stderr)
        if (untrusted := cause_of(error, UntrustedError)) is not None:
            again = [words[0], "--trust", untrusted.module, *words[1:]]
            say(f"  {shlex.join(['contrastive-text', *again])}", file=sys.stderr)
        return 2
    return 0


def _dispatch(command: str, words: list[str]) -> None:
    """Runs a command: a function of its name in a module of its name, beside this one."""
    if command not in COMMANDS:
        raise InvalidValueError(
            f"contrastive-text: expected one of {', '.join(COMMANDS)}, got {command!r}"
            f"{nearest(command, COMMANDS)}"
        )
    if command in _TRAINING:
        from contrastive_text.cli.train import train

        if words == ["--help", "all"]:
            words = ["--help"]

        train([command, *words])
        return
    from contrastive_text.cli.commands import RECORDS
    from contrastive_text.cli.options import read_options

    options = read_options(RECORDS[command], words) if command in RECORDS else words
    vars(importlib.import_module(f"contrastive_text.cli.{command}"))[command](options)


def answer(error: BaseException, command: str | None = None) -> str | None:
    """Returns what to print of an exception, if it is for the user to put right.

    Args:
        error: The exception.
        command: The command that raised it, whose options lack of memory is answered with.

    Example:
        >>> from contrastive_text.core.errors import InvalidValueError
        >>> answer(InvalidValueError("a: expected 1, got 2")), answer(KeyError("prompts"))
        ('a: expected 1, got 2', None)
    """
    if is_out_of_memory(error):
        said = next(each for each in causes(error) if not isinstance(each, ContrastiveTextError))
        return _memory_answer(said, command)
    if is_panic(error):
        return (
            f"tokenizer: expected one that takes these texts, got a panic of its library: {error}; take another "
            "tokenizer.json"
        )
    if isinstance(error, ContrastiveTextError):
        return _outside_its_worker(str(error))
    if "/gloo/transport/" in str(error):  # its own class is RuntimeError alone
        return "processes: expected all of the run to live, got one that has ended; what it said before is why"
    return constructor_answer(error)


def _outside_its_worker(message: str) -> str:
    """Returns the message of an error that a worker process has passed on together with its traceback."""
    found = _IN_A_WORKER.match(message)
    return message if found is None else message.rpartition(f".{found['error']}: ")[2].strip()


def _memory_answer(error: BaseException, command: str | None) -> str:
    """Returns what to do about lack of memory, with the options of a command."""
    said = " ".join(_outside_its_worker(str(error)).split(". ")[0].split())[:300]
    todo = _TRAINED.get(str(command))
    if todo is None:
        todo = "give a smaller --batch_size" if command in _ON_BATCHES else "make batches smaller"
    if "shared memory" in said:
        todo = "give --data.num_workers 0, or the system more shared memory"
    return f"memory: expected enough of it, got {type(error).__name__}: {said or 'no more'}; {todo}"
