"""Summary of a run, printed at its start, and its progress bar."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, RichProgressBar, Timer
from rich import get_console
from rich.table import Table
from rich.text import Text

from contrastive_text.core.config.specs import describe
from contrastive_text.core.distributed import world_size
from contrastive_text.core.errors import above
from contrastive_text.core.machine import is_faster_in_bfloat16
from contrastive_text.core.storage.manifests import find_model_folder
from contrastive_text.core.terminal import facts_table, log_message, make_console
from contrastive_text.data import TextDataModule
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.training_set import sibling_rows
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.asymmetric import is_saved
from contrastive_text.encoders.static import StaticEncoder, static_folder
from contrastive_text.encoders.token_head import TokenHead
from contrastive_text.heads import FineTuningHead, Head, StackHead, describe_stack
from contrastive_text.inference.model_folder import FolderParts, read_folder_parts, read_prompts
from contrastive_text.inference.model_parts import pooler_name
from contrastive_text.objectives import Contrastive, Objective, PairLabels, Siblings
from contrastive_text.training.callbacks.best_checkpoint import describe_monitor, get_datamodule
from contrastive_text.training.callbacks.export_model import RECIPE
from contrastive_text.training.guides import describe_guides
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.optim import Schedule

TITLE = "What makes the result"
"""Title of the table with the summary of a run."""
_STARTS_FROM = "starts from"
_LIBRARIES = ("contrastive-text", "torch", "transformers", "tokenizers", "pytorch-lightning")
"""Packages whose versions are in the summary of a run."""


def model_facts(module: ContrastiveModule) -> dict[str, str]:
    """Returns the facts of the model for the summary: its parts, dropout rates, optimizer and libraries."""
    plans = {"": module.plan, **{f"{task}, ": plan for task, plan in module.by_task.task_plans.items()}}
    chains = [
        f"{task}{name}: {' -> '.join(map(describe, chain)) or 'unaltered'}"
        for task, plan in plans.items()
        for name, chain in plan.chains.items()
    ]
    dropout = ", ".join(f"{name} {p:g}" for name, p in module.encoder.dropout_in_effect.items() if p)
    parts = module.objective_parts().items()
    token_head = next((part for part in module.encoder.modules() if isinstance(part, TokenHead)), None)
    origin = "" if token_head is None else "the checkpoint's" if token_head.pretrained else "starts at random"
    begun = [head.pretrained for head in module.by_task.heads if isinstance(head, FineTuningHead)]
    first = "; ".join(
        dict.fromkeys(
            "the checkpoint's pooler" if is_pretrained else "starts at random" for is_pretrained in begun
        )
    )
    networks = [f"{name}: {description}" for name, part in parts if (description := part.describe_networks())]
    layout, why = module.encoder.layout_on(module.device)
    truncate_dim, end = module.by_task.truncate_dim, module.encoder.row_end
    precisions = module.by_task.precisions
    chunks = "whole batches" if module.chunk_tokens is None else f"chunks of {module.chunk_tokens:,} tokens"
    return {
        "encoder": f"{describe(module.encoder)}; {_weights(module.encoder)}",
        **({"token head": origin} if origin else {}),
        **({"first layer of FineTuningHead": first} if first else {}),
        "layout": f"{layout}: {why}; {chunks}",
        "dropout": dropout or "none",
        "views": "\n".join(chains) or "none",
        **_prompts(module),
        **({"end of rows": f"{end!r}, which the tokenizer puts nowhere by itself"} if end else {}),
        "pooler": f"{describe(module.pooler)} in training, {describe(module.inference_embedder.pooler)} in use",
        "head in use": "none" if module.head is None else describe(module.head),
        **(
            {"saved vectors": f"the first {truncate_dim} features, which are trained"}
            if truncate_dim is not None
            else {}
        ),
        **({"precisions": ", ".join(("float32", *precisions))} if precisions else {}),
        **({"networks of objectives": "\n".join(networks)} if networks else {}),
        "objectives": "\n".join(f"{name}: {module.weights[name]:g} x {describe(part)}" for name, part in parts),
        **({"guides": describe_guides(module.guides)} if module.guides else {}),
        **module.momentum.facts(),
        **({"gradient": describe(module.combine)} if len(parts) > 1 else {}),
        "optimizer": f"{describe(module.optimizer)}\n{describe(module.schedule)}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
    }


def _weights(encoder: Encoder) -> str:
    """Describes the number of weights of an encoder, and the number of trained weights if some are frozen."""
    trained, frozen = (
        sum(weight.numel() for weight in encoder.parameters() if weight.requires_grad is is_trained)
        for is_trained in (True, False)
    )
    text = f"{(trained + frozen) / 1e6:.1f} M weights"
    if frozen:
        text += f", of which {trained:,} are trained ({trained / (trained + frozen):.2%}) and {frozen:,} frozen"
    if encoder.base_identity is not None:
        text += f"; those under adapters are in no checkpoint: {encoder.base_identity}"
    return text


def _prompts(module: ContrastiveModule) -> dict[str, str]:
    """Describes the prompts of a module; without prompts, the unused prompts of its encoder's folder."""
    if module.prompts:
        return {"prompts": module.by_task.prompts.describe()}
    name = module.encoder.model_name_or_path if is_saved(module.encoder) else None
    if name is None or not (prompts := read_prompts(name)):
        return {}
    return {
        "prompts": f"none, though {name} names some ({prompts.describe()}): model.prompts.named takes them over"
    }


