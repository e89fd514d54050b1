"""RoBERTa against transformers."""

from pathlib import Path

import torch

from anyformer.checkpoints.folder import open_folder
from tests.families.cases.roberta import CASES
from tests.families.parity import make, save


def test_a_masked_folder_opens_bare_without_a_pooler(tmp_path: Path) -> None:
    opened = open_folder(save(make(CASES[1], torch.float32), tmp_path / "a"), head="bare")
    assert opened.head == "body"


def test_a_classifier_drops_channels_twice(tmp_path: Path) -> None:
    head = open_folder(save(make(CASES[6], torch.float32), tmp_path / "a")).spec.settings()["head"]
    assert (head.input_dropout, head.dropout) == (0.3, 0.3)
