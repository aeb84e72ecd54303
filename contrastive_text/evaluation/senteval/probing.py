"""SentEval's probing tasks: which linguistic properties a linear classifier finds in a model's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrastive_text.data.files.formats import listed, reading_error, short
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.senteval.classifiers import STANDARD, Classifier, Protocol
from contrastive_text.evaluation.senteval.labelled_texts import (
    DEV,
    TEST,
    TRAIN,
    LabelledTexts,
    Row,
    find,
    lines_of,
    naming,
    only,
    row_of,
)
from contrastive_text.evaluation.senteval.transfer import outcomes, scores

_FILES = {
    "Length": "sentence_length.txt",
    "WordContent": "word_content.txt",
    "Depth": "tree_depth.txt",
    "TopConstituents": "top_constituents.txt",
    "BigramShift": "bigram_shift.txt",
    "Tense": "past_present.txt",
    "SubjNumber": "subj_number.txt",
    "ObjNumber": "obj_number.txt",
    "OddManOut": "odd_man_out.txt",
    "CoordinationInversion": "coordination_inversion.txt",
}
PROBING_TASKS = tuple(_FILES)
"""The ten tasks in the order of the papers."""
_PARTS = {"tr": TRAIN, "va": DEV, "te": TEST}


def probing_scores(
    embed: CachedEncoder,
    folder: str | Path,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    tasks: Sequence[str] = PROBING_TASKS,
) -> list[TaskScore]:
    """Returns the accuracy of each probing task (Conneau et al., 2018, https://arxiv.org/abs/1805.01070).

    Args:
        embed: The encoder.
        folder: Where the files are; see ``probing_data``.
        protocol: How the classifier is trained; there are no folds, the dev part chooses the penalty.
        classifier: ``TorchClassifier()``, SentEval's own, where None.
        tasks: Which of ``PROBING_TASKS``.

    Returns:
        A score for each task in the order asked for; the part ``dev`` is the accuracy by which the penalty was
        chosen. A task without its file says what is missing.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be, or vectors with NaN.
        ImportError: ``SklearnClassifier`` without scikit-learn.

    Example:
        >>> probing_scores(embed, "SentEval/data")[0].task  # doctest: +SKIP
        'Length'
    """
    data = find_probing(folder, tasks)
    return scores(data, outcomes(embed, data, protocol, classifier))


def find_probing(folder: str | Path, tasks: Sequence[str] = PROBING_TASKS) -> dict[str, LabelledTexts | str]:
    """Returns the rows of each probing task, or what is missing of it; see ``probing_data``.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: Another task, or a file that is not what it should be.
    """
    for task in tasks:
        if task not in PROBING_TASKS:
            raise reading_error("tasks", listed(PROBING_TASKS), short(task), "name one of these")
    return {task: probing_data(task, folder) for task in tasks}


def probing_data(task: str, folder: str | Path) -> LabelledTexts | str:
    """Returns the rows of a probing task, or what is missing and where to get it.

    A file such as ``sentence_length.txt`` lies in the folder, in a folder in it, or in one of ``data`` in it.
    Each line is ``tr``, ``va`` or ``te``, a label and a text, with tabs between them.

    Args:
        task: One of ``PROBING_TASKS``.
        folder: Where to look.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be, or two copies of it.
    """
    name = _FILES[task]
    with naming(task):
        path = only(find(folder, name))
        if path is None:
            return (
                f"expected {name} in {folder} or a folder in it, found none; fetch data/probing of SentEval "
                "(https://github.com/facebookresearch/SentEval)"
            )
        parts: dict[str, list[Row]] = {part: [] for part in _PARTS.values()}
        for where, line in lines_of(path):
            part, *cells = line.split("\t")
            if part not in _PARTS or len(cells) != 2:
                raise reading_error(
                    where, "tr, va or te, a label and a text", short(line), "fetch the file again"
                )
            parts[_PARTS[part]].append(row_of(where, cells))
        return LabelledTexts.of(task, str(path), parts)
