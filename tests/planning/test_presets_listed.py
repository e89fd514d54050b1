"""`anyformer presets` prints from the planner; and what a token keeps in the cache, without running a pass."""

from __future__ import annotations

import json

import pytest
import torch

from anyformer import Hyena, preset, preset_names
from anyformer.cli import main
from anyformer.errors import UserError
from anyformer.generation.cache.static_store import StaticStore
from anyformer.planning.costs import count_costs, decodes
from anyformer.planning.memory import cache_bytes_per_token
from anyformer.planning.model_plan import plan, text_length_of
from anyformer.planning.parameters import count_parameters
from anyformer.spec import replace_in
from tests.planning.counting import TINY

KEPT = [name for name in TINY if cache_bytes_per_token(preset(name)) is not None]


@pytest.mark.parametrize("name", KEPT)
def test_a_token_keeps_what_a_pass_leaves(name: str) -> None:
    shorter, longer = (count_costs(preset(name), 1, length, torch.bfloat16).cache for length in (5, 6))
    assert cache_bytes_per_token(preset(name)) == longer - shorter > 0


def test_a_token_keeps_what_the_buffers_of_a_server_have() -> None:
    spec = preset("gpt2-tiny")
    store = StaticStore(spec.build(seed=0), capacity=3, limit=16)
    assert store.bytes == store.rows * store.columns_held * (cache_bytes_per_token(spec, torch.float32) or 0)


def test_where_no_keys_are_kept_nothing_is_said() -> None:
    assert cache_bytes_per_token(preset("bert-base")) is None
    hyena = replace_in(preset("gpt2-tiny"), {"stack.block.mixer": Hyena()})
    assert decodes(hyena) and cache_bytes_per_token(hyena) is None


def test_the_list_is_what_the_planner_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json"]) == 0
    rows = {row.pop("name"): row for row in json.loads(capsys.readouterr().out)}
    assert sorted(rows) == preset_names()
    for name in ("gpt2", "mixtral", "detr-r50", "t5-small"):
        count = count_parameters(preset(name).build(device="meta"))
        assert rows[name]["parameters"] == count.learning
        assert rows[name]["kv_bytes_per_token"] == cache_bytes_per_token(preset(name))
    assert rows["mixtral"]["active"] == 12_879_925_248 < rows["mixtral"]["parameters"]
    assert rows["detr-r50"]["active"] == rows["detr-r50"]["parameters"] == 41_302_368
    assert rows["gpt2"]["kv_bytes_per_token"] == 36 * 1024


def test_models_of_two_sides_are_planned_at_the_length_they_can_place() -> None:
    assert plan("clip-b32").length == 77 and text_length_of(preset("vilbert-base"), None) == 512
    with pytest.raises(UserError, match="77 positions"):
        plan("clip-b32", length=78)
