"""Convolution along the text against torch's Conv1d and a loop over tokens and taps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import LM, Block, Convolution, Model, NoRelative, Stack, Tokens, UserError
from anyformer.core.context import lay_out
from anyformer.core.init import initialise
from tests.reference.copying import agree, deviation

B, T, D = 2, 9, 4
SHAPES = [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3), (7, 2)]
CPU = torch.device("cpu")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(spec: Convolution, causal: bool) -> Any:
    module = spec.build(D, causal=causal, relative=NoRelative()).double()
    initialise(module, "xavier", 0)
    return module


def run(module: Any, x: Tensor, **known: Any) -> Tensor:
    return module(x, lay_out(x.shape[0], x.shape[1], CPU, **known), None, ())


def naive(module: Any, line: Tensor, causal: bool) -> Tensor:
    """One line (T,D), tap by tap; outside it there is nothing."""
    spec, taps = module.spec, module.conv.weight.unbind(-1)  # taps in order of time, each (D or 2D, D)
    ahead = 0 if causal else spec.reach - spec.reach // 2
    answers = []
    for t in range(len(line)):
        y = module.conv.bias
        for j, tap in enumerate(reversed(taps)):
            at = t + ahead - j * spec.dilation
            if 0 <= at < len(line):
                y = y + tap @ line[at]
        answers.append(y[:D] * y[D:].sigmoid() if spec.gated else y)
    return torch.stack(answers)


@pytest.mark.quick
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("kernel", "dilation"), SHAPES)
def test_equal_to_a_loop_and_to_torch(kernel: int, dilation: int, causal: bool, gated: bool) -> None:
    module = made(Convolution(kernel, dilation=dilation, gated=gated), causal)
    x = numbers(B, T, D).requires_grad_()
    leaves = [x, *module.parameters()]
    ours = run(module, x)
    agree(ours, torch.stack([naive(module, line, causal) for line in x]), leaves)
    weight, bias = module.conv.weight, module.conv.bias
    reach = module.spec.reach  # torch's own padding="same" warns of even kernels, and does this
    given = F.pad(x.mT, (reach, 0) if causal else (reach // 2, reach - reach // 2))
    theirs = F.conv1d(given, weight, bias, dilation=dilation)
    agree(ours, F.glu(theirs, 1).mT if gated else theirs.mT, leaves)
    if kernel > 1:  # control: the other order is another answer
        assert deviation(ours, torch.stack([naive(module, line, not causal) for line in x])) > 1e-3


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_lines_end_where_padding_or_another_document_begins(causal: bool) -> None:
    module, x = made(Convolution(3, dilation=2), causal), numbers(B, T, D)
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :2] = mask[0, 5] = mask[1, 7:] = False
    documents = torch.tensor([[0] * T, [3] * 4 + [1] * 5])
    y = run(module, x, mask=mask, documents=documents)
    for row, cells in ((0, [2, 3, 4, 6, 7, 8]), (1, [0, 1, 2, 3]), (1, [4, 5, 6])):
        agree(y[row, cells], naive(module, x[row, cells], causal), list(module.parameters()))
    assert deviation(y[0, 2:], run(module, x)[0, 2:]) > 1e-3  # control: read straight through


@torch.no_grad()
def test_it_remembers_no_more_than_it_reaches() -> None:
    block = Block(mixer=Convolution(3, dilation=4))
    spec = Model(embed=Tokens(vocab=11), stack=Stack(width=8, depth=1, causal=True, block=block), head=LM())
    net = spec.build(dtype=torch.float64, seed=0).eval()
    text = torch.randint(0, 11, (1, 300), generator=torch.Generator().manual_seed(0))
    state, parts, sizes = net.state(1), [], []
    for t in range(300):
        parts.append(net(text[:, t : t + 1], state=state).logits)
        sizes.append(state.bytes)
    agree(torch.cat(parts, 1), net(text).logits)
    assert sizes[-1] == sizes[20] == (8 + 1) * 8 * 8


@torch.no_grad()
def test_what_lies_beyond_the_receptive_field_is_not_seen() -> None:
    """Two layers of kernel 3, dilated 1 and 2, see 2 + 4 tokens back, and not one more."""
    blocks = (Block(mixer=Convolution(3)), Block(mixer=Convolution(3, dilation=2)))
    spec = Model(embed=Tokens(vocab=11), stack=Stack(width=8, depth=2, causal=True, block=blocks), head=LM())
    net, text = spec.build(dtype=torch.float64, seed=0).eval(), torch.arange(11)[None]
    last = net(text).logits[:, -1]

    def moved(back: int) -> float:
        changed = text.clone()
        changed[:, -1 - back] = 3
        return (net(changed).logits[:, -1] - last).abs().max().item()

    assert all(moved(back) > 1e-6 for back in range(1, 7)) and moved(8) == moved(9) == 0.0


def test_settings_that_do_not_fit() -> None:
    for settings in ({"kernel": 0}, {"dilation": 0}):
        with pytest.raises(UserError, match="below 1"):
            Convolution(**settings)
