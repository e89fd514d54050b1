"""Attention rollout (2005.00928): how much of each input token reaches each output token through attention alone.

A layer's map is fused over its heads and mixed with the identity, for the residual connection. The product over layers
traces each token back to the input. It works for every kind of model: text, images, tables, audio, joint image and text
sequences, windows, pyramids that merge patches, and both sides of an encoder-decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.inspection.axis import TokenAxis
from anyformer.mixers.axial import AxialModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture, Site
    from anyformer.inspection.capture_base import CaptureBase

Fuse = Literal["mean", "max", "min"]
FUSES: tuple[Fuse, ...] = ("mean", "max", "min")
CROSS = "cross"  # the decoder's tokens traced back to the encoder's input
STREAMS = {"first": "second", "second": "first"}  # each and the one it attends to
ENTRIES = 2**24  # weights in memory at once: 64 MiB in float32
Read = Callable[["Site", slice], tuple[Tensor, Tensor]]  # what cross-attention keeps, (t,1), and takes, (t,S)
Rows = Callable[[list["Site"], slice], Tensor]  # a layer's matrix for some of its queries: (t,S), float64


def rollout(
    capture: Capture,
    *,
    fuse: Fuse = "mean",
    residual: float = 0.5,
    depth: int | None = None,
    discard: float = 0.0,
    stack: str = "",
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Fractions (t,S) of the input tokens in the tokens after `depth` layers, in float64; every row sums to 1.

    Each layer is (1 - residual) * fused + residual * identity, rows normalised; `residual=0` multiplies the maps alone.
    `discard` drops this fraction of each query's visible keys, the weakest first. `rows` selects output tokens, so that
    one of them needs no T x T matrix.

    For an encoder-decoder `stack` is "encoder", "decoder" (its self-attention) or, by default, "cross": the decoder's
    tokens traced through both to the source, as fractions of all that came from there. For two streams with
    co-attention (ViLBERT) it is "first" or "second"; columns are its own tokens, then the other's.
    """
    check_options(fuse, residual, discard)

    def seen_by(site: Site, part: slice) -> Tensor:
        weights = capture.weights(site.index, rows=part).double()
        check_keys(site, weights, len(capture.axes[site.keys]))
        return without_weakest(fused(weights, fuse), discard)

    def mixed(sites: list[Site], part: slice) -> Tensor:
        seen = seen_by(sites[-1], part)
        for site in reversed(sites[:-1]):
            if looks_at_once(capture, site):
                seen = seen + seen_by(site, part)
            else:  # columns, then rows: the second attends to the result of the first
                seen = seen @ seen_by(site, slice(0, len(capture.axes[site.queries])))
        return mix_with_identity(seen / (len(sites) if looks_at_once(capture, sites[0]) else 1), part, residual)

    def read(site: Site, part: slice) -> tuple[Tensor, Tensor]:
        """The fraction of a token that cross-attention keeps, (t,1), and those from the source, (t,S)."""
        seen = seen_by(site, part)
        total = residual + (1 - residual) * seen.sum(1, keepdim=True)
        kept = torch.where(total > 0, residual / total, 1.0)
        return kept, torch.where(total > 0, (1 - residual) * seen / total, 0.0)

    stack = chosen_stack(capture, stack)
    if stack == CROSS:
        return divide_by_sum(trace_to_source(capture, depth, rows, mixed, read))
    if exchanges(capture, stack):
        return trace_streams(capture, stack, depth, rows, mixed, read)
    return trace_back(capture, stack, depth, rows, mixed)


def trace_back(capture: Capture, stack: str, depth: int | None, rows: Sequence[int] | None, matrix: Rows) -> Tensor:
    """The product of the layers' matrices, from the last one down, for the selected rows: (t,S)."""
    sites = attention_sites(capture, stack, depth)
    if not sites:
        return top_rows(len(capture.axes[first_axis(capture, stack)]), rows)
    traced = top_rows(len(capture.axes[sites[-1].queries]), rows)
    above: Site | None = None
    for layer in reversed(by_layer(sites)):
        if layer[0].kind == CROSS:
            continue
        length = len(capture.axes[layer[0].queries])
        if above is not None and len(capture.axes[above.keys]) != length:
            traced = traced @ merging(*grids_between(capture, above, layer[0]))
        traced, above = multiply_rows(traced, layer, length, matrix), layer[0]
    return traced


