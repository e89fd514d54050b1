"""BLOOM against transformers."""

import pytest

from anyformer import UserError, preset
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig


def test_published_spellings_are_read() -> None:
    published = {  # bloom-560m, as it lies on the hub
        "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True,
        "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
        "pretraining_tp": 1, "skip_bias_add": True, "skip_bias_add_qkv": False, "unk_token_id": 0, "vocab_size": 250880,
    }  # fmt: skip
    read = FamilyConfig(published)
    assert FAMILIES["bloom"].settings(read, "lm").replace(init="gpt2") == preset("bloom-560m")
    assert read.unread() == []


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="apply_residual_connection_post_layernorm"):
        FAMILIES["bloom"].settings(FamilyConfig({"apply_residual_connection_post_layernorm": True}), "lm")
