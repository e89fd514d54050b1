"""Errors in the slides' formulas of attention next to the correct forms (L1, L3, L4; errata 6, 9, 12, 13, 15, 20, 22).

Each form is compared with the layer itself: the library's attention on random tokens, in float64.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from anyformer.core.attend import attend, score_steps
from anyformer.core.block import Block, BlockModule
from anyformer.core.context import lay_out
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import Pooled
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Result
from anyformer.lab.errata import Erratum, judge_errata
from anyformer.mixers import Attention
from anyformer.mixers.attention import AttentionInputs
from anyformer.positions import NoRelative, Shaw
from anyformer.slots import Relative

VOCAB, WIDTH, LENGTH, OTHER_LENGTH = 50, 32, 12, 20
KEY, VALUE, NEAR = 8, 24, 3  # channels of a key and of a value; distance beyond which Shaw's vectors are shared
ERRATA = (
    Erratum(
        6, "L1: tokens in columns and V softmax(Q'K / sqrt(p))", "V softmax(Q'K / sqrt(p))', the softmax over keys",
        wrong=("not_turned", "over_queries"), good=("turned", "layer"),
    ),
    Erratum(
        9, "L1: similarity x_i' W_Q W_K' x_i, one index twice", "x_i' W_Q W_K' x_j: the query is another token's",
        wrong=("same_token",), good=("two_tokens",),
    ),
    Erratum(
        12, "L3: Shaw's output sum a_ij (x_j W_V - a^V_ij)", "sum a_ij (x_j W_V + a^V_ij)",
        wrong=("shaw_minus",), good=("shaw_plus",),
    ),
    Erratum(
        13, "L3: z = sum of raw scores times v_i", "z = sum a_i v_i with the weights of the softmax",
        wrong=("raw_scores",), good=("softmax_weights",),
    ),
    Erratum(
        15, "L3: attention is permutation invariant", "equivariant, f(RX) = R f(X); a pooled answer is invariant",
        wrong=("moved",), good=("moved_along", "pooled"),
    ),
    Erratum(
        20, "L4: W_Q, W_K of T x D_K, W_V of T x D_V", "D x D_K and D x D_V, the same for every length",
        wrong=("refused",), good=("of_width",),
    ),
    Erratum(
        22, "L4: Z is T x D for one head", "P V is T x D_V, and T x D behind W_O",
        wrong=("as_wide",), good=("one_head", "projected"),
    ),
)  # fmt: skip


def cases(full: bool) -> list[Case]:
    return [{"seed": seed} for seed in range(50 if full else 10)]


def measure(case: Case) -> Result:
    """The error of each form, relative to the largest number of the truth."""
    seed = case["seed"]
    block, x = one_layer(seed), tokens(seed, LENGTH)
    inputs = read(block, x)
    return {
        **columns(inputs), **one_index(block, inputs, x), **raw(inputs), **shaw(seed), **order(seed),
        **projections(block, seed), **widths(block, inputs),
    }  # fmt: skip


# ---------------------------------------------------------------- a layer with one head, and tokens for it


def one_layer(seed: int, relative: Relative | None = None) -> BlockModule:
    """A layer with one head whose keys and values differ in size, and weights as large as trained ones."""
    attention = Attention(heads=1, key_size=KEY, value_size=VALUE, bias=False)
    block = Block(mixer=attention, feed=None, relative=relative or NoRelative())
    spec = Model(embed=Tokens(vocab=VOCAB), stack=Stack(width=WIDTH, depth=1, causal=False, block=block))
    net = spec.build(seed=seed, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(drawn / WIDTH**0.5)
    return cast(BlockModule, net.stack.blocks[0])


def tokens(seed: int, length: int) -> Tensor:
    """Random tokens (T,D)."""
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)


def read(block: BlockModule, x: Tensor) -> AttentionInputs:
    """Queries, keys and values that the layer computes from tokens (T,D)."""
    context = lay_out(1, len(x), x.device)
    tables = () if block.relative is None else block.relative(context, x.dtype)
    with torch.no_grad():
        return cast(AttentionInputs, block.mixer.prepare(x[None], context, None, tables))


def matrices(inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (T,C), keys (T,C) and values (T,C')."""
    return inputs.q[0, 0], inputs.k[0, 0], inputs.v[0, 0]


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The weighted mean of the values (T,C'), as a loop over queries and keys."""
    rows = []
    for query in q:
        parts = torch.stack([(query @ key / KEY**0.5).exp() for key in k])
        rows.append(sum(part * value for part, value in zip(parts / parts.sum(), v, strict=True)))
    return torch.stack(cast(list[Tensor], rows))


# ---------------------------------------------------------------- the errata, one by one


def columns(inputs: AttentionInputs) -> Result:
    """Erratum 6: queries, keys and values as columns, as L1 has them."""
    q, k, v = matrices(inputs)
    right, scores = written_out(q, k, v).T, q @ k.T / KEY**0.5  # Q'K, queries in rows
    return {
        "not_turned": apart(v.T @ scores.softmax(1), right),
        "over_queries": apart(v.T @ scores.softmax(0), right),
        "turned": apart(v.T @ scores.softmax(1).T, right),
        "layer": apart(attend(*inputs)[0, 0].T, right),
    }


def one_index(block: BlockModule, inputs: AttentionInputs, x: Tensor) -> Result:
    """Erratum 9: which two tokens a score compares, by the layer's own weights and scores."""
    w_q, w_k, _ = (weight.T for weight in block.mixer.qkv.weight.detach().split([KEY, KEY, VALUE]))  # (D,C)
    right = score_steps(inputs.q, inputs.k, inputs.scores).scaled[0, 0] * KEY**0.5  # q_i . k_j
    return {
        "same_token": apart(((x @ w_q) * (x @ w_k)).sum(1).expand(LENGTH, -1), right),
        "two_tokens": apart(x @ w_q @ w_k.T @ x.T, right),
    }


def raw(inputs: AttentionInputs) -> Result:
    """Erratum 13: what the values are summed with."""
    q, k, v = matrices(inputs)
    right = written_out(q, k, v)
    return {"raw_scores": apart(q @ k.T @ v, right), "softmax_weights": apart(attend(*inputs)[0, 0], right)}


def shaw(seed: int) -> Result:
    """Erratum 12: the sign of a^V, against the layer with Shaw's positions."""
    block = one_layer(seed, Shaw(NEAR))
    inputs = read(block, tokens(seed, LENGTH))
    q, k, v = matrices(inputs)
    a_k, a_v = (
        torch.stack([torch.stack([table[max(-NEAR, min(NEAR, j - i)) + NEAR] for j in range(LENGTH)])
                     for i in range(LENGTH)])
        for table in (block.relative.keys.weight.detach(), block.relative.values.weight.detach())
    )  # fmt: skip
    weights = ((q[:, None] * (k[None] + a_k)).sum(-1) / KEY**0.5).softmax(-1)  # (T,T)
    layer = attend(*inputs)[0, 0]
    return {
        "shaw_minus": apart((weights[..., None] * (v[None] - a_v)).sum(1), layer),
        "shaw_plus": apart((weights[..., None] * (v[None] + a_v)).sum(1), layer),
    }


def order(seed: int) -> Result:
    """Erratum 15: what permuting the tokens does to a network without positions, and to its pooled output."""
    stack = Stack(width=WIDTH, depth=2, causal=False, block=Block(mixer=Attention(heads=4)))
    head = Pooled(classes=5, pool="mean")
    net = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=head).build(seed=seed, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():  # as large as trained weights, so that differences are visible
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    ids, turned = torch.randperm(VOCAB, generator=generator)[None, :LENGTH], torch.randperm(LENGTH, generator=generator)
    with torch.no_grad():
        plain, permuted = net(ids), net(ids[:, turned])
    return {
        "moved": apart(permuted.hidden, plain.hidden),
        "moved_along": apart(permuted.hidden, plain.hidden[:, turned]),
        "pooled": apart(permuted.logits, plain.logits),
    }


def projections(block: BlockModule, seed: int) -> Result:
    """Erratum 20: a T x D_K matrix cannot multiply tokens of width D; one of D x D_K works for every length."""
    w_q = block.mixer.qkv.weight.detach()[:KEY].T
    longer = tokens(seed, OTHER_LENGTH)
    missed = max(apart(x @ w_q, matrices(read(block, x))[0]) for x in (tokens(seed, LENGTH), longer))
    return {"refused": float(is_refused(longer, torch.zeros(LENGTH, KEY).double())), "of_width": missed}


def is_refused(x: Tensor, weight: Tensor) -> bool:
    """Whether these two cannot be multiplied."""
    try:
        x @ weight
    except RuntimeError:
        return True
    return False


def widths(block: BlockModule, inputs: AttentionInputs) -> Result:
    """Erratum 22: the width of a head's output, before and after W_O."""
    head = attend(*inputs)[0, 0]  # (T,C')
    with torch.no_grad():
        answer = block.mixer.out(head)
    return {
        "as_wide": abs(WIDTH - head.shape[1]) / head.shape[1],
        "one_head": float(head.shape != (LENGTH, VALUE)),
        "projected": float(answer.shape != (LENGTH, WIDTH)),
    }


def apart(one: Tensor, right: Tensor) -> float:
    return ((one - right).abs().max() / right.abs().max()).item()


def judge(found: Measurements) -> Finding:
    return judge_errata(ERRATA, found)


CLAIM = Claim(
    name="attention-errata",
    claim="With tokens in columns the weights are transposed, a score compares two tokens, and attention is "
    "equivariant",
    lecture="L1",
    source="L1, L3 and L4: errors in their formulas of attention (errata 6, 9, 12, 13, 15, 20, 22)",
    quoted="L1: Z = V softmax(Q'K / sqrt(p)); L3: z = sum of raw scores times v; L4: W_Q of T x D_K",
    method="the slide's form and the correct form of each formula, on random tokens in float64, against the formula "
    "written as a loop and against a layer of the library",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)
