"""``TaskParts``, which assigns objectives and views to data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from torch import Tensor

from contrastive_text.core.batch import StepKind
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import quantized_values
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Template
from contrastive_text.data import TextTokenizer
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tasks import SINGLE_TASK, DataNeeds, TaskNeeds, option_place
from contrastive_text.encoders.base import Embedder
from contrastive_text.heads import Head, build_head, share_layers
from contrastive_text.objectives import Contrastive, Matryoshka, NegativesAsHard, Objective, PairLabels, Quantized
from contrastive_text.poolers import Pooler
from contrastive_text.training.guides import Guide, check_guides_read
from contrastive_text.views import View, ViewPlan

Chains: TypeAlias = Mapping[str, Sequence[View]]
Views: TypeAlias = Mapping[str, Sequence[View] | Chains]


def _change_vectors(vectors: Tensor, width: int | None, binary: bool) -> Tensor:
    """Returns the first features of vectors, all for None, or the values -1 and 1 of their bits."""
    features = vectors[:, :width]
    return quantized_values(features) if binary else features


class TaskParts:
    """Objectives, views, prompts and guides of each data set. A task is a name, or None for the only data set.

    Args:
        objectives: Name -> objective.
        views: Role or slot -> chain, for tasks without their own views; task -> such a dictionary.
        prompts: Prompts of the module.
        guides: Name -> guide, whose vectors the objectives read.

    Raises:
        ValueError: No objective reads a guide, or an objective reads an unknown guide.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        views: Views,
        prompts: Prompts = NO_PROMPTS,
        guides: Mapping[str, Guide] = MappingProxyType({}),
    ) -> None:
        self._objectives = dict(objectives)
        self.common = ViewPlan({name: chain for name, chain in views.items() if not isinstance(chain, Mapping)})
        self.task_plans = {
            task: ViewPlan(chains) for task, chains in views.items() if isinstance(chains, Mapping)
        }
        self.prompts = prompts.with_training_defaults()
        self._checks_prompts = prompts.default is None  # an embedding model names prompts that no text reads
        self.guides = dict(guides)
        self._features, self._is_sparse = 0, False
        check_guides_read(self.guides, self._objectives)

    @property
    def views(self) -> Views:
        """Views of all tasks, in the form of the module's argument ``views``."""
        return {**self.common.chains, **{task: plan.chains for task, plan in self.task_plans.items()}}

    def build(self, embedder: Embedder, head: Head | None) -> None:
        """Builds the parts of a module that depend on the encoder: new tokens, token head, heads and networks."""
        encoder = embedder.encoder
        encoder.add_tokens(self.new_tokens)
        poolers = [part for part in (embedder.pooler, *encoder.modules()) if isinstance(part, Pooler)]
        if any(pooler.reads_last_token for pooler in poolers) and not self._templates_end_rows():
            encoder.end_rows()
        predicts_tokens = any(objective.needs_token_logits for objective in self._objectives.values())
        if predicts_tokens or embedder.pooler.reads_token_logits:
            encoder.build_token_head()
        self._features = features = build_head(head, embedder.width)
        self._is_sparse = embedder.is_sparse
        for objective in self._objectives.values():
            objective.build(features)
        share_layers(self.heads)
        if fine_tuning := [part for part in self.heads if part.uses_pretrained_pooler]:
            pooler = (
                encoder.pretrained_pooler() if head is None else None
            )  # it was trained on the encoder's output
            for part in fine_tuning:
                part.set_pooler(pooler)
        self.build_networks(embedder)

    def build_networks(self, embedder: Embedder) -> None:
        """Builds the objectives' own networks from the encoder's weights, again after new weights are loaded."""
        for name, objective in self._objectives.items():
            if objective.head_of is not None:
                objective.set_head(self._head(objective.head_of, f"model.objectives.{name}.head_of"))
            objective.build_networks(embedder)

    def _templates_end_rows(self) -> bool:
        """Returns whether prompts or views add text after a text, which a last-token pooler then reads."""
        plans = (self.common, *self.task_plans.values())
        around = [plan.combined_template(name) for plan in plans for name in plan.chains]
        around += [Template.parse(text, f"prompts.{name}") for name, text in self.prompts.named.items()]
        return any(template.after for template in around)

    def _head(self, name: str, place: str) -> Head:
        heads = {owner: part.head for owner, part in self._objectives.items()}
        if (head := heads.get(name)) is None:
            names = (
                ", ".join(owner for owner, part_head in heads.items() if part_head is not None) or "there is none"
            )
            raise InvalidValueError(
                f"{place}: expected an objective with a head ({names}), got {name}; name another objective, or "
                f"remove head_of"
            )
        return head

    @property
    def variants(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Suffix of a score -> function to the vectors that it compares: features, first features, or bits."""
        saved = self.truncate_dim or self._features
        widths = {width for part in self._matryoshkas for width in part.widths if width < saved}
        # The pooler in use may give more features than the pooler of training, so "" has no width.
        suffixes = {"": None, **{f"@{width}": width for width in sorted(widths, reverse=True)}}
        return {
            f"{suffix}{end}": partial(_change_vectors, width=width, binary=bool(end))
            for end in ("", "@binary")[: 1 + ("binary" in self.precisions)]
            for suffix, width in suffixes.items()
        }

    @property
    def precisions(self) -> list[str]:
        """Precisions that ``Quantized`` objectives train."""
        quantized = [part for part in self._objectives.values() if isinstance(part, Quantized)]
        return sorted({precision for part in quantized for precision in part.precisions})

    @property
    def truncate_dim(self) -> int | None:
        """Number of trained features of a vector, which are saved; None if all features are trained."""
        vector_objectives = [part for part in self._objectives.values() if not part.needs_token_logits]
        widest = max((part.widths[0] for part in self._matryoshkas), default=self._features)
        return widest if len(vector_objectives) == len(self._matryoshkas) and widest < self._features else None

    @property
    def _matryoshkas(self) -> list[Matryoshka]:
        parts = [part.objective if isinstance(part, Quantized) else part for part in self._objectives.values()]
        return [part for part in parts if isinstance(part, Matryoshka)]

    @property
    def heads(self) -> list[Head]:
        """Heads of the objectives of all tasks."""
        parts = [part for objective in self._objectives.values() for part in objective.modules()]
        return [part for part in parts if isinstance(part, Head)]

    def objectives(self, task: str | None) -> dict[str, Objective]:
        """Returns name -> objective of the objectives that read a task."""
        return {name: part for name, part in self._objectives.items() if task in (None, part.task or task)}

    def select_objectives(self, names: Sequence[str]) -> dict[str, Objective]:
        """Returns name -> objective of the objectives with the given names."""
        return {name: self._objectives[name] for name in names}

    def plan(self, task: str | None) -> ViewPlan:
        """Returns the view plan of a task."""
        return self.common if task is None else self.task_plans.get(task, self.common)

    def data_needs(
        self,
        tasks: Sequence[str],
        tokenizer: TextTokenizer | None,
        inference_tokenizer: TextTokenizer | None,
        vocabulary_size: int,
    ) -> DataNeeds:
        """Returns the requirements of the views and objectives on the rows of each task.

        Args:
            tasks: Names of the data sets; empty for a single data set without a name (``train``).
            tokenizer: Tokenizer of training.
            inference_tokenizer: Tokenizer of inference.
            vocabulary_size: Number of tokens of the encoder.

        Raises:
            ValueError: A part names an unknown task, or objectives of a task read labels in different ways.
        """
        self._check(tasks)
        return DataNeeds(
            tasks={task: self._needs(task) for task in tasks} or {SINGLE_TASK: self._needs(None)},
            tokenizer=tokenizer,
            inference_tokenizer=inference_tokenizer,
            vocabulary_size=vocabulary_size,
            new_tokens=self.new_tokens,
            prompts=self.prompts,
        )

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Makes the contrastive objectives of tasks use pairs labeled 0 as hard negatives (``NegativesAsHard``).

        Raises:
            ValueError: A task has no contrastive objective, or its options exclude ``NegativesAsHard``.
        """
        for task in tasks:
            place = option_place(task or SINGLE_TASK)
            parts = self.objectives(task).values()
            contrastive = [
                objective for part in parts for objective in part.modules() if isinstance(objective, Contrastive)
            ]
            if not contrastive:
                got = ", ".join(type(part).__name__ for part in parts)
                raise InvalidValueError(
                    f"{place}.pair_labels: expected a Contrastive objective for hard, got {got}; set positives, "
                    "or add the objective"
                )
            for objective in contrastive:
                if objective.part(PairLabels) is None:
                    objective.add_column_part(NegativesAsHard())

    def _needs(self, task: str | None) -> TaskNeeds:
        parts = self.objectives(task).values()
        roles = [role for part in parts for role in part.required_roles]
        roles += [
            role for part in parts for role in part.token_roles if role == "original"
        ]  # every row has an original
        return TaskNeeds(
            objectives=tuple(self.objectives(task)),
            plan=self.plan(task),
            roles=tuple(dict.fromkeys(roles)),
            target=self._target(task),
            predicts=any(part.predicts for part in parts),
            needs_two_texts=next((part.needs_two_texts for part in parts if part.needs_two_texts), None),
            held_out_objectives=tuple(
                name
                for name, part in self.objectives(task).items()
                if not part.needs_token_logits and not part.token_roles
            ),
            texts=any(self.guides[name].needs_texts for part in parts for name in part.guides),
            check_examples=partial(_check_examples, parts, self._features if self._is_sparse else None),
            scores=any(part.reads_scores for part in parts),
        )

    def _target(self, task: str | None) -> Target | None:
        all_targets = {name: part.target for name, part in self.objectives(task).items()}
        targets = {name: target for name, target in all_targets.items() if target is not None}
        first = next(iter(targets.values()), None)
        if (
            all_read := [
                target_choice
                for target_choice in targets.values()
                if all(map(target_choice.is_compatible_with, targets.values()))
            ]
        ) or not first:
            return next(iter(all_read), None)
        name, other = next((name, target) for name, target in targets.items() if target != first)
        raise InvalidValueError(
            f"objectives.{name}: expected the same labels as {next(iter(targets))} reads ({first}), got {other}; "
            "give both the same classes or bounds"
        )

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """Tokens that the views of all tasks need in the vocabulary."""
        plans = (self.common, *self.task_plans.values())
        return tuple(dict.fromkeys(token for plan in plans for token in plan.new_tokens))

    def _check(self, tasks: Sequence[str]) -> None:
        if self._checks_prompts:
            self.prompts.check_names(tasks)
        names = ", ".join(tasks) or "none: the data are one set without a name"
        for name, objective in self._objectives.items():
            place = f"model.objectives.{name}.task"
            if objective.task is None and len(tasks) > 1:
                raise InvalidValueError(
                    f"{place}: expected the data set that {name} reads ({names}), got null; name a data set"
                )
            if objective.task is not None and objective.task not in tasks:
                raise InvalidValueError(f"{place}: expected one of the data sets ({names}), got {objective.task}")
        for task in self.task_plans:
            if task not in tasks:
                place = f"model.views.{task}"
                raise InvalidValueError(
                    f"{place}: expected a role, or one of the data sets ({names}), got {task}"
                )
        for task in tasks:
            if not self.objectives(task):
                raise InvalidValueError(
                    f"data.tasks.{task}: expected an objective that reads {task}, got no such objective; add one "
                    "with this task, or remove the data set"
                )

    def skips_objectives(self, kinds: Sequence[StepKind]) -> bool:
        """Returns whether an objective is absent from a kind of training step."""
        return any(len(self._running(kind)) < len(self._objectives) for kind in kinds)

    def _running(self, kind: StepKind) -> list[str]:
        names = [name for task in kind.tasks for name in self.objectives(task)]
        return [name for name in names if kind.objectives is None or name in kind.objectives]


MOST_WEIGHTS = 2**31
"""Largest number of weights of tokens in the sparse vectors of a step: 8 GiB in float32."""


def _check_examples(
    objectives: Iterable[Objective], vocabulary: int | None, examples: int, negatives: int
) -> None:
    """Checks that each objective has something to compare in a step with these numbers of examples.

    Args:
        objectives: The objectives.
        vocabulary: Number of features of sparse vectors; None for dense vectors.
        examples: Number of examples of a step, over all ranks.
        negatives: Number of hard negatives of each example.

    Raises:
        ValueError: An objective has nothing to compare, or sparse vectors need too much memory.
    """
    texts = examples * (2 + negatives)
    if vocabulary is not None and texts * vocabulary > MOST_WEIGHTS:
        raise InvalidValueError(
            f"data.batch_size: expected at most {MOST_WEIGHTS // vocabulary:,} texts in a step of a model with "
            f"{vocabulary:,} tokens, because SpladePooler gives a weight for each, got {texts:,}; lower "
            "data.batch_size, or use an encoder with a smaller vocabulary"
        )
    for objective in objectives:
        objective.check_examples(examples, negatives)
