"""A model as the Massive Text Embedding Benchmark calls it (``mteb`` 2, an optional library)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.inference.encoding import Vectors
from contrastive_text.inference.sentence_encoder import SentenceEncoder


class MTEBModel:
    """A sentence encoder behind mteb's ``EncoderProtocol``, for ``mteb.evaluate``.

    For the tasks of the Massive Text Embedding Benchmark (Muennighoff et al. 2023,
    https://aclanthology.org/2023.eacl-main.148). A text gets the model's prompt of its task
    and kind, query or document, by the first name that the model has of those that mteb looks up: ``TASK-query``,
    ``TASK``, the same of the task's type (``STS``), ``query``; or else the model's default. Similarity is the
    cosine. mteb files results under the name and, as the revision, the model's ``identity``: those of other
    weights or prompts are never taken for its own.

    Args:
        model: The encoder.
        name: What results are filed under, ``organisation/name`` as mteb wants it.

    Raises:
        ValueError: A name of another form.

    Example:
        >>> import mteb  # doctest: +SKIP
        >>> model = MTEBModel(SentenceEncoder.from_pretrained("model"), name="mine/simcse")  # doctest: +SKIP
        >>> mteb.evaluate(model, tasks=mteb.get_tasks(tasks=["STSBenchmark"]))  # doctest: +SKIP
    """

    def __init__(self, model: SentenceEncoder, name: str) -> None:
        if len([part for part in name.split("/") if part]) != 2 or name.count("/") != 1:
            raise InvalidValueError(
                f"MTEBModel.name: expected organisation/name, got {name!r}; take mine/model, for example"
            )
        self.model = model
        self.name = name

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,  # mteb's TaskMetadata, of an optional library, as is PromptType
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        batch_size: int = 64,
        show_progress_bar: bool = False,
    ) -> Vectors:
        """Returns the vectors of batches of texts.

        Args:
            inputs: Batches with a column ``text``, mteb's ``DataLoader[BatchedInput]``.
            task_metadata: Name and type of the task.
            hf_split: Not read.
            hf_subset: Not read.
            prompt_type: Query, document, or None for texts that are neither.
            batch_size: Texts at once.
            show_progress_bar: Whether to draw a bar.

        Returns:
            (N, D) float32.

        Raises:
            ValueError: Inputs without texts, such as images.
        """
        del hf_split, hf_subset
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise InvalidValueError(
                    f"MTEBModel.encode: expected texts, got {', '.join(batch)}; choose tasks of text"
                )
            texts += batch["text"]
        kind = None if prompt_type is None else str(prompt_type.value)
        name = self.model.prompts.name_of(kind, task_metadata.name, task_metadata.type)
        return self.model.encode(
            texts, prompt_name=name, batch_size=batch_size, show_progress_bar=show_progress_bar
        )

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the model's similarity of every vector with every other, (A, D) and (B, D) -> (A, B)."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the model's similarity of paired vectors, (N, D) and (N, D) -> (N,)."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    @cached_property
    def mteb_model_meta(self) -> Any:  # Any: mteb.ModelMeta, of an optional library
        """What mteb writes beside the results; made once, so take a new adapter for a model that trained on.

        Raises:
            ImportError: mteb isn't installed; the message has the command that installs it.
        """
        meta = require("mteb.models.model_meta", where="MTEBModel").ModelMeta
        return meta(
            loader=None,
            name=self.name,
            revision=self.model.identity,
            release_date=None,
            languages=None,
            n_parameters=sum(weight.numel() for weight in self.model.parameters()),
            memory_usage_mb=None,
            max_tokens=self.model.max_length,
            embed_dim=self.model.truncate_dim or self.model.features,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=self.model.similarity_fn_name,
            use_instructions=bool(self.model.prompts),
            training_datasets=None,
        )
