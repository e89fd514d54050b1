"""Masks and biases of long sequences are made a block of rows at a time: same numbers, memory linear in the length."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Alibi, Attention, Buckets, NoRelative, Relative
from anyformer.core import attend
from anyformer.core.block import Block
from anyformer.positions.alibi import slopes
from tests.reference import naive
from tests.reference.copying import agree, context_of, deviation, real_tokens, seeded, shaken
from tests.reference.watching import largest

B, T, D, H = 2, 13, 16, 4
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [2] * 9 + [5] * 4])
LONG = 4096


def block_of(relative: Relative, *, causal: bool, heads: int = H, **settings: Any) -> Block:
    return Block(mixer=Attention(heads=heads, **settings), relative=relative, feed=None)


class Layer(torch.nn.Module):
    """A mixer with the module of its relative positions."""

    def __init__(self, spec: Block, causal: bool, width: int = D) -> None:
        super().__init__()
        sizes = spec.mixer.sizes(width)
        self.mixer = spec.mixer.build(width, causal=causal, relative=spec.relative)
        self.relative = spec.relative.build(sizes.heads, sizes.channels, sizes.value_channels, causal)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        tables = () if self.relative is None else self.relative(context, x.dtype)
        return self.mixer(x, context, None, tables)


def layer(relative: Relative, *, causal: bool, **settings: Any) -> Any:
    return shaken(Layer(block_of(relative, causal=causal, **settings), causal))


def cases() -> dict[str, tuple[Relative, dict[str, Any], dict[str, Any]]]:
    """Name to relative positions, settings of the mixer and what is given to the pass."""
    term = seeded(B, H, T, T, seed=9, grad=False)
    rule = seeded(B, 1, T, T, seed=8, grad=False) > 0
    rule[:, :, 4] = False  # a query that sees nothing
    return {
        "alibi": (Alibi(), {}, {}),
        "buckets": (Buckets(buckets=8, distance=10), {}, {}),
        "padding": (NoRelative(), {}, {"mask": real_tokens((13, 6), T)}),
        "documents": (NoRelative(), {}, {"documents": DOCUMENTS}),
        "window": (NoRelative(), {"window": 3}, {}),
        "a rule": (NoRelative(), {}, {"mask": rule}),
        "an added term": (NoRelative(), {}, {"mask": term.masked_fill(term > 1, -math.inf)}),
        "grouped heads": (Alibi(), {"kv_heads": 2, "key_size": 6, "value_size": 3}, {}),
        "everything": (
            Buckets(buckets=8, distance=10), {"window": 6, "kv_heads": 2},
            {"mask": (real_tokens((13, 9), T), rule, term), "documents": DOCUMENTS},
        ),
    }  # fmt: skip


def by_hand(module: Any, x: Tensor, relative: Relative, settings: dict[str, Any], given: dict[str, Any],
            causal: bool) -> Tensor:  # fmt: skip
    """The same pass as loops."""
    masks = given.get("mask", ())
    masks = masks if isinstance(masks, tuple) else (masks,)
    real = next((m for m in masks if m.dim() == 2), torch.ones(B, T, dtype=torch.bool))
    rule = next((m for m in masks if m.dim() == 4 and m.dtype == torch.bool), torch.ones(1, 1, T, T, dtype=torch.bool))
    term = next((m for m in masks if m.is_floating_point()), torch.zeros(1, 1, T, T, dtype=torch.float64))
    rule, term = rule.expand(B, H, T, T), term.expand(B, H, T, T)
    documents, window = given.get("documents", torch.zeros(B, T)), settings.get("window", T)
    rank = (torch.arange(T) - torch.tensor([[0] * 5 + [5] * 8, [0] * 9 + [9] * 4])) if "documents" in given else None

    def sees(b: int, h: int, i: int, j: int) -> bool:
        near = 0 <= i - j < window if causal else abs(i - j) < window
        return bool(real[b, j] & rule[b, h, i, j] & (documents[b, i] == documents[b, j])) and near

    def bias(b: int, h: int, i: int, j: int) -> Tensor:
        at, to = (i, j) if rank is None else (int(rank[b, i]), int(rank[b, j]))
        total = term[b, h, i, j]
        if isinstance(relative, Alibi):
            total = total - slopes(H)[h] * abs(at - to)
        if isinstance(relative, Buckets):
            total = total + module.relative.table.weight[small_bucket(to - at, causal), h]
        return total

    scale = settings.get("key_size", D // H) ** -0.5
    return naive.attend(x, module.mixer, scale=scale, sees=sees, bias=bias)


def small_bucket(offset: int, causal: bool) -> int:
    """T5's rule for 8 buckets and distance 10, one number at a time."""
    buckets, start = (8, 0) if causal else (4, 4 if offset > 0 else 0)
    away, exact = (max(0, -offset), buckets // 2) if causal else (abs(offset), buckets // 2)
    if away < exact:
        return start + away
    grown = exact + int(math.log(away / exact) / math.log(10 / exact) * (buckets - exact))
    return start + min(grown, buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.quick) if name == "everything" else name for name in cases()]
)
def test_blocks_of_rows_equal_the_loop(name: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    relative, settings, given = cases()[name]
    module, x = layer(relative, causal=causal, **settings), seeded(B, T, D)
    context, leaves = context_of(x, **given), [x, *module.parameters()]
    expected = by_hand(module, x, relative, settings, given, causal)
    whole = module(x, context)
    monkeypatch.setattr(attend, "ROWS", 3 * T)
    assert len(list(attend.row_blocks(T, T))) == 5
    masks = given.get("mask", ())
    real = next((m for m in (masks if isinstance(masks, tuple) else (masks,)) if m.dim() == 2), None)
    where = None if real is None else real[..., None]
    agree(module(x, context), expected, leaves, where=where)
    agree(whole, expected, leaves, where=where)
    if isinstance(relative, Buckets):  # the table's gradient goes through every block
        (slope,) = torch.autograd.grad(module(x, context).square().sum(), [module.relative.table.weight])
        assert slope.abs().max() > 1e-3
    # Control: hiding or adding nothing is noticed.
    bare = Layer(block_of(NoRelative(), causal=causal, **{k: v for k, v in settings.items() if k != "window"}), causal)
    bare = bare.double()
    bare.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("relative")})
    if not (causal and name == "padding"):
        assert deviation(bare(x, context_of(x)), expected, where=where) > 1e-4


