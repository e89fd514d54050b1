"""DistilBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)

from anyformer import preset
from tests.families.encoders import check_layers, encoder_case, parameters
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip

SMALL = {"dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 37, "vocab_size": 50, "max_position_embeddings": 32}


def case(name: str, kind: type, pad: str = "left", length: int = 11, **settings: Any) -> Case:
    return encoder_case(name, kind, DistilBertConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=False)


CASES = [
    case("bare, five layers", DistilBertModel, n_layers=5),
    case("masked, right, relu", DistilBertForMaskedLM, "right", activation="relu"),
    case("bare, full length, silu, sinusoidal start", DistilBertModel, "none", 32, activation="silu",
         sinusoidal_pos_embds=True),
    case("masked, untied, wide feed", DistilBertForMaskedLM, tie_word_embeddings=False, hidden_dim=96),
    case("masked, one token", DistilBertForMaskedLM, "none", 1, activation="gelu_new"),
    case("classify", DistilBertForSequenceClassification, "right", num_labels=5, seq_classif_dropout=0.3),
    case("tag", DistilBertForTokenClassification, num_labels=4, dropout=0.2),
    case("span", DistilBertForQuestionAnswering, "right", 17, qa_dropout=0.3),
]  # fmt: skip


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
    check_config("distilbert", DistilBertConfig)


def test_the_preset_has_as_many_parameters() -> None:
    with torch.device("meta"):
        theirs = DistilBertModel(DistilBertConfig())
    assert parameters(preset("distilbert").build(device="meta")) == parameters(theirs)
