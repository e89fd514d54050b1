"""Where the norms sit and in which order the branches run: each place against its formula written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import MLP, Attention, Block, Cross, LayerNorm, NoNorm, RMSNorm, Stack
from tests.reference.copying import agree, context_of, deviation, seeded, shaken

B, T, D = 2, 5, 12


def built(**settings: Any) -> Any:
    return shaken(Block(mixer=Attention(heads=3), feed=MLP(width=16), **settings).build(D, causal=True))


def branches(block: Any, x: Tensor) -> tuple[Any, Any]:
    """The two sublayers as plain functions."""
    context = context_of(x)
    return (lambda y: block.mixer(y, context, None, ())), block.feed


def norms_of(block: Any) -> list[Any]:
    """Norms of the mixer and of the feed: the first of each branch, then the second where there are two."""
    found = [
        [norm for norm in (around.before, around.inside, around.after) if list(norm.parameters())]
        for around in (block.around_mixer, block.around_feed)
    ]
    return [found[0][0], found[1][0], found[0][-1], found[1][-1]]


def run(block: Any, x: Tensor) -> Tensor:
    return block(x, context_of(x), None, ())[0]


def pre(attention: Any, feed: Any, norms: list[Any], x: Tensor) -> Tensor:
    """L3, pre-norm: x + f(norm(x)) for both branches."""
    x = x + attention(norms[0](x))
    return x + feed(norms[1](x))


def post(attention: Any, feed: Any, norms: list[Any], x: Tensor) -> Tensor:
    """L3, post-norm: norm(x + f(x)) for both branches."""
    x = norms[0](x + attention(x))
    return norms[1](x + feed(x))


def branch(attention: Any, feed: Any, norms: list[Any], x: Tensor) -> Tensor:
    x = x + norms[0](attention(x))
    return x + norms[1](feed(x))


def sandwich(attention: Any, feed: Any, norms: list[Any], x: Tensor) -> Tensor:
    x = x + norms[2](attention(norms[0](x)))
    return x + norms[3](feed(norms[1](x)))


FORMULAS = {"pre": pre, "post": post, "branch": branch, "sandwich": sandwich}


@pytest.mark.quick
@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()], ids=["layer", "rms"])
@pytest.mark.parametrize("place", list(FORMULAS))
def test_each_place_equals_its_formula(place: str, norm: Any) -> None:
    block, x = built(place=place, norm=norm), seeded(B, T, D)
    given = (*branches(block, x), norms_of(block), x)
    agree(run(block, x), FORMULAS[place](*given), [x, *block.parameters()])
    for other, formula in FORMULAS.items():  # control: every other place gives something else
        if other != place:
            assert deviation(run(block, x), formula(*given)) > 1e-3


@pytest.mark.parametrize("place", ["pre", "sandwich", "branch"])
def test_parallel_branches_share_one_input(place: str) -> None:
    """GPT-NeoX: x + attention(norm1(x)) + feed(norm2(x))."""
    block, x = built(place=place, order="parallel"), seeded(B, T, D)
    attention, feed = branches(block, x)
    around = (block.around_mixer, block.around_feed)
    mixed, fed = (a.inside(f(a.before(x))) for a, f in zip(around, (attention, feed), strict=True))
    agree(run(block, x), x + mixed + fed, [x, *block.parameters()])
    assert deviation(run(block, x), FORMULAS[place](attention, feed, norms_of(block), x)) > 1e-3


def test_parallel_post_norm_has_one_norm_after_the_sum() -> None:
    block, x = built(place="post", order="parallel"), seeded(B, T, D)
    attention, feed = branches(block, x)
    agree(run(block, x), block.around_mixer.after(x + attention(x) + feed(x)), [x, *block.parameters()])
    assert [name for name, _ in block.around_feed.named_parameters()] == []


@pytest.mark.quick
def test_switches_for_residual_scale_and_norm_are_what_they_say() -> None:
    x = seeded(B, T, D)
    bare = built(norm=NoNorm(), residual=False)
    attention, feed = branches(bare, x)
    agree(run(bare, x), feed(attention(x)), [x, *bare.parameters()])
    assert deviation(run(bare, x), x + feed(x + attention(x))) > 1e-3

    scaled = built(layer_scale=0.1)
    attention, feed = branches(scaled, x)
    y = x + scaled.around_mixer.scale * attention(scaled.around_mixer.before(x))
    agree(run(scaled, x), y + scaled.around_feed.scale * feed(scaled.around_feed.before(y)), [x, *scaled.parameters()])

    only = shaken(Block(mixer=Attention(heads=3), feed=None).build(D, causal=True))
    agree(run(only, x), x + only.mixer(only.around_mixer.before(x), context_of(x), None, ()), [x, *only.parameters()])


@pytest.mark.parametrize("place", ["pre", "post"])
def test_cross_attention_stands_between_mixer_and_feed(place: str) -> None:
    spec = Block(mixer=Attention(heads=3), feed=MLP(width=16), place=place, cross=Cross(heads=3))
    block, x, memory = shaken(spec.build(D, causal=True, memory_width=8)), seeded(B, T, D), seeded(B, 4, 8, seed=2)
    context = replace(context_of(x), memory=memory)
    names = ("around_mixer", "around_cross", "around_feed")
    steps = (lambda y: block.mixer(y, context, None, ()), lambda y: block.cross(y, context, None, ()), block.feed)
    y = x
    for name, step in zip(names, steps, strict=True):
        around = getattr(block, name)
        y = y + step(around.before(y)) if place == "pre" else around.after(y + step(y))
    agree(block(x, context, None, ())[0], y, [x, memory, *block.parameters()])


@pytest.mark.parametrize("place", list(FORMULAS))
def test_a_stack_repeats_its_blocks_and_ends_in_a_norm_where_the_stream_needs_one(place: str) -> None:
    wide = Block(mixer=Attention(heads=3), place=place)
    narrow = wide.replace(mixer=Attention(heads=2, window=2))
    stack, x = shaken(Stack(width=D, depth=3, block=(narrow, wide), causal=True).build()), seeded(B, T, D)
    y = x
    for block in stack.blocks:
        y = FORMULAS[place](*branches(block, y), norms_of(block), y)
    assert (stack.final is None) == (place == "post")
    agree(stack(x, context_of(x))[0], y if stack.final is None else stack.final(y), [x, *stack.parameters()])
    assert [block.spec.mixer.heads for block in stack.blocks] == [2, 3, 2]


def test_shared_layers_equal_an_unrolled_stack_and_sum_its_gradients() -> None:
    """ALBERT: the gradient of a shared weight is the sum over its unrolled copies."""
    spec = Stack(width=D, depth=4, block=Block(mixer=Attention(heads=3)), causal=True)
    shared, x = shaken(spec.replace(groups=1).build()), seeded(B, T, D)
    unrolled = spec.build().double()
    weights = {name: w.detach().clone() for name, w in shared.state_dict().items()}
    unrolled.load_state_dict({n: weights[n if n.startswith("final") else f"blocks.0.{n.split('.', 2)[2]}"]
                              for n in unrolled.state_dict()})  # fmt: skip
    outs = [stack(x, context_of(x))[0] for stack in (shared, unrolled)]
    agree(outs[0], outs[1], [x])
    slopes = []
    for stack, out in zip((shared, unrolled), outs, strict=True):
        named = dict(stack.named_parameters())
        found = torch.autograd.grad(out.square().sum(), list(named.values()))
        slopes.append(dict(zip(named, found, strict=True)))
    for name, slope in slopes[0].items():
        if name.startswith("blocks"):
            rest = name.split(".", 2)[2]
            agree(slope, sum(slopes[1][f"blocks.{i}.{rest}"] for i in range(4)))
            assert deviation(slope, slopes[1][f"blocks.0.{rest}"]) > 1e-6
