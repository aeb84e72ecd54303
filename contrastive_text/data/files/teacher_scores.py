"""Teacher scores, which a reranker or another teacher gave the texts of each row: read, and put into batches."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import is_blank
from contrastive_text.core.targets import parse_number
from contrastive_text.core.types import Example
from contrastive_text.data.files.formats import Cells, count_noun, join_names, reading_error, short


class TeacherScores:
    """Reads the teacher scores of a file, row by row, and describes them.

    Args:
        columns: Columns of the scores. One column has a list for each row: the scores of the positives, then of
            the hard negatives. Two columns have these separately. Of more columns, each has the next scores.
        header: Names of all columns of the file.

    Raises:
        ValueError: A cell that isn't a list of finite numbers, or another number of scores than texts.

    Example:
        >>> scores = TeacherScores(["pos_scores", "neg_scores"], ["query", "pos_scores", "neg_scores"])
        >>> scores.read("a.jsonl:1", ["a cat?", [9.5, 8.0], [1.5]], positives=2, negatives=["a car"])
        [(9.5, 1.5), (8.0, 1.5)]
        >>> scores.describe()
        '1.5 to 9.5'
    """

    def __init__(self, columns: Sequence[str], header: Sequence[str]) -> None:
        self._names = join_names(map(short, columns))
        self._places = [header.index(column) for column in columns]
        self._lowest, self._highest = math.inf, -math.inf
        self._rows = self._equal_rows = 0

    def read(self, where: str, cells: Cells, positives: int, negatives: Sequence[str]) -> list[tuple[float, ...]]:
        """Returns the scores of each positive of a row, followed by the scores of the row's hard negatives.

        Args:
            where: The file and line, for messages.
            cells: Cells of the row.
            positives: Number of positives.
            negatives: Hard negatives. A blank text is not a hard negative. Its score is null or missing.
        """
        lists = [_items(cells[place]) for place in self._places]
        if len(lists) != 2:
            together = [item for items in lists for item in items]
            lists = [together[:positives], together[positives:]]
        is_text = [not is_blank(text) for text in negatives]
        if len(lists[1]) == len(is_text):  # a blank text may have null as its score
            pairs = zip(lists[1], is_text, strict=True)
            lists[1] = [item for item, is_present in pairs if is_present or item is not None]
        counts, expected = [len(items) for items in lists], [positives, sum(is_text)]
        if counts != expected:
            nouns = zip(expected, ("positive", "hard negative"), strict=True)
            got = f"{counts[0]} and {counts[1]}" if len(self._places) == 2 else f"{sum(counts)}"
            raise reading_error(
                where,
                f"a score in {self._names} for each text ({' and '.join(count_noun(*noun) for noun in nouns)})",
                f"{got}",
                "write the positive's score first; write a margin m of one hard negative as [m, 0]",
            )
        numbers = [[parse_number(item) for item in items] for items in lists]
        for items, values in zip(lists, numbers, strict=True):
            for item, value in zip(items, values, strict=True):
                if not math.isfinite(value):
                    item_text = short(json.dumps(item, default=str))
                    todo = "score the text again, or remove the row"
                    raise reading_error(where, f"finite numbers in {self._names}", item_text, todo)
        scores = [(value, *numbers[1]) for value in numbers[0]]
        self._lowest = min(self._lowest, *map(min, scores))
        self._highest = max(self._highest, *map(max, scores))
        compared = [row for row in scores if len(row) > 1]
        self._rows += len(compared)
        self._equal_rows += sum(max(row) == min(row) for row in compared)
        return scores

    def check(self, where: str) -> None:
        """Checks that some row has different scores, after all rows were read.

        Args:
            where: The file, for the message.

        Raises:
            ValueError: In every row all scores are equal, so that no objective can learn an order.
        """
        if self._rows and self._rows == self._equal_rows:
            got = f"the same score for all texts of a row, {self.describe()}"
            todo = "write the scores of a teacher that orders the texts"
            raise reading_error(where, f"different scores for the texts of a row in {self._names}", got, todo)

    def describe(self) -> str:
        """Describes the range of the scores, and the number of rows whose scores are equal."""
        equal = f", equal in {count_noun(self._equal_rows, 'row')}" if self._equal_rows else ""
        return f"{self._lowest:g} to {self._highest:g}{equal}"


def collate_scores(examples: Sequence[Example], pairing: str) -> Tensor | None:
    """Returns the teacher scores of examples by slot, (N, positive and negative slots); None without scores.

    Without positives, the first score is the anchor's: a query and its positive in one sequence.

    Args:
        examples: Examples with equal numbers of texts.
        pairing: Name of their pairing, for the error.

    Raises:
        ValueError: An example has another number of scores than positives and hard negatives.
    """
    if all(example.scores is None for example in examples):
        return None
    texts = max(len(examples[0].positives), 1) + len(examples[0].negatives)
    counts = [len(example.scores or ()) for example in examples]
    if other := [count for count in counts if count != texts]:
        raise InvalidValueError(
            f"pairing {pairing}: expected {texts} scores, one for each positive and hard negative of an example, "
            f"got {other[0]}; give the positives' scores first, then the scores of the hard negatives"
        )
    scores = torch.tensor([example.scores for example in examples], dtype=torch.float64)
    return scores.repeat_interleave(examples[0].views_per_text, dim=1)


def _items(cell: object) -> list[object]:
    """Returns the items of a list, which may be written as JSON in a text; a single value is a list of one."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return [cell]
    if isinstance(cell, list | tuple):
        return list(cell)
    return [] if cell is None or (isinstance(cell, str) and is_blank(cell)) else [cell]
