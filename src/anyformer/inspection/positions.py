"""Position encodings as arrays: what each kind adds to tokens or scores, with a model's own tables if it has them.

All numbers come from the modules of `anyformer.positions`: a figure shows what attention gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.checkpoints.changes import stretched
from anyformer.core.context import lay_out
from anyformer.errors import UserError, did_you_mean
from anyformer.positions.alibi import AlibiModule, slopes
from anyformer.positions.buckets import Buckets, BucketsModule, bucket
from anyformer.positions.grid import GridModule, resize
from anyformer.positions.learned import LearnedModule
from anyformer.positions.rope import LinearScaling, NTKScaling, Rope, RopeModule, Scaling, YarnScaling
from anyformer.positions.shaw import ShawModule
from anyformer.positions.sinusoid import SinusoidModule, sinusoid
from anyformer.positions.sinusoid_grid import SinusoidGridModule

if TYPE_CHECKING:
    from anyformer.positions.sinusoid import Sinusoid

Arrays = dict[str, np.ndarray]

KINDS = {
    "sinusoid": "Sinusoids (added)",
    "learned": "Learned table (added)",
    "rope": "Rotary (RoPE)",
    "alibi": "ALiBi",
    "buckets": "T5 buckets",
    "shaw": "Relative vectors (Shaw)",
}
MODULES: dict[type[nn.Module], str] = {
    SinusoidModule: "sinusoid", SinusoidGridModule: "sinusoid", LearnedModule: "learned", GridModule: "learned",
    RopeModule: "rope", AlibiModule: "alibi", BucketsModule: "buckets", ShawModule: "shaw",
}  # fmt: skip
COUNT = 16  # rows of the binary counter: 0 to 15
MOST_PATCHES = 400  # most patches whose similarity is shown: a matrix of 640 kB
VARIED = 8  # channels of a table of which the interpolation is shown
MOST_RESIZED = 2**15  # most elements of these for patches: 128 kB
STRETCH = 4.0  # context extension factor for which RoPE scalings are shown


@dataclass(frozen=True)
class Found:
    """One kind of positions: the module of a model, or None for the kind's default settings."""

    kind: str
    path: str = ""
    module: nn.Module | None = None

    @property
    def own(self) -> bool:
        """Whether the model has this kind."""
        return self.module is not None


@dataclass(frozen=True)
class PositionSizes:
    """How many positions, channels and heads are shown."""

    length: int = 64
    width: int = 64
    heads: int = 8

    def __post_init__(self) -> None:
        for name, most in (("length", 1024), ("width", 4096), ("heads", 256)):
            value = getattr(self, name)
            if not 2 <= value <= most:
                raise UserError(f"{name} {value} is not between 2 and {most}", where="positions", fix="use 64")


@dataclass(frozen=True)
class Positions:
    """The arrays of one kind by name, and facts about them."""

    kind: str
    own: bool
    arrays: Arrays
    facts: dict[str, Any] = field(default_factory=dict)


def find_positions(model: nn.Module) -> list[Found]:
    """The kinds of positions of a model, each once, in module order."""
    found: dict[str, Found] = {}
    for path, module in model.named_modules():
        kind = MODULES.get(type(module))
        if kind is not None:
            found.setdefault(kind, Found(kind, path, module))
    return list(found.values())


def position_kinds(model: nn.Module | None = None) -> list[Found]:
    """Every kind that can be shown, the model's first; learned tables need a model that has them."""
    own = [] if model is None else find_positions(model)
    known = {one.kind for one in own}
    return own + [Found(kind) for kind in KINDS if kind not in known and kind not in ("learned", "shaw")]


