"""Writing on a GPU: reading a token, choosing the next and noting it are one compiled step, recorded as a graph.

Rows stand in fixed places (core/places.py), so a step's shapes depend on the batch alone, and its cost on how far the
rows have come. One row has a compiled form of its own, since its matrix products are sums over rows of weights that
the compiler fuses with what surrounds them; all larger batches share another. Prompts are read but for their last
token, which is read by the first step: every token comes about in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch._dynamo import maybe_mark_dynamic

from anyformer.core.decode_kernel import try_out
from anyformer.core.model import Seq2Seq
from anyformer.core.places import PlacedState, Places
from anyformer.core.state import LayerState
from anyformer.errors import UserError
from anyformer.generation.choosing import NOTHING
from anyformer.generation.filters import Filter, narrowing, rules
from anyformer.generation.graphs import Texts, captured, first_largest, repeat
from anyformer.generation.noise import gumbel, row_seeds
from anyformer.generation.row_fusion import fuse_rows, split_biases
from anyformer.generation.rows.base import row_limit
from anyformer.generation.rows.slots import can_be_placed
from anyformer.generation.running import at_rest, device_of, hidden_states, logits_of
from anyformer.generation.settings import Generation

log = logging.getLogger("anyformer")

Form = Literal["fused", "recorded", "compiled", "eager"]  # fused: recorded, one row through kernels of our own
Layers = list[tuple[Tensor, Tensor]]  # keys (B,G,L,C) and values (B,G,L,C') of each layer


def refusal(model: Any, settings: Generation) -> str | None:
    """Why a text cannot be written wholly on the device, in words, or None."""
    if isinstance(model.spec, Seq2Seq) or not can_be_placed(model):
        return "a layer has no fixed places"
    if settings.num_beams > 1:
        return "beam search moves rows"
    if settings.stops or settings.logprobs:
        return "stop strings and lists of log-probabilities are looked at token by token"
    if rules(settings, 1 << 30, torch.device("cpu")):
        return "a rule looks back at the text"
    return None


def read_on(model: Any, tokens: Tensor, places: Tensor, layers: Layers, columns: Tensor) -> Tensor:
    """Read the newest token of every row, (B,), where it stands; scores of the next, (B,V)."""
    held = [LayerState(Places(keys=keys, values=values, at=places)) for keys, values in layers]
    state = PlacedState(held, tokens.shape[0], places=places, columns=columns)
    return logits_of(model, hidden_states(model, tokens[:, None], None, state))[:, 0]


def choose_on(
    raw: Tensor, texts: Texts, ends: Tensor, seeds: Tensor | None, narrow: list[Filter], padding: int
) -> None:
    """Choose the next token of every row from the model's scores (B,V), and note it."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    scores = raw
    if seeds is not None:
        for apply in narrow:
            scores = apply(scores, NOTHING)
        noise = gumbel(seeds, texts.number, raw.shape[1])
        scores = scores.to(noise.dtype) + noise
    chosen = first_largest(scores)
    texts.note(chosen, raw.gather(1, chosen[:, None])[:, 0] - raw.logsumexp(-1), ends, padding)


# Two compiled functions: other settings need another choice, and the model, which takes long to compile, stays.


@cache
def compiled_reading(alone: bool, fused: bool = False) -> Callable[..., Tensor]:
    """`read_on` compiled for one row, or for any larger number of them."""
    options: dict[str, Any] = {"coordinate_descent_tuning": True}
    if alone:
        options["pre_grad_custom_pass"] = fuse_rows if fused else split_biases
    return torch.compile(read_on, fullgraph=True, dynamic=None if alone else True, options=options)


@cache
def compiled_choice(alone: bool) -> Callable[..., None]:
    """`choose_on`, likewise."""
    return torch.compile(choose_on, fullgraph=True, dynamic=None if alone else True)


