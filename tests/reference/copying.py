"""Other people's weights in our layout, and the one comparison all tests here use.

Every `from_...` gives our parameters as differentiable functions of theirs, so `functional_call` runs our module on
their weights and both sides' gradients are taken with respect to the very same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anyformer.core.context import Context, Mask, lay_out

Weights = dict[str, Tensor]
EXACT = 1e-9  # both sides in float64
CAST = 1e-6  # the other side goes through float32 somewhere inside; the test says where
WORST: dict[str, float] = {}  # largest deviation seen by each call of `agree`, by its bound


# ---------------------------------------------------------------- comparison


def agree(
    ours: Tensor,
    theirs: Tensor,
    leaves: Sequence[Tensor] = (),
    *,
    bound: float = EXACT,
    where: Tensor | None = None,
) -> float:
    """Largest difference of two outputs and of their gradients at `leaves`; fails above `bound`.

    `where` (broadcast to the output) picks what counts, in the outputs and in the loss behind the gradients.
    """
    found = deviation(ours, theirs, leaves, where)
    key = f"{bound:g}"
    WORST[key] = max(WORST.get(key, 0.0), found)
    assert found <= bound, f"deviation {found:.3g}, bound {bound:g}"
    return found


def deviation(ours: Tensor, theirs: Tensor, leaves: Sequence[Tensor] = (), where: Tensor | None = None) -> float:
    """Relative to the larger of 1 and the other side's largest entry, so that a sum of many gradients stays fair."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} against {tuple(theirs.shape)}"
    kept = torch.ones_like(theirs, dtype=torch.bool) if where is None else where.expand_as(theirs)
    pairs = [(ours[kept], theirs[kept])]
    if leaves:
        weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        pairs += zip(*(slopes_at(out, weights, kept, leaves) for out in (ours, theirs)), strict=True)
    worst = 0.0
    for mine, other in pairs:
        assert mine.isfinite().all() and other.isfinite().all()
        if other.numel():
            worst = max(worst, ((mine - other).abs().max() / other.abs().max().clamp(min=1)).item())
    return worst


