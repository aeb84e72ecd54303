"""Replaced token detection (DiffCSE): a discriminator finds replaced tokens of a text with the text's vector."""

from __future__ import annotations

import hashlib
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Encoded, move_to_device, select_tokens
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import RowRandom, text_id
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.core.types import Role
from contrastive_text.encoders import Embedder, Encoder, TransformerEncoder, token_mask
from contrastive_text.heads import Head, linear_in_full_precision, output_width
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.columns import read_vectors
from contrastive_text.objectives.terms import Terms

_ROLES: tuple[Role, ...] = ("anchor", "positive", "negative")
_DRAWS = text_id("TokenGenerator")
"""Number that separates the generator's random draws for a row from the draws of views."""
_BLOCK = 1024
"""Largest number of tokens whose logits are in memory at a time."""


class ReplacedTokens(Objective):
    """Replaced token detection: cross-entropy of whether each token was replaced, given the text's vector.

    Source: DiffCSE (Chuang et al. 2022, https://arxiv.org/abs/2204.10298; code: voidism/DiffCSE). Some tokens of
    each view are masked. A frozen masked language model, the generator, predicts the likeliest token at every
    position, masked or not; the first token ([CLS]) is restored. A discriminator reads the resulting tokens. The
    text's vector replaces the first token's embedding, after LayerNorm and dropout. The discriminator starts as a
    copy of the encoder and is trained; it predicts for each token whether it was replaced. Its gradient reaches
    the encoder through the vector. Random draws depend on the row's key, and differ for each epoch and view.

    Use it together with a contrastive objective, named by ``head_of``. The vector is then the output of that
    objective's head, as in the authors' code. Set the authors' lambda in ``model.weights``.

    Cost: a forward pass of the generator, and a forward and backward pass of the discriminator. A step takes
    about 2.4 times as long as SimCSE's with a generator as deep as the encoder, and a little less with half the
    depth.

    Differs: the authors' mean includes padding, which is never replaced. If half of a batch is padding, their
    lambda has half the effect. Here the mean is over the tokens of all ranks, including the first token of each
    row, which is never replaced. Their generator uses dropout, as with ``generator_dropout: true``.

    Args:
        generator: Hub name or folder of a masked language model with the encoder's vocabulary. It is read when a
            run starts. Checkpoints don't have its weights, so a resumed run needs the same model.
        rate: Probability that a token is selected. Of the selected tokens 80 % are masked, 10 % replaced by a
            random token, and 10 % unchanged.
        head_of: Name of the objective whose head is applied to the embedding; None for the embedding itself.
        shared: Whether the discriminator shares the encoder's weights. If false, it starts with copies of them.
        generator_dropout: Whether the generator uses dropout.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``rate`` is not above 0 and at most 1. Raised by ``build_networks``: the architecture or the
            tokenizer has no first token for the vector to replace, or the vector has another width than a token.
    """

    required_roles: tuple[Role, ...] = ("anchor",)
    optional_roles: tuple[Role, ...] = _ROLES[1:]
    token_roles: tuple[Role, ...] = _ROLES

    def __init__(
        self,
        generator: str,
        rate: float = 0.3,
        head_of: str | None = None,
        shared: bool = False,
        generator_dropout: bool = False,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        if not 0 < rate <= 1:
            raise InvalidValueError(
                f"ReplacedTokens.rate: expected a probability above 0 and at most 1, got {rate}; DiffCSE has 0.3"
            )
        self.generator = generator
        self.rate = rate
        self.head_of = head_of
        self.shared = shared
        self.generator_dropout = generator_dropout
        self.network: Encoder | None = None
        self.classifier: nn.Linear | None = None
        self.filling: TokenGenerator | None = None
        self._width = 0
        self._begun: str | None = None
        # Tuples, because attributes that are modules would have their weights saved twice.
        self._encoder: tuple[Encoder, ...] = ()
        self._head: tuple[Head, ...] = ()

    def build(self, features: int) -> None:
        """Stores the width of the vectors that the objective reads."""
        self._width = features

    def set_head(self, head: Head) -> None:
        """Receives the head of another objective, which is applied to the text's embedding."""
        self._head = (head,)

    def build_networks(self, embedder: Embedder) -> None:
        """Builds the discriminator, which finds replaced tokens.

        Raises:
            ValueError: The architecture or the tokenizer has no first token for the vector to replace, or the
                vector has another width than a token.
        """
        encoder, head = embedder.encoder, next(iter(self._head), None)
        if encoder.pools or not encoder.takes_embedding_views:
            raise InvalidValueError(
                "ReplacedTokens: expected an architecture with an embedding module, where the vector replaces "
                f"the first token, got {type(encoder).__name__} without one; use another encoder, or remove the "
                "objective"
            )
        if not _has_first_special_token(encoder.tokenizer):
            raise InvalidValueError(
                "ReplacedTokens: expected a tokenizer that puts a special token before a text, got "
                f"{type(encoder.tokenizer).__name__} without one. The vector would replace the first token of "
                "the text; use an encoder with [CLS] or <s>, or remove the objective"
            )
        width = self._width if head is None else output_width(head, self._width)
        if width != encoder.features:
            raise InvalidValueError(
                f"ReplacedTokens: expected a vector as wide as the encoder's tokens ({encoder.features}), got "
                f"{width}; set the output width of the head to {encoder.features}, or remove head_of"
            )
        self._encoder = (encoder,)
        self.network = None if self.shared else encoder.clone()
        self.classifier = nn.Linear(encoder.features, 2)

    def describe_networks(self) -> str:
        """Returns a description of the discriminator and the generator, for the run's summary."""
        network = "the encoder itself" if self.shared else "a copy of the encoder"
        mode = "with dropout" if self.generator_dropout else "without dropout"
        return f"{network} as discriminator; {self.generator} as generator, not trained, {mode}"

    def check(self) -> None:
        """Loads the generator, and checks that a resumed run has the generator that it started with.

        Raises:
            ValueError: The generator is missing, has another vocabulary, or differs from the resumed run's.
        """
        if self.filling is None:
            self.filling = TokenGenerator(self.generator, self._encoder[0])
        if self._begun not in (None, self.filling.fingerprint):
            raise InvalidValueError(
                f"ReplacedTokens.generator: expected the weights with which the run started ({self._begun}), got "
                f"{self.filling.fingerprint} in {self.generator}; restore these weights, or start a new run"
            )

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the tokens of the local texts, and their number."""
        if self.classifier is None or encoded.run_in_chunks is None:
            raise RuntimeError("ReplacedTokens: expected build_networks(embedder) before the first call")
        network, classifier = self.network or self._encoder[0], self.classifier
        vectors = read_vectors(encoded, _ROLES, next(iter(self._head), None))
        text_vectors = torch.cat([tensor.transpose(0, 1).flatten(0, 1) for tensor in vectors.values()])
        texts = encoded.tokens(*vectors)

        def discriminate(rows: Batch, indices: Tensor) -> Tensor:
            def replace_first(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # signature of alterations
                first = text_vectors[indices].to(embeddings.dtype).unsqueeze(1)
                return torch.cat([first, embeddings[:, 1:]], dim=1)

            return linear_in_full_precision(classifier, network.token_vectors(rows, alter=replace_first))

        new_ids = self._replace_tokens(texts, encoded)
        # Labels carry the positions of tokens through the grouping.
        groups = encoded.run_in_chunks(
            texts.replace(ids=new_ids, labels=torch.arange(len(new_ids))), discriminate
        )
        scores = torch.cat([group_scores for _, _, group_scores in groups])
        positions = torch.cat([rows.labels for rows, _, _ in groups if rows.labels is not None])
        is_replaced = (new_ids != texts.ids).long()[move_to_device(positions, new_ids.device)]
        hits = (scores.detach().argmax(dim=1) == is_replaced).sum()
        count = max(len(is_replaced), 1)
        return Terms(
            total=cross_entropy(scores, is_replaced, reduction="sum"),
            count=len(is_replaced),
            logs={"accuracy": hits / count, "replaced": is_replaced.sum() / count},
        )

    def _replace_tokens(self, texts: Batch, encoded: Encoded) -> Tensor:
        """Returns the token ids that the generator predicts, (T,)."""
        if self.filling is None:
            self.check()
        generator = self.filling
        assert generator is not None
        assert encoded.run_in_chunks is not None
        new_ids = torch.empty_like(texts.ids)
        masked = texts.replace(ids=generator.mask_tokens(texts, self.rate), labels=torch.arange(len(new_ids)))
        dropout = self.generator_dropout and self.training
        with torch.no_grad():
            for rows, _, ids in encoded.run_in_chunks(
                masked, lambda rows, _: generator.predict_tokens(rows, dropout)
            ):
                assert rows.labels is not None
                new_ids[move_to_device(rows.labels, new_ids.device)] = ids
        first = move_to_device(texts.lengths.cumsum(0) - texts.lengths, new_ids.device)
        return new_ids.index_copy(0, first, texts.ids[first])

    def get_extra_state(self) -> dict[str, str | None]:
        """Returns the fingerprint of the generator for a state dict."""
        return {"generator": self._begun if self.filling is None else self.filling.fingerprint}

    def set_extra_state(self, state: dict[str, str | None]) -> None:
        """Stores the fingerprint of the generator that a run started with, for ``check``."""
        self._begun = state["generator"]


def _has_first_special_token(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Returns True if a special token comes before each text.

    None is the tokenizer of a vocabulary that a run learns, which has such a token.
    """
    if tokenizer is None:
        return True
    with_specials, without = (
        tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False)
    )
    return bool(with_specials[:1] != without[:1])


