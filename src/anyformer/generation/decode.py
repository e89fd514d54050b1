"""Generation: one token a step, greedy or sampled, for decoders and encoder-decoders; beam search is in beam.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Model, Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.beam import beam_search
from anyformer.generation.cache.open_store import open_batch_store
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.config import DEFAULT_NEW_TOKENS, Generation, no_start_token
from anyformer.generation.guide import Guide
from anyformer.generation.prompts import (
    GenerationInputs,
    check_context_length,
    check_ids,
    check_mask,
    check_model,
    decoder_of,
    flush_right,
    max_positions,
    reads_prompt_whole,
    vocabulary_of,
)
from anyformer.generation.result import Generated, Step, collect_steps, find_reasons, is_one_of
from anyformer.generation.runners.eager import device_of, eval_mode
from anyformer.generation.runners.on_device import generate_on_device, needs_host, uses_graphs
from anyformer.generation.sampler import Guides, Sampler
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
    """Generate continuations of prompts (B,T) or, for an encoder-decoder, outputs for sources (B,S).

    `mask` is a padding mask, on either side. `text_of` turns a list of ids into text and is needed for `stop_strings`.
    `on_token` is called with every `Step`, except under beam search, which has no result before the end. `draft` is a
    smaller model with the same vocabulary, or "int8" for this one quantised, for speculative decoding: the output stays
    the same. `guide` constrains the output (see grammar.py): one guide for one output, or a list with one for each.

    >>> from anyformer import preset
    >>> spec = preset("gpt2-tiny")
    >>> generate(spec.build(seed=0), torch.tensor([[1, 2, 3]]), settings=Generation(max_new_tokens=4)).ids.shape
    torch.Size([1, 7])
    """
    settings = Generation() if settings is None else settings
    if settings.num_beams > 1:
        check_beams(on_token, draft, guide)
    with torch.no_grad(), eval_mode(model):
        inputs = prepare_inputs(model, tokens, mask, settings, text_of)
        if settings.num_beams > 1:
            store, logits = prefill(model, inputs, settings)
            return beam_search(store, logits, inputs, settings)
        watched = on_token is not None or draft is not None or guide is not None
        if not watched and needs_host(settings, inputs) is None and uses_graphs(model, inputs.new):
            return generate_on_device(model, inputs, settings)
        decoding = start_decoding(model, inputs, settings, draft, guide)
    for step in decoding:
        if on_token is not None:
            on_token(step)
    return decoding.result()


def check_beams(on_token: object, draft: object, guide: object) -> None:
    """Reject arguments that beam search does not support."""
    if on_token is not None:
        raise UserError("beam search has no token before it has them all", where="on_token", fix="use num_beams=1")
    if draft is not None or guide is not None:
        where = "guide" if draft is None else "draft"
        raise UserError(f"beam search takes no {where}", where=where, fix="use num_beams=1")


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
    """As `generate`, one `Step` at a time: iterate over the returned object, then call its `result()`."""
    settings = Generation() if settings is None else settings
    if settings.num_beams > 1:
        raise UserError("beam search has no token before it has them all", where="stream", fix="use num_beams=1")
    with torch.no_grad(), eval_mode(model):
        inputs = prepare_inputs(model, tokens, mask, settings, text_of)
        return start_decoding(model, inputs, settings, draft, guide)


def start_decoding(
    model: Any, inputs: GenerationInputs, settings: Generation, draft: Any, guide: Guide | Guides | None
) -> Decoding | Speculation:
    """Start decoding, with speculative decoding if requested."""
    guides = None if guide is None else guide if isinstance(guide, Sequence) else [guide]
    if draft is None and settings.prompt_lookup_num_tokens is None:
        return Decoding(model, *prefill(model, inputs, settings), inputs, settings, guides)
    if reads_prompt_whole(model.spec):
        raise UserError("proposals are verified beside the end of a prompt, and a prefix LM must see it whole",
                        where="draft", fix="leave out draft and prompt_lookup_num_tokens")  # fmt: skip
    return Speculation(model, inputs, settings, draft, guides)


def prepare_inputs(
    model: Any, tokens: Any, mask: Any, settings: Generation, text_of: TextOf | None
) -> GenerationInputs:
    """Validate all inputs before any compute."""
    spec = check_model(model)
    decoder, device = decoder_of(spec), device_of(model)
    vocab = vocabulary_of(decoder.embed, "the decoder" if isinstance(spec, Seq2Seq) else "the model")
    check_settings(settings, vocab)
    stops = Stops.of(settings.stops, text_of)
    source, source_mask = tokens, None
    if isinstance(spec, Seq2Seq):
        source, source_mask = check_source(spec, tokens, mask, device)
        start = settings.start_token
        if start is None:
            raise no_start_token("Generation", "give it")
        ids = torch.full((batch_size(source), 1), start, device=device)
        real = None
    else:
        given = check_ids(tokens, vocab).to(device=device, dtype=torch.long)
        ids, real, _ = flush_right(given, check_mask(mask, given))
    longest = ids.shape[1] if real is None else int(real.sum(1).max())
    new = max_new_tokens(settings, decoder, ids.shape[1], longest)
    check_context_length(decoder, longest, new)
    if not isinstance(spec, Seq2Seq):
        return GenerationInputs(ids, real, longest, new, stops)
    return GenerationInputs(ids, real, longest, new, stops, source, source_mask)


def prefill(model: Any, inputs: GenerationInputs, settings: Generation) -> tuple[SequenceStore, Tensor]:
    """Prefill the prompts: returns the store with their KV cache, and the logits (B,V) of the first new tokens."""
    store = open_batch_store(model, inputs, settings)
    prompts = inputs.prompts
    sources = inputs.encode_sources(model) if isinstance(model.spec, Seq2Seq) else [None] * len(prompts)
    numbers = [
        store.add(prompt, source=source).number for prompt, source in zip(prompts, sources, strict=True)
    ]  # fmt: skip
    return store, store.prefill(dict(zip(numbers, prompts, strict=True)))


def check_settings(settings: Generation, vocab: int) -> None:
    """Check the settings' token ids against the vocabulary."""
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


