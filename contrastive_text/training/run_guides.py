"""The guides of a run: what objectives read of them, what is refused before a step, what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytorch_lightning as pl
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.specs import describe
from contrastive_text.data import TextDataModule
from contrastive_text.objectives import Objective
from contrastive_text.training.guides import Guide

GUIDES = "guides"
"""Where a checkpoint keeps the identities of guides."""


def check_guides_read(guides: Mapping[str, Guide], objectives: Mapping[str, Objective]) -> None:
    """Checks that objectives read the guides that there are.

    Raises:
        ValueError: One reads a guide that there isn't, or nobody reads one.
    """
    there = ", ".join(guides) or "none"
    for name, objective in objectives.items():
        if unknown := [guide for guide in objective.guides if guide not in guides]:
            raise InvalidValueError(
                f"model.objectives.{name}: expected one of the guides of the module ({there}), got {unknown[0]}; "
                f"name it under model.guides, as a GuideFile or a GuideModel"
            )
    read = {guide for objective in objectives.values() for guide in objective.guides}
    if idle := [guide for guide in guides if guide not in read]:
        raise InvalidValueError(
            f"model.guides.{idle[0]}: expected an objective that reads it, got {', '.join(objectives)}; name it "
            "there, or drop it"
        )


def guide_vectors(
    guides: Mapping[str, Guide], batch: Batch, objectives: Iterable[Objective]
) -> dict[str, Tensor]:
    """Returns what objectives read of guides for the rows of a batch, each guide asked once, (S, Dg)."""
    found = {}
    for name in dict.fromkeys(name for objective in objectives for name in objective.guides):
        with torch.no_grad(), naming_option(name):
            found[name] = guides[name](batch)
    return found


@contextmanager
def naming_option(name: str) -> Iterator[None]:
    """Puts ``model.guides.NAME`` before what a guide says, such as that its file isn't there."""
    try:
        yield
    except ContrastiveTextError as error:
        kind = MissingFileError if isinstance(error, MissingFileError) else InvalidValueError
        raise kind(f"model.guides.{name}: {error}") from error


def check_guides_at_start(
    guides: Mapping[str, Guide], objectives: Mapping[str, Objective], trainer: pl.Trainer
) -> None:
    """Checks before the first step that guides have a vector of every text, of the width that is read.

    Raises:
        ValueError: As ``Guide.check`` and ``Objective.check_guide_widths`` raise it.
    """
    widths = {}
    for name, guide in guides.items():
        with naming_option(name):
            widths[name] = guide.features
    for objective in objectives.values():
        objective.check_guide_widths(widths)
    data = vars(trainer).get("datamodule")
    if not guides or not isinstance(data, TextDataModule):
        return
    for part in (*data.training.tasks.values(), *(rows.data for rows in data.held_out_rows)):
        parts = [each for each in objectives.values() if each.task in (None, part.name)]
        for name in dict.fromkeys(guide for each in parts for guide in each.guides):
            guides[name].check(part)


def identities(guides: Mapping[str, Guide]) -> dict[str, str]:
    """Returns the identity of each guide, for a checkpoint."""
    return {name: guide.identity for name, guide in guides.items()}


def check_same_guides(guides: Mapping[str, Guide], kept: Mapping[str, str], where: object) -> None:
    """Checks that a run goes on with the guides with which it began.

    Args:
        guides: Those of the module.
        kept: Their identities, as a checkpoint has them.
        where: The checkpoint, for the error.

    Raises:
        ValueError: Others.
    """
    for name, now in identities(guides).items():
        if kept.get(name) != now:
            raise InvalidValueError(
                f"model.guides.{name}: expected the guide with which the run of {where} began "
                f"({kept.get(name, 'none')}), got another ({now}); give the same vectors, or begin a new run "
                "from its weights with --init_from"
            )


def describe_guides(guides: Mapping[str, Guide]) -> str:
    """Returns each guide in words, with its width, and the identity that a resumed run expects."""
    return "\n".join(
        f"{name}: {describe(guide)}; {guide.features} features; "
        f"identity {guide.identity}, as a resumed run must have it"
        for name, guide in guides.items()
    )
