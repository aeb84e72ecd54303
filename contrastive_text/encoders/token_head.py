"""The head that predicts hidden tokens: the architecture's own, around the encoder that is trained."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from contrastive_text.core.libraries import quiet
from contrastive_text.encoders.loading import load_masked_lm


class TokenHead(nn.Module):
    """The part of a masked language model that follows its encoder, whatever the architecture calls it.

    The decoder stays tied to the token table where architecture and checkpoint tie them, so that the table gets
    the gradient of both. Scores come from the architecture's own code, with the encoder's pass left out.

    Args:
        model: The encoder that is trained.
        name: Checkpoint that may hold the head's weights; None for a random start.
        architecture: Its configuration, with the vocabulary of the checkpoint.

    Raises:
        ValueError: An architecture without such a head.
    """

    def __init__(self, model: PreTrainedModel, name: str | None, architecture: PreTrainedConfig) -> None:
        super().__init__()
        whole, self.pretrained = load_masked_lm(name, architecture)
        size = model.config.vocab_size
        if size != whole.config.vocab_size:
            with quiet():
                whole.resize_token_embeddings(size)
        inner = whole.base_model_prefix
        self.layers = nn.ModuleDict({key: part for key, part in whole.named_children() if key != inner}).train()
        setattr(whole, inner, model)  # the name differs by architecture
        whole.tie_weights(recompute_mapping=False)  # not where the checkpoint has a decoder of its own
        self._whole = (whole,)  # in a tuple: not a module of ours, whose weights would be saved twice

    @property
    def whole(self) -> PreTrainedModel:
        """The masked language model: the encoder that is trained, and this head."""
        return self._whole[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns a score for every entry of the vocabulary, (M, D) -> (M, V)."""
        whole = self.whole
        encoder = whole.base_model

        def given(*_: object, **__: object) -> BaseModelOutput:
            return BaseModelOutput(last_hidden_state=hidden.unsqueeze(0))

        encoder.forward = given  # what the head's own code calls
        try:
            scores: Tensor = whole(inputs_embeds=hidden.unsqueeze(0)).logits
        finally:
            del encoder.forward
        return scores.squeeze(0)
