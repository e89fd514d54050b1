"""Small models to decode, decoding without any cache, and the rule by which two decodings count as the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer import (
    LM,
    MLP,
    Alibi,
    Attention,
    Block,
    Buckets,
    Cross,
    LayerNorm,
    Learned,
    Model,
    NoRelative,
    Norm,
    Position,
    Relative,
    RMSNorm,
    Rope,
    Seq2Seq,
    Shaw,
    Sinusoid,
    Stack,
    Tokens,
)
from anyformer.generation import Generated, Generation
from anyformer.generation.noise import gumbel, row_seeds

VOCAB, WIDTH, HEADS, LIMIT = 23, 16, 4, 40

POSITIONS: dict[str, tuple[Position | None, Relative]] = {
    "learned": (Learned(LIMIT), NoRelative()),
    "sinusoid": (Sinusoid(), NoRelative()),
    "none": (None, NoRelative()),
    "rope": (None, Rope()),
    "alibi": (None, Alibi()),
    "buckets": (None, Buckets(buckets=8, distance=16)),
    "shaw": (None, Shaw(3)),
}
NORMS: dict[str, Norm] = {"layer": LayerNorm(), "rms": RMSNorm()}


def decoder(
    position: Position | None = None, relative: Relative | None = None, *, norm: Norm | None = None,
    kv_heads: int = HEADS, window: int | None = None, vocab: int = VOCAB, depth: int = 2, head: LM | None = None,
) -> Model:  # fmt: skip
    """A small language model."""
    block = Block(
        mixer=Attention(heads=HEADS, kv_heads=kv_heads, window=window), feed=MLP(width=24), norm=norm or LayerNorm(),
        relative=relative or NoRelative(),
    )  # fmt: skip
    return Model(
        embed=Tokens(vocab=vocab, position=position), head=head or LM(tied=False),
        stack=Stack(width=WIDTH, depth=depth, causal=True, block=block), init="xavier",
    )  # fmt: skip


def pair(position: Position | None = None, relative: Relative | None = None, *, norm: Norm | None = None,
         kv_heads: int = HEADS, window: int | None = None) -> Seq2Seq:  # fmt: skip
    """A small encoder-decoder."""
    part = decoder(position, relative, norm=norm, kv_heads=kv_heads, window=window)
    block = part.stack.block
    assert isinstance(block, Block)
    looking = part.stack.replace(block=block.replace(cross=Cross(heads=HEADS)))
    return Seq2Seq(
        encoder=part.replace(head=None, stack=part.stack.replace(causal=False)),
        decoder=part.replace(head=None, stack=looking), head=LM(tied=False),
    )  # fmt: skip


def build(spec: Model | Seq2Seq, *, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.7) -> Any:
    """The network with weights large enough that texts neither repeat at once nor leave any doubt what comes next."""
    net = spec.build(seed=seed, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.dim() == 1 or "relative" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            else:
                parameter *= scale
    return net


def ids(batch: int, length: int, *, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


PROMPTS = [ids(1, length, seed=length) for length in (7, 3, 1)]


def padded(prompts: list[Tensor], side: str, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths as one batch, and which of its tokens are real."""
    longest = max(prompt.shape[1] for prompt in prompts)
    tokens = torch.full((len(prompts), longest), fill)
    mask = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        place = slice(longest - prompt.shape[1], None) if side == "left" else slice(0, prompt.shape[1])
        tokens[row, place], mask[row, place] = prompt[0], True
    return tokens, mask


def full_logits(net: Any, text: Tensor, source: Tensor | None = None) -> Tensor:
    """Logits of the next token by one full pass without any state, (1,V)."""
    return (net(text) if source is None else net(source, text)).logits[:, -1]


@torch.no_grad()
def uncached(net: Any, prompt: Tensor, settings: Generation, source: Tensor | None = None) -> list[int]:
    """Greedy or sampled text of one prompt by repeated full passes."""
    text, written = prompt, []
    seeds = row_seeds(settings.seed, 1, 1, prompt.device) if settings.sampled else None
    for step in range(settings.max_new_tokens or 0):
        scores = full_logits(net, text, source).double() / settings.temperature
        if seeds is not None:
            scores = scores + gumbel(seeds, step, scores.shape[1])
        written.append(int(scores.argmax()))
        text = torch.cat([text, torch.tensor([[written[-1]]])], 1)
        if written[-1] in settings.ends:
            break
    return written


def doubt(net: Any, prompt: Tensor, settings: Generation, source: Tensor | None = None) -> Callable[[list[int]], float]:
    """How far apart, in float64, the two best tokens stand after a given beginning: the noise of a draw counts too."""

    @torch.no_grad()
    def gap(written: list[int]) -> float:
        exact = copy.deepcopy(net).double()
        text = torch.cat([prompt, torch.tensor([written], dtype=torch.long)], 1)
        scores = full_logits(exact, text, source) / settings.temperature
        if settings.sampled:
            scores = scores + gumbel(row_seeds(settings.seed, 1, 1, text.device), len(written), scores.shape[1])
        best = scores.topk(2).values[0]
        return float(best[0] - best[1])

    return gap


def same(a: list[int], b: list[int], gap: Callable[[list[int]], float]) -> bool:
    """Equal tokens, or the first difference stands where the best two are all but equal."""
    if a == b:
        return True
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return gap(a[:first]) < 1e-4


def rows(result: Generated) -> list[list[int]]:
    return list(result.rows())
