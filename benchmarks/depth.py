"""Predicts the memory of a training step of a decoder from its dimensions, then measures it.

    python benchmarks/depth.py
    python benchmarks/depth.py --sizes

Each way of training is a process of its own that takes two steps of SimCSE on texts that are all cut at
``--max-length`` tokens; its figure is the highest resident memory above what was in use before the model was
loaded, when a tiny model had been trained there already, hence the weights and all that the steps need. Those
processes make glibc return freed memory at once (``machines.STEADY``). What is predicted is computed before a
process starts, from the model's dimensions alone. ``--sizes`` measures nothing: it prints the tables of published
models in ``docs/memory.md``. A smoke run: ``--quick``; with ``--keep FOLDER`` ways that were measured aren't
measured again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decoder_memory import RANK, Memory, Sizes, Way, predicted, tables_of_sizes
from inputs import made_up_texts
from machines import STEADY, machine, memory, peak
from runs import RESULTS, markdown, publish
from timing import Contender, Turn, Unheard, kept, parser
from train_step import Job, fit_ours, write_texts

MIB = 2**20
WITHIN = 0.15
"""Largest share of a measured figure by which a predicted one may be off."""
STEPS = 2
"""The second one finds AdamW's moments in place."""
WAYS = (
    Way("all", "float32"),
    Way("LoRA", "bfloat16"),
    Way("LoRA", "bfloat16", layers_anew=True),
    Way("all", "float32", layers_anew=True),
    Way("LoRA", "bfloat16", chunked=True),
    Way("all", "float32", chunked=True),
    Way("LoRA", "bfloat16", layers_anew=True, chunked=True),
    Way("LoRA", "float32"),
)


def train(job: Job, turn: Turn) -> None:
    """Trains a tiny model, whose libraries and threads stay, notes the memory, and trains the model."""
    options = dict(job.options)
    tiny = options.pop("tiny")
    fit_ours(job._replace(encoder=tiny, options=options), Unheard(), lambda *_: None, max_steps=1)
    before = memory(job.device)

    def ended(_: Any, batch: Any) -> None:  # Any: Lightning's trainer, our batch
        turn.counts["above"] = peak(job.device) - before
        turn.ended_step(batch.ids.numel())

    fit_ours(job._replace(options=options), turn, ended)


def measure(way: Way, job: Job, chunk_tokens: int, tiny: str, threads: int) -> list[dict[str, Any]]:
    """Returns what a process of its own needed at most, and how long its steps took."""
    from contrastive_text.encoders import LoRA

    options: dict[str, Any] = {"tiny": tiny, "gradient_checkpointing": way.layers_anew}
    if way.trained == "LoRA":
        options |= {"adapters": LoRA(rank=RANK), "weights_dtype": way.dtype}
    if way.chunked:
        options |= {"chunk_tokens": chunk_tokens}
    with Contender(train, job._replace(options=options), threads, job.device, STEADY) as contender:
        answer = contender(STEPS)
    return [
        {"bytes": answer.counts["above"], "tokens": answer.tokens // STEPS, "seconds": answer.seconds / STEPS}
    ]


def save_decoder(folder: Path, sizes: Sizes, head: int, texts: Sequence[str]) -> str:
    """Saves a random Qwen2 with a tokenizer learned from the texts; gives its folder."""
    from transformers import AutoModel, Qwen2Config

    from contrastive_text.data import learn_vocabulary

    learn_vocabulary(texts, vocabulary_size=400).save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.features,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.queries // head,
        num_key_value_heads=sizes.keys // head,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    AutoModel.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return str(folder)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: figures and names
    """Returns the table of what was predicted and measured."""
    lines = []
    for row in rows:
        parts = Memory(**row["predicted"])
        states = parts.weights + parts.states
        cells = [parts.weights, parts.states, parts.kept + parts.passing, parts.total, row["bytes"]]
        lines.append(
            [
                row["way"],
                *(f"{cell / MIB:,.0f}" for cell in cells),
                f"{parts.total / row['bytes']:.2f}",
                f"{(row['bytes'] - states) / MIB:,.0f}",
            ]
        )
    header = ["MiB", "weights", "gradients, moments", "activations", "predicted", "measured"]
    return markdown([*header, "predicted / measured", "measured activations"], lines)


def main() -> None:
    """Predicts and measures every way, and writes the dated table."""
    own = parser(__doc__)
    own.add_argument("--sizes", action="store_true", help="print the table of published models alone")
    own.add_argument("--pairs", type=int, default=4, help="pairs of a step")
    own.add_argument("--max-length", type=int, default=32)
    own.add_argument("--chunk-tokens", type=int, default=64)
    options = own.parse_args()
    if options.sizes:
        print("\n".join(tables_of_sizes()))
        return
    small = Sizes(2, 64, 128, 64, 32, 400)
    sizes, head = (small, 16) if options.quick else (Sizes(20, 896, 4864, 896, 128, 32_000), 64)
    texts = [f"{text} {text} {text} {text}" for text in made_up_texts(options.pairs * (STEPS + 1))]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tiny = save_decoder(folder / "tiny", small, 16, texts)
        model = save_decoder(folder / "model", sizes, head, texts)
        given, ordered = write_texts(folder, texts, options.pairs)
        job = Job(
            model, given, ordered, options.pairs, options.max_length, "float32", options.device, str(folder)
        )
        tokens = 2 * options.pairs * options.max_length
        for way in WAYS:
            foretold = predicted(sizes, way, min(tokens, options.chunk_tokens) if way.chunked else tokens)
            print(f"{way}: {foretold.total / MIB:,.0f} MiB predicted", flush=True)
            found = kept(
                options.keep,
                str(way),
                partial(measure, way, job, options.chunk_tokens, tiny, options.threads),
            )
            if (got := found[0]["tokens"]) != tokens:
                raise SystemExit(f"expected texts of {options.max_length} tokens, got {got} tokens a step")
            rows.append({"way": str(way), "predicted": foretold._asdict(), **found[0]})
            print("\n".join(table(rows)), flush=True)
    off = [row["way"] for row in rows if abs(sum(row["predicted"].values()) / row["bytes"] - 1) > WITHIN]
    lines = [
        "# Memory of a training step of a decoder, predicted and measured",
        "",
        f"A random Qwen2 of {sizes.weights / 1e6:,.0f} M weights: {sizes.layers} layers, {sizes.features}",
        f"features, {sizes.inner} inside of the feed-forward layer, {sizes.queries // head} heads,",
        f"{sizes.keys // head} of keys, {sizes.vocabulary:,} tokens. {machine(options.threads, options.device)}.",
        f"A step has {2 * options.pairs} rows of {options.max_length} tokens, packed; a chunk has",
        f"{options.chunk_tokens} tokens. LoRA of rank {RANK} is in all linear layers. Written by",
        "`benchmarks/depth.py`; the formula is `benchmarks/decoder_memory.py`.",
        "",
        *table(rows),
        "",
        f"Predicted within {WITHIN:.0%} of what was measured: {'not ' + '; '.join(off) if off else 'all'}.",
        "",
        "Measured is the highest resident memory of a process in two steps above what was in use before the",
        "model was loaded, when a tiny one had been trained there already. Measured activations are that less",
        "the weights, gradients and moments that are predicted. glibc returned freed memory at once:",
        f"{', '.join(map('='.join, STEADY.items()))}.",
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("depth", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
