"""Choice of store: for `generate` and beam search, for speculative decoding, and for the serving engine."""

from __future__ import annotations

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.cache.compiled_store import CompiledStore
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.graph_store import GraphStore
from anyformer.generation.cache.static_store import StaticStore
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.config import Generation
from anyformer.generation.prompts import GenerationInputs, decoder_of, reads_prompt_whole, supports_static_cache
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.eager import LanguageModel
from anyformer.generation.runners.on_device import uses_graphs


def open_batch_store(model: LanguageModel | Compiled, inputs: GenerationInputs, settings: Generation) -> SequenceStore:
    """A store for the prompts of one call, with their copies or beams: all start and step together."""
    capacity = len(inputs.ids) * max(settings.num_return_sequences, settings.num_beams)
    limit, chunk = inputs.longest + inputs.new, None if reads_prompt_whole(model.spec) else settings.prefill_chunk_size
    if uses_graphs(model, inputs.new):
        return GraphStore(model, capacity=capacity, limit=limit, padding=settings.padding, prefill_chunk=chunk)
    if isinstance(model, Compiled):
        return CompiledStore(model, capacity=capacity, limit=limit, prefill_chunk=chunk)
    return EagerStore(
        model, capacity=capacity, limit=limit, prefix_cache=False, prefill_chunk=chunk,
        preallocate=settings.cache_implementation == "static",
    )  # fmt: skip


def open_speculation_store(model: LanguageModel | Compiled, count: int, limit: int) -> SequenceStore:
    """A store for speculative decoding: sequences grow and are truncated independently."""
    if isinstance(model, Compiled):
        return CompiledStore(model, capacity=count, limit=limit)
    if count > 1 and not isinstance(model.spec, Seq2Seq) and supports_static_cache(model):
        return StaticStore(model, capacity=count, limit=limit, recorded=False)
    return EagerStore(model, capacity=count, limit=limit, batched=False, prefix_cache=False, rolling=False)


def open_serving_store(
    model: LanguageModel, *, capacity: int = 8, limit: int | None = None, strict: bool = False
) -> StaticStore | EagerStore:
    """A store for continuous batching: a static cache if every layer supports one, else states joined into a batch.

    With a static cache nothing is copied when sequences come and go, and a prompt can reuse any prefix it shares with
    an
    earlier one; but only attention can ignore stale entries by masking. A recurrence or a long filter has no columns to
    mask, so their states are joined and padded, which works for every causal part. `strict` (bit-exact results
    independent of neighbours) then runs each sequence by itself; so it does if the shapes of a feed's matmuls depend on
    other tokens (`Feed.exact`).
    """
    if reads_prompt_whole(model.spec):
        raise UserError("prompts of many requests are prefilled in pieces, and a prefix LM must see each whole",
                        where="serve", fix="use generate, or serve a model with causal=True")  # fmt: skip
    layers = decoder_of(model.spec).stack.layers
    exact = all(layer.feed is None or layer.feed.exact for layer in layers)
    if supports_static_cache(model) and (exact or not strict):
        return StaticStore(model, capacity=capacity, limit=limit, strict=strict)
    return EagerStore(model, capacity=capacity, limit=limit, batched=not strict, prefix_cache=not strict)
