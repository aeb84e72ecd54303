"""Export of the best weights of a run: its encoder or a trained head, as a folder with a model card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from huggingface_hub import try_to_load_from_cache
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from contrastive_text.core.config.class_paths import foreign_modules, import_class, trust_options
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import Checkpoint, read_checkpoint, verify_checkpoint
from contrastive_text.core.storage.disk import remove_abandoned
from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.terminal import as_markdown, code_span, make_console
from contrastive_text.encoders.asymmetric import is_saved
from contrastive_text.heads import StackHead
from contrastive_text.inference.folder_modules import check_loadable, is_loadable_elsewhere
from contrastive_text.inference.head_files import HeadSettings, Kind, Reads, TaskHead
from contrastive_text.inference.model_card import ModelCard, head_examples
from contrastive_text.inference.model_folder import write_folder
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.sequence_classifier import head_difference, write_sequence_classifier
from contrastive_text.objectives import (
    PairClassification,
    PairRegression,
    Reranking,
    TextClassification,
    TextRegression,
)
from contrastive_text.pairings import Pairing
from contrastive_text.recipes.papers import citations
from contrastive_text.training.callbacks.best_checkpoint import BestCheckpoint
from contrastive_text.training.module import ContrastiveModule

Predictor = TextClassification | TextRegression | PairClassification | PairRegression | Reranking
"""Objectives whose head can be saved."""
RECIPE = "recipe"
"""Name of the fact that lists the recipes of a run."""
_FACTS = (
    RECIPE, "training data", "validation data", "run", "step", "pairing", "views", "prompts", "objectives",
    "guides", "mixture", "gradient", "dropout", "pooler", "head in use", "precisions", "optimizer",
    "length limit", "libraries",
)  # fmt: skip
_STARTS_FROM = "starts from"
_VECTORS = "Vectors of sentences, trained by contrastive learning"
_LIMITS = (
    "Nothing beyond the scores above was measured when this card was written. The length limit above is that of "
    "training. The model repeats what its training texts take for granted; test it on texts of your own."
)
_ONLY_HERE = "The folder of the head loads in this library only"
_PATH = re.compile(r"(?<![\w.])(?:~|\.\.?|[A-Za-z]:)?(?:[/\\]+[\w.~-]+)*[/\\]+([\w.-]*)")
"""Pattern of paths that begin with a slash, a drive, ``~`` or a dot. Other slashes are not paths."""
_READS = {"text": "texts", "pair": "pairs of texts in one sequence", "vectors": "pairs of texts by their vectors"}
"""Input of a head -> its description in messages and model cards."""


class RunHead(NamedTuple):
    """Trained head of a run.

    Args:
        name: Name of the objective.
        objective: The objective, with the weights of the head.
        reads: Input of the head.
    """

    name: str
    objective: Predictor
    reads: Reads

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Uses of the head, the usual one first. A head of two texts in one sequence may rerank documents."""
        if isinstance(self.objective, Reranking):
            return ("reranker",)
        target = self.objective.target
        usual: Kind = "classifier" if isinstance(target, Classes) else "regressor"
        reranks = self.reads == "pair" and (isinstance(target, Scores) or len(target.names) == 2)
        return (usual, "reranker") if reranks else (usual,)

    def describe(self, kind: Kind) -> str:
        """Returns what the head reads and predicts in a use, such as "reads texts and predicts scores"."""
        target, output = self.objective.target, "scores"
        if isinstance(target, Classes) and kind == "reranker" and len(target.names) == 2:
            output = f"the log-odds of the class {target.names[1]}; the score is their sigmoid"
        elif isinstance(target, Classes):
            output = f"the classes {', '.join(target.names)}"
        elif isinstance(target, Scores) and kind == "regressor":
            output = f"scores from {target.low:g} to {target.high:g}"
        return f"reads {_READS[self.reads]} and predicts {output}"

    @property
    def has_weights(self) -> bool:
        """True if the head has weights. Otherwise it compares the cosine of two vectors."""
        parts = [part for name, part in self.objective.named_children() if name in ("head", "linear", "scorer")]
        return any(next(part.parameters(), None) is not None for part in parts)


