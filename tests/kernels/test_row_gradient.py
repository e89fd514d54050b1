"""Rows of a table whose gradient is a product: those of indexing, in any shape."""

from __future__ import annotations

import pytest
import torch

from anyformer.kernels.row_gradient import RowsOfTable


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_rows_and_their_gradient_are_those_of_indexing(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, dtype=torch.float64, generator=draw, requires_grad=True)
    ids = torch.randint(6, shape, generator=draw)
    found = RowsOfTable.apply(ids, rows)
    there = torch.randn(found.shape, dtype=torch.float64, generator=draw)
    ours, theirs = (torch.autograd.grad(values, rows, there)[0] for values in (found, rows[ids]))
    assert torch.equal(found, rows[ids])
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)
