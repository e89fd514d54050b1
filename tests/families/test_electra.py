"""ELECTRA against transformers."""

from pathlib import Path

import torch

from anyformer.checkpoints.folder import open_folder
from tests.families.cases.electra import CASES
from tests.families.parity import make, save


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
