"""Layouts: packed, bucketed and padded rows give the same vectors and gradients, whatever the architecture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import CONFIGS, DECODER, NAMES, ROWS, SIZE, encoder_of, ragged
from covering import crossed, rest_slow
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.base import Embedder
from contrastive_text.encoders.packing import (
    ATTENTION,
    NO_MASK,
    FixedLayout,
    Layout,
    Packing,
    fill_count,
    natural_positions,
    packed_attention,
    packed_input,
    pad,
    split_rows,
    token_mask,
)
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.views import EmbeddingDropout, FeatureCutoff, TokenCutoff, ViewPlan

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
CPU = torch.device("cpu")
UNPACKED = ("mpnet", "deberta-v2")
PACKED = [name for name in NAMES if name not in UNPACKED]
WINDOWS: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", **SIZE, **DECODER, "sliding_window": 4},
    "qwen2, windows": {
        "model_type": "qwen2", **SIZE, **DECODER,
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "modernbert, narrow": {**CONFIGS["modernbert"], "local_attention": 6, "global_attn_every_n_layers": 3},
}  # fmt: skip
LENGTHS = (30, 1, 7, 30, 12, 2, 9, 1, 17, 17, 5, 26, 3, 40, 8, 8, 11, 21, 4, 1)
"""Twenty rows: more than a bucket, longer than every window, single tokens, equal lengths here and there."""


def encoder(name: str, layout: FixedLayout) -> TransformerEncoder:
    if name in CONFIGS:
        return encoder_of(name, layout=layout)
    torch.manual_seed(0)
    return TransformerEncoder(config=WINDOWS[name], layout=layout).double().eval()


def texts(lengths: Sequence[int] = LENGTHS, positions: bool = False) -> Batch:
    """Rows of those lengths; with ``positions`` every row's places in another order."""
    noise = torch.Generator().manual_seed(len(lengths))
    rows = [tuple(torch.randint(5, 60, (length,), generator=noise).tolist()) for length in lengths]
    batch = ragged(*rows, slots=ragged(*ROWS).slots[:1])
    orders = [torch.randperm(length, generator=noise) for length in lengths]
    return batch.replace(positions=torch.cat(orders)) if positions else batch


def vectors(
    model: TransformerEncoder, batch: Batch, layers: tuple[int, ...] = (-1,), plan: ViewPlan | None = None
) -> dict[int, Tensor]:
    """Returns the token vectors of each layer as training takes them, (T, D), in the batch's order."""
    starts = batch.lengths.cumsum(0) - batch.lengths
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    places = []
    for part in Embedder(model, MeanPooler()).groups(batch):
        alter: EmbeddingChange | None = plan.alter_embeddings(part.batch) if plan else None
        blocks = model.blocks(part.batch, alter=alter, layers=layers)
        assert sum(len(block.mask) for block in blocks) == len(part.rows)
        for layer in layers:
            found[layer] += [block.layers[layer][block.mask] for block in blocks]
        places += [starts[row] + torch.arange(int(batch.lengths[row])) for row in part.rows]
    order = torch.cat(places).argsort()
    return {layer: torch.cat(each)[order] for layer, each in found.items()}


def gradients(model: TransformerEncoder, each: dict[int, Tensor]) -> dict[str, Tensor]:
    """Returns the gradient of a weighted sum of all vectors, by parameter."""
    noise = torch.Generator().manual_seed(0)
    total = torch.stack([(v * torch.randn(v.shape, generator=noise).to(v)).sum() for v in each.values()]).sum()
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


