"""Methods of ``SentenceEncoder`` under the names of sentence-transformers and of scikit-learn's transformers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, Self, TypeAlias, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.data.prompts import DOCUMENT, QUERY, Kind, Prompts
from contrastive_text.encoders import Embedder, Encoder
from contrastive_text.inference.encoding import Device, Vectors
from contrastive_text.inference.quantization import Precision
from contrastive_text.inference.search import Hit, SimilarityName, nearest, pair_similarities, similarities
from contrastive_text.inference.sparse import SparseVectors, comparable, is_sparse, to_csr, token_weights
from contrastive_text.inference.vector_files import Array
from contrastive_text.poolers import Pooler

AnyVectors: TypeAlias = Vectors | SparseVectors
"""Vectors of texts, dense or sparse."""


class TextOptions(TypedDict, total=False):
    """Types of the options of ``SentenceEncoder.encode`` that apply to texts."""

    prompt: str | None
    prompt_name: str | None
    device: Device | None
    max_length: int | None
    kind: Kind | None


class VectorOptions(TextOptions, total=False):
    """Types of the options of ``SentenceEncoder.encode`` for a vector per text."""

    normalize_embeddings: bool
    truncate_dim: int | None
    precision: Precision
    ranges: Vectors | None
    output_value: Literal["sentence_embedding"]


class TokenOptions(TextOptions, total=False):
    """Types of the options of ``SentenceEncoder.encode`` for the vectors of tokens."""

    batch_size: int
    show_progress_bar: bool
    convert_to_tensor: bool


class Encode(Protocol):
    """Types of ``SentenceEncoder.encode``: a vector per text, or for ``token_embeddings`` a tensor per text."""

    @overload
    def __call__(
        self,
        sentences: str | Iterable[str],
        batch_size: int = ...,
        show_progress_bar: bool = ...,
        convert_to_tensor: Literal[False] = ...,
        **options: Unpack[VectorOptions],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        sentences: str | Iterable[str],
        batch_size: int = ...,
        show_progress_bar: bool = ...,
        *,
        convert_to_tensor: Literal[True],
        **options: Unpack[VectorOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        sentences: str | Iterable[str],
        batch_size: int = ...,
        show_progress_bar: bool = ...,
        convert_to_tensor: bool = ...,
        **options: Unpack[VectorOptions],
    ) -> Vectors: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a string is iterable too
        self, sentences: str, *, output_value: Literal["token_embeddings"], **options: Unpack[TokenOptions]
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        sentences: Iterable[str],
        *,
        output_value: Literal["token_embeddings"],
        **options: Unpack[TokenOptions],
    ) -> list[Tensor]: ...


def typed_as_encode(method: Callable[..., Any]) -> Encode:
    """Gives a method of an encoder the types of ``encode``."""
    return cast(Encode, method)


class FamiliarNames(nn.Module):
    """Base class of ``SentenceEncoder`` with names that users of other libraries know.

    The methods ``fit``, ``transform``, ``get_params`` and ``set_params`` make a model a step of a scikit-learn
    pipeline. Each copy of the pipeline, as in ``cross_val_score``, uses the same model, because ``fit`` doesn't
    change it.
    """

    encoder: Encoder
    pooler: Pooler
    head: nn.Sequential | None
    prompts: Prompts
    query_length: int | None
    document_length: int | None
    similarity_fn_name: SimilarityName
    truncate_dim: int | None

    @property
    @abstractmethod
    def features(self) -> int:
        """Number of features of a vector before ``truncate_dim`` applies."""

    @property
    @abstractmethod
    def max_length(self) -> int | None:
        """Longest text in tokens, special tokens included; None for no limit."""

    @max_length.setter
    def max_length(self, length: int | None) -> None: ...

    encode: Encode

    @typed_as_encode
    def encode_query(self, sentences: str | Iterable[str], **options: Any) -> Any:  # Any: of encode
        """Encodes queries: calls ``encode`` with the kind and the prompt ``query``, and the longest query.

        If the model has no prompt ``query``, queries get no prompt, not even the default one, as in
        sentence-transformers.

        Args:
            sentences: One query, or an iterable of queries.
            options: Options of ``encode``. ``prompt``, ``prompt_name`` and ``max_length`` override the model's.

        Example:
            >>> documents = model.encode_document(["A bird sings."])  # doctest: +SKIP
            >>> model.similarity(model.encode_query("who sings?"), documents)  # doctest: +SKIP
            tensor([[0.83]])
        """
        return self.encode(sentences, **self._options(QUERY, self.query_length, options))

    @typed_as_encode
    def encode_document(self, sentences: str | Iterable[str], **options: Any) -> Any:  # Any: of encode
        """Encodes documents: calls ``encode`` with the kind and the prompt ``document``; see ``encode_query``."""
        return self.encode(sentences, **self._options(DOCUMENT, self.document_length, options))

    def _options(
        self, kind: Kind, length: int | None, options: dict[str, Any]
    ) -> dict[str, Any]:  # Any: of encode
        """Adds the prompt and the length limit of queries or documents to the options of ``encode``."""
        lengths = {} if length is None else {"max_length": length}
        return lengths | self.prompts.options(kind, options)

    def similarity(self, embeddings1: AnyVectors, embeddings2: AnyVectors) -> Tensor:
        """Returns the similarity matrix of two sets of vectors, (A, D) and (B, D) -> (A, B).

        The similarity is ``similarity_fn_name``, by default the cosine. Sparse vectors are arrays or tensors
        of ``encode``.
        """
        if is_sparse(embeddings1) or is_sparse(embeddings2):
            first, second = (comparable(self.similarity_fn_name, each) for each in (embeddings1, embeddings2))
            return torch.from_numpy((first @ second.T).toarray())
        rows, columns = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        rows, columns = rows.reshape(-1, rows.shape[-1]), columns.reshape(-1, columns.shape[-1])
        return similarities(self.similarity_fn_name, rows, columns)

    def similarity_pairwise(self, embeddings1: AnyVectors, embeddings2: AnyVectors) -> Tensor:
        """Returns the similarity of each pair of rows with the same index, (N, D) and (N, D) -> (N,)."""
        if is_sparse(embeddings1) or is_sparse(embeddings2):
            first, second = (comparable(self.similarity_fn_name, each) for each in (embeddings1, embeddings2))
            return torch.from_numpy((first * second).sum(axis=1))
        first, second = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        return pair_similarities(self.similarity_fn_name, first, second)

    def search(
        self, queries: str | Sequence[str], corpus: Sequence[str] | AnyVectors, top_k: int = 5
    ) -> list[list[Hit]]:
        """Finds the texts of a corpus that are most similar to each query, by exact search.

        Memory holds one block of similarities at a time.

        Args:
            queries: One query or a list of queries, encoded by ``encode_query``.
            corpus: Texts, or their floating-point vectors from ``encode_document``, (C, D).
            top_k: Number of hits per query; all texts if the corpus has fewer.

        Returns:
            Hits of each query, best first. Of equal hits the earlier text comes first.

        Raises:
            TypeError: A query or a text is not a string.
            ValueError: The vectors have another number of features than the model, or ``top_k`` is below 1.
        """
        as_tensor = not self.is_sparse
        texts = [queries] if isinstance(queries, str) else queries
        rows: SparseVectors = self.encode_query(texts, convert_to_tensor=as_tensor)
        if not isinstance(corpus, Tensor | np.ndarray) and not is_sparse(corpus):
            corpus = self.encode_document(list(corpus), convert_to_tensor=as_tensor)
        if as_tensor:
            corpus = torch.as_tensor(corpus)
        return nearest(self.similarity_fn_name, rows, corpus, top_k)

    def decode(self, embeddings: SparseVectors, top_k: int | None = None) -> list[dict[str, float]]:
        """Returns the tokens of each text with their weights, the largest weight first.

        Args:
            embeddings: Sparse vectors of N texts, from ``encode``.
            top_k: Number of tokens per text; None for all tokens with a weight.

        Raises:
            ValueError: The vectors are dense.

        Example:
            >>> model.decode(model.encode("a bird sings"), top_k=2)  # doctest: +SKIP
            [{'bird': 1.9, 'sing': 1.6}]
        """
        if not is_sparse(embeddings):
            raise InvalidValueError(
                f"decode: expected sparse vectors of encode, got {type(embeddings).__name__}; use a model with "
                "SpladePooler"
            )
        tokenizer = self.encoder.tokenizer
        assert tokenizer is not None
        tokens = {number: token for token, number in tokenizer.get_vocab().items()}
        # A network may have more rows than the tokenizer has tokens.
        names = [tokens.get(number, f"[{number}]") for number in range(embeddings.shape[1])]
        return list(token_weights(to_csr(embeddings), names, top_k))

    def require_dense(self, where: str) -> None:
        """Checks that the model's vectors are dense.

        Args:
            where: Beginning of the error: what reads dense vectors.

        Raises:
            ValueError: The vectors are sparse.
        """
        if self.is_sparse:
            raise InvalidValueError(
                f"{where}: expected a model with dense vectors, got sparse vectors of {self.features:,} tokens; "
                "use encode and search in Python, the command search, or evaluate --suite retrieval"
            )

    @property
    def is_sparse(self) -> bool:
        """True if a vector has a weight for each token of the vocabulary, most of which are 0 (SPLADE)."""
        return Embedder(self.encoder, self.pooler, self.head).is_sparse

    @property
    def max_seq_length(self) -> int | None:
        """Alias of ``max_length``, which can be set too."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self.max_length = length

    def get_embedding_dimension(self) -> int:
        """Returns the number of features of the vectors of ``encode``."""
        return self.truncate_dim or self.features

    def get_sentence_embedding_dimension(self) -> int:
        """Alias of ``get_embedding_dimension``."""
        return self.get_embedding_dimension()

    # Names and letters of scikit-learn.

    def fit(self, X: Iterable[str], y: object = None) -> Self:
        """Returns the model unchanged, for scikit-learn. ``Run`` trains a model."""
        del X, y
        return self

    def transform(self, X: Iterable[str]) -> Array:
        """Encodes texts to vectors by ``encode`` with its defaults, for scikit-learn.

        Args:
            X: N texts: a list, an array or a column of a DataFrame.

        Returns:
            Vectors (N, D), float32.

        Raises:
            TypeError: ``X`` is one text, or has several columns, or a text is not a string.

        Example:
            >>> from sklearn.linear_model import LogisticRegression
            >>> from sklearn.pipeline import make_pipeline
            >>> classifier = make_pipeline(model, LogisticRegression())  # doctest: +SKIP
            >>> classifier.fit(["good", "bad"], [1, 0]).predict(["better"])  # doctest: +SKIP
            array([1])
        """
        texts = X if isinstance(X, list | tuple) else np.asarray(X, dtype=object)
        if isinstance(texts, np.ndarray) and texts.ndim != 1:
            raise InvalidTypeError(
                f"transform: expected N texts in one column, got {type(X).__name__} of shape {texts.shape}; give "
                "a list of texts, or the name of one column instead of a list of names"
            )
        return self.encode(texts)

    def fit_transform(self, X: Iterable[str], y: object = None) -> Array:
        """Encodes texts to vectors; see ``transform``."""
        return self.fit(X, y).transform(X)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # Any: scikit-learn's
        """Returns an empty dictionary, for scikit-learn: the model has no parameters to search over."""
        del deep
        return {}

    def set_params(self, **params: Any) -> Self:
        """Returns the model, for scikit-learn.

        Raises:
            ValueError: A parameter is given. Copies of a pipeline share the model, so none can be set.
        """
        if params:
            raise InvalidValueError(
                f"SentenceEncoder.set_params: expected no parameters, got {', '.join(params)}; load a model with "
                "other options by from_pretrained, and search over models"
            )
        return self

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_tags__(self) -> Any:  # Any: Tags of scikit-learn, an optional library
        utils = require("sklearn.utils", "SentenceEncoder")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=utils.TransformerTags(),
            input_tags=utils.InputTags(one_d_array=True, two_d_array=False, string=True),
            requires_fit=False,
        )
