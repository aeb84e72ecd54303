"""Command ``score``: writes the scores of a reranker for pairs and hard negatives."""

from __future__ import annotations

import sys

from contrastive_text.cli.commands import Score
from contrastive_text.cli.models import load_reranker, warnings_as_notes
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import print_message
from contrastive_text.data import read_rows
from contrastive_text.data.files.formats import FileForm, options_of
from contrastive_text.inference.pair_scores import ScoringRun


def score(options: Score) -> None:
    """Writes each row of a file with the scores of its texts by a reranker."""
    form = FileForm(
        header=options.header,
        separator=options.separator,
        pair_labels="all",
        needs_label=False,
        options=options_of("header", "separator", "columns", "split", "bounds"),
    )
    rows = read_rows(
        options.input,
        ("anchor", "positive"),
        options.columns,
        split=options.split,
        bounds=SizeLimits.of(options.bounds),
        form=form,
    )
    print_message(rows.description)
    reranker = load_reranker(options.model, options.device)
    run = ScoringRun(reranker, rows.rows, options.output, options.batch_size, options.restart)
    try:
        with warnings_as_notes():
            count, pairs = run.finish(show_progress_bar=True)
    except KeyboardInterrupt:
        print_message(
            "\nstopped: the scores so far are saved; the same command resumes after them", file=sys.stderr
        )
        raise SystemExit(130) from None
    print_message(f"{pairs:,} distinct pairs scored; {count:,} rows written to {options.output}")
