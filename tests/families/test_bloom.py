"""BLOOM against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomForQuestionAnswering,
    BloomForSequenceClassification,
    BloomForTokenClassification,
    BloomModel,
)

from anyformer import UserError, preset
from anyformer.checkpoints.folder import as_family
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, text_case
from tests.families.passes import check_hidden, check_steps, count

SMALL = {"hidden_size": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50}


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    # Their slopes and softmax are float32, hence the bound in float64; the mask overflows float32 there, so that rows
    # with nothing to see, before which padding stands, are nan in float64 and spoil all others in the next layer.
    config = BloomConfig(**{**SMALL, **settings})
    return text_case(name, kind, config, pad=pad, length=length, float64=None if pad == "left" else 1e-6)


CASES = [
    case("bare", BloomModel, pad="right"),
    case("lm", BloomForCausalLM),
    case("lm, right padding, long", BloomForCausalLM, pad="right", length=60),
    case("lm, six heads, five layers, untied", BloomForCausalLM, pad="right", n_head=6, n_layer=5,
         tie_word_embeddings=False),
    case("lm, three heads, other eps", BloomForCausalLM, pad="none", n_head=3, layer_norm_epsilon=1e-3),
    case("lm, one head, sums in parts", BloomForCausalLM, n_head=1, pretraining_tp=2),
    case("classify", BloomForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", BloomForTokenClassification, pad="right", num_labels=4),
    case("span", BloomForQuestionAnswering, pad="right"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_maps(case("maps", BloomForCausalLM, n_head=6), tmp_path)


def test_hidden_states_of_every_layer_agree(tmp_path: Path) -> None:
    check_hidden(case("hidden", BloomForCausalLM), tmp_path)


@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_step_by_step_is_the_whole_pass(case: Case, tmp_path: Path) -> None:
    check_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("bloom", BloomConfig)


def test_the_preset_has_the_published_size_and_name() -> None:
    with torch.device("meta"):
        theirs = BloomForCausalLM(BloomConfig(hidden_size=1024, n_layer=24, n_head=16))
    assert count(preset("bloom-560m").build(device="meta")) == count(theirs)
    assert as_family(preset("bloom-560m"), {})[0].model_type == "bloom"


def test_published_spellings_are_read() -> None:
    published = {  # bloom-560m, as it lies on the hub
        "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True,
        "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
        "pretraining_tp": 1, "skip_bias_add": True, "skip_bias_add_qkv": False, "unk_token_id": 0, "vocab_size": 250880,
    }  # fmt: skip
    read = Config(published)
    assert FAMILIES["bloom"].settings(read, "lm").replace(init="gpt2") == preset("bloom-560m")
    assert read.unread() == []


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="apply_residual_connection_post_layernorm"):
        FAMILIES["bloom"].settings(Config({"apply_residual_connection_post_layernorm": True}), "lm")
