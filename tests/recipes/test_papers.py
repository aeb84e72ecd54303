"""Runs every command of the papers in miniature; compares numbers and values of the items with the papers."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import glue_files
import pytest
import recipe_options
import sts_files
import tiny
import wordnet_files
from covering import turn_of
from evaluation.test_senteval import PROBING_FILES, write_probing, write_senteval
from shells import run_here

from contrastive_text.cli import run
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.evaluation.classifiers import PROTOCOLS
from contrastive_text.recipes.papers import Item, broken, paper_names, read_paper
from contrastive_text.runs.grid import parse_vary

ITEMS = {
    f"{paper}: {item.name}": item for paper in paper_names() for item in read_paper(paper).items if item.commands
}
PUBLISHED: dict[str, dict[str, tuple[str, ...]]] = {
    "cs224n": {
        "Figure 1": ("pairs of the Quora data",),
        "Table 1": ("unsupervised methods",
                    "vanilla BERT .391 .516 .388 .270; contrastive first .449 .479 .401 .466;",
                    "supervised first .502 .422 .402 .682;", ".520 .465 .410 .685"),
        "Table 2": ("pre-training data", "none .540 .490 .726 .404; NLI .661 .500 .746 .735;",
                    "the 3 given .664 .516 .815 .661; the 3 given, single task (three models) - .502 .836 .642;",
                    "ensemble, dev .706 .521 .836 .761; ensemble, test .701 .521 .830 .753"),
        "Figure 2": ("by epoch of the supervised models",),
        "Table 3": ("heads", "all different .530 .496 .732 .361; shared heads .494 .497 .625 .361;",
                    "shared first linear layer .539 .514 .734 .370"),
        "Table 4": ("without negative pairs", "Quora without negative pairs .620 .387 .730 .743;",
                    "Quora .623 .521 .781 .565; the 3 given .651 .488 .784 .683"),
        "Table 5": ("sets in sequence", "NLI before the 3 given .628 .476 .794 .614;",
                    "the 3 given before NLI .604 .431 .790 .592;"),
        "Table 6": ("schedules", "epoch round robin .493 .507 .519 .453; batch round robin .491 .510 .520 .442;",
                    "average loss .540 .490 .726 .404"),
        "Table 7": ("gradient surgery", "PCGrad .625 .480 .800 .596; average loss .628 .476 .794 .614"),
        "Table 8": ("epochs of pre-training on NLI", "1: .630 .500 .730 .658; 3: .661 .500 .746 .735"),
        "Table 9": ("epochs of pre-training on the three sets", "2: .591 .406 .697 .671; 3: .610 .360 .724 .748"),
        "Table 10": ("learning rate",
                    "1e-5 .637 .497 .806 .609; 2e-5 .664 .516 .815 .661; 3e-5 .658 .496 .799 .680"),
        "Text on batch sizes": ("16, 32 and 64", "no clear effect"),
    },
    "clear": {
        "Figure 1": ("framework",),
        "Figure 2": ("four edits",),
        "Table 1": ("GLUE", "BERT-base 81.2, RoBERTa-base 83.5", "words 85.7, of spans 85.6",
                    "words and reordering 85.0"),
        "Table 2": ("SentEval", "RoBERTa 53.8 and 56.1", "words 56.7 and 58.1", "54.8 and 37.5",
                    "reordering 61.5", "61.8"),
        "Table 3": ("the ablation, GLUE", "RoBERTa 76.4, double batch 76.8, double MLM 75.8",
                    "spans and reordering 77.1",
                    "words and reordering 77.2"),
        "Text on the deletion rate": ("30 to 90 %", "70 % is best"),
        "Text on single edits": ("converges at once or diverges",),
    },
    "consert": {
        "Figure 1": ("cosine against gold",),
        "Figure 2": ("framework",),
        "Figure 3": ("four alterations",),
        "Adversarial view": ("joint training only",),
        "Table 1": ("unlabeled texts", "89,192"),
        "Table 2": ("without supervision", "53.86", "72.74", "51.49", "76.45"),
        "Table 3": ("supervised",
                    "74.24, 76.74; joint 77.12, 79.44; sup-unsup 79.00, 80.44; joint-unsup 79.37, 81.28"),
        "Figure 4": ("most frequent tokens of the STS Benchmark's test set", "53.86", "61.66", "34",
                    "less than 0.3"),
        "Figure 5": ("pair of alterations", "63.84", "shuffle is best, then token cutoff", "some 4 points",
                    "72.74"),
        "Figure 6": ("unsupervised and supervised", "1, 10, 100, 1,000, 10,000 and all texts"),
        "Figure 7": ("temperature", "0.1 is best, 0.08 to 0.12 are good"),
        "Table 4": ("batch size", "16 72.63, 48 72.60, 96 72.74, 192 72.86, 288 72.98",
                    "number of steps 6175, 2459, 1530, 930, 620"),
        "Dropout": ("dropout",),
    },
    "declutr": {
        "Preprint, Table 1": (
            "downstream and probing",
                    "GloVe 65.50 62.42 63.96; fastText 68.57 63.16 65.87; InferSent 76.46 72.58 74.52;",
            "USE 79.13 66.70 72.91; Sentence Transformers 77.59 63.22 70.40;",
            "Transformer-small 72.69 74.27 73.48;",
            "Transformer-base 72.22 73.38 72.80; DeCLUTR-small 76.43 73.82 75.13; DeCLUTR-base 78.17 73.67 75.92",
        ),
        "Figure 1": ("method",),
        "Table 1": ("number of parameters",),
        "Table 2": ("downstream", "72.58", "77.50", "72.70", "79.10", "76.00", "78.89", "77.19"),
        "Table 3": ("probing", "74.57", "74.71", "74.19", "74.65", "72.58", "66.70", "63.22"),
        "Figure 2": ("distributions of scores", "1, 2 and 4 positives, temperatures 5e-4 and 5e-2"),
        "Figure 3": ("share of the training documents", "best at 40 %"),
        "Table 4": ("by task",),
        "Table 5": ("examples",),
    },
    "simcse": {
        "Figure 1": ("unsupervised and the supervised",),
        "Table 1": ("data augmentations", "82.5", "77.8", "75.9", "77.4", "62.2"),
        "Table 2": ("next sentence",),
        "Table 3": ("same mask", "0.0 71.1; 0.01 72.6; 0.05 81.1; 0.1 82.5; 0.15 81.4; 0.2 80.5; 0.5 71.0;",
                    "43.6"),
        "Figure 2": ("alignment and uniformity",),
        "Table 4": ("labeled pairs",),
        "Table 5": ("seven STS tasks", "76.25", "78.41", "76.57", "78.90", "81.58", "82.21", "82.52", "83.76",
                    "56.70"),
        "Table 6": ("[CLS]", "81.7", "82.5", "80.9", "79.2"),
        "Table 7": ("hard negatives", "84.9", "0.5 86.1, 1 86.2, 1.5 86.2", "85.3"),
        "Figure 3": ("plane",),
        "Table 8": ("nearest captions",),
        "Table A.1": ("batch sizes and learning rates", "3e-5", "1e-5", "5e-5", "512"),
        "Tables B.1 and B.2": ("ways to measure STS",),
        "Table C.1": ("poolers", "56.70", "60.73"),
        "Table D.1": ("inner product", "0.001 84.9; 0.01 85.4; 0.05 86.2; 0.1 82.0; 1 64.0"),
        "Table D.2": ("masked language modeling",),
        "Table E.1": ("transfer",),
        "Figure F.1": ("singular values",),
        "Figure G.1": ("cosines",),
    },
}  # fmt: skip
"""Paper -> table or figure -> words of its subject, and published values, typed from the papers."""
STAND_INS = (
    "sentences.txt", "wiki1m.txt", "documents.jsonl", "nli.jsonl", "nli_triples.tsv", "STS/", "SENTEVAL/",
    "GLUE/", "quora.train.tsv", "quora.dev.tsv", "sst.train.tsv", "sst.dev.tsv", "sts.train.tsv", "sts.dev.tsv",
    "MODEL/", "RUN/", "RUN2/",
)  # fmt: skip
"""Files and folders that the commands of the papers' pages read."""


