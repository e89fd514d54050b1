"""Products by oneDNN equal torch's own, forward, backward and twice; everything that watches products sees torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core.linear import LinearLayer
from anyformer.kernels import onednn
from anyformer.kernels.compile import compile_function
from anyformer.kernels.onednn import (
    FEW,
    linear,
    missing_rows,
    multiply,
    multiply_transposed,
    register_operations,
    sum_of_outer,
    takes,
)  # fmt: skip

if onednn.find_product() is None:
    pytest.skip("this torch has no oneDNN", allow_module_level=True)

KEPT: list[object] = []  # operations are known for as long as somebody holds them
SHAPES = [((2, 64, 128), 256), ((3, 37, 65), 129), ((8, 197, 96), 33), ((1041, 64), 200)]


@pytest.fixture(autouse=True)
def every_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """oneDNN multiplies right on every processor, faster or not."""
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    monkeypatch.setattr(onednn, "SMALL", 1 << 10)
    yield


def given(shape: tuple[int, ...], outs: int) -> tuple[Tensor, nn.Parameter, nn.Parameter, Tensor]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(outs, shape[-1]) * shape[-1] ** -0.5)
    return (torch.randn(shape, requires_grad=True), weight, nn.Parameter(torch.randn(outs)),
            torch.randn(*shape[:-1], outs))  # fmt: skip


def error(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape and found.dtype == torch.float32
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("shape", "outs"), SHAPES)
def test_forward_and_gradients_are_those_of_float64(shape: tuple[int, ...], outs: int, with_bias: bool) -> None:
    x, weight, bias, grad = given(shape, outs)
    leaves = [x, weight, *([bias] if with_bias else [])]
    y = linear(x, weight, bias if with_bias else None)
    assert "Product" in type(y.grad_fn).__name__
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = F.linear(*exact_leaves)
    assert error(y, exact) < 1e-6
    assert error(y.detach() * 1.001, exact) > 1e-4  # the measure sees a thousandth
    ours = torch.autograd.grad(y, leaves, grad)
    theirs = torch.autograd.grad(exact, exact_leaves, grad.double())
    assert all(error(a, b) < 1e-6 for a, b in zip(ours, theirs, strict=True))
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias if with_bias else None), y)


def test_only_what_is_asked_for_is_computed() -> None:
    x, weight, bias, grad = given((4, 32, 64), 96)
    (only,) = torch.autograd.grad(linear(x, weight.detach(), bias.detach()), [x], grad)
    assert error(only, grad.double() @ weight.double()) < 1e-6
    (only,) = torch.autograd.grad(linear(x.detach(), weight, None), [weight], grad)
    assert error(only, torch.einsum("btn,btk->nk", grad.double(), x.double())) < 1e-6


def test_twice_differentiated_and_forward_mode() -> None:
    x, weight, bias, grad = given((2, 32, 48), 64)

    def penalty(product: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y = product(x, weight, bias).tanh()
        slopes = torch.autograd.grad(y, [x, weight], grad, create_graph=True)
        return torch.autograd.grad(slopes[0].square().sum() + slopes[1].square().sum(), [x, weight, bias])

    assert all(error(a, b) < 1e-5 for a, b in zip(penalty(linear), penalty(F.linear), strict=True))

    def tangent(product: Callable[..., Tensor]) -> Tensor:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(leaf.detach(), torch.ones_like(leaf)) for leaf in (x, weight, bias)]
            return forward_ad.unpack_dual(product(*duals)).tangent

    assert error(tangent(linear), tangent(F.linear)) < 1e-6


@pytest.mark.parametrize("rows", [16, 17, 100, 127, 128, 129, 1000, 1576])
def test_rows_of_zeros_change_nothing_and_shapes_are_few(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, grad = torch.randn(rows, 40), torch.randn(24, 40), torch.randn(rows, 24)
    assert error(multiply(x, weight, None), x.double() @ weight.double().T) < 1e-6
    assert error(multiply_transposed(grad, x), grad.double().T @ x.double()) < 1e-6
    assert error(sum_of_outer(grad, x), grad.double().T @ x.double()) < 1e-6
    assert 0 <= missing_rows(rows) <= rows / (8 if rows >= FEW else 4)
    assert not missing_rows(rows + missing_rows(rows))


def test_a_text_of_any_length_is_one_of_few_shapes() -> None:
    wanted = {rows + missing_rows(rows) for rows in range(1024, 2049)}
    assert len(wanted) == 9 and len(set(range(1024, 2049))) == 1025
    assert len({rows + missing_rows(rows) for rows in range(16, 257)}) == 17  # what a server reads


def test_the_same_product_twice_has_the_same_bits() -> None:
    x, weight, bias, grad = given((8, 100, 128), 512)
    first, second = (torch.autograd.grad(linear(x, weight, bias), [x, weight, bias], grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_few_rows_other_types_and_small_products_stay_with_torch() -> None:
    x, weight = torch.randn(64, 128), torch.randn(256, 128)
    assert takes(x, weight)
    assert not takes(x[:8], weight) and not takes(x.double(), weight.double()) and not takes(x.bfloat16(), weight)
    assert not takes(x[:0], weight) and not takes(x.to("meta"), weight.to("meta"))
    assert not takes(torch.randn(16, 4), torch.randn(4, 4))


def test_whoever_watches_products_sees_torchs_own() -> None:
    x, weight = torch.randn(64, 128), torch.randn(256, 128)
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * 64 * 128 * 256
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    assert torch.func.vmap(lambda row: linear(row, weight))(x[None].expand(2, -1, -1)).shape == (2, 64, 256)
    jacobian = torch.func.jacrev(lambda row: linear(row, weight).sum(0))(x)
    assert error(jacobian.sum((0, 1)) / 64, weight.sum(0)) < 1e-5
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not takes(x, weight)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert takes(x, weight)


def test_compiled_and_exported_graphs_hold_torchs_own() -> None:
    layer, x = LinearLayer(128, 256), torch.randn(64, 128)
    program = torch.export.export(layer, (x,))
    assert "aten.linear" in str(program.graph) and "mkldnn" not in str(program.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
        traced = torch.jit.trace(layer, x)
    assert "aten::linear" in str(traced.graph)
    assert error(layer(x), traced(x)) < 1e-6


@pytest.fixture
def known() -> None:
    """The nodes for torch's compiler, also on a processor where nothing is won."""
    if not onednn.registered:
        KEPT.append(register_operations.__wrapped__())
    assert onednn.registered