def slopes_at(out: Tensor, weights: Tensor, kept: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a fixed random sum of the output; a leaf the output ignores has gradient zero."""
    loss = (out[kept] * weights.to(out.dtype)[kept]).sum()
    slopes = torch.autograd.grad(loss, list(leaves), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, leaves, strict=True)]


def call(module: nn.Module, weights: Weights, *given: Any) -> Any:
    """Our module on borrowed weights; every parameter must be given, and no other."""
    expected = {name for name, _ in module.named_parameters()}
    assert set(weights) == expected, f"missing {expected - set(weights)}, unknown {set(weights) - expected}"
    for name, parameter in module.named_parameters():
        assert weights[name].shape == parameter.shape, f"{name}: {weights[name].shape}, expected {parameter.shape}"
    return functional_call(module, weights, given)


# ---------------------------------------------------------------- inputs


def seeded(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    """Unit normal numbers in float64."""
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_(grad)


def shaken(module: nn.Module, seed: int = 1) -> Any:
    """The module in float64 with every parameter random, so that no zero bias or unit norm hides a mistake."""
    module = module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            size = 0.3 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
            parameter.copy_(noise * size + (1.0 if parameter.dim() < 2 else 0.0))
    return module


def context_of(x: Tensor, mask: Mask | None = None, documents: Tensor | None = None) -> Context:
    """The context of tokens x (B,T,D)."""
    return lay_out(x.shape[0], x.shape[1], x.device, mask=mask, documents=documents)


def real_tokens(lengths: Sequence[int], width: int, side: str = "right") -> Tensor:
    """A padding mask (B,T) with that many real tokens a row."""
    count = torch.arange(width)
    rows = [count < n if side == "right" else count >= width - n for n in lengths]
    return torch.stack(rows)


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}.{name}": weight for name, weight in weights.items()}


# ---------------------------------------------------------------- our layout


def fuse(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """Rows of queries, keys and values (heads first) group by group: G x (H/G queries, key, value)."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in (q, k, v)], 1).flatten(0, 1)


def parts_of(fused: Tensor, heads: int, groups: int, channels: int, value_channels: int) -> tuple[Tensor, ...]:
    """The reverse, row by row: queries (H,C,...), keys (G,C,...), values (G,C',...)."""
    per_group = heads // groups
    q, k, v, at = [], [], [], 0
    for _ in range(groups):
        for _ in range(per_group):
            q.append(fused[at : at + channels])
            at += channels
        k.append(fused[at : at + channels])
        v.append(fused[at + channels : at + channels + value_channels])
        at += channels + value_channels
    assert at == fused.shape[0]
    return torch.stack(q), torch.stack(k), torch.stack(v)


def interleave(gate: Tensor, value: Tensor) -> Tensor:
    """Rows of a gated feed: gate and value of one inner channel are neighbours."""
    return torch.stack([gate, value], 1).flatten(0, 1)


# ---------------------------------------------------------------- torch's layers


def from_torch_attention(theirs: nn.MultiheadAttention) -> Weights:
    """torch stacks all queries, all keys, all values."""
    weights = {"out.weight": theirs.out_proj.weight}
    weights["qkv.weight"] = fuse(*theirs.in_proj_weight.chunk(3), theirs.num_heads)
    if theirs.in_proj_bias is not None:
        weights["qkv.bias"] = fuse(*theirs.in_proj_bias.chunk(3), theirs.num_heads)
        weights["out.bias"] = theirs.out_proj.bias
    return weights


def from_torch_cross(theirs: nn.MultiheadAttention) -> Weights:
    weights = {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    for name, stacked in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        q, k, v = stacked.chunk(3)
        weights[f"q.{name}"] = q
        weights[f"kv.{name}"] = side_by_side(k, v, theirs.num_heads)
    return weights


def side_by_side(k: Tensor, v: Tensor, groups: int) -> Tensor:
    """Rows of keys and values group by group."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in (k, v)], 1).flatten(0, 1)


def from_norm(theirs: nn.LayerNorm) -> Weights:
    return {"weight": theirs.weight, "bias": theirs.bias}


def from_linear(theirs: nn.Linear) -> Weights:
    return {"weight": theirs.weight} | ({} if theirs.bias is None else {"bias": theirs.bias})


def from_torch_layer(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Weights:
    """A whole layer as our block, for either place of the norms."""
    place = "before" if theirs.norm_first else "after"
    weights = under("mixer", from_torch_attention(theirs.self_attn))
    weights |= under(f"around_mixer.{place}", from_norm(theirs.norm1))
    weights |= under("feed.up", from_linear(theirs.linear1)) | under("feed.down", from_linear(theirs.linear2))
    last = theirs.norm2
    if isinstance(theirs, nn.TransformerDecoderLayer):
        weights |= under("cross", from_torch_cross(theirs.multihead_attn))
        weights |= under(f"around_cross.{place}", from_norm(theirs.norm2))
        last = theirs.norm3
    return weights | under(f"around_feed.{place}", from_norm(last))


def from_layers(theirs: Sequence[nn.Module], one: Callable[[Any], Weights], final: nn.Module | None) -> Weights:
    """Several layers as our stack."""
    weights: Weights = {}
    for i, layer in enumerate(theirs):
        weights |= under(f"blocks.{i}", one(layer))
    return weights if final is None else weights | under("final", from_norm(final))


# ---------------------------------------------------------------- x-transformers


def from_x_attention(theirs: Any) -> Weights:
    """Three projections without bias; query head h reads key head h mod G there, h // (H/G) here."""
    q, k, v, out = (part.weight for part in (theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out))
    groups = k.shape[0] * theirs.heads // q.shape[0]
    q = q.unflatten(0, (theirs.heads // groups, groups, -1)).transpose(0, 1).flatten(0, 2)
    out = out.unflatten(1, (theirs.heads // groups, groups, -1)).transpose(1, 2).flatten(1)
    return {"qkv.weight": fuse(q, k, v, groups), "out.weight": out}


def from_x_feed(theirs: Any) -> Weights:
    """Plain or gated; the gated one stores values first, then gates."""
    first, down = theirs.ff[0], theirs.ff[2]
    if isinstance(first, nn.Sequential):
        up = from_linear(first[0])
    else:
        up = {name: interleave(*reversed(w.chunk(2))) for name, w in from_linear(first.proj).items()}
    return under("up", up) | under("down", from_linear(down))


def from_x_layers(theirs: Any) -> Weights:
    """Its layers alternate attention and feed; its norms have no bias."""
    weights: Weights = {"final.weight": gain_of(theirs.final_norm)}
    for i, (norms, layer, _) in enumerate(theirs.layers):
        kind, copy = ("mixer", from_x_attention) if i % 2 == 0 else ("feed", from_x_feed)
        weights |= under(f"blocks.{i // 2}.{kind}", copy(layer))
        for place, norm in zip(("before", "inside", "after"), norms, strict=True):
            if norm is not None:
                weights[f"blocks.{i // 2}.around_{kind}.{place}.weight"] = gain_of(norm)
    return weights


def gain_of(theirs: Any) -> Tensor:
    """The gain of a norm, which may be stored as its distance from 1."""
    return theirs.gamma + float(theirs.unit_offset)
