"""Writing on a GPU: reading a token, choosing the next and noting it are one step, recorded as a graph.

Rows stand in fixed places (core/static_cache.py), so a step's shapes depend on the batch alone, and its cost on how far
the rows have come. Prompts are read but for their last token, which is read by the first step: every token comes about
in the same way. A step is recorded as it is, or compiled first: one row then has a form of its own, since its matrix
products are sums over rows of weights, which kernels of ours read with all that surrounds them (row_fusion.py); all
larger batches share another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.state import LayerState, PartState
from anyformer.core.static_cache import PlacedState, Places, rounded
from anyformer.errors import UserError
from anyformer.generation.batch_sampler import NOTHING
from anyformer.generation.cache.base import row_limit
from anyformer.generation.cache.slots import can_be_placed
from anyformer.generation.config import Generation
from anyformer.generation.logits import Filter, narrowing
from anyformer.generation.noise import gumbel, token_counter
from anyformer.generation.prompts import decoder_of, vocabulary_of
from anyformer.generation.runners.cuda_graphs import Texts, captured, first_largest, repeat
from anyformer.generation.runners.eager import (
    at_rest,
    device_of,
    hidden_states,
    logits_of,
    pair_hidden_states,
    pair_logits_of,
)
from anyformer.generation.runners.row_fusion import Pass, fuse_rows, split_biases, turn_heads
from anyformer.kernels import compile as compiling
from anyformer.kernels.decode import try_out

log = logging.getLogger("anyformer")

Form = Literal["plain", "recorded", "compiled", "fused"]  # each with what the one before it has
LEAST, PIECE, SHORT = 16, 256, 1024  # tokens of a recorded piece, and of prompts that are read in such
FEW = 512  # tokens of all rows together up to which recording pays
Layers = list[tuple[Tensor, Tensor]]  # keys (B,G,L,C) and values (B,G,L,C') of each layer


def read_on(model: Any, tokens: Tensor, places: Tensor, layers: Layers, columns: Tensor) -> Tensor:
    """Read the newest token of every row, (B,), where it stands; scores of the next, (B,V)."""
    held = [LayerState(Places(keys=keys, values=values, at=places)) for keys, values in layers]
    state = PlacedState(held, tokens.shape[0], places=places, columns=columns)
    return logits_of(model, hidden_states(model, tokens[:, None], None, state))[:, 0]


def choose_on(
    raw: Tensor, texts: Texts, ends: Tensor, noise: tuple[Tensor, Tensor] | None, narrow: list[Filter], padding: int
) -> None:
    """Choose the next token of every row from the model's scores (B,V), and note it.

    `noise` is what draws start from: seeds (B,) and `token_counter` (V,).
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    scores = raw
    if noise is not None:
        for apply in narrow:
            scores = apply(scores, NOTHING)
        seeds, counter = noise
        drawn = gumbel(seeds, texts.number, raw.shape[1], counter)
        scores = scores.to(drawn.dtype) + drawn
    chosen = first_largest(scores)
    texts.note(chosen, raw.gather(1, chosen[:, None])[:, 0] - raw.logsumexp(-1), ends, padding)


# Two compiled functions: other settings need another choice, and the model, which takes long to compile, stays.


@cache
def compiled_reading(alone: bool, fused: bool = False) -> Callable[..., Tensor]:
    """`read_on` compiled for one row, or for any larger number of them."""
    from torch._inductor.custom_graph_pass import CustomGraphPass  # it brings the whole compiler along

    CustomGraphPass.register(Pass)
    told = turn_heads if not alone else fuse_rows if fused else split_biases
    options: dict[str, Any] = {"coordinate_descent_tuning": True, "pre_grad_custom_pass": Pass(told)}
    if fused:
        options["combo_kernels"] = True  # what turns queries and keys is one kernel
    return compiling.compile_function(read_on, fullgraph=True, dynamic=None if alone else True, options=options)


@cache
def compiled_choice(alone: bool) -> Callable[..., None]:
    """`choose_on`, likewise."""
    return compiling.compile_function(choose_on, fullgraph=True, dynamic=None if alone else True)


def any_size(*axes: tuple[Tensor, int]) -> None:
    """Tell the compiler that these axes may have any size."""
    from torch._dynamo import maybe_mark_dynamic  # it brings the whole compiler along

    for tensor, axis in axes:
        maybe_mark_dynamic(tensor, axis)


