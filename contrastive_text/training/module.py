"""``ContrastiveModule``, the LightningModule that trains an encoder with exchangeable parts."""

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
from contrastive_text.core.config.specs import stored_arguments
from contrastive_text.core.distributed import means_over_ranks, rank
from contrastive_text.core.errors import InvalidTypeError, at_least, one_of
from contrastive_text.core.random import fold_key, seed_torch, text_id
from contrastive_text.core.similarity import new_in_full_precision
from contrastive_text.core.storage.checkpoints import ScoreRows
from contrastive_text.data import TextTokenizer
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tasks import DataNeeds
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.base import Embedder
from contrastive_text.heads import Head, StackHead
from contrastive_text.inference.search import SimilarityName
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.poolers import MeanPooler, Pooler
from contrastive_text.recipes.layers import build_part, layer_file, merge, read_layers, value_at
from contrastive_text.training.callbacks.every_run import (
    LogFigures,
    SaveAccumulatedGradients,
    StopWhenDiverged,
    WarnConstantLoss,
)
from contrastive_text.training.checks import (
    causal_warning,
    check_names,
    check_parts,
    check_split,
    check_start,
)
from contrastive_text.training.folder_start import load_head, merge_start
from contrastive_text.training.forward_pass import (
    encode_views,
    read_slots,
    run_in_chunks,
    select_token_slots,
    swap_views,
)
from contrastive_text.training.guides import Guide, check_guides_at_start, guide_vectors
from contrastive_text.training.held_out import HeldOutScores, predict
from contrastive_text.training.momentum import MomentumEncoders, UpdateMomentum
from contrastive_text.training.optim import (
    AdamW,
    Combine,
    LinearSchedule,
    Optimizer,
    Schedule,
    ScheduledRates,
    ScheduleName,
    TransformersSchedule,
    WeightedSum,
)
from contrastive_text.training.optim.combine import gradient_figures
from contrastive_text.training.stored_module import StoredModule, keep_settings
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import View