def run_heads(module: ContrastiveModule, data: Mapping[str, Any]) -> dict[str, RunHead]:  # Any: plain data
    """Returns name of the objective -> trained head, for all heads of a run that can be saved.

    Args:
        module: Module of the run.
        data: Arguments of the data module, as plain data.
    """
    heads = {}
    for name, part in module.objective_parts().items():
        if isinstance(part, Predictor) and not module.encoder.pools:  # a saved head reads a single encoder
            reads: Reads = "vectors" if isinstance(part, PairClassification | PairRegression) else "text"
            if isinstance(part, Reranking) or (reads == "text" and _joins_texts(data, part.task)):
                reads = "pair"
            heads[name] = RunHead(name, part, reads)
    return heads


def product_head(module: ContrastiveModule, data: Mapping[str, Any]) -> RunHead | None:  # Any: plain data
    """Returns the head that is the product of a run: its only objective reads one text or one sequence.

    Other runs also train vectors of texts, whose encoder is saved. Their heads are saved by ``export``.
    """
    heads = [head for head in run_heads(module, data).values() if head.reads != "vectors"]
    return heads[0] if heads and len(module.objectives) == 1 else None


def _joins_texts(data: Mapping[str, Any], task: str | None) -> bool:
    """Returns whether the pairing of a task puts two texts into one sequence."""
    tasks = data.get("tasks") or {}
    options: Any = next(iter(tasks.values()), {}) if task is None else tasks.get(task)
    options = (data.get("task") if options is None or not tasks else options) or {}
    pairing = options.get("init_args", options).get("pairing")
    path = pairing.get("class_path") if isinstance(pairing, Mapping) else pairing
    return path is not None and import_class(path, Pairing, "data.task.pairing").joins_texts


_USES = {
    "classifier": "a head that predicts classes",
    "regressor": "a head that predicts scores",
    "reranker": "a head that reads two texts in one sequence (OneSequence) and has one output or two classes",
}
"""Use of a head -> the head that it needs."""


def choose_head(heads: Mapping[str, RunHead], name: str | None, kind: Kind) -> RunHead:
    """Returns the head with a name, or the only head of a run.

    Args:
        heads: Heads of the run, from ``run_heads``.
        name: Name of the objective; None for the only one.
        kind: Requested use.

    Raises:
        ValueError: The run has no head, several heads and no name is given, no head of this name, or the head
            can't be used in this way.
    """
    names = ", ".join(heads)
    if not heads:
        raise InvalidValueError(
            f"--as {kind}: expected a run with a head (TextClassification, TextRegression, PairClassification, "
            "PairRegression or Reranking), got a run without one; remove --as to save the encoder"
        )
    if name is None and len(heads) > 1:
        raise InvalidValueError(
            f"--head: expected a name, because the run has the heads {names}; add --head {next(iter(heads))}"
        )
    head = next(iter(heads.values())) if name is None else heads.get(name)
    if head is None:
        raise InvalidValueError(f"--head: expected one of the heads {names}, got {name!r}; name one of them")
    if kind not in head.kinds:
        got = f"{head.name}, which {head.describe(head.kinds[0])}"
        todo = f"give --as {' or '.join(head.kinds)}, or train another head"
        raise InvalidValueError(f"--as {kind}: expected {_USES[kind]}, got {got}; {todo}")
    return head


def inference_parts(module: ContrastiveModule, head: RunHead, kind: Kind) -> tuple[ModelParts, TaskHead]:
    """Returns encoder parts and head for inference. They share the module's weights.

    The pooler is that of training, because the head was trained on its vectors.
    """
    objective, target = head.objective, head.objective.target
    stack = module.head.encoder_arguments()[2] if isinstance(module.head, StackHead) else None
    prompts, task = module.by_task.prompts, objective.task or "train"
    parts = replace(module.sentence_encoder().parts, pooler=module.pooler, truncate_dim=stack)
    settings = HeadSettings(
        kind,
        head.reads,
        classes=target.names if isinstance(target, Classes) else (),
        low=target.low if isinstance(target, Scores) else 0.0,
        high=target.high if isinstance(target, Scores) else 1.0,
        prompts=(prompts.of_role("anchor", task), prompts.of_role("positive", task)),
        log_odds=isinstance(objective, Reranking) and objective.loss is None,
    )
    linear = None
    if isinstance(objective, TextClassification | TextRegression | Reranking):
        linear = objective.linear
    scorer = objective.scorer if isinstance(objective, PairClassification) else None
    return parts, TaskHead(settings, objective.head, linear, scorer)


