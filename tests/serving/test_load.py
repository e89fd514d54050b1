"""Crowds, hang-ups, slow lines and long runs, in sizes that fit a test; prove_serve.py has the whole ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import company, disconnects, ending, fuzz, overload, slow, soak
from tests.serving.figures import Figures
from tests.serving.folders import Folders
from tests.serving.server import Server, serving


@pytest.mark.alone
def test_a_thousand_requests_made_up_from_the_schema(folders: Folders, tmp_path: Path) -> None:
    with serving(
        folders["talker"], "--max-batch-size", "128", "--context", "40"
    ) as server:  # short texts: many requests
        found, said = fuzz.prove(server, tmp_path, cases=1000, examples=25, rounds=4, workers=2)
        print(said)
        found.check()


@pytest.mark.alone
def test_who_hangs_up_leaves_nothing_behind(folders: Folders) -> None:
    with serving(folders["patient"], "--max-batch-size", "8") as server:
        # The promise is 1 s. A text that nobody cancels takes 1.8 to 3 s here.
        disconnects.prove(server, total=50, together=5).check()


@pytest.mark.alone
def test_slow_senders_and_readers_hold_nobody_up(folders: Folders) -> None:
    """As many readers as there are rows; their 30 seconds are waited for in prove_serve.py."""
    with serving(folders["patient"], "--max-batch-size", "8") as server:
        slow.prove(server, senders=40, readers=8, asked=40, ratio=1.5, share=0.5, reading=False, patience=14).check()


@pytest.mark.alone
def test_four_times_too_much(folders: Folders) -> None:
    with serving(folders["writer"], "--max-batch-size", "8", "--queue-tokens", "160") as server:
        # Eight seconds beside the clients' own work on the same cores: wider bars than the minute of prove_serve.py.
        overload.prove(server, rows=8, clients=128, seconds=6, goodput=0.6, first=4.0, refusal=0.1,
                       least=0.1).check()  # fmt: skip


def test_told_to_end_with_many_in_flight(folders: Folders) -> None:
    ending.prove_end(folders["writer"], clients=32, grace=20, tokens=80, again=False).check()


def test_a_text_that_outlasts_the_grace(folders: Folders) -> None:
    ending.prove_late(folders["patient"], grace=0.5).check()


@pytest.mark.alone
def test_a_short_soak(folders: Folders) -> None:
    with serving(folders["talker"], "--max-batch-size", "8") as server:
        soak.prove(server, seconds=16, growth=60).check()


def test_the_same_tokens_alone_and_among_others(served: Callable[..., Server]) -> None:
    company.prove(served("writer", "--max-batch-size", "32"), count=40, most=20).check()


def test_memory_that_runs_out_hits_one_at_most(folders: Folders) -> None:
    company.prove_fault(folders["writer"], count=32, tokens=16).check()


def test_the_same_bits_in_strict_mode(served: Callable[..., Server]) -> None:
    server = served(
        "writer", "--max-batch-size", "32", "--strict", "--context", "64"
    )  # strict steps cover every place there is
    company.prove(server, count=36, longest=40, most=16, bits=True).check()


def test_control_other_seeds_are_other_tokens(served: Callable[..., Server]) -> None:
    """What is compared does vary: another seed gives other texts."""
    import asyncio

    server = served("writer", "--max-batch-size", "32")
    bodies = company.requests(server, 16)
    first = asyncio.run(company.answered(server, bodies, 16))
    other = asyncio.run(company.answered(server, [b | ({"seed": 1} if "seed" in b else {}) for b in bodies], 16))
    assert sum(company.words(a) != company.words(b) for a, b in zip(first, other, strict=True)) >= 6


@pytest.mark.quick
def test_control_a_figure_beyond_its_bar_fails() -> None:
    for name, value in (("at_most", 2.0), ("at_least", 0.5), ("equal", 3.0), ("at_most", float("nan"))):
        found = Figures("control")
        getattr(found, name)("too much", value, 1.0)
        with pytest.raises(AssertionError):
            found.check()
    with pytest.raises(AssertionError):
        Figures("control").check()  # nothing was measured
