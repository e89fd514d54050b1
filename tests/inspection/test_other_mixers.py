"""Maps of mixers without attention: exact where they are linear, against impulses, loops and torch's own cells."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyformer import LM, Attention, Block, Convolution, Hyena, Model, Recurrent, Stack, Tokens, UserError
from anyformer.core.context import lay_out
from anyformer.inspection.capture import look
from anyformer.inspection.other_mixers import (
    cell_gates,
    convolution_blocks,
    gates_of,
    hyena_matrices,
    hyena_values,
    matrix_of,
    memory,
    sizes_of,
    token_jacobian,
)

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35]])


def built(mixer, *, causal=True, width=6):
    torch.manual_seed(0)
    block = Block(mixer=mixer, feed=None)
    spec = Model(embed=Tokens(vocab=40), stack=Stack(width=width, depth=1, causal=causal, block=block), head=LM())
    model = spec.build(seed=0).double().eval()
    for parameter in model.stack.parameters():  # as large as after training, so that a tolerance means something
        nn.init.normal_(parameter, std=0.5)
    return model


def text(width=6, length=7):
    return torch.randn(length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", [2, 3])
def test_the_matrix_of_hyena_gives_what_its_transforms_give(order, causal):
    mixer = built(Hyena(order=order, longest=5, filter_width=8), causal=causal).stack.blocks[0].mixer
    x = text()
    with torch.no_grad():
        whole = hyena_matrices(mixer, x)
        answer = torch.einsum("dts,sd->td", whole, hyena_values(mixer, x))
        wanted = mixer.whole(mixer.short(mixer.streams(x[None])))[0]
    torch.testing.assert_close(answer, wanted, atol=1e-9, rtol=1e-7)
    assert whole.abs().sum(0).tril(-5).abs().max() == 0 or order > 2  # one filter reaches `longest` tokens back
    assert (whole.triu(1).abs().max() == 0) == causal
    assert not torch.allclose(torch.einsum("dts,sd->td", whole.mT, hyena_values(mixer, x)), wanted)  # control


def test_an_impulse_in_the_values_of_hyena_gives_a_column():
    mixer = built(Hyena(longest=16, filter_width=8)).stack.blocks[0].mixer
    x = text()
    with torch.no_grad():
        whole = hyena_matrices(mixer, x)
        streams = mixer.short(mixer.streams(x[None]))
        for s, d in [(0, 0), (3, 5), (6, 2)]:
            pulse = streams.clone()
            pulse[..., :6] = 0.0
            pulse[0, s, d] = 1.0
            torch.testing.assert_close(mixer.whole(pulse)[0, :, d], whole[d, :, s], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "spec", [Convolution(3), Convolution(4), Convolution(3, dilation=2), Convolution(3, gated=True)]
)
def test_the_blocks_of_a_convolution_give_its_answer(spec, causal):
    mixer = built(spec, causal=causal).stack.blocks[0].mixer
    x = text()
    with torch.no_grad():
        blocks = convolution_blocks(mixer, x)
        summed = torch.einsum("tsij,sj->ti", blocks, x)
        bias = mixer.conv.bias[:6]
        if spec.gated:
            own = nn.functional.pad(x.T[None], (mixer.left, spec.reach - mixer.left))
            value, gate = mixer.conv(own)[0].T.chunk(2, -1)
            wanted = (value - bias) * gate.sigmoid()
        else:
            wanted = mixer.convolve(x[None])[0] - bias
    torch.testing.assert_close(summed, wanted, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("spec", [Hyena(filter_width=8), Convolution(3)])
def test_derivatives_of_linear_mixers_are_their_blocks(spec):
    """By autograd: the size of the derivative of a convolution is that of its kernel."""
    mixer = built(spec).stack.blocks[0].mixer
    context = lay_out(1, 7, torch.device("cpu"))
    found = token_jacobian(lambda given: mixer(given, context, None, ()), text())
    assert found.triu(1).abs().max() < 1e-12 < 1e-3 < found.tril().max()  # a transform rounds
    if isinstance(spec, Convolution):
        torch.testing.assert_close(found, sizes_of(mixer, text()), atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_gates_are_those_of_a_loop_over_torchs_formulas(kind):
    cell = built(Recurrent(kind)).stack.blocks[0].mixer.forth
    x = text()
    made = cell_gates(cell, x)
    theirs = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind](6, cell.hidden, batch_first=True).double()
    theirs.load_state_dict(cell.state_dict())
    with torch.no_grad():
        wanted = theirs(x[None])[0][0]
    torch.testing.assert_close(made["state"], wanted)
    h, c = torch.zeros(cell.hidden, dtype=torch.float64), torch.zeros(cell.hidden, dtype=torch.float64)
    for t in range(7):  # the state follows from the gates alone
        if kind == "lstm":
            c = made["forget"][t] * c + made["input"][t] * made["cell"][t]
            h = made["output"][t] * c.tanh()
        elif kind == "gru":
            h = made["update"][t] * h + (1 - made["update"][t]) * made["new"][t]
        else:
            h = made["new"][t]
        torch.testing.assert_close(h, wanted[t])


def test_what_a_gated_cell_holds_is_the_sum_of_what_it_was_written():
    x = text()
    gru = built(Recurrent("gru")).stack.blocks[0].mixer.forth
    made = cell_gates(gru, x)
    torch.testing.assert_close(torch.einsum("uts,su->tu", memory(gru, x), made["new"]), made["state"])
    lstm = built(Recurrent("lstm")).stack.blocks[0].mixer.forth
    made = cell_gates(lstm, x)
    held = torch.einsum("uts,su->tu", memory(lstm, x), made["cell"])
    torch.testing.assert_close(made["output"] * held.tanh(), made["state"])
    wrong = torch.einsum("uts,su->tu", memory(lstm, x), made["input"])
    assert not torch.allclose(made["output"] * wrong.tanh(), made["state"])  # control


def test_the_memory_of_a_plain_recurrence_is_its_derivative():
    cell = built(Recurrent("rnn")).stack.blocks[0].mixer.forth
    x = text()
    entered = (x @ cell.weight_ih_l0.T).detach().requires_grad_()  # du_s is also d(W x)_s
    h, states = torch.zeros(6, dtype=torch.float64), []
    for t in range(7):
        h = torch.tanh(entered[t] + cell.bias_ih_l0 + cell.weight_hh_l0 @ h + cell.bias_hh_l0)
        states.append(h)
    with torch.no_grad():
        found = memory(cell, x)
    for t, u in [(0, 0), (4, 3), (6, 5)]:
        (slope,) = torch.autograd.grad(states[t][u], entered, retain_graph=True)
        torch.testing.assert_close(found[u, t], slope.norm(dim=-1))


@pytest.mark.parametrize(
    "spec", [Hyena(filter_width=8), Convolution(3), Recurrent("gru"), Recurrent("lstm"), Recurrent("rnn")]
)
@pytest.mark.parametrize("causal", [True, False])
def test_a_capture_shows_a_map_of_shares(spec, causal):
    capture = look(built(spec, causal=causal), IDS)
    assert [site.kind for site in capture.sites] == ["other"]
    found = capture.weights(0)
    assert found.shape == (1, 7, 7) and found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 7))
    assert (found.triu(1).abs().max() == 0) == causal
    assert torch.equal(capture.weights(0, rows=slice(2, 4)), found[:, 2:4])


def test_padding_takes_and_gives_nothing():
    model = built(Recurrent("gru"))
    capture = look(model, IDS)
    padded = torch.cat([IDS, torch.zeros(1, 3, dtype=torch.long)], 1)
    capture_padded = look(model, (padded,))
    plain = matrix_of(capture, 0)
    call = capture_padded.found.mixers[0]
    context = model.embed.layout(padded, mask=torch.arange(10)[None] < 7)
    call.given = (call.given[0], context, *call.given[2:])
    found = matrix_of(capture_padded, 0)
    torch.testing.assert_close(found[:, :7, :7], plain)
    assert found[:, 7:].abs().max() == 0 and found[:, :, 7:].abs().max() == 0


def test_gates_of_a_capture_go_both_ways():
    capture = look(built(Recurrent("lstm"), causal=False), IDS)
    found = gates_of(capture, 0)
    assert {"input", "forget", "forget (back)", "state (back)"} <= set(found)
    assert all(gate.shape[0] == 7 for gate in found.values())
    with pytest.raises(UserError, match="no gates"):
        gates_of(look(built(Convolution(3)), IDS), 0)


def test_a_derivative_shows_who_mixes_tokens_and_who_does_not():
    """Attention is dense below the diagonal where it is causal; a feed is exactly block-diagonal."""
    x, context = text(), lay_out(1, 7, torch.device("cpu"))
    attention = built(Attention(heads=2)).stack.blocks[0].mixer
    found = token_jacobian(lambda given: attention(given, context, None, ()), x)
    assert found.triu(1).abs().max() == 0 and (found.tril() > 0).sum() == 28
    feed = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()
    diagonal = token_jacobian(feed, x)
    assert (diagonal - diagonal.diag().diag()).abs().max() == 0
    wanted = torch.autograd.functional.jacobian(feed, x[2])
    torch.testing.assert_close(diagonal[2, 2], wanted.norm())


@pytest.mark.parametrize("spec", [Hyena(filter_width=8), Convolution(3), Recurrent("gru"), Recurrent("lstm")])
def test_half_precision_gives_nearly_the_same_map(spec):
    model = built(spec)
    exact = look(model, IDS).weights(0)
    half = look(model.bfloat16(), IDS).weights(0)
    assert half.dtype == torch.float32 and (half - exact).abs().max() < 0.05
    torch.testing.assert_close(half.sum(-1), torch.ones(1, 7))
