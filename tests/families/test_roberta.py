"""RoBERTa against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from anyformer import preset
from anyformer.checkpoints.folder import open_folder
from tests.families.encoders import check_layers, encoder_case, parameters
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, make, save

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    config = RobertaConfig(**{**SMALL, **settings})
    return encoder_case(name, kind, config, pad=pad, length=length, segments=segments, counted=True)


CASES = [
    case("bare, five layers, padding token 4", RobertaModel, "right", num_hidden_layers=5, pad_token_id=4),
    case("masked, relu, three kinds", RobertaForMaskedLM, hidden_act="relu", type_vocab_size=3),
    case("bare, full length, one kind", RobertaModel, "none", 30, False, type_vocab_size=1, layer_norm_eps=1e-5),
    case("masked, right, silu", RobertaForMaskedLM, "right", 7, hidden_act="silu", intermediate_size=96),
    case("masked, untied, padding token 0", RobertaForMaskedLM, tie_word_embeddings=False, pad_token_id=0),
    case("lm, causal", RobertaForCausalLM, is_decoder=True, hidden_act="gelu_new"),
    case("classify", RobertaForSequenceClassification, "right", num_labels=5, classifier_dropout=0.3),
    case("tag", RobertaForTokenClassification, num_labels=4),
    case("span", RobertaForQuestionAnswering, "right", 17),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_every_layer_and_the_pooler_equal_theirs(case: Case, tmp_path: Path) -> None:
    check_layers(case, tmp_path)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_every_map_equals_their_eager_map(case: Case, tmp_path: Path) -> None:
    check_maps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("roberta", RobertaConfig)


BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}  # of the published weights
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


@pytest.mark.parametrize("name, config", [("roberta-base", BASE), ("roberta-large", BASE | LARGE)])
def test_presets_have_as_many_parameters(name: str, config: dict[str, Any]) -> None:
    with torch.device("meta"):
        theirs = RobertaModel(RobertaConfig(**config))
    assert parameters(preset(name).build(device="meta")) == parameters(theirs)


def test_a_masked_folder_opens_bare_without_a_pooler(tmp_path: Path) -> None:
    opened = open_folder(save(make(CASES[1], torch.float32), tmp_path / "a"), head="bare")
    assert opened.head == "body"


def test_a_classifier_drops_channels_twice(tmp_path: Path) -> None:
    head = open_folder(save(make(CASES[6], torch.float32), tmp_path / "a")).spec.settings()["head"]
    assert (head.input_dropout, head.dropout) == (0.3, 0.3)
