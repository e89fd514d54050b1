"""BART against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
)

from anyformer import UserError, preset
from anyformer.checkpoints import tensors
from anyformer.checkpoints.folder import as_family, open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from tests.families.parity import Case, both, check_config, check_logits, check_round_trip, make, save
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, count, pair_case

SMALL = {
    "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 20, "vocab_size": 50, "max_position_embeddings": 48,
}  # fmt: skip


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their positions count padding and cannot be given, so padding on the left is compared with theirs on the right.
    return pair_case(name, kind, BartConfig(**{**SMALL, **(settings or {})}), theirs_pad="right", **options)


CASES = [
    case("bare", BartModel),
    case("bare, source left, target padded", BartModel, pad="left", target_pad=True),
    case("lm", BartForConditionalGeneration),
    case("lm, source left, long", BartForConditionalGeneration, pad="left", source=40, target=31),
    case("lm, scaled, relu, one and five layers", BartForConditionalGeneration,
         {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 1, "decoder_layers": 5,
          "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}),
    case("classify", BartForSequenceClassification, {"num_labels": 5}, shifted=True),
    case("classify, default labels", BartForSequenceClassification, shifted=True, source=12),
    case("span", BartForQuestionAnswering, shifted=True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_pair_maps(case("maps", BartForConditionalGeneration, target_pad=True), tmp_path)


@pytest.mark.parametrize("case", CASES[1:3], ids=str)
def test_hidden_states_of_every_layer_agree(case: Case, tmp_path: Path) -> None:
    check_hidden(case, tmp_path)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_step_by_step_is_the_whole_pass(case: Case, tmp_path: Path) -> None:
    check_pair_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("bart", BartConfig)


def test_the_preset_has_the_published_size_and_name() -> None:
    base = BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                      decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)  # fmt: skip
    with torch.device("meta"):
        theirs = BartModel(base)
    assert count(preset("bart-base").build(device="meta")) == count(theirs)
    assert as_family(preset("bart-base"), {})[0].model_type == "bart"


def test_three_tables_are_kept_apart_without_tying(tmp_path: Path) -> None:
    untied = case("untied", BartForConditionalGeneration, {"tie_word_embeddings": False})
    check_logits(untied, tmp_path / "logits")
    opened = open_folder(save(make(untied, torch.float32), tmp_path / "first"))
    save_foreign(tmp_path / "second", opened.spec, opened.model, config=opened.config)
    a, b = tensors.read_folder(tmp_path / "first"), tensors.read_folder(tmp_path / "second")
    assert sorted(a) == sorted(b)
    unused = {"model.shared.weight"}  # nothing there reads it, and nothing here keeps it
    assert all(torch.equal(a[name].read(), b[name].read()) for name in set(a) - unused)
    again, info = BartForConditionalGeneration.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not any(info.values())
    x, y = both(untied, again.eval(), opened.model, torch.float32)
    assert (x - y).abs().max() <= 1e-5 * x.abs().max()


def test_a_bare_folder_opens_with_a_head_and_the_other_way(tmp_path: Path) -> None:
    """Published base models are bare; their rows serve the head, and a missing bias is zeros."""
    bare = make(CASES[0], torch.float32)
    opened = open_folder(save(bare, tmp_path / "bare"), head="lm")
    theirs = BartForConditionalGeneration.from_pretrained(tmp_path / "bare").eval()
    a, b = both(CASES[2], theirs, opened.model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()
    assert not opened.model.head.bias.any()
    whole = make(CASES[2], torch.float32)
    less = open_folder(save(whole, tmp_path / "lm"), head="bare")
    a, b = both(CASES[0], whole.model, less.model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()


def test_a_second_name_of_a_setting_counts() -> None:
    spec = FAMILIES["bart"].settings(Config({"num_hidden_layers": 2, "encoder_layers": 7, "hidden_size": 64}), "bare")
    assert (spec.encoder.stack.depth, spec.encoder.stack.width) == (2, 64)
    theirs = BartConfig.from_dict({"num_hidden_layers": 2, "encoder_layers": 7, "hidden_size": 64})
    assert (theirs.encoder_layers, theirs.d_model) == (2, 64)


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="activation_function = 'mish'"):
        FAMILIES["bart"].settings(Config({"activation_function": "mish"}), "lm")
