"""Pictures of parts, each computed by running the part: who moves whom, and by how much.

A picture of a mixer shows in row i, column j how far the answer of token i moves with token j (the size of the
derivative): below the diagonal the past, above it the future. Nothing is drawn by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anyformer import (
    SAGAN,
    Attention,
    Backbone,
    Electra,
    Embed,
    Feed,
    FeedStack,
    Head,
    Mixer,
    Model,
    Network,
    Norm,
    NumberCurve,
    Patches,
    Position,
    Pyramid,
    Relative,
    Seq2Seq,
    Stack,
    Streams,
    Tokens,
    Towers,
)  # fmt: skip
from anyformer.core.context import lay_out
from anyformer.inspection.maps import attention_maps
from anyformer.spec import Spec
from tests.laws.nets import around, build, filled, inputs, model, numbers, tokens
from tests.laws.parts import VOCAB, WIDTH

LENGTH = 24  # tokens of a picture
SIDE = 168  # its pixels
INK = np.array([[247, 247, 244], [178, 206, 226], [74, 137, 188], [24, 62, 117], [9, 20, 52]], dtype=np.float64)


def picture(spec: Spec) -> Image.Image | None:
    """The picture of a part, by its slot."""
    for slot, draw in DRAW.items():
        if isinstance(spec, slot):
            return draw(spec)
    return None


def panel(values: Tensor) -> Image.Image:
    """A matrix as a square of shades, dark for large; the root lets small ones show."""
    shades = values.detach().abs().double().numpy()
    shades = np.sqrt(shades / max(shades.max(), 1e-12))
    at = np.clip(shades * (len(INK) - 1), 0, len(INK) - 1)
    low = np.minimum(at.astype(int), len(INK) - 2)
    colours = INK[low] + (INK[low + 1] - INK[low]) * (at - low)[..., None]
    image = Image.fromarray(colours.round().astype(np.uint8), "RGB")
    rows, columns = shades.shape
    scale = max(1, SIDE // max(rows, columns))
    return image.resize((columns * scale, max(rows * scale, 12)), Image.Resampling.NEAREST)


def beside(*panels: Image.Image) -> Image.Image:
    """Panels in a row with a gap between them."""
    gap = 10
    wide = sum(p.width for p in panels) + gap * (len(panels) - 1)
    whole = Image.new("RGB", (wide, max(p.height for p in panels)), (255, 255, 255))
    x = 0
    for p in panels:
        whole.paste(p, (x, 0))
        x += p.width + gap
    return whole


def moved(run: Callable[[Tensor], Tensor], x: Tensor, rows: list[int] | None = None) -> Tensor:
    """How far each answer (of `rows`) moves with each token of x (1,T,D): the length of the derivative, (rows, T)."""
    x = x.clone().requires_grad_()
    y = run(x)[0]  # (rows, D)
    lines = []
    for i in range(y.shape[0]) if rows is None else rows:
        total = torch.zeros(x.shape[1], dtype=x.dtype)
        for seed in range(2):  # two random directions stand for all of them
            (slope,) = torch.autograd.grad((y[i] * numbers(y.shape[1], seed=seed)).sum(), x, retain_graph=True)
            total += slope[0].norm(dim=-1)
        lines.append(total)
    return torch.stack(lines)


def mixer(spec: Mixer) -> Image.Image:
    if spec.needs_grid:
        return grid_mixer(spec)
    panels = []
    for causal in (True, False) if spec.causal_form else (False,):
        module = build(around(spec, causal=causal, depth=1)).stack.blocks[0].mixer
        context = lay_out(1, LENGTH, torch.device("cpu"))
        x = numbers(1, LENGTH, WIDTH)
        if spec.looks_at_memory:
            memory = numbers(1, LENGTH, WIDTH, seed=1)
            looked = moved(lambda m, x=x, n=module, c=context: n(x, replace(c, memory=m), None, ()), memory)
            return panel(looked)
        panels.append(panel(moved(lambda x, n=module, c=context: n(x, c, None, ()), x)))
    return beside(*panels)


def grid_mixer(spec: Mixer) -> Image.Image:
    """A cell in the middle, and which cells of the grid move it."""
    side = 15
    module = build(around(spec, depth=1)).stack.blocks[0].mixer
    context = lay_out(1, side * side, torch.device("cpu"), grid=(side, side))
    middle = side * (side // 2) + side // 2
    line = moved(lambda x: module(x, context, None, ()), numbers(1, side * side, WIDTH), [middle])
    return panel(line.view(side, side))


def feed(spec: Feed) -> Image.Image:
    """A feed moves a token by itself alone: the diagonal."""
    module = filled(spec.build(WIDTH).double())
    context = lay_out(1, LENGTH, torch.device("cpu"))

    def run(x: Tensor) -> Tensor:
        out = module(x, context)
        return out[0] if isinstance(out, tuple) else out

    return panel(moved(run, numbers(1, LENGTH, WIDTH)))


def relative(spec: Relative) -> Image.Image:
    """The weights of attention among equal tokens: what positions alone do to them, in two heads."""
    net = build(model(relative=spec, depth=1, causal=False, mixer=Attention(heads=4, scale=1.0), init="xavier"))
    same = torch.full((1, LENGTH), 3)
    weights = attention_maps(net, same)["stack.blocks.0.mixer"][0][0]  # (H,T,T)
    return beside(panel(weights[0]), panel(weights[-1]))


def position(spec: Position) -> Image.Image:
    """The table itself: a row a position, a column a channel."""
    grid = (6, 4)
    module = filled(spec.over(*grid, 0).build(LENGTH).double())
    table = module(lay_out(1, LENGTH, torch.device("cpu"), grid=grid), torch.float64)[0]
    return panel(table - table.min())


def norm(spec: Norm) -> Image.Image:
    """Eight tokens of very different size, before and after."""
    x = numbers(8, LENGTH) * torch.logspace(-1, 1, 8, dtype=torch.float64)[:, None] + 0.5
    return beside(panel(x), panel(filled(spec.build(LENGTH).double())(x)))


def embed(spec: Embed) -> Image.Image:
    """The tokens that come out: a row a token, a column a channel."""
    net = build(model(embed=spec, causal=False, depth=1))
    given = inputs(spec, batch=1, length=12)
    return panel(net.embed(*given, context=net.embed.layout(*given))[0])


def curve(spec: NumberCurve) -> Image.Image:
    """One column of numbers from -3 to 3, one below the other: a column a channel."""
    module = filled(spec.build(1, LENGTH).double())
    return panel(module(torch.linspace(-3, 3, LENGTH, dtype=torch.float64)[:, None])[:, 0])


def head(spec: Head) -> Image.Image:
    """Which tokens (columns) move which answers (rows)."""
    if spec.needs_grid:  # over an image of four rows of cells
        image = Patches(size=(8, LENGTH // 2), patch=2)
        net = build(model(embed=image, head=spec, causal=False, depth=1))
        context = net.embed.layout(torch.zeros(1, 3, 8, LENGTH // 2, dtype=torch.float64))
    else:
        net = build(model(head=spec, causal=False, depth=1))
        context = net.embed.layout(tokens(1, LENGTH))

    def run(hidden: Tensor) -> Tensor:
        answer = net.head(hidden, context, net.table())
        given = answer.logits if answer.logits is not None else answer.pooled
        if given.dim() == 4:  # a class for every pixel: (B,classes,H,W)
            given = given.flatten(2).mT
        return given if given.dim() == 3 else given[:, None]

    return panel(moved(run, numbers(1, LENGTH, WIDTH)))


def backbone(spec: Backbone) -> Image.Image:
    """Which pixels move the cell in the middle of the maps."""
    from anyformer.embeds import Maps

    side = 64
    embed = Maps(backbone=spec, size=side, project=False)
    net = Model(embed=embed, stack=Stack(width=spec.channels, depth=0)).build(seed=0, dtype=torch.float64).eval()
    pixels = numbers(1, spec.inputs, side, side).requires_grad_()
    maps = net.embed.backbone(pixels)
    middle = maps[0, :, maps.shape[2] // 2, maps.shape[3] // 2]
    (slope,) = torch.autograd.grad(middle.square().sum(), pixels)
    return panel(slope[0].norm(dim=0))


def stack(spec: Stack | FeedStack) -> Image.Image:
    """What each token sees after every layer: the view widens."""
    net = Model(embed=Tokens(vocab=VOCAB), stack=spec, init="xavier").build(seed=0, dtype=torch.float64).eval()
    context = lay_out(1, LENGTH, torch.device("cpu"))
    x = numbers(1, LENGTH, spec.width)
    return beside(*(panel(moved(lambda x, i=i: net.stack.every(x, context)[i], x)) for i in range(spec.depth)))


def pyramid(spec: Pyramid) -> Image.Image:
    """Which cells of the fine grid move one cell of the coarsest."""
    side = 16
    module = filled(spec.build().double()).eval()
    context = lay_out(1, side * side, torch.device("cpu"), grid=(side, side))
    return panel(moved(lambda x: module(x, context)[0], numbers(1, side * side, spec.width), [5]).view(side, side))


def through(net: Any, answers: Callable[[], Tensor], *embeds: torch.nn.Module) -> Image.Image:
    """How far each answer (1,T,D) of a whole network moves with the tokens that its embeddings give."""
    seen: list[Tensor] = []
    hooks = [embed.register_forward_hook(lambda *given: seen.append(given[2])) for embed in embeds]
    y = answers()[0]
    for hook in hooks:
        hook.remove()
    lines = []
    for row in y:
        slopes = torch.autograd.grad((row * numbers(row.shape[0])).sum(), seen, retain_graph=True, allow_unused=True)
        lines.append([slope[0].norm(dim=-1) if slope is not None else None for slope in slopes])
    return beside(*(panel(torch.stack([line[i] for line in lines])) for i in range(len(embeds))))


def whole(spec: Network) -> Image.Image:
    """A whole network: which tokens of each input move which answers."""
    net = build(spec)
    if isinstance(spec, Model):
        return through(net, lambda: net(tokens(1, LENGTH)).logits, net.embed)
    if isinstance(spec, Seq2Seq):
        source, target = tokens(1, LENGTH), tokens(1, LENGTH, seed=1)
        return through(net, lambda: net(source, target).logits, net.encoder.embed, net.decoder.embed)
    if isinstance(spec, Streams):
        given = [inputs(side.embed, batch=1, length=LENGTH)[0] for side in (spec.first, spec.second)]
        return through(net, lambda: net(*given).first.hidden, net.first.embed, net.second.embed)
    if isinstance(spec, Towers):
        given = [inputs(side.embed, batch=8, length=LENGTH)[0] for side in (spec.first, spec.second)]
        return panel(net(*given).logits.exp())
    if isinstance(spec, Electra):
        return through(net, lambda: net(tokens(1, LENGTH)).logits, net.discriminator.embed)
    assert isinstance(spec, SAGAN)
    images = numbers(1, 3, spec.size, spec.size).requires_grad_()
    (slope,) = torch.autograd.grad(net.discriminate(images, torch.tensor([0])).sum(), images)
    return panel(slope[0].norm(dim=0))


DRAW: dict[type, Callable[[Any], Image.Image]] = {
    Mixer: mixer, Feed: feed, Relative: relative, Position: position, Norm: norm, Embed: embed, Head: head,
    NumberCurve: curve, Backbone: backbone, Stack: stack, FeedStack: stack, Pyramid: pyramid, Network: whole,
}  # fmt: skip
