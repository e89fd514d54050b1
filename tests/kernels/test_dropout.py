"""Dropout by random bits: the shares, the mean and the gradients of torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.dropout import draw_mask, dropout

COUNT = 400_000


def share_off(dropped: Tensor, p: float) -> float:
    """How far the share of dropped entries is from p, in standard deviations of as many fair draws."""
    return abs(dropped.double().mean().item() - p) / (p * (1 - p) / dropped.numel()) ** 0.5


@pytest.mark.parametrize("p", [0.01, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_many_are_dropped_as_asked_and_the_mean_stays(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask = draw_mask(torch.ones(COUNT, dtype=dtype), p)
    assert share_off(mask == 0, p) < 5
    for lane in range(4):  # four entries share a word: each is as likely to be dropped, whatever bits it has
        assert share_off(mask[lane::4] == 0, p) < 5
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=2e-3)
    both = ((mask[0::2] == 0) & (mask[1::2] == 0)).double().mean().item()  # neighbours know nothing of each other
    assert abs(both - p * p) < 5 * (p * p / (COUNT / 2)) ** 0.5
    theirs = F.dropout(torch.ones(COUNT, dtype=dtype), p)
    assert abs(mask.mean() - theirs.mean()) < 10 * (p / (1 - p) / COUNT) ** 0.5


def test_control_words_without_a_sign_bit_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`random_()` without its range draws no negative numbers: the entry that has the sign bit is never dropped."""
    drawn = Tensor.random_
    monkeypatch.setattr(Tensor, "random_", lambda words, *_: drawn(words))
    mask = draw_mask(torch.ones(COUNT), 0.1)
    assert max(share_off(mask[lane::4] == 0, 0.1) for lane in range(4)) > 50


def test_gradients_pass_where_entries_do() -> None:
    x = torch.randn(7, 11, 3, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    y = dropout(x, 0.3)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, x * grad) and 0 < (grad == 0).sum() < grad.numel()


def test_a_seed_gives_a_mask() -> None:
    x = torch.randn(1001)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(dropout(x, 0.2))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3), (3, 0, 2)])
def test_odd_sizes(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_half_precision_is_torchs_own() -> None:
    x = torch.ones(64, dtype=torch.bfloat16)
    torch.manual_seed(0)
    mine = dropout(x, 0.25)
    torch.manual_seed(0)
    assert torch.equal(mine, F.dropout(x, 0.25))
