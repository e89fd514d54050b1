"""The attending decoder against a loop over rows, steps and source tokens, and its alignments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    LM,
    AttendingRecurrent,
    Block,
    Model,
    NoRelative,
    Recurrent,
    Seq2Seq,
    Stack,
    Tokens,
    UserError,
    attention_maps,
)
from anyformer.core.context import Context, lay_out
from anyformer.core.init import initialise
from tests.reference.copying import agree, deviation

B, T, S, D, MEMORY, HIDDEN = 2, 5, 4, 6, 7, 3
KINDS = {
    "additive": AttendingRecurrent("gru", hidden=HIDDEN),
    "additive-lstm": AttendingRecurrent("lstm", hidden=HIDDEN),
    "general": AttendingRecurrent("rnn", hidden=HIDDEN, score="general"),
    "dot": AttendingRecurrent("gru", hidden=MEMORY, score="dot"),
    "every": AttendingRecurrent("gru", hidden=HIDDEN, context="every"),
    "first": AttendingRecurrent("lstm", hidden=HIDDEN, context="first"),
}
MASK = torch.tensor([[False, True, True, True], [True, True, False, False]])
every_kind = pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(spec: AttendingRecurrent) -> Any:
    module = spec.build(D, causal=True, relative=NoRelative(), memory_width=MEMORY).double()
    initialise(module, "xavier", 0)
    return module


def looking(memory: Tensor, memory_mask: Tensor | None, **known: Any) -> Context:
    context = lay_out(B, T, torch.device("cpu"), **known)
    return replace(context, memory=memory, memory_mask=memory_mask)


def gated(cell: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a cell, gate by gate."""
    own = (cell.weight_ih_l0 @ x + cell.bias_ih_l0).split(cell.hidden)
    past = (cell.weight_hh_l0 @ h + cell.bias_hh_l0).split(cell.hidden)
    if cell.kind == "rnn":
        return (own[0] + past[0]).tanh(), c
    if cell.kind == "gru":
        reset, update = (own[0] + past[0]).sigmoid(), (own[1] + past[1]).sigmoid()
        return (1 - update) * (own[2] + reset * past[2]).tanh() + update * h, c
    enter, forget, new, leave = (a + b for a, b in zip(own, past, strict=True))
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def fit(module: Any, s: Tensor, h: Tensor) -> Tensor:
    """e_ij of one state and one source token."""
    if module.spec.score == "additive":
        return module.align.score.weight[0] @ torch.tanh(module.align.state.weight @ s + module.align.memory.weight @ h)
    return s @ (h if module.spec.score == "dot" else module.align.memory.weight @ h)


