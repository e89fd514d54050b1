"""A convolution built exactly out of attention heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer import UserError, attention_maps
from anyformer.inspection.convolution import attention_from_convolution
from tests.reference.copying import agree, deviation, seeded


@pytest.mark.quick
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_heads_of_attention_are_the_cells_of_a_kernel(kernel: int, biased: bool) -> None:
    """Interior and borders, forward and backward, with as many heads as the kernel has cells."""
    weight, pixels = seeded(4, 3, kernel, kernel), seeded(2, 3, 6, 7, seed=2)
    bias = seeded(4, seed=1) if biased else None
    layer = attention_from_convolution(weight, bias)
    assert layer.attention.spec.heads == kernel**2
    wanted = F.conv2d(pixels, weight, bias, padding="same")
    agree(layer(pixels), wanted, [pixels])
    assert deviation(layer(pixels), F.conv2d(pixels, weight.flip(3), bias, padding="same")) > 1e-2 or kernel == 1
    # The kernel's own gradient arrives at the output projection.
    (ours,) = torch.autograd.grad(layer(pixels).square().sum(), layer.attention.out.weight)
    (theirs,) = torch.autograd.grad(wanted.square().sum(), weight)
    agree(ours.unflatten(1, (kernel, kernel, 3)).permute(0, 3, 1, 2), theirs)


def test_every_head_looks_at_one_cell_and_beyond_the_image_at_none() -> None:
    layer = attention_from_convolution(seeded(2, 2, 3, 3, grad=False))
    (maps,) = attention_maps(layer, seeded(1, 2, 4, 5, grad=False))["attention"]  # (1,9,20,20)
    assert set(maps.unique().tolist()) == {0.0, 1.0}
    seen = maps[0].sum(-1).view(9, 4, 5)
    assert seen[4].all() and seen[:, 1:3, 1:4].all()  # the middle of the kernel, and the inside of the image
    assert not seen[0, 0].any() and not seen[0, :, 0].any() and seen[0, 1:, 1:].all()  # up and left of the border
    for head, shift in ((0, (-1, -1)), (4, (0, 0)), (5, (0, 1)), (8, (1, 1))):
        assert maps[0, head, 7].argmax().item() == 7 + 5 * shift[0] + shift[1]


def test_softer_heads_only_come_near() -> None:
    weight, pixels = seeded(2, 2, 3, 3, grad=False), seeded(1, 2, 8, 8, grad=False)
    wanted = F.conv2d(pixels, weight, padding="same")
    inside = (slice(None), slice(None), slice(1, -1), slice(1, -1))
    gaps = [deviation(attention_from_convolution(weight, sharpness=s)(pixels)[inside], wanted[inside])
            for s in (1.0, 5.0, 20.0, 1000.0)]  # fmt: skip
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 0.1 and gaps[2] > 1e-9 and gaps[3] < 1e-12
    single = attention_from_convolution(weight.float())(pixels.float())
    assert (single - wanted).abs().max() < 1e-5 and single.dtype == torch.float32


def test_what_is_no_square_kernel_is_refused() -> None:
    with pytest.raises(UserError, match=r"expected \(O, I, K, K\)"):
        attention_from_convolution(seeded(2, 2, 3, 5))
    with pytest.raises(UserError, match=r"expected \(2,\)"):
        attention_from_convolution(seeded(2, 2, 3, 3), seeded(3))
    with pytest.raises(UserError, match="not positive"):
        attention_from_convolution(seeded(2, 2, 3, 3), sharpness=0.0)
