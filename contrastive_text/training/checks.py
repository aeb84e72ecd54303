"""What is refused when a module is made: parts that make no sense together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import describe
from contrastive_text.encoders import Encoder
from contrastive_text.heads import Head
from contrastive_text.objectives import Objective
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import EmbeddingView, FixedDropout, GradientView, TokenView, View, ViewPlan
from contrastive_text.views.plan import role_of

_LOGGED = ("loss", "truncated", "gradient", "weight")
"""Names of the training log that are no objective's."""


def check_names(objectives: Iterable[str]) -> None:
    """Checks that the log and the module can hold the names of objectives.

    Raises:
        ValueError: The first name that they can't.
    """
    for name in objectives:
        if name in _LOGGED or "." in name or not name:
            raise InvalidValueError(
                f"model.objectives.{name}: expected a name without a dot, other than those in the log already "
                f"({', '.join(_LOGGED)}), got {name!r}; call it something else"
            )


def check_numbers(chunk_tokens: int | None, log_gradients: int = 0) -> None:
    """Checks the numbers among a module's options.

    Raises:
        ValueError: One out of its range.
    """
    if chunk_tokens is not None and chunk_tokens < 1:
        raise InvalidValueError(
            f"model.chunk_tokens: expected a number of tokens above 0, or null for no bound, got {chunk_tokens}"
        )
    if log_gradients < 0:
        raise InvalidValueError(
            f"model.log_gradients: expected 0 or more batches, got {log_gradients}; 0 is never"
        )


def _check_head_and_weights(
    head: Head | None, weights: Mapping[str, float], objectives: Mapping[str, Objective]
) -> None:
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


def check_inference(inference: Mapping[str, object] | None) -> None:
    """Checks the arguments that the saved model gets unchanged.

    Args:
        inference: Name -> value; None for none.

    Raises:
        ValueError: An unknown name, or a length below 3.
    """
    for name, value in (inference or {}).items():
        known = ("max_length", "query_length", "document_length", "similarity_fn_name")
        if name not in known:
            raise InvalidValueError(
                f"model.inference.{name}: expected one of {', '.join(known)}, got {name}; drop it"
            )
        if name == "max_length" and not (type(value) is int and value >= 3):
            raise InvalidValueError(
                f"model.inference.max_length: expected 3 tokens or more, got {value!r}; give a longer length"
            )


def check_parts(encoder: Encoder, head: Head | None, weights: Mapping[str, float], by_task: TaskParts) -> None:
    """Checks that parts go together: a head that is kept, views with a place, objectives with something to read.

    Raises:
        ValueError: The first one that doesn't, with its place in the configuration.
    """
    objectives = by_task.objectives(None)
    _check_head_and_weights(head, weights, objectives)
    others = {name: part for name, part in objectives.items() if part.task not in by_task.own_plans}
    for task in dict.fromkeys(part.task for part in others.values()) or [None]:
        of_task = {name: part for name, part in others.items() if part.task in (None, task)}
        _check_plan("model.", encoder, by_task.common, of_task)
    for task, plan in by_task.own_plans.items():
        own = {name: part for name, part in objectives.items() if part.task == task}
        _check_plan(f"model.views.{task}: ", encoder, plan, own)


def _check_plan(where: str, encoder: Encoder, plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    for place, view in plan.views_with_places():
        _check_effect(f"{where}{place}", view, encoder)
        if isinstance(view, GradientView):
            _check_gradient(f"{where}{place}", view, plan, list(objectives))
    _check_original(plan, objectives)
    _check_tokens_read(plan, objectives)
    hides = any(isinstance(view, TokenView) and view.sets_labels for _, view in plan.views_with_places())
    for name, objective in objectives.items():
        if objective.needs_token_logits and not hides:
            raise InvalidValueError(
                f"model.objectives.{name}: expected a view that hides tokens for {type(objective).__name__}, got "
                "none; put MaskTokens on anchor or original under model.views"
            )


def _check_tokens_read(plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Checks that no view hides tokens of a role whose tokens an objective reads."""
    for name, objective in objectives.items():
        hidden = [
            chain for chain in plan.chains if role_of(chain) in objective.reads_tokens and plan.hides(chain)
        ]
        if hidden:
            raise InvalidValueError(
                f"model.views.{hidden[0]}: expected no hidden tokens where {name} "
                f"({type(objective).__name__}) reads them, got a view that hides some; hide them on another role"
            )


def _check_original(plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Checks that something reads the copy that takes part in no comparison, where it has a chain."""
    chain = plan.chains.get("original", ())
    hides = any(isinstance(view, TokenView) and view.sets_labels for view in chain)
    parts = objectives.values()
    predicted = hides and any(part.needs_token_logits for part in parts)
    read = any("original" in (*part.reads, *part.takes, *part.reads_tokens) for part in parts)
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
