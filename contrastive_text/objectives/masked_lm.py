"""Masked language modeling objective: predicts the tokens that a ``MaskTokens`` view has masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Role
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms


class MaskedLM(Objective):
    """Masked language modeling: cross-entropy of the masked tokens, with the head of the encoder's architecture.

    The mean is over the masked tokens of all ranks (Devlin et al. 2019, BERT, https://arxiv.org/abs/1810.04805,
    section 3.1). A ``MaskTokens`` view selects the texts. On ``anchor`` one forward pass of the masked text also
    gives the contrastive embedding (DeCLUTR, Giorgi et al. 2021, section 3.2). On ``original`` an unaltered copy
    of the text is masked (CLEAR, Wu et al. 2020, section 3.2; SimCSE's MLM option). Logits are computed block by
    block, and again in the backward pass, so that memory is bounded by ``block`` rows of the vocabulary's width.

    The mean is over all masked copies of a text. If a paper adds the losses of two copies (``data.task.originals:
    2``; CLEAR's double MLM), set a weight of 2 in ``model.weights``.

    Differs: SimCSE's code masks every view of a text in a second pass; here ``data.task.originals: 2`` gives two
    masked copies. SimCSE's head copies BERT's weights without tying them; here the head is tied to the encoder.

    Args:
        block: Largest number of masked tokens whose logits are in memory at a time.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``block`` is below 1.
    """

    optional_roles: tuple[Role, ...] = ()
    needs_token_logits: ClassVar[bool] = True

    def __init__(self, block: int = 1024, task: str | None = None) -> None:
        super().__init__(task)
        self.block = at_least("MaskedLM.block", block, 1, "1024 is usual")

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the local masked tokens and their number.

        Raises:
            ValueError: The batch has no masked tokens.
        """
        hidden, labels, logits = encoded.masked_hidden, encoded.masked_labels, encoded.token_logits
        if hidden is None or labels is None or logits is None:
            raise InvalidValueError(
                "MaskedLM: expected a batch with masked tokens, got no masked tokens; add a MaskTokens view to "
                "anchor or original"
            )
        total, hits, count = token_cross_entropy(hidden, labels, logits, self.block)
        return Terms(total=total, count=count, logs={"accuracy": hits / max(count, 1)})


def token_cross_entropy(
    hidden: Tensor, labels: Tensor, logits: Callable[[Tensor], Tensor], block: int
) -> tuple[Tensor, Tensor, int]:
    """Returns the summed cross-entropy of tokens, the number of correct predictions, and the number of tokens.

    Args:
        hidden: Hidden states from which the tokens are predicted, (M, D).
        labels: Ids of the tokens, (M,).
        logits: Maps hidden states to logits of the vocabulary, (M, D) -> (M, V).
        block: Largest number of tokens whose logits are in memory at a time. The backward pass computes the
            logits again.
    """

    def entropy(part: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = at_least_float32(logits(part))
        hits = (scores.detach().argmax(dim=1) == labels).sum()
        return cross_entropy(scores, labels, reduction="sum"), hits

    # Without tokens there is one empty block, so that the head is part of every backward pass.
    pairs = zip(torch.split(hidden, block), torch.split(labels, block), strict=True)
    parts = [checkpoint(entropy, *pair, use_reentrant=False) for pair in pairs]
    total = torch.stack([loss for loss, _ in parts]).sum()
    return total, torch.stack([hit for _, hit in parts]).sum(), len(labels)
