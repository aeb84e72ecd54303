"""Measures what guides cost: GIST's loss in tiles, and a step with a file or a model beside it.

    python benchmarks/guides.py --encoder FOLDER --guide FOLDER --sts FOLDER

Loss: one forward and backward pass over ``--rows`` pairs of 384 features, with and without a guide of as many, in
a fresh process for each form; memory is its highest resident figure above that with all inputs in place.
Steps: forward and backward pass of SimCSE's objective over 64 texts twice, then the same with a guide's vectors
from a file, and with the guide encoding the batch; in turns, in one process.

A smoke run without data: ``python benchmarks/guides.py --quick``.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from inputs import draw, encoder_name, installed_encoder, made_up_texts, sts_texts, tiny_encoder
from machines import machine, memory, peak, reset_peak
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns

from contrastive_text import ContrastiveModule, SentenceEncoder, TextDataModule
from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.data.files.readers import TextStream
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.losses import InfoNCE
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import Contrastive, Duplicates, FalseNegatives, Siblings
from contrastive_text.training import Guide, GuideFile, GuideModel

FEATURES = 384
ROWS = 16_384
GIST: tuple[Direction, ...] = ("query_to_doc", "query_to_query", "doc_to_doc")
FORMS: dict[str, tuple[tuple[Direction, ...], bool]] = {
    "InfoNCE": (GIST[:1], False),
    "InfoNCE with a guide": (GIST[:1], True),
    "three directions": (GIST, False),
    "GIST: three directions with a guide": (GIST, True),
}


def loss_turn(form: str, rows: int) -> Callable[[], float]:
    """Returns a turn: the seconds of one pass over so many pairs."""
    directions, has_guide = FORMS[form]
    noise = torch.Generator().manual_seed(0)
    vectors = torch.randn(2 * rows, FEATURES, generator=noise, requires_grad=True)
    guides = {"guide": torch.randn(2 * rows, FEATURES, generator=noise)} if has_guide else {}
    removed = FalseNegatives("guide") if has_guide else None
    objective = Contrastive(
        InfoNCE(directions=directions, streamed=True), columns=[Duplicates(), Siblings(), removed]
    )
    encoded = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), torch.arange(2 * rows), guides=guides)

    def turn() -> float:
        vectors.grad = None
        begun = time.perf_counter()
        objective(encoded).total.backward()
        return time.perf_counter() - begun

    return turn


def send_pass(form: str, rows: int, threads: int, pipe: Connection) -> None:
    """Sends the seconds of a pass, and the most memory above its inputs, in bytes; in a process of its own."""
    torch.set_num_threads(threads)
    loss_turn(form, 512)()  # loads what is loaded once
    turn = loss_turn(form, rows)
    reset_peak("cpu")
    before = memory("cpu")
    seconds = turn()
    pipe.send((seconds, peak("cpu") - before))


def measured_losses(rows: int, threads: int) -> list[dict[str, Any]]:
    """Returns seconds and bytes of each form of the loss."""
    found = []
    for form in FORMS:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(
            target=send_pass, args=(form, rows, threads, sender)
        )
        process.start()
        sender.close()
        seconds, most = receiver.recv()
        process.join()
        found.append({"form": form, "seconds": seconds, "peak": most})
        print(found[-1], flush=True)
    return found


def step_turns(encoder: str, guide: str, texts: list[str], folder: Path) -> dict[str, Callable[[], float]]:
    """Returns a turn for each way: the seconds of a step's passes over the next batch."""
    file = folder / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    made = EmbeddingRun(
        SentenceEncoder.from_pretrained(guide, device="cpu"),
        TextStream(file, distinct=True),
        folder / "guide.npy",
        with_ids=True,
    )
    made.finish()
    ways: dict[str, Guide | None] = {
        "no guide": None,
        "GuideFile": GuideFile(str(folder / "guide.npy")),
        "GuideModel": GuideModel(guide),
    }

    def turns(guide: Guide | None) -> Callable[[], float]:
        removed = None if guide is None else FalseNegatives("guide", absolute_margin=0.1)
        module = ContrastiveModule(
            TransformerEncoder(encoder, max_length=32),
            objectives={"contrastive": Contrastive(columns=[Duplicates(), Siblings(), removed])},
            guides=None if guide is None else {"guide": guide},
        ).train()
        data = TextDataModule(train=str(file), batch_size=64, num_workers=0)
        data.set_module(module)
        data.setup("fit")
        batches = iter(data.train_dataloader())

        def turn() -> float:
            batch = next(batches)
            module.zero_grad(set_to_none=True)
            begun = time.perf_counter()
            module.step_losses(batch)["contrastive"].backward()  # type: ignore[no-untyped-call]  # torch's
            return time.perf_counter() - begun

        return turn

    return {way: turns(guide) for way, guide in ways.items()}


def main() -> None:
    """Measures both, and writes the tables."""
    own = parser(__doc__, rounds=10)
    own.add_argument("--guide", help="folder of the guide; the extra `offline`'s if left out")
    own.add_argument("--sts", type=Path, help="folder with sts*.tsv, whose sentences are trained on")
    own.add_argument("--rows", type=int, default=ROWS, help="pairs of the loss")
    options = own.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        options.rows, options.rounds = 1024, 2
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        texts = made_up_texts(400) if options.sts is None else sts_texts(options.sts)
        encoder = tiny_encoder(folder, texts) if options.quick else options.encoder or installed_encoder()
        guide = encoder if options.quick else options.guide or installed_encoder()
        turns = step_turns(encoder, guide, draw(texts, 64 * (options.rounds + 1)), folder)
        for turn in turns.values():
            turn()
        steps = take_turns(turns, options.rounds)
    losses = measured_losses(options.rows, options.threads)
    rows = [
        [way, f"{1000 * statistics.median(taken):.0f}", ratio_and_range(taken, steps["no guide"])]
        for way, taken in steps.items()
    ]
    shown = [[each["form"], f"{each['seconds']:.0f}", f"{each['peak'] / 2**20:,.0f}"] for each in losses]
    lines = [
        "# What guides cost", "",
        f"{machine(options.threads, options.device)}.",
        f"Encoder: {encoder_name(encoder)}; guide: {encoder_name(guide)}.",
        f"A step: 64 sentences of STS twice, forward and backward pass; {options.rounds} rounds in turns.", "",
        *markdown(["a step", "ms, median", "relative to no guide: median (range)"], rows), "",
        f"The loss of {options.rows:,} pairs of {FEATURES} features, in tiles: one pass of a fresh process, and "
        "its memory above its inputs.", "",
        *markdown(["loss", "seconds", "MiB"], shown),
    ]  # fmt: skip
    print("\n".join(lines))
    if not options.quick:
        found = {"steps": steps, "losses": losses}
        print(publish("guides", lines, found, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
