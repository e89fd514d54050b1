"""The eager forward pass of a decoder or encoder-decoder in two parts: hidden states, then logits of some of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.model import ModelModule, Seq2SeqModule
from anyformer.core.state import State
from anyformer.core.static_cache import StaticCache

LanguageModel = ModelModule | Seq2SeqModule  # with a causal decoder and a language-model head


@dataclass(frozen=True, eq=False)
class EncoderOutput:
    """The encoder's output for cross-attention: hidden states (B,S,D) and padding mask (B,S)."""

    hidden: Tensor
    mask: Tensor | None = None


def encode(model: LanguageModel, source: Sequence[int] | EncoderOutput) -> EncoderOutput:
    """The encoder's output for one source of tokens; an already encoded one is returned unchanged."""
    if isinstance(source, EncoderOutput):
        return source
    assert isinstance(model, Seq2SeqModule)
    return EncoderOutput(model.encode(torch.tensor([list(source)], device=device_of(model))))


def hidden_states(
    model: LanguageModel,
    tokens: Tensor,
    mask: Tensor | None,
    state: State | None = None,
    source: EncoderOutput | None = None,
) -> Tensor:
    """The decoder's output before its head, (B,T,D); logits are computed separately, since few of a prompt are needed.

    An encoder-decoder attends to `source`, or to the encoder's output in the state.
    """
    if isinstance(model, Seq2SeqModule):
        memory, memory_mask = (None, None) if state is None else (state.memory, state.memory_mask)
        if source is not None:
            memory, memory_mask = source.hidden, source.mask
        out = model.decoder(
            tokens, mask=mask, memory=memory, memory_mask=memory_mask, state=state, table=model.shared_table()
        )
        return out.hidden
    context = model.embed.layout(tokens, mask=mask, state=state)
    x = model.embed(tokens, context=context)
    hidden, _ = model.stack(x, context, None if state is None else state.layers)
    return hidden


def compute_logits(model: LanguageModel, hidden: Tensor) -> Tensor:
    """Logits (...,V) of the tokens that follow hidden states (...,D)."""
    table = model.shared_table() if isinstance(model, Seq2SeqModule) else model.table()
    if isinstance(model, Seq2SeqModule) and table is None:
        table = model.decoder.table()
    assert model.head is not None
    return model.head(hidden, None, table).logits


def decoder_blocks(model: LanguageModel) -> list[Any]:
    """The decoder's blocks in execution order; a shared block occurs several times."""
    stack: Any = (model.decoder if isinstance(model, Seq2SeqModule) else model).stack
    return [stack.blocks[which] for which in stack.order]


def static_caches(model: LanguageModel, rows: int, columns: int) -> list[StaticCache]:
    """An empty static cache for every layer of the decoder."""
    device, dtype = device_of(model), dtype_of(model)
    return [block.mixer.static_cache(rows, columns, device, dtype) for block in decoder_blocks(model)]


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's weights; CPU for a model without weights."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The floating dtype of the weights and KV cache; integer weights are int8-quantised."""
    return next(weight.dtype for weight in model.parameters() if weight.is_floating_point())


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode without autocast: text is decoded in the precision of the weights.

    KV caches are allocated in that precision, and a captured step would keep the weights as autocast had cast them at
    capture. For decoding in half precision, cast the model: `model.to(torch.bfloat16)`.
    """
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.autocast(device_of(model).type, enabled=False):
            yield
    finally:
        if was_training:
            model.train()
