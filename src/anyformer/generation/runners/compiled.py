"""A decoder with a compiled decode step: one pass over a static KV cache, with code that works for every length.

Everything that changes between steps is in tensors. On a CPU a plain decoder runs through our own C++, which takes any
number of rows and tokens (cpu_step.py). Everything else is compiled by torch: rows and new tokens are rounded up to
powers of two, and each such shape is compiled once; the cached length is a dynamic size, so prompts and outputs of any
length use the same code. Equal blocks are compiled once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from anyformer.core.context import Context
from anyformer.core.model import Model
from anyformer.core.state import LayerState
from anyformer.core.static_cache import StaticCache, StaticState, next_power_of_two
from anyformer.errors import UserError
from anyformer.generation.prompts import check_model, supports_static_cache
from anyformer.generation.runners.cpu_step import PlainStep, is_plain
from anyformer.generation.runners.eager import LanguageModel, compute_logits, device_of, hidden_states
from anyformer.kernels.compile import Attempt, Function
from anyformer.kernels.cpu import FewRows, is_available
from anyformer.kernels.quantise import is_quantised

FEW = 32  # most tokens per row in compiled code; longer prompts run eagerly


def compiled(model: Any) -> Compiled:
    """The model with a compiled decode step; pass it to `generate` or `stream` instead of the model.

    For GPT-2, Llama and similar models on a CPU, in float32 or 8 bits, compiling takes a few seconds on the first call,
    and one or two in a later process, which finds the machine code on disk; a token's logits are then bit-identical
    whatever other rows or draft tokens it is run with (in float32, if at most 24 logits are computed together). For
    other decoders the compiler takes up to a minute before the first token of one row, and again for several; on a GPU
    half a minute, and steps are captured as CUDA graphs (on_device.py). Compilation is lazy, and prompts are never
    compiled. Without a C++ compiler the step runs eagerly, with one line in the log.

    >>> from anyformer import preset
    >>> compiled(preset("gpt2-tiny").build(seed=0)).spec.head.tied
    True
    """
    return model if isinstance(model, Compiled) else Compiled(model)


class Compiled:
    """What `compiled` returns. It uses the model's own weights, as they are when a step is built."""

    def __init__(self, model: Any) -> None:
        spec = check_model(model)
        if not isinstance(spec, Model) or not supports_static_cache(model):
            raise UserError("only a decoder whose layers all have a static cache has a step to compile",
                            where="compiled", fix="use the model as it is")  # fmt: skip
        self.model, self.spec, self.device = model, spec, device_of(model)
        self.idle: list[Any] = []  # GPU loops kept for the next call (on_device.py)
        self.is_cpp = self.cpp_failed = False  # whether the newest step is our C++; whether compiling it failed

    @cached_property
    def attempts(self) -> tuple[Attempt, Attempt]:
        """The layers and the logits compiled by torch, for models that our C++ does not cover."""
        if self.device.type == "cpu" and is_quantised(self.model):
            is_available()  # compile the int8 kernels first: torch's compiler uses them if they exist
        twin, what = compile_by_block(self.model), "the decoding step runs as it is,"
        layers = Attempt(partial(run_static, twin), partial(run_static_eager, self.model), what)
        head = Attempt(partial(row_logits, twin), partial(row_logits, self.model), what)
        if self.cpp_failed:  # then torch cannot compile either, and one log line is enough
            layers.lost = head.lost = True
        return layers, head

    @property
    def lost(self) -> bool:
        """Whether any part could not be compiled."""
        return self.cpp_failed or ("attempts" in vars(self) and any(attempt.lost for attempt in self.attempts))

    @property
    def training(self) -> bool:
        """Whether the model is being trained."""
        return bool(self.model.training)

    def train(self, mode: bool = True) -> Compiled:
        """Like nn.Module.train."""
        self.model.train(mode)
        return self

    def eval(self) -> Compiled:
        """As the model's own."""
        return self.train(False)

    def parameters(self) -> Iterator[Tensor]:
        """The model's parameters."""
        return iter(self.model.parameters())

    def uses_cpp(self) -> bool:
        """Whether our C++ runs the layers; the first call compiles it."""
        plain = is_plain(self.model)
        self.is_cpp = plain and is_available()
        self.cpp_failed = plain and not self.is_cpp
        return self.is_cpp

    def bind(self, keys: list[Tensor], values: list[Tensor]) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """`run_static` bound to these buffers, which must have more columns than are ever used."""
        if self.uses_cpp():
            return PlainStep(self.model, keys, values).hidden
        return lambda tokens, positions, at, columns: self.attempts[0](tokens, positions, at, columns, keys, values)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (N,V) of the tokens that follow hidden states (N,D)."""
        if self.is_cpp:
            with FewRows():
                return row_logits(self.model, hidden)
        rows, filled = hidden.shape[0], next_power_of_two(hidden.shape[0])
        if filled > FEW:
            return row_logits(self.model, hidden)
        if filled > rows:
            hidden = torch.cat([hidden, hidden.new_zeros(filled - rows, hidden.shape[1])])
        return self.attempts[1](hidden)[:rows]


# ---------------------------------------------------------------- what is compiled


def run_static(
    model: LanguageModel,
    tokens: Tensor,
    positions: Tensor,
    at: Tensor,
    columns: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
) -> Tensor:
    """Hidden states (B,T,D) of tokens (B,T) at `positions` (B,T), whose keys and values go to the columns `at` (B,T).

    `columns` (1,L) are the positions of the columns of each layer's buffers (B,G,L,C).
    """
    layers = [LayerState(StaticCache(keys=k, values=v, at=at)) for k, v in zip(keys, values, strict=True)]
    state = StaticState(layers, tokens.shape[0], new_positions=positions, columns=columns)
    return hidden_states(model, tokens, None, state)


def run_static_eager(
    model: LanguageModel,
    tokens: Tensor,
    positions: Tensor,
    at: Tensor,
    columns: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
) -> Tensor:
    """The same eagerly, with larger buffers that are cut to the used columns here (compiled regions cut them)."""
    reach = columns.shape[1]
    keys, values = [k[:, :, :reach] for k in keys], [v[:, :, :reach] for v in values]
    return run_static(model, tokens, positions, at, columns, keys, values)


def row_logits(model: LanguageModel, hidden: Tensor) -> Tensor:
    """Logits (N,V) from hidden states (N,D)."""
    return compute_logits(model, hidden[:, None])[:, 0]


def compile_by_block(model: Any) -> Any:
    """A shallow copy of the model with every block as a region that is compiled once for all equal blocks."""
    twin, stack = copy.copy(model), copy.copy(model.stack)
    twin._modules, stack._modules = dict(model._modules), dict(model.stack._modules)
    del stack._modules["blocks"]
    region = torch.compiler.nested_compile_region(run_block)
    object.__setattr__(stack, "blocks", [Region(block, region) for block in model.stack.blocks])
    twin._modules["stack"] = stack
    return twin


class Region:
    """A block with the usual call signature, run as a compiled region."""

    def __init__(self, block: Any, region: Function) -> None:
        self.block, self.region = block, region

    def __call__(
        self, x: Tensor, context: Context, state: LayerState, tables: tuple[Tensor, ...], some: None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`some` is None: only training computes a subset of the tokens."""
        cache = state.mixer
        assert isinstance(cache, StaticCache) and isinstance(cache.at, Tensor)
        return self.region(self.block, x, context, *cache.buffers, cache.at, tables), {}


def run_block(
    block: Any, x: Tensor, context: Context, keys: Tensor, values: Tensor, at: Tensor, tables: tuple[Tensor, ...]
) -> Tensor:
    """Run a block with all inputs as tensors, so that the compiler can share code between equal blocks."""
    reach = context.key_index.shape[1]
    cache = StaticCache(keys=keys[:, :, :reach], values=values[:, :, :reach], at=at)
    return block(x, context, LayerState(cache), tables)[0]
