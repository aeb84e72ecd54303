"""Tiny files in place of what a reader of the papers' pages has, and commands cut down to them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import glue_files
import recipe_options
import senteval_files
import sts_files
import tiny
import wordnet_files

from contrastive_text.cli import run

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
        for name, path in recipe_options.task_files(folder).items():
            Path(path).rename(folder / f"{_SETS[name]}.{part}.tsv")
    sts_files.write_tables(folder / "STS")
    senteval_files.write_senteval(folder / "SENTEVAL")
    glue_files.write_glue(folder / "GLUE")
    for file in senteval_files.PROBING_FILES.values():
        senteval_files.write_probing(folder / "SENTEVAL" / "probing" / file)
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


_SETS = {"sentiment": "sst", "paraphrase": "quora", "similarity": "sts"}


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
