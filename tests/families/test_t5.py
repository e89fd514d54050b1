"""T5 against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    T5ForConditionalGeneration,
)

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder, save_foreign
from anyformer.families import FAMILIES
from anyformer.families.config import FamilyConfig
from anyformer.heads import LM
from tests.families.cases.t5 import CASES
from tests.families.parity import (
    both,
    make,
    save,
)


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
        FAMILIES["t5"].settings(FamilyConfig(data), "lm")
