"""Context: the per-token metadata of one forward pass (positions, masks), built once before the embedding, read-only.

It holds integer and boolean tensors, and tensors already in compute dtype; no lists, no decoding state, no layer
number (sharded training copies and casts what is passed between modules, and anything else would be lost there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.pytrees import register
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.core.state import State

TokenSubset = slice | Tensor  # a subset of each row's tokens: a slice common to all rows, or indices (B,R) per row
MaskFunction = Callable[[Tensor, Tensor], Tensor]  # (query index (T,1), key index (1,S)) -> bool, True = may be seen
Mask = Tensor | MaskFunction | tuple["Tensor | MaskFunction", ...]


@dataclass(frozen=True)
class Context:
    """Queries are the T tokens of this pass; keys are the S tokens they may attend to (more than T when decoding)."""

    positions: Tensor  # (B or 1, T) position of each token, for embeddings and relative positions
    index: Tensor  # (B or 1, T) its rank among the real tokens of its document: what causal and window compare
    key_positions: Tensor  # (B or 1, S)
    key_index: Tensor  # (B or 1, S)
    mask: Tensor | None = None  # (B, T) padding mask: True = a real token
    key_mask: Tensor | None = None  # (B, S)
    documents: Tensor | None = None  # (B, T) tokens see only keys of their own document
    key_documents: Tensor | None = None  # (B, S)
    allowed: Tensor | None = None  # (B or 1, H or 1, T, S) the user's own boolean rule
    bias: Tensor | None = None  # (B or 1, H or 1, T, S) the user's own additive term
    segments: Tensor | None = None  # (B, T)
    prefix: Tensor | None = None  # (B,) length of the bidirectional prefix of each row (causal="prefix_lm")
    tokens: Tensor | None = None  # (B, T) the ids themselves, where the input is ids
    memory: Tensor | None = None  # (B, S', D') the encoder's output
    memory_mask: Tensor | None = None  # (B, S')
    added: Tensor | None = None  # (B or 1, T, D) added to queries and keys, not values, in every layer (DETR)
    memory_added: Tensor | None = None  # (B or 1, S', D') the same of the encoder's output, for cross-attention's keys
    places: Tensor | None = None  # (B or 1, T) position of each token within its own part of a joint sequence
    grid: tuple[int, int] | None = None  # rows and columns of patches
    ordered: bool = True  # plain bool, never a tensor: the keys are the queries, in order, none of them masked
    rolling: bool = True  # plain bool: a windowed layer's cache may drop tokens that no later query can see
    past: int = 0  # plain int: tokens of earlier passes, whether or not any layer still caches them
    gaps: bool = False  # plain bool: keys are a static cache's columns; those past a row's own length are stale

    def latest(self, keys: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Positions, index, mask and documents of the newest `keys` keys, all that a rolling cache still holds."""
        if keys == self.key_index.shape[1]:
            return self.key_positions, self.key_index, self.key_mask, self.key_documents
        mask = None if self.key_mask is None else self.key_mask[:, -keys:]
        documents = None if self.key_documents is None else self.key_documents[:, -keys:]
        return self.key_positions[:, -keys:], self.key_index[:, -keys:], mask, documents

    def for_subset(self, some: TokenSubset) -> Context:
        """The context of a subset of its tokens, over the same keys."""
        names = ("positions", "index", "mask", "documents", "segments", "tokens", "added", "places")
        of_tokens, of_pairs = take_fields(self, names, some, 1), take_fields(self, ("allowed", "bias"), some, 2)
        no_cells = None if self.grid is None else (0, 0)  # a subset of a grid has no rows and columns
        return replace(self, **of_tokens, **of_pairs, grid=no_cells, ordered=False)

    def over_all_keys(self, tokens: Tensor | None = None) -> Context:
        """The context of one full pass over all keys (B,S), earlier tokens included; `tokens` are all their ids."""
        if not self.past:
            return self
        for name in ("allowed", "bias", "segments", "added", "places"):
            if getattr(self, name) is not None:  # given for the newest tokens only
                raise UserError(
                    f"a mixer without a decoding state runs over earlier tokens again, and their {name} are unknown",
                    fix="give its module a state, or run the whole sequence in one pass",
                )
        return replace(
            self, positions=self.key_positions, index=self.key_index, mask=self.key_mask, documents=self.key_documents,
            tokens=tokens, grid=None, ordered=self.key_mask is None and self.key_documents is None, past=0,
        )  # fmt: skip


FIRST, LAST = slice(0, 1), slice(-1, None)


def take(x: Tensor, some: TokenSubset, dim: int = 1) -> Tensor:
    """A subset of the tokens of x (B or 1, ..., T, ...), whose time axis is `dim`."""
    if isinstance(some, slice):
        return x[(slice(None),) * dim + (some,)]
    batch = some.shape[0]  # not its `len`, which would specialise it in an exported model
    x = x.expand(batch, *x.shape[1:]).movedim(dim, 1)
    rows = torch.arange(batch, device=some.device)[:, None]
    return x[rows, some].movedim(1, dim)


def take_fields(one: object, names: tuple[str, ...], some: TokenSubset, dim: int) -> dict[str, Any]:
    """The subset of tokens of each named field that is not None."""
    return {name: take(x, some, dim) for name in names if (x := getattr(one, name)) is not None}


def see_prefix(context: Context, *, is_prompt: bool) -> Context:
    """The context of a prefix LM: attention is bidirectional within `context.prefix`, or within a whole prompt.

    A prefix query gets the index of the prefix's last token, so that the causal rule shows it the whole prefix; keys
    keep theirs.
    """
    if context.prefix is not None:
        if context.past:
            raise UserError("a prefix belongs to the first pass", where="prefix", fix="leave it out")
        index = torch.maximum(context.index, context.prefix[:, None] - 1)  # (B,T)
    elif is_prompt and not context.past:
        index = torch.full_like(context.index, context.index.shape[1])
    else:
        return context
    return replace(context, index=index, ordered=False)


