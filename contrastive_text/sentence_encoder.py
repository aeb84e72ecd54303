"""SentenceEncoder: a trained model in use. Imports neither Lightning nor any objective."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import Tensor, nn
from typing_extensions import Self

from contrastive_text.data import TextTokenizer, collate_texts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import at_least_float32, cosine_similarity_matrix
from contrastive_text.model_folder import FolderParts, local_folder, read_folder, write_folder
from contrastive_text.network import Network
from contrastive_text.poolers import MeanPooler, Pooler
from contrastive_text.specs import part_spec
from contrastive_text.types import Batch

Vectors: TypeAlias = Tensor | npt.NDArray[np.float32]

_AT_ONCE = 8192
"""Tokens that go through the network together, however many texts are asked for at once."""


class Hit(NamedTuple):
    """A text that a search found.

    Args:
        corpus_id: Its place in the corpus.
        score: Its cosine similarity to the query.
    """

    corpus_id: int
    score: float


class SentenceEncoder(nn.Module):
    """Gives sentence vectors; its arguments have the names and meanings of sentence-transformers'.

    Args:
        encoder: The network with its tokenizer and length limit.
        pooler: The pooler that the model was trained with.
        head: Layers behind the pooler that inference keeps, or None.
        normalize: Whether vectors always leave with unit length.
        max_length: Longest text in tokens with special ones, longer ones are cut; None for the network's limit.
        prompt: Put before every text, unless ``encode`` is given another.

    Attributes:
        truncated: Number of texts that the last call of ``encode`` cut to ``max_length``.

    Raises:
        ValueError: An encoder without a tokenizer.
    """

    def __init__(
        self,
        encoder: TransformerEncoder,
        pooler: Pooler,
        head: nn.Sequential | None = None,
        normalize: bool = False,
        max_length: int | None = None,
        prompt: str = "",
    ) -> None:
        super().__init__()
        if encoder.tokenizer is None:
            raise ValueError("SentenceEncoder: expected an encoder with a tokenizer, got none; train it first")
        self.encoder = encoder
        self.pooler = pooler
        self.head = head
        self.normalize = normalize
        self.max_length = max_length or encoder.limit
        self.tokenizer = TextTokenizer(encoder.tokenizer, self.max_length)
        self.prompt = prompt
        self.truncated = 0

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | Path,
        pooler: Pooler | None = None,
        max_length: int | None = None,
        device: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Loads a folder, or a name on the hub, saved by us, by sentence-transformers or by Transformers.

        Args:
            model_name_or_path: Local folder or hub name.
            pooler: For a plain Transformers model, which names none; None for the mean, with a warning.
            max_length: Where to cut texts, in tokens with special ones; None for the model's own limit.
            device: Where to put the model; None for the GPU if there is one, else the CPU.
            dtype: Of the network's weights, whatever the folder's are. ``torch.bfloat16`` is about twice as fast
                where the processor computes in it, and moves a vector by a cosine of some 1e-4; vectors leave as
                float32 anyway.

        Raises:
            ValueError: No such model, a damaged folder, a pooler other than the folder's own, or a length
                beyond the model's limit.
        """
        parts = read_folder(local_folder(str(model_name_or_path)))
        if parts.pooler is not None and pooler is not None and type(parts.pooler) is not type(pooler):
            raise ValueError(
                f"from_pretrained.pooler: expected none, for {model_name_or_path} was saved with "
                f"{type(parts.pooler).__name__}, got {type(pooler).__name__}; its scores would not be comparable"
            )
        if parts.pooler is None and pooler is None:
            warnings.warn(
                f"{model_name_or_path} names no pooler: taking the mean over tokens; give pooler=... to choose",
                stacklevel=2,
            )
        limit = parts.encoder.limit
        if max_length is not None and limit is not None and max_length > limit:
            raise ValueError(f"from_pretrained.max_length: expected at most {limit} tokens, got {max_length}")
        chosen = parts.pooler or pooler or MeanPooler()
        length = max_length or parts.max_length
        model = cls(
            encoder=parts.encoder,
            pooler=chosen,
            head=parts.head,
            normalize=parts.normalize,
            max_length=length,
            prompt=parts.prompt,
        )
        return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype).eval()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

    @property
    def identity(self) -> str:
        """32 hex digits that are the same for equal vectors: of weights, tokenizer, pooler, head and limits.

        Vectors on disk carry it, so that those of one model are never taken for another's.
        """
        digest = hashlib.blake2b(digest_size=16)
        limits = [self.max_length, self.normalize, self.prompt, part_spec(self.pooler, "pooler")]
        layers = [str(layer) for layer in self.head or ()]
        assert self.encoder.tokenizer is not None
        vocabulary = self.encoder.tokenizer.backend_tokenizer.to_str()
        digest.update(json.dumps([limits, layers, vocabulary, str(self.encoder.model.config)]).encode())
        for name, weight in sorted(self.state_dict().items()):
            values = weight.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        prompt: str | None = None,
    ) -> Vectors:
        """Gives one vector per sentence, in the order given.

        Texts are encoded by falling length, so that little is padded. A text above the length limit is cut and
        counted in ``truncated``.

        Args:
            sentences: One text or many.
            batch_size: Texts at once; of long ones fewer go through the network together.
            show_progress_bar: Whether to draw a bar.
            convert_to_tensor: Whether to give a tensor on the model's device instead of an array.
            normalize_embeddings: Whether to give vectors of unit length.
            prompt: Put before every text; None for the model's own.

        Returns:
            (N, D) float32, or (D,) for one text.

        Raises:
            TypeError: Something that is not text.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"encode: expected texts, got {type(text).__name__} at place {i}")
        before = self.prompt if prompt is None else prompt
        vectors = self._encode([before + text for text in texts], batch_size, show_progress_bar)
        if normalize_embeddings:
            vectors = nn.functional.normalize(vectors, dim=-1)
        result = vectors[0] if isinstance(sentences, str) else vectors
        return result if convert_to_tensor else result.cpu().numpy()

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], batch_size: int, show_progress_bar: bool) -> Tensor:
        if batch_size < 1:
            raise ValueError(f"encode.batch_size: expected 1 or more, got {batch_size}")
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        self.truncated = 0
        tokens = self.tokenizer(texts)
        order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
        parts = [torch.empty(0, self._features(), device=self.device)]
        steps = range(0, len(order), batch_size)
        try:
            for start in track(steps, description="Encoding", disable=not show_progress_bar):
                batch = collate_texts(self.tokenizer, [tokens[i] for i in order[start : start + batch_size]])
                self.truncated += batch.truncated
                parts.append(self(batch.to(self.device)))
        finally:
            for module, training in modes:  # an encoder shared with training stays as it was
                module.training = training
        places = torch.tensor(order, dtype=torch.long, device=self.device)
        return torch.cat(parts)[places.argsort()]

    def _features(self) -> int:
        widths = [layer.out_features for layer in self.head or () if isinstance(layer, nn.Linear)]
        return widths[-1] if widths else self.encoder.features

    def forward(self, batch: Batch) -> Tensor:
        """Gives the vectors of a batch's rows, (S, D), in at least float32."""
        vectors = at_least_float32(Network(self.encoder, self.pooler, chunk_tokens=_AT_ONCE).pool(batch))
        if self.head is not None:
            weight = next(self.head.parameters(), vectors)
            vectors = at_least_float32(self.head(vectors.to(weight.dtype)))
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Gives the cosine of every vector with every other, (A, D) and (B, D) -> (A, B)."""
        rows, columns = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        return cosine_similarity_matrix(rows.reshape(-1, rows.shape[-1]), columns.reshape(-1, columns.shape[-1]))

    def search(
        self, queries: str | Sequence[str], corpus: Sequence[str] | Vectors, top_k: int = 5
    ) -> list[list[Hit]]:
        """Finds the nearest texts of a corpus, exactly.

        Args:
            queries: One query or many.
            corpus: The texts, or their vectors from ``encode``, (C, D).
            top_k: Hits per query.

        Returns:
            For each query its hits, best first.
        """
        asked = self.encode([queries] if isinstance(queries, str) else queries, convert_to_tensor=True)
        held = (
            torch.as_tensor(corpus)
            if isinstance(corpus, Tensor | np.ndarray)
            else self.encode(list(corpus), convert_to_tensor=True)
        )
        scores = self.similarity(asked, torch.as_tensor(held).to(self.device))
        best = scores.topk(min(top_k, scores.shape[1]), dim=1)
        return [
            [Hit(corpus_id=int(i), score=float(score)) for i, score in zip(ids, values, strict=True)]
            for ids, values in zip(best.indices, best.values, strict=True)
        ]

    def save_pretrained(self, path: str | Path) -> None:
        """Saves a folder that ``from_pretrained`` and sentence-transformers load with equal vectors."""
        write_folder(
            Path(path),
            FolderParts(
                encoder=self.encoder,
                pooler=self.pooler,
                head=self.head,
                normalize=self.normalize,
                max_length=self.max_length,
                prompt=self.prompt,
            ),
        )
