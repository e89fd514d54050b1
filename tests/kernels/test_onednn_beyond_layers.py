"""Experts and losses multiply by the library that linear layers do, and give what torch's products give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from anyformer.core import loss as core_loss
from anyformer.core.loss import linear_cross_entropy
from anyformer.feeds.experts import Experts
from anyformer.kernels import onednn
from anyformer.kernels.compile import compile_function

if onednn.find_product() is None:
    pytest.skip("this torch has no oneDNN", allow_module_level=True)

multiply, transposed = onednn.multiply, onednn.multiply_transposed


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of each product that oneDNN made; it multiplies right on every processor, faster or not."""
    made: list[int] = []

    def spy(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made.append(x.numel() // x.shape[-1])
        return multiply(x, weight, bias)

    def spy_transposed(grad: Tensor, x: Tensor) -> Tensor:
        made.append(len(x))
        return transposed(grad, x)

    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    monkeypatch.setattr(onednn, "SMALL", 1 << 10)
    monkeypatch.setattr(onednn, "multiply", spy)
    monkeypatch.setattr(onednn, "multiply_transposed", spy_transposed)
    yield made


def built(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    module = Experts(count=4, top=2, width=96, gated=True).build(48)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2)
    return module.to(dtype)


def loss(module: nn.Module, x: Tensor) -> Tensor:
    y, losses = module(x)
    return (y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).sum() + losses["balance"]


def gradients(module: nn.Module, x: Tensor, *, compiled: bool = False) -> list[Tensor]:
    found = compile_function(loss)(module, x) if compiled else loss(module, x)
    return list(torch.autograd.grad(found, [x, *module.parameters()]))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_float64(calls: list[int], compiled: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 64, 48)
    found = gradients(built(torch.float32), x.clone().requires_grad_(), compiled=compiled)
    mine = len(calls)
    exact = gradients(built(torch.float64), x.double().requires_grad_())
    assert len(calls) == mine  # double precision stays with torch
    # Three products of each of two layers of four experts.
    assert mine >= 24 and all(rows >= onednn.FEWEST for rows in calls)
    for ours, theirs in zip(found, exact, strict=True):
        assert ((ours.double() - theirs).norm() / theirs.norm()).item() < 1e-5


def test_the_loss_of_a_large_vocabulary_multiplies_by_it(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_loss, "CHUNK", 40 * 300)  # forty tokens at a time, the last chunk short
    torch.manual_seed(2)
    made = torch.randn(90, 48), torch.randn(300, 48) * 0.2, torch.randn(300)
    targets = torch.randint(0, 300, (90,))
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [value.to(dtype).requires_grad_() for value in made]
        total = linear_cross_entropy(leaves[0], leaves[1], targets, bias=leaves[2], smoothing=0.1)
        found.append([total.detach(), *torch.autograd.grad(total, leaves)])
    # Two whole chunks with three products each; of one of ten tokens the gradient of the weight alone is of many rows.
    assert calls == [40] * 6 + [10]
    for ours, exact in zip(*found, strict=True):
        assert ((ours.double() - exact).norm() / exact.norm()).item() < 1e-6


def test_an_expert_that_nobody_chose_has_gradients_of_zero(calls: list[int]) -> None:
    module = built(torch.float32)
    with torch.no_grad():
        module.router.weight.zero_()  # type: ignore[union-attr, operator]
        module.router.weight[0] = 5.0  # type: ignore[union-attr, index]
        module.router.weight[1] = 4.0  # type: ignore[union-attr, index]
    gradients(module, torch.rand(1, 64, 48, requires_grad=True))
    loss(module, torch.rand(1, 64, 48)).backward()
    assert calls
    unused = module.experts[3].up.weight.grad  # type: ignore[index, union-attr]
    assert unused is not None and not unused.any()  # type: ignore[union-attr, operator]
    assert module.experts[0].up.weight.grad.any()  # type: ignore[index, union-attr, operator]
