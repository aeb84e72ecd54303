"""Options of the Trainer that can't be: what Lightning refuses in its own words, and what it lets pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError

_SEEDS = 2**32
"""Lightning gives the seed to numpy, which takes 32 bits."""


@contextmanager
def answering() -> Iterator[None]:
    """Makes an answer of what Lightning says of the options while it builds a Trainer.

    Raises:
        ValueError: Options that it refuses.
    """
    try:
        yield
    except ContrastiveTextError:
        raise
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"trainer: expected options that Lightning takes, got others: {error}; change that --trainer option"
        ) from error


def check_trainer(trainer: pl.Trainer) -> None:
    """Refuses options that Lightning takes and can't run with.

    Raises:
        ValueError: Such an option.
    """
    steps, clip = trainer.accumulate_grad_batches, trainer.gradient_clip_val
    if steps < 1:
        raise InvalidValueError(
            f"trainer.accumulate_grad_batches: expected 1 or more, got {steps}; leave it out for 1"
        )
    if clip is not None and not 0 <= clip < math.inf:  # NaN compares as false
        raise InvalidValueError(
            f"trainer.gradient_clip_val: expected a number from 0, got {clip}; set null for no clipping"
        )


def check_seed(seed: object) -> None:
    """Refuses a number that is no seed; True and None leave its choice to Lightning.

    Raises:
        ValueError: Such a number.
    """
    if isinstance(seed, int) and not 0 <= seed < _SEEDS:
        raise InvalidValueError(f"seed_everything: expected 0 to {_SEEDS - 1}, got {seed}; choose another seed")
