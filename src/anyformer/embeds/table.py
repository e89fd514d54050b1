"""Rows of a table into tokens: one token per column (FT-Transformer's feature tokenizer, 2106.11959)."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.device_tables import Known, cached_table
from anyformer.core.linear import EmbeddingTable, LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.slots import Embed, NumberCurve


class Table(Embed):
    """x_j * W_j + b_j for number j, an embedding + b_j for category j, and a class token first.

    `categories` has the number of values of each category column. With `missing`, a nan number and a category of -1
    are embedded as a learned vector of their column. `curve` adds a non-linear term to the numbers. With `joined`,
    columns have that many channels each and are concatenated to one token, for a stack of feed-forward layers only.
    """

    about: ClassVar[About | None] = About("x_f = value_f W_f + b_f; category: E_f[value_f]", "2106.11959", "F D")

    numbers: int = 0
    """Number columns."""
    categories: tuple[int, ...] | None = None
    """Number of values of each category column."""
    cls: bool = True
    """Whether a learned class token comes first."""
    missing: bool = False
    """Whether a missing cell is embedded as a learned vector of its column."""
    curve: NumberCurve | None = None
    """Non-linear term of each number; none if not given."""
    joined: int | None = None
    """Channels per column if all columns become one token; one token per column if not given."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        if self.numbers < 0 or self.features == 0:
            raise UserError("a table needs at least one column", where="Table", fix="give numbers= or categories=")
        check_fraction("Table", "dropout", self.dropout, fix="use 0.1")
        if any(count < 1 for count in self.categories or ()):
            raise UserError("a category column has no values", where="Table.categories", fix="leave the column out")
        check_at_least("Table", "joined", self.joined, 1, fix="use 16")
        if self.joined is not None and self.cls:
            raise UserError("columns that are one token need no class token", where="Table.cls", fix="use cls=False")

    @property
    def features(self) -> int:
        return self.numbers + len(self.categories or ())

    @property
    def tokens(self) -> int:
        """Tokens of a row."""
        return 1 if self.joined is not None else self.features + int(self.cls)

    def build(self, width: int) -> nn.Module:
        return TableModule(self, width)


class TableModule(nn.Module):
    def __init__(self, spec: Table, width: int) -> None:
        super().__init__()
        self.spec = spec
        counts = spec.categories or ()
        extra = 1 if spec.missing else 0
        self.project = None if spec.joined is None else LinearLayer(spec.features * spec.joined, width)
        width = width if spec.joined is None else spec.joined
        self.weight = nn.Parameter(torch.zeros(spec.numbers, width)) if spec.numbers else None
        self.bias = nn.Parameter(torch.zeros(spec.features, width))
        self.lead = nn.Parameter(torch.zeros(1, width)) if spec.cls else None
        self.absent = nn.Parameter(torch.zeros(spec.numbers, width)) if spec.missing and spec.numbers else None
        self.curve = spec.curve.build(spec.numbers, width) if spec.curve is not None and spec.numbers else None
        self.category = EmbeddingTable(sum(counts) + extra * len(counts), width) if counts else None
        self.known: Known = {}
        self.starts = (
            [start + extra * j for j, start in enumerate(accumulate(counts[:-1], initial=0))] if counts else []
        )

    def layout(
        self, numbers: Tensor | None, categories: Tensor | None = None, *, mask: Mask | None = None,
        positions: Tensor | None = None, documents: Tensor | None = None, segments: Tensor | None = None,
        state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of rows; `mask` is over tokens."""
        spec, counts = self.spec, self.spec.categories or ()
        given = numbers if numbers is not None else categories
        if not isinstance(given, Tensor) or not isinstance(categories, Tensor | None):
            raise UserError("a table row needs numbers or categories", fix="call model(numbers, categories)")
        for name, part, columns in (("numbers", numbers, spec.numbers), ("categories", categories, len(counts))):
            found = (given.shape[0], 0) if part is None else tuple(part.shape)
            if found != (given.shape[0], columns):
                raise UserError(f"{name} have shape {found}", fix=f"expected (B, {columns})")
        if numbers is not None and not numbers.is_floating_point():
            raise UserError(f"numbers have type {numbers.dtype}", fix="expected floating point")
        if categories is not None and categories.is_floating_point():
            raise UserError(f"categories have type {categories.dtype}", fix="expected whole numbers")
        return lay_out(given.shape[0], spec.tokens, given.device, mask=mask, positions=positions,
                       documents=documents, segments=segments, state=state)  # fmt: skip

    def forward(self, numbers: Tensor | None, categories: Tensor | None = None, *, context: Context) -> Tensor:
        """Numbers (B, F) and categories (B, F') to (B, [class +] F + F', D), or (B, 1, D) if joined."""
        parts: list[Tensor] = []
        if numbers is not None and self.weight is not None:
            missing = numbers.isnan()
            # A nan in the product would propagate through the gradient even though its result is replaced.
            known = numbers if self.absent is None else numbers.masked_fill(missing, 0.0)
            scaled = known.to(self.weight.dtype)[..., None] * self.weight  # (B,F,D)
            scaled = scaled if self.curve is None else scaled + self.curve(known)
            if self.absent is not None:
                scaled = torch.where(missing[..., None], self.absent, scaled)
            parts.append(scaled)
        if categories is not None and self.category is not None:
            counts, starts = self.category_places(categories.device)
            rows = torch.where(categories < 0, counts, categories) if self.spec.missing else categories
            parts.append(self.category(rows + starts))
        x = torch.cat(parts, 1) + self.bias
        if self.lead is not None:
            x = torch.cat([self.lead.expand(x.shape[0], -1, -1), x], 1)
        x = x if self.project is None else self.project(x.flatten(1))[:, None]  # (B,1,D)
        return F.dropout(x, self.spec.dropout, self.training)

    def category_places(self, device: torch.device) -> Tensor:
        """The number of values and the first table row of each category column, (2, F')."""
        places = self.spec.categories or (), self.starts
        return cached_table(self.known, torch.long, device, lambda: torch.tensor(places, dtype=torch.long))
