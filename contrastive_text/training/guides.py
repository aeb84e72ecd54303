"""Guides: vectors of other models for the texts of a batch, such as a teacher's, and checks of guides."""

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

from contrastive_text.core.batch import Batch, move_to_device
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.similarity import at_least_float32, full_precision
from contrastive_text.core.storage.records import describe_value
from contrastive_text.data import TextDataModule
from contrastive_text.data.preparation import TrainingData, text_blocks
from contrastive_text.data.tasks import option_place
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import TextVectors
from contrastive_text.objectives import Objective


class Guide(ABC):
    """Base class of guides, which provide vectors of another model for the rows of a batch, without a gradient.

    The vectors belong to the original texts: before any view, and without the prompts of the trained model. A
    guide isn't trained, exported or saved with the weights. A checkpoint stores its arguments, to build it again,
    and its identity. A guide opens its file or model at the first call. A checkpoint can therefore be loaded for
    inference after its guides were deleted.

    Attributes:
        needs_texts: Whether the guide reads ``Batch.texts``. If so, batches contain their texts.
    """

    needs_texts: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """Returns a guide's vector for each row's text, (S, Dg), in at least float32."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Digest of the guide, equal for equal vectors. A resumed run must have guides with equal digests."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Number of features of the guide's vectors, Dg."""

    def check(self, data: TrainingData) -> None:
        """Checks before the first step that the guide has a vector for every text of a data set.

        Raises:
            ValueError: A text has no vector. The message has the file and the line of the first such text.
        """
        if data.pairing.joins_texts:
            raise InvalidValueError(
                f"{option_place(data.name)}.pairing: expected single texts for {describe(self)}, got "
                f"{type(data.pairing).__name__}, which puts two into one sequence; set pairing: Given"
            )


class GuideFile(Guide):
    """Guide that reads vectors from a file. The model may be of any size, because it doesn't run in training.

    Write the file with ``contrastive-text embed TEXTS OUT.npy --model MODEL --distinct``. A row's vector is
    looked up by the 64-bit id of its text, in a memory-mapped table. The vector is therefore the same in every
    layout, on every rank and after a resume. Before the first step each text of the training data is looked up,
    which takes a few microseconds per text. Rows from your own loader are looked up during training.

    Args:
        path: Path of the ``.npy`` file.

    Example:
        >>> GuideFile("teacher.npy").path
        'teacher.npy'
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def vectors(self) -> TextVectors:
        """Vectors of the guide's file, opened at the first access."""
        return TextVectors(self.path)

    @property
    def identity(self) -> str:
        """Digest of the bytes of the file's vectors and of its table of text ids."""
        return self.vectors.identity

    @property
    def features(self) -> int:
        """Number of features of the vectors in the guide's file."""
        return self.vectors.features

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the vectors in the file of a batch's texts, (S, Dg), in at least float32.

        Raises:
            ValueError: A text has no vector.
        """
        ids = batch.host_ids.text_ids
        numbers = (ids if ids.ndim == 1 else ids[:, 0]).cpu().numpy()
        present = self.vectors.has_vectors(numbers)
        if not present.all():
            raise InvalidValueError(
                f"{self.path}: expected a vector of every text of the batch, got no vector of "
                f"{int((~present).sum())} of its {len(numbers)} rows; embed the training texts with --distinct"
            )
        return at_least_float32(
            move_to_device(torch.from_numpy(self.vectors.vectors_of_ids(numbers)), batch.ids.device)
        )

    def check(self, data: TrainingData) -> None:
        """Checks that the file has a vector for every text of a data set; see ``Guide.check``."""
        super().check(data)
        place, pairing = option_place(data.name), type(data.pairing).__name__
        if data.pairing.token_roles or data.task.join is not None:
            what = f"{place}.join" if data.task.join is not None else f"{place}.pairing"
            got = "texts that are joined" if data.task.join is not None else f"{pairing}, which cuts them out"
            raise InvalidValueError(
                f"{what}: expected rows that are texts of a file for {describe(self)}, got {got}; use "
                f"GuideModel, which encodes any row"
            )
        for texts in text_blocks(data.texts):
            present = self.vectors.has_vectors(np.fromiter(map(text_id, texts), np.int64, len(texts)))
            if not present.all():
                text = texts[int(present.argmin())]
                cleaned = " data.task.clean has changed the text;" if data.task.clean is not None else ""
                raise InvalidValueError(
                    f"{place}: expected a vector in {self.path} of every text, got no vector of "
                    f"{describe_value(text)};{cleaned} embed the training texts with --distinct"
                )


class GuideModel(Guide):
    """Guide that encodes every batch with a frozen model: no file, at the cost of a forward pass.

    It uses the model's own tokenizer, length limit and default prompt, no dropout, and float32. Duplicates in a
    batch are encoded once, so both views of a text have the same vector. As with any encoder, the last bits of a
    vector depend on the other texts of the batch; vectors of ``GuideFile`` don't.

    Args:
        folder: Local folder or hub name of a saved model, as in ``SentenceEncoder.from_pretrained``.
        batch_size: Number of texts that are encoded at once.

    Example:
        >>> GuideModel("teacher/").folder
        'teacher/'
    """

    needs_texts: ClassVar[bool] = True

    def __init__(self, folder: str, batch_size: int = 64) -> None:
        self.folder = folder
        self.batch_size = batch_size

    @cached_property
    def model(self) -> SentenceEncoder:
        """The frozen model of the guide, loaded at the first access."""
        model = SentenceEncoder.from_pretrained(self.folder, device="cpu").requires_grad_(False)
        model.require_dense(describe(self))
        if model.encoder.pools:
            raise InvalidValueError(
                f"{describe(self)}: expected a model with one encoder of all texts, got an encoder per role; "
                "give another model"
            )
        return model

    @cached_property
    def identity(self) -> str:
        """Digest of weights, tokenizer, pooler, head, prompts and limits of the guide's model."""
        return self.model.identity

    @property
    def features(self) -> int:
        """Number of features of the vectors of the guide's model."""
        return self.model.truncate_dim or self.model.features

    def __call__(self, batch: Batch) -> Tensor:
        """Encodes a batch's texts with the guide's model, (S, Dg), float32.

        Raises:
            ValueError: The batch doesn't contain its texts.
        """
        if batch.texts is None:
            raise InvalidValueError(
                f"{describe(self)}: expected a batch with its texts, got a batch without texts; build it by a "
                f"Collator with keep_texts=True"
            )
        numbers = {text: number for number, text in enumerate(dict.fromkeys(batch.texts))}
        device = batch.ids.device
        with full_precision(device):
            vectors = self.model.encode(
                list(numbers), batch_size=self.batch_size, convert_to_tensor=True, device=str(device)
            )
        places = move_to_device(torch.tensor([numbers[text] for text in batch.texts]), device)
        return torch.as_tensor(vectors)[places]

    def __getstate__(self) -> dict[str, Any]:  # Any: values of the arguments
        return {"folder": self.folder, "batch_size": self.batch_size}


