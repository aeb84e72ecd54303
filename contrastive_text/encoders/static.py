"""Encoders without a network: ``StaticEncoder`` has a vector of each token, ``SparseStaticEncoder`` a weight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.core.batch import Batch, Hidden, PaddedHostCopies, move_to_device
from contrastive_text.core.errors import InvalidValueError, at_least, fraction
from contrastive_text.core.libraries import read_errors_as
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.storage.weights import read_weights
from contrastive_text.core.types import EmbeddingChange, Slot
from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.folder_checks import check_folder, check_tokenizer_file
from contrastive_text.encoders.loading import check_vocabulary, load_tokenizer, network_place
from contrastive_text.encoders.packing import FixedLayout, Layout, Packing, pad, token_mask
from contrastive_text.encoders.transformer import TransformerEncoder

WEIGHTS, TOKENIZER, _TOKENIZER_SETTINGS = "model.safetensors", "tokenizer.json", "tokenizer_config.json"
_TOKEN_WEIGHTS = "weight"
"""Name of the weights of tokens in a weight file of sentence-transformers' ``SparseStaticEmbedding``."""
TABLE = "embedding.weight"
"""Name of the table in a weight file of sentence-transformers' ``StaticEmbedding``."""
_FOLDED = ("embeddings", "mapping", "weights")
"""Names in a weight file of model2vec: vectors, the row of each token, and the weight of each token."""
_SPECIALS = ("unk_token", "pad_token", "mask_token", "cls_token", "sep_token", "bos_token", "eos_token")
_MODEL2VEC = "model2vec"
"""``model_type`` in the ``config.json`` of a static model of model2vec."""
_FEATURES = 256
"""Default width, which is ``pca_dims`` of model2vec's ``distill``."""
_UNUSED = re.compile(r"\[unused\d+\]")
_ROWS = 512
"""Number of tokens that the transformer encodes together."""


