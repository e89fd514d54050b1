"""A ViT on images of another size: its grid of positions is resampled bicubically (L3; R25, erratum 19)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.checkpoints.surgery import resize_images
from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Patches
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import Attention
from anyformer.positions.grid import resize

PATCH, SMALL, LARGE, OBLONG = 16, 224, 448, (224, 448)
WIDTH = 64
SAME, SLIDE, SMOOTH = 0.0, 1e-5, 0.05


def cases(full: bool) -> list[Case]:
    return [{"seed": seed} for seed in range(10 if full else 3)]


def smooth_table(seed: int) -> Tensor:
    """Positions (1 + 14 x 14, D), smooth over the image as trained ones are: waves of up to two periods a side."""
    generator = torch.Generator().manual_seed(seed)
    side = SMALL // PATCH
    return torch.cat([torch.randn(1, WIDTH, generator=generator), waves(side, generator)])


def waves(side: int, generator: torch.Generator) -> Tensor:
    """Cosine waves over a grid of cells (N,D), the same picture at any number of cells."""
    rates = 4 * torch.rand(2, WIDTH, generator=generator) - 2
    phases = 2 * math.pi * torch.rand(WIDTH, generator=generator)
    centres = (torch.arange(side) + 0.5) / side
    rows, columns = torch.meshgrid(centres, centres, indexing="ij")
    angles = rows[..., None] * rates[0] + columns[..., None] * rates[1]  # (side,side,D)
    return (2 * math.pi * angles + phases).cos().flatten(0, 1)


def slide_code(table: Tensor, side: int) -> Tensor:
    """DINO's code as on the slide: a square root for the grid, and 0.1 against rounding."""
    count, width = table.shape[0] - 1, table.shape[1]
    old = int(math.sqrt(count))
    patches = table[1:].reshape(1, old, old, width).permute(0, 3, 1, 2)
    factor = (side + 0.1) / math.sqrt(count)
    larger = F.interpolate(patches, scale_factor=(factor, factor), mode="bicubic")
    return torch.cat([table[:1], larger.permute(0, 2, 3, 1).reshape(-1, width)])


def measure(case: Case) -> Result:
    spec = Model(
        embed=Patches(size=SMALL, patch=PATCH),
        stack=Stack(width=WIDTH, depth=2, causal=False, block=Block(mixer=Attention(heads=4))),
    )
    net = spec.build(seed=case["seed"]).eval()
    same_spec, same = resize_images(spec, net, SMALL)
    _, larger = resize_images(spec, net, LARGE)
    _, oblong = resize_images(spec, net, OBLONG)
    generator = torch.Generator().manual_seed(case["seed"])
    pixels, table = torch.randn(1, 3, LARGE, LARGE, generator=generator), smooth_table(case["seed"])
    with torch.no_grad():
        few, many = net(pixels[..., :SMALL, :SMALL]).hidden, larger(pixels).hidden
        wide = oblong(pixels[:, :, : OBLONG[0]]).hidden
        unchanged = same(pixels[..., :SMALL, :SMALL]).hidden
    old, new = (SMALL // PATCH,) * 2, (LARGE // PATCH,) * 2
    generator = torch.Generator().manual_seed(case["seed"])
    torch.randn(1, WIDTH, generator=generator)  # the class token's row, so that the waves are the same
    truth, resampled = waves(new[0], generator), resize(table, old, new)
    return {
        "few": few.shape[1], "many": many.shape[1], "wide": wide.shape[1],
        "finite": bool(many.isfinite().all() and wide.isfinite().all()),
        "same": (unchanged - few).abs().max().item() + float(same_spec != spec),
        "slide": (resize(table, old, new, resample="scale") - slide_code(table, new[0])).abs().max().item(),
        "smooth": relative(resampled[1:], truth),
        "first_rows": relative(table[1:].repeat(4, 1), truth),
    }  # fmt: skip


def relative(found: Tensor, truth: Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


def judge(found: Measurements) -> Finding:
    few, many, wide = (found.values(name) for name in ("few", "many", "wide"))
    tokens = set(few) == {197} and set(many) == {785} and set(wide) == {1 + 14 * 28} and all(found.values("finite"))
    same, slide, smooth = (max(found.values(name)) for name in ("same", "slide", "smooth"))
    repeated = min(found.values("first_rows"))
    exact = same <= SAME and slide <= SLIDE
    verdict = Verdict.HOLDS if tokens and exact and smooth <= SMOOTH < repeated else Verdict.IN_PART
    if not tokens:
        verdict = Verdict.NOT_HERE
    return Finding(
        measured=f"{few[0]} -> {many[0]} tokens ({wide[0]} for {OBLONG[0]}x{OBLONG[1]}), same size changes {same:g}, "
        f"slide's code differs by {slide:.1e}, smooth positions are off by {smooth:.1%} "
        f"(repeated table {repeated:.0%})",
        verdict=verdict,
        reason=f"197 -> 785 finite tokens {'come' if tokens else 'do not come'}; bounds {SAME:g} at the same size, "
        f"{SLIDE:g} to the slide's arithmetic, {SMOOTH:.0%} from the true smooth table, which repeating rows must miss",
        table=ResultTable(
            ("seed", "tokens", "same size", "slide's code", "bicubic off by", "repeated off by"),
            [seed_row(case, result) for case, result in found.entries],
        ),
        plots=[
            Plot(
                "positions on a grid of twice the side, against the true ones", "seed", "relative error",
                {"bicubic": list(enumerate(found.values("smooth"))),
                 "rows repeated": list(enumerate(found.values("first_rows")))},
                log_up=True, apart=True,
            )
        ],
    )  # fmt: skip


def seed_row(case: Case, result: Result) -> tuple[str, ...]:
    counts = f"{result['few']} -> {result['many']}"
    errors = (f"{result['same']:g}", f"{result['slide']:.1e}", f"{result['smooth']:.1%}", f"{result['first_rows']:.0%}")
    return (str(case["seed"]), counts, *errors)


CLAIM = Claim(
    name="image-positions",
    claim="Bicubic interpolation of its positions lets a ViT process images of another size",
    lecture="L3",
    source="DINO's published code on the slide (square grids only, 0.1 added against rounding)",
    quoted="224 to 448 pixels: 197 to 785 tokens",
    method="a ViT with 16-pixel patches resized from 224 to 448 and to 224 x 448; its interpolation against the "
    "slide's code; a smooth table resampled, against the same waves on the finer grid",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
