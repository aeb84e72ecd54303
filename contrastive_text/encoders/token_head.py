"""Head that predicts tokens: the part of a masked language model after its encoder."""

from __future__ import annotations

from copy import copy

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from contrastive_text.core.libraries import silence_transformers
from contrastive_text.encoders.loading import load_masked_lm


class TokenHead(nn.Module):
    """Head of a masked language model: all of its modules except the encoder.

    The decoder stays tied to the token table if architecture and checkpoint tie them. The table then gets the
    gradient of both. Scores are computed by the architecture's own code, without running the encoder.

    Args:
        model: The encoder that is trained.
        name: Checkpoint that may contain the head's weights; None for random weights.
        architecture: Configuration of the head, with the vocabulary of the checkpoint.

    Raises:
        ValueError: The architecture has no such head.
    """

    def __init__(self, model: PreTrainedModel, name: str | None, architecture: PreTrainedConfig) -> None:
        super().__init__()
        masked_lm, self.pretrained = load_masked_lm(name, architecture)
        size = model.config.vocab_size
        if size != masked_lm.config.vocab_size:
            with silence_transformers():
                masked_lm.resize_token_embeddings(size)
        encoder_name = masked_lm.base_model_prefix
        self.layers = nn.ModuleDict(
            {key: part for key, part in masked_lm.named_children() if key != encoder_name}
        ).train()
        setattr(masked_lm, encoder_name, model)  # the attribute's name differs by architecture
        masked_lm.tie_weights(recompute_mapping=False)  # no effect if the checkpoint has an untied decoder
        self._whole = (masked_lm,)  # in a tuple, so that it isn't a submodule, whose weights would be saved twice

    @property
    def masked_lm(self) -> PreTrainedModel:
        """The masked language model that consists of the trained encoder and this head."""
        return self._whole[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all tokens of the vocabulary for token vectors, (M, D) -> (M, V)."""
        head = copy(self.masked_lm)  # other threads may run the encoder
        vars(head)["_modules"] = {**head._modules, head.base_model_prefix: _Given(hidden.unsqueeze(0))}
        scores: Tensor = head(inputs_embeds=hidden.unsqueeze(0)).logits
        return scores.squeeze(0)


class _Given(nn.Module):
    """Takes the place of the encoder of a masked language model, and returns token vectors."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: object, **__: object) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self._hidden)
