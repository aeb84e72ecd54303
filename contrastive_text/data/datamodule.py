"""Text files as a LightningDataModule: it reads, pairs and batches; the views come from the module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.readers import Table, read_pairs, read_rows
from contrastive_text.data.sampler import EpochBatchSampler, KeyedRows, Rows
from contrastive_text.data.selection import NEXT, TrainingRows, check_roles, follow, served
from contrastive_text.data.token_cache import tokenize_documents
from contrastive_text.data.tokenizing import TextTokenizer, learn_vocabulary, single_threaded_tokenizers
from contrastive_text.distributed import rank, world_size
from contrastive_text.random import generator
from contrastive_text.specs import describe, part_spec
from contrastive_text.types import Role, Slot
from contrastive_text.views import Given, Pairing, SameText, ViewPlan

Paths: TypeAlias = str | list[str]
_SAMPLE = 1000
"""Texts that are tokenised before training to say how many the length limit will cut."""


@runtime_checkable
class BatchConsumer(Protocol):
    """What the data asks of the module it feeds."""

    plan: ViewPlan
    reads: tuple[Role, ...]

    def text_tokenizer(self, training: bool = True) -> TextTokenizer | None:
        """Gives the encoder's tokenizer, or None if it has to be learned from the corpus."""

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer that was learned from the corpus, as JSON."""

    vocabulary_size: int


class TextDataModule(pl.LightningDataModule):
    """Data sets for training, validation, test and prediction.

    The order of an epoch and every view are a function of (seed, epoch, row), whatever the number of
    workers. Rows go to ranks without repetition.

    Args:
        train: File or files to train on: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl``, each also ``.gz``, or a
            folder of ``.txt`` documents.
        validation: Files of scored pairs; each gives a correlation.
        test: Files of scored pairs.
        predict: File or files of texts to embed.
        columns: Library column -> column of the training file, where its name isn't a usual one.
        eval_columns: The same for the files of scored pairs.
        pairing: Which texts of a row belong together; None for ``SameText``.
        batch_size: Rows of a step, over all ranks together.
        eval_batch_size: Rows of a batch outside training, per rank.
        num_workers: Worker processes that tokenise and alter.
        seed: Seed of the order and of every view.
        drop_last: Whether an epoch leaves out its last, smaller batch.
        originals: Copies of the anchor in the role ``original``, where that has views; two masked ones of
            each text are CLEAR's "double MLM".
        cache_dir: Where the tokens of long documents are kept, for pairings that read tokens; None for
            ``contrastive_text/tokens`` in the user's cache folder.

    Raises:
        ValueError: On setup: a file that can't be read as asked, a batch larger than the data, texts that are
            all too short for the pairing, or views or objectives for a role that the pairing doesn't give.
        FileNotFoundError: On setup: a file that isn't there.
    """

    def __init__(
        self,
        train: Paths | None = None,
        validation: Paths | None = None,
        test: Paths | None = None,
        predict: Paths | None = None,
        columns: dict[str, Any] | None = None,  # Any: a name or a list of names; jsonargparse wants one type
        eval_columns: dict[str, str] | None = None,
        pairing: Pairing | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 42,
        drop_last: bool = True,
        originals: int = 1,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        for name, number, least in (
            ("batch_size", batch_size, 2),
            ("originals", originals, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
        ):
            if number < least:
                raise ValueError(f"data.{name}: expected {least} or more, got {number}")
        self.train = train
        self.validation = validation
        self.test = test
        self.predict = predict
        self.columns = columns
        self.eval_columns = eval_columns
        self.pairing = pairing or SameText()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self.originals = originals
        self.cache_dir = cache_dir
        self.save_hyperparameters(part_spec(self, "data")["init_args"])
        self._module: object = None
        self.examples_per_row = 1
        self.slots: tuple[Slot, ...] = ()
        self._tables: dict[str, dict[str, Table]] = {}
        self._training: TrainingRows | None = None
        if num_workers:
            single_threaded_tokenizers()

    def setup(self, stage: str) -> None:
        """Reads what the stage needs, once, and checks it against the module's views.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
        """
        wanted = {
            "fit": {"train": self.train, "validation": self.validation},
            "validate": {"validation": self.validation},
            "test": {"test": self.test},
            "predict": {"predict": self.predict},
        }[stage]
        for part, paths in wanted.items():
            if part not in self._tables:
                self._tables[part] = self._read(part, paths)
            if not self._tables[part] and (stage, part) != ("fit", "validation"):
                raise ValueError(f"data.{part}: expected a file, got none; give --data.{part} FILE")
        if stage == "fit":
            self._learn_vocabulary()
            self._training = self._training_rows()
            examples = self.pairing(self.rows[0], generator(self.seed))
            self.slots = check_roles(self.pairing, examples, self._consumer().plan, self._consumer().reads)
            self.examples_per_row = len(examples)

    def _read(self, part: str, paths: Paths | None) -> dict[str, Table]:
        files = [paths] if isinstance(paths, str) else list(paths or ())
        if not files:
            return {}
        if part == "train":
            columns = [name for name in self.pairing.reads if name != NEXT]
            return {"train": read_rows(files, reads=columns, columns=self.columns)}
        if part == "predict":
            return {"predict": read_rows(files, reads=("text",))}
        names = [file_name(path) for path in files]
        if len(set(names)) < len(names):
            raise ValueError(
                f"data.{part}: expected files of different names, got {', '.join(names)}; rename one"
            )
        return {
            name: read_pairs(path, columns=self.eval_columns) for name, path in zip(names, files, strict=True)
        }

    def table(self, part: str) -> dict[str, Table]:
        """Gives the tables of ``train``, ``validation``, ``test`` or ``predict`` by name, after ``setup``."""
        return self._tables.get(part, {})

    def attach(self, module: BatchConsumer) -> None:
        """Names the module whose views and tokenizer are used where no trainer runs."""
        self._module = module

    def _consumer(self) -> BatchConsumer:
        trainer: pl.Trainer | None = self.trainer
        module = self._module if trainer is None else trainer.lightning_module
        if not isinstance(module, BatchConsumer):
            raise TypeError(
                "TextDataModule: expected a trainer that runs a ContrastiveModule, which holds the views and the "
                f"tokenizer, got {type(module).__name__}"
            )
        return module

    def _training_rows(self) -> TrainingRows:
        table = self.table("train")["train"]
        if NEXT in self.pairing.reads:
            return follow(table)
        if not self.pairing.reads_tokens:
            return TrainingRows(table.rows)
        tokenizer = self._consumer().text_tokenizer()
        assert tokenizer is not None
        texts = [str(row["text"]) for row in table]
        folder = None if self.cache_dir is None else Path(self.cache_dir)
        if rank() > 0 and self.trainer is not None:
            self.trainer.strategy.barrier()  # the first process makes the cache, the others read it
        tokens = tokenize_documents(texts, tokenizer, cache_dir=folder)
        if rank() == 0 and self.trainer is not None:
            self.trainer.strategy.barrier()
        return served(tokens, self.pairing)

    def _learn_vocabulary(self) -> None:
        consumer = self._consumer()
        if consumer.text_tokenizer() is not None:
            return
        description = None
        if self.trainer is None or self.trainer.is_global_zero:
            texts = (
                text for row in self.table("train")["train"] for text in row.values() if isinstance(text, str)
            )
            learned = learn_vocabulary(texts, consumer.vocabulary_size, new_tokens=consumer.plan.new_tokens)
            description = learned.backend_tokenizer.to_str()
        if self.trainer is not None:
            description = self.trainer.strategy.broadcast(description)
        assert description is not None
        consumer.adopt_tokenizer(description)

    def train_dataloader(self) -> DataLoader[KeyedRow]:
        """Gives the training batches."""
        return self._loader(self.rows, self.collator(), train=True)

    def val_dataloader(self) -> list[DataLoader[KeyedRow]]:
        """Gives one loader per validation file."""
        return self._scored("validation")

    def test_dataloader(self) -> list[DataLoader[KeyedRow]]:
        """Gives one loader per test file."""
        return self._scored("test")

    def _scored(self, part: str) -> list[DataLoader[KeyedRow]]:
        return [
            self._loader(table.rows, self._collator(name, Given(), ViewPlan()))
            for name, table in self.table(part).items()
        ]

    def predict_dataloader(self) -> DataLoader[KeyedRow]:
        """Gives the texts to embed, in file order."""
        collator = self._collator("predict", SameText(), ViewPlan())
        table = self.table("predict")["predict"]
        # Torch's own batch sampler over keys: Lightning makes the loader of a prediction anew.
        keys = [(0, number) for number in range(len(table))]
        return DataLoader(
            KeyedRows(table.rows), sampler=keys, batch_size=self.eval_batch_size, collate_fn=collator
        )

    def batches_per_epoch(self) -> int:
        """Gives the number of training batches of an epoch, after ``setup("fit")``."""
        return len(self._sampler(self.rows, train=True))

    def collator(self) -> Collator:
        """Gives the collator of the training data, after ``setup("fit")``."""
        return self._collator("train", self.pairing, self._consumer().plan, training=True)

    @property
    def rows(self) -> Rows:
        """The training rows that the pairing can serve, after ``setup("fit")``."""
        if self._training is None:
            raise RuntimeError('TextDataModule: expected setup("fit") before the training rows are asked for')
        return self._training.rows

    def _collator(self, task: str, pairing: Pairing, plan: ViewPlan, training: bool = False) -> Collator:
        tokenizer = self._consumer().text_tokenizer(training=training)
        if tokenizer is None:
            raise ValueError(
                "encoder.tokenizer_name_or_path: expected a tokenizer, got none; an encoder made from a config "
                "learns one when it is trained, so load a checkpoint with --ckpt_path"
            )
        plan.build(tokenizer.vocabulary(plan.new_tokens))
        return Collator(tokenizer, pairing, plan, seed=self.seed, task=task, originals=self.originals)

    def _sampler(self, rows: Rows, train: bool) -> EpochBatchSampler:
        return EpochBatchSampler(
            size=len(rows),
            batch_size=self.batch_size if train else self.eval_batch_size * world_size(),
            seed=self.seed,
            shuffle=train,
            drop_last=train and self.drop_last,
            rank=rank(),
            world_size=world_size(),
        )

    def _loader(self, rows: Rows, collator: Collator, train: bool = False) -> DataLoader[KeyedRow]:
        workers = self.num_workers if train else 0
        return DataLoader(
            KeyedRows(rows),
            batch_sampler=self._sampler(rows, train=train),
            collate_fn=collator,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def facts(self) -> dict[str, str]:
        """Gives what a reader of the results should know of the training data, after ``setup("fit")``."""
        table = self.table("train")["train"]
        first = self.pairing.reads[0]
        repeated = len(table) - len({row[first] for row in table})
        facts = {
            "training data": table.understood,
            "validation data": "\n".join(t.understood for t in self.table("validation").values())
            or "none: the last weights are kept, not the best",
            "pairing": describe(self.pairing),
            "duplicates": f"{repeated:,} of {len(table):,} rows repeat the {first} of another",
        }
        if self._training is not None and self._training.understood:
            facts["rows"] = self._training.understood
        tokenizer = self._consumer().text_tokenizer()
        if tokenizer is not None and tokenizer.room is not None and not self.pairing.reads_tokens:
            texts = [text for row in table for text in row.values() if isinstance(text, str)]
            sample = [texts[i] for i in generator(self.seed).permutation(len(texts))[:_SAMPLE]]
            cut = sum(len(tokens) > tokenizer.room for tokens in tokenizer(sample))
            facts["length limit"] = (
                f"{tokenizer.max_length} tokens with special ones; {cut / len(sample):.1%} of "
                f"{len(sample):,} sampled texts are longer and will be cut"
            )
        return facts


def file_name(path: str) -> str:
    """Gives a data file's name without folders and suffixes of format.

    Example:
        >>> file_name("sts/stsb.dev.tsv.gz")
        'stsb.dev'
    """
    return re.sub(r"\.(txt|tsv|csv|jsonl)(\.gz)?$", "", Path(path).name)