def trace_to_source(
    capture: Capture, depth: int | None, rows: Sequence[int] | None, matrix: Rows,
    read: Read,
) -> Tensor:  # fmt: skip
    """Fractions (t,S) of the decoder's tokens from the encoder's input; the rest of a row is from the target."""
    sites = attention_sites(capture, "decoder", depth)
    crossing = [site for site in sites if site.kind == CROSS]
    if not crossing:
        raise UserError("no cross-attention among these layers", where="rollout", fix="use a larger depth")
    traced = top_rows(len(capture.axes[crossing[-1].queries]), rows)
    found = torch.zeros(len(traced), len(capture.axes[crossing[-1].keys]), dtype=torch.float64)
    for layer in reversed(by_layer(sites)):
        length = len(capture.axes[layer[0].queries])
        if layer[0].kind != CROSS:
            traced = multiply_rows(traced, layer, length, matrix)
            continue
        for part in blocks(layer[0], length, found.shape[1]):
            kept, taken = read(layer[0], part)
            found += traced[:, part] @ taken
            traced[:, part] *= kept[:, 0]
    return found @ trace_back(capture, "encoder", None, None, matrix)


def trace_streams(
    capture: Capture, stack: str, depth: int | None, rows: Sequence[int] | None, matrix: Rows, read: Read
) -> Tensor:
    """Trace a layer of one of two streams back to both inputs, (t, own tokens + the other's)."""
    traced = {side: torch.zeros(0) for side in STREAMS}
    traced[stack] = top_rows(len(capture.axes[stack]), rows)
    other = len(capture.axes[STREAMS[stack]])
    traced[STREAMS[stack]] = torch.zeros(len(traced[stack]), other, dtype=torch.float64)
    for step in reversed(stream_steps(capture, stack, depth)):
        entered = {side: torch.zeros_like(x) if side in step else x for side, x in traced.items()}
        for side, layers in step.items():
            own = traced[side].clone()
            for layer in reversed(layers):
                if layer[0].kind != CROSS:
                    own = multiply_rows(own, layer, own.shape[1], matrix)
                    continue
                for part in blocks(layer[0], own.shape[1], entered[STREAMS[side]].shape[1]):
                    kept, taken = read(layer[0], part)
                    # Both streams attend to the other's tokens from before the step.
                    entered[STREAMS[side]] += own[:, part] @ taken
                    own[:, part] *= kept[:, 0]
            entered[side] += own
        traced = entered
    return torch.cat([traced[stack], traced[STREAMS[stack]]], 1)


def stream_steps(capture: Capture, stack: str, depth: int | None) -> list[dict[str, list[list[Site]]]]:
    """The steps up to a layer, in order: a layer of one stream, or of both for co-attention."""
    last = attention_sites(capture, stack, depth)
    sites = [site for site in capture.sites if site.stack in STREAMS and last and site.index <= last[-1].index]
    attention_sites(capture, STREAMS[stack], None)  # an error if it mixes tokens in another way
    steps: list[dict[str, list[list[Site]]]] = []
    waiting = False  # one stream has attended to the other, whose turn is next
    for (side, _), same in groupby(sites, lambda site: (site.stack, site.layer)):
        layers = by_layer(list(same))
        meets = any(layer[0].kind == CROSS for layer in layers)
        if meets and waiting and side not in steps[-1]:
            steps[-1][side] = layers
        else:
            steps.append({side: layers})
        waiting = meets and len(steps[-1]) == 1
    return steps


def multiply_rows(traced: Tensor, layer: list[Site], length: int, matrix: Rows) -> Tensor:
    """traced (t,T) times the layer's matrix (T,T), in blocks of rows; blocks with zero factors are skipped."""
    total = torch.zeros_like(traced)
    for part in blocks(layer[0], length, length):
        if traced[:, part].any():
            total += traced[:, part] @ matrix(layer, part)
    return total


def by_layer(sites: list[Site]) -> list[list[Site]]:
    """Groups of sites that form one branch of a block: axial attention has two."""
    return [list(same) for _, same in groupby(sites, lambda site: (site.layer, site.kind))]