def check(name: str, layout: FixedLayout, batch: Batch, plan: ViewPlan | None = None) -> None:
    """Holds a layout's vectors and gradients against those of one padded block, layer by layer."""
    layers = (-1, -2, 0, 1)
    plain, other = encoder(name, "padded"), encoder(name, layout)
    assert other.layout_on(CPU) == (layout, "as asked for")
    expected, reached = (vectors(model, batch, layers=layers, plan=plan) for model in (plain, other))
    for layer in layers:
        scale = float(expected[layer].detach().abs().max())
        torch.testing.assert_close(reached[layer], expected[layer], rtol=0, atol=PROMISE * scale)
    wanted, found = gradients(plain, expected), gradients(other, reached)
    # Nothing that never gets a gradient: DDP would refuse it.
    assert found.keys() == wanted.keys() == dict(plain.named_parameters()).keys()
    scale = max(float(g.abs().max()) for g in wanted.values())
    assert scale > 1e-3
    for key, gradient in wanted.items():
        torch.testing.assert_close(found[key], gradient, rtol=0, atol=PROMISE * scale, msg=key)


def plan() -> ViewPlan:
    return ViewPlan({"anchor": [FeatureCutoff(rate=0.3), TokenCutoff(rate=0.3), EmbeddingDropout(rate=0.1)]})


@pytest.mark.parametrize(
    ("name", "what"), crossed([*PACKED, *WINDOWS], ["plain", "positions", "embedding views"])
)
def test_packed_rows_give_the_vectors_and_gradients_of_padded_ones(name: str, what: str) -> None:
    check(name, "packed", texts(positions=what == "positions"), plan() if what == "embedding views" else None)


@pytest.mark.parametrize(("name", "what"), crossed([*NAMES, *WINDOWS], ["plain", "positions and views"]))
def test_buckets_give_the_vectors_and_gradients_of_one_padded_block(name: str, what: str) -> None:
    both = what != "plain"
    check(name, "bucketed", texts(positions=both and name != "deberta-v2"), plan() if both else None)


@pytest.mark.parametrize(
    "name", rest_slow(["bert", "modernbert", "distilbert", "roberta", "electra", "albert"], quick=2)
)
def test_a_pack_has_more_tokens_than_a_row_may_have(name: str) -> None:
    lengths = (*LENGTHS, *LENGTHS, *LENGTHS)
    assert sum(lengths) > 512
    limit = encoder(name, "packed").limit
    assert limit is not None
    assert sum(lengths) > 10 * limit
    check(name, "packed", texts(lengths))


@pytest.mark.parametrize("name", PACKED)
def test_no_layer_of_a_packed_network_sees_padding_but_for_fill_at_the_end(name: str) -> None:
    model, batch = encoder(name, "packed"), texts()
    shapes = []
    for layer in model.model.modules():
        layer.register_forward_hook(
            lambda layer, inputs, output: shapes.append(output.shape) if isinstance(output, Tensor) else None  # noqa: ARG005  # torch's signature
        )
    vectors(model, batch)
    assert len(shapes) > 10
    tokens = sum(LENGTHS) + fill_count(sum(LENGTHS))
    # Rotary angles and token types are of one row too; position biases have no place for tokens.
    assert {shape[1] for shape in shapes if len(shape) == 3} == {tokens}
    assert {shape[0] for shape in shapes if len(shape) == 3} == {1}


# Which layout, and why


@pytest.mark.parametrize("name", NAMES)
def test_auto_takes_packed_rows_on_a_cpu_where_the_architecture_allows(name: str) -> None:
    layout, why = encoder_of(name).layout_on(CPU)
    assert layout == ("bucketed" if name in UNPACKED else "packed")
    if name in UNPACKED:
        assert why.endswith(f"not packed, for {name} takes no other attention function")
    else:
        assert why == "the fastest on a CPU: at most 6 % padding"


@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_read_no_mask_that_they_are_given(name: str) -> None:
    model = encoder_of(name).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]]), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    inputs["position_ids"] += model._first_position
    with packed_input(Packing.of(torch.tensor([3, 2]))):
        expected = model.model(**inputs).last_hidden_state
        reached = model.model(**inputs, attention_mask=torch.zeros(NO_MASK).bool()).last_hidden_state
    assert torch.equal(reached, expected)


