"""Networks that follow the trained one: copies without a gradient, and what they make of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.distributed import rank, whole
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, seed_torch
from contrastive_text.core.similarity import full_precision
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.heads import Head
from contrastive_text.objectives import Momentum, Objective
from contrastive_text.objectives.between import read_vectors
from contrastive_text.training.forward_pass import KEYS_PASS, encode_groups
from contrastive_text.views import GradientView, TextView, TokenView, ViewPlan
from contrastive_text.views.plan import role_of


class MomentumNetwork(nn.Module):
    """A copy of encoder, pooler and heads that follows them, as an objective's settings say.

    Args:
        settings: Of the objective.
        embedder: What is trained, and the bound on what is encoded together.
        head: The objective's train-only head; None for none.
    """

    def __init__(self, settings: Momentum, embedder: Embedder, head: Head | None) -> None:
        super().__init__()
        self.settings = settings
        # What is copied together stays tied together; the tokenizer is the same.
        shared = (embedder.encoder.tokenizer, *embedder.encoder.base_weights())
        memo: dict[int, Any] = {id(each): each for each in shared}  # Any: as of deepcopy
        self.encoder = deepcopy(embedder.encoder, memo)
        self.pooler = deepcopy(embedder.pooler, memo)
        self.head = deepcopy(embedder.head, memo)
        self.own_head = deepcopy(head, memo) if settings.head == "copied" else None
        self.requires_grad_(False)
        self._embedder = embedder._replace(encoder=self.encoder, pooler=self.pooler, head=self.head)
        # In lists, lest the trained network become a part of its copy.
        self._trained_head = [head]
        self._followed = [
            (copy, trained)
            for copy, trained in (
                (self.encoder, embedder.encoder),
                (self.pooler, embedder.pooler),
                (self.head, embedder.head),
                (self.own_head, head),
            )
            if copy is not None and trained is not None
        ]

    @torch.no_grad()
    def restart(self) -> None:
        """Becomes what is trained, as it is."""
        for copy, trained in self._followed:
            copy.load_state_dict(trained.state_dict())

    @torch.no_grad()
    def follow(self) -> None:
        """Takes in the trained weights, and buffers as they are."""
        for weight, theirs in self.followed():
            weight.lerp_(theirs, 1 - self.settings.decay)
        for copy, trained in self._followed:
            for buffer, at_present in zip(copy.buffers(), trained.buffers(), strict=True):
                buffer.copy_(at_present)

    @torch.no_grad()
    def distance(self) -> Tensor:
        """Returns how far the copy is behind: the norm of the difference of all weights over theirs, a scalar."""
        pairs = [*self.followed()]
        behind = torch.stack([whole(torch.linalg.vector_norm(theirs - mine)) for mine, theirs in pairs])
        norms = torch.stack([whole(torch.linalg.vector_norm(theirs)) for _, theirs in pairs])
        relative: Tensor = torch.linalg.vector_norm(behind) / torch.linalg.vector_norm(norms)
        return relative

    def followed(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields each weight with the one that it follows; those under adapters are the trained network's own."""
        for copy, trained in self._followed:
            for weight, theirs in zip(copy.parameters(), trained.parameters(), strict=True):
                if weight is not theirs:
                    yield weight, theirs

    @torch.no_grad()
    def keys(self, batch: Batch, plan: ViewPlan, chunk_tokens: int | None) -> Encoded:
        """Returns what the copy makes of the rows of its roles, after the train-only head.

        Args:
            batch: A whole batch.
            plan: Its views.
            chunk_tokens: Most tokens that are encoded together.
        """
        kept = [slot for slot in batch.slots if slot.role in self.settings.roles]
        read = batch.keep(kept).replace(labels=None)
        embedder = self._embedder._replace(chunk_tokens=chunk_tokens)
        groups = embedder.groups(read)
        alters = [plan.alter_embeddings(group.batch) if self.settings.views else None for group in groups]
        (trained,) = self._trained_head
        head = trained if self.own_head is None else self.own_head
        with ExitStack() as quiet:
            for part in () if self.settings.dropout else (self, head):
                quiet.enter_context(evaluating(part) if part is not None else nullcontext())
            encoded = encode_groups(read, groups, embedder, alters, number=KEYS_PASS)
            seed_torch(fold(read.seed, rank(), KEYS_PASS), read.ids.device)  # the dropout of a train-only head
            # Autocast would keep the trained head's weights as it has cast them here, without a gradient.
            quiet.enter_context(full_precision(read.ids.device))
            parts = read_vectors(encoded, tuple(dict.fromkeys(slot.role for slot in kept)), head)
        # Slots stand role by role.
        return replace(
            encoded, embeddings=torch.cat([each.transpose(0, 1).flatten(0, 1) for each in parts.values()])
        )