def check_source(spec: Seq2Seq, source: Any, mask: Any, device: torch.device) -> tuple[Any, Any]:
    """Check the encoder's input: token ids here, other inputs (pixels, or several) in the encoder itself."""
    if spec.encoder.embed.vocabulary is None or isinstance(source, tuple):
        return source, mask
    source = check_ids(source, spec.encoder.embed.vocabulary[0], "source tokens").to(device=device, dtype=torch.long)
    real = check_mask(mask, source, "source mask")
    limit, longest = spec.encoder.embed.limit, source.shape[1] if real is None else int(real.sum(1).max())
    if limit is not None and longest > limit:
        raise UserError(f"a source of {longest} tokens does not fit {limit} learned positions",
                        fix=f"shorten it to {limit}")  # fmt: skip
    return source, real


def batch_size(source: Any) -> int:
    return (source[0] if isinstance(source, tuple) else source).shape[0]


def max_new_tokens(settings: Generation, decoder: Model, columns: int, longest: int) -> int:
    """Maximal number of new tokens: as requested, else twenty, or fewer if learned positions leave less room."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    if settings.max_length is not None:
        if settings.max_length <= columns:
            raise UserError(f"max_length {settings.max_length} leaves no room after {columns} tokens of the prompt",
                            where="Generation", fix="use max_new_tokens")  # fmt: skip
        return settings.max_length - columns
    limit, _ = max_positions(decoder)
    return DEFAULT_NEW_TOKENS if limit is None else max(1, min(DEFAULT_NEW_TOKENS, limit - longest))


class Decoding:
    """One call of `generate` in progress: iterate for one `Step` per token, then call `result()`."""

    def __init__(
        self, model: Any, store: SequenceStore, logits: Tensor, inputs: GenerationInputs, settings: Generation,
        guides: Guides | None = None,
    ) -> None:  # fmt: skip
        self.model, self.store, self.settings, self.stops = model, store, settings, inputs.stops
        self.sequences = store.fork(settings.num_return_sequences)
        self.logits = logits.repeat_interleave(settings.num_return_sequences, 0)
        self.sampler = Sampler(settings, inputs.ids, inputs.mask, inputs.new, self.logits.shape[1], guides)
        self.ids, self.prompt, self.limit, self.count = self.sampler.ids, self.sampler.prompt, self.sampler.limit, 0
        device = self.ids.device
        self.ends = torch.tensor(settings.ends, dtype=torch.long, device=device)
        self.by_eos = torch.zeros(len(self.ids), dtype=torch.bool, device=device)
        self.by_stop = torch.zeros_like(self.by_eos)
        self.steps: list[Step] = []
        self.last = self.ids[:, self.prompt - 1]  # sampled last, not run yet
        self.finished = False

    def __iter__(self) -> Iterator[Step]:
        while not self.finished:
            yield self.advance()

    @torch.no_grad()
    def advance(self) -> Step:
        """Decode the next token of every sequence."""
        if self.count:
            with eval_mode(self.model):
                self.logits = self.store.step(self.sequences, self.last)
        raw = self.logits.to(torch.promote_types(self.logits.dtype, torch.float32))
        live = ~(self.by_eos | self.by_stop)
        guides = self.live_guides(live)
        sampled = self.sampler.sample(raw, slice(None), self.count, guides)
        norm = raw.logsumexp(-1)
        step = Step(
            tokens=sampled.where(live, self.settings.padding),
            logprobs=(raw.gather(1, sampled[:, None])[:, 0] - norm).where(live, 0.0),
            live=live,
        )
        if self.settings.logprobs:
            best = raw.topk(self.settings.logprobs)
            step = replace(step, top_tokens=best.indices, top_logprobs=best.values - norm[:, None])
        self.ids[:, self.prompt + self.count] = step.tokens
        self.count += 1
        self.steps.append(step)
        # A finished sequence continues with token 0: the padding id may be outside the vocabulary.
        self.last = sampled.where(live, 0)
        self.finished = self.count == self.limit
        if len(self.ends):
            self.by_eos |= live & is_one_of(sampled, self.ends)
        if self.stops is not None:
            new = self.ids[:, self.prompt : self.prompt + self.count]
            self.by_stop |= live & ~self.by_eos & self.stops.end(new, live)
        if guides is not None:
            self.by_stop |= live & ~self.by_eos & advance_guides(guides, sampled)
        if len(self.ends) or self.stops is not None or guides is not None:
            self.finished = self.finished or bool((self.by_eos | self.by_stop).all())
        return step

    def live_guides(self, live: Tensor) -> list[Guide | None] | None:
        """The guides of sequences that have not finished."""
        if self.sampler.guides is None:
            return None
        return [guide if on else None for guide, on in zip(self.sampler.guides, live.tolist(), strict=True)]

    def result(self) -> Generated:
        """The sequences so far."""
        return collect_steps(self.ids, self.prompt, self.steps, find_reasons(self.by_eos, self.by_stop))


def advance_guides(guides: Guides, sampled: Tensor) -> Tensor:
    """Advance the guides by the sampled tokens (R,); returns which sequences must end."""
    over = []
    for guide, token in zip(guides, sampled.tolist(), strict=True):
        if guide is not None:
            guide.accept(token)
        over.append(guide is not None and guide.over)
    return torch.tensor(over, dtype=torch.bool, device=sampled.device)