def position_arrays(kind: str, model: nn.Module | None = None, sizes: PositionSizes | None = None) -> Positions:
    """The arrays of one kind: `position_arrays("rope", model)`; without a model, with the paper's settings."""
    if kind not in KINDS:
        raise UserError(f"unknown positions {kind!r}", where="kind", fix=did_you_mean(kind, KINDS))
    one = next((found for found in position_kinds(model) if found.kind == kind), None)
    if one is None:
        raise UserError(f"{KINDS[kind]}: this model has none", where="kind", fix="give a model that has learned them")
    with torch.no_grad():
        made = MAKERS[kind](one.module, sizes or PositionSizes())
    facts = {"kind": kind, "name": KINDS[kind], "path": one.path} | made.facts
    return Positions(kind, one.own, made.arrays, facts)


# ---------------------------------------------------------------- of any table of vectors


def dot_products(table: Tensor) -> Tensor:
    """Dot products (P,P) of all rows."""
    return table @ table.T


def cosines(table: Tensor) -> Tensor:
    """Cosine similarities (P,P) of all rows; 0 for rows of zeros."""
    length = table.norm(dim=-1, keepdim=True)
    unit = table / length.masked_fill(length == 0, 1.0)
    return unit @ unit.T


def by_distance(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (P,) of each diagonal of (P,P), by distance 0, 1, 2, ..."""
    diagonals = [pairs.diagonal(offset) for offset in range(pairs.shape[0])]
    return torch.stack([d.mean() for d in diagonals]), torch.stack([d.std(correction=0) for d in diagonals])


def binary_counter(count: int = COUNT) -> np.ndarray:
    """The numbers 0 .. count - 1 in binary, (count, bits), the least significant bit last.

    >>> binary_counter(4).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    bits = max(1, (count - 1).bit_length())
    return (np.arange(count)[:, None] >> np.arange(bits)[::-1] & 1).astype(np.uint8)


# ---------------------------------------------------------------- added to tokens


def of_sinusoid(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """The sinusoid table, similarities of positions, and a binary counter with sinusoids of the same periods."""
    if isinstance(module, SinusoidGridModule):
        return of_sinusoid_grid(module, sizes)
    spec: Sinusoid | None = module.spec if isinstance(module, SinusoidModule) else None
    base, layout = (10000.0, "interleaved") if spec is None else (spec.base, spec.layout)
    width = module.width if isinstance(module, SinusoidModule) else sizes.width
    table = sinusoid(torch.arange(sizes.length), width, torch.float64, base, layout)  # (P,D)
    products = dot_products(table)
    mean, spread = by_distance(products)
    counter = binary_counter()
    # One sinusoid per bit: bit b of a counter has period 2^(b+1), and so has its sinusoid.
    periods = 2.0 ** torch.arange(counter.shape[1], 0, -1)
    waves = -torch.sin(2 * torch.pi * (torch.arange(COUNT)[:, None] + 0.5) / periods)
    arrays = {
        "table": table, "products": products, "distance": mean, "spread": spread, "waves": waves,
        "small": sinusoid(torch.arange(COUNT), 8, torch.float64, base, layout),
        "wavelengths": 2 * torch.pi * base ** (torch.arange(0, width, 2).double() / width),
    }  # fmt: skip
    return Positions("sinusoid", spec is not None, numbers(arrays) | {"counter": counter},
                     {"base": base, "layout": layout, "width": width})  # fmt: skip


def of_sinusoid_grid(module: SinusoidGridModule, sizes: PositionSizes) -> Positions:
    """Sinusoids of rows and columns, over a square grid of about `length` cells."""
    side = max(2, int(sizes.length**0.5))
    context = lay_out(1, side * side, torch.device("cpu"), grid=(side, side))
    table = module(context, torch.float64)[0, module.leading :]  # (N,D)
    products = dot_products(table)
    mean, spread = by_distance(products)
    arrays = {"table": table, "products": products, "similarity": cosines(table), "distance": mean, "spread": spread}
    return Positions("sinusoid", True, numbers(arrays), {"grid": [side, side], "width": module.width})


def of_learned(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """A learned table, and the similarities of its rows."""
    assert isinstance(module, LearnedModule | GridModule)
    weight = module.table.weight.detach().double().cpu()
    facts: dict[str, Any] = {"rows": weight.shape[0], "width": weight.shape[1]}
    if isinstance(module, GridModule):
        rows, columns = module.grid
        every = math.ceil((rows * columns / MOST_PATCHES) ** 0.5)  # stride between compared patches
        cells = weight[module.extra :].unflatten(0, (rows, columns))[::every, ::every]
        facts |= {"grid": list(cells.shape[:2]), "extra": module.extra, "every": every}
        table = cells.flatten(0, 1)
    else:
        table = weight[module.offset :][: sizes.length]
    products, similarity = dot_products(table), cosines(table)
    mean, spread = by_distance(similarity)
    arrays = {"table": table, "products": products, "similarity": similarity, "distance": mean, "spread": spread}
    arrays |= interpolated(module, sizes.length, facts)
    return Positions("learned", True, numbers(arrays), facts)


def interpolated(module: LearnedModule | GridModule, length: int, facts: dict[str, Any]) -> dict[str, Tensor]:
    """The most varying channels, as trained and resampled to twice the length or side."""
    weight = module.table.weight.detach().double().cpu()
    if isinstance(module, GridModule):
        larger = (2 * module.grid[0], 2 * module.grid[1])
        before = weight[module.extra :]
        after = resize(weight, module.grid, larger, module.extra, module.resample)[module.extra :]
        facts |= {"trained": list(module.grid), "resized": list(larger)}
        most = max(1, MOST_RESIZED // len(after))
    else:
        rows = weight[module.offset :]
        if len(rows) < 2:
            return {}
        longer = 2 * len(rows)
        before, after = rows[:length], stretched(rows, longer)[: 2 * length]
        facts |= {"longer": longer, "apart": (longer - 1) / (len(rows) - 1)}  # new positions per trained one
        most = VARIED
    channels = before.var(0).topk(min(VARIED, most, before.shape[1])).indices
    facts["channels"] = channels.tolist()
    return {"trained": before[:, channels], "resized": after[:, channels]}


# ---------------------------------------------------------------- acting on scores


def of_rope(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """Rotary positions: the angle of every pair, scores by distance, and scalings for longer contexts."""
    own = isinstance(module, RopeModule)
    spec: Rope = module.spec if isinstance(module, RopeModule) else Rope()
    width = module.width if isinstance(module, RopeModule) else min(sizes.width, 64)
    made = rotate(spec, width, sizes.length)
    vector = ones(width)
    turned = turn(spec, vector.expand(sizes.length, -1), made)  # (P,width): the same vector at every position
    scores = turned @ turned.T / width  # (P,P)
    longer = int(sizes.length * STRETCH)
    kinds: dict[str, Scaling | None] = {"plain": None, "linear": LinearScaling(factor=STRETCH)}
    if width > 2:
        kinds["ntk"] = NTKScaling(factor=STRETCH)
    kinds["yarn"] = YarnScaling(factor=STRETCH, original=sizes.length)
    scaled = [Rope(theta=spec.theta, layout=spec.layout, scaling=kind) for kind in kinds.values()]
    arrays = {
        "angles": made["angles"], "cos": made["cos"], "sin": made["sin"], "frequencies": made["frequencies"],
        "wavelengths": 2 * torch.pi / made["frequencies"], "scores": scores, "distance": scores[0],
        "scaled_frequencies": torch.stack([rotate(one, width, 2)["frequencies"] for one in scaled]),
        "scaled_distance": torch.stack([rope_scores(one, width, longer) for one in scaled]),
    }  # fmt: skip
    facts: dict[str, Any] = {
        "theta": spec.theta, "layout": spec.layout, "width": width, "scalings": list(kinds), "stretch": STRETCH,
        "trained": sizes.length,
    }  # fmt: skip
    if own and spec.scaling is not None:
        facts["scaling"] = type(spec.scaling).__name__
    return Positions("rope", own, numbers(arrays), facts)


def rotate(spec: Rope, width: int, length: int) -> dict[str, Tensor]:
    """Angles, cosines and sines (P, width/2) of the RoPE module for positions 0 .. length - 1."""
    module = RopeModule(spec, width)
    context = lay_out(1, length, torch.device("cpu"))
    cos, sin = (table[0] for table in module(context, torch.float64))
    frequencies = module.frequencies(context, torch.float64)
    return {"angles": torch.arange(length)[:, None] * frequencies, "cos": cos, "sin": sin, "frequencies": frequencies}


def turn(spec: Rope, x: Tensor, made: dict[str, Tensor]) -> Tensor:
    """Vectors (P,C), each rotated by its own position."""
    return spec.rotate(x[None, None], (made["cos"][None], made["sin"][None]))[0, 0]


def rope_scores(spec: Rope, width: int, length: int) -> Tensor:
    """q_m . k_n / width for q = k = ones, by m - n = 0 .. length - 1: the distance-dependent part of a score."""
    made = rotate(spec, width, length)
    turned = turn(spec, ones(width).expand(length, -1), made)
    return turned @ turned[0] / width


def of_alibi(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """The slope of each head, and the bias of every score."""
    heads = module.heads if isinstance(module, AlibiModule) else sizes.heads
    rates = torch.tensor(slopes(heads), dtype=torch.float64)
    at = torch.arange(sizes.length)
    distance = (at[:, None] - at).abs()
    bias = -rates[:, None, None] * distance
    arrays = {"slopes": rates, "distance": bias[:, 0], "bias": bias[: min(heads, 8)]}
    return Positions("alibi", module is not None, numbers(arrays), {"heads": heads, "shown": min(heads, 8)})


def of_buckets(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """T5's buckets of distances, and the learned bias of each head."""
    own = isinstance(module, BucketsModule)
    spec = module.spec if isinstance(module, BucketsModule) else Buckets()
    count, reach = spec.buckets, spec.distance
    both = not module.causal if isinstance(module, BucketsModule) else True
    offsets = torch.arange(-sizes.length + 1, sizes.length)  # key minus query
    found = bucket(offsets, count, reach, both)
    at = torch.arange(sizes.length)
    matrix = bucket(at - at[:, None], count, reach, both)
    arrays: dict[str, Tensor] = {"offsets": offsets, "buckets": found, "matrix": matrix}
    if isinstance(module, BucketsModule):
        weight = module.table.weight.detach().double().cpu()  # (buckets,H)
        arrays |= {"bias": weight[found].T, "learned": weight}
    heads = module.table.weight.shape[1] if isinstance(module, BucketsModule) else 0
    facts = {"buckets": count, "reach": reach, "both_ways": both, "heads": heads}
    return Positions("buckets", own, numbers(arrays), facts)


def of_shaw(module: nn.Module | None, sizes: PositionSizes) -> Positions:
    """Learned vectors for clipped distances, and their similarities."""
    assert isinstance(module, ShawModule)
    keys = module.keys.weight.detach().double().cpu()  # (2k+1,C)
    k = keys.shape[0] // 2
    at = torch.arange(sizes.length)
    arrays = {"offsets": torch.arange(-k, k + 1), "keys": keys, "similarity": cosines(keys), "norms": keys.norm(dim=-1),
              "matrix": (at - at[:, None]).clamp(-k, k)}  # fmt: skip
    if module.values is not None:
        arrays["values"] = module.values.weight.detach().double().cpu()
    return Positions("shaw", True, numbers(arrays), {"k": k, "channels": keys.shape[1]})


MAKERS = {
    "sinusoid": of_sinusoid, "learned": of_learned, "rope": of_rope, "alibi": of_alibi, "buckets": of_buckets,
    "shaw": of_shaw,
}  # fmt: skip


# ---------------------------------------------------------------- helpers


def ones(width: int) -> Tensor:
    return torch.ones(1, width, dtype=torch.float64)


def numbers(arrays: dict[str, Tensor]) -> Arrays:
    """Tensors as arrays: float32, or int32 for integers."""
    return {name: value.cpu().numpy().astype(np.float32 if value.is_floating_point() else np.int32)
            for name, value in arrays.items()}  # fmt: skip
