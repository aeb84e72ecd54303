"""The end of a row: the tokenizer's end token where it puts none, and where a pooler reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from decoders import BEGINS, DECODERS, ENDS, save_decoder, tokenizer_of
from transformers import AutoTokenizer

from contrastive_text.data import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.loading import end_rows
from contrastive_text.poolers import LastTokenPooler, MeanPooler, Pooler
from contrastive_text.training.callbacks.run_summary import model_facts
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Prompt


@pytest.mark.parametrize("name", DECODERS)
def test_the_end_token_stands_after_each_text_and_in_the_saved_tokenizer(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    texts = ["a bird", "the old dog sings"]
    bare = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    begin = tokenizer.convert_tokens_to_ids(list(BEGINS[name]))
    assert [tokenizer(text).input_ids for text in texts] == [[*begin, *ids] for ids in bare]
    assert end_rows(tokenizer) == ENDS[name]
    assert end_rows(tokenizer) is None
    end = tokenizer.convert_tokens_to_ids(ENDS[name])
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert [each(text).input_ids for text in texts] == [[*begin, *ids, end] for ids in bare]
        pair = each(*texts, return_token_type_ids=True)
        assert pair.input_ids == [*begin, *bare[0], end, *begin, *bare[1], end]
        assert pair.token_type_ids[-1] == 1


def test_a_tokenizer_without_an_end_token_is_refused_where_one_is_needed() -> None:
    tokenizer = tokenizer_of("mistral")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"encoder.append_eos: expected .* an end token .* got no eos_token"):
        end_rows(tokenizer)


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_decoder(tmp_path_factory.mktemp("qwen2"), "qwen2")


ANSWER = 'It says "{text}" in one word:"'


@pytest.mark.parametrize(
    ("pooler", "asked", "prompts", "views", "ended"),
    [
        (LastTokenPooler(), None, {}, {}, True),
        (LastTokenPooler(), None, {"query": ANSWER}, {}, False),
        (LastTokenPooler(), None, {}, {"positive": [Prompt(ANSWER)]}, False),
        (LastTokenPooler(), True, {"query": ANSWER}, {}, True),
        (LastTokenPooler(), None, {"query": "query: "}, {}, True),
        (LastTokenPooler(), False, {}, {}, False),
        (MeanPooler(), None, {}, {}, False),
        (MeanPooler(), True, {}, {}, True),
    ],
)
def test_rows_end_so_where_the_trained_pooler_reads_the_last_token_and_no_template_ends_them(
    qwen2: str, pooler: Pooler, asked: bool | None, prompts: dict[str, str], views: Any, ended: bool
) -> None:
    encoder = TransformerEncoder(qwen2, append_eos=asked)
    module = ContrastiveModule(encoder, pooler=pooler, prompts=Prompts(prompts), views=views)
    tokenizer = module.text_tokenizer()
    assert tokenizer is not None and encoder.tokenizer is not None
    assert encoder.tokenizer.convert_ids_to_tokens(list(tokenizer.suffix)) == [ENDS["qwen2"]] * ended
    said = model_facts(module).get("end of rows")
    assert said == ("'<|endoftext|>', which the tokenizer puts nowhere by itself" if ended else None)
    assert "append_eos" in module.hparams["encoder"]["init_args"]


@pytest.mark.slow
def test_a_tokenizer_that_ends_rows_by_itself_is_left_as_it_is(bert: str) -> None:
    module = tiny.module(bert, pooler=LastTokenPooler())
    assert module.encoder.row_end is None and "end of rows" not in model_facts(module)
