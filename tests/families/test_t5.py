"""T5 against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
)

from anyformer import UserError, preset
from anyformer.checkpoints.folder import as_family, open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from anyformer.heads import LM
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
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, count, pair_case

SMALL = {
    "d_model": 24, "d_kv": 5, "d_ff": 37, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 50,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
NEWER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their norm takes the variance in float32, hence the bound in float64.
    return pair_case(name, kind, T5Config(**{**SMALL, **(settings or {})}), float64=1e-6, **options)


def alone(name: str, kind: type, pad: str = "left", **settings: Any) -> Case:
    return text_case(name, kind, T5Config(**{**SMALL, **settings}), pad=pad, float64=1e-6)


CASES = [
    case("bare", T5Model),
    case("bare, source left, target padded", T5Model, pad="left", target_pad=True),
    case("lm", T5ForConditionalGeneration),
    case("lm, source left, long", T5ForConditionalGeneration, pad="left", source=40, target=31),
    case("lm, newer", T5ForConditionalGeneration, NEWER, pad="left"),
    case("lm, gated silu, more decoder", T5ForConditionalGeneration,
         {"feed_forward_proj": "gated-silu", "num_decoder_layers": 5, "num_layers": 1, "layer_norm_epsilon": 1e-3}),
    case("lm, exact gelu, heads of the width, feed of four", T5ForConditionalGeneration,
         {"feed_forward_proj": "gelu", "d_kv": 6, "d_ff": 96, "num_decoder_layers": None}),
    case("lm, odd buckets", T5ForConditionalGeneration, {"relative_attention_num_buckets": 11}, source=30, target=20),
    case("classify", T5ForSequenceClassification, {"num_labels": 5}, shifted=True),
    case("span", T5ForQuestionAnswering, shifted=True),
    alone("encoder", T5EncoderModel),
    alone("encoder, newer, right", T5EncoderModel, pad="right", **NEWER),
    alone("tag", T5ForTokenClassification, num_labels=4),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_pair_maps(case("maps", T5ForConditionalGeneration, pad="left", target_pad=True), tmp_path / "pair")
    check_maps(alone("encoder", T5EncoderModel), tmp_path / "alone")


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[10]], ids=str)
def test_hidden_states_of_every_layer_agree(case: Case, tmp_path: Path) -> None:
    check_hidden(case, tmp_path)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[4]], ids=str)
def test_step_by_step_is_the_whole_pass(case: Case, tmp_path: Path) -> None:
    check_pair_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("t5", T5Config)


@pytest.mark.parametrize(("name", "settings"), [
    ("t5-small", {}), ("t5-base", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
])  # fmt: skip
def test_presets_have_the_published_size_and_name(name: str, settings: dict[str, Any]) -> None:
    with torch.device("meta"):
        theirs = T5ForConditionalGeneration(T5Config(**settings))
    assert count(preset(name).build(device="meta")) == count(theirs)
    assert as_family(preset(name), {})[0].model_type == "t5"


def apart(folder: Path) -> Any:
    """A model of version 1.1 as published: rows of its own for the head, which transformers 5 keeps on loading."""
    theirs = make(CASES[4], torch.float32)
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight) * 0.15)
    theirs.all_tied_weights_keys = {k: v for k, v in theirs.all_tied_weights_keys.items() if k != "lm_head.weight"}
    save(theirs, folder)
    return theirs


def test_a_head_with_its_own_rows_is_kept(tmp_path: Path) -> None:
    theirs = apart(tmp_path / "first")
    opened = open_folder(tmp_path / "first")
    assert opened.spec.head == LM(tied=False)
    a, b = both(CASES[4], theirs, opened.model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()
    save_foreign(tmp_path / "second", opened.spec, opened.model, config=opened.config)
    again, info = T5ForConditionalGeneration.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not any(info.values()) and not again.config.scale_decoder_outputs
    a, b = both(CASES[4], again.eval(), opened.model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()


def test_a_folder_opens_with_less_than_its_head(tmp_path: Path) -> None:
    theirs = apart(tmp_path / "lm")
    opened = open_folder(tmp_path / "lm", head="encoder")
    given, options = CASES[4].ours(torch.float32)
    with torch.no_grad():
        ours = opened.model(given[0], mask=options["source_mask"]).hidden
        wanted = theirs.encoder(given[0], attention_mask=options["source_mask"].long()).last_hidden_state
    mask = options["source_mask"]
    assert (ours - wanted)[mask].abs().max() <= 1e-5
    assert open_folder(tmp_path / "lm", head="bare").spec.head is None
    classifier = make(CASES[8], torch.float32)
    assert open_folder(save(classifier, tmp_path / "classify"), head="bare").spec.head is None


@pytest.mark.parametrize(
    "data", [{"feed_forward_proj": "gated-mish"}, {"feed_forward_proj": "relu", "is_gated_act": True}]
)
def test_what_is_not_implemented_is_refused_by_name(data: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="feed_forward_proj"):
        FAMILIES["t5"].settings(Config(data), "lm")
