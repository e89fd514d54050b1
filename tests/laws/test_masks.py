"""Masks: every kind and every combination equals a naive matrix of -inf."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Attention, UserError, attend
from anyformer.core import attend as seam
from anyformer.core.attend import Scores, reference, sdpa
from anyformer.core.context import lay_out
from anyformer.positions import NoRelative
from tests.laws.nets import EXACT, filled, gap, numbers

B, T, H, G, C = 2, 7, 4, 2, 3
PADDING = torch.tensor([[True] * 7, [False, True, True, True, True, True, False]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]])
BOOLEAN = torch.rand(B, 1, T, T, generator=torch.Generator().manual_seed(1)) < 0.8
BY_HEAD = torch.rand(1, H, T, T, generator=torch.Generator().manual_seed(2)) < 0.8
ADDED = numbers(B, H, T, T, seed=3).masked_fill(
    torch.rand(T, T, generator=torch.Generator().manual_seed(4)) < 0.1, -torch.inf
)


def function(i: Tensor, j: Tensor) -> Tensor:
    return (i - j) % 3 != 1


MASKS: dict[str, Any] = {"padding": PADDING, "bool": BOOLEAN, "heads": BY_HEAD, "added": ADDED, "function": function}
RULES = [*MASKS, "causal", "window", "documents"]
COMBINATIONS = [
    (),
    *((name,) for name in RULES),
    *itertools.combinations(RULES, 2),
    *itertools.combinations(RULES, 3),
    tuple(RULES),
]


def naive(q: Tensor, k: Tensor, v: Tensor, names: tuple[str, ...]) -> Tensor:
    """One batch row, one head, one query at a time, with a -inf matrix made element by element from the definitions."""
    out = torch.zeros(B, H, T, v.shape[-1], dtype=q.dtype)
    for b in range(B):
        real = [bool(PADDING[b, t]) if "padding" in names else True for t in range(T)]
        rank = ranks(real, DOCUMENTS[b].tolist() if "documents" in names else [0] * T)
        for h, i in itertools.product(range(H), range(T)):
            scores = torch.full((T,), -torch.inf, dtype=q.dtype)
            for j in range(T):
                if visible(names, b, h, i, j, rank, real):
                    scores[j] = q[b, h, i] @ k[b, h // (H // G), j] * C**-0.5
                    scores[j] += ADDED[b, h, i, j] if "added" in names else 0.0
            if scores.max() > -torch.inf:
                out[b, h, i] = scores.softmax(0) @ v[b, h // (H // G)]
    return out


def ranks(real: list[bool], documents: list[int]) -> list[int]:
    """How many real tokens of the same document stand before each."""
    return [sum(real[s] and documents[s] == documents[t] for s in range(t)) - (not real[t]) for t in range(T)]


def visible(names: tuple[str, ...], b: int, h: int, i: int, j: int, rank: list[int], real: list[bool]) -> bool:
    rules = {
        "padding": real[j],
        "bool": bool(BOOLEAN[b, 0, i, j]),
        "heads": bool(BY_HEAD[0, h, i, j]),
        "function": (rank[i] - rank[j]) % 3 != 1,
        "causal": rank[i] >= rank[j],
        "window": abs(rank[i] - rank[j]) < 3,
        "documents": bool(DOCUMENTS[b, i] == DOCUMENTS[b, j]),
        "added": True,
    }
    return all(rules[name] for name in names)


def described(names: tuple[str, ...]) -> Scores:
    """The same by anyformer's own way from masks to scores."""
    masks = tuple(MASKS[name] for name in names if name in MASKS)
    documents = DOCUMENTS if "documents" in names else None
    context = lay_out(B, T, torch.device("cpu"), mask=masks or None, documents=documents)
    return Scores.among(
        context, T, scale=C**-0.5, causal="causal" in names, window=3 if "window" in names else None, soft_cap=None,
        relative=NoRelative(), tables=(),
    )  # fmt: skip


Q, K, V = numbers(B, H, T, C, seed=5), numbers(B, G, T, C, seed=6), numbers(B, G, T, 5, seed=7)


@pytest.mark.parametrize("names", COMBINATIONS, ids=lambda names: "+".join(names) or "none")
def test_masks_in_any_combination_equal_a_matrix(names: tuple[str, ...]) -> None:
    wanted, scores = naive(Q, K, V, names), described(names)
    counted = (
        slice(1, 6) if "padding" in names else slice(None)
    )  # what a padding token itself sees is nobody's business
    for engine in (attend, reference, sdpa):
        assert gap(engine(Q, K, V, scores)[:, :, counted], wanted[:, :, counted]) < EXACT
    for left_out in names if len(names) < 4 else ():  # control: without any one of its rules the answer is another
        other = naive(Q, K, V, tuple(name for name in names if name != left_out))
        assert gap(other[:, :, counted], wanted[:, :, counted]) > 1e-3


