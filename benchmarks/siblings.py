"""Times what it costs to hide other positives of a query: the loss, and a step of a tiny encoder, in turns.

python benchmarks/siblings.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from inputs import TINY
from machines import machine
from runs import RESULTS, markdown, publish
from timing import parser, take_turns
from torch import nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.objectives import Contrastive, Duplicates, Siblings


def median_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and a 95 % interval of it, by resamples of the rounds.

    Example:
        >>> median_interval([1.0, 1.0, 1.0])
        (1.0, 1.0, 1.0)
    """
    values = torch.tensor(ratios, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = values[draws].quantile(0.5, dim=1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return float(values.quantile(0.5)), low, high


def work(
    siblings: str, rows: int, repeats: int, encoder: nn.Module | None, same_side: bool
) -> Callable[[], float]:
    """Returns a turn: the seconds of some passes over pairs of which two thirds have siblings."""
    noise = torch.Generator().manual_seed(0)
    vectors = torch.randn(2 * rows, 384, generator=noise, requires_grad=True)
    tokens = torch.randint(5, 400, (2 * rows, 16), generator=noise)
    text_ids = torch.cat([torch.arange(rows) * 2 // 3, rows + torch.arange(rows)])
    columns = {"hide": [Siblings()], "attract": [Siblings("positive")], "keep": []}[siblings]
    objective = Contrastive(NTXent() if same_side else InfoNCE(), columns=[Duplicates(), *columns])
    slots = (Slot("anchor", 0), Slot("positive", 0))

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            read = vectors if encoder is None else encoder(input_ids=tokens).last_hidden_state.mean(dim=1)
            objective(Encoded(read, slots, text_ids=text_ids)).total.backward()
        return time.perf_counter() - start

    return turn


def main() -> None:
    """Times both ways in turns, and writes the table."""
    own = parser(__doc__, rounds=20)
    own.add_argument("--repeats", type=int, default=10, help="passes of a turn")
    options = own.parse_args()
    torch.set_num_threads(options.threads)
    encoder = TransformerEncoder(config=TINY, dropout=0.0).model
    rounds, repeats = (2, 1) if options.quick else (options.rounds, options.repeats)
    table, found = [], []
    for what, rows, network in (("loss", 64, None), ("loss", 512, None), ("tiny step", 64, encoder)):
        for same_side in (False, True):
            turns = {way: work(way, rows, repeats, network, same_side) for way in ("keep", "hide")}
            for turn in turns.values():
                turn()
            seconds = take_turns(turns, rounds)
            median, low, high = median_interval(
                [b / a for a, b in zip(seconds["keep"], seconds["hide"], strict=True)]
            )
            name = "NTXent" if same_side else "InfoNCE"
            table.append([what, name, str(rows), f"{median:.3f}", f"{low:.3f} to {high:.3f}"])
            found.append({"what": what, "loss": name, "rows": rows, "seconds": seconds})
    lines = [
        "# What hiding siblings costs", "",
        f"{machine(options.threads, options.device)}.",
        f"Rounds in turns: {rounds}; medians of the rounds' ratios.", "",
        *markdown(["", "loss", "rows", "hide / keep, median", "95 %"], table),
    ]  # fmt: skip
    print("\n".join(lines))
    if not options.quick:
        print(publish("siblings", lines, found, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
