"""What a plan for a CPU makes of its measured rates, with rates that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anyformer import preset
from anyformer.planning.costs import count_costs
from anyformer.planning.devices import DEVICES, DeviceCeilings, HostPace, HostTimes, PairPace
from anyformer.planning.timing import product_rate, time_decode, time_of, time_step
from anyformer.planning.trace import OpCost, PassCost
from anyformer.presets.decoders import gpt2

NOTHING = HostPace(0.0, 0.0)
HOST = HostTimes(
    use=NOTHING, decode=HostPace(1e-3, 0.0), training=NOTHING, backward=NOTHING, tensor=0.0, function=0.0, drawn=0.0,
    reading=((1.0, 1e15),), large=((1e6, 100e9), (1e9, 200e9)), small=((1e6, 50e9), (1e9, 50e9)),
    attends=PairPace(1e-9, 0.0), attends_back=PairPace(2e-9, 0.0), attends_one=PairPace(5e-9, 0.0),
)  # fmt: skip
HERE = replace(DEVICES["cpu"], host=HOST, bandwidth=1e15)


def product(flops: int, weights: int = 0, experts: int = 0) -> OpCost:
    return OpCost("mlp", "product", flops, 0, flops, weights=weights, experts=experts)


def test_products_of_many_rows_are_faster_the_larger_they_are_and_experts_multiply_by_themselves() -> None:
    large, larger = product(10**8), product(10**9)
    assert 100e9 < product_rate(large, HERE) < product_rate(larger, HERE) == 200e9
    assert product_rate(product(10**9, experts=10), HERE) == product_rate(large, HERE)  # of a tenth each
    assert product_rate(product(10**9, experts=1000), HERE) == 50e9
    assert product_rate(product(10**9, weights=10**9), HERE) == 50e9  # few rows
    assert product_rate(large, DEVICES["h200"]) == DEVICES["h200"].products


def pairs_of(length: int) -> int:
    found = count_costs(gpt2(32, 1, 2, vocab=64, length=2048, dropout=0.0), 1, length, torch.float32).training
    (op,) = (op for op in found.ops if op.kind == "attention")
    assert op.computed == op.pairs * 4 * 16
    return op.pairs


def test_a_cpu_computes_hidden_pairs_in_blocks_of_512_keys() -> None:
    assert pairs_of(64) == 2 * 64**2 and pairs_of(512) == 2 * 512**2  # two heads
    rows = sum(512 if i < 512 else 1024 for i in range(1024))
    assert pairs_of(1024) == pytest.approx(2 * rows, rel=0.01)


@pytest.mark.parametrize(("back", "seconds"), [(False, 1e-9), (True, 2e-9)])
def test_attention_takes_what_its_pairs_take(back: bool, seconds: float) -> None:
    costs = count_costs(gpt2(32, 1, 2, vocab=64, length=64, dropout=0.0), 1, 64, torch.float32)
    cost = costs.backward if back else costs.training
    found = time_of(cost, HERE, None, HOST.attends_back if back else None)
    assert found.attention == pytest.approx(2 * 64**2 * seconds)


def test_a_bias_that_learns_takes_longer_than_one_that_does_not() -> None:
    spec = preset("t5-small-tiny")
    found = count_costs(spec, 2, 16, torch.float32)

    def functions(cost: PassCost) -> int:
        return sum(count * op.numbers for op, count in cost.ops.items() if op.kind == "attention")

    assert functions(found.training) > 0 == functions(found.forward)


def test_a_decode_step_has_its_own_paces() -> None:
    spec = gpt2(32, 1, 2, vocab=64, length=64, dropout=0.0)
    cost = count_costs(spec, 1, 64, torch.float32).decode
    found = time_decode(cost, HERE)
    assert found.attention == pytest.approx(2 * 64 * 5e-9)
    assert found.launches == pytest.approx(1e-3 * (cost.launches + cost.beside))


def test_a_step_is_forward_backward_and_update() -> None:
    costs = count_costs(gpt2(32, 1, 2, vocab=64, length=64, dropout=0.0), 1, 64, torch.float32)

    def attention(device: DeviceCeilings) -> float:
        return time_step(costs, 1, 1, device).attention

    assert attention(HERE) == pytest.approx(2 * 64**2 * 3e-9)
    slower = replace(HOST, attends_back=PairPace(4e-9, 0.0))
    assert attention(replace(HERE, host=slower)) == pytest.approx(2 * 64**2 * 5e-9)