def test_on_a_gpu_rows_are_packed_where_torch_has_kernels_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gpu = encoder_of("bert"), torch.device("cuda")
    assert model.layout_on(gpu)[0] == "packed"
    assert model.layout_on(torch.device("mps"))[0] == "padded"
    assert encoder_of("mpnet").layout_on(gpu)[0] == "padded"
    monkeypatch.setattr(torch.version, "hip", "7.0")  # AMD's, which torch calls cuda too
    assert model.layout_on(gpu)[0] == "padded"


@pytest.mark.parametrize("name", UNPACKED)
def test_an_architecture_that_ignores_the_attention_function_is_found_by_its_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = vectors(encoder(name, "padded"), texts())[-1]
    monkeypatch.setattr(PreTrainedModel, "is_backend_compatible", classmethod(lambda cls: True))  # noqa: ARG005  # a class method
    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", lambda self, name: None)  # noqa: ARG005  # its signature
    torch.manual_seed(0)
    model = TransformerEncoder(config=CONFIGS[name]).double().eval()  # built with these patches
    layout, why = model.layout_on(CPU)
    assert layout == "bucketed"
    assert "gives other values with packed rows" in why or "can't be called with packed rows" in why
    torch.testing.assert_close(vectors(model, texts())[-1], expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"for .* packed rows.*, got packed"):
        TransformerEncoder(config=CONFIGS[name], layout="packed")


@pytest.mark.parametrize("name", rest_slow([*PACKED, *WINDOWS], quick=4))
def test_attention_that_sees_other_rows_is_found_by_its_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(
        query: Tensor, key: Tensor, value: Tensor, packing: Packing, *others: Any
    ) -> Tensor:  # Any: handed on
        return packed_attention(query, key, value, Packing.of(packing.lengths.sum().unsqueeze(0)), *others)

    monkeypatch.setattr("contrastive_text.encoders.packing.packed_attention", blind)
    torch.manual_seed(0)
    layout, why = TransformerEncoder(config={**CONFIGS, **WINDOWS}[name]).layout_on(CPU)
    assert layout == "bucketed"
    assert why.endswith("gives other values with packed rows")


# The network by itself


@torch.no_grad()
def test_the_model_called_with_padding_stays_right_after_packed_calls() -> None:
    plain, model = encoder("bert", "padded"), encoder("bert", "packed")
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    expected = plain.model(input_ids=ids, attention_mask=mask).last_hidden_state
    for _ in range(2):
        reached = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(reached[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-12)
        vectors(model, texts())
    assert float((model.model(input_ids=ids).last_hidden_state - expected)[1, :2].abs().max()) > 1e-4


@torch.no_grad()
def test_a_failed_pass_leaves_no_packing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder("bert", "packed")
    expected = encoder("bert", "padded")(texts()).layers[-1]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(
            "contrastive_text.encoders.packing.packed_attention",
            lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")),
        )
        vectors(model, texts())
    mask = token_mask(texts().lengths)
    ids = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, texts().ids)
    reached = model.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(reached[mask], expected[mask], rtol=0, atol=1e-12)


def test_a_saved_folder_says_nothing_of_our_attention(tmp_path: Path) -> None:
    model = TransformerEncoder(tiny.save_bert(tmp_path / "bert"))
    assert model.layout_on(CPU)[0] == "packed"
    SentenceEncoder(model, MeanPooler()).save_pretrained(tmp_path / "saved")
    configs = [path for path in (tmp_path / "saved").rglob("*.json") if path.name != "tokenizer.json"]
    assert any(path.name == "config.json" for path in configs)
    assert all(ATTENTION not in path.read_text() for path in configs)
    assert "layout" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert AutoModel.from_pretrained(tmp_path / "saved").config._attn_implementation == "sdpa"


