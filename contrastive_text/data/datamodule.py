"""Text files as a LightningDataModule: it reads, pairs and batches; the views come from the module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from contrastive_text.core.notebook import facts_table
from contrastive_text.core.specs import part_spec, to_plain
from contrastive_text.core.storage.checkpoints import load_options
from contrastive_text.data.collator import Collator, KeyedRow, StepCollator
from contrastive_text.data.evaluation_loaders import HeldOutRows, PlainLoaders
from contrastive_text.data.files.formats import PairRows
from contrastive_text.data.files.given import PLACES, Source, check_given, given_source, given_sources, handed
from contrastive_text.data.files.readers import Table
from contrastive_text.data.loader import ResumableLoader, check_own_batches, epoch_loader
from contrastive_text.data.mixture import AllTasks, Mixture, describe_steps
from contrastive_text.data.preparation import prepare_each
from contrastive_text.data.retrieval import MOST_DOCUMENTS
from contrastive_text.data.run_tables import PARTS, RunTables
from contrastive_text.data.sampler import PERMUTATION_ROWS, describe_orders
from contrastive_text.data.tasks import (
    ALONE,
    ONLY,
    BatchConsumer,
    Clean,
    DataNeeds,
    TextTask,
    as_consumer,
    check_numbers,
    check_tasks,
)
from contrastive_text.data.tokenizing import single_threaded_tokenizers
from contrastive_text.data.training_set import TrainingSet, check_examples, check_turns, learned_tokenizer
from contrastive_text.pairings import Pairing
from contrastive_text.recipes.building import build_part
from contrastive_text.recipes.layers import merge, read_recipe


class TextDataModule(pl.LightningDataModule):
    """Data sets for training, validation, test and prediction.

    The order of an epoch and every view are a function of (seed, task, epoch, row), whatever the number of
    workers. Rows go to ranks without repetition.

    Rows from Python are understood as those of a file. Strings in a list are names of files if each looks like
    one: a known suffix, or a single word. Tuples are (anchor, positive), negatives after them, and the target
    last where an objective reads it; of single texts, or (text, target). Checkpoints and configurations keep
    type, number and fingerprint of the rows: to resume, give the same rows again.

    Args:
        train: File or files to train on: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl``, each also ``.gz``,
            ``.parquet``, ``.arrow``, a folder of ``.txt`` documents, or ``hub:NAME:SPLIT``. From Python also
            rows: a list of texts, dicts or tuples, a DataFrame of pandas or polars, or a ``datasets.Dataset``.
        validation: Files of scored pairs, or rows; each gives a correlation.
        test: The same.
        predict: File or files of texts to embed, or rows.
        held_out: Files or rows that are read as ``train`` is, but without views, and give ``val/OBJECTIVE/loss``.
        retrieval: Queries and corpora to rank in validation: folders in BEIR's layout, by ``qrels/dev.tsv`` or
            their only judgements, and files of pairs; each gives ``val/NAME/ndcg@10`` and other figures.
        retrieval_corpus: File or files of further texts to rank beside the positives of a file of pairs.
        retrieval_columns: As ``columns``, for those files of pairs.
        retrieval_documents: Most documents of a corpus that are ranked: all judged ones, and others, the same in
            every run; None for all.
        columns: Library column -> column of the training file, where its name isn't a usual one.
        labels: Label of the training file -> class of the objective, where they differ.
        header: Names of the columns of a training file whose first line is a row: a list, or one text with
            commas, such as ``anchor,positive,score``.
        separator: Character between the fields of the training file, where its suffix and its header leave it
            open; ``tab`` is a tab.
        pair_labels: What to do with labelled pairs if no objective reads the label: train on those that belong
            together (``positives``), take the others as hard negatives (``hard``), or train on all pairs as if
            they belonged together (``all``). None refuses pairs that do not belong together.
        eval_columns: As ``columns``, for the files of scored pairs.
        pairing: Which texts of a row belong together; None for ``SameText``.
        limit: How many rows are trained on, or what share (``10%``), drawn by the seed alone; None for all.
        repeat: Steps of an epoch, for which the rows come again as often as needed, each time altered anew and in
            another order; None for one pass over them.
        clean: What becomes of white space and case of the texts that are trained on; None for nothing.
        join: Tokens of a row, special ones included, up to which consecutive texts of a document are joined; a
            blank line ends one. None for a row each.
        tasks: Name -> data set, where there are several, in place of ``train`` and of the options from
            ``columns`` to here.
        mixture: In which order the batches of several tasks arrive; None for ``AllTasks``.
        batch_size: Rows of a step, over all ranks together; of each task where there are several.
        eval_batch_size: Rows of a batch outside training, per rank.
        num_workers: Worker processes that tokenise and alter.
        seed: Seed of the order and of every view.
        drop_last: Whether an epoch leaves out its last, smaller batch.
        permutation_rows: Most rows of a data set whose order is a permutation, in memory; of more it is a keyed
            bijection, computed step by step.
        originals: Copies of the anchor in the role ``original``, where that has views or is read; two
            masked ones of each text are CLEAR's "double MLM".
        cache_dir: Where the tokens of long documents are kept, for pairings that read tokens; None for
            ``contrastive_text/tokens`` in the user's cache folder.
        bounds: How large what is in a file may be, by the names of ``Bounds``: ``line``, ``depth``, ``ratio``.

    Raises:
        TypeError: An iterator in place of rows, or what holds none.
        ValueError: Both tasks and a training file, a number out of range, or no row. On setup: a file that can't
            be read as asked, a batch larger than the data, texts that are all too short for the pairing, or views
            or objectives for a role or a task that there isn't.
        FileNotFoundError: On setup: a file that isn't there.
    """

    def __init__(
        self,
        train: Source | None = None,
        validation: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
        retrieval: Source | None = None,
        retrieval_corpus: Source | None = None,
        retrieval_columns: dict[str, str] | None = None,
        retrieval_documents: int | None = MOST_DOCUMENTS,
        held_out: Source | None = None,
        columns: dict[str, Any] | None = None,  # Any: a name or a list of names; jsonargparse wants one type
        labels: dict[str, str] | None = None,
        header: str | list[str] | None = None,
        separator: str | None = None,
        pair_labels: PairRows | None = None,
        eval_columns: dict[str, str] | None = None,
        pairing: Pairing | None = None,
        limit: int | str | None = None,
        repeat: int | None = None,
        clean: Clean | None = None,
        join: int | None = None,
        tasks: dict[str, TextTask] | None = None,
        mixture: Mixture | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 42,
        drop_last: bool = True,
        permutation_rows: int = PERMUTATION_ROWS,
        originals: int = 1,
        cache_dir: str | None = None,
        bounds: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        # Under the arguments' own names: Lightning compares these with the hyper-parameters, as no frame can be.
        given = (train, held_out, validation, test, predict, retrieval, retrieval_corpus)
        train, held_out, validation, test, predict, retrieval, retrieval_corpus = map(given_source, PLACES, given)
        self.train = train
        self.validation = validation
        self.test = test
        self.predict = predict
        self.held_out = held_out
        self.retrieval = retrieval
        self.retrieval_corpus = retrieval_corpus
        self.retrieval_columns = retrieval_columns
        self.retrieval_documents = retrieval_documents
        self.columns = columns
        self.labels = labels
        self.header = header
        self.separator = separator
        self.pair_labels = pair_labels
        self.eval_columns = eval_columns
        self.pairing = pairing
        self.limit = limit
        self.repeat = repeat
        self.clean = clean
        self.join = join
        self.tasks = tasks
        self.mixture = mixture
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self.permutation_rows = permutation_rows
        self.originals = originals
        self.cache_dir = cache_dir
        self.bounds = bounds
        check_numbers(vars(self))
        check_tasks(tasks or {}, self._alone)
        # Plain data and the one instantiator that Lightning allows: the module is made again from a checkpoint.
        named = {"_instantiator": "pytorch_lightning.cli.instantiate_module"}
        self.save_hyperparameters({**part_spec(self, "data")["init_args"], **named})
        self._training: TrainingSet | None = None
        self.held_out_rows: Sequence[HeldOutRows] = ()
        self._module: object = None
        self._loader: ResumableLoader | None = None
        self._place: dict[str, int] | None = None
        self.tables = RunTables.of_arguments(vars(self), self.each_task)
        if num_workers:
            single_threaded_tokenizers()

    @classmethod
    def from_recipe(cls, recipe: str, **options: Any) -> Self:
        """Builds the data of a recipe, as the shell would: its pairing or tasks, its batch size.

        Args:
            recipe: Name of a shipped recipe, or path of a YAML file.
            options: Arguments of the class, which come before the recipe's.

        Raises:
            ValueError: No such recipe, or arguments that the class doesn't take.

        Example:
            >>> TextDataModule.from_recipe("declutr", train="docs.jsonl").pairing.max_length
            512
        """  # Any: of the constructor
        options = given_sources(options)
        with handed(options):
            above = {"data": {key: to_plain(value, key) for key, value in options.items()}}
            return build_part(cls, "data", merge([read_recipe(recipe), above]), recipe)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's options are all in ``options``
        cls, checkpoint_path: str | Path, trust: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Makes the data of a run again from a checkpoint, which is checked first.

        Arguments and errors are those of ``ContrastiveModule.load_from_checkpoint``; rows that were given from
        Python are to be given again.
        """
        options = given_sources(options)
        with load_options(checkpoint_path, cls, "data", trust, options) as arguments, handed(options):
            loaded: Self = super().load_from_checkpoint(checkpoint_path, **arguments)
        check_given(vars(loaded))
        return loaded

    @property
    def _alone(self) -> TextTask:
        return TextTask(**{name: vars(self)[name] for name in ALONE})

    @property
    def each_task(self) -> dict[str, TextTask]:
        """The tasks by name; ``train`` where there is one."""
        return self.tasks or {ONLY: self._alone}

    def setup(self, stage: str) -> None:
        """Reads what the stage needs, once, and checks it against the module's objectives and views.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
        """
        if self.trainer is not None:
            check_own_batches(self.trainer, stage)
        if hard := [name for name, task in self.each_task.items() if task.pair_labels == "hard"]:
            self._consumer().take_negative_pairs(hard if self.tasks else [None])
        needs = self._needs()
        for part in PARTS[stage]:
            self.tables.read(part, needs.tasks, optional=(stage, part) == ("fit", "validation"))
        if stage == "fit":
            if needs.tokenizer is None:
                needs = self._with_learned_tokenizer(needs)
            training = prepare_each(self.tables, "train", needs, self.seed, self.cache_dir, self.permutation_rows)
            mixture, named = self.mixture or AllTasks(), bool(self.tasks)
            self._training = TrainingSet.arranged(training, mixture, self.batch_size, self.drop_last, named)
            check_turns(self._training, needs)
            if self.trainer is not None:  # or no step is taken
                check_examples(self._training, needs)
        self.held_out_rows = HeldOutRows.each(self.tables, needs, self.batch_size, self.seed, self.cache_dir)

    def _with_learned_tokenizer(self, needs: DataNeeds) -> DataNeeds:
        """Returns the needs of the module after it was handed what the first process learns from the texts."""
        trainer, description = self.trainer, ""
        if trainer is None or trainer.is_global_zero:
            description = learned_tokenizer(self.table("train"), needs, self.seed)
        if trainer is not None:
            description = trainer.strategy.broadcast(description)
        self._consumer().adopt_tokenizer(description)
        return self._needs()

    def table(self, part: str) -> dict[str, Table]:
        """Returns the tables of ``train``, ``validation``, ``test`` or ``predict`` by name, after ``setup``."""
        return self.tables.of(part)

    def attach(self, module: BatchConsumer) -> None:
        """Names the module whose views and tokenizer are used where no trainer runs."""
        self._module = module

    def _consumer(self) -> BatchConsumer:
        trainer: pl.Trainer | None = self.trainer
        return as_consumer(self._module if trainer is None else trainer.lightning_module)

    def _needs(self) -> DataNeeds:
        """Returns what the module needs now: a tokenizer may be learned, or come with a checkpoint."""
        return self._consumer().data_needs(list(self.tasks or ()))

    @property
    def training(self) -> TrainingSet:
        """What is trained on, after ``setup("fit")``.

        Raises:
            RuntimeError: Before that.
        """
        if self._training is None:
            raise RuntimeError('TextDataModule: expected setup("fit") before the training rows are asked for')
        return self._training

    def train_dataloader(self) -> ResumableLoader:
        """Returns the training batches: a ``Batch`` each, or with several tasks a ``StepBatch``."""
        training = self.training
        collators = {name: self.collator(name) for name in training.tasks}
        self._loader = epoch_loader(
            {name: data.rows for name, data in training.tasks.items()},
            training.steps,
            StepCollator(collators) if self.tasks or self.mixture else collators[ONLY],
            seed=self.seed,
            same_order=self.trainer is not None and vars(self.trainer)["overfit_batches"] > 0,
            num_workers=self.num_workers,
            permutation_rows=self.permutation_rows,
        )
        if self._place is not None:
            self._loader.load_state_dict(self._place)
            self._place = None
        return self._loader

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's
        """Returns the place in the run; see ``ResumableLoader.state_dict``.

        Lightning keeps it too, but forgets to where the loader is made before, to count the steps of a schedule.
        """
        rows = self.tables.fingerprints("train")
        if self._loader is None:
            return {}
        return {"place": self._loader.state_dict(), "rows": rows, "contents": self.tables.contents("train")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's
        """Takes a place in a run, for the loader that is made next.

        Raises:
            ValueError: Other rows than those given from Python, or than those of an epoch that has begun.
        """
        self._place = state_dict.get("place")
        self.tables.expect("train", state_dict.get("rows", {}))
        if self._place is not None and 0 < self._place["given"] < self._place["batches"]:
            self.tables.expect_contents("train", state_dict.get("contents", {}))

    def val_dataloader(self) -> list[ResumableLoader]:
        """Returns a loader per file of scored pairs or of a task, two per retrieval set, one of held-out rows."""
        held_out = (each.loader(self._needs()) for each in self.held_out_rows)
        return [*self._plain_loaders().scored("validation"), *held_out]

    def test_dataloader(self) -> list[ResumableLoader]:
        """Returns one loader per file of scored pairs, and per file of a task's test data."""
        return self._plain_loaders().scored("test")

    def predict_dataloader(self) -> list[DataLoader[KeyedRow]]:
        """Returns the texts to embed and those to predict, a loader for each table, in file order."""
        return self._plain_loaders().predicted()

    def _plain_loaders(self) -> PlainLoaders:
        needs = self._needs()
        tokenizer, tasks = needs.known_tokenizer(training=False), self.tasks or {}
        return PlainLoaders(self.tables, tasks, tokenizer, self.eval_batch_size, self.seed, needs.prompts)

    def collator(self, task: str | None = None) -> Collator:
        """Returns the collator of a task's training data, after ``setup("fit")``; None for the only one."""
        data, needs = self.training.of(task), self._needs()
        its, tokenizer = needs.tasks[data.name], needs.known_tokenizer(training=True)
        plan = its.plan
        plan.build(tokenizer.vocabulary(plan.new_tokens))
        originals, prompts, reads = self.originals, needs.prompts, its.roles
        return Collator(tokenizer, data.pairing, plan, self.seed, data.name, originals, prompts, its.texts, reads)

    def facts(self) -> dict[str, str]:
        """Returns what a reader of the results should know of the training data, after ``setup("fit")``."""
        facts = self.training.facts(self._needs(), self.seed, tasks=self.each_task)
        if self.tasks or self.mixture:
            facts["mixture"] = describe_steps(self.training.steps, self.training.sizes)
        facts["order"] = describe_orders(self.training.sizes, self.permutation_rows)
        validation = "\n".join([*self.tables.understood("validation"), *map(str, self.held_out_rows)])
        return facts | {"validation data": validation or "none: the last weights are kept, not the best"}

    def _repr_html_(self) -> str:
        """Returns the facts as a notebook shows them; before ``setup("fit")`` what was given."""
        given = {name: str(value) for name, value in self.hparams.items() if value is not None and name[0] != "_"}
        return facts_table("Data", given if self._training is None else self.facts())
