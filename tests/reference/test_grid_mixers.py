"""Windows and axes of a grid against loops over pairs of cells; all in float64, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    Axial,
    Block,
    LocalRelation,
    Mixer,
    Model,
    NoNorm,
    Patches,
    Stack,
    UserError,
    Window2D,
    attention_maps,
)
from anyformer.core.context import Context, lay_out
from tests.laws.nets import filled, gap, numbers

EXACT = 1e-9
GRIDS = {"whole": (4, 4, 0), "odd": (5, 3, 0), "led": (3, 4, 1), "small": (1, 2, 2)}  # rows, columns, tokens before


def made(mixer: Mixer, width: int = 8) -> Any:
    from anyformer import NoRelative

    return filled(mixer.build(width, causal=False, relative=NoRelative()).double())


def around(grid: tuple[int, int, int], masked: bool = False, batch: int = 2) -> Context:
    rows, columns, leading = grid
    length = leading + rows * columns
    mask = None
    if masked:
        mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(3)) > 0.3
        mask[0, leading : leading + columns + 1] = False  # a row and more of one image is padding
    return lay_out(batch, length, torch.device("cpu"), mask=mask, grid=(rows, columns))


def cell(t: int, grid: tuple[int, int, int]) -> tuple[int, int] | None:
    """Row and column of a token, None before the grid."""
    return None if t < grid[2] else divmod(t - grid[2], grid[1])


def heads_of(linear: Any, x: Tensor, heads: int) -> tuple[Tensor, ...]:
    """(B,H,T,C) each, from rows stored head by head."""
    rows = linear.weight.view(heads, 3, -1, x.shape[-1])
    biases = torch.zeros(rows.shape[:3], dtype=x.dtype) if linear.bias is None else linear.bias.view(rows.shape[:3])
    return tuple(torch.einsum("btd,hcd->bhtc", x, rows[:, i]) + biases[None, :, i, None] for i in range(3))


def naive_windows(x: Tensor, net: Any, grid: tuple[int, int, int], context: Context) -> Tensor:
    """Which window a cell is in is counted from where the first whole one begins."""
    spec = net.spec
    q, k, v = heads_of(net.qkv, x, spec.heads)
    sides = [
        (min(side, spec.window), spec.window // 2 if spec.shift and side > spec.window else 0) for side in grid[:2]
    ]

    def window(at: tuple[int, int]) -> tuple[int, int]:
        return tuple((place - shift) // size for place, (size, shift) in zip(at, sides, strict=True))  # type: ignore[return-value]

    def score(b: int, h: int, i: int, j: int) -> Tensor | None:
        product = q[b, h, i] @ k[b, h, j] / q.shape[-1] ** 0.5
        one, other = cell(i, grid), cell(j, grid)
        if one is None or other is None:
            return product
        if window(one) != window(other):
            return None
        side = 2 * spec.window - 1
        down, along = one[0] - other[0] + spec.window - 1, one[1] - other[1] + spec.window - 1
        return product + net.table[down * side + along, h]

    y = weighted(x.shape[0], spec.heads, x.shape[1], context, score, lambda b, h, i, j: v[b, h, j])
    return net.out(y)


def naive_axis(x: Tensor, net: Any, grid: tuple[int, int, int], context: Context) -> Tensor:
    spec, reach = net.spec, net.spec.span // 2
    q, k, v = heads_of(net.qkv, x, spec.heads)
    along, across = (0, 1) if net.upright else (1, 0)

    def distance(i: int, j: int) -> int | None:
        one, other = cell(i, grid), cell(j, grid)
        return None if one is None or other is None else other[along] - one[along]

    def score(b: int, h: int, i: int, j: int) -> Tensor | None:
        one, other, far = cell(i, grid), cell(j, grid), distance(i, j)
        product = q[b, h, i] @ k[b, h, j]
        if far is not None:
            assert one is not None and other is not None
            if one[across] != other[across] or abs(far) > reach:
                return None
            product = product + q[b, h, i] @ net.table[0, far + reach] + k[b, h, j] @ net.table[1, far + reach]
        return product / q.shape[-1] ** 0.5

    def value(b: int, h: int, i: int, j: int) -> Tensor:
        far = distance(i, j)
        return v[b, h, j] if far is None else v[b, h, j] + net.table[2, far + reach]

    return weighted(x.shape[0], spec.heads, x.shape[1], context, score, value)


def weighted(batch: int, heads: int, length: int, context: Context, score: Any, value: Any) -> Tensor:
    """softmax over the keys that have a score and are no padding; zeros where there is none."""
    images = []
    for b in range(batch):
        tokens = []
        for i in range(length):
            parts = []
            for h in range(heads):
                found = {j: score(b, h, i, j) for j in range(length) if context.mask is None or context.mask[b, j]}
                seen = {j: s for j, s in found.items() if s is not None}
                if not seen:
                    parts.append(0 * value(b, h, i, i))
                    continue
                shares = torch.stack(list(seen.values())).softmax(0)
                parts.append(sum(w * value(b, h, i, j) for w, j in zip(shares, seen, strict=True)))
            tokens.append(torch.cat(parts))
        images.append(torch.stack(tokens))
    return torch.stack(images)


def naive_axial(x: Tensor, net: Any, grid: tuple[int, int, int], context: Context) -> Tensor:
    y = naive_axis(x, net.column, grid, context)
    if net.spec.joined == "sum":
        return net.out(y + naive_axis(x, net.row, grid, context))
    return net.out(naive_axis(y, net.row, grid, context))


def same(net: Any, naive: Any, grid: tuple[int, int, int], masked: bool) -> None:
    """Output and gradients of every parameter and of the input; padded tokens' own outputs are nobody's business."""
    context = around(grid, masked)
    x = numbers(2, context.index.shape[1], 8).requires_grad_()
    weight = numbers(2, context.index.shape[1], 8, seed=5)
    weight = weight if context.mask is None else weight * context.mask[..., None]
    results = []
    for run in (lambda: net(x, context, None, ()), lambda: naive(x, net, grid, context)):
        y = run()
        grads = torch.autograd.grad((y * weight).sum(), [x, *net.parameters()], allow_unused=True)
        results.append((y * (weight != 0), grads))
    assert gap(results[0][0], results[1][0]) < EXACT
    for got, wanted in zip(results[0][1], results[1][1], strict=True):
        assert got is not None and wanted is not None and gap(got, wanted) < EXACT
    assert gap(results[0][0].roll(1, 1), results[1][0]) > 1e-3  # control


@pytest.mark.parametrize("masked", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
@pytest.mark.parametrize("shift", [False, True], ids=["still", "shifted"])
def test_windows_equal_a_loop_over_pairs_of_cells(grid: tuple[int, int, int], shift: bool, masked: bool) -> None:
    for window in (2, 4) if grid == GRIDS["odd"] else (2,):
        same(made(Window2D(heads=2, window=window, shift=shift)), naive_windows, grid, masked)


@pytest.mark.parametrize("masked", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("grid", [GRIDS["odd"], GRIDS["led"]], ids=["odd", "led"])
@pytest.mark.parametrize("joined", ["sequence", "sum"])
def test_axes_equal_a_loop_over_pairs_of_cells(grid: tuple[int, int, int], joined: Any, masked: bool) -> None:
    for span in (3, 9) if joined == "sequence" else (5,):
        same(made(Axial(heads=2, span=span, joined=joined)), naive_axial, grid, masked)


def test_axes_in_blocks_equal_axes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, context = made(Axial(heads=2, span=5)), around(GRIDS["led"], True)
    x = numbers(2, context.index.shape[1], 8)
    answers = []
    for entries in (2**22, 40):
        monkeypatch.setattr("anyformer.mixers.axial.ROWS", entries)
        net.zero_grad()
        y = net(x, context, None, ())
        y.square().sum().backward()
        answers.append([y.detach(), *(p.grad.clone() for p in net.parameters())])
    for one, other in zip(*answers, strict=True):
        assert gap(one, other) < EXACT


GRID_MIXERS = {
    "window": Window2D(heads=2, window=3, shift=True), "axial": Axial(heads=2, span=3),
    "relation": LocalRelation(window=3, share=4),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("mixer", GRID_MIXERS.values(), ids=list(GRID_MIXERS))
@pytest.mark.parametrize("leading", [True, False], ids=["led", "bare"])
def test_maps_are_the_weights_the_layer_used(mixer: Mixer, leading: bool) -> None:
    """Weights times values is the layer's answer; each row sums to one; a part of the rows is those rows."""
    embed = Patches(size=(10, 8), patch=2, channels=1, cls=leading)
    spec = Model(embed=embed, stack=Stack(width=8, depth=1, block=Block(mixer=mixer, feed=None, norm=NoNorm())))
    net = spec.build(dtype=torch.float64, seed=0).eval()
    pixels = numbers(2, 1, 10, 8)
    maps, some = attention_maps(net, pixels), attention_maps(net, pixels, rows=slice(3, 9))
    length = 20 + leading
    with torch.no_grad():
        x = net.embed(pixels, context=net.embed.layout(pixels))
        for path, (weights,) in maps.items():
            assert weights.shape[2:] == (length, length) and gap(weights.sum(-1), torch.ones(1)) < EXACT
            assert gap(some[path][0], weights[:, :, 3:9]) < EXACT
        if isinstance(mixer, Axial):
            assert list(maps) == ["stack.blocks.0.mixer.column", "stack.blocks.0.mixer.row"]
            return
        (weights,) = maps["stack.blocks.0.mixer"]
        mixed = net.stack.blocks[0].mixer
        if isinstance(mixer, Window2D):
            values = heads_of(mixed.qkv, x, 2)[2]
        else:
            values = mixed.relation.grouped(mixed.relation.v(x)).transpose(1, 2)
        y = mixed.out((weights @ values).transpose(1, 2).flatten(2))
        assert gap(y, net(pixels).hidden - x) < EXACT


