"""The runnable examples, run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.quick
def test_the_soft_dictionary_becomes_a_dictionary_and_a_plain_average(capsys: pytest.CaptureFixture[str]) -> None:
    example = loaded("soft_dictionary")
    for word, price in example.PRICES.items():
        assert abs(example.look_up(word, 0.01) - price) < 1e-6
        assert abs(example.look_up(word, 1e9) - 6.0) < 1e-6
        assert abs(example.look_up(word, 1.0) - price) > 0.1  # control: at temperature 1 it is a mixture
    example.main()
    printed = capsys.readouterr().out
    assert "dict[cheese] = 9.0, plain average = 6.0" in printed
    assert re.search(r"temperature +0\.01: attention gives 9\.000000", printed)
    assert re.search(r"temperature +1e\+09: attention gives 6\.000000", printed)


@pytest.mark.quick
def test_attention_is_a_kernel_average_and_a_product_of_features_costs_one_sum() -> None:
    example = loaded("soft_dictionary")
    q, k, v = (torch.randn(7, 4, dtype=torch.float64) for _ in range(3))
    weights = (q @ k.T / 2).softmax(-1)
    assert (example.kernel_average(q, k, v) - weights @ v).abs().max() < 1e-9
    slow, fast = example.feature_average(q, k, v)
    assert (slow - fast).abs().max() < 1e-9
    assert (slow - weights @ v).abs().max() > 1e-3  # another kernel, other weights


def test_the_graph_example_learns_under_sixty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    example = loaded("graph")
    assert len((EXAMPLES / "graph.py").read_text().splitlines()) < 60
    torch.manual_seed(0)
    right, commoner = example.main(steps=120)
    assert right > commoner + 0.1, f"{right:.2f} against {commoner:.2f}"
    assert "right on new graphs" in capsys.readouterr().out


@pytest.mark.quick
def test_a_node_of_the_graph_example_sees_its_neighbours_only() -> None:
    example = loaded("graph")
    stack = example.Stack(width=8, depth=2, block=example.Block(mixer=example.Attention(heads=2)))
    net = example.Model(embed=example.Nodes(features=4), stack=stack).build(seed=0)
    nodes, joined = torch.randn(1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.bool)
    joined[0, 0, 1] = joined[0, 1, 0] = joined[0, 2, 3] = joined[0, 3, 2] = True  # two separate pairs
    changed = nodes.clone()
    changed[0, 3] += torch.randn(4)
    before, after = net(nodes, joined).hidden, net(changed, joined).hidden
    assert torch.equal(before[:, :2], after[:, :2])
    assert (before[:, 2] - after[:, 2]).abs().max() > 1e-6  # control: the neighbour notices
