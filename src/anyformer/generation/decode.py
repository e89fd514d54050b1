"""Writing text: one token a step, greedy or drawn, for decoders and encoder-decoders; beam search is in beam.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Model, Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.beam import beam_search
from anyformer.generation.config import DEFAULT_NEW_TOKENS, Generation
from anyformer.generation.guide import Guide
from anyformer.generation.prompts import (
    Asked,
    check_ids,
    check_mask,
    check_model,
    check_room,
    decoder_of,
    flush_right,
    room,
    vocabulary_of,
)
from anyformer.generation.result import Generated, Step, generated, is_one_of, reasons_of
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.compiled_texts import RunningSheet
from anyformer.generation.runners.eager import Running, RunningModel, RunningPair, at_rest, device_of
from anyformer.generation.runners.on_device import RunningLoop, needs_host, records, write_texts
from anyformer.generation.sampler import Choice, Guides
from anyformer.generation.speculative import Speculation
from anyformer.generation.stops import Stops, TextOf

log = logging.getLogger("anyformer")


def generate(
    model: Any,
    tokens: Any,
    mask: Tensor | None = None,
    *,
    settings: Generation | None = None,
    text_of: TextOf | None = None,
    on_token: Callable[[Step], object] | None = None,
    draft: Any = None,
    guide: Guide | Guides | None = None,
) -> Generated:
    """Texts that go on from prompts (B,T), or, for an encoder-decoder, that answer sources (B,S).

    `mask` is padding, on either side. `text_of` turns a list of ids into text and is needed for `stop_strings`.
    `on_token` is called with every `Step` as it comes, except under beam search, which decides at the end.
    `draft` is a smaller model with the same vocabulary, or "int8" for this one in 8 bits, that proposes tokens: the
    text stays the same. `guide` says what may be written (see grammar.py): one for one text, or a list of one for each.

    >>> from anyformer import preset
    >>> spec = preset("gpt2-tiny")
    >>> generate(spec.build(seed=0), torch.tensor([[1, 2, 3]]), settings=Generation(max_new_tokens=4)).ids.shape
    torch.Size([1, 7])
    """
    settings = Generation() if settings is None else settings
    if settings.num_beams == 1:
        with torch.no_grad(), at_rest(model):
            asked = prepare(model, tokens, mask, settings, text_of)
            watched = on_token is not None or draft is not None or guide is not None
            if not watched and needs_host(settings, asked) is None and records(model, asked.new):
                return write_texts(model, asked, settings)
            decoding = begun_decoding(model, asked, settings, draft, guide)
        for step in decoding:
            if on_token is not None:
                on_token(step)
        return decoding.result()
    if on_token is not None:
        raise UserError("beam search has no token before it has them all", where="on_token", fix="use num_beams=1")
    if draft is not None or guide is not None:
        where = "guide" if draft is None else "draft"
        raise UserError(f"beam search takes no {where}", where=where, fix="use num_beams=1")
    with torch.no_grad(), at_rest(model):
        begun = begin(model, prepare(model, tokens, mask, settings, text_of), settings)
        return beam_search(begun.running, begun.logits, begun.ids, begun.real, begun.new, settings, begun.stops)


def stream(
    model: Any,
    tokens: Any,
    mask: Tensor | None = None,
    *,
    settings: Generation | None = None,
    text_of: TextOf | None = None,
    draft: Any = None,
    guide: Guide | Guides | None = None,
) -> Decoding | Speculation:
    """As `generate`, a `Step` at a time: iterate over what comes back, then ask it for `result()`."""
    settings = Generation() if settings is None else settings
    if settings.num_beams > 1:
        raise UserError("beam search has no token before it has them all", where="stream", fix="use num_beams=1")
    with torch.no_grad(), at_rest(model):
        return begun_decoding(model, prepare(model, tokens, mask, settings, text_of), settings, draft, guide)


def begun_decoding(
    model: Any, asked: Asked, settings: Generation, draft: Any, guide: Guide | Guides | None
) -> Decoding | Speculation:
    """Texts about to be written, a token at a time or by proposals."""
    guides = None if guide is None else guide if isinstance(guide, Sequence) else [guide]
    if draft is None and settings.prompt_lookup_num_tokens is None:
        return Decoding(model, begin(model, asked, settings), settings, guides)
    return Speculation(model, asked, settings, draft, guides)


@dataclass
class Begun:
    """Prompts that have been read."""

    running: Running
    ids: Tensor  # (B,P) as they will stand in the result, padding on the left
    real: Tensor | None  # (B,P)
    new: int  # tokens to write at most
    logits: Tensor  # (B,V) of the first of them
    stops: Stops | None


def prepare(model: Any, tokens: Any, mask: Any, settings: Generation, text_of: TextOf | None) -> Asked:
    """Check everything that can be wrong before any compute."""
    spec = check_model(model)
    decoder, device = decoder_of(spec), device_of(model)
    vocab = vocabulary_of(decoder.embed, "the decoder" if isinstance(spec, Seq2Seq) else "the model")
    check_settings(settings, vocab)
    stops = Stops.of(settings.stops, text_of)
    source, source_real = tokens, None
    if isinstance(spec, Seq2Seq):
        source, source_real = check_source(spec, tokens, mask, device)
        start = (
            settings.decoder_start_token_id if settings.decoder_start_token_id is not None else settings.bos_token_id
        )
        if start is None:
            raise UserError("nothing says which token a text begins with", where="Generation",
                            fix="give decoder_start_token_id")  # fmt: skip
        ids = torch.full((batch_of(source), 1), start, device=device)
        real = None
    else:
        given = check_ids(tokens, vocab).to(device=device, dtype=torch.long)
        ids, real, _ = flush_right(given, check_mask(mask, given))
    longest = ids.shape[1] if real is None else int(real.sum(1).max())
    new = tokens_to_write(settings, decoder, ids.shape[1], longest)
    check_room(decoder, longest, new)
    pair = isinstance(spec, Seq2Seq)
    return Asked(ids, real, longest, new, stops, source if pair else None, source_real if pair else None)


def begin(model: Any, asked: Asked, settings: Generation) -> Begun:
    """Read the prompts."""
    ids, real, longest = asked.ids, asked.real, asked.longest
    running: Running
    if records(model, asked.new):
        running = RunningLoop(model, asked, settings)
    elif isinstance(model, Compiled):
        rows = ids.shape[0] * max(settings.num_return_sequences, settings.num_beams)
        running = RunningSheet(model, rows, longest + asked.new, settings.prefill_chunk_size)
    else:
        limit = longest + asked.new if settings.cache_implementation == "static" else None
        state, kind = model.state(ids.shape[0], limit), RunningModel
        if isinstance(model.spec, Seq2Seq):
            kind = RunningPair
            state.memory, state.memory_mask = model.encode(asked.source, asked.source_real), asked.source_real
        running = kind(model, state, settings.prefill_chunk_size)
    columns = slice(ids.shape[1] - longest, None)  # columns that are padding in every row cost nothing
    logits = running.start(ids[:, columns], None if real is None else real[:, columns])
    return Begun(running, ids, real, asked.new, logits, asked.stops)


def check_settings(settings: Generation, vocab: int) -> None:
    """Token ids of the settings against the vocabulary."""
    named = {
        "decoder_start_token_id": settings.decoder_start_token_id,
        "forced_bos_token_id": settings.forced_bos_token_id,
    }
    for name, one in [*named.items(), *(("forced_eos_token_id", one) for one in settings.forced_ends),
                      *(("suppress_tokens", one) for one in settings.suppress_tokens)]:  # fmt: skip
        if one is not None and one >= vocab:
            raise UserError(f"{name} holds the id {one}", where="Generation", fix=f"ids go from 0 to {vocab - 1}")
    for one in settings.ends:
        if one >= vocab:
            log.warning("eos_token_id %d is beyond the %d ids of the model and will never come", one, vocab)
    if settings.logprobs > vocab:
        raise UserError(f"logprobs is {settings.logprobs}", where="Generation", fix=f"there are {vocab} tokens")


def check_source(spec: Seq2Seq, source: Any, mask: Any, device: torch.device) -> tuple[Any, Tensor | None]:
    """What the encoder reads; ids are checked, other inputs (pixels, say) the encoder checks itself."""
    if spec.encoder.embed.vocabulary is None:
        return source, mask
    source = check_ids(source, spec.encoder.embed.vocabulary[0], "source tokens").to(device=device, dtype=torch.long)
    real = check_mask(mask, source, "source mask")
    limit, longest = spec.encoder.embed.limit, source.shape[1] if real is None else int(real.sum(1).max())
    if limit is not None and longest > limit:
        raise UserError(f"a source of {longest} tokens does not fit {limit} learned positions",
                        fix=f"shorten it to {limit}")  # fmt: skip
    return source, real


def batch_of(source: Any) -> int:
    return (source[0] if isinstance(source, tuple) else source).shape[0]


def tokens_to_write(settings: Generation, decoder: Model, columns: int, longest: int) -> int:
    """How many tokens there may be: as asked, else twenty, or what room learned positions leave."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    if settings.max_length is not None:
        if settings.max_length <= columns:
            raise UserError(f"max_length {settings.max_length} leaves no room after {columns} tokens of the prompt",
                            where="Generation", fix="use max_new_tokens")  # fmt: skip
        return settings.max_length - columns
    limit, _ = room(decoder)
    return DEFAULT_NEW_TOKENS if limit is None else max(1, min(DEFAULT_NEW_TOKENS, limit - longest))


