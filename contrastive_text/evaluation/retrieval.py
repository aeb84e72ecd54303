"""Retrieval: queries that are to find their documents in a corpus, by cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from contrastive_text.core.errors import MissingFileError
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.data.files.formats import listed, options_of, reading_error, short
from contrastive_text.data.prompts import DOCUMENT, QUERY
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
from contrastive_text.inference.search import retrieval_scores
from contrastive_text.metrics import FIGURES


def find_retrieval(
    place: str | Path,
    corpus: str | Sequence[str] | None = None,
    tasks: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    bounds: Bounds = USUAL,
) -> dict[str, RetrievalSet | str]:
    """Returns the retrieval sets of a place, or what is missing of one and where to get it.

    A place is

    - a folder in BEIR's layout (see ``read_beir``), which is one task of its name; its judgments are those of
      ``qrels/test.tsv``, or the only ones;
    - a folder of such folders: a task each. Where one of them is of NanoBEIR, such as ``NanoMSMARCO``, or there
      is none, all its thirteen sets are tasks, and those that aren't there are missing;
    - ``hub`` for NanoBEIR on the hub; ``hub:PLACE`` for a copy of the same form, of another user or in a folder;
    - a file of pairs: each anchor is to find its own positives among those of all.

    Args:
        place: One of these.
        corpus: Files of further texts, which are ranked beside the positives of a file of pairs.
        tasks: Which of the tasks; all where empty.
        columns: Library column -> column of a file of pairs, as for ``read_rows``.
        bounds: How large what is in a file may be.

    Raises:
        FileNotFoundError: No such folder or file.
        ValueError: A file that is not what it should be, further texts or columns beside a corpus, or no such
            task.
        ImportError: The hub without the library ``datasets``.
    """
    name, _, copy = str(place).partition(":")
    path = Path(place)
    for option, given in (("corpus", corpus), ("columns", columns)):
        if given and not path.is_file():
            todo = "a folder has a corpus, in columns of its own; leave it out"
            raise reading_error(option, "a file of pairs beside it", str(place), todo)
    if name == "hub":
        return {task: _on_hub(task, copy or NANO_PLACE) for task in _chosen(tasks, NANO_SETS)}
    if path.is_file():
        (task,) = _chosen(tasks, [path.name])
        return {task: read_pair_corpus(path, corpus, columns, bounds=bounds, options=options_of("columns"))}
    if not path.is_dir():
        raise MissingFileError(
            f"{path}: expected a folder of data sets or a file of pairs, found none; check its name"
        )
    folders = {path.resolve().name: path} if holds_corpus(path) else _inside(path)
    nano = NANO_SETS if not folders or folders.keys() & {*NANO_SETS} else ()
    named = _chosen(tasks, dict.fromkeys((*nano, *folders)))
    return {
        task: read_beir(folders[task], chosen_split(folders[task], "test"), bounds)
        if task in folders
        else _missing(task, path)
        for task in named
    }


def retrieval_figures(embed: CachedEncoder, data: RetrievalSet, task: str = "") -> dict[str, Tensor]:
    """Returns what a model scores on each query of a set: name -> (Q,), in [0, 1].

    Queries and documents are given the prompt of the first name that the model has of those that mteb looks up:
    ``TASK-query``, ``TASK``, ``Retrieval-query``, ``Retrieval``, ``query``.
    """
    names = (embed.model.prompts.name_of(kind, task, "Retrieval") or kind for kind in (QUERY, DOCUMENT))
    queries, documents = map(embed, (data.queries, data.documents), names)
    return retrieval_scores(data, queries.to(embed.model.device), documents)


def score_retrieval(embed: CachedEncoder, tasks: Mapping[str, RetrievalSet | str]) -> list[TaskScore]:
    """Returns nDCG@10 of each task, times 100; the other figures of ``metrics.FIGURES`` are its parts."""
    main, *others = FIGURES
    scores = []
    for task, data in tasks.items():
        if isinstance(data, str):
            scores.append(TaskScore.absent(task, main, data))
            continue
        means = {name: 100 * float(each.mean()) for name, each in retrieval_figures(embed, data, task).items()}
        parts = {name: means[name] for name in others}
        scores.append(TaskScore(task, main, means[main], size=len(data.queries), parts=parts))
    return scores


def query_scores(embed: CachedEncoder, tasks: Mapping[str, RetrievalSet | str]) -> dict[str, Tensor | str]:
    """Returns nDCG@10 of each query of each task, (Q,), in [0, 1]; or what is missing of the task."""
    return {
        task: data if isinstance(data, str) else retrieval_figures(embed, data, task)[FIGURES[0]]
        for task, data in tasks.items()
    }


def _chosen(tasks: Sequence[str], there: Sequence[str] | Mapping[str, object]) -> list[str]:
    for task in tasks:
        if task not in there:
            raise reading_error("tasks", listed(there), short(task), "name some of these")
    return list(tasks or there)


def _inside(folder: Path) -> dict[str, Path]:
    return {each.name: each for each in sorted(folder.iterdir()) if each.is_dir() and holds_corpus(each)}


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
