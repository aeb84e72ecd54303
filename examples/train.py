"""Training from Python: python train.py ENCODER TEXTS.txt MODEL_FOLDER"""

import sys

import pytorch_lightning as pl

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.training.callbacks import ExportModel, RunSummary

encoder, texts, folder = sys.argv[1:4]
module = ContrastiveModule.from_recipe("simcse", encoder)
data = TextDataModule(train=texts, batch_size=16)
callbacks = [RunSummary(), ExportModel(folder)]
pl.Trainer(max_epochs=1, use_distributed_sampler=False, callbacks=callbacks).fit(module, data)
