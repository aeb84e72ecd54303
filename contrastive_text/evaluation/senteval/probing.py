"""The data of SentEval's probing tasks: which linguistic properties a classifier finds in a model's vectors."""

from __future__ import annotations

from pathlib import Path

from contrastive_text.data.files.formats import reading_error, short
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
"""The ten tasks in the order of the papers (Conneau et al., 2018, https://arxiv.org/abs/1805.01070)."""
_PARTS = {"tr": TRAIN, "va": DEV, "te": TEST}


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