@dataclass(frozen=True)
class Inference:
    """Settings of the saved model that training doesn't change.

    Args:
        pooler: Pooler of validation and of the saved model. None for the pooler of training. ConSERT trains on
            the last layer and evaluates with the last two.
        max_length: Longest text in tokens, with special tokens. It also limits texts in training. None for the
            network's limit.
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
"""Default settings of a saved model: the pooler of training, and the length limit of the network."""


class ContrastiveModule(StoredModule):
    """LightningModule that encodes the rows of a batch and minimizes a weighted sum of objectives.

    The gradient is that of the whole batch for any number of ranks. Each objective computes a sum and a count.
    ``Terms.loss`` divides the sum, times the number of ranks, by the count over all ranks.

    Args:
        encoder: Network from ragged rows to token vectors.
        pooler: Part from token vectors to one vector per text; None for ``MeanPooler``.
        head: Head that inference keeps (``train_only: false``); None for no head.
        views: Role or slot -> chain of views for all tasks (see ``ViewPlan``); or task -> such a dictionary,
            which replaces the common views. None for no views: with ``SameText`` two copies of a text differ by
            dropout only.
        prompts: Prompts of texts, in training and inference: ``query`` comes before anchors, ``document`` before
            other texts. A task may have its own prompts.
        inference: Settings of the saved model: its pooler if it differs, length limits, similarity.
        objectives: Name -> objective; None for one ``Contrastive`` objective. The names appear in the log.
        guides: Name -> other model whose vectors objectives read; None for no guides.
        weights: Name of an objective -> its weight in the sum. Default: 1.
        combine: Combiner of the gradients of several objectives; None for ``WeightedSum``.
        chunk_tokens: Largest number of tokens that are encoded together in training. Chunks are computed again in
            the backward pass. Memory is bounded by a chunk, loss and gradient are those of the whole batch, and a
            step takes about 4/3 of the time. None for no bound.
        optimizer: Settings of the optimizer; None for ``AdamW``.
        schedule: Learning-rate schedule, or its name in Transformers; None for ``LinearSchedule``.

    Attributes:
        figures: Name -> metric that a step logs as ``train/NAME`` in addition to its loss: a scalar without a
            gradient. Cleared before each step. A subclass adds metrics in ``step_losses``. After a logged step
            they are means over ranks.
        figure_weights: Name of a metric -> its weight in the mean over ranks, such as this rank's number of rows.
            Default: 1.
        logs_step: Whether the current step is logged; ``LogFigures`` sets it. Metrics of other steps are not
            read and need not be computed.
        held_out_rows: Values of the held-out rows of the last validation, from which its scores are computed.
        logs_gradients: Whether a logged step also logs norms and cosines of gradients; ``LogGradients`` sets it.

    Raises:
        ValueError: The head is train-only, views are in a wrong order, weights name unknown objectives, heads
            can't share their layers, or the architecture doesn't support embedding views.
        TypeError: A part can't be written into a checkpoint, or ``prompts`` or ``inference`` has another type.
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
        schedule: Schedule | ScheduleName | None = None,
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
        self.optimizer = optimizer or AdamW()
        self.schedule = (
            TransformersSchedule(schedule) if isinstance(schedule, str) else schedule or LinearSchedule()
        )
        self.prompts, self.guides = prompts, guides
        self.by_task = TaskParts(self.objective_parts(), views or {}, prompts, guides or {})
        self.plan = self.by_task.common
        self.figures: dict[str, Tensor] = {}
        self.figure_weights: dict[str, Tensor] = {}
        self.logs_step, self.logs_gradients = True, False
        self._recipe: str | None = None
        self._scores: HeldOutScores
        self.held_out_rows: ScoreRows = {}
        poolers = self.pooler, self.inference_embedder.pooler
        check_parts(encoder, poolers, head, self.weights, self.objective_parts(), self.by_task)
        self.by_task.build(self.embedder, head)
        for part in (head, *encoder.modules()):
            load_head(part)
        self.momentum = MomentumEncoders(self.objective_parts(), self.embedder, self.by_task.plan)
        self.combine.build(list(self.objectives))
        # Plain data and the only instantiator that Lightning allows: the command line saves the same.
        values = {"views": self.by_task.views, "objectives": self.objective_parts(), "weights": weights}
        plain: dict[str, Any] = stored_arguments(
            self, "model", cls=ContrastiveModule, overrides=values
        )  # Any: YAML's
        for name in ("prompts", "inference"):
            plain[name] = plain[name]["init_args"]  # the form in configurations
        self.save_hyperparameters({**plain, "_instantiator": "pytorch_lightning.cli.instantiate_module"})

    @classmethod
    def from_recipe(cls, recipe: str, model_name_or_path: str | None = None) -> Self:
        """Builds the module of a recipe, as the command line does, for your own loop or ``Trainer``.

        ``TextDataModule.from_recipe`` builds its data. Data with another pairing are refused. ``Run`` builds
        module, data and trainer together.

        Args:
            recipe: Name of a shipped recipe, or path of a YAML file.
            model_name_or_path: Encoder that replaces the recipe's.

        Raises:
            ValueError: The recipe or the encoder doesn't exist.
        """
        layers = read_layers(layer_file(recipe), apart=True)
        arguments: dict[str, str | None] = {"model_name_or_path": model_name_or_path}
        if value_at(merge(layers), "model.encoder.config") is not None:  # random weights
            arguments["config"] = None
        above = {} if model_name_or_path is None else {"model": {"encoder": {"init_args": arguments}}}
        config = merge_start(layers, lambda layer: merge([layer, above]))
        module = build_part(cls, "model", merge([config, above]), recipe)
        module._recipe = recipe
        return module

    def set_chunk_tokens(self, chunk_tokens: int | None) -> None:
        """Sets the largest number of tokens that are encoded together; checkpoints store it for a resumed run."""
        self.chunk_tokens = at_least("model.chunk_tokens", chunk_tokens, 1)
        self.hparams["chunk_tokens"] = chunk_tokens

    def objective_parts(self) -> dict[str, Objective]:
        """Returns name -> objective of the module's objectives."""
        return {name: part for name, part in self.objectives.items() if isinstance(part, Objective)}

    def text_tokenizer(self, training: bool = True) -> TextTokenizer | None:
        """Returns the encoder's tokenizer with the length limit of training or inference.

        None before a tokenizer is learned from the corpus.
        """
        tokenizer, limit = self.encoder.tokenizer, self.encoder.limit
        in_use = self.length_in_use
        max_length = (self.encoder.max_length or in_use) if training else in_use
        spare = None if limit is None or max_length is None else limit - max_length
        return None if tokenizer is None else TextTokenizer(tokenizer, max_length, spare)

    @property
    def length_in_use(self) -> int | None:
        """Longest text of the saved model in tokens, with special tokens; None for no limit."""
        limits = (self.inference.max_length, self.encoder.limit)
        return min((limit for limit in limits if limit is not None), default=None)

    def data_needs(self, tasks: Sequence[str]) -> DataNeeds:
        """Returns the requirements of the parts on the data of tasks; see ``TaskParts.data_needs``."""
        tokenizers = self.text_tokenizer(), self.text_tokenizer(training=False)
        return self.by_task.data_needs(tasks, *tokenizers, self.encoder.vocabulary_size)

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Makes the contrastive objectives of tasks use pairs labeled 0 as hard negatives."""
        self.by_task.take_negative_pairs(tasks)

    @property
    def embedder(self) -> Embedder:
        """Encoder, pooler and head that training uses."""
        return Embedder(self.encoder, self.pooler, self.head, self.chunk_tokens)

    @property
    def inference_embedder(self) -> Embedder:
        """Encoder, pooler and head that validation and the saved model use."""
        return Embedder(self.encoder, self.inference_pooler or self.pooler, self.head, self.chunk_tokens)

    def sentence_encoder(self) -> SentenceEncoder:
        """Returns the model for inference, without views and train-only heads. It shares the module's weights."""
        head, normalize, truncate_dim = None if self.head is None else self.head.network, False, None
        if isinstance(self.head, StackHead):
            head, normalize, truncate_dim = self.head.encoder_arguments()
        return SentenceEncoder(
            self.encoder,
            self.inference_embedder.pooler,
            head,
            normalize,
            prompts=self.by_task.prompts,
            truncate_dim=self.by_task.truncate_dim or truncate_dim,
            max_length=self.length_in_use,
            similarity_fn_name=self.inference.similarity_fn_name,
            query_length=self.inference.query_length,
            document_length=self.inference.document_length,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Returns the inference vectors of a batch, (S, D), without views and train-only heads."""
        return self.inference_embedder.pool(batch)[:, : self.by_task.truncate_dim]

    def encode(self, batch: Batch, task: str | None = None, names: Sequence[str] | None = None) -> Encoded:
        """Encodes the slots of a batch that objectives read, with the views of its task.

        Args:
            batch: Ragged rows.
            task: Name of the task; None for the only task.
            names: Names of the objectives; None for all objectives of the task.
        """
        parts, plan = self.by_task.objectives(task), self.by_task.plan(task)
        names = list(names or parts)
        followed = next((view.objective for view in plan.gradient_views), None) or names[0]
        if plan.gradient_views and followed not in names:
            names.append(followed)
        running = [parts[name] for name in names]
        slots = read_slots(batch, plan, running)
        facts: dict[str, Any] = {"batch": select_token_slots(batch, running)}  # Any: each field has its own type
        facts["run_in_chunks"] = partial(run_in_chunks, self.embedder)
        if self.guides:
            facts["guides"] = guide_vectors(self.guides, slots, running)
        if self.momentum:
            facts["keys"] = self.momentum.encode_keys(batch, plan, self.chunk_tokens, names)

        def loss(encoded: Encoded) -> Tensor:
            swapped = swap_views(replace(encoded, **facts, logged=False), plan, parts[followed].view)
            return self.objective_value(swapped, followed)[0]

        return replace(encode_views(slots, self.embedder, plan, loss), **facts, logged=self.logs_step)

    def objective_value(self, encoded: Encoded, name: str) -> tuple[Tensor, Terms]:
        """Returns an objective's loss and its terms. The mean over ranks is the loss of the whole batch."""
        terms = self.objective_parts()[name](encoded)
        return terms.loss(), terms

    def step_losses(self, batch: Batch | StepBatch) -> dict[str, Tensor]:
        """Returns the weighted losses of a step by the names of the objectives.

        Override it to add a loss, or a metric to ``figures``. The combiner reads all returned losses, their
        gradients are logged on request, and DDP averages them. For a loss that each rank computes on its own
        rows, return ``Terms(total, count).loss()``.
        """
        batches = batch.batches if isinstance(batch, StepBatch) else {None: batch}
        step_names = batch.objectives if isinstance(batch, StepBatch) else None
        terms_by_name: dict[str, Terms] = {}
        for task, part in batches.items():
            names = [name for name in self.by_task.objectives(task) if step_names is None or name in step_names]
            if not names:
                continue
            encoded = self.encode(part, task, names)
            for name in names:
                # Seeds dropout of the objective's head. Dropout of the encoder has its own keys.
                seed_torch(fold_key(part.seed, rank(), text_id(name)), self.device)
                terms_by_name[name] = self.objective_parts()[name](encoded)
        losses: dict[str, Tensor] = {}
        for (name, terms), value in zip(
            terms_by_name.items(), Terms.losses(list(terms_by_name.values())), strict=True
        ):
            losses[name] = self.weights[name] * value
            self.figures[name] = value.detach()
            self.figures |= {f"{name}/{figure}": number for figure, number in terms.logs.items()}
            self.figure_weights |= {f"{name}/{figure}": terms.weight(figure) for figure in terms.logs}
        return losses

    @new_in_full_precision()
    def training_step(self, batch: Batch | StepBatch, batch_idx: int) -> Tensor:
        """Returns this rank's loss of a training step. The mean over ranks is the loss of the whole batch."""
        self.figures, self.figure_weights = {}, {}
        losses = self.step_losses(batch)
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if self.logs_step and self.logs_gradients:
            gradient_metrics = gradient_figures(losses, trained)
            self.figures |= {f"gradient/{name}": figure for name, figure in gradient_metrics.items()}
        loss: Tensor = self.combine(losses, trained, key=fold_key(self.current_epoch, batch_idx))
        for name, objective in self.objective_parts().items():
            if name in losses:
                objective.finish_step()
        if self.logs_step:
            self.figures |= {"loss": loss.detach()} | self.combine.logs()
            if self.momentum:
                self.figures |= self.momentum.figures()
            # One all-reduce for all metrics; Lightning would have a barrier and an all-reduce for each.
            self.figures = means_over_ranks(self.figures, self.figure_weights)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Creates an empty score for every file and task of the validation or test loaders."""
        loaders = self.trainer.test_dataloaders if self.trainer.testing else self.trainer.val_dataloaders
        sparse = self.inference.similarity_fn_name if self.inference_embedder.is_sparse else None
        self._scores = HeldOutScores(loaders, self.by_task, self.device, sparse)

    @new_in_full_precision()
    def validation_step(
        self,
        batch: Batch | StepBatch,
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
        dataloader_idx: int = 0,
    ) -> dict[str, Tensor] | None:
        """Adds a batch to the score of its file or task. Returns the vectors of scored pairs."""
        return self._scores.add(batch, dataloader_idx, embed=self, embedder=self.embedder)

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/spearman``, ``val/TASK/SCORE`` and ``val/overall``, or the same scores under ``test``."""
        self._scores.log(self, "test" if self.trainer.testing else "val")
        self.held_out_rows = self._scores.rows()

    on_test_epoch_start, on_test_epoch_end = on_validation_epoch_start, on_validation_epoch_end
    test_step = validation_step

    @new_in_full_precision()
    def predict_step(self, batch: Batch | StepBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:  # noqa: ARG002  # Lightning's signature
        """Predicts a batch: the vectors of its anchors, (N, D), or the predictions of a task's objective."""
        if isinstance(batch, StepBatch):
            ((task, rows),) = batch.batches.items()
            return predict(rows, self.embedder, self.by_task.objectives(task))
        return self.forward(batch.split(batch.by_role(self.encoder.plain_role))).float()

    def configure_callbacks(self) -> list[pl.Callback]:
        """Returns the callbacks of every run, also with a trainer of the user's own."""
        guards = [StopWhenDiverged(), WarnConstantLoss(), SaveAccumulatedGradients()]
        return [*guards, UpdateMomentum(self.momentum), LogFigures()]

    def setup(self, stage: str) -> None:
        """Converts the module to float64 for the precision 64-true, before a checkpoint is loaded and rounded.

        For training it also checks guides and whether the strategy can split the weights, before the summary is
        printed. Warns if the pooler of a causal encoder uses early tokens.
        """
        if self.trainer.precision == "64-true":
            self.double()
        if stage == "fit":
            check_guides_at_start(self.by_task.guides, self.objective_parts(), self.trainer)
            check_split(self.trainer, self.combine, self.encoder)
            if message := causal_warning(self.encoder, [self.pooler, self.inference_embedder.pooler]):
                rank_zero_warn(message)

    def on_fit_start(self) -> None:
        """Checks that trainer, data and module are compatible (``check_start``), after a checkpoint is loaded."""
        embedders = [self.embedder, self.inference_embedder]
        check_start(self.trainer, self.combine, self.by_task, embedders, recipe=self._recipe)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Returns the optimizer and the schedule, which is updated every step.

        Raises:
            ValueError: The schedule needs the length of the run, and the length is unknown.
        """
        optimizer = keep_settings(self.optimizer.build(self.named_parameters()))
        rates = ScheduledRates(optimizer, self.schedule, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}
