"""Sequences in slots of shared buffers: nothing is copied when they are added or freed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.state import LayerState
from anyformer.core.static_cache import StaticCache, StaticState, next_power_of_two
from anyformer.errors import UserError
from anyformer.generation.cache.cross_cache import CrossCache
from anyformer.generation.cache.slots import Slot, SlotTable
from anyformer.generation.cache.store import Added, SequenceStore, Source, SourceKey, check_limit, pack_pieces
from anyformer.generation.prompts import supports_static_cache
from anyformer.generation.runners.cuda_graphs import RecordedStep
from anyformer.generation.runners.eager import (
    EncoderOutput,
    LanguageModel,
    compute_logits,
    device_of,
    dtype_of,
    hidden_states,
    static_caches,
)
from anyformer.kernels.decode import try_out

FIRST = 256  # initial columns; doubled as sequences grow, up to the limit
BLOCK = 64  # columns of a step are a multiple of this, so that its views are valid for many steps
CHUNK = 64  # tokens of a pass over a prompt in strict mode
SHORT = 32  # longest pass that may include unneeded rows to avoid copying
PATIENCE = 4  # steps with idle slots between sequences before they are compacted


@dataclass
class StepPlan:
    """Inputs shared by consecutive steps of the same sequences."""

    sequences: list[int]
    slots: list[Slot]
    rows: slice  # of the buffers
    order: Tensor | None  # (N,) the row of each sequence in the pass; None: 0, 1, 2, ... and no others
    live: Tensor | None  # (N,) the rows of the pass that write to the cache; None: all
    at: Tensor  # (N,1) or, in strict mode, (rows,1): the columns of the next tokens
    positions: Tensor  # (rows,1)
    increment: Tensor  # (rows,1) added to positions by each step
    longest: int  # tokens of the longest sequence
    even: bool  # whether all have the same length, with no row between them
    sparse: bool  # whether compacting the sequences would make the pass smaller
    tokens: list[Tensor] = field(default_factory=list)  # (N,) of each step
    layers: list[LayerState] | None = None  # views of the buffers, for the columns below
    columns: int = 0
    graph: RecordedStep | None = None

    def use_graph(self, graph: RecordedStep) -> None:
        """Make steps of this plan replay a graph, which reads its own input tensors."""
        for held, now in ((graph.positions, self.positions), (graph.at, self.at)):
            held.copy_(now)
        self.graph, self.positions, self.at = graph, graph.positions, graph.at


class StaticStore(SequenceStore):
    """Slot n is row n of buffers (slots, G, columns, C), which grow up to `capacity` and `limit`.

    A freed slot keeps its tokens until it is needed; a prompt of the same `scope` with the same prefix reuses them.
    Sequences that are far apart are compacted, since a step covers all slots between them.

    `strict` fixes every shape: all slots, all columns and a spare one that idle slots write to, passes of one length
    in which token p is at index p mod that length, no compaction. Results of a sequence are then bit-identical whatever
    its neighbours are.

    `recorded`, the default on a GPU, fixes only the shapes of decode steps: the first 1, 2, 4, ... slots, all columns
    and a spare one. Each number of slots is captured once as a CUDA graph.
    """

    def __init__(
        self, model: LanguageModel, *, capacity: int = 8, limit: int | None = None, strict: bool = False,
        recorded: bool | None = None,
    ) -> None:  # fmt: skip
        if not supports_static_cache(model):
            raise UserError("a layer of this model has no static cache", fix="use open_serving_store(model)")
        self.model, self.capacity, self.limit, self.strict = model, capacity, check_limit(model, limit), strict
        self.can_resume = not strict  # decoded tokens would be prefilled again, and differ in the last bits
        self.is_seq2seq = isinstance(model.spec, Seq2Seq)
        self.batches_prefill = not strict and not self.is_seq2seq  # strict needs fixed shapes
        self.device, self.dtype = device_of(model), dtype_of(model)
        try_out(self.device)
        self.table, self.sequences = SlotTable(capacity), dict[int, Slot]()
        self.rows, self.chunk = capacity if strict else 1, min(CHUNK, self.limit)
        self.recorded = self.device.type == "cuda" if recorded is None else recorded
        self.recorded = self.recorded and not self.is_seq2seq  # the width of encoder outputs varies by step
        self.fixed = strict or self.recorded  # steps cover all columns, and idle slots write to the spare column
        self.width = self.limit if strict else min(FIRST, self.limit)
        self.graphs: dict[int, RecordedStep] = {}
        self.layers = static_caches(model, self.rows, self.columns_held)
        self.columns = torch.arange(self.columns_held, device=self.device)[None]
        self.cross = CrossCache(self) if self.is_seq2seq else None
        self.plan: StepPlan | None = None
        self.next = self.sparse_steps = 0

    @property
    def columns_held(self) -> int:
        """Columns of the buffers, including the spare one."""
        return self.width + self.fixed

    @property
    def available(self) -> int:
        return self.table.available

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers) + (0 if self.cross is None else self.cross.bytes)

    def length(self, sequence: int) -> int:
        return self.sequences[sequence].length

    # ---------------------------------------------------------------- adding and freeing

    @torch.no_grad()
    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        self.check_available()
        if self.is_seq2seq and source is None:
            raise UserError("an encoder-decoder needs a source", fix="pass source=")
        key: SourceKey = source if source is None or isinstance(source, EncoderOutput) else tuple(source)
        slot, origin, cached = self.table.take(prompt, key, scope)
        try:
            self.reserve(slot.index + 1, 0)
            if origin is not None and origin is not slot:
                for layer in self.layers if cached else ():
                    layer.copy_row(origin.index, slot.index, cached)
            if self.cross is not None and source is not None:
                self.cross.put(slot.index, source, None if origin is None else origin.index)
        except BaseException:  # such as out of memory: free the slot again
            self.table.release(slot, keep=False)
            raise
        return Added(self.name_slot(slot), cached)

    def name_slot(self, slot: Slot) -> int:
        number, self.next = self.next, self.next + 1
        self.sequences[number] = slot
        return number

    def free(self, sequence: int, *, keep: bool = True) -> None:
        self.table.release(self.sequences.pop(sequence), keep=keep)

    def reserve(self, rows: int, columns: int) -> None:
        """Grow the buffers to at least this many rows and columns, doubling, so that the total copied is small."""
        if rows <= self.rows and columns <= self.width:
            return
        more, wider = self.rows, self.width
        while more < rows:
            more = min(self.capacity, 2 * more)
        while wider < columns:
            wider = min(self.limit, 2 * wider)
        self.plan = None  # it holds views of the old buffers
        self.graphs.clear()
        for layer in self.layers:
            layer.resize(more, wider + self.fixed)
        self.columns = torch.arange(wider + self.fixed, device=self.device)[None]
        if self.cross is not None:
            self.cross.reserve(more, 0)
        self.rows, self.width = more, wider  # set last: if memory runs out before, the old sizes stay valid

    def truncate(self, sequence: int, length: int) -> None:
        self.sequences[sequence].truncate(length)
        self.plan = None

    def fork(self, copies: int) -> list[int]:
        self.check_fork(len(self.sequences) * copies)
        found: list[int] = []
        for number, original in list(self.sequences.items()):
            original.fetch_tokens()
            found.append(number)
            for _ in range(copies - 1):
                slot, _, _ = self.table.take([], original.source, original.scope)
                self.reserve(slot.index + 1, 0)
                self.copy_slot(original, slot)
                found.append(self.name_slot(slot))
        self.plan = None
        return found

    def copy_slot(self, source: Slot, target: Slot) -> None:
        for layer in self.layers:
            layer.copy_row(source.index, target.index, source.length)
        if self.cross is not None:
            self.cross.put(target.index, (), source.index)
        target.length, target.tokens = source.length, list(source.tokens)

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        slots = [self.sequences[number] for number in sequences]
        rows = torch.tensor([slot.index for slot in slots], device=self.device)
        for layer in self.layers:
            for buffer in layer.buffers:
                buffer[rows] = buffer[rows[origins]]
        for slot in slots:
            slot.fetch_tokens()
        tokens = [list(slots[origin].tokens) for origin in origins.tolist()]
        for slot, new in zip(slots, tokens, strict=True):
            slot.tokens = new
        self.plan = None

    # ---------------------------------------------------------------- prompts

    @torch.no_grad()
    def extend(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        slots = [self.sequences[number] for number in pieces]
        stop = max(slot.length + len(piece) for slot, piece in zip(slots, pieces.values(), strict=True))
        self.check_length(stop)
        self.reserve(0, stop)
        if self.batches_prefill and len(pieces) > 1:
            found = self.extend_together(slots, list(pieces.values()))
        else:
            extend = self.extend_strictly if self.strict else self.extend_one
            found = [
                extend(slot, torch.tensor([list(piece)], device=self.device))[0]
                for slot, piece in zip(slots, pieces.values(), strict=True)
            ]
        for slot, piece in zip(slots, pieces.values(), strict=True):
            slot.append(piece)
        if self.plan is not None and not pieces.keys().isdisjoint(self.plan.sequences):
            self.plan = None
        return found

    def extend_one(self, slot: Slot, tokens: Tensor) -> Tensor:
        """Run the next tokens (1,T) of one sequence by itself, over its own columns only."""
        start, stop = slot.length, slot.length + tokens.shape[1]
        rows = slice(slot.index, slot.index + 1)
        state = StaticState(
            self.views(rows, stop, [slot], slice(start, stop)), 1, length=start, gaps=False,
            new_positions=self.columns[:, start:stop], columns=self.columns[:, :stop],
        )  # fmt: skip
        return self.forward(tokens, state, rows, [slot])

    def extend_strictly(self, slot: Slot, tokens: Tensor) -> Tensor:
        """The same in passes of one shape: token p is at index p mod `chunk`, and padding writes to the spare
        column."""
        found, rows, start = [], slice(slot.index, slot.index + 1), slot.length
        while start < slot.length + tokens.shape[1]:
            first = start % self.chunk
            stop = min(start - first + self.chunk, slot.length + tokens.shape[1])
            cells = slice(first, first + stop - start)
            piece = torch.zeros(1, self.chunk, dtype=torch.long, device=self.device)
            positions, at = torch.zeros_like(piece), torch.full_like(piece, self.width)
            piece[:, cells] = tokens[:, start - slot.length : stop - slot.length]
            positions[:, cells] = at[:, cells] = self.columns[:, start:stop]
            layers = self.views(rows, self.columns_held, [slot], at)
            state = StaticState(layers, 1, new_positions=positions, columns=self.columns)
            found.append(self.forward(piece, state, rows, [slot])[:, cells])
            start = stop
        return torch.cat(found, 1)

    def extend_together(self, slots: Sequence[Slot], pieces: Sequence[Sequence[int]]) -> list[Tensor]:
        """Run the next tokens of several sequences in one pass: a pass over few tokens costs nearly as much as over
        many.

        Adjacent sequences are run on the buffers in place; others are copied into adjacent rows, and the new keys and
        values copied back.
        """
        starts = [slot.length for slot in slots]
        longest, cached = max(map(len, pieces)), max(starts)
        end = max(start + len(piece) for start, piece in zip(starts, pieces, strict=True))
        first, last = min(slot.index for slot in slots), max(slot.index for slot in slots)
        others = [slot for slot in self.table.slots[first : last + 1] if slot not in slots]
        # Padding is written after all real tokens, so a short pass may include a few rows of others.
        in_place = end < self.columns_held and all(slot.length <= end for slot in others)
        in_place = in_place and (not others or longest <= SHORT)
        even = min(starts) == cached and min(map(len, pieces)) == longest and not (in_place and others)
        rows = [slot.index - first for slot in slots] if in_place else list(range(len(slots)))
        count = last - first + 1 if in_place else len(slots)
        packed = pack_pieces(count, longest, dict(zip(rows, zip(starts, pieces, strict=True), strict=True)))
        tokens, positions, at = (torch.tensor(one, device=self.device) for one in packed[:3])  # (M,T)
        write, columns = (slice(cached, end), end) if even else (at, end + 1)
        if in_place:
            parts = [layer.part(slice(first, last + 1), columns, write) for layer in self.layers]
        else:
            indices = torch.tensor([slot.index for slot in slots], device=self.device)  # (M,)
            parts = [copy_rows(layer, indices, cached, columns, write) for layer in self.layers]
        state = StaticState(
            [LayerState(part) for part in parts], count, length=cached if even else 0, gaps=not even,
            new_positions=positions, columns=torch.arange(columns, device=self.device)[None],
        )  # fmt: skip
        hidden = hidden_states(self.model, tokens, None, state)  # (M,T,D)
        if not in_place:
            which = torch.tensor([row for row, piece in enumerate(pieces) for _ in piece], device=self.device)
            where = torch.cat([at[row, : len(piece)] for row, piece in enumerate(pieces)])  # (all tokens,)
            for layer, part in zip(self.layers, parts, strict=True):
                for buffer, new in zip(layer.buffers, part.buffers, strict=True):
                    buffer[indices[which], :, where] = new[which, :, where]
        return [hidden[row, : len(piece)] for row, piece in zip(rows, pieces, strict=True)]

    # ---------------------------------------------------------------- steps

    @torch.no_grad()
    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        plan = self.plan
        if plan is None or plan.sequences != list(sequences):
            plan = self.plan_steps(sequences)
        elif plan.sparse:
            self.sparse_steps += 1
            if self.sparse_steps >= PATIENCE:
                self.compact(plan.slots)
                plan = self.plan_steps(sequences)
        self.check_length(plan.longest + 1)
        if plan.longest == self.width:
            self.reserve(0, plan.longest + 1)
            plan = self.plan_steps(sequences)
        rows = tokens
        if plan.order is not None:
            rows = torch.zeros(plan.rows.stop - plan.rows.start, dtype=torch.long, device=self.device)
            rows[plan.order] = tokens
        if plan.graph is not None:
            logits = plan.graph(rows)
            logits = logits.clone() if plan.order is None else logits[plan.order]
        else:
            hidden = self.forward(rows[:, None], self.step_state(plan), plan.rows, plan.slots)[:, 0]
            if self.strict:  # the output projection needs a fixed shape too
                logits = self.logits(hidden)
                logits = logits if plan.order is None else logits[plan.order]
            else:
                logits = self.logits(hidden if plan.order is None else hidden[plan.order])
        self.advance(plan, tokens)
        return logits

    def advance(self, plan: StepPlan, tokens: Tensor) -> None:
        """Advance every sequence of a plan by one token."""
        plan.positions += plan.increment
        if plan.at is not plan.positions:
            plan.at += 1 if plan.live is not None else plan.increment
        plan.longest += 1
        if (
            not self.strict
        ):  # there, decoded tokens are not a prefix: they differ in their last bits from prefilled ones
            plan.tokens.append(tokens.clone())
        for slot in plan.slots:
            slot.length += 1

    def step_state(self, plan: StepPlan) -> StaticState:
        """The state of a step's pass; its views are rebuilt only when sequences outgrow their columns."""
        columns, count = self.columns_held, plan.rows.stop - plan.rows.start
        if plan.even:  # equal lengths: no stale columns, so no mask
            at = slice(plan.longest, plan.longest + 1)
            return StaticState(
                self.views(plan.rows, at.stop, plan.slots, at), count, length=plan.longest, gaps=False,
                new_positions=plan.positions, columns=self.columns[:, : at.stop],
            )  # fmt: skip
        if not self.fixed and self.device.type == "cpu":  # the GPU kernel skips columns past a row's length
            columns = min(columns, -(-(plan.longest + 1) // BLOCK) * BLOCK)
        if plan.layers is None or plan.columns != columns:
            plan.layers, plan.columns = self.views(plan.rows, columns, plan.slots, plan.at, plan.live), columns
        return StaticState(plan.layers, count, new_positions=plan.positions, columns=self.columns[:, :columns])

    def plan_steps(self, sequences: Sequence[int]) -> StepPlan:
        """Plan the next steps of these sequences."""
        slots = [self.sequences[number] for number in sequences]
        used = [slot.index for slot in slots]
        rows = slice(min(used), max(used) + 1)
        if self.fixed:
            rows = slice(0, self.capacity if self.strict else min(self.rows, next_power_of_two(max(used) + 1)))
        count, which = rows.stop - rows.start, [index - rows.start for index in used]
        lengths = torch.tensor([slot.length for slot in slots], device=self.device)[:, None]
        order = None if which == list(range(count)) else torch.tensor(which, device=self.device)
        live, increment, at = None, torch.ones(count, 1, dtype=torch.long, device=self.device), lengths
        positions = lengths
        if order is not None:
            positions = torch.zeros_like(increment)
            positions[order] = lengths
            increment = torch.zeros_like(increment)
            increment[order] = 1
            at = positions
            if self.fixed:
                at = torch.full_like(positions, self.width)
                at[order] = lengths
            elif count > len(sequences):
                live, at = order, lengths
        longest = max(slot.length for slot in slots)
        even = self.device.type == "cpu" and not self.fixed and live is None
        even = even and all(slot.length == longest for slot in slots)
        sparse = live is not None or (self.recorded and not self.strict and next_power_of_two(len(sequences)) < count)
        self.plan = StepPlan(
            list(sequences), slots, rows, order, live, at, positions, increment, longest, even, sparse
        )  # fmt: skip
        if self.recorded:
            if count not in self.graphs:
                layers = self.views(slice(0, count), self.columns_held, [], None)
                self.graphs[count] = RecordedStep(self.model, layers, self.columns, count)
            self.plan.use_graph(self.graphs[count])
        for which_one, slot in enumerate(slots):
            slot.steps.append((self.plan.tokens, which_one))
        return self.plan

    def compact(self, slots: Sequence[Slot]) -> None:
        """Swap sequences with idle slots between them; the prefixes cached there are kept."""
        self.sparse_steps = 0
        find = self.table.find_lower if self.recorded else self.table.find_gap
        while (found := find(slots)) is not None:
            slot, idle = found
            for layer in self.layers:
                layer.swap_rows(slot.index, idle.index, max(slot.length, idle.length))
            if self.cross is not None:
                self.cross.swap(slot.index, idle.index)
            self.table.swap(slot, idle)

    # ---------------------------------------------------------------- one pass

    def views(
        self, rows: slice, columns: int, slots: Sequence[Slot], at: Tensor | slice | None, live: Tensor | None = None
    ) -> list[LayerState]:
        """Views of the first columns of some rows of every layer's cache."""
        cross = [None] * len(self.layers) if self.cross is None else self.cross.views(rows, slots)
        writing = None
        if isinstance(at, Tensor):
            writing = (torch.arange(rows.stop - rows.start, device=self.device) if live is None else live)[:, None]
        found = []
        for layer, crossed in zip(self.layers, cross, strict=True):
            part = layer.part(rows, columns, at)
            part.live, part.rows = live, writing
            found.append(LayerState(part, crossed))
        return found

    def forward(self, tokens: Tensor, state: StaticState, rows: slice, slots: Sequence[Slot]) -> Tensor:
        """Hidden states (B,T,D) of tokens (B,T)."""
        if self.cross is not None:
            state.memory, state.memory_mask = self.cross.shape(rows, slots)
        return hidden_states(self.model, tokens, None, state)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        if not self.strict:
            return super().logits(hidden)
        found = []
        for piece in hidden.split(self.capacity):  # one shape for the head too
            whole = torch.nn.functional.pad(piece, (0, 0, 0, self.capacity - len(piece)))
            found.append(compute_logits(self.model, whole[:, None])[: len(piece), 0])
        return torch.cat(found)


def copy_rows(layer: StaticCache, rows: Tensor, cached: int, columns: int, at: Tensor | slice) -> StaticCache:
    """Copy the first columns of some rows into adjacent rows of a zeroed buffer: masked entries are read, too."""
    found = []
    for buffer in layer.buffers:
        fresh = buffer.new_zeros(len(rows), buffer.shape[1], columns, buffer.shape[3])
        if cached:
            fresh[:, :, :cached] = buffer[rows, :, :cached]
        found.append(fresh)
    return StaticCache(keys=found[0], values=found[1], at=at)
