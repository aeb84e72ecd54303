"""Command ``export``: saves the model of a checkpoint, or one of its trained heads, as a folder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from contrastive_text.cli.paths import ReadPath, WrittenFolder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Export:
    """Save the model of a checkpoint as a folder, as fit does with its best checkpoint."""

    checkpoint: Annotated[
        str, ReadPath(), "Checkpoint file (.ckpt), or a run folder, whose best checkpoint is used."
    ]
    output: Annotated[Path, WrittenFolder(key=MANIFEST), "Model folder to write."]
    _: KW_ONLY
    as_: Annotated[
        Literal["classifier", "reranker", "regressor"] | None,
        "Save a trained head with its encoder, for this use. Default: save the encoder.",
    ] = None
    head: Annotated[
        str | None,
        {"metavar": "NAME"},
        "Name of the objective whose head is saved with --as. Default: the only one of the run.",
    ] = None
    own_format: Annotated[
        bool, "Save a head in the format of this library, if Transformers has no classification head like it."
    ] = False
    separate_adapters: Annotated[
        bool, "Save LoRA weights separately, in the format of peft, instead of merging them."
    ] = False


def export(options: Export) -> None:
    """Saves the model of a checkpoint as a folder, as ``fit`` does with its best checkpoint.

    Raises:
        ValueError: The run has no head, or several heads and no name is given. Or the head can't be used in the
            requested way, or Transformers has no classification head like it.
    """
    from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
    from contrastive_text.core.storage.disk import lock_output
    from contrastive_text.training.callbacks.export_model import (
        choose_head,
        next_commands,
        run_heads,
        save_encoder,
        save_head,
    )
    from contrastive_text.training.module import ContrastiveModule

    if options.as_ is None and (options.head is not None or options.own_format):
        given = "--head" if options.head is not None else "--own_format"
        raise InvalidValueError(f"{given}: expected together with --as, got it alone; add --as classifier")
    if options.as_ is not None and options.separate_adapters:
        raise InvalidValueError(
            "--separate_adapters: expected without --as, got both; remove --separate_adapters. The folder of a "
            "head has merged adapters."
        )
    with lock_output(options.output):
        is_replaced = Path(options.output, MANIFEST).exists()
        path = best_checkpoint(options.checkpoint, "checkpoint")
        module = ContrastiveModule.load_from_checkpoint(path, map_location="cpu")
        if (kind := options.as_) is None:
            save_encoder(module, options.output, str(path), options.separate_adapters)
        else:
            head = choose_head(run_heads(module, read_checkpoint(path).data), options.head, kind)
            save_head(module, head, kind, options.output, str(path), options.own_format)
    replaced = ", replacing an older model" if is_replaced else ""
    print_message(f"{(kind or 'model').capitalize()} of {path} saved to {options.output}{replaced}. Next:")
    for command in next_commands(kind, options.output, module.inference_embedder.is_sparse):
        print_message(f"  {command}")
