"""ALBERT against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertModel,
)

from anyformer import MLP, Attention, Block, Stack, UserError, attention_maps
from anyformer.checkpoints.folder import open_folder, save_foreign
from tests.families.cases.albert import case
from tests.families.parity import Case, make, save

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights"


def test_each_group_has_the_blocks_of_its_own_layers() -> None:
    narrow, wide = (Block(mixer=Attention(heads=2), feed=MLP(width=width)) for width in (3, 5))
    stack = Stack(width=8, depth=5, block=(narrow, narrow, narrow, wide, wide), groups=2).build()
    assert stack.order == [0, 0, 0, 1, 1]
    assert [block.feed.up.out_features for block in stack.blocks] == [3, 5]
    with pytest.raises(UserError, match="share weights"):
        Stack(width=8, depth=5, block=(narrow, narrow, wide, wide, wide), groups=2)


@torch.no_grad()
def test_a_pretraining_folder_opens_whole_and_as_masked(tmp_path: Path) -> None:
    masked = case("masked", AlbertForMaskedLM, "right")
    both = Case(masked.name, AlbertForPreTraining, masked.config, masked.theirs, masked.ours, masked.real)
    theirs = make(both, torch.float64)
    folder = save(theirs, tmp_path / "a")
    whole = open_folder(folder)
    (tokens,), options = masked.ours(torch.float64)
    wanted = theirs(**masked.theirs(torch.float64))
    assert whole.head == "pretraining"
    assert (whole.model(tokens, **options).pooled - wanted.sop_logits).abs().max() <= 1e-10
    for opened in (whole, open_folder(folder, head="masked")):
        assert (opened.model(tokens, **options).logits - wanted.prediction_logits)[masked.real].abs().max() <= 1e-10
    save_foreign(tmp_path / "again", whole.spec, whole.model, config=whole.config)
    again, info = AlbertForPreTraining.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values())
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name].double(), value), name


@pytest.mark.parametrize("option, value", [("inner_group_num", 2), ("num_hidden_groups", 4), ("is_decoder", True)])
def test_what_is_not_implemented_is_refused_by_name(option: str, value: Any, tmp_path: Path) -> None:
    folder = save(make(case("bare", AlbertModel), torch.float32), tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {option: value}))
    with pytest.raises(UserError, match=option):
        open_folder(folder)


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="shared/data/weights is not beside the repository")
@torch.no_grad()
def test_trained_weights_give_the_recorded_answers(tmp_path: Path) -> None:
    source = WEIGHTS / "albert_rxnmapper"
    weights = torch.load(source / "pytorch_model.bin", weights_only=True, map_location="cpu")
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    golden = json.loads((WEIGHTS / "golden_hf.json").read_text())["albert"]
    opened = open_folder(tmp_path)
    assert opened.unread == []
    tokens = torch.tensor([golden["ids"]])
    logits = opened.model(tokens).logits[0]
    assert logits.argmax(-1).tolist() == golden["argmax"]
    assert (logits[1, :8] - torch.tensor(golden["logits_pos1_first8"])).abs().max() <= 1e-4
    assert abs(logits.double().sum().item() - golden["sum"]) <= 1e-5 * abs(golden["sum"])
    (maps,) = attention_maps(opened.model, tokens).values()  # twelve layers, one set of weights
    assert (maps[10][0, 5, 12] - torch.tensor(golden["attn_l11_h5_row12"])).abs().max() <= 1e-5