def step_facts(trainer: pl.Trainer, module: ContrastiveModule, data: TextDataModule) -> dict[str, str]:
    """Returns the facts of a step for the summary: number of negatives, batch sizes, ranks, steps, precision."""
    negatives = [
        f"{name}: {description}"
        for name, part in module.objective_parts().items()
        if (description := _negatives(part, data))
    ]
    task_suffixes = {task: f" of {task}" if data.tasks else "" for task in data.training.tasks}
    siblings = [
        f"{name}: {description}"
        for name, part in module.objective_parts().items()
        if (description := _siblings(part, data))
    ]
    rows = ", ".join(
        f"{data.training.rows_per_step(task)} rows{task_suffixes[task]}" for task in data.training.tasks
    )
    interval = vars(trainer).get("val_check_interval")
    total = trainer.estimated_stepping_batches
    peak = _peak(module.schedule, int(total)) if total < float("inf") else 1.0
    below = (
        f"; the learning rate comes to {peak:.0%} of its peak at most: a shorter warm-up?" if peak < 0.9 else ""
    )
    counts_run = vars(trainer).get("check_val_every_n_epoch") is None
    validated = (
        f"every {interval} batches of {'the run' if counts_run else 'an epoch'}, and after the last step"
        if isinstance(interval, int)
        else "by share of an epoch, or by the clock"
    )
    steps = f"{total:,.0f}" if total < float("inf") else "an unknown number of"
    is_validated = data.tables.validated and trainer.limit_val_batches != 0
    merged = trainer.accumulate_grad_batches > 1 and len(data.training.step_kinds()) > 1
    joined = any(task.pairing.joins_texts for task in data.training.tasks.values())
    types = "of which text a token is" if module.encoder.takes_types else "not read: the encoder has none"
    parts = ", each with a part of every weight" if module.is_split else ""
    turns = ", so that turns of the mixture share an optimizer step" if merged else ""
    return {
        "negatives": "\n".join(negatives) or "none",
        **({"siblings": "\n".join(siblings)} if siblings else {}),
        **({"token types": types} if joined else {}),
        "validated": f"{validated}; {describe_monitor(data)}"
        if is_validated
        else "never: the last checkpoint is kept",
        "step": (
            f"{rows} over {world_size()} process{'es' if world_size() > 1 else ''}{parts}, "
            f"accumulated over {trainer.accumulate_grad_batches}{turns}; gradient norm clipped at "
            f"{trainer.gradient_clip_val}; precision {trainer.precision}"
        ),
        "run": (
            f"{steps} steps{_bounds(trainer, total)}, seed {data.seed}, "
            f"a last, smaller batch {'left out' if data.drop_last else 'kept'}{below}"
        ),
    }


