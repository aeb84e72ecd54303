"""Specs of parts: the class path and constructor arguments of an object as plain data, to rebuild it.

The convention behind it: a part stores every constructor argument under the argument's name. This holds for the
library's parts and is required of a user's. A module built in Python and one built from YAML then write the same
checkpoint, which loads with ``weights_only=True``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from contrastive_text.core.config.class_paths import public_path
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError

_T = TypeVar("_T")
_LIBRARIES = ("contrastive_text.", "pytorch_lightning.")
"""Beginnings of the class paths that ``flat_settings`` shortens."""
Plain: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""Values that YAML and a ``weights_only`` checkpoint can store; Any, because type aliases can't be recursive."""


def to_plain(value: object, where: str) -> Plain:
    """Converts a value, or a part with all parts inside it, to plain data.

    Args:
        value: Plain data, a part, or lists, tuples and dicts of them.
        where: Name of the argument, for the error.

    Raises:
        TypeError: A function, or a part that doesn't store a constructor argument under its name.

    Example:
        >>> from contrastive_text.losses import InfoNCE
        >>> to_plain([InfoNCE(temperature=0.1)], "losses")[0]["class_path"]
        'contrastive_text.InfoNCE'
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # drops a subclass of str
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if inspect.isroutine(value):
        raise InvalidTypeError(
            f"{where}: expected plain values or objects of importable classes, got the function {value!r}; "
            "a checkpoint can't hold it, so write a class with __call__"
        )
    return part_spec(value, where)


def part_spec(part: object, where: str) -> dict[str, Any]:
    """Converts a part to ``{"class_path": ..., "init_args": {...}}``.

    Raises:
        TypeError: The class is defined inside a function, or doesn't store a constructor argument under its name.
    """
    cls = type(part)
    if "<locals>" in cls.__qualname__:
        raise InvalidTypeError(
            f"{where}: expected a class that can be imported, got {cls.__name__}, defined inside a function; "
            "move it to the top of its file, so that a checkpoint can make the part again"
        )
    return {"class_path": public_path(cls), "init_args": stored_arguments(part, where)}


def build_part(cls: type[_T], arguments: Mapping[str, object], where: str, todo: str) -> _T:
    """Builds a part from its class and arguments.

    Args:
        cls: Class of the part.
        arguments: Name -> argument of the constructor.
        where: Beginning of error messages.
        todo: Advice at the end of error messages.

    Raises:
        ValueError: The class is abstract, or its constructor doesn't take the arguments.
    """
    if inspect.isabstract(cls):
        raise InvalidValueError(
            f"{where}: expected a class with all its methods, got the base class {cls.__name__}; {todo}"
        )
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        got = str(error).removeprefix("got ")
        raise InvalidValueError(
            f"{where}: expected the arguments of {cls.__name__}, got {got}; {todo}"
        ) from error
    return cls(**arguments)


def stored_arguments(
    part: object, where: str, cls: type | None = None, overrides: Mapping[str, object] | None = None
) -> dict[str, Plain]:
    """Returns the constructor arguments of a part as plain data.

    Args:
        part: Object that stores each argument under its name.
        where: Name of the part, for the error.
        cls: Class whose arguments are read; None for the class of the part.
        overrides: Values of arguments that the part doesn't store unchanged.

    Raises:
        TypeError: An argument that is neither stored nor in ``overrides``.
    """
    overrides = overrides or {}
    return {
        name: to_plain(overrides[name] if name in overrides else _stored(part, name, where), f"{where}.{name}")
        for name, parameter in inspect.signature(cls or type(part)).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _stored(part: object, name: str, where: str) -> object:
    try:
        return getattr(part, name)  # the name comes from the signature, as in scikit-learn's get_params
    except AttributeError:
        cls = type(part).__name__
        raise InvalidTypeError(
            f"{where}: expected {cls} to store its argument {name!r} as self.{name}, but it doesn't; "
            f"store it unchanged in {cls}.__init__, so that a checkpoint can make the part again"
        ) from None


def describe(part: object) -> str:
    """Describes a part as a call, such as ``CLSPooler()``.

    Example:
        >>> from contrastive_text.poolers import FirstLastPooler
        >>> describe(FirstLastPooler("block_1"))
        "FirstLastPooler(first='block_1')"
    """
    return describe_spec(part_spec(part, type(part).__name__))


def describe_spec(spec: object) -> str:
    """Describes the plain data of a part as a call, and any other value as a literal.

    Example:
        >>> describe_spec({"class_path": "contrastive_text.InfoNCE", "init_args": {"temperature": 0.1}})
        'InfoNCE(temperature=0.1)'
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        arguments = (spec.get("init_args") or {}).items()
        words = ", ".join(f"{name}={describe_spec(value)}" for name, value in arguments)
        return f"{spec['class_path'].rpartition('.')[2]}({words})"
    if isinstance(spec, list) and spec and all(isinstance(part, Mapping) for part in spec):
        return f"[{', '.join(map(describe_spec, spec))}]"
    return repr(spec)


