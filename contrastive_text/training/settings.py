"""Differences between the settings of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contrastive_text.core.specs import describe_spec


class Change(NamedTuple):
    """A setting that two runs have with different values.

    Args:
        name: Dotted name, as an option has it: ``model.optimizer.lr``.
        before: Value of the earlier run.
        now: Value of the later run.
    """

    name: str
    before: object
    now: object

    def __str__(self) -> str:
        """Returns the name with both values."""
        return f"{self.name} {describe_spec(self.now)} instead of {describe_spec(self.before)}"


def find_changes(before: object, now: object, name: str = "") -> Iterator[Change]:
    """Yields the settings that differ, a part of another class as a whole.

    Args:
        before: Configuration of the earlier run, or a value in it.
        now: The same of the later run.
        name: Dotted name of the place.

    Example:
        >>> before = {"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}, "views": None}
        >>> now = {"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.2}}, "views": None}
        >>> [str(change) for change in find_changes(before, now)]
        ['loss.temperature 0.2 instead of 0.1']
    """
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        if before != now:
            yield Change(name, before, now)
    elif before.get("class_path") != now.get("class_path"):
        yield Change(name, before, now)
    else:
        for key in sorted({*before, *now}):
            inner = name if key == "init_args" else f"{name}.{key}" if name else str(key)
            yield from find_changes(before.get(key), now.get(key), inner)