class DeviceLoop:
    """Buffers for `batch` rows of up to `limit` tokens, and the step over them in its form."""

    def __init__(self, model: Any, batch: int, limit: int | None = None, *, form: Form = "recorded") -> None:
        if isinstance(model.spec, Seq2Seq) or not can_be_placed(model):
            raise UserError("a layer of this model has no fixed places", fix="use generate")
        self.model, self.batch, self.limit, self.form = model, batch, row_limit(model, limit), form
        self.device = device_of(model)
        try_out(self.device)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        stack = model.stack
        places = [stack.blocks[which].mixer.places(batch, self.limit, self.device, dtype) for which in stack.order]
        self.layers: Layers = [layer.buffers for layer in places]
        self.columns = torch.arange(self.limit, device=self.device)[None]
        for keys, values in self.layers:  # one compiled step for every number of columns
            maybe_mark_dynamic(keys, 2)
            maybe_mark_dynamic(values, 2)
        maybe_mark_dynamic(self.columns, 1)
        self.texts: Texts | None = None
        self.seeds: Tensor | None = None
        self.replay: Callable[[], object] | None = None
        self.made_for: tuple[object, ...] = ()

    @torch.no_grad()
    def write(self, prompts: Tensor, lengths: Tensor, settings: Generation) -> Texts:
        """Texts behind prompts (B,T), which begin in column 0 and have `lengths` (B,) tokens."""
        most = settings.max_new_tokens
        if most is None or prompts.shape[1] + most > self.limit:
            raise UserError(f"{prompts.shape[1]} tokens and {most} new ones do not fit {self.limit}",
                            where="DeviceLoop", fix="give max_new_tokens, and a limit with room for both")  # fmt: skip
        with at_rest(self.model):
            return self.written(prompts, lengths, settings, most)

    def written(self, prompts: Tensor, lengths: Tensor, settings: Generation, most: int) -> Texts:
        self.read(prompts[:, :-1])
        first = prompts.gather(1, lengths[:, None] - 1)[:, 0]
        fresh = Texts.start(first, lengths - 1, most, settings.padding)
        again = self.prepare(fresh, settings)
        assert self.texts is not None
        made = repeat(again, most, self.texts.over) if settings.ends else most
        for _ in range(0 if settings.ends else most):
            again()
        return self.texts._replace(written=self.texts.written[:, :made], logprobs=self.texts.logprobs[:, :made])

    def read(self, prompts: Tensor) -> None:
        """Tokens (B,T) into columns 0 to T - 1; what padding leaves behind a short row is hidden until written over."""
        if not prompts.shape[1]:
            return
        at = torch.arange(prompts.shape[1], device=self.device)[None]  # (1,T): all rows begin alike
        held = [
            LayerState(Places(keys=keys[:, :, : at.shape[1]], values=values[:, :, : at.shape[1]], at=at))
            for keys, values in self.layers
        ]
        hidden_states(self.model, prompts, None, PlacedState(held, self.batch, places=at, columns=at))

    def prepare(self, fresh: Texts, settings: Generation) -> Callable[[], object]:
        """The step over these texts; what was recorded for the same settings is used again."""
        ends = torch.tensor(settings.ends, dtype=torch.long, device=self.device)
        seeds = row_seeds(settings.seed, self.batch, 1, self.device) if settings.sampled else None
        narrow = narrowing(settings, device=self.device) if settings.sampled else []
        wanted = (settings.ends, settings.padding, settings.sampled, settings.temperature, settings.top_k,
                  settings.top_p, settings.min_p, fresh.written.shape[1])  # fmt: skip
        if self.replay is not None and self.texts is not None and self.made_for == wanted:
            for old, new in zip(self.texts, fresh, strict=True):
                old.copy_(new)
            if self.seeds is not None and seeds is not None:
                self.seeds.copy_(seeds)
            return self.replay
        self.texts, self.seeds, self.made_for = fresh, seeds, wanted
        maybe_mark_dynamic(fresh.written, 1)  # and one for every number of tokens
        maybe_mark_dynamic(fresh.logprobs, 1)
        alone, read, choose = self.batch == 1, read_on, choose_on
        if self.form != "eager":
            read = compiled_reading(alone, alone and self.form == "fused")
            # Seen with torch 2.13 on a CPU: the compiled `draw` reads past its scores and takes the process along.
            choose = compiled_choice(alone) if self.device.type == "cuda" else choose_on

        def call() -> None:
            raw = read(self.model, fresh.tokens, fresh.places, self.layers, self.columns)
            choose(raw, fresh, ends, seeds, narrow, settings.padding)

        self.replay = captured(call, *fresh) if self.form in ("fused", "recorded") else call
        return self.replay
