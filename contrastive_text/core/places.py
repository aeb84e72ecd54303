"""Parts named in a configuration: the annotation of a place decides whether a class may be named there.

A part is written as ``{class_path: ..., init_args: {...}}``. Where the annotation is a class, a part may stand,
and must be of that class; everywhere else there are plain values, and what looks like a part is refused before
the parser, which would import it, sees it.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from jsonargparse import get_loader, set_parsing_settings

from contrastive_text.core.class_paths import find_own, imported, loaded, public_path, resolve, subclasses
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.misspelt import broken_module, no_argument, no_class, other_kind

# Whoever has a configuration parsed imports this module. Else the parser makes, wherever a type is Any, whatever
# class is named.
set_parsing_settings(instantiate_subclass_spec_in_any=False)

_TEXT = (str, bytes, os.PathLike, Enum, timedelta)
_NUMBERS = (int, float, complex)  # and bool
_SPEC = {"class_path", "init_args", "dict_kwargs"}


class _Unreadable:
    """Stands for an annotation that names something which isn't there when the program runs."""


@dataclass
class _Place:
    """What an annotation allows.

    Args:
        parts: Base classes of parts.
        items: Annotations of the items of a list.
        values: Annotations of the values of a dictionary.
        text: Whether a string may stand there.
        number: Whether a number may, or true and false.
        anything: Whether any plain value may.
        code: Whether the parser would take a string for the path of a function, a class or a module.
        unreadable: Whether nobody can tell.
    """

    parts: list[type] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)  # Any: annotations
    values: list[Any] = field(default_factory=list)
    text: bool = False
    number: bool = False
    anything: bool = False
    code: bool = False
    unreadable: bool = False

    @property
    def leads_to_parts(self) -> bool:
        """Whether a part may stand here or further in, as far as anybody can tell."""
        if self.parts or self.code or self.unreadable:
            return True
        return any(_place([inner]).leads_to_parts for inner in (*self.items, *self.values))


def settled(arguments: Mapping[str, Any], cls: type, where: str) -> dict[str, Any]:
    """Returns the arguments of a class that a file holds, once every class that they name may be named.

    Args:
        arguments: Plain data: of a checkpoint, or of the record of a run.
        cls: The class that they are for.
        where: The file, for the error.

    Raises:
        ValueError: A class that a file may not name, a part where none may stand, or text in place of a part.
    """
    return _Walk(own_words=False).arguments(arguments, cls, where)


def check_words(arguments: Mapping[str, Any], cls: type, where: str) -> None:
    """Checks what the user's own files and options name: modules of parts are imported, other values are plain.

    Args:
        arguments: The configuration of a class.
        cls: The class.
        where: Its place, for the error.

    Raises:
        ValueError: A part, or a function, where none may stand.
    """
    _Walk(own_words=True).arguments(arguments, cls, where, known=True)


