"""Several inputs as one sequence: text, image, table and whatever else has an embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable
from anyformer.core.pytrees import as_tuple
from anyformer.core.state import State
from anyformer.errors import UserError, check_fraction
from anyformer.slots import Embed, Norm

Input = Tensor | tuple[Tensor | None, ...] | None


class Joint(Embed):
    """The tokens of every part, concatenated; `kinds` adds a learned vector per part.

    Call the model with one input per part; a part that takes several tensors gets a tuple, and None leaves a part out.
    `mask` is then a tuple too, per part (B, T of the part), (B,) or None: (B,) hides the part in whole rows. `segments`
    are for all tokens together, (B, sum of T).
    """

    about: ClassVar[About | None] = About(
        "x = [part 1; part 2; ...], each with a vector of its kind", "1908.03557", "T D"
    )

    parts: tuple[Embed, ...]
    """The embeddings whose tokens are concatenated."""
    kinds: bool = True
    """Whether a learned vector per part is added."""
    norm: Norm | None = None
    """Norm of all output tokens; none if not given."""
    dropout: float = 0.0
    """Dropout probability of the output."""

    def check(self) -> None:
        check_fraction("Joint", "dropout", self.dropout, fix="use 0.1")

    @property
    def vocabulary(self) -> tuple[int, int | None] | None:
        return next((part.vocabulary for part in self.parts if part.vocabulary is not None), None)

    def build(self, width: int) -> nn.Module:
        return JointModule(self, width)


class JointModule(nn.Module):
    def __init__(self, spec: Joint, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.parts: Any = nn.ModuleList(part.build(width) for part in spec.parts)
        self.kind = EmbeddingTable(len(spec.parts), width) if spec.kinds else None
        self.norm = None if spec.norm is None else spec.norm.build(width)

    @property
    def table(self) -> Any:
        """The token embedding for a tied head, owned by its part."""
        parts = zip(self.parts, self.spec.parts, strict=True)
        return next((part.table for part, of in parts if of.vocabulary is not None), None)

    def layout(
        self, *inputs: Input, mask: Mask | tuple[Tensor | None, ...] | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Concatenate the parts' contexts."""
        pieces = self.pieces(inputs, mask)
        lengths = [0 if piece is None else piece.index.shape[1] for piece in pieces]
        first = next(piece for piece in pieces if piece is not None)
        batch = max(
            piece.index.shape[0] if piece.mask is None else piece.mask.shape[0] for piece in pieces if piece is not None
        )
        batch = max([batch, *(batch_of(given) for given in inputs if given is not None)])
        device = first.index.device
        seen = None
        if any(piece is not None and piece.mask is not None for piece in pieces):
            seen = torch.cat([
                torch.ones(batch, length, dtype=torch.bool, device=device) if piece.mask is None else piece.mask
                for piece, length in zip(pieces, lengths, strict=True) if piece is not None
            ], 1)  # fmt: skip
        places = self.places(lengths, seen, state, device)
        context = lay_out(batch, sum(lengths), device, mask=seen, positions=positions, documents=documents,
                          segments=segments, state=state)  # fmt: skip
        if state is not None:
            sources = [torch.full((1, length), i, device=device) for i, length in enumerate(lengths)]
            state.sources = torch.cat(sources if state.sources is None else [state.sources, *sources], 1)
        return replace(context, places=places, tokens=join_tokens(pieces, batch))

    def places(self, lengths: list[int], seen: Tensor | None, state: State | None, device: torch.device) -> Tensor:
        """Position of each token within its part, without padding, continuing from the decoding state."""
        found, start = [], 0
        for i, length in enumerate(lengths):
            every = torch.ones(1, length, dtype=torch.bool, device=device)
            own = rank(every if seen is None else seen[:, start : start + length])
            found.append(own if state is None or state.sources is None else own + state.count_of(i))
            start += length
        batch = max(part.shape[0] for part in found)
        return torch.cat([part.expand(batch, -1) for part in found], 1)

    def pieces(
        self, inputs: tuple[Input, ...], mask: Mask | tuple[Tensor | None, ...] | None = None
    ) -> list[Context | None]:
        if len(inputs) != len(self.parts):
            raise UserError(
                f"{len(inputs)} inputs for {len(self.parts)} parts", fix="give one input a part, None to leave it out"
            )
        if all(given is None for given in inputs):
            raise UserError("every part is left out", fix="give at least one input")
        masks = mask if isinstance(mask, tuple) else (None,) * len(inputs)
        if mask is not None and (not isinstance(mask, tuple) or len(mask) != len(inputs)):
            raise UserError(
                "the mask of a joint sequence is a tuple", fix=f"give {len(inputs)} masks, None where nothing is hidden"
            )
        found: list[Context | None] = []
        for part, given, hidden in zip(self.parts, inputs, masks, strict=True):
            if given is None:
                found.append(None)
                continue
            piece = part.layout(*as_tuple(given))
            if isinstance(hidden, Tensor):
                rows = hidden[:, None].expand(-1, piece.index.shape[1]) if hidden.dim() == 1 else hidden
                piece = part.layout(*as_tuple(given), mask=rows.contiguous())
            found.append(piece)
        return found

    def forward(self, *inputs: Input, context: Context, table: Tensor | None = None) -> Tensor:
        """The parts' tokens, (B, sum of T, D)."""
        tokens = []
        own = self.pieces(inputs)
        start = 0
        for i, (part, given, piece) in enumerate(zip(self.parts, inputs, own, strict=True)):
            if given is None or piece is None:
                continue
            stop = start + piece.index.shape[1]
            if context.places is not None:
                own_places = context.places[:, start:stop]
                piece = replace(piece, index=own_places, positions=own_places)
            if context.segments is not None:
                piece = replace(piece, segments=context.segments[:, start:stop])
            x = part(*as_tuple(given), context=piece)
            tokens.append(x if self.kind is None else x + self.kind.weight[i])
            start = stop
        joined = torch.cat(tokens, 1)
        joined = joined if self.norm is None else self.norm(joined)
        return F.dropout(joined, self.spec.dropout, self.training)


def join_tokens(pieces: list[Context | None], batch: int) -> Tensor | None:
    """The ids of all tokens (B,T), -1 for those without; None if no part has ids."""
    known = [piece for piece in pieces if piece is not None]
    if all(piece.tokens is None for piece in known):
        return None
    ids = [piece.index.new_full((batch, piece.index.shape[1]), -1) if piece.tokens is None else piece.tokens.long()
           for piece in known]  # fmt: skip
    return torch.cat(ids, 1)


def batch_of(given: Input) -> int:
    return next(part.shape[0] for part in as_tuple(given) if part is not None)


def rank(mask: Tensor) -> Tensor:
    return (mask.long().cumsum(1) - 1).clamp(min=0)
