"""Encoder of a text column, batch by batch, for engines that read a table themselves, such as Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array


class BatchEncoder:
    """Worker of a data engine: adds a column of vectors to each batch of a table of texts.

    The model is loaded once, when the worker is created. It runs on the GPU that the engine assigns to the
    worker, or on the CPU. Rows keep their order, and no row is dropped: a blank text gets a vector too, but
    ``contrastive-text embed`` skips it. Vectors are equal to those of ``SentenceEncoder.encode`` except for
    rounding, which depends on the texts of a batch.

    Args:
        model: Model folder or hub name, as for ``SentenceEncoder.from_pretrained``.
        column: Name of the column of texts.
        output: Name of the new column of vectors.
        encoding: Encoding options, such as prompt and precision; None for the model's own float32 vectors.
        dtype: Type of the model's weights.

    Raises:
        ValueError: The model doesn't exist, options don't fit the model, or ``encoding`` has several devices.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> texts = ray.data.read_parquet("texts/")  # doctest: +SKIP
        >>> vectors = texts.map_batches(  # doctest: +SKIP
        ...     BatchEncoder, fn_constructor_kwargs={"model": "my-model"}, batch_format="pyarrow",
        ...     batch_size=4096, num_gpus=1, compute=ray.data.ActorPoolStrategy(size=8),
        ... )
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        output: str = "embedding",
        encoding: Encoding | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.encoding = encoding or Encoding()
        if self.encoding.devices is not None:
            raise InvalidValueError(
                f"BatchEncoder.encoding.device: expected one device, got {list(self.encoding.devices)}; have the "
                "engine start a worker for each"
            )
        self.column = column
        self.output = output
        self.model = SentenceEncoder.from_pretrained(model, dtype=dtype)
        self.model.require_dense("BatchEncoder.model")
        self._empty = self.model.encode(
            [],
            truncate_dim=self.encoding.truncate_dim,
            precision=self.encoding.precision,
            ranges=self.encoding.ranges,
        )

    def __call__(self, batch: Any) -> Any:  # Any: pyarrow has no types
        """Returns a copy of a table's batch with the vectors of its texts as the last column.

        Args:
            batch: Mapping of column name -> array of n values, or a ``pyarrow.Table`` of n rows.

        Returns:
            A batch of the same type. In a table the vectors, (n, D), are a ``FixedSizeListArray``.

        Raises:
            TypeError: The batch has another type, or a text is not a string.
            ValueError: The column of texts is missing, or the column of vectors exists already.
        """
        if isinstance(batch, Mapping):
            self._check(list(batch))
            return {**batch, self.output: self._vectors(list(batch[self.column]))}
        pyarrow = require("pyarrow", "BatchEncoder")
        if not isinstance(batch, pyarrow.Table):
            raise InvalidTypeError(
                f"BatchEncoder: expected a mapping of arrays or a table of Arrow, got {type(batch).__name__}; "
                'have the engine give one, in Ray Data by batch_format="pyarrow"'
            )
        self._check(batch.column_names)
        vectors = self._vectors(batch[self.column].to_pylist())
        flat = pyarrow.array(vectors.ravel())
        return batch.append_column(self.output, pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))

    def _check(self, columns: list[str]) -> None:
        if self.column not in columns:
            raise InvalidValueError(
                f"BatchEncoder.column: expected one of {', '.join(columns)}, got {self.column!r}; name the "
                f"column of the texts"
            )
        if self.output in columns:
            raise InvalidValueError(
                f"BatchEncoder.output: expected the name of a new column, got {self.output!r}, which exists; "
                "name another"
            )

    def _vectors(self, texts: list[str]) -> Array:
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidTypeError(
                    f"BatchEncoder: expected texts in column {self.column!r}, got {type(text).__name__} in row "
                    f"{row} of a batch; remove such rows first"
                )
        blocks = [np.asarray(block) for block in self.model.encode_blocks(texts, self.encoding)]
        return np.concatenate([np.asarray(self._empty), *blocks])
