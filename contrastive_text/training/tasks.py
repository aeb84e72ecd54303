"""Which parts go together: combinations without sense are refused when the module is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import describe
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Role, StepKind
from contrastive_text.encoders import Encoder
from contrastive_text.heads import Head
from contrastive_text.objectives import Objective
from contrastive_text.poolers import CLSPooler, FirstLastPooler, LastTwoPooler, MeanPooler, Pooler
from contrastive_text.views import EmbeddingView, FixedDropout, GradientView, TokenView, View, ViewPlan

Chains = dict[str, Sequence[View]]
_LOGGED = ("loss", "truncated", "gradient", "weight")
"""Names of the training log that are no objective's."""


def split_views(
    views: Mapping[str, Sequence[View] | Mapping[str, Sequence[View]]],
) -> tuple[Chains, dict[str, Chains]]:
    """Splits a configuration's views into the chains of all tasks and those of single tasks."""
    common: Chains = {}
    by_task: dict[str, Chains] = {}
    for name, chain in views.items():
        if isinstance(chain, Mapping):
            by_task[name] = dict(chain)
        else:
            common[name] = chain
    return common, by_task


def check_names(objectives: Iterable[str]) -> None:
    """Refuses names of objectives that the log or the module can't hold (ValueError)."""
    for name in objectives:
        if name in _LOGGED or "." in name or not name:
            raise InvalidValueError(
                f"model.objectives.{name}: expected a name without a dot, other than those in the log already "
                f"({', '.join(_LOGGED)}), got {name!r}; call it something else"
            )


def check_heads_and_weights(
    head: Head | None, objectives: Mapping[str, Objective], weights: Mapping[str, float]
) -> None:
    """Refuses a head that inference doesn't keep, and weights of no objective.

    Raises:
        ValueError: The first such part, with its place in the configuration.
    """
    if head is not None and head.train_only:
        raise InvalidValueError(
            f"model.head: expected a head with train_only: false, got {type(head).__name__} with true; "
            "a head that only training sees belongs to its objective: set head there"
        )
    if not any(weights.values()):
        raise InvalidValueError("model.weights: expected one above 0 or more, got none: nothing would be trained")
    for name, weight in weights.items():
        if name not in objectives or weight < 0:
            raise InvalidValueError(
                f"model.weights.{name}: expected a weight of 0 or more for one of the objectives "
                f"{', '.join(objectives)}, got {name}: {weight}"
            )


def check_parts(
    encoder: Encoder, common: ViewPlan, by_task: Mapping[str, ViewPlan], objectives: Mapping[str, Objective]
) -> None:
    """Refuses views that would have no effect or no place, and objectives that would have nothing to read.

    Args:
        encoder: The encoder.
        common: The views of the tasks that have none of their own.
        by_task: Task -> its own views.
        objectives: By name.

    Raises:
        ValueError: The first such part, with its place in the configuration.
    """
    others = {name: part for name, part in objectives.items() if part.task not in by_task}
    for task in dict.fromkeys(part.task for part in others.values()) or [None]:
        of_task = {name: part for name, part in others.items() if part.task in (None, task)}
        _check_plan("model.", encoder, common, of_task)
    for task, plan in by_task.items():
        own = {name: part for name, part in objectives.items() if part.task == task}
        _check_plan(f"model.views.{task}: ", encoder, plan, own)


def causal_warning(encoder: Encoder, poolers: Iterable[Pooler]) -> str | None:
    """Returns what to say of poolers that take tokens which have seen little of their text; None if nothing."""
    named = {type(pooler).__name__: _CAUSAL[type(pooler)] for pooler in poolers if type(pooler) in _CAUSAL}
    if not named or not encoder.is_causal():
        return None
    said = "; ".join(f"{name} takes {taken}" for name, taken in named.items())
    return (
        f"model.pooler: in {describe(encoder)} a token sees none behind it, and {said}. Only the last token has "
        "seen the whole text: docs/extend.md has a pooler that takes it"
    )


