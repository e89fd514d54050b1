"""Parameters and KV bytes, exact for every preset; a long model from a short one, exact too."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from anyformer import LM, Attention, Block, Model, Stack, Tokens, preset, preset_names  # fmt: skip
from anyformer.core.model import Seq2Seq
from anyformer.mixers.recurrent import Recurrent
from anyformer.planning import no_compiler
from anyformer.planning.costs import ModelCosts, count_costs, count_once, decodes, extrapolate
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.memory import cache_plans
from anyformer.planning.model_plan import plan
from anyformer.planning.parameters import count_parameters
from anyformer.presets.decoders import llama
from tests.planning.counting import TINY

KIB = 1024


@pytest.mark.parametrize("name", preset_names())
def test_parameters_of_every_preset_are_exact(name: str) -> None:
    net = preset(name).build(device="meta")
    found = count_parameters(net)
    assert found.total == sum(p.numel() for p in net.parameters()) == sum(found.by_part.values())
    assert found.learning == sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert found.active <= found.total


def test_of_experts_only_the_chosen_are_active() -> None:
    """Mixtral: 46.7B in all, 12.9B for a token (2401.04088)."""
    found = count_parameters(preset("mixtral").build(device="meta"))
    assert (found.total, found.active) == (46_702_792_704, 12_879_925_248)
    assert count_parameters(preset("gpt2").build(device="meta")).active == 124_439_808


@pytest.mark.parametrize("name", [name for name in TINY if decodes(preset(name))])
def test_kv_bytes_are_those_of_a_real_state(name: str) -> None:
    spec, batch, length = preset(name), 2, 7
    costs = count_costs(spec, batch, length, torch.float32)
    net = spec.build(seed=0).eval()
    state = net.state(batch, length)
    args = blank_inputs(spec, batch, length, device="cpu").args
    with torch.no_grad():
        if isinstance(spec, Seq2Seq):
            memory = net.encode(args[0])
            for part in (args[1][:, :-1], args[1][:, -1:]):
                net(None, part, memory=memory, state=state)
        else:
            for part in (args[0][:, :-1], args[0][:, -1:]):
                net(part, state=state)
    assert costs.cache + costs.cross == state.bytes > 0


@pytest.mark.parametrize(
    "spec, kib",
    [
        (preset("gpt2"), 36), (preset("llama2-7b"), 512), (preset("llama3-8b"), 128),
        (llama(2048, 24, 16, 16, 5504, vocab=32000), 192),
    ],
    ids=["gpt2", "llama2-7b", "llama3-8b", "1.3b"],
)  # fmt: skip
def test_kv_bytes_a_token_of_known_models(spec: Model, kib: int) -> None:
    """W12: bf16."""
    assert count_costs(spec, 1, 16, torch.bfloat16).cache == 16 * kib * KIB
    assert count_costs(spec, 1, 16, torch.float32).cache != 16 * kib * KIB  # control


def windowed(window: int | None) -> Model:
    block = Block(mixer=Attention(heads=4, kv_heads=2, window=window))
    return Model(embed=Tokens(vocab=17), stack=Stack(width=32, depth=3, causal=True, block=block), head=LM())


def test_other_kinds_of_cache() -> None:
    spec = windowed(4)
    found = {c.kind: c.bytes for c in cache_plans(spec, count_costs(spec, 2, 16, torch.float32), 2, 16, torch.float32)}
    token = 2 * 3 * 2 * 8 * 4  # keys and values, layers, groups, channels, bytes
    assert found == {"as built": 2 * 4 * token, "without windows": 2 * 16 * token, "without groups": 2 * 4 * 2 * token,
                     "one group": 2 * 4 * token // 2}  # fmt: skip
    plain = windowed(None)
    kinds = [c.kind for c in cache_plans(plain, count_costs(plain, 2, 16, torch.float32), 2, 16, torch.float32)]
    assert "without windows" not in kinds


def same(a: ModelCosts, b: ModelCosts) -> bool:
    passes = ("forward", "training", "backward", "decode")
    alike = all(getattr(a, p).flops == getattr(b, p).flops and getattr(a, p).bytes == getattr(b, p).bytes
                and getattr(a, p).launches == getattr(b, p).launches for p in passes)  # fmt: skip
    return alike and a.training.saved == b.training.saved and (a.cache, a.cross) == (b.cache, b.cross)


def stacked(depth: int, mixers: int = 1) -> Model:
    blocks = tuple(Block(mixer=Attention(heads=4, window=window)) for window in (None, 4)[:mixers])
    return Model(embed=Tokens(vocab=17), stack=Stack(width=16, depth=depth, causal=True, block=blocks), head=LM())


@pytest.mark.parametrize("depth, mixers", [(1, 1), (6, 1), (7, 2), (8, 2)])
def test_a_deep_model_costs_what_its_layers_cost(depth: int, mixers: int) -> None:
    whole = count_once(stacked(depth, mixers), 2, 12, torch.float32)
    assert same(count_costs(stacked(depth, mixers), 2, 12, torch.float32), whole)
    assert not same(count_costs(stacked(depth + 1, mixers), 2, 12, torch.float32), whole)  # control


def test_a_long_recurrence_costs_what_its_steps_cost() -> None:
    block = Block(mixer=Recurrent(cell="lstm"))
    spec = Model(embed=Tokens(vocab=17), stack=Stack(width=8, depth=1, causal=True, block=block), head=LM())
    whole = count_once(spec, 2, 14, torch.float32)
    assert count_costs(spec, 2, 14, torch.float32).step.flops == whole.step.flops
    assert count_costs(spec, 2, 14, torch.float32).training.saved == whole.training.saved
    assert count_costs(spec, 2, 15, torch.float32).step.flops != whole.step.flops  # control


def test_extrapolation_is_exact_for_polynomials() -> None:
    assert extrapolate([3, 6, 9], [2 * t * t + 5 * t + 1 for t in (3, 6, 9)], 1000) == 2 * 1000**2 + 5 * 1000 + 1


def test_a_model_of_70b_is_planned_without_memory() -> None:
    found = plan("llama3-70b", batch=1, length=4096, processes=8)
    assert found.parameters.total == 70_553_706_496
    assert found.costs.cache == 4096 * 320 * KIB
    assert not found.fits
    assert found.memory.recomputed < found.memory.activations / 10


COLD = """
import sys, time
from anyformer.planning.model_plan import plan
began = time.process_time()
plan("llama3-70b", batch=1, length=4096, processes=8)
print(time.process_time() - began, "torch._dynamo" in sys.modules)
"""


def test_a_first_plan_of_70b_takes_a_second_and_loads_no_compiler() -> None:
    """In a process of its own, where nothing is imported yet; three seconds are left for a slow machine."""
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    seconds, loaded = done.stdout.split()
    assert float(seconds) < 3 and loaded == "False"


def test_functions_of_torch_are_as_before_behind_a_plan() -> None:
    inside = no_compiler.marked()
    assert len(inside) > 50
    before = [vars(fn).get(no_compiler.CACHED) for fn in inside]
    with no_compiler.without_compiler():
        assert "torch._dynamo" in sys.modules or all(vars(fn)[no_compiler.CACHED] is fn for fn in inside)
    assert [vars(fn).get(no_compiler.CACHED) for fn in inside] == before
