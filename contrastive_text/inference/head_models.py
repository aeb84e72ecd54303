"""``Classifier``, ``Reranker`` and ``Regressor``: saved models with a trained head, used without Lightning."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress
from torch import Tensor, nn

from contrastive_text.core.batch import move_to_device
from contrastive_text.core.config.class_paths import trusting
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, at_least, one_of
from contrastive_text.core.storage.manifests import CONFIG, MANIFEST_ADVICE, check_whole
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.core.types import NO_TEMPLATE, TextPair
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import build_row, collate_rows
from contrastive_text.encoders.loading import load_sequence_classifier, load_tokenizer
from contrastive_text.encoders.networks import longest_row
from contrastive_text.encoders.prepacked import prepacked
from contrastive_text.encoders.shared_use import shared_network
from contrastive_text.inference.encoding import BLOCK_SIZE
from contrastive_text.inference.folder_modules import ELSEWHERE
from contrastive_text.inference.head_files import HEAD, HeadSettings, Kind, Reads, TaskHead, activation_class
from contrastive_text.inference.model_folder import SETTINGS, local_folder, read_folder
from contrastive_text.inference.module_lists import read_modules
from contrastive_text.inference.sentence_encoder import CHUNK_TOKENS, SentenceEncoder
from contrastive_text.inference.sequence_classifier import SequenceNetwork

Text: TypeAlias = str | Sequence[str]
"""Input of a head: a text, or a pair of texts as a tuple or list."""
_KEY = "contrastive_text"
"""Key in ``config.json`` of the kind of an exported head and of its input."""
_ACTIVATION = "activation_fn"


def folder_kind(model_name_or_path: str | Path) -> Kind | None:
    """Returns the kind of the head that a model folder holds, or None for an encoder without a head.

    A classification network of Transformers with one output is a reranker, unless the folder names another kind.

    Args:
        model_name_or_path: Local folder or hub name.

    Raises:
        ValueError: The folder doesn't exist, or a file is damaged.
    """
    folder = local_folder(str(model_name_or_path))
    if (folder / HEAD).is_file():
        kind: Kind = Record.read(folder / HEAD, MANIFEST_ADVICE).text("kind")  # type: ignore[assignment]  # of the file
        return kind
    config = Record.read(folder / CONFIG, MANIFEST_ADVICE, required=False)
    if not any(name.endswith("ForSequenceClassification") for name in config.texts("architectures", [])):
        return None
    named = config.record(_KEY, {}).text("kind", None)
    labels = config.record("id2label", {"0": "", "1": ""})
    return named or ("reranker" if len(labels.values) == 1 else "classifier")  # type: ignore[return-value]  # as above


class HeadModel:
    """Base class of models with a trained head: loads a folder and computes logits of texts or pairs.

    Any number of threads may use one model at the same time.

    Args:
        network: Classification network, or the encoder of a head.
        tokenizer: Tokenizer with the length limit.
        settings: Settings of the head. An empty ``reads`` allows texts and pairs.
        activation: Function from logits to scores.
        head: Head over the encoder's vectors; None for a classification network.

    Raises:
        ValueError: The head has outputs or an input that the class doesn't use.
    """

    kind: ClassVar[Kind]

    def __init__(
        self,
        network: SequenceNetwork | SentenceEncoder,
        tokenizer: TextTokenizer,
        settings: HeadSettings,
        activation: nn.Module,
        head: TaskHead | None = None,
    ) -> None:
        self.network, self.tokenizer, self.settings = network, tokenizer, settings
        self.activation, self.head = activation, head
        self._lock = threading.Lock()  # truncation is a state of the tokenizer
        self._local = threading.local()
        self._check_outputs()

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | Path,
        device: str | None = None,
        dtype: torch.dtype = torch.float32,
        max_length: int | None = None,
        trust: Sequence[str] | None = None,
    ) -> Self:
        """Loads a folder that ``export --as`` wrote, or a classification network of Transformers.

        Args:
            model_name_or_path: Local folder or hub name. A folder of sentence-transformers' ``CrossEncoder`` is
                such a network.
            device: Device of the model; None for the GPU if there is one, otherwise the CPU.
            dtype: Type of the network's weights.
            max_length: Longest sequence in tokens, special tokens included; None for the folder's limit.
            trust: Modules that the folder's pooler, head or scorer may come from, in addition to this library.

        Raises:
            ValueError: The folder doesn't exist, is damaged, holds no head or a head of another kind, or
                ``max_length`` exceeds the network's limit.
        """
        folder = local_folder(str(model_name_or_path))
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with trusting(trust):
            own = (folder / HEAD).is_file()
            return cls(*(_read_own if own else _read_network)(folder, place, dtype, max_length))

    @property
    def identity(self) -> str:
        """Fingerprint of weights, tokenizer, limit and head, on which scores depend."""
        digest = hashlib.blake2b(digest_size=16)
        vocabulary = self.tokenizer.tokenizer.backend_tokenizer.to_str()
        parts = [self.tokenizer.max_length, str(self.settings), str(self.activation), vocabulary]
        digest.update(json.dumps(parts).encode())
        add_weights(digest, self.network.state_dict())
        add_weights(digest, {} if self.head is None else self.head.state_dict())
        return digest.hexdigest()

    @property
    def truncated(self) -> int:
        """Number of texts or pairs that the last call in this thread truncated to the length limit."""
        return int(vars(self._local).get("truncated", 0))

    def logits(
        self, inputs: Text | Iterable[Text], batch_size: int = 32, show_progress_bar: bool = False
    ) -> Tensor:
        """Returns the logits of texts or pairs, (N, outputs), float32 on the CPU.

        Inputs are read in blocks of up to 16,384 and sorted by length within a block.

        Args:
            inputs: Texts or pairs, or a single text or pair.
            batch_size: Number of sequences of a batch. A batch of long sequences is split.
            show_progress_bar: Whether to draw a progress bar.

        Raises:
            TypeError: An input is not a text or a pair, as the head reads.
            ValueError: UTF-8 can't represent a text.
        """
        at_least("predict.batch_size", batch_size, 1)
        many: Any = [inputs] if self._is_single(inputs) else inputs  # Any: checked one by one
        self._local.truncated, start = 0, 0
        results: list[Tensor] = []
        rest, total = iter(many), len(many) if isinstance(many, Sized) else None
        with Progress(disable=not show_progress_bar) as bar:
            task = bar.add_task(self.kind, total=total)
            while block := list(islice(rest, BLOCK_SIZE)):
                checked = [self._check_input(given, start + number) for number, given in enumerate(block)]
                results.append(self._block_logits(checked, batch_size))
                start += len(block)
                bar.advance(task, len(block))
        return torch.cat(results) if results else torch.empty(0, self.settings.outputs)

    def _check_outputs(self) -> None:
        """Checks that the head has the outputs and the input of this class.

        Raises:
            ValueError: A classifier with one output, a reranker or regressor with several, or a reranker that
                doesn't read pairs in one sequence.
        """
        outputs, name = self.settings.outputs, type(self).__name__
        if (outputs > 1) != (self.kind == "classifier"):
            expected, todo = (
                ("one output", "Classifier") if outputs > 1 else ("several outputs", "Reranker or Regressor")
            )
            classes = f" ({', '.join(self.settings.classes)})" if outputs > 1 else ""
            raise InvalidValueError(
                f"{name}: expected a head with {expected}, got {outputs}{classes}; load it with {todo}, or "
                f"export it with --as {self.kind}"
            )
        if self.kind == "reranker" and self.settings.reads not in ("pair", "any"):
            got = {"text": "one text", "vectors": "the vectors of two texts"}[self.settings.reads]
            raise InvalidValueError(
                f"Reranker: expected a head that reads two texts in one sequence, got a head that reads {got}; "
                "load it with Regressor"
            )

    def _scores(
        self, inputs: Text | Iterable[Text], batch_size: int, show_progress_bar: bool
    ) -> npt.NDArray[np.float32]:
        """Returns the score of each input, (N,)."""
        logits = self.logits(inputs, batch_size, show_progress_bar)
        scores: npt.NDArray[np.float32] = self.activation(logits).squeeze(1).numpy()
        return scores[0] if self._is_single(inputs) else scores

    def _is_single(self, inputs: object) -> bool:
        """Returns whether the inputs are one text or one pair."""
        if isinstance(inputs, str):
            return True
        reads_text = self.settings.reads == "text"
        return isinstance(inputs, list | tuple) and bool(inputs) and not reads_text and isinstance(inputs[0], str)

    def _check_input(self, given: object, place: int) -> str | TextPair:
        """Returns a text or a pair.

        Raises:
            TypeError: The input has another form than the head reads.
            ValueError: UTF-8 can't represent a text.
        """
        where, reads = f"{type(self).__name__}: input {place}", self.settings.reads
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise InvalidTypeError(f"{where}: expected a text or a pair of texts, got {given!r:.80}")
        counts: dict[str, tuple[int, ...]] = {"text": (1,), "pair": (2,), "vectors": (2,)}
        expected = counts.get(reads, (1, 2))
        if len(texts) not in expected:
            form = {"text": "a text", "any": "a text or a pair of texts"}.get(reads, "a pair of texts")
            raise InvalidTypeError(f"{where}: expected {form}, as in training, got {given!r:.80}")
        for text in texts:
            if (surrogate := lone_surrogate(text)) is not None:
                raise InvalidValueError(
                    f"{where}: expected texts that UTF-8 can hold, got {surrogate}; correct or remove the text"
                )
        return TextPair(*texts) if len(texts) == 2 else texts[0]

    @torch.no_grad()
    def _block_logits(self, inputs: Sequence[str | TextPair], batch_size: int) -> Tensor:
        if self.settings.reads == "vectors":
            sides = zip(*inputs, strict=True)
            vectors = [self._distinct_vectors(side, number, batch_size) for number, side in enumerate(sides)]
        else:
            vectors = [self._run(inputs, 0, batch_size)]
        return (vectors[0] if self.head is None else self.head(*vectors)).cpu()

    def _distinct_vectors(self, texts: Sequence[str], side: int, batch_size: int) -> Tensor:
        """Returns the vector of each text, (N, D). An equal text is encoded once."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        vectors = self._run(list(numbers), side, batch_size)
        return vectors[torch.tensor([numbers[text] for text in texts], device=vectors.device)]

    def _run(self, inputs: Sequence[str | TextPair], side: int, batch_size: int) -> Tensor:
        """Returns the network's output for each text or pair, (N, D).

        Args:
            inputs: Texts, or pairs in one sequence.
            side: Number of the prompt: 0 for the first text of a pair, 1 for the second.
            batch_size: Largest number of rows of a batch. Long rows come first, so batches have little padding.
        """
        template, width = NO_TEMPLATE, None
        if isinstance(self.network, SentenceEncoder):
            width = self.network.truncate_dim
            template = self.network.prompts.template(self.settings.prompts[side], self.tokenizer)
        with self._lock:
            pairs = iter(self.tokenizer.pair_rows([given for given in inputs if isinstance(given, TextPair)]))
            texts = [given for given in inputs if isinstance(given, str)]
            templated = self.tokenizer.tokenize_with_template(texts, template, with_words=False)
        text_rows = (build_row(text, self.tokenizer) for text in templated)
        rows = [next(pairs if isinstance(given, TextPair) else text_rows) for given in inputs]
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number].ids))
        device, parts, start = next(self.network.parameters()).device, [], 0
        tokens = sum(len(row.ids) for row in rows)
        with shared_network(self.network) as network, prepacked(network, tokens):
            while start < len(order):
                size = min(batch_size, max(CHUNK_TOKENS // max(len(rows[order[start]].ids), 1), 1))
                places = order[start : start + size]
                batch = collate_rows(self.tokenizer, [rows[place] for place in places], template.unpooled)
                self._local.truncated += batch.truncated
                parts.append(network(batch.to(device))[:, :width])
                start += size
        inverse = torch.tensor(order, dtype=torch.long).argsort()
        return torch.cat(parts)[move_to_device(inverse, device)]


class Classifier(HeadModel):
    """Trained classifier of texts, of pairs in one sequence, or of pairs by the vectors of both texts.

    Example:
        >>> classifier = Classifier.from_pretrained("sentiment/")  # doctest: +SKIP
        >>> classifier.predict(["a good film"])  # doctest: +SKIP
        ['good']
    """

    kind = "classifier"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns of ``predict_proba``."""
        return self.settings.classes

    def predict(
        self, inputs: Text | Iterable[Text], batch_size: int = 32, show_progress_bar: bool = False
    ) -> list[str] | str:
        """Returns the class with the highest probability for each text or pair; a string for a single one.

        Args:
            inputs: Texts, or pairs for a classifier of pairs; or a single text or pair.
            batch_size: Number of sequences of a batch.
            show_progress_bar: Whether to draw a progress bar.

        Raises:
            TypeError: An input has another form than the classifier reads.
            ValueError: UTF-8 can't represent a text.
        """
        logits = self.logits(inputs, batch_size, show_progress_bar)
        names = [self.classes[number] for number in logits.argmax(dim=1).tolist()]
        return names[0] if self._is_single(inputs) else names

    def predict_proba(
        self, inputs: Text | Iterable[Text], batch_size: int = 32, show_progress_bar: bool = False
    ) -> npt.NDArray[np.float32]:
        """Returns the probability of each class, (N, classes), or (classes,) for a single text or pair.

        Columns are in the order of ``classes``. The name is that of scikit-learn's classifiers. See ``predict``
        for the arguments.
        """
        logits = self.logits(inputs, batch_size, show_progress_bar)
        shares: npt.NDArray[np.float32] = logits.softmax(dim=1).numpy()
        return shares[0] if self._is_single(inputs) else shares


class Reranker(HeadModel):
    """Trained reranker: scores a query with a document in one sequence, as ``CrossEncoder`` does.

    Example:
        >>> reranker = Reranker.from_pretrained("reranker/")  # doctest: +SKIP
        >>> reranker.rank("who sings?", ["a bird sings", "the dog runs"], top_k=1)  # doctest: +SKIP
        [{'corpus_id': 0, 'score': 0.98}]
    """

    kind = "reranker"

    def predict(
        self, pairs: Text | Iterable[Text], batch_size: int = 32, show_progress_bar: bool = False
    ) -> npt.NDArray[np.float32]:
        """Returns the score of each pair of a query and a document, (N,), or a single score, ().

        Args:
            pairs: Pairs as tuples or lists of two texts, or a single pair.
            batch_size: Number of pairs of a batch.
            show_progress_bar: Whether to draw a progress bar.

        Raises:
            TypeError: An input is not a pair.
            ValueError: UTF-8 can't represent a text.
        """
        return self._scores(pairs, batch_size, show_progress_bar)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> list[dict[str, Any]]:  # Any: a number, a score or a text
        """Orders documents by their score for a query, the best first. Equal scores keep their order.

        Args:
            query: The query.
            documents: Texts to order.
            top_k: Number of documents to return; None for all.
            return_documents: Whether results have the text of the document.
            batch_size: Number of pairs of a batch.
            show_progress_bar: Whether to draw a progress bar.

        Returns:
            Dictionaries with ``corpus_id``, the index of a document, ``score``, and with ``return_documents``
            ``text``: the form of ``CrossEncoder.rank``.

        Raises:
            ValueError: ``top_k`` is below 1.
        """
        at_least("rank.top_k", top_k, 1)
        scores = self.predict([(query, document) for document in documents], batch_size, show_progress_bar)
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        results: list[dict[str, Any]] = [{"corpus_id": place, "score": float(scores[place])} for place in order]
        if return_documents:
            results = [{**result, "text": documents[result["corpus_id"]]} for result in results]
        return results


class Regressor(HeadModel):
    """Trained regressor: predicts a score of texts or pairs, on the scale of the training data.

    Example:
        >>> regressor = Regressor.from_pretrained("similarity/")  # doctest: +SKIP
        >>> regressor.predict([("a bird sings", "a bird is singing")])  # doctest: +SKIP
        array([4.7], dtype=float32)
    """

    kind = "regressor"

    def predict(
        self, inputs: Text | Iterable[Text], batch_size: int = 32, show_progress_bar: bool = False
    ) -> npt.NDArray[np.float32]:
        """Returns the score of each text or pair, (N,), or a single score, ().

        Args:
            inputs: Texts, or pairs for a regressor of pairs; or a single text or pair.
            batch_size: Number of sequences of a batch.
            show_progress_bar: Whether to draw a progress bar.

        Raises:
            TypeError: An input has another form than the regressor reads.
            ValueError: UTF-8 can't represent a text.
        """
        return self._scores(inputs, batch_size, show_progress_bar)


_Parts: TypeAlias = tuple[
    SequenceNetwork | SentenceEncoder, TextTokenizer, HeadSettings, nn.Module, TaskHead | None
]


def _read_own(folder: Path, device: str, dtype: torch.dtype, max_length: int | None) -> _Parts:
    """Reads a folder with a head in this library's format; see ``TaskHead.write``."""
    encoder = SentenceEncoder.of(read_folder(folder)).to(device, dtype).eval()
    encoder.max_length = max_length or encoder.max_length
    head = TaskHead.read(folder, encoder.truncate_dim or encoder.features).to(device)
    return encoder, encoder.tokenizer, head.settings, head.settings.activation, head


def _read_network(folder: Path, device: str, dtype: torch.dtype, max_length: int | None) -> _Parts:
    """Reads a folder with a classification network of Transformers."""
    check_whole(folder)
    if len(modules := read_modules(folder)) > 1:
        raise InvalidValueError(
            f"{folder}: expected a classification network of Transformers alone, got the modules "
            f"{', '.join(module.kind for module in modules)}; load the folder with SentenceEncoder, or with "
            "sentence-transformers"
        )
    model = load_sequence_classifier(str(folder)).to(device, dtype)  # type: ignore[arg-type]  # torch's overloads
    tokenizer = load_tokenizer(str(folder))
    limit = longest_row(model.base_model, tokenizer)
    if max_length is not None and limit is not None and max_length > limit:
        raise InvalidValueError(f"from_pretrained.max_length: expected at most {limit} tokens, got {max_length}")
    config = model.config.to_dict()
    own = Record(config.get(_KEY) or {}, f"{folder / 'config.json'}: {_KEY}", MANIFEST_ADVICE)
    labels = {int(number): str(name) for number, name in model.config.id2label.items()}
    if sorted(labels) != list(range(len(labels))) or len(set(labels.values())) < len(labels):
        raise InvalidValueError(
            f"{folder / 'config.json'}: id2label: expected a different name for each of the outputs 0 to "
            f"{len(labels) - 1}, got {labels}; {MANIFEST_ADVICE}"
        )
    classes = tuple(labels[number] for number in range(len(labels))) if len(labels) > 1 else ()
    reads = one_of(own.where, own.text("reads", "any"), Reads)
    settings = HeadSettings("classifier" if classes else "reranker", reads, classes)  # type: ignore[arg-type]  # checked
    text_tokenizer = TextTokenizer(tokenizer, max_length or limit)
    return SequenceNetwork(model, tokenizer), text_tokenizer, settings, _read_activation(folder, config), None


def _read_activation(folder: Path, config: Mapping[str, object]) -> nn.Module:
    """Reads the function from a logit to a score, as ``CrossEncoder`` does: by default the sigmoid.

    Raises:
        ValueError: The function isn't an activation of torch, or the folder has a default prompt.
    """
    record = Record.read(folder / SETTINGS, MANIFEST_ADVICE, required=False)
    if name := record.text("default_prompt_name", None):
        raise record.refusal("no default prompt", name, "default_prompt_name", ELSEWHERE)
    older = Record(config, str(folder / CONFIG), MANIFEST_ADVICE)
    oldest = older.text("sbert_ce_default_activation_function", "torch.nn.Sigmoid")
    default = older.record("sentence_transformers", {}).text(_ACTIVATION, oldest)
    class_path = record.text(_ACTIVATION, None) or default
    cls = activation_class(class_path)
    if cls is None:
        raise record.refusal("an activation of torch.nn without arguments", class_path, _ACTIVATION, ELSEWHERE)
    return cls()
