"""Trains SimCSE on a file of texts: python train.py ENCODER TEXTS.txt MODEL_FOLDER"""

import sys

from contrastive_text import Run

encoder, texts, folder = sys.argv[1:4]
run = Run.from_recipe("simcse", encoder, train=texts, batch_size=16, config={"export.dirpath": folder})
run.fit()
print(run.model.encode(["a bird sings"]).shape)