GUIDES = "guides"
"""Checkpoint key of the identities of a module's guides."""


def check_guides_read(guides: Mapping[str, Guide], objectives: Mapping[str, Objective]) -> None:
    """Checks that objectives read only existing guides, and that each guide is read.

    Raises:
        ValueError: An objective reads an unknown guide, or no objective reads a guide.
    """
    there = ", ".join(guides) or "none"
    for name, objective in objectives.items():
        if unknown := [guide for guide in objective.guides if guide not in guides]:
            raise InvalidValueError(
                f"model.objectives.{name}: expected one of the guides of the module ({there}), got {unknown[0]}; "
                f"name it under model.guides, as a GuideFile or a GuideModel"
            )
    read_names = {guide for objective in objectives.values() for guide in objective.guides}
    if idle := [guide for guide in guides if guide not in read_names]:
        raise InvalidValueError(
            f"model.guides.{idle[0]}: expected an objective that reads this guide, got {', '.join(objectives)}; "
            f"name the guide in an objective, or remove it"
        )


def guide_vectors(
    guides: Mapping[str, Guide], batch: Batch, objectives: Iterable[Objective]
) -> dict[str, Tensor]:
    """Returns the vectors of the guides that objectives read for a batch, (S, Dg). Each guide is called once."""
    vectors = {}
    for name in dict.fromkeys(name for objective in objectives for name in objective.guides):
        with torch.no_grad(), naming_option(name):
            vectors[name] = guides[name](batch)
    return vectors


@contextmanager
def naming_option(name: str) -> Iterator[None]:
    """Adds ``model.guides.NAME`` in front of the error message of a guide, such as a missing file."""
    try:
        yield
    except ContrastiveTextError as error:
        kind = MissingFileError if isinstance(error, MissingFileError) else InvalidValueError
        raise kind(f"model.guides.{name}: {error}") from error


def check_guides_at_start(
    guides: Mapping[str, Guide], objectives: Mapping[str, Objective], trainer: pl.Trainer
) -> None:
    """Checks before the first step that guides have a vector for every text, with the width that objectives need.

    Raises:
        ValueError: A check fails; see ``Guide.check`` and ``Objective.check_guide_widths``.
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
        task_objectives = [reader for reader in objectives.values() if reader.task in (None, part.name)]
        for name in dict.fromkeys(guide for reader in task_objectives for guide in reader.guides):
            guides[name].check(part)


def guide_identities(guides: Mapping[str, Guide]) -> dict[str, str]:
    """Returns the name and the digest of each guide model or guide file, to be saved in a checkpoint."""
    return {name: guide.identity for name, guide in guides.items()}


def check_same_guides(guides: Mapping[str, Guide], kept: Mapping[str, str], where: object) -> None:
    """Checks that a resumed run has the same guides as at its start.

    Args:
        guides: Guides of the module.
        kept: Identities of the guides in the checkpoint.
        where: Path of the checkpoint, for the error message.

    Raises:
        ValueError: A guide has another identity.
    """
    for name, now in guide_identities(guides).items():
        if kept.get(name) != now:
            raise InvalidValueError(
                f"model.guides.{name}: expected the guide with which the run of {where} began "
                f"({kept.get(name, 'none')}), got {now}; give the same vectors, or begin a new run "
                "from its weights with --init_from"
            )


def describe_guides(guides: Mapping[str, Guide]) -> str:
    """Describes each guide as text: its arguments, its width, and the identity that a resumed run expects."""
    return "\n".join(
        f"{name}: {describe(guide)}; {guide.features} features; "
        f"identity {guide.identity}, as a resumed run must have it"
        for name, guide in guides.items()
    )
