"""Heads that a run has trained: which there are, and how one is saved as a folder for inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.heads import StackHead
from contrastive_text.inference.model_folder import write_folder
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.sequence_classifier import head_difference, write_sequence_classifier
from contrastive_text.inference.task_head import HeadSettings, Kind, Reads, TaskHead
from contrastive_text.objectives import (
    PairClassification,
    PairRegression,
    Reranking,
    TextClassification,
    TextRegression,
)
from contrastive_text.pairings import Pairing
from contrastive_text.training.module import ContrastiveModule

Predictor = TextClassification | TextRegression | PairClassification | PairRegression | Reranking
"""Objectives whose head can be saved."""


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
        if isinstance(part, Predictor):
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
        raise InvalidValueError(f"--as {kind}: expected {_wrong_use(head, kind)}")
    return head


def _wrong_use(head: RunHead, kind: Kind) -> str:
    target, todo = head.objective.target, f"give --as {' or '.join(head.kinds)}"
    if kind == "reranker" and head.reads != "pair":
        got = "one text" if head.reads == "text" else "the vectors of two texts"
        return (
            f"a head that reads two texts in one sequence, got {head.name}, which reads {got}; {todo}, or train "
            "with pairing: OneSequence and TextClassification or TextRegression"
        )
    if kind == "reranker" and isinstance(target, Classes):
        return (
            f"a head with one output or two classes, got {head.name} with {len(target.names)} outputs "
            f"({', '.join(target.names)}); {todo}, or train with two classes"
        )
    if isinstance(head.objective, Reranking):
        return f"a head that predicts {'classes' if kind == 'classifier' else 'scores'}, got a reranker; {todo}"
    ours, theirs = ("scores", "classes") if kind == "classifier" else ("classes", "scores")
    return f"a head that predicts {theirs}, got {head.name}, which predicts {ours}; {todo}"


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


def transformers_difference(module: ContrastiveModule, head: RunHead) -> str:
    """Returns why Transformers can't load a head that reads one sequence, with what to do; empty if it can."""
    return head_difference(*inference_parts(module, head, head.kinds[0]))


def save_head(
    module: ContrastiveModule, head: RunHead, kind: Kind, folder: Path, card: str, own_format: bool = False
) -> None:
    """Writes a trained head with its encoder to a folder.

    A head that reads one sequence is written for Transformers. A head over the vectors of two texts is written in
    this library's format: sentence-transformers loads its encoder, and only this library its head.

    Args:
        module: Module of the run.
        head: The head.
        kind: Use of the head.
        folder: Folder to write.
        card: Model card; empty for none.
        own_format: Whether a head that reads one sequence is written in this library's format, too.

    Raises:
        ValueError: Transformers has no such classification head, and ``own_format`` is false.
        DiskError: The folder can't be written to.
    """
    parts, task_head = inference_parts(module, head, kind)
    if head.reads == "vectors" or own_format:
        write_folder(folder, SentenceEncoder.of(replace(parts, card=card)).parts, head=task_head)
    else:
        write_sequence_classifier(folder, parts, task_head, card)