class MomentumNetworks(nn.ModuleDict):
    """The copies of the objectives that have one, by name.

    Args:
        objectives: By name.
        embedder: What is trained.
        plan_of: From a task to its views.

    Raises:
        ValueError: Views that don't go with a momentum network, or one ``Momentum`` for two objectives.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], embedder: Embedder, plan_of: Callable[[str | None], ViewPlan]
    ) -> None:
        super().__init__()
        check_momentum(objectives, plan_of)
        named = {name: part.keys for name, part in objectives.items() if part.keys is not None}
        for name, settings in named.items():
            if others := [other for other, each in named.items() if each is settings and other != name]:
                raise InvalidValueError(
                    f"model.objectives.{name}.columns: expected a Momentum of its own, got that of {others[0]} "
                    "too; make one for each objective"
                )
            self[name] = MomentumNetwork(settings, embedder, getattr(objectives[name], "head", None))

    @property
    def networks(self) -> dict[str, MomentumNetwork]:
        """The copies by the names of the objectives."""
        return {name: network for name, network in self.items() if isinstance(network, MomentumNetwork)}

    def facts(self) -> dict[str, str]:
        """Returns what the copies cost, for the run's summary; nothing where there are none."""
        sizes = {
            name: sum(weight.numel() for weight, _ in network.followed())
            for name, network in self.networks.items()
        }
        said = [
            f"{name}: {size / 1e6:.1f} M weights more, in memory and in checkpoints; keys of "
            f"{' and '.join(self.networks[name].settings.roles)}"
            for name, size in sizes.items()
        ]
        return {"momentum": "\n".join(said)} if said else {}

    def restart(self) -> None:
        """Makes every copy what is trained."""
        for network in self.networks.values():
            network.restart()

    def follow(self) -> None:
        """Lets every copy follow, after a step of the optimiser."""
        for network in self.networks.values():
            network.follow()

    def encode_keys(
        self, batch: Batch, plan: ViewPlan, chunk_tokens: int | None, names: Iterable[str]
    ) -> dict[object, Encoded]:
        """Returns the keys of a batch by the settings of each objective that will read them; in training only.

        Args:
            batch: A whole batch.
            plan: Its views.
            chunk_tokens: Most tokens that are encoded together.
            names: Of the objectives.
        """
        running = [network for name, network in self.networks.items() if name in names and self.training]
        return {network.settings: network.keys(batch, plan, chunk_tokens) for network in running}

    def figures(self) -> dict[str, Tensor]:
        """Returns ``OBJECTIVE/momentum_distance``: how far each copy is behind; it takes as long as following."""
        return {f"{name}/momentum_distance": network.distance() for name, network in self.networks.items()}


class FollowSteps(Callback):
    """Lets momentum networks follow after each step of the optimiser, and restart where a run begins.

    A step that mixed precision skips, because a gradient has overflowed, is none.
    """

    def __init__(self, networks: MomentumNetworks) -> None:
        self.networks = networks
        self._hooks: list[RemovableHandle] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to listen to the optimiser."""
        if trainer.global_step == 0:  # whatever has been loaded since the module was built
            self.networks.restart()
        self.teardown(trainer, pl_module, "fit")
        self._hooks = [
            optimizer.register_step_post_hook(lambda *_: self.networks.follow())
            for optimizer in trainer.optimizers
        ]

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Listens no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def check_momentum(objectives: Mapping[str, Objective], plan_of: Callable[[str | None], ViewPlan]) -> None:
    """Checks that views go with momentum networks.

    Args:
        objectives: By name.
        plan_of: From a task to its views.

    Raises:
        ValueError: Text or token views on a role that a network is to see without views, or a gradient view that
            follows an objective on a role that this reads as keys alone.
    """
    for name, objective in objectives.items():
        if objective.keys is None:
            continue
        for place, view in plan_of(objective.task).views_with_places():
            role, kind = role_of(place.removeprefix("views.").partition("[")[0]), type(view).__name__
            alters = isinstance(view, TextView | TokenView) and role in objective.keys.roles
            if alters and not objective.keys.views:
                raise InvalidValueError(
                    f"model.objectives.{name}.columns: expected Momentum.views: true, for {kind} at "
                    f"model.{place} alters the rows before any network sees them, got false; move that view to "
                    "another role, or set views: true"
                )
            if isinstance(view, GradientView) and role in objective.keyed and view.objective in (None, name):
                raise InvalidValueError(
                    f"model.{place}: expected a role that {name} reads of the trained network for {kind}, got "
                    f"{role}, of which it reads keys, which have no gradient; move the view to anchor"
                )
