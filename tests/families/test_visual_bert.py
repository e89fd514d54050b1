"""VisualBERT against transformers: what the battery of all families does not ask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anyformer import UserError
from anyformer.checkpoints.folder import open_folder
from tests.families.cases.visual_bert import CASES
from tests.families.parity import make, save


@torch.no_grad()
def test_whether_an_image_belongs_to_its_text_is_told_alike(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "pretraining")
    theirs = make(case, torch.float64)
    model = open_folder(save(theirs, tmp_path / "a")).model
    given, options = case.ours(torch.float64)
    wanted = theirs(**case.theirs(torch.float64)).seq_relationship_logits
    assert (model(*given, **options).pooled - wanted).abs().max() <= 1e-10
    other = (given[0], given[1].flip(0))  # control: other images, other answers
    assert (model(*other, **options).pooled - wanted).abs().max() > 1e-4


@torch.no_grad()
def test_words_alone_are_read_too(tmp_path: Path) -> None:
    theirs = make(CASES[0], torch.float64)
    model = open_folder(save(theirs, tmp_path / "a")).model
    tokens = CASES[0].theirs(torch.float64)["input_ids"]
    wanted = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
    assert (model(tokens, None).hidden - wanted).abs().max() <= 1e-10


def test_regions_of_another_length_are_refused(tmp_path: Path) -> None:
    model = open_folder(save(make(CASES[0], torch.float32), tmp_path / "a")).model
    with pytest.raises(UserError, match=r"expected \(B, N, 10\)"):
        model(torch.ones(1, 3, dtype=torch.long), torch.zeros(1, 4, 7))