def save_encoder(module: ContrastiveModule, folder: Path, checkpoint: str, separate_adapters: bool) -> None:
    """Writes the encoder of a module to a model folder; see ``SentenceEncoder.save_pretrained``.

    Args:
        module: Module of the run.
        folder: Folder to write.
        checkpoint: Path of the checkpoint, for the model card; empty for no card.
        separate_adapters: Whether LoRA adapters are written separately.

    Raises:
        DiskError: The folder can't be written to.
    """
    model = module.sentence_encoder()
    if checkpoint:
        add_card(model, checkpoint)
    model.save_pretrained(folder, separate_adapters)


def save_head(
    module: ContrastiveModule, head: RunHead, kind: Kind, folder: Path, checkpoint: str, own_format: bool = False
) -> None:
    """Writes a trained head with its encoder to a folder.

    A head that reads one sequence is written for Transformers. A head over the vectors of two texts is written in
    this library's format: sentence-transformers loads its encoder, and only this library its head.

    Args:
        module: Module of the run.
        head: The head.
        kind: Use of the head.
        folder: Folder to write.
        checkpoint: Path of the checkpoint, for the model card; empty for no card.
        own_format: Whether a head that reads one sequence is written in this library's format, too.

    Raises:
        ValueError: Transformers has no such classification head, and ``own_format`` is false.
        DiskError: The folder can't be written to.
    """
    parts, task_head = inference_parts(module, head, kind)
    in_transformers = head.reads != "vectors" and not own_format
    card = _head_card(read_checkpoint(checkpoint), head, kind, in_transformers) if checkpoint else ""
    if in_transformers:
        write_sequence_classifier(folder, parts, task_head, card)
    else:
        write_folder(folder, replace(parts, card=card), head=task_head)


def next_commands(kind: Kind | None, folder: str | Path, is_sparse: bool = False) -> list[str]:
    """Returns the commands that use a saved head, or a saved encoder; for a regressor a line of Python.

    Example:
        >>> next_commands("reranker", "out")
        ['contrastive-text rank QUERIES.txt DOCUMENTS.txt RANKED.tsv --model out']
    """
    if kind == "regressor":
        return [f"in Python: Regressor.from_pretrained({str(folder)!r}).predict(PAIRS)"]
    words = {
        "classifier": ["classify TEXTS.tsv CLASSES.tsv"],
        "reranker": ["rank QUERIES.txt DOCUMENTS.txt RANKED.tsv"],
        None: ["embed TEXTS.txt VECTORS.npy", "index build TEXTS.txt INDEX"],
    }
    commands = ["search TEXTS.txt QUERY"] if is_sparse and kind is None else words[kind]
    return [f"contrastive-text {command} --model {folder}" for command in commands]


