"""Makes the second start of ``protocol.py``: two layers of an encoder, trained by masked language modeling.

    python benchmarks/second_start.py --encoder FOLDER --sentences FILE --out FOLDER

The first two layers of an encoder predict tokens badly. Training repairs that: 15 % of the tokens are masked
(80 % mask, 10 % random, 10 % unchanged; Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 3.1).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from inputs import column_texts, draw
from torch.nn.utils import clip_grad_norm_
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    get_linear_schedule_with_warmup,
)

LAYERS = 2
BATCH, LENGTH = 64, 48


def cut_encoder(folder: str, layers: int = LAYERS) -> torch.nn.Module:
    """Returns a masked language model with the first layers of a BERT encoder alone, in float32."""
    model: torch.nn.Module = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    encoder = model.bert.encoder
    encoder.layer = encoder.layer[:layers]
    model.config.num_hidden_layers = layers
    return model


def train(model: torch.nn.Module, tokenizer: AutoTokenizer, texts: list[str], rate: float, device: str) -> float:
    """Trains a masked language model, a step per batch of texts. Returns the loss of the last batches."""
    mask = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    steps = len(texts) // BATCH
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 15, steps)
    losses = []
    for step in range(steps):
        rows = tokenizer(texts[step * BATCH :][:BATCH], truncation=True, max_length=LENGTH)["input_ids"]
        batch = mask([{"input_ids": row} for row in rows]).to(device)
        batch["attention_mask"] = batch["input_ids"] != tokenizer.pad_token_id
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return sum(losses[-20:]) / len(losses[-20:])


def make(encoder: str, sentences: Path, out: Path, steps: int, rate: float, device: str) -> None:
    """Writes the folder of the second start."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = cut_encoder(encoder)
    loss = train(model, tokenizer, draw(column_texts(sentences, ["sentence"]), steps * BATCH), rate, device)
    print(f"{steps} steps of {BATCH} texts: loss of the last 20 batches {loss:.2f}")
    model.cpu().save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sentences", type=Path, required=True, help="table with a column sentence")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    make(options.encoder, options.sentences, options.out, options.steps, options.rate, options.device)


if __name__ == "__main__":
    main()
