"""The nearest right name for a misspelt one; what has the names is imported when one is asked for."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches

from contrastive_text.cli.answers import constructor_answer
from contrastive_text.core.misspelt import nearest

_OPTION = re.compile(
    r"unrecognized arguments: --?(?P<a>[\w.]+)|[Oo]ption '(?P<b>[\w.]+)' is not accepted"
    r"|Key '(?P<c>[\w.]+)' is not expected|[Nn]ested key \"(?P<d>[\w.]+)\""
    r"|does not accept option '(?P<e>[\w.]+)'"
)
_ABSTRACT = re.compile(r"Expected an instantiatable class, but (?P<module>[\w.]*?)(?P<kind>\w+) is abstract")
_PLACES = ("model", "data", "trainer", "checkpoint", "export")
_ELSEWHERE = {
    "learning_rate": "lr",
    "max_seq_length": "model.encoder.max_length",
    "model_name": "encoder",
    "model_name_or_path": "encoder",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "output_dir": "export.dirpath",
    "per_device_train_batch_size": "batch_size",
    "seed": "seed_everything",
    "train_batch_size": "batch_size",
    "train_file": "train",
    "warmup_ratio": "model.schedule.warmup_ratio",
    "warmup_steps": "model.schedule.warmup_steps",
}
"""What people call an option elsewhere -> the option."""
_VALUE = re.compile(r'Parser key "(?P<key>[\w.]+)"')
_EXPECTED = re.compile(r"Expected an? (?P<kind><class '[\w.]+'>|typing\.Literal\[.*\])")
_GOT = re.compile(r"(?:Got|Given) value: (?P<value>.*)")
_KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
    "NoneType": "null", "dict": "names and values, as in '{name: value}'",
}  # fmt: skip
_WORDS = (
    "model",
    "data",
    "trainer",
    "config",
    "recipe",
    "folder",
    "ckpt_path",
    "init_from",
    "keep_heads",
    "chunk",
    "oversubscribe",
)
_CLASS = re.compile(
    r"Expected a dot import path string: (?P<a>[\w.]+)(?P<called>\()?|No module named '(?P<b>[\w.]+)'"
)


def part_classes() -> dict[str, type]:
    """Returns every class that a configuration can name without a path."""
    from contrastive_text import encoders, heads, losses, objectives, pairings, poolers, views
    from contrastive_text.data import mixture
    from contrastive_text.training import guides, optim

    packages = (encoders, guides, heads, losses, mixture, objectives, optim, pairings, poolers, views)
    found = {
        name: value for package in packages for name, value in vars(package).items() if inspect.isclass(value)
    }
    ours = {name: cls for name, cls in found.items() if cls.__module__.startswith("contrastive_text.")}
    return {name: cls for name, cls in ours.items() if not cls.__module__.startswith("contrastive_text.core.")}


def option_names() -> dict[str, str]:
    """Returns every option with the places that have it."""
    import pytorch_lightning as pl

    from contrastive_text.data import Clean, Retrieval, TextTask
    from contrastive_text.data.datamodule import TextDataModule
    from contrastive_text.training.callbacks import BestCheckpoint, ExportModel
    from contrastive_text.training.module import ContrastiveModule

    places = {
        "model": ContrastiveModule,
        "data": TextDataModule,
        "data.tasks.NAME": TextTask,
        "data.task": TextTask,
        "data.retrieval": Retrieval,
        "data.task.clean": Clean,
        "trainer": pl.Trainer,
        "checkpoint": BestCheckpoint,
        "export": ExportModel,
        **part_classes(),
    }
    owners: dict[str, list[str]] = {}
    for place, cls in places.items():
        for name in inspect.signature(cls).parameters:
            owners.setdefault(name, []).append(place)
    return {name: ", ".join(found) for name, found in owners.items()}


def short_answer(message: str) -> str:
    """Makes a few lines of a parser's message: what was wrong, and the nearest right name."""
    if (match := _OPTION.search(message)) is not None:
        key = next(group for group in match.groups() if group)
        if key in _ELSEWHERE:
            return f"no option {key!r}; did you mean --{_ELSEWHERE[key]}?"
        options = option_names() | dict.fromkeys(_WORDS, "")
        owners = options.get(key, "").split(", ")
        if places := [place for place in owners if place in _PLACES]:
            return f"no option {key!r}; did you mean --{places[0]}.{key}?"
        if key in options and owners != [""]:
            parts = ", ".join(owners[:3]) + (f" and {len(owners) - 3} more" if len(owners) > 3 else "")
            return (
                f"no option {key!r} at this place: it is an argument of {parts}; --print_config shows the place "
                f"of each part, and --PLACE.{key} sets it"
            )
        for part in reversed(key.split(".")):
            if part not in options and (near := get_close_matches(part, options, n=1)):
                owner = f" (of {options[near[0]]})" if options[near[0]] else ""
                return f"no option {key!r}: {part!r} is unknown; did you mean {near[0]!r}{owner}?"
        return f"no option {key!r} at this place; --print_config shows those of a run"
    if (match := _CLASS.search(message)) is not None:
        name = match["a"] or match["b"]
        if match["called"]:
            return f"{name}(...): expected a class; write class_path: {name}, and its arguments under init_args"
        if name in part_classes():
            return f"no class {name!r} for this place: it is a part of another kind; see --print_config"
        words = re.search(r"typing\.Literal\[(.+?)\]", message)
        named = f", or one of {words[1]}" if words else ""
        advice = nearest(name, part_classes())
        return f"no class {name!r}: expected a part of the library or module.Class{named}{advice}"
    if (said := constructor_answer(message)) is not None:
        return said
    if (match := _ABSTRACT.search(message)) is not None:
        place = re.search(r'Parser key "([\w.]+)"', message)
        where = f"{place[1]}: " if place else ""
        if match["module"] and not match["module"].startswith("contrastive_text."):
            return f"{where}expected {match['kind']} to define what its base class asks for, such as __call__"
        return f"{where}expected the class of a part ({match['kind']}), got arguments alone; name its class first"
    if (said := _value_answer(message)) is not None:
        return said
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "\n".join(lines[:6])


def _value_answer(message: str) -> str | None:
    """Returns the answer to a value of another type than its option takes; None if the message isn't of one."""
    key, got, kinds = _VALUE.search(message), _GOT.search(message), _EXPECTED.findall(message)
    if key is None or got is None or not kinds:
        return None
    said = []
    for kind in kinds:
        if kind.startswith("typing"):
            said.append(f"one of {kind.removeprefix('typing.Literal[').removesuffix(']')}")
        else:
            name = kind.removeprefix("<class '").removesuffix("'>")
            said.append(_KINDS.get(name, name.rpartition(".")[2]))
    return f"{key['key']}: expected {' or '.join(dict.fromkeys(said))}, got {got['value']}"
