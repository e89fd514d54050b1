"""Twice the text costs a sub-quadratic mixer twice as much, from 8,192 tokens on; attention four times."""

from __future__ import annotations

import pytest
import torch

from anyformer import Attention, Block, BlockSparse, Hyena, LinearAttention, Local, LowRank, Mixer, Model, Stack, Tokens
from anyformer.planning.costs import count_costs

SHORT, LONG = 8192, 16384
MOST = 2.2
MIXERS = [Local(heads=4, window=64), BlockSparse(heads=4, block=64), LowRank(heads=4, rank=32, longest=LONG),
          LinearAttention(heads=4), Hyena(longest=LONG)]  # fmt: skip


def growth(mixer: Mixer) -> tuple[float, float]:
    """How much more a training step of the longer text takes: FLOPs, and what is kept for the backward pass."""
    block = Block(mixer=mixer)
    spec = Model(embed=Tokens(vocab=8), stack=Stack(width=64, depth=1, causal=mixer.causal_form, block=block))
    short, long = (count_costs(spec, 1, length, torch.float32) for length in (SHORT, LONG))
    flops = [cost.step.flops + cost.step.fourier for cost in (short, long)]
    return flops[1] / flops[0], long.training.saved / short.training.saved


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: type(mixer).__name__)
def test_twice_the_text_is_twice_the_work(mixer: Mixer) -> None:
    assert max(growth(mixer)) <= MOST


def test_control_attention_takes_four_times_as_much() -> None:
    assert growth(Attention(heads=4))[0] > 3.5