class StaticEncoder(Encoder):
    """Encoder that is a table of token vectors: the vector of a token doesn't depend on the other tokens.

    With ``MeanPooler`` the vector of a text is the mean of rows of the table. Rows of a batch have no special
    tokens, and a text without a token has a vector of zeros, as in sentence-transformers' ``StaticEmbedding``.
    Embedding views alter the rows of the table that a text reads.

    The table is that of a saved static model, or it is computed from a transformer. With
    ``tokenizer_name_or_path`` alone it is random.

    From a transformer: each token of the vocabulary is encoded alone between the special tokens of a row, and
    the output is averaged over the row. PCA without whitening reduces these vectors to ``features``. The vector
    of token number r is multiplied by a / (a + p). Here a is ``sif_coefficient``, and p is 1 / (r + 2) divided by
    its sum over tokens: the frequency by Zipf's law, for vocabularies in the order of frequency. Special tokens
    and BERT's unused tokens aren't numbered, and their vectors are zeros. Source: Tulkens and van Dongen 2024,
    model2vec (https://github.com/MinishLab/model2vec 0.10.0, ``create_embeddings``, ``apply_pca`` and
    ``compute_weights``). Differs: the vocabulary keeps its special and unused tokens.

    Args:
        model_name_or_path: Folder or hub name of a saved static model (of this library, sentence-transformers or
            model2vec), or of a transformer. None for a random table.
        tokenizer_name_or_path: Folder or hub name of the tokenizer of a random table. With ``model_name_or_path``
            it must have the same vocabulary.
        features: Width D of the token vectors. None for the width of the saved model, or for 256, or the
            width of the transformer if it is smaller.
        sif_coefficient: Constant a of the weights of tokens from a transformer; None for no weights.
        pca: Whether PCA reduces vectors from a transformer. Otherwise they keep its width and its axes.
        max_length: Largest number of tokens of a training row; None for no limit.
        layout: Layout of rows (see ``encoders.packing``). The result is the same.

    Raises:
        ValueError: No source; a folder that is neither a static model nor a transformer; a table whose number of
            rows or tokens differs from the tokenizer's; more features than the transformer's vectors have, or
            fewer tokens than features.

    Example:
        >>> encoder = StaticEncoder("minilm/", features=128)  # doctest: +SKIP
        >>> SentenceEncoder(encoder, MeanPooler()).encode("a bird sings").shape  # doctest: +SKIP
        (128,)
        >>> StaticEncoder()
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: encoder: expected a source of the table, got null; ...
    """

    takes_embedding_views = True
    adapters = None

    def __init__(
        self,
        model_name_or_path: str | None = None,
        tokenizer_name_or_path: str | None = None,
        features: int | None = None,
        sif_coefficient: float | None = 1e-4,
        pca: bool = True,
        max_length: int | None = None,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.model_name_or_path, self.tokenizer_name_or_path = model_name_or_path, tokenizer_name_or_path
        self.sif_coefficient = fraction(
            "encoder.sif_coefficient", sif_coefficient, "1e-4 is model2vec's", False, False
        )
        self.max_length = at_least("encoder.max_length", max_length, 1, "null is no limit")
        self.layout, self.pca = layout, pca
        at_least("encoder.features", features, 1)
        source = model_name_or_path or tokenizer_name_or_path
        if source is None:
            raise InvalidValueError(
                "encoder: expected a source of the table, got null; give model_name_or_path, or "
                "tokenizer_name_or_path for a random table"
            )
        self.truncation: int | None = None
        folder = None if model_name_or_path is None else static_folder(model_name_or_path)
        if folder is not None:
            table = read_table(folder)
            backend, names, self.truncation = read_tokenizer(folder)
            if features not in (None, table.shape[1]):
                raise InvalidValueError(
                    f"encoder.features: expected {table.shape[1]}, the width of {source}, got {features}; "
                    "remove it"
                )
        else:
            full = load_tokenizer(source)
            backend, names = Tokenizer.from_str(full.backend_tokenizer.to_str()), _special_tokens(full)
        self.tokenizer = _bare_tokenizer(backend, names)
        if tokenizer_name_or_path and tokenizer_name_or_path != source:
            _check_same(self.tokenizer, load_tokenizer(tokenizer_name_or_path), source, tokenizer_name_or_path)
        if folder is None and model_name_or_path:
            table = distill_table(model_name_or_path, features, sif_coefficient, pca)
        elif folder is None:
            rows = max(backend.get_vocab().values(), default=-1) + 1
            table = nn.Embedding(rows, features or _FEATURES).weight.detach()
        check_vocabulary(self.tokenizer, len(table), source)
        self.vocabulary_size, self.features = table.shape
        self.model = nn.Embedding(self.vocabulary_size, self.features, _weight=table)

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows on a device, and the reason for it; see ``Encoder.layout_on``."""
        if self.layout != "auto":
            return self.layout, "as asked for"
        if device.type == "cpu":
            return "packed", "the fastest on a CPU: no padding"
        return super().layout_on(device)

    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Looks up the token vectors of a batch. All layers are the table's rows; see ``Encoder.forward``."""
        mask = token_mask(batch.lengths)
        device_mask = move_to_device(mask, batch.ids.device)
        vectors = pad(self.model(batch.ids), mask)
        if alter is not None:
            vectors = alter(vectors, device_mask)
        host_copies = None if device_mask is mask else PaddedHostCopies(mask, pad(batch.host_ids.ids, mask))
        return Hidden(
            dict.fromkeys(layers, vectors), device_mask, pad(batch.ids, mask), self._mask_id, host_copies
        )

    def blocks(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> list[Hidden]:
        """Returns token vectors in blocks of rows of equal length, or all rows padded; see ``Encoder.blocks``."""
        layout, _ = self.layout_on(batch.ids.device)
        if alter is not None or layout != "packed" or batch.ids.is_cuda or not batch.lengths.all():
            return [self(batch, alter=alter, layers=layers)]
        packing = Packing.of(batch.lengths)
        runs = zip(packing.split(self.model(batch.ids)), packing.split(batch.ids), strict=True)
        return [
            Hidden(dict.fromkeys(layers, vectors), torch.ones_like(ids).bool(), ids, self._mask_id)
            for vectors, ids in runs
        ]

    @property
    def _mask_id(self) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.mask_token_id

    @property
    def settings(self) -> dict[str, Any]:  # Any: as a transformer's
        """Settings of the network that vectors depend on, besides weights and tokenizer."""
        return {"model_type": "static", "features": self.features}

    def without_adapters(self, merge: bool) -> Self:  # noqa: ARG002  # as a transformer's
        """Returns the encoder itself, because a table has no adapters."""
        return self

    def save_network(self, folder: Path, max_length: int | None = None) -> None:
        """Writes the files of sentence-transformers' ``StaticEmbedding``: the table and the tokenizer.

        Args:
            folder: Folder of the files, which exists.
            max_length: Longest text in tokens, at which the saved tokenizer truncates; None for no limit.
        """
        save_file({TABLE: self.model.weight.detach().float().cpu().contiguous()}, folder / WEIGHTS)
        _save_tokenizer(self.tokenizer, folder, max_length)


class SparseStaticEncoder(Encoder):
    """Encoder with one weight per token: a text's vector has the weights of its tokens, and 0 for other tokens.

    All weights are 1 at first, so that a vector is a binary bag of words. A token that occurs twice counts once.
    Rows have no special tokens. SPLADE-doc encodes queries with it, in an ``AsymmetricEncoder`` whose
    ``document_pooler`` is ``SpladePooler`` (Formal et al. 2021, SPLADE v2, https://arxiv.org/abs/2109.10086;
    naver/splade, ``SpladeDoc``). The saved encoder is sentence-transformers' ``SparseStaticEmbedding``.

    Args:
        model_name_or_path: Folder or hub name of the tokenizer.
        max_length: Largest number of tokens of a training row; None for no limit.

    Example:
        >>> SparseStaticEncoder("bert/").vocabulary_size  # doctest: +SKIP
        30522
    """

    pools: ClassVar[bool] = True
    is_sparse = True
    adapters = None

    def __init__(self, model_name_or_path: str, max_length: int | None = None) -> None:
        super().__init__()
        self.model_name_or_path = model_name_or_path
        self.max_length = at_least("encoder.max_length", max_length, 1, "null is no limit")
        full = load_tokenizer(model_name_or_path)
        limit = full.model_max_length
        self.truncation = limit if limit < 10**9 else None  # 10**30 means no limit
        backend = Tokenizer.from_str(full.backend_tokenizer.to_str())
        self.tokenizer = _bare_tokenizer(backend, _special_tokens(full))
        self.vocabulary_size = self.features = max(backend.get_vocab().values(), default=-1) + 1
        self.weight = nn.Parameter(torch.ones(self.features))

    def widen(self, features: int) -> None:
        """Adds features that no token has, for a network with more rows than the tokenizer has tokens."""
        added = self.weight.new_ones(max(0, features - self.features))
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), added]), self.weight.requires_grad)
        self.vocabulary_size = self.features = len(self.weight)

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows on a device, and the reason for it; see ``Encoder.layout_on``."""
        return ("packed", "no padding") if device.type == "cpu" else super().layout_on(device)

    def forward(
        self,
        batch: Batch,
        alter: EmbeddingChange | None = None,  # noqa: ARG002  # refused for this encoder
        layers: tuple[int, ...] = (-1,),
    ) -> Hidden:
        """Returns a vector for each row in place of token vectors, (S, 1, V), and a mask that is True, (S, 1)."""
        row = torch.repeat_interleave(torch.arange(len(batch)), batch.lengths)
        has_token = self.weight.new_zeros(len(batch), self.vocabulary_size)
        has_token[move_to_device(row, batch.ids.device), batch.ids] = 1
        vectors = (has_token * self.weight).unsqueeze(1)
        return Hidden(
            dict.fromkeys(layers, vectors), torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        )

    @property
    def settings(self) -> dict[str, Any]:  # Any: as a transformer's
        """Settings that vectors depend on, besides weights and tokenizer."""
        return {"model_type": "sparse_static", "vocabulary_size": self.vocabulary_size}

    def without_adapters(self, merge: bool) -> Self:  # noqa: ARG002  # as a transformer's
        """Returns the encoder itself, because weights of tokens have no adapters."""
        return self

    def save_network(self, folder: Path, max_length: int | None = None) -> None:
        """Writes the files of sentence-transformers' ``SparseStaticEmbedding``; see ``StaticEncoder``."""
        assert self.tokenizer is not None
        tokens = max(self.tokenizer.get_vocab().values(), default=-1) + 1
        save_file({_TOKEN_WEIGHTS: self.weight.detach()[:tokens].float().cpu().contiguous()}, folder / WEIGHTS)
        write_json(folder / "config.json", {"frozen": not self.weight.requires_grad})
        _save_tokenizer(self.tokenizer, folder, max_length)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads a ``SparseStaticEmbedding`` from the folder of its module.

        Raises:
            ValueError: The weights aren't a number for each token, or they are damaged.
        """
        check_folder(str(folder))
        weights = read_weights(folder / WEIGHTS, MANIFEST_ADVICE)
        weight, encoder = weights.get(_TOKEN_WEIGHTS), cls(str(folder))
        if weight is None or weight.shape != encoder.weight.shape or not weight.isfinite().all():
            shapes = ", ".join(f"{name} {tuple(each.shape)}" for name, each in [*weights.items()][:3])
            raise InvalidValueError(
                f"{folder / WEIGHTS}: expected {_TOKEN_WEIGHTS}, a finite number for each of the tokenizer's "
                f"{encoder.features:,} tokens, got {shapes or 'no weights'}; {MANIFEST_ADVICE}"
            )
        encoder.weight.data.copy_(weight)
        return encoder


def _bare_tokenizer(backend: Tokenizer, names: dict[str, str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that neither adds special tokens nor truncates."""
    backend.no_padding()
    backend.no_truncation()
    backend.post_processor = None  # it would add special tokens
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)  # type: ignore[no-untyped-call]  # theirs


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase | None, folder: Path, max_length: int | None) -> None:
    """Writes a tokenizer that truncates texts at ``max_length`` tokens; None for no limit."""
    assert tokenizer is not None
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    if max_length is not None:
        backend.enable_truncation(max_length)
    backend.save(str(folder / TOKENIZER))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {} if max_length is None else {"model_max_length": max_length}
    write_json(folder / _TOKENIZER_SETTINGS, _special_tokens(tokenizer) | settings)