class ExportModel(Callback):
    """Callback that loads the best checkpoint after training and saves it as a model folder.

    A model folder needs a ``TransformerEncoder``, a ``StaticEncoder``, or an ``AsymmetricEncoder`` of both. Any
    other encoder can only be loaded from the checkpoint; a message says so when training starts.

    Args:
        dirpath: Path of the model folder; None for ``model`` in the run's folder.
        separate_adapters: Whether LoRA adapters are written separately, in peft's format, next to the unchanged
            weights. Otherwise adapters are merged into the weights.
    """

    def __init__(self, dirpath: str | None = None, separate_adapters: bool = False) -> None:
        self.dirpath = dirpath
        self.separate_adapters = separate_adapters

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks that the model can be exported, and prints a message if it can't.

        Raises:
            ValueError: The encoder couldn't be loaded again, for example because its layers were changed by hand.
                Or weights are split and the run writes no checkpoint.
        """
        if not isinstance(pl_module, ContrastiveModule):
            return
        if pl_module.is_split and not trainer.checkpoint_callbacks:
            raise InvalidValueError(
                "export: expected checkpoints, from which split weights (fsdp2) are exported, got a run "
                "without checkpoints; remove --trainer.enable_checkpointing false, or the export"
            )
        if is_saved(pl_module.encoder):
            settings = pl_module.inference
            lengths = settings.query_length, settings.document_length
            check_loadable(pl_module.encoder, "ExportModel", lengths)
            head = product_head(pl_module, _data_of(trainer))
            if head is not None and self.separate_adapters:
                raise InvalidValueError(
                    f"export.separate_adapters: expected false, because the run saves the head {head.name} with "
                    "merged adapters, got true; remove it"
                )
            is_plain = not pl_module.is_split and pl_module.encoder.adapters is None
            if head is not None and is_plain and trainer.is_global_zero:
                difference = head_difference(*inference_parts(pl_module, head, head.kinds[0]))
                if difference:
                    make_console(soft_wrap=True).print(f"{_ONLY_HERE}. {difference}")
            older = self.dirpath is not None and Path(self.dirpath, MANIFEST).exists()
            if older and trainer.ckpt_path is None and trainer.is_global_zero:
                make_console(soft_wrap=True).print(
                    f"{self.dirpath} contains a model, which this run will replace"
                )
        elif trainer.is_global_zero:
            name = type(pl_module.encoder).__name__
            make_console().print(
                "No model folder will be written: one holds a TransformerEncoder, a StaticEncoder or an "
                f"AsymmetricEncoder of both, and this is a {name}. ContrastiveModule.load_from_checkpoint loads "
                "it from a checkpoint."
            )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Loads the best weights on every rank, and writes the model folder on the first rank."""
        ours = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, BestCheckpoint)]
        savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
        checkpoint = next(iter([*ours, *savers]), None)
        best = "" if checkpoint is None else checkpoint.best_model_path
        if best:
            verify_checkpoint(best)
            state = torch.load(best, map_location=pl_module.device, weights_only=True)["state_dict"]
            pl_module.load_state_dict(state)
            del state
        # All ranks must call log_dir, which is collective.
        run = trainer.log_dir
        folder = Path(self.dirpath or Path(run or trainer.default_root_dir) / "model")
        if not trainer.is_global_zero or not isinstance(pl_module, ContrastiveModule):
            return
        if not is_saved(pl_module.encoder):
            return  # on_fit_start has printed a message
        remove_abandoned(folder.parent)
        if pl_module.is_split:
            pl_module = pl_module.class_before_split().load_from_checkpoint(best, map_location="cpu")
        data = _data_of(trainer)
        head = product_head(pl_module, data)
        kind = None if head is None else head.kinds[0]
        screen = make_console(soft_wrap=True)
        if head is None or kind is None:
            save_encoder(pl_module, folder, best, self.separate_adapters)
        else:
            try:
                save_head(pl_module, head, kind, folder, best)
            except InvalidValueError as error:
                screen.print(f"{_ONLY_HERE}. {error}")
                save_head(pl_module, head, kind, folder, best, own_format=True)
        score = ""
        if checkpoint is not None and checkpoint.best_model_score is not None:
            score = f" (best {checkpoint.monitor} {float(checkpoint.best_model_score):.2f}, {Path(best).stem})"
        screen.print(f"{(kind or 'model').capitalize()} saved to {folder}{score}. Next:")
        for command in next_commands(kind, folder, pl_module.inference_embedder.is_sparse):
            screen.print(f"  {command}")
        parts = [pl_module, vars(trainer).get("datamodule")]  # set by Lightning, but not declared
        trust = trust_options(foreign_modules([dict(part.hparams) for part in parts if part is not None]))
        if run is not None and find_spec("matplotlib") is not None:  # which draws the report
            screen.print("  " + shlex.join(["contrastive-text", "report", *trust, run]))
        if run is not None and best:
            for line in _export_lines(run_heads(pl_module, data), head, run, trust):
                screen.print(line)


def _data_of(trainer: pl.Trainer) -> dict[str, Any]:  # Any: plain data
    """Returns the arguments of a trainer's data module; empty if it has none."""
    data = vars(trainer).get("datamodule")  # set by Lightning, but not declared
    return {} if data is None else dict(data.hparams)


