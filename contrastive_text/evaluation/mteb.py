"""Models and tasks of the Massive Text Embedding Benchmark (``mteb`` 2, an optional library)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from contrastive_text.core.config.class_paths import resolve
from contrastive_text.core.config.misspelt import nearest
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.evaluation.results import TaskScore
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
        name: Name under which mteb stores results, of the form ``organization/name``.

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
                f"MTEBModel.name: expected organization/name, got {name!r}; take mine/model, for example"
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
        """Description of the model that mteb writes next to the results. It is built once per adapter.

        Raises:
            ImportError: mteb isn't installed; the message has the command that installs it.
        """
        meta = require("mteb.models.model_meta", where="MTEBModel").ModelMeta
        unknown = (
            "release_date",
            "languages",
            "memory_usage_mb",
            "license",
            "open_weights",
            "public_training_code",
        )
        return meta(
            **dict.fromkeys((*unknown, "public_training_data", "training_datasets", "loader")),
            name=self.name,
            revision=self.model.identity,
            n_parameters=sum(weight.numel() for weight in self.model.parameters()),
            max_tokens=self.model.max_length,
            embed_dim=self.model.truncate_dim or self.model.features,
            framework=["PyTorch"],
            similarity_fn_name=self.model.similarity_fn_name,
            use_instructions=bool(self.model.prompts),
        )


def find_mteb(names: Sequence[str], where: str = "--tasks") -> list[Any]:  # Any: mteb's AbsTask
    """Returns tasks by mteb's names, or by ``module.Class`` of one's own, a subclass of ``mteb.AbsTask``.

    Args:
        names: Such as ``STSBenchmark``; each once.
        where: The option that names them, for errors.

    Raises:
        ImportError: mteb isn't installed.
        ValueError: No name, no such task, one that isn't of text alone, or a module that isn't trusted.
    """
    mteb = require("mteb", where=where)
    known = {task.metadata.name for task in importlib.import_module("mteb.get_tasks").TASK_LIST}
    if not names:
        raise InvalidValueError(
            f"{where}: expected names of mteb's tasks, such as STSBenchmark, got none; name some"
        )
    return [_task(mteb, name, known, where) for name in dict.fromkeys(names)]


def score_mteb(
    model: MTEBModel, tasks: Sequence[Any], folder: str | Path | None = None, batch_size: int = 64
) -> list[TaskScore]:
    """Returns the main score of each task as mteb takes it, times 100, over the splits and languages of the task.

    The parts of a task that has several are the main scores of each.

    Args:
        model: The model under its name.
        tasks: As ``find_mteb`` gives them.
        folder: Where mteb leaves its own JSON, ``results/MODEL/REVISION/TASK.json``; what it finds there of the
            same model, weights and prompts it doesn't run again. None for nowhere.
        batch_size: Texts at once.

    Example:
        >>> model = MTEBModel(SentenceEncoder.from_pretrained("model"), "mine/simcse")  # doctest: +SKIP
        >>> score_mteb(model, find_mteb(["STSBenchmark"]), "results")[0].score  # doctest: +SKIP
        76.4
    """
    mteb = require("mteb", where="score_mteb")
    failures = (OSError, ValueError, importlib.import_module("datasets").exceptions.DatasetsError)
    cache = None if folder is None else mteb.ResultCache(folder)
    scores = []
    for task in tasks:
        name, metric = task.metadata.name, task.metadata.main_score
        try:
            found = mteb.evaluate(model, task, cache=cache, encode_kwargs={"batch_size": batch_size})
        except ContrastiveTextError:
            raise
        except failures as error:  # most of all of data that aren't there
            got = f"{type(error).__name__} ({' '.join(str(error).split())})"
            scores.append(TaskScore.absent(name, metric, f"expected data that mteb can load, got {got}"))
            continue
        scores += [_score(each, metric) for each in found.task_results]
        scores += [TaskScore.absent(name, metric, error.exception) for error in found.exceptions or ()]
    return scores


def organized_name(path: str) -> str:
    """Returns a model's folder or hub name as ``organization/name``, under which mteb files results.

    Example:
        >>> organized_name("BAAI/bge-m3"), organized_name("/runs/version_0/model")
        ('BAAI/bge-m3', 'version_0/model')
    """
    *above, name = (part.strip("/") for part in Path(path).resolve().parts)
    return f"{above[-1] if above and above[-1] else 'local'}/{name}"


def _task(mteb: Any, name: str, known: Collection[str], where: str) -> Any:
    if "." in name and name not in known and not re.search(r"\.[vV]\d+$", name):  # as in STS17.v2
        task = resolve(name, mteb.AbsTask, where)()
    else:
        try:
            task = mteb.get_task(name)  # by an earlier name of a task too
        except KeyError:
            todo = nearest(name, known) or "; or module.Class of your own"
            raise InvalidValueError(f"{where}: expected a task of mteb, got {name!r}{todo}") from None
    if list(task.metadata.modalities) != ["text"]:
        kinds = ", ".join(task.metadata.modalities)
        raise InvalidValueError(f"{where}: expected tasks of text, got {name}, of {kinds}; leave it out")
    return task


def _score(result: Any, metric: str) -> TaskScore:
    parts = {
        f"{split}, {each['hf_subset']}": 100 * each["main_score"]
        for split, scores in result.scores.items()
        for each in scores
    }
    return TaskScore(
        result.task_name, metric, 100 * float(result.get_score()), parts=parts if len(parts) > 1 else {}
    )
