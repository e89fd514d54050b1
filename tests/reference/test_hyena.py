"""Hyena against its formulas: the Toeplitz product, loops over tokens, and what a filter must not depend on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Hyena, UserError
from anyformer.core.context import lay_out
from anyformer.core.state import LayerState, State
from anyformer.mixers import fft
from anyformer.mixers.fft import convolve, fast_size
from anyformer.positions.none import NoRelative
from tests.laws.nets import EXACT, filled, gap, numbers

WIDTH = 6


def toeplitz(ahead: Tensor, behind: Tensor | None, length: int) -> Tensor:
    """(D,T,T): row t, column s holds the tap of lag t - s."""
    lags, places = ahead.shape[-1], torch.arange(length)
    lag = places[:, None] - places
    whole = ahead[:, lag.clamp(0, lags - 1)] * ((lag >= 0) & (lag < lags))
    if behind is not None:
        whole = whole + behind[:, (-lag).clamp(0, lags - 1)] * ((lag < 0) & (-lag < lags))
    return whole


def gradients(y: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * numbers(*y.shape, seed=9)).sum(), inputs)


@pytest.mark.quick
@pytest.mark.parametrize("both", [False, True], ids=["causal", "both-ways"])
@pytest.mark.parametrize("length,lags", [(1, 1), (7, 7), (32, 32), (33, 33), (50, 9), (200, 200)])
def test_transforms_equal_the_toeplitz_product(length: int, lags: int, both: bool) -> None:
    u, ahead = numbers(3, 4, length).requires_grad_(), numbers(4, lags, seed=1).requires_grad_()
    behind = numbers(4, lags, seed=2).requires_grad_() if both else None
    inputs = [u, ahead] + ([behind] if behind is not None and length > 1 else [])
    got = convolve(u, ahead, behind)
    wanted = torch.einsum("dts,bds->bdt", toeplitz(ahead, behind, length), u)
    assert gap(got, wanted) < EXACT
    for a, b in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
        assert gap(a, b) < EXACT
    with torch.no_grad():
        assert gap(convolve(u, ahead, behind), wanted) < EXACT  # nothing is kept for a way back


@pytest.mark.quick
def test_w27_a_causal_convolution_by_transforms() -> None:
    """Filter (1, 2, 3) on (1, 1, 1) is 1, 3, 6; a wrapped product would be 6, 6, 6."""
    got = convolve(torch.ones(1, 1, 3, dtype=torch.float64), torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
    assert gap(got, torch.tensor([[[1.0, 3.0, 6.0]]], dtype=torch.float64)) < EXACT
    spectrum = torch.fft.fft(torch.tensor([1.0, 2.0, 3.0])) * torch.fft.fft(torch.ones(3))
    assert gap(torch.fft.ifft(spectrum).real, torch.full((3,), 6.0)) < 1e-5
    longer = torch.fft.rfft(torch.tensor([1.0, 2.0, 3.0]), 5) * torch.fft.rfft(torch.ones(3), 5)
    assert gap(torch.fft.irfft(longer, 5)[:3], torch.tensor([1.0, 3.0, 6.0])) < 1e-5  # 3 + 3 - 1: room for all


def test_a_circle_that_is_too_short_or_not_turned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what wraps around shows in the answers, and in what the past sees of the future."""
    u, taps = numbers(2, 4, 40), numbers(4, 40, seed=1)
    wanted = torch.einsum("dts,bds->bdt", toeplitz(taps, None, 40), u)
    assert gap(convolve(u, taps), wanted) < EXACT
    monkeypatch.setattr(fft, "fast_size", lambda length: length)
    assert gap(convolve(u, taps), wanted) < EXACT  # turned, the length itself is enough
    unturned = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(40, 2)
    monkeypatch.setattr(fft, "turned", lambda size, like: unturned)
    wrapped = convolve(u, taps)
    assert gap(wrapped, wanted) > 1
    changed = u.clone()
    changed[..., 20:] = numbers(2, 4, 20, seed=3)
    assert gap(convolve(changed, taps)[..., :20], wrapped[..., :20]) > 1


