"""Where decoding is left to the device: whole texts if the host has nothing to decide, else a recorded step a token."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.generation.cache.slots import can_be_placed
from anyformer.generation.config import Generation
from anyformer.generation.logits import rules
from anyformer.generation.noise import row_seeds
from anyformer.generation.prompts import Asked, room
from anyformer.generation.result import Generated, reasons_of
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.device_loop import DeviceLoop, addresses
from anyformer.generation.runners.eager import device_of

WORTH = 12  # new tokens from which recording a step, which takes four of them, pays
MOST = 8192  # and up to which there is room for all of them from the start; longer texts grow as they are written
DEVICES = ("cuda",)  # that record
LEAST = 512  # columns of a kept loop; more are powers of two, so that texts of different length share a loop
KEPT = 4  # loops kept for the next call of a compiled model


def records(model: Any, new: int) -> bool:
    """Whether steps are recorded for so many new tokens: on a GPU, in layers with fixed places."""
    net = model.model if isinstance(model, Compiled) else model
    if new > MOST or (new < WORTH and not isinstance(model, Compiled)):
        return False
    return device_of(net).type in DEVICES and can_be_placed(net)


def needs_host(settings: Generation, asked: Asked) -> str | None:
    """Why a token cannot be chosen without the host, in words, or None."""
    if settings.num_beams > 1:
        return "beam search moves rows"
    if settings.prompt_lookup_num_tokens is not None:
        return "tokens are proposed"
    if asked.stops is not None or settings.logprobs:
        return "stop strings and lists of log-probabilities are looked at token by token"
    if rules(settings, 1 << 30, torch.device("cpu")):
        return "a rule looks back at the text"
    return None


def take(model: Compiled, batch: int, limit: int) -> DeviceLoop:
    """A loop for so many rows of so many tokens, which is its user's alone until it is given back."""
    most, _ = room(model.spec)
    columns = LEAST
    while columns < limit:
        columns *= 2
    columns, now = columns if most is None else min(columns, most), addresses(model.model)
    model.idle[:] = [loop for loop in model.idle if loop.weights == now]
    for loop in model.idle:
        if (loop.batch, loop.limit) == (batch, columns):
            model.idle.remove(loop)
            return loop
    return DeviceLoop(model.model, batch, columns, form="fused")


def give(model: Compiled, loop: DeviceLoop) -> None:
    """Back for the next call."""
    model.idle[:] = [*model.idle, loop][-KEPT:]


def begun_loop(model: Any, asked: Asked, settings: Generation) -> DeviceLoop:
    """A loop whose prompts are read but for their last tokens: `num_return_sequences` or beams of each."""
    copies = max(settings.num_return_sequences, settings.num_beams)
    batch, limit = asked.ids.shape[0] * copies, asked.longest + asked.new
    loop = take(model, batch, limit) if isinstance(model, Compiled) else DeviceLoop(model, batch, limit)
    if isinstance(model.spec, Seq2Seq):
        memory, mask = model.encode(asked.source, asked.source_real), asked.source_real
        loop.look_at(memory.repeat_interleave(copies, 0), None if mask is None else mask.repeat_interleave(copies, 0))
    tokens, lengths = flush_left(asked)
    loop.begin(tokens.repeat_interleave(copies, 0), lengths.repeat_interleave(copies), settings.padding,
               settings.prefill_chunk_size)  # fmt: skip
    return loop


def flush_left(asked: Asked) -> tuple[Tensor, Tensor]:
    """Prompts (B,T) with their padding brought to the right, and their lengths (B,)."""
    ids = asked.ids[:, asked.ids.shape[1] - asked.longest :]
    if asked.real is None:
        return ids, torch.full((len(ids),), asked.longest, device=ids.device)
    lengths = asked.real.sum(1)
    shift = torch.arange(asked.longest, device=ids.device) + (asked.longest - lengths)[:, None]
    return ids.gather(1, shift.clamp(max=asked.longest - 1)), lengths


def write_texts(model: Any, asked: Asked, settings: Generation) -> Generated:
    """What `generate` returns, written without the host."""
    loop = begun_loop(model, asked, settings)
    seeds = None
    if settings.sampled:
        seeds = row_seeds(settings.seed, asked.ids.shape[0], settings.num_return_sequences, loop.device)
    texts = loop.write(settings, asked.new, seeds)
    prompts = asked.ids.repeat_interleave(settings.num_return_sequences, 0)
    ends = torch.tensor(settings.ends, dtype=torch.long, device=loop.device)
    by_eos = (texts.written[:, :, None] == ends).any(-1)  # (R,N)
    at = torch.where(by_eos.any(1), by_eos.to(torch.int32).argmax(1) + 1, texts.written.shape[1])
    longest = int(at.max())
    logprobs = texts.logprobs[:, :longest].clone()
    found = Generated(
        ids=torch.cat([prompts, texts.written[:, :longest]], 1), prompt=prompts.shape[1], logprobs=logprobs,
        scores=logprobs.sum(1), lengths=at, reasons=reasons_of(by_eos.any(1), torch.zeros_like(at, dtype=torch.bool)),
    )  # fmt: skip
    if isinstance(model, Compiled):
        give(model, loop)
    return found


class RunningLoop:
    """A model in the act of writing, for choices that the host makes."""

    def __init__(self, model: Any, asked: Asked, settings: Generation) -> None:
        self.copies = max(settings.num_return_sequences, settings.num_beams)
        self.loop = begun_loop(model, asked, settings)
        if isinstance(model, Compiled):  # whoever lets go of this no longer uses it
            weakref.finalize(self, give, model, self.loop)

    def start(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Scores (B,V) of the first tokens; the prompts are known, and their copies are read with them."""
        return self.loop.read_next()[:: self.copies].clone()

    def step(self, tokens: Tensor) -> Tensor:
        """One more token a row, (B,); scores of the next, (B,V), which the next step overwrites."""
        self.loop.texts.tokens.copy_(tokens)
        return self.loop.read_next()

    def repeat(self, copies: int) -> None:
        """They are there from the start."""

    def reorder(self, rows: Tensor) -> None:
        """Rows change places with rows of the same prompt."""
        self.loop.reorder(rows)