def static_folder(name: str) -> Path | None:
    """Returns the folder of a static model's table; None for any other local folder or name on the hub.

    Such a folder has no ``config.json`` with a ``model_type`` of Transformers.
    """
    folder = Path(network_place(name))
    if not folder.is_dir():
        return None
    config = Record.read(folder / "config.json", MANIFEST_ADVICE, required=False)
    return folder if config.text("model_type", _MODEL2VEC) == _MODEL2VEC else None


def distill_table(
    transformer: str, features: int | None, sif_coefficient: float | None = 1e-4, pca: bool = True
) -> Tensor:
    """Computes a table of token vectors from a transformer, (V, D), by model2vec's recipe; see ``StaticEncoder``.

    Args:
        transformer: Folder or hub name of the transformer.
        features: Width D of the table; None for 256, or the transformer's width if it is smaller.
        sif_coefficient: Constant of the weights by Zipf's law; None for no weights.
        pca: Whether PCA reduces the vectors. Otherwise they keep the transformer's width.

    Raises:
        ValueError: More features than the transformer's vectors have, or not more tokens than features.
    """
    encoder = TransformerEncoder(transformer).eval()
    tokenizer = encoder.tokenizer
    assert tokenizer is not None
    vocabulary = tokenizer.get_vocab()
    specials = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    ids = sorted(
        number for token, number in vocabulary.items() if number not in specials and not _UNUSED.fullmatch(token)
    )
    features = features or (min(_FEATURES, encoder.features) if pca else encoder.features)
    if features > encoder.features or features >= len(ids) or (features < encoder.features and not pca):
        bound = "at most" if pca else "without PCA"
        raise InvalidValueError(
            f"encoder.features: expected {bound} the {encoder.features} features of {transformer}, and fewer "
            f"than its {len(ids)} tokens, got {features}; set another number, or null"
        )
    vectors = _encode_alone(encoder, tokenizer, torch.tensor(ids)).double()
    vectors = _pca(vectors, features) if pca else vectors
    if sif_coefficient is not None:
        inverse_rank = 1 / torch.arange(2, len(ids) + 2, dtype=torch.float64)
        vectors *= (sif_coefficient / (sif_coefficient + inverse_rank / inverse_rank.sum())).unsqueeze(1)
    table = torch.zeros(encoder.vocabulary_size, features)
    table[ids] = vectors.float()
    return table


