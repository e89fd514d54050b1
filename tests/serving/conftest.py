"""Folders made once a session; servers started when first asked for and shared by the tests that do not break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.serving.folders import Folders
from tests.serving.server import KEY, Server


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def served(folders: Folders) -> Iterator[Callable[..., Server]]:
    """`served("writer")`: a running server of that kind of model, one for all tests of a worker."""
    running: dict[tuple[str, ...], Server] = {}

    def server(kind: str, *words: str, env: dict[str, str] | None = None) -> Server:
        key = (kind, *words, *(env or {}))
        if key not in running or running[key].process.poll() is not None:
            running[key] = Server(folders[kind], *words, env=env)
        return running[key]

    yield server
    for one in running.values():
        one.close()


@pytest.fixture
def writer(served: Callable[..., Server]) -> Server:
    return served("writer")


@pytest.fixture
def talker(served: Callable[..., Server]) -> Server:
    return served("talker")


@pytest.fixture
def locked(served: Callable[..., Server]) -> Server:
    """A server that asks for a key, which it was given by its surroundings."""
    return served("writer", env={"ANYFORMER_API_KEY": KEY})