def test_a_compiled_training_step_multiplies_by_it_and_a_step_of_decoding_does_not(
    monkeypatch: pytest.MonkeyPatch, known: None
) -> None:
    calls: list[tuple[int, ...]] = []

    def spy(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(tuple(x.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(onednn, "multiply", spy)
    layer, (x, _, _, grad) = LinearLayer(128, 256), given((4, 32, 128), 256)

    def loss(x: Tensor) -> Tensor:
        return (layer(x).tanh() * grad).sum()

    compiled = compile_function(loss, fullgraph=True)
    leaves = [x, layer.weight, layer.bias]
    ours, theirs = torch.autograd.grad(compiled(x), leaves), torch.autograd.grad(loss(x), leaves)
    assert all(error(a, b) < 1e-6 for a, b in zip(ours, theirs, strict=True))
    in_graph = len(calls)
    assert in_graph >= 4  # forward and to x, compiled and not
    with torch.no_grad():
        assert error(compiled(x)[None], loss(x)[None].detach()) < 1e-5
        assert len(calls) == in_graph + 2  # many rows, compiled and not
        few = compile_function(layer, fullgraph=True)
        assert error(few(x[:1, :20]), layer(x[:1, :20])) < 1e-6
        assert len(calls) == in_graph + 3  # twenty rows only where nothing is compiled


def test_compiled_transforms_see_torchs_own(known: None) -> None:
    """A node without a rule for forward differentiation would drop the tangents and say nothing."""
    layer, x = LinearLayer(128, 256), torch.randn(64, 128)
    for transformed in (
        torch.func.vmap(layer), torch.func.grad(lambda row: layer(row).tanh().sum()),
        lambda x: torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1],
    ):  # fmt: skip
        found, exact = compile_function(transformed, fullgraph=True)(x), transformed(x)
        assert error(found.detach(), exact.detach()) < 1e-5 and exact.abs().max() > 0.1


def test_where_nothing_is_won_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    x, weight, bias, _ = given((2, 64, 128), 256)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
    assert "Product" not in type(linear(x, weight, bias).grad_fn).__name__
