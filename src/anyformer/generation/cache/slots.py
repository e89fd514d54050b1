"""Rows in fixed places of shared buffers: nothing is copied when rows come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.stack import Stack
from anyformer.core.state import LayerState
from anyformer.core.static_cache import PlacedState, Places, rounded
from anyformer.errors import UserError
from anyformer.generation.cache.base import Row, row_limit
from anyformer.generation.cache.lanes import Lane, Lanes
from anyformer.generation.cache.memories import Memories
from anyformer.generation.cache.recorded import RecordedStep
from anyformer.generation.cache.together import read_together
from anyformer.generation.prompts import decoder_of
from anyformer.generation.runners.eager import (
    device_of,
    hidden_states,
    logits_of,
    pair_hidden_states,
    pair_logits_of,
)
from anyformer.kernels.decode import try_out

FIRST = 256  # columns at first; they are doubled as texts grow, up to the limit
BLOCK = 64  # columns of a step are a multiple of this, so that its views serve many steps
CHUNK = 64  # tokens read at once in strict mode
PATIENCE = 4  # steps with idle slots between the rows before rows are moved together


def can_be_placed(model: Any) -> bool:
    """Whether every layer of a decoder can keep what it remembers in fixed places."""
    stack = decoder_of(model.spec).stack
    return isinstance(stack, Stack) and all(
        block.mixer.placed and not block.mixer.looks_at_memory and (block.cross is None or block.cross.placed)
        for block in stack.layers
    )


@dataclass
class Plan:
    """Steps of the same rows, one after the other."""

    rows: list[int]
    lanes: list[Lane]
    slots: slice
    order: Tensor | None  # (N,) where in the pass each row stands; None: in this order, with nothing between
    live: Tensor | None  # (N,) the rows of the pass that write, where not all do
    at: Tensor  # (N,1) or, in strict mode, (slots,1): the columns of the next tokens
    places: Tensor  # (slots,1) their positions
    more: Tensor | int  # what a step adds to those
    longest: int  # tokens of the longest row
    even: bool  # whether all are as long, with nothing between them
    loose: bool  # whether a pass would be smaller with the rows moved together
    texts: list[Tensor] = field(default_factory=list)  # (N,) what was written, step by step
    layers: list[LayerState] | None = None  # views of the buffers, for the columns below
    columns: int = 0
    graph: RecordedStep | None = None

    def record(self, graph: RecordedStep) -> None:
        """Steps of this plan are those of a graph, which reads its own tensors."""
        for held, now in ((graph.places, self.places), (graph.at, self.at)):
            held.copy_(now)
        self.graph, self.places, self.at = graph, graph.places, graph.at


class SlotRows:
    """Slot n is row n of buffers (slots, G, columns, C), which grow up to `capacity` and `limit`.

    A row that has ended stays where it is until its slot is needed; a prompt of the same `scope` that begins alike
    goes on from there. Open rows that stand apart are moved together, as a step covers all slots between them.

    `strict` fixes every shape: all slots, all columns and a spare one for what idle slots write, pieces of one length
    in which token p has cell p mod that length, no moving. Whatever the neighbours do, a row's results are the same to
    the last bit.

    `recorded`, which a GPU has unasked, fixes the shapes of steps alone: the first 1, 2, 4, ... slots, all columns and
    a spare one. Each number of slots is recorded once (recorded.py).
    """

    def __init__(
        self, model: Any, *, capacity: int = 8, limit: int | None = None, strict: bool = False,
        recorded: bool | None = None,
    ) -> None:  # fmt: skip
        if not can_be_placed(model):
            raise UserError("a layer of this model has no fixed places", fix="use rows_for(model)")
        self.model, self.capacity, self.limit, self.strict = model, capacity, row_limit(model, limit), strict
        self.resumes = not strict  # what was written step by step would be read, and differ in its last bits
        self.pair = isinstance(model.spec, Seq2Seq)
        self.side_by_side = not strict and not self.pair  # a pass over several rows has another shape than over one
        self.device = device_of(model)
        try_out(self.device)
        self.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        self.decoder = model.decoder if self.pair else model
        stack = self.decoder.stack
        self.blocks = [stack.blocks[which] for which in stack.order]
        self.lanes, self.open_rows = Lanes(capacity), dict[int, Lane]()
        self.slots, self.chunk = capacity if strict else 1, min(CHUNK, self.limit)
        self.recorded = self.device.type == "cuda" if recorded is None else recorded
        self.recorded = self.recorded and not self.pair  # what an encoder gave has a width of its own in every step
        self.fixed = strict or self.recorded  # steps have columns for all, and idle slots write to the spare one
        self.width = self.limit if strict else min(FIRST, self.limit)
        self.graphs: dict[int, RecordedStep] = {}
        self.layers: list[Places] = [
            block.mixer.places(self.slots, self.held, self.device, self.dtype) for block in self.blocks
        ]
        self.columns = torch.arange(self.held, device=self.device)[None]
        self.memory = Memories(self) if self.pair else None
        self.plan: Plan | None = None
        self.next = self.apart = 0

    @property
    def held(self) -> int:
        """Columns of the buffers."""
        return self.width + self.fixed

    @property
    def free(self) -> int:
        return self.lanes.free

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers) + (0 if self.memory is None else self.memory.bytes)

    @property
    def most_bytes(self) -> int:
        """What the buffers come to when every row is as long as may be; sources of encoder-decoders not counted."""
        return sum(layer.bytes for layer in self.layers) // (self.slots * self.held) * self.capacity * self.limit

    # ---------------------------------------------------------------- rows come and go

    @torch.no_grad()
    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        if not self.free:
            raise UserError(f"all {self.capacity} rows are open", fix="close one first")
        if self.pair and source is None:
            raise UserError("an encoder-decoder needs a source", fix="pass source=")
        lane, like, known = self.lanes.open(tokens, None if source is None else tuple(source), scope)
        try:
            self.reserve(lane.slot + 1, 0)
            if like is not None and like is not lane:
                for layer in self.layers if known else ():
                    layer.copy_row(like.slot, lane.slot, known)
            if self.memory is not None and source is not None:
                self.memory.put(lane.slot, source, None if like is None else like.slot)
        except BaseException:  # no memory, say: the slot is free again
            self.lanes.close(lane, keep=False)
            raise
        number, self.next = self.next, self.next + 1
        self.open_rows[number] = lane
        return Row(number, known)

    def close(self, row: int, *, keep: bool = True) -> None:
        self.lanes.close(self.open_rows.pop(row), keep=keep)

    def reserve(self, slots: int, columns: int) -> None:
        """Buffers of at least so many slots and columns: few sizes, so that little is copied in all."""
        if slots <= self.slots and columns <= self.width:
            return
        more, wider = self.slots, self.width
        while more < slots:
            more = min(self.capacity, 2 * more)
        while wider < columns:
            wider = min(self.limit, 2 * wider)
        self.plan = None  # it looks at the buffers as they were
        self.graphs.clear()
        for layer in self.layers:
            layer.resize(more, wider + self.fixed)
        self.columns = torch.arange(wider + self.fixed, device=self.device)[None]
        if self.memory is not None:
            self.memory.reserve(more, 0)
        self.slots, self.width = more, wider  # last: where memory runs out on the way, what there was still serves

    # ---------------------------------------------------------------- reading

    @torch.no_grad()
    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        lanes = [self.open_rows[row] for row in pieces]
        stop = max(lane.length + len(tokens) for lane, tokens in zip(lanes, pieces.values(), strict=True))
        self.check(stop)
        self.reserve(0, stop)
        if self.side_by_side and len(pieces) > 1:
            found = read_together(self, lanes, list(pieces.values()))
        else:
            read = self.read_in_cells if self.strict else self.read_on
            found = [
                read(lane, torch.tensor([list(tokens)], device=self.device))[0]
                for lane, tokens in zip(lanes, pieces.values(), strict=True)
            ]
        for lane, tokens in zip(lanes, pieces.values(), strict=True):
            lane.took(tokens)
        if self.plan is not None and not pieces.keys().isdisjoint(self.plan.rows):
            self.plan = None
        return found

    def read_on(self, lane: Lane, ids: Tensor) -> Tensor:
        """The next tokens (1,T) of one row, as if it were alone: no column behind it takes part."""
        start, stop = lane.length, lane.length + ids.shape[1]
        slots = slice(lane.slot, lane.slot + 1)
        state = PlacedState(
            self.views(slots, stop, [lane], slice(start, stop)), 1, length=start, gaps=False,
            places=self.columns[:, start:stop], columns=self.columns[:, :stop],
        )  # fmt: skip
        return self.hidden(ids, state, slots, [lane])

    def read_in_cells(self, lane: Lane, ids: Tensor) -> Tensor:
        """The same in passes of one shape: token p stands in cell p mod `chunk`, and empty cells write aside."""
        found, slots, start = [], slice(lane.slot, lane.slot + 1), lane.length
        while start < lane.length + ids.shape[1]:
            first = start % self.chunk
            stop = min(start - first + self.chunk, lane.length + ids.shape[1])
            cells = slice(first, first + stop - start)
            piece = torch.zeros(1, self.chunk, dtype=torch.long, device=self.device)
            places, at = torch.zeros_like(piece), torch.full_like(piece, self.width)
            piece[:, cells] = ids[:, start - lane.length : stop - lane.length]
            places[:, cells] = at[:, cells] = self.columns[:, start:stop]
            state = PlacedState(self.views(slots, self.held, [lane], at), 1, places=places, columns=self.columns)
            found.append(self.hidden(piece, state, slots, [lane])[:, cells])
            start = stop
        return torch.cat(found, 1)

    def check(self, length: int) -> None:
        if length > self.limit:
            raise UserError(f"{length} tokens do not fit a row of {self.limit}", fix="close it, or use a larger limit")

    # ---------------------------------------------------------------- steps

    @torch.no_grad()
    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        plan = self.plan
        if plan is None or plan.rows != list(rows):
            plan = self.plan_for(rows)
        elif plan.loose:
            self.apart += 1
            if self.apart >= PATIENCE:
                self.bring_together(plan.lanes)
                plan = self.plan_for(rows)
        self.check(plan.longest + 1)
        if plan.longest == self.width:
            self.reserve(0, plan.longest + 1)
            plan = self.plan_for(rows)
        ids, slots = tokens, plan.slots
        if plan.order is not None:
            ids = torch.zeros(slots.stop - slots.start, dtype=torch.long, device=self.device)
            ids[plan.order] = tokens
        if plan.graph is not None:
            found = plan.graph(ids)
        else:
            hidden = self.hidden(ids[:, None], self.stepping(plan), slots, plan.lanes)[:, 0]
        plan.places += plan.more
        if plan.at is not plan.places:
            plan.at += 1 if plan.live is not None else plan.more
        plan.longest += 1
        if not self.strict:  # what is written step by step differs in its last bits from what is read
            plan.texts.append(tokens.clone())
        for lane in plan.lanes:
            lane.length += 1
        if plan.graph is not None:
            return found.clone() if plan.order is None else found[plan.order]
        if self.strict:  # the product with the vocabulary is of one shape too
            scores = self.scores(hidden)
            return scores if plan.order is None else scores[plan.order]
        return self.scores(hidden if plan.order is None else hidden[plan.order])

    def stepping(self, plan: Plan) -> PlacedState:
        """The pass of a step; its views are made again only when texts have outgrown their columns."""
        columns, count = self.held, plan.slots.stop - plan.slots.start
        if plan.even:  # as one text: no column behind the rows' own, so nothing to hide
            at = slice(plan.longest, plan.longest + 1)
            return PlacedState(
                self.views(plan.slots, at.stop, plan.lanes, at), count, length=plan.longest, gaps=False,
                places=plan.places, columns=self.columns[:, : at.stop],
            )  # fmt: skip
        if not self.fixed and self.device.type == "cpu":  # a GPU's kernel reads no column behind a row's own
            columns = min(columns, -(-(plan.longest + 1) // BLOCK) * BLOCK)
        if plan.layers is None or plan.columns != columns:
            plan.layers, plan.columns = self.views(plan.slots, columns, plan.lanes, plan.at, plan.live), columns
        return PlacedState(plan.layers, count, places=plan.places, columns=self.columns[:, :columns])

    def plan_for(self, rows: Sequence[int]) -> Plan:
        """What the next steps of these rows have in common."""
        lanes = [self.open_rows[row] for row in rows]
        used = [lane.slot for lane in lanes]
        slots = slice(min(used), max(used) + 1)
        if self.fixed:
            slots = slice(0, self.capacity if self.strict else min(self.slots, rounded(max(used) + 1)))
        count, which = slots.stop - slots.start, [slot - slots.start for slot in used]
        lengths = torch.tensor([lane.length for lane in lanes], device=self.device)[:, None]
        order = None if which == list(range(count)) else torch.tensor(which, device=self.device)
        live, more, at = None, torch.ones(count, 1, dtype=torch.long, device=self.device), lengths
        places = lengths
        if order is not None:
            places = torch.zeros_like(more)
            places[order] = lengths
            more = torch.zeros_like(more)
            more[order] = 1
            at = places
            if self.fixed:
                at = torch.full_like(places, self.width)
                at[order] = lengths
            elif count > len(rows):
                live, at = order, lengths
        longest = max(lane.length for lane in lanes)
        even = self.device.type == "cpu" and not self.fixed and live is None
        even = even and all(lane.length == longest for lane in lanes)
        loose = live is not None or (self.recorded and not self.strict and rounded(len(rows)) < count)
        self.plan = Plan(list(rows), lanes, slots, order, live, at, places, more, longest, even, loose)
        if self.recorded:
            if count not in self.graphs:
                self.graphs[count] = RecordedStep(self, count)
            self.plan.record(self.graphs[count])
        for which_one, lane in enumerate(lanes):
            lane.steps.append((self.plan.texts, which_one))
        return self.plan

    def bring_together(self, rows: Sequence[Lane]) -> None:
        """Move rows into idle slots between them; what was held there for later is kept."""
        self.apart = 0
        move = self.lanes.lower if self.recorded else self.lanes.move
        while (found := move(rows)) is not None:
            row, idle = found
            for layer in self.layers:
                layer.swap_rows(row.slot, idle.slot, max(row.length, idle.length))
            if self.memory is not None:
                self.memory.swap(row.slot, idle.slot)
            self.lanes.swap(row, idle)

    # ---------------------------------------------------------------- one pass

    def views(
        self, slots: slice, columns: int, lanes: Sequence[Lane], at: Tensor | slice, live: Tensor | None = None
    ) -> list[LayerState]:
        """What the layers remember of some slots, as far as some column."""
        cross = [None] * len(self.layers) if self.memory is None else self.memory.views(slots, lanes)
        rows = None
        if not isinstance(at, slice):
            rows = (torch.arange(slots.stop - slots.start, device=self.device) if live is None else live)[:, None]
        found = []
        for layer, looked in zip(self.layers, cross, strict=True):
            part = layer.part(slots, columns, at)
            part.live, part.rows = live, rows
            found.append(LayerState(part, looked))
        return found

    def hidden(self, ids: Tensor, state: PlacedState, slots: slice, lanes: Sequence[Lane]) -> Tensor:
        """Hidden states (B,T,D) of tokens (B,T)."""
        if self.memory is None:
            return hidden_states(self.model, ids, None, state)
        memory, mask = self.memory.shape(slots, lanes)
        return pair_hidden_states(self.model, ids, None, memory, mask, state)

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        head = pair_logits_of if self.pair else logits_of
        if not self.strict:
            return head(self.model, hidden[:, None])[:, 0]
        found = []
        for piece in hidden.split(self.capacity):  # one shape for the head too
            whole = torch.nn.functional.pad(piece, (0, 0, 0, self.capacity - len(piece)))
            found.append(head(self.model, whole[:, None])[: len(piece), 0])
        return torch.cat(found)
