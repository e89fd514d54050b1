"""Ways of sharing a step over NCCL, as far as one GPU shows them: a group of one process, beside no group at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from anyformer.training.distributed.joined import JoinedPeers
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.world import ALONE, World
from tests.training.distributed.checks import KINDS, compare_gradients, curve, gated, starts_alike
from tests.training.distributed.launch import free_port

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    """A group of one; the command line would do without it."""
    world = World(address="127.0.0.1", port=free_port())
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": world.address, "MASTER_PORT": str(world.port)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    joined = JoinedPeers(world)
    joined.connect(torch.device("cuda", 0))
    try:
        yield joined
    finally:
        joined.part()


@pytest.mark.parametrize("name", KINDS)
def test_a_step_over_nccl_is_that_of_one_process(peers: Peers, name: str) -> None:
    assert starts_alike(KINDS[name], peers)
    assert compare_gradients("gated", KINDS[name], peers) < 1e-5
    assert compare_gradients("classify", KINDS[name], peers) < 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_bf16_trains_in_every_way(peers: Peers, name: str) -> None:
    alone = curve(gated(), Parallel(Peers(ALONE, peers.device)), precision="bf16")
    shared = curve(gated(), KINDS[name](peers), precision="bf16")
    assert shared[-1] < shared[0] - 0.05
    assert max(abs(a - b) / a for a, b in zip(alone, shared, strict=True)) < 0.05
