"""Options that each recipe needs to run on tiny data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import tiny
import torch
from torch import Tensor, nn

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training.module import ContrastiveModule

SETS = {"sst": "sentiment", "quora": "paraphrase", "sts": "similarity"}
INFERENCE = [
    f"consert/{stage.format(size)}"
    for stage in ("sup_{}", "joint_{}", "joint_{}_paper")
    for size in ("base", "large")
]


def draw_weights(module: nn.Module) -> None:
    """Sets the weights of a module to numbers that are the same on every machine."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(drawn(name, weight.shape))


def drawn(name: str, shape: torch.Size) -> Tensor:
    """Returns numbers from -1/3 to 1/3 that are the same on every machine; 1 is added for scales."""
    rng = np.random.default_rng(sorted(name.encode()))
    values = torch.from_numpy(rng.integers(-1000, 1001, size=tuple(shape)) / 3000)
    return values + 1 if "LayerNorm.weight" in name else values


def documents(folder: Path) -> str:
    """A line of 160 tokens or more for each of twelve documents, in a file of its own kind."""
    lines = [" ".join(tiny.TEXTS[i : i + 24]) for i in range(12)]
    return tiny.write_texts(folder / "documents.txt", tuple(lines))


def labeled(path: Path, columns: str, labels: tuple[str, ...]) -> str:
    """Texts, or pairs of them, with labels that take turns; gives the file's name."""
    pairs = columns.count(" ") > 1
    rows = [
        "\t".join((text, tiny.TEXTS[(i + 9) % 40], labels[i % len(labels)]) if pairs else (text, labels[i % 5]))
        for i, text in enumerate(tiny.TEXTS)
    ]
    return tiny.write_texts(path, (columns.replace(" ", "\t"), *rows))


def task_files(folder: Path) -> dict[str, str]:
    """A file for each task of the CS224N system, by the task's name."""
    stars = tuple("01234")
    return {
        "sentiment": labeled(folder / "sst.tsv", "text label", stars),
        "paraphrase": labeled(folder / "quora.tsv", "sentence1 sentence2 label", ("1", "0")),
        "similarity": labeled(folder / "sts.tsv", "sentence1 sentence2 score", (*stars, "5")),
    }


def own_options(name: str, folder: Path) -> list[str]:
    """Returns the options that a recipe needs to run on tiny data."""
    if name.startswith("declutr"):
        spans = "--data.task.pairing.min_length 4 --data.task.pairing.max_length 16"
        short = [*spans.split(), "--data.batch_size", "4"]
        if name == "declutr/one_anchor":
            short += ["--data.task.pairing.min_document_tokens", "64"]
        return ["--data.train", documents(folder), "--data.cache_dir", str(folder / "cache"), *short]
    if name.startswith("simcse/sup") or name in (
        "cs224n/pretrain_nli", "prompteol", "qwen3_embedding", "nv_embed_second", "reranker", "asymmetric",
        "splade", "splade/doc",
    ):  # fmt: skip
        return ["--data.train", tiny.write_triples(folder / "triples.jsonl")]
    if name == "reranker_distill":
        return ["--data.train", tiny.write_scored(folder / "scored.jsonl")]
    if name == "gist":
        triples = ["--data.train", tiny.write_triples(folder / "triples.jsonl")]
        write_guides(name, triples[1], folder)
        return triples
    if name in ("sbert_nli", "angle_nli") or name in INFERENCE:
        classes = ("entailment", "neutral", "contradiction")
        return ["--data.train", labeled(folder / "nli.tsv", "premise hypothesis label", classes)]
    if name == "glue":
        file = labeled(folder / "glue.tsv", "sentence1 sentence2 label", ("1", "0"))
        return ["--data.tasks.glue.train", file, "--data.tasks.glue.validation", file]
    if name.startswith("cs224n"):
        return task_options(name, task_files(folder))
    texts = ["--data.train", tiny.write_texts(folder / "texts.txt")]
    if name.startswith("diffcse"):
        generator = tiny.save_masked_lm(folder / "generator", max_position_embeddings=512)
        return [*texts, "--model.objectives.replaced.generator", generator]
    write_guides(name, texts[1], folder)
    return [*texts, *(["--model.encoder.config", "null"] if name.startswith("clear") else [])]


def write_guides(name: str, texts: str, folder: Path) -> None:
    """Writes the vectors of a recipe's guides under the names that it gives them, in the folder of the run."""
    for width, guide in enumerate(read_recipe(name)["model"].get("guides", {}).values(), start=3):
        features = 384 if name == "static" else 4 * width  # guide_features of the recipe
        bert = tiny.save_bert(folder / f"teacher {width}", hidden_size=features)
        teacher = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
        draw_weights(teacher.double())  # so that the vectors are the same on every machine
        EmbeddingRun(
            teacher, TextStream(texts, distinct=True), folder / guide["init_args"]["path"], with_ids=True
        ).finish()


def task_options(name: str, files: dict[str, str]) -> list[str]:
    """The files of a CS224N recipe: of one data set, or of each task, with validation where it predicts."""
    files |= {f"{short}_texts": files[task] for short, task in SETS.items()}
    words = []
    for task, options in read_recipe(name)["data"]["tasks"].items():
        trained = options.get("train") != []
        scored = not task.endswith("_texts") and name != "cs224n/pretrain_3sets"
        parts = ["train"] * trained + ["validation"] * scored
        words += [word for part in parts for word in (f"--data.tasks.{task}.{part}", files[task])]
    return words


def first_and_second_layers(module: ContrastiveModule) -> dict[str, tuple[Tensor, Tensor]]:
    """The weights of each task's head."""
    return {
        name: tuple(layer.weight for layer in part.head.network if isinstance(layer, nn.Linear))
        for name, part in module.objectives.items()
        if part.head is not None
    }


@cache
def built(name: str, bert: str) -> ContrastiveModule:
    """Returns a recipe's module around a tiny encoder, one for all tests that only read it."""
    return ContrastiveModule.from_recipe(name, bert)
