"""Every code block of the README and the docs, and every example, runs."""

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterable
from glob import glob
from pathlib import Path

import glue_files
import pytest
import retrieval_files
import sts_files
import tiny
from shells import run_here

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.cli import run
from contrastive_text.poolers import MeanPooler

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "lightning").glob("*.md")),
]
LONG = (
    "README.md", "asymmetric.md", "callbacks.md", "choose.md", "compare.md", "decoders.md", "diagnose.md",
    "distill.md", "duplicates.md", "embed.md", "embedding_models.md", "evaluate.md", "evaluate_retrieval.md",
    "false_negatives.md", "from_scratch.md", "glue.md", "index.md", "loggers.md", "matryoshka.md",
    "memory.md", "merge.md", "mine.md", "notebooks.md", "onnx.md", "optimizers.md", "optuna.md",
    "own_columns.md", "own_encoder.md", "own_guide.md", "own_loss.md", "own_mixture.md", "own_objective.md",
    "own_view.md", "pair_labels.md", "paper_grids.md", "plain_lightning.md", "poolers.md", "postprocess.md",
    "predict.md", "probes.md", "profiling.md", "prompts.md", "python.md", "quantized.md", "report.md",
    "rerankers.md", "resume.md", "retrain.md", "retrieval.md", "row_limits.md", "search.md", "serve.md",
    "shards.md", "share.md", "sparse.md", "stages.md", "static.md", "sts.md", "sweep.md", "tasks.md",
    "train_classes.md", "train_nli.md", "train_pairs.md", "train_scores.md", "train_sentences.md",
    "training_step.md", "use.md", "validation.md", "verify.md",
)  # fmt: skip
"""Pages that take longer than all others: cells that are built, charts that are drawn, a graph of torch's, many
runs. What these do the default suite tries in the tests of each command."""
NEEDS = {"optuna.md": "optuna"}
"""Page -> a package that it speaks of and no extra installs; without it the page is skipped."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def write_table(path: Path, *rows: Iterable[object]) -> None:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def write_labeled(folder: Path) -> None:
    """Writes the files with labels of the pages about labels and tasks."""
    texts = tiny.TEXTS
    pairs = [(texts[i], texts[(7 * i + 3) % 40]) for i in range(24)]
    for part in ("", "-dev"):
        reviews = [(text, ("bad", "good")[i % 2]) for i, text in enumerate(texts)]
        write_table(folder / f"reviews{part}.tsv", ("text", "label"), *reviews)
        questions = [(*pair, i % 2) for i, pair in enumerate(pairs)]
        write_table(folder / f"questions{part}.tsv", ("question1", "question2", "is_duplicate"), *questions)
        tiny.write_pairs(folder / f"scored{part}.tsv", count=24)
        write_table(
            folder / f"films{part}.tsv", ("text", "score"), *((text, len(text) % 5 + 1) for text in texts)
        )
    topics = [(*pair, i % 4) for i, pair in enumerate(pairs)]
    write_table(folder / "topics.tsv", ("anchor", "positive", "topic"), *topics)
    inference = [
        (premise, texts[(i + step) % 40], label)
        for i, premise in enumerate(texts[:16])
        for step, label in ((8, "entailment"), (20, "contradiction"), (3, "neutral"), (5, "-"))
    ]
    write_table(folder / "nli.tsv", ("premise", "hypothesis", "gold_label"), *inference)


def write_clicks(folder: Path) -> None:
    """Writes the log of docs/retrieval.md, with bots, empty queries and single clicks, and its corpus."""
    texts = tiny.TEXTS
    chosen = [
        (f"2026-11-02T09:00:0{user}", f"u{user}{i}", f"{text} {number}", text)
        for i, text in enumerate(texts)
        for number in range(8)
        for user in range(2)
    ]
    chosen += [("2026-11-02T09:00:30", f"u{user}", f"{texts[0]} 0", texts[8]) for user in range(2)]
    single = [("2026-11-02T09:01:00", "u3", texts[0], texts[20]), ("2026-11-02T09:02:00", "u3", " ", texts[1])]
    bot = [("2026-11-03T09:00:00", f"bot{i % 2}", texts[i % 7], texts[i % 5]) for i in range(210)]
    write_table(folder / "clicks.tsv", ("time", "user", "query", "document"), *chosen, *single, *bot)
    tiny.write_texts(folder / "corpus.txt")


def write_months(folder: Path) -> None:
    """Writes the files of docs/retrain.md: the pairs of a log, and last month's pairs and model in last/."""
    pairs = [(f"{text} {number}", text) for number in range(2) for text in tiny.TEXTS]
    (folder / "last").mkdir()
    shutil.copytree(folder / "minilm", folder / "last" / "model")
    for name, rows in (("train", pairs[10:]), ("held", pairs[:10])):
        write_table(folder / f"{name}.tsv", ("query", "positive"), *rows)
        write_table(folder / "last" / f"{name}.tsv", ("query", "positive"), *rows[: len(rows) // 2])


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the pages: texts, pairs, triples, labels, encoder/, teacher/ and minilm/."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("contrastive_text.cli.sweep._call", run_here)  # processes: tests/cli/test_sweep.py
    tiny.save_bert(tmp_path / "encoder")
    shutil.copytree(tmp_path / "encoder", tmp_path / "teacher")
    tiny.save_masked_lm(tmp_path / "masked_lm")
    encoder = TransformerEncoder(str(tmp_path / "encoder"))
    SentenceEncoder(encoder, MeanPooler(), normalize=True, max_length=24).save_pretrained(tmp_path / "minilm")
    tiny.write_texts(tmp_path / "texts.txt", tiny.TEXTS * 2)
    tiny.write_pairs(tmp_path / "pairs.tsv")
    tiny.write_triples(tmp_path / "triples.jsonl")
    tiny.write_scored(tmp_path / "scored.jsonl")

    tiny.write_texts(tmp_path / "queries.txt", tiny.TEXTS[:4])
    answers = [(text, tiny.TEXTS[(i + 8) % 40]) for i, text in enumerate(tiny.TEXTS)]
    write_table(tmp_path / "answers.tsv", ("query", "answer"), *answers)
    write_table(tmp_path / "new.tsv", ("id", "text", "year"), ("a1", "a bird sings in the rain", 2026))
    (tmp_path / "new.txt").write_text("a new document\n")
    write_labeled(tmp_path)
    glue_files.write_glue(tmp_path / "GLUE")
    sts_files.write_tables(tmp_path / "datasets")
    retrieval_files.write_beir(tmp_path / "nfcorpus")
    write_clicks(tmp_path)
    write_months(tmp_path)
    return tmp_path


def shell(line: str) -> None:
    """Runs a line of a page, cut down to the tiny data."""
    words = [word for typed in shlex.split(line) for word in (sorted(glob(typed)) if "*" in typed else [typed])]
    assert words[0] == "contrastive-text", line
    if "--batch_size" in words:  # the one below takes its place
        place = words.index("--batch_size")
        del words[place : place + 2]
    if words[1] in ("fit", "views", "sweep"):
        words += ["--data.batch_size", "8", "--data.num_workers", "0", "--model.encoder.max_length", "16"]
    if words[1] in ("fit", "sweep"):
        steps = "3" if "--ckpt_path" in words else "2"  # a resumed run has a step to go
        words += ["--trainer.max_steps", steps, "--trainer.accelerator", "cpu"]
        words += ["--trainer.val_check_interval", "1"] if {"--data.validation", "--validation"} & {*words} else []
    if "glue" in words and words[1] == "evaluate":
        words += glue_files.write_short(Path())
    if words[1] == "sweep":  # a grid of more than four cells is checked and not run
        words += ["--seeds", "1"] if line.count(",") < 4 else ["--dry_run"]
    assert run(words[1:]) == 0, line


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in LONG else []) for page in PAGES],
    ids=lambda page: page.name,
)
def test_every_code_block_of_a_page_runs(page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name], reason=f"{page.name} is about {NEEDS[page.name]}")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    for language, block in blocks:
        named = re.match(r"# (\w+\.(?:py|yaml))", block)
        if named:
            (workplace / named[1]).write_text(block, encoding="utf-8")
        if language == "python":
            exec(compile(block, str(page), "exec"), {"__name__": "page"})
        elif language == "bash":
            for line in block.replace("\\\n", "").splitlines():
                shell(line)
        elif language != "text":  # the output of a command
            assert language == "yaml" and named, f"{page.name}: a {language} block that no test runs"
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_view_runs_from_its_yaml(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("my_views.py", "swap.yaml"):
        shutil.copy(ROOT / "examples" / name, workplace)
    sys.modules.pop("my_views", None)  # the README's is another
    common = (
        "--recipe simcse --config swap.yaml --model.encoder.model_name_or_path encoder/ --data.train texts.txt"
    )
    shell(f"contrastive-text views {common}")
    said = capsys.readouterr().out
    assert "SwapNeighbors(rate=0.3)" in said and "FeatureCutoff(rate=0.2)" in said
    shell(f"contrastive-text fit {common}")


@pytest.mark.slow
def test_the_example_mixture_runs_over_two_tasks(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # a line of the summary stays one
    for name in ("my_mixture.py", "two_tasks.yaml"):
        shutil.copy(ROOT / "examples" / name, workplace)
    files = "--data.tasks.reviews.train reviews.tsv --data.tasks.scored.train scored.tsv"
    scored = "--data.tasks.reviews.validation reviews-dev.tsv"
    encoder = "--model.encoder.model_name_or_path encoder/"
    shell(f"contrastive-text fit --config two_tasks.yaml {encoder} {files} {scored}")
    said = capsys.readouterr().out
    assert "8 steps: reviews; reviews; reviews; scored; ..." in said
    assert "reviews: 5 steps, 40 of 40 rows an epoch, 8 a step" in said


@pytest.mark.slow
def test_the_example_scripts_train_and_embed(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for script in ("train.py", "embed.py"):
        lines = (ROOT / "examples" / script).read_text().splitlines()
        assert len([line for line in lines if line.strip()]) <= 15
    monkeypatch.setattr(sys, "argv", ["train.py", "encoder", "texts.txt", "model"])
    runpy.run_path(str(ROOT / "examples" / "train.py"))
    monkeypatch.setattr(sys, "argv", ["embed.py", "model", "texts.txt"])
    runpy.run_path(str(ROOT / "examples" / "embed.py"))
    assert "(80, 16)" in capsys.readouterr().out
    assert (workplace / "model" / "modules.json").exists()
