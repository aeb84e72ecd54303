"""Objective that finds the replaced tokens of a text with the help of its vector, and the generator for it."""

from __future__ import annotations

import hashlib
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Encoded, sent, unpadded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import RowRandom, text_id
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.core.types import Role
from contrastive_text.encoders import Embedder, Encoder, TransformerEncoder, token_mask
from contrastive_text.heads import Head, linear_exactly, output_width
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import read_vectors
from contrastive_text.objectives.terms import Terms

_ROLES: tuple[Role, ...] = ("anchor", "positive", "negative")
_DRAWS = text_id("TokenGenerator")
"""Number of the generator's draws from a row's key; no view of a chain has it."""
_BLOCK = 1024
"""Tokens whose scores exist at a time."""


class ReplacedTokens(Objective):
    """Cross entropy of which tokens of an edited text are not its own, given the vector of the text itself.

    DiffCSE (Chuang et al. 2022, https://arxiv.org/abs/2204.10298; code: voidism/DiffCSE). Some tokens of each
    view are hidden, a frozen masked language model writes the likeliest token in every place, hidden or not, and
    the first token ([CLS]) is put back. The discriminator, a copy of the encoder that is trained along, reads the
    result with the text's vector in place of its first embedding, after LayerNorm and dropout, and says of each
    token whether it is another one. Its gradient reaches the encoder through that vector. Draws are those of the
    row's key, anew in every epoch and for each view.

    It stands beside a contrastive objective: ``head_of`` names that one, and the vector is what its head makes,
    as in the authors' code; ``model.weights`` has their lambda.

    Cost: a pass of the generator, and forward and backward of the discriminator: a step takes some 2.4 times as
    long as SimCSE's with a generator as deep as the encoder, somewhat less with one half as deep.

    Differs: the authors' mean runs over padding too, which is never another token: where half of a batch is
    padding, their lambda is half of ours. It is a mean over the tokens of all ranks here, the first of each row,
    which is never another one either, among them. Their generator has its dropout on, as ``generator_dropout``.

    Args:
        generator: Hub name or folder of a masked language model with the encoder's vocabulary. It is read when a
            run starts, and its weights are in no checkpoint; a resumed run needs the same ones.
        rate: Probability that a token is hidden; of those 80 % are masked, 10 % any other token, 10 % kept.
        head_of: Objective whose head makes the vector; None for the embedding itself.
        shared: Whether the discriminator has the encoder's weights, and not copies that go their own way.
        generator_dropout: Whether the generator's dropout is on.
        task: The data set that it reads, where there are several.

    Raises:
        ValueError: A rate that isn't above 0 and at most 1; when it is built, an architecture or a tokenizer
            without a place for the vector, or vectors of another width than its tokens'.
    """

    reads: tuple[Role, ...] = ("anchor",)
    takes: tuple[Role, ...] = _ROLES[1:]
    reads_tokens: tuple[Role, ...] = _ROLES

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
        # In tuples: no modules of its own, whose weights would be saved twice.
        self._encoder: tuple[Encoder, ...] = ()
        self._head: tuple[Head, ...] = ()

    def build(self, features: int) -> None:
        """Notes the width of the vectors."""
        self._width = features

    def take_head(self, head: Head) -> None:
        """Takes the head that makes the vector."""
        self._head = (head,)

    def build_networks(self, embedder: Embedder) -> None:
        """Makes the discriminator."""
        encoder, head = embedder.encoder, next(iter(self._head), None)
        if not encoder.takes_embedding_views:
            raise InvalidValueError(
                f"ReplacedTokens: expected an architecture with an embedding module, in which a vector takes the "
                f"first token's place, got {type(encoder).__name__} without; leave the objective out"
            )
        if not _begins_specially(encoder.tokenizer):
            raise InvalidValueError(
                "ReplacedTokens: expected a tokenizer that puts a special token before a text, whose place the "
                f"vector takes, got {type(encoder.tokenizer).__name__}, with which it would take that of the "
                "text's own first token; take an encoder with [CLS] or <s>, or leave the objective out"
            )
        width = self._width if head is None else output_width(head, self._width)
        if width != encoder.features:
            raise InvalidValueError(
                f"ReplacedTokens: expected a vector as wide as the encoder's tokens ({encoder.features}), whose "
                f"place it takes, got {width}; set the widths of the head to that, or leave head_of out"
            )
        self._encoder = (encoder,)
        self.network = None if self.shared else encoder.twin()
        self.classifier = nn.Linear(encoder.features, 2)

    def describe_networks(self) -> str:
        """Returns what discriminates, and what is frozen."""
        which = "the encoder itself" if self.shared else "a copy of the encoder"
        mode = "with dropout" if self.generator_dropout else "without dropout"
        return f"{which} as discriminator; {self.generator} as generator, not trained, {mode}"

    def check(self) -> None:
        """Reads the generator, and checks that it is that with which a resumed run began.

        Raises:
            ValueError: There is none, one with other tokens, or another one than before.
        """
        if self.filling is None:
            self.filling = TokenGenerator(self.generator, self._encoder[0])
        if self._begun not in (None, self.filling.identity):
            raise InvalidValueError(
                f"ReplacedTokens.generator: expected the weights with which the run began ({self._begun}), got "
                f"others in {self.generator} ({self.filling.identity}); put those back, or begin a new run"
            )

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local texts' tokens."""
        if self.classifier is None or encoded.by_groups is None:
            raise RuntimeError("ReplacedTokens: expected build_networks(embedder) before the first call")
        network, classifier = self.network or self._encoder[0], self.classifier
        vectors = read_vectors(encoded, _ROLES, next(iter(self._head), None))
        given = torch.cat([each.transpose(0, 1).flatten(0, 1) for each in vectors.values()])
        texts = encoded.tokens(*vectors)

        def discriminate(rows: Batch, places: Tensor) -> Tensor:
            def enter(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # as every alteration is called
                first = given[places].to(embeddings.dtype).unsqueeze(1)
                return torch.cat([first, embeddings[:, 1:]], dim=1)

            return linear_exactly(classifier, network.token_vectors(rows, alter=enter))

        edited = self._edited(texts, encoded)
        # The places of tokens travel as labels.
        groups = encoded.by_groups(texts.replace(ids=edited, labels=torch.arange(len(edited))), discriminate)
        scores = torch.cat([found for _, _, found in groups])
        places = torch.cat([rows.labels for rows, _, _ in groups if rows.labels is not None])
        others = (edited != texts.ids).long()[sent(places, edited.device)]
        hits = (scores.detach().argmax(dim=1) == others).sum()
        count = max(len(others), 1)
        return Terms(
            total=cross_entropy(scores, others, reduction="sum"),
            count=len(others),
            logs={"accuracy": hits / count, "replaced": others.sum() / count},
        )

    def _edited(self, texts: Batch, encoded: Encoded) -> Tensor:
        """Returns the token ids that the generator writes, (T,)."""
        if self.filling is None:
            self.check()
        generator = self.filling
        assert generator is not None
        assert encoded.by_groups is not None
        edited = torch.empty_like(texts.ids)
        hidden = texts.replace(ids=generator.hide(texts, self.rate), labels=torch.arange(len(edited)))
        dropout = self.generator_dropout and self.training
        with torch.no_grad():
            for rows, _, ids in encoded.by_groups(hidden, lambda rows, _: generator.fill(rows, dropout)):
                assert rows.labels is not None
                edited[sent(rows.labels, edited.device)] = ids
        first = sent(texts.lengths.cumsum(0) - texts.lengths, edited.device)
        return edited.index_copy(0, first, texts.ids[first])

    def get_extra_state(self) -> dict[str, str | None]:
        """Returns what the generator is, for a state dict."""
        return {"generator": self._begun if self.filling is None else self.filling.identity}

    def set_extra_state(self, state: dict[str, str | None]) -> None:
        """Notes which generator a run began with; ``check`` compares it with the one that there is."""
        self._begun = state["generator"]


def _begins_specially(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether a special token stands before each text, as it does in every vocabulary that is learned here."""
    if tokenizer is None:
        return True
    whole, bare = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    return bool(whole[:1] != bare[:1])


class TokenGenerator:
    """A masked language model that is not trained: it masks tokens and predicts the token of each place.

    It is not a module: its weights are in no optimizer, no checkpoint and no saved model.

    Args:
        name: Hub name or local folder of the model.
        encoder: Encoder whose tokens it reads.

    Raises:
        ValueError: A checkpoint without a head that predicts tokens, another vocabulary, or a model that takes
            shorter rows.
    """

    def __init__(self, name: str, encoder: Encoder) -> None:
        network = TransformerEncoder(name)
        network.build_token_head()
        if network.token_head is None or not network.token_head.pretrained:
            raise InvalidValueError(
                f"generator: expected a masked language model with its head, got {name} without one; name the "
                "model of the encoder's pretraining, or a smaller one with its vocabulary"
            )
        own, given = network.tokenizer, encoder.tokenizer
        if own is None or given is None or own.get_vocab() != given.get_vocab() or own.mask_token_id is None:
            raise InvalidValueError(
                f"generator: expected the tokens of the encoder, each with its number, and a mask token, got "
                f"others in {name}; name a masked language model with the encoder's vocabulary"
            )
        longest = encoder.max_length or encoder.limit
        if network.limit is not None and (longest is None or longest > network.limit):
            raise InvalidValueError(
                f"generator: expected a model that takes the encoder's rows, of up to {longest} tokens, got "
                f"{name}, which takes {network.limit}; set model.encoder.max_length to that or less"
            )
        self.network = network.requires_grad_(False).eval()
        self.special_ids = tuple(own.all_special_ids)
        self.mask_id = int(own.mask_token_id)

    @cached_property
    def identity(self) -> str:
        """32 hex digits of its weights."""
        digest = hashlib.blake2b(digest_size=16)
        add_weights(digest, self.network.state_dict())
        return digest.hexdigest()

    def hide(self, batch: Batch, rate: float) -> Tensor:
        """Returns the token ids with some hidden, by the keys of their rows, (T,).

        Each token except special tokens is chosen with probability ``rate``. Of the chosen tokens 80 % become the
        mask token, 10 % any entry of the vocabulary, and the rest stays (Devlin et al. 2019, BERT, section 3.1).
        """
        device, draws = batch.ids.device, RowRandom(batch.draw_keys, view=_DRAWS)
        mask = token_mask(batch.lengths)
        chosen, way, other = (unpadded(draws.rand(mask.shape[1]), mask) for _ in range(3))
        specials = sent(torch.tensor(self.special_ids), device)
        hidden = (chosen < rate) & ~torch.isin(batch.ids, specials)
        ids = batch.ids.masked_fill(hidden & (way < 0.8), self.mask_id)
        size = self.network.vocabulary_size
        return torch.where(hidden & (way >= 0.8) & (way < 0.9), (other * size).long(), ids)

    @torch.no_grad()
    def fill(self, batch: Batch, dropout: bool) -> Tensor:
        """Returns the likeliest token of every place, hidden or not, (T,).

        Args:
            batch: Ragged rows.
            dropout: Whether its dropout is on.
        """
        network = self.network.to(batch.ids.device).train(dropout)
        states = network.token_vectors(batch)
        return torch.cat([network.token_logits(part).argmax(dim=1) for part in torch.split(states, _BLOCK)])
