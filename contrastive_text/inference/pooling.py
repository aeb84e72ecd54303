"""Which pooler a model is read with: its own, or another one by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import replace

from contrastive_text.core.class_paths import loaded, resolve, subclasses, trusting
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.misspelt import no_class
from contrastive_text.core.notation import typed_part
from contrastive_text.core.specs import describe, part_spec
from contrastive_text.encoders.embedder import check_template_bias
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.published import authors_pooling
from contrastive_text.poolers import MeanPooler, Pooler

_ASKED = "pooler"


def pooler_of(given: Pooler | str) -> Pooler:
    """Returns a pooler, where only its name is given one that is made now.

    Args:
        given: A pooler, or how it is typed: ``CLSPooler``, ``FirstLastPooler(first=block_1)``, ``module.Class``
            for one of your own.

    Raises:
        ValueError: A name that no pooler has, or other arguments than it takes.

    Example:
        >>> pooler_of("FirstLastPooler(first=block_1)").layers
        (-1, 1)
    """
    if isinstance(given, Pooler):
        return given
    spec = typed_part(given, _ASKED)
    path = str(spec["class_path"])
    module = path.rpartition(".")[0]
    if not module and loaded(path, (Pooler,)) is None:
        raise no_class(path, (Pooler,), [cls.__name__ for cls in subclasses([Pooler])], _ASKED)
    with trusting([module] if module else None):  # whoever types a name here knows what it is
        cls = resolve(path, Pooler, _ASKED)
    return make_pooler(cls, spec.get("init_args", {}), _ASKED, "give the arguments that it takes")


def make_pooler(cls: type[Pooler], arguments: Mapping[str, object], where: str, todo: str) -> Pooler:
    """Makes a pooler of a class and the arguments of its constructor.

    Args:
        cls: The class.
        arguments: By name.
        where: What errors begin with.
        todo: What to do about wrong arguments.

    Raises:
        ValueError: The base class, or other arguments than it takes.
    """
    if inspect.isabstract(cls):
        raise InvalidValueError(f"{where}: expected a pooler, got the base class {cls.__name__}; {todo}")
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise InvalidValueError(
            f"{where}: expected the arguments of {cls.__name__}, got {error}; {todo}"
        ) from error
    return cls(**arguments)


def pooler_name(pooler: Pooler) -> str:
    """Returns how a pooler is typed.

    Example:
        >>> pooler_name(MeanPooler()), pooler_name(pooler_of("FirstLastPooler(first=embeddings)"))
        ('MeanPooler', "FirstLastPooler(first='embeddings')")
    """
    return describe(pooler).removesuffix("()")


def read_with(parts: ModelParts, pooler: Pooler | str | None, name: str) -> ModelParts:
    """Returns the parts that a model is read with; ``pooling`` says which pooler that is and why.

    A head belongs to the pooler that it was trained or fitted on. Another pooler is read without it, and without
    the number of features that were kept of it.

    Args:
        parts: Of a model.
        pooler: What to read it with, or its name; None for its own.
        name: Of the model, for what is said.

    Raises:
        ValueError: A name that no pooler has, or a pooler of layers or of a template's bias that the network
            doesn't have.

    Warns:
        UserWarning: A model that names no pooler, where none is given; or a head that is left out.
    """
    own = parts.pooler
    if pooler is None and own is None:
        return _unnamed(parts, name)
    asked = own if pooler is None else pooler_of(pooler)
    assert asked is not None
    said = pooler_name(asked)
    if own is not None and part_spec(own, _ASKED) == part_spec(asked, _ASKED):
        return replace(parts, pooling=said)
    _check_layers(asked, parts)
    check_template_bias(asked, parts.encoder)
    if own is None:
        return replace(parts, pooler=asked, pooling=f"{said}, asked for")
    said += f", asked for in place of its own {pooler_name(own)}"
    if parts.head is None:
        return replace(parts, pooler=asked, pooling=said, card="")
    left_out = f"its head belongs to {pooler_name(own)} and is left out"
    warnings.warn(f"{name} is read with {pooler_name(asked)}: {left_out}", stacklevel=3)
    return replace(parts, pooler=asked, head=None, truncate_dim=None, pooling=f"{said}; {left_out}", card="")


def _unnamed(parts: ModelParts, name: str) -> ModelParts:
    """Returns the parts of a model that names no pooler, with that of its authors, or the mean."""
    folder = str(parts.encoder.model_name_or_path)
    authors = authors_pooling(name, folder)
    chosen = MeanPooler() if authors is None else authors.pooler()
    said, why = pooler_name(chosen), "for it names none"
    if authors is not None:
        said += " and the checkpoint's layer over [CLS]" if authors.keeps_head else ""
        why = f"the pooling of its authors ({authors.source})"
    taken = "the mean over tokens" if authors is None else f"{said}, {why}"
    todo = "give pooler=... to choose (--pooler in evaluate, compare and diagnose)"
    warnings.warn(f"{name} names no pooler: taking {taken}; {todo}", stacklevel=4)
    head = parts.head if authors is None else authors.head(folder)
    return replace(parts, pooler=chosen, head=head, pooling=f"{said}, {why}")


def _check_layers(pooler: Pooler, parts: ModelParts) -> None:
    blocks = parts.encoder.model.config.to_dict().get("num_hidden_layers")  # named otherwise by a few
    if isinstance(blocks, int) and (lacking := [n for n in pooler.layers if not -blocks - 1 <= n <= blocks]):
        raise InvalidValueError(
            f"{_ASKED}: expected layers 0 (the embeddings) to {blocks}, got {', '.join(map(str, lacking))} of "
            f"{pooler_name(pooler)}; take another pooler"
        )
