"""ContrastiveModule: the one LightningModule, into which every part is plugged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, Encoded, StepBatch
from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.config.specs import stored_arguments
from contrastive_text.core.distributed import means_over_ranks, rank
from contrastive_text.core.errors import InvalidTypeError
from contrastive_text.core.random import fold, seed_torch, text_id
from contrastive_text.core.similarity import new_in_full_precision
from contrastive_text.data import TextTokenizer
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tasks import DataNeeds
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.heads import Head, StackHead
from contrastive_text.inference.search import SimilarityName
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.poolers import MeanPooler, Pooler
from contrastive_text.recipes.layers import build_part, layer_file, merge, read_layers
from contrastive_text.training.callbacks.every_run import (
    EndWhenDiverged,
    KeepGradients,
    LogFigures,
    WarnOfConstantLoss,
)
from contrastive_text.training.checks import (
    causal_warning,
    check_names,
    check_parts,
    check_split,
    check_start,
)
from contrastive_text.training.folder_start import load_head, with_start
from contrastive_text.training.forward_pass import (
    encode_views,
    in_place_read,
    read_slots,
    run_by_groups,
    tokens_read,
)
from contrastive_text.training.guides import Guide, check_guides_at_start, guide_vectors
from contrastive_text.training.held_out import HeldOutScores, predictions
from contrastive_text.training.momentum import FollowSteps, MomentumNetworks
from contrastive_text.training.optim import AdamW, Combine, LinearSchedule, Optimizer, Schedule, WeightedSum
from contrastive_text.training.optim.combine import gradient_figures
from contrastive_text.training.optim.schedules import ScheduledRates
from contrastive_text.training.stored_module import StoredModule, keep_own_settings
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import View


@dataclass(frozen=True)
class Inference:
    """Settings of the saved model that training doesn't change.

    Args:
        pooler: Pooler of validation and of the saved model. None for the pooler of training. ConSERT trains on
            the last layer and reports the last two.
        max_length: Longest text in tokens, with special tokens. It bounds training too. None for the network's
            limit.
        query_length: Longest query of ``encode_query`` in tokens. None for ``max_length``.
        document_length: Longest document of ``encode_document`` in tokens. None for ``max_length``.
        similarity_fn_name: How the saved model compares vectors.

    Raises:
        ValueError: A length below 3, or an unknown similarity.

    Example:
        >>> Inference(max_length=128).similarity_fn_name
        'cosine'
    """

    pooler: Pooler | None = None
    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    similarity_fn_name: SimilarityName = "cosine"

    def __post_init__(self) -> None:
        for name in ("max_length", "query_length", "document_length"):
            at_least(f"model.inference.{name}", vars(self)[name], 3)
        one_of("model.inference.similarity_fn_name", self.similarity_fn_name, SimilarityName)


AS_IN_TRAINING = Inference()
"""Settings of a saved model that pools as in training, up to the network's limit."""


