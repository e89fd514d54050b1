"""BART against transformers."""

from pathlib import Path

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
)

from anyformer import UserError
from anyformer.checkpoints import tensors
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from tests.families.cases.bart import CASES, case
from tests.families.parity import both, check_logits, make, save


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
    spec = FAMILIES["bart"].settings(
        FamilyConfig({"num_hidden_layers": 2, "encoder_layers": 7, "hidden_size": 64}), "bare"
    )
    assert (spec.encoder.stack.depth, spec.encoder.stack.width) == (2, 64)
    theirs = BartConfig.from_dict({"num_hidden_layers": 2, "encoder_layers": 7, "hidden_size": 64})
    assert (theirs.encoder_layers, theirs.d_model) == (2, 64)


def test_what_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="activation_function = 'mish'"):
        FAMILIES["bart"].settings(FamilyConfig({"activation_function": "mish"}), "lm")
