"""Shows figures of the benchmarks over dates and processors, from ``benchmarks/results/*.json``.

    python benchmarks/history.py                                    # names of all figures
    python benchmarks/history.py train-step 32 float32 seconds      # those whose names have all these words
    python benchmarks/history.py ours seconds --over "train-step 32 float32 sentence-transformers seconds"

A figure's name is that of its result, the keys on the way to it, and what its row says of itself. Of several
values, those of the rounds, the median is shown. A column is of one date and one processor, which results before
2026-11-29 don't name. Seconds of two machines can't be held against each other: ``--over`` divides each figure by
another one of its column.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import RESULTS, markdown

LABELS = ("max length", "texts", "rows", "ranks", "lines", "queries", "documents", "processes")
"""Numbers that say what a row is of; others are figures."""
POOLED = ("round", "seed")
"""Numbers of repetitions, whose figures are one."""
SAID = ("cosines with", "lengths", "encoder", "place", "rate", "against", "steps of SimCSE")
"""Keys of words that describe a result or repeat its figures, and are no part of its figures' names."""


def figures(value: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:  # Any: what JSON holds
    """Yields the figures of a result with their names; a name comes again for each repetition.

    Example:
        >>> list(figures([{"texts": 64, "contender": "ours", "seconds": [1.0, 2.0]}], ("memory",)))
        [('memory 64 ours seconds', 1.0), ('memory 64 ours seconds', 2.0)]
    """
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield " ".join(words), float(value)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each, words)
    elif isinstance(value, Mapping):
        said = [
            str(each)
            for name, each in value.items()
            if (isinstance(each, str) and name not in SAID) or (name in LABELS and isinstance(each, int))
        ]
        for name, each in value.items():
            if isinstance(each, str) or name in POOLED or (name in LABELS and isinstance(each, int)):
                continue
            # A list of rows adds nothing to their names.
            rows = name == "rows" or (isinstance(each, list) and all(isinstance(row, dict) for row in each))
            yield from figures(each, (*words, *said, *([] if rows else [name])))


def read(folder: Path) -> dict[str, dict[str, float]]:
    """Returns name -> date, with the processor if the result names it -> the median of a figure.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> for day, seconds in (("01", [3.0, 1.0, 2.0]), ("02", [1.0])):
        ...     _ = (place / f"2026-01-{day}-loss.json").write_text(json.dumps({"rows": [{"ms": seconds}]}))
        >>> read(place)
        {'loss ms': {'2026-01-01': 2.0, '2026-01-02': 1.0}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("????-??-??-*.json")):
        column, what, kept = path.stem[:10], path.stem[11:], json.loads(path.read_text())
        if isinstance(kept, dict) and "processor" in kept:
            column, what = f"{column}, {kept['processor']}", kept["what"]
        for name, value in figures(kept["rows"] if isinstance(kept, dict) and "rows" in kept else kept, (what,)):
            found.setdefault(name, {}).setdefault(column, []).append(value)
    return {
        name: {column: statistics.median(values) for column, values in columns.items()}
        for name, columns in found.items()
    }


def table(known: Mapping[str, Mapping[str, float]], wanted: Sequence[str], over: str | None = None) -> list[str]:
    """Returns the figures as rows, dates and processors as columns.

    Example:
        >>> known = {"loss a": {"2026-01-01": 2.0}, "loss b": {"2026-01-01": 4.0, "2026-01-02": 1.0}}
        >>> print(*table(known, ["loss b"], over="loss a"), sep="\\n")
        | over loss a | 2026-01-01 | 2026-01-02 |
        | --- | --- | --- |
        | loss b | 2 |  |
    """
    columns = sorted({column for name in wanted for column in known[name]})
    below = None if over is None else known[over]
    cells = []
    for name in wanted:
        row = [known[name].get(column) for column in columns]
        if below is not None:
            row = [
                value / below[column] if value is not None and below.get(column) else None
                for column, value in zip(columns, row, strict=True)
            ]
        cells.append([name, *("" if value is None else f"{value:.4g}" for value in row)])
    return markdown([f"over {over}" if over else "figure", *columns], cells)


def main() -> None:
    """Prints names or the table."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("words", nargs="*", help="words of a figure's name; all names if left out")
    own.add_argument("--over", help="the whole name of a figure that others are divided by")
    own.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    options = own.parse_args()
    known = read(options.results)
    asked = {word for words in options.words for word in words.split()}
    wanted = [name for name in known if asked <= set(name.split())]
    for name in [options.over] if options.over else []:
        if name not in known:
            own.error(f"--over: expected the name of a figure, got {name!r}; without arguments all are listed")
    if not wanted:
        own.error(
            f"expected words of a figure's name, got {' '.join(options.words)}; without arguments all are listed"
        )
    print("\n".join(table(known, wanted, options.over) if asked else wanted))


if __name__ == "__main__":
    main()
