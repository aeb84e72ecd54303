from collections.abc import Mapping

import numpy as np

from contrastive_text.data import Mixture, Step, TaskSize, consecutive_steps


class Shuffled(Mixture):
    """Trains a batch of one task in each step. The order of steps is random, so larger tasks have more steps."""

    def __init__(self, seed: int = 42) -> None:
        self.seed = seed

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> list[Step]:
        each = [step for task, size in sizes.items() for step in consecutive_steps({task: size}, drop_last)]
        return [each[i] for i in np.random.default_rng(self.seed).permutation(len(each))]
