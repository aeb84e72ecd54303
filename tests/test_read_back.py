"""Nothing is read back from a device between the copy of a batch and its losses, or its vectors in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import tiny
import torch
import torch.distributed as dist
from architectures import NAMES, encoder_of
from executions import CASES, ENTRIES, VIEWS, Execution, batch_of, module_of
from objective_cases import Case, How
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contrastive_text.core.types import Template
from contrastive_text.encoders import packing
from contrastive_text.encoders.base import Embedder
from contrastive_text.inference.encoding import BlockEncoder, Encoding, TextBlock
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import InfoNCE
from contrastive_text.losses import base as losses_base
from contrastive_text.objectives import Contrastive, Objective
from contrastive_text.objectives.momentum import Queue
from contrastive_text.poolers import MaskTokenPooler, MeanPooler
from contrastive_text.training import PCGrad

DEVICE = torch.device("meta")
"""Its tensors have shapes and types alone. Asked for a value, or for a shape that values decide, torch raises."""

_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class ReadBackError(AssertionError):
    """Tensors of host and device met in one operation."""


class NoMixing(TorchDispatchMode):
    """Lets values go to the device by copies alone, and none come back; an index of the host is a hidden copy.

    Args:
        calls: How often each operation ran on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Runs an operation, unless it mixes."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim]
        there = [tensor for tensor in tensors if tensor.device == DEVICE]
        back = there and torch.device(kwargs.get("device") or DEVICE).type == "cpu"
        waits = func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking")
        here = here or [tensor for tensor in tensors if tensor.device.type == "cpu" and waits]
        to_device = there or torch.device(kwargs.get("device") or "cpu") == DEVICE
        if back or (here and to_device and (waits or func not in _COPIES)):
            raise ReadBackError(f"{func}: {[(tuple(each.shape), each.device.type) for each in tensors]}")
        if there:
            self.calls[func._schema.name] += 1
        return func(*args, **kwargs)


class NoHiddenCopies(TorchFunctionMode):
    """Refuses values of Python on the device: torch makes a tensor of the host of them and waits for its copy."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Calls a function of torch, unless it copies so."""
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
            hides = torch.device(kwargs.get("device") or "cpu") == DEVICE
        elif func is Tensor.new_tensor:
            hides = args[0].device == DEVICE
        else:
            index = args[1] if func is Tensor.__getitem__ else None
            lists = [each for each in (index if isinstance(index, tuple) else (index,)) if isinstance(each, list)]
            hides = bool(lists) and args[0].device == DEVICE
        if hides:
            raise ReadBackError(f"{func}: {args[1:]} {kwargs}")
        return func(*args, **kwargs)


@contextmanager
def on_device(kernel: str) -> Iterator[Counter[str]]:
    """Has what is computed in the block read nothing back, and take the branches of a GPU.

    Args:
        kernel: Which takes the attention of packed rows, ``flash`` or ``efficient``.

    Yields:
        How often each operation ran on the device.
    """
    with (
        mock.patch.object(packing, "_kernel", lambda *_: kernel),
        mock.patch.object(torch, "is_autocast_enabled", lambda *_: False),  # refuses to be asked of this device
        NoHiddenCopies(),
        NoMixing() as seen,
    ):
        yield seen.calls


@contextmanager
def one_of(ranks: int) -> Iterator[None]:
    """Makes this process the last of some ranks, of which the others say nothing."""
    if ranks == 1:
        yield
        return
    answers = {"is_initialized": True, "get_world_size": ranks, "get_rank": ranks - 1}
    silent = ("all_gather_single", "reduce_scatter_single", "all_gather", "all_reduce")
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(dist, name, lambda *_, answer=answer: answer))
        for name in silent:
            stack.enter_context(mock.patch.object(dist, name, lambda *_, **__: None))
        yield


READS = {
    "positives": "labels choose the rows, and how many there are",
    "hard": "labels choose the rows, and how many there are",
    "signed": "labels choose the rows whose figures are logged",
    "sigreg": "a sum of the ids of all texts seeds the generator of its directions",
}
"""Objectives of the cases that read back by nature, and what."""

Objectives = Callable[[How], dict[str, Objective]]


def without_reads(objectives: Objectives) -> Objectives:
    return lambda how: {name: part for name, part in objectives(how).items() if name not in READS}


def plain(how: How) -> dict[str, Objective]:
    return {"c": Contrastive(InfoNCE(0.2, **how))}


def template(bias: bool) -> Case:
    return Case(
        plain, template=True, prompted=True, parts=lambda: {"pooler": MaskTokenPooler(template_bias=bias)}
    )


QUIET: dict[str, Case] = {
    name: replace(case, objectives=without_reads(case.objectives))
    for name, case in CASES.items()
    if name != "template, queue, signed pairs"
} | {"template": template(bias=False), "template's bias": template(bias=True)}


