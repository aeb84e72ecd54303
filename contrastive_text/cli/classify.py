"""Command ``classify``: writes the class of each text or pair of a file."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from contrastive_text.cli.options import Columns, Header, Separator, Split, Texts, TextsCommand
from contrastive_text.cli.paths import ReadPath, WrittenFile
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Classify(TextsCommand):
    """Write the class of each text or pair of a file, with its probability."""

    input: Texts
    output: Annotated[
        Path, WrittenFile(), "Table to write (.tsv): texts, prediction and probability of each row."
    ]
    _: KW_ONLY
    model: Annotated[str, ReadPath(model=True), "Folder of a classifier, or a name on the hub."]
    columns: Columns = None
    header: Header = None
    separator: Separator = None
    split: Split = None
    pairs: Annotated[
        bool, "Read two texts of each row. Folders of export --as classifier know it by themselves."
    ] = False
    score: Annotated[bool, "Compare the classes with the labels of the file, and print the accuracy."] = False


def classify(options: Classify) -> None:
    """Writes the class of each text or pair of a file, with its probability.

    Raises:
        ValueError: The model isn't a classifier, or with ``--score`` a label isn't a class of the model.
    """
    from contrastive_text.cli.files import form_of, read_table, write_predictions
    from contrastive_text.cli.models import load_head
    from contrastive_text.core.targets import Classes
    from contrastive_text.inference.head_models import Classifier

    classifier = load_head(Classifier, options.model, options.device)
    target = Classes(classifier.classes)
    reads, form = classifier.settings.reads, replace(form_of(options), pair_labels="all")  # labels select no rows
    if reads == "any":
        form = replace(form, options={**form.options, "pairs": "--pairs"})
    texts = ("text",) if reads == "text" or (reads == "any" and not options.pairs) else ("anchor", "positive")
    table = read_table(
        options, (*texts, "target") if options.score else texts, form, target if options.score else None
    )
    rows = [{name: row[name] for name in texts} for row in table]
    inputs: list[Any] = [next(iter(row.values())) if len(texts) == 1 else tuple(row.values()) for row in rows]
    logits = classifier.logits(inputs, options.batch_size, show_progress_bar=True)
    if classifier.truncated:
        limit = classifier.tokenizer.max_length
        print_message(
            f"{classifier.truncated:,} of {len(rows):,} inputs exceed {limit} tokens and were truncated"
        )
    changed = write_predictions(options.output, rows, logits, target)
    note = f" (tabs and newlines of {changed:,} rows became spaces)" if changed else ""
    print_message(f"{len(rows):,} predictions written to {options.output}{note}")
    if options.score:
        hits = sum(int(best) == row["target"] for best, row in zip(logits.argmax(dim=1), table, strict=True))
        print_message(f"accuracy: {100 * hits / len(rows):.2f} ({hits:,} of {len(rows):,})")
