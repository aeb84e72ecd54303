"""ContrastiveModule: the one LightningModule, into which every part is plugged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentParser
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typing_extensions import Self

from contrastive_text.combination import check_parts
from contrastive_text.data import Collator, TextTokenizer
from contrastive_text.data.tokenizing import wrap_tokenizer
from contrastive_text.distributed import sum_over_ranks, world_size
from contrastive_text.encoders import Encoder
from contrastive_text.encoding import Network, encode_views
from contrastive_text.heads import Head
from contrastive_text.losses import reduce
from contrastive_text.metrics import SpearmanSimilarity
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.poolers import MeanPooler, Pooler
from contrastive_text.recipes import recipe_files
from contrastive_text.recipes.layers import merge, read_config
from contrastive_text.specs import to_plain
from contrastive_text.training import AdamW, LinearSchedule, Optimizer, Schedule, lr_lambda
from contrastive_text.training.checkpoints import verify_checkpoint
from contrastive_text.types import Batch, Encoded, Role
from contrastive_text.views import View, ViewPlan

_TOKENIZER = "tokenizer"


class ContrastiveModule(pl.LightningModule):
    """Encodes all rows of a batch, and minimises a weighted sum of objectives.

    The gradient is that of the whole batch however many ranks share it: each objective gives a sum and a
    count, and only here is the sum, times the number of ranks, divided by the count over all ranks.

    Args:
        encoder: From ragged rows to token vectors.
        pooler: From token vectors to one vector per text; None for ``MeanPooler``.
        inference_pooler: The pooler of validation and of the saved model, where it isn't ``pooler``: ConSERT
            trains on the last layer and reports the last two.
        head: A head that inference keeps (``train_only: false``); None for none.
        views: Role -> chain of views; None for no alteration: with ``SameText`` only dropout tells two views
            apart.
        objectives: Name -> objective; None for one ``Contrastive`` objective. The names appear in the log.
        weights: Name of an objective -> its weight in the sum, 1 where none is given.
        optimizer: None for ``AdamW``.
        schedule: None for ``LinearSchedule``.

    Raises:
        ValueError: A head that inference doesn't keep, a chain of views out of order, weights for an unknown
            objective, or embedding views on an architecture that has no place for them.
        TypeError: A part that can't be written into a checkpoint.
    """

    def __init__(
        self,
        encoder: Encoder,
        pooler: Pooler | None = None,
        inference_pooler: Pooler | None = None,
        head: Head | None = None,
        views: dict[str, list[View]] | None = None,
        objectives: dict[str, Objective] | None = None,
        weights: dict[str, float] | None = None,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler or MeanPooler()
        self.inference_pooler = inference_pooler
        self.head = head
        self.plan = ViewPlan(views)
        self.objectives = nn.ModuleDict(objectives or {"contrastive": Contrastive()})
        self.weights = dict.fromkeys(self.objectives, 1.0) | (weights or {})
        self.optimizer = optimizer or AdamW()
        self.schedule = schedule or LinearSchedule()
        self._check_heads_and_weights()
        check_parts(encoder, self.plan, self.objective_parts())
        encoder.add_tokens(self.plan.new_tokens)
        if any(objective.needs_token_logits for objective in self.objective_parts().values()):
            encoder.build_token_head()
        if head is not None:
            head.build(encoder.features)
        features = self._features()
        for objective in self.objective_parts().values():
            objective.build(features)
        self._learned_tokenizer: str | None = None
        self._scores: dict[str, SpearmanSimilarity] = {}
        parts = {
            "encoder": self.encoder,
            "pooler": self.pooler,
            "inference_pooler": self.inference_pooler,
            "head": self.head,
            "views": self.plan.chains,
            "objectives": self.objective_parts(),
            "weights": self.weights,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }
        # Plain data and the one instantiator that Lightning allows: what the shell records is the same.
        recorded = {name: to_plain(part, f"model.{name}") for name, part in parts.items()}
        self.save_hyperparameters({**recorded, "_instantiator": "pytorch_lightning.cli.instantiate_module"})

    @classmethod
    def from_recipe(cls, recipe: str, model_name_or_path: str | None = None) -> Self:
        """Builds the module of a recipe, as the shell would; its ``data`` and ``trainer`` are left to you.

        DeCLUTR's pairing is part of ``data``: give ``TextDataModule(pairing=Spans())``.

        Args:
            recipe: Name of a shipped recipe, or path of a YAML file.
            model_name_or_path: Encoder in place of the recipe's.

        Raises:
            ValueError: No such recipe, or no such encoder.
        """
        files = [Path(recipe)] if Path(recipe).suffix in (".yaml", ".yml") else recipe_files(recipe)
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(cls, "model")
        for other in ("seed_everything", "trainer", "data", "checkpoint", "export", "ckpt_path"):
            parser.add_argument(f"--{other}", type=Any)
        config = merge([read_config(file) for file in files])
        if model_name_or_path is not None:
            named = {"model_name_or_path": model_name_or_path, "config": None}
            config = merge([config, {"model": {"encoder": {"init_args": named}}}])
        built: Self = parser.instantiate(parser.parse_object(config)).model
        return built

    def _check_heads_and_weights(self) -> None:
        if self.head is not None and self.head.train_only:
            raise ValueError(
                f"model.head: expected a head with train_only: false, got {type(self.head).__name__} with true; "
                "a head that only training sees belongs to its objective: set head there"
            )
        for name, weight in self.weights.items():
            if name not in self.objectives or weight < 0:
                raise ValueError(
                    f"model.weights.{name}: expected a weight of 0 or more for one of the objectives "
                    f"{', '.join(self.objectives)}, got {name}: {weight}"
                )

    def objective_parts(self) -> dict[str, Objective]:
        """Gives the objectives by name."""
        return {name: part for name, part in self.objectives.items() if isinstance(part, Objective)}

    def _features(self) -> int:
        if self.head is None:
            return self.encoder.features
        self.head.eval()
        with torch.no_grad():
            width = self.head(torch.zeros(1, self.encoder.features)).shape[1]
        self.head.train()
        return int(width)

    @property
    def vocabulary_size(self) -> int:
        """Entries of the encoder's token table."""
        return self.encoder.vocabulary_size

    def text_tokenizer(self, training: bool = True) -> TextTokenizer | None:
        """Gives the encoder's tokenizer with the limit of training or of use; None before one is learned."""
        tokenizer, limit = self.encoder.tokenizer, self.encoder.limit
        max_length = (self.encoder.max_length or limit) if training else limit
        return None if tokenizer is None else TextTokenizer(tokenizer, max_length)

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer learned from the corpus, as JSON; checkpoints keep it."""
        self._learned_tokenizer = description
        self.encoder.tokenizer = wrap_tokenizer(description)

    @property
    def network(self) -> Network:
        """What a text goes through on its way to an embedding, in training."""
        return Network(self.encoder, self.pooler, self.head)

    @property
    def used_network(self) -> Network:
        """The same in validation and in the saved model."""
        return Network(self.encoder, self.inference_pooler or self.pooler, self.head)

    @property
    def reads(self) -> tuple[Role, ...]:
        """The roles that the objectives read."""
        return tuple(dict.fromkeys(role for part in self.objective_parts().values() for role in part.reads))

    def forward(self, batch: Batch) -> Tensor:
        """Gives the vectors that inference sees: no view, no train-only head, (S, D)."""
        return self.used_network.pool(batch)

    def encode(self, batch: Batch) -> Encoded:
        """Gives what objectives read: the batch encoded under its views."""
        return encode_views(
            batch, self.network, plan=self.plan, value=lambda *each: self.objective_value(*each)[0]
        )

    def objective_value(self, encoded: Encoded, name: str | None) -> tuple[Tensor, Terms]:
        """Gives an objective's loss, whose mean over ranks is that of the whole batch, and its terms."""
        objective = self.objective_parts()[name or next(iter(self.objectives))]
        terms = objective(encoded)
        count = sum_over_ranks(torch.tensor(float(terms.count), device=self.device)).clamp(min=1)
        return reduce(terms.total * world_size(), count, terms.reduction), terms

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002  # Lightning's signature
        """Gives this rank's part of the loss; the mean over ranks is the loss of the whole batch."""
        encoded = self.encode(batch)
        loss = torch.zeros((), device=self.device)
        examples = len(batch) // len(batch.slots)
        for name in self.objectives:
            value, terms = self.objective_value(encoded, name)
            loss = loss + self.weights[name] * value
            figures = {f"train/{name}": value.detach()}
            figures |= {f"train/{name}/{figure}": number for figure, number in terms.logs.items()}
            self.log_dict(figures, batch_size=examples, sync_dist=world_size() > 1)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=examples, sync_dist=world_size() > 1)
        self.log(
            "train/truncated",
            float(batch.truncated),
            on_step=False,
            on_epoch=True,
            reduce_fx="sum",
            batch_size=1,
            sync_dist=world_size() > 1,
        )
        return loss

    def _begin_scores(self, names: Sequence[str]) -> None:
        self._scores = {name: SpearmanSimilarity().to(self.device) for name in names}

    def _score(self, batch: Batch, number: int) -> None:
        vectors = self(batch)
        u, v = vectors[batch.by_role("anchor")], vectors[batch.by_role("positive")]
        if batch.target is None:
            raise ValueError("evaluation: expected pairs with a score, got none; give a file with a score column")
        list(self._scores.values())[number].update(u, v, target=batch.target)

    def _log_scores(self, part: str) -> None:
        scores = {name: metric.compute() for name, metric in self._scores.items()}
        mean = torch.stack(list(scores.values())).mean()
        self.log(f"{part}/spearman", mean, prog_bar=True)
        if len(scores) > 1:
            self.log_dict({f"{part}/spearman/{name}": score for name, score in scores.items()})

    def on_validation_epoch_start(self) -> None:
        """Starts a score for every validation file."""
        self._begin_scores(_loader_names(self.trainer.val_dataloaders))

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002  # the base's signature
        """Adds the pairs of a batch to its file's score."""
        self._score(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/spearman``, the mean of the files' correlations times 100, and each file's own."""
        self._log_scores("val")

    def on_test_epoch_start(self) -> None:
        """Starts a score for every test file."""
        self._begin_scores(_loader_names(self.trainer.test_dataloaders))

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002  # the base's signature
        """Adds the pairs of a batch to its file's score."""
        self._score(batch, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Logs ``test/spearman`` as validation does."""
        self._log_scores("test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002  # Lightning's signature
        """Gives the vectors of the anchors, (N, D)."""
        vectors: Tensor = self(batch.split(batch.by_role("anchor")))
        return vectors.float()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Gives the optimiser and the schedule per step; refuses a run of unknown length."""
        optimizer = self.optimizer.build(self.named_parameters())
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda(self.schedule, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, **options: Any) -> Self:  # type: ignore[override]
        """Loads a checkpoint after checking that it is whole.

        Args:
            checkpoint_path: A local ``.ckpt`` file.
            options: As in Lightning's method; ``weights_only`` is True unless given.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged.
        """
        verify_checkpoint(checkpoint_path)
        loaded: Self = super().load_from_checkpoint(checkpoint_path, **{"weights_only": True, **options})
        return loaded

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # Any: what Lightning puts into it
        """Keeps a tokenizer that was learned from the corpus."""
        if self._learned_tokenizer is not None:
            checkpoint[_TOKENIZER] = self._learned_tokenizer

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:  # Any: what Lightning put into it
        """Takes the learned tokenizer back."""
        if _TOKENIZER in checkpoint:
            self.adopt_tokenizer(checkpoint[_TOKENIZER])


def _loader_names(loaders: object) -> list[str]:
    """Gives the names of the files behind evaluation loaders; a loader that isn't ours gets its number."""
    each = loaders if isinstance(loaders, list | tuple) else [loaders]
    collators = [loader.collate_fn if isinstance(loader, DataLoader) else None for loader in each]
    return [part.task if isinstance(part, Collator) else str(i) for i, part in enumerate(collators)]
