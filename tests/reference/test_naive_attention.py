"""Our attention against loops over batch, head and query: every setting of it, outputs and all gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Attention, NoRelative, RMSNorm
from tests.reference import naive
from tests.reference.copying import agree, context_of, deviation, real_tokens, seeded, shaken

B, T, D, H = 2, 6, 16, 4


def built(*, causal: bool = False, **settings: Any) -> Any:
    return shaken(Attention(**({"heads": H} | settings)).build(D, causal=causal, relative=NoRelative()))


def run(module: Any, x: Tensor, **given: Any) -> Tensor:
    return module(x, context_of(x, **given), None, ())


@pytest.mark.quick
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_every_number_of_heads_equals_the_loop(heads: int) -> None:
    module, x = built(heads=heads), seeded(B, T, D)
    scale = (D / heads) ** -0.5
    agree(run(module, x), naive.attend(x, module, scale=scale), [x, *module.parameters()])
    assert deviation(run(module, x), naive.attend(x, module, scale=2 * scale)) > 1e-3


@pytest.mark.quick
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_fewer_key_heads_equal_the_loop(groups: int, bias: bool) -> None:
    module, x = built(kv_heads=groups, bias=bias), seeded(B, T, D)
    assert module.qkv.weight.shape[0] == 4 * (H + 2 * groups)
    agree(run(module, x), naive.attend(x, module, scale=0.5), [x, *module.parameters()])


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_equal_full_heads_with_keys_and_values_repeated(groups: int) -> None:
    few, many, x = built(kv_heads=groups, bias=False), built(bias=False), seeded(B, T, D)
    rows = few.qkv.weight.detach().view(groups, H // groups + 2, 4, D)
    repeated = [torch.cat([rows[g, i : i + 1], rows[g, -2:]]) for g in range(groups) for i in range(H // groups)]
    many.load_state_dict({"qkv.weight": torch.cat(repeated).flatten(0, 1), "out.weight": few.out.weight.detach()})
    agree(run(few, x), run(many, x), [x])
    with torch.no_grad():
        many.qkv.weight += 1e-3
    assert deviation(run(few, x), run(many, x)) > 1e-6


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(8, 24), (6, 3), (4, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_key_and_value_sizes_apart_equal_the_loop(groups: int, sizes: tuple[int, int], causal: bool) -> None:
    module = built(kv_heads=groups, key_size=sizes[0], value_size=sizes[1], causal=causal)
    x = seeded(B, T, D)
    assert module.out.weight.shape == (D, H * sizes[1])
    expected = naive.attend(x, module, scale=sizes[0] ** -0.5, sees=lambda b, h, i, j: j <= i or not causal)
    agree(run(module, x), expected, [x, *module.parameters()])
    assert deviation(run(module, x), naive.attend(x, module, scale=sizes[0] ** -0.5 * 1.01)) > 1e-5


@pytest.mark.quick
@pytest.mark.parametrize(("setting", "factor"), [("sqrt", 0.5), ("none", 1.0), (0.3, 0.3)])
def test_each_scale_setting_equals_the_loop(setting: float | str, factor: float) -> None:
    module, x = built(scale=setting), seeded(B, T, D)
    agree(run(module, x), naive.attend(x, module, scale=factor), [x, *module.parameters()])
    assert deviation(run(module, x), naive.attend(x, module, scale=factor * 1.1)) > 1e-3


@pytest.mark.parametrize("window", [1, 2, 4, 6, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_equals_the_loop(window: int, causal: bool) -> None:
    module, x = built(window=window, causal=causal), seeded(B, T, D)

    def near(b: int, h: int, i: int, j: int) -> bool:
        return 0 <= i - j < window if causal else abs(i - j) < window

    agree(run(module, x), naive.attend(x, module, scale=0.5, sees=near), [x, *module.parameters()])
    if window < T:
        off_by_one = naive.attend(x, module, scale=0.5, sees=lambda b, h, i, j: near(b, h, i, j) or i - j == window)
        assert deviation(run(module, x), off_by_one) > 1e-3


@pytest.mark.parametrize("cap", [0.5, 3.0])
def test_a_soft_cap_equals_the_loop(cap: float) -> None:
    module, x = built(soft_cap=cap, causal=True), seeded(B, T, D)
    past = {"scale": 0.5, "sees": lambda b, h, i, j: j <= i}
    agree(run(module, x), naive.attend(x, module, soft_cap=cap, **past), [x, *module.parameters()])
    assert deviation(run(module, x), naive.attend(x, module, **past)) > 1e-3


@pytest.mark.parametrize("groups", [2, 4])
def test_normed_queries_and_keys_equal_the_loop(groups: int) -> None:
    module, x = built(qk_norm=RMSNorm(eps=1e-5), kv_heads=groups), seeded(B, T, D)
    agree(run(module, x), naive.attend(x, module, scale=0.5), [x, *module.parameters()])
    plain = built(kv_heads=groups)
    plain.load_state_dict({k: v for k, v in module.state_dict().items() if "norm" not in k})
    assert deviation(run(module, x), run(plain, x)) > 1e-3


def rule_of(kind: str) -> Tensor:
    return seeded(*{"a head": (B, H, T, T), "shared": (1, 1, T, T), "a row": (B, 1, T, T)}[kind], seed=5, grad=False)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["a head", "shared", "a row"])
@pytest.mark.parametrize("causal", [False, True])
def test_any_boolean_rule_equals_the_loop_and_a_row_that_sees_nothing_gives_zeros(kind: str, causal: bool) -> None:
    module, x = built(causal=causal), seeded(B, T, D)
    mask = rule_of(kind) > 0
    mask[:, :, 2] = False  # the third query may look nowhere
    at = mask.expand(B, H, T, T)

    def sees(b: int, h: int, i: int, j: int) -> bool:
        return bool(at[b, h, i, j]) and (j <= i or not causal)

    agree(run(module, x, mask=mask), naive.attend(x, module, scale=0.5, sees=sees), [x, *module.parameters()])
    assert torch.equal(run(module, x, mask=mask)[:, 2], module.out.bias.expand(B, D))
    assert deviation(run(module, x, mask=~mask), naive.attend(x, module, scale=0.5, sees=sees)) > 1e-3


@pytest.mark.parametrize("kind", ["a head", "shared", "a row"])
@pytest.mark.parametrize("causal", [False, True])
def test_any_additive_term_equals_the_loop_even_where_it_hides(kind: str, causal: bool) -> None:
    module, x = built(causal=causal), seeded(B, T, D)
    term = rule_of(kind)
    term = term.masked_fill(term < -1, -math.inf)
    term[:, :, 0] = -math.inf
    at = term.expand(B, H, T, T)
    expected = naive.attend(
        x, module, scale=0.5, sees=lambda b, h, i, j: j <= i or not causal, bias=lambda b, h, i, j: at[b, h, i, j]
    )
    agree(run(module, x, mask=term), expected, [x, *module.parameters()])
    # Control: L1's slide puts the term inside the 1/sqrt bracket, where a finite one is shrunk.
    assert deviation(run(module, x, mask=term * 0.5), expected) > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_equals_the_loop_over_real_tokens(side: str, causal: bool) -> None:
    module, x = built(causal=causal), seeded(B, T, D)
    real = real_tokens((6, 3), T, side)
    expected = naive.attend(
        x, module, scale=0.5, sees=lambda b, h, i, j: bool(real[b, j]) and (j <= i or not causal)
    )  # fmt: skip
    kept = real[..., None]
    agree(run(module, x, mask=real), expected, [x, *module.parameters()], where=kept)
    if not (causal and side == "right"):  # there the padding lies in the future and is hidden anyway
        assert deviation(run(module, x), expected, where=kept) > 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_documents_windows_padding_and_a_function_together_equal_the_loop(causal: bool, window: int | None) -> None:
    module, x = built(causal=causal, window=window), seeded(B, 9, D)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 3, 3, 3, 3]])
    real = real_tokens((9, 7), 9)

    def odd_or_self(i: Any, j: Any) -> Any:  # ranks within a document
        return ((i + j) % 2 == 0) | (i - j == 1)

    rank = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 0, 1, 2, 3]])

    def sees(b: int, h: int, i: int, j: int) -> bool:
        near = window is None or (0 <= i - j < window if causal else abs(i - j) < window)
        allowed = bool(odd_or_self(rank[b, i], rank[b, j]))
        return bool(real[b, j]) and documents[b, i] == documents[b, j] and near and allowed and (j <= i or not causal)

    out = run(module, x, mask=(real, odd_or_self), documents=documents)
    expected = naive.attend(x, module, scale=0.5, sees=sees)
    agree(out, expected, [x, *module.parameters()], where=real[..., None])
    assert deviation(run(module, x, mask=(real, odd_or_self)), expected, where=real[..., None]) > 1e-3


def test_packed_documents_equal_separate_passes() -> None:
    module, x = built(causal=True), seeded(1, 9, D)
    documents = torch.tensor([[4, 4, 4, 1, 1, 1, 1, 2, 2]])
    apart = torch.cat([run(module, part) for part in x.split([3, 4, 2], 1)], 1)
    agree(run(module, x, documents=documents), apart, [x, *module.parameters()])
    assert deviation(run(module, x), apart) > 1e-3