STATIC_FIELDS = ("grid", "ordered", "rolling", "past", "gaps")  # Python values, not tensors
register(Context, static=STATIC_FIELDS)


def lay_out(
    batch: int,
    length: int,
    device: torch.device,
    *,
    mask: Mask | None = None,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    segments: Tensor | None = None,
    tokens: Tensor | None = None,
    grid: tuple[int, int] | None = None,
    state: State | None = None,
) -> Context:
    """Build the context of `length` new tokens per row, after the tokens that `state` already holds."""
    past = 0 if state is None else state.length
    if batch < 1:
        raise UserError("the input holds no rows", fix="give at least one")
    if length < 1:
        raise UserError("the input holds no tokens", fix="give at least one token a row")
    padding, allowed_parts, bias, functions = sort_masks(mask, batch, length, past + length)
    for name, given in (("documents", documents), ("segments", segments), ("positions", positions)):
        check_rows(name, given, batch, length)
    ordered = (
        past == 0 and padding is None and documents is None and not allowed_parts and not functions and bias is None
    )
    if state is None:
        index = count(batch, length, device, padding, documents)
        keys = (index if positions is None else positions, index, padding, documents)
    else:
        keys = state.extend(batch, length, device, padding, documents, positions)
        index = state.newest(length)
        ordered = ordered and not state.gaps
    placed = index if positions is None else positions
    runs = None if keys[3] is None else number_runs(keys[3])
    allowed = None
    for rule in functions:
        allowed_parts.append(rule(index[:, :, None], keys[1][:, None, :])[:, None])  # (B or 1, 1, T, S)
    for part in allowed_parts:
        part = part[..., -keys[1].shape[1] :]  # a rolling cache has dropped the oldest keys
        allowed = part if allowed is None else allowed & part
    return Context(
        positions=placed, index=index, key_positions=keys[0], key_index=keys[1], mask=padding, key_mask=keys[2],
        documents=None if runs is None else runs[:, -length:], key_documents=runs, allowed=allowed, bias=bias,
        segments=segments, tokens=tokens, grid=grid,
        ordered=ordered, rolling=state is None or state.rolling, past=past,
        gaps=state is not None and state.gaps,
    )  # fmt: skip


def count(batch: int, length: int, device: torch.device, mask: Tensor | None, documents: Tensor | None) -> Tensor:
    """Index of every token among the real tokens of its document, (B or 1, T), from 0; padding repeats the last
    index."""
    if mask is None and documents is None:
        return torch.arange(length, device=device)[None]
    real = torch.ones(batch, length, dtype=torch.long, device=device) if mask is None else mask.long()
    rank = real.cumsum(1) - 1
    if documents is not None:
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        before = (rank + 1 - real).where(starts, torch.zeros_like(rank))  # real tokens ahead of each document
        rank = rank - before.cummax(1).values
    return rank.clamp(min=0)


def number_runs(documents: Tensor) -> Tensor:
    """Number documents by runs of equal ids, so that an id reused later in a row is another document."""
    changed = torch.zeros_like(documents)
    changed[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return changed.cumsum(1)


def sort_masks(
    mask: Mask | None, batch: int, length: int, keys: int
) -> tuple[Tensor | None, list[Tensor], Tensor | None, list[MaskFunction]]:
    """Split masks into padding (B,T), boolean masks (B|1,H|1,T,S), an additive bias and functions of (i, j)."""
    padding: Tensor | None = None
    rules: list[Tensor] = []
    bias: Tensor | None = None
    functions: list[MaskFunction] = []
    for part in () if mask is None else mask if isinstance(mask, tuple) else (mask,):
        if not isinstance(part, Tensor):
            functions.append(part)
        elif part.dim() == 2 and part.shape == (batch, length) and not part.is_floating_point():
            as_bool = part if part.dtype == torch.bool else part != 0
            padding = as_bool if padding is None else padding & as_bool
        elif part.dim() in (3, 4) and (part.dim() == 3 or part.shape[1] >= 1):
            whole = part[:, None] if part.dim() == 3 else part
            if whole.shape[0] not in (1, batch) or whole.shape[2:] != (length, keys):
                raise wrong_mask(part, batch, length, keys)
            if whole.is_floating_point():
                bias = whole if bias is None else bias + whole
            else:
                rules.append(whole if whole.dtype == torch.bool else whole != 0)
        else:
            raise wrong_mask(part, batch, length, keys)
    return padding, rules, bias, functions


def wrong_mask(mask: Tensor, batch: int, length: int, keys: int) -> UserError:
    return UserError(
        f"mask has shape {tuple(mask.shape)} and type {mask.dtype}",
        fix=f"expected padding (B, T) = ({batch}, {length}), bool or whole numbers, or a rule "
        f"(B or 1, H or 1, T, S) = ({batch} or 1, H or 1, {length}, {keys}), bool (True = seen) or a float to be added",
    )


def check_rows(name: str, given: Tensor | None, batch: int, length: int) -> None:
    if given is None:
        return
    if given.dim() != 2 or given.shape[0] not in (1, batch) or given.shape[1] != length:
        raise UserError(f"{name} has shape {tuple(given.shape)}", fix=f"expected (B, T) = ({batch}, {length})")
    if given.is_floating_point() and name != "positions":
        raise UserError(f"{name} has type {given.dtype}", fix="expected whole numbers")
