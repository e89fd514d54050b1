"""Lines, and what mixers remember that are not attention."""

from __future__ import annotations

import pytest
import torch

from anyformer import UserError
from anyformer.core.context import lay_out
from anyformer.core.document_rows import DocumentLines
from anyformer.core.history import InputHistory, RecurrentState
from tests.laws.nets import gap, numbers

pytestmark = pytest.mark.quick
CPU = torch.device("cpu")
X = numbers(2, 6, 3)


def test_without_padding_and_documents_nothing_moves() -> None:
    assert DocumentLines.of(lay_out(2, 6, CPU)) is None


@pytest.mark.parametrize(
    "mask",
    [[[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 0, 1]], [[0] * 6, [1] * 6]],
    ids=["left", "right-and-holes", "a-row-of-padding"],
)
def test_padding_goes_behind_and_comes_back_as_zero(mask: list[list[int]]) -> None:
    real = torch.tensor(mask).bool()
    lines = DocumentLines.of(lay_out(2, 6, CPU, mask=real))
    assert lines is not None
    apart = lines.apart(X)
    for row in range(2):
        kept = X[row][real[row]]
        assert torch.equal(apart[row, : len(kept)], kept) and not apart[row, len(kept) :].any()
    assert lines.lengths.tolist() == real.sum(1).tolist()
    assert torch.equal(lines.filled, torch.arange(6) < real.sum(1, keepdim=True))
    assert torch.equal(lines.together(apart), X * real[..., None])
    assert not torch.equal(apart, X) or bool(real[0].all())  # control: something did move


def test_each_document_is_a_line() -> None:
    documents = torch.tensor([[7, 7, 3, 3, 3, 7], [1, 1, 1, 1, 1, 1]])  # an id used again is another document
    lines = DocumentLines.of(lay_out(2, 6, CPU, documents=documents))
    assert lines is not None
    apart = lines.apart(X)
    assert lines.lengths.tolist() == [2, 3, 1, 6, 0, 0]
    assert torch.equal(apart[0, :2], X[0, :2]) and torch.equal(apart[1, :3], X[0, 2:5])
    assert torch.equal(apart[2, :1], X[0, 5:]) and torch.equal(apart[3], X[1])
    assert torch.equal(lines.together(apart), X)
    assert lines.first.tolist() == [0, 3] and lines.last.tolist() == [2, 3]


def test_a_document_begins_from_memory_only_where_it_goes_on() -> None:
    from anyformer.core.state import State

    state = State([], batch=2)
    lay_out(2, 3, CPU, documents=torch.tensor([[0, 0, 1], [0, 0, 0]]), state=state)
    context = lay_out(2, 2, CPU, documents=torch.tensor([[1, 2], [5, 5]]), state=state)
    lines = DocumentLines.of(context)
    assert lines is not None
    start = lines.begin(torch.tensor([[1.0], [2.0]]), context)
    assert start.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]  # the second row's document is new


def test_a_gradient_comes_through_both_ways() -> None:
    mask = torch.tensor([[False, True, True, True, False, True], [True] * 6])
    lines = DocumentLines.of(lay_out(2, 6, CPU, mask=mask))
    assert lines is not None
    x = X.clone().requires_grad_()
    lines.together(lines.apart(x) * 2).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2.0 * mask[..., None].expand_as(x))


def test_inputs_grow_roll_and_go_back() -> None:
    held = InputHistory()
    for t in range(6):
        got = held.update(X[:, t : t + 1], window=3)
    assert torch.equal(got, X[:, 3:]) and held.span == 3
    with pytest.raises(UserError, match="rolling=False"):
        held.truncate(4)
    whole = InputHistory(limit=6)
    whole.update(X)
    whole.truncate(2)
    whole.select(torch.tensor([1, 1, 0]))
    assert torch.equal(
        whole.update(X[:1].expand(3, -1, -1)[:, 2:3]), torch.cat([X[[1, 1, 0], :2], X[[0, 0, 0], 2:3]], 1)
    )
    assert whole.bytes == 3 * 3 * 3 * 8


def test_a_running_state_goes_back_only_where_it_kept_its_steps() -> None:
    state = RecurrentState(now=(torch.zeros(2, 1),))
    steps = [(torch.full((2, 1), float(t)),) for t in (1, 2, 3)]
    state.update(steps[-1], 3, steps)
    state.truncate(2)
    assert state.now[0].tolist() == [[2.0], [2.0]] and state.length == 2
    state.truncate(0)
    assert not state.now[0].any()
    blind = RecurrentState()
    blind.update(steps[-1], 3)
    with pytest.raises(UserError, match="rolling=False"):
        blind.truncate(1)
    blind.select(torch.tensor([0]))
    assert blind.now[0].shape == (1, 1) and gap(blind.now[0], torch.full((1, 1), 3.0)) == 0 and blind.bytes == 4
