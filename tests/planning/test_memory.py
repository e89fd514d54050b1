"""Activations by shapes against what autograd keeps of real networks on a CPU."""

from __future__ import annotations

import pytest
import torch

from anyformer import preset, replace_in
from anyformer.planning.costs import count_costs
from anyformer.planning.model_plan import plan
from anyformer.presets.decoders import gpt2, llama
from anyformer.slots import Network
from tests.planning.counting import LiveStorages, kept_bytes, peak_bytes, real_inputs

NEAR = 0.10
SHAPES: dict[str, tuple[Network, int, int]] = {
    "gpt, short": (gpt2(64, 3, 4, vocab=64, length=64, dropout=0.0), 4, 32),
    "gpt, long": (gpt2(64, 2, 4, vocab=64, length=512, dropout=0.0), 1, 384),
    "gpt, wide": (gpt2(192, 2, 4, vocab=64, length=64, dropout=0.0), 8, 48),
    "llama": (llama(64, 3, 4, 4, 176, vocab=64), 2, 64),
    "bert": (preset("bert-base-tiny"), 2, 64),
    "vit": (replace_in(preset("vit-b16-tiny"), {"stack.depth": 2}), 4, 1),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", SHAPES)
def test_activations_are_what_autograd_keeps(name: str) -> None:
    spec, batch, length = SHAPES[name]
    found = count_costs(spec, batch, length, torch.float32).training.saved
    real = kept_bytes(spec.build(seed=0).train(), *real_inputs(spec, batch, length))
    assert abs(found / real - 1) < NEAR
    assert abs(count_costs(spec, 2 * batch, length, torch.float32).training.saved / real - 1) > NEAR  # control


def test_recomputation_keeps_the_inputs_of_layers() -> None:
    spec = gpt2(64, 12, 4, vocab=64, length=64, dropout=0.0)
    found = plan(spec, batch=4, length=64, device="cpu")
    stream = 4 * 64 * 64 * 4
    (stack,) = found.costs.stacks
    assert stack.stream == stream
    outside = found.memory.activations - 12 * stack.saved
    assert found.memory.recomputed == outside + 12 * stream + stack.saved
    assert found.memory.recomputed < found.memory.activations / 3


def test_the_peak_is_the_larger_of_two_moments() -> None:
    small, large = (plan("gpt2-tiny", batch=batch, length=64, device="cpu").memory for batch in (1, 64))
    n = plan("gpt2-tiny", length=64, device="cpu").parameters.total
    assert small.weights == 4 * n and small.optimizer == 8 * n and small.gradients == 4 * n
    assert large.peak == 12 * n + large.activations + large.loss
    assert plan("gpt2-tiny", length=1, device="cpu").memory.peak == 16 * n
    assert plan("gpt2-tiny", length=64, device="h200").memory.weights == 6 * n  # bf16, and masters in float32


PEAKS: dict[str, tuple[Network, int, int]] = {
    "gpt": (gpt2(128, 4, 4, vocab=512, length=64, dropout=0.0), 8, 64),
    "gpt, long": (gpt2(64, 2, 4, vocab=64, length=512, dropout=0.0), 1, 384),
    "gpt, wide": (gpt2(256, 2, 4, vocab=512, length=64, dropout=0.0), 2, 16),
    "gpt, many words": (gpt2(64, 2, 4, vocab=8192, length=64, dropout=0.0), 4, 64),
    "gpt, one short text": (gpt2(256, 4, 4, vocab=512, length=64, dropout=0.0), 1, 8),
    "llama": (llama(64, 3, 4, 4, 176, vocab=64), 2, 64),
    "llama, groups": (llama(128, 4, 8, 2, 352, vocab=512), 4, 64),
    "bert": (preset("bert-base-tiny"), 4, 64),
    "vit": (preset("vit-b16-tiny"), 4, 1),
    "t5": (preset("t5-small-tiny"), 8, 32),
    "ft-transformer": (preset("ft-transformer-tiny"), 64, 1),
    "mixtral": (preset("mixtral-tiny"), 2, 64),
}


@pytest.mark.parametrize("name", PEAKS)
def test_the_peak_is_that_of_a_real_step(name: str) -> None:
    """Every storage that is alive in forward, backward and update, in float32 on a CPU."""
    spec, batch, length = PEAKS[name]
    found = plan(spec, batch=batch, length=length, device="cpu").memory
    real = peak_bytes(spec, batch, length)
    assert found.peak == pytest.approx(real, rel=NEAR)
    assert real > 1.02 * (found.weights + found.optimizer)  # control: the moving part is seen too
    more = plan(spec, batch=64 * batch, length=length, device="cpu").memory
    assert more.peak > (1 + NEAR) * real  # control: another batch has another peak


def test_live_storages_are_counted_once_and_forgotten() -> None:
    kept = torch.zeros(1000)
    with LiveStorages(kept) as storages:
        assert storages.live == 4000
        view, more = kept[:10], kept + 1
        assert storages.live == storages.peak == 8000 and view.shape == (10,)
        del more
        assert storages.live == 4000 and storages.peak == 8000