def _bounds(trainer: pl.Trainer, total: float) -> str:
    """Describes which of several limits on the run's length ends it; empty if there is only one limit."""
    epochs = f"max_epochs {trainer.max_epochs}"
    bounds = {f"max_steps {trainer.max_steps}": trainer.max_steps > 0, epochs: (trainer.max_epochs or 0) > 0}
    clocks = [
        callback for callback in vars(trainer)["callbacks"] if isinstance(callback, Timer)
    ]  # set by Lightning, but not declared
    options = [f"trainer.{name}" for name, is_given in bounds.items() if is_given]
    if total == trainer.max_steps:
        ends, later_options = options[:1], options[1:]
    else:
        ends, later_options = options[-1:], options[:-1]
    if clocks:
        return f" ({' or '.join([*ends, 'trainer.max_time'])} ends the run)"
    return f" ({ends[0]} ends the run, before {later_options[0]})" if later_options else ""


def _negatives(objective: Objective, data: TextDataModule) -> str | None:
    if objective.task is not None and objective.task not in data.training.tasks:
        return None  # scored alone
    training = data.training.of(objective.task)
    roles = [slot.role for slot in training.slots]
    examples = data.training.rows_per_step(training.name) * training.examples_per_row
    text = objective.describe_negatives(examples, roles.count("positive"), roles.count("negative"))
    counts = training.hard_negatives if text is not None and "negative" in objective.optional_roles else None
    if text is None or counts is None:
        return text
    fewest, most, mean = counts
    bound = text if text.startswith("at most ") else f"at most {text}"
    return f"{bound}; rows have {fewest} to {most} hard negatives, {mean:.3g} on average"


def _siblings(objective: Objective, data: TextDataModule) -> str | None:
    """Describes how many rows have siblings in the data and in a step, and how siblings are treated."""
    objective = objective.inner
    if not isinstance(objective, Contrastive) or objective.loss.reads_classes or objective.between == "views":
        return None
    if objective.task is not None and objective.task not in data.training.tasks:
        return None  # scored alone
    training = data.training.of(objective.task)
    step = data.training.rows_per_step(training.name)
    labeled = objective.part(PairLabels) is not None
    count, share, total = sibling_rows(training.texts, step, labeled=labeled)
    if not count:
        return None
    first = "" if total >= len(training.texts) or labeled else "the first "
    part = objective.part(Siblings)
    effect = "negatives" if not isinstance(part, Siblings) else "masked"
    if isinstance(part, Siblings) and part.effect == "positive":
        effect = f"positives too, joined by the {part.joined}"
    return (
        f"{count:,} of {first}{total:,} rows have an anchor with other positives, some {share:.1%} meet one "
        f"in a step; {effect}"
    )


