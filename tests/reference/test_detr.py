"""DETR's parts: positions of rows and columns, pixel masks, positions in every layer, and learned queries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    Attention,
    Block,
    Boxes,
    Cross,
    Maps,
    Model,
    Patches,
    Queries,
    ResNet,
    Seq2Seq,
    Stack,
    UserError,
)  # fmt: skip
from anyformer.core.context import lay_out
from anyformer.positions import Grid, SinusoidGrid
from tests.laws.nets import EXACT, build, gap, numbers

NET = ResNet(depths=(1, 1), width=4, stem="small", colours=2)  # cells of 2 pixels
WIDTH = 16


def detector(size: int = 8, queries: int = 5, cls: bool = False) -> Seq2Seq:
    block = Block(mixer=Attention(heads=4), place="post")
    cells = Maps(backbone=NET, size=size, position=SinusoidGrid(), every_layer=True, cls=cls)
    asking = block.replace(cross=Cross(heads=4))
    return Seq2Seq(
        encoder=Model(embed=cells, stack=Stack(width=WIDTH, depth=2, block=block)),
        decoder=Model(embed=Queries(queries), stack=Stack(width=WIDTH, depth=2, block=asking)),
        head=Boxes(classes=3),
    )  # fmt: skip


# ---------------------------------------------------------------- sinusoids of rows and columns


def naive(rows: int, columns: int, real: Tensor, width: int) -> Tensor:
    """The formula a cell at a time: real is (rows, columns) of 0 and 1."""
    table = torch.zeros(rows, columns, width, dtype=torch.float64)
    for y in range(rows):
        for x in range(columns):
            high, wide = real[:, x].sum().item(), real[y].sum().item()
            at = (real[: y + 1, x].sum().item() / (high + 1e-6), real[y, : x + 1].sum().item() / (wide + 1e-6))
            for half, share in enumerate(at):
                for i in range(width // 4):
                    angle = 2 * math.pi * share / 10000 ** (2 * i / (width // 2))
                    table[y, x, half * width // 2 + 2 * i] = math.sin(angle)
                    table[y, x, half * width // 2 + 2 * i + 1] = math.cos(angle)
    return table.flatten(0, 1)


@pytest.mark.quick
def test_sinusoids_of_cells_equal_the_formula() -> None:
    rows, columns = 3, 5
    mask = torch.ones(2, rows, columns, dtype=torch.bool)
    mask[1, 2:], mask[1, :, 3:] = False, False
    for leading in (0, 2):
        module = SinusoidGrid().over(rows, columns, leading).build(WIDTH)
        whole = torch.cat([torch.ones(2, leading, dtype=torch.bool), mask.flatten(1)], 1)
        context = lay_out(2, leading + rows * columns, torch.device("cpu"), mask=whole, grid=(rows, columns))
        table = module(context, torch.float64)
        assert not table[:, :leading].any()
        for row in range(2):
            wanted = naive(rows, columns, mask[row].double(), WIDTH)
            assert gap(table[row, leading:], wanted) < 1e-9
        bare = module(lay_out(2, leading + 15, torch.device("cpu"), grid=(rows, columns)), torch.float64)
        assert gap(bare[0], table[0]) < 1e-12 and gap(bare[0], table[1]) > 1e-2  # without a mask all cells are real
        assert module(context, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.quick
def test_sinusoids_of_cells_refuse_what_has_no_cells() -> None:
    with pytest.raises(UserError, match="for images"):
        SinusoidGrid().build(WIDTH)
    with pytest.raises(UserError, match="multiple of 4"):
        SinusoidGrid(leading=0).build(6)
    with pytest.raises(UserError, match="need an image"):
        SinusoidGrid(leading=0).build(8)(lay_out(1, 3, torch.device("cpu")), torch.float32)
    for settings in ({"base": 1.0}, {"leading": -1}):
        with pytest.raises(UserError, match=next(iter(settings))):
            SinusoidGrid(**settings)
    assert Patches(size=8, patch=4, position=SinusoidGrid()).build(8).position.leading == 1


# ---------------------------------------------------------------- maps


def test_masks_over_pixels_become_masks_over_cells() -> None:
    spec = Maps(backbone=NET, size=8, cls=True)
    embed = build(Model(embed=spec, stack=Stack(width=WIDTH, depth=0))).embed
    pixels = numbers(2, 2, 7, 9)  # 4 x 5 cells
    mask = torch.ones(2, 7, 9, dtype=torch.bool)
    mask[0, 4:], mask[1, :, 3:] = False, False
    context = embed.layout(pixels, mask=mask)
    cells = context.mask[:, 1:].view(2, 4, 5)
    assert context.mask[:, 0].all()  # the class token is real
    for row in range(2):
        for y in range(4):
            for x in range(5):
                assert cells[row, y, x] == mask[row, y * 7 // 4, x * 9 // 5]  # the nearest pixel above and left
    again = embed.layout(pixels, mask=(context.mask, mask.long()))
    assert torch.equal(again.mask, context.mask)
    rule = torch.ones(2, 1, 21, 21, dtype=torch.bool)
    assert embed.layout(pixels, mask=rule).allowed is not None  # a rule between tokens stays one
    with pytest.raises(UserError, match="mask has shape"):
        embed.layout(pixels, mask=mask[:, :5])


@torch.no_grad()
def test_positions_of_every_layer_are_added_to_queries_and_keys_alone() -> None:
    """One layer of attention written out, the encoder's over cells and the decoder's over queries and cells."""
    net = build(detector())
    pixels = numbers(2, 2, 8, 8)
    cells = net.encoder.embed(pixels, context=net.encoder.embed.layout(pixels))
    where = net.encoder.embed.layout(pixels).added
    maps = net.encoder.embed.backbone(pixels).flatten(2).mT
    assert gap(cells, maps @ net.encoder.embed.project.weight.T + net.encoder.embed.project.bias) < EXACT  # not in here
    block = net.encoder.stack.blocks[0]
    mixed = attention(
        block.mixer.split(block.mixer.qkv(cells + where))[:2], block.mixer.split(block.mixer.qkv(cells))[2]
    )
    got = block.mixer(cells, net.encoder.embed.layout(pixels), None, ())
    assert gap(got, mixed @ block.mixer.out.weight.T + block.mixer.out.bias) < EXACT

    memory = net.encode(pixels)
    asked = net.decoder.embed.table.weight[None]
    block, x = net.decoder.stack.blocks[1], numbers(2, 5, WIDTH)
    cross = block.cross
    q = cross.q(x + asked).unflatten(-1, (4, 4)).transpose(1, 2)
    k, v = cross.split(cross.kv(memory + where))[0], cross.split(cross.kv(memory))[1]
    seen: list[Any] = []
    block.register_forward_pre_hook(lambda module, given: seen.append(given[1]))
    net(pixels)
    looked = cross(x, seen[0], None, ())
    assert gap(looked, attention((q, k), v) @ cross.out.weight.T + cross.out.bias) < EXACT


def attention(queries_and_keys: tuple[Tensor, Tensor], values: Tensor) -> Tensor:
    q, k = queries_and_keys
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ values).transpose(1, 2).flatten(2)


@pytest.mark.quick
def test_settings_of_maps_are_checked() -> None:
    with pytest.raises(UserError, match="no position to add"):
        Maps(backbone=NET, size=8, every_layer=True)
    learned = Maps(backbone=NET, size=8, position=Grid(), every_layer=True)
    assert build(Model(embed=learned, stack=Stack(width=8, depth=0))).embed.layout(numbers(1, 2, 8, 8)).added.shape == (
        1, 16, 8,
    )  # fmt: skip


# ---------------------------------------------------------------- queries: the laws, where they stand


@torch.no_grad()
def test_queries_start_at_zero_and_count_rows_of_anything() -> None:
    embed = build(detector()).decoder.embed
    for like in (numbers(3, 7, 2), torch.zeros(3), torch.zeros(3, 4, 5, 6, dtype=torch.long)):
        context = embed.layout(like)
        x = embed(like, context=context)
        assert x.shape == (3, 5, WIDTH) and not x.any() and x.dtype == torch.float64
        assert torch.equal(context.added[0], embed.table.weight)
    with pytest.raises(UserError, match="batch first"):
        embed.layout([1, 2])
    with pytest.raises(UserError, match="below 1"):
        Queries(0)


def test_a_gradient_reaches_every_parameter() -> None:
    net = build(detector(cls=True)).train()
    out = net(numbers(2, 2, 8, 8))
    (out.logits.square().sum() + out.boxes.square().sum()).backward()
    assert [
        name for name, p in net.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ] == []


@torch.no_grad()
def test_a_batch_is_its_rows_one_by_one_and_padding_is_seen_by_nobody() -> None:
    net = build(detector())
    pixels = numbers(3, 2, 8, 8)
    mask = torch.ones(3, 8, 8, dtype=torch.bool)
    mask[1, 6:], mask[2, :, 4:] = False, False
    out = net(pixels, source_mask=mask)
    for row in range(3):
        alone = net(pixels[row : row + 1], source_mask=mask[row : row + 1])
        assert gap(out.boxes[row], alone.boxes[0]) < EXACT and gap(out.logits[row], alone.logits[0]) < EXACT
    memory = net.read(pixels, mask)
    spoilt = memory.hidden + 9.0 * ~memory.context.mask[..., None]
    options = {"memory_mask": memory.context.mask, "memory_added": memory.context.added}
    clean = net.decoder(memory.hidden, memory=memory.hidden, **options).hidden
    assert gap(net.decoder(spoilt, memory=spoilt, **options).hidden, clean) < EXACT
    assert gap(net(pixels).boxes[1:], out.boxes[1:]) > 1e-4  # control: padding that is seen


@torch.no_grad()
def test_queries_in_another_order_give_answers_in_that_order() -> None:
    net = build(detector())
    pixels, order = numbers(2, 2, 8, 8), torch.tensor([3, 1, 4, 0, 2])
    before = net(pixels).boxes
    net.decoder.embed.table.weight.copy_(net.decoder.embed.table.weight[order])
    assert gap(net(pixels).boxes, before[:, order]) < EXACT
    assert gap(net(pixels).boxes, before) > 1e-4  # control: they do differ


@torch.no_grad()
def test_built_on_meta_in_bf16_saved_and_again(tmp_path: Any) -> None:
    from anyformer.checkpoints.folder import open_folder, save_own

    spec = detector(cls=True)
    net = spec.build(seed=0).eval()
    assert list(net.buffers()) == [] and Seq2Seq.from_json(spec.to_json()) == spec
    again = open_folder(save_own(tmp_path / "x", spec, net))
    pixels = numbers(1, 2, 8, 8, dtype=torch.float32)
    assert again.spec == spec and torch.equal(again.model(pixels).boxes, net(pixels).boxes)
    rough = spec.build(seed=0, dtype=torch.bfloat16).eval()
    net.load_state_dict({name: p.float() for name, p in rough.state_dict().items()})
    out = rough(pixels.bfloat16())
    assert out.boxes.dtype == torch.bfloat16 and gap(out.boxes.float(), net(pixels).boxes) < 0.05


@torch.no_grad()
def test_every_layer_gives_an_answer_and_the_last_is_the_model_s() -> None:
    net = build(detector())
    pixels = numbers(2, 2, 8, 8)
    out = net(pixels, layers=True)
    assert len(out.layers) == 2 and gap(out.boxes, net(pixels).boxes) < EXACT
    both = net.head(torch.stack(out.layers), out.context, None)
    assert both.boxes.shape == (2, 2, 5, 4) and gap(both.boxes[-1], out.boxes) < EXACT
    assert gap(both.boxes[0], both.boxes[1]) > 1e-4


def test_gradients_reach_the_pixels_unless_the_backbone_is_frozen() -> None:
    for frozen in (False, True):
        spec = detector()
        spec = spec.replace(encoder=spec.encoder.replace(embed=spec.encoder.embed.replace(frozen=frozen)))
        net = build(spec)
        pixels = numbers(1, 2, 8, 8).requires_grad_()
        net(pixels).boxes.sum().backward()
        assert pixels.grad is not None and pixels.grad.any()
        assert all((p.grad is None) == frozen for p in net.encoder.embed.backbone.parameters() if p.dim() == 4)
