"""Draft tokens for speculative decoding: from the sequence itself, or by a smaller model. Verified in
speculative.py."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.cache.compiled_store import CompiledStore
from anyformer.generation.cache.open_store import open_speculation_store
from anyformer.generation.cache.store import SequenceStore, extend_in_chunks
from anyformer.generation.config import Generation
from anyformer.generation.grammar import Grammar
from anyformer.generation.prompts import GenerationInputs, check_context_length, check_model, decoder_of, vocabulary_of
from anyformer.generation.runners.compiled import Compiled, compiled
from anyformer.generation.runners.cpu_step import is_plain
from anyformer.generation.runners.eager import device_of, eval_mode
from anyformer.generation.sampler import Sampler
from anyformer.kernels.quantise import is_quantised, quantise

LONGEST_MATCH = 3  # longest n-gram of newest tokens to look up, then shorter ones
CHUNK = 512  # default tokens per prefill pass: prompts of different lengths are padded


class Proposer(Protocol):
    """Proposes draft tokens for sequences."""

    def propose(self, sequences: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        """At most `room` draft tokens for each sequence, given with its prompt."""


def make_proposer(
    model: Any,
    draft: Any,
    inputs: GenerationInputs,
    sampler: Sampler,
    settings: Generation,
    store: SequenceStore | None = None,
) -> Proposer:
    """The proposer for a call; a draft of the model's shape shares its `store`, if given."""
    if draft is None:
        sources = quotable_sources(model, inputs, settings.num_return_sequences)
        return Lookup(sources, settings.prompt_lookup_num_tokens or 1)
    if settings.prompt_lookup_num_tokens:
        raise UserError("proposals come from a draft or from the prompt", where="draft",
                        fix="leave out one of draft and prompt_lookup_num_tokens")  # fmt: skip
    if isinstance(draft, str):
        raise UserError(f"unknown draft {draft!r}", where="draft",
                        fix='give a model, or "int8" for the model itself in 8 bits')  # fmt: skip
    return Draft(model, draft, inputs, sampler, settings, store)


