"""Input validation: ids and masks are checked before any compute, and padding is moved to the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.errors import UserError
from anyformer.generation.runners.eager import EncoderOutput
from anyformer.generation.stops import Stops
from anyformer.heads.lm import LM
from anyformer.positions.rope import Rope
from anyformer.slots import Embed


@dataclass(frozen=True)
class GenerationInputs:
    """The validated inputs of `generate`: prompts, or sources with the start tokens of their outputs."""

    ids: Tensor  # (B,P) as they will be in the result, padding on the left
    mask: Tensor | None  # (B,P) False for padding; None where there is none
    longest: int  # tokens of the longest prompt
    new: int  # maximal number of new tokens
    stops: Stops | None = None
    source: Any = None  # the encoder's input
    source_mask: Tensor | tuple[Tensor | None, ...] | None = None  # of several inputs, one each

    @property
    def prompts(self) -> list[list[int]]:
        """The tokens of each prompt, without padding."""
        if self.mask is None:
            return self.ids.tolist()
        return [row[kept].tolist() for row, kept in zip(self.ids, self.mask, strict=True)]

    def encode_sources(self, model: Any) -> list[EncoderOutput]:
        """The encoder's output for each source, from one pass over all of them."""
        read = model.read(self.source, self.source_mask)
        seen = read.context.mask
        masks = [None] * len(read.hidden) if seen is None else seen.split(1)
        return [EncoderOutput(one, mask) for one, mask in zip(read.hidden.split(1), masks, strict=True)]


def check_ids(tokens: Any, vocab: int, name: str = "tokens") -> Tensor:
    """Check ids (B,T) against the vocabulary; out-of-range ids fail without a clear message on a GPU."""
    if not isinstance(tokens, Tensor):
        raise UserError(f"{name} are {type(tokens).__name__}", fix="give a tensor of ids (B, T), whole numbers")
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise UserError(f"{name} have shape {tuple(tokens.shape)} and type {tokens.dtype}",
                        fix="expected ids (B, T), whole numbers")  # fmt: skip
    if tokens.shape[0] < 1 or tokens.shape[1] < 1:
        raise UserError(f"{name} have shape {tuple(tokens.shape)}", fix="give at least one token a row")
    low, high = (int(edge) for edge in tokens.aminmax())
    if low < 0 or high >= vocab:
        raise UserError(f"{name} hold the id {low if low < 0 else high}", fix=f"ids go from 0 to {vocab - 1}")
    return tokens


def check_mask(mask: Any, tokens: Tensor, name: str = "mask") -> Tensor | None:
    """The padding mask (B,T) as bool, or None if there is no padding."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape or mask.is_floating_point():
        got = f"shape {tuple(mask.shape)} and type {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise UserError(f"{name} is {got}" if not isinstance(mask, Tensor) else f"{name} has {got}",
                        fix=f"expected {tuple(tokens.shape)}, bool (True = a real token) or whole numbers")  # fmt: skip
    real = (mask != 0).to(tokens.device)
    empty = (~real.any(1)).nonzero()
    if len(empty):
        raise UserError(f"row {int(empty[0])} of {name} hides every token", fix="give each row at least one token")
    return None if bool(real.all()) else real


def flush_right(tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Left-pad: move every row's real tokens to its end, so that the newest keys of a row are its last tokens.

    Returns the tokens, the padding mask, and the origin of each column (None if nothing moved).
    """
    if real is None or bool((real[:, :-1] <= real[:, 1:]).all()):  # padding is on the left already
        return tokens, real, None
    order = real.to(torch.uint8).argsort(dim=1, stable=True)
    return tokens.gather(1, order), real.gather(1, order), order


def vocabulary_of(embed: Embed, where: str) -> int:
    """The vocabulary size of an embedding."""
    if embed.vocabulary is None:
        raise UserError(f"{type(embed).__name__} takes no token ids", where=where, fix="decode models of text")
    return embed.vocabulary[0]


def decoder_of(spec: Model | Seq2Seq) -> Model:
    """The decoder of a model."""
    return spec.decoder if isinstance(spec, Seq2Seq) else spec


def reads_prompt_whole(spec: Model | Seq2Seq) -> bool:
    """Whether attention within a prompt is bidirectional (prefix LM): it must then be prefilled in one pass."""
    return decoder_of(spec).stack.causal == "prefix_lm"


def check_model(model: Any) -> Model | Seq2Seq:
    """The spec of a model that can generate; otherwise an error that says what is missing."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, Model | Seq2Seq):
        raise UserError(f"{type(model).__name__} is not a built Model or Seq2Seq", fix="give what spec.build() returns")
    if not isinstance(spec.head, LM):
        raise UserError("the model has no language-model head", fix="give it head=LM()")
    if not decoder_of(spec).stack.causal:
        raise UserError("only a causal stack can be decoded step by step", fix="use Stack(causal=True)")
    return spec


def max_positions(spec: Model) -> tuple[int | None, str]:
    """A decoder's maximal number of positions and the reason for the limit; None if unlimited."""
    limit, why = spec.embed.limit, "learned positions"
    for block in spec.stack.layers:
        scaling = block.relative.scaling if isinstance(block.relative, Rope) else None
        if scaling is not None and scaling.trained is not None and (limit is None or scaling.trained < limit):
            limit, why = scaling.trained, "tokens, after which DynamicScaling would turn the keys in the cache"
    return limit, why


def supports_static_cache(model: Any) -> bool:
    """Whether every layer of a decoder can keep its keys and values in a static cache."""
    stack = decoder_of(model.spec).stack
    # Static caches support causal masks only.
    return (
        isinstance(stack, Stack)
        and not reads_prompt_whole(model.spec)
        and all(
            block.mixer.has_static_cache
            and not block.mixer.looks_at_memory
            and (block.cross is None or block.cross.has_static_cache)
            for block in stack.layers
        )
    )


def check_context_length(spec: Model, prompt: int, new: int) -> None:
    """Reject requests whose prompt and new tokens exceed the model's positions."""
    limit, why = max_positions(spec)
    if limit is None or prompt + new <= limit:
        return
    if prompt >= limit:
        raise UserError(f"the prompt's {prompt} tokens leave no room among {limit} {why}",
                        fix=f"shorten it to at most {limit - 1}")  # fmt: skip
    raise UserError(f"{prompt} tokens of the prompt and max_new_tokens {new} do not fit {limit} {why}",
                    fix=f"use max_new_tokens={limit - prompt}")  # fmt: skip
