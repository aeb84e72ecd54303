"""Views made by the network itself: its dropout."""

from __future__ import annotations

from contrastive_text.views.base import View


class FixedDropout(View):
    """Repeats the anchor's dropout masks for a role: dropout then makes no difference between the views.

    A marker: the module encodes each slot by itself and gives those of the role the anchor's masks. A mask is
    laid over places, so every text of the role must be as long as its anchor: use it with ``SameText`` and no
    view that changes a text's length. It stands last in a chain, never on the anchor, and needs an encoder
    with dropout. Source: "Fixed 0.1" of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), section 3,
    in the table of dropout probabilities: without a second mask the method fails.

    Example:
        >>> from contrastive_text.views import ViewPlan
        >>> ViewPlan({"positive": [FixedDropout()]}).fixed_dropout
        ('positive',)
    """
