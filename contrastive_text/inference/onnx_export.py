"""Export of a model to an ONNX graph from token ids to sentence vectors, with a check of its vectors."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from contrastive_text.core.batch import Hidden
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import require, silence_transformers
from contrastive_text.core.storage.manifests import GRAPH, MODULES, folder_with_manifest
from contrastive_text.encoders.asymmetric import require_transformer
from contrastive_text.encoders.packing import ATTENTION
from contrastive_text.inference.folder_modules import save_tokenizer
from contrastive_text.inference.runtimes import OPSET, onnx_session, write_graph
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MaskTokenPooler

OUTPUT = "sentence_embedding"
"""Name of the output of an exported ONNX graph."""

TOLERANCE = 1e-5
"""Largest allowed difference of a feature between graph and model, relative to the largest feature."""

_SENTENCE = (
    "The old bird sings, while 3 people walk (slowly!) along the cold river; naïve Zürich, 東京 and 🙂 too."
)
_MOST_TOKENS = 512
"""Largest number of tokens of a text in the check of an exported graph; attention over 8,192 takes gigabytes."""


class Exported(NamedTuple):
    """Inputs, output width and accuracy of an exported graph.

    Args:
        inputs: Names of the graph's inputs, each (n, L), int64.
        features: Width D of the graph's output ``sentence_embedding``, (n, D), float32.
        difference: Largest difference of a feature from the model's own vectors, relative to the largest feature.
    """

    inputs: tuple[str, ...]
    features: int
    difference: float


def export_onnx(model: SentenceEncoder, folder: str | Path, opset: int = OPSET) -> Exported:
    """Exports a model to ``model.onnx`` with its tokenizer, and compares their vectors with the model's vectors.

    The graph has all steps from token ids to vectors: network, pooler, head, scaling to unit length if the model
    has it, and the model's ``truncate_dim``. It takes any number of rows of any length. Weights are float32. The
    graph has no prompts: put them before the texts. ``tokenizer.json`` contains the length limit and the padding,
    so the library ``tokenizers`` needs no setting. Transformers loads it too.

    The check encodes texts from one token to more than the limit with the written files, alone and padded
    together. If a vector differs by more than ``TOLERANCE``, the export is deleted.

    Args:
        model: Model, which stays unchanged.
        folder: New folder, or folder of an older export, which is replaced. It gets a manifest of its files.
        opset: Version of ONNX's operators.

    Raises:
        ImportError: The extra ``onnx`` isn't installed.
        ValueError: ``folder`` is a file or holds a model, the model excludes prompts from pooling, its pooler is
            a ``MaskTokenPooler``, torch can't export the network, ``opset`` is unsupported, or vectors differ.

    Example:
        >>> export_onnx(model, "my-model-onnx")  # doctest: +SKIP
        Exported(inputs=('input_ids', 'attention_mask'), features=384, difference=4.1e-07)
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"export_onnx.folder: expected a folder, got the file {folder}; name another")
    if any((folder / name).exists() for name in (MODULES, "config.json")):
        raise InvalidValueError(
            f"export_onnx.folder: expected a folder without a model, got {folder}, whose tokenizer would be "
            "replaced; name another, such as a new one inside it"
        )
    if model.prompts and not model.prompts.pooled:
        raise InvalidValueError(
            "export_onnx.model: expected a pooler that reads the prompt, got include_prompt: false, for which "
            "the graph would have to know where the prompt ends; use the model here or in sentence-transformers"
        )
    if isinstance(model.pooler, MaskTokenPooler):
        raise InvalidValueError(
            "export_onnx.model: expected a pooler of the text's own tokens, got MaskTokenPooler, which reads "
            "the template, which a graph doesn't have; use the model here"
        )
    model.require_dense("export_onnx.model")
    for library in ("onnx", "onnxscript", "onnxruntime"):
        require(library, "export_onnx")
    source = copy.deepcopy(model).to("cpu", torch.float32).eval()
    texts = _texts(source)
    expected = np.asarray(source.encode(texts, prompt=""))
    network = require_transformer(source.encoder, "export_onnx.model").model
    if network.config._attn_implementation == ATTENTION:  # our attention takes packed rows, the graph padded rows
        with silence_transformers():
            network.set_attn_implementation("sdpa")
    with folder_with_manifest(folder, last=GRAPH) as target:
        graph = _Graph(source)
        write_graph(graph, graph.inputs, [OUTPUT], target / GRAPH, model.encoder.vocabulary_size, opset)
        _write_tokenizer(source, target)
        difference = _difference(target, texts, expected)
        if not difference <= TOLERANCE:  # true for NaN too
            raise InvalidValueError(
                f"export_onnx: expected the model's own vectors to {TOLERANCE:.0e} of the largest feature, got a "
                f"difference of {difference:.1e}; this network or pooler can't be exported, and nothing was kept"
            )
    return Exported(graph.inputs, expected.shape[1], difference)


