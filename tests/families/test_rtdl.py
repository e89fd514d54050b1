"""FT-Transformer against the package it was published in, both directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rtdl_revisiting_models import FTTransformer
from safetensors.torch import load_file, save_file

import anyformer
from anyformer.checkpoints.folder import open_folder
from anyformer.presets.tables import ft_transformer
from recipes import rtdl_to_anyformer as recipe  # importable from the checkout: pytest's pythonpath is its root

SMALL = {"n_blocks": 3, "d_block": 24, "attention_n_heads": 4, "attention_dropout": 0.2, "ffn_d_hidden": None,
         "ffn_d_hidden_multiplier": 4 / 3, "ffn_dropout": 0.1, "residual_dropout": 0.0, "d_out": 2}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "numbers and categories": {"n_cont_features": 3, "cat_cardinalities": [4, 1, 7]},
    "numbers": {"n_cont_features": 5, "cat_cardinalities": []},
    "one category": {"n_cont_features": 0, "cat_cardinalities": [6], "d_out": 1},
    "relu": {"n_cont_features": 2, "cat_cardinalities": [3], "ffn_activation": "ReLU", "ffn_d_hidden": 17,
             "ffn_d_hidden_multiplier": None},
    "one head": {"n_cont_features": 2, "cat_cardinalities": [3, 2], "attention_n_heads": 1},
    "one block, no output": {"n_cont_features": 2, "cat_cardinalities": [3], "n_blocks": 1, "d_out": None},
}  # fmt: skip


def theirs(case: str) -> tuple[Any, dict[str, Any]]:
    sizes = SMALL | CASES[case]
    torch.manual_seed(0)
    model = FTTransformer(**sizes).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model, sizes


def written(case: str, folder: Path) -> Any:
    model, sizes = theirs(case)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "sizes.json").write_text(json.dumps(sizes))
    return model


def rows(case: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    sizes = CASES[case]
    numbers = torch.randn(7, sizes["n_cont_features"], dtype=torch.float64) if sizes["n_cont_features"] else None
    columns = [torch.randint(0, count, (7,)) for count in sizes["cat_cardinalities"]]
    return numbers, torch.stack(columns, 1) if columns else None


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_answers_are_equal_in_both_directions(case: str, tmp_path: Path) -> None:
    model = written(case, tmp_path / "there")
    spec, ours = recipe.open_rtdl(tmp_path / "there")
    given = rows(case)
    out, wanted = ours(*given), model(*given)
    assert ((out.pooled if out.logits is None else out.logits) - wanted).abs().max() <= 1e-9
    recipe.save_rtdl(tmp_path / "back", spec, ours)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("there", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = FTTransformer(**json.loads((tmp_path / "back" / "sizes.json").read_text())).double().eval()
    again.load_state_dict(after)
    assert (again(*given) - wanted).abs().max() <= 1e-9
    next(p for p in ours.parameters() if p.dim() == 2).mul_(1.5)  # control: another weight is noticed
    out = ours(*given)
    assert ((out.pooled if out.logits is None else out.logits) - wanted).abs().max() > 1e-6


def test_the_preset_is_their_default(tmp_path: Path) -> None:
    sizes = FTTransformer.get_default_kwargs() | {"n_cont_features": 8, "cat_cardinalities": [], "d_out": 1}
    model = FTTransformer(**sizes)
    preset = anyformer.preset("ft-transformer")
    count = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in preset.build(device="meta").parameters()) == count
    assert count == 894_913  # the paper says 893k of an earlier program
    assert recipe.settings(recipe.FamilyConfig(sizes)) == preset


@torch.no_grad()
def test_a_model_made_here_is_written_there(tmp_path: Path) -> None:
    spec = ft_transformer(16, 2, 4, numbers=3, categories=(4, 2), outputs=1)
    model = spec.build(seed=0, dtype=torch.float64).eval()
    recipe.save_rtdl(tmp_path / "x", spec, model)
    again = FTTransformer(**json.loads((tmp_path / "x" / "sizes.json").read_text())).double().eval()
    again.load_state_dict(load_file(tmp_path / "x" / "model.safetensors"))
    numbers, categories = torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 2, (5, 2))
    assert (again(numbers, categories) - model(numbers, categories).logits).abs().max() <= 1e-9


@torch.no_grad()
def test_the_command_goes_there_and_back(tmp_path: Path) -> None:
    written("numbers and categories", tmp_path / "rtdl")
    recipe.main([str(tmp_path / "rtdl"), str(tmp_path / "own")])
    assert open_folder(tmp_path / "own").family is None
    recipe.main(["--back", str(tmp_path / "own"), str(tmp_path / "again")])
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("rtdl", "again"))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("changes, said", [
    ({"linformer_kv_compression_ratio": 0.5}, "Linformer"),
    ({"ffn_activation": "GEGLU"}, "expected ReLU or ReGLU"),
    ({"d_blok": 3}, "'d_blok' is not an argument"),
    ({"d_block": None}, "sizes are missing"),
])  # fmt: skip
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(anyformer.UserError, match=said):
        recipe.settings(recipe.FamilyConfig(SMALL | CASES["numbers"] | changes, "sizes.json"))


def test_what_rtdl_has_no_words_for_is_refused(tmp_path: Path) -> None:
    gpt = anyformer.preset("gpt2-tiny")
    with pytest.raises(anyformer.UserError, match="not an FT-Transformer"):
        recipe.save_rtdl(tmp_path / "x", gpt, gpt.build(device="meta"))
    spec = ft_transformer(16, 2, 4, numbers=3)
    missing = spec.replace(embed=spec.embed.replace(missing=True))
    with pytest.raises(anyformer.UserError, match="not an FT-Transformer"):
        recipe.save_rtdl(tmp_path / "x", missing, missing.build(seed=0))
    alone = ft_transformer(16, 2, 1, numbers=3)
    with pytest.raises(anyformer.UserError, match="no output projection"):
        recipe.save_rtdl(tmp_path / "y", alone, alone.build(seed=0))


def test_a_folder_that_misses_a_tensor_is_refused(tmp_path: Path) -> None:
    written("numbers", tmp_path / "x")
    kept = load_file(tmp_path / "x" / "model.safetensors")
    kept.pop("backbone.blocks.1.attention.W_k.bias")
    save_file(kept, tmp_path / "x" / "model.safetensors")
    with pytest.raises(anyformer.UserError, match=r"missing backbone\.blocks\.1\.attention\.W_k\.bias"):
        recipe.open_rtdl(tmp_path / "x")