class ContrastiveModule(StoredModule):
    """Encodes all rows of a batch, and minimizes a weighted sum of objectives.

    The gradient is that of the whole batch however many ranks share it: each objective gives a sum and a
    count, and ``Terms.loss`` divides the sum, times the number of ranks, by the count over all ranks.

    Args:
        encoder: From ragged rows to token vectors.
        pooler: From token vectors to one vector per text; None for ``MeanPooler``.
        head: A head that inference keeps (``train_only: false``); None for none.
        views: Role -> chain of views, or slot -> chain (see ``ViewPlan``), for all tasks, or task -> such a
            dictionary in their place; None for no alteration: with ``SameText`` dropout tells two views apart.
        prompts: Prompts of texts, in training and in use: ``query`` comes before anchors, ``document`` before
            other texts. A task may have its own.
        inference: Settings of the saved model: its pooler if another one trains, length limits, similarity.
        objectives: Name -> objective; None for one ``Contrastive`` objective. The names appear in the log.
        guides: Name -> other model whose vectors objectives read beside the own ones; None for none.
        weights: Name of an objective -> its weight in the sum, 1 where none is given.
        combine: How the gradients of several objectives make one; None for ``WeightedSum``.
        chunk_tokens: Most tokens that are encoded together while training, computed anew in the backward pass:
            memory of a chunk, loss and gradient of the whole batch, some 4/3 of the time. None for no bound.
        optimizer: None for ``AdamW``.
        schedule: None for ``LinearSchedule``.

    Attributes:
        figures: Name -> what a step logs as ``train/NAME`` beside its loss, scalars without a gradient; emptied
            before each step. A subclass adds its own in ``step_losses``. After a step that is logged they are
            means over ranks.
        figure_weights: Name of such a figure -> its weight in the mean over ranks, such as this rank's number of
            rows; 1 where none is given.
        logs_step: Whether the step that runs is logged; ``LogFigures`` sets it. Of another step no figure is
            read, and none need be computed.
        logs_gradients: Whether a logged step also has figures of gradients; ``LogGradients`` sets it.

    Raises:
        ValueError: A head that inference doesn't keep, views out of order, weights of no objective, heads that
            can't share their layers, or embedding views on an architecture that has no place for them.
        TypeError: A part that can't be written into a checkpoint, or plain values in place of a record.
    """

    def __init__(
        self,
        encoder: Encoder,
        pooler: Pooler | None = None,
        head: Head | None = None,
        views: dict[str, list[View] | dict[str, list[View]]] | None = None,
        prompts: Prompts = NO_PROMPTS,
        inference: Inference = AS_IN_TRAINING,
        objectives: dict[str, Objective] | None = None,
        guides: dict[str, Guide] | None = None,
        weights: dict[str, float] | None = None,
        combine: Combine | None = None,
        chunk_tokens: int | None = None,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        for name, value, kind in (("prompts", prompts, Prompts), ("inference", inference, Inference)):
            if not isinstance(value, kind):
                raise InvalidTypeError(
                    f"model.{name}: expected {kind.__name__}, got {value!r}; write {name}={kind.__name__}(...)"
                )
        self.encoder = encoder
        self.pooler = pooler or MeanPooler()
        self.inference, self.inference_pooler = inference, inference.pooler
        self.head = head
        check_names(objectives or ())
        self.objectives = nn.ModuleDict(objectives or {"contrastive": Contrastive()})
        self.weights = dict.fromkeys(self.objectives, 1.0) | (weights or {})
        self.combine = combine or WeightedSum()
        self.chunk_tokens = at_least("model.chunk_tokens", chunk_tokens, 1, "null is no bound")
        self.optimizer, self.schedule = optimizer or AdamW(), schedule or LinearSchedule()
        self.prompts, self.guides = prompts, guides
        self.by_task = TaskParts(self.objective_parts(), views or {}, prompts, guides or {})
        self.plan = self.by_task.common
        self.figures: dict[str, Tensor] = {}
        self.figure_weights: dict[str, Tensor] = {}
        self.logs_step, self.logs_gradients = True, False
        self._recipe: str | None = None
        self._scores: HeldOutScores
        check_parts(encoder, head, self.weights, self.by_task)
        self.by_task.build(self.embedder, head)
        load_head(head)
        self.momentum = MomentumNetworks(self.objective_parts(), self.embedder, self.by_task.plan)
        self.combine.build(list(self.objectives))
        # Plain data and the one instantiator that Lightning allows: what the shell records is the same.
        given = {"views": self.by_task.views, "objectives": self.objective_parts(), "weights": weights}
        plain: dict[str, Any] = stored_arguments(self, "model", cls=ContrastiveModule, given=given)  # Any: YAML's
        for name in ("prompts", "inference"):
            plain[name] = plain[name]["init_args"]  # as configurations have them
        self.save_hyperparameters({**plain, "_instantiator": "pytorch_lightning.cli.instantiate_module"})

    @classmethod
    def from_recipe(cls, recipe: str, model_name_or_path: str | None = None) -> Self:
        """Builds the module of a recipe, as the shell would, for a loop or a ``Trainer`` of your own.

        ``TextDataModule.from_recipe`` gives its data: data that pair texts in another way are refused. ``Run``
        puts both together with a trainer.

        Args:
            recipe: Name of a shipped recipe, or path of a YAML file.
            model_name_or_path: Encoder in place of the recipe's.

        Raises:
            ValueError: No such recipe, or no such encoder.
        """
        named = {"model_name_or_path": model_name_or_path, "config": None}
        above = {} if model_name_or_path is None else {"model": {"encoder": {"init_args": named}}}
        config = with_start(read_layers(layer_file(recipe), apart=True), lambda layer: merge([layer, above]))
        module = build_part(cls, "model", merge([config, above]), recipe)
        module._recipe = recipe
        return module

    def set_chunk_tokens(self, chunk_tokens: int | None) -> None:
        """Sets the bound on what is encoded together; a checkpoint keeps it, so that a resumed run has it."""
        self.chunk_tokens = at_least("model.chunk_tokens", chunk_tokens, 1)
        self.hparams["chunk_tokens"] = chunk_tokens

    def objective_parts(self) -> dict[str, Objective]:
        """Returns the objectives by name."""
        return {name: part for name, part in self.objectives.items() if isinstance(part, Objective)}

    def text_tokenizer(self, training: bool = True) -> TextTokenizer | None:
        """Returns the encoder's tokenizer with the limit of training or of use; None before one is learned."""
        tokenizer, limit = self.encoder.tokenizer, self.encoder.limit
        in_use = self.length_in_use
        max_length = (self.encoder.max_length or in_use) if training else in_use
        spare = None if limit is None or max_length is None else limit - max_length
        return None if tokenizer is None else TextTokenizer(tokenizer, max_length, spare)

    @property
    def length_in_use(self) -> int | None:
        """Longest text of the saved model in tokens with special ones; None for no limit."""
        limits = (self.inference.max_length, self.encoder.limit)
        return min((limit for limit in limits if limit is not None), default=None)

    def data_needs(self, tasks: Sequence[str]) -> DataNeeds:
        """Returns what the parts need of the data of these tasks; see ``TaskParts.data_needs``."""
        tokenizers = self.text_tokenizer(), self.text_tokenizer(training=False)
        return self.by_task.data_needs(tasks, *tokenizers, self.encoder.vocabulary_size)

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Lets the contrastive objectives of tasks take pairs labeled 0 as hard negatives."""
        self.by_task.take_negative_pairs(tasks)

    @property
    def embedder(self) -> Embedder:
        """What a text goes through on its way to an embedding, in training."""
        return Embedder(self.encoder, self.pooler, self.head, self.chunk_tokens)

    @property
    def inference_embedder(self) -> Embedder:
        """The same in validation and in the saved model."""
        return Embedder(self.encoder, self.inference_pooler or self.pooler, self.head, self.chunk_tokens)

    def sentence_encoder(self) -> SentenceEncoder:
        """Returns the model that inference uses, without views and train-only heads; it shares the weights."""
        head, normalize, kept = None if self.head is None else self.head.network, False, None
        if isinstance(self.head, StackHead):
            head, normalize, kept = self.head.in_use()
        return SentenceEncoder(
            self.encoder,
            self.inference_embedder.pooler,
            head,
            normalize,
            prompts=self.by_task.prompts,
            truncate_dim=self.by_task.truncate_dim or kept,
            max_length=self.length_in_use,
            similarity_fn_name=self.inference.similarity_fn_name,
            query_length=self.inference.query_length,
            document_length=self.inference.document_length,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Returns the vectors that inference sees: no view, no train-only head, (S, D)."""
        return self.inference_embedder.pool(batch)[:, : self.by_task.truncate_dim]

    def encode(self, batch: Batch, task: str | None = None, names: Sequence[str] | None = None) -> Encoded:
        """Returns what objectives read: the batch encoded under its views, without slots that none of them reads.

        Args:
            batch: Ragged rows.
            task: Whose views; None for the only one.
            names: The objectives; None for all of the task.
        """
        parts, plan = self.by_task.objectives(task), self.by_task.plan(task)
        names = list(names or parts)
        followed = next((view.objective for view in plan.gradient_views), None) or names[0]
        if plan.gradient_views and followed not in names:
            names.append(followed)
        running = [parts[name] for name in names]
        read = read_slots(batch, plan, running)
        facts: dict[str, Any] = {"batch": tokens_read(batch, running)}  # Any: of each field its own
        facts["by_groups"] = partial(run_by_groups, self.embedder)
        if self.guides:
            facts["guides"] = guide_vectors(self.guides, read, running)
        if self.momentum:
            facts["keys"] = self.momentum.encode_keys(batch, plan, self.chunk_tokens, names)

        def loss(encoded: Encoded) -> Tensor:
            read = in_place_read(replace(encoded, **facts, logged=False), plan, parts[followed].view)
            return self.objective_value(read, followed)[0]

        return replace(encode_views(read, self.embedder, plan, loss), **facts, logged=self.logs_step)

    def objective_value(self, encoded: Encoded, name: str) -> tuple[Tensor, Terms]:
        """Returns an objective's loss, whose mean over ranks is that of the whole batch, and its terms."""
        terms = self.objective_parts()[name](encoded)
        return terms.loss(), terms

    def step_losses(self, batch: Batch | StepBatch) -> dict[str, Tensor]:
        """Returns the losses of a step by name, times their weights; the mean of each over ranks is the whole's.

        Override it to add a loss, or a figure to ``figures``. Whatever is returned is combined, its gradient is
        logged on request, and DDP averages it: of something that each rank computes on its own rows return
        ``Terms(total, count).loss()``.
        """
        batches = batch.batches if isinstance(batch, StepBatch) else {None: batch}
        wanted = batch.objectives if isinstance(batch, StepBatch) else None
        found: dict[str, Terms] = {}
        for task, part in batches.items():
            names = [name for name in self.by_task.objectives(task) if wanted is None or name in wanted]
            if not names:
                continue
            encoded = self.encode(part, task, names)
            for name in names:
                # Dropout of an objective's head; that of the encoder has its own keys.
                seed_torch(fold(part.seed, rank(), text_id(name)), self.device)
                found[name] = self.objective_parts()[name](encoded)
        losses: dict[str, Tensor] = {}
        for (name, terms), value in zip(found.items(), Terms.losses(list(found.values())), strict=True):
            losses[name] = self.weights[name] * value
            self.figures[name] = value.detach()
            self.figures |= {f"{name}/{figure}": number for figure, number in terms.logs.items()}
            self.figure_weights |= {f"{name}/{figure}": terms.weight(figure) for figure in terms.logs}
        return losses

    @new_in_full_precision()
    def training_step(self, batch: Batch | StepBatch, batch_idx: int) -> Tensor:
        """Returns this rank's part of the loss; the mean over ranks is the loss of the whole batch."""
        self.figures, self.figure_weights = {}, {}
        losses = self.step_losses(batch)
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if self.logs_step and self.logs_gradients:
            found = gradient_figures(losses, trained)
            self.figures |= {f"gradient/{name}": figure for name, figure in found.items()}
        loss: Tensor = self.combine(losses, trained, key=fold(self.current_epoch, batch_idx))
        for name, objective in self.objective_parts().items():
            if name in losses:
                objective.finish_step()
        if self.logs_step:
            self.figures |= {"loss": loss.detach()} | self.combine.logs()
            if self.momentum:
                self.figures |= self.momentum.figures()
            # One sum for all of them, where Lightning has a barrier and a sum for each.
            self.figures = means_over_ranks(self.figures, self.figure_weights)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Starts a score for every file and task of the loaders."""
        loaders = self.trainer.test_dataloaders if self.trainer.testing else self.trainer.val_dataloaders
        self._scores = HeldOutScores(loaders, self.by_task, self.device)

    @new_in_full_precision()
    def validation_step(
        self,
        batch: Batch | StepBatch,
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
        dataloader_idx: int = 0,
    ) -> dict[str, Tensor] | None:
        """Adds a batch to its file's or task's score; returns scored pairs as ``HeldOutScores.add`` does."""
        return self._scores.add(batch, dataloader_idx, embed=self, embedder=self.embedder)

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/spearman``, ``val/TASK/SCORE``, ``val/overall``, or the same under ``test``."""
        self._scores.log(self, "test" if self.trainer.testing else "val")

    on_test_epoch_start, on_test_epoch_end = on_validation_epoch_start, on_validation_epoch_end
    test_step = validation_step

    @new_in_full_precision()
    def predict_step(self, batch: Batch | StepBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:  # noqa: ARG002  # Lightning's signature
        """Returns the vectors of the anchors, (N, D), or what a task's objective predicts."""
        if isinstance(batch, StepBatch):
            ((task, rows),) = batch.batches.items()
            return predictions(rows, self.embedder, self.by_task.objectives(task))
        return self.forward(batch.split(batch.by_role("anchor"))).float()

    def configure_callbacks(self) -> list[pl.Callback]:
        """Returns what watches over every run, whoever made its trainer."""
        watching = [EndWhenDiverged(), WarnOfConstantLoss(), KeepGradients()]
        return [*watching, FollowSteps(self.momentum), LogFigures()]

    def setup(self, stage: str) -> None:
        """Becomes float64 where that is asked for, before a checkpoint is loaded, which would be rounded.

        Where it is trained, checks before the run says what it is: texts, guides, and whether its weights can be
        split; a pooler that takes tokens too early is warned of.
        """
        if self.trainer.precision == "64-true":
            self.double()
        if stage == "fit":
            check_guides_at_start(self.by_task.guides, self.objective_parts(), self.trainer)
            check_split(self.trainer, self.combine, self.encoder)
            if message := causal_warning(self.encoder, [self.pooler, self.inference_embedder.pooler]):
                rank_zero_warn(message)

    def on_fit_start(self) -> None:
        """Checks that trainer, data and module go together (``check_start``), as a checkpoint has left them."""
        embedders = [self.embedder, self.inference_embedder]
        check_start(self.trainer, self.combine, self.by_task, embedders, recipe=self._recipe)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Returns the optimizer and the schedule per step; refuses a run of unknown length."""
        optimizer = keep_own_settings(self.optimizer.build(self.named_parameters()))
        rates = ScheduledRates(optimizer, self.schedule, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}