@pytest.mark.quick
def test_sizes_have_small_factors_and_little_waste() -> None:
    for length in range(1, 5000):
        size = fast_size(length)
        assert length <= size <= max(32, 1.26 * length)
        for factor in (2, 3, 5, 7):
            while size % factor == 0:
                size //= factor
        assert size == 1


def built(spec: Hyena, causal: bool, width: int = WIDTH) -> Any:
    return filled(spec.build(width, causal=causal, relative=NoRelative()).double())


def run(net: Any, x: Tensor, **given: Any) -> Tensor:
    return net(x, lay_out(*x.shape[:2], x.device, **given), None, ())


def by_hand(net: Any, x: Tensor) -> Tensor:
    """The whole operator for one text (T,D), a token and a tap at a time."""
    spec, width = net.spec, net.width
    streams = [x[t] @ net.streams.weight.T + net.streams.bias for t in range(len(x))]
    ahead = 0 if net.causal else spec.short // 2
    filtered = []
    for t in range(len(x)):
        total = net.short.bias
        for j in range(spec.short):
            if 0 <= t - j + ahead < len(x):
                total = total + net.short.weight[j, 0] * streams[t - j + ahead]
        filtered.append(total)
    parts = [[s[i * width : (i + 1) * width] for s in filtered] for i in range(spec.order + 1)]
    value, gates = parts[0], parts[1:]
    taps = net.long(min(len(x), spec.longest))
    for n in range(spec.order - 1):
        u = [a * b for a, b in zip(value, gates[n], strict=True)]
        value = []
        for t in range(len(x)):
            total = torch.zeros_like(u[0])
            for s in range(len(x)):
                if 0 <= t - s < spec.longest:
                    total = total + taps[n, 0, :, t - s] * u[s]
                elif not net.causal and 0 < s - t < spec.longest:
                    total = total + taps[n, 1, :, s - t] * u[s]
            value.append(total)
    y = [a * b for a, b in zip(value, gates[-1], strict=True)]
    return torch.stack(y) @ net.out.weight.T + net.out.bias


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("order,short,longest", [(2, 3, 16), (3, 3, 16), (3, 2, 4), (2, 1, 9)])
def test_the_operator_equals_a_loop(order: int, short: int, longest: int, causal: bool) -> None:
    net = built(Hyena(order=order, short=short, longest=longest, filter_width=5), causal)
    x = numbers(2, 9, WIDTH).requires_grad_()
    got, wanted = run(net, x), torch.stack([by_hand(net, row) for row in x])
    assert gap(got, wanted) < EXACT
    inputs = [x, *net.parameters()]
    for a, b in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
        assert gap(a, b) < EXACT


def test_taps_are_the_formula() -> None:
    """exp(-rate k / longest) times the network's answer; the free tap joins at lag 0 of the past alone."""
    net = built(Hyena(order=3, longest=20, bands=1, filter_width=4, filter_depth=2), causal=False)
    taps, long = net.long(12), net.long
    for k in (0, 1, 11):
        t = k / 20
        h = torch.tensor([t, math.cos(2 * math.pi * t), math.sin(2 * math.pi * t)], dtype=torch.float64)
        for layer in long.layers:
            h = torch.sin(layer.frequency * (layer.weight @ h + layer.bias))
        h = (long.taps @ h).view(2, 2, WIDTH)
        for channel in range(WIDTH):
            slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
            wanted = h[:, :, channel] * math.exp(-t * (slow + (fast - slow) * channel / (WIDTH - 1)))
            if k == 0:
                wanted = wanted + torch.stack([long.skip[:, channel], torch.zeros(2)], 1)
            assert gap(taps[:, :, channel, k], wanted) < EXACT


@pytest.mark.quick
def test_a_lag_has_one_tap_however_long_the_text_is() -> None:
    net = built(Hyena(longest=64), causal=True)
    assert gap(net.long(64)[..., :10], net.long(10)) < EXACT
    x = numbers(1, 100, WIDTH)
    whole = run(net, x)
    for length in (1, 5, 64, 65, 99):
        assert gap(run(net, x[:, :length]), whole[:, :length]) < EXACT
    assert gap(built(Hyena(longest=65), causal=True).long(10), net.long(10)) > 1e-3  # control: another scale


