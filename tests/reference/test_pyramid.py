"""Pyramids: equal to transformers' Swin on its random weights, and held to what every body of a model must answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from anyformer import (
    Attention,
    Block,
    LayerNorm,
    Model,
    Patches,
    Pooled,
    Pyramid,
    Stack,
    Stage,
    UserError,
    Window2D,
    preset,
)  # fmt: skip
from anyformer.core.pyramid import coarser
from tests.laws.nets import build, gap, numbers
from tests.reference.copying import agree, deviation

DEPTHS, HEADS, WIDTH, WINDOW = (2, 2, 2), (2, 2, 4), 8, 4


def swin(size: int, **settings: Any) -> Model:
    stages = tuple(
        Stage(depth=depth, block=tuple(Block(mixer=Window2D(heads=heads, window=WINDOW, shift=shift), **settings)
                                       for shift in (False, True)))
        for depth, heads in zip(DEPTHS, HEADS, strict=True)
    )  # fmt: skip
    embed = Patches(size=size, patch=2, cls=False, position=None, norm=LayerNorm())
    return Model(embed=embed, stack=Pyramid(width=WIDTH, stages=stages), head=Pooled(pool="mean"))


def theirs(size: int) -> Any:
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(0)
    config = SwinConfig(image_size=size, patch_size=2, embed_dim=WIDTH, depths=list(DEPTHS), num_heads=list(HEADS),
                        window_size=WINDOW, drop_path_rate=0.0)  # fmt: skip
    net = SwinModel(config).double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn(p.shape, dtype=torch.float64))
    return net


def renamed(net: Any) -> dict[str, Tensor]:
    """Their weights under our names: heads side by side, the four cells of a merge row by row."""
    given = dict(net.named_parameters())
    found = {
        "embed.patch.weight": given["embeddings.patch_embeddings.projection.weight"].flatten(1),
        "embed.patch.bias": given["embeddings.patch_embeddings.projection.bias"],
    }
    pairs = {"embed.norm": "embeddings.norm", "stack.final": "layernorm"}
    for i, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
        for j in range(depth):
            ours, other = f"stack.stages.{i}.blocks.{j}", f"encoder.layers.{i}.blocks.{j}"
            for leaf in ("weight", "bias"):
                parts = [given[f"{other}.attention.{name}_proj.{leaf}"].unflatten(0, (heads, -1)) for name in "qkv"]
                found[f"{ours}.mixer.qkv.{leaf}"] = torch.stack(parts, 1).flatten(0, 2)
            table = given[f"{other}.attention.relative_position_bias.relative_position_bias_table"]
            found[f"{ours}.mixer.table"] = table
            pairs |= {
                f"{ours}.mixer.out": f"{other}.attention.o_proj",
                f"{ours}.around_mixer.before": f"{other}.layernorm_before",
                f"{ours}.around_feed.before": f"{other}.layernorm_after", f"{ours}.feed.up": f"{other}.mlp.fc1",
                f"{ours}.feed.down": f"{other}.mlp.fc2",
            }  # fmt: skip
        if i < len(DEPTHS) - 1:
            for name, leaf in (("norm", "weight"), ("norm", "bias"), ("reduction", "weight")):
                value = given[f"encoder.layers.{i}.downsample.{name}.{leaf}"]
                by_rows = value.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :].flatten(-2)  # theirs go down, then along
                found[f"stack.stages.{i}.merge.{'reduce' if name == 'reduction' else name}.{leaf}"] = by_rows
    for ours, other in pairs.items():
        found |= {f"{ours}.{leaf}": given[f"{other}.{leaf}"] for leaf in ("weight", "bias")}
    return found


def test_hidden_states_and_gradients_equal_those_of_swin() -> None:
    """16, 8 and 4 cells a side under windows of 4: whole, and at last one window that shifts no more."""
    other, net = theirs(32), swin(32).build(dtype=torch.float64).eval()
    weights = renamed(other)
    assert set(weights) == set(net.state_dict())
    pixels = numbers(2, 3, 32, 32).requires_grad_()
    got, wanted = functional_call(net, weights, (pixels,)), other(pixels)
    agree(got.hidden, wanted.last_hidden_state, [pixels, *other.parameters()])
    agree(got.pooled, wanted.pooler_output[:, :, None].squeeze(-1), [pixels])
    unshifted = functional_call(
        net,
        weights | {"stack.stages.0.blocks.1.mixer.table": 0 * weights["stack.stages.0.blocks.1.mixer.table"]},
        (pixels,),
    )
    assert deviation(unshifted.hidden, wanted.last_hidden_state) > 1e-6  # control


@pytest.mark.quick
def test_the_preset_has_the_size_of_swin_small() -> None:
    assert sum(p.numel() for p in preset("pyramid-small").build(device="meta").parameters()) == 49_606_258


@pytest.mark.quick
def test_a_pyramid_is_written_built_and_repeated_like_every_model() -> None:
    spec = swin(24, drop_path=0.2)
    assert Model.from_json(spec.to_json()) == spec and Model.from_yaml(spec.to_yaml()) == spec
    one, two, other = (spec.build(seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    meta = spec.build(device="meta")
    assert {k: v.shape for k, v in meta.state_dict().items()} == {k: v.shape for k, v in one.items()}
    assert list(meta.buffers()) == []
    names = set(one)
    assert {"stack.stages.0.blocks.1.mixer.table", "stack.stages.1.merge.reduce.weight", "stack.final.weight"} <= names
    assert not any("stages.2.merge" in name or "stages.0.final" in name for name in names)
    shares = [block.around_feed.drop_path for stage in meta.stack.stages for block in stage.blocks]
    assert shares == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16, 0.2])  # grows over all stages


@torch.no_grad()
def test_odd_sizes_and_padding_of_an_image_change_nothing() -> None:
    """A large image whose last rows and columns are padding answers as the small one; so does a batch as its rows.

    In each stage both are larger than a window, or neither is: one that is not has no shift.
    """
    net = build(swin(32))
    small, large = numbers(2, 3, 20, 28), numbers(2, 3, 32, 32, seed=4)
    large[..., :20, :28] = small
    mask = torch.zeros(2, 16, 16, dtype=torch.bool)
    mask[:, :10, :14] = True
    wanted, got = net(small), net(large, mask=mask.flatten(1))
    assert wanted.context.grid == (3, 4) and got.context.grid == (4, 4)
    assert got.context.mask.view(2, 4, 4)[:, :3].all() and got.context.mask.sum() == 24
    assert gap(got.hidden.view(2, 4, 4, -1)[:, :3].flatten(1, 2), wanted.hidden) < 1e-9
    assert gap(got.pooled, wanted.pooled) < 1e-9
    assert gap(net(small[:1]).hidden, wanted.hidden[:1]) < 1e-9
    assert gap(net(large).pooled, wanted.pooled) > 1e-3  # control


@torch.no_grad()
def test_merging_takes_four_cells_into_one() -> None:
    net = build(swin(24))
    merge = net.stack.stages[0].merge
    context = net.embed.layout(numbers(1, 3, 10, 6))  # 5 x 3 cells
    x = numbers(1, 15, WIDTH)
    padded = torch.zeros(6, 4, WIDTH, dtype=torch.float64)
    padded[:5, :3] = x.view(5, 3, WIDTH)
    wanted = [
        merge.reduce(merge.norm(torch.cat([padded[i, j], padded[i, j + 1], padded[i + 1, j], padded[i + 1, j + 1]])))
        for i in range(0, 6, 2) for j in range(0, 4, 2)
    ]  # fmt: skip
    assert gap(merge(x, context)[0], torch.stack(wanted)) < 1e-12
    assert coarser(context).grid == (3, 2) and coarser(context).index.shape[1] == 6


def test_every_layer_of_the_last_stage_and_recomputing() -> None:
    net = build(swin(16))
    pixels = numbers(2, 3, 16, 16)
    out = net(pixels, layers=True)
    assert [tuple(y.shape) for y in out.layers] == [(2, 4, 32)] * 2
    assert gap(out.layers[-1], net(pixels).hidden) == 0.0 and gap(out.layers[0], out.layers[1]) > 1e-3
    spec = net.spec.replace(stack=net.spec.stack.replace(recompute=True))
    again = build(spec).train()
    for one in (net.train(), again):
        one(pixels).pooled.square().sum().backward()
    assert all(gap(p.grad, q.grad) < 1e-12 for p, q in zip(net.parameters(), again.parameters(), strict=True))


def test_every_parameter_gets_a_gradient_and_full_attention_may_end_it() -> None:
    stages = (
        Stage(
            depth=2,
            block=(Block(mixer=Window2D(heads=2, window=2)), Block(mixer=Window2D(heads=2, window=2, shift=True))),
        ),
        Stage(depth=1, block=Block(mixer=Attention(heads=4)), width=12),
    )
    spec = Model(
        embed=Patches(size=12, patch=2, cls=False),
        stack=Pyramid(width=8, stages=stages),
        head=Pooled(classes=3, pool="mean"),
    )
    net = build(spec)
    weight = numbers(2, 3)
    (net(numbers(2, 3, 12, 12)).logits * weight).sum().backward()
    assert net(numbers(2, 3, 12, 12)).hidden.shape == (2, 9, 12)
    assert all(p.grad is not None and p.grad.any() and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.quick
def test_what_a_pyramid_cannot_do_is_refused() -> None:
    block = Block(mixer=Window2D(heads=2, window=2))
    two = Pyramid(width=8, stages=(Stage(depth=1, block=block), Stage(depth=1, block=block)))
    pixels = torch.zeros(1, 3, 8, 8)
    led = Model(embed=Patches(size=8, patch=2), stack=two).build(seed=0)
    bare = Model(embed=Patches(size=8, patch=2, cls=False), stack=two)
    wide = Pyramid(width=8, stages=(Stage(depth=1, block=Block(mixer=Attention(heads=2))),) * 2)
    ruled = Model(embed=Patches(size=8, patch=2, cls=False), stack=wide).build(seed=0)
    rule = torch.ones(1, 1, 16, 16, dtype=torch.bool)
    for make, words in (
        (lambda: Stage(depth=0, block=block), "depth 0"),
        (lambda: Pyramid(width=0, stages=(Stage(depth=1, block=block),)), "width 0 is below 1"),
        (lambda: Pyramid(width=8, stages=(Stage(depth=1, block=block, width=9),)), "the first stage is 9 wide"),
        (lambda: Pyramid(width=9, stages=(Stage(depth=1, block=block),)), "width 9 is not divisible by heads 2"),
        (lambda: led(pixels), "has no place in a coarser grid"),
        (lambda: ruled(pixels, mask=rule), "one resolution only"),
        (lambda: bare.build(seed=0).state(1), "only a causal stack"),
        (lambda: bare.build(seed=0).stack.state(1, None), "step by step"),
        (lambda: bare.plain_stack, "not a stack of one width"),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert words in str(caught.value) and len(str(caught.value)) <= 300
    assert isinstance(
        Model(embed=Patches(size=8, patch=2), stack=Stack(width=8, depth=1, block=block)).plain_stack, Stack
    )
