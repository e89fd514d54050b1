"""ALBERT against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)

from anyformer import MLP, Attention, Block, Stack, UserError, attention_maps, preset
from anyformer.checkpoints.folder import open_folder
from tests.families.encoders import check_layers, encoder_case, parameters
from tests.families.parity import Case, check_config, check_logits, check_maps, check_round_trip, make, save

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 50,
    "max_position_embeddings": 32, "embedding_size": 10,
}  # fmt: skip
WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights"


def case(name: str, kind: type, pad: str = "left", length: int = 11, segments: bool = True, **settings: Any) -> Case:
    return encoder_case(name, kind, AlbertConfig(**{**SMALL, **settings}), pad=pad, length=length, segments=segments)


CASES = [
    case("bare, five layers, two groups", AlbertModel, "right", num_hidden_layers=5, num_hidden_groups=2),
    case("masked, three groups", AlbertForMaskedLM, num_hidden_layers=7, num_hidden_groups=3),
    case("bare, a group a layer, no narrowing", AlbertModel, num_hidden_groups=3, embedding_size=24),
    case("bare, full length, relu, one kind", AlbertModel, "none", 32, False, hidden_act="relu", type_vocab_size=1),
    case("masked, untied, silu, eps", AlbertForMaskedLM, "right", tie_word_embeddings=False, hidden_act="silu",
         layer_norm_eps=1e-3),
    case("masked, gelu, wider embedding", AlbertForMaskedLM, hidden_act="gelu", embedding_size=30,
         intermediate_size=96),
    case("classify", AlbertForSequenceClassification, "right", num_labels=5, classifier_dropout_prob=0.3),
    case("tag", AlbertForTokenClassification, num_labels=4, num_hidden_groups=3),
    case("span", AlbertForQuestionAnswering, "right", 17),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_equal_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_folder_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_every_layer_and_the_pooler_equal_theirs(case: Case, tmp_path: Path) -> None:
    check_layers(case, tmp_path)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_every_map_equals_their_eager_map(case: Case, tmp_path: Path) -> None:
    check_maps(case, tmp_path)


def test_every_option_of_the_config_is_read() -> None:
    check_config("albert", AlbertConfig)


SIZES = {  # width, layers, heads
    "albert-base": (768, 12, 12),
    "albert-large": (1024, 24, 16),
    "albert-xlarge": (2048, 24, 16),
    "albert-xxlarge": (4096, 12, 64),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_as_many_parameters(name: str) -> None:
    width, depth, heads = SIZES[name]
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    with torch.device("meta"):
        theirs = AlbertModel(AlbertConfig(**sizes, intermediate_size=4 * width))
    assert parameters(preset(name).build(device="meta")) == parameters(theirs)


def test_each_group_has_the_blocks_of_its_own_layers() -> None:
    narrow, wide = (Block(mixer=Attention(heads=2), feed=MLP(width=width)) for width in (3, 5))
    stack = Stack(width=8, depth=5, block=(narrow, narrow, narrow, wide, wide), groups=2).build()
    assert stack.order == [0, 0, 0, 1, 1]
    assert [block.feed.up.out_features for block in stack.blocks] == [3, 5]
    with pytest.raises(UserError, match="share weights"):
        Stack(width=8, depth=5, block=(narrow, narrow, wide, wide, wide), groups=2)


@torch.no_grad()
def test_a_pretraining_folder_opens_as_masked(tmp_path: Path) -> None:
    masked = case("masked", AlbertForMaskedLM)
    both = Case(masked.name, AlbertForPreTraining, masked.config, masked.theirs, masked.ours, masked.real)
    theirs = make(both, torch.float64)
    opened = open_folder(save(theirs, tmp_path / "a"))
    (tokens,), options = masked.ours(torch.float64)
    wanted = theirs(**masked.theirs(torch.float64)).prediction_logits
    assert opened.head == "masked"
    assert (opened.model(tokens, **options).logits - wanted)[masked.real].abs().max() <= 1e-10


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