@pytest.mark.parametrize("names", [("causal", "padding"), ("window", "causal"), tuple(RULES)], ids="+".join)
def test_long_sequences_are_done_in_blocks_of_rows(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    scores = described(names)
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    whole = sdpa(*leaves, scores)
    grads = torch.autograd.grad(whole.square().sum(), leaves)
    monkeypatch.setattr(seam, "ROWS", 2 * T)  # two rows at a time
    assert len(list(seam.row_blocks(T, T))) == 4
    again = [x.clone().requires_grad_() for x in (Q, K, V)]
    blocks = sdpa(*again, scores)
    assert gap(blocks, whole) < EXACT
    for a, b in zip(torch.autograd.grad(blocks.square().sum(), again), grads, strict=True):
        assert gap(a, b) < EXACT


@pytest.mark.parametrize("added", [-1e9, torch.finfo(torch.float32).min], ids=["-1e9", "lowest"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_very_low_additive_masks_hide_and_stay_finite(dtype: torch.dtype, added: float) -> None:
    """Many codebases hide by adding a very low number; in float16 that is -inf, and a whole row of it was nan."""
    mask = torch.zeros(1, 1, T, T)
    mask[..., 4:] = added
    mask[..., 2, :] = added  # a whole row
    context = lay_out(B, T, torch.device("cpu"), mask=mask)
    rest = {"causal": False, "window": None, "soft_cap": None, "relative": NoRelative(), "tables": ()}
    scores = Scores.among(context, T, scale=C**-0.5, **rest)
    leaves = [x.to(dtype).requires_grad_() for x in (Q, K, V)]
    for engine in (reference, sdpa):
        out = engine(*leaves, scores)
        assert out.isfinite().all()
        grads = torch.autograd.grad(out.float().square().sum(), leaves)
        assert all(grad.isfinite().all() for grad in grads)
        hidden = engine(leaves[0], leaves[1][:, :, :4], leaves[2][:, :, :4], Scores(scale=C**-0.5))
        rows = [0, 1, 3, 4, 5, 6]
        assert gap(out[:, :, rows].double(), hidden[:, :, rows].double()) < 2e-2


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_attention_is_a_loop_over_heads(heads: int) -> None:
    """Projections, heads and W_O written out: for every number of heads, also with two head sizes."""
    for sizes in ({}, {"key_size": 2, "value_size": 5}):
        module = filled(Attention(heads=heads, **sizes).build(16, causal=True, relative=NoRelative()).double())
        x = numbers(B, T, 16, seed=9)
        c, d = module.sizes.channels, module.sizes.value_channels
        assert tuple(module.out.weight.shape) == (16, heads * d)  # W_O follows the values' size
        rows = module.qkv.weight.view(heads, 2 * c + d, 16)
        bias = module.qkv.bias.view(heads, 2 * c + d)
        made = []
        for h in range(heads):
            q, k, v = (x @ rows[h].T + bias[h]).split([c, c, d], -1)
            scores = (q @ k.mT / c**0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
            made.append(scores.softmax(-1) @ v)
        wanted = torch.cat(made, -1) @ module.out.weight.T + module.out.bias
        context = lay_out(B, T, x.device)
        assert gap(module(x, context, None, ()), wanted) < EXACT
        assert gap(module(x, context, None, ()), wanted.flip(1)) > 1e-3


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_are_heads_with_repeated_keys_and_values(kv_heads: int) -> None:
    scores = described(("causal", "padding"))
    k, v = numbers(B, kv_heads, T, C, seed=6), numbers(B, kv_heads, T, 5, seed=7)
    for engine in (reference, sdpa):
        for queries in (T, 1):  # one query takes another way through the kernel
            description = scores if queries == T else Scores(scale=C**-0.5, key_mask=PADDING)
            q = Q[:, :, -queries:]
            same = engine(q, k.repeat_interleave(H // kv_heads, 1), v.repeat_interleave(H // kv_heads, 1), description)
            assert gap(engine(q, k, v, description), same) < EXACT


def test_a_mask_of_the_wrong_size_is_refused() -> None:
    for shape in ((B, T + 1), (B, 1, T, T + 1), (B, 1, T, 1), (3, 1, T, T), (T, T), (B, T, T, T, T)):
        with pytest.raises(UserError, match="mask has shape"):
            lay_out(B, T, torch.device("cpu"), mask=torch.ones(shape, dtype=torch.bool))
