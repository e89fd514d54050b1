"""Errors in the slides' sizes and shapes next to the correct ones (L1-L4; errata 8, 10, 11, 18, 21, 24, 26, 27, 28).

Every size is recomputed from the library's presets and parts; networks that are only counted are not allocated.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.core.attend import Scores, attend, reference
from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds import Patches, Tokens
from anyformer.errors import UserError
from anyformer.feeds import MLP
from anyformer.generation.prompts import check_ids
from anyformer.heads import Pooled
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Result
from anyformer.lab.errata import Erratum, judge_errata
from anyformer.mixers import Attention
from anyformer.planning.parameters import count_parameters
from anyformer.planning.trace import tensors, trace
from anyformer.positions.sinusoid import sinusoid
from anyformer.presets import preset
from anyformer.presets.encoders import bert
from anyformer.presets.pairs import transformer

# Published: 1706.03762, table 3; 1810.04805 and GPT-2 as their checkpoints are counted; 2010.11929, section 3.1.
TRANSFORMER_BASE, TRANSFORMER_BIG = 65e6, 213e6
BERT_BASE, BERT_LARGE, GPT2 = 109_482_240, 335_141_888, 124_439_808
VIT_TOKENS, VIT_VALUES = 196, 768
WIDTH, KEY_SIZE, POSITIONS = 512, 64, 64  # of the original model: 8 heads of 64 channels
VOCAB, TEXT = 100, (0, 5, 99, 7)
SHORT, LONG = 512, 1024
ERRATA = (
    Erratum(
        8, "L1: PE exponent 2i/p, with p the key size", "2i/d, with d the model width",
        wrong=("exponent_of_keys",), good=("exponent_of_width",),
    ),
    Erratum(
        10, "L2: 12 layers, read as one stack or 12 a side", "6 encoder and 6 decoder layers, 65M parameters",
        wrong=("twelve_a_side",), good=("six_a_side", "layers"), within=0.05,
    ),
    Erratum(
        11, "L3: N = 6 base, N = 12 large", "base and big are both 6; 12 and 24 are BERT's",
        wrong=("big_of_12", "bert_of_6"), good=("big_of_6", "bert_of_12"), within=0.05,
    ),
    Erratum(
        18, "L3: patches of 16 px^2, read as an area", "16 x 16 pixels: 196 tokens of 768 values",
        wrong=("area_tokens", "area_values"), good=("side_tokens", "side_values"),
    ),
    Erratum(
        21, "L4: the MLP's matrices are D x D", "D x 4D and 4D x D: GPT-2 has 124,439,808 parameters",
        wrong=("square_mlp",), good=("wide_mlp",),
    ),
    Erratum(
        24, "L4: ids run from 1 to N, and the example uses 0", "ids from 0 to N - 1; N is refused",
        wrong=("from_one",), good=("from_zero", "last_id"),
    ),
    Erratum(
        26, "L4: encoders produce a fixed output size", "as many outputs as inputs, one when pooled",
        wrong=("fixed_size",), good=("as_many", "pooled_one"),
    ),
    Erratum(
        27, "L4: O(T^2), time and memory", "O(T^2 D) time; O(T) memory with a fused kernel",
        wrong=("without_width", "whole_map"), good=("with_width", "fused"),
    ),
    Erratum(
        28, "L4: a ViT has no pooling or strides", "its patches are a convolution of stride 16; pooling is an option",
        wrong=("stride_one",), good=("stride_of_patch", "mean_pool"),
    ),
)  # fmt: skip


def cases(full: bool) -> list[Case]:
    return [{"seed": seed} for seed in range(10 if full else 3)]


def measure(case: Case) -> Result:
    """The error of each form, relative to the truth."""
    seed = case["seed"]
    return {
        **exponents(), **depths(), **patch_sizes(), **feeds(), **ids(seed), **output_sizes(seed), **cost(seed),
        **strides(seed),
    }  # fmt: skip


def parameters(spec: Any) -> int:
    """The number of parameters of a network, without allocating them."""
    return count_parameters(spec.build(device="meta")).total


def exponents() -> Result:
    """Erratum 8: the table of positions with either exponent, against the paper's formula written out."""
    by_width, by_keys = (
        torch.tensor([[wave(place, i, size) for i in range(WIDTH)] for place in range(POSITIONS)], dtype=torch.float64)
        for size in (WIDTH, KEY_SIZE)
    )
    ours = sinusoid(torch.arange(POSITIONS)[None], WIDTH, torch.float64)[0]
    return {"exponent_of_keys": apart(by_keys, by_width), "exponent_of_width": apart(ours, by_width)}


