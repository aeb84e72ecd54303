"""The model card of a trained model: what its checkpoint knows of its training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.core.terminal import code_span
from contrastive_text.inference.folder_modules import is_plain
from contrastive_text.inference.model_card import ModelCard
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.citations import citations

RECIPE = "recipe"
"""The fact that names the recipes of a run."""
_FACTS = (
    RECIPE, "training data", "validation data", "run", "step", "pairing", "views", "prompts", "objectives",
    "guides", "mixture", "gradient", "dropout", "pooler", "head in use", "optimizer", "length limit", "libraries",
)  # fmt: skip
_STARTS_FROM = "starts from"
_LIMITS = (
    "Nothing beyond the scores above was measured when this card was written. The length limit above is that of "
    "training. The model repeats what its training texts take for granted; test it on texts of your own."
)
_PATH = re.compile(r"(?<![\w.])(?:~|\.\.?|[A-Za-z]:)?(?:[/\\]+[\w.~-]+)*[/\\]+([\w.-]*)")
"""A path that begins at the root, at a drive, at home or at a dot: another slash is no path's."""


def add_card(model: SentenceEncoder, checkpoint: str | Path) -> None:
    """Gives a model the card of the checkpoint that its weights are of. Of a path it has the last part alone.

    Args:
        model: The model; ``save_pretrained`` writes its card.
        checkpoint: The ``.ckpt`` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A damaged one.
    """
    known = read_checkpoint(checkpoint)
    arguments = (known.model.get("encoder") or {}).get("init_args") or {}
    base = str(arguments.get("model_name_or_path") or "")
    of_hub = _is_of_hub(base)
    start = base if of_hub else _last(base)
    places = sorted({*_places(known.model), *_places(known.data)}, key=len, reverse=True)
    facts = {name: _without_places(known.facts[name], places) for name in _FACTS if name in known.facts}
    if _STARTS_FROM in known.facts:
        facts[_STARTS_FROM] = _last(known.facts[_STARTS_FROM])
    validation = known.data.get("validation")
    model.card = ModelCard(
        what="Vectors of sentences, trained by contrastive learning"
        + (f" from the weights of {code_span(start)}." if start else " from random weights."),
        elsewhere=is_plain(model.parts),
        ranks=model.prompts.ranks,
        base=base if of_hub else None,
        facts={
            "steps of these weights": f"{known.step:,}",
            "seed": str(known.data.get("seed", "unknown")),
            **facts,
        },
        scores=known.best.figures,
        setting="Of these very weights, on the validation data above; one run, so without a spread. Correlations "
        "and accuracies are times 100. The checkpoint was chosen by them, so they flatter it.",
        pairs=_last(validation) if isinstance(validation, str) else None,
        limits=_LIMITS,
        citations=citations(known.facts.get(RECIPE, "").split(", ")),
    ).text()


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


def _last(path: str) -> str:
    r"""Returns what follows the last separator of folders.

    Example:
        >>> _last("/home/Jane Doe/model/"), _last("C:\\models\\bert")
        ('model', 'bert')
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _without_places(text: str, places: list[str]) -> str:
    r"""Returns a text in which only the last part of every path stays.

    Example:
        >>> _without_places("/home/Jane Doe/texts.txt: 3 rows; ../b.tsv", ["/home/Jane Doe/texts.txt"])
        'texts.txt: 3 rows; b.tsv'
    """
    for place in places:
        text = text.replace(place, _last(place))
    return _PATH.sub(r"\1", text)