def stand_ins(command: str) -> set[str]:
    """Returns the stand-ins in a command; a file within one counts as it."""
    words = re.findall(r"(?<![\w./])(?:[\w.]+/?)", re.sub(r"--output[ =]\S+", "", command))
    return {name for name in STAND_INS for word in words if word == name}


def write_all(folder: Path) -> Path:
    """Writes a file or a folder for each stand-in but models and runs, and the encoder; gives the folder."""
    tiny.save_masked_lm(folder / "encoder", max_position_embeddings=512)
    for name in ("sentences.txt", "wiki1m.txt"):
        tiny.write_texts(folder / name)
    documents = (" ".join((tiny.TEXTS * 2)[i : i + 24]) for i in range(40))  # a tenth of them makes a batch
    lines = [json.dumps({"text": text}) for text in documents]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    rows = [
        {"premise": text, "hypothesis": tiny.TEXTS[(i + step) % 40], "label": label}
        for i, text in enumerate(tiny.TEXTS)
        for step, label in ((8, "entailment"), (20, "contradiction"), (3, "neutral"))
    ]
    (folder / "nli.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    triples = [
        f"{text}\t{tiny.TEXTS[(i + 8) % 40]}\t{tiny.TEXTS[(i + 20) % 40]}" for i, text in enumerate(tiny.TEXTS)
    ]
    (folder / "nli_triples.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *triples]) + "\n")
    for part in ("train", "dev"):
        for path in map(Path, recipe_options.task_files(folder).values()):
            path.rename(folder / f"{path.stem}.{part}.tsv")
    sts_files.write_tables(folder / "STS")
    write_senteval(folder / "SENTEVAL")
    glue_files.write_glue(folder / "GLUE")
    for file in PROBING_FILES.values():
        write_probing(folder / "SENTEVAL" / "probing" / file)
    sts_files.write_senteval(folder / "SENTEVAL")
    wordnet_files.write_wordnet(folder / "nltk_data")
    words = small(["fit", "--recipe", "simcse", "--data.train", "sentences.txt"], folder)
    with contextlib.chdir(folder):
        for name in ("RUN", "RUN2"):
            options = ["--trainer.default_root_dir", f"{name}s", "--data.validation", "STS/stsb.dev.tsv"]
            assert run([*words, *options]) == 0
            Path(f"{name}s", "version_0").rename(name)
        shutil.copytree("RUN/model", "MODEL")
    return folder


def small(words: Sequence[str], folder: Path) -> list[str]:
    """Returns the words of a command with options that make it short, and its encoder tiny."""
    kept = [word.replace("'bert-base-uncased'", f"'{folder / 'encoder'}'") for word in words]
    if kept[0] in ("fit", "sweep", "views"):
        kept += ["--model.encoder.model_name_or_path", str(folder / "encoder")]
        kept += ["--data.batch_size", "8", "--data.num_workers", "0"]
        if any(re.fullmatch(r"clear(/\w+)?", word) for word in words):  # from scratch
            kept += ["--model.encoder.config", "null"]
        kept += ["--data.task.join", "16"] if "--data.task.join" in words else []
        if any(re.fullmatch(r"(recipe=)?declutr[\w,/]*", word) for word in kept):
            kept += ["--data.task.pairing.min_length", "4", "--data.task.pairing.max_length", "16"]
            kept += ["--data.task.pairing.min_document_tokens", "64", "--data.batch_size", "4"]
            kept += ["--data.cache_dir", str(folder / "cache")]
    if kept[0] in ("fit", "sweep"):
        kept += ["--trainer.max_steps", "2", "--trainer.accelerator", "cpu"]
        kept += ["--trainer.val_check_interval", "1"] if "--data.validation" in kept else []
    if kept[0] == "evaluate" and "glue" in kept:
        kept += [*glue_files.write_short(folder), "--tasks", "CoLA"]
    if kept[0] == "sweep":
        kept += ["--seeds", "1"]
    return kept


def commands() -> dict[str, list[str]]:
    """Returns the commands of each item, of those that evaluate a model in one way the first alone."""
    known, found = set(), {}
    for name, item in ITEMS.items():
        found[name] = []
        for command in item.commands:
            kind = re.sub(r"( evaluate| --runs) \S+", r"\1", command)
            if " evaluate " not in command or kind not in known:
                found[name].append(command)
            known.add(kind)
    return found


COMMANDS = commands()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny file for each stand-in, for all items."""
    return write_all(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def workplace(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An own folder in which every stand-in lies."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Ten folds want more rows than there are.
    monkeypatch.setitem(PROTOCOLS, "standard", replace(PROTOCOLS["fast"], folds=3, max_epochs=2))
    monkeypatch.setenv("NLTK_DATA", str(files / "nltk_data"))
    monkeypatch.setattr("contrastive_text.cli.sweep._call", run_here)
    yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", turn_of((name for name, each in COMMANDS.items() if each), 3))
def test_the_commands_of_an_item_run(name: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In miniature; of a sweep the whole grid is checked, and its last cell runs."""
    for command in COMMANDS[name]:
        words = shlex.split(command)[1:]
        again = [[*words, "--dry_run"], last_cell(words)] if words[0] == "sweep" else [words]
        for each in again:
            assert run(small(each, workplace)) == 0, (command, capsys.readouterr().err)
            assert "Traceback" not in capsys.readouterr().err


def last_cell(words: list[str]) -> list[str]:
    """Returns the words of a sweep with the last value of each axis alone, and a suite that takes seconds."""
    kept = [re.sub(r"(declutr|transfer|probing):.*", "sts:mean", word) for word in words]
    for place, word in enumerate(words):
        if place and words[place - 1] == "--vary":
            axis = parse_vary(word)
            kept[place] = f"{axis.name}={[*axis.values][-1]}"
    return kept


@pytest.mark.parametrize("name", paper_names())
def test_the_shell_prints_a_paper_with_the_names_of_its_results(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["paper", name]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{read_paper(name).markdown()}\n"
    sections = printed.split("\n## ")[1:]
    for item, section in zip(read_paper(name).items, sections, strict=True):
        named = re.findall(r"`benchmarks/results/\*([\w-]+)\.md`", section)
        assert named == list(dict.fromkeys(result.partition("/")[0] for result in item.here)), item.name
        missing = bool(item.commands) and not item.here
        assert (f"Here: not run: {item.not_run}" in section) == missing, item.name
        assert ("hour" in item.not_run) == missing, item.name


@pytest.mark.parametrize("paper", paper_names())
def test_a_paper_has_its_own_numbers_and_values(paper: str) -> None:
    """Compares the tables and figures with the papers: number, subject and published values."""
    items = {item.name: item for item in read_paper(paper).items}
    assert [*items] == [*PUBLISHED[paper]]
    for name, (subject, *values) in PUBLISHED[paper].items():
        assert subject in items[name].shows, name
        missing = [value for value in values if value not in items[name].paper]
        assert not missing, f"{paper}, {name}: {missing}"


def test_single_task_models_of_the_report_start_from_the_same_pre_training() -> None:
    fits = [words for words in map(shlex.split, ITEMS["cs224n: Table 2"].commands) if words[1] == "fit"]
    alone = [words for words in fits if "--model.objectives" in words]
    assert len(alone) == 3
    assert {words[words.index("--init_from") + 1] for words in alone} == {"runs/3sets/first"}


def axes(name: str) -> list[dict[str, list[str]]]:
    """Returns key -> values of each sweep of an item."""
    sweeps = [words for words in map(shlex.split, ITEMS[name].commands) if words[1] == "sweep"]
    return [
        {
            axis.name: [*axis.values]
            for axis in (parse_vary(words[i + 1]) for i, word in enumerate(words) if word == "--vary")
        }
        for words in sweeps
    ]


def test_sweeps_have_the_papers_values() -> None:
    rates = axes("clear: Text on the deletion rate")[0]["model.views.anchor,model.views.positive"]
    assert [re.findall(r"0\.\d", rate) for rate in rates] == [[f"0.{tenths}"] for tenths in range(3, 10)]
    limits = ["1", "10", "100", "1000", "10000", "none"]
    assert [sweep["data.task.limit"] for sweep in axes("consert: Figure 6")] == [limits] * 2
    temperature = "model.objectives.contrastive.loss.temperature"
    assert {"0.08", "0.1", "0.12"} <= {*axes("consert: Figure 7")[0][temperature]}
    small, base = axes("declutr: Figure 2")
    assert small[temperature] == base[temperature] == ["5e-4", "5e-2"]
    assert [grid["data.task.pairing.positives"] for grid in (small, base)] == [["1", "2", "4"], ["1", "2"]]
    assert all(grid["recipe"] == ["declutr", "declutr/one_anchor"] for grid in (small, base))
    assert axes("simcse: Table D.1")[1] == {"model.objectives.contrastive.loss.similarity": ["dot"]}
    assert axes("simcse: Table 3")[0]["model.encoder.dropout"] == [
        "0",
        "0.01",
        "0.05",
        "0.1",
        "0.15",
        "0.2",
        "0.5",
    ]
    assert axes("simcse: Table 3")[1]["model.views.positive"] == ["none", "FixedDropout"]
    (figure,) = ITEMS["consert: Figure 4"].commands
    assert figure.endswith("--without_frequent 0 2 4 8 16 34 --frequencies STS/stsb.test.tsv")


@pytest.mark.parametrize("paper", paper_names())
def test_commands_name_known_stand_ins_only(paper: str) -> None:
    for item in read_paper(paper).items:
        used = {part for command in item.commands for part in stand_ins(command)}
        assert used == set(item.needs), f"{paper}, {item.name}"


def test_an_item_has_commands_or_a_reason() -> None:
    with pytest.raises(InvalidValueError, match="Table 1: expected either commands or why_not, got neither"):
        Item(name="Table 1", shows="scores")
    with pytest.raises(InvalidValueError, match="Table 1: expected contrastive-text"):
        Item(name="Table 1", shows="scores", commands=["python train.py"])


def test_a_broken_command_is_the_same_command() -> None:
    for item in ITEMS.values():
        for command in item.commands:
            assert shlex.split(broken(command).replace("\\\n", "")) == shlex.split(command)
            assert all(len(line) <= 100 or " --" not in line.strip() for line in broken(command).splitlines())
