"""Heads on disk: the layers after the pooler of a model, and the trained head of a task.

In sentence-transformers, Dense, LayerNorm, Dropout and Normalize modules follow a pooler in any order. In this
library they are the layers of one ``nn.Sequential``. A trained head of a task has files of this library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.specs import build_part, part_spec
from contrastive_text.core.config.untrusted import check_untrusted
from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.libraries import read_errors_as
from contrastive_text.core.storage.manifests import CONFIG, MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.storage.weights import read_weights
from contrastive_text.heads import (
    Head,
    Scorer,
    UnitLength,
    apply_in_full_precision,
    build_head,
    class_scores,
    cosines,
    linear_in_full_precision,
)
from contrastive_text.heads.mlp import ACTIVATIONS
from contrastive_text.inference.folder_modules import ELSEWHERE

HEAD = "contrastive_text_head.json"
"""File of a head's settings. A folder with this file is read by ``Classifier``, ``Reranker`` or ``Regressor``."""
_WEIGHTS = "contrastive_text_head.safetensors"
Kind = Literal["classifier", "reranker", "regressor"]
"""Use of a head: predicts classes, orders documents for a query, or predicts scores."""
Reads = Literal["text", "pair", "vectors", "any"]
"""Input of a head: one text, two texts in one sequence, the vectors of two texts, or any if it isn't known."""
_WIDEST = 1 << 20
"""Largest number of features of a layer in a model folder. A larger number means that the folder is damaged."""
_INPUT = "sentence_embedding"
"""Name of the vector that modules after the pooler read and write in sentence-transformers."""
_TANH = "torch.nn.modules.activation.Tanh"
"""Class path of the default activation of a Dense module."""
_ACTIVATION_PACKAGES = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")
KINDS = ("Dense", "LayerNorm", "Dropout", "Normalize")
"""Class names of the modules of sentence-transformers after the pooler."""
_KINDS = {UnitLength: "Normalize", nn.Dropout: "Dropout", nn.LayerNorm: "LayerNorm"}


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
        expected = f"{folder / _WEIGHTS}: expected the weights of the head for {features} features"
        with read_errors_as(expected, MANIFEST_ADVICE):  # a part of the user's may raise any error
            with torch.device("meta"):  # takes no memory until the weights are checked
                width = build_head(head, features)
                if record.flag("linear"):
                    linear = nn.Linear(width, outputs)
                if scorer is not None:
                    scorer.build(width, outputs)
            task_head = cls(settings, head, linear, scorer)
            task_head.load_state_dict(read_weights(folder / _WEIGHTS, MANIFEST_ADVICE), assign=True)
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
    arguments = spec.record("init_args", {})
    return build_part(
        import_class(spec.text("class_path"), base, record.where), arguments.values, arguments.where, record.todo
    )


def group_layers(layers: Iterable[nn.Module]) -> list[tuple[str, list[nn.Module]]]:
    """Groups layers into modules of sentence-transformers. Returns the class name and the layers of each module.

    Raises:
        ValueError: sentence-transformers has no module for a layer.
    """
    modules: list[tuple[str, list[nn.Module]]] = []
    for layer in layers:
        # Dropout does nothing in inference, so an activation after it belongs to the Dense layer before it.
        previous, members = next((module for module in reversed(modules) if module[0] != "Dropout"), ("", []))
        is_open = previous == "Dense" and (len(members) == 1 or isinstance(members[1], nn.Identity))
        path = f"{type(layer).__module__}.{type(layer).__qualname__}"
        kind = "Dense" if isinstance(layer, nn.Linear) else _KINDS.get(type(layer))
        if isinstance(layer, nn.LayerNorm):
            is_default = str(layer) == str(nn.LayerNorm(layer.normalized_shape[0])) and layer.bias is not None
            kind = kind if is_default else None
        if kind is not None:
            modules.append((kind, [layer]))
        elif is_open and activation_class(path) is type(layer) and str(layer) == str(type(layer)()):
            members[1:] = [layer]
        else:
            raise InvalidValueError(
                "save_pretrained: expected a head of Linear layers, each followed by at most one activation of "
                f"torch.nn with its default arguments, of LayerNorm, Dropout and UnitLength, got {layer}; "
                "sentence-transformers has no module for it"
            )
    return modules


