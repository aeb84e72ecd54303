"""Measures a training step of ours, of sentence-transformers' trainer and of a bare loop, turn by turn.

    python benchmarks/train_step.py --sts FOLDER

Every contender is a process with its own trainer, which works off ``--steps`` steps when its turn has come;
``--rounds`` rounds for each length limit and precision, and each round the same batches for all of them: SimCSE's
pairs, every text twice, told apart by dropout. Seconds are those of the whole loop: loading, collation, step,
logging. The bare loop has its batches tokenized beforehand and does nothing but forward pass, loss, backward
pass and update. Clipping, the schedule and a log line every ten steps are in both trainers, not in the bare loop.
The floor is three times the forward FLOPs of the tokens without padding, at the speed of products of the step's
own shapes in the same round. After the rounds a profile of ours says where a step's time goes.

A smoke run without data: ``python benchmarks/train_step.py --quick``. One setting alone: ``--max-lengths 32
--precisions float32``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from floors import beside_products, product_speed
from inputs import (
    Shape,
    describe_lengths,
    draw,
    encoder_name,
    forward_flops,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from machines import machine, needs
from packed_rows import attend_in_runs, pack
from profiles import Profile, Shares, section
from runs import RESULTS, markdown, publish
from timing import Answer, Contender, Turn, Unheard, kept, parser, ratio_and_range, take_turns
from torch import nn

LR, SCALE, DTYPES = 3e-5, 20.0, {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3
"""Steps of each contender that don't count."""
MINI_BATCH = 32
"""Texts that the peer's cached loss works off at a time, its default."""


class Job(NamedTuple):
    """Training job of a contender.

    Args:
        encoder: Folder of the model.
        texts: File of the texts as ours reads it, whose sampler gives ``ordered``.
        ordered: File of the same texts in the order of the steps.
        rows: Texts of a step, each of them twice.
        max_length: Longest text in tokens.
        precision: ``float32`` or ``bfloat16``, the latter by autocast over float32 weights.
        device: ``cpu`` or ``cuda``.
        folder: Where trainers may write.
        options: Further settings of the contender; ``workers`` are those of a trainer's loader.
    """

    encoder: str
    texts: str
    ordered: str
    rows: int
    max_length: int
    precision: Literal["float32", "bfloat16"]
    device: str
    folder: str
    options: Mapping[str, Any] = {}  # Any: each contender has its own


def train_ours(job: Job, turn: Turn) -> None:
    """Trains with our module in Lightning's trainer, as a recipe does."""
    fit_ours(job, turn, lambda _, batch: turn.ended_step(batch.ids.numel()))


