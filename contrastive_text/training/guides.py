"""Guides: vectors of other models for the texts of a batch, and the checks of a run that reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, sent
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.similarity import at_least_float32, full_precision
from contrastive_text.core.storage.records import shown
from contrastive_text.data import TextDataModule
from contrastive_text.data.preparation import TrainingData, text_blocks
from contrastive_text.data.tasks import option_place
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_index import TextVectors
from contrastive_text.objectives import Objective


class Guide(ABC):
    """Base class of guides: vectors of another model for the rows of a batch, without a gradient.

    They are of the texts as they are written: before any view, without the prompts of the model that is trained.
    Nothing of a guide is trained, exported, or saved with the weights: a checkpoint has its arguments, from which
    it is made again, and its identity. It opens what it reads when it is first asked, so that a checkpoint is
    loaded for use where its guides are no more.

    Attributes:
        reads_texts: Whether it reads ``Batch.texts``, which batches then hold.
    """

    reads_texts: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """Returns a vector of each row's text, (S, Dg), in at least float32."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What is the same for equal vectors: a run is resumed with guides of the same identities."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Features of a vector, Dg."""

    def check(self, data: TrainingData) -> None:
        """Checks before the first step that there will be a vector of every text of a data set.

        Raises:
            ValueError: There won't, with the file and the line of the first text without one.
        """
        if data.pairing.joins:
            raise InvalidValueError(
                f"{option_place(data.name)}.pairing: expected single texts for {describe(self)}, got "
                f"{type(data.pairing).__name__}, which puts two into one sequence; set pairing: Given"
            )


class GuideFile(Guide):
    """Vectors that another model has made beforehand: of any size, at the cost of reading them.

    The file is that of ``contrastive-text embed TEXTS OUT.npy --model MODEL --distinct``. A row's vector is found
    by the 64-bit id of its text, in a table that is mapped and not in memory; so it is the same in every layout,
    on every rank and after a resumption. Before the first step each text of the training data is looked up, some
    microseconds each. Rows that come from a loader of your own are looked up as they come.

    Args:
        path: The ``.npy`` file.

    Example:
        >>> GuideFile("teacher.npy").path
        'teacher.npy'
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def vectors(self) -> TextVectors:
        """The file, opened when it is first asked for."""
        return TextVectors(self.path)

    @property
    def identity(self) -> str:
        """Of the bytes of vectors and table, by their digests."""
        return self.vectors.identity

    @property
    def features(self) -> int:
        """Features of a vector."""
        return self.vectors.features

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the vectors of a batch's texts, (S, Dg), in at least float32.

        Raises:
            ValueError: A text without a vector.
        """
        ids = batch.known.text_ids
        numbers = (ids if ids.ndim == 1 else ids[:, 0]).cpu().numpy()
        known = self.vectors.knows(numbers)
        if not known.all():
            raise InvalidValueError(
                f"{self.path}: expected a vector of every text of the batch, got none of {int((~known).sum())} "
                f"of its {len(numbers)} rows; embed the texts that are trained on with --distinct"
            )
        return at_least_float32(sent(torch.from_numpy(self.vectors.of(numbers)), batch.ids.device))

    def check(self, data: TrainingData) -> None:
        """Looks every text up; see ``Guide.check``."""
        super().check(data)
        place, pairing = option_place(data.name), type(data.pairing).__name__
        if data.pairing.reads_tokens or data.task.join is not None:
            what = f"{place}.join" if data.task.join is not None else f"{place}.pairing"
            got = "texts that are joined" if data.task.join is not None else f"{pairing}, which cuts them out"
            raise InvalidValueError(
                f"{what}: expected rows that are texts of a file for {describe(self)}, got {got}; take "
                "GuideModel, which encodes any row"
            )
        for texts in text_blocks(data.texts):
            known = self.vectors.knows(np.fromiter(map(text_id, texts), np.int64, len(texts)))
            if not known.all():
                text = texts[int(known.argmin())]
                cleaned = " It was cleaned, as clean asks:" if data.task.clean is not None else ""
                raise InvalidValueError(
                    f"{place}: expected a vector in {self.path} of every text, got none of "
                    f"{shown(text)};{cleaned} embed the texts that are trained on with --distinct"
                )


class GuideModel(Guide):
    """A frozen model beside one's own, which encodes every batch: no file, at the cost of its forward pass.

    It has its own tokenizer and length limit, its own default prompt and no dropout, and computes in float32.
    Equal texts of a batch are encoded once, so both views of a text have one vector. Its last bits depend on what
    else is in the batch, as any encoder's do; those of ``GuideFile`` don't.

    Args:
        folder: Local folder or hub name of a saved model, as ``SentenceEncoder.from_pretrained`` takes it.
        batch_size: Texts that it encodes at once.

    Example:
        >>> GuideModel("teacher/").folder
        'teacher/'
    """

    reads_texts: ClassVar[bool] = True

    def __init__(self, folder: str, batch_size: int = 64) -> None:
        self.folder = folder
        self.batch_size = batch_size

    @cached_property
    def model(self) -> SentenceEncoder:
        """The model, loaded when it is first asked for."""
        return SentenceEncoder.from_pretrained(self.folder, device="cpu").requires_grad_(False)

    @cached_property
    def identity(self) -> str:
        """Of weights, tokenizer, pooler, head, prompts and limits."""
        return self.model.identity

    @property
    def features(self) -> int:
        """Features of a vector."""
        return self.model.truncate_dim or self.model.features

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the vectors of a batch's texts, (S, Dg), float32.

        Raises:
            ValueError: A batch without its texts.
        """
        if batch.texts is None:
            raise InvalidValueError(
                f"{describe(self)}: expected a batch with its texts, got one without; make it with a Collator of "
                "keep_texts=True, as the data of a module with such a guide do"
            )
        numbers = {text: number for number, text in enumerate(dict.fromkeys(batch.texts))}
        device = batch.ids.device
        with full_precision(device):
            vectors = self.model.encode(
                list(numbers), batch_size=self.batch_size, convert_to_tensor=True, device=str(device)
            )
        places = sent(torch.tensor([numbers[text] for text in batch.texts]), device)
        return torch.as_tensor(vectors)[places]

    def __getstate__(self) -> dict[str, Any]:  # Any: of the arguments
        return {"folder": self.folder, "batch_size": self.batch_size}


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
