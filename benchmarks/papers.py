"""Makes tables and figures of the five papers in small, and says whether what each paper found is found here.

    python benchmarks/papers.py --encoder FOLDER --sts FOLDER --sentences SENTENCES.tsv.gz --consert TEXTS.txt \\
        --documents DOCUMENTS.jsonl.gz --cs224n FOLDER --quora FOLDER

Each study is the sweep that ``contrastive-text paper NAME`` prints, with fewer steps and fewer cells. STS-B's
development set chooses the step of a run; the mean of the STS test sets is what counts. A finished run is kept in
``--out`` and not repeated; processes with the same command share the runs. Each study has ``--seeds``, if it has
none of its own. After every study the table of all that are there, and in ``--earlier``, is written. Further
options are those of the sweeps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runs import RESULTS, ROOT, cell_configurations, do, held, machine, markdown, mean_and_spread, publish

from contrastive_text.metrics.bootstrap import paired_difference

STS = "sts:mean"
"""Score by which the studies on STS compare cells."""

OVERALL = "val/overall"
"""Score by which the studies of CS224N compare cells, on the development sets of its tasks."""

WHAT = """\
Start: `{encoder}` (`minilm-mlm` is a stand-in for a plain encoder: all-MiniLM-L6-v2, contrastively trained
before, after steps of masked language modeling). In the studies on STS a run has 75 steps (batch size: 7,200
texts) and is validated three times on STS-B's development set, which chooses the weights; `sts:mean` is of
STS12, STS14, STS15, STS-B and SICK-R, which choose nothing. SimCSE: `examples/minilm.yaml` on sentences of
Wikipedia, rate 1e-4; tables 2, 3 and 6 in bfloat16. ConSERT: the recipe at a rate of 1e-4 on the texts of the
same five sets, scores unread. DeCLUTR: `benchmarks/small.yaml` at a rate of 5e-5, spans of 16 to 63 tokens,
32 anchors a step. CS224N: `benchmarks/cs224n.yaml`, 100 batches of 16 texts of SST and of STS, 6 % of
Quora's; the last weights are scored on the development sets. The papers train BERT or RoBERTa for some
thousand steps: what is not seen here is not refuted. The configuration of every cell is in the JSON. The
studies ran on several processors."""


class Finding(NamedTuple):
    """Finding of a paper: one cell is better than another cell.

    Args:
        said: The paper's finding.
        better: Study and labels of the cell that is better; of a label its arguments may be left out.
        worse: Those of the other one.
    """

    said: str
    better: tuple[str, ...]
    worse: tuple[str, ...]


class Study(NamedTuple):
    """A table or figure of a paper.

    Args:
        said: Which.
        words: The options of its sweep.
        before: The options of a sweep from whose runs its runs start; none to start from the encoder.
        seeds: How many; None for those of the command line.
        counts: The score that counts.
    """

    said: str
    words: Sequence[str]
    before: Sequence[str] = ()
    seeds: int | None = None
    counts: str = STS


def words(typed: str) -> list[str]:
    """Returns the words of a line without quotes."""
    return typed.split()


def short(steps: int, rate: str) -> list[str]:
    """Returns the options of a short run: the weights are validated three times, the best of them count."""
    return words(
        f"--model.optimizer.lr {rate} --trainer.max_steps {steps} --trainer.max_epochs -1 --trainer.callbacks [] "
        f"--trainer.check_val_every_n_epoch null --trainer.val_check_interval {steps // 3} --data.num_workers 0"
    )


def studies(options: argparse.Namespace) -> dict[str, Study]:
    """Returns the studies by the name of their folder, in the order in which they are made."""
    encoder = ["--model.encoder.model_name_or_path", str(options.encoder)]
    dev = ["--data.validation", str(options.sts / "stsb.dev.tsv")]
    score = [
        "--select",
        "val/spearman",
        "--report",
        "val/spearman",
        "--report",
        STS,
        "--report_data",
        str(options.sts),
    ]
    substitute = f"ContextualSubstitute(model_name_or_path='{options.encoder}',rate=0.15)"
    augmented = f"none,CropTokens(rate=0.1),DeleteTokens(rate=0.1),DeleteOneWord,{substitute}"
    simcse = ["--recipe", "simcse", "--config", str(ROOT / "examples" / "minilm.yaml"), *encoder]
    simcse += ["--data.train", str(options.sentences), *dev, *score]
    consert = ["--recipe", "consert", *encoder, *dev, *score, "--data.train", str(options.consert)]
    consert += words("--model.schedule.warmup_ratio 0.1")
    steps = short(75, "1e-4")
    views = "none,ShufflePositions,FeatureCutoff(rate=0.2)"
    declutr = ["--config", str(ROOT / "benchmarks" / "small.yaml"), *encoder, *dev, *score]
    declutr += ["--data.train", json.dumps([str(path) for path in options.documents])]
    declutr += short(75, "5e-5")
    spans = words(
        "--data.task.pairing.min_length 16 --data.task.pairing.max_length 64 "
        "--data.task.pairing.min_document_tokens 256"
    )
    strategies = ["--vary", "data.task.pairing.strategy=any,subsuming,adjacent"]
    of_simcse = {
        "simcse-table-1": (
            "Table 1: augmentation in place of dropout alone",
            f"model.views.positive={augmented}",
        ),
        "simcse-table-3-mask": (
            "Table 3: the same mask for both copies",
            "model.views.positive=none,FixedDropout",
        ),
        "simcse-table-3": ("Table 3: probability of dropout", "model.encoder.dropout=0.1,0,0.5"),
        "simcse-table-2": (
            "Table 2: the next sentence, or one of the next three, in place of the sentence itself",
            "data.task.pairing=SameText,Neighbors(reach=1),Neighbors(reach=3)",
        ),
        "simcse-table-6-mlp": (
            "Table 6: [CLS] with an MLP in training only, and without",
            "model.objectives.contrastive.head=TanhHead(train_only=True),none",
            *words("--model.pooler CLSPooler"),
        ),
        "simcse-table-6": (
            "Table 6: [CLS] and means, without an MLP",
            "model.pooler=CLSPooler,FirstLastPooler(first=block_1),MeanPooler",
        ),
    }
    return {
        **{
            name: Study(f"SimCSE, {said}", [*simcse, "--vary", *varied], seeds=3)
            for name, (said, *varied) in of_simcse.items()
        },
        "consert-figure-7": Study(
            "ConSERT, Figure 7: temperature",
            [*consert, *steps, "--vary", "model.objectives.contrastive.loss.temperature=0.03,0.08,0.1,0.12,0.3"],
        ),
        "consert-figure-6": Study(
            "ConSERT, Figure 6: number of texts",
            [
                *consert,
                *steps,
                *words("--vary data.task.limit=1,100,1000,none --data.task.repeat 75"),
                *words("--model.objectives.contrastive.columns []"),
            ],
        ),
        "consert-figure-5": Study(
            "ConSERT, Figure 5: pairs of alterations",
            [
                *consert,
                *steps,
                "--vary",
                f"model.views.anchor={views}",
                "--vary",
                f"model.views.positive={views}",
            ],
        ),
        "declutr-figure-2-strategies": Study(
            "DeCLUTR, Figure 2: where positives lie, two anchors",
            ["--recipe", "declutr", *declutr, *spans, "--data.batch_size", "16", *strategies],
        ),
        "declutr-figure-2-one-anchor": Study(
            "DeCLUTR, Figure 2: where positives lie, one anchor of twice as many documents",
            ["--recipe", "declutr/one_anchor", *declutr, *spans, "--data.batch_size", "32", *strategies],
        ),
        "consert-table-4": Study(
            "ConSERT, Table 4: batch size, 7,200 texts in each run",
            [
                *consert,
                *words(
                    "--model.optimizer.lr 1e-4 --data.task.limit 7200 --trainer.max_epochs 1 "
                    "--trainer.callbacks []"
                ),
                *words("--trainer.val_check_interval 0.3333 --data.num_workers 0"),
                *words("--vary data.batch_size=16,48,96,192,288"),
            ],
        ),
        **cs224n(options, encoder),
    }


def cs224n(options: argparse.Namespace, encoder: Sequence[str]) -> dict[str, Study]:
    """Returns the unsupervised study of CS224N: the set-ups of a training stage, and two chains of two."""

    def files(part: str, names: Mapping[str, str]) -> list[str]:
        folders = {"sst": options.cs224n, "sts": options.cs224n, "quora": options.quora}
        which = "train" if part == "train" else "dev"
        each = [(task, folders[name] / f"{name}.{which}.tsv") for task, name in names.items()]
        return [word for task, path in each for word in (f"--data.tasks.{task}.{part}", str(path))]

    pairs = {"paraphrase": "quora", "similarity": "sts"}
    texts = {"sst_texts": "sst", "quora_texts": "quora", "sts_texts": "sts"}
    labels = {"sentiment": "sst"}
    over = ["--config", str(ROOT / "benchmarks" / "cs224n.yaml"), *encoder]
    vanilla = [*files("train", labels), *files("validation", {**labels, **pairs}), *over]
    vanilla += words("--data.tasks.sentiment.limit 1600")
    contrastive = [*files("train", texts), *files("validation", pairs), *over]
    contrastive += words("--data.tasks.sst_texts.limit 1600 --data.tasks.sts_texts.limit 1600")
    scores = (OVERALL, "val/sentiment/accuracy", "val/paraphrase/accuracy", "val/similarity/pearson")
    report = [word for score in scores for word in ("--report", score)]
    after = [*words("--recipe cs224n/pretrain_after_sentiment --keep_heads true"), *contrastive]
    return {
        "cs224n-table-1": Study(
            "CS224N, Table 1: sentiment alone, and with the contrastive loss in turns",
            [*words("--vary recipe=cs224n/vanilla,cs224n/fusion"), *vanilla, *report],
            counts=OVERALL,
        ),
        "cs224n-table-1-contrastive-first": Study(
            "CS224N, Table 1: contrastive, then sentiment",
            [*words("--recipe cs224n/vanilla"), *vanilla, *report],
            before=[*words("--recipe cs224n/pretrain"), *contrastive],
            counts=OVERALL,
        ),
        "cs224n-table-1-supervised-first": Study(
            "CS224N, Table 1: sentiment, then contrastive",
            [*after, *files("validation", labels), *report],
            before=[*words("--recipe cs224n/vanilla"), *vanilla],
            counts=OVERALL,
        ),
    }


class Cells:
    """The scores of all cells that are finished.

    Args:
        folder: With a folder for each study.
        made: The studies.
        encoder: The encoder's folder, of which the name alone is kept.
        earlier: A filed result, for studies that aren't in the folder.
    """

    def __init__(self, folder: Path, made: Mapping[str, Study], encoder: Path, earlier: Path | None) -> None:
        self.made = made
        filed = {"rows": {}, "configuration": {}} if earlier is None else json.loads(earlier.read_text())
        there = {name: folder / name for name in made if (folder / name / "table.json").exists()}
        self.tables = filed["rows"] | {
            name: _named(json.loads((at / "table.json").read_text()), encoder) for name, at in there.items()
        }
        own = {name: _named(cell_configurations(at), encoder) for name, at in there.items()}
        self.plans = filed["configuration"] | own

    def of(self, name: str) -> list[tuple[tuple[str, ...], dict[int, float]]]:
        """Returns labels and scores by seed of the finished cells of a study."""
        counts, cells = self.made[name].counts, self.tables[name]["cells"]
        return [(tuple(map(str, cell["labels"].values())), by_seed(cell, counts)) for cell in cells]

    def scores(self, cell: Sequence[str]) -> dict[int, float]:
        """Returns seed -> score of a cell, named by its study and its labels, with or without their arguments."""
        name, *labels = cell
        if name not in self.tables:
            return {}
        found = [
            scores
            for each, scores in self.of(name)
            if all(wanted in (label, label.partition("(")[0]) for wanted, label in zip(labels, each, strict=True))
        ]
        assert len(found) == 1, f"expected one cell {cell}, got {len(found)}"
        return found[0]


def _named(content: object, encoder: Path) -> Any:  # Any: what JSON holds
    return json.loads(json.dumps(content).replace(str(encoder), encoder.name))


def by_seed(cell: Mapping[str, Any], score: str) -> dict[int, float]:
    """Returns seed -> score of a cell of a sweep's JSON.

    Example:
        >>> cell = {"runs": [{"seed": 1, "figures": {"sts:mean": 72.0}}, {"seed": 2, "figures": {}}]}
        >>> by_seed(cell, "sts:mean")
        {1: 72.0}
    """
    return {run["seed"]: run["figures"][score] for run in cell["runs"] if run["figures"].get(score) is not None}


def verdict(better: Mapping[int, float], worse: Mapping[int, float]) -> tuple[str, str]:
    """Returns the difference of two cells and whether it is what the paper found.

    Example:
        >>> verdict({1: 72.0, 2: 72.5, 3: 72.2}, {1: 70.0, 2: 70.5, 3: 70.1})
        ('+2.03 ± 0.14', 'yes')
        >>> verdict({1: 72.0}, {1: 72.5})
        ('-0.50', 'no sign of it (one seed)')
        >>> verdict({1: 72.0}, {})
        ('', 'not run')
    """
    difference = paired_difference(better, worse)
    if difference is None:
        return "", "not run"
    if math.isnan(difference.margin):
        seen = "the same sign" if difference.mean > 0 else "no sign of it"
        return f"{difference.mean:+.2f}", f"{seen} (one seed)"
    shown = f"{difference.mean:+.2f} ± {difference.margin:.2f}"
    if not difference.exceeds_noise:
        return shown, "within noise"
    return shown, "yes" if difference.mean > 0 else "the opposite"


FINDINGS = (
    Finding("SimCSE: dropout alone > crop 10 %", ("simcse-table-1", "none"), ("simcse-table-1", "CropTokens")),
    Finding("> deletion 10 %", ("simcse-table-1", "none"), ("simcse-table-1", "DeleteTokens")),
    Finding("> one word deleted", ("simcse-table-1", "none"), ("simcse-table-1", "DeleteOneWord")),
    Finding("> 15 % by an MLM", ("simcse-table-1", "none"), ("simcse-table-1", "ContextualSubstitute")),
    Finding(
        "own dropout masks > the same mask for both copies",
        ("simcse-table-3-mask", "none"),
        ("simcse-table-3-mask", "FixedDropout"),
    ),
    Finding("dropout 0.1 > 0", ("simcse-table-3", "0.1"), ("simcse-table-3", "0")),
    Finding("dropout 0.1 > 0.5", ("simcse-table-3", "0.1"), ("simcse-table-3", "0.5")),
    Finding(
        "the sentence itself > the next one",
        ("simcse-table-2", "SameText"),
        ("simcse-table-2", "Neighbors(reach=1)"),
    ),
    Finding(
        "the sentence itself > one of the next three",
        ("simcse-table-2", "SameText"),
        ("simcse-table-2", "Neighbors(reach=3)"),
    ),
    Finding(
        "an MLP in training only > none",
        ("simcse-table-6-mlp", "TanhHead"),
        ("simcse-table-6-mlp", "none"),
    ),
    Finding(
        "[CLS] > mean of the first and the last layer",
        ("simcse-table-6", "CLSPooler"),
        ("simcse-table-6", "FirstLastPooler"),
    ),
    Finding(
        "ConSERT: temperature 0.08 > 0.03, best from 0.08 to 0.12",
        ("consert-figure-7", "0.08"),
        ("consert-figure-7", "0.03"),
    ),
    Finding("0.12 > 0.3", ("consert-figure-7", "0.12"), ("consert-figure-7", "0.3")),
    Finding("all texts > 100", ("consert-figure-6", "none"), ("consert-figure-6", "100")),
    Finding("100 texts > 1", ("consert-figure-6", "100"), ("consert-figure-6", "1")),
    Finding(
        "shuffle with feature cutoff > none with none",
        ("consert-figure-5", "ShufflePositions", "FeatureCutoff"),
        ("consert-figure-5", "none", "none"),
    ),
    Finding(
        "shuffle > feature cutoff, each beside none",
        ("consert-figure-5", "none", "ShufflePositions"),
        ("consert-figure-5", "none", "FeatureCutoff"),
    ),
    Finding(
        "feature cutoff beside none > none with none",
        ("consert-figure-5", "none", "FeatureCutoff"),
        ("consert-figure-5", "none", "none"),
    ),
    Finding(
        "DeCLUTR: two anchors > one",
        ("declutr-figure-2-strategies", "any"),
        ("declutr-figure-2-one-anchor", "any"),
    ),
    Finding(
        "positives anywhere > inside their anchor",
        ("declutr-figure-2-strategies", "any"),
        ("declutr-figure-2-strategies", "subsuming"),
    ),
    Finding(
        "positives anywhere > beside their anchor",
        ("declutr-figure-2-strategies", "any"),
        ("declutr-figure-2-strategies", "adjacent"),
    ),
    Finding("ConSERT: batch 288 > 16", ("consert-table-4", "288"), ("consert-table-4", "16")),
    Finding(
        "CS224N: contrastive first > sentiment alone",
        ("cs224n-table-1-contrastive-first", "cs224n/vanilla"),
        ("cs224n-table-1", "cs224n/vanilla"),
    ),
    Finding(
        "supervised first > contrastive first",
        ("cs224n-table-1-supervised-first", "cs224n/pretrain_after_sentiment"),
        ("cs224n-table-1-contrastive-first", "cs224n/vanilla"),
    ),
    Finding(
        "fusion > supervised first",
        ("cs224n-table-1", "cs224n/fusion"),
        ("cs224n-table-1-supervised-first", "cs224n/pretrain_after_sentiment"),
    ),
)


def lines(options: argparse.Namespace, cells: Cells) -> list[str]:
    """Returns the dated table: whether each finding is found, and below it every cell."""
    found = []
    for finding in FINDINGS:
        better, worse = cells.scores(finding.better), cells.scores(finding.worse)
        seeds = len(better.keys() & worse.keys())
        found.append((finding.said, str(seeds), *verdict(better, worse)))
    said = ["# Five papers in small", "", f"{machine()}. Filed by `benchmarks/papers.py`.", ""]
    said += markdown(("the paper's finding", "seeds", "difference here", "seen here"), found)
    said += ["", "Half of a difference's 95 % interval is after it, paired by seed (Student's t)."]
    for name in cells.tables:
        study = cells.made[name]
        rows = [
            (" + ".join(labels), mean_and_spread([*scores.values()]), str(len(scores)))
            for labels, scores in cells.of(name)
            if scores
        ]
        said += ["", f"## {study.said}", "", *markdown(("cell", study.counts, "seeds"), rows)]
    return [*said, "", WHAT.format(encoder=options.encoder.name)]


def main() -> None:
    """Runs the studies that are asked for, one after the other, and writes the table of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("encoder", "sts", "sentences", "consert", "cs224n", "quora"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "papers")
    parser.add_argument("--only", nargs="*", help="names of studies; none for the table alone")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dry_run", action="store_true", help="check every run and start none")
    parser.add_argument("--earlier", type=Path, help="filed JSON, whose other studies are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, of_sweeps = parser.parse_known_args()
    made = studies(options)
    for name in made if options.only is None else options.only:
        seeds = made[name].seeds or options.seeds
        place, extra = options.out / name, [*of_sweeps, *(["--dry_run"] if options.dry_run else [])]
        start = place.with_name(f"{name}-before")
        if before := made[name].before:
            do(["sweep", *before, "--seeds", str(seeds), "--keep_weights", "--output", str(start), *extra])
        words = [*made[name].words, *(["--init_from", f"{start}/seed-{{seed}}"] if before else [])]
        do(["sweep", *words, "--seeds", str(seeds), "--output", str(place), *extra])
    with held(options.out / "table"):
        cells = Cells(options.out, made, options.encoder, options.earlier)
        publish("papers", lines(options, cells), cells.tables, cells.plans, folder=options.results)


if __name__ == "__main__":
    main()
