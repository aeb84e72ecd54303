"""Which parts go together: combinations without sense are refused when the module is built."""

from __future__ import annotations

from collections.abc import Mapping

from contrastive_text.encoders import Encoder
from contrastive_text.objectives import Objective
from contrastive_text.specs import describe
from contrastive_text.views import EmbeddingView, FixedDropout, GradientView, TokenView, View, ViewPlan


def check_parts(encoder: Encoder, plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Refuses views that would have no effect or no place, and objectives that would have nothing to read.

    Raises:
        ValueError: The first such part, with its place in the configuration.
    """
    for place, view in plan.each():
        _check_effect(f"model.{place}", view, encoder)
        if isinstance(view, GradientView):
            _check_gradient(f"model.{place}", view, plan, list(objectives))
    _check_original(plan, objectives)
    hides = any(isinstance(view, TokenView) and view.sets_labels for _, view in plan.each())
    for name, objective in objectives.items():
        if objective.needs_token_logits and not hides:
            raise ValueError(
                f"model.objectives.{name}: expected a view that hides tokens for {type(objective).__name__}, got "
                "none; put MaskTokens on anchor or original under model.views"
            )


def _check_original(plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Refuses a chain on the copy that takes part in no comparison, where nothing reads it."""
    chain = plan.chains.get("original", ())
    hides = any(isinstance(view, TokenView) and view.sets_labels for view in chain)
    parts = objectives.values()
    predicted = hides and any(part.needs_token_logits for part in parts)
    read = any("original" in part.reads or not (part.reads or part.needs_token_logits) for part in parts)
    if chain and not predicted and not read:
        raise ValueError(
            f"model.views.original: expected an objective that reads the original, got {', '.join(objectives)}; "
            "put MaskTokens there with MaskedLM among the objectives, or drop the chain"
        )


def _check_effect(place: str, view: View, encoder: Encoder) -> None:
    name = type(view).__name__
    if isinstance(view, EmbeddingView | GradientView) and not encoder.takes_embedding_views:
        raise ValueError(
            f"{place}: expected an architecture with an embedding module for {name}, got {describe(encoder)}; "
            "use token or text views with it"
        )
    if isinstance(view, TokenView) and view.sets_positions and not encoder.heeds_positions():
        raise ValueError(
            f"{place}: expected an architecture that reads positions for {name}, got {describe(encoder)}, which "
            "ignores them; use ReorderSpans, or another encoder"
        )
    if isinstance(view, FixedDropout) and not any(encoder.dropout_in_effect.values()):
        raise ValueError(
            f"{place}: expected an encoder with dropout for {name}, got {describe(encoder)} without; drop the "
            "view, or set encoder.dropout"
        )


def _check_gradient(place: str, view: GradientView, plan: ViewPlan, objectives: list[str]) -> None:
    views = plan.gradient_views.values()
    if len({each.same_dropout for each in views}) > 1:
        raise ValueError(
            f"{place}.same_dropout: expected the same for all gradient views, which share their first pass, got "
            "both; set one of them"
        )
    choices = {*objectives, *([None] if len(objectives) == 1 else [])}
    if len({each.objective for each in views}) > 1 or view.objective not in choices:
        raise ValueError(
            f"{place}.objective: expected one of the objectives {', '.join(objectives)}, the same for all "
            f"gradient views, got {view.objective}; name the one that {type(view).__name__} follows"
        )