def looks_at_once(capture: Capture, site: Site) -> bool:
    """Whether the attentions of one branch have the same input and are summed."""
    parent = capture.model.get_submodule(site.path.rpartition(".")[0])
    return isinstance(parent, AxialModule) and parent.spec.joined == "sum"


def blocks(site: Site, queries: int, keys: int) -> Iterator[slice]:
    step = max(1, ENTRIES // max(1, site.heads * keys))
    return (slice(start, min(start + step, queries)) for start in range(0, queries, step))


def top_rows(length: int, rows: Sequence[int] | None) -> Tensor:
    """Selected rows of the identity."""
    if rows is None:
        return torch.eye(length, dtype=torch.float64)
    found = torch.zeros(len(rows), length, dtype=torch.float64)
    for i, row in enumerate(rows):
        if not -length <= row < length:
            raise UserError(f"token {row} is out of range", where="rollout", fix=f"use 0 to {length - 1}")
        found[i, row] = 1.0
    return found


# ---------------------------------------------------------------- one layer


def fused(weights: Tensor, fuse: Fuse) -> Tensor:
    """One map of all heads: (H,t,S) to (t,S)."""
    return weights.mean(0) if fuse == "mean" else weights.amax(0) if fuse == "max" else weights.amin(0)


def without_weakest(seen: Tensor, share: float) -> Tensor:
    """The map without this fraction of each query's visible keys, the weakest; at least one is left."""
    if not share:
        return seen
    count = (seen > 0).sum(1, keepdim=True)
    dropped = (seen.shape[1] - count) + (share * count).floor().long()  # masked keys are the weakest
    rank = seen.argsort(dim=1, stable=True).argsort(dim=1)
    return seen.masked_fill(rank < dropped, 0.0)


def mix_with_identity(seen: Tensor, part: slice, residual: float) -> Tensor:
    """(1 - residual) * seen + residual * identity, rows normalised; a fully masked token stays itself."""
    own = torch.zeros_like(seen)
    own[torch.arange(len(seen)), torch.arange(part.start, part.stop)] = 1.0
    mixed = (1 - residual) * seen + residual * own
    total = mixed.sum(1, keepdim=True)
    return torch.where(total > 0, mixed / total.clamp_min(torch.finfo(total.dtype).tiny), own)


def divide_by_sum(shares: Tensor) -> Tensor:
    """Rows normalised to sum to 1; rows of zeros stay."""
    return shares / shares.sum(1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)


# ---------------------------------------------------------------- which layers


def check_options(fuse: str, residual: float, discard: float) -> None:
    if fuse not in FUSES:
        raise UserError(f"heads cannot be fused by {fuse!r}", where="rollout", fix="use " + ", ".join(FUSES))
    if not 0 <= residual <= 1:
        raise UserError(
            f"residual {residual} is outside [0, 1]", where="rollout", fix="use 0.5, or 0 for the maps alone"
        )
    if not 0 <= discard < 1:
        raise UserError(f"discard {discard} is outside [0, 1)", where="rollout", fix="use 0.9")


def stacks_of(capture: CaptureBase) -> list[str]:
    """The stacks that can be rolled out, the most useful first."""
    stacks = list(dict.fromkeys(site.stack for site in capture.sites if "." not in site.stack))  # none inside a part
    both = "encoder" in stacks and any(site.kind == CROSS for site in capture.sites)
    return [CROSS, *stacks] if both else stacks


def chosen_stack(capture: CaptureBase, stack: str) -> str:
    known = stacks_of(capture)
    if not known:
        raise UserError("this network has no attention to roll out", where="rollout", fix="look at a Transformer")
    if stack == "" and "" not in known:
        return known[0]
    if stack not in known:
        names = ", ".join(repr(name) for name in known)
        raise UserError(f"this network has no stack {stack!r}", where="rollout", fix=f"use {names}")
    return stack


def exchanges(capture: CaptureBase, stack: str) -> bool:
    """Whether it is one of two streams with co-attention (ViLBERT), unlike two towers (CLIP)."""
    return stack in STREAMS and any(site.stack in STREAMS and site.kind == CROSS for site in capture.sites)


def depth_of(capture: CaptureBase, stack: str) -> int:
    """The number of layers of a stack."""
    within = "decoder" if stack == CROSS else stack
    return 1 + max((site.layer for site in capture.sites if site.stack == within), default=-1)


def attention_sites(capture: CaptureBase, stack: str, depth: int | None) -> list[Site]:
    """The attentions of the first `depth` layers of a stack, by default all, in execution order."""
    layers = depth_of(capture, stack)
    if depth is not None and not 0 <= depth <= layers:
        raise UserError(f"depth {depth} is not in this stack", where="rollout", fix=f"use 0 to {layers}")
    last = layers if depth is None else depth
    sites = [site for site in capture.sites if site.stack == stack and 0 <= site.layer < last]
    missing = set(range(last)) - {site.layer for site in sites}
    if missing:
        raise UserError(f"layer {min(missing)} was not captured", where="rollout", fix='look with layers="all"')
    for site in sites:
        if site.kind == "other":
            raise UserError(f"{site.label} mixes tokens without attention weights", where="rollout",
                            fix=f"use depth {site.layer} or less")  # fmt: skip
    return sites


def check_keys(site: Site, weights: Tensor, tokens: int) -> None:
    """Raise an error for keys that are mixtures of tokens (low-rank attention), which cannot be traced."""
    if weights.shape[2] != tokens:
        raise UserError(f"the keys of {site.label} are {weights.shape[2]} mixtures, not its {tokens} tokens",
                        where="rollout", fix=f"use depth {site.layer} or less")  # fmt: skip


def first_axis(capture: CaptureBase, stack: str) -> str:
    """The axis of a stack's input tokens."""
    return next(site.queries for site in capture.sites if site.stack == stack)


def input_axes(capture: CaptureBase, stack: str = "") -> list[str]:
    """The axes of a rollout's columns, concatenated."""
    stack = chosen_stack(capture, stack)
    if exchanges(capture, stack):
        return [stack, STREAMS[stack]]
    return [first_axis(capture, "encoder" if stack == CROSS else stack)]


def columns_axis(capture: CaptureBase, stack: str = "") -> TokenAxis:
    """The tokens of a rollout's columns, and the patch grid among them."""
    axes = [capture.axes[name] for name in input_axes(capture, stack)]
    tokens = tuple(token for axis in axes for token in axis.tokens)
    before = 0
    for axis in axes:
        if axis.grid is not None:
            return TokenAxis(axis.name, tokens, axis.grid, before + axis.first)
        before += len(axis)
    return TokenAxis(axes[0].name, tokens)


def output_axis(capture: CaptureBase, stack: str = "", depth: int | None = None) -> str:
    """The axis of a rollout's rows."""
    stack = chosen_stack(capture, stack)
    within = "decoder" if stack == CROSS else stack
    sites = attention_sites(capture, within, depth)
    return sites[-1].queries if sites else first_axis(capture, within)


# ---------------------------------------------------------------- pyramids


def merging(coarse: tuple[int, int], fine: tuple[int, int]) -> Tensor:
    """The matrix of patch merging: each coarse cell is the mean of its fine cells, (cells, fine cells)."""
    high, wide = -(-fine[0] // coarse[0]), -(-fine[1] // coarse[1])
    row = torch.arange(fine[0]).div(high, rounding_mode="floor")[:, None]
    column = torch.arange(fine[1]).div(wide, rounding_mode="floor")[None]
    cell = (row * coarse[1] + column).flatten()  # the coarse cell of every fine one
    found = torch.zeros(coarse[0] * coarse[1], fine[0] * fine[1], dtype=torch.float64)
    found[cell, torch.arange(len(cell))] = 1.0
    return divide_by_sum(found)


def grids_between(capture: Capture, above: Site, below: Site) -> tuple[tuple[int, int], tuple[int, int]]:
    """The grids of two layers between which patches were merged, the coarser one first."""
    coarse, fine = capture.axes[above.keys].grid, capture.axes[below.queries].grid
    if coarse is None or fine is None:
        raise UserError(f"{below.label} and {above.label} have different tokens", where="rollout",
                        fix=f"use depth {above.layer} or less")  # fmt: skip
    return coarse, fine
