"""Settings of the Transformer in a model folder: ``sentence_bert_config.json`` and its older names.

Each key that sentence-transformers reads and that changes vectors is used, or refused by its name. All others are
kept, and saved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.inference.folder_files import ELSEWHERE

TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_NAMES = (TRANSFORMER_SETTINGS, *(f"sentence_{kind}_config.json" for kind in _OLDER))
_TASK = "feature-extraction"
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_FROM_THE_CALL = {"trust_remote_code", "token", "cache_dir", "revision", "subfolder", "local_files_only"}
"""Arguments of ``from_pretrained`` that sentence-transformers takes from its caller, whatever a folder says."""
_ARGUMENTS = {
    "model_kwargs": {"attn_implementation", "dtype", "torch_dtype", "device_map", "low_cpu_mem_usage"},
    "processor_kwargs": {"model_max_length", "use_fast"},
    "config_kwargs": {"use_cache", "output_hidden_states", "output_attentions"},
}
"""Arguments of the network, the tokenizer and the configuration that change no vector, or that are used here."""
_OLDER_ARGUMENTS = {
    "model_kwargs": "model_args", "processor_kwargs": "tokenizer_args", "config_kwargs": "config_args",
}  # fmt: skip
_PROCESSING = {"padding", "pad_to_multiple_of", "logits_to_keep", "verbose", "max_length", "truncation"}
"""Arguments of the call of a tokenizer that change no vector, or that are used here."""
_USED = ("max_seq_length", "query_length", "document_length")


@dataclass(frozen=True)
class TransformerSettings:
    """Settings of a folder's Transformer.

    Args:
        max_length: Longest text in tokens; None for the tokenizer's limit.
        query_length: Longest query; None for ``max_length``.
        document_length: Longest document; None for ``max_length``.
        lower_case: Whether texts are put into lower case.
        others: The keys that are saved again as they are.
    """

    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    lower_case: bool = False
    others: Mapping[str, object] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """The largest of its lengths; 0 for none."""
        return max(length or 0 for length in (self.max_length, self.query_length, self.document_length))


def read_transformer_settings(folder: Path) -> TransformerSettings:
    """Reads the settings of a folder; the first file that isn't empty has them all.

    Raises:
        ValueError: A key that asks for other vectors than this library makes, by its name.
    """
    for path in map(folder.joinpath, _NAMES):
        if path.exists() and (record := Record.read(path, TODO)).values:
            return _settings(record)
    return TransformerSettings()


def _settings(record: Record) -> TransformerSettings:
    _check_defaults(record)
    _check_modalities(record)
    others = {key: value for key, value in record.values.items() if key not in _USED}
    length = record.integer("max_seq_length", None, least=1)
    for key, arguments in _arguments(record).items():
        inner = dict(arguments.values)
        if key in ("processor_kwargs", "tokenizer_args") and "model_max_length" in arguments:
            length = arguments.integer("model_max_length", least=1)
        inner.pop("model_max_length", None)
        others[key] = inner
    query, document = (record.integer(key, None, least=1) for key in ("query_length", "document_length"))
    processing = record.record("processing_kwargs", {})
    if (cut := _cut(processing)) is not None:  # holds for queries and documents too
        length, query, document = cut, None, None
        text = {key: value for key, value in processing.record("text").values.items() if key != "max_length"}
        others["processing_kwargs"] = dict(processing.values) | {"text": text}
    return TransformerSettings(length, query, document, record.flag("do_lower_case", False), others)


def _check_defaults(record: Record) -> None:
    if (task := record.text("transformer_task", _TASK)) != _TASK:
        raise record.refusal(repr(_TASK), task, "transformer_task", ELSEWHERE)
    for key in ("query_expansion", "tokenizer_name_or_path"):
        if key in record:
            raise record.refusal("null", record.values[key], key, ELSEWHERE)


def _check_modalities(record: Record) -> None:
    """Checks that texts go through the network as they are, and that the vectors of its last layer come out."""
    if "modality_config" not in record:
        return
    config = record.record("modality_config")
    if "message" in config:  # texts would be written into the tokenizer's chat template
        raise config.refusal("texts without a chat template", "message", todo=ELSEWHERE)
    text = config.record("text")
    for key, expected in _TEXT.items():
        value = text.values.get(key)
        if value not in (expected, [expected]):
            raise text.refusal(repr(expected), value, key, ELSEWHERE)
    if (name := record.text("module_output_name")) != "token_embeddings":
        raise record.refusal("'token_embeddings'", name, "module_output_name", ELSEWHERE)


def _arguments(record: Record) -> dict[str, Record]:
    """Returns the arguments of the network, the tokenizer and the configuration, by the key that holds them."""
    found = {}
    for newer, known in _ARGUMENTS.items():
        for key in (_OLDER_ARGUMENTS[newer], newer):
            if key not in record:
                continue
            found[key] = arguments = record.record(key)
            for name in arguments:
                if name not in known | _FROM_THE_CALL:
                    raise arguments.refusal("no such argument", arguments.values[name], name, ELSEWHERE)
    return found


def _cut(processing: Record) -> int | None:
    """Checks the arguments with which the tokenizer is called; returns the length to which it cuts, if any."""
    common = processing.record("common", {})
    for name in common:
        if (name, common.values[name]) != ("return_tensors", "pt"):
            raise common.refusal("no such argument", common.values[name], name, ELSEWHERE)
    text = processing.record("text", {})
    for name in text:
        if name not in _PROCESSING:
            raise text.refusal("no such argument", text.values[name], name, ELSEWHERE)
    truncation = text.values.get("truncation", True)
    if truncation not in (True, "longest_first", "only_first"):
        raise text.refusal("true", truncation, "truncation", ELSEWHERE)
    return text.integer("max_length", None, least=1)
