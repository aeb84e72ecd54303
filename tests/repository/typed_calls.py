"""Calls whose types ``test_types.py`` checks with mypy. Never executed."""

from typing import Any, assert_type

import numpy.typing as npt
from torch import Tensor

from contrastive_text import SentenceEncoder

model = SentenceEncoder.from_pretrained("model")
is_tensor = bool(input())
assert_type(model.encode("a"), npt.NDArray[Any])
assert_type(model.encode(["a"], 32, True, False), npt.NDArray[Any])
assert_type(model.encode(["a"], convert_to_tensor=True), Tensor)
assert_type(model.encode(["a"], normalize_embeddings=True, precision="int8"), npt.NDArray[Any])
assert_type(model.encode(["a"], convert_to_tensor=is_tensor), Tensor | npt.NDArray[Any])
assert_type(model.encode("a", output_value="token_embeddings"), Tensor)
assert_type(model.encode(["a"], output_value="token_embeddings", batch_size=8), list[Tensor])
assert_type(model.encode_query("a"), npt.NDArray[Any])
assert_type(model.encode_document(["a"], convert_to_tensor=True), Tensor)
assert_type(model.transform(["a"]), npt.NDArray[Any])
