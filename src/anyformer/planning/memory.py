"""Memory: weights, gradients, optimizer state, activations, and the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anyformer.core.loss import CHUNK
from anyformer.core.model import Model, Seq2Seq
from anyformer.heads.lm import LM
from anyformer.planning.costs import ModelCosts, decodes
from anyformer.planning.devices import DeviceCeilings
from anyformer.planning.parameters import ParameterCount
from anyformer.slots import HeadSizes, Network

FUSED_CHUNK = 2**29  # logits in memory at once in the fused loss of a GPU (kernels/linear_loss.py)
PLAIN_COPIES = 3  # copies of a chunk of logits in the plain loss: as computed, in fp32, and the gradient


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one device in training with AdamW; half-precision weights have an fp32 master copy."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    recomputed: int  # activations with recomputation of every layer in the backward pass
    loss: int  # a chunk of logits

    @property
    def peak(self) -> int:
        """Before the backward pass there are all activations and no gradients; after it, the other way round."""
        return self.weights + self.optimizer + max(self.activations + self.loss, self.gradients)

    @property
    def peak_recomputed(self) -> int:
        """The same with `Stack(recompute=True)`."""
        return self.weights + self.optimizer + max(self.recomputed + self.loss, self.gradients)


def training_memory(
    spec: Network, count: ParameterCount, costs: ModelCosts, tokens: int, dtype: torch.dtype, device: DeviceCeilings
) -> TrainingMemory:  # fmt: skip
    """Memory of training a batch on one device."""
    narrow = dtype.itemsize < 4
    weights = count.total * (dtype.itemsize + (4 if narrow else 0))
    saved = costs.training.saved
    inside = sum(stack.layers * stack.saved for stack in costs.stacks)
    again = sum(stack.layers * stack.stream for stack in costs.stacks)
    largest = max((stack.saved for stack in costs.stacks), default=0)
    recomputed = round(saved - inside + again + largest) if costs.stacks else saved
    return TrainingMemory(weights, count.learning * 4, count.learning * 8, saved, min(saved, recomputed),
                          loss_bytes(spec, tokens, device))  # fmt: skip


def loss_bytes(spec: Network, tokens: int, device: DeviceCeilings) -> int:
    """Bytes of the logits that a language model's loss has in memory at once: at most a chunk of the tokens."""
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    head = spec.head if isinstance(spec, Model | Seq2Seq) else None
    if not isinstance(decoder, Model) or not isinstance(head, LM) or decoder.embed.vocabulary is None:
        return 0
    logits = tokens * decoder.embed.vocabulary[0]
    return min(logits, FUSED_CHUNK) * 2 if device.kind == "gpu" else min(logits, CHUNK) * 4 * PLAIN_COPIES


def cache_bytes_per_token(spec: Network, dtype: torch.dtype = torch.bfloat16) -> int | None:
    """KV cache bytes per token over all layers; None if the model does not decode or a layer has another state than
    keys and values (Hyena, recurrences): `plan` traces those.

    >>> from anyformer import preset
    >>> cache_bytes_per_token(preset("gpt2")), cache_bytes_per_token(preset("bert-base"))
    (36864, None)
    """
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    if not decodes(spec) or not isinstance(decoder, Model):
        return None
    mixers = [block.mixer for block in decoder.stack.layers]
    if not all(mixer.has_static_cache for mixer in mixers):
        return None
    sizes = [mixer.sizes(decoder.stack.width) for mixer in mixers]
    return sum(token_bytes(one, one.groups, dtype) for one in sizes)


def token_bytes(sizes: HeadSizes, groups: int, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in one layer with `groups` key/value heads."""
    return groups * (sizes.channels + sizes.value_channels) * dtype.itemsize


@dataclass(frozen=True)
class CachePlan:
    """Bytes of one kind of decoding state, for the whole batch at full length."""

    kind: str
    bytes: int
    note: str = ""


def cache_plans(
    spec: Network, costs: ModelCosts, batch: int, length: int, dtype: torch.dtype
) -> list[CachePlan]:  # fmt: skip
    """The model's cache and alternatives to it; empty if the model does not decode."""
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    if not costs.decode.launches or not isinstance(decoder, Model):
        return []
    found = [CachePlan("as built", costs.cache, f"what a state holds behind {length:,} tokens")]
    if costs.cross:
        found.append(CachePlan("encoder", costs.cross, "keys and values of the source, once a text"))
    heads = [(block.mixer.sizes(decoder.stack.width), getattr(block.mixer, "window", None))
             for block in decoder.stack.layers if block.mixer.has_static_cache]  # fmt: skip
    if not heads:
        return found

    def cost(sizes: HeadSizes, groups: int, held: int) -> int:
        return batch * held * token_bytes(sizes, groups, dtype)

    held = [min(length, window or length) for _, window in heads]
    each = [(sizes, tokens) for (sizes, _), tokens in zip(heads, held, strict=True)]
    rest = costs.cache - sum(cost(sizes, sizes.groups, tokens) for sizes, tokens in each)
    if any(tokens < length for tokens in held):
        whole = sum(cost(sizes, sizes.groups, length) for sizes, _ in each)
        found.append(CachePlan("without windows", rest + whole, "if every layer kept the whole text"))
    if any(sizes.groups < sizes.heads for sizes, _ in each):
        full = sum(cost(sizes, sizes.heads, tokens) for sizes, tokens in each)
        found.append(CachePlan("without groups", rest + full, "if every head had its own keys and values (MHA)"))
    if any(sizes.groups > 1 for sizes, _ in each):
        one = sum(cost(sizes, 1, tokens) for sizes, tokens in each)
        found.append(CachePlan("one group", rest + one, "if all heads shared one key and value head (MQA)"))
    return found
