"""Pooling of tokens into one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from anyformer.core.context import FIRST, LAST, Context, TokenSubset, take
from anyformer.errors import UserError

Pool = Literal["first", "mean", "max", "last", "concat", "token", "lead"]
READS_SOME: tuple[Pool, ...] = ("first", "last", "token", "lead")


def pool(hidden: Tensor, context: Context, how: Pool, token: int | None = None) -> Tensor:
    """(B,T,D) to (B,D), or (B,3D) for concat = last, max and mean (ULMFiT); padding is ignored."""
    mask = context.mask
    if how in READS_SOME:
        read = take(hidden, tokens_read(context, how, token))  # (B,R,D)
        return read[:, 0] if read.shape[1] == 1 else read.mean(1)
    if how == "mean":
        if mask is None:
            return hidden.mean(1)
        share = mask.to(hidden.dtype)[..., None]
        return (hidden * share).sum(1) / share.sum(1).clamp(min=1)
    if how == "max":
        if mask is None:
            return hidden.amax(1)
        highest = hidden.masked_fill(~mask[..., None], -torch.inf).amax(1)
        return highest.masked_fill(~mask.any(1, keepdim=True), 0.0)  # a row of padding only has no maximum
    return torch.cat([pool(hidden, context, part) for part in ("last", "max", "mean")], -1)


def tokens_read(context: Context, how: Pool, token: int | None = None) -> TokenSubset:
    """The tokens whose mean is the pooled vector, for pools in READS_SOME; all, if the input is that subset already."""
    if how == "first":
        return FIRST if context.mask is None else context.mask.long().argmax(1, keepdim=True)
    if how == "last":
        return LAST if context.mask is None else last_real(context.mask)[:, None]
    return slice(0, leading(context)) if how == "lead" else place_of(token, context)[:, None]


def leading(context: Context) -> int:
    """The number of leading tokens before a grid (AST pools the mean of its two)."""
    found = 0 if context.grid is None else context.index.shape[1] - context.grid[0] * context.grid[1]
    if found < 1:
        raise UserError('pool="lead" reads class tokens before a grid, and here are none', fix='use pool="mean"')
    return found


def place_of(token: int | None, context: Context) -> Tensor:
    """Index of each row's first token with this id, or with the highest id; 0 if there is none."""
    ids = context.tokens
    if ids is None:
        raise UserError('pool="token" looks for an id, and these inputs have none', fix='use pool="first" or "mean"')
    found = ids + 1 if token is None else (ids == token).long()
    return (found if context.mask is None else found * context.mask).argmax(1)


def last_real(mask: Tensor) -> Tensor:
    """Index of each row's last real token."""
    return mask.shape[1] - 1 - mask.flip(1).long().argmax(1)


def pooled_width(width: int, how: Pool) -> int:
    return 3 * width if how == "concat" else width