class Lookup:
    """Prompt lookup: find the newest tokens in the earlier text, and propose what followed there.

    The longest match wins, and of several the latest. A match that reaches the end of the text wraps around, so that
    a repeating text is continued indefinitely.
    """

    def __init__(self, before: Sequence[list[int]], most: int) -> None:
        self.before, self.most = before, most  # further text to look in: the source
        self.followed: list[dict[tuple[int, ...], int]] = [{} for _ in before]  # n-gram -> index of what followed it
        self.known = [0] * len(before)

    def propose(self, sequences: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        found = {}
        for row, text in sequences.items():
            whole = self.before[row] + text if self.before[row] else text
            found[row] = self.guess(row, whole, min(self.most, room[row]))
        return found

    def guess(self, row: int, text: list[int], most: int) -> list[int]:
        """The next tokens if the sequence repeats itself."""
        followed = self.followed[row]
        for end in range(max(1, self.known[row]), len(text)):  # n-grams that end before the newest token
            for size in range(1, min(LONGEST_MATCH, end) + 1):
                followed[tuple(text[end - size : end])] = end
        self.known[row] = max(self.known[row], len(text))
        for size in range(min(LONGEST_MATCH, len(text)), 0, -1):
            start = followed.get(tuple(text[-size:]))
            if start is not None:
                period = len(text) - start
                return [text[start + at % period] for at in range(most)]
        return []


class Draft:
    """A draft model decodes a few tokens ahead, with the same processors and the same noise."""

    def __init__(
        self,
        model: Any,
        draft: Any,
        inputs: GenerationInputs,
        sampler: Sampler,
        settings: Generation,
        store: SequenceStore | None = None,
    ) -> None:
        check_draft(model, draft)
        check_context_length(decoder_of(draft.spec), inputs.longest, inputs.new)
        self.model, self.sampler, self.settings, self.is_shared = draft, sampler, settings, False
        with eval_mode(draft):
            if isinstance(store, CompiledStore) and isinstance(draft, Compiled):
                self.store: SequenceStore = store.share_with(draft)
                self.is_shared = True
            else:
                self.store = add_sequences(draft, inputs, settings.num_return_sequences)

    @torch.no_grad()
    def propose(self, sequences: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        with eval_mode(self.model):
            return self.decode_ahead(sequences, room)

    def decode_ahead(self, sequences: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        """The draft's tokens, one per pass for all sequences."""
        found: dict[int, list[int]] = {row: [] for row in sequences}
        most = {row: min(self.settings.num_assistant_tokens, room[row]) for row in sequences}
        guides = {row: self.fork_guide(row) for row in sequences}
        for row, tokens in sequences.items():
            # All but the newest token are cached; rejected draft tokens are dropped.
            known = len(tokens) - 1
            self.store.truncate(row, known if self.is_shared else min(self.store.length(row), known))
        pieces = {row: tokens[self.store.length(row) :] for row, tokens in sequences.items() if most[row] > 0}
        while pieces:
            last = extend_in_chunks(self.store, pieces, self.settings.prefill_chunk_size or CHUNK)
            pieces = {}
            for row, hidden in last.items():
                count = self.sampler.limit - 1 - room[row] + len(found[row])  # tokens generated before this one
                token = self.sample(row, hidden, count, guides[row])
                if token is None:
                    continue
                found[row].append(token)
                if len(found[row]) < most[row] and token not in self.settings.ends:
                    pieces[row] = [token]
        return found

    def sample(self, row: int, hidden: Tensor, count: int, guide: Grammar | None) -> int | None:
        """The draft's next token after `count` of them; None if a guide allows none."""
        raw = self.store.logits(hidden[-1:])
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        try:
            token = int(self.sampler.sample(raw, slice(row, row + 1), count, None if guide is None else [guide]))
            if guide is not None:
                guide.accept(token)
        except UserError:
            return None
        self.sampler.ids[row, self.sampler.prompt + count] = token  # for processors; overwritten if rejected
        return token

    def fork_guide(self, row: int) -> Grammar | None:
        """A scratch copy of a row's guide; guides that cannot be copied are only used by the model."""
        guide = None if self.sampler.guides is None else self.sampler.guides[row]
        return guide.fork() if isinstance(guide, Grammar) else None


def check_draft(model: Any, draft: Any) -> None:
    """Check that a draft has the model's vocabulary and device."""
    spec, target = check_model(draft), model.spec
    if isinstance(spec, Seq2Seq) != isinstance(target, Seq2Seq):
        raise UserError("one of model and draft is an encoder-decoder", where="draft", fix="use two of one kind")
    check_vocabulary(vocabulary_of(decoder_of(target).embed, "the model"),
                     vocabulary_of(decoder_of(spec).embed, "the draft"))  # fmt: skip
    if isinstance(spec, Seq2Seq) and isinstance(target, Seq2Seq):
        check_vocabulary(*(pair.encoder.embed.vocabulary for pair in (target, spec)))
    if device_of(draft) != device_of(model):
        raise UserError(f"the draft is on {device_of(draft)}, the model on {device_of(model)}", where="draft",
                        fix="move one of them")  # fmt: skip


def check_vocabulary(model: Any, draft: Any) -> None:
    if model != draft:
        raise UserError(f"the draft knows {draft} tokens and the model {model}", where="draft",
                        fix="use a draft with the same vocabulary")  # fmt: skip


def quotable_sources(model: Any, inputs: GenerationInputs, copies: int) -> list[list[int]]:
    """Extra text for prompt lookup: the source, if it uses the same vocabulary."""
    spec, count = model.spec, len(inputs.ids)
    same = isinstance(spec, Seq2Seq) and spec.encoder.embed.vocabulary == spec.decoder.embed.vocabulary
    if not same or not isinstance(inputs.source, Tensor) or inputs.source.dim() != 2:
        return [[] for _ in range(count * copies)]
    mask = torch.ones_like(inputs.source, dtype=torch.bool) if inputs.source_mask is None else inputs.source_mask
    return [row[kept].tolist() for row, kept in zip(inputs.source, mask, strict=True) for _ in range(copies)]


def add_sequences(model: Any, inputs: GenerationInputs, copies: int) -> SequenceStore:
    """A store with the sequences of a call, numbered from 0; sources are encoded here."""
    store = open_speculation_store(model, len(inputs.ids) * copies, inputs.longest + inputs.new)
    prompts = inputs.prompts
    sources = inputs.encode_sources(model) if isinstance(model.spec, Seq2Seq) else [None] * len(prompts)
    for prompt, source in zip(prompts, sources, strict=True):
        for _ in range(copies):
            store.add(prompt, source=source)
    return store


Mark = list[tuple[int, int]]
DRAFTS: WeakKeyDictionary[Any, tuple[Mark, Any]] = WeakKeyDictionary()  # draft by model, with its weights' versions


def make_int8_draft(model: Any) -> tuple[Any, Any]:
    """The model and its int8-quantised copy as a draft, which usually agrees with it.

    Both are compiled if that takes only seconds or the model is compiled already.

    The draft is cached with the model and rebuilt when the weights change. It takes a quarter of the model's memory;
    everything that is not quantised, such as norms, is shared.
    """
    inner = model.model if isinstance(model, Compiled) else model
    mark = [(weight.data_ptr(), weight._version) for weight in inner.parameters()]
    mark += [(buffer.data_ptr(), buffer._version) for buffer in inner.buffers()]
    known = DRAFTS.get(model)
    if known is None or known[0] != mark:
        if is_quantised(inner):
            raise UserError("the model is in 8 bits itself", where="draft", fix="leave draft out")
        shared = {id(one): one for one in (*inner.parameters(), *inner.buffers())}
        draft = quantise(copy.deepcopy(inner, shared))
        known = DRAFTS[model] = mark, compiled(draft) if isinstance(model, Compiled) or is_plain(draft) else draft
    return compiled(model) if isinstance(known[1], Compiled) else model, known[1]
