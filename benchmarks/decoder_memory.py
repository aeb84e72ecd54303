"""The memory of a training step of a decoder, computed from its dimensions: the formula of ``docs/memory.md``."""

from __future__ import annotations

from typing import Literal, NamedTuple

from runs import markdown

GIB = 2**30
RANK = 16
"""Of LoRA."""


class Sizes(NamedTuple):
    """Sizes of a decoder like Llama or Qwen2 that determine its memory.

    Args:
        layers: Number of blocks L.
        features: Width of the token vectors H.
        inner: Width of the feed-forward layer I.
        queries: Width of all queries A, heads times head size.
        keys: Width of all keys K, key heads times head size.
        vocabulary: Entries of the token table V.
    """

    layers: int
    features: int
    inner: int
    queries: int
    keys: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Number of weights, without biases and a head that predicts tokens.

        Example:
            >>> Sizes(layers=1, features=4, inner=8, queries=4, keys=2, vocabulary=10).weights
            196
        """
        _, h, inner, a, k, vocabulary = self
        layer = 2 * h * a + 2 * h * k + 3 * h * inner + 2 * h
        return self.layers * layer + vocabulary * h + h

    def adapters(self, rank: int) -> int:
        """Returns the number of weights of LoRA in all linear layers of the blocks.

        Example:
            >>> Sizes(layers=1, features=4, inner=8, queries=4, keys=2, vocabulary=10).adapters(rank=1)
            64
        """
        _, h, inner, a, k, _ = self
        return self.layers * rank * (2 * (h + a) + 2 * (h + k) + 3 * (h + inner))


class Way(NamedTuple):
    """Way to train a model: trained weights, data type, checkpointed layers and chunks.

    Args:
        trained: ``all`` weights, or those of ``LoRA``.
        dtype: Of the weights; those of LoRA are float32.
        layers_anew: Whether layers are checkpointed.
        chunked: Whether the batch is encoded in chunks.
    """

    trained: Literal["all", "LoRA"]
    dtype: Literal["float32", "bfloat16"]
    layers_anew: bool = False
    chunked: bool = False

    def __str__(self) -> str:
        parts = [self.trained if self.trained == "LoRA" else "all weights", self.dtype]
        parts += ["layers checkpointed"] * self.layers_anew + ["chunks"] * self.chunked
        return ", ".join(parts)


class Memory(NamedTuple):
    """Bytes at the highest point of a step.

    Args:
        weights: Of the model and of adapters.
        states: Gradients and AdamW's two moments of what is trained.
        kept: Activations that wait for the backward pass.
        passing: Gradients of activations on their way back.
    """

    weights: int
    states: int
    kept: int
    passing: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def of_layer(sizes: Sizes, way: Way, rank: int = RANK) -> int:
    """Returns the bytes that a layer keeps of each token, packed or unpadded.

    - Two norms: their input, what they have divided, and their output, ``3 H`` each; with frozen weights not the
      second. In bfloat16 the input is kept as float32.
    - Attention: queries, keys and values, the latter repeated for each query's head, its output, and that once
      more in order for the next layer: ``5 A``; the next layer doesn't keep it where its weights are frozen.
    - The feed-forward layer: both projections, one's activation, their product: ``4 I``; likewise.
    - LoRA's ``A`` keeps its input as float32: a float32 network's own, of a bfloat16 one a copy for each of the
      seven linear layers; and ``B`` keeps 7 times its rank.

    Example:
        >>> sizes = Sizes(layers=2, features=64, inner=160, queries=64, keys=32, vocabulary=400)
        >>> of_layer(sizes, Way("all", "float32")), of_layer(sizes, Way("LoRA", "bfloat16"), rank=4)
        (5376, 4272)
    """
    _, h, inner, a, _, _ = sizes
    if way.trained == "all" and way.dtype == "float32":
        return 4 * (6 * h + 5 * a + 4 * inner)
    if way.trained == "all":
        return 2 * (4 * h + 4 * h + 5 * a + 4 * inner)
    if way.dtype == "float32":
        return 4 * (4 * h + 5 * a + 4 * inner + 7 * rank)
    return 4 * (2 * h) + 2 * (4 * a + 3 * inner) + 4 * (5 * h + a + inner + 7 * rank)


def predicted(sizes: Sizes, way: Way, tokens: int, rank: int = RANK) -> Memory:
    """Returns the memory of a step, above that of a process without a model.

    Args:
        sizes: Of the model.
        way: How it is trained.
        tokens: Of the batch, or of a chunk.
        rank: Of LoRA.

    Example:
        >>> sizes = Sizes(layers=2, features=64, inner=160, queries=64, keys=32, vocabulary=400)
        >>> predicted(sizes, Way("all", "float32", layers_anew=True), tokens=10)
        Memory(weights=447744, states=1343232, kept=61440, passing=12800)
    """
    width = 4 if way.dtype == "float32" else 2
    trained = sizes.weights if way.trained == "all" else sizes.adapters(rank)
    state = width if way.trained == "all" else 4
    layer = of_layer(sizes, way, rank)
    others = (sizes.layers - 1) * (width * sizes.features if way.layers_anew else layer)
    last_norm = 2 * 4 * sizes.features if way.trained == "all" else 4 * sizes.features
    back = 2 * (width if way.trained == "all" else 4) * sizes.inner  # of the two projections
    return Memory(
        weights=width * sizes.weights + (4 * trained if way.trained == "LoRA" else 0),
        states=3 * state * trained,
        kept=tokens * (others + layer + last_norm),
        passing=tokens * back,
    )


PUBLISHED = {
    "SmolLM2-135M": Sizes(30, 576, 1536, 576, 192, 49_152),
    "SmolLM2-360M": Sizes(32, 960, 2560, 960, 320, 49_152),
    "Qwen2.5-0.5B": Sizes(24, 896, 4864, 896, 128, 151_936),
    "Qwen2.5-1.5B": Sizes(28, 1536, 8960, 1536, 256, 151_936),
    "Qwen2.5-3B": Sizes(36, 2048, 11_008, 2048, 256, 151_936),
    "Llama-3.1-8B": Sizes(32, 4096, 14_336, 4096, 1024, 128_256),
}
"""Dimensions of published decoders by their ``config.json``; no encoder has their head that predicts tokens."""


def tables_of_sizes(ranks: int = 8, tokens: int = 1024) -> list[str]:
    """Returns the tables of published models: what they take at rest, and what so many tokens take."""
    ways = {
        "float32": Way("all", "float32"),
        "bf16-true": Way("all", "bfloat16"),
        f"LoRA {RANK} on bf16": Way("LoRA", "bfloat16"),
    }
    at_rest, waiting = [], []
    for name, sizes in PUBLISHED.items():
        found = [sum(predicted(sizes, way, tokens=0)[:2]) / GIB for way in ways.values()]
        at_rest.append([name, f"{sizes.weights / 1e9:.2f}", *(f"{each:.1f}" for each in found)])
        at_rest[-1] += [f"{each / ranks:.1f}" for each in found]
        each_way = [way._replace(layers_anew=anew) for anew in (False, True) for way in ways.values()]
        sums = [sum(predicted(sizes, way, tokens)[2:]) for way in each_way]
        waiting.append([name, *(f"{each / GIB:.2f}" for each in sums)])
    names = [*ways, *(f"{name}, {ranks} ranks" for name in ways)]
    return [
        *markdown(["GiB", "weights, billions", *names], at_rest),
        "",
        *markdown([f"GiB of {tokens:,} tokens", *ways, *(f"{way}, checkpointed" for way in ways)], waiting),
    ]
