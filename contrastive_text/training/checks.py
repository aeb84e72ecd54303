"""Checks of parts when a module is built, and of trainer and data when a run starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import generator
from contrastive_text.data import TextDataModule
from contrastive_text.data.collator import example_slots
from contrastive_text.data.datamodule import check_own_batches
from contrastive_text.data.tasks import SINGLE_TASK, option_place
from contrastive_text.encoders import AsymmetricEncoder, Encoder, TransformerEncoder
from contrastive_text.encoders.asymmetric import QUERY_ROLES
from contrastive_text.encoders.base import Embedder, check_template_bias
from contrastive_text.heads import Head
from contrastive_text.objectives import Objective
from contrastive_text.objectives.flops import FLOPS
from contrastive_text.objectives.variants import Variants
from contrastive_text.pairings import SameText
from contrastive_text.poolers import (
    CLSPooler,
    FirstLastPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MeanPooler,
    Pooler,
    pools_tokens,
)
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training.fsdp2 import FSDP2Strategy
from contrastive_text.training.optim import Combine, PCGrad
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import EmbeddingView, FixedDropout, GradientView, TextView, TokenView, View, ViewPlan
from contrastive_text.views.plan import role_of

_LOGGED = ("loss", "truncated", "gradient", "weight")
"""Metric names in the training log that an objective must not have as its name."""


def check_names(objectives: Iterable[str]) -> None:
    """Checks that names of objectives are valid in the log and in the module.

    Raises:
        ValueError: A name is empty, has a dot, or is in the log already.
    """
    for name in objectives:
        if name in _LOGGED or "." in name or not name:
            raise InvalidValueError(
                f"model.objectives.{name}: expected a name without a dot that the log doesn't use "
                f"({', '.join(_LOGGED)}), got {name!r}; choose another name"
            )


def _refuse(*rows: tuple[object, str]) -> None:
    """Raises a ValueError with the message of the first pair (condition, message) whose condition is true."""
    for is_refused, message in rows:
        if is_refused:
            raise InvalidValueError(message)


def check_parts(
    encoder: Encoder,
    poolers: Sequence[Pooler],
    head: Head | None,
    weights: Mapping[str, float],
    objectives: Mapping[str, Objective],
    by_task: TaskParts,
) -> None:
    """Checks that the parts of a module are compatible: head, weights of objectives, and views.

    Raises:
        ValueError: A part is incompatible. The message names the first such part in the configuration.
    """
    roles = {role for part in objectives.values() for role in (*part.required_roles, *part.optional_roles)}
    _refuse(
        (
            encoder.pools and roles <= {*QUERY_ROLES},
            f"model.objectives: expected one that reads positives or negatives, which the encoder of documents "
            f"encodes, got {', '.join(objectives)}; use a single encoder",
        ),
        (
            head is not None and head.train_only,
            f"model.head: expected a head with train_only: false, got {type(head).__name__} with true; "
            "a head that only training sees belongs to its objective: set head there",
        ),
        *(
            (
                encoder.pools and type(pooler) is not MeanPooler,
                f"model.pooler: expected none, because {type(encoder).__name__} pools, got {describe(pooler)}; "
                "set query_pooler and document_pooler of the encoder",
            )
            for pooler in poolers
        ),
        *_sparse_refusals(encoder, poolers, objectives),
        (
            not any(weights.values()),
            f"model.weights: expected a weight above 0, got {dict(weights)}: nothing would be trained; set one",
        ),
        *(
            (
                name not in objectives or weight < 0,
                f"model.weights.{name}: expected a weight of 0 or more for one of the objectives "
                f"{', '.join(objectives)}, got {name}: {weight}",
            )
            for name, weight in weights.items()
        ),
    )
    shared_objectives = {name: part for name, part in objectives.items() if part.task not in by_task.task_plans}
    for task in dict.fromkeys(part.task for part in shared_objectives.values()) or [None]:
        task_objectives = {name: part for name, part in shared_objectives.items() if part.task in (None, task)}
        _check_plan("model.", encoder, by_task.common, task_objectives)
    for task, plan in by_task.task_plans.items():
        task_objectives_of_plan = {name: part for name, part in objectives.items() if part.task == task}
        _check_plan(f"model.views.{task}: ", encoder, plan, task_objectives_of_plan)


def _sparse_refusals(
    encoder: Encoder, poolers: Sequence[Pooler], objectives: Mapping[str, Objective]
) -> Iterator[tuple[bool, str]]:
    """Yields the refusals of poolers that read token logits, and of objectives of their sparse vectors."""
    training, use = poolers
    yield (
        training.reads_token_logits is not use.reads_token_logits,
        f"model.inference.pooler: expected {type(training).__name__} as in training, because one of both reads "
        f"token logits, got {type(use).__name__}; remove it",
    )
    yield (
        bool(objectives) and all(isinstance(part, FLOPS) for part in objectives.values()),
        f"model.objectives: expected another objective with FLOPS, which alone makes all vectors 0, got "
        f"{', '.join(objectives)}; add Contrastive or RankDistillation",
    )
    for name, part in objectives.items():
        yield (
            (training.reads_token_logits or encoder.is_sparse) and isinstance(part, Variants),
            f"model.objectives.{name}: expected an objective of whole vectors with SpladePooler, "
            f"whose features are tokens of the vocabulary, got {type(part).__name__}; use its inner objective",
        )


def _check_plan(where: str, encoder: Encoder, plan: ViewPlan, objectives: Mapping[str, Objective]) -> None:
    """Checks that the encoder supports each view, and that objectives read masked tokens and originals."""
    for place, view in plan.named_views():
        _check_view(f"{where}{place}", view, encoder)
        if isinstance(view, GradientView):
            _check_gradient_view(f"{where}{place}", view, plan, list(objectives))
    hiding = {role_of(chain) for chain in plan.chains if plan.masks_tokens(chain)}
    predicts_tokens = any(part.needs_token_logits for part in objectives.values())
    reads_original = any(
        "original" in (*part.required_roles, *part.optional_roles, *part.token_roles)
        for part in objectives.values()
    )
    _refuse(
        (
            plan.chains.get("original") and not (predicts_tokens and "original" in hiding) and not reads_original,
            f"model.views.original: expected an objective that reads the original, got {', '.join(objectives)}; "
            "put MaskTokens there with MaskedLM among the objectives, or drop the chain",
        ),
    )
    for name, part in objectives.items():
        kind, hidden = type(part).__name__, [role for role in part.token_roles if role in hiding]
        _refuse(
            (
                hidden,
                f"model.views.{', '.join(hidden)}: expected no hidden tokens where {name} ({kind}) reads them, "
                "got a view that hides some; hide them on another role",
            ),
            (
                part.needs_token_logits and not hiding,
                f"model.objectives.{name}: expected a view that masks tokens for {kind}, got no such view; put "
                "MaskTokens on anchor or original under model.views",
            ),
        )


def _check_view(place: str, view: View, encoder: Encoder) -> None:
    name = type(view).__name__
    _refuse(
        (
            isinstance(view, EmbeddingView | GradientView) and not encoder.takes_embedding_views,
            f"{place}: expected an architecture with an embedding module for {name}, got {describe(encoder)}; "
            "use token or text views with it",
        ),
        (
            isinstance(view, TokenView) and view.sets_positions and not encoder.reads_positions(),
            f"{place}: expected an architecture that reads positions for {name}, got {describe(encoder)}, which "
            "ignores them; use ReorderSpans, or another encoder",
        ),
        (
            isinstance(view, FixedDropout) and not any(encoder.dropout_in_effect.values()),
            f"{place}: expected an encoder with dropout for {name}, got {describe(encoder)} without; drop the "
            "view, or set encoder.dropout",
        ),
    )


def _check_gradient_view(place: str, view: GradientView, plan: ViewPlan, objectives: list[str]) -> None:
    choices = {*objectives, *([None] if len(objectives) == 1 else [])}
    _refuse(
        (
            len({item.same_dropout for item in plan.gradient_views}) > 1,
            f"{place}.same_dropout: expected the same for all gradient views, which share their first pass, got "
            "both; set one of them",
        ),
        (
            len({item.objective for item in plan.gradient_views}) > 1 or view.objective not in choices,
            f"{place}.objective: expected one of the objectives {', '.join(objectives)}, the same for all "
            f"gradient views, got {view.objective}; name the one that {type(view).__name__} follows",
        ),
    )


def check_start(
    trainer: pl.Trainer,
    combine: Combine,
    by_task: TaskParts,
    embedders: Sequence[Embedder],
    recipe: str | None,
) -> None:
    """Checks that trainer, data and module are compatible when a run starts.

    Args:
        trainer: The trainer of the run.
        combine: Combiner of the gradients of objectives.
        by_task: Parts of each task.
        embedders: Embedder of training, and embedder of inference.
        recipe: Recipe of the module, as in ``from_recipe``; None for a module without a recipe.

    Raises:
        ValueError: The step can't run with the precision or the strategy, the pairing differs from the recipe's,
            a view can't alter a text, or an objective or a pooler refuses the run.
    """
    check_strategy(trainer, combine, by_task)
    check_pairings(trainer, recipe)
    check_view_texts(by_task, trainer)
    check_contexts(by_task, trainer, embedders[0])
    for objective in by_task.objectives(None).values():
        objective.check()
    for embedder in embedders:
        check_template_bias(embedder.pooler, embedder.encoder)
    if not isinstance(embedders[0].pooler, MaskTokenPooler):
        return
    for plan in (by_task.common, *by_task.task_plans.values()):
        for place, view in plan.named_views():
            _refuse(
                (
                    isinstance(view, TokenView) and view.sets_labels,
                    f"model.{place}: expected no view that hides tokens with MaskTokenPooler, which looks for "
                    f"the one mask token of a template, got {type(view).__name__}; drop it, or take another "
                    "pooler",
                )
            )


def check_strategy(trainer: pl.Trainer, combine: Combine, by_task: TaskParts) -> None:
    """Checks the precision, the strategy and the loaders of a trainer.

    Raises:
        ValueError: The step can't run with an option. The message names an option that works.
    """
    precision, strategy, data = str(trainer.precision), trainer.strategy, vars(trainer).get("datamodule")
    options = vars(strategy)["_ddp_kwargs"] if isinstance(strategy, DDPStrategy) else None
    has_absent_objectives = isinstance(data, TextDataModule) and by_task.skips_objectives(
        data.training.step_kinds()
    )
    _refuse(
        (
            precision == "16-true",
            "trainer.precision: expected 32-true, 16-mixed, bf16-mixed or bf16-true, got 16-true; in float16 "
            "the optimizer's eps of 1e-8 is 0 and so are squares of gradients below 2e-4: use 16-mixed, "
            "whose weights are float32",
        ),
        (
            precision == "bf16-true" and any(part.momentum for part in by_task.objectives(None).values()),
            "trainer.precision: expected 32-true or bf16-mixed, whose weights are float32, for Momentum, got "
            "bf16-true; in 8 bits the small share that a copy takes in with each step is lost",
        ),
        (
            precision.startswith("16") and isinstance(combine, PCGrad),
            f"trainer.precision: expected bf16-mixed or 32-true for PCGrad, got {precision}; float16 loses the "
            "small entries of the single gradients",
        ),
        (
            not isinstance(strategy, SingleDeviceStrategy | DDPStrategy | FSDP2Strategy),
            "trainer.strategy: expected auto, ddp or one of its variants, or fsdp2, got "
            f"{type(strategy).__name__}; a step calls the encoder group by group and outside of forward, where "
            "other strategies that split weights don't gather them; give --trainer.strategy fsdp2",
        ),
        (
            has_absent_objectives and options is not None and not options.get("find_unused_parameters"),
            "trainer.strategy: expected ddp_find_unused_parameters_true, for some objectives are absent from "
            "some steps, got ddp; set --trainer.strategy ddp_find_unused_parameters_true",
        ),
    )
    check_own_batches(trainer, "fit")


def check_split(trainer: pl.Trainer, combine: Combine, encoder: Encoder) -> None:
    """Checks that a module's weights can be split, if the strategy is ``fsdp2``.

    Raises:
        ValueError: The combiner is PCGrad, or the encoder has packed or compiled weights.
    """
    transformer = encoder if isinstance(encoder, TransformerEncoder) else None
    if isinstance(trainer.strategy, FSDP2Strategy):
        _refuse(
            (
                isinstance(encoder, AsymmetricEncoder),
                "trainer.strategy: expected ddp with AsymmetricEncoder, whose ranks may run its two networks a "
                "different number of times, got fsdp2; give --trainer.strategy ddp",
            ),
            (
                isinstance(combine, PCGrad),
                "model.combine: expected no PCGrad with fsdp2, which adds the gradients of all objectives up "
                "before any rank has its part, got PCGrad; take WeightedSum, or --trainer.strategy ddp",
            ),
            (
                transformer is not None and transformer.weights_dtype == "nf4",
                "encoder.weights_dtype: expected float32 or bfloat16 with fsdp2, which splits no packed ones, "
                "got nf4; take one of them, or --trainer.strategy ddp",
            ),
            (
                transformer is not None and transformer.compiled,
                "encoder.compiled: expected false with fsdp2, with which it has not been tried, got true; "
                "drop it",
            ),
        )


def check_pairings(trainer: pl.Trainer, recipe: str | None) -> None:
    """Checks that the data of a run have the pairing of the module's recipe.

    Args:
        trainer: Trainer of the run. Only a ``TextDataModule`` is checked.
        recipe: Name of a shipped recipe, or path of a YAML file; None for a module without a recipe.

    Raises:
        ValueError: A data set has another pairing, which would train another method.
    """
    data = vars(trainer).get("datamodule")
    if recipe is None or not isinstance(data, TextDataModule):
        return
    below = read_recipe(recipe).get("data") or {}
    recipe_tasks = below.get("tasks") or {SINGLE_TASK: below.get("task") or {}}
    for name, task in data.named_tasks.items():
        spec = (recipe_tasks.get(name) or {}).get("pairing") or SameText.__name__
        path = spec["class_path"] if isinstance(spec, Mapping) else spec
        expected, actual = path.rpartition(".")[2], type(task.pairing or SameText()).__name__
        if actual != expected:
            place = option_place(name)
            raise InvalidValueError(
                f"{place}.pairing: expected {expected}, which the recipe {recipe} of the module has, got {actual}"
                f"; make the data with TextDataModule.from_recipe({recipe!r}, ...), or module and data, with any "
                f"pairing, with Run.from_recipe({recipe!r}, pairing=...)"
            )


def check_contexts(by_task: TaskParts, trainer: pl.Trainer, embedder: Embedder) -> None:
    """Checks that no part needs the single spans of a pairing whose documents are encoded as a whole.

    Raises:
        ValueError: Such a part. The message names it.
    """
    data = vars(trainer).get("datamodule")
    tasks = data.training.tasks.values() if isinstance(data, TextDataModule) else ()
    for name in (part.name for part in tasks if part.pairing.in_context):
        expected = f"{option_place(name)}.pairing.context: expected"
        objectives = by_task.objectives(name)
        reading = [key for key, part in objectives.items() if part.needs_token_logits or part.token_roles]
        _refuse(
            (
                any(by_task.plan(name).chains.values()),
                f"{expected} no views with document, which is encoded once for all its spans, got views of "
                f"{', '.join(by_task.plan(name).chains)}; remove them, or set context: span",
            ),
            (
                reading,
                f"{expected} objectives of vectors with document, got {', '.join(reading)}, which read tokens of "
                "spans; remove them, or set context: span",
            ),
            (
                bool(by_task.prompts),
                f"{expected} no prompts with document, in which spans have none, got some; set empty prompts: "
                """--model.prompts.named '{query: "", document: ""}'""",
            ),
            (
                embedder.encoder.pools or not pools_tokens(embedder.pooler),
                f"{expected} a pooler of a span's tokens with document, got {describe(embedder.pooler)} of "
                f"{type(embedder.encoder).__name__}; take MeanPooler and a single encoder, or set context: span",
            ),
        )


def causal_warning(encoder: Encoder, poolers: Iterable[Pooler]) -> str | None:
    """Returns a warning if poolers of a causal encoder use early tokens, which read little text; else None."""
    descriptions = {type(pooler).__name__: _CAUSAL[type(pooler)] for pooler in poolers if type(pooler) in _CAUSAL}
    if not descriptions or not encoder.is_causal():
        return None
    text = "; ".join(f"{name} takes {description}" for name, description in descriptions.items())
    return (
        f"model.pooler: in {describe(encoder)} a token sees none after it, and {text}. Only the last token has "
        "seen the whole text: LastTokenPooler takes it, and WeightedMeanPooler weighs the later ones more"
    )


_FEW = "the mean over tokens, of which the early ones have seen little of the text"
_CAUSAL: Mapping[type[Pooler], str] = {
    CLSPooler: "the first token, which has seen itself alone: texts that begin alike have one vector",
    MeanPooler: _FEW,
    LastTwoPooler: _FEW,
    FirstLastPooler: _FEW,
}
"""Pooler for bidirectional attention -> description of the tokens that it uses."""


def check_view_texts(by_task: TaskParts, trainer: pl.Trainer) -> None:
    """Checks that views with requirements on texts, such as an entry in a file, can alter all texts.

    If a pairing draws examples at random, one draw is checked. A text takes about 10 microseconds.

    Raises:
        ValueError: A view can't alter a text. The message names the line.
    """
    data = vars(trainer).get("datamodule")
    if not isinstance(data, TextDataModule):
        return
    for part in data.training.tasks.values():
        plan = by_task.plan(part.name)
        # Only the first text view of a chain: later views read texts that are already altered.
        first = {
            name: next(
                (
                    view_of_chain
                    for view_of_chain in chain
                    if isinstance(view_of_chain, TextView) and view_of_chain.text_template is None
                ),
                None,
            )
            for name, chain in plan.chains.items()
        }
        checked = {name: view for name, view in first.items() if view is not None and view.checks_texts}
        if not checked or part.pairing.token_roles:
            continue
        for number in range(len(part.texts)):
            for example in part.pairing(part.texts[number], generator(number)):
                for slot, text in example_slots(example):
                    view = checked.get(plan.chain_name(slot) or "")
                    if view is None or not isinstance(text, str):
                        continue
                    try:
                        view.check(text)
                    except InvalidValueError as error:
                        raise InvalidValueError(f"{option_place(part.name)}: {error}") from None