@dataclass(frozen=True)
class _Walk:
    """A walk through a configuration beside the annotations of its places."""

    own_words: bool

    def arguments(self, given: Mapping[str, Any], cls: type, where: str, known: bool = False) -> dict[str, Any]:
        """Returns the arguments of a class; where ``known``, and in a file, others than it takes are refused."""
        annotations, takes_more = _annotations(cls)
        done: dict[str, Any] = {}
        for name, item in given.items():
            value = item
            # The parser takes a.b for b in a, and a+ for one more of a.
            first, *further = str(name).removesuffix("+").split(".") if self.own_words else [name]
            for inner in reversed(further):
                value = {inner: value}
            if not self.own_words and not (isinstance(name, str) and name.isidentifier()):
                # Dotted, or with a plus after it, the parser would find another place for it.
                raise InvalidValueError(f"{where}: expected names of arguments, got {name!r}")
            if first not in annotations and not takes_more and (known or not self.own_words):
                raise no_argument(first, cls, annotations, where)
            # What reaches another function by **kwargs has the annotation that it has there.
            other = Any if self.own_words else _Unreadable
            if first in annotations or takes_more:
                value = self.value(value, _place([annotations.get(first, other)]), f"{where}.{first}")
            done[name] = value
        return done

    def value(self, value: Any, place: _Place, where: str) -> Any:  # Any: plain data
        if isinstance(value, str):
            return self._text(value, place, where)
        if isinstance(value, Mapping) and "class_path" in value:
            return self._part(value, place, where)
        if isinstance(value, Mapping) and place.parts and not place.values:
            inner = value.get("init_args", value)
            if not isinstance(inner, Mapping):
                raise InvalidValueError(f"{where}.init_args: expected names and values, got {inner!r}")
            if "init_args" in value and (odd := set(value) - _SPEC):
                raise InvalidValueError(f"{where}: expected init_args alone, got {sorted(map(str, odd))} too")
            inner = self.arguments(inner, place.parts[0], where)
            return {**value, "init_args": inner} if "init_args" in value else inner
        if isinstance(value, Mapping):
            below = self._below(place, place.values or [Any])
            for name in value:
                if not self.own_words and below.leads_to_parts and set(str(name)) & set(".+"):
                    raise InvalidValueError(f"{where}: expected a name without . and +, got {name!r}")
            return {name: self.value(item, below, f"{where}.{name}") for name, item in value.items()}
        if isinstance(value, list | tuple):
            below = self._below(place, place.items or place.parts or [Any])
            return [self.value(item, below, f"{where}[{i}]") for i, item in enumerate(value)]
        return value

    def _below(self, place: _Place, annotations: list[Any]) -> _Place:  # Any: annotations
        """Returns the place of what a mapping or a list holds, of which nobody can tell more than of itself."""
        if place.unreadable:
            return _place([_Unreadable] if annotations == [Any] else [*annotations, _Unreadable])
        return _place(annotations)

    def _part(self, spec: Mapping[str, Any], place: _Place, where: str) -> dict[str, Any]:
        path = spec["class_path"]
        if place.unreadable and self.own_words:
            find_own(path)  # the parser may know better what the place holds, and import it
            return dict(spec)
        if not place.parts:
            raise InvalidValueError(
                f"{where}: expected plain values, got a part ({path}); parts are made only where an argument is "
                "annotated with their class"
            )
        if odd := set(spec) - _SPEC:
            raise InvalidValueError(
                f"{where}: expected class_path and init_args, got {', '.join(map(str, sorted(odd, key=str)))} too"
            )
        cls = self._class(path, place, where)
        if cls is None:
            return dict(spec)
        done: dict[str, Any] = {"class_path": path if "." in path else public_path(cls)}
        for name in ("init_args", "dict_kwargs"):
            given = spec.get(name)
            if given is not None and not isinstance(given, Mapping):
                raise InvalidValueError(f"{where}.{name}: expected names and values, got {given!r}")
            if given:
                done[name] = self.arguments(given, cls, where, known=self.own_words and name == "init_args")
        return done

    def _class(self, path: object, place: _Place, where: str) -> type | None:
        """Returns the class of a part; None leaves the answer to the parser."""
        kinds = tuple(place.parts)
        if not self.own_words:
            return resolve(path, kinds, where)
        if not isinstance(path, str):
            return None
        named = {cls.__name__: cls for cls in subclasses(kinds) if cls.__name__[0] != "_"}
        try:
            found = loaded(path, kinds) or named.get(path) or imported(path)
        except (ImportError, SyntaxError) as error:
            raise broken_module(path, error, where) from error
        if found is None:
            raise no_class(path, kinds, named, where)
        if not isinstance(found, type):
            raise InvalidValueError(f"{where}: expected a class, got {path}, which is none")
        try:
            fits = issubclass(found, kinds)
        except TypeError:  # a protocol, which the parser compares by itself
            return None
        if not fits:
            raise other_kind(path, found, kinds, named, where)
        return found

    def _text(self, text: str, place: _Place, where: str) -> Any:  # Any: the text, or the part that it names
        dotted = "." in text and all(name.isidentifier() for name in text.split("."))
        if not self.own_words:
            self._check_text(text, dotted, place, where)
        if place.code and dotted:
            raise InvalidValueError(
                f"{where}: expected no function and no class, which a configuration can't give here, got {text}; "
                "give it in Python"
            )
        if not self.own_words and place.parts and (dotted or not place.text):
            return self._part({"class_path": text}, place, where)
        structured = bool(place.items or place.values)
        only_a_part = place.parts and not (
            structured or place.text or place.number or place.anything or place.code
        )
        named = all(name.isidentifier() for name in text.split(".")) and text != "null"
        if self.own_words and only_a_part and named and not _is_file(text):
            self._part({"class_path": text}, place, where)
            return text
        if self.own_words and place.parts and dotted:
            find_own(text)  # the parser imports it, where a list of parts may stand too
        if not self.own_words and structured and not (place.text or place.anything):
            raise InvalidValueError(f"{where}: expected names and values, or a list, got {text!r}")
        if structured or place.anything or place.parts or place.code:
            # Of names of files, which may be of any size, the parser reads none.
            inner = _parsed(text, files=self.own_words and not place.anything and place.leads_to_parts)
            if isinstance(inner, Mapping | list):
                self.value(inner, place, where)
        return text

    def _check_text(self, text: str, dotted: bool, place: _Place, where: str) -> None:
        """Checks for text for which the parser would read another file, or import what it names."""
        if not place.leads_to_parts:
            return
        path = "/" in text or os.sep in text
        if _is_file(text) or (path and (place.parts or not place.unreadable)):
            raise InvalidValueError(f"{where}: expected a name or the path of a class, got the path {text!r}")
        inner = _parsed(text, files=False, always=True)
        if isinstance(inner, str) and inner != text:
            self._text(inner, place, where)
        if place.unreadable and not place.parts and (dotted or isinstance(inner, Mapping | list)):
            raise InvalidValueError(
                f"{where}: expected a plain value, got {text!r}; what else it takes can't be told from its "
                "annotation"
            )