class TokenGenerator:
    """Frozen masked language model that masks tokens and predicts the token at each position.

    It is not a torch module, so that its weights are in no optimizer, checkpoint or saved model.

    Args:
        name: Hub name or local folder of the model.
        encoder: Encoder whose tokens the model reads.

    Raises:
        ValueError: The checkpoint has no head that predicts tokens, another vocabulary than the encoder, or a
            smaller limit of tokens.
    """

    def __init__(self, name: str, encoder: Encoder) -> None:
        network = TransformerEncoder(name)
        network.build_token_head()
        if network.token_head is None or not network.token_head.pretrained:
            raise InvalidValueError(
                f"generator: expected a masked language model with its head, got {name} without a head; name the "
                "model of the encoder's pretraining, or a smaller model with the same vocabulary"
            )
        tokenizer, reference = network.tokenizer, encoder.tokenizer
        if (
            tokenizer is None
            or reference is None
            or tokenizer.get_vocab() != reference.get_vocab()
            or tokenizer.mask_token_id is None
        ):
            raise InvalidValueError(
                f"generator: expected the encoder's vocabulary with the same token ids and a mask token, got "
                f"a different vocabulary in {name}; name a masked language model with the encoder's vocabulary"
            )
        longest = encoder.max_length or encoder.limit
        if network.limit is not None and (longest is None or longest > network.limit):
            raise InvalidValueError(
                f"generator: expected a model that reads rows of up to {longest} tokens, as the encoder, got "
                f"{name}, which reads {network.limit}; set model.encoder.max_length to {network.limit} or less"
            )
        self.network = network.requires_grad_(False).eval()
        self.special_ids = tuple(tokenizer.all_special_ids)
        self.mask_id = int(tokenizer.mask_token_id)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the generator's weights, 32 hex digits."""
        digest = hashlib.blake2b(digest_size=16)
        add_weights(digest, self.network.state_dict())
        return digest.hexdigest()

    def mask_tokens(self, batch: Batch, rate: float) -> Tensor:
        """Masks some tokens, by draws from the keys of their rows, and returns the token ids, (T,).

        Each token except special tokens is selected with probability ``rate``. Of the selected tokens 80 % become
        the mask token, 10 % a random token of the vocabulary, and 10 % stay unchanged (Devlin et al. 2019, BERT,
        section 3.1).
        """
        device, draws = batch.ids.device, RowRandom(batch.draw_keys, view=_DRAWS)
        mask = token_mask(batch.lengths)
        select, way, token = (select_tokens(draws.rand(mask.shape[1]), mask) for _ in range(3))
        specials = move_to_device(torch.tensor(self.special_ids), device)
        selected = (select < rate) & ~torch.isin(batch.ids, specials)
        ids = batch.ids.masked_fill(selected & (way < 0.8), self.mask_id)
        size = self.network.vocabulary_size
        return torch.where(selected & (way >= 0.8) & (way < 0.9), (token * size).long(), ids)

    @torch.no_grad()
    def predict_tokens(self, batch: Batch, dropout: bool) -> Tensor:
        """Returns the likeliest token at every position, masked or not, (T,).

        Args:
            batch: Ragged rows of tokens.
            dropout: Whether to use dropout.
        """
        network = self.network.to(batch.ids.device).train(dropout)
        states = network.token_vectors(batch)
        return torch.cat([network.token_logits(part).argmax(dim=1) for part in torch.split(states, _BLOCK)])
