"""Attention on `meta`: shapes and visible pairs are those of real attention."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from anyformer.core.attend import Scores, attend
from anyformer.kernels.shape_only import visible_pairs


@pytest.mark.parametrize("queries, keys", [(1, 1), (5, 5), (1, 7), (3, 7)])
def test_pairs_are_those_of_the_mask(queries: int, keys: int) -> None:
    for causal, window in product((True, False), (None, 1, 2, 4, 9)):
        index = torch.arange(keys)[None]
        scores = Scores(
            scale=1.0, causal=causal, window=window, query_index=index[:, keys - queries :], key_index=index
        )
        seen = scores.visible()
        expected = queries * keys if seen is None else int(seen.sum())
        assert visible_pairs(queries, keys, scores) == expected, (causal, window)


def test_shapes_and_gradients_on_meta() -> None:
    def given(device: str) -> list[torch.Tensor]:
        sizes = [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)]
        return [torch.zeros(size, device=device, requires_grad=True) for size in sizes]

    scores = Scores(scale=1.0)
    here, there = given("cpu"), given("meta")
    real, shape = attend(*here, scores), attend(*there, scores)
    assert shape.is_meta and shape.shape == real.shape
    shape.sum().backward()
    assert [x.grad.shape for x in there if x.grad is not None] == [x.shape for x in there]