def fit_ours(job: Job, turn: Turn, ended: Callable[[Any, Any], None], **options: Any) -> None:
    """Trains with our module and calls ``ended`` with trainer and batch after each step.

    Args:
        job: What to train.
        turn: Is told when all stands ready.
        ended: Called after each step.
        options: Of Lightning's trainer.
    """
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import CSVLogger

    from contrastive_text import ContrastiveModule
    from contrastive_text.data.datamodule import TextDataModule
    from contrastive_text.encoders import TransformerEncoder
    from contrastive_text.losses import InfoNCE
    from contrastive_text.objectives import Contrastive
    from contrastive_text.poolers import MeanPooler
    from contrastive_text.training import AdamW

    class EndOfStep(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Any, names: Lightning's
            ended(trainer, batch)

    settings = dict(job.options)
    workers = settings.pop("workers", 0)
    of_encoder = ("layout", "dropout", "adapters", "weights_dtype", "gradient_checkpointing")
    encoder = {name: settings.pop(name) for name in of_encoder if name in settings}
    module = ContrastiveModule(
        TransformerEncoder(job.encoder, max_length=job.max_length, **encoder),
        MeanPooler(),
        objectives={"contrastive": Contrastive(InfoNCE(temperature=1 / SCALE))},
        optimizer=AdamW(lr=LR),
        **settings,
    )
    usual = {
        "accelerator": "gpu" if job.device == "cuda" else "cpu",
        "devices": 1,
        "precision": "bf16-mixed" if job.precision == "bfloat16" else "32-true",
        "max_epochs": 1,
        "gradient_clip_val": 1.0,
        "log_every_n_steps": 10,
        "logger": CSVLogger(job.folder),
        "callbacks": [EndOfStep()],
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
    }
    trainer = pl.Trainer(**{**usual, **options})
    turn.loaded()
    trainer.fit(module, TextDataModule(train=job.texts, batch_size=job.rows, num_workers=workers))


def train_theirs(job: Job, turn: Turn) -> None:
    """Trains with sentence-transformers' trainer; with ``mini_batch`` by its cached loss."""
    from datasets import Dataset, disable_progress_bars
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )
    from torch.utils.data import BatchSampler, SequentialSampler
    from transformers import PrinterCallback, TrainerCallback

    tokens: list[int] = []

    class Counting(SentenceTransformerTrainer):
        def compute_loss(
            self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any
        ) -> Any:  # Any: theirs
            masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
            tokens.append(sum(int(mask.sum()) for mask in masks) if job.device == "cpu" else 0)
            return super().compute_loss(model, inputs, *rest, **named)

    class EndOfStep(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # Any, names: theirs
            turn.ended_step(tokens[-1])

    def in_file_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:  # Any: theirs
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    disable_progress_bars()
    model = SentenceTransformer(job.encoder, device=job.device)
    model.max_seq_length = job.max_length
    small = job.options.get("mini_batch")
    loss: nn.Module = (
        MultipleNegativesRankingLoss(model, scale=SCALE)
        if small is None
        else CachedMultipleNegativesRankingLoss(model, scale=SCALE, mini_batch_size=small)
    )
    texts = Path(job.ordered).read_text(encoding="utf-8").splitlines()
    trainer = Counting(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=job.folder,
            num_train_epochs=1,
            per_device_train_batch_size=job.rows,
            learning_rate=LR,
            bf16=job.precision == "bfloat16",
            use_cpu=job.device == "cpu",
            dataloader_drop_last=True,
            dataloader_num_workers=job.options.get("workers", 0),
            dataloader_pin_memory=job.device == "cuda",
            batch_sampler=in_file_order,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        loss=loss,
        callbacks=[EndOfStep()],
    )
    trainer.remove_callback(PrinterCallback)
    turn.loaded()
    trainer.train()


def train_bare(job: Job, turn: Turn) -> None:
    """Trains in a loop by hand: packed forward pass, mean, InfoNCE, backward pass, fused AdamW; nothing else."""
    from transformers import AttentionInterface, AutoModel, AutoTokenizer
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.utils import logging

    logging.set_verbosity_error()
    AttentionInterface.register("bare_packed", attend_in_runs)
    AttentionMaskInterface.register("bare_packed", lambda *_, **__: None)
    model = AutoModel.from_pretrained(job.encoder, dtype=torch.float32, add_pooling_layer=False).to(job.device)
    model.set_attn_implementation("bare_packed")
    model.train()
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)
    texts = Path(job.ordered).read_text(encoding="utf-8").splitlines()
    rows = tokenizer(texts, truncation=True, max_length=job.max_length)["input_ids"]
    starts = range(0, len(rows) - job.rows + 1, job.rows)
    batches = [pack(2 * rows[start : start + job.rows], job.device) for start in starts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    target = torch.arange(job.rows, device=job.device)
    torch.manual_seed(0)
    turn.loaded()
    for batch in batches:
        with torch.autocast(job.device, torch.bfloat16, enabled=job.precision == "bfloat16"):
            hidden = model(input_ids=batch.ids, position_ids=batch.positions, runs=batch.runs).last_hidden_state
        parts = hidden[0].split([count * length for count, length in batch.runs])
        means = [part.unflatten(0, run).mean(dim=1) for part, run in zip(parts, batch.runs, strict=True)]
        vectors = F.normalize(torch.cat(means)[batch.places].float(), dim=-1)
        loss = F.cross_entropy(vectors[: job.rows] @ vectors[job.rows :].T * SCALE, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turn.ended_step(batch.ids.numel())


def write_texts(folder: Path, texts: Sequence[str], rows: int) -> tuple[str, str]:
    """Writes the texts as ours reads them, and in the order in which its sampler gives them.

    The peers read the second file from the top, so that all of them see the same batches.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     given, ordered = write_texts(Path(folder), ["one", "two", "three", "four", "five"], rows=2)
        ...     lines = [Path(file).read_text(encoding="utf-8").splitlines() for file in (given, ordered)]
        >>> lines[0], len(lines[1]), {*lines[1]} < {*lines[0]}  # whole batches alone
        (['one', 'two', 'three', 'four', 'five'], 4, True)
    """
    from contrastive_text.data.datamodule import TextDataModule
    from contrastive_text.data.loader import EpochBatchSampler
    from contrastive_text.data.mixture import TaskSize, consecutive_steps
    from contrastive_text.data.tasks import SINGLE_TASK

    steps = consecutive_steps({SINGLE_TASK: TaskSize(len(texts), rows)}, drop_last=True)
    sampler = EpochBatchSampler({SINGLE_TASK: len(texts)}, steps, seed=TextDataModule().seed)
    given, ordered = folder / "texts.txt", folder / "ordered.txt"
    given.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    lines = (f"{texts[key.number]}\n" for keys in sampler for key in keys)
    ordered.write_text("".join(lines), encoding="utf-8")
    return str(given), str(ordered)


CONTENDERS: dict[str, tuple[Callable[[Job, Turn], None], dict[str, Any]]] = {  # Any: settings differ
    "ours": (train_ours, {}),
    "bare packed loop": (train_bare, {}),
    "sentence-transformers": (train_theirs, {}),
    "sentence-transformers, cached": (train_theirs, {"mini_batch": MINI_BATCH}),
}


def measure(
    job: Job, options: Any, tokens: int, steps: int
) -> dict[str, list[Answer | float]]:  # Any: argparse's
    """Returns the answers of all contenders for one precision, round by round, and the speed of their products.

    Raises:
        SystemExit: Contenders that have seen other tokens, hence other batches.
    """
    with ExitStack() as stack:
        works: dict[str, Callable[[], Answer | float]] = {}
        for name, (work, settings) in CONTENDERS.items():
            if options.only and name not in options.only:
                continue
            if name == "ours" and options.layout:
                settings = {**settings, "layout": options.layout}
            own = job._replace(options={**job.options, **settings})
            contender = stack.enter_context(Contender(work, own, options.threads, options.device))
            contender(WARM_UP)
            works[name] = partial(contender, steps)
        speed = partial(product_speed, Shape.of(job.encoder), tokens, DTYPES[job.precision], options.device)
        works["product"] = speed
        found = take_turns(works, options.rounds)
    for each in zip(*(answers for name, answers in found.items() if name != "product"), strict=True):
        seen = {answer.tokens for answer in each if isinstance(answer, Answer) and answer.tokens}
        if len(seen) != 1:
            raise SystemExit(f"expected the same batches for all contenders, got {sorted(seen)} tokens a round")
    return found


def profiled(job: Job, steps: int) -> Shares:
    """Returns the shares of the operations of so many steps of ours, loader, trainer and update included."""
    noted, ended, stack = Profile(job.device), 0, ExitStack()

    def count(_: Any, batch: Any) -> None:  # noqa: ARG001  # Any: Lightning's trainer, our batch
        nonlocal ended
        ended += 1
        if ended == WARM_UP:
            stack.enter_context(noted.watched())
        elif ended == WARM_UP + steps:
            stack.close()

    fit_ours(job, Unheard(), count, max_steps=WARM_UP + steps)
    return noted.shares()


def count_weights(encoder: str) -> int:
    """Returns the number of weights of an encoder without its own pooler."""
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.from_pretrained(encoder), add_pooling_layer=False)
    return sum(weight.numel() for weight in model.parameters())


def rows_for(job: Job, options: Any, lengths: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    """Measures one length limit and precision and gives a row for each contender."""
    shape, size = Shape.of(job.encoder), steps * job.rows
    tokens = round(2 * job.rows * statistics.mean(lengths))
    found = measure(job, options, tokens, steps)
    speeds = found.pop("product")
    beside = beside_products(shape, tokens, count_weights(job.encoder), DTYPES[job.precision], options.device)
    first = WARM_UP * job.rows
    floors = []
    for number, speed in enumerate(speeds):
        batches = lengths[first + number * size : first + (number + 1) * size]
        floors.append(3 * 2 * forward_flops(shape, batches) / speed)
    for name, answers in found.items():
        yield {
            "max length": job.max_length,
            "precision": job.precision,
            "contender": name,
            "seconds": [answer.seconds for answer in answers],
            "floor": floors,
            "texts a round": 2 * size,
            "tokens a round": [answer.tokens for answer in answers],
            "product FLOP/s": speeds,
            "beside": {name: steps * seconds for name, seconds in beside.items()},
            "profile": profiled(job, steps) if name == "ours" else [],
        }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: figures and names
    """Returns the table of all rows, with the ratios of texts a second, ours over theirs."""

    def seconds(precision: str, contender: str, max_length: int) -> list[float] | None:
        wanted = (max_length, precision, contender)
        for row in rows:
            if (row["max length"], row["precision"], row["contender"]) == wanted:
                return row["seconds"]
        return None

    lines = []
    for row in rows:
        own = row["seconds"]
        taken = statistics.median(own)
        known = {"products": statistics.median(row["floor"]), **row["beside"]}
        rest = 1 - sum(known.values()) / taken
        parts = [f"{name} {100 * part / taken:.0f} %" for name, part in {**known, "rest": rest * taken}.items()]
        others = {
            "ours": seconds(row["precision"], "ours", row["max length"]),
            "ours in bfloat16": seconds("bfloat16", "ours", row["max length"]),
        }
        shown = ["" if other is None else ratio_and_range(own, other) for other in others.values()]
        lines.append(
            [
                str(row["max length"]),
                row["precision"],
                row["contender"],
                f"{row['texts a round'] / statistics.median(own):,.0f}",
                *shown,
                ratio_and_range(own, row["floor"]),
                f"{statistics.median(row['product FLOP/s']) / 1e9:,.0f}",
                ", ".join(parts) if row["contender"] == "ours" else "",
            ]
        )
    header = [
        "max length",
        "precision",
        "contender",
        "texts/s",
        "ours is faster by",
        "ours in bfloat16 is faster by",
    ]
    return markdown([*header, "times its floor", "product, GFLOP/s", "parts of a step"], lines)


def main() -> None:
    """Measures every length limit and precision and writes the dated table."""
    own = parser(__doc__)
    own.add_argument("--sts", type=Path, help="folder with sts*.tsv")
    own.add_argument("--steps", type=int, default=4, help="steps of a turn")
    own.add_argument("--rows", type=int, default=64, help="texts of a step, each of them twice")
    own.add_argument("--max-lengths", type=int, nargs="+", default=[32, 64])
    own.add_argument("--precisions", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    own.add_argument("--only", nargs="+", choices=tuple(CONTENDERS), help="contenders, all if left out")
    own.add_argument("--layout", help="ours' layout, its own choice if left out")
    options = own.parse_args()
    needs("sentence-transformers", "accelerate", "datasets")
    torch.set_num_threads(options.threads)
    if options.quick:
        options.rows, options.steps, options.rounds = 8, 2, min(options.rounds, 2)
    count = options.rows * (WARM_UP + options.rounds * options.steps + 2)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.quick:
            texts = made_up_texts(count)
            encoder = tiny_encoder(folder, texts)
        elif options.sts is None:
            own.error("--sts FOLDER is needed, or --quick")
        else:
            texts, encoder = draw(sts_texts(options.sts), count), options.encoder or installed_encoder()
        given, ordered = write_texts(folder, texts, options.rows)
        in_order = Path(ordered).read_text(encoding="utf-8").splitlines()
        rows: list[dict[str, Any]] = []
        said = []
        for max_length in options.max_lengths:
            lengths = lengths_of(in_order, encoder, max_length)
            said.append(f"- cut at {max_length}: {describe_lengths(lengths, options.rows)}")
            for precision in options.precisions:
                job = Job(
                    encoder, given, ordered, options.rows, max_length, precision, options.device, str(folder)
                )
                measured = partial(list, rows_for(job, options, lengths, options.steps))
                rows += kept(options.keep, f"{max_length}-{precision}", measured)
                print("\n".join(table(rows)), flush=True)
    source = "made-up texts" if options.quick else "sentences of STS12, 14, 15 and STS-B"
    own_rows = [row for row in rows if row["profile"]]
    profiles = {f"{row['max length']} tokens at most, {row['precision']}": row["profile"] for row in own_rows}
    lines = [
        f"# A training step of {2 * options.rows} texts",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}.",
        f"{options.rounds} rounds of {options.steps} steps, the contenders taking turns; ratios are medians of",
        "the rounds' ratios (lowest to highest). Written by `benchmarks/train_step.py`.",
        "",
        *table(rows),
        "",
        f"{len(in_order):,} distinct {source} in random order, each twice in its step; dropout as in the",
        "encoder's configuration:",
        "",
        *said,
        "",
        f"The cached loss works off mini-batches of {MINI_BATCH} texts. bfloat16 is autocast over float32",
        "weights everywhere. Trainers clip the gradient and log every ten steps, the bare loop doesn't; its",
        "texts are tokenized beforehand. The floor is 3 x the forward FLOPs of the tokens without padding at the",
        "speed of products of the same shapes in the same round. Parts of a step: the products, AdamW's update,",
        "casts to and from bfloat16, and dropout of token vectors, each measured alone. In the row of the bare",
        "loop 0.95 means that a step of ours takes 1.05 times its time.",
        *section(profiles, "a step"),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("train-step", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
