"""What needs whole layers or matrices is trained in parts as in one process: adapters, Muon, positions of heads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.training.distributed.combinations import TRIALS
from tests.training.distributed.launch import run
from tests.training.nursery import Nursery

NAMES = {2: list(TRIALS), 4: ["lora", "muon", "alibi"]}
CASES = [(size, f"{kind} {name}") for size, names in NAMES.items() for name in names for kind in TRIALS[name].kinds]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> dict[int, list[dict[str, Any]]]:
    """What 2 and 4 processes measured, by rank."""
    folder = tmp_path_factory.mktemp("combinations")
    for size, names in NAMES.items():
        run(nursery, [str(folder), *names], folder, size, call="tests.training.distributed.combinations:main")
    return {n: [json.loads((folder / f"{n}-{rank}.json").read_text()) for rank in range(n)] for n in NAMES}


@pytest.mark.parametrize(("size", "name"), CASES)
def test_steps_are_those_of_one_process(figures: Any, size: int, name: str) -> None:
    """The first weights to the bit, gradients in single precision, six steps and their weights in double."""
    assert len(figures[size]) == size
    for found in (rank[name] for rank in figures[size]):
        assert found["starts"] == 1.0
        assert found["gradients"] < 1e-6
        assert found["curve"] < 1e-9 and found["weights"] < 1e-9
        assert found["moved"] > 0.1


def test_gradients_that_are_not_added_up_are_noticed(figures: Any) -> None:
    """The control: adapters with the gradient of one process's heads and channels alone."""
    assert all(rank["control"]["gradients"] > 1e-2 for size in NAMES for rank in figures[size])
