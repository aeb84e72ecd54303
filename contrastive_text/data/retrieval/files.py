"""What a run ranks in validation: folders in BEIR's layout, and files of pairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.text_files import USUAL, Bounds
from contrastive_text.data.files.given import GIVEN, Source
from contrastive_text.data.retrieval.beir import chosen_split, read_beir
from contrastive_text.data.retrieval.judged import RetrievalSet
from contrastive_text.data.retrieval.pairs import read_pair_corpus
from contrastive_text.data.tasks import file_name, files_of

MOST_DOCUMENTS = 10_000
"""Documents that a validation ranks where nothing else is said: some seconds of encoding on a GPU."""


@dataclass(frozen=True, slots=True)
class RetrievalFiles:
    """Places of retrieval sets.

    Args:
        sources: Folders in BEIR's layout, and files or rows of pairs.
        corpus: Files of further texts, beside the positives of each file of pairs.
        columns: Library column -> column of each file of pairs; None for their usual names.
        documents: Most documents of a set; None for all.

    Raises:
        ValueError: No documents asked for.
    """

    sources: Source | None = None
    corpus: Source | None = None
    columns: Mapping[str, str] | None = None
    documents: int | None = MOST_DOCUMENTS

    def __post_init__(self) -> None:
        if self.documents is not None and self.documents < 1:
            raise InvalidValueError(f"data.retrieval_documents: expected 1 or more, got {self.documents}")

    def read(self, taken: Collection[str] = (), bounds: Bounds = USUAL) -> dict[str, RetrievalSet]:
        """Returns the sets by the names of their folders and files, bounded; the same for every seed of a run.

        Args:
            taken: Names that others of the run's tables have.
            bounds: How large what is in a file may be.

        Raises:
            FileNotFoundError: A folder or file that isn't there.
            ValueError: What ``read_beir`` and ``read_pair_corpus`` refuse, two sets of one name, or further texts
                without a file of pairs.
        """
        sources = files_of(self.sources)
        names = [file_name(Path(each).resolve().name if _is_dir(each) else each) for each in sources]
        if twice := [name for i, name in enumerate(names) if name in {*names[:i], *taken}]:
            raise InvalidValueError(
                f"data.retrieval: expected folders and files of different names, got {twice[0]} twice; no name "
                "of a task or a validation file either: rename one"
            )
        for option, given in (("corpus", self.corpus), ("columns", self.columns)):
            if given and all(map(_is_dir, sources)):
                raise InvalidValueError(
                    f"data.retrieval_{option}: expected a file of pairs in data.retrieval, got none; leave it "
                    "out, for a folder has its own corpus"
                )
        return {name: self._read(source, bounds) for name, source in zip(names, sources, strict=True)}

    def _read(self, source: str, bounds: Bounds) -> RetrievalSet:
        if _is_dir(source):
            data = read_beir(Path(source), chosen_split(Path(source), "dev"), bounds)
        else:
            options = {"columns": "--data.retrieval_columns"}
            corpus = files_of(self.corpus) or None
            data = read_pair_corpus(source, corpus, self.columns, bounds=bounds, options=options)
        return data if self.documents is None else data.bounded(self.documents)


def _is_dir(source: str) -> bool:
    return not source.startswith(GIVEN) and Path(source).is_dir()