@torch.no_grad()
def _encode_alone(encoder: TransformerEncoder, tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> Tensor:
    """Returns the mean output for a row of each token alone between special tokens, (n,) -> (n, D)."""
    encoding = tokenizer("a", return_attention_mask=False)
    row, texts = torch.tensor(encoding["input_ids"]), encoding.sequence_ids(0)  # 0 for the text, else None
    start, end = texts.index(0), len(texts) - texts[::-1].index(0)
    means = []
    for part in torch.split(ids, _ROWS):
        rows = torch.cat(
            [row[:start].expand(len(part), -1), part.unsqueeze(1), row[end:].expand(len(part), -1)], 1
        )
        keys = torch.zeros(len(part), dtype=torch.long)
        lengths = torch.full_like(keys, rows.shape[1])
        batch = Batch(rows.flatten(), lengths, (Slot("anchor", 0),), keys, keys, keys)
        means.append(encoder.token_vectors(batch).view(*rows.shape, -1).mean(dim=1))
    return torch.cat(means)


def _pca(vectors: Tensor, features: int) -> Tensor:
    """Returns the first principal components of vectors, (n, D) -> (n, features), largest value positive."""
    centered = vectors - vectors.mean(dim=0)
    _, directions = torch.linalg.eigh(centered.T @ centered / (len(vectors) - 1))
    scores = centered @ directions.flip(1)[:, :features]
    largest = scores.gather(0, scores.abs().argmax(dim=0, keepdim=True))
    return torch.mul(scores, largest.sign())


def read_table(folder: Path) -> Tensor:
    """Reads the table of a static model from the folder of its module, (V, D), float32.

    Raises:
        ValueError: The folder isn't a static model, or its weights are damaged.
    """
    check_folder(str(folder))
    files = [path for path in (folder / WEIGHTS, folder / "pytorch_model.bin") if path.is_file()]
    weights = read_weights(files[0], MANIFEST_ADVICE) if files else {}
    table, mapping, scales = (weights.get(name) for name in _FOLDED)
    with read_errors_as(f"{folder}: expected the rows and weights of each token", MANIFEST_ADVICE):
        if table is not None and mapping is not None:
            table = table[mapping.long()]
        if table is not None and scales is not None:
            table = table * scales.unsqueeze(1)
    table = weights.get(TABLE, table)
    if table is None or table.ndim != 2 or not table.is_floating_point():
        content = ", ".join(f"{name} {tuple(weight.shape)}" for name, weight in [*weights.items()][:3])
        raise InvalidValueError(
            f"{folder}: expected a static model ({WEIGHTS} with {TABLE}, and {TOKENIZER}), got "
            f"{content or 'no weights'}; name a static model, or a transformer with its config.json"
        )
    if not table.isfinite().all():
        raise InvalidValueError(f"{files[0]}: expected finite token vectors, got inf or nan; {MANIFEST_ADVICE}")
    return table.float().contiguous()


def read_tokenizer(folder: Path) -> tuple[Tokenizer, dict[str, str], int | None]:
    """Reads the tokenizer of a static model. Returns it with its special tokens and its truncation in tokens.

    Raises:
        ValueError: There is no tokenizer, it is damaged, or it truncates on the left.
    """
    path = folder / TOKENIZER
    check_tokenizer_file(path)
    with read_errors_as(f"{path}: expected a tokenizer", MANIFEST_ADVICE):
        backend = Tokenizer.from_file(str(path))
    truncation = backend.truncation
    if truncation is not None and truncation["direction"] != "right":
        raise InvalidValueError(
            f"{path}: truncation: expected direction 'right', got {truncation['direction']!r}; load this model "
            "with sentence-transformers"
        )
    settings = Record.read(folder / _TOKENIZER_SETTINGS, MANIFEST_ADVICE, required=False)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    names = {name: token for name in _SPECIALS if (token := str(settings.values.get(name))) in added}
    return backend, names, None if truncation is None else int(truncation["max_length"])


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    return {name: token for name in _SPECIALS if isinstance(token := getattr(tokenizer, name), str)}


def _check_same(own: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, source: str, name: str) -> None:
    """Checks that a tokenizer has the vocabulary of a table (ValueError)."""
    own_ids, ids = own.get_vocab(), other.get_vocab()
    if own_ids != ids:
        token = next(token for token in {**own_ids, **ids} if own_ids.get(token) != ids.get(token))
        raise InvalidValueError(
            f"encoder.tokenizer_name_or_path: expected the vocabulary of {source}, got {name}, in which token "
            f"{token!r} has id {ids.get(token)} in place of {own_ids.get(token)}; remove it, or name the "
            "tokenizer of the table"
        )
