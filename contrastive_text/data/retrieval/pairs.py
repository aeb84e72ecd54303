"""A corpus made of pairs: each text is to find its own partners among those of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from contrastive_text.core.text_files import USUAL, Bounds
from contrastive_text.data.files.forms import PYTHON, FileForm
from contrastive_text.data.files.readers import read_rows
from contrastive_text.data.retrieval.judged import RetrievalSet, judged


def read_pair_corpus(
    path: str | Path,
    texts: str | Sequence[str] | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: Bounds = USUAL,
    options: Mapping[str, str] = PYTHON,
) -> RetrievalSet:
    r"""Reads pairs as queries and a corpus: the distinct anchors, and the distinct positives of all of them.

    The positives of pairs labelled 0 are documents of the corpus that no query is to find by them.

    A list of positives, or several rows of one anchor, are so many relevant documents. An anchor that is also
    another's positive never finds itself. Documents have the order of the files; those of ``texts`` come last.

    Args:
        path: Pairs, as ``read_rows`` takes them.
        texts: Files of further texts that are ranked too; those that are positives count once.
        columns: As for ``read_rows``.
        split: As for ``read_rows``.
        bounds: How large what is in a file may be.
        options: Setting -> how the caller spells it, for messages.

    Raises:
        FileNotFoundError: A file that isn't there.
        ValueError: What ``read_rows`` refuses, with its line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\na cat?\tan animal\na dog?\ta pet\n")
        ...     data = read_pair_corpus(path)
        >>> data.queries, data.documents, data.relevance
        (('a cat?', 'a dog?'), ('a pet', 'an animal'), ({0: 1.0, 1: 1.0}, {0: 1.0}))
    """
    form = FileForm(pair_labels="hard", needs_label=False, options=options)
    table = read_rows(path, reads=("anchor", "positive"), columns=columns, split=split, bounds=bounds, form=form)
    alone = FileForm(options={})
    further = None if texts is None else read_rows(texts, reads=("text",), bounds=bounds, form=alone)
    grades: dict[str, dict[str, float]] = {}
    for row in table:
        if row.get("target") == 0.0:
            continue
        grades.setdefault(str(row["anchor"]), {})[str(row["positive"])] = 1.0
    positives = dict.fromkeys(str(row["positive"]) for row in table)
    corpus = positives | dict.fromkeys(str(row["text"]) for row in further or ())
    return judged(
        str(path),
        queries={text: text for text in grades},
        documents={text: text for text in corpus},
        grades=grades,
        own={text: text for text in grades},
        notes=[table.understood, *([] if further is None else [further.understood])],
    )