@pytest.mark.quick
def test_what_is_further_away_than_the_longest_lag_is_not_seen() -> None:
    net = built(Hyena(longest=8, short=1), causal=True)
    x = numbers(1, 40, WIDTH)
    changed = x.clone()
    changed[:, :20] += 1
    moved = (run(net, x) - run(net, changed)).abs().amax((0, 2))
    assert moved[27:].max() < 1e-12 and moved[26] > 1e-6  # the last to see token 19 is token 26


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("order", [2, 3])
def test_padding_and_documents_are_texts_of_their_own(order: int, causal: bool) -> None:
    net = built(Hyena(order=order, longest=16), causal)
    with torch.no_grad():
        net.short.bias.add_(1.0)  # a cell without a token must stay 0 all the same
    x = numbers(1, 12, WIDTH)
    mask = torch.tensor([[False, True, True, False, True, True, True, True, True, False, True, False]])
    got = run(net, x, mask=mask)
    assert gap(got[mask], run(net, x[mask][None])[0]) < EXACT
    documents = torch.tensor([[5, 5, 5, 5, 2, 2, 2, 9, 9, 9, 9, 9]])
    got = run(net, x, documents=documents)
    for a, b in ((0, 4), (4, 7), (7, 12)):
        assert gap(got[:, a:b], run(net, x[:, a:b])) < EXACT
    assert gap(got, run(net, x)) > 1e-3  # control: read as one text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_low_precision_stays_near_and_the_taps_exact(dtype: torch.dtype) -> None:
    """Neighbouring lags differ although bf16 cannot tell 1000 from 1001."""
    exact = built(Hyena(longest=2048), causal=True, width=16)
    rough = built(Hyena(longest=2048), causal=True, width=16).to(dtype)
    exact.load_state_dict({name: value.double() for name, value in rough.state_dict().items()})
    taps, same = rough.long(2048), exact.long(2048)
    assert taps.dtype == torch.float32 and gap(taps.double(), same) < 1e-3
    assert gap(rough.long(2048)[..., 1000], taps[..., 1001]) > 1e-5
    x = numbers(1, 300, 16).to(dtype)
    got, wanted = run(rough, x), run(exact, x.double())
    assert got.dtype == dtype
    assert gap(got.double(), wanted) < {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype] * wanted.abs().max().item()


@pytest.mark.quick
def test_autocast_leaves_the_filters_in_float32() -> None:
    net = filled(Hyena(longest=2048).build(16, causal=True, relative=NoRelative()))
    plain = net.long(2048)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net.long(2048), plain)


@pytest.mark.quick
@pytest.mark.parametrize("length", [64, 1000, 4096])
@torch.no_grad()
def test_the_future_leaves_rounding_alone(length: int) -> None:
    """A transform mixes all places: what comes back of the future is within 1e-6 of the answers, in float64 1e-12."""
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        net = built(Hyena(longest=length), causal=True).to(dtype)
        x = numbers(1, length, WIDTH).to(dtype)
        changed = x.clone()
        changed[:, length // 2 :] = numbers(1, length - length // 2, WIDTH, seed=5)
        before, after = run(net, x), run(net, changed)
        assert gap(before[:, : length // 2], after[:, : length // 2]) < bound * before.abs().max().item()
        assert gap(before[:, length // 2 :], after[:, length // 2 :]) > 1e-3  # control


@torch.no_grad()
def test_a_step_computes_no_filter_twice_and_memory_stays_flat() -> None:
    """Taps are computed once and when a text outgrows them; beyond the longest lag inputs are dropped."""
    net = built(Hyena(order=3, longest=100), causal=True)
    asked: list[int] = []
    net.long.register_forward_pre_hook(lambda module, given: asked.append(given[0]))
    past = net.state(1, None)
    state = State([LayerState(past)], 1)
    x, steps = numbers(1, 330, WIDTH), []
    for t in range(330):
        steps.append(net(x[:, t : t + 1], lay_out(1, 1, x.device, state=state), past, ()))
    assert asked == [64, 100]
    assert past.bytes == 8 * WIDTH * (4 * 3 + 2 * 100)
    assert gap(torch.cat(steps, 1), run(net, x)) < EXACT


@pytest.mark.parametrize("wrong", [{"order": 1}, {"short": 0}, {"longest": 0}, {"bands": -1}, {"filter_depth": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Hyena(**wrong)
