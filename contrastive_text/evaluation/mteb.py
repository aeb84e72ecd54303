"""Models and tasks for the Massive Text Embedding Benchmark (``mteb`` 2, an optional library)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.suggestions import suggest_name
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.data.prompts import kind_of
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.inference.encoding import Vectors
from contrastive_text.inference.sentence_encoder import SentenceEncoder


class MTEBModel:
    """Adapter of a sentence encoder to mteb's ``EncoderProtocol``, for ``mteb.evaluate``.

    It runs the tasks of the Massive Text Embedding Benchmark (Muennighoff et al. 2023,
    https://aclanthology.org/2023.eacl-main.148). Each text gets a prompt for its task and its kind, query or
    document. The prompt is the first one that the model has of ``TASK-query``, ``TASK``, ``TYPE-query``, ``TYPE``
    (such as ``STS``) and ``query``, or else the model's default prompt. Similarity is the cosine. mteb stores
    results by the name and by the model's ``identity`` as the revision, so results of other weights or prompts
    are never reused.

    Args:
        model: The encoder.
        name: Name by which mteb stores results, in the form ``organization/name``.

    Raises:
        ValueError: The name has another form.

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
        task_metadata: Any,  # TaskMetadata of mteb, an optional library; so is PromptType
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        batch_size: int = 64,
        show_progress_bar: bool = False,
    ) -> Vectors:
        """Encodes batches of mteb's texts and returns the vectors.

        Args:
            inputs: Batches with a column ``text``, mteb's ``DataLoader[BatchedInput]``.
            task_metadata: Name and type of the task.
            hf_split: Not read.
            hf_subset: Not read.
            prompt_type: Query or document; None for other texts.
            batch_size: Number of texts per batch.
            show_progress_bar: Whether to show a progress bar.

        Returns:
            Vectors, (N, D) float32.

        Raises:
            ValueError: A batch has no texts, but images, for example.
        """
        del hf_split, hf_subset
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise InvalidValueError(
                    f"MTEBModel.encode: expected texts, got {', '.join(batch)}; choose tasks of text"
                )
            texts += batch["text"]
        kind = None if prompt_type is None else kind_of(str(prompt_type.value))
        name = self.model.prompts.name_of(kind, task_metadata.name, task_metadata.type)
        self.model.require_dense("MTEBModel")
        return self.model.encode(
            texts, prompt_name=name, kind=kind, batch_size=batch_size, show_progress_bar=show_progress_bar
        )

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the model's similarity of each vector to each other vector, (A, D) and (B, D) -> (A, B)."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the model's similarity of the two vectors of each pair, (N, D) and (N, D) -> (N,)."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    @cached_property
    def mteb_model_meta(self) -> Any:  # Any: mteb.ModelMeta, of an optional library
        """Description of the model that mteb writes next to the results. It is built once per adapter.

        Raises:
            ImportError: mteb isn't installed. The message has the command that installs it.
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
    """Returns tasks of mteb by their names, and tasks of your own by ``module.Class``.

    Args:
        names: Names such as ``STSBenchmark``, or subclasses of ``mteb.AbsTask``. Repeated names count once.
        where: Option of the names, for error messages.

    Raises:
        ImportError: mteb isn't installed.
        ValueError: There is no name, a task is unknown or reads more than texts, or a module isn't trusted.
    """
    mteb = require("mteb", where=where)
    all_names = {task.metadata.name for task in importlib.import_module("mteb.get_tasks").TASK_LIST}
    if not names:
        raise InvalidValueError(
            f"{where}: expected names of mteb's tasks, such as STSBenchmark, got no name; name a task"
        )
    return [_task(mteb, name, all_names, where) for name in dict.fromkeys(names)]


def score_mteb(
    model: MTEBModel, tasks: Sequence[Any], folder: str | Path | None = None, batch_size: int = 64
) -> list[TaskScore]:
    """Returns the main score of each mteb task, times 100, as mteb averages it over splits and languages.

    If a task has several splits or languages, ``parts`` has the main score of each.

    Args:
        model: Adapter of the model.
        tasks: Tasks as ``find_mteb`` returns them.
        folder: Folder for mteb's JSON files, ``results/MODEL/REVISION/TASK.json``. Tasks with a file of the same
            weights and prompts don't run again. None writes no files.
        batch_size: Number of texts per batch.

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
            result = mteb.evaluate(model, task, cache=cache, encode_kwargs={"batch_size": batch_size})
        except ContrastiveTextError:
            raise
        except failures as error:  # usually because data are missing
            got = f"{type(error).__name__} ({' '.join(str(error).split())})"
            scores.append(TaskScore.absent(name, metric, f"expected data that mteb can load, got {got}"))
            continue
        scores += [_score(task_result, metric) for task_result in result.task_results]
        scores += [TaskScore.absent(name, metric, error.exception) for error in result.exceptions or ()]
    return scores


def organized_name(path: str) -> str:
    """Converts a model's folder or hub name to ``organization/name``, by which mteb stores results.

    Example:
        >>> organized_name("BAAI/bge-m3"), organized_name("/runs/version_0/model")
        ('BAAI/bge-m3', 'version_0/model')
    """
    *parents, name = (part.strip("/") for part in Path(path).resolve().parts)
    return f"{parents[-1] if parents and parents[-1] else 'local'}/{name}"


def _task(mteb: Any, name: str, all_names: Collection[str], where: str) -> Any:
    """Returns the mteb task of a name or class path."""
    if "." in name and name not in all_names and not re.search(r"\.[vV]\d+$", name):  # STS17.v2 is a name
        task = import_class(name, mteb.AbsTask, where)()
    else:
        try:
            task = mteb.get_task(name)  # finds tasks by former names too
        except KeyError:
            todo = suggest_name(name, all_names) or "; or module.Class of your own"
            raise InvalidValueError(f"{where}: expected a task of mteb, got {name!r}{todo}") from None
    if list(task.metadata.modalities) != ["text"]:
        kinds = ", ".join(task.metadata.modalities)
        raise InvalidValueError(f"{where}: expected tasks of text, got {name}, of {kinds}; remove it")
    return task


def _score(result: Any, metric: str) -> TaskScore:
    parts = {
        f"{split}, {score['hf_subset']}": 100 * score["main_score"]
        for split, scores in result.scores.items()
        for score in scores
    }
    return TaskScore(
        result.task_name, metric, 100 * float(result.get_score()), parts=parts if len(parts) > 1 else {}
    )
