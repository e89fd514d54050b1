"""The grid, generated from the parts: every value of every slot beside every value of every other.

A cell runs (forward, backward, decode, padding, causality, JSON) or is refused when it is made, with a reason that is
shown true. `make test` prints how many did which.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from anyformer import Attention, Rope, Tokens, UserError
from tests.laws.broken import Peeking
from tests.laws.cell import AXES, REFUSED, assemble, every_law, forward_and_decode, walk
from tests.laws.refusals import REASONS, shown_true

PAIRS = [
    pytest.param(first, name, second, id=f"{name}-x-{second}")
    for first, second in itertools.combinations(AXES, 2)
    for name in AXES[first]
]


@pytest.mark.parametrize(("first", "name", "second"), PAIRS)
def test_every_pair_of_parts_runs_or_is_refused(first: str, name: str, second: str, cells: Counter) -> None:
    for value in AXES[second].values():
        walk({first: AXES[first][name], second: value}, cells, every_law)


@pytest.mark.parametrize("norm", AXES["norm"])
@pytest.mark.parametrize("mixer", AXES["mixer"])
def test_all_positions_norms_and_mixers_together(mixer: str, norm: str, cells: Counter) -> None:
    for position, relative in itertools.product(AXES["position"].values(), AXES["relative"].values()):
        chosen = {"norm": AXES["norm"][norm], "mixer": AXES["mixer"][mixer], "relative": relative}
        walk(chosen | {"position": None if position == "own" else position}, cells, forward_and_decode)


@pytest.mark.quick
def test_a_broken_part_does_not_pass_the_grid() -> None:
    """The control of the grid: a part that breaks a law is caught by the same walk."""
    with pytest.raises(AssertionError, match="the future reached the past"):
        walk({"mixer": Peeking(inner=Attention(heads=4))}, Counter(), every_law)
    with pytest.raises(AssertionError, match="the future reached the past"):
        walk({"mixer": Peeking(inner=Attention(heads=4))}, Counter(), forward_and_decode)


@pytest.mark.quick
def test_every_reason_is_met_and_a_false_one_is_noticed() -> None:
    met = set()
    for first, second in itertools.combinations(AXES, 2):
        for a, b in itertools.product(AXES[first].values(), AXES[second].values()):
            try:
                assemble({axis: next(iter(values.values())) for axis, values in AXES.items()} | {first: a, second: b})
            except UserError as error:
                met |= {reason for reason in REASONS if re.search(reason, str(error))}
    assert met == set(REASONS), f"no cell is refused for {set(REASONS) - met}: delete it"
    plain = {axis: next(iter(values.values())) for axis, values in AXES.items()} | {"width": 16}
    assert not shown_true("a head has 4 channels, an odd number", plain | {"relative": Rope()})
    assert not shown_true("the embedding has no vocabulary to score", plain | {"embed": Tokens(vocab=3)})
    with pytest.raises(AssertionError, match="a reason without a proof"):
        shown_true("because", plain)
    assert walk({"order": "parallel", "feed": None}, Counter(), every_law) == REFUSED