def step(
    case: Case,
    views: str,
    layout: str,
    form: str,
    chunked: bool,
    kernel: str = "efficient",
    ranks: int = 1,
    known: bool = True,
) -> Counter[str]:
    """Takes a step on the device up to its losses, and one that meets its columns where there is a queue.

    Returns:
        How often each operation ran on the device in the last step.
    """
    with mock.patch.dict(CASES, {"one": case}):
        module = module_of(Execution("one", views, layout, "whole", form, "one process"))
    module.to(DEVICE, torch.bfloat16 if kernel == "flash" else torch.float32)
    queues = any(isinstance(part, Queue) for part in module.modules())
    for number in range(1 + queues):
        batch = batch_of(case, views, number)
        module.chunk_tokens = int(0.4 * int(batch.lengths.sum())) if chunked else None
        batch = batch.replace(rank_sizes=(len(batch) // len(batch.slots),) * ranks if known else None)
        parts = mock.patch.object(losses_base, "_ENTRIES", ENTRIES)
        with on_device(kernel) as calls, parts, one_of(ranks):
            moved = batch.to(DEVICE)
            if isinstance(module.combine, PCGrad):  # which compares gradients on the host
                losses = list(module.step_losses(moved).values())
            else:
                losses = [module.training_step(moved, number)]
        assert all(loss.device == DEVICE for loss in losses)
    return calls


def test_a_step_reads_nothing_back_by_the_kernels_of_a_gpu() -> None:
    calls = step(QUIET["InfoNCE"], "no views", "packed", "streamed", chunked=True)
    assert calls["aten::_efficient_attention_forward"] >= 2 * tiny.CONFIG["num_hidden_layers"]
    assert not any("scaled_dot_product" in name for name in calls)


@pytest.mark.slow
def test_a_step_of_several_ranks_reads_nothing_back() -> None:
    step(QUIET["InfoNCE"], "no views", "packed", "dense", chunked=False, ranks=3)
    case = QUIET["GIST, hard negatives, and queue, NTXent, a guide, siblings attract"]
    step(case, "no views", "packed", "dense", chunked=False, ranks=2)
    with pytest.raises(ReadBackError):  # ranks ask for shares that nobody knows
        step(case, "no views", "packed", "dense", chunked=False, ranks=2, known=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layout", "chunked"),  # every two choices of them meet
    [
        (case, layout, (number + place) % 2 == 1)
        for number, case in enumerate(QUIET)
        for place, layout in enumerate(("packed", "padded"))
    ],
)
def test_no_step_reads_anything_back(case: str, layout: str, chunked: bool) -> None:
    for views in VIEWS[:1] if QUIET[case].in_context else VIEWS:
        # Gradient views take a backward pass, which torch's efficient kernel lacks on this device.
        kernel = "flash" if views == "every level" else "efficient"
        step(QUIET[case], views, layout, "dense", chunked, kernel)
    step(QUIET[case], "no views", layout, "dense", chunked, ranks=2)
    if QUIET[case].streams:  # a loss knows of no views, but gradient views of its backward pass
        views, kernel = ("no views", "efficient") if QUIET[case].in_context else ("every level", "flash")
        step(QUIET[case], views, layout, "streamed", chunked, kernel)
        step(QUIET[case], "no views", layout, "streamed", chunked, ranks=2)


@pytest.mark.parametrize(
    "read",
    [
        lambda values: int(values.max()),
        lambda values: bool((values > 0).any()),
        lambda values: values.tolist(),
        lambda values: values.cpu(),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: values.unique(),
        lambda values: torch.equal(values, values),
        lambda values: torch.repeat_interleave(values, values),
        # What the host would wait for to copy.
        lambda values: values[[0, 2]],
        lambda values: values[torch.tensor([0, 2])],
        lambda values: torch.tensor([1, 2], device=values.device),
        lambda values: values.new_tensor(1),
        lambda values: torch.arange(3).to(values.device),
    ],
)
def test_whoever_reads_is_noticed(read: Callable[[torch.Tensor], object]) -> None:
    values = torch.arange(3).to(DEVICE)
    with on_device("efficient"), pytest.raises((ReadBackError, NotImplementedError, RuntimeError)):
        read(values)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_block_of_encode_reads_nothing_back_before_its_vectors_are_checked(bert: str, layout: str) -> None:
    model = SentenceEncoder.from_pretrained(bert, device="cpu", pooler=MeanPooler())
    model.encoder = encoder_of("bert", layout=layout)
    encoding = Encoding(batch_size=4, normalize_embeddings=True, truncate_dim=5)
    frame = Template("the old ", unpooled=2)
    work = BlockEncoder(model.to(DEVICE), model.tokenizer, encoding, on_cpu=False, template=frame)
    checked = []
    with (
        on_device("efficient"),
        mock.patch.object(BlockEncoder, "_check", lambda _, found, __: checked.append(found)),
    ):
        vectors = work(TextBlock(0, list(tiny.TEXTS[:9]))).vectors
    assert vectors.device == DEVICE and vectors.shape == (9, 5)
    assert [found.shape[0] for found in checked] == [9]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("mpnet", "deberta-v2")])
def test_no_architecture_that_takes_our_attention_reads_back(name: str, layout: str) -> None:
    embedder = Embedder(encoder_of(name, layout=layout).to(DEVICE).eval(), MeanPooler(), chunk_tokens=30)
    batch = batch_of(Case(plain), "no views", 0)
    with on_device("efficient"):
        assert embedder.pool(batch.to(DEVICE)).device == DEVICE