def naive(module: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One row: tokens (T,D) over the real tokens (S,D') of its source; answers and alignments."""
    ends = torch.cat([memory[0], memory[-1]])
    begin = torch.tanh(module.begin.weight @ ends + module.begin.bias)
    h, c = begin[: module.cell.hidden], begin[-module.cell.hidden :]
    answers, alignments = [], []
    for token in x:
        read = ends
        if module.spec.context == "attention":
            scores = torch.stack([fit(module, h, source) for source in memory])
            weights = scores.exp() / scores.exp().sum()
            read = sum((a * source for a, source in zip(weights, memory, strict=True)), torch.zeros(1))
            alignments.append(weights)
        if module.spec.context == "first":
            read = token[:0]
        h, c = gated(module.cell, torch.cat([token, read]), h, c)
        answers.append(module.out.weight @ torch.cat([h, read]) + module.out.bias)
    return torch.stack(answers), alignments


@pytest.mark.quick
@every_kind
def test_equal_to_a_loop_with_its_gradients(spec: AttendingRecurrent) -> None:
    module, x, memory = made(spec), numbers(B, T, D).requires_grad_(), numbers(B, S, MEMORY, seed=1).requires_grad_()
    ours = module(x, looking(memory, MASK), None, ())
    wanted = torch.stack([naive(module, x[row], memory[row][MASK[row]])[0] for row in range(B)])
    leaves = [x, memory, *module.parameters()]
    agree(ours, wanted, leaves)
    blind = torch.stack([naive(module, x[row], memory[row])[0] for row in range(B)])
    assert deviation(ours, blind, leaves) > 1e-3  # control: the source's padding taken for text
    agree(module(x, looking(memory, None), None, ()), blind, leaves)


@pytest.mark.parametrize("name", ["additive", "additive-lstm", "general", "dot"])
@torch.no_grad()
def test_alignments_are_those_of_the_loop_and_sum_to_one(name: str) -> None:
    module, x, memory = made(KINDS[name]), numbers(B, T, D), numbers(B, S, MEMORY, seed=1)
    weights = module.weights(x, looking(memory, MASK), None, (), slice(None))
    assert weights.shape == (B, 1, T, S)
    agree(weights.sum(-1), torch.ones(B, 1, T, dtype=torch.float64))
    for row in range(B):
        agree(weights[row, 0][:, MASK[row]], torch.stack(naive(module, x[row], memory[row][MASK[row]])[1]))
    assert not weights[:, 0].transpose(1, 2)[~MASK].any()  # padding has no weight
    agree(module.weights(x, looking(memory, MASK), None, (), slice(1, 3)), weights[:, :, 1:3])


def test_documents_of_one_row_start_anew_and_padding_is_stepped_over() -> None:
    for spec in KINDS.values():
        module, x, memory = made(spec), numbers(B, T, D), numbers(B, S, MEMORY, seed=1)
        documents = torch.tensor([[0, 0, 1, 1, 1]] * B)
        mask = torch.tensor([[True, True, True, False, True], [False, True, True, True, True]])
        y = module(x, looking(memory, None, mask=mask, documents=documents), None, ())
        for row, cells in ((0, [0, 1]), (0, [2, 4]), (1, [1]), (1, [2, 3, 4])):
            agree(y[row, cells], naive(module, x[row, cells], memory[row])[0])


@torch.no_grad()
def test_a_source_of_padding_only_stays_finite() -> None:
    module, x = made(KINDS["additive"]), numbers(B, T, D)
    memory, mask = numbers(B, S, MEMORY, seed=1), torch.tensor([[True] * 4, [False] * 4])
    y = module(x, looking(memory, mask), None, ())
    weights = module.weights(x, looking(memory, mask), None, (), slice(None))
    assert y.isfinite().all() and not weights[1].any() and weights[0].sum(-1).allclose(torch.ones(1).double())


def pair(decoder: AttendingRecurrent) -> Seq2Seq:
    """A recurrent encoder-decoder whose two sides differ in width."""
    forth = Block(mixer=Recurrent("gru", hidden=4), feed=None)
    back = Block(mixer=decoder, feed=None)
    return Seq2Seq(
        encoder=Model(embed=Tokens(vocab=11), stack=Stack(width=8, depth=1, block=forth)),
        decoder=Model(embed=Tokens(vocab=13), stack=Stack(width=6, depth=2, block=back, causal=True)),
        head=LM(tied=False),
    )  # fmt: skip


@torch.no_grad()
def test_maps_of_a_whole_model_and_the_source_computed_once() -> None:
    net = pair(AttendingRecurrent("gru")).build(dtype=torch.float64, seed=0).eval()
    source, target = torch.arange(8).view(2, 4), torch.arange(10).view(2, 5)
    maps = attention_maps(net, source, target, source_mask=torch.tensor([[True] * 4, [True, True, False, False]]))
    assert sorted(maps) == ["decoder.stack.blocks.0.mixer", "decoder.stack.blocks.1.mixer"]
    for (weights,) in maps.values():
        agree(weights.sum(-1), torch.ones(2, 1, 5, dtype=torch.float64))
        assert not weights[1, ..., 2:].any() and weights[0].std() > 1e-3
    counted = {"memory": 0, "state": 0}
    for name in counted:
        part = getattr(net.decoder.stack.blocks[0].mixer.align, name)
        part.register_forward_hook(lambda *_, name=name: counted.__setitem__(name, counted[name] + 1))
    state, full = net.state(2), net(source, target).logits
    assert counted == {"memory": 1, "state": 5}
    steps = [net(source, target[:, :2], state=state).logits] + [
        net(None, target[:, t : t + 1], state=state).logits for t in range(2, 5)
    ]
    agree(torch.cat(steps, 1), full)
    assert counted == {"memory": 2, "state": 10}  # once for the text, once a step
    assert state.bytes == 2 * 2 * (6 + 4 * 6) * 8  # layers x rows x (state + keys of four source tokens)


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"a state of 6 and a memory of 8 channels have no product.*general"):
        pair(AttendingRecurrent("gru", score="dot")).build(device="meta")
    fitting = pair(AttendingRecurrent("gru", hidden=8, score="dot"))
    fitting.build(device="meta")
    with pytest.raises(UserError, match="a state of 8 and a memory of 6 channels have no product"):
        fitting.decoder.build()(torch.ones(1, 2, dtype=torch.long), memory=torch.ones(1, 3, 6))
    with pytest.raises(UserError, match="there is no score to choose"):
        AttendingRecurrent("gru", context="first", score="dot")
    with pytest.raises(UserError, match="below 1"):
        AttendingRecurrent("gru", hidden=0)
