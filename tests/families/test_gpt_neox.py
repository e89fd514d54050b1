"""GPT-NeoX against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForQuestionAnswering,
    GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification,
    GPTNeoXModel,
)

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from anyformer.positions.rope import Rope
from tests.families.parity import (
    Case,
    both,
    check_config,
    check_logits,
    check_maps,
    check_round_trip,
    make,
    save,
    text_case,
)
from tests.families.passes import check_hidden, check_steps

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    # Their rotary angles are float32, hence the bound in float64.
    config = GPTNeoXConfig(**{**SMALL, **settings})
    return text_case(name, kind, config, pad=pad, length=length, positions=True, float64=1e-6)


def scaled(kind: str, share: float = 0.5, **given: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, "partial_rotary_factor": share, **given}}


CASES = [
    case("bare", GPTNeoXModel),
    case("lm", GPTNeoXForCausalLM),
    case("lm, right padding, long", GPTNeoXForCausalLM, pad="right", length=60),
    case("lm, serial, tied, tanh gelu", GPTNeoXForCausalLM, use_parallel_residual=False, tie_word_embeddings=True,
         hidden_act="gelu_new", intermediate_size=128),
    case("lm, no biases, all channels turn", GPTNeoXForCausalLM, attention_bias=False, layer_norm_eps=1e-3,
         **scaled("default", 1.0)),
    case("lm, one channel turns", GPTNeoXForCausalLM, hidden_size=24),
    case("lm, a share that is cut", GPTNeoXForCausalLM, hidden_size=40, **scaled("default", 0.49)),
    case("lm, linear", GPTNeoXForCausalLM, **scaled("linear", factor=4.0)),
    case("lm, dynamic, beyond", GPTNeoXForCausalLM, pad="right", max_position_embeddings=8,
         **scaled("dynamic", factor=2.0)),
    case("lm, yarn", GPTNeoXForCausalLM, **scaled("yarn", factor=4.0, original_max_position_embeddings=16)),
    case("classify", GPTNeoXForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", GPTNeoXForTokenClassification, num_labels=4),
    case("span", GPTNeoXForQuestionAnswering),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@pytest.mark.parametrize("serial", [False, True])
def test_every_map_equals_their_eager_map(serial: bool, tmp_path: Path) -> None:
    check_maps(case("maps", GPTNeoXForCausalLM, use_parallel_residual=not serial), tmp_path)


def test_hidden_states_of_every_layer_agree(tmp_path: Path) -> None:
    check_hidden(case("hidden", GPTNeoXForCausalLM), tmp_path)


@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_step_by_step_is_the_whole_pass(case: Case, tmp_path: Path) -> None:
    check_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("gpt_neox", GPTNeoXConfig)


def test_published_spellings_are_read() -> None:
    spec = FAMILIES["gpt_neox"].settings(
        Config({"hidden_size": 64, "num_attention_heads": 4, "rotary_pct": 0.5, "rotary_emb_base": 500}), "lm"
    )
    assert spec.stack.tiles[0].relative == Rope(theta=500.0, width=8)


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_out.weight"])
def test_the_head_has_two_names(name: str, tmp_path: Path) -> None:
    theirs = make(CASES[1], torch.float32)
    folder = save(theirs, tmp_path / "lm")
    held = load_file(folder / "model.safetensors")
    rows = held.pop("embed_out.weight")
    save_file(held | {name: rows}, folder / "model.safetensors", {"format": "pt"})
    a, b = both(CASES[1], theirs, open_folder(folder).model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="rotary_pct"):
        FAMILIES["gpt_neox"].settings(Config({"hidden_size": 24, "num_attention_heads": 2, "rotary_pct": 0.3}), "lm")