def _peak(schedule: Schedule, total: int) -> float:
    """Returns the largest multiplier of the peak learning rate in a run of ``total`` steps."""
    return max((schedule.factor(step, total) for step in range(0, total, max(1, total // 1000))), default=1.0)


def _print_read(trainer: pl.Trainer, part: str) -> None:
    if trainer.is_global_zero and (data := get_datamodule(trainer)) is not None:
        for line in data.tables.describe(part):
            log_message(line)


class RunSummary(Callback):
    """Callback that prints all facts that change the result before the first step; checkpoints contain them.

    Args:
        start_description: Result of ``load_initial_weights``, if the run starts from other weights.
        recipe: Names of the shipped recipes in the configuration, if known.

    Attributes:
        saved_model: Folder of the saved model of ``start_description``; None for a checkpoint.
    """

    def __init__(self, start_description: str | None = None, recipe: str | None = None) -> None:
        self.start_description, self.recipe = start_description, recipe
        self.saved_model: str | None = None
        self.facts: dict[str, str] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collects the facts of the run, and prints them on the first rank."""
        origin = {RECIPE: self.recipe, _STARTS_FROM: self.start_description}
        self.facts = {name: fact for name, fact in origin.items() if fact}
        if isinstance(pl_module, ContrastiveModule):
            start = describe_start(pl_module, self.saved_model)
            self.facts |= {} if start is None else {"start": start}
            self.facts |= model_facts(pl_module)
            if (data := get_datamodule(trainer)) is not None:
                self.facts |= data.facts() | step_facts(trainer, pl_module, data)
        if trainer.is_global_zero:
            table = Table("", "in this run", title=TITLE, title_justify="left")
            for name, fact in self.facts.items():
                table.add_row(name, Text(fact))
            make_console().print(table)
            if trainer.precision == "32-true" and is_faster_in_bfloat16(pl_module.device):
                log_message(
                    "This device multiplies faster in bfloat16: --trainer.precision bf16-mixed would be faster"
                )

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the validation files were read, if the run only validates."""
        if trainer.state.fn != "fit":
            _print_read(trainer, "validation")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the test files were read."""
        _print_read(trainer, "test")

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the files of texts to predict were read."""
        _print_read(trainer, "predict")

    def _repr_html_(self) -> str:
        """Returns the facts of the run as an HTML table for a notebook; empty before a run begins."""
        return facts_table(TITLE, self.facts)

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns the facts of the run, which a checkpoint stores."""
        return dict(self.facts)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Restores the description of the initial weights and the recipe of a resumed run."""
        self.start_description = self.start_description or state_dict.get(_STARTS_FROM)
        self.recipe = self.recipe or state_dict.get(RECIPE)


class RunProgressBar(RichProgressBar):
    """Progress bar over the batches of an epoch, or over the batches up to ``max_steps`` if the run ends earlier.

    Differs: Lightning counts to ``max_steps`` only if ``max_epochs`` is -1, and counts too few batches in a
    resumed epoch.

    If the output is a file, training prints lines instead of a bar, with the step, the loss and the time left.

    Args:
        seconds: Number of seconds between two lines.

    Raises:
        ValueError: ``seconds`` is not above 0.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        super().__init__()
        self.seconds = above("RunProgressBar.seconds", seconds)
        self._begun = self._printed = time.monotonic()
        self._first_step = 0
        self._prints_lines = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Selects lines or a bar, by the kind of output."""
        super().setup(trainer, pl_module, stage)
        console = get_console()
        is_watched = console.is_terminal or console.is_jupyter
        self._prints_lines = stage == "fit" and self.is_enabled and not is_watched
        if self._prints_lines:
            self.disable()
            self._printed = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the bar, or the clock of the lines."""
        super().on_train_start(trainer, pl_module)
        self._begun, self._first_step = time.monotonic(), trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:
        """Updates the bar, or prints a line if it is due."""
        super().on_train_batch_end(trainer, pl_module, *rest)
        if self._is_due():
            now, total = trainer.global_step, trainer.estimated_stepping_batches
            loss = trainer.progress_bar_metrics.get("train/loss")
            parts = [f"step {now:,}{f' of {total:,.0f}' if total < math.inf else ''}"]
            parts += [] if loss is None else [f"loss {float(loss):.4g}"]
            if total < math.inf and now > self._first_step:
                left = (total - now) * (time.monotonic() - self._begun) / (now - self._first_step)
                parts.append(f"{timedelta(seconds=round(left))} left")
            log_message(", ".join(parts))

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:
        """Updates the bar, or prints a line if it is due."""
        super().on_validation_batch_end(trainer, pl_module, *rest)
        if self._is_due():
            batch, number = rest[2], rest[3] if len(rest) > 3 else 0
            counts = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
            when = "before the first step" if trainer.sanity_checking else f"at step {trainer.global_step:,}"
            log_message(f"validation {when}: batch {batch + 1:,} of {counts[number]:,.0f}")

    def _is_due(self) -> bool:
        if not self._prints_lines or time.monotonic() - self._printed < self.seconds:
            return False
        self._printed = time.monotonic()
        return True

    @property
    def total_train_batches(self) -> int | float:
        """Number of batches in the current epoch that the progress bar counts."""
        trainer = self.trainer
        if trainer.max_steps < 0:
            return trainer.num_training_batches
        loop = trainer.fit_loop.epoch_loop
        done_batches = loop.batch_progress.current.ready if loop.restarting else 0
        batches_left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
        return min(trainer.num_training_batches, done_batches + batches_left)

    def _get_train_description(self, current_epoch: int) -> str:
        return str(super()._get_train_description(current_epoch)).replace("/-2", "  ")  # max_epochs is -1


_COSINE, _NONE = "cosine", "none"


def describe_start(module: ContrastiveModule, before: str | None = None) -> str | None:
    """Describes the parts of an embedding model that a run reuses, and the parts that it replaces.

    Args:
        module: Module of the run.
        before: Saved model with the module's initial weights. None for the model that its encoder names.

    Returns:
        A line for each kind of part; None for a start from a plain encoder.
    """
    encoder = module.encoder
    name = before or (encoder.model_name_or_path if is_saved(encoder) else None)
    if before is None and isinstance(encoder, StaticEncoder) and name and static_folder(name) is None:
        return None  # only the table was computed from a transformer
    place = None if name is None else find_model_folder(name)
    start = None if place is None else read_folder_parts(place)
    if start is None:
        return None
    part_pairs = _part_pairs(start, module)
    lines = {
        "taken from it": [
            folder_part for folder_part, run_part in part_pairs if folder_part == run_part != _NONE
        ],
        "replaced": [
            f"{folder_part} by {run_part}" for folder_part, run_part in part_pairs if folder_part != run_part
        ],
    }
    length = encoder.max_length
    if length is not None and length != module.length_in_use:
        lines["in training alone"] = [f"texts are cut at {length} tokens"]
    descriptions = [f"{title}: {', '.join(parts)}" for title, parts in lines.items() if parts]
    return "\n".join([f"{name}, an embedding model", *descriptions])


def _part_pairs(start: FolderParts, module: ContrastiveModule) -> list[tuple[str, str]]:
    """Returns pairs of texts: each part of a model folder, and the part of the run that reuses or replaces it."""
    stack = describe_stack(start.layers, start.normalize, start.truncate_dim)
    in_use = module.inference_embedder.pooler
    poolers = dict.fromkeys(map(pooler_name, (module.pooler, in_use)))
    limit = start.inference.get("max_length")
    lengths = [] if limit is None else [(f"{limit} tokens", f"{module.length_in_use} tokens")]
    return [
        (pooler_name(start.pooler), " in training, in use ".join(poolers)),
        (_words(stack), _NONE if module.head is None else _head_words(module.head)),
        (_prompt_words(start.prompts), _prompt_words(module.by_task.prompts)),
        (
            str(start.inference.get("similarity_fn_name", _COSINE)),
            module.inference.similarity_fn_name,
        ),
        *lengths,
    ]


def _prompt_words(prompts: Prompts) -> str:
    return f"prompts {prompts.describe()}" if prompts.named else _NONE


def _head_words(head: Head) -> str:
    return _words(head.stack) if isinstance(head, StackHead) else describe(head)


def _words(stack: Sequence[dict[str, Any]]) -> str:  # Any: arguments of each layer
    """Returns the layers of a network as text, such as ``Linear(768) Tanh UnitLength``."""
    widths = [f"({layer['out_features']})" if "out_features" in layer else "" for layer in stack]
    return " ".join(f"{layer['name']}{width}" for layer, width in zip(stack, widths, strict=True)) or _NONE
