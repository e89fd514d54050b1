"""A decoder whose step is compiled: one pass over fixed places, made into machine code once and used for every length.

Rows stand in fixed places (core/static_cache.py), and all that changes from step to step is held in tensors. On a CPU a
plain decoder runs through code of our own, which takes rows and tokens as they come (cpu_step.py). All else is compiled
by torch: rows and new tokens are rounded up to powers of two, and each such shape is compiled once; how far texts reach
is a size the code takes as it comes, so prompts and texts of any length run through the same code. Equal blocks are
compiled as one.
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
from anyformer.core.static_cache import PlacedState, Places, rounded
from anyformer.errors import UserError
from anyformer.generation.cache.slots import can_be_placed
from anyformer.generation.prompts import check_model
from anyformer.generation.runners.cpu_step import PlainStep, is_plain
from anyformer.generation.runners.eager import device_of, hidden_states, logits_of
from anyformer.kernels.compile import Attempt, Function
from anyformer.kernels.cpu import FewRows, available
from anyformer.kernels.quantise import is_rounded

FEW = 32  # tokens a row up to which compiled code reads them; prompts are longer and read as ever


def compiled(model: Any) -> Compiled:
    """The model with a compiled decoding step; give it to `generate` or `stream` in the model's place.

    For GPT-2, Llama and their like on a CPU, in float32 or 8 bits, that takes a few seconds on the first call, and one
    or two in a later process, which finds machine code on disk; a new token then gets the same scores, to the bit,
    whatever rows or proposals it is read with (in float32, where no more than 24 tokens are scored together). For other
    decoders the compiler takes up to a minute before the first token of one row, and once more of several; on a GPU
    half a minute, and steps are recorded as graphs (on_device.py). Nothing is compiled before it is needed, and prompts
    never are. Without a C++ compiler the step runs as it is, with one line in the log.

    >>> from anyformer import preset
    >>> compiled(preset("gpt2-tiny").build(seed=0)).spec.head.tied
    True
    """
    return model if isinstance(model, Compiled) else Compiled(model)


class Compiled:
    """What `compiled` returns. The weights are the model's own, as they are when a step is made."""

    def __init__(self, model: Any) -> None:
        spec = check_model(model)
        if not isinstance(spec, Model) or not can_be_placed(model):
            raise UserError("only a decoder whose layers all have fixed places has a step to compile",
                            where="compiled", fix="use the model as it is")  # fmt: skip
        self.model, self.spec, self.device = model, spec, device_of(model)
        self.idle: list[Any] = []  # loops on a GPU that wait for the next call (on_device.py)
        self.ours = self.unmade = False  # whether the newest step is machine code of our own; whether that failed

    @cached_property
    def attempts(self) -> tuple[Attempt, Attempt]:
        """Torch's compiler for what is not ours: reading, and scoring what was read."""
        if self.device.type == "cpu" and is_rounded(self.model):
            available()  # products in 8 bits, which the compiler will find made or do without
        twin, what = in_regions(self.model), "the decoding step runs as it is,"
        reading = Attempt(partial(read_in_places, twin), partial(read_plainly, self.model), what)
        scoring = Attempt(partial(scores_of, twin), partial(scores_of, self.model), what)
        if self.unmade:  # nor could torch compile anything, and one line about it is enough
            reading.lost = scoring.lost = True
        return reading, scoring

    @property
    def lost(self) -> bool:
        """Whether some of it could not be compiled."""
        return self.unmade or ("attempts" in vars(self) and any(attempt.lost for attempt in self.attempts))

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

    def is_ours(self) -> bool:
        """Whether machine code of our own stands for the layers; the first to ask waits for it to be made."""
        plain = is_plain(self.model)
        self.ours = plain and available()
        self.unmade = plain and not self.ours
        return self.ours

    def step(self, keys: list[Tensor], values: list[Tensor]) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """`read_in_places` over these buffers; they must have more columns than are ever named."""
        if self.is_ours():
            return PlainStep(self.model, keys, values).hidden
        return lambda tokens, places, at, columns: self.attempts[0](tokens, places, at, columns, keys, values)

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores of the next token (N,V) from hidden states (N,D)."""
        if self.ours:
            with FewRows():
                return scores_of(self.model, hidden)
        rows, filled = hidden.shape[0], rounded(hidden.shape[0])
        if filled > FEW:
            return scores_of(self.model, hidden)
        if filled > rows:
            hidden = torch.cat([hidden, hidden.new_zeros(filled - rows, hidden.shape[1])])
        return self.attempts[1](hidden)[:rows]


# ---------------------------------------------------------------- what is compiled


def read_in_places(
    model: Any, tokens: Tensor, places: Tensor, at: Tensor, columns: Tensor, keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """Hidden states (B,T,D) of tokens (B,T) at positions `places` (B,T), which go to the columns `at` (B,T).

    `columns` (1,L) are the positions of what stands in the columns of the buffers (B,G,L,C) of each layer.
    """
    layers = [LayerState(Places(keys=k, values=v, at=at)) for k, v in zip(keys, values, strict=True)]
    state = PlacedState(layers, tokens.shape[0], places=places, columns=columns)
    return hidden_states(model, tokens, None, state)


def read_plainly(
    model: Any, tokens: Tensor, places: Tensor, at: Tensor, columns: Tensor, keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """The same with buffers of more columns, which a region would cut itself."""
    reach = columns.shape[1]
    keys, values = [k[:, :, :reach] for k in keys], [v[:, :, :reach] for v in values]
    return read_in_places(model, tokens, places, at, columns, keys, values)


def scores_of(model: Any, hidden: Tensor) -> Tensor:
    """Scores (N,V) from hidden states (N,D)."""
    return logits_of(model, hidden[:, None])[:, 0]


def in_regions(model: Any) -> Any:
    """The same model, its parts shared, with every block as a region that is compiled once for all that are alike."""
    twin, stack = copy.copy(model), copy.copy(model.stack)
    twin._modules, stack._modules = dict(model._modules), dict(model.stack._modules)
    del stack._modules["blocks"]
    region = torch.compiler.nested_compile_region(within)
    object.__setattr__(stack, "blocks", [Region(block, region) for block in model.stack.blocks])
    twin._modules["stack"] = stack
    return twin


class Region:
    """A block, called as ever."""

    def __init__(self, block: Any, region: Function) -> None:
        self.block, self.region = block, region

    def __call__(
        self, x: Tensor, context: Context, state: LayerState, tables: tuple[Tensor, ...]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        places = state.mixer
        assert isinstance(places, Places) and isinstance(places.at, Tensor)
        return self.region(self.block, x, context, *places.buffers, places.at, tables), {}


def within(
    block: Any, x: Tensor, context: Context, keys: Tensor, values: Tensor, at: Tensor, tables: tuple[Tensor, ...]
) -> Tensor:
    """What goes in and out are tensors: the compiler sees that blocks differ in nothing else."""
    reach = context.key_index.shape[1]
    places = Places(keys=keys[:, :, :reach], values=values[:, :, :reach], at=at)
    return block(x, context, LayerState(places), tables)[0]
