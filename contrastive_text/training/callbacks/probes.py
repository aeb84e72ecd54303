"""Probe callbacks, which score vectors of held-out texts during training without changing the run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.random import generator
from contrastive_text.core.targets import Classes
from contrastive_text.core.terminal import log_message
from contrastive_text.data import Table, read_rows
from contrastive_text.data.files.formats import FileForm
from contrastive_text.metrics import nearest_neighbor_accuracy, paired_retrieval
from contrastive_text.training.module import ContrastiveModule

_SEED = 42


class _Probe(Callback):
    """Base class of callbacks that encode the texts of a file at intervals, as in inference, and log metrics.

    Every process encodes all texts, so no process waits for another. Weights, random states and training modes
    are unchanged afterwards.
    """

    def __init__(self, file: str | Path, every: int, limit: int) -> None:
        name = type(self).__name__
        self.file, self.every = file, at_least(f"{name}.every", every, 1)
        self.limit = at_least(f"{name}.limit", limit, 2)
        self._step = 0

    @cached_property
    @abstractmethod
    def rows(self) -> Table:
        """Rows of the file whose texts the probe encodes."""

    @abstractmethod
    def measure(self, module: ContrastiveModule, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Computes the probe's metrics by name, times 100."""  # Any: cells of a file

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reads the probe's file, computes the metrics of the initial weights, and prints them.

        Raises:
            FileNotFoundError: The file doesn't exist.
            ValueError: The file doesn't have the rows that the probe needs, or the strategy splits the weights.
        """
        if any(hasattr(parameter, "to_local") for parameter in pl_module.parameters()):
            raise InvalidValueError(
                f"{type(self).__name__}: expected whole weights in every process, got split weights; remove the "
                f"probe, or train with DDP"
            )
        self._step = trainer.global_step
        figures = self._measure_sample(pl_module)
        if trainer.is_global_zero:
            scores = ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items())
            log_message(
                f"probe at step {self._step}: {scores} on {min(self.limit, len(self.rows)):,} rows of {self.file}"
            )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Computes the probe's metrics every ``every`` steps, and writes them to all loggers."""
        if trainer.global_step == self._step:  # a batch inside an accumulation window
            return
        self._step = trainer.global_step
        if self._step % self.every:
            return
        figures = {f"probe/{name}": figure for name, figure in self._measure_sample(pl_module).items()}
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=self._step - 1)

    def _measure_sample(self, module: pl.LightningModule) -> dict[str, float]:
        assert isinstance(module, ContrastiveModule)
        order = sorted(int(i) for i in generator(_SEED).permutation(len(self.rows))[: self.limit])
        with _inference_mode(module):
            return self.measure(module, [dict(self.rows[i]) for i in order])


class NeighborProbe(_Probe):
    """Callback that logs the accuracy of a nearest-neighbor classifier of labeled texts: ``probe/knn@K``.

    Each text is classified by its k nearest other texts of the file. They vote with the weight
    exp(cosine / 0.07) (Wu et al. 2018, https://arxiv.org/abs/1805.01978, section 3.4).

    Args:
        file: File of texts and labels, in the formats of ``TextClassification``.
        classes: Names of the classes.
        every: Number of steps between two measurements. The weights before the first step are also measured.
        k: Number of neighbors.
        limit: Largest number of texts that are encoded. From a larger file the same sample is drawn every time.

    Raises:
        ValueError: A number is below 1. Or, when training starts, the file has no labels of these classes.

    Example:
        >>> NeighborProbe("reviews.tsv", classes=["bad", "good"], every=50).k
        10
    """

    def __init__(
        self, file: str | Path, classes: Sequence[str], every: int = 100, k: int = 10, limit: int = 1000
    ) -> None:
        super().__init__(file, every, limit)
        self.classes, self.k = classes, at_least("NeighborProbe.k", k, 1)

    @cached_property
    def rows(self) -> Table:
        """Rows of the probe's file: texts and the numbers of their classes."""
        return read_rows(
            self.file,
            reads=("text", "target"),
            target=Classes(tuple(self.classes)),
            split="dev",
            form=FileForm(options={}),
        )

    def measure(self, module: ContrastiveModule, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Returns the accuracy of the nearest-neighbor classifier, times 100."""  # Any: cells of a file
        model = module.sentence_encoder()
        model.require_dense("NeighborProbe")
        vectors = torch.as_tensor(model.encode([str(row["text"]) for row in rows]))
        labels = torch.tensor([int(float(str(row["target"]))) for row in rows])
        return {f"knn@{self.k}": nearest_neighbor_accuracy(vectors, labels, self.k)}


class RetrievalProbe(_Probe):
    """Callback that logs recall and mean reciprocal rank of retrieval: ``probe/recall@1`` and ``probe/mrr``.

    Each query is compared with all documents of the file (``metrics.paired_retrieval``). Queries and documents
    have the prompts of the run.

    Args:
        file: File of pairs, in the formats of ``Given``.
        every: Number of steps between two measurements. The weights before the first step are also measured.
        limit: Largest number of pairs that are encoded. From a larger file the same sample is drawn every time.

    Raises:
        ValueError: A number is below 1. Or, when training starts, the file has no pairs.

    Example:
        >>> RetrievalProbe("clicks.tsv").every
        100
    """

    def __init__(self, file: str | Path, every: int = 100, limit: int = 1000) -> None:
        super().__init__(file, every, limit)

    @cached_property
    def rows(self) -> Table:
        """Rows of the probe's file: pairs of a query and its document."""
        form = FileForm(pair_labels="positives", needs_label=False, options={})
        return read_rows(self.file, reads=("anchor", "positive"), split="dev", form=form)

    def measure(self, module: ContrastiveModule, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Returns recall at 1 and the mean reciprocal rank, times 100."""  # Any: cells of a file
        model = module.sentence_encoder()
        queries = torch.as_tensor(model.encode_query([str(row["anchor"]) for row in rows]))
        documents = torch.as_tensor(model.encode_document([str(row["positive"]) for row in rows]))
        recall, mrr = paired_retrieval(queries, documents)
        return {"recall@1": recall, "mrr": mrr}


@contextmanager
def _inference_mode(module: ContrastiveModule) -> Iterator[None]:
    """Sets a module to evaluation mode inside the block, then restores each part's mode and the random state."""
    modes = [(part, part.training) for part in module.modules()]
    devices = [module.device] if module.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