def _export_lines(
    heads: Mapping[str, RunHead], saved: RunHead | None, run: str, trust: list[str]
) -> Iterator[str]:
    """Yields the commands that save heads of a run: those that aren't saved, and further uses of a saved head."""
    uses = [(name, kind) for name, head in heads.items() for kind in head.kinds]
    uses = [(name, kind) for name, kind in uses if heads[name].has_weights]
    uses = [use for use in uses if saved is None or use != (saved.name, saved.kinds[0])]
    if uses:
        yield "To save a trained head of the run in another folder:"
    for name, kind in uses:
        chosen = ["--head", name] * (len(heads) > 1)
        yield "  " + shlex.join(["contrastive-text", "export", *trust, run, "FOLDER", "--as", kind, *chosen])


def add_card(model: SentenceEncoder, checkpoint: str | Path) -> None:
    """Adds a model card to a model, from the checkpoint of its weights. Paths are shortened to their last part.

    Args:
        model: Model to add the card to; ``save_pretrained`` writes the card.
        checkpoint: Path of the ``.ckpt`` file.

    Raises:
        FileNotFoundError: The file doesn't exist.
        ValueError: The file is damaged.
    """
    card = _card_of(read_checkpoint(checkpoint))
    model.card = replace(
        card,
        in_sentence_transformers=is_loadable_elsewhere(model.parts),
        is_sparse=model.is_sparse,
        has_query_prompts=model.prompts.has_retrieval_prompts or model.encoder.pools,
    ).text()


def _head_card(content: Checkpoint, head: RunHead, kind: Kind, in_transformers: bool) -> str:
    """Returns the model card of a trained head, from the checkpoint of its weights."""
    card, use = _card_of(content), as_markdown(head.describe(kind))
    return replace(
        card,
        title=kind.capitalize(),
        description=card.description.replace(_VECTORS, f"{use[0].upper()}{use[1:]}. Trained", 1),
        examples=head_examples(kind, head.reads, in_transformers),
        task="text-ranking" if kind == "reranker" else "text-classification",
        library="transformers" if in_transformers else "contrastive-text",
        pairs=None,
    ).text()


def _card_of(content: Checkpoint) -> ModelCard:
    """Returns the facts and scores of a checkpoint as a model card."""
    arguments = (content.model.get("encoder") or {}).get("init_args") or {}
    base = str(arguments.get("model_name_or_path") or "")
    of_hub = _is_of_hub(base)
    start = base if of_hub else _last(base)
    places = sorted({*_places(content.model), *_places(content.data)}, key=len, reverse=True)
    facts = {name: _without_places(content.facts[name], places) for name in _FACTS if name in content.facts}
    if _STARTS_FROM in content.facts:
        facts[_STARTS_FROM] = _last(content.facts[_STARTS_FROM])
    validation = content.data.get("validation")
    return ModelCard(
        description=f"{_VECTORS} from {f'the weights of {code_span(start)}' if start else 'random weights'}.",
        in_sentence_transformers=False,
        base=base if of_hub else None,
        facts={
            "steps of these weights": f"{content.step:,}",
            "seed": str(content.data.get("seed", "unknown")),
            **facts,
        },
        scores=content.best.figures,
        score_description="Of these very weights, on the validation data above; one run, so without a spread. "
        "Correlations and accuracies are times 100. The checkpoint was chosen by them, so they flatter it.",
        pairs=_last(validation) if isinstance(validation, str) else None,
        limits=_LIMITS,
        citations=citations(content.facts.get(RECIPE, "").split(", ")),
    )


def _is_of_hub(name: str) -> bool:
    """Returns whether a name is a model of the hub: no local folder has it, and the hub's cache contains it."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name) or Path(name).exists():
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _places(part: Any) -> Iterator[str]:  # Any: values of YAML
    """Yields the strings of a configuration that contain a slash or a backslash."""
    if isinstance(part, str) and ("/" in part or "\\" in part):
        yield part
    values = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ()
    for value in values:
        yield from _places(value)


def _last(path: str) -> str:
    r"""Returns the last part of a path, so that a model card shows no local folders.

    Example:
        >>> _last("/home/Jane Doe/model/"), _last("C:\\models\\bert")
        ('model', 'bert')
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _without_places(text: str, places: list[str]) -> str:
    r"""Replaces every path in a text by its last part.

    Example:
        >>> _without_places("/home/Jane Doe/texts.txt: 3 rows; ../b.tsv", ["/home/Jane Doe/texts.txt"])
        'texts.txt: 3 rows; b.tsv'
    """
    for place in places:
        text = text.replace(place, _last(place))
    return _PATH.sub(r"\1", text)
