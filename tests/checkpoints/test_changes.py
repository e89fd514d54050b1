"""A trained model changed on the way: what must stay the same stays, what is lost is said."""

from __future__ import annotations

import pytest
import torch

import anyformer
from anyformer import Attention, Linear, Rope, checks, preset, replace_in
from anyformer.checkpoints import changes
from anyformer.errors import UserError

TOKENS = torch.randint(0, 512, (2, 20), generator=torch.Generator().manual_seed(0))


def built(name: str, **changed: object) -> tuple:
    spec = replace_in(preset(name), {key.replace("__", "."): value for key, value in changed.items()})
    model = spec.build(seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
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
    assert made.spec.stack.block.relative == Rope(scaling=Linear(factor=4.0))
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
