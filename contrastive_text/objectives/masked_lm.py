"""Masked language modelling: predicts the tokens that a ``MaskTokens`` view has hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.batch import Encoded
from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Role
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms


class MaskedLM(Objective):
    """Cross entropy of the hidden tokens, with the architecture's own head on hidden places only.

    The mean runs over the hidden tokens of all ranks (Devlin et al. 2019, BERT,
    https://arxiv.org/abs/1810.04805, section 3.1). Which texts are masked is the business of the views: on
    ``anchor`` the forward pass of the masked text gives the contrastive embedding too (DeCLUTR, Giorgi et al.
    2021, section 3.2); on ``original`` an unaltered copy is masked (CLEAR, Wu et al. 2020, section 3.2;
    SimCSE's MLM option). Logits are made anew in the backward pass, a block at a time, so that memory stays
    flat: ``block`` rows of the vocabulary's width.

    The mean runs over all masked copies of a text together: where a paper adds up a loss for each of two
    (``data.task.originals: 2``; CLEAR's double MLM), ``model.weights`` gives it weight 2.

    Differs: SimCSE's code masks every view of a text in a second pass; here ``data.task.originals: 2`` does that
    for its two views. Its head copies BERT's weights and leaves them untied; here the decoder stays tied.

    Args:
        block: Hidden places whose logits exist at a time.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: A block below 1.
    """

    takes: tuple[Role, ...] = ()
    needs_token_logits: ClassVar[bool] = True

    def __init__(self, block: int = 1024, task: str | None = None) -> None:
        super().__init__(task)
        self.block = at_least("MaskedLM.block", block, 1, "1024 is usual")

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local hidden tokens."""
        hidden, labels, logits = encoded.masked_hidden, encoded.masked_labels, encoded.token_logits
        if hidden is None or labels is None or logits is None:
            raise InvalidValueError(
                "MaskedLM: expected a batch with masked tokens, got none; put MaskTokens on anchor or original"
            )

        total, hits, count = token_entropy(hidden, labels, logits, self.block)
        return Terms(total=total, count=count, logs={"accuracy": hits / max(count, 1)})


def token_entropy(
    hidden: Tensor, labels: Tensor, logits: Callable[[Tensor], Tensor], block: int
) -> tuple[Tensor, Tensor, int]:
    """Returns the summed cross entropy of tokens, how many have the largest score, and their number.

    Args:
        hidden: What they are predicted from, (M, D).
        labels: Their ids, (M,).
        logits: From such vectors to a score for every entry of the vocabulary, (M, D) -> (M, V).
        block: Tokens whose scores exist at a time; they are made once more in the backward pass.
    """

    def entropy(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        scores = at_least_float32(logits(part))
        hits = (scores.detach().argmax(dim=1) == wanted).sum()
        return cross_entropy(scores, wanted, reduction="sum"), hits

    # Without a token there is one empty block: the head takes part in every backward pass.
    pairs = zip(torch.split(hidden, block), torch.split(labels, block), strict=True)
    parts = [checkpoint(entropy, *pair, use_reentrant=False) for pair in pairs]
    total = torch.stack([loss for loss, _ in parts]).sum()
    return total, torch.stack([hit for _, hit in parts]).sum(), len(labels)
