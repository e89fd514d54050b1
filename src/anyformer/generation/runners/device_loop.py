"""Generation on a GPU: running a token, sampling the next and appending it are one step, recorded as a CUDA graph.

Sequences are in a static cache (core/static_cache.py), so a step's shapes depend on the batch alone, and its cost on
how long the sequences are. Prompts are prefilled but for their last token, which the first step runs: every token comes
about in the same way. A step is recorded as it is, or compiled first: one row then has a form of its own, since its
matrix products are sums over rows of weights, which kernels of ours read with all that surrounds them (row_fusion.py);
all larger batches share another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.core.state import LayerState, PartState
from anyformer.core.static_cache import StaticCache, StaticState, next_power_of_two
from anyformer.errors import UserError
from anyformer.generation.cache.store import check_limit
from anyformer.generation.config import Generation
from anyformer.generation.logits import NO_HISTORY, LogitsProcessor, logits_warpers
from anyformer.generation.noise import gumbel, token_counter
from anyformer.generation.prompts import decoder_of, supports_static_cache, vocabulary_of
from anyformer.generation.runners.cuda_graphs import DeviceOutputs, argmax_in_parts, capture_step, run_steps
from anyformer.generation.runners.eager import (
    EncoderOutput,
    LanguageModel,
    compute_logits,
    decoder_blocks,
    device_of,
    dtype_of,
    eval_mode,
    hidden_states,
    static_caches,
)
from anyformer.generation.runners.row_fusion import Pass, fuse_rows, split_biases, transpose_heads
from anyformer.kernels import compile as compiling
from anyformer.kernels.decode import try_out

log = logging.getLogger("anyformer")

Form = Literal["plain", "recorded", "compiled", "fused"]  # each with what the one before it has
LEAST, PIECE, SHORT = 16, 256, 1024  # tokens of a recorded prefill, and of prompts that are run in such
FEW = 512  # tokens of all rows together up to which recording pays
Layers = list[tuple[Tensor, Tensor]]  # keys (B,G,L,C) and values (B,G,L,C') of each layer


def decode_step(
    model: LanguageModel,
    tokens: Tensor,
    positions: Tensor,
    layers: Layers,
    columns: Tensor,
    cross: CrossStates | None = None,
) -> Tensor:
    """Run the newest token of every row, (B,), at its position; logits (B,V) of the next."""
    crosses = [None] * len(layers) if cross is None else cross.layers
    held = [
        LayerState(StaticCache(keys=keys, values=values, at=positions), one)
        for (keys, values), one in zip(layers, crosses, strict=True)
    ]
    state = StaticState(held, tokens.shape[0], new_positions=positions, columns=columns)
    source = None if cross is None else cross.source
    return compute_logits(model, hidden_states(model, tokens[:, None], None, state, source))[:, 0]


def sample_step(
    raw: Tensor,
    outputs: DeviceOutputs,
    ends: Tensor,
    noise: tuple[Tensor, Tensor] | None,
    warpers: list[LogitsProcessor],
    padding: int,
) -> None:
    """Sample the next token of every row from the model's logits (B,V), and append it.

    `noise` is what samples start from: seeds (B,) and `token_counter` (V,).
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    logits = raw
    if noise is not None:
        for warp in warpers:
            logits = warp(logits, NO_HISTORY)
        seeds, counter = noise
        drawn = gumbel(seeds, outputs.steps, raw.shape[1], counter)
        logits = logits.to(drawn.dtype) + drawn
    sampled = argmax_in_parts(logits)
    outputs.append(sampled, raw.gather(1, sampled[:, None])[:, 0] - raw.logsumexp(-1), ends, padding)


# Two compiled functions: other settings need another sampling step, and the model, which takes long to compile, stays.


@cache
def compile_decode_step(alone: bool, fused: bool = False) -> Callable[..., Tensor]:
    """`decode_step` compiled for one row, or for any larger number of them."""
    from torch._inductor.custom_graph_pass import CustomGraphPass  # it brings the whole compiler along

    CustomGraphPass.register(Pass)
    change = transpose_heads if not alone else fuse_rows if fused else split_biases
    options: dict[str, Any] = {"coordinate_descent_tuning": True, "pre_grad_custom_pass": Pass(change)}
    if fused:
        options["combo_kernels"] = True  # what turns queries and keys is one kernel
    return compiling.compile_function(decode_step, fullgraph=True, dynamic=None if alone else True, options=options)


@cache
def compile_sample_step(alone: bool) -> Callable[..., None]:
    """`sample_step`, likewise."""
    return compiling.compile_function(sample_step, fullgraph=True, dynamic=None if alone else True)


