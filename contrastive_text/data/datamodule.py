"""Text files as a LightningDataModule: it reads, pairs and batches; the views come from the module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from contrastive_text.core.checkpoints import load_options
from contrastive_text.core.distributed import rank, world_size
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.random import generator
from contrastive_text.core.specs import part_spec
from contrastive_text.core.targets import Target
from contrastive_text.core.text_files import Bounds
from contrastive_text.core.types import ROLES, Batch, Row, StepBatch, StepKind
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import ResumableLoader
from contrastive_text.data.mixture import AllTasks, Mixture, Step, TaskSize, consecutive_steps, describe_steps
from contrastive_text.data.run_tables import RunTables
from contrastive_text.data.sampler import EpochBatchSampler, KeyedRows, RowKey, Rows
from contrastive_text.data.selection import check_roles, served
from contrastive_text.data.settings import check_trainer
from contrastive_text.data.tasks import ONLY, BatchConsumer, Paths, TextTask, TrainingData, check_paths
from contrastive_text.data.token_cache import TokenTable, tokenize_documents
from contrastive_text.data.tokenizing import learn_vocabulary, single_threaded_tokenizers
from contrastive_text.pairings import Given, Pairing, SameText
from contrastive_text.views import ViewPlan

_SAMPLE = 1000
"""Texts that are tokenised before training to say how many the length limit will cut."""
_TAKEN = (ONLY, "overall", "spearman", *ROLES)
"""Names that mean something else among scores, tables and views."""


class TextDataModule(pl.LightningDataModule):
    """Data sets for training, validation, test and prediction.

    The order of an epoch and every view are a function of (seed, task, epoch, row), whatever the number of
    workers. Rows go to ranks without repetition.

    Args:
        train: File or files to train on: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl``, each also ``.gz``, a folder of
            ``.txt`` documents, or ``hub:NAME:SPLIT``.
        validation: Files of scored pairs; each gives a correlation.
        test: Files of scored pairs.
        predict: File or files of texts to embed.
        columns: Library column -> column of the training file, where its name isn't a usual one.
        labels: Label of the training file -> class of the objective, where they differ.
        eval_columns: As ``columns``, for the files of scored pairs.
        pairing: Which texts of a row belong together; None for ``SameText``.
        tasks: Name -> data set, where there are several, in place of ``train``, ``columns``, ``labels``
            and ``pairing``.
        mixture: In which order the batches of several tasks arrive; None for ``AllTasks``.
        batch_size: Rows of a step, over all ranks together; of each task where there are several.
        eval_batch_size: Rows of a batch outside training, per rank.
        num_workers: Worker processes that tokenise and alter.
        seed: Seed of the order and of every view.
        drop_last: Whether an epoch leaves out its last, smaller batch.
        originals: Copies of the anchor in the role ``original``, where that has views; two masked ones of
            each text are CLEAR's "double MLM".
        cache_dir: Where the tokens of long documents are kept, for pairings that read tokens; None for
            ``contrastive_text/tokens`` in the user's cache folder.
        bounds: How large what is in a file may be, by the names of ``Bounds``: ``line``, ``depth``, ``ratio``.

    Raises:
        ValueError: Both tasks and a training file, or a number out of range. On setup: a file that can't be read
            as asked, a batch larger than the data, texts that are all too short for the pairing, or views or
            objectives for a role or a task that there isn't.
        FileNotFoundError: On setup: a file that isn't there.
    """

    def __init__(
        self,
        train: Paths | None = None,
        validation: Paths | None = None,
        test: Paths | None = None,
        predict: Paths | None = None,
        columns: dict[str, Any] | None = None,  # Any: a name or a list of names; jsonargparse wants one type
        labels: dict[str, str] | None = None,
        eval_columns: dict[str, str] | None = None,
        pairing: Pairing | None = None,
        tasks: dict[str, TextTask] | None = None,
        mixture: Mixture | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 42,
        drop_last: bool = True,
        originals: int = 1,
        cache_dir: str | None = None,
        bounds: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        for part, paths in (("train", train), ("validation", validation), ("test", test), ("predict", predict)):
            check_paths(f"data.{part}", paths)
        sizes = {f"tasks.{name}.batch_size": task.batch_size for name, task in (tasks or {}).items()}
        for name, number, least in (
            ("batch_size", batch_size, 2),
            *((name, size, 2) for name, size in sizes.items() if size is not None),
            ("originals", originals, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
        ):
            if number < least:
                raise InvalidValueError(f"data.{name}: expected {least} or more, got {number}")
        for name in tasks or ():
            if name in _TAKEN or not re.fullmatch(r"[\w-]+", name):
                raise InvalidValueError(
                    f"data.tasks.{name}: expected a name of letters, digits and dashes, other than "
                    f"{', '.join(_TAKEN)}, got {name!r}; call it something else"
                )
        for name, given in (("train", train), ("columns", columns), ("labels", labels), ("pairing", pairing)):
            if tasks and given is not None:
                raise InvalidValueError(
                    f"data.{name}: expected none beside tasks, got one; give each task its own under data.tasks"
                )
        self.train = train
        self.validation = validation
        self.test = test
        self.predict = predict
        self.columns = columns
        self.labels = labels
        self.eval_columns = eval_columns
        self.pairing = pairing
        self.tasks = tasks
        self.mixture = mixture
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self.originals = originals
        self.cache_dir = cache_dir
        self.bounds = bounds
        # Plain data and the one instantiator that Lightning allows: the module is made again from a checkpoint.
        named = {"_instantiator": "pytorch_lightning.cli.instantiate_module"}
        self.save_hyperparameters({**part_spec(self, "data")["init_args"], **named})
        self.training: dict[str, TrainingData] = {}
        self._steps: list[Step] = []
        self._module: object = None
        self._loader: ResumableLoader | None = None
        self._place: dict[str, int] | None = None
        self._tables = RunTables(
            self.each_task,
            named=bool(tasks),
            files={"validation": validation, "test": test, "predict": predict},
            eval_columns=eval_columns,
            bounds=Bounds.of(bounds),
        )
        if num_workers:
            single_threaded_tokenizers()

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's options are all in ``options``
        cls, checkpoint_path: str | Path, trust: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Makes the data of a run again from a checkpoint, which is checked first.

        Arguments and errors are those of ``ContrastiveModule.load_from_checkpoint``.
        """
        with load_options(checkpoint_path, cls, "data", trust, options) as arguments:
            loaded: Self = super().load_from_checkpoint(checkpoint_path, **arguments)
        return loaded

    @property
    def each_task(self) -> dict[str, TextTask]:
        """The tasks by name; ``train`` where there is one."""
        alone = TextTask(train=self.train, columns=self.columns, labels=self.labels, pairing=self.pairing)
        return self.tasks or {ONLY: alone}

    def _known_as(self, name: str) -> str | None:
        """Returns the name by which the module knows a task: None for the only one."""
        return name if self.tasks else None

    def setup(self, stage: str) -> None:
        """Reads what the stage needs, once, and checks it against the module's objectives and views.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
        """
        if self.trainer is not None:
            check_trainer(self.trainer, stage)
        by_task = self._consumer().by_task
        by_task.check(list(self.tasks or ()))
        wanted = {
            "fit": ("train", "validation"),
            "validate": ("validation",),
            "test": ("test",),
            "predict": ("predict",),
        }
        for part in wanted[stage]:
            self._tables.read(part, self._target, lambda name: by_task.predicts(self._known_as(name)))
            for name, table in self.table(part).items():
                if part in ("validation", "test") and len(table) < world_size():
                    raise InvalidValueError(
                        f"data.{part}: expected a row for each of {world_size()} processes in {name}, got "
                        f"{len(table)}; use fewer devices, or another file"
                    )
            if not self.table(part) and (stage, part) != ("fit", "validation"):
                raise InvalidValueError(f"data.{part}: expected a file, got none; give --data.{part} FILE")
        if stage == "fit":
            self._learn_vocabulary()
            self.training = {name: self._prepare(name, task) for name, task in self.each_task.items()}
            self._steps = (self.mixture or AllTasks()).steps(self._sizes(), self.drop_last)
            by_task.check(list(self.tasks or ()), self.step_kinds())

    def _target(self, name: str, pairing: Pairing) -> Target | None:
        return pairing.target or self._consumer().by_task.target(self._known_as(name))

    def table(self, part: str) -> dict[str, Table]:
        """Returns the tables of ``train``, ``validation``, ``test`` or ``predict`` by name, after ``setup``."""
        return self._tables.of(part)

    def attach(self, module: BatchConsumer) -> None:
        """Names the module whose views and tokenizer are used where no trainer runs."""
        self._module = module

    def _consumer(self) -> BatchConsumer:
        trainer: pl.Trainer | None = self.trainer
        module = self._module if trainer is None else trainer.lightning_module
        if not isinstance(module, BatchConsumer):
            raise InvalidTypeError(
                "TextDataModule: expected a trainer that runs a ContrastiveModule, which holds the views and the "
                f"tokenizer, got {type(module).__name__}"
            )
        return module

    def _prepare(self, name: str, task: TextTask) -> TrainingData:
        """Chooses the rows of a task and settles the slots of their examples."""
        pairing, table, known = task.pairing or SameText(), self.table("train")[name], self._known_as(name)
        parts = self._consumer().by_task
        arranged, chosen = pairing.arrange(table.files)
        rows, chosen = self._tokenised(arranged, pairing) if pairing.reads_tokens else (arranged, chosen)
        examples = pairing(rows[0], generator(self.seed))
        return TrainingData(
            table=table,
            pairing=pairing,
            rows=rows,
            chosen=chosen,
            slots=check_roles(
                pairing, examples, parts.plan(known), parts.reads(known), parts.predicts_pairs(known)
            ),
            examples_per_row=len(examples),
        )

    def _tokenised(self, rows: Sequence[Row], pairing: Pairing) -> tuple[Rows, str]:
        tokenizer = self._consumer().text_tokenizer()
        assert tokenizer is not None
        texts = [str(row["text"]) for row in rows]
        folder = None if self.cache_dir is None else Path(self.cache_dir)
        if rank() > 0 and self.trainer is not None:
            self.trainer.strategy.barrier()  # the first process makes the cache, the others read it
        tokens = tokenize_documents(texts, tokenizer, cache_dir=folder)
        if rank() == 0 and self.trainer is not None:
            self.trainer.strategy.barrier()
        targets = [target for row in rows if isinstance(target := row.get("target"), float)]
        return served(TokenTable(tokens.folder, tokens.source, targets or None), pairing)

    def _learn_vocabulary(self) -> None:
        consumer = self._consumer()
        if consumer.text_tokenizer() is not None:
            return
        description = None
        if self.trainer is None or self.trainer.is_global_zero:
            rows = (row for table in self.table("train").values() for row in table)
            texts = (text for row in rows for text in row.values() if isinstance(text, str))
            learned = learn_vocabulary(texts, consumer.vocabulary_size, new_tokens=consumer.by_task.new_tokens)
            description = learned.backend_tokenizer.to_str()
        if self.trainer is not None:
            description = self.trainer.strategy.broadcast(description)
        assert description is not None
        consumer.adopt_tokenizer(description)

    def steps(self) -> list[Step]:
        """Returns the steps of an epoch, after ``setup("fit")``."""
        return self._steps

    def step_kinds(self) -> list[StepKind]:
        """Returns the kinds of steps of an epoch, after ``setup("fit")``."""
        each = (StepKind(tuple(map(self._known_as, step.parts)), step.objectives) for step in self.steps())
        return list(dict.fromkeys(each))

    def rows_per_step(self, task: str) -> int:
        """Returns how many rows of a task a step has at the most, over all ranks together."""
        parts = (step.parts[task] for step in self.steps() if task in step.parts)
        return max((stop - start for start, stop in parts), default=0)

    def _sizes(self) -> dict[str, TaskSize]:
        return {
            name: TaskSize(len(part.rows), self.each_task[name].batch_size or self.batch_size)
            for name, part in self.training.items()
        }

    def train_dataloader(self) -> ResumableLoader:
        """Returns the training batches: a ``Batch`` each, or with several tasks a ``StepBatch``."""
        rows = {name: part.rows for name, part in self.training.items()}
        collators = {name: self.collator(name) for name in self.training}
        sampler = EpochBatchSampler(
            {name: len(part) for name, part in rows.items()},
            self.steps(),
            seed=self.seed,
            rank=rank(),
            world_size=world_size(),
            same_order=self.trainer is not None and vars(self.trainer)["overfit_batches"] > 0,
        )
        collate = StepCollator(collators) if self.tasks or self.mixture else collators[ONLY]
        self._loader = ResumableLoader(KeyedRows(rows), sampler, collate, num_workers=self.num_workers)
        if self._place is not None:
            self._loader.load_state_dict(self._place)
            self._place = None
        return self._loader

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's
        """Returns the place in the run; see ``ResumableLoader.state_dict``.

        Lightning keeps it too, but forgets to where the loader is made before, to count the steps of a schedule.
        """
        return {} if self._loader is None else {"place": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's
        """Takes a place in a run, for the loader that is made next."""
        self._place = state_dict.get("place")

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:  # Any: Lightning's
        """Copies a batch to the device without waiting for the copy, where memory is page-locked.

        Lightning itself waits for whatever is no tensor. On a GPU the copy then goes on beside the step before.
        """
        if isinstance(batch, Batch | StepBatch):
            return batch.to(device, non_blocking=device.type not in ("cpu", "mps"))
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def val_dataloader(self) -> list[ResumableLoader]:
        """Returns one loader per file of scored pairs and per task with validation data."""
        return self._scored("validation")

    def test_dataloader(self) -> list[ResumableLoader]:
        """Returns one loader per file of scored pairs and per task with test data."""
        return self._scored("test")

    def _scored(self, part: str) -> list[ResumableLoader]:
        tables = self.table(part)
        return [
            ResumableLoader(
                KeyedRows({name: table.rows}),
                EpochBatchSampler(
                    {name: len(table)},
                    consecutive_steps(
                        {name: TaskSize(len(table), self.eval_batch_size * world_size())}, drop_last=False
                    ),
                    seed=self.seed,
                    shuffle=False,
                    rank=rank(),
                    world_size=world_size(),
                ),
                self._eval_collator(name),
            )
            for name, table in tables.items()
        ]

    def _eval_collator(self, name: str) -> Collator | StepCollator:
        if name not in (self.tasks or {}):
            return self._collator(name, Given(), ViewPlan())
        # Held-out rows stand as they are: no spans, no neighbours, no view.
        pairs = "anchor" in (self.each_task[name].pairing or SameText()).reads
        return StepCollator({name: self._collator(name, Given() if pairs else SameText(), ViewPlan())})

    def predict_dataloader(self) -> list[DataLoader[KeyedRow]]:
        """Returns the texts to embed and those to predict, a loader for each table, in file order."""
        # Torch's own batch sampler over keys: Lightning makes the loaders of a prediction anew.
        return [
            DataLoader(
                KeyedRows({name: table.rows}),
                sampler=[RowKey(0, number, name) for number in range(len(table))],
                batch_size=self.eval_batch_size,
                collate_fn=self._eval_collator(name)
                if name in (self.tasks or {})
                else self._collator(name, SameText(), ViewPlan()),
            )
            for name, table in self.table("predict").items()
        ]

    def batches_per_epoch(self) -> int:
        """Returns the number of training batches of an epoch, after ``setup("fit")``."""
        return len(self.steps())

    def data_of(self, task: str | None = None) -> TrainingData:
        """Returns what a task is trained on, after ``setup("fit")``.

        Args:
            task: Its name; None for the only one.

        Raises:
            RuntimeError: Before ``setup("fit")``.
            ValueError: No such task.
        """
        if not self.training:
            raise RuntimeError('TextDataModule: expected setup("fit") before the training rows are asked for')
        name = next(iter(self.training)) if task is None and len(self.training) == 1 else task
        if name not in self.training:
            raise InvalidValueError(f"task: expected one of {', '.join(self.training)}, got {task}")
        return self.training[name]

    def collator(self, task: str | None = None) -> Collator:
        """Returns the collator of a task's training data, after ``setup("fit")``; None for the only one."""
        data = self.data_of(task)
        name = next(name for name, other in self.training.items() if other is data)
        plan = self._consumer().by_task.plan(self._known_as(name))
        return self._collator(name, data.pairing, plan, training=True)

    def _collator(self, task: str, pairing: Pairing, plan: ViewPlan, training: bool = False) -> Collator:
        tokenizer = self._consumer().text_tokenizer(training=training)
        if tokenizer is None:
            raise InvalidValueError(
                "encoder.tokenizer_name_or_path: expected a tokenizer, got none; an encoder made from a config "
                "learns one when it is trained, so load a checkpoint with --ckpt_path"
            )
        plan.build(tokenizer.vocabulary(plan.new_tokens))
        return Collator(tokenizer, pairing, plan, seed=self.seed, task=task, originals=self.originals)

    def facts(self) -> dict[str, str]:
        """Returns what a reader of the results should know of the training data, after ``setup("fit")``."""
        facts: dict[str, str] = {}
        for name, part in self.training.items():
            facts |= {fact if not self.tasks else f"{fact}, {name}": said for fact, said in part.facts().items()}
        if self.tasks or self.mixture:
            facts["mixture"] = describe_steps(self.steps(), self._sizes())
        validation = self.table("validation").values()
        facts["validation data"] = (
            "\n".join(table.understood for table in validation) or "none: the last weights are kept, not the best"
        )
        tokenizer = self._consumer().text_tokenizer()
        texts = [
            text
            for part in self.training.values()
            if not part.pairing.reads_tokens
            for row in part.table
            for text in row.values()
            if isinstance(text, str)
        ]
        if tokenizer is not None and tokenizer.room is not None and texts:
            sample = [texts[i] for i in generator(self.seed).permutation(len(texts))[:_SAMPLE]]
            cut_texts = sum(len(tokens) > tokenizer.room for tokens in tokenizer(sample))
            facts["length limit"] = (
                f"{tokenizer.max_length} tokens with special ones; {cut_texts / len(sample):.1%} of "
                f"{len(sample):,} sampled texts are longer and will be cut"
            )
        return facts
