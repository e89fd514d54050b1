"""Marian against transformers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from tests.families.cases.marian import CASES, case
from tests.families.parity import both, check_logits, make, save


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
        FAMILIES["marian"].settings(FamilyConfig({"vocab_size": 50, "decoder_vocab_size": 40}), "lm")