class _Graph(nn.Module):
    """Module from padded token ids, (n, L), to sentence vectors, (n, D), which is exported as a graph."""

    def __init__(self, model: SentenceEncoder) -> None:
        super().__init__()
        self.model = model
        network = require_transformer(model.encoder, "export_onnx.model").model
        tokenizer = model.encoder.tokenizer
        assert tokenizer is not None
        arguments = inspect.signature(network.forward).parameters
        names = ["input_ids", "attention_mask", "token_type_ids"]
        self.inputs = tuple(name for name in names if name in arguments and name in tokenizer.model_input_names)

    def forward(self, *values: Tensor) -> Tensor:
        inputs = dict(zip(self.inputs, values, strict=True))
        layers = self.model.pooler.layers
        # Read through the model: a second registration would leave a second class of the encoder behind.
        encoder: Any = self.model.encoder  # Any: a transformer
        output = encoder.model(**inputs, output_hidden_states=layers != (-1,))
        last = {-1: output.last_hidden_state}
        states = last if layers == (-1,) else {layer: output.hidden_states[layer] for layer in layers}
        pooled = self.model.pooler(Hidden(states, inputs["attention_mask"].bool()))
        return self.model.from_pooled(pooled)[:, : self.model.truncate_dim]


def _write_tokenizer(model: SentenceEncoder, folder: Path) -> None:
    tokenizer = model.encoder.tokenizer
    assert tokenizer is not None
    if model.max_length is not None:
        tokenizer.model_max_length = model.max_length
    save_tokenizer(tokenizer, folder)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if model.max_length is not None:
        backend.enable_truncation(model.max_length)
    fill = require_transformer(model.encoder, "export_onnx.model").model.config.pad_token_id or 0
    backend.enable_padding(pad_id=fill, pad_token=backend.id_to_token(fill))
    backend.save(str(folder / "tokenizer.json"))


def _difference(folder: Path, texts: list[str], expected: npt.NDArray[np.float32]) -> float:
    """Encodes texts with the exported files, together and alone. Returns the largest relative difference."""
    session = onnx_session(folder / GRAPH, "export_onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    padded = _run(session, tokenizer, texts)
    single = np.concatenate([_run(session, tokenizer, [text]) for text in texts])
    difference = float(np.abs(np.stack([padded, single]) - expected).max())
    return difference / float(np.abs(expected).max())


def _texts(model: SentenceEncoder) -> list[str]:
    """Returns texts for the check, from the empty text to a text longer than the model's limit."""
    repeats = min(model.max_length or _MOST_TOKENS, _MOST_TOKENS) // len(_SENTENCE.split()) + 1
    texts = ["a", "A bird.", "An old bird sings", _SENTENCE, " ".join([_SENTENCE] * repeats)]
    return [*texts, ""] if model.tokenizer.specials else texts


def _run(session: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    # Any: onnxruntime has no types
    rows = tokenizer.encode_batch(list(texts))
    values = {
        "input_ids": [row.ids for row in rows],
        "attention_mask": [row.attention_mask for row in rows],
        "token_type_ids": [row.type_ids for row in rows],
    }
    inputs = {entry.name: np.array(values[entry.name], dtype=np.int64) for entry in session.get_inputs()}
    vectors: npt.NDArray[np.float32] = session.run([OUTPUT], inputs)[0]
    return vectors