_QUOTE = "a text that is no single word, such as a path or a name with a dash, stands in quotes: 'encoder/'"


def parse_part(text: str, where: str) -> dict[str, Any]:
    """Parses the text of a part, such as ``CLSPooler`` or ``CropTokens(rate=0.1)``, to its spec.

    Args:
        text: Name or path of a class, such as ``Class(rate=0.3)``. A word needs no quotes; a path or a name with
            a dash needs them.
        where: Place of the option, for the error.

    Returns:
        ``class_path``, and ``init_args`` if there are brackets; Any: values that YAML can store.

    Raises:
        ValueError: The text isn't a part, or an argument has no name.

    Example:
        >>> parse_part("FirstLastPooler(first=block_1)", "--pooler")
        {'class_path': 'FirstLastPooler', 'init_args': {'first': 'block_1'}}
    """
    return part_from_expression(
        expression(text, where, "expected a part such as Class or Class(rate=0.3)"), where
    )


def parse_value(typed: str, where: str) -> Any:  # Any: what YAML can hold
    """Parses the text of an option: a plain value, a part such as ``CropTokens(rate=0.1)``, or a list of these.

    Raises:
        ValueError: The text is something else, or an argument has no name.

    Example:
        >>> parse_value("[DeleteTokens(rate=0.3), ReorderSpans]", "--vary")
        [{'class_path': 'DeleteTokens', 'init_args': {'rate': 0.3}}, 'ReorderSpans']
    """
    return _argument(
        expression(typed, where, "expected a value, a part such as Class(rate=0.3), or a list"), where
    )


def expression(typed: str, where: str, expected: str) -> ast.expr:
    """Parses a text as a Python expression without evaluating it; raises ValueError if it isn't one."""
    try:
        return ast.parse(typed, mode="eval").body
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
        quote = f"; {_QUOTE}" if "(" in typed else ""
        raise InvalidValueError(f"{where}: {expected}, got {typed!r}{quote}") from error


def part_from_expression(node: ast.expr, where: str) -> dict[str, Any]:
    """Converts the syntax tree of a call, such as ``CropTokens(rate=0.1)``, to the spec of a part."""
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Name | ast.Attribute):
        raise InvalidValueError(
            f"{where}: expected a part such as Class or Class(rate=0.3), got {ast.unparse(node)!r}"
        )
    spec: dict[str, Any] = {"class_path": ast.unparse(target)}
    if not isinstance(node, ast.Call):
        return spec
    arguments = {keyword.arg: keyword.value for keyword in node.keywords}
    if node.args or None in arguments:
        raise InvalidValueError(f"{where}: expected arguments with their names, got {ast.unparse(node)!r}")
    return spec | {"init_args": {str(name): _argument(value, where) for name, value in arguments.items()}}


def _argument(node: ast.expr, where: str) -> Any:  # Any: what YAML can hold
    if isinstance(node, ast.Call):
        return part_from_expression(node, where)
    if isinstance(node, ast.Name):
        return node.id  # a word without quotes, as in YAML
    if isinstance(node, ast.List | ast.Tuple):
        return [_argument(item, where) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        value = ast.unparse(node)
        raise InvalidValueError(f"{where}: expected a plain value or a part, got {value!r}; {_QUOTE}") from error


def flat_settings(config: Any, key: str = "") -> dict[str, str]:  # Any: a place of a configuration holds anything
    """Returns the settings of a configuration by their keys, as options of ``fit`` name them.

    Example:
        >>> optimizer = {"class_path": "contrastive_text.training.AdamW", "init_args": {"lr": 3e-5}}
        >>> flat_settings({"model": {"optimizer": optimizer}, "data": {"batch_size": 64}})
        {'model.optimizer': 'AdamW', 'model.optimizer.lr': '3e-05', 'data.batch_size': '64'}
    """
    if not isinstance(config, Mapping) or not config:
        return {key: _text(config)}
    settings, values = {}, config
    if "class_path" in config:
        path = str(config["class_path"])
        settings[key] = path.rpartition(".")[2] if path.startswith(_LIBRARIES) else path
        values = config.get("init_args") or {}
    for name, value in values.items():
        settings |= flat_settings(value, f"{key}.{name}" if key else str(name))
    return settings


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else describe_spec(value)
