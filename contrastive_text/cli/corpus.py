"""Command ``corpus``: writes the training texts of a paper."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from contrastive_text.cli.paths import ReadPath, WrittenFile
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say


@dataclass(frozen=True)
class Corpus:
    """Write the training texts of a paper, one a line; consert: those of the STS data sets without scores."""

    name: Literal["consert"]
    _: KW_ONLY
    data: Annotated[str, ReadPath(), "Data folder of SentEval."]
    output: Annotated[Path, WrittenFile(), "File of texts to write (.txt)."]


def corpus(options: Corpus) -> None:
    """Writes the texts of the STS data sets, one a line, and prints how many come from each.

    Raises:
        ValueError: None of the data sets is there, or an output that isn't ``.txt``.
    """
    from rich.table import Table
    from rich.text import Text

    from contrastive_text.core.storage.disk import replacing
    from contrastive_text.core.terminal import console
    from contrastive_text.evaluation.sts_data import PUBLISHED, consert_corpus

    if options.output.suffix != ".txt":
        raise InvalidValueError(
            f"{options.output}: expected a name that ends in .txt, a text a line, got another"
        )
    parts = consert_corpus(options.data)
    texts = [text for part in parts.values() for text in part.texts]
    missing = [f"{task}: {each}" for task, part in parts.items() for each in part.missing]
    if not texts:
        raise InvalidValueError(f"--data: expected the texts of one data set or more, got none; {missing[0]}")
    shown = Table("data set", "texts", "in the paper", title="texts of ConSERT, table 1", title_justify="left")
    for task, part in parts.items():
        shown.add_row(Text(task), f"{len(part.texts):,}", f"{PUBLISHED[task]:,}")
    shown.add_row("all", f"{len(texts):,}", f"{sum(PUBLISHED.values()):,}")
    with replacing(options.output) as file:
        file.writelines(f"{text}\n".encode() for text in texts)
    console().print(shown)
    for each in missing:
        say(f"missing: {each}")
    say(f"{len(texts):,} texts, duplicates among them, written to {options.output}")
