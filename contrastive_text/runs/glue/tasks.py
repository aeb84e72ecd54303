"""The nine tasks of GLUE: their columns, classes and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GlueTask:
    """A task of GLUE (Wang et al. 2019, https://arxiv.org/abs/1804.07461, table 1).

    Args:
        name: As papers write it, and the name of its folder.
        config: Its name on the hub, in ``nyu-mll/glue``.
        columns: Library column -> column of GLUE's own files; CoLA's, which have no header, are named here.
        hub_columns: Library column -> column on the hub.
        labels: Label of GLUE's own files -> class, in the order of the outputs, the second that of F1; none for
            scores from 0 to 5.
        metrics: Names of the figures whose mean is the task's score.
        dev: Names of the development files.
        header: The header of GLUE's own files where they have none.
    """

    name: str
    config: str
    columns: Mapping[str, str]
    hub_columns: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("accuracy",)
    dev: tuple[str, ...] = ("dev",)
    header: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of its data set in a run.

        Example:
            >>> GLUE["SST-2"].key
            'sst2'
        """
        return self.config

    @property
    def pairs(self) -> bool:
        """Whether it is of two texts."""
        return "positive" in self.columns

    @property
    def select(self) -> str:
        """The figure that chooses among the validations of a run: the first of its metrics.

        RoBERTa's code chooses by accuracy, and by the loss on STS-B; of MNLI by all development rows together.
        """
        return f"val/{self.key}/{self.metrics[0]}"

    def options(self, files: Mapping[str, str]) -> list[str]:
        """Returns what is laid over the recipe ``glue``: data, objective and what chooses, as options of ``fit``.

        Args:
            files: ``train`` and the names of ``dev`` -> path of a file as ``write_task`` leaves it.
        """
        outputs = len(self.labels) or 1
        head = {"class_path": "FineTuningHead", "init_args": {"out_features": outputs}}
        classes = {"classes": list(self.labels.values())} if self.labels else {"low": 0.0, "high": 5.0}
        objective = {
            "class_path": "TextClassification" if self.labels else "TextRegression",
            "init_args": {"task": self.key, "head": head, **classes},
        }
        task = {
            "train": files["train"],
            "validation": [files[name] for name in self.dev],
            "pairing": {"class_path": "OneSequence" if self.pairs else "SameText"},
        }
        return [
            f"--model.objectives={json.dumps({self.key: objective})}",
            f"--data.tasks={json.dumps({self.key: task})}",
        ]


_NLI = {name: name for name in ("entailment", "not_entailment")}
_PAIR = {"anchor": "sentence1", "positive": "sentence2"}


def _two(second: str, *, labels: tuple[str, str] = ("0", "1"), first: str | None = None) -> dict[str, str]:
    return dict(zip(labels, (first or f"not_{second}", second), strict=True))


_TASKS = (
    GlueTask(
        "MNLI",
        "mnli",
        {**_PAIR, "target": "gold_label"},
        {"anchor": "premise", "positive": "hypothesis", "target": "label"},
        {name: name for name in ("entailment", "neutral", "contradiction")},
        dev=("dev_matched", "dev_mismatched"),
    ),
    GlueTask(
        "QNLI",
        "qnli",
        {"anchor": "question", "positive": "sentence", "target": "label"},
        {"anchor": "question", "positive": "sentence", "target": "label"},
        _NLI,
    ),
    GlueTask(
        "QQP",
        "qqp",
        {"anchor": "question1", "positive": "question2", "target": "is_duplicate"},
        {"anchor": "question1", "positive": "question2", "target": "label"},
        _two("duplicate"),
        ("accuracy", "f1"),
    ),
    GlueTask("RTE", "rte", {**_PAIR, "target": "label"}, {**_PAIR, "target": "label"}, _NLI),
    GlueTask(
        "SST-2",
        "sst2",
        {"text": "sentence", "target": "label"},
        {"text": "sentence", "target": "label"},
        _two("positive", first="negative"),
    ),
    GlueTask(
        "MRPC",
        "mrpc",
        {"anchor": "#1 String", "positive": "#2 String", "target": "Quality"},
        {**_PAIR, "target": "label"},
        _two("equivalent"),
        ("accuracy", "f1"),
    ),
    GlueTask(
        "CoLA",
        "cola",
        {"text": "sentence", "target": "label"},
        {"text": "sentence", "target": "label"},
        _two("acceptable", first="unacceptable"),
        ("matthews",),
        header=("source", "label", "mark", "sentence"),
    ),
    GlueTask(
        "STS-B",
        "stsb",
        {**_PAIR, "target": "score"},
        {**_PAIR, "target": "label"},
        metrics=("pearson", "spearman"),
    ),
    GlueTask("WNLI", "wnli", {**_PAIR, "target": "label"}, {**_PAIR, "target": "label"}, _two("entailment")),
)
GLUE: Mapping[str, GlueTask] = {task.name: task for task in _TASKS}
"""Name -> task, in the order of RoBERTa's and CLEAR's tables."""
