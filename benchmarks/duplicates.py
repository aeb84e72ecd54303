"""Times finding near-duplicates of texts beside sentence-transformers' ``paraphrase_mining``, in turns.

    python benchmarks/duplicates.py --texts TEXTS.txt

From texts to pairs, as ``duplicates`` and ``paraphrase_mining`` do it, encoding included; and from vectors that
are there already, the search alone. Ours gives all pairs from a cosine on, theirs the nearest of each text, of
which those from that cosine on are taken; the pairs are compared. The file has a text a line; every eleventh text
of the run is another one without its last word. A smoke run: ``--quick``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from encode import best_size
from inputs import draw, encoder_name, installed_encoder, made_up_texts, tiny_encoder
from machines import machine, needs
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns

from contrastive_text import SentenceEncoder
from contrastive_text.inference.duplicates import near_duplicates

Pairs = set[tuple[int, int]]
AT_THE_EDGE = 1e-3
"""Pairs so near the threshold that rounding may decide, which are left out of the comparison."""


def with_near_ones(texts: Sequence[str], count: int) -> list[str]:
    """Returns so many texts, an eleventh of which are others without their last word.

    Example:
        >>> with_near_ones([f"text {i} is this" for i in range(20)], 11)[-1]
        'text 0 is'
    """
    first = texts[: -(-count * 10 // 11)]
    near = [text.rsplit(" ", 1)[0] for text in first[::10]]
    return [*first, *near][:count]


def main() -> None:
    """Measures, compares the pairs, and writes the table."""
    own = parser(__doc__)
    own.add_argument("--texts", type=Path, help="file with a text a line; made-up texts if left out")
    own.add_argument("--count", type=int, default=50_000, help="of texts")
    own.add_argument("--threshold", type=float, default=0.95, help="lowest cosine of a pair")
    own.add_argument("--from_vectors", action="store_true", help="the search alone")
    options = own.parse_args()
    needs("sentence-transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import paraphrase_mining, paraphrase_mining_embeddings

    torch.set_num_threads(options.threads)
    if options.quick:
        options.count, options.rounds, options.threshold = 300, min(options.rounds, 2), 0.99
    with tempfile.TemporaryDirectory() as made:
        if options.texts is None:
            known = made_up_texts(options.count)
        else:
            lines = options.texts.read_text(encoding="utf-8").splitlines()
            known = draw(list(dict.fromkeys(filter(None, lines))), min(options.count, len(lines)))
        texts = with_near_ones(known, options.count)
        encoder = tiny_encoder(Path(made), texts) if options.quick else options.encoder or installed_encoder()
        size = None
        if not options.from_vectors:
            size, _ = best_size(encoder, "float32", draw(texts, min(1000, len(texts))), options.device)
        model = SentenceEncoder.from_pretrained(encoder, device=options.device)
        peer = SentenceTransformer(encoder, device=options.device)
    vectors = torch.as_tensor(model.encode(texts))

    def found(pairs: torch.Tensor, cosines: torch.Tensor) -> Pairs:
        sure = cosines > options.threshold + AT_THE_EDGE
        return {(i, j) for i, j in pairs[sure.cpu()].tolist()}

    def theirs(rows: Sequence[Sequence[float]]) -> Pairs:
        return {
            (min(int(i), int(j)), max(int(i), int(j)))
            for cosine, i, j in rows
            if cosine > options.threshold + AT_THE_EDGE
        }

    def search(given: torch.Tensor) -> Pairs:
        return found(*near_duplicates(given, options.threshold))

    ways: dict[str, Callable[[], Pairs]] = {
        "ours, from vectors": lambda: search(vectors),
        "paraphrase_mining, from vectors": lambda: theirs(paraphrase_mining_embeddings(vectors)),
    }
    if size is not None:
        ways["ours, from texts"] = lambda: search(torch.as_tensor(model.encode(texts)))
        ways["paraphrase_mining, from texts"] = lambda: theirs(paraphrase_mining(peer, texts, batch_size=size))
    pairs: dict[str, Pairs] = {}

    def timed(name: str) -> Callable[[], float]:
        def turn() -> float:
            begun = time.perf_counter()
            pairs[name] = ways[name]()
            return time.perf_counter() - begun

        return turn

    seconds = take_turns({name: timed(name) for name in ways}, options.rounds)
    cells = [
        [
            name,
            f"{statistics.median(each):.2f}",
            "" if name.startswith("ours") else ratio_and_range(each, seconds[f"ours, {name.split(', ')[1]}"]),
            f"{len(pairs[name]):,}",
        ]
        for name, each in seconds.items()
    ]
    reference = pairs["ours, from vectors"]
    apart = {name: len(each ^ reference) for name, each in pairs.items()}
    lines = [
        f"# Near-duplicates of {len(texts):,} texts",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}.",
        f"Pairs of a cosine from {options.threshold}; {options.rounds} rounds in turns, ratios are medians of",
        "the rounds' ratios (lowest to highest)."
        + (f" The peer encodes batches of {size}, at which it is fastest." if size is not None else ""),
        "Written by `benchmarks/duplicates.py`.",
        "",
        *markdown(["", "seconds (median)", "ours is faster by", "pairs"], cells),
        "",
        f"Pairs that one finds and ours from vectors doesn't, or the other way round: {max(apart.values())}",
        f"(those within {AT_THE_EDGE} of the threshold aside).",
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    kept = {"texts": len(texts), "seconds": seconds, "apart": apart}
    print(publish("duplicates", lines, [kept], vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
