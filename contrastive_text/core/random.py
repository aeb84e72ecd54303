"""Keyed randomness: a key gives the same draws in any worker, rank, chunk or resumed run.

On the CPU a key seeds a numpy generator (text and token views, pairings, the order of an epoch). On the
device ``RowRandom`` hashes the key of every row with the number of the draw, so that embedding views need
no generator state. The hash is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable
pseudorandom number generators", figure 17), in wrapping 64-bit arithmetic on both sides.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor, nn

_LEVELS = 2**16
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def fold_key(*parts: int) -> int:
    """Hashes integers, in order, to a signed 64-bit key.

    Example:
        >>> fold_key(1, 2) == fold_key(1, 2), fold_key(1, 2) == fold_key(2, 1)
        (True, False)
    """
    state = 0
    for part in parts:
        state = _mix((state + _GAMMA + (part & _MASK)) & _MASK)
    return _signed(state)


def splitmix64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies the finalizer of SplitMix64 to each 64-bit word, a bijection in which all bits depend on all bits.

    Example:
        >>> splitmix64(np.array([0, 1], dtype=np.uint64)).tolist()
        [0, 6238072747940578789]
    """
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def fold_keys(*parts: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Hashes arrays elementwise to keys, as ``fold_key`` hashes integers; the parts are broadcast.

    Example:
        >>> fold_keys(7, np.array([1, 2])).tolist() == [fold_key(7, 1), fold_key(7, 2)]
        True
    """
    state = np.zeros(1, dtype=np.uint64)  # arrays wrap silently, scalars warn
    for part in parts:
        words = part.astype(np.uint64) if isinstance(part, np.ndarray) else np.uint64(part & _MASK)
        state = splitmix64(state + (words + np.array([_GAMMA], dtype=np.uint64)))
    return state.view(np.int64)


def text_id(text: str | bytes) -> int:
    """Returns a signed 64-bit hash of a text, the same in every process (BLAKE2b).

    Example:
        >>> text_id("a cat") == text_id("a cat") != text_id("a dog")
        True
    """
    content = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def generator(key: int) -> np.random.Generator:
    """Returns numpy's counter-based Philox generator for a key, at its start.

    A generator that no caller references any more is reused with the new key, which takes 0.9 us. A new one takes
    5 us (``np.random.Philox(key=key)`` takes 9 us, most of it for entropy that a key makes needless). A generator
    that is still referenced, for example by a view or in a list, is never changed.

    Example:
        >>> generator(3).integers(100, size=3).tolist() == generator(3).integers(100, size=3).tolist()
        True
    """
    return _last_generator.seeded(key & _MASK)


class _NoEntropy(ISeedSequence):
    """Seed sequence of numpy that reads no entropy from the system.

    ``spawn`` of its generators fails for lack of a key.
    """

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint64]:
        """Returns zeros as the state of a Philox generator, because its key replaces them."""
        return np.zeros(n_words, dtype=dtype)


_NO_ENTROPY = _NoEntropy()


class _LastGenerator(threading.local):
    """Cache of the last generator that each thread has used; threads never share a generator."""

    def __init__(self) -> None:
        self._renew()
        # Any: numpy reads lists faster than the arrays that its type declares.
        self._start: Any = self._bits.state | {"buffer": [0] * 4}
        self._start["state"] = {"counter": [0] * 4, "key": [0, 0]}

    def _renew(self) -> None:
        self._bits = np.random.Philox(_NO_ENTROPY)  # type: ignore[arg-type]  # declared for numpy's own seeds only
        self._rng = np.random.Generator(self._bits)
        self._free_count = self._count_references()

    def _count_references(self) -> tuple[int, int]:
        return sys.getrefcount(self._rng), sys.getrefcount(self._bits)

    def seeded(self, key: int) -> np.random.Generator:
        """Returns a generator at the start of a key's draws: the last one if no caller references it."""
        if self._count_references() != self._free_count:
            self._renew()
        self._start["state"]["key"][0] = key
        self._bits.state = self._start
        return self._rng


_last_generator = _LastGenerator()


def seed_torch(key: int, device: torch.device) -> None:
    """Seeds torch's generator that dropout on a device draws from.

    On a CPU it seeds only the CPU's generator. ``torch.manual_seed`` seeds all devices, which takes 0.2 ms
    without any.

    Example:
        >>> seed_torch(3, torch.device("cpu"))
        >>> first = torch.rand(1)
        >>> seed_torch(3, torch.device("cpu"))
        >>> torch.equal(first, torch.rand(1))
        True
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(key)
    else:
        torch.manual_seed(key)


def dropout(values: Tensor, p: float) -> Tensor:
    """Drops out values: sets each to zero with probability p and scales the rest by 1 / (1 - p).

    Srivastava et al. 2014, "Dropout" (JMLR 15), section 10. On a CPU torch draws a float for every value, which
    is 7 to 15 % of a training step; ``dropout_factors`` are cheaper. On other devices torch's dropout is used.

    Args:
        values: Any shape.
        p: Probability, in [0, 1).

    Returns:
        The same shape and type.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dropout(torch.ones(6), p=0.5)
        tensor([0., 0., 2., 0., 0., 0.])
    """
    if p == 0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, p)
    return values * dropout_factors(values.numel(), p, values.dtype).view(values.shape)


def dropout_factors(count: int, p: float, dtype: torch.dtype) -> Tensor:
    """Returns independent dropout factors, 0 with probability p, else 1 / (1 - p), (count,).

    16 random bits of torch's global generator decide on each value. p is therefore rounded to a multiple of
    1/65,536 (0.1 to 0.100006), and the factor belongs to the rounded p.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dropout_factors(6, p=0.25, dtype=torch.float64).unique()
        tensor([0.0000, 1.3333], dtype=torch.float64)
    """
    level = min(round(p * _LEVELS), _LEVELS - 1)
    # Each 64-bit number decides on four values.
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    factors = torch.empty(count, dtype=dtype)  # a boolean result would take longer to multiply with than to draw
    torch.ge(draws.view(torch.int16)[:count], level - _LEVELS // 2, out=factors)
    return factors.mul_(_LEVELS / (_LEVELS - level))


class Dropout(nn.Dropout):
    """Dropout layer that uses ``dropout`` in place of torch's dropout."""

    def forward(self, input: Tensor) -> Tensor:  # the base's name
        """Returns the values with new random zeros in training mode, unchanged in evaluation mode."""
        return dropout(input, self.p) if self.training else input


def replace_dropouts(network: nn.Module) -> None:
    """Replaces every dropout layer of torch in a network by ``Dropout``."""
    for module in list(network.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Dropout:
                setattr(module, name, Dropout(layer.p))


def _mix_tensor(z: Tensor) -> Tensor:
    """Applies the finalizer of ``_mix`` to int64: masks make its shifts logical, and products wrap."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(_MIX1)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(_MIX2)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def hash_rows(ids: Tensor, lengths: Tensor) -> Tensor:
    """Returns a 64-bit hash of the token ids of each row, on their device. Equal rows have equal hashes.

    Args:
        ids: Token ids of all rows, one row after another, (T,).
        lengths: Tokens of each row, (S,).

    Returns:
        (S,), int64.

    Example:
        >>> one, other, same = hash_rows(torch.tensor([5, 6, 6, 5, 5, 6]), torch.tensor([2, 2, 2])).tolist()
        >>> one == same, one == other
        (True, False)
    """
    numbers = torch.arange(len(lengths), device=ids.device)
    rows = torch.repeat_interleave(numbers, lengths, output_size=len(ids))
    positions = torch.arange(len(ids), device=ids.device) - (lengths.cumsum(0) - lengths)[rows]
    # A sum of hashes wraps and has no order: row lengths and the order of a device's threads don't change it.
    hashes = _mix_tensor(_mix_tensor((positions + 1) * _signed(_GAMMA)) + ids)
    return _mix_tensor(torch.zeros_like(lengths).index_add_(0, rows, hashes) + lengths)


class RowRandom:
    """Random draws for n rows at once, each from its own key.

    A draw depends on the key of the row, the number of the view, the number of the call and the index in the
    drawn shape. It doesn't depend on other rows, the padded length, the chunk or the rank.

    Args:
        keys: Draw key of each row, (n,), int64.
        view: Number of the view in its chain, so that two views in one chain draw differently.

    Example:
        >>> keys = torch.tensor([5, 6])
        >>> short, long = RowRandom(keys).rand(3), RowRandom(keys).rand(8)
        >>> bool((short == long[:, :3]).all())
        True
    """

    def __init__(self, keys: Tensor, view: int = 0) -> None:
        self.keys = keys
        self.view = view
        self._calls = 0

    def _bits(self, *shape: int) -> Tensor:
        self._calls += 1
        state = _mix_tensor(self.keys + _signed(fold_key(self.view, self._calls)))
        for size in shape:
            indices = torch.arange(1, size + 1, device=state.device) * _signed(_GAMMA)
            state = _mix_tensor(state.unsqueeze(-1) + indices)
        return state

    def rand(self, *shape: int) -> Tensor:
        """Draws uniform numbers in [0, 1), (n, *shape), float32 with 24 random bits."""
        return ((self._bits(*shape) >> 40) & ((1 << 24) - 1)).float() * 2.0**-24

    def randn(self, *shape: int) -> Tensor:
        """Draws standard normal numbers, (n, *shape), float32 (Box and Muller 1958)."""
        radius = (-2 * (1 - self.rand(*shape)).log()).sqrt()
        return radius * (2 * math.pi * self.rand(*shape)).cos()

    def choose(self, eligible: Tensor, count: Tensor) -> Tensor:
        """Chooses an exact number of random positions in each row.

        Args:
            eligible: True where a position may be chosen, (n, positions).
            count: Number of positions to choose in each row, (n,).

        Returns:
            True at the chosen positions, (n, positions).
        """
        order = self.rand(eligible.shape[1]).masked_fill(~eligible, 2.0).argsort(dim=1, stable=True)
        first = torch.arange(eligible.shape[1], device=eligible.device) < count.unsqueeze(1)
        return torch.zeros_like(eligible).scatter(1, order, first) & eligible

    def permutation(self, mask: Tensor) -> Tensor:
        """Draws an order of the tokens of each row; padding keeps its position.

        Args:
            mask: True on tokens, (n, L).

        Returns:
            For each position the index of the token that moves there, (n, L).
        """
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        order = self.rand(mask.shape[1]).masked_fill(~mask, 2.0).argsort(dim=1, stable=True)
        slots = positions.masked_fill(~mask, mask.shape[1]).argsort(dim=1, stable=True)
        return positions.scatter(1, slots, order)


def draw_spans(units: int, spans: int, length: int, rng: np.random.Generator) -> list[int]:
    """Draws spans of equal length, without overlap if the text is long enough.

    The spans are in the order of the text. All placements without overlap are equally likely.

    Args:
        units: Length of the text, at least ``length``.
        spans: Number of spans.
        length: Units in each span.

    Returns:
        The first unit of each span.
    """
    if spans * length <= units:
        return [span.start for span in draw_disjoint_spans(units, [length] * spans, rng)]
    return sorted(rng.integers(units - length + 1, size=spans).tolist())


def draw_disjoint_spans(units: int, lengths: Sequence[int], rng: np.random.Generator) -> list[range]:
    """Draws spans of given lengths without overlap, in text order; all placements are equally likely.

    Args:
        units: Length of the text, at least the sum of the lengths.
        lengths: Units in each span, in the order of the text.

    Example:
        >>> draw_disjoint_spans(9, [2, 3], generator(1))
        [range(0, 2), range(5, 8)]
    """
    # With each span shortened to its first unit, placements without overlap are choices of distinct units.
    firsts = sorted(rng.permutation(units - sum(lengths) + len(lengths))[: len(lengths)].tolist())
    spans, shift = [], 0
    for first, length in zip(firsts, lengths, strict=True):
        spans.append(range(first + shift, first + shift + length))
        shift += length - 1
    return spans
