"""ELECTRA's discriminator is the head `Replaced`: the same logits as transformers, and its folder goes back."""

from pathlib import Path

import pytest
import torch
from transformers import ElectraForPreTraining

from anyformer import Replaced
from anyformer.checkpoints.folder import open_folder, save_foreign
from tests.families.cases.electra import CASES
from tests.families.parity import check_round_trip, make, quietly, save

DISCRIMINATORS = [case for case in CASES if case.kind is ElectraForPreTraining]


@pytest.mark.quick
@pytest.mark.parametrize("case", DISCRIMINATORS, ids=str)
@torch.no_grad()
def test_the_discriminator_opens_as_replaced_and_its_logits_are_theirs(case, tmp_path: Path) -> None:
    theirs = make(case, torch.float64)
    opened = open_folder(save(theirs, tmp_path / "x"))
    assert isinstance(opened.spec.head, Replaced) and opened.head == "replaced"
    given, options = case.ours(torch.float64)
    got, wanted = opened.model(*given, **options).logits[..., 0], theirs(**case.theirs(torch.float64)).logits
    assert got.shape == wanted.shape and (got - wanted)[case.real].abs().max() <= 1e-10


@torch.no_grad()
def test_one_made_here_opens_there(tmp_path: Path) -> None:
    case = DISCRIMINATORS[0]
    opened = check_round_trip(case, tmp_path)
    spec = opened.spec
    net = spec.build(seed=4).eval()
    _, family, head = save_foreign(tmp_path / "made", spec, net)
    assert (family.model_type, head) == ("electra", "replaced")
    with quietly():
        again, info = ElectraForPreTraining.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not any(info.values()), info
    given, options = case.ours(torch.float32)
    wanted = again.eval()(**case.theirs(torch.float32)).logits
    assert (net(*given, **options).logits[..., 0] - wanted)[case.real].abs().max() <= 1e-5
