"""GPT-2 against transformers."""

from pathlib import Path

import pytest
from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, text_case
from tests.families.passes import check_hidden, check_steps

SMALL = {"n_embd": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 32}


def case(name: str, kind: type, pad: str = "left", **settings: object) -> Case:
    return text_case(name, kind, GPT2Config(**{**SMALL, **settings}), pad=pad, positions=True)


CASES = [
    case("bare", GPT2Model),
    case("lm", GPT2LMHeadModel),
    case("lm, right padding", GPT2LMHeadModel, pad="right"),
    case("lm, untied, odd feed", GPT2LMHeadModel, tie_word_embeddings=False, n_inner=37, activation_function="relu"),
    case("lm, scores by layer", GPT2LMHeadModel, scale_attn_by_inverse_layer_idx=True),
    case("bare, no scale", GPT2Model, scale_attn_weights=False),
    case("classify", GPT2ForSequenceClassification, num_labels=5, pad_token_id=0),
    case("tag", GPT2ForTokenClassification, num_labels=4),
    case("span", GPT2ForQuestionAnswering),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_maps(case("maps", GPT2LMHeadModel), tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("gpt2", GPT2Config)


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_hidden_states_of_every_layer_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_hidden(case, tmp_path)


@pytest.mark.parametrize("case", [c for c in CASES[:5] if "lm" in c.name or "window" in c.name], ids=str)
def test_step_by_step_equals_transformers_with_its_cache(case: Case, tmp_path: Path) -> None:
    check_steps(case, tmp_path)
