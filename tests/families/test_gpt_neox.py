"""GPT-NeoX against transformers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from anyformer.positions.rope import Rope
from tests.families.cases.gpt_neox import CASES
from tests.families.parity import (
    both,
    make,
    save,
)


def test_published_spellings_are_read() -> None:
    spec = FAMILIES["gpt_neox"].settings(
        FamilyConfig({"hidden_size": 64, "num_attention_heads": 4, "rotary_pct": 0.5, "rotary_emb_base": 500}), "lm"
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
        FAMILIES["gpt_neox"].settings(
            FamilyConfig({"hidden_size": 24, "num_attention_heads": 2, "rotary_pct": 0.3}), "lm"
        )
