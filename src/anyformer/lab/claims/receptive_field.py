"""The receptive field of one output after one layer: the image with attention, K x K pixels with a convolution (L4)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Patches
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import Attention, Convolution
from anyformer.nets.resnet import Convolved

SIZE, PATCH, CHANNELS, WIDTH = 32, 4, 3, 32
MIDDLE = SIZE // 2  # row and column of the pixel, and of the patch around it, whose output is examined
KERNELS, DEPTHS = (3, 5, 7), (1, 2, 4, 8)


def cases(full: bool) -> list[Case]:
    seeds = range(10 if full else 3)
    vit = [{"net": net, "depth": depth, "seed": seed}
           for net, depth in (("vit", 1), ("vit without attention", 1)) for seed in seeds]  # fmt: skip
    cnn = [{"net": "cnn", "kernel": kernel, "depth": depth, "seed": seed}
           for kernel in KERNELS for depth in DEPTHS for seed in seeds]  # fmt: skip
    return [*vit, *cnn]


def measure(case: Case) -> Result:
    """Norm of the derivative of one output with respect to every pixel, and where it is not exactly 0."""
    torch.manual_seed(case["seed"])
    image = torch.randn(1, CHANNELS, SIZE, SIZE, dtype=torch.float64).requires_grad_()
    answers = cnn(case, image) if case["net"] == "cnn" else vit(case, image)  # (channels,H',W')
    scale = SIZE // answers.shape[-1]
    at = answers[:, MIDDLE // scale, MIDDLE // scale]
    # a random direction of its channels, so that their derivatives cannot cancel
    (slope,) = torch.autograd.grad(at @ torch.randn(at.shape, dtype=at.dtype), image)
    sizes = slope[0].norm(dim=0)  # (H,W)
    rows, columns = torch.nonzero(sizes, as_tuple=True)
    return {
        "pixels": len(rows),
        "sides": [int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1],
        "across": (sizes[MIDDLE] / sizes.max()).tolist(),
    }


def vit(case: Case, image: Tensor) -> Tensor:
    """The tokens after `depth` blocks, as a map: (D,H/p,W/p)."""
    mixer = Attention(heads=4) if case["net"] == "vit" else Convolution(1)  # the latter sees only its own token
    stack = Stack(width=WIDTH, depth=case["depth"], block=Block(mixer=mixer))
    spec = Model(embed=Patches(size=SIZE, patch=PATCH, channels=CHANNELS, cls=False), stack=stack)
    hidden = spec.build(seed=case["seed"], dtype=torch.float64).eval()(image).hidden  # (1,N,D)
    return hidden[0].T.unflatten(1, (SIZE // PATCH, SIZE // PATCH))


def cnn(case: Case, image: Tensor) -> Tensor:
    """The map after `depth` convolutions, batch norm after each; a ReLU could put a derivative at 0 by chance."""
    widths = [CHANNELS, *[WIDTH] * case["depth"]]
    layers = [Convolved(*pair, case["kernel"], act=False) for pair in pairwise(widths)]
    return nn.Sequential(*layers).double().eval()(image)[0]


def field_side(kernel: int, depth: int) -> int:
    """Side of the receptive field of stacked convolutions, in pixels."""
    return min(1 + depth * (kernel - 1), SIZE)


def judge(found: Measurements) -> Finding:
    whole = set(found.where(net="vit").values("pixels"))
    alone = set(found.where(net="vit without attention").values("pixels"))
    after_one = {k: set(found.where(net="cnn", kernel=k, depth=1).values("pixels")) for k in KERNELS}
    stacked = all(
        result["pixels"] == field_side(case["kernel"], case["depth"]) ** 2 and len(set(result["sides"])) == 1
        for case, result in found.where(net="cnn").entries
    )
    attends, local = whole == {SIZE**2}, all(after_one[k] == {k * k} for k in KERNELS)
    control = alone == {PATCH**2}
    verdict = Verdict.NOT_HERE
    if attends and control:
        verdict = Verdict.HOLDS if local and stacked else Verdict.IN_PART
    layers = {k: -(-(SIZE - 1) // (k - 1)) for k in KERNELS}
    return Finding(
        measured=f"pixels with a gradient after one layer: ViT {counts(whole)} of {SIZE**2}, "
        + ", ".join(f"{k} x {k} convolution {counts(after_one[k])}" for k in KERNELS),
        verdict=verdict,
        reason=f"one layer of attention sees {counts(whole)} of {SIZE**2} pixels, the same block without attention "
        f"{counts(alone)}, its own patch of {PATCH**2}; a convolution sees {'exactly' if local else 'not'} K x K and "
        f"{'' if stacked else 'not '}1 + L(K - 1) a side after L layers: to see {SIZE} a side takes "
        f"{', '.join(f'{layers[k]} layers at K = {k}' for k in KERNELS)}",
        table=ResultTable(
            ("network", *(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS)),
            [
                ("vit", counts(whole), "", "", ""),
                ("vit without attention", counts(alone), "", "", ""),
                *(
                    (f"cnn, {k} x {k}", *(counts(found.where(kernel=k, depth=d).values("pixels")) for d in DEPTHS))
                    for k in KERNELS
                ),
            ],
        ),
        plots=[
            Plot(
                f"Gradient of one answer across row {MIDDLE}, one layer", "column of the pixel",
                "size of the gradient, the largest is 1",
                {"vit": line(found.where(net="vit"))}
                | {f"cnn, {k} x {k}": line(found.where(net="cnn", kernel=k, depth=1)) for k in KERNELS},
                log_up=True,
            )
        ],
    )  # fmt: skip


def counts(values: set[int] | list[int]) -> str:
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def line(found: Measurements) -> list[tuple[float, float]]:
    """Of the first seed."""
    return list(enumerate(found.values("across")[0]))


CLAIM = Claim(
    name="receptive-field",
    claim="After just one self-attention layer the receptive field is the whole image",
    lecture="L4",
    source="EPFL CS-433, Vision Transformers",
    quoted="the whole image after one self-attention layer; K x K pixels after a convolution",
    method=f"derivative of the output at the middle of a {SIZE} x {SIZE} image with respect to every pixel, in "
    f"float64; a pixel is seen if its derivative is not exactly 0; a ViT with patches of {PATCH} x {PATCH}, "
    "convolutions with batch norm",
    cost="3 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