def activation_class(path: str) -> type[nn.Module] | None:
    """Returns the activation class of torch.nn at a class path, or None if its constructor needs arguments."""
    package, _, name = path.rpartition(".")
    return ACTIVATIONS.get(name) if package in _ACTIVATION_PACKAGES else None


def write_layers(folder: Path, kind: str, layers: Sequence[nn.Module]) -> None:
    """Writes the settings and weights of a module of layers (from ``group_layers``) into its folder."""
    first = layers[0]
    if isinstance(first, nn.Linear):
        activation = layers[1] if len(layers) > 1 else nn.Identity()
        config: dict[str, object] = {
            "in_features": first.in_features,
            "out_features": first.out_features,
            "bias": first.bias is not None,
            "activation_function": f"{type(activation).__module__}.{type(activation).__qualname__}",
        }
        weights = nn.ModuleDict({"linear": first, "activation_function": activation})
    elif isinstance(first, nn.LayerNorm):
        config, weights = {"dimension": first.normalized_shape[0]}, nn.ModuleDict({"norm": first})
    elif isinstance(first, nn.Dropout):
        config, weights = {"dropout": first.p}, nn.ModuleDict()
    else:
        assert kind == "Normalize"  # without settings and weights
        return
    write_json(folder / CONFIG, config)
    if state := {name: weight.contiguous() for name, weight in weights.state_dict().items()}:
        save_file(state, folder / "model.safetensors")


def read_layers(folder: Path, kind: str) -> list[nn.Module]:
    """Reads the layers of a module from its folder.

    Args:
        folder: Folder of the module.
        kind: Name of the module's class in sentence-transformers, one of ``KINDS``.

    Raises:
        ValueError: A file is damaged, or a setting has no equal in this library.
    """
    config = Record.read(folder / CONFIG, MANIFEST_ADVICE, required=False)
    for key in ("module_input_name", "module_output_name"):
        if (name := config.text(key, _INPUT)) != _INPUT:
            raise config.refusal(repr(_INPUT), name, key, ELSEWHERE)
    if kind == "Dense":
        if config.flag("use_residual", False):
            raise config.refusal("false", True, "use_residual", ELSEWHERE)
        path = config.text("activation_function", _TANH)
        if (cls := activation_class(path)) is None:
            expected = "an activation of torch.nn without arguments"
            raise config.refusal(expected, path, "activation_function", ELSEWHERE)
        inputs, outputs = (
            config.integer(name, least=1, most=_WIDEST) for name in ("in_features", "out_features")
        )
        with torch.device("meta"):  # takes no memory until the weights are checked
            layers = {
                "linear": nn.Linear(inputs, outputs, bias=config.flag("bias", True)),
                "activation_function": cls(),
            }
        return _with_weights(folder, layers)
    if kind == "LayerNorm":
        with torch.device("meta"):
            norm = nn.LayerNorm(config.integer("dimension", least=1, most=_WIDEST))
        return _with_weights(folder, {"norm": norm})
    if kind == "Normalize":
        return [UnitLength()]
    rate = config.number("dropout", 0.2)  # their default
    if not 0 <= rate <= 1:
        raise config.refusal("a number from 0 to 1", rate, "dropout")
    return [nn.Dropout(rate)]


def _with_weights(folder: Path, layers: dict[str, nn.Module]) -> list[nn.Module]:
    """Loads the weights of a module from its folder into its layers. Returns the layers in order."""
    path, older = folder / "model.safetensors", folder / "pytorch_model.bin"
    weights = read_weights(older if older.exists() and not path.exists() else path, MANIFEST_ADVICE)
    with read_errors_as(f"{folder}: expected the weights of {next(iter(layers.values()))}", MANIFEST_ADVICE):
        nn.ModuleDict(layers).load_state_dict(weights, assign=True)
    return list(layers.values())
