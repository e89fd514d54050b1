"""A decoder whose step is compiled: one pass over a static cache, as machine code that serves every length.

All that changes from step to step is held in tensors. On a CPU a plain decoder runs through C++ of our own, which takes
rows and tokens as they come (cpu_step.py). All else is compiled by torch: rows and new tokens are rounded up to powers
of two, and each such shape is compiled once; how long sequences are is a size the code takes as it comes, so prompts
and outputs of any length run through the same code. Equal blocks are compiled as one.
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

FEW = 32  # tokens of a row up to which compiled code runs them; prompts are longer and run as they are


def compiled(model: Any) -> Compiled:
    """The model with a compiled decoding step; give it to `generate` or `stream` in the model's place.

    For GPT-2, Llama and their like on a CPU, in float32 or 8 bits, that takes a few seconds on the first call, and one
    or two in a later process, which finds machine code on disk; a new token then gets the same logits, to the bit,
    whatever rows or proposals it is run with (in float32, where no more than 24 logits are computed together). For
    other decoders the compiler takes up to a minute before the first token of one row, and once more of several; on a
    GPU half a minute, and steps are recorded as graphs (on_device.py). Nothing is compiled before it is needed, and
    prompts never are. Without a C++ compiler the step runs as it is, with one line in the log.

    >>> from anyformer import preset
    >>> compiled(preset("gpt2-tiny").build(seed=0)).spec.head.tied
    True
    """
    return model if isinstance(model, Compiled) else Compiled(model)


class Compiled:
    """What `compiled` returns. The weights are the model's own, as they are when a step is made."""

    def __init__(self, model: Any) -> None:
        spec = check_model(model)
        if not isinstance(spec, Model) or not supports_static_cache(model):
            raise UserError("only a decoder whose layers all have a static cache has a step to compile",
                            where="compiled", fix="use the model as it is")  # fmt: skip
        self.model, self.spec, self.device = model, spec, device_of(model)
        self.idle: list[Any] = []  # loops on a GPU that wait for the next call (on_device.py)
        self.is_cpp = self.cpp_failed = False  # whether the newest step is C++ of our own; whether that failed

    @cached_property
    def attempts(self) -> tuple[Attempt, Attempt]:
        """Torch's compiler for what is not our C++: the layers, and the logits."""
        if self.device.type == "cpu" and is_quantised(self.model):
            is_available()  # products in 8 bits, which the compiler will find made or do without
        twin, what = compile_by_block(self.model), "the decoding step runs as it is,"
        layers = Attempt(partial(run_static, twin), partial(run_static_eager, self.model), what)
        head = Attempt(partial(row_logits, twin), partial(row_logits, self.model), what)
        if self.cpp_failed:  # nor could torch compile anything, and one line about it is enough
            layers.lost = head.lost = True
        return layers, head

    @property
    def lost(self) -> bool:
        """Whether some of it could not be compiled."""
        return self.cpp_failed or ("attempts" in vars(self) and any(attempt.lost for attempt in self.attempts))

    @property
    def training(self) -> bool:
        """Whether the model is being trained."""
        return bool(self.model.training)

    def train(self, mode: bool = True) -> Compiled:
        """As the model's own."""
        self.model.train(mode)
        return self

    def eval(self) -> Compiled:
        """As the model's own."""
        return self.train(False)

    def parameters(self) -> Iterator[Tensor]:
        """Those of the model."""
        return iter(self.model.parameters())

    def uses_cpp(self) -> bool:
        """Whether C++ of our own runs the layers; the first to ask waits for it to be compiled."""
        plain = is_plain(self.model)
        self.is_cpp = plain and is_available()
        self.cpp_failed = plain and not self.is_cpp
        return self.is_cpp

    def bind(self, keys: list[Tensor], values: list[Tensor]) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """`run_static` over these buffers; they must have more columns than are ever named."""
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
    """Hidden states (B,T,D) of tokens (B,T) at `positions` (B,T), which go to the columns `at` (B,T).

    `columns` (1,L) are the positions of the tokens in the columns of the buffers (B,G,L,C) of each layer.
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
    """The same with buffers of more columns, which a region would cut itself."""
    reach = columns.shape[1]
    keys, values = [k[:, :, :reach] for k in keys], [v[:, :, :reach] for v in values]
    return run_static(model, tokens, positions, at, columns, keys, values)


def row_logits(model: LanguageModel, hidden: Tensor) -> Tensor:
    """Logits (N,V) from hidden states (N,D)."""
    return compute_logits(model, hidden[:, None])[:, 0]


def compile_by_block(model: Any) -> Any:
    """The same model, its parts shared, with every block as a region that is compiled once for all that are alike."""
    twin, stack = copy.copy(model), copy.copy(model.stack)
    twin._modules, stack._modules = dict(model._modules), dict(model.stack._modules)
    del stack._modules["blocks"]
    region = torch.compiler.nested_compile_region(run_block)
    object.__setattr__(stack, "blocks", [Region(block, region) for block in model.stack.blocks])
    twin._modules["stack"] = stack
    return twin


class Region:
    """A block, called as ever."""

    def __init__(self, block: Any, region: Function) -> None:
        self.block, self.region = block, region

    def __call__(
        self, x: Tensor, context: Context, state: LayerState, tables: tuple[Tensor, ...], some: None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`some` is None: only training asks the last block for a part of the tokens."""
        cache = state.mixer
        assert isinstance(cache, StaticCache) and isinstance(cache.at, Tensor)
        return self.region(self.block, x, context, *cache.buffers, cache.at, tables), {}


def run_block(
    block: Any, x: Tensor, context: Context, keys: Tensor, values: Tensor, at: Tensor, tables: tuple[Tensor, ...]
) -> Tensor:
    """What goes in and out are tensors: the compiler sees that blocks differ in nothing else."""
    reach = context.key_index.shape[1]
    cache = StaticCache(keys=keys[:, :, :reach], values=values[:, :, :reach], at=at)
    return block(x, context, LayerState(cache), tables)[0]