def long_pass(name: str, causal: bool) -> Any:
    """Forward and backward over 4,096 tokens, as `test_blocks_of_rows` but in float32 and with two heads of 4."""
    relative = {"alibi": Alibi(), "buckets": Buckets()}.get(name, NoRelative())
    settings = {"window": 64} if name == "window" else {}
    module = Layer(block_of(relative, causal=causal, heads=2, **settings), causal, width=8)
    x = torch.randn(1, LONG, 8, requires_grad=True)
    given: dict[str, Any] = {}
    if name == "padding":
        given["mask"] = real_tokens((LONG - 5,), LONG)
    if name == "documents":
        given["documents"] = torch.arange(LONG)[None] // 1000
    context = context_of(x, **given)

    def work() -> None:
        module(x, context).square().mean().backward()
        assert x.grad is not None and x.grad.isfinite().all()

    return work


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["alibi", "buckets", "padding", "documents", "window"])
def test_no_tensor_of_length_squared_is_made(name: str, causal: bool) -> None:
    assert largest(long_pass(name, causal)) < LONG * LONG / 3


def test_the_plain_formula_would_be_caught() -> None:
    q, k, v = (torch.randn(1, 1, LONG, 8, requires_grad=True) for _ in range(3))
    distance = torch.arange(LONG)

    def work() -> None:
        scores = q @ k.mT - (distance[:, None] - distance).abs() * 0.5
        (scores.softmax(-1) @ v).sum().backward()

    assert largest(work) >= LONG * LONG


def test_one_block_for_all_rows_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "ROWS", 10**12)
    assert largest(long_pass("alibi", True)) >= LONG * LONG
