"""What `serve` says when it is ready: sizes from the planner, which are those of the buffers it really has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anyformer import preset
from anyformer.commands import serving
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.planning.model_plan import plan
from anyformer.training.setup import memory


def standing(name: str = "gpt2-tiny", rows: int = 3, limit: int | None = 48) -> Any:
    """A server that is ready, but for its sockets."""
    net = preset(name).build(seed=0)
    store = open_serving_store(net, capacity=rows, limit=limit)
    served = SimpleNamespace(predictor=SimpleNamespace(model=net), name="writer", generates=True, limit=store.limit,
                             chat=SimpleNamespace(name="plain"))  # fmt: skip
    return SimpleNamespace(url="http://127.0.0.1:1", served=served, engine=SimpleNamespace(store=store), bytes=2**20)


def test_the_figures_are_those_of_the_plan_and_of_the_buffers() -> None:
    ready = standing()
    found, planned = serving.facts(ready), plan("gpt2-tiny", batch=3, length=48, dtype=torch.float32)
    assert found["parameters"] == planned.parameters.total
    assert found["kv_bytes"] == planned.caches[0].bytes == 3 * 48 * found["kv_bytes_per_token"]
    store = ready.engine.store
    assert store.bytes == store.rows * store.columns_held * found["kv_bytes_per_token"]
    assert serving.facts(standing(rows=6))["kv_bytes"] == 2 * found["kv_bytes"]


def test_the_largest_context_is_what_memory_is_there_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = standing()
    each = serving.facts(ready)["kv_bytes_per_token"]
    used = 10**6
    limit = used - ready.engine.store.bytes + 3 * 1000 * each + 1  # what the store holds already is free for it
    monkeypatch.setattr(memory, "usage", lambda device: memory.Memory(used, used, limit))
    assert serving.facts(ready)["context_in_memory"] == 1000
    assert "\n  cache    4 KiB a token, 576 KiB when all are full; memory is there for 3 texts of 1,000 tokens\n" in (
        serving.block(ready, secret=False)
    )
    monkeypatch.setattr(memory, "usage", lambda device: memory.Memory(None, None, None))
    assert serving.facts(ready)["context_in_memory"] is None and "memory is there" not in serving.block(ready, False)


def test_a_model_without_keys_has_no_such_line() -> None:
    ready = standing("hyena-small-tiny")
    assert serving.facts(ready)["kv_bytes"] is None and "  cache " not in serving.block(ready, secret=False)
    assert "  context " in serving.block(ready, secret=False)
