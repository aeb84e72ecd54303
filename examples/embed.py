"""Encodes a file of texts and searches it: python embed.py MODEL_FOLDER TEXTS.txt"""

import sys
from pathlib import Path

from contrastive_text import SentenceEncoder

model = SentenceEncoder.from_pretrained(sys.argv[1])
texts = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
vectors = model.encode(texts, show_progress_bar=True, normalize_embeddings=True)
print(vectors.shape)
for hit in model.search(texts[0], corpus=vectors, top_k=3)[0]:
    print(f"{hit.score:.2f}  {texts[hit.corpus_id]}")
