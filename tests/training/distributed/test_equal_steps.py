"""A step of several processes is the step of one: gradients, curves, first weights; and what each of them holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.training.distributed.launch import run
from tests.training.nursery import Nursery
from tests.training.test_engine import TASKS

KINDS = ["ddp", "fsdp", "tensor"]
TASKS_OF = {2: [*TASKS, "gated"], 4: ["gated"]}  # `make prove-distributed` has all of them for both


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> dict[int, list[dict[str, Any]]]:
    """What 2 and 4 processes measured, by rank."""
    folder = tmp_path_factory.mktemp("figures")
    for size, tasks in TASKS_OF.items():
        run(nursery, [str(folder), *tasks], folder, size, call="tests.training.distributed.checks:main")
    return {n: [json.loads((folder / f"{n}-{rank}.json").read_text()) for rank in range(n)] for n in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_one_process(figures: Any, kind: str, size: int) -> None:
    for found in figures[size]:
        assert list(found[kind]["gradients"]) == TASKS_OF[size]
        for task, off in found[kind]["gradients"].items():
            assert off < 1e-6, (task, off)
        assert found["control"] > 1e-2  # processes that do not add up are noticed


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_steps_in_double_precision_are_those_of_one_process(figures: Any, kind: str, size: int) -> None:
    assert all(found[kind]["curve"] < 1e-9 for found in figures[size])


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_are_those_of_one_process(figures: Any, kind: str) -> None:
    assert all(found[kind]["starts"] for size in (2, 4) for found in figures[size])


@pytest.mark.parametrize("size", [2, 4])
def test_a_parameter_has_a_gradient_where_any_process_used_it(figures: Any, size: int) -> None:
    """One that nobody used has none: a gradient of zeros would let AdamW shrink it."""
    total = size * (size + 1) / 2
    assert all(found["unused"] == [[total] * 3, [5.0] * 3, None] for found in figures[size])


def test_fsdp_leaves_each_process_its_share_of_the_memory(figures: Any) -> None:
    """Parameters, gradients and optimizer; a vector that does not divide evenly costs a few numbers."""
    for size in (2, 4):
        for found in figures[size]:
            assert found["fsdp"]["bytes"] == pytest.approx(found["alone"] / size, rel=0.02)
            assert found["ddp"]["bytes"] == found["alone"]  # the control: copies save nothing
            assert found["alone"] / size < found["tensor"]["bytes"] < found["alone"]
