"""Recurrence against the lectures' equations, torch's own cells and a loop that writes every gate out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import LM, Block, Model, NoRelative, Recurrent, Stack, Tokens, UserError
from anyformer.core.context import lay_out
from anyformer.core.init import initialise
from tests.reference.copying import agree, deviation

CELLS = ("rnn", "gru", "lstm")
THEIRS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
B, T, D = 3, 7, 6
CPU = torch.device("cpu")
every_cell = pytest.mark.parametrize("cell", CELLS)


def made(spec: Recurrent, *, causal: bool = True, width: int = D, seed: int = 0) -> Any:
    """The module in float64, filled."""
    module = spec.build(width, causal=causal, relative=NoRelative()).double()
    initialise(module, "xavier", seed)
    return module


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(module: Any, x: Tensor, **known: Any) -> Tensor:
    return module(x, lay_out(x.shape[0], x.shape[1], CPU, **known), None, ())


def naive(cell: Any, tokens: Tensor, truncate: int | None = None) -> Tensor:
    """One line (T,D), gate by gate; every `truncate` tokens the state forgets where it came from."""
    h = c = torch.zeros(cell.hidden, dtype=torch.float64)
    answers = []
    for t, x in enumerate(tokens):
        if truncate is not None and t % truncate == 0:
            h, c = h.detach(), c.detach()
        own = (cell.weight_ih_l0 @ x + cell.bias_ih_l0).split(cell.hidden)
        past = (cell.weight_hh_l0 @ h + cell.bias_hh_l0).split(cell.hidden)
        if cell.kind == "rnn":
            h = (own[0] + past[0]).tanh()
        elif cell.kind == "gru":
            reset, update = (own[0] + past[0]).sigmoid(), (own[1] + past[1]).sigmoid()
            new = (own[2] + reset * past[2]).tanh()
            h = (1 - update) * new + update * h
        else:
            enter, forget, new, leave = (a + b for a, b in zip(own, past, strict=True))
            c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = leave.sigmoid() * c.tanh()
        answers.append(h)
    return torch.stack(answers)


def gradients(module: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """At the input and at every parameter, in their order."""
    weighted = (y * numbers(*y.shape, seed=9)).sum()
    return list(torch.autograd.grad(weighted, [x, *module.parameters()]))


@pytest.mark.quick
def test_w19_the_lectures_two_steps() -> None:
    """W19: h_t = tanh(U h_{t-1} + W x_t) with U = .5, W = 1, x = (1, 0) and h_0 = 0."""
    module = made(Recurrent("rnn"), width=1)
    with torch.no_grad():
        module.forth.weight_hh_l0.fill_(0.5)
        module.forth.weight_ih_l0.fill_(1.0)
        module.forth.bias_ih_l0.zero_()
        module.forth.bias_hh_l0.zero_()
    h = run(module, torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)).flatten()
    assert torch.allclose(h, torch.tensor([0.761594, 0.363399], dtype=torch.float64), atol=5e-7)
    y = (torch.tensor([[1.0], [-1.0]], dtype=torch.float64) @ h[None]).softmax(0)  # y_t = softmax(V h_t)
    assert torch.allclose(y.sum(0), torch.ones(2, dtype=torch.float64)) and y[0, 0] > y[0, 1] > 0.5


@pytest.mark.quick
@pytest.mark.parametrize("causal", [True, False], ids=["one-way", "both-ways"])
@every_cell
def test_equal_to_torch(cell: Any, causal: bool) -> None:
    """The same parameters by the same names, in one direction and in two."""
    module = made(Recurrent(cell, hidden=3 if not causal else D), causal=causal)
    theirs = THEIRS[cell](D, 3 if not causal else D, batch_first=True, bidirectional=not causal).double()
    own = {name.removeprefix("forth."): p for name, p in module.named_parameters() if name.startswith("forth.")}
    own |= {
        f"{name.removeprefix('back.')}_reverse": p for name, p in module.named_parameters() if name.startswith("back.")
    }
    theirs.load_state_dict(own)
    x, same = numbers(B, T, D).requires_grad_(), numbers(B, T, D).requires_grad_()
    ours, wanted = run(module, x), theirs(same)[0]
    agree(ours, wanted)
    for mine, other in zip(gradients(module, x, ours), gradients(theirs, same, wanted), strict=True):
        agree(mine, other)


@pytest.mark.parametrize("truncate", [None, 3], ids=["whole", "truncated"])
@every_cell
def test_equal_to_a_loop_with_its_gradients(cell: Any, truncate: int | None) -> None:
    """Forwards nothing is cut; backwards the gradient stops every three tokens, as `detach` in a loop does."""
    module = made(Recurrent(cell, hidden=4, truncate=truncate)).train()
    x = numbers(B, T, D).requires_grad_()
    ours = run(module, x)

    def loop(cut: int | None) -> Tensor:
        return torch.stack([module.out(naive(module.forth, line, cut)) for line in x])

    leaves = [x, *module.parameters()]
    agree(ours, loop(truncate), leaves)
    agree(ours, loop(None))
    assert deviation(run(module, x), loop(None if truncate else 3), leaves) > 1e-4  # control: cut elsewhere


def test_truncation_cuts_in_training_only_and_in_both_directions() -> None:
    module = made(Recurrent("gru", truncate=2), causal=False).train()

    def reached(token: int) -> list[bool]:
        x = numbers(1, 6, D).requires_grad_()
        run(module, x)[0, token].sum().backward()
        assert x.grad is not None
        return (x.grad[0].abs().amax(-1) > 0).tolist()

    assert reached(3) == [False, False, True, True, False, False]
    assert reached(0) == [True, True, False, False, False, False]
    module.eval()
    assert all(reached(3))  # control: outside training all tokens count


@every_cell
def test_two_directions_read_unequal_lines_from_their_own_ends(cell: Any) -> None:
    module = made(Recurrent(cell, hidden=4), causal=False)
    x = numbers(2, T, D)
    mask = torch.tensor([[False, False, True, True, True, False, True], [True] * 4 + [False] * 3])
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0] * 7])
    y = run(module, x, mask=mask, documents=documents)
    for row, cells in ((0, [2, 3]), (0, [4, 6]), (1, [0, 1, 2, 3])):
        line = x[row, cells]
        both = torch.cat([naive(module.forth, line), naive(module.back, line.flip(0)).flip(0)], -1)
        agree(y[row, cells], module.out(both), [*module.parameters()])


def test_how_it_starts() -> None:
    """As torch's: within hidden^-1/2; the forget gate of an LSTM starts open."""
    for cell in CELLS:
        forth = made(Recurrent(cell, hidden=64), width=32).forth
        for name, parameter in forth.named_parameters():
            rows = parameter[64:128] - 1.0 if cell == "lstm" and name == "bias_ih_l0" else parameter
            assert rows.abs().max() <= 64**-0.5 and rows.std() > 0.4 * 64**-0.5


