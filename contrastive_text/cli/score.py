"""Command ``score``: writes the scores of a reranker for pairs and hard negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.options import Columns, Header, Separator, Split, Texts, TextsCommand
from contrastive_text.cli.paths import ReadPath, WrittenFile
from contrastive_text.core.terminal import print_message


def _with_scores(path: Path) -> Sequence[Path]:
    """Returns the paths of a file of scored rows, and of the working files that exist until it is written."""
    from contrastive_text.inference.mining_run import score_files  # here: it imports torch

    return score_files(path)


@dataclass(frozen=True)
class Score(TextsCommand):
    """Score pairs and hard negatives by a reranker. If the command is stopped, the same command resumes."""

    input: Annotated[Texts, "File of pairs, triples or tuples of a query, a positive and hard negatives."]
    output: Annotated[Path, WrittenFile(_with_scores), "File of rows with scores to write for fit (.jsonl)."]
    _: KW_ONLY
    model: Annotated[str, ReadPath(model=True), "Reranker: its folder, or a name on the hub."]
    columns: Columns = None
    header: Header = None
    separator: Separator = None
    split: Split = None
    restart: Annotated[bool, "Delete the scores of a stopped command and score all pairs again."] = False


def score(options: Score) -> None:
    """Writes each row of a file with the scores of its texts by a reranker."""
    from contrastive_text.cli.files import form_of, read_table
    from contrastive_text.cli.models import load_reranker, resumable
    from contrastive_text.inference.mining_run import score_rows

    form = replace(form_of(options), pair_labels="all", needs_label=False)  # labels select no rows
    rows = read_table(options, ("anchor", "positive"), form)
    reranker = load_reranker(options.model, options.device)
    with resumable(lambda: "the scores so far are saved; the same command resumes after them"):
        pairs = score_rows(reranker, rows.rows, options.output, options.batch_size, options.restart, True)
    print_message(f"{pairs:,} distinct pairs scored; {len(rows):,} rows written to {options.output}")