# Rows and parts


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=60), bound=st.none() | st.integers(1, 80))
@pytest.mark.parametrize("layout", ["packed", "bucketed", "padded"])
def test_parts_cover_every_row_once_within_their_bound_long_rows_first(
    layout: FixedLayout, lengths: list[int], bound: int | None
) -> None:
    sizes = torch.tensor(lengths)
    parts = split_rows(sizes, layout, bound)
    order = torch.cat(parts)
    # Long rows first, equal ones as they stood.
    assert order.tolist() == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    assert all(len(part) for part in parts)
    for number, part in enumerate(parts):
        own = [lengths[i] for i in part.tolist()]
        assert len(own) <= (16 if layout == "bucketed" else len(lengths))
        cost = sum(own) if layout == "packed" else len(own) * max(own)
        if bound is not None:
            assert len(own) == 1 or cost <= bound
            if number + 1 < len(parts):  # and no part is smaller than it need be
                more = [*own, lengths[int(parts[number + 1][0])]]
                grown = sum(more) if layout == "packed" else len(more) * max(more)
                assert grown > bound or (layout == "bucketed" and len(own) == 16)
    if bound is None:
        assert len(parts) == (-(-len(lengths) // 16) if layout == "bucketed" else 1)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_padding_vectors_and_taking_the_tokens_is_nothing(lengths: list[int]) -> None:
    sizes = torch.tensor(lengths)
    tokens = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(0))
    mask = token_mask(sizes)
    padded = pad(tokens, mask)
    assert torch.equal(padded[mask], tokens)
    assert not padded[~mask].any()
    places = torch.arange(mask.shape[1]).expand_as(mask)
    assert torch.equal(natural_positions(sizes), places[mask])


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_a_bound_below_every_row_takes_rows_one_by_one(name: str) -> None:
    model, batch = encoder_of(name), texts()
    bounded = Embedder(model, CLSPooler(), chunk_tokens=1)
    assert [len(part.rows) for part in bounded.groups(batch)] == [1] * len(batch)
    expected = Embedder(model, CLSPooler()).pool(batch)
    torch.testing.assert_close(bounded.pool(batch), expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")  # Transformers 5's other name of it
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("layout", ["auto", "bucketed", "padded", "packed"])
def test_where_transformers_checkpoints_layers_the_gradient_is_the_plain_one_or_refused(
    layout: Layout, reentrant: bool
) -> None:
    def gradient_of(model: TransformerEncoder) -> dict[str, Tensor]:
        vectors(model, texts())[-1].square().sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain = encoder_of("bert", layout="padded", dropout=0.0).train()
    model = encoder_of("bert", layout=layout, dropout=0.0).train()
    model.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.model.enable_input_require_grads()  # or reentrant checkpoints have no gradient at all
    if layout == "packed":
        # Computed anew in the backward pass, attention would run over all rows at once.
        with pytest.raises(
            ValueError, match=r"encoder\.layout: expected auto, .*got packed; another function checkpoints"
        ):
            gradient_of(model)
        return
    if layout == "auto":
        chosen, why = model.layout_on(CPU)
        assert chosen == "bucketed"
        assert "encoder.gradient_checkpointing" in why
    expected, reached = gradient_of(plain), gradient_of(model)
    assert reached.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, g in expected.items():
        torch.testing.assert_close(reached[name], g, rtol=0, atol=PROMISE * scale, msg=name)


@pytest.mark.slow
def test_a_compiled_network_is_not_packed_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []
    plain = nn.Module.compile

    def without_a_compiler(module: nn.Module, dynamic: bool) -> None:
        compiled.append(dynamic)
        plain(module, backend="eager", dynamic=dynamic)

    monkeypatch.setattr(nn.Module, "compile", without_a_compiler)
    encoder, batch = encoder_of("bert", compiled=True), ragged(*ROWS)
    assert compiled == [True, True]  # its two blocks
    assert encoder.layout_on(torch.device("cpu"))[0] == "bucketed"
    with torch.no_grad():
        reached, expected = encoder(batch), encoder_of("bert", layout="padded")(batch)
    # Compiled or not: the same operations in float64.
    torch.testing.assert_close(reached.layers[-1], expected.layers[-1], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="a compiled network takes no packed rows, got packed"):
        encoder_of("bert", compiled=True, layout="packed")
