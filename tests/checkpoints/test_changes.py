"""A trained model changed on the way: what must stay the same stays, what is lost is said."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer
from anyformer import Attention, LinearScaling, Rope, checks, preset, replace_in
from anyformer.checkpoints import changes
from anyformer.checkpoints.folder import save_own
from anyformer.cli import main
from anyformer.errors import UserError
from anyformer.positions import DynamicScaling, YarnScaling

TOKENS = torch.randint(0, 512, (2, 20), generator=torch.Generator().manual_seed(0))


def built(name: str, **changed: object) -> tuple:
    spec = replace_in(preset(name), {key.replace("__", "."): value for key, value in changed.items()})
    model = spec.build(seed=0).eval()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(i))
    return spec, model


def cache_bytes(model: torch.nn.Module) -> int:
    state = model.state(2)
    with torch.no_grad():
        model(TOKENS, state=state)
    return state.bytes


@torch.no_grad()
def test_heads_that_were_equal_are_averaged_without_a_trace() -> None:
    spec, model = built("llama2-7b-tiny")
    for block in model.stack.blocks:  # make the keys and values of each pair of heads equal
        rows = block.mixer.qkv.weight.view(4, 3, 32, 128)
        rows[1::2, 1:] = rows[0::2, 1:].clone()
    made = changes.fewer_kv_heads(spec, model, 2)
    assert made.spec.stack.block.mixer.kv_heads == 2
    assert (made.model(TOKENS).logits - model(TOKENS).logits).abs().max() < 1e-4
    assert cache_bytes(model) == 2 * cache_bytes(made.model)


@torch.no_grad()
def test_grouped_heads_are_the_mean_of_their_group() -> None:
    spec, model = built("llama2-7b-tiny")
    made = changes.fewer_kv_heads(spec, model, 1)
    old, new = model.stack.blocks[0].mixer.qkv.weight, made.model.stack.blocks[0].mixer.qkv.weight
    keys = old.view(4, 3, 32, 128)[:, 1].mean(0)
    assert torch.allclose(new[4 * 32 : 5 * 32], keys)
    assert (made.model(TOKENS).logits - model(TOKENS).logits).abs().max() > 1e-3  # control: unequal heads do change


def test_a_count_that_does_not_divide_is_refused() -> None:
    spec, model = built("llama2-7b-tiny")
    with pytest.raises(UserError, match="cannot be averaged into 3"):
        changes.fewer_kv_heads(spec, model, 3)


@torch.no_grad()
def test_the_decoder_of_an_encoder_decoder_loses_heads_and_the_encoder_does_not() -> None:
    spec, model = built("t5-small-tiny")
    made = changes.fewer_kv_heads(spec, model, 2)
    assert made.spec.decoder.stack.block.cross.kv_heads == 2 and made.spec.encoder == spec.encoder
    assert torch.isfinite(made.model(TOKENS, TOKENS).logits).all()


@torch.no_grad()
def test_kept_layers_are_the_teachers_own() -> None:
    spec, model = built("bert-base-tiny")
    made = changes.fewer_layers(spec, model, [0, 2])
    assert made.spec.stack.depth == 2
    assert torch.equal(made.model.stack.blocks[1].mixer.qkv.weight, model.stack.blocks[2].mixer.qkv.weight)
    assert torch.equal(made.model.embed.table.weight, model.embed.table.weight)
    whole = changes.fewer_layers(spec, model, [0, 1, 2])
    assert torch.equal(whole.model(TOKENS).hidden, model(TOKENS).hidden)
    with pytest.raises(UserError, match="not all among"):
        changes.fewer_layers(spec, model, [0, 9])


@torch.no_grad()
def test_shorter_positions_are_cut_and_longer_ones_interpolated() -> None:
    spec, model = built("gpt2-tiny")
    short = changes.longer(spec, model, 64)
    assert torch.equal(short.model(TOKENS).logits, model(TOKENS).logits)
    long = changes.longer(spec, model, 511)  # 255 gaps become 510: every second row is an old one
    table = long.model.embed.position.table.weight
    assert torch.allclose(table[::2], model.embed.position.table.weight, atol=1e-5)
    assert torch.isfinite(long.model(torch.zeros(1, 511, dtype=torch.long)).logits).all()
    with pytest.raises(UserError, match="learned positions"):
        model(torch.zeros(1, 511, dtype=torch.long))


def test_rotary_positions_are_divided_by_the_stretch() -> None:
    spec, model = built("llama2-7b-tiny")
    made = changes.longer(spec, model, 4096, trained=1024)
    assert made.spec.stack.block.relative == Rope(scaling=LinearScaling(factor=4.0))
    assert changes.longer(spec, model, 512, trained=1024).spec == spec


@pytest.mark.parametrize("kind", ["learned", "sinusoid", "rope", "alibi", "buckets", "shaw", "none"])
@torch.no_grad()
def test_any_position_can_take_the_place_of_any_other(kind: str) -> None:
    spec, model = built("gpt2-tiny")
    made = changes.other_position(spec, model, kind)
    assert checks.cache(made.model, TOKENS)
    assert torch.equal(made.model.stack.blocks[0].mixer.qkv.weight, model.stack.blocks[0].mixer.qkv.weight)
    assert made.notes and (kind == "learned" or any("lost" in note for note in made.notes))


def test_an_unknown_position_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'rope'"):
        changes.other_position(*built("gpt2-tiny"), "ropes")


def test_what_has_no_heads_to_average_is_left_alone() -> None:
    assert isinstance(preset("gpt2-tiny").stack.block.mixer, Attention)
    spec, model = built("gpt2-tiny")
    same = changes.fewer_kv_heads(spec, model, 4)
    assert torch.equal(same.model(TOKENS).logits, model(TOKENS).logits)
    assert anyformer.Spec.from_json(same.spec.to_json()) == same.spec


# ---------------------------------------------------------------- what is said is what happens


def told(name: str, change: Any, **settings: object) -> tuple[list[str], float]:
    """The notes of a change, and by how much answers to texts that the model could read before differ now."""
    spec, model = built(name, **settings)
    made = change(spec, model)
    given = (TOKENS, TOKENS) if isinstance(spec, anyformer.Seq2Seq) else (TOKENS,)
    with torch.no_grad():
        before, after = (m(*given) for m in (model, made.model))
    a, b = (out.hidden if out.logits is None else out.logits for out in (before, after))
    return made.notes, (a - b).abs().max().item()


ROPED, LEARNED, PAIR = "llama2-7b-tiny", "gpt2-tiny", "bart-base-tiny"
CLAIMS = {
    "learned, cut": (LEARNED, lambda s, m: changes.longer(s, m, 64),
                     ["embed: learned positions cut from 256 to 64; answers to texts of up to 64 tokens stay the "
                      "same"]),
    "learned, the same": (LEARNED, lambda s, m: changes.longer(s, m, 256),
                          ["embed: 256 learned positions already; nothing changed"]),
    "learned, longer": (LEARNED, lambda s, m: changes.longer(s, m, 600),
                        ["embed: learned positions interpolated from 256 to 600; answers change; fine-tuning is "
                         "advised"]),
    "rope, longer": (ROPED, lambda s, m: changes.longer(s, m, 256, 64),
                     ["stack: rotary positions divided by 4, for 256 tokens instead of 64; answers change; fine-tuning "
                      "is advised"]),
    "rope, shorter": (ROPED, lambda s, m: changes.longer(s, m, 32, 64),
                      ["stack: rotary positions have no limit and were trained on 64 tokens; nothing changed"]),
    "rope, unknown": (ROPED, lambda s, m: changes.longer(s, m, 32),
                      ["stack: rotary positions have no limit; nothing changed; the length it was trained on is not "
                       "known, and answers beyond that may be poor"]),
    "no limit": ("bloom-560m-tiny", lambda s, m: changes.longer(s, m, 4096),
                 ["its positions have no limit; nothing changed"]),
    "heads, fewer": (ROPED, lambda s, m: changes.fewer_kv_heads(s, m, 2),
                     ["stack: 4 key/value heads averaged into 2; answers change; fine-tuning is advised"]),
    "heads, the same": (ROPED, lambda s, m: changes.fewer_kv_heads(s, m, 4),
                        ["stack: 4 key/value heads already; nothing changed"]),
    "layers, some": (ROPED, lambda s, m: changes.fewer_layers(s, m, [0]),
                     ["stack: layers 0 of 4 kept; answers change; fine-tuning is advised"]),
    "layers, all": (ROPED, lambda s, m: changes.fewer_layers(s, m, [0, 1, 2, 3]),
                    ["stack: layers 0, 1, 2, 3 of 4 kept; nothing changed"]),
    "layers, another order": (ROPED, lambda s, m: changes.fewer_layers(s, m, [1, 0, 2, 3]),
                              ["stack: layers 1, 0, 2, 3 of 4 kept; answers change; fine-tuning is advised"]),
    "learned to learned": (LEARNED, lambda s, m: changes.other_position(s, m, "learned"),
                           ["positions are learned already; nothing changed"]),
    "learned to learned, after padding": ("roberta-base-tiny", lambda s, m: changes.other_position(s, m, "learned"),
                                          ["positions are learned already; nothing changed"]),
    "rope to rope": (ROPED, lambda s, m: changes.other_position(s, m, "rope"),
                     ["positions are rope already; nothing changed"]),
    "learned to rope": (LEARNED, lambda s, m: changes.other_position(s, m, "rope"),
                        ["positions changed from learned to rope; answers change; the model must be trained again",
                         "1 tensors lost: embed.position.table.weight"]),
    "rope to none": (ROPED, lambda s, m: changes.other_position(s, m, "none"),
                     ["positions changed from rope to none; answers change; the model must be trained again"]),
    "both halves": (PAIR, lambda s, m: changes.longer(s, m, 40), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_what_a_change_says_about_answers_is_true(case: str) -> None:
    name, change, expected = CLAIMS[case]
    notes, difference = told(name, change)
    assert expected is None or notes == expected
    if any("answers change" in note for note in notes):
        assert difference > 1e-3
    else:
        assert all("nothing changed" in note or "stay the same" in note for note in notes)
        assert difference == 0


def test_rotary_positions_stretched_already_stretch_on_or_are_refused() -> None:
    spec, model = built(ROPED, stack__block__relative=Rope(scaling=LinearScaling(factor=2.0)))
    assert changes.longer(spec, model, 256, 64).spec.stack.block.relative.scaling == LinearScaling(factor=8.0)
    spec, model = built(ROPED, stack__block__relative=Rope(scaling=DynamicScaling(factor=2.0, original=64)))
    assert changes.longer(spec, model, 256, 64).spec == spec
    spec, model = built(ROPED, stack__block__relative=Rope(scaling=YarnScaling(factor=2.0, original=64)))
    with pytest.raises(UserError, match="stretched already, by Yarn"):
        changes.longer(spec, model, 256, 64)


def test_heads_of_a_model_without_any_are_refused() -> None:
    spec, model = built("hyena-small-tiny")
    with pytest.raises(UserError, match="no layer has key/value heads"):
        changes.fewer_kv_heads(spec, model, 1)


@torch.no_grad()
def test_what_another_image_size_says_about_answers_is_true() -> None:
    spec, model = built("vit-b16-tiny")
    side = spec.embed.pixels[0]
    old, new = torch.randn(1, 3, side, side), torch.randn(1, 3, 2 * side, 2 * side)
    made = changes.other_image_size(spec, model, 2 * side)
    assert f"answers to images of {2 * side} x {2 * side} stay the same" in made.notes[0]
    assert "to those of other sizes they change; fine-tuning is advised" in made.notes[0]
    assert (made.model(new).hidden - model(new).hidden).abs().max() < 1e-4
    assert (made.model(old).hidden - model(old).hidden).abs().max() > 1e-4
    same = changes.other_image_size(spec, model, side)
    assert same.notes == [f"embed: images of {side} x {side} already; nothing changed"] and same.model is model


def converted(source: Path, target: Path, *options: str) -> list[str]:
    """The notes of the command `convert`."""
    words = ["convert", str(source), str(target), "--to", "anyformer", "--json", *options]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(words) == 0
    return json.loads(out.getvalue())["notes"]


def test_convert_knows_how_long_the_texts_of_a_run_were(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a fox. " * 300)
    run = anyformer.train([text], "lm", ROPED, out=tmp_path / "run", device="cpu", progress="silent",
                          settings={"training.steps": 1, "data.tokenizer.max_length": 32})  # fmt: skip
    (said,) = converted(run.path, tmp_path / "longer", "--max-length", "64")
    assert "divided by 2, for 64 tokens instead of 32" in said
    opened = anyformer.load(tmp_path / "longer")
    assert opened.preprocess is not None and opened.preprocess.length == 64
    assert opened.spec.stack.block.relative.scaling == LinearScaling(factor=2.0)


def test_convert_says_what_another_type_does(tmp_path: Path) -> None:
    spec, model = built(LEARNED)
    save_own(tmp_path / "wide", spec, model)
    assert converted(tmp_path / "wide", tmp_path / "a", "--dtype", "float32") == [
        "weights are float32 already; nothing changed"
    ]
    assert converted(tmp_path / "wide", tmp_path / "b", "--dtype", "bfloat16") == [
        "weights rounded from float32 to bfloat16; answers change slightly"
    ]
    assert converted(tmp_path / "b", tmp_path / "c", "--dtype", "float32") == [
        "weights widened from bfloat16 to float32; their values stay the same"
    ]
    first, second = (anyformer.load(tmp_path / name).model for name in ("b", "c"))
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(p.float(), q) for p, q in pairs)
    assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), second.parameters(), strict=True))
    with torch.no_grad():
        next(model.parameters()).fill_(1e6)
    save_own(tmp_path / "large", spec, model)
    assert (
        main(["convert", str(tmp_path / "large"), str(tmp_path / "d"), "--to", "anyformer", "--dtype", "float16"]) == 2
    )
    assert not (tmp_path / "d").exists()
