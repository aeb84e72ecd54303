"""Command ``corpus``: writes the training texts of a paper."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from contrastive_text.cli.paths import ReadPath, WrittenFile
from contrastive_text.core.errors import InvalidValueError, check_ending
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Corpus:
    """Write the training texts of a paper, one per line."""

    name: Annotated[Literal["consert"], "Paper: consert, whose texts are from the STS data sets."]
    _: KW_ONLY
    data: Annotated[str, ReadPath(), "Data folder of SentEval."]
    output: Annotated[Path, WrittenFile(), "File of texts to write (.txt)."]


def corpus(options: Corpus) -> None:
    """Writes the texts of the STS data sets, one per line, and prints the number of texts of each data set.

    Raises:
        ValueError: The folder has none of the data sets, or the name of the output does not end in ``.txt``.
    """
    from rich.table import Table
    from rich.text import Text

    from contrastive_text.core.storage.disk import atomic_file
    from contrastive_text.core.terminal import make_console
    from contrastive_text.evaluation.sts_data import PUBLISHED, consert_corpus

    check_ending(options.output, ".txt")
    parts = consert_corpus(options.data)
    texts = [text for part in parts.values() for text in part.texts]
    missing = [f"{task}: {reason}" for task, part in parts.items() for reason in part.missing]
    if not texts:
        raise InvalidValueError(f"--data: expected the texts of one data set or more, got no text; {missing[0]}")
    table = Table("data set", "texts", "in the paper", title="texts of ConSERT, table 1", title_justify="left")
    for task, part in parts.items():
        table.add_row(Text(task), f"{len(part.texts):,}", f"{PUBLISHED[task]:,}")
    table.add_row("all", f"{len(texts):,}", f"{sum(PUBLISHED.values()):,}")
    with atomic_file(options.output) as file:
        file.writelines(f"{text}\n".encode() for text in texts)
    make_console().print(table)
    for note in missing:
        print_message(f"missing: {note}")
    print_message(f"{len(texts):,} texts, including duplicates, written to {options.output}")