def wave(place: int, component: int, size: int) -> float:
    """Component 2i or 2i + 1 of a position: the sine or cosine of place / 10000^(2i / size)."""
    angle = place / 10000 ** (2 * (component // 2) / size)
    return math.cos(angle) if component % 2 else math.sin(angle)


def depths() -> Result:
    """Errata 10 and 11: the depths of the original models and BERT, checked by their published parameter counts."""
    base, big = (cast(Seq2Seq, preset(name)) for name in ("transformer-base", "transformer-big"))
    layers = [len(part.stack.layers) for model in (base, big) for part in (model.encoder, model.decoder)]
    berts = [(preset("bert-base"), BERT_BASE), (preset("bert-large"), BERT_LARGE)]
    return {
        "twelve_a_side": off(parameters(transformer(512, 12, 8)), TRANSFORMER_BASE),
        "six_a_side": off(parameters(base), TRANSFORMER_BASE),
        "layers": max(off(count, 6) for count in layers),
        "big_of_12": off(parameters(transformer(1024, 12, 16)), TRANSFORMER_BIG),
        "big_of_6": off(parameters(big), TRANSFORMER_BIG),
        "bert_of_6": off(parameters(bert(768, 6, 12)), BERT_BASE),
        "bert_of_12": max(off(parameters(spec), count) for spec, count in berts),
    }


def patch_sizes() -> Result:
    """Erratum 18: 16 pixels as an area (4 x 4), and as a side."""
    area, side = Patches(size=224, patch=4), cast(Patches, cast(Model, preset("vit-b16")).embed)
    return {
        "area_tokens": off(math.prod(area.grid), VIT_TOKENS), "area_values": off(values_of(area), VIT_VALUES),
        "side_tokens": off(math.prod(side.grid), VIT_TOKENS), "side_values": off(values_of(side), VIT_VALUES),
    }  # fmt: skip


def values_of(patches: Patches) -> int:
    """The number of values in a flattened patch."""
    return cast(nn.Linear, patches.build(8).patch).in_features


def feeds() -> Result:
    """Erratum 21: GPT-2's parameters with either MLP."""
    gpt2 = cast(Model, preset("gpt2"))
    stack = cast(Stack, gpt2.stack)
    block = cast(Block, stack.block)
    square = gpt2.replace(stack=stack.replace(block=block.replace(feed=MLP(width=stack.width))))
    return {"square_mlp": off(parameters(square), GPT2), "wide_mlp": off(parameters(gpt2), GPT2)}


def ids(seed: int) -> Result:
    """Erratum 24: which row of the table an id selects, when the ids contain 0, against one-hot times the table."""
    net = Model(embed=Tokens(vocab=VOCAB), stack=Stack(width=8, depth=1, block=Block(mixer=Attention(heads=1)))).build(
        seed=seed, dtype=torch.float64
    )
    table, tokens = net.embed.table.weight.detach(), torch.tensor([TEXT])
    right = F.one_hot(tokens, VOCAB).double() @ table
    with torch.no_grad():
        ours = net.embed(tokens, context=net.embed.layout(tokens))
    refused = takes(tokens) and not takes(tokens + 1)  # where ids enter, before any layer
    return {"from_one": apart(table[tokens - 1], right), "from_zero": apart(ours, right), "last_id": float(not refused)}


def takes(tokens: Tensor) -> bool:
    """Whether a model of this vocabulary accepts these ids."""
    try:
        check_ids(tokens, VOCAB)
    except UserError:
        return False
    return True


def output_sizes(seed: int) -> Result:
    """Erratum 26: the number of outputs of an encoder for texts of other lengths."""
    stack = Stack(width=32, depth=2, causal=False, block=Block(mixer=Attention(heads=4)))
    net = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=Pooled(classes=3, pool="mean")).build(seed=seed).eval()
    lengths = (5, 9, 40)
    with torch.no_grad():
        found = [net(torch.zeros(1, length, dtype=torch.long)) for length in lengths]
    counts = [out.hidden.shape[1] for out in found]
    return {
        "fixed_size": min(off(counts[0], count) for count in counts[1:]),
        "as_many": max(off(count, length) for count, length in zip(counts, lengths, strict=True)),
        "pooled_one": max(float(out.logits.shape != (1, 3)) for out in found),
    }


def cost(seed: int) -> Result:
    """Erratum 27: the cost of attention in a wider model, and the largest tensor it creates for a longer text."""
    narrow, wide = (attention_flops(width) for width in (128, 256))
    fused = [largest(attend, length, seed) for length in (SHORT, LONG)]
    plain = [largest(reference, length, seed) for length in (SHORT, LONG)]
    return {
        "without_width": off(narrow, wide), "with_width": max(off(narrow, 4 * LONG**2 * 128), off(wide, 2 * narrow)),
        "whole_map": off(plain[1] / plain[0], LONG / SHORT), "fused": off(fused[1] / fused[0], LONG / SHORT),
    }  # fmt: skip


def attention_flops(width: int) -> int:
    """FLOPs of scores and weighted sums of a text, two for a multiply-add, by the planner's counter."""
    stack = Stack(width=width, depth=1, causal=False, block=Block(mixer=Attention(heads=4)))
    net = Model(embed=Tokens(vocab=VOCAB), stack=stack).build(device="meta")
    found = trace(net, (torch.zeros(1, LONG, dtype=torch.long, device="meta"),), {})
    return sum(count * op.flops for op, count in found.ops.items() if op.kind == "attention")


def largest(how: Any, length: int, seed: int) -> int:
    """The number of elements of the largest tensor created by attention over a text of this length."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, 2, length, 16, generator=generator)  # (B,H,T,C) each
    with torch.no_grad(), LargestTensor() as made:
        how(q, k, v, Scores(scale=0.25))
    return made.numbers


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(made.numel() for made in tensors((out,)))])
        return out


def strides(seed: int) -> Result:
    """Erratum 28: a ViT's patches against a convolution of stride 16, and what stride 1 would give."""
    stack = Stack(width=32, depth=1, causal=False, block=Block(mixer=Attention(heads=4)))
    spec = Model(embed=Patches(size=64, patch=16, position=None, cls=False), stack=stack)
    net = spec.replace(head=Pooled(classes=3, pool="mean")).build(seed=seed, dtype=torch.float64).eval()
    pixels = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kernel, bias = net.embed.patch.weight.detach().view(32, 3, 16, 16), net.embed.patch.bias.detach()
    with torch.no_grad():
        tokens, out = net.embed(pixels, context=net.embed.layout(pixels)), net(pixels)
        strided = F.conv2d(pixels, kernel, bias, stride=16).flatten(2).mT  # (B,N,D)
        every_place = F.conv2d(pixels, kernel, bias).flatten(2).mT
    return {
        "stride_one": off(every_place.shape[1], tokens.shape[1]),
        "stride_of_patch": apart(strided, tokens),
        "mean_pool": apart(out.pooled, out.hidden.mean(1)),
    }


def apart(one: Tensor, right: Tensor) -> float:
    return ((one - right).abs().max() / right.abs().max()).item()


def off(found: float, right: float) -> float:
    return abs(found - right) / right


def judge(found: Measurements) -> Finding:
    return judge_errata(ERRATA, found)


CLAIM = Claim(
    name="size-errata",
    claim="The original model has 6 + 6 layers, MLPs are D x 4D, attention costs T^2 D, and there are as many outputs "
    "as inputs",
    lecture="L4",
    source="L1 to L4: errors in sizes and shapes (errata 8, 10, 11, 18, 21, 24, 26, 27, 28)",
    quoted="L2: 12 layers; L3: N = 12 large, patches of 16 px^2; L4: W_1 of D x D, O(T^2), a fixed output size",
    method="sizes as on the slide and as they are, recomputed from the library's presets and parts: parameters "
    "against published counts, shapes, FLOPs by the planner's counter, and the largest tensor created",
    cost="7 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
