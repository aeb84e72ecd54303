"""Momentum encoders (MoCo): copies whose weights are a moving average of the trained weights."""

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
from contrastive_text.core.distributed import full_tensor, rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, seed_torch
from contrastive_text.core.similarity import full_precision
from contrastive_text.encoders.base import Embedder
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.heads import Head
from contrastive_text.objectives import Momentum, Objective
from contrastive_text.objectives.columns import read_vectors
from contrastive_text.training.forward_pass import KEYS_PASS, encode_groups
from contrastive_text.views import GradientView, TextView, TokenView, ViewPlan
from contrastive_text.views.plan import role_of


class MomentumEncoder(nn.Module):
    """Momentum encoder: a copy of encoder, pooler and heads, averaged over the steps.

    Args:
        settings: ``Momentum`` settings of the objective.
        embedder: Trained encoder, pooler and head, with the bound on tokens of a chunk.
        head: The objective's train-only head; None for no head.
    """

    def __init__(self, settings: Momentum, embedder: Embedder, head: Head | None) -> None:
        super().__init__()
        self.settings = settings
        # One memo for all copies: tied weights stay tied. The tokenizer and base weights are not copied.
        shared = (embedder.encoder.tokenizer, *embedder.encoder.base_weights())
        memo: dict[int, Any] = {id(item): item for item in shared}  # Any: as in deepcopy
        self.encoder = deepcopy(embedder.encoder, memo)
        self.pooler = deepcopy(embedder.pooler, memo)
        self.head = deepcopy(embedder.head, memo)
        self.own_head = deepcopy(head, memo) if settings.head == "copied" else None
        self.requires_grad_(False)
        self._embedder = embedder._replace(encoder=self.encoder, pooler=self.pooler, head=self.head)
        # In lists, so that torch doesn't register the trained network as a submodule of its copy.
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
        """Copies the trained weights into the momentum encoder."""
        for copy, trained in self._followed:
            copy.load_state_dict(trained.state_dict())

    @torch.no_grad()
    def update(self) -> None:
        """Updates the momentum encoder's averages with the trained weights, and copies the buffers."""
        for weight, trained_weight in self.weight_pairs():
            weight.lerp_(trained_weight, 1 - self.settings.decay)
        for copy, trained in self._followed:
            for buffer, trained_buffer in zip(copy.buffers(), trained.buffers(), strict=True):
                buffer.copy_(trained_buffer)

    @torch.no_grad()
    def distance(self) -> Tensor:
        """Returns the momentum encoder's distance to the trained weights, relative to their norm, a scalar."""
        pairs = [*self.weight_pairs()]
        differences = torch.stack(
            [full_tensor(torch.linalg.vector_norm(trained_weight - weight)) for weight, trained_weight in pairs]
        )
        norms = torch.stack(
            [full_tensor(torch.linalg.vector_norm(trained_weight)) for _, trained_weight in pairs]
        )
        relative: Tensor = torch.linalg.vector_norm(differences) / torch.linalg.vector_norm(norms)
        return relative

    def weight_pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields each weight of the momentum encoder with the trained weight, without shared weights."""
        for copy, trained in self._followed:
            for weight, trained_weight in zip(copy.parameters(), trained.parameters(), strict=True):
                if weight is not trained_weight:
                    yield weight, trained_weight

    @torch.no_grad()
    def encode_keys(self, batch: Batch, plan: ViewPlan, chunk_tokens: int | None) -> Encoded:
        """Encodes the rows of the settings' roles with the momentum encoder, including the train-only head.

        Args:
            batch: A whole batch.
            plan: Views of the batch.
            chunk_tokens: Largest number of tokens that are encoded together.
        """
        slots = [slot for slot in batch.slots if slot.role in self.settings.roles]
        key_batch = batch.keep(slots).replace(labels=None)
        embedder = self._embedder._replace(chunk_tokens=chunk_tokens)
        groups = embedder.groups(key_batch)
        alters = [plan.alter_embeddings(group.batch) if self.settings.views else None for group in groups]
        (trained,) = self._trained_head
        head = trained if self.own_head is None else self.own_head
        with ExitStack() as stack:
            for part in () if self.settings.dropout else (self, head):
                stack.enter_context(evaluating(part) if part is not None else nullcontext())
            encoded = encode_groups(key_batch, groups, embedder, alters, number=KEYS_PASS)
            seed_torch(
                fold_key(key_batch.seed, rank(), KEYS_PASS), key_batch.ids.device
            )  # the dropout of a train-only head
            # Autocast would cache its cast copies of the trained head's weights, which have no gradient here.
            stack.enter_context(full_precision(key_batch.ids.device))
            parts = read_vectors(encoded, tuple(dict.fromkeys(slot.role for slot in slots)), head)
        # Slots are ordered by role.
        return replace(
            encoded,
            embeddings=torch.cat([part_vectors.transpose(0, 1).flatten(0, 1) for part_vectors in parts.values()]),
        )


class MomentumEncoders(nn.ModuleDict):
    """Momentum encoders of a module, by the name of their objective.

    Args:
        objectives: Name -> objective.
        embedder: Trained encoder, pooler and head.
        plan_of: Function from a task to its views.

    Raises:
        ValueError: Views are incompatible with a momentum encoder, or two objectives share one ``Momentum``.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], embedder: Embedder, plan_of: Callable[[str | None], ViewPlan]
    ) -> None:
        super().__init__()
        check_momentum(objectives, plan_of)
        settings_by_name = {name: part.momentum for name, part in objectives.items() if part.momentum is not None}
        for name, settings in settings_by_name.items():
            if users := [user for user, item in settings_by_name.items() if item is settings and user != name]:
                raise InvalidValueError(
                    f"model.objectives.{name}.columns: expected a different Momentum for each objective, got "
                    f"the Momentum of {users[0]} again; create one for each"
                )
            self[name] = MomentumEncoder(settings, embedder, objectives[name].head)

    @property
    def networks(self) -> dict[str, MomentumEncoder]:
        """Objective name -> momentum encoder."""
        return {name: network for name, network in self.items() if isinstance(network, MomentumEncoder)}

    def facts(self) -> dict[str, str]:
        """Returns the number of weights of the momentum encoders for the run's summary; empty without any."""
        sizes = {
            name: sum(weight.numel() for weight, _ in network.weight_pairs())
            for name, network in self.networks.items()
        }
        lines = [
            f"{name}: {size / 1e6:.1f} M weights more, in memory and in checkpoints; keys of "
            f"{' and '.join(self.networks[name].settings.roles)}"
            for name, size in sizes.items()
        ]
        return {"momentum": "\n".join(lines)} if lines else {}

    def restart(self) -> None:
        """Copies the trained weights into every momentum encoder."""
        for network in self.networks.values():
            network.restart()

    def update_all(self) -> None:
        """Updates every momentum encoder after an optimizer step."""
        for network in self.networks.values():
            network.update()

    def encode_keys(
        self, batch: Batch, plan: ViewPlan, chunk_tokens: int | None, names: Iterable[str]
    ) -> dict[object, Encoded]:
        """Encodes a batch with the momentum encoders of some objectives; returns nothing outside training.

        Args:
            batch: A whole batch.
            plan: Views of the batch.
            chunk_tokens: Largest number of tokens that are encoded together.
            names: Names of the objectives.

        Returns:
            ``Momentum`` settings -> encoded batch.
        """
        running = [network for name, network in self.networks.items() if name in names and self.training]
        return {network.settings: network.encode_keys(batch, plan, chunk_tokens) for network in running}

    def figures(self) -> dict[str, Tensor]:
        """Returns ``OBJECTIVE/momentum_distance`` of each momentum encoder. Costs as much time as an update."""
        return {f"{name}/momentum_distance": network.distance() for name, network in self.networks.items()}