_FEW = "the mean over tokens, of which the early ones have seen little of the text"
_CAUSAL: Mapping[type[Pooler], str] = {
    CLSPooler: "the first token, which has seen itself alone: texts that begin alike have one vector",
    MeanPooler: _FEW,
    LastTwoPooler: _FEW,
    FirstLastPooler: _FEW,
}
"""What poolers take that are made for tokens which all see each other."""


def _check_plan(where: str, encoder: Encoder, plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    for place, view in plan.views_with_places():
        _check_effect(f"{where}{place}", view, encoder)
        if isinstance(view, GradientView):
            _check_gradient(f"{where}{place}", view, plan, list(objectives))
    _check_original(plan, objectives)
    hides = any(isinstance(view, TokenView) and view.sets_labels for _, view in plan.views_with_places())
    for name, objective in objectives.items():
        if objective.needs_token_logits and not hides:
            raise InvalidValueError(
                f"model.objectives.{name}: expected a view that hides tokens for {type(objective).__name__}, got "
                "none; put MaskTokens on anchor or original under model.views"
            )


def _check_original(plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Refuses a chain on the copy that takes part in no comparison, where nothing reads it."""
    chain = plan.chains.get("original", ())
    hides = any(isinstance(view, TokenView) and view.sets_labels for view in chain)
    parts = objectives.values()
    predicted = hides and any(part.needs_token_logits for part in parts)
    read = any("original" in part.reads or "original" in part.takes for part in parts)
    if chain and not predicted and not read:
        raise InvalidValueError(
            f"model.views.original: expected an objective that reads the original, got {', '.join(objectives)}; "
            "put MaskTokens there with MaskedLM among the objectives, or drop the chain"
        )


def _check_effect(place: str, view: View, encoder: Encoder) -> None:
    name = type(view).__name__
    if isinstance(view, EmbeddingView | GradientView) and not encoder.takes_embedding_views:
        raise InvalidValueError(
            f"{place}: expected an architecture with an embedding module for {name}, got {describe(encoder)}; "
            "use token or text views with it"
        )
    if isinstance(view, TokenView) and view.sets_positions and not encoder.heeds_positions():
        raise InvalidValueError(
            f"{place}: expected an architecture that reads positions for {name}, got {describe(encoder)}, which "
            "ignores them; use ReorderSpans, or another encoder"
        )
    if isinstance(view, FixedDropout) and not any(encoder.dropout_in_effect.values()):
        raise InvalidValueError(
            f"{place}: expected an encoder with dropout for {name}, got {describe(encoder)} without; drop the "
            "view, or set encoder.dropout"
        )


def _check_gradient(place: str, view: GradientView, plan: ViewPlan, objectives: list[str]) -> None:
    views = plan.gradient_views
    if len({each.same_dropout for each in views}) > 1:
        raise InvalidValueError(
            f"{place}.same_dropout: expected the same for all gradient views, which share their first pass, got "
            "both; set one of them"
        )
    choices = {*objectives, *([None] if len(objectives) == 1 else [])}
    if len({each.objective for each in views}) > 1 or view.objective not in choices:
        raise InvalidValueError(
            f"{place}.objective: expected one of the objectives {', '.join(objectives)}, the same for all "
            f"gradient views, got {view.objective}; name the one that {type(view).__name__} follows"
        )


class TaskParts:
    """Which objectives and views belong to which data set; a task is a name, or None for the only one.

    Args:
        objectives: By name.
        common: The views of tasks that have none of their own.
        own_plans: Task -> its own views.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], common: ViewPlan, own_plans: Mapping[str, ViewPlan]
    ) -> None:
        self._objectives = dict(objectives)
        self.common = common
        self.own_plans = dict(own_plans)

    def objectives(self, task: str | None) -> dict[str, Objective]:
        """Returns the objectives of a task by name."""
        return {name: part for name, part in self._objectives.items() if task in (None, part.task or task)}

    def plan(self, task: str | None) -> ViewPlan:
        """Returns the views of a task."""
        return self.common if task is None else self.own_plans.get(task, self.common)

    def reads(self, task: str | None) -> tuple[Role, ...]:
        """Returns the roles that the objectives of a task read."""
        return tuple(dict.fromkeys(role for part in self.objectives(task).values() for role in part.reads))

    def target(self, task: str | None) -> Target | None:
        """Returns what the objectives of a task read of its labels.

        Raises:
            ValueError: They read them in different ways.
        """
        each = {name: part.target for name, part in self.objectives(task).items()}
        targets = {name: target for name, target in each.items() if target is not None}
        first = next(iter(targets.values()), None)
        for name, target in targets.items():
            if target != first:
                raise InvalidValueError(
                    f"objectives.{name}: expected the same labels as {next(iter(targets))} reads ({first}), got "
                    f"{target}; give both the same classes or bounds"
                )
        return first

    def predicts(self, task: str | None) -> bool:
        """Whether an objective of a task predicts its labels."""
        return any(objective.predicts for objective in self.objectives(task).values())

    def predicts_pairs(self, task: str | None) -> bool:
        """Whether an objective of a task predicts something of two texts."""
        return any(part.predicts and "positive" in part.reads for part in self.objectives(task).values())

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """The tokens that the views of all tasks need in the vocabulary."""
        plans = (self.common, *self.own_plans.values())
        return tuple(dict.fromkeys(token for plan in plans for token in plan.new_tokens))

    def check(self, tasks: Sequence[str], kinds: Sequence[StepKind] = ()) -> None:
        """Refuses objectives, views and turns of other tasks and objectives than there are.

        Args:
            tasks: The tasks of the data; empty where there is one without a name.
            kinds: The kinds of steps of the run, once they are known.

        Raises:
            ValueError: The first such part, with its place in the configuration.
        """
        there = ", ".join(tasks) or "none: the data are one set without a name"
        for name, objective in self._objectives.items():
            place = f"model.objectives.{name}.task"
            if objective.task is None and len(tasks) > 1:
                raise InvalidValueError(
                    f"{place}: expected the data set that it reads ({there}), got none; name one"
                )
            if objective.task is not None and objective.task not in tasks:
                raise InvalidValueError(f"{place}: expected one of the data sets ({there}), got {objective.task}")
        for task in self.own_plans:
            if task not in tasks:
                place = f"model.views.{task}"
                raise InvalidValueError(
                    f"{place}: expected a role, or one of the data sets ({there}), got {task}"
                )
        for task in tasks:
            if not self.objectives(task):
                raise InvalidValueError(
                    f"data.tasks.{task}: expected an objective that reads it, got none; add one with its task, "
                    "or drop the data set"
                )
        self._check_turns([name for kind in kinds for name in kind.objectives or ()])

    def _check_turns(self, named: Sequence[str]) -> None:
        place, there = "data.mixture.turns", ", ".join(self._objectives)
        if unknown := [name for name in named if name not in self._objectives]:
            raise InvalidValueError(f"{place}: expected objectives ({there}), got {unknown[0]}; name one of them")
        if named and (idle := [name for name in self._objectives if name not in named]):
            raise InvalidValueError(
                f"{place}: expected every objective in a turn, got none for {idle[0]}; add it"
            )

    def leaves_out(self, kinds: Sequence[StepKind]) -> bool:
        """Whether some of the steps run without some of the objectives."""
        return any(len(self._running(kind)) < len(self._objectives) for kind in kinds)

    def _running(self, kind: StepKind) -> list[str]:
        of_tasks = [name for task in kind.tasks for name in self.objectives(task)]
        return [name for name in of_tasks if kind.objectives is None or name in kind.objectives]
