"""A query that may see nothing gives zeros and finite gradients, on every engine, in every type, whatever is hidden."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import Alibi, Buckets, Pooled, Relative, Rope, Shaw
from anyformer.core.attend import Scores, reference, sdpa
from anyformer.core.context import lay_out
from tests.laws.nets import build, filled, language, model, numbers, tokens
from tests.laws.parts import every

B, H, G, T, C = 2, 4, 2, 6, 8
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
ENGINES = {"reference": reference, "sdpa": sdpa}
DEAD = (1, 3)  # rows that see nothing
HIDDEN = (0, 4)  # keys that nobody sees


def rules(kind: str, dtype: torch.dtype) -> torch.Tensor:
    seen = torch.ones(B, 1, T, T, dtype=torch.bool)
    seen[:, :, list(DEAD)] = False
    seen[..., list(HIDDEN)] = False
    return seen if kind == "bool" else torch.zeros(B, 1, T, T, dtype=dtype).masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("relative", ["none", "alibi", "shaw", "buckets"])
@pytest.mark.parametrize("kind", ["bool", "added"])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_empty_rows_give_zeros_and_finite_gradients(engine: Any, dtype: torch.dtype, kind: str, relative: str) -> None:
    spec: Relative | None = {"alibi": Alibi(), "shaw": Shaw(2), "buckets": Buckets(buckets=8, distance=16)}.get(
        relative
    )
    if engine is sdpa and spec is not None and spec.needs_weights:
        spec = None  # no fused kernel offers it, and `choose` never sends it there
    module = None if spec is None else filled(spec.build(H, C, C, False))
    context = lay_out(B, T, torch.device("cpu"), mask=rules(kind, dtype))
    tables = () if module is None else module.to(dtype)(context, dtype)
    scores = Scores.among(
        context, T, scale=C**-0.5, causal=False, window=None, soft_cap=None, relative=spec, tables=tables
    )
    q, k, v = (numbers(B, heads, T, C, seed=heads).to(dtype) for heads in (H, G, G))
    k[:, :, list(HIDDEN)] = v[:, :, list(HIDDEN)] = 1e4  # garbage where nobody may look: it must not come through
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = engine(*leaves, scores)
    assert out.isfinite().all() and out.abs().max() < 100
    assert (out[:, :, list(DEAD)] == 0).all()
    live = [i for i in range(T) if i not in DEAD]
    assert (out[:, :, live].abs().amax(-1) > 0).all()  # control: the others do answer
    grads = torch.autograd.grad(out.float().square().sum(), leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][:, :, list(DEAD)] == 0).all()
    assert (grads[2][:, :, list(HIDDEN)] == 0).all() and (grads[1][:, :, list(HIDDEN)] == 0).all()
    # Control: the plain formula gives nan there.
    plain = (leaves[0].float() @ leaves[1].float().repeat_interleave(H // G, 1).mT).masked_fill(
        ~rules("bool", dtype), -torch.inf
    )
    assert plain.softmax(-1)[:, :, list(DEAD)].isnan().all()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("relative", every(Relative))
def test_a_row_of_padding_only_stays_finite_through_a_whole_model(relative: Relative, causal: bool) -> None:
    net = build(language(relative=relative, causal=causal), torch.float32)
    mask = torch.tensor([[True] * 6, [False] * 6])
    out = net(tokens(2, 6), mask=mask).logits
    assert out.isfinite().all()
    out[0].logsumexp(-1).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("pool", ["first", "mean", "max", "last", "concat"])
def test_a_row_of_padding_only_pools_to_something_finite(pool: str) -> None:
    net = build(model(head=Pooled(classes=3, pool=pool), causal=False, relative=Rope()), torch.float32)
    out = net(tokens(2, 6), mask=torch.tensor([[True] * 6, [False] * 6])).logits
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