def mark_any_size(*axes: tuple[Tensor, int]) -> None:
    """Tell the compiler that these axes may have any size."""
    from torch._dynamo import maybe_mark_dynamic  # it brings the whole compiler along

    for tensor, axis in axes:
        maybe_mark_dynamic(tensor, axis)


class CrossStates(NamedTuple):
    """What an encoder-decoder looks at, and each layer's keys and values of it."""

    source: EncoderOutput
    layers: list[PartState | None]


class DeviceLoop:
    """Buffers for `batch` rows of up to `limit` tokens, and the steps over them in their form.

    An encoder-decoder is given what to look at (`set_source`) and is never compiled.
    """

    def __init__(self, model: LanguageModel, batch: int, limit: int | None = None, *, form: Form = "recorded") -> None:
        if not supports_static_cache(model):
            raise UserError("a layer of this model has no static cache", fix="use generate")
        self.model, self.batch, self.limit, self.form = model, batch, check_limit(model, limit), form
        self.device, self.vocab = device_of(model), vocabulary_of(decoder_of(model.spec).embed, "the model")
        try_out(self.device)
        self.layers: Layers = [cache.buffers for cache in static_caches(model, batch, self.limit)]
        self.columns = torch.arange(self.limit, device=self.device)[None]
        zeros = torch.zeros(batch, dtype=torch.long, device=self.device)
        exact = torch.promote_types(dtype_of(model), torch.float32)
        self.outputs, self.seeds = DeviceOutputs.start(zeros, zeros, self.limit, 0, exact), zeros.clone()
        self.steps: dict[object, Callable[[], object]] = {}
        self.logits = zeros  # (B,V) after the tokens run last, where the caller samples
        self.weights = weight_addresses(model)
        self.pieces: dict[int, tuple[Tensor, ...]] = {}  # tokens and positions (B,size) of recorded prefills
        self.cross: CrossStates | None = None

    # ---------------------------------------------------------------- prompts

    def set_source(self, source: EncoderOutput) -> None:
        """The encoder's output (B,S,D) that the rows answer."""
        crosses = [
            None if block.cross is None else block.cross.state(self.batch, None) for block in decoder_blocks(self.model)
        ]
        self.cross = CrossStates(source, crosses)
        self.steps.clear()

    def prefill(self, prompts: Tensor, chunk: int | None = None) -> None:
        """Tokens (B,T) into columns 0 to T - 1; what padding leaves behind a short row is hidden until written over."""
        start, length = 0, prompts.shape[1]
        while start < length:
            size = chunk or length
            if chunk is None and self.form in ("compiled", "fused") and self.cross is None and length <= SHORT:
                size = PIECE if length - start > PIECE else max(LEAST, next_power_of_two(length - start))
                if self.batch * size <= FEW and start + size <= self.limit:
                    self.prefill_recorded(prompts[:, start : start + size], start, size)
                    start += size
                    continue
                size = length
            self.prefill_eager(prompts[:, start : start + size], start)
            start += size

    def prefill_eager(self, piece: Tensor, start: int) -> None:
        """Tokens (B,T) into the columns from `start` on."""
        stop = start + piece.shape[1]
        caches = [
            StaticCache(keys=keys[:, :, :stop], values=values[:, :, :stop], at=slice(start, stop))
            for keys, values in self.layers
        ]
        crosses = [None] * len(caches) if self.cross is None else self.cross.layers
        state = StaticState(
            [LayerState(cache, cross) for cache, cross in zip(caches, crosses, strict=True)], self.batch,
            length=start, gaps=False, new_positions=self.columns[:, start:stop], columns=self.columns[:, :stop],
        )  # fmt: skip
        hidden_states(self.model, piece, None, state, None if self.cross is None else self.cross.source)

    def prefill_recorded(self, piece: Tensor, start: int, size: int) -> None:
        """The same recorded, filled up to a size: a short prompt takes the host longer to launch than a GPU to run."""
        if size not in self.pieces:
            self.pieces[size] = tuple(
                torch.zeros(self.batch, size, dtype=torch.long, device=self.device) for _ in range(2)
            )
        tokens, positions = self.pieces[size]
        tokens[:, : piece.shape[1]] = piece
        positions.copy_(self.columns[:, start : start + size])

        def make() -> Callable[[], object]:
            held = [LayerState(StaticCache(keys=keys, values=values, at=positions)) for keys, values in self.layers]
            state = StaticState(held, self.batch, new_positions=positions, columns=self.columns)
            # Its result is not needed: what was run is in the KV cache.
            return lambda: hidden_states(self.model, tokens, None, state)

        self.make_step(size, make)()

    def start(self, prompts: Tensor, lengths: Tensor, padding: int = 0, chunk: int | None = None) -> None:
        """Prefill prompts (B,T), which begin in column 0 and have `lengths` (B,) tokens, but for their last tokens."""
        with torch.no_grad(), eval_mode(self.model):
            self.prefill(prompts[:, :-1], chunk)
        self.outputs.restart(prompts.gather(1, lengths[:, None] - 1)[:, 0], lengths - 1, padding)

    # ---------------------------------------------------------------- steps

    def generate(self, settings: Generation, new: int, seeds: Tensor | None = None) -> DeviceOutputs:
        """Up to `new` tokens after what was started; seeds (B,) where tokens are sampled."""
        if seeds is not None:
            self.seeds.copy_(seeds)
        with torch.no_grad(), eval_mode(self.model):
            count = run_steps(self.generation_step(settings), new, self.outputs.finished if settings.ends else None)
        outputs = self.outputs
        return outputs._replace(generated=outputs.generated[:, :count], logprobs=outputs.logprobs[:, :count])

    def run_next(self) -> Tensor:
        """Run `outputs.tokens` at their positions, and move on; logits (B,V) of the next, until the next call."""
        with torch.no_grad(), eval_mode(self.model):
            self.make_step("logits", self.logits_step)()
        return self.logits

    def make_step(self, name: object, make: Callable[[], Callable[[], object]]) -> Callable[[], object]:
        """A step in this loop's form, made when first needed; what fails to be compiled or recorded is done without.

        Compiling and recording both happen here, in the calls before a step is recorded.
        """
        while name not in self.steps:
            step = make()
            if self.form == "plain":
                self.steps[name] = step
                break
            try:
                with compiling.load().patch(recompile_limit=compiling.SHAPES):
                    self.steps[name] = capture_step(step, *self.outputs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may raise: without it things are only slower
                why = " ".join(str(error).split())[:200] or type(error).__name__
                lost = "compiled" if self.form in ("compiled", "fused") else "recorded"
                log.warning("decoding steps are not %s: %s", lost, why)
                self.form = "recorded" if lost == "compiled" else "plain"
        return self.steps[name]

    def generation_step(self, settings: Generation) -> Callable[[], object]:
        """The step that decodes, samples and appends; one for all calls that sample alike."""
        alike = (settings.ends, settings.padding, settings.sampled, settings.temperature, settings.top_k,
                 settings.top_p, settings.min_p)  # fmt: skip

        def make() -> Callable[[], None]:
            outputs, decode, sample = self.outputs, self.decode_function(), sample_step
            ends = torch.tensor(settings.ends, dtype=torch.long, device=self.device)
            noise = (self.seeds, token_counter(self.vocab, self.device)) if settings.sampled else None
            warpers = logits_warpers(settings, device=self.device) if settings.sampled else []
            # Seen with torch 2.13 on a CPU: compiled sampling reads past its logits and takes the process along.
            if self.form in ("compiled", "fused") and self.device.type == "cuda":
                mark_any_size((outputs.generated, 1), (outputs.logprobs, 1))
                sample = compile_sample_step(self.batch == 1)
            return lambda: sample(decode(), outputs, ends, noise, warpers, settings.padding)

        return self.make_step(alike, make)

    def logits_step(self) -> Callable[[], None]:
        """The step of `run_next`."""
        decode, outputs = self.decode_function(), self.outputs

        def step() -> None:
            self.logits = decode()
            outputs.positions.add_(1)

        return step

    def decode_function(self) -> Callable[[], Tensor]:
        """What runs the newest tokens, in this loop's form."""
        outputs, cross, decode = self.outputs, self.cross, decode_step
        if cross is not None:
            return lambda: decode_step(
                self.model, outputs.tokens, outputs.positions, self.layers, self.columns, cross
            )  # fmt: skip
        if self.form in ("compiled", "fused"):
            mark_any_size(*((buffer, 2) for layer in self.layers for buffer in layer), (self.columns, 1))
            decode = compile_decode_step(self.batch == 1, self.batch == 1 and self.form == "fused")
        return lambda: decode(self.model, outputs.tokens, outputs.positions, self.layers, self.columns)

    def reorder(self, rows: Tensor) -> None:
        """Each row goes on from what another row of the same prompt holds."""
        for buffer in (buffer for layer in self.layers for buffer in layer):
            buffer.copy_(buffer[rows])


def weight_addresses(model: LanguageModel) -> tuple[int, ...]:
    """Where the weights are in memory: a graph reads them there, whatever the model has become since."""
    return tuple(weight.data_ptr() for weight in model.parameters())
