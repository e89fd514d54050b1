"""ELECTRA against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    ElectraConfig,
    ElectraForCausalLM,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
)

from anyformer import preset
from anyformer.checkpoints.folder import open_folder
from tests.families.encoders import check_layers, encoder_case, parameters
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, make, save

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32, "embedding_size": 10,
}  # fmt: skip


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    return encoder_case(name, kind, ElectraConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=segments)


CASES = [
    case("bare, five layers", ElectraModel, num_hidden_layers=5),
    case("generator, right, relu", ElectraForMaskedLM, "right", hidden_act="relu"),
    case("bare, full length, not narrower, one kind", ElectraModel, "none", 32, False, embedding_size=24,
         type_vocab_size=1),
    case("generator, untied, not narrower", ElectraForMaskedLM, tie_word_embeddings=False, embedding_size=24,
         layer_norm_eps=1e-3),
    case("generator, untied", ElectraForMaskedLM, "right", tie_word_embeddings=False, intermediate_size=96),
    case("generator, causal", ElectraForCausalLM, is_decoder=True),
    case("discriminator", ElectraForPreTraining),
    case("discriminator, right, silu", ElectraForPreTraining, "right", 7, hidden_act="silu", embedding_size=30),
    case("classify", ElectraForSequenceClassification, "right", num_labels=5, classifier_dropout=0.3),
    case("tag", ElectraForTokenClassification, num_labels=4, hidden_act="gelu_new"),
    case("span", ElectraForQuestionAnswering, "right", 17),
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
    check_config("electra", ElectraConfig)


def test_the_preset_has_as_many_parameters() -> None:
    with torch.device("meta"):
        theirs = ElectraModel(ElectraConfig())
    assert parameters(preset("electra-small").build(device="meta")) == parameters(theirs)


def test_a_discriminator_opens_bare(tmp_path: Path) -> None:
    discriminator = CASES[6]
    theirs = make(discriminator, torch.float64)
    opened = open_folder(save(theirs, tmp_path / "a"), head="bare")
    (tokens,), options = discriminator.ours(torch.float64)
    with torch.no_grad():
        wanted = theirs.electra(**discriminator.theirs(torch.float64)).last_hidden_state
        gap = opened.model(tokens, **options).hidden - wanted
    assert opened.head == "bare"
    assert gap[discriminator.real].abs().max() <= 1e-10
