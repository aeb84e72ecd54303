"""Trained head of a task: layers from vectors of texts to classes or scores, and its files in a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.config.untrusted import check_untrusted
from contrastive_text.core.errors import InvalidValueError, first_line, one_of
from contrastive_text.core.libraries import is_read_error
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.storage.weights import check_dense
from contrastive_text.heads import (
    Head,
    Scorer,
    apply_in_full_precision,
    build_head,
    class_scores,
    cosines,
    linear_in_full_precision,
)

HEAD = "contrastive_text_head.json"
"""File of a head's settings. A folder with this file is read by ``Classifier``, ``Reranker`` or ``Regressor``."""
_WEIGHTS = "contrastive_text_head.safetensors"
Kind = Literal["classifier", "reranker", "regressor"]
"""Use of a head: predicts classes, orders documents for a query, or predicts scores."""
Reads = Literal["text", "pair", "vectors", "any"]
"""Input of a head: one text, two texts in one sequence, the vectors of two texts, or any if it isn't known."""


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a trained head.

    Args:
        kind: Use of the head.
        reads: Input of the head.
        classes: Names of the classes in the order of the outputs; empty for scores.
        low: Score for the output 0. Only for scores.
        high: Score for the output 1. Only for scores.
        prompts: Prompt before the first text and before the second text.
        log_odds: Whether the only output is the log-odds of a reranker's score.

    Example:
        >>> HeadSettings("classifier", "text", classes=("bad", "good")).outputs
        2
    """

    kind: Kind
    reads: Reads
    classes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    prompts: tuple[str, str] = ("", "")
    log_odds: bool = False

    @property
    def outputs(self) -> int:
        """Number of outputs: one for each class of a classifier, otherwise one."""
        return len(self.classes) if self.kind == "classifier" else 1

    @property
    def activation(self) -> nn.Module:
        """Function from the logit of a reranker or regressor to its score: the sigmoid of log-odds."""
        has_log_odds = self.kind == "reranker" and (self.log_odds or self.classes)
        return nn.Sigmoid() if has_log_odds else nn.Identity()

    def from_raw(self, raw: Tensor) -> Tensor:
        """Converts the outputs of an objective's head, (N, classes) or (N, 1), to logits, (N, outputs).

        A reranker of two classes has the log-odds of the second class. A regressor has scores from ``low`` to
        ``high``.
        """
        if self.kind == "reranker" and self.classes:
            return raw[:, 1:] - raw[:, :1]
        return self.low + (self.high - self.low) * raw if self.kind == "regressor" else raw


class TaskHead(nn.Module):
    """Trained head of a task: from the vector of a text, or of two texts, to logits.

    Args:
        settings: Settings of the head.
        head: Layers on each vector, or None. For one vector their outputs are those of the head.
        linear: Linear layer after ``head``, or None. Only for one vector.
        scorer: Scorer of two vectors after ``head``. None for the cosine, if the head reads two vectors.

    Example:
        >>> head = TaskHead(HeadSettings("regressor", "vectors", low=0, high=5))
        >>> head(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([[3.]])
    """

    def __init__(
        self,
        settings: HeadSettings,
        head: Head | None = None,
        linear: nn.Linear | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.head, self.linear, self.scorer = head, linear, scorer

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Returns the logits of texts or pairs, (N, outputs), in at least float32.

        Args:
            first: Vectors of texts, or of the first texts of pairs, (N, D).
            second: Vectors of the second texts, (N, D); None if the head reads one vector.
        """
        first = apply_in_full_precision(self.head, first)
        if second is None:
            raw = first if self.linear is None else linear_in_full_precision(self.linear, first)
            return self.settings.from_raw(raw)
        second = apply_in_full_precision(self.head, second)
        if self.scorer is None:
            return self.settings.from_raw(cosines(first, second).unsqueeze(1))
        return self.settings.from_raw(class_scores(self.scorer, first, second, len(self.settings.classes)))

    @property
    def layers(self) -> list[nn.Module]:
        """Layers of a head over one vector, in order."""
        network = () if self.head is None or self.head.network is None else self.head.network
        return [*network, *([] if self.linear is None else [self.linear])]

    def write(self, folder: Path) -> None:
        """Writes settings and weights of the head into a model folder.

        Raises:
            TypeError: The head or the scorer is a class that can't be imported.
        """
        settings = vars(self.settings)
        parts = {"head": self.head, "scorer": self.scorer}
        specs = {name: None if part is None else part_spec(part, name) for name, part in parts.items()}
        write_json(folder / HEAD, {**settings, **specs, "linear": self.linear is not None})
        save_file({name: weight.contiguous() for name, weight in self.state_dict().items()}, folder / _WEIGHTS)

    @classmethod
    def read(cls, folder: Path, features: int) -> TaskHead:
        """Reads the head of a model folder.

        Args:
            folder: Model folder with the file ``HEAD``.
            features: Number of features of the model's vectors.

        Raises:
            ValueError: A file is damaged, or names a class of a module that isn't trusted.
        """
        path = folder / HEAD
        record = Record.read(path, MANIFEST_ADVICE)
        settings = _read_settings(record)
        check_untrusted({name: record.values.get(name) for name in ("head", "scorer")}, str(path))
        head, scorer = _build(record, "head", Head), _build(record, "scorer", Scorer)
        outputs = len(settings.classes) or 1
        linear = None
        try:
            with torch.device("meta"):  # takes no memory until the weights are checked
                width = build_head(head, features)
                if record.flag("linear"):
                    linear = nn.Linear(width, outputs)
                if scorer is not None:
                    scorer.build(width, outputs)
            task_head = cls(settings, head, linear, scorer)
            weights = load_file(folder / _WEIGHTS)
            check_dense(weights, str(folder / _WEIGHTS), MANIFEST_ADVICE)
            task_head.load_state_dict(
                {name: value.float() if value.is_floating_point() else value for name, value in weights.items()},
                assign=True,
            )
        except Exception as error:  # a part of the user's, and the reader of the file, raise many types
            if not is_read_error(error):
                raise
            raise InvalidValueError(
                f"{folder / _WEIGHTS}: expected the weights of the head for {features} features, got "
                f"{first_line(error)}; {MANIFEST_ADVICE}"
            ) from error
        return task_head.eval()


def _read_settings(record: Record) -> HeadSettings:
    kind = one_of(f"{record.where}: kind", record.text("kind"), Kind)
    reads = one_of(f"{record.where}: reads", record.text("reads"), Reads)
    classes, prompts = record.texts("classes"), record.texts("prompts")
    if kind == "classifier" and len(set(classes)) < 2:
        raise record.refusal("two or more different classes", classes, "classes")
    if len(prompts) != 2:
        raise record.refusal("two prompts", prompts, "prompts")
    low, high = record.number("low"), record.number("high")
    prompt_pair, log_odds = (prompts[0], prompts[1]), record.flag("log_odds", False)
    return HeadSettings(kind, reads, tuple(classes), low, high, prompt_pair, log_odds)  # type: ignore[arg-type]  # checked


def _build(record: Record, name: str, base: type[Any]) -> Any:  # Any: an instance of ``base``, or None
    """Builds a part of a head from its class path and arguments."""
    if name not in record:
        return None
    spec = record.record(name)
    arguments = spec.record("init_args", {}).values
    try:
        return import_class(spec.text("class_path"), base, record.where)(**arguments)
    except TypeError as error:
        raise spec.refusal(f"arguments of {spec.text('class_path')}", error.args[0], "init_args") from error


def labels_by_id(settings: HeadSettings) -> Mapping[int, str]:
    """Returns the number of each output -> its name, as ``id2label`` of Transformers."""
    names = settings.classes if settings.kind == "classifier" else ("score",)
    return dict(enumerate(names))
