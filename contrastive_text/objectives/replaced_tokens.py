"""Replaced tokens: a discriminator finds what was exchanged in a text, with the text's vector to help it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.host import sent
from contrastive_text.core.types import Encoded, Role
from contrastive_text.heads import Head, linear_exactly, output_width
from contrastive_text.objectives.base import Objective, Terms
from contrastive_text.objectives.between import read_vectors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from contrastive_text.encoders import Encoder
    from contrastive_text.encoders.embedder import Embedder
    from contrastive_text.encoders.generator import TokenGenerator

_ROLES: tuple[Role, ...] = ("anchor", "positive", "negative")


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
            self.filling = self._encoder[0].make_generator(self.generator)
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