class Decoding:
    """One call of `generate` in progress: iterate for a `Step` a token, then ask for the `result()`."""

    def __init__(self, model: Any, begun: Begun, settings: Generation, guides: Guides | None = None) -> None:
        self.model, self.settings, self.running, self.stops = model, settings, begun.running, begun.stops
        self.running.repeat(settings.num_return_sequences)
        self.logits = begun.logits.repeat_interleave(settings.num_return_sequences, 0)
        self.choice = Choice(settings, begun.ids, begun.real, begun.new, self.logits.shape[1], guides)
        self.ids, self.prompt, self.limit, self.count = self.choice.ids, self.choice.prompt, self.choice.limit, 0
        device = self.ids.device
        self.ends = torch.tensor(settings.ends, dtype=torch.long, device=device)
        self.by_eos = torch.zeros(len(self.ids), dtype=torch.bool, device=device)
        self.by_stop = torch.zeros_like(self.by_eos)
        self.steps: list[Step] = []
        self.last = self.ids[:, self.prompt - 1]  # what was chosen last, to be read before the next choice
        self.over = False

    def __iter__(self) -> Iterator[Step]:
        while not self.over:
            yield self.advance()

    @torch.no_grad()
    def advance(self) -> Step:
        """The next token of every row."""
        if self.count:
            with at_rest(self.model):
                self.logits = self.running.step(self.last)
        raw = self.logits.to(torch.promote_types(self.logits.dtype, torch.float32))
        live = ~(self.by_eos | self.by_stop)
        guides = self.guides(live)
        chosen = self.choice.choose(raw, slice(None), self.count, guides)
        norm = raw.logsumexp(-1)
        step = Step(
            tokens=chosen.where(live, self.settings.padding),
            logprobs=(raw.gather(1, chosen[:, None])[:, 0] - norm).where(live, 0.0),
            live=live,
        )
        if self.settings.logprobs:
            best = raw.topk(self.settings.logprobs)
            step = replace(step, top_tokens=best.indices, top_logprobs=best.values - norm[:, None])
        self.ids[:, self.prompt + self.count] = step.tokens
        self.count += 1
        self.steps.append(step)
        # A row that has ended goes on with token 0, whatever its padding is: the padding id may be no token at all.
        self.last = chosen.where(live, 0)
        self.over = self.count == self.limit
        if len(self.ends):
            self.by_eos |= live & is_one_of(chosen, self.ends)
        if self.stops is not None:
            self.by_stop |= (
                live & ~self.by_eos & self.stops.end(self.ids[:, self.prompt : self.prompt + self.count], live)
            )
        if guides is not None:
            self.by_stop |= live & ~self.by_eos & follow(guides, chosen)
        if len(self.ends) or self.stops is not None or guides is not None:
            self.over = self.over or bool((self.by_eos | self.by_stop).all())
        return step

    def guides(self, live: Tensor) -> list[Guide | None] | None:
        """Those of rows that have not ended."""
        if self.choice.guides is None:
            return None
        return [guide if on else None for guide, on in zip(self.choice.guides, live.tolist(), strict=True)]

    def result(self) -> Generated:
        """The texts as far as they have come."""
        return generated(self.ids, self.prompt, self.steps, reasons_of(self.by_eos, self.by_stop))


def follow(guides: Guides, chosen: Tensor) -> Tensor:
    """Tell the guides what was chosen (R,); which texts may not go on."""
    over = []
    for guide, token in zip(guides, chosen.tolist(), strict=True):
        if guide is not None:
            guide.accept(token)
        over.append(guide is not None and guide.over)
    return torch.tensor(over, dtype=torch.bool, device=chosen.device)