def test_settings_that_do_not_fit() -> None:
    block = Block(mixer=Recurrent("gru", directions=2))
    with pytest.raises(UserError, match=r"two directions read the future.*directions=1"):
        Stack(width=8, depth=1, causal=True, block=block)
    assert Stack(width=8, depth=1, block=block).build().blocks[0].mixer.back is not None
    one = Stack(width=8, depth=1, block=Block(mixer=Recurrent("gru", directions=1)))
    assert one.build().blocks[0].mixer.back is None
    for settings in ({"hidden": 0}, {"truncate": 0}, {"cell": "tanh"}, {"directions": 3}):
        with pytest.raises(UserError):
            Recurrent(**settings)


@torch.no_grad()
def test_half_precision_on_a_cpu() -> None:
    """Torch's LSTM in bf16 can end a process on some CPUs: it is computed in float32 there, under autocast too."""
    for cell in CELLS:
        spec = Model(embed=Tokens(vocab=11), head=LM(),
                     stack=Stack(width=16, depth=1, causal=True, block=Block(mixer=Recurrent(cell))))  # fmt: skip
        text = torch.arange(10)[None] % 7
        net = spec.build(seed=0, dtype=torch.bfloat16).eval()
        state = net.state(1)
        full = net(text).logits
        parts = torch.cat([net(text[:, :6], state=state).logits, net(text[:, 6:], state=state).logits], 1)
        assert full.dtype == torch.bfloat16 and (full - parts).abs().max() < 0.02 * full.abs().max()
        with torch.autocast("cpu", torch.bfloat16):
            assert net.float()(text).logits.isfinite().all()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_compiled_block_leaves_the_cell_as_it_is() -> None:
    """The compiler would write out every token of every length; around the cell it compiles."""
    block = Block(mixer=Recurrent("gru"))
    spec = Model(embed=Tokens(vocab=11), stack=Stack(width=8, depth=1, causal=True, block=block), head=LM())
    net, compiled = spec.build(seed=0), spec.build(seed=0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled.stack.blocks[0].compile(backend="eager", dynamic=True)
    calls = []
    for length in (6, 40):
        text = torch.randint(0, 11, (3, length), generator=torch.Generator().manual_seed(0))
        assert (compiled(text).logits - net(text).logits).abs().max() < 1e-5
        calls.append(torch._dynamo.utils.counters["stats"]["calls_captured"])
    torch._dynamo.reset()
    assert calls[0] == calls[1] > 3
