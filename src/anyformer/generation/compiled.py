"""A decoder whose step is compiled: one pass over fixed places, made into machine code once and used for every length.

Rows stand in fixed places (core/places.py), and all that changes from step to step is held in tensors. Rows and new
tokens are rounded up to powers of two, and each such shape is compiled once; how far texts reach is a size the code
takes as it comes, so prompts and texts of any length run through the same code. Equal blocks are compiled as one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.core.compiling import Attempt, Function
from anyformer.core.context import Context
from anyformer.core.model import Model
from anyformer.core.places import PlacedState, Places
from anyformer.core.state import LayerState
from anyformer.errors import UserError
from anyformer.generation.prompts import check_model
from anyformer.generation.rows.slots import can_be_placed
from anyformer.generation.running import device_of, hidden_states, logits_of

FEW = 32  # tokens a row up to which compiled code reads them; prompts are longer and read as ever


def compiled(model: Any) -> Compiled:
    """The model with a compiled decoding step; give it to `generate` or `stream` in the model's place.

    Before the first token of one row, and once more of several, the compiler takes up to a minute on two cores (GPT-2),
    and about ten seconds in a later process, which finds machine code on disk. Nothing is compiled before it is needed,
    and prompts never are. Without a C++ compiler the step runs as it is, with one line in the log.

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
        twin, what = in_regions(model), "the decoding step runs as it is,"
        self.reading = Attempt(partial(read_in_places, twin), partial(read_plainly, model), what)
        self.scoring = Attempt(partial(scores_of, twin), partial(scores_of, model), what)

    @property
    def lost(self) -> bool:
        """Whether some of it could not be compiled."""
        return self.reading.lost or self.scoring.lost

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

    def hidden(self, *given: Any) -> Tensor:
        """As `read_in_places`, of which columns beyond those named take no part; the buffers must have more of them."""
        return self.reading(*given)

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores of the next token (N,V) from hidden states (N,D)."""
        rows, filled = hidden.shape[0], rounded(hidden.shape[0])
        if filled > FEW:
            return scores_of(self.model, hidden)
        if filled > rows:
            hidden = torch.cat([hidden, hidden.new_zeros(filled - rows, hidden.shape[1])])
        return self.scoring(hidden)[:rows]


def rounded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


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
