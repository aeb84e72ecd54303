"""The model card of an exported folder: what a checkpoint knows of its training, and how to use the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData, try_to_load_from_cache

from contrastive_text.core.checkpoints import Checkpoint, read_checkpoint
from contrastive_text.core.disk import replacing
from contrastive_text.core.model_files import MODULES

CARD = "README.md"
_MARK = (
    "<!-- Written by contrastive-text. Delete this line to keep your changes when the model is saved again. -->"
)
_FACTS = (
    "training data", "validation data", "run", "step", "pairing", "views", "objectives", "pooler", "optimizer",
    "length limit", "libraries",
)  # fmt: skip
_PATH = re.compile(r"(?:[\w.~:-]*[/\\]+)+([\w.-]*)")
_HERE = """```python
from contrastive_text import SentenceEncoder

model = SentenceEncoder.from_pretrained("path/to/this/folder")
print(model.encode(["a bird sings", "the dog runs"]).shape)
```"""
_THERE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
print(model.encode(["a bird sings", "the dog runs"]).shape)
```"""


def write_card(folder: Path, checkpoint: str | Path) -> bool:
    """Writes the card of a model that was saved from a checkpoint.

    Of a path only its last part is written. The card isn't among the files that the folder's manifest vouches
    for, so it may be edited. A ``README.md`` without the mark of this library is the user's, and stays.

    Args:
        folder: The folder of the saved model.
        checkpoint: The ``.ckpt`` file that the model is of.

    Returns:
        Whether it was written.

    Raises:
        ValueError: A damaged checkpoint.
        DiskError: The folder can't be written to.
    """
    path = folder / CARD
    if path.is_symlink() or (path.exists() and _MARK.encode() not in path.read_bytes()):
        return False
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    plain = all(module["type"].startswith("sentence_transformers.") for module in modules)
    with replacing(path) as file:
        file.write(_card(read_checkpoint(checkpoint), elsewhere=plain).encode())
    return True


def _card(known: Checkpoint, elsewhere: bool) -> str:
    """Returns the text of a card; ``elsewhere``: whether sentence-transformers loads the model."""
    arguments = (known.model.get("encoder") or {}).get("init_args") or {}
    base = str(arguments.get("model_name_or_path") or "")
    data = ModelCardData(
        library_name="sentence-transformers" if elsewhere else "contrastive-text",
        pipeline_tag="sentence-similarity",
        tags=["contrastive-text", "sentence-similarity", "feature-extraction"],
        base_model=base if _is_of_hub(base) else None,
    )
    start = base if _is_of_hub(base) else Path(base).name
    places = sorted({*_places(known.model), *_places(known.data)}, key=len, reverse=True)
    facts = [(name, _without_places(known.facts[name], places)) for name in _FACTS if name in known.facts]
    rows = [f"| {name} | {_cell(fact)} |" for name, fact in facts]
    lines = [
        "---", data.to_yaml(), "---", _MARK, "", "# Sentence encoder", "",
        "Sentence embeddings, trained by contrastive learning"
        + (f" from the weights of `{start}`." if start else " from random weights."),
        "", "## Use", "", _HERE, *(["", "In sentence-transformers:", "", _THERE] if elsewhere else []),
        "", "## Training", "", "| | |", "| --- | --- |", f"| optimiser steps | {known.step:,} |", *rows,
        "", "## Scores", "", *_scores(known), "", "## Limits", "",
        "Nothing beyond the scores above was measured when this card was written. Longer texts than the length "
        "limit are cut. The model repeats what its training texts take for granted; test it on your own texts.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _scores(known: Checkpoint) -> list[str]:
    """Returns the validation scores of these very weights, as far as they are known."""
    figures = {name: score for name, score in known.best.figures.items() if score == score}
    if not figures:
        return ["None was measured in training."]
    said = "On the validation data above, of these weights, one run (no spread); correlations are times 100."
    return [said, "", "| figure | value |", "| --- | --- |", *(f"| {k} | {v:.4g} |" for k, v in figures.items())]


def _is_of_hub(name: str) -> bool:
    """Whether a name is certainly one of the hub's: no folder, and the hub's cache has it."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name) or Path(name).exists():
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _places(part: Any) -> Iterator[str]:  # Any: what YAML can hold
    """Yields the strings with a separator of folders in a configuration."""
    if isinstance(part, str):
        if "/" in part or "\\" in part:
            yield part
    elif isinstance(part, Mapping):
        for each in part.values():
            yield from _places(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _places(each)


def _without_places(text: str, places: list[str]) -> str:
    r"""Returns a text in which only the last part of every path stays.

    Example:
        >>> _without_places("/home/Jane Doe/texts.txt: 3 rows; ../b.tsv", ["/home/Jane Doe/texts.txt"])
        'texts.txt: 3 rows; b.tsv'
    """
    for place in places:
        text = text.replace(place, re.split(r"[/\\]", place.rstrip("/\\"))[-1])
    return _PATH.sub(r"\1", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
