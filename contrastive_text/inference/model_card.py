"""Model card of a model folder: its ``README.md``, with the metadata of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.manifests import is_outside_link
from contrastive_text.core.terminal import as_markdown, escape_controls

CARD = "README.md"
"""Name of the file of the model card. A folder's manifest doesn't list it, so users may edit it."""
MARK = (
    "<!-- Written by contrastive-text. Delete this line to keep your changes when the model is saved again. -->"
)
"""Line that marks a model card as written by this library, which may overwrite it."""
_MOST_BYTES = 1 << 20
_ENCODE = """vectors = model.encode(["a bird sings", "the dog runs"])
print(model.similarity(vectors, vectors))"""
_ENCODE_QUERIES = """queries = model.encode_query(["which animal sings?"])
documents = model.encode_document(["a bird sings", "the dog runs"])
print(model.similarity(queries, documents))"""
_THEIRS = "In sentence-transformers, with the same "
_ONLY_HERE = "sentence-transformers can't load this model: its pooler or its prompts exist only in this library."
_METRICS = {"spearman": "Spearman of cosine", "pearson": "Pearson of cosine"}
"""Name of a score of pairs -> its name in the hub's metadata. Its type there is the name with ``_cosine``."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Content of a model card. The caller makes sure that no value names a local path.

    Args:
        description: Description of the model, in one or two sentences of Markdown.
        in_sentence_transformers: Whether sentence-transformers can load the model.
        is_sparse: Whether the vectors are sparse.
        has_query_prompts: Whether the model has a prompt for queries or for documents.
        base: Name of the base model on the hub; None if it isn't known to be there.
        facts: Name -> fact about the training.
        scores: Name of a figure -> value; correlations are times 100.
        score_description: Description of the scores, in Markdown.
        pairs: File of scored pairs on which ``spearman`` and ``pearson`` were computed; None for other scores.
        limits: Limits of the model and of the measurements, in Markdown.
        citations: BibTeX entries.
        title: Title of the card.
        examples: Markdown of the section "Use"; empty for the examples of a sentence encoder.
        task: Task of the hub, such as ``text-classification``.
        library: Name of the library in the hub's metadata; empty for the one of a sentence encoder.

    Example:
        >>> card = ModelCard(description="A model of mine.", in_sentence_transformers=True, facts={"seed": "7"})
        >>> print(card.text()[:44])
        ---
        library_name: sentence-transformers
        pipe
    """

    description: str
    in_sentence_transformers: bool
    is_sparse: bool = False
    has_query_prompts: bool = False
    base: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    score_description: str = ""
    pairs: str | None = None
    limits: str = ""
    citations: Sequence[str] = ()
    title: str = "Sentence encoder"
    examples: str = ""
    task: str = "sentence-similarity"
    library: str = ""

    def text(self) -> str:
        """Returns the text of the model card: YAML metadata and Markdown."""
        scores = [
            f"| {as_markdown(name)} | {score:.4g} |" for name, score in self.scores.items() if score == score
        ]
        table = [self.score_description, "", "| figure | value |", "| --- | --- |", *scores]
        facts = [f"| {_cell(name)} | {_cell(fact)} |" for name, fact in self.facts.items()]
        encode = _ENCODE_QUERIES if self.has_query_prompts else _ENCODE
        their_class = "SparseEncoder" if self.is_sparse else "SentenceTransformer"
        theirs = f"{_THEIRS}vectors:\n\n{_example('sentence_transformers', their_class, 'model', encode)}"
        ours = _example("contrastive_text", "SentenceEncoder.from_pretrained", "model", encode)
        examples = self.examples or f"{ours}\n\n{theirs}"
        entries = [f"```bibtex\n{entry.strip()}\n```" for entry in self.citations]
        lines = [
            "---", self._metadata(), "---", MARK, "", f"# {self.title}", "", self.description,
            "", "## Use", "", examples,
            "", "## Training", "", "| | |", "| --- | --- |", *facts,
            "", "## Scores", "", *(table if scores else ["No score was measured."]),
            "", "## Limits", "", self.limits,
            *(["", "## Citation", "", "\n\n".join(entries)] if entries else []),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _metadata(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData  # here: importing it takes a second

        pairs = " ".join(escape_controls(self.pairs).split())
        scores = {name.rpartition("/")[2]: score for name, score in self.scores.items() if score == score}
        results = [
            EvalResult(
                task_type="sentence-similarity",
                dataset_type=pairs,
                dataset_name=pairs,
                metric_type=f"{name}_cosine",
                metric_name=f"{metric}, times 100",
                metric_value=round(scores[name], 2),
            )
            for name, metric in _METRICS.items()
            if self.pairs is not None and name in scores
        ]
        data = ModelCardData(
            library_name=self.library
            or ("sentence-transformers" if self.in_sentence_transformers else "contrastive-text"),
            pipeline_tag=self.task,
            tags=["contrastive-text", *([self.task] if self.examples else [self.task, "feature-extraction"])],
            base_model=self.base,
            model_name="sentence encoder" if results else None,
            eval_results=results or None,
        )
        return str(data.to_yaml())


_INPUTS = {
    "text": '["a bird sings", "the dog runs"]',
    "pair": '[("a bird sings", "a bird is singing"), ("a bird sings", "the dog runs")]',
}
_RANK = 'rank("which animal sings?", ["the dog runs", "a bird sings"], return_documents=True)'
_IN_TRANSFORMERS = """In Transformers, with the same logits:

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForSequenceClassification.from_pretrained("path/to/this/folder")
tokens = tokenizer({texts}, padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    print(model(**tokens).logits)
```"""
_TEXTS = {
    "text": _INPUTS["text"],
    "pair": '["a bird sings", "a bird sings"], ["a bird is singing", "the dog runs"]',
}
_ONLY_ENCODER = (
    "The head is stored in the format of contrastive-text, and only contrastive-text loads it. Other "
    "libraries load the encoder alone."
)


def head_examples(kind: str, reads: str, in_transformers: bool) -> str:
    """Returns the section "Use" of the card of a trained head, in Markdown.

    Args:
        kind: ``classifier``, ``reranker`` or ``regressor``.
        reads: ``text``, ``pair`` for two texts in one sequence, or ``vectors`` for the vectors of two texts.
        in_transformers: Whether Transformers loads the head.

    Example:
        >>> head_examples("classifier", "text", in_transformers=False).splitlines()[1]
        'from contrastive_text import Classifier'
    """
    form = "text" if reads == "text" else "pair"
    predict = f"predict({_INPUTS[form]})"
    call = f"print({kind}.{_RANK if kind == 'reranker' else predict})"
    examples = [_example("contrastive_text", f"{kind.capitalize()}.from_pretrained", kind, call)]
    examples.append(_IN_TRANSFORMERS.format(texts=_TEXTS[form]) if in_transformers else _ONLY_ENCODER)
    if in_transformers and form == "pair":
        theirs = _example("sentence_transformers", "CrossEncoder", "model", f"print(model.{predict})")
        examples.append(f"{_THEIRS}scores:\n\n{theirs}")
    return "\n\n".join(examples)


def _example(library: str, load: str, name: str, use: str) -> str:
    """Returns a block of Python that loads a model by a class or a class method, and uses it."""
    lines = [
        f"from {library} import {load.partition('.')[0]}",
        "",
        f'{name} = {load}("path/to/this/folder")',
        use,
    ]
    return "\n".join(["```python", *lines, "```"])


def read_card(folder: Path) -> str:
    """Returns the text of a folder's model card; empty if there is no readable card inside the folder."""
    path = folder / CARD
    try:
        is_readable = path.is_file() and path.stat().st_size <= _MOST_BYTES and not is_outside_link(path, folder)
        return path.read_text(encoding="utf-8") if is_readable else ""
    except (OSError, UnicodeDecodeError):
        return ""


def write_card(folder: Path, text: str) -> None:
    """Writes a model card into a folder. Leaves a card that a user wrote or edited unchanged.

    Args:
        folder: Folder of a saved model.
        text: Text of the card; if empty, an older card of this library is deleted.

    Raises:
        DiskError: The folder can't be written to.
    """
    path = folder / CARD
    if path.is_symlink() or (path.exists() and MARK not in read_card(folder)):
        return
    if not text:
        path.unlink(missing_ok=True)
        return
    with atomic_file(path) as file:
        file.write(text.encode())


def _cell(text: str) -> str:
    r"""Escapes a text for a cell of a Markdown table.

    Example:
        >>> print(_cell("a|b\nc"))
        a\|b<br>c
    """
    return "<br>".join(map(as_markdown, text.split("\n")))