class DeviceLoop:
    """Buffers for `batch` rows of up to `limit` tokens, and the steps over them in their form.

    An encoder-decoder is told what to look at (`look_at`) and is never compiled.
    """

    def __init__(self, model: Any, batch: int, limit: int | None = None, *, form: Form = "recorded") -> None:
        if not can_be_placed(model):
            raise UserError("a layer of this model has no fixed places", fix="use generate")
        self.model, self.batch, self.limit, self.form = model, batch, row_limit(model, limit), form
        self.device, self.vocab = device_of(model), vocabulary_of(decoder_of(model.spec).embed, "the model")
        try_out(self.device)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        stack = model.decoder.stack if isinstance(model.spec, Seq2Seq) else model.stack
        self.blocks = [stack.blocks[which] for which in stack.order]
        places = [block.mixer.places(batch, self.limit, self.device, dtype) for block in self.blocks]
        self.layers: Layers = [layer.buffers for layer in places]
        self.columns = torch.arange(self.limit, device=self.device)[None]
        zeros = torch.zeros(batch, dtype=torch.long, device=self.device)
        exact = torch.promote_types(dtype, torch.float32)
        self.texts, self.seeds = Texts.start(zeros, zeros, self.limit, 0, exact), zeros.clone()
        self.steps: dict[object, Callable[[], object]] = {}
        self.scores = zeros  # (B,V) of the tokens read last, where the choice is the caller's
        self.weights = addresses(model)
        self.pieces: dict[int, tuple[Tensor, ...]] = {}  # tokens and places (B,size) of recorded prompts
        self.memory: tuple[Tensor, Tensor | None, list[PartState | None]] | None = None

    # ---------------------------------------------------------------- prompts

    def look_at(self, memory: Tensor, mask: Tensor | None) -> None:
        """The encoder's output (B,S,D) that the rows answer."""
        crosses = [None if block.cross is None else block.cross.state(self.batch, None) for block in self.blocks]
        self.memory = memory, mask, crosses
        self.steps.clear()

    def read(self, prompts: Tensor, chunk: int | None = None) -> None:
        """Tokens (B,T) into columns 0 to T - 1; what padding leaves behind a short row is hidden until written over."""
        start, length = 0, prompts.shape[1]
        while start < length:
            size = chunk or length
            if chunk is None and self.form in ("compiled", "fused") and self.memory is None and length <= SHORT:
                size = PIECE if length - start > PIECE else max(LEAST, rounded(length - start))
                if self.batch * size <= FEW and start + size <= self.limit:
                    self.read_piece(prompts[:, start : start + size], start, size)
                    start += size
                    continue
                size = length
            self.read_plainly(prompts[:, start : start + size], start)
            start += size

    def read_plainly(self, piece: Tensor, start: int) -> None:
        """Tokens (B,T) into the columns from `start` on."""
        stop = start + piece.shape[1]
        parts = [
            Places(keys=keys[:, :, :stop], values=values[:, :, :stop], at=slice(start, stop))
            for keys, values in self.layers
        ]
        crosses = [None] * len(parts) if self.memory is None else self.memory[2]
        state = PlacedState(
            [LayerState(part, cross) for part, cross in zip(parts, crosses, strict=True)], self.batch,
            length=start, gaps=False, places=self.columns[:, start:stop], columns=self.columns[:, :stop],
        )  # fmt: skip
        if self.memory is None:
            hidden_states(self.model, piece, None, state)
        else:
            pair_hidden_states(self.model, piece, None, *self.memory[:2], state)

    def read_piece(self, piece: Tensor, start: int, size: int) -> None:
        """The same recorded, filled up to a size: a short prompt takes the host longer to order than a GPU to read."""
        if size not in self.pieces:
            self.pieces[size] = tuple(
                torch.zeros(self.batch, size, dtype=torch.long, device=self.device) for _ in range(2)
            )
        tokens, places = self.pieces[size]
        tokens[:, : piece.shape[1]] = piece
        places.copy_(self.columns[:, start : start + size])

        def make() -> Callable[[], None]:
            held = [LayerState(Places(keys=keys, values=values, at=places)) for keys, values in self.layers]
            state = PlacedState(held, self.batch, places=places, columns=self.columns)
            return lambda: discard(hidden_states(self.model, tokens, None, state))

        self.made(size, make)()

    def begin(self, prompts: Tensor, lengths: Tensor, padding: int = 0, chunk: int | None = None) -> None:
        """Read prompts (B,T), which begin in column 0 and have `lengths` (B,) tokens, but for their last tokens."""
        with torch.no_grad(), at_rest(self.model):
            self.read(prompts[:, :-1], chunk)
        self.texts.restart(prompts.gather(1, lengths[:, None] - 1)[:, 0], lengths - 1, padding)

    # ---------------------------------------------------------------- steps

    def write(self, settings: Generation, new: int, seeds: Tensor | None = None) -> Texts:
        """Up to `new` tokens behind what was begun; seeds (B,) where tokens are drawn."""
        if seeds is not None:
            self.seeds.copy_(seeds)
        with torch.no_grad(), at_rest(self.model):
            made = repeat(self.writing(settings), new, self.texts.over if settings.ends else None)
        texts = self.texts
        return texts._replace(written=texts.written[:, :made], logprobs=texts.logprobs[:, :made])

    def read_next(self) -> Tensor:
        """Read `texts.tokens` where they stand, and move on; scores of the next tokens, (B,V), until the next call."""
        with torch.no_grad(), at_rest(self.model):
            self.made("read", self.reading_alone)()
        return self.scores

    def made(self, name: object, make: Callable[[], Callable[[], None]]) -> Callable[[], object]:
        """A step in this loop's form, made when first asked for; what fails to be compiled or recorded is done without.

        Compiling and recording both happen here, in the calls before a step is recorded.
        """
        while name not in self.steps:
            step = make()
            if self.form == "plain":
                self.steps[name] = step
                break
            try:
                with compiling.load().patch(recompile_limit=compiling.SHAPES):
                    self.steps[name] = captured(step, *self.texts)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may raise: without it things are only slower
                why = " ".join(str(error).split())[:200] or type(error).__name__
                lost = "compiled" if self.form in ("compiled", "fused") else "recorded"
                log.warning("decoding steps are not %s: %s", lost, why)
                self.form = "recorded" if lost == "compiled" else "plain"
        return self.steps[name]

    def writing(self, settings: Generation) -> Callable[[], object]:
        """The step that reads, chooses and notes; one for all calls that choose alike."""
        alike = (settings.ends, settings.padding, settings.sampled, settings.temperature, settings.top_k,
                 settings.top_p, settings.min_p)  # fmt: skip

        def make() -> Callable[[], None]:
            texts, read, choose = self.texts, self.reading(), choose_on
            ends = torch.tensor(settings.ends, dtype=torch.long, device=self.device)
            noise = (self.seeds, token_counter(self.vocab, self.device)) if settings.sampled else None
            narrow = narrowing(settings, device=self.device) if settings.sampled else []
            # Seen with torch 2.13 on a CPU: the compiled draw reads past its scores and takes the process along.
            if self.form in ("compiled", "fused") and self.device.type == "cuda":
                any_size((texts.written, 1), (texts.logprobs, 1))
                choose = compiled_choice(self.batch == 1)
            return lambda: choose(read(), texts, ends, noise, narrow, settings.padding)

        return self.made(alike, make)

    def reading_alone(self) -> Callable[[], None]:
        """The step of `read_next`."""
        read, texts = self.reading(), self.texts

        def step() -> None:
            self.scores = read()
            texts.places.add_(1)

        return step

    def reading(self) -> Callable[[], Tensor]:
        """What reads the newest tokens, in this loop's form."""
        texts, memory = self.texts, self.memory
        if memory is not None:
            return lambda: self.read_pair(*memory)
        read = read_on
        if self.form in ("compiled", "fused"):
            any_size(*((buffer, 2) for layer in self.layers for buffer in layer), (self.columns, 1))
            read = compiled_reading(self.batch == 1, self.batch == 1 and self.form == "fused")
        return lambda: read(self.model, texts.tokens, texts.places, self.layers, self.columns)

    def read_pair(self, memory: Tensor, mask: Tensor | None, crosses: list[PartState | None]) -> Tensor:
        """As `read_on`, for an encoder-decoder."""
        tokens, places = self.texts.tokens, self.texts.places
        held = [
            LayerState(Places(keys=keys, values=values, at=places), cross)
            for (keys, values), cross in zip(self.layers, crosses, strict=True)
        ]
        state = PlacedState(held, self.batch, places=places, columns=self.columns)
        hidden = pair_hidden_states(self.model, tokens[:, None], None, memory, mask, state)
        return pair_logits_of(self.model, hidden)[:, 0]

    def reorder(self, rows: Tensor) -> None:
        """Rows change places with rows of the same prompt."""
        for buffer in (buffer for layer in self.layers for buffer in layer):
            buffer.copy_(buffer[rows])


def discard(hidden: Tensor) -> None:
    """What was read is in the layers' keys and values."""


def addresses(model: Any) -> tuple[int, ...]:
    """Where the weights lie: a graph reads them there, whatever the model has become since."""
    return tuple(weight.data_ptr() for weight in model.parameters())