def _parsed(text: str, files: bool, always: bool = False) -> object:
    """Returns what the parser makes of a string: YAML, or where a part or a list is expected that of a file."""
    try:
        if files and _is_file(text):
            text = Path(text).read_text(encoding="utf-8")
        return get_loader("yaml")(text) if always or ":" in text or "[" in text else text
    except Exception:  # whatever the YAML parser raises: then the string is one
        return text


def _is_file(text: str) -> bool:
    return len(text) < 4096 and "\n" not in text and "\0" not in text and Path(text).is_file()


@cache
def _annotations(cls: type) -> tuple[dict[str, Any], bool]:
    """Returns the annotations of a constructor's arguments, and whether it takes others too.

    What ``**kwargs`` takes is looked up in the classes above.
    """
    named: dict[str, Any] = {}
    for owner in cls.__mro__:
        init = vars(owner).get("__init__")
        if not inspect.isfunction(init):
            continue
        hints = _hints(init)
        parameters = list(inspect.signature(init).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                named.setdefault(parameter.name, hints.get(parameter.name, Any))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return named, False
    return named, True


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation may name what only a type checker imports
        return {name: _evaluated(hint, function) for name, hint in inspect.get_annotations(function).items()}


def _evaluated(hint: Any, function: Callable[..., object]) -> Any:  # Any: an annotation
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(holder, vars(sys.modules[function.__module__]))["hint"]
    except Exception:  # as above
        return _Unreadable


def _place(annotations: Iterable[Any]) -> _Place:
    """Reads annotations that stand for one place, those of a union apart."""
    place = _Place()
    for annotation in annotations:
        _read(annotation, place)
    return place


def _read(annotation: Any, place: _Place) -> None:  # Any: an annotation
    origin = typing.get_origin(annotation) or annotation
    inner = [each for each in typing.get_args(annotation) if each is not Ellipsis]
    if origin in (typing.Union, types.UnionType):
        for each in inner:
            _read(each, place)
    elif origin is typing.Annotated:
        _read(inner[0], place)
    elif origin is typing.Literal:
        place.text = True
    elif isinstance(annotation, typing.TypeVar):
        for each in annotation.__constraints__ or [annotation.__bound__ or Any]:
            _read(each, place)
    elif annotation is _Unreadable or isinstance(annotation, str | typing.ForwardRef):
        place.unreadable = True
    elif annotation in (Any, object):
        place.anything = True
    elif origin is Callable or origin in (type, types.ModuleType, types.FunctionType):
        place.code = True
    elif annotation is None or origin is types.NoneType:
        return
    elif not isinstance(origin, type):
        place.anything = True
    elif issubclass(origin, _TEXT):
        place.text = True
    elif issubclass(origin, _NUMBERS):
        place.number = True
    elif issubclass(origin, Mapping):
        place.values.append(inner[1] if len(inner) > 1 else Any)
    elif issubclass(origin, list | tuple | set | frozenset) or origin.__module__ == "collections.abc":
        place.items += inner or [Any]
    else:
        place.parts.append(origin)
