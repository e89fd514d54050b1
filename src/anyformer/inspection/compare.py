"""Comparison of two captures: another input, another checkpoint, or another model with the same layout.

Maps are compared over their common tokens; the weight on all other keys is kept as one further key, so that every row
still sums to 1. The distance of two heads is the mean Jensen-Shannon divergence of their rows in bits: 0 for the same
map, 1 if no row has a key in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.inspection.axis import TokenAxis
    from anyformer.inspection.capture import Capture

ENTRIES = 2**20  # elements of a map read at once
LONGEST = 2048  # most tokens between a common prefix and suffix that are aligned; the time is quadratic


@dataclass(frozen=True)
class TokenAlignment:
    """The common tokens of two axes: their positions in the first and in the second, in order."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    complete: bool  # both axes are the same, token by token

    def __len__(self) -> int:
        return len(self.first)


def align(first: TokenAxis, second: TokenAxis) -> TokenAlignment:
    """Align two axes by their longest runs of equal tokens; patches are equal by position, columns by name.

    >>> from anyformer.inspection.axis import Token, TokenAxis
    >>> one, two = (TokenAxis("", tuple(map(Token, text.split()))) for text in ("an old dog", "an old black dog"))
    >>> align(one, two)
    TokenAlignment(first=(0, 1, 2), second=(0, 1, 3), complete=False)
    """
    one, two = ([(token.kind, token.text) for token in axis.tokens] for axis in (first, second))
    start, end, least = 0, 0, min(len(one), len(two))
    while start < least and one[start] == two[start]:
        start += 1
    while end < least - start and one[-1 - end] == two[-1 - end]:
        end += 1
    pairs = [(i, i) for i in range(start)]
    middle = one[start : len(one) - end], two[start : len(two) - end]
    if max(map(len, middle)) <= LONGEST:
        # The default (autojunk) would ignore frequent tokens of long texts.
        matcher = SequenceMatcher(None, *middle, autojunk=False)
        for a, b, size in matcher.get_matching_blocks():
            pairs += [(start + a + i, start + b + i) for i in range(size)]
    pairs += [(len(one) - i, len(two) - i) for i in range(end, 0, -1)]
    return TokenAlignment(tuple(a for a, _ in pairs), tuple(b for _, b in pairs), one == two)


class Comparison:
    """The second capture against the first; `difference` is second minus first."""

    def __init__(self, first: Capture, second: Capture) -> None:
        check_layout(first, second)
        self.first, self.second = first, second
        self.alignments: dict[tuple[str, str], TokenAlignment] = {}

    def queries(self, site: int) -> TokenAlignment:
        """The common queries of a site."""
        return self.aligned(self.first.sites[site].queries, self.second.sites[site].queries)

    def keys(self, site: int) -> TokenAlignment:
        """The common keys of a site."""
        return self.aligned(self.first.sites[site].keys, self.second.sites[site].keys)

    def aligned(self, one: str, two: str) -> TokenAlignment:
        if (one, two) not in self.alignments:
            self.alignments[one, two] = align(self.first.axes[one], self.second.axes[two])
        return self.alignments[one, two]

    def maps(self, site: int, *, rows: slice = slice(None), head: int | None = None) -> tuple[Tensor, Tensor]:
        """Both maps over the common tokens, (H,t,s+1) each: the last column is the weight on all other keys.

        `rows` selects common queries.
        """
        queries, keys = self.queries(site), self.keys(site)
        pairs = (
            (self.first, queries.first[rows], keys.first),
            (self.second, queries.second[rows], keys.second),
        )
        heads = slice(None) if head is None else slice(head, head + 1)
        one, two = (common(picked(capture, site, wanted, heads), over) for capture, wanted, over in pairs)
        return one, two

    def difference(self, site: int, head: int, *, rows: slice = slice(None)) -> Tensor:
        """Second minus first over the common tokens, (t,s)."""
        one, two = self.maps(site, rows=rows, head=head)
        return (two - one)[0, :, :-1]

    def distance(self, site: int) -> list[float | None]:
        """The distance of each head's two maps in bits; None if they have no common query."""
        heads, shared = self.first.sites[site].heads, len(self.queries(site))
        total, count = torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        for rows in blocks(shared, heads * (len(self.keys(site)) + 1)):
            one, two = self.maps(site, rows=rows)
            live = (one.sum(-1) > 0.5) & (two.sum(-1) > 0.5)  # (H,t); a fully masked query has no distance
            total += divergence(one, two).double().masked_fill(~live, 0.0).sum(-1)
            count += live.sum(-1)
        return [None if value != value else value for value in (total / count).tolist()]

    @cached_property
    def distances(self) -> list[list[float | None]]:
        """The distances of all heads, a list per site; empty for mixers without attention."""
        return [self.distance(site.index) if site.kind != "other" else [] for site in self.first.sites]

    def predictions(self, top: int = 10) -> list[dict[str, Any]]:
        """The predictions of both, those of the first before those only in the second."""
        both = self.first, self.second
        found = [{choice.name: choice for choice in capture.prediction(top=top)} for capture in both]
        return [
            {"name": name, "first": probability(found[0].get(name)), "second": probability(found[1].get(name))}
            for name in dict.fromkeys([*found[0], *found[1]])
        ]


