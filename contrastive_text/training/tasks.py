"""Which objectives and views belong to which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Role, StepKind
from contrastive_text.objectives import Objective
from contrastive_text.views import View, ViewPlan

Chains: TypeAlias = Mapping[str, Sequence[View]]
Views: TypeAlias = Mapping[str, Sequence[View] | Chains]


class TaskParts:
    """Which objectives and views belong to which data set; a task is a name, or None for the only one.

    Args:
        objectives: By name.
        views: Role or slot -> chain, for the tasks that have none of their own; task -> such a dictionary.
    """

    def __init__(self, objectives: Mapping[str, Objective], views: Views) -> None:
        self._objectives = dict(objectives)
        self.common = ViewPlan({name: chain for name, chain in views.items() if not isinstance(chain, Mapping)})
        self.own_plans = {task: ViewPlan(chains) for task, chains in views.items() if isinstance(chains, Mapping)}

    @property
    def views(self) -> Views:
        """The views as they were given."""
        return {**self.common.chains, **{task: plan.chains for task, plan in self.own_plans.items()}}

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
        """Checks that objectives, views and turns are of tasks and objectives that there are.

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
