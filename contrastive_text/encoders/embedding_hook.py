"""The place in a network where embedding views alter what enters its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from torch import Tensor, nn

from contrastive_text.core.host import sent, unpadded
from contrastive_text.core.types import Alter
from contrastive_text.encoders.layouts import pad

# Where an architecture's embedding output has the width of its blocks: after ELECTRA's and ALBERT's
# projection, the embeddings module of BERT's relatives, the token table of decoders.
_NAMES = ("embeddings_project", "encoder.embedding_hidden_mapping_in", "embeddings", "embed_tokens")


def embedding_module(model: nn.Module) -> nn.Module | None:
    """Returns the part of a network whose output enters its blocks; None where it isn't known."""
    modules = dict(model.named_modules())
    return next((modules[name] for name in _NAMES if name in modules), None)


@contextmanager
def altered_embeddings(model: nn.Module, alter: Alter | None, mask: Tensor) -> Iterator[None]:
    """Alters the embedding output of each pass of this thread inside, after its LayerNorm and dropout.

    Args:
        model: The network; rows of it are padded, or packed into one.
        alter: The alteration, which sees padded rows either way; None for none.
        mask: True on the tokens of the rows, (S, L), on the host.
    """
    place = None if alter is None else embedding_module(model)
    if alter is None or place is None:
        yield
        return

    def enter(module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001  # torch's signature
        if get_ident() != thread:
            return output
        here = sent(mask, output.device)
        if output.shape[:2] == mask.shape:
            return alter(output, here)
        return unpadded(alter(pad(output.squeeze(0), mask), here), mask).unsqueeze(0)

    thread = get_ident()
    hook = place.register_forward_hook(enter)
    try:
        yield
    finally:
        hook.remove()
