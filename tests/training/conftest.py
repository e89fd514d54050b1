"""One nursery of processes for all tests of a worker; it starts when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running
