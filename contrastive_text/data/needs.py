"""What the data of a run ask of the module that they feed: views, roles and labels of each task, tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.targets import Target
from contrastive_text.core.types import ROLES, Role
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.views import ViewPlan


@dataclass(frozen=True)
class TaskNeeds:
    """What is needed of the rows of one task.

    Args:
        objectives: The names of those that read it.
        plan: Its views.
        roles: Those whose vectors or tokens its objectives read.
        target: What they read of its labels; None for nothing.
        predicts: Whether one of them predicts the labels.
        two_texts: What of them makes no sense where anchor and positive are one text twice; None if nothing.
        unaltered: The names of those that have a loss without views.
        texts: Whether its batches hold the texts themselves.
        check_examples: Checks that its objectives have something to compare in a step of some examples, each with
            some hard negatives (``Objective.check_examples``); None for nothing to check.
    """

    objectives: tuple[str, ...]
    plan: ViewPlan
    roles: tuple[Role, ...]
    target: Target | None
    predicts: bool
    two_texts: str | None
    unaltered: tuple[str, ...] = ()
    texts: bool = False
    check_examples: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class DataNeeds:
    """What is needed of the data of a run.

    Args:
        tasks: Task -> what is needed of its rows; ``train`` where there is one without a name.
        tokenizer: The encoder's, with the length limit of training; None before one is learned from the texts.
        inference_tokenizer: The same with the limit of use.
        vocabulary_size: Entries of the encoder's token table.
        new_tokens: The tokens that views need in the vocabulary.
        prompts: What stands before texts.
    """

    tasks: Mapping[str, TaskNeeds]
    tokenizer: TextTokenizer | None
    inference_tokenizer: TextTokenizer | None
    vocabulary_size: int
    new_tokens: tuple[str, ...]
    prompts: Prompts = NO_PROMPTS

    def taken(self, task: str) -> int:
        """Returns how many tokens of a row the longest prompt of a task takes, beside the special ones."""
        if self.tokenizer is None:
            return 0
        prompts = dict.fromkeys(self.prompts.of_role(role, task) for role in ROLES)
        return max(self.tokenizer.taken(self.prompts.frame(prompt, self.tokenizer)) for prompt in prompts)

    def known_tokenizer(self, training: bool) -> TextTokenizer:
        """Returns the tokenizer of training or of use.

        Raises:
            ValueError: There is none yet.
        """
        tokenizer = self.tokenizer if training else self.inference_tokenizer
        if tokenizer is None:
            raise InvalidValueError(
                "encoder.tokenizer_name_or_path: expected a tokenizer, got none; an encoder made from a config "
                "learns one when it is trained, so load a checkpoint with --ckpt_path"
            )
        return tokenizer


@runtime_checkable
class BatchConsumer(Protocol):
    """A module that data can feed."""

    def data_needs(self, tasks: Sequence[str]) -> DataNeeds:
        """Returns what it needs of the data of tasks with these names; of one without a name where there is none.

        Raises:
            ValueError: Views and objectives of other tasks than there are.
        """

    def take_negative_pairs(self, tasks: Sequence[str | None]) -> None:
        """Lets the contrastive objectives of tasks take pairs labelled 0 as hard negatives.

        Raises:
            ValueError: A task without an objective that can.
        """

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer that was learned from the texts, as JSON."""


def as_consumer(module: object) -> BatchConsumer:
    """Returns a module that data can feed.

    Raises:
        TypeError: Another one, or none.
    """
    if not isinstance(module, BatchConsumer):
        raise InvalidTypeError(
            "TextDataModule: expected a trainer that runs a ContrastiveModule, which holds the views and the "
            f"tokenizer, got {type(module).__name__}"
        )
    return module
