"""Curves of numbers, and columns that become one token together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anyformer import FeedStack, Model, PeriodicCurve, PiecewiseCurve, Regress, Table, UserError

NUMBERS = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2


def test_a_piecewise_curve_is_the_broken_line_through_its_corners():
    curve = PiecewiseCurve(bins=6).build(3, 2).double()
    torch.nn.init.normal_(curve.weight)
    found = curve(NUMBERS).detach().numpy()
    for column in range(3):
        for channel in range(2):
            corners = np.concatenate([[0], np.cumsum(curve.weight[column, :, channel].detach().numpy())])
            wanted = np.interp(NUMBERS[:, column].numpy(), curve.edges, corners)
            np.testing.assert_allclose(found[:, column, channel], wanted, atol=1e-12)
            shifted = np.interp(NUMBERS[:, column].numpy(), np.add(curve.edges, 0.1), corners)
            assert np.abs(shifted - wanted).max() > 1e-3  # control: other corners


def test_bins_hold_as_many_rows_of_a_normal_column_each():
    edges = PiecewiseCurve(bins=10).build(1, 1).edges
    normal = np.random.default_rng(0).standard_normal(200_000)
    shares = np.histogram(normal, [-np.inf, *edges[1:-1], np.inf])[0] / len(normal)
    assert np.abs(shares - 0.1).max() < 0.005


def test_a_periodic_curve_is_its_formula():
    curve = PeriodicCurve(frequencies=4).build(3, 2).double()
    for parameter in curve.parameters():
        torch.nn.init.normal_(parameter)
    angle = 2 * np.pi * NUMBERS.numpy()[..., None] * curve.frequency.detach().numpy()
    waves = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    linear = np.stack([waves[:, f] @ curve.weight[f].detach().numpy() for f in range(3)], 1)
    wanted = np.maximum(linear + curve.shift.detach().numpy(), 0)
    np.testing.assert_allclose(curve(NUMBERS).detach().numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("curve", [None, PiecewiseCurve(bins=4), PeriodicCurve(frequencies=2)])
def test_joined_columns_are_the_tokens_of_a_table_side_by_side_times_one_matrix(curve):
    apart = Table(numbers=3, categories=(4, 2), cls=False, missing=True, curve=curve)
    joined = filled(apart.replace(joined=5).build(7))
    tokens = filled(apart.build(5))
    tokens.load_state_dict({k: v for k, v in joined.state_dict().items() if not k.startswith("project.")})
    numbers, categories = NUMBERS.clone(), torch.arange(100).reshape(50, 2) % 2
    numbers[3, 1], categories[4, 0] = torch.nan, -1
    columns = tokens(numbers, categories, context=tokens.layout(numbers, categories))
    wanted = joined.project(columns.flatten(1))[:, None]
    found = joined(numbers, categories, context=joined.layout(numbers, categories))
    assert found.shape == (50, 1, 7) and found.isfinite().all()
    torch.testing.assert_close(found, wanted)
    swapped = joined.project(columns.flip(1).flatten(1))[:, None]
    assert (swapped - wanted).abs().max() > 1e-3  # control: the columns have places


def filled(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.double()


def test_feeds_alone_are_a_residual_mlp():
    spec = FeedStack(width=6, depth=2)
    stack = filled(spec.build())
    x = torch.randn(4, 1, 6, dtype=torch.float64)
    wanted = x
    for block in stack.blocks:
        wanted = wanted + block.feed.down(torch.nn.functional.gelu(block.feed.up(wanted)))
    torch.testing.assert_close(stack(x, None)[0], wanted)
    assert len(stack.every(x, None)) == 2 and not spec.mixers


def test_a_class_token_beside_joined_columns_is_refused():
    with pytest.raises(UserError, match="need no class token"):
        Table(numbers=2, joined=4)
    with pytest.raises(UserError, match="cannot be decoded step by step"):
        Model(embed=Table(numbers=2, cls=False, joined=4), stack=FeedStack(width=8, depth=1),
              head=Regress()).build(seed=0).stack.state(1, None)  # fmt: skip
