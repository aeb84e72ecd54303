"""Evaluation of retrieval: ranks the documents of a corpus for each query by cosine, or by sparse vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from contrastive_text.core.errors import MissingFileError
from contrastive_text.core.storage.text_files import USUAL, SizeLimits
from contrastive_text.data.files.formats import join_names, options_of, reading_error, short
from contrastive_text.data.prompts import DOCUMENT, QUERY, Kind
from contrastive_text.data.retrieval import (
    NANO_PLACE,
    NANO_SETS,
    RetrievalSet,
    chosen_split,
    holds_corpus,
    read_beir,
    read_nano,
    read_pair_corpus,
)
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.inference.head_models import Reranker
from contrastive_text.inference.mining_run import warn_truncated
from contrastive_text.inference.search import rank_documents, retrieval_scores
from contrastive_text.inference.sparse import comparable
from contrastive_text.metrics import RETRIEVAL_METRICS, ranking_scores


def find_retrieval(
    place: str | Path,
    corpus: str | Sequence[str] | None = None,
    tasks: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    bounds: SizeLimits = USUAL,
) -> dict[str, RetrievalSet | str]:
    """Returns the retrieval sets in a folder or on the hub. The value of a missing task names its files.

    The place is one of

    - a folder in BEIR's layout (see ``read_beir``), which is one task. Its judgments are from ``qrels/test.tsv``,
      or from its only file of judgments;
    - a folder of such folders, which are one task each. If the folder is empty or has a set of NanoBEIR, such as
      ``NanoMSMARCO``, all thirteen sets of NanoBEIR are tasks;
    - ``hub`` for NanoBEIR on the hub, or ``hub:PLACE`` for a copy of another user or in a folder;
    - a file of pairs: the task is to find the positives of each anchor among all positives.

    Args:
        place: Folder, file or ``hub``.
        corpus: Files of further texts to rank in addition to the positives of a file of pairs.
        tasks: Names of the tasks to return; all if empty.
        columns: Column of a file of pairs by its name in the library, as for ``read_rows``.
        bounds: Limits on the data files.

    Raises:
        FileNotFoundError: The folder or file doesn't exist.
        ValueError: A file is damaged, a task is unknown, or ``corpus`` or ``columns`` is given without a file of
            pairs.
        ImportError: The place is the hub, and the library ``datasets`` isn't installed.
    """
    name, _, copy = str(place).partition(":")
    path = Path(place)
    for option, value in (("corpus", corpus), ("columns", columns)):
        if value and not path.is_file():
            todo = "a folder has its own corpus and columns; remove the option"
            raise reading_error(option, "a file of pairs together with it", str(place), todo)
    if name == "hub":
        return {task: _on_hub(task, copy or NANO_PLACE) for task in _selected(tasks, NANO_SETS)}
    if path.is_file():
        (task,) = _selected(tasks, [path.name])
        return {task: read_pair_corpus(path, corpus, columns, bounds=bounds, options=options_of("columns"))}
    if not path.is_dir():
        raise MissingFileError(
            f"{path}: expected a folder of data sets or a file of pairs, found none; check its name"
        )
    folders = {path.resolve().name: path} if holds_corpus(path) else _inside(path)
    nano = NANO_SETS if not folders or folders.keys() & {*NANO_SETS} else ()
    return {
        task: read_beir(folders[task], chosen_split(folders[task], "test"), bounds)
        if task in folders
        else _missing(task, path)
        for task in _selected(tasks, dict.fromkeys((*nano, *folders)))
    }


@dataclass(frozen=True)
class Rerank:
    """Second stage of retrieval: a reranker that orders the first documents of each query again.

    Args:
        reranker: Model that scores a query and a document in one sequence.
        top_k: Number of first documents that it scores. The other documents keep their order after them.
        batch_size: Number of pairs in a batch.
    """

    reranker: Reranker
    top_k: int = 100
    batch_size: int = 32

    def __call__(self, data: RetrievalSet, ranked: Tensor) -> Tensor:
        """Orders the first documents of rankings again by the reranker's scores, highest first.

        Args:
            data: Queries and documents.
            ranked: Numbers of documents, best first, (Q, K); -1 where there are fewer documents.
        """
        first = ranked[:, : self.top_k]
        is_scored = first >= 0
        places = zip(is_scored.nonzero()[:, 0].tolist(), first[is_scored].tolist(), strict=True)
        pairs = [(data.queries[query], data.documents[document]) for query, document in places]
        values = self.reranker.predict(pairs, batch_size=self.batch_size, show_progress_bar=True)
        warn_truncated(self.reranker.truncated, len(pairs), self.reranker)
        scores = torch.full(first.shape, -math.inf)
        scores[is_scored] = torch.as_tensor(values, dtype=torch.float32)
        order = scores.sort(dim=1, descending=True, stable=True).indices
        return torch.cat([first.gather(1, order), ranked[:, self.top_k :]], dim=1)


def retrieval_figures(
    embed: CachedEncoder, data: RetrievalSet, task: str = "", rerank: Rerank | None = None
) -> dict[str, Tensor]:
    """Returns the score of each query of a retrieval set, (Q,) in [0, 1], by the name of the figure.

    Queries get the first prompt that the model has of ``TASK-query``, ``TASK``, ``Retrieval-query``,
    ``Retrieval`` and ``query``, as in mteb. The prompt of documents is found in the same way.

    Args:
        embed: Encoder of the model.
        data: Queries, corpus and relevance judgments.
        task: Name of the task, which selects the prompts.
        rerank: Second stage, which orders the first documents again; None for the model's ranking.
    """
    texts: dict[Kind, Sequence[str]] = {QUERY: data.queries, DOCUMENT: data.documents}
    model, read = embed.model, embed.sparse if embed.model.is_sparse else embed
    queries, documents = (
        read(texts[kind], model.prompts.name_of(kind, task, "Retrieval") or kind, kind) for kind in texts
    )
    if model.is_sparse:
        queries, documents = (comparable(model.similarity_fn_name, rows) for rows in (queries, documents))
    else:
        queries = queries.to(model.device)
    if rerank is None:
        return retrieval_scores(data, queries, documents)
    depth = max(rerank.top_k, *(int(name.rpartition("@")[2]) for name in RETRIEVAL_METRICS))
    ranked = rank_documents(queries, documents, depth, data.own_documents).cpu()
    return ranking_scores(rerank(data, ranked), data.relevance)


def score_retrieval(
    embed: CachedEncoder, tasks: Mapping[str, RetrievalSet | str], rerank: Rerank | None = None
) -> list[TaskScore]:
    """Returns nDCG@10 of each retrieval task, times 100, with all other ``metrics.RETRIEVAL_METRICS`` as
    parts."""
    main, *further = RETRIEVAL_METRICS
    scores = []
    for task, data in tasks.items():
        if isinstance(data, str):
            scores.append(TaskScore.absent(task, main, data))
            continue
        figures = retrieval_figures(embed, data, task, rerank)
        means = {name: 100 * float(by_query.mean()) for name, by_query in figures.items()}
        parts = {name: means[name] for name in further}
        scores.append(TaskScore(task, main, means[main], size=len(data.queries), parts=parts))
    return scores


def query_scores(embed: CachedEncoder, tasks: Mapping[str, RetrievalSet | str]) -> dict[str, Tensor | str]:
    """Returns nDCG@10 of each query of each task, (Q,) in [0, 1], or a text that names a task's missing files."""
    return {
        task: data if isinstance(data, str) else retrieval_figures(embed, data, task)[RETRIEVAL_METRICS[0]]
        for task, data in tasks.items()
    }


def _selected(tasks: Sequence[str], available: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Returns the selected retrieval tasks, or all available tasks if none is selected."""
    for task in tasks:
        if task not in available:
            raise reading_error("tasks", join_names(available), short(task), "name some of these")
    return list(tasks or available)


def _inside(folder: Path) -> dict[str, Path]:
    """Returns the folders in BEIR's layout inside a folder, by name."""
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and holds_corpus(path)}


def _missing(task: str, folder: Path) -> str:
    return (
        f"expected {task}/corpus.jsonl, queries.jsonl and qrels/test.tsv in {folder}, found none; give hub for "
        f"the folder, to read {NANO_PLACE}, or write its parts there"
    )


def _on_hub(task: str, place: str) -> RetrievalSet | str:
    try:
        return read_nano(task, place)
    except ValueError as error:
        return f"{error}; or give a folder with {task}/corpus.jsonl, queries.jsonl and qrels/test.tsv"
