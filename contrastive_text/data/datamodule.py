"""Lightning data module of text files: it reads rows, pairs them and builds batches for a module with views."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytorch_lightning as pl
from pytorch_lightning.callbacks import BatchSizeFinder
from torch.utils.data import DataLoader

from contrastive_text.core.config.specs import part_spec, to_plain
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, at_least
from contrastive_text.core.storage.checkpoints import load_options
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import facts_table
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.files.in_memory import Source, check_given, given_sources, in_memory_rows, wrap_rows
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import ResumableLoader, describe_orders, epoch_loader
from contrastive_text.data.mixture import AllTasks, Mixture, describe_steps
from contrastive_text.data.preparation import TrainingData, prepare_training_data
from contrastive_text.data.retrieval import NO_RETRIEVAL, Retrieval
from contrastive_text.data.run_tables import PARTS, HeldOutRows, PlainLoaders, RunTables
from contrastive_text.data.tasks import (
    PLAIN_TASK,
    SINGLE_TASK,
    BatchConsumer,
    DataNeeds,
    TextTask,
    check_tasks,
)
from contrastive_text.data.tokenizing import single_threaded_tokenizers
from contrastive_text.data.training_set import (
    TrainingSet,
    check_examples,
    check_objective_groups,
    learned_tokenizer,
)
from contrastive_text.recipes.layers import build_part, merge, read_recipe


class TextDataModule(pl.LightningDataModule):
    """LightningDataModule of the data sets for training, validation, test and prediction.

    The order of an epoch and every view depend only on seed, task, epoch and row, not on the number of workers.
    Rows are distributed over ranks without repetition.

    Rows from Python are interpreted like rows of a file. Strings in a list are names of files if each looks like
    a
    name: it has a known suffix, or is a single word. Tuples are (anchor, positive), followed by negatives, and by
    the target if an objective reads it; for single texts (text, target). Checkpoints and configurations store
    type, number and fingerprint of the rows. To resume, pass the same rows again.

    Args:
        train: File or files to train on: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl``, each also ``.gz``,
            ``.parquet``, ``.arrow``, a folder of ``.txt`` documents, or ``hub:NAME:SPLIT``. From Python also
            rows: a list of texts, dicts or tuples, a DataFrame of pandas or polars, or a ``datasets.Dataset``.
        validation: Files of scored pairs, or rows. Each gives a correlation.
        test: Files of scored pairs, or rows, for the test after training.
        predict: Files of texts to embed, or rows.
        retrieval: Queries and corpora to rank in validation.
        task: Options for reading and pairing the rows of ``train``: columns, labels, pairing, limit and more.
        tasks: Name -> data set, if there are several, in place of ``train`` and ``task``.
        mixture: Order of the batches of several tasks; None for ``AllTasks``.
        batch_size: Number of rows of a step, over all ranks; with several tasks, of each task.
        eval_batch_size: Number of rows of a batch outside of training, per rank.
        num_workers: Number of worker processes that tokenize and alter texts.
        seed: Seed of the order and of every view.
        drop_last: Whether an epoch skips its last, smaller batch.
        cache_dir: Folder of cached tokens and mapped rows; None for ``contrastive_text`` in the user's cache
            folder.
        bounds: Size limits of values in files, by the names of ``SizeLimits``: ``line``, ``depth``, ``ratio``.

    Raises:
        TypeError: An iterator in place of rows, or an object without rows.
        ValueError: Both tasks and a training file, a number out of range, or no row. On setup: a file that can't
            be read as requested, a batch larger than the data, texts that are all too short for the pairing, or
            views or objectives for a role or a task that doesn't exist.
        FileNotFoundError: On setup: a missing file.

    Example:
        >>> from contrastive_text.pairings import Given
        >>> pairs = [("a cat?", "a pet"), ("a car?", "a vehicle")]
        >>> data = TextDataModule(pairs, task=TextTask(pairing=Given(), limit=1), batch_size=1)
        >>> data.task.limit, str(data.train)[:13]
        (1, 'given:list:2:')
    """

    def __init__(
        self,
        train: Source | None = None,
        validation: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
        retrieval: Retrieval = NO_RETRIEVAL,
        task: TextTask = PLAIN_TASK,
        tasks: dict[str, TextTask] | None = None,
        mixture: Mixture | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 42,
        drop_last: bool = True,
        cache_dir: str | None = None,
        bounds: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        # Stored under the arguments' names: Lightning compares them with the hyperparameters, which fails for
        # frames.
        train, validation = wrap_rows("data.train", train), wrap_rows("data.validation", validation)
        test, predict = wrap_rows("data.test", test), wrap_rows("data.predict", predict)
        self.train = train
        self.validation = validation
        self.test = test
        self.predict = predict
        self.retrieval = retrieval
        self.task = task
        self.tasks = tasks
        self.mixture = mixture
        self.batch_size = at_least("data.batch_size", batch_size, 1)
        self.eval_batch_size = at_least("data.eval_batch_size", eval_batch_size, 1)
        self.num_workers = at_least("data.num_workers", num_workers, 0)
        self.seed = seed
        self.drop_last = drop_last
        self.cache_dir = cache_dir
        self.bounds = bounds
        if tasks and train is not None:
            raise InvalidValueError(
                f"data.train: expected no files next to data.tasks, got {train}; give each task its own files"
            )
        check_tasks(tasks or {}, task)
        # Only plain data and the one instantiator that Lightning allows, so that a checkpoint can rebuild the
        # module.
        arguments = part_spec(self, "data")["init_args"]
        for name in ("task", "retrieval"):
            arguments[name] = arguments[name]["init_args"]  # as in configurations
        self.save_hyperparameters({**arguments, "_instantiator": "pytorch_lightning.cli.instantiate_module"})
        self._training: TrainingSet | None = None
        self.held_out_rows: Sequence[HeldOutRows] = ()
        self._module: object = None
        self._loader: ResumableLoader | None = None
        self._resume_state: dict[str, int] | None = None
        self.tables = RunTables(
            self.named_tasks,
            named=bool(tasks),
            files={"validation": validation, "test": test, "predict": predict},
            eval_columns=task.eval_columns,
            bounds=SizeLimits.of(bounds),
            retrieval=retrieval,
            cache_dir=None if cache_dir is None else Path(cache_dir),
        )
        if num_workers:
            single_threaded_tokenizers()

    @classmethod
    def from_recipe(cls, recipe: str, **options: Any) -> Self:
        """Builds the data module of a recipe: its pairing or tasks and its batch size, as in the command line.

        Args:
            recipe: Name of a recipe of the package, or path of a YAML file.
            options: Arguments of the class and of ``TextTask``, which override those of the recipe.

        Raises:
            ValueError: There is no such recipe, or the class doesn't have such arguments.

        Example:
            >>> TextDataModule.from_recipe("declutr", train="docs.jsonl").task.pairing.max_length
            512
        """  # Any: arguments of the constructor
        options = given_sources(options)
        with in_memory_rows(options):
            plain = {key: to_plain(value, key) for key, value in options.items()}
            task_names = {*vars(PLAIN_TASK)} - {*inspect.signature(cls).parameters}
            task_options = {key: plain.pop(key) for key in [*plain] if key in task_names}
            overrides = {"data": {**plain, "task": task_options}}
            return build_part(cls, "data", merge([read_recipe(recipe), overrides]), recipe)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's options are all in ``options``
        cls, checkpoint_path: str | Path, trust: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Rebuilds the data module of a run from a checkpoint, which is checked first.

        Arguments and errors are those of ``ContrastiveModule.load_from_checkpoint``. Rows that came from Python
        must be passed again.
        """
        options = given_sources(options)
        with load_options(checkpoint_path, cls, "data", trust, options) as arguments, in_memory_rows(options):
            data: Self = super().load_from_checkpoint(checkpoint_path, **arguments)
        check_given(vars(data))
        return data

    @property
    def named_tasks(self) -> dict[str, TextTask]:
        """Tasks by name; a single task has the name ``train``."""
        return self.tasks or {SINGLE_TASK: replace(self.task, train=self.train)}

    def setup(self, stage: str) -> None:
        """Reads the data of a stage, once, and checks it against the module's objectives and views.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
        """
        if self.trainer is not None:
            check_own_batches(self.trainer, stage)
        if hard := [name for name, task in self.named_tasks.items() if task.pair_labels == "hard"]:
            self._consumer().take_negative_pairs(hard if self.tasks else [None])
        needs = self._needs()
        for part in PARTS[stage]:
            self.tables.read(part, needs.tasks, optional=(stage, part) == ("fit", "validation"))
        if stage == "fit":
            if needs.tokenizer is None:
                needs = self._with_learned_tokenizer(needs)
            training, mixture = self._prepared("train", needs), self.mixture or AllTasks()
            named = bool(self.tasks)
            self._training = TrainingSet.build(training, mixture, self.batch_size, self.drop_last, named)
            check_objective_groups(self._training, needs)
            if self.trainer is not None:  # without a trainer no step is taken
                check_examples(self._training, needs)
        held_out = self._prepared("held_out", needs)
        self.held_out_rows = [HeldOutRows(data, needs, self.batch_size, self.seed) for data in held_out.values()]

    def _prepared(self, part: str, needs: DataNeeds) -> dict[str, TrainingData]:
        """Prepares the data sets of ``train`` or ``held_out``. The limit on rows applies only to training."""
        tasks, data_sets = self.named_tasks, {}
        for name, table in self.tables.of(part).items():
            task = tasks[name] if part == "train" else replace(tasks[name], limit=None)
            data_sets[name] = prepare_training_data(table, task, name, needs, self.seed, self.cache_dir)
        return data_sets

    def _with_learned_tokenizer(self, needs: DataNeeds) -> DataNeeds:
        """Trains the module's tokenizer on the texts, in the first process. Returns the new requirements."""
        trainer, description = self.trainer, ""
        if trainer is None or trainer.is_global_zero:
            description = learned_tokenizer(self.table("train"), needs, self.seed)
        if trainer is not None:
            description = trainer.strategy.broadcast(description)
        self._consumer().set_tokenizer(description)
        return self._needs()

    def table(self, part: str) -> dict[str, Table]:
        """Returns name -> table of ``train``, ``validation``, ``test`` or ``predict``, after ``setup``."""
        return self.tables.of(part)

    def set_module(self, module: BatchConsumer) -> None:
        """Sets the module whose views and tokenizer are used if no trainer runs."""
        self._module = module

    def _consumer(self) -> BatchConsumer:
        module = self._module if self.trainer is None else self.trainer.lightning_module
        if not isinstance(module, BatchConsumer):
            raise InvalidTypeError(
                "TextDataModule: expected a trainer that runs a ContrastiveModule, which holds the views and the "
                f"tokenizer, got {type(module).__name__}"
            )
        return module

    def _needs(self) -> DataNeeds:
        """Returns the views, prompts and tokenizer that the module has now, by which data are prepared."""
        return self._consumer().data_needs(list(self.tasks or ()))

    @property
    def training(self) -> TrainingSet:
        """Training data of the run, after ``setup("fit")``.

        Raises:
            RuntimeError: ``setup("fit")`` has not been called.
        """
        if self._training is None:
            raise RuntimeError('TextDataModule: expected setup("fit") before the training rows are read')
        return self._training

    def train_dataloader(self) -> ResumableLoader:
        """Returns the loader of training batches: a ``Batch`` each, or with several tasks a ``StepBatch``."""
        training = self.training
        collators = {name: self.collator(name) for name in training.tasks}
        self._loader = epoch_loader(
            {name: data.rows for name, data in training.tasks.items()},
            training.steps,
            StepCollator(collators) if self.tasks or self.mixture else collators[SINGLE_TASK],
            seed=self.seed,
            same_order=self.trainer is not None and vars(self.trainer)["overfit_batches"] > 0,
            num_workers=self.num_workers,
        )
        if self._resume_state is not None:
            self._loader.load_state_dict(self._resume_state)
            self._resume_state = None
        return self._loader

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's
        """Returns the position of training in the data; see ``ResumableLoader.state_dict``.

        Lightning stores it too, but doesn't restore it if the loader is created early, to count a schedule's
        steps.
        """
        if self._loader is None:
            return {}
        return {"place": self._loader.state_dict(), "rows": self.tables.contents("train")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's
        """Sets the position in the data at which the next training loader starts.

        Raises:
            ValueError: Rows from Python differ from those of the checkpoint, or rows changed within an epoch.
        """
        self._resume_state = state = state_dict.get("place")
        inside_epoch = state is not None and 0 < state["given"] < state["batches"]
        self.tables.expect("train", state_dict.get("rows", {}), inside_epoch)

    def val_dataloader(self) -> list[ResumableLoader]:
        """Returns loaders: one per scored file or task, two per retrieval set, and one of held-out rows."""
        held_out = (rows.loader(self._needs()) for rows in self.held_out_rows)
        return [*self._plain_loaders().scored("validation"), *held_out]

    def test_dataloader(self) -> list[ResumableLoader]:
        """Returns a loader per file of scored pairs, and per file of a task's test data."""
        return self._plain_loaders().scored("test")

    def predict_dataloader(self) -> list[DataLoader[KeyedRow]]:
        """Returns a loader for each table of texts to embed or to predict, in the order of the files."""
        return self._plain_loaders().predicted()

    def _plain_loaders(self) -> PlainLoaders:
        needs = self._needs()
        tokenizer, tasks = needs.known_tokenizer(training=False), self.tasks or {}
        return PlainLoaders(self.tables, tasks, tokenizer, self.eval_batch_size, self.seed, needs.prompts)

    def collator(self, task: str | None = None) -> Collator:
        """Returns the collator of a task's training data, after ``setup("fit")``; None for the only task."""
        data, needs = self.training.of(task), self._needs()
        task_needs, tokenizer = needs.tasks[data.name], needs.known_tokenizer(training=True)
        plan = task_needs.plan
        plan.build(tokenizer.vocabulary(plan.new_tokens))
        originals, prompts, reads = data.task.originals, needs.prompts, task_needs.roles
        return Collator(
            tokenizer, data.pairing, plan, self.seed, data.name, originals, prompts, task_needs.texts, reads
        )

    def facts(self) -> dict[str, str]:
        """Returns facts about the training data for the run's summary, after ``setup("fit")``."""
        facts = self.training.facts(self._needs(), self.seed, tasks=self.named_tasks)
        if self.tasks or self.mixture:
            facts["mixture"] = describe_steps(self.training.steps, self.training.sizes)
        facts["order"] = describe_orders(self.training.sizes)
        validation = "\n".join([*self.tables.describe("validation"), *map(str, self.held_out_rows)])
        return facts | {"validation data": validation or "none: the last weights are kept, not the best"}

    def _repr_html_(self) -> str:
        """Returns the facts as HTML for a notebook; before ``setup("fit")`` the arguments."""
        values = {
            name: str(value) for name, value in self.hparams.items() if value is not None and name[0] != "_"
        }
        return facts_table("Data", values if self._training is None else self.facts())


def check_own_batches(trainer: pl.Trainer, stage: str) -> None:
    """Checks that no option of the trainer changes the batches of the data module.

    Args:
        trainer: Trainer that will use the loaders.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        ValueError: The trainer uses Lightning's sampler for several processes, or its search for a batch size.
    """
    # Lightning has no public attribute for it.
    injects = trainer._accelerator_connector.use_distributed_sampler
    if injects and trainer.world_size > 1 and stage != "predict":
        raise InvalidValueError(
            "trainer.use_distributed_sampler: expected False with several processes, got True; give "
            "Trainer(use_distributed_sampler=False). The data module divides rows among processes. Lightning's "
            "sampler would repeat rows, and a repeated row is a false negative of itself"
        )
    if any(isinstance(callback, BatchSizeFinder) for callback in vars(trainer)["callbacks"]):
        raise InvalidValueError(
            "trainer.callbacks: expected no BatchSizeFinder, got BatchSizeFinder. The batch size changes the "
            "model, because texts are compared within a batch; set data.batch_size, and bound memory with "
            "--chunk auto (the callback ChunkSize), which changes only time"
        )