def compare(first: Capture, second: Capture) -> Comparison:
    """Compare two captures of models with the same layout."""
    return Comparison(first, second)


def check_layout(first: Capture, second: Capture) -> None:
    """Raise an error for two models whose heads do not correspond."""
    reason = layout_problem(first, second)
    if reason:
        raise UserError(reason, where="compare", fix="compare two inputs, two checkpoints, or two models of one layout")


def layout_problem(first: Capture, second: Capture) -> str:
    """Why two captures cannot be compared head by head; empty if they can."""
    layouts = [[(site.label, site.kind, site.heads) for site in capture.sites] for capture in (first, second)]
    if len(layouts[0]) != len(layouts[1]):
        return f"one model has {len(layouts[0])} attention layers, the other {len(layouts[1])}"
    for one, two in zip(*layouts, strict=True):
        if one != two:
            return f"one model has {one[2]} heads ({one[1]}) in {one[0]}, the other {two[2]} ({two[1]}) in {two[0]}"
    return ""


def picked(capture: Capture, site: int, rows: tuple[int, ...], heads: slice) -> Tensor:
    """The weights of some queries, (H,t,S), read as one slice from the first to the last of them."""
    if not rows:
        found = capture.weights(site, rows=slice(0, 0))
        return found[heads]
    start = min(rows)
    found = capture.weights(site, rows=slice(start, max(rows) + 1))
    return found[heads][:, torch.tensor(rows) - start]


def common(weights: Tensor, keys: tuple[int, ...]) -> Tensor:
    """Weights (H,t,S) restricted to some keys, plus a column for all others: (H,t,s+1)."""
    shared = weights[..., torch.tensor(keys, dtype=torch.long)]
    return torch.cat([shared, (weights.sum(-1) - shared.sum(-1)).clamp(min=0.0)[..., None]], -1)


def divergence(one: Tensor, two: Tensor) -> Tensor:
    """Jensen-Shannon divergence of rows in bits: H((p+q)/2) - (H(p) + H(q))/2, over the last axis."""
    both = (entropy(one) + entropy(two)) / 2
    return (entropy((one + two) / 2) - both).clamp(min=0.0)


def entropy(rows: Tensor) -> Tensor:
    """Entropy of rows that sum to 1, in bits."""
    return torch.special.entr(rows.double()).sum(-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))


def blocks(rows: int, entries: int) -> Iterator[slice]:
    """Blocks of rows with at most ENTRIES elements."""
    step = max(1, ENTRIES // max(1, entries))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def probability(choice: Any) -> float | None:
    if choice is None:
        return None
    return choice.logit if choice.probability is None else choice.probability  # a number has no probability
