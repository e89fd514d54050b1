"""Absolute positions: sinusoids against their formula and values, grids against ViT's and DINO's interpolation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import ViTConfig
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.vit.modeling_vit import ViTEmbeddings

from anyformer import Grid, Learned, Patches, Sinusoid
from anyformer.core.context import lay_out
from anyformer.positions.grid import resize
from anyformer.positions.sinusoid import sinusoid
from tests.reference.copying import CAST, agree, call, deviation, seeded, shaken

CPU = torch.device("cpu")


def rows_of(spec: Sinusoid, width: int, positions: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """(T, D)."""
    context = lay_out(1, len(positions), CPU, positions=torch.tensor([positions]))
    return spec.build(width)(context, dtype)[0]


@pytest.mark.quick
@pytest.mark.parametrize("width", [2, 8, 512])
def test_sinusoids_equal_their_formula_at_any_length(width: int) -> None:
    places = [0, 1, 2, 50, 511, 512, 100_000]
    expected = [
        [(math.sin if c % 2 == 0 else math.cos)(p / 10000 ** (c // 2 * 2 / width)) for c in range(width)]
        for p in places
    ]
    agree(rows_of(Sinusoid(), width, places), torch.tensor(expected, dtype=torch.float64))
    assert Sinusoid().limit is None
    if width > 2:  # control, and error 8 of the lectures: the exponent's divisor is the model width, not the key size
        wrong = sinusoid(torch.tensor([places]), width, torch.float64, base=10000.0 ** (width / (width // 2)))[0]
        assert deviation(wrong, torch.tensor(expected, dtype=torch.float64)) > 1e-2


def test_sines_first_equals_marian() -> None:
    theirs = MarianSinusoidalPositionalEmbedding(64, 16)
    with torch.no_grad():
        theirs.weight.copy_(theirs.create_weight())  # filled by its model otherwise; float32
    agree(rows_of(Sinusoid(layout="half"), 16, list(range(64))), theirs(torch.Size([1, 64])).double(), bound=CAST)
    assert deviation(rows_of(Sinusoid(), 16, list(range(64))), theirs(torch.Size([1, 64])).double()) > 1e-2


@pytest.mark.quick
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_a_shift_is_one_fixed_rotation(k: int) -> None:
    """PE(p + k) = R_k PE(p) with the same block-diagonal R_k for every p."""
    width, places = 16, [0, 3, 50, 999]
    rotation = torch.zeros(width, width, dtype=torch.float64)
    for i in range(0, width, 2):
        angle = k / 10000 ** (i / width)
        rotation[i, i] = rotation[i + 1, i + 1] = math.cos(angle)
        rotation[i, i + 1], rotation[i + 1, i] = math.sin(angle), -math.sin(angle)
    here = rows_of(Sinusoid(), width, places)
    there = rows_of(Sinusoid(), width, [p + k for p in places])
    agree(here @ rotation.T, there)
    agree(rotation @ rotation.T, torch.eye(width, dtype=torch.float64))
    assert deviation(here @ rotation, there) > 1e-3  # control: the shift the other way


def test_learned_positions_are_rows_of_a_table_after_the_offset() -> None:
    module = shaken(Learned(10, offset=2).build(6))
    context = lay_out(2, 4, CPU, mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))
    expected = F.embedding(torch.tensor([[2, 2, 3, 4], [2, 3, 4, 5]]), module.table.weight)
    agree(module(context, torch.float64), expected, [module.table.weight])


# ---------------------------------------------------------------- images of another size


def vit(size: int, patch: int = 4, width: int = 8) -> ViTEmbeddings:
    return shaken(ViTEmbeddings(ViTConfig(hidden_size=width, image_size=size, patch_size=patch, num_channels=3,
                                          hidden_dropout_prob=0.0)))  # fmt: skip


@pytest.mark.parametrize("pixels", [(24, 24), (40, 40), (12, 12), (20, 36), (36, 8), (64, 16)])
def test_resized_positions_equal_vits(pixels: tuple[int, int]) -> None:
    theirs = vit(24)
    table = theirs.position_embeddings
    new = (pixels[0] // 4, pixels[1] // 4)
    tokens = torch.zeros(1, new[0] * new[1] + 1, 8, dtype=torch.float64)
    expected = theirs.interpolate_pos_encoding(tokens, *pixels)[0]
    ours = resize(table[0], (6, 6), new)
    agree(ours, expected, [table])
    if new == (6, 6):
        assert ours.data_ptr() == table.data_ptr()  # the same size is the table itself
    else:
        turned = resize(table[0], (6, 6), (new[1], new[0]))
        linear = F.interpolate(table[:, 1:].unflatten(1, (6, 6)).permute(0, 3, 1, 2), size=new, mode="bilinear")
        assert deviation(linear.permute(0, 2, 3, 1).reshape(-1, 8), expected[1:]) > 1e-3
        assert new[0] == new[1] or deviation(turned, expected) > 1e-3  # controls: another filter, another order


@pytest.mark.parametrize("pixels", [(24, 24), (40, 40), (20, 36)])
def test_the_whole_patch_embedding_equals_vits(pixels: tuple[int, int]) -> None:
    theirs = vit(24)
    images = seeded(2, 3, *pixels)
    expected = theirs(images, interpolate_pos_encoding=True)
    ours = Patches(size=24, patch=4).build(8)
    projection = theirs.patch_embeddings.projection
    weights = {
        "patch.weight": projection.weight.flatten(1), "patch.bias": projection.bias, "lead": theirs.cls_token[0],
        "position.table.weight": theirs.position_embeddings[0],
    }  # fmt: skip
    out = call(Wrapped(ours), {f"inner.{name}": w for name, w in weights.items()}, images)
    agree(out, expected, [images, *(p for p in theirs.parameters())])
    moved = {f"inner.{name}": w.flip(0) if name.startswith("position") else w for name, w in weights.items()}
    assert deviation(call(Wrapped(ours), moved, images), expected) > 1e-3


class Wrapped(torch.nn.Module):
    """`layout`, then `forward`, as a model calls an embedding."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.inner(*inputs, context=self.inner.layout(*inputs))


def slide(table: Tensor, new: tuple[int, int]) -> Tensor:
    """The lecture's DINO arithmetic: a scale factor with 0.1 added, over a square grid of sqrt(N)."""
    side, width = math.sqrt(table.shape[0] - 1), table.shape[1]
    patches = table[1:].reshape(1, int(side), int(side), width).permute(0, 3, 1, 2)
    scale = ((new[0] + 0.1) / side, (new[1] + 0.1) / side)
    larger = F.interpolate(patches, scale_factor=scale, mode="bicubic")
    assert larger.shape[-2:] == new
    return torch.cat([table[:1], larger.permute(0, 2, 3, 1).reshape(-1, width)])


@pytest.mark.parametrize("new", [(28, 28), (10, 17), (7, 7), (30, 14)])
def test_the_scale_setting_equals_the_slides_code(new: tuple[int, int]) -> None:
    table = seeded(197, 8)
    spec = Patches(size=224, patch=16, position=Grid(resample="scale"))
    module = spec.build(8)
    context = lay_out(1, 1 + new[0] * new[1], CPU, grid=new)
    out = call(module.position, {"table.weight": table}, context, torch.float64)[0]
    agree(out, slide(table, new), [table])
    # Control: asking for the exact size gives other numbers, close but not equal (error 19 of the lectures).
    exact = deviation(resize(table, (14, 14), new), slide(table, new))
    assert 1e-5 < exact < 1.0
