"""The model card of a folder: ``README.md`` as the hub wants it, from plain facts that others hand over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.storage.manifests import leads_out
from contrastive_text.core.terminal import as_markdown, shown

CARD = "README.md"
"""The file. A folder's manifest doesn't vouch for it, so it may be edited."""
MARK = (
    "<!-- Written by contrastive-text. Delete this line to keep your changes when the model is saved again. -->"
)
"""The line by which a card of this library is known."""
_MOST_BYTES = 1 << 20
_HERE = """```python
from contrastive_text import SentenceEncoder

model = SentenceEncoder.from_pretrained("path/to/this/folder")  # or its name on the hub
{encode}
```"""
_ELSEWHERE = """In sentence-transformers, with the same vectors:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")  # or its name on the hub
{encode}
```"""
_ALIKE = """vectors = model.encode(["a bird sings", "the dog runs"])
print(model.similarity(vectors, vectors))"""
_QUERIES = """queries = model.encode_query(["which animal sings?"])
documents = model.encode_document(["a bird sings", "the dog runs"])
print(model.similarity(queries, documents))"""
_ONLY_HERE = "Its pooler or its prompts are this library's own: sentence-transformers doesn't load it."
_METRICS = {"spearman": "Spearman of cosine", "pearson": "Pearson of cosine"}
"""Score of pairs -> what the hub's metadata calls it, where its type is the name and ``_cosine``."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a card says. Nothing in it names a place on a disk: that is the business of who hands it over.

    Args:
        what: The model, in a sentence or two of Markdown.
        elsewhere: Whether sentence-transformers loads it.
        ranks: Whether queries and documents have prompts of their own.
        base: Its base model on the hub; None where that isn't known to be there.
        facts: Name -> fact, of its making.
        scores: Figure -> value; correlations are times 100.
        setting: Of what the scores are, in Markdown.
        pairs: File of scored pairs that figures ``spearman`` and ``pearson`` are of; None for others.
        limits: What isn't known, in Markdown.
        citations: BibTeX entries.

    Example:
        >>> card = ModelCard(what="A model of mine.", elsewhere=True, facts={"seed": "7"})
        >>> print(card.text()[:44])
        ---
        library_name: sentence-transformers
        pipe
    """

    what: str
    elsewhere: bool
    ranks: bool = False
    base: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    setting: str = ""
    pairs: str | None = None
    limits: str = ""
    citations: Sequence[str] = ()

    def text(self) -> str:
        """Returns the file's text."""
        scores = [
            f"| {as_markdown(name)} | {score:.4g} |" for name, score in self.scores.items() if score == score
        ]
        measured = [self.setting, "", "| figure | value |", "| --- | --- |", *scores]
        facts = [f"| {_cell(name)} | {_cell(fact)} |" for name, fact in self.facts.items()]
        encode = _QUERIES if self.ranks else _ALIKE
        elsewhere = _ELSEWHERE.format(encode=encode) if self.elsewhere else _ONLY_HERE
        cited = [f"```bibtex\n{entry.strip()}\n```" for entry in self.citations]
        lines = [
            "---", self._metadata(), "---", MARK, "", "# Sentence encoder", "", self.what,
            "", "## Use", "", _HERE.format(encode=encode), "", elsewhere,
            "", "## Training", "", "| | |", "| --- | --- |", *facts,
            "", "## Scores", "", *(measured if scores else ["None was measured."]),
            "", "## Limits", "", self.limits,
            *(["", "## Citation", "", "\n\n".join(cited)] if cited else []),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _metadata(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData  # late: a second, which most have no use for

        pairs = " ".join(shown(self.pairs).split())
        named = {name.rpartition("/")[2]: score for name, score in self.scores.items() if score == score}
        results = [
            EvalResult(
                task_type="sentence-similarity",
                dataset_type=pairs,
                dataset_name=pairs,
                metric_type=f"{name}_cosine",
                metric_name=f"{called}, times 100",
                metric_value=round(named[name], 2),
            )
            for name, called in _METRICS.items()
            if self.pairs is not None and name in named
        ]
        data = ModelCardData(
            library_name="sentence-transformers" if self.elsewhere else "contrastive-text",
            pipeline_tag="sentence-similarity",
            tags=["contrastive-text", "sentence-similarity", "feature-extraction"],
            base_model=self.base,
            model_name="sentence encoder" if results else None,
            eval_results=results or None,
        )
        return str(data.to_yaml())


def read_card(folder: Path) -> str:
    """Returns the card of a folder, whoever wrote it; empty where none can be read, or a link leads out."""
    path = folder / CARD
    try:
        known = path.is_file() and path.stat().st_size <= _MOST_BYTES and not leads_out(path, folder)
        return path.read_text(encoding="utf-8") if known else ""
    except (OSError, UnicodeDecodeError):
        return ""


def put_card(folder: Path, text: str) -> None:
    """Writes a card into a folder, unless a user's own is there; without a text, an older one of ours goes.

    Args:
        folder: Of a saved model.
        text: The card; empty for none.

    Raises:
        DiskError: The folder can't be written to.
    """
    path = folder / CARD
    if path.is_symlink() or (path.exists() and MARK not in read_card(folder)):
        return
    if not text:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as file:
        file.write(text.encode())


def _cell(text: str) -> str:
    r"""Returns a text as a cell of a table.

    Example:
        >>> print(_cell("a|b\nc"))
        a\|b<br>c
    """
    return "<br>".join(map(as_markdown, text.split("\n")))