@pytest.mark.quick
def test_layers_that_alternate_reach_beyond_their_windows() -> None:
    """One layer of windows keeps them apart, a shifted one after it joins them."""

    def reached(*shifts: bool) -> Tensor:
        blocks = tuple(Block(mixer=Window2D(heads=2, window=4, shift=shift)) for shift in shifts)
        embed = Patches(size=8, patch=1, channels=1, cls=False)
        net = Model(embed=embed, stack=Stack(width=8, depth=len(shifts), block=blocks), init="xavier").build(seed=0)
        pixels = numbers(1, 1, 8, 8, dtype=torch.float32)
        changed = pixels.clone()
        changed[..., 1, 1] += 1.0
        return ((net(pixels).hidden - net(changed).hidden).abs().sum(-1) > 0).view(8, 8)

    assert reached(False).sum() == 16 and reached(False)[:4, :4].all()
    assert reached(False, False).sum() == 16  # control
    assert reached(False, True)[:6, :6].all() and reached(False, True).sum() == 36


@pytest.mark.quick
def test_what_a_grid_cannot_mean_is_refused() -> None:
    for make, words in (
        (lambda: Window2D(heads=2, window=0), "window 0 is below 1; use 7"),
        (lambda: Window2D(heads=0), "heads 0 is below 1"),
        (lambda: Axial(heads=2, span=4), "span 4 has no middle; use 5"),
        (lambda: LocalRelation(window=6), "window 6 has no middle; use 7"),
        (lambda: LocalRelation(share=0), "share 0 is below 1; use 8"),
        (lambda: Stack(width=9, depth=1, block=Block(mixer=Window2D(heads=2))), "width 9 is not divisible by heads 2"),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert words in str(caught.value)
    net = made(Window2D(heads=2))
    x = numbers(1, 4, 8)
    with pytest.raises(UserError, match="no rows and columns"):
        net(x, lay_out(1, 4, torch.device("cpu")), None, ())
    packed = lay_out(1, 4, torch.device("cpu"), grid=(2, 2), documents=torch.tensor([[0, 0, 1, 1]]))
    with pytest.raises(UserError, match="cannot be cut into documents"):
        net(x, packed, None, ())


def test_memory_grows_with_the_cells_not_with_their_square() -> None:
    """What autograd keeps of four times the cells is about four times as much; full attention's weights are sixteen."""

    def kept(mixer: Mixer, side: int) -> int:
        net, sizes = made(mixer), []
        context = around((side, side, 0), batch=1)

        def keep(x: Tensor) -> Tensor:
            sizes.append(x.untyped_storage().nbytes())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            net(numbers(1, side * side, 8), context, None, ())
        return sum(sizes)

    for mixer, most in (
        (Window2D(heads=2, window=4, shift=True), 5),
        (LocalRelation(window=3, share=4), 5),
        (Axial(heads=2), 9),
    ):  # a cell of Axial looks along rows that are twice as long
        assert kept(mixer, 32) < most * kept(mixer, 16)
