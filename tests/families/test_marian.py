"""Marian against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianModel, MarianMTModel

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder
from anyformer.families import FAMILIES
from anyformer.families.config import Config
from tests.families.parity import Case, both, check_config, check_logits, check_round_trip, make, save
from tests.families.passes import check_hidden, check_pair_maps, check_pair_steps, pair_case

SMALL = {
    "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 20, "vocab_size": 50, "max_position_embeddings": 600, "pad_token_id": 3,
    "decoder_start_token_id": 3, "scale_embedding": True, "activation_function": "swish",
}  # fmt: skip
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44}


def case(name: str, kind: type, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    # Their positions count padding and cannot be given, so padding on the left is compared with theirs on the right;
    # their sinusoids are rounded to float32, hence the bound in float64.
    config = MarianConfig(**{**SMALL, **(settings or {})})
    return pair_case(name, kind, config, theirs_pad="right", float64=1e-6, target_vocab=44, **options)


CASES = [
    case("bare", MarianModel),
    case("bare, two tables, source left, target padded", MarianModel, APART, pad="left", target_pad=True),
    case("lm", MarianMTModel),
    case("lm, source left, very long", MarianMTModel, pad="left", source=590, target=300),
    case("lm, two tables", MarianMTModel, APART),
    case("lm, two tables, untied", MarianMTModel, {**APART, "tie_word_embeddings": False}),
    case("lm, odd width, unscaled, gelu", MarianMTModel,
         {"d_model": 27, "encoder_attention_heads": 9, "scale_embedding": False, "activation_function": "gelu"}),
    case("bare, odd width", MarianModel, {"d_model": 27, "encoder_attention_heads": 3, "decoder_layers": 1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


def test_every_map_equals_their_eager_map(tmp_path: Path) -> None:
    check_pair_maps(case("maps", MarianMTModel, target_pad=True), tmp_path)


@pytest.mark.parametrize("case", CASES[1:3], ids=str)
def test_hidden_states_of_every_layer_agree(case: Case, tmp_path: Path) -> None:
    check_hidden(case, tmp_path)


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_step_by_step_is_the_whole_pass(case: Case, tmp_path: Path) -> None:
    check_pair_steps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("marian", MarianConfig)


def test_one_table_parts_where_tying_is_off(tmp_path: Path) -> None:
    """There, without tying, the shared table is used by nothing; here it is left in the file."""
    untied = case("untied", MarianMTModel, {"tie_word_embeddings": False})
    check_logits(untied, tmp_path)


def test_positions_in_the_file_must_be_sinusoids(tmp_path: Path) -> None:
    folder = save(make(CASES[0], torch.float32), tmp_path / "bare")
    held = load_file(folder / "model.safetensors")
    held["encoder.embed_positions.weight"][5, 3] += 0.1
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"encoder.embed_positions.weight does not hold the values"):
        open_folder(folder)


def test_older_files_hold_positions_and_copies_too(tmp_path: Path) -> None:
    theirs = make(CASES[2], torch.float32)
    folder = save(theirs, tmp_path / "lm")
    held = load_file(folder / "model.safetensors")
    held |= {f"model.{side}.embed_positions.weight": theirs.model.encoder.embed_positions.weight.data.clone()
             for side in ("encoder", "decoder")}  # fmt: skip
    table = held.pop("model.shared.weight")  # a converter may have kept another of the tied names
    save_file(held | {"lm_head.weight": table}, folder / "model.safetensors", {"format": "pt"})
    a, b = both(CASES[2], theirs, open_folder(folder).model, torch.float32)
    assert (a - b).abs().max() <= 1e-5 * a.abs().max()


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="decoder_vocab_size"):
        FAMILIES["marian"].settings(Config({"vocab_size": 50, "decoder_vocab_size": 40}), "lm")