class UpdateMomentum(Callback):
    """Callback that updates momentum encoders after each optimizer step, and restarts them at step 0.

    A step that mixed precision skips after a gradient overflow doesn't update them.
    """

    def __init__(self, networks: MomentumEncoders) -> None:
        self.networks = networks
        self._hooks: list[RemovableHandle] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Registers the optimizer hooks that update momentum encoders. Copies the trained weights at step 0."""
        if trainer.global_step == 0:  # weights may have been loaded since the module was built
            self.networks.restart()
        self.teardown(trainer, pl_module, "fit")
        self._hooks = [
            optimizer.register_step_post_hook(lambda *_: self.networks.update_all())
            for optimizer in trainer.optimizers
        ]

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Removes the optimizer hooks that update momentum encoders."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def check_momentum(objectives: Mapping[str, Objective], plan_of: Callable[[str | None], ViewPlan]) -> None:
    """Checks that views are compatible with momentum encoders.

    Args:
        objectives: Name -> objective.
        plan_of: Function from a task to its views.

    Raises:
        ValueError: A role has text or token views, but its momentum encoder should read it without views. Or a
            gradient view alters a role that its objective reads only as keys, which have no gradient.
    """
    for name, objective in objectives.items():
        if objective.momentum is None:
            continue
        for place, view in plan_of(objective.task).named_views():
            role, kind = role_of(place.removeprefix("views.").partition("[")[0]), type(view).__name__
            alters = isinstance(view, TextView | TokenView) and role in objective.momentum.roles
            if alters and not objective.momentum.views:
                raise InvalidValueError(
                    f"model.objectives.{name}.columns: expected Momentum.views: true, got false; set views: "
                    f"true, or move {kind} at model.{place} to another role. This view alters rows before any "
                    "network."
                )
            if (
                isinstance(view, GradientView)
                and role in objective.momentum_only_roles
                and view.objective in (None, name)
            ):
                raise InvalidValueError(
                    f"model.{place}: expected a role that {name} reads of the trained network for {kind}, got "
                    f"{role}, whose vectors are momentum vectors without a gradient; move the view to anchor"
                )
